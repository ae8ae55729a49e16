"""Tables: by hand, by laws, and against plain pandas."""

import numpy as np
import pandas as pd
import pytest

from interp import results, statistics
from interp.errors import InputError
from interp.runs import Run

CONSTANTS = {
    "model": "m",
    "unit": "head",
    "ablation": "mean",
    "positions": "all",
    "task": "t",
    "metric": "logit_diff",
}
UNITS = pd.DataFrame({"site": "attn", "layer": [0, 0, 1], "head": [0, 1, 0], "kv_group": [0, 1, 0]})


def rows(damage, clean=2.0):
    """Make a sweep's rows of a matrix of damages, unit x example; NaN was not measured."""
    setting, example = np.nonzero(~np.isnan(damage))
    table = pd.DataFrame({"setting": setting, "example": example, "draw": 0, "clean": clean})
    return table.assign(ablated=clean - damage[setting, example])


def examples(n, n_clusters=None):
    numbers = np.arange(n)
    return pd.DataFrame({"example": numbers + 100, "cluster": numbers % (n_clusters or n)})


def made(damage, n_clusters=None, **changes):
    damage = np.asarray(damage, dtype=float)
    return results.effects(
        rows(damage),
        UNITS[: len(damage)],
        examples(damage.shape[1], n_clusters),
        higher_is_better=True,
        **(CONSTANTS | changes),
    )


def summed(table, **changes):
    choices = {"n_draws": 200, "level": 0.95, "seed": 0} | changes
    return results.summary(table, **choices)


# ------------------------------------------------------------------ effects
def test_effects_average_over_draws_and_sign_damage_by_the_metrics_direction():
    sweep = pd.DataFrame(
        {
            "setting": [0, 0, 1, 1],
            "example": [1, 1, 1, 1],
            "draw": [0, 1, 0, 1],
            "clean": 5.0,
            "ablated": [1.0, 2.0, 6.0, 8.0],
        }
    )
    for higher_is_better, sign in ((True, -1), (False, 1)):
        table = results.effects(
            sweep, UNITS, examples(2), higher_is_better=higher_is_better, **CONSTANTS
        )
        assert table["ablated"].tolist() == [1.5, 7.0]
        assert table["effect"].tolist() == [-3.5, 2.0]
        assert table["damage"].tolist() == [sign * -3.5, sign * 2.0]
        assert table["example"].tolist() == [101, 101]
        assert table[["layer", "head", "kv_group"]].to_numpy().tolist() == [[0, 0, 0], [0, 1, 1]]


# ------------------------------------------------------------------ summary
def test_a_summary_counts_what_was_measured_of_each_unit():
    damage = np.array([[1.0, 2, 3, 4], [1, 1, np.nan, np.nan]])
    table = summed(made(damage))
    assert table["n"].tolist() == [4, 2]
    assert table["n_clusters"].tolist() == [4, 2]
    assert table["damage"].tolist() == [2.5, 1.0]


def test_a_unit_s_line_does_not_depend_on_the_order_of_lines_or_on_other_units():
    damage = np.random.default_rng(0).normal(size=(3, 12))
    table = made(damage, 6)
    whole = summed(table, tolerance=0.3)
    shuffled = summed(table.sample(frac=1, random_state=1), tolerance=0.3)
    by = ["layer", "head"]
    pd.testing.assert_frame_equal(
        whole.sort_values(by, ignore_index=True), shuffled.sort_values(by, ignore_index=True)
    )
    alone = summed(table[table["layer"] == 1], tolerance=0.3)
    columns = ["damage", "ci_low", "ci_high", "class", "n_clusters"]
    pd.testing.assert_frame_equal(alone[columns], whole[columns].tail(1).reset_index(drop=True))


def test_a_summary_says_what_the_statistics_say():
    damage = np.random.default_rng(1).normal(0.5, 1, size=(3, 20))
    table = summed(made(damage, 10), tolerance=0.2)
    interval = statistics.cluster_bootstrap(damage, np.arange(20) % 10, n_draws=200)
    assert table["ci_low"].to_numpy() == pytest.approx(interval.low)
    assert table["se"].to_numpy() == pytest.approx(interval.se)
    assert table["class"].tolist() == list(statistics.classify(interval.low, interval.high, 0.2))
    assert table["q_value"].to_numpy() == pytest.approx(
        statistics.benjamini_hochberg(table["p_value"].to_numpy())
    )


def test_an_adaptive_summary_has_each_units_interval_at_the_level_of_its_last_look():
    damage = np.random.default_rng(2).normal(size=(2, 16))
    damage[1, 4:] = np.nan
    table = summed(made(damage), tolerance=0.1, looks={4: 0.999, 16: 0.96})
    for unit, level in ((0, 0.96), (1, 0.999)):
        own = statistics.cluster_t(damage[[unit]], np.arange(16), level=level)
        assert table["ci_high"][unit] == pytest.approx(own.high[0])
    assert table["p_value"].isna().all()
    assert table["q_value"].isna().all()


# ------------------------------------------------------------------ helpers
def two_kinds(first, second):
    return pd.concat(
        [made(first, 4, ablation="zero"), made(second, 4, ablation="mean")], ignore_index=True
    )


def test_a_matrix_is_the_summary_laid_out():
    table = summed(made([[1.0, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]))
    laid = results.matrix(table)
    assert laid.loc[0].tolist() == [1, 2]
    assert laid.loc[1, 0] == 3
    assert np.isnan(laid.loc[1, 1])  # there is no such head: no filler
    assert results.matrix(table, "n").loc[0, 1] == 4


def test_a_matrix_of_several_runs_is_refused_and_says_what_to_pick():
    table = two_kinds(np.ones((3, 8)), np.ones((3, 8)))
    with pytest.raises(InputError, match="pick one of ablation first"):
        results.matrix(summed(table))


def test_joining_puts_the_same_unit_on_one_line():
    first = summed(made([[1.0, 1], [2, 2], [3, 3]]))
    second = summed(made([[5.0, 5], [6, 6]]))
    both = results.join(first, second.sample(frac=1, random_state=0), ("zero", "mean"))
    assert both["damage_zero"].tolist() == [1, 2]
    assert both["damage_mean"].tolist() == [5, 6]
    with pytest.raises(InputError, match="several lines in table '2'"):
        results.join(first, pd.concat([second, second]))
    other_groups = results.join(first, first.assign(kv_group=7))  # they follow from the heads
    assert len(other_groups) == 3
    groups = first.assign(head=pd.array([None] * 3, dtype="Int64"))
    with pytest.raises(InputError, match="units by site, layer, head and by site, layer, kv_group"):
        results.join(first, groups)
    with pytest.raises(InputError, match="units by"):
        results.join(first, second.assign(layer_2=0))


def test_comparing_two_kinds_is_the_paired_difference():
    rng = np.random.default_rng(3)
    shared = rng.normal(size=(3, 40)) * 5
    first, second = shared + 1, shared + rng.normal(size=(3, 40)) * 0.1
    table = results.compare(two_kinds(first, second), "ablation", "zero", "mean")
    assert table["difference"].to_numpy() == pytest.approx((first - second).mean(1))
    assert table["damage_zero"].to_numpy() == pytest.approx(first.mean(1))
    interval = statistics.cluster_bootstrap(first - second, np.arange(40) % 4)
    assert table["ci_low"].to_numpy() == pytest.approx(interval.low)
    assert (table["ci_high"] - table["ci_low"] < 0.2).all()  # what both share cancels
    assert table["n"].tolist() == [40] * 3


def test_comparing_takes_only_examples_that_both_have():
    first = np.array([[1.0, 2, 3, 4]])
    second = np.array([[0.0, np.nan, 1, np.nan]])
    [line] = results.compare(two_kinds(first, second), "ablation", "zero", "mean").itertuples()
    assert line.n == 2
    assert line.difference == 1.5


def test_comparing_what_is_not_there_or_there_twice_is_refused():
    table = two_kinds(np.ones((1, 4)), np.ones((1, 4)))
    with pytest.raises(InputError, match=r"ablation=median \(there are zero, mean\)"):
        results.compare(table, "ablation", "zero", "median")
    with pytest.raises(InputError, match="no column 'ablashun'"):
        results.compare(table, "ablashun", "zero", "mean")
    with pytest.raises(InputError, match="several runs have ablation=zero"):
        results.compare(pd.concat([table, table]), "ablation", "zero", "mean")


# ------------------------------------------------------------------ load
def finished(folder, **config):
    run = Run(folder, config, {})
    run.start({}, {})
    run.write("summary", summed(made(np.ones((2, 4)))))
    run.finish()
    return run


def test_load_reads_one_run_many_runs_and_globs(tmp_path):
    finished(tmp_path / "a" / "x", seed=1, n_examples=4, dtype="float32")
    finished(tmp_path / "a" / "y", seed=2, n_examples=4, dtype="float32")
    assert len(results.load(tmp_path / "a" / "x")) == 2
    assert results.load(tmp_path)["seed"].tolist() == [1, 1, 2, 2]
    assert set(results.load(str(tmp_path / "*" / "y"))["run"]) == {str(tmp_path / "a" / "y")}


def test_load_says_which_runs_are_not_finished(tmp_path):
    finished(tmp_path / "x")
    Run(tmp_path / "y", {}, {}, (0, 2)).start({}, {})
    with pytest.warns(UserWarning, match=r"y \(shard 0/2, 1/2\)"):
        assert len(results.load(tmp_path)) == 2
    with pytest.raises(InputError, match=r"no finished run .* unfinished: .*y"):
        results.load(tmp_path / "y")
    with pytest.raises(InputError, match="no finished run with a table 'scores'"):
        results.load(tmp_path / "x", "scores")
