"""Clusters: by hand, by law, and against slow loops."""

from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from interp.redundancy import clusters

LABELS = np.array([0, 0, 0, 1, 1, 2])


def rng(seed=0):
    return np.random.default_rng(seed)


def blobs(centres, n=6, spread=0.1, seed=0) -> np.ndarray:
    """Put `n` points around each centre; their distances."""
    points = np.repeat(np.array(centres, float), n, axis=0)
    points += rng(seed).normal(0, spread, points.shape)
    return cdist(points, points)


CENTRES = [[0, 0], [4, 0], [0, 5]]


def test_silhouettes_are_what_they_are_by_hand():
    places = np.array([[0.0], [1.0], [5.0]])
    found = clusters.silhouette(cdist(places, places), np.array([0, 0, 1]))
    # a = 1, b = 5; a = 1, b = 4; alone
    assert found == pytest.approx([0.8, 0.75, 0])


def test_silhouettes_equal_a_loop():
    distances = cdist(*[rng().normal(size=(12, 3))] * 2)
    labels = rng(1).integers(0, 4, 12)
    expected = []
    for i, own in enumerate(labels):
        mates = [j for j in range(12) if labels[j] == own and j != i]
        if not mates:
            expected.append(0)
            continue
        a = np.mean([distances[i, j] for j in mates])
        b = min(np.mean(distances[i, labels == other]) for other in set(labels) - {own})
        expected.append((b - a) / max(a, b))
    assert clusters.silhouette(distances, labels) == pytest.approx(expected)


def test_silhouettes_of_heads_that_are_all_the_same_are_0():
    assert clusters.silhouette(np.zeros((4, 4)), np.array([0, 0, 1, 1])).tolist() == [0] * 4


def test_the_adjusted_rand_index_by_hand():
    # table [[2 1 0] [0 1 1] [0 0 1]]: 1 pair together in both; 4 and 2 + 1... by the formula
    other = np.array([0, 0, 1, 1, 2, 2])
    together, rows, columns, every = 1, 3 + 1, 1 + 1 + 1, 15
    chance = rows * columns / every
    expected = (together - chance) / ((rows + columns) / 2 - chance)
    assert clusters.adjusted_rand(LABELS, other) == pytest.approx(expected)
    assert clusters.adjusted_rand(other, LABELS) == pytest.approx(expected)


def test_the_adjusted_rand_index_counts_pairs():
    a, b = (rng(s).integers(0, 4, 25) for s in range(2))
    b[:10] = a[:10]
    pairs = list(combinations(range(25), 2))
    in_a, in_b = (np.array([x[i] == x[j] for i, j in pairs]) for x in (a, b))
    both, chance = (in_a & in_b).sum(), in_a.sum() * in_b.sum() / len(pairs)
    expected = (both - chance) / ((in_a.sum() + in_b.sum()) / 2 - chance)
    assert clusters.adjusted_rand(a, b) == pytest.approx(expected)


def test_the_adjusted_rand_index_is_1_for_other_names_and_0_by_chance():
    assert clusters.adjusted_rand(LABELS, np.array([7, 7, 7, 3, 3, 5])) == 1
    drawn = [clusters.adjusted_rand(LABELS, rng(s).permutation(LABELS)) for s in range(600)]
    assert np.mean(drawn) == pytest.approx(0, abs=0.03)
    assert clusters.adjusted_rand(np.zeros(4, int), np.zeros(4, int)) == 1
    assert clusters.adjusted_rand(np.arange(4), np.arange(4)) == 1


def test_a_cluster_is_as_stable_as_what_it_shares_with_the_most_similar_one():
    other = np.array([0, 0, 1, 1, 1, 1])
    # {0 1 2} with {0 1}: 2 of 3; {3 4} with {2 3 4 5}: 2 of 4; {5} with it: 1 of 4
    found = clusters.stability(LABELS, other)
    assert found == pytest.approx([2 / 3] * 3 + [1 / 2] * 2 + [1 / 4])
    assert clusters.stability(LABELS + 5, LABELS).tolist() == [1] * 6


def test_as_many_clusters_are_chosen_as_lie_apart():
    found = clusters.clustering(blobs(CENTRES), [], max_clusters=30)
    assert found.labels.max() + 1 == 3
    assert [len(set(found.labels[k : k + 6])) for k in (0, 6, 12)] == [1, 1, 1]
    assert found.n_clusters.tolist() == list(range(2, 18))
    best = clusters.silhouette(blobs(CENTRES), found.labels)
    assert found.silhouette.max() == pytest.approx(best.mean())
    assert best.min() > 0.8
    assert np.isnan(found.stability).all()
    assert np.isnan(found.agreement).all()


def test_stability_is_1_if_nothing_moves_and_agreement_0_if_everything_does():
    distances = blobs(CENTRES)
    same = clusters.clustering(distances, [distances] * 3, 30)
    assert same.stability.tolist() == [1] * 18
    assert same.agreement.tolist() == [1] * 16
    shuffled = []
    for seed in range(40):
        order = rng(seed).permutation(18)
        shuffled.append(distances[np.ix_(order, order)])
    moved = clusters.clustering(distances, shuffled, 30)
    assert moved.agreement[1] == pytest.approx(0, abs=0.1)  # (of three clusters)
    assert moved.stability.max() < 0.6


def test_one_cluster_may_be_stable_and_another_not():
    distances = blobs(CENTRES)
    order = [*range(9), *range(12, 15), *range(9, 12), *range(15, 18)]  # halves change places
    merged = distances[np.ix_(order, order)]
    found = clusters.clustering(distances, [distances, merged], 3)
    assert found.stability[:6].tolist() == [1] * 6
    assert found.stability[6:] == pytest.approx((1 + 1 / 3) / 2)


def test_no_more_clusters_are_tried_than_allowed():
    assert clusters.clustering(blobs(CENTRES), [], 2).n_clusters.tolist() == [2]
    assert clusters.clustering(blobs(CENTRES, n=1), [], 30).n_clusters.tolist() == [2]


def test_clusters_are_numbered_by_size():
    assert clusters.by_size(np.array([5, 2, 2, 9, 9, 9])).tolist() == [2, 1, 1, 0, 0, 0]
    assert clusters.by_size(np.array([1, 0, 0, 1])).tolist() == [0, 1, 1, 0]


def test_groups_are_joined_where_the_variance_grows_least():
    places = np.array([[0.0], [1.0], [4.0]])
    joined = clusters.tree(cdist(places, places))
    # .5 and 4 of 2 points and 1: the sum of squares grows by 2/3 * 3.5²; Ward's height is √(2 ·)
    assert joined[:, 2] == pytest.approx([1, 3.5 * np.sqrt(4 / 3)])
    assert clusters.cuts(joined, np.array([2, 3])).tolist() == [[0, 0, 1], [0, 1, 2]]


def test_a_head_that_is_like_no_other_does_not_hide_the_groups():
    distances = blobs([*CENTRES, [2, 2.5]], n=4, spread=0.3)[:13, :13]
    assert np.bincount(clusters.clustering(distances, [], 12).labels).tolist() == [4, 4, 4, 1]


def test_points_of_a_plane_keep_their_distances_on_the_map():
    distances = cdist(*[rng().normal(size=(9, 2))] * 2)
    places, share = clusters.plane(distances)
    assert cdist(places, places) == pytest.approx(distances)
    assert share == pytest.approx(1)
    assert places.mean(0) == pytest.approx([0, 0], abs=1e-9)
    assert clusters.plane(cdist(*[rng().normal(size=(30, 5))] * 2))[1] < 0.9
    assert clusters.plane(np.zeros((3, 3)))[1] == 1


def test_heads_with_gaps_are_left_out():
    value = np.zeros((5, 5))
    value[2] = value[:, 2] = np.nan
    value[2, 2] = 0
    assert clusters.comparable(value).tolist() == [0, 1, 3, 4]
    assert clusters.comparable(np.zeros((3, 3))).tolist() == [0, 1, 2]
