"""How sure can one be? Intervals and tests for the mean damage of many heads at once.

The arrays hold one row for each head and one column for each example. A value is what was measured
on one example, in any unit (`nats` lost, hit or miss as 1 or 0); NaN says that this example was not
measured on this head, so heads may have been given differently many examples.

    cluster    examples that stem from one source (a template, a name, a sentence) and so err alike;
               whole clusters, not examples, count as independent. Labels may be of any sortable
               type; examples that are independent each get a label of their own
    damage     score of the whole model minus score with the head removed; 0 where it is not needed

Random draws come from a seed. A head's numbers depend (but for rounding) on its own row, the
labels, the seed and the number of draws, not on which other heads are in the array.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from scipy import sparse, stats

Values = Float[np.ndarray, "head example"]
Labels = Shaped[np.ndarray, " example"]

BLOCK = 2**21
"""Numbers held at a time (16 MiB of float64), in each of a handful of arrays."""
ENUMERATE = 16
"""Up to so many clusters all 2^16 flips are tried; beyond, some are drawn."""
CLASSES = ("needed", "harmful", "negligible", "undecided")
"""What a head can be, by its interval; see `classify`."""
TIE = 1e-9
"""Two sums of the same terms, up to sign, are equal if closer than this share of Σ|term|."""


@dataclass(frozen=True, eq=False)
class Interval:
    """A mean for each head, and how far it may be off; all in the unit of the values."""

    mean: Float[np.ndarray, " head"]
    """NaN where nothing was measured."""
    se: Float[np.ndarray, " head"]
    """Standard error; NaN, as are the ends, for fewer than 2 clusters."""
    low: Float[np.ndarray, " head"]
    high: Float[np.ndarray, " head"]
    n_clusters: Int[np.ndarray, " head"]
    """Clusters in which at least one example was measured."""


def cluster_bootstrap(
    values: Values, clusters: Labels, *, n_draws: int = 2000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Say how far each head's mean might move had other sources of examples been drawn.

    As many clusters as were measured are drawn again, with replacement, `n_draws` times; each time
    the mean over all their examples, Σ cluster sums / Σ cluster sizes, is taken anew. `se` is the
    standard deviation of these means, `low` and `high` are the quantiles that leave out
    (1 − level) / 2 on either side: the percentile interval (Efron & Tibshirani 1993, An
    Introduction to the Bootstrap, ch. 13) under resampling of clusters (Cameron, Gelbach & Miller
    2008, https://doi.org/10.1162/rest.90.3.414). With few clusters it is too narrow: for normal
    cluster means, 10 of them, a 95% interval covers about 90%.

    Heads measured in the same clusters share their draws, so their intervals err together.

    Raises:
        ValueError: A value is infinite.
    """
    _check_finite(values)
    # Values minus the smallest are all 0 in a constant row, so its mean is that constant exactly.
    start = np.fmin.reduce(values, axis=1, initial=np.nan).astype(np.float64)
    sums, sizes = _by_cluster(values - start[:, None], clusters)
    with np.errstate(invalid="ignore"):  # 0/0: nothing measured
        offset = sums.sum(axis=1) / sizes.sum(axis=1)
    sums -= sizes * np.where(np.isnan(offset), 0, offset)[:, None]
    measured = sizes > 0
    mean, n_clusters = start + offset, measured.sum(axis=1)
    se, low, high = np.full((3, len(values)), np.nan)
    tails = (1 - level) / 2, (1 + level) / 2
    for heads in _alike(measured, at_most=max(1, BLOCK // n_draws)):
        columns = measured[heads[0]]
        if columns.sum() < 2:
            continue
        at = np.ix_(heads, columns)
        means = _resampled_means(sums[at], sizes[at], n_draws, seed)
        se[heads] = means.std(axis=1, ddof=1)
        low[heads], high[heads] = mean[heads] + np.quantile(means, tails, axis=1)
    return Interval(mean, se, low, high, n_clusters)


def bootstrap_means(
    values: Values, clusters: Labels, *, n_draws: int = 2000, seed: int = 0
) -> Float[np.ndarray, "head draw"]:
    """Draw means as `cluster_bootstrap` does, the same clusters for all heads at once.

    For what is made of several means: ratios, areas, counts. All values must have been measured;
    fewer than 2 clusters give NaN.
    """
    sums, sizes = _by_cluster(values, clusters)
    if sums.shape[1] < 2:
        return np.full((len(values), n_draws), np.nan)
    return _resampled_means(sums, sizes, n_draws, seed)


def cluster_t(
    values: Values,
    clusters: Labels,
    *,
    level: float | Float[np.ndarray, " head"],
    weights: Float[np.ndarray, " example"] | None = None,
) -> Interval:
    """Say the same as `cluster_bootstrap` by a formula, for levels that no bootstrap resolves.

    mean ± t · se with the quantile t of Student's distribution for C − 1 degrees of freedom and
    se² = C / (C − 1) · Σ (D_c − n_c · mean)² / n², where D_c is the sum of cluster c and n_c its
    size (Liang & Zeger 1986, https://doi.org/10.1093/biomet/73.1.13, with the correction for few
    clusters of Cameron & Miller 2015, https://doi.org/10.3368/jhr.50.2.317). With one example a
    cluster it is the textbook's interval.

    Args:
        level: The intervals' level of confidence.
        weights: How much each example counts in sums and sizes (default: 1); an example that is
            itself a mean of k things counts k.

    Raises:
        ValueError: A value is infinite.
    """
    _check_finite(values)
    sums, sizes = _by_cluster(values, clusters, weights)
    n, n_clusters = sizes.sum(axis=1), (sizes > 0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # nothing measured, or one cluster
        mean = sums.sum(axis=1) / n
        off = (sums - sizes * mean[:, None]) ** 2
        se = np.sqrt(n_clusters / (n_clusters - 1) * off.sum(axis=1)) / n
        reach = stats.t.ppf((1 + level) / 2, n_clusters - 1) * se
    few = n_clusters < 2
    se[few], reach[few] = np.nan, np.nan
    return Interval(mean, se, mean - reach, mean + reach, n_clusters)


def p_value(interval: Interval) -> Float[np.ndarray, " head"]:
    """Ask of each mean of `cluster_t` whether it could be 0: Student's two-sided p-value.

    NaN below 2 clusters; without any spread 1 for a mean of 0, and 0 for another.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(interval.mean == 0, 0.0, np.abs(interval.mean) / interval.se)
    return np.where(
        np.isnan(interval.se), np.nan, 2 * stats.t.sf(t, np.maximum(interval.n_clusters - 1, 1))
    )


def look_levels(shares: Sequence[float], level: float) -> list[float]:
    """Say at which level to take the interval at each of several looks at growing data.

    The looks together miss with probability 1 − `level` at most: look k may miss with
    α(t_k) − α(t_{k−1}), and such chances add up whatever the looks have in common (Boole). α is
    the spending function of O'Brien & Fleming's boundaries, α(t) = 2 − 2 Φ(z / √t) with
    z = Φ⁻¹((1 + level) / 2): almost nothing is spent early, and the last look is almost as sharp as
    if it were the only one (Lan & DeMets 1983, https://doi.org/10.1093/biomet/70.3.659). Their
    boundaries also use that looks overlap; without that these are wider, by little.

    Args:
        shares: The share of all data at each look, growing up to 1.
        level: The confidence that all intervals hold together.
    """
    z = stats.norm.ppf((1 + level) / 2)
    spent = 2 * stats.norm.sf(z / np.sqrt(np.array(shares)))
    return (1 - np.diff(spent, prepend=0.0)).tolist()


def classify(
    low: Float[np.ndarray, " head"], high: Float[np.ndarray, " head"], tolerance: float
) -> Shaped[np.ndarray, " head"]:
    """Sort heads by where the interval of their damage lies.

    `needed`: all of it above +tolerance; `harmful`: all of it below −tolerance; `negligible`: all
    of it within; `undecided`: across a bound, or no interval.
    """
    needed, harmful = low > tolerance, high < -tolerance
    negligible = (low >= -tolerance) & (high <= tolerance)
    return np.select([needed, harmful, negligible], CLASSES[:3], CLASSES[3])


def sign_flip(
    values: Values,
    clusters: Labels,
    *,
    n_draws: int | None = None,
    seed: int = 0,
    family: int | None = None,
) -> Float[np.ndarray, " head"]:
    """Ask of each head whether its damage could be chance: a two-sided p-value.

    If a head is not needed, each cluster's summed damage might as well have had the opposite sign
    (the null hypothesis: the sums are independent and symmetric about 0). p is the share of all
    choices of signs after which the mean is at least as far from 0, in standard errors, as it was
    (Fisher 1935, The Design of Experiments, § 21; Pitman 1937, https://doi.org/10.2307/2984124;
    with clusters: Cameron, Gelbach & Miller 2008, https://doi.org/10.1162/rest.90.3.414).

    p is exact where at most 16 clusters have a sum other than 0. Elsewhere signs are drawn, and
    p = (1 + draws at least as far) / (1 + draws), which is never 0 and keeps the test valid
    (Phipson & Smyth 2010, https://arxiv.org/abs/1603.05766). p is 1 where all sums are 0, NaN for
    fewer than 2 clusters. The smallest p that C clusters allow is 2 / 2^C.

    Args:
        n_draws: Default: 20 · `family` / 0.05, so that the least p is a twentieth of
            0.05 / `family`, the threshold for the first discovery of a family; at least 10,000 and
            at most a million.
        family: How many p-values will be corrected together (default: as many as there are heads).

    Raises:
        ValueError: A value is infinite.
    """
    # The standard error need not be computed. Let D_c be the sums of C clusters, M = Σ D_c / C and
    # Q = Σ D_c². Then t = M / (sd / √C) with sd² = (Q − C M²) / (C − 1), hence
    #     t² = C (C − 1) M² / (Q − C M²).
    # Flips leave Q as it is, and for fixed Q the right side grows with M² on all its range
    # 0 ≤ M² ≤ Q / C (Cauchy–Schwarz). So |t| orders the flips as |Σ ±D_c| does. Dividing by the
    # number of examples, which flips do not change either, would alter nothing.
    # Terms that are 0 (clusters not measured among them) double flips and hits alike: p stays.
    _check_finite(values)
    sums, sizes = _by_cluster(values, clusters)
    n_terms = (sums != 0).sum(axis=1)
    testable = (sizes > 0).sum(axis=1) >= 2
    exact = testable & (n_terms <= ENUMERATE)
    drawn = testable & ~exact
    p = np.full(len(values), np.nan)
    if exact.any():
        width = max(1, int(n_terms[exact].max()))
        zeros_last = np.argsort(sums[exact] == 0, axis=1, kind="stable")[:, :width]
        terms = np.take_along_axis(sums[exact], zeros_last, axis=1)
        p[exact] = _count_as_far(terms, _all_flips(len(terms), width)) / 2 ** (width - 1)
    if drawn.any():
        if n_draws is None:
            family = len(values) if family is None else family
            n_draws = min(max(10_000, ceil(20 * family / 0.05)), 1_000_000)
        terms = sums[drawn]
        hits = _count_as_far(terms, _random_flips(len(terms), terms.shape[1], n_draws, seed))
        p[drawn] = (1 + hits) / (1 + n_draws)
    return p


def mcnemar(hits_a: Bool[np.ndarray, " example"], hits_b: Bool[np.ndarray, " example"]) -> float:
    """Ask whether two ways of answering the same examples are equally often right: a p-value.

    Only examples that one gets right and the other wrong tell them apart; if both are equally good
    each of those is a fair coin. p is the exact two-sided binomial probability of a split at least
    as uneven (McNemar 1947, https://doi.org/10.1007/BF02295996); 1 where there are none. Examples
    count as independent: where they come in clusters, use `sign_flip` on the differences.
    """
    only_a, only_b = int((hits_a & ~hits_b).sum()), int((hits_b & ~hits_a).sum())
    return float(stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def benjamini_hochberg(p: Float[np.ndarray, "*test"]) -> Float[np.ndarray, "*test"]:
    """Correct p-values for being many: of those with q ≤ 0.05, 5% at most are false on average.

    q_(i) = min over j ≥ i of m p_(j) / j, for the m p-values in ascending order: the smallest rate
    of false discoveries at which the test is still one (Benjamini & Hochberg 1995,
    https://doi.org/10.1111/j.2517-6161.1995.tb02031.x; for tests that are independent or positively
    dependent). NaN stands for no test: it stays NaN and does not count in m.

    Raises:
        ValueError: A p-value lies outside [0, 1].
    """
    q = np.full(p.shape, np.nan)
    tested = ~np.isnan(p)
    q[tested] = stats.false_discovery_control(p[tested].astype(np.float64))
    return q


def accuracy_lower_bound(hits: int, n: int, level: float = 0.95) -> float:
    """Say how low the true accuracy may be if `hits` of `n` independent examples were right.

    The lower end of the two-sided Clopper–Pearson interval, a share between 0 and 1: the accuracy
    at which so many hits or more have probability (1 − level) / 2; 0 for no hits (Clopper & Pearson
    1934, https://doi.org/10.1093/biomet/26.4.404). NaN for n = 0.

    Raises:
        ValueError: `hits` is not between 0 and `n`.
    """
    if hits == n == 0:
        return float("nan")
    return float(stats.binomtest(hits, n).proportion_ci(level, method="exact").low)


def _check_finite(values: Values) -> None:
    if np.isinf(values).any():
        raise ValueError("infinite values have no mean: give finite ones, or NaN for not measured")


def _by_cluster(
    values: Values, clusters: Labels, weights: Float[np.ndarray, " example"] | None = None
) -> tuple[Float[np.ndarray, "head cluster"], Float[np.ndarray, "head cluster"]]:
    """Sum and count each head's measured values within clusters."""
    names, cluster = np.unique(clusters, return_inverse=True)
    n = len(clusters)
    weights = np.ones(n) if weights is None else weights
    member = sparse.csr_array((weights, (np.arange(n), cluster)), shape=(n, len(names)))
    measured = ~np.isnan(values)
    return np.where(measured, values, 0) @ member, measured.astype(np.float64) @ member


def _alike(
    measured: Bool[np.ndarray, "head cluster"], at_most: int
) -> Iterator[Int[np.ndarray, " some"]]:
    """List the heads measured in the same clusters, group by group, `at_most` so many a time."""
    _, pattern = np.unique(np.packbits(measured, axis=1), axis=0, return_inverse=True)
    by_pattern = np.argsort(pattern.ravel(), kind="stable")
    for group in np.split(by_pattern, np.cumsum(np.bincount(pattern.ravel()))[:-1]):
        for first in range(0, len(group), at_most):
            yield group[first : first + at_most]


def _resampled_means(
    sums: Float[np.ndarray, "some cluster"],
    sizes: Float[np.ndarray, "some cluster"],
    n_draws: int,
    seed: int,
) -> Float[np.ndarray, "some draw"]:
    """Take each head's mean in `n_draws` samples of clusters, the same samples for all heads."""
    n = sums.shape[1]
    rng = np.random.default_rng(seed)
    means = np.empty((len(sums), n_draws))
    for draws in _blocks(n_draws, n):
        picks = rng.integers(n, size=(len(draws), n)) + n * np.arange(len(draws))[:, None]
        times = np.bincount(picks.ravel(), minlength=picks.size).reshape(picks.shape)
        weights = times.T.astype(np.float64)
        means[:, draws.start : draws.stop] = (sums @ weights) / (sizes @ weights)
    return means


def _count_as_far(
    terms: Float[np.ndarray, "some term"], flips: Iterable[UInt8[np.ndarray, "draw term"]]
) -> Int[np.ndarray, " some"]:
    """Count the flips (1: change this term's sign) that leave |Σ terms| as large, or larger."""
    total = terms.sum(axis=1)
    bar = np.abs(total) - TIE * np.abs(terms).sum(axis=1)
    hits = np.zeros(len(terms), dtype=np.int64)
    for block in flips:
        flipped = total[:, None] - 2 * (terms @ block.T.astype(np.float64))
        hits += (np.abs(flipped) >= bar[:, None]).sum(axis=1)
    return hits


def _all_flips(n_heads: int, n_terms: int) -> Iterator[UInt8[np.ndarray, "draw term"]]:
    """List all 2^(n_terms − 1) flips of all terms but the last; flipping all changes no |Σ|."""
    for draws in _blocks(2 ** (n_terms - 1), max(n_heads, n_terms)):
        yield (np.array(draws)[:, None] >> np.arange(n_terms) & 1).astype(np.uint8)


def _random_flips(
    n_heads: int, n_terms: int, n_draws: int, seed: int
) -> Iterator[UInt8[np.ndarray, "draw term"]]:
    """Draw flips; whole 64-bit words for each draw, lest the size of the blocks change them."""
    rng = np.random.default_rng(seed)
    for draws in _blocks(n_draws, max(n_heads, n_terms)):
        words = rng.integers(2**64, size=(len(draws), ceil(n_terms / 64)), dtype=np.uint64)
        yield np.unpackbits(words.view(np.uint8), axis=1, count=n_terms)


def _blocks(n_draws: int, width: int) -> Iterator[range]:
    """Split `n_draws` so that a block of them, `width` numbers each, is held at a time."""
    size = max(1, BLOCK // width)
    for first in range(0, n_draws, size):
        yield range(first, min(first + size, n_draws))
