"""How many heads can go? Orders of heads, and the score while more and more of them are closed.

Michel et al. 2019 (https://arxiv.org/abs/1905.10650, section 4) close the gates of 10 % of all
heads, of 20 %, and so on, under the zero baseline; here any baseline will do. Which go first:

    exact            those with the least damage when each is closed alone (Michel's oracle)
    reverse          those with the most: how soon it can all be over
    michel_…         those of the least importance (interp.redundancy.importance), each divided by
                     the ℓ2 norm of its layer's, as Michel et al. do
    attribution      those with the least damage as one gradient predicts it
    greedy           the same (or the damage itself), but found anew at each point of the curve,
                     while the heads that went before are closed: only such an order can see that
                     two heads stand in for each other; a gradient, where the one that is left does
                     not saturate what comes after it
    random           any, several times

Orders are chosen on one half of the examples and scored on the other, and the halves have no
cluster in common. Curves are drawn for the heads of all sites together and, where a model has
several sites, for those of each site while the others stay open.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped

from interp import statistics
from interp.errors import InputError
from interp.gates import Setting
from interp.heads import HEAD, Head, Site, all_heads, from_table, to_table
from interp.redundancy.importance import GRADIENT, MICHEL, normalised
from interp.units import Unit

ORDERS = (*GRADIENT, "exact", "greedy", "random", "reverse")
ALL = "all"
"""What stands in the place of a site where all of them are meant."""
CURVE = ["order", "seed", "site"]
"""The columns that tell curves apart."""
Scores = Mapping[Head, float]
Again = Callable[[Setting], Scores]
"""From heads that are closed already to the scores of the others."""
Damage = Float[np.ndarray, "point example"]


def halves(
    clusters: Shaped[np.ndarray, " example"], seed: int
) -> dict[str, Int[np.ndarray, " some"]]:
    """Split examples at random into `select` and `report`, half of the clusters each.

    Raises:
        InputError: There is one cluster.
    """
    names = np.unique(clusters.astype(str))
    if len(names) < 2:
        raise InputError(
            "all examples are of one cluster: orders are chosen on some, and scored on others"
        )
    chosen = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    is_select = np.isin(clusters.astype(str), chosen)
    return {"select": np.flatnonzero(is_select), "report": np.flatnonzero(~is_select)}


def groups(sites: Sequence[Site]) -> dict[str, list[Head]]:
    """List the heads that a curve is about: all, and those of each of several sites."""
    each = {site.name: all_heads([site]) for site in sites}
    return {ALL: all_heads(sites)} | (each if len(each) > 1 else {})


def steps(n_heads: int, fractions: Sequence[float]) -> list[int]:
    """Say how many heads are closed at each point of a curve: ⌈share · n⌉, as Michel et al. do."""
    return sorted({ceil(round(share * n_heads, 9)) for share in fractions})


# ------------------------------------------------------------------ orders
def orders(
    names: Sequence[str],
    among: Mapping[str, Sequence[Head]],
    damage: Scores,
    estimates: pd.DataFrame,
    again: Again,
    *,
    fractions: Sequence[float],
    n_random: int,
    seed: int,
) -> pd.DataFrame:
    """Put heads into the orders in which they go.

    Args:
        names: Which of ORDERS.
        among: The heads of each curve, by its site.
        damage: Each head's damage when it is closed alone, for `exact` and `reverse`.
        estimates: What interp.redundancy.importance estimates of the whole model, for the orders
            that are called as its estimators are.
        again: What `greedy` asks for scores, again and again.
        fractions: The shares of heads at which a curve has a point.
        n_random: How many random orders.
        seed: The first of their seeds.

    Returns:
        One line a head of each order: `order, seed` (of a random one), `among` (the curve's site),
        `rank` (0 goes first), `site, layer, head`, and `score`, which it was ranked by.
    """
    frames = []
    for site, heads in among.items():
        for name in names:
            if name == "random":
                for n in range(seed, seed + n_random):
                    shuffled = np.random.default_rng(n).permutation(len(heads))
                    frames.append(_lines(name, n, site, [heads[k] for k in shuffled], {}))
                continue
            if name == "greedy":
                found, score = greedy(heads, again, steps(len(heads), fractions))
            else:
                is_damage = name in ("exact", "reverse")
                score = dict(damage) if is_damage else scores(estimates, name)
                found = ranked(heads, score)
            frames.append(
                _lines(name, None, site, found[::-1] if name == "reverse" else found, score)
            )
    return pd.concat(frames, ignore_index=True)


def ranked(heads: Iterable[Head], score: Scores) -> list[Head]:
    """Sort heads by their score, the least first; those of equal scores by their addresses."""
    return sorted(heads, key=lambda head: (score[head], head))


def scores(table: pd.DataFrame, estimator: str) -> dict[Head, float]:
    """Read the scores of an estimator, Michel's divided by the ℓ2 norm of their layer's."""
    lines = table[table["estimator"] == estimator]
    score = lines[["score"]].to_numpy()
    if estimator in MICHEL:
        score = normalised(lines, score)
    return dict(zip(from_table(lines), score[:, 0].tolist(), strict=True))


def greedy(
    heads: Sequence[Head], again: Again, counts: Sequence[int]
) -> tuple[list[Head], dict[Head, float]]:
    """Close the least important heads, score the others anew, and so on.

    Args:
        heads: Those that are to go.
        again: What scores the heads that are left.
        counts: How many heads are gone after each round, growing up to all.

    Returns:
        The heads in the order they go, and each one's score when it did.
    """
    found, last = list[Head](), dict[Head, float]()
    for count in counts:
        if count > len(found):
            score = again(tuple(found))
            going = ranked(set(heads) - set(found), score)[: count - len(found)]
            last |= {head: score[head] for head in going}
            found += going
    return found, last


def _lines(
    name: str, seed: int | None, site: str, heads: Sequence[Head], score: Scores
) -> pd.DataFrame:
    found = to_table(heads).assign(
        order=name,
        seed=pd.array([seed] * len(heads), dtype="Int64"),
        among=site,
        rank=range(len(heads)),
        score=[score.get(head, np.nan) for head in heads],
    )
    return found[["order", "seed", "among", "rank", *HEAD, "score"]]


# ------------------------------------------------------------------ curves
def points(order: pd.DataFrame, fractions: Sequence[float]) -> pd.DataFrame:
    """List the points of all curves.

    Returns:
        One line a point, those of a curve together and growing: `order, seed, site, n_pruned,
        fraction` (what share of the curve's heads that is), and `closed`, those heads.
    """
    found = []
    for (name, seed, site), lines in order.groupby(
        ["order", "seed", "among"], sort=False, dropna=False
    ):
        heads = from_table(lines.sort_values("rank"))
        for n in steps(len(heads), fractions):
            closed = tuple(sorted(heads[:n]))
            found.append((name, seed, site, n, n / len(heads), closed))
    table = pd.DataFrame(found, columns=[*CURVE, "n_pruned", "fraction", "closed"])
    return table.astype({"seed": "Int64"})


def curve(
    table: pd.DataFrame,
    value: Damage,
    clusters: Shaped[np.ndarray, " example"],
    *,
    n_draws: int,
    level: float,
    seed: int,
) -> pd.DataFrame:
    """Average the score at each point over examples.

    Args:
        table: The points.
        value: The score of each example at each.
        clusters: Each example's cluster.
        n_draws: Bootstrap draws.
        level: The intervals' level of confidence.
        seed: The seed of the draws.

    Returns:
        `order, seed, site, n_pruned, fraction, value, ci_low, ci_high`.
    """
    interval = statistics.cluster_bootstrap(
        value, clusters, n_draws=n_draws, seed=seed, level=level
    )
    return table.drop(columns="closed").assign(
        value=interval.mean, ci_low=interval.low, ci_high=interval.high
    )


def prunable(
    table: pd.DataFrame,
    clean: Float[np.ndarray, " example"],
    value: Damage,
    clusters: Shaped[np.ndarray, " example"],
    *,
    tolerance: float,
    higher_is_better: bool,
    n_draws: int,
    level: float,
    seed: int,
) -> pd.DataFrame:
    """Say what each curve comes to.

    Args:
        table: The points, those of a curve together and growing from 0.
        clean: The whole model's score of each example.
        value: The score of each example at each point.
        clusters: Each example's cluster.
        tolerance: The loss that is put up with, as a share of the mean clean score.
        higher_is_better: The metric's direction.
        n_draws: Bootstrap draws.
        level: The intervals' level of confidence.
        seed: The seed of the draws.

    Returns:
        One line a curve, where intervals come from drawing clusters anew, for the clean score and
        the whole curve at once:
            n_heads             heads in all
            n_pruned            how many can go: the most at a point where, as at all points before
                                it, the mean score is worse than the clean one by no more than
                                `tolerance` of it; with n_low, n_high
            n_sure              the same, but the loss' upper end has to be within: that of the
                                two-sided interval of (loss - tolerance · clean)
            share               n_pruned / n_heads
            area                the area under the curve of (score / clean score) over the share of
                                heads that are gone, by trapezoids; 1 where nothing is ever lost
                                (and, of a loss, the more above 1 the worse); with area_low,
                                area_high
            over_exact          area minus that of the order `exact` of the same site, drawn
                                together; with over_exact_low, over_exact_high
    """
    sign = 1 if higher_is_better else -1
    rows = np.vstack([clean, sign * (clean - value)])  # the clean score, and what is lost of it
    draws = statistics.bootstrap_means(rows, clusters, n_draws=n_draws, seed=seed)
    means = np.column_stack([rows.mean(axis=1), draws])  # in front: what was observed
    whole, lost = means[0], means[1:]
    excess = lost - tolerance * np.abs(whole)
    with np.errstate(divide="ignore", invalid="ignore"):  # a sample of clusters may score 0
        kept = 1 - sign * lost / whole
    tails = [(1 - level) / 2, (1 + level) / 2]
    found, areas = [], {}
    for key, lines in table.groupby(CURVE, sort=False, dropna=False):
        at, n = lines.index.to_numpy(), lines["n_pruned"].to_numpy()
        last = n[_reach(excess[at] <= 0)]
        upper = np.quantile(excess[at, 1:], tails[1], axis=1)
        area = np.trapezoid(kept[at], lines["fraction"], axis=0)
        areas[key] = area
        low, high = np.quantile(last[1:], tails, method="inverted_cdf")
        found.append(
            {
                **dict(zip(CURVE, key, strict=True)),
                "n_heads": n.max(),
                "n_pruned": last[0],
                "n_low": low,
                "n_high": high,
                "n_sure": n[_reach(upper <= 0)],
                "share": last[0] / n.max(),
                **_with_interval("area", area, tails),
            }
        )
    exact = {key[-1]: area for key, area in areas.items() if key[0] == "exact"}
    more = [
        _with_interval("over_exact", area - exact.get(key[-1], np.nan), tails)
        for key, area in areas.items()
    ]
    result = pd.concat([pd.DataFrame(found), pd.DataFrame(more)], axis=1).astype({"seed": "Int64"})
    if np.isnan(draws).any():  # one cluster has no intervals
        ends = [name for name in result if name.endswith(("_low", "_high", "_sure"))]
        result = result.astype(dict.fromkeys(ends, "Float64")).assign(**dict.fromkeys(ends, pd.NA))
    return result


def _reach(within: Bool[np.ndarray, "point ..."]) -> Int[np.ndarray, "..."] | np.integer:
    """Number the last point up to which all are within."""
    return np.logical_and.accumulate(within, axis=0).sum(axis=0) - 1


def _with_interval(
    name: str, values: Float[np.ndarray, " draw"], tails: Sequence[float]
) -> dict[str, float]:
    """Name what was observed, which comes first, and the ends of its interval."""
    low, high = np.quantile(values[1:], tails)
    return {name: values[0], f"{name}_low": low, f"{name}_high": high}


# ------------------------------------------------------------------ all but one
def best_alone(
    units: Sequence[Unit], damage: Mapping[Setting, Float[np.ndarray, " example"]]
) -> list[Unit]:
    """Choose for each layer the one head to keep, which leaves the least damage on average.

    Args:
        units: Units of the kind `all_but_one`.
        damage: What it does to each example to close some heads.
    """
    best: dict[tuple[object, object], Unit] = {}
    for unit in units:
        layer = unit.address["site"], unit.address["layer"]
        if layer not in best or damage[unit.closed].mean() < damage[best[layer].closed].mean():
            best[layer] = unit
    return list(best.values())
