"""Statistics are worked by hand, compared with scipy's, and tried on data whose truth is known."""

from itertools import product
from math import nan, sqrt

import numpy as np
import pytest
from scipy import stats

from interp import statistics
from interp.statistics import (
    accuracy_lower_bound,
    benjamini_hochberg,
    cluster_bootstrap,
    mcnemar,
    sign_flip,
)

EXACT = {"rtol": 0, "atol": 1e-12}


def normal(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def own(n: int) -> np.ndarray:
    """Each example is its own cluster."""
    return np.arange(n)


def assert_same(a, b, **tolerance):
    for name in ("mean", "se", "low", "high", "n_clusters"):
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), **(tolerance or EXACT), err_msg=name
        )


def enumerated(sums: np.ndarray, statistic) -> float:
    """The sign-flip p-value by its definition."""
    signs = np.array(list(product([1, -1], repeat=len(sums))))
    at = np.array([statistic(s * sums) for s in signs])
    return float(np.mean(at >= at[0] - 1e-9))


def student(sums: np.ndarray) -> float:
    return abs(sums.mean()) / (sums.std(ddof=1) / sqrt(len(sums)))


class TestClusterBootstrap:
    def test_two_clusters_by_hand(self):
        # Sums 0 and 12, sizes 1 and 3. Drawn: both the first (mean 0), both the second (mean 4)
        # with chance 1/4 each, or one of each (12 / 4 = 3; the mean of cluster means would be 2).
        values, labels = np.array([[0.0, 2, 4, 6]]), np.array(["a", "b", "b", "b"])
        ci = cluster_bootstrap(values, labels, n_draws=20_000)
        assert ci.mean.tolist() == [3]
        assert ci.n_clusters.tolist() == [2]
        assert (ci.low[0], ci.high[0]) == (0, 4)
        # variance (0 + 9 + 9 + 16) / 4 − 2.5²
        np.testing.assert_allclose(ci.se, sqrt(8.5 - 6.25), rtol=0.02)
        half = cluster_bootstrap(values, labels, n_draws=20_000, level=0.4)
        assert (half.low[0], half.high[0]) == (3, 3)

    def test_independent_examples_as_in_scipy(self):
        values = np.random.default_rng(3).exponential(size=(3, 50))
        ours = cluster_bootstrap(values, own(50), n_draws=50_000, level=0.9)
        theirs = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=50_000,
            axis=1,
            confidence_level=0.9,
            method="percentile",
            rng=np.random.default_rng(4),
        )
        tolerance = {"rtol": 0, "atol": 0.06 * theirs.standard_error.max()}
        np.testing.assert_allclose(ours.se, theirs.standard_error, **tolerance)
        np.testing.assert_allclose(ours.low, theirs.confidence_interval.low, **tolerance)
        np.testing.assert_allclose(ours.high, theirs.confidence_interval.high, **tolerance)

    def test_copies_within_their_cluster_change_nothing(self):
        values, labels = normal(2, 30), own(30) % 7
        assert_same(
            cluster_bootstrap(np.repeat(values, 3, axis=1), np.repeat(labels, 3)),
            cluster_bootstrap(values, labels),
        )

    def test_copies_taken_for_independent_narrow_it(self):
        values = np.repeat(normal(1, 40), 9, axis=1)
        right = cluster_bootstrap(values, np.repeat(own(40), 9))
        wrong = cluster_bootstrap(values, own(360))
        np.testing.assert_allclose(wrong.se, right.se / 3, rtol=0.1)
        assert wrong.high - wrong.low < (right.high - right.low) / 2

    def test_shift_and_scale(self):
        values, labels = normal(2, 30), own(30) % 7
        plain = cluster_bootstrap(values, labels)
        moved = cluster_bootstrap(5 + 2 * values, labels)
        np.testing.assert_allclose(moved.se, 2 * plain.se, **EXACT)
        for end in ("mean", "low", "high"):
            np.testing.assert_allclose(getattr(moved, end), 5 + 2 * getattr(plain, end), **EXACT)

    @pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 1e9 + 0.1])
    def test_constant_values_are_known_exactly(self, value):
        ci = cluster_bootstrap(np.full((1, 10), value), own(10) % 3)
        assert ci.mean == ci.low == ci.high == value
        assert ci.se == 0

    def test_nan_is_as_if_the_example_were_not_there(self):
        values, labels = normal(4, 48), own(48) % 12
        values[1, ::5] = nan
        values[2, labels > 9] = nan  # whole clusters
        values[3, labels != 2] = nan  # all but one
        together = cluster_bootstrap(values, labels)
        assert together.n_clusters.tolist() == [12, 12, 10, 1]
        for head, row in enumerate(values):
            there = ~np.isnan(row)
            alone = cluster_bootstrap(row[None, there], labels[there])
            for name in ("mean", "se", "low", "high"):
                np.testing.assert_allclose(
                    getattr(together, name)[head], getattr(alone, name)[0], **EXACT
                )

    @pytest.mark.parametrize(
        ("values", "mean"), [([[]], nan), ([[nan, nan]], nan), ([[3.0]], 3), ([[3.0, nan]], 3)]
    )
    def test_below_two_clusters_the_error_is_unknown(self, values, mean):
        ci = cluster_bootstrap(np.array(values), own(len(values[0])))
        np.testing.assert_equal(ci.mean, [mean])
        np.testing.assert_equal([ci.se, ci.low, ci.high], [[nan]] * 3)

    def test_one_cluster_of_many_examples_too(self):
        ci = cluster_bootstrap(normal(2, 5), np.zeros(5))
        assert np.isnan([ci.se, ci.low, ci.high]).all()
        assert np.isfinite(ci.mean).all()

    def test_no_heads(self):
        assert cluster_bootstrap(np.empty((0, 5)), own(5)).low.shape == (0,)

    def test_the_seed_decides(self):
        values = normal(2, 30)
        first, again, other = (cluster_bootstrap(values, own(30), seed=s) for s in (1, 1, 2))
        assert_same(first, again)
        assert (first.low != other.low).all()

    def test_blocks_change_nothing(self, monkeypatch):
        values, labels = normal(5, 30), own(30) % 7
        whole = cluster_bootstrap(values, labels, n_draws=500)
        monkeypatch.setattr(statistics, "BLOCK", 1100)  # 2 heads, 157 draws
        assert_same(cluster_bootstrap(values, labels, n_draws=500), whole)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32])
    def test_computes_in_float64(self, dtype):
        values = normal(2, 3000).astype(dtype)
        ci = cluster_bootstrap(values, own(3000) % 50)
        assert_same(ci, cluster_bootstrap(values.astype(np.float64), own(3000) % 50))

    def test_infinity_is_an_error(self):
        with pytest.raises(ValueError, match="infinite"):
            cluster_bootstrap(np.array([[-np.inf, -np.inf]]), own(2))

    def test_covers_the_truth_as_often_as_it_says(self):
        """60 clusters of 1 to 5 examples that share most of their error."""
        rng = np.random.default_rng(5)
        labels = np.repeat(own(60), rng.integers(1, 6, size=60))
        values = 1 + rng.normal(size=(600, 60))[:, labels] + rng.normal(size=(600, len(labels)))

        def coverage(labels, level):
            ci = cluster_bootstrap(values, labels, n_draws=1000, level=level)
            return np.mean((ci.low <= 1) & (ci.high >= 1))

        assert 0.92 < coverage(labels, 0.95) < 0.97
        assert 0.75 < coverage(labels, 0.8) < 0.84
        assert coverage(own(len(labels)), 0.95) < 0.9  # clusters forgotten


class TestSignFlip:
    def test_three_clusters_by_hand(self):
        # 1 + 2 + 3 is the largest |sum| of 8, with its mirror image; so is that of 1 + 2 − 3 the
        # smallest, so all 8 are as far.
        values = np.array([[1.0, 2, 3], [1, 2, -3]])
        np.testing.assert_allclose(sign_flip(values, own(3)), [2 / 8, 1], **EXACT)

    def test_sums_of_clusters_are_flipped(self):
        # 1 + 2 and 3 − 1 and 4
        p = sign_flip(np.array([[1.0, 2, 3, -1, 4]]), np.array(["x", "x", "y", "y", "z"]))
        np.testing.assert_allclose(p, sign_flip(np.array([[3.0, 2, 4]]), own(3)), **EXACT)

    @pytest.mark.parametrize("n", [2, 3, 6, 10])
    def test_is_the_test_of_the_studentised_mean(self, n):
        values = normal(4, n, seed=n) + 0.5
        literal = [enumerated(row, student) for row in values]
        np.testing.assert_allclose(sign_flip(values, own(n)), literal, **EXACT)

    def test_as_in_scipy(self):
        values = normal(5, 9) + 0.4
        values[4] = [1, 1, -1, 1, 0, 2, 1, 1, 0]  # ties and zeros
        for row, p in zip(values, sign_flip(values, own(9)), strict=True):
            theirs = stats.permutation_test(
                (row,), np.mean, permutation_type="samples", n_resamples=np.inf
            )
            np.testing.assert_allclose(p, theirs.pvalue, **EXACT)

    def test_misses_and_hits_are_a_sign_test(self):
        values = np.array([[1.0] * 9 + [-1] * 3 + [0] * 20])
        np.testing.assert_allclose(
            sign_flip(values, own(32)), stats.binomtest(9, 12).pvalue, **EXACT
        )

    def test_many_misses_and_hits_are_one_too(self):
        values = np.array([[1.0] * 112 + [-1] * 88])
        p = stats.binomtest(112, 200).pvalue
        drawn = sign_flip(values, own(200), n_draws=40_000)
        np.testing.assert_allclose(drawn, p, atol=5 * sqrt(p * (1 - p) / 40_000))

    @pytest.mark.parametrize("dtype", [np.float16, np.float32])
    def test_computes_in_float64(self, dtype):
        values, labels = normal(3, 3000).astype(dtype), own(3000) % 10
        np.testing.assert_allclose(
            sign_flip(values, labels), sign_flip(values.astype(np.float64), labels), **EXACT
        )

    def test_rounding_breaks_no_ties(self):
        # In floats 0.1 + 0.2 − 0.3 is 6e-17: the flips that give exactly 0 are as far.
        np.testing.assert_allclose(sign_flip(np.array([[0.1, 0.2, -0.3]]), own(3)), 1, **EXACT)
        thirds = np.array([[1, 1, 1, 1, 1, -1, 1, 1, 1, -1, 1, 1]])
        np.testing.assert_allclose(
            sign_flip(thirds / 3, own(12)), sign_flip(thirds * 1.0, own(12)), **EXACT
        )

    def test_draws_come_close_to_all_flips(self, monkeypatch):
        values = normal(20, 12) + 0.4
        exact = sign_flip(values, own(12))
        monkeypatch.setattr(statistics, "ENUMERATE", 1)
        drawn = sign_flip(values, own(12), n_draws=40_000)
        assert (drawn != exact).any()
        np.testing.assert_array_less(
            np.abs(drawn - exact), 5 * np.sqrt(exact * (1 - exact) / 40_000)
        )

    def test_a_drawn_p_is_never_zero(self):
        values, labels = np.ones((3, 100)), own(100)
        np.testing.assert_allclose(sign_flip(values, labels, n_draws=99), 1 / 100, **EXACT)

    @pytest.mark.parametrize(("family", "draws"), [(None, 10_000), (26, 10_400), (270, 108_000)])
    def test_a_larger_family_takes_more_draws(self, family, draws):
        p = sign_flip(np.ones((2, 100)), own(100), family=family)
        np.testing.assert_allclose(p, 1 / (1 + draws), **EXACT)

    def test_the_family_is_at_first_the_heads_given(self):
        np.testing.assert_allclose(sign_flip(np.ones((30, 70)), own(70)), 1 / 12_001, **EXACT)

    @pytest.mark.parametrize("n", [5, 40])
    def test_direction_and_unit_do_not_matter(self, n):
        values = normal(6, n)
        p = sign_flip(values, own(n))
        np.testing.assert_allclose(sign_flip(-values, own(n)), p, **EXACT)
        np.testing.assert_allclose(sign_flip(values * 1e-6, own(n)), p, **EXACT)

    def test_no_damage_at_all(self):
        assert sign_flip(np.zeros((2, 40)), own(40)).tolist() == [1, 1]
        assert sign_flip(np.array([[0.0, 0, 7]]), own(3)).tolist() == [1]

    @pytest.mark.parametrize("n", [10, 40])
    def test_nan_is_as_if_the_example_were_not_there(self, n):
        values = normal(3, n) + 0.3
        values[1, n // 2 :] = nan
        values[2, ::3] = nan
        together = sign_flip(values, own(n), n_draws=20_000)
        for row, p in zip(values, together, strict=True):
            there = ~np.isnan(row)
            alone = sign_flip(row[None, there], own(n)[there], n_draws=20_000)
            np.testing.assert_allclose(p, alone, atol=0.02)

    @pytest.mark.parametrize("values", [[[]], [[nan, nan]], [[3.0]], [[3.0, nan]]])
    def test_below_two_clusters_there_is_no_test(self, values):
        assert np.isnan(sign_flip(np.array(values), own(len(values[0])))).all()
        assert np.isnan(sign_flip(normal(1, 4), np.zeros(4))).all()

    def test_a_head_s_p_does_not_depend_on_the_other_heads(self):
        values = normal(4, 100)
        values[0, 5:] = nan
        together = sign_flip(values, own(100), n_draws=500)
        np.testing.assert_allclose(
            sign_flip(values[2:3], own(100), n_draws=500), together[2:3], **EXACT
        )

    @pytest.mark.parametrize("n", [9, 100])
    def test_blocks_change_nothing(self, n, monkeypatch):
        values = normal(4, n) + 0.1
        whole = sign_flip(values, own(n), n_draws=500)
        monkeypatch.setattr(statistics, "BLOCK", 700)
        np.testing.assert_allclose(sign_flip(values, own(n), n_draws=500), whole, **EXACT)

    def test_infinity_is_an_error(self):
        with pytest.raises(ValueError, match="infinite"):
            sign_flip(np.array([[-np.inf, 1]]), own(2))

    @pytest.mark.parametrize("n", [12, 40, 150])
    def test_p_is_uniform_where_no_head_matters(self, n):
        """Clusters of several sizes, and heavy tails; symmetric, as the null hypothesis says."""
        rng = np.random.default_rng(n)
        labels = np.repeat(own(n), 1 + own(n) % 4)
        noise = rng.standard_t(3, size=(400, n))[:, labels] + rng.normal(size=(400, len(labels)))
        p = sign_flip(noise, labels, n_draws=4000)
        assert stats.kstest(p, "uniform").pvalue > 0.05
        assert 0.02 < np.mean(p <= 0.05) < 0.08
        forgotten = sign_flip(noise, own(len(labels)), n_draws=4000)
        assert np.mean(forgotten <= 0.05) > 0.1

    def test_finds_damage(self):
        assert (sign_flip(normal(20, 60) + 1, own(60)) < 0.001).all()


class TestMcNemar:
    def test_by_hand(self):
        # 4 examples tell them apart, all for b: 2 / 2^4.
        a = np.array([0, 0, 0, 0, 1, 1, 0], dtype=bool)
        b = np.array([1, 1, 1, 1, 1, 1, 0], dtype=bool)
        assert mcnemar(a, b) == pytest.approx(2 / 16)
        assert mcnemar(b, a) == pytest.approx(2 / 16)

    def test_is_a_sign_flip_of_the_differences(self):
        a, b = np.random.default_rng(6).random((2, 14)) < np.array([[0.3], [0.7]])
        flip = sign_flip((a * 1.0 - b)[None], own(14))
        np.testing.assert_allclose(mcnemar(a, b), flip, **EXACT)

    def test_no_difference(self):
        a = np.array([True, False])
        assert mcnemar(a, a) == 1
        assert mcnemar(a[:0], a[:0]) == 1


class TestBenjaminiHochberg:
    def test_by_hand(self):
        # 4 p / rank: 0.04, 0.08, 0.052, 0.6; the third is smaller than the second.
        q = benjamini_hochberg(np.array([0.6, 0.01, 0.039, 0.04]))
        np.testing.assert_allclose(q, [0.6, 0.04, 4 * 0.04 / 3, 4 * 0.04 / 3], **EXACT)

    def test_as_in_scipy(self):
        p = np.random.default_rng(7).random(50) ** 2
        np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p))

    def test_nan_does_not_count(self):
        p = np.array([[0.01, nan, 0.3], [nan, 0.02, nan]])
        q = benjamini_hochberg(p)
        assert np.isnan(q).tolist() == np.isnan(p).tolist()
        np.testing.assert_allclose(q[~np.isnan(p)], [0.03, 0.3, 0.03], **EXACT)

    def test_no_tests(self):
        assert np.isnan(benjamini_hochberg(np.array([nan, nan]))).all()
        assert benjamini_hochberg(np.array([])).shape == (0,)

    def test_impossible_p(self):
        with pytest.raises(ValueError, match="between 0 and 1"):
            benjamini_hochberg(np.array([1.5]))

    def test_false_discoveries_are_as_rare_as_promised(self):
        """Of 40 tests 10 have an effect; discoveries at q ≤ 0.2 are false in 0.2 · 30/40."""
        rng = np.random.default_rng(8)
        z = rng.normal(size=(400, 40)) + np.where(np.arange(40) < 10, 3, 0)
        found = np.array([benjamini_hochberg(p) for p in 2 * stats.norm.sf(np.abs(z))]) <= 0.2
        share = found[:, 10:].sum(axis=1) / np.maximum(1, found.sum(axis=1))
        assert 0.12 < share.mean() < 0.18
        assert found[:, :10].mean() > 0.7


class TestAccuracyLowerBound:
    def test_by_hand(self):
        # All 10 right: the accuracy a for which a^10 = 0.025.
        assert accuracy_lower_bound(10, 10) == pytest.approx(0.025**0.1)
        assert accuracy_lower_bound(10, 10, level=0.9) == pytest.approx(0.05**0.1)
        assert accuracy_lower_bound(1, 10) == pytest.approx(1 - 0.975**0.1)
        assert accuracy_lower_bound(0, 10) == 0

    @pytest.mark.parametrize(("hits", "n"), [(1, 1), (7, 20), (60, 100)])
    def test_is_where_so_many_hits_become_unlikely(self, hits, n):
        assert stats.binom.sf(hits - 1, n, accuracy_lower_bound(hits, n)) == pytest.approx(0.025)

    def test_nothing_asked(self):
        assert np.isnan(accuracy_lower_bound(0, 0))

    @pytest.mark.parametrize("hits", [-1, 11])
    def test_impossible_hits(self, hits):
        with pytest.raises(ValueError, match=r"k.*n"):
            accuracy_lower_bound(hits, 10)


# ------------------------------------------------------------------ repeated looks
def test_the_t_interval_of_single_examples_is_the_textbook_s():
    values = np.random.default_rng(0).normal(size=(3, 12))
    found = statistics.cluster_t(values, np.arange(12), level=0.9)
    wanted = stats.ttest_1samp(values, 0, axis=1)
    interval = wanted.confidence_interval(0.9)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    assert found.se == pytest.approx(stats.sem(values, axis=1))


def test_the_t_interval_of_clusters_by_hand():
    values, clusters = np.array([[1.0, 3.0, 5.0]]), np.array(["a", "a", "b"])
    found = statistics.cluster_t(values, clusters, level=0.95)
    # mean 3; clusters are off by (4 - 6) and (5 - 3); se² = 2/1 · (4 + 4) / 9
    assert found.mean == pytest.approx([3.0])
    assert found.se == pytest.approx([np.sqrt(16 / 9)])
    assert found.high == pytest.approx([3 + 12.706205 * 4 / 3])
    assert found.n_clusters.tolist() == [2]


def test_the_t_interval_of_equal_clusters_is_that_of_their_means():
    values = np.random.default_rng(1).normal(size=(4, 30))
    found = statistics.cluster_t(values, np.arange(30) % 10, level=0.95)
    means = values.reshape(4, 3, 10).mean(1)
    interval = stats.ttest_1samp(means, 0, axis=1).confidence_interval(0.95)
    assert found.low == pytest.approx(interval.low)


def test_the_t_interval_leaves_out_what_was_not_measured():
    values = np.array([[1.0, 2, 4, np.nan], [1, np.nan, np.nan, np.nan], [np.nan] * 4])
    found = statistics.cluster_t(values, np.arange(4), level=np.array([0.95, 0.95, 0.95]))
    alone = statistics.cluster_t(values[:1, :3], np.arange(3), level=0.95)
    assert found.low[0] == pytest.approx(alone.low[0])
    assert np.isnan(found.low[1:]).all()
    assert np.isnan(found.high[1:]).all()
    assert found.n_clusters.tolist() == [3, 1, 0]


def test_looks_spend_what_o_brien_and_fleming_s_function_says():
    # Lan & DeMets (1983): two-sided .05 in two equal looks spends .00557 at the first
    first, last = statistics.look_levels([0.5, 1.0], 0.95)
    assert 1 - first == pytest.approx(0.005575, abs=1e-5)
    assert (1 - first) + (1 - last) == pytest.approx(0.05)
    assert statistics.look_levels([1.0], 0.9) == pytest.approx([0.9])


@pytest.mark.parametrize("shares", [[0.1, 0.2, 1.0], [0.125, 0.25, 0.5, 1.0], [1.0]])
def test_looks_spend_all_and_ever_more(shares):
    spent = [1 - level for level in statistics.look_levels(shares, 0.95)]
    assert sum(spent) == pytest.approx(0.05)
    assert spent == sorted(spent)


def test_intervals_at_all_looks_hold_together_in_nineteen_of_twenty_cases():
    rng, n, shares = np.random.default_rng(2), 96, [0.125, 0.25, 0.5, 1.0]
    values = rng.normal(size=(4000, n))  # the true mean is 0
    clusters, missed, at_95 = np.arange(n), np.zeros(4000, bool), np.zeros(4000, bool)
    for share, level in zip(shares, statistics.look_levels(shares, 0.95), strict=True):
        k = int(share * n)
        for marks, used in ((missed, level), (at_95, 0.95)):
            found = statistics.cluster_t(values[:, :k], clusters[:k], level=used)
            marks |= (found.low > 0) | (found.high < 0)
    assert 0.035 < missed.mean() < 0.057
    assert at_95.mean() > 0.11  # what looking without spending would do


def test_classes_by_hand():
    low = np.array([0.2, -0.9, -0.05, 0.05, -0.2, np.nan, 0.1])
    high = np.array([0.9, -0.2, 0.05, 0.5, 0.2, np.nan, 0.2])
    assert statistics.classify(low, high, 0.1).tolist() == [
        "needed",
        "harmful",
        "negligible",
        "undecided",
        "undecided",
        "undecided",
        "undecided",
    ]
