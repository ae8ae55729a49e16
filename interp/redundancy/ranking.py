"""Do two ways of scoring heads rank them alike?

spearman    the correlation of ranks; ties share their mean rank
kendall     τ_b: of the pairs of heads, how many more are in the same order than not
overlap     the share of the `top` heads of one that are among the `top` of the other
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats


@dataclass(frozen=True, eq=False)
class Scores:
    """One score a head, and what it might have been on other examples."""

    score: Float[np.ndarray, " head"]
    draws: Float[np.ndarray, "head draw"]
    """Scores on resampled examples (statistics.bootstrap_means), the same for all estimates; the
    score itself where it is no mean over examples."""

    def of(self, heads: Bool[np.ndarray, " head"]) -> "Scores":
        """Take some of the heads."""
        return Scores(self.score[heads], self.draws[heads])

    def __abs__(self) -> "Scores":
        """Take sizes."""
        return Scores(np.abs(self.score), np.abs(self.draws))

    def interval(self, level: float) -> Float[np.ndarray, "2 head"]:
        """Say between which bounds each score lies."""
        return np.quantile(self.draws, [(1 - level) / 2, (1 + level) / 2], axis=1)


def agreement(estimate: Scores, target: Scores, *, top: int, level: float) -> dict[str, Any]:
    """Compare an estimate of heads with what it estimates.

    The interval is that of Spearman's correlation when the clusters of examples are drawn again,
    for the estimate and the target together. Each draw adds noise of its own, so where heads are
    hard to tell apart it lies low.

    Returns:
        `spearman, kendall, top_k, overlap, ci_low, ci_high, n_heads`; null where all scores of one
        side are equal.
    """
    top = min(top, ceil(len(target.score) / 4))
    best = [set(np.argsort(-s.score, kind="stable")[:top].tolist()) for s in (estimate, target)]
    (spearman,) = correlations(estimate.score[:, None], target.score[:, None])
    is_flat = bool(np.isnan(spearman))
    low, high = np.quantile(
        correlations(estimate.draws, target.draws), [(1 - level) / 2, (1 + level) / 2]
    )
    return {
        "spearman": spearman,
        "kendall": np.nan if is_flat else stats.kendalltau(estimate.score, target.score).statistic,
        "top_k": top,
        "overlap": len(best[0] & best[1]) / top,
        "ci_low": low,
        "ci_high": high,
        "n_heads": len(target.score),
    }


def correlations(
    first: Float[np.ndarray, "head draw"], second: Float[np.ndarray, "head draw"]
) -> Float[np.ndarray, " draw"]:
    """Correlate the ranks of heads (Spearman), draw by draw; NaN where one side is all equal."""
    a, b = (stats.rankdata(scores, axis=0) for scores in (first, second))
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(axis=0) / np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))
