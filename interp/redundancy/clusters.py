"""Which heads belong together? Groups of heads, how many, how stable, and a map of them.

The distance of two heads is √(1 - similarity) (interp.redundancy.similarity), which is Euclidean
whichever the measure: heads are points of a space. (Cosines and overlaps are inner products; for js
see Fuglede & Topsøe 2004, https://doi.org/10.1109/ISIT.2004.1365067; total variation is an L1
distance, hence the square of a Euclidean one.) Heads are joined such that the variance inside
groups grows least (Ward 1963, https://doi.org/10.1080/01621459.1963.10500845): average linkage
splits off single heads that are like no other. The tree is cut into as many clusters as give the
largest mean

    silhouette   (b - a) / max(a, b) of a head, where a is its mean distance to the others of its
                 cluster and b that to the nearest other cluster: 1 where clusters are far apart, 0
                 between two of them and for a cluster of one (Rousseeuw 1987,
                 https://doi.org/10.1016/0377-0427(87)90125-7)

Whether other text would have given the same clusters is told by resampled documents, whose heads
are cut into as many:

    stability    of one cluster: the share of heads, of those in it or in the most similar cluster
                 of the other clustering, that are in both (Jaccard's index; Hennig 2007,
                 https://doi.org/10.1016/j.csda.2006.11.025, trusts clusters above .75)
    agreement    of the whole: the adjusted Rand index, the share of pairs of heads that both
                 clusterings put together or both apart, scaled so that 1 is full agreement and 0
                 what chance gives (Hubert & Arabie 1985, https://doi.org/10.1007/BF01908075)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from scipy.stats.contingency import crosstab

Distances = Float[np.ndarray, "head head"]
Labels = Int[np.ndarray, " head"]


@dataclass(frozen=True, eq=False)
class Clustering:
    """The clusters of some heads, and how good other numbers of clusters would have been."""

    labels: Labels
    """Each head's cluster, from 0, the largest first."""
    stability: Float[np.ndarray, " head"]
    """That of each head's cluster, averaged over resampled documents; NaN without any."""
    n_clusters: Int[np.ndarray, " choice"]
    """The numbers of clusters that were tried."""
    silhouette: Float[np.ndarray, " choice"]
    """The mean silhouette of each."""
    agreement: Float[np.ndarray, " choice"]
    """That with resampled documents, averaged; NaN without any."""


def clustering(
    distances: Distances, resampled: Sequence[Distances], max_clusters: int
) -> Clustering:
    """Cluster three heads or more.

    Args:
        distances: Between all pairs.
        resampled: The same on resampled documents.
        max_clusters: The most clusters that are tried.
    """
    tried = np.arange(2, min(max_clusters, len(distances) - 1) + 1)
    every = cuts(tree(distances), tried)
    drawn = [cuts(tree(other), tried) for other in resampled]
    silhouettes = np.array([silhouette(distances, labels).mean() for labels in every])
    best = int(silhouettes.argmax())
    labels = by_size(every[best])
    stable = [stability(labels, others[best]) for others in drawn]
    agreeing = [
        [adjusted_rand(own, others[choice]) for others in drawn] or [np.nan]
        for choice, own in enumerate(every)
    ]
    return Clustering(
        labels,
        np.mean(stable or [np.full(len(labels), np.nan)], axis=0),
        tried,
        silhouettes,
        np.mean(agreeing, axis=1),
    )


def tree(distances: Distances) -> Float[np.ndarray, "join 4"]:
    """Join heads by Ward's linkage; the result is scipy's linkage matrix."""
    return hierarchy.linkage(squareform(distances, checks=False), "ward")


def cuts(
    joined: Float[np.ndarray, "join 4"], n_clusters: Int[np.ndarray, " choice"]
) -> Int[np.ndarray, "choice head"]:
    """Cut a tree into each of some growing numbers of clusters."""
    # from many to few: in another order scipy loses the cut into as many clusters as heads
    return hierarchy.cut_tree(joined, n_clusters[::-1]).T[::-1].astype(int)


def by_size(labels: Labels) -> Labels:
    """Number clusters by size, the largest 0; of equals the one with the first head."""
    names, first, count = np.unique(labels, return_index=True, return_counts=True)
    order = np.lexsort((first, -count))
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return number[np.searchsorted(names, labels)]


def silhouette(distances: Distances, labels: Labels) -> Float[np.ndarray, " head"]:
    """Compute the silhouette of each head."""
    member = (labels[:, None] == np.unique(labels)).astype(float)
    size, own = member.sum(0), member.astype(bool)
    total = distances @ member
    inside = total[own] / np.maximum(size[own.argmax(1)] - 1, 1)
    outside = np.where(own, np.inf, total / size).min(1)
    largest = np.maximum(inside, outside)
    alone = size[own.argmax(1)] == 1
    return np.where(alone | (largest == 0), 0, (outside - inside) / np.where(largest, largest, 1))


def stability(labels: Labels, others: Labels) -> Float[np.ndarray, " head"]:
    """Compute, for each head, Jaccard's index of its cluster and the most similar other one."""
    both = crosstab(labels, others).count
    either = both.sum(1, keepdims=True) + both.sum(0) - both
    return (both / either).max(1)[np.unique(labels, return_inverse=True)[1]]


def adjusted_rand(first: Labels, second: Labels) -> float:
    """Compute the adjusted Rand index of two clusterings of the same heads.

    With n_ij heads in cluster i of the one and j of the other: (Σ C(n_ij) - E) / ((Σ C(n_i) +
    Σ C(n_j)) / 2 - E), where C(n) = n (n - 1) / 2 are pairs, and E = Σ C(n_i) Σ C(n_j) / C(n) is
    what chance gives; 1 where both are trivial in the same way.
    """
    both = crosstab(first, second).count
    counts = both, both.sum(1), both.sum(0), np.array([both.sum()])
    together, rows, columns, every = (float((n * (n - 1) / 2).sum()) for n in counts)
    chance, most = rows * columns / every, (rows + columns) / 2
    return 1.0 if most == chance else (together - chance) / (most - chance)


def plane(distances: Distances) -> tuple[Float[np.ndarray, "head 2"], float]:
    """Put heads on a plane such that those that are alike lie close: classical scaling.

    The two leading eigenvectors, times the roots of their eigenvalues, of -JD²J / 2, where D² are
    squared distances and J takes means off (Torgerson 1952, https://doi.org/10.1007/BF02288916).

    Returns:
        The places, and the share of the variance that the two directions hold.
    """
    n = len(distances)
    J = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-J @ distances**2 @ J / 2)
    values, vectors = values[::-1].clip(0), vectors[:, ::-1]
    sign = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(n)])  # (else it is arbitrary)
    places = (vectors * sign * np.sqrt(values))[:, :2]
    return places, float(values[:2].sum() / values.sum()) if values.any() else 1.0


def comparable(value: Float[np.ndarray, "head head"]) -> Int[np.ndarray, " some"]:
    """List the heads all of whose pairs are measured; those with most gaps are left out first."""
    kept = np.arange(len(value))
    while True:
        gaps = np.isnan(value[np.ix_(kept, kept)]).sum(1)
        if not gaps.any():
            return kept
        kept = np.delete(kept, gaps.argmax())
