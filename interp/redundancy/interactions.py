"""Which heads stand in for each other, and which can share one pattern?

interaction    damage of closing two heads together - damage of closing each alone, in the metric's
               unit: above 0 where each makes up for the loss of the other (a stand-in, or backup:
               Wang et al. 2022, https://arxiv.org/abs/2211.00593, section 3.4), below 0 where both
               are needed for one thing, so that the second loss adds little to the first. Twins
               whose contributions add up have interaction 0, however alike they are
merging        one pattern is computed for two heads, and each applies it to its own values
               (ablation=twin in interp.gates)

Pairs of heads are not independent, as each head is in many. Whether alike heads interact is
therefore judged by exchanging heads (Mantel 1967, Cancer Research 27: 209): the similarities stay
what they are, but belong to other heads.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp import statistics, sweep
from interp.errors import InputError
from interp.heads import HEAD, Head, Site, all_heads, from_table
from interp.models.head_model import HeadModel
from interp.redundancy import seen, similarity, tables
from interp.redundancy.tables import HEAD_2, PAIR
from interp.statistics import Labels
from interp.tasks.task import Task

Pair = tuple[Head, Head]
Damage = Float[np.ndarray, " example"]
SIMILAR = [
    *("site", "measure", "statistic", "value", "null_mean", "null_low", "null_high"),
    *("n_heads", "n"),
]
NULL = (0.025, 0.975)
"""Where the interval of exchanged heads ends."""


def alike(
    model: HeadModel,
    task: Task,
    measures: Collection[str],
    *,
    n_positions: int,
    tokens_per_batch: int,
) -> pd.DataFrame:
    """Measure how alike all pairs of heads of each site are on the task's own examples.

    Returns:
        One line a pair and measure, as `tables.pairs`.
    """
    n = task.n_sequences
    batches = (
        (
            task.questions(model, examples).batch,
            [number * n + k for number in examples for k in range(n)],
        )
        for examples, _ in sweep.example_batches(task, tokens_per_batch)
    )
    found = seen.look(model, batches, n_positions)
    frames = [
        tables.pairs(model.site[name], similarity.measured(what, measures))
        for name, what in found.items()
    ]
    return pd.concat(frames, ignore_index=True)


def nearest(lines: pd.DataFrame) -> dict[Head, Head]:
    """Find the most alike head of each.

    Args:
        lines: One line a pair, of one measure.
    """
    best = tables.nearest(lines.assign(draw=0))
    return dict(zip(from_table(best), from_table(best, HEAD_2), strict=True))


def twins(sites: Sequence[Site], lines: pd.DataFrame) -> dict[Head, Head]:
    """Find every head's nearest twin of its own site.

    Args:
        sites: The model's kinds of attention.
        lines: One line a pair, of one measure.

    Raises:
        InputError: A head has none.
    """
    found = nearest(lines)
    alone = [head for head in all_heads(sites) if head not in found]
    if alone:
        measure = "".join(set(lines["measure"]))
        raise InputError(
            f"{alone[0]} has no twin: there is no other head that twins.measure={measure} can "
            f"compare it with"
        )
    return found


def most_alike(lines: pd.DataFrame, n: int) -> list[Head]:
    """List heads with their nearest twins, the most alike first, until there are `n`.

    Args:
        lines: One line a pair, of one measure.
        n: How many heads; fewer if there are no more.
    """
    best = tables.nearest(lines.assign(draw=0)).sort_values("alike", ascending=False, kind="stable")
    pairs = zip(from_table(best), from_table(best, HEAD_2), strict=True)
    return list(dict.fromkeys(head for pair in pairs for head in pair))[:n]


def twin_table(found: Mapping[Head, Head]) -> pd.DataFrame:
    """List twins: `site, layer, head, twin, site_2, layer_2, head_2`; `twin` is its address."""
    return _addresses(list(found.items())).assign(twin=list(map(str, found.values())))[
        [*HEAD, "twin", *HEAD_2]
    ]


def _addresses(pairs: Sequence[Pair]) -> pd.DataFrame:
    places = [(a.site, a.layer, a.head, b.site, b.layer, b.head) for a, b in pairs]
    return pd.DataFrame(places, columns=PAIR)


def interactions(
    pairs: Sequence[Pair],
    single: Mapping[Head, Damage],
    both: Float[np.ndarray, "pair example"],
    clusters: Labels,
    *,
    n_draws: int,
    level: float,
    seed: int,
) -> pd.DataFrame:
    """Compare the damage of closing two heads with that of each alone.

    Args:
        pairs: The pairs.
        single: Each head's damage.
        both: Each pair's.
        clusters: Each example's cluster.
        n_draws: Bootstrap draws.
        level: The intervals' level of confidence.
        seed: The seed of the draws.

    Returns:
        One line a pair: its address, `damage_1, damage_2, damage_both, interaction, n, ci_low,
        ci_high, p_value, q_value`; interval and test are of the interaction, over clusters.
    """
    one, two = (np.array([single[pair[place]] for pair in pairs]) for place in (0, 1))
    values = both - one - two
    interval = statistics.cluster_bootstrap(
        values, clusters, n_draws=n_draws, seed=seed, level=level
    )
    p_values = statistics.sign_flip(values, clusters, seed=seed)
    return _addresses(pairs).assign(
        damage_1=one.mean(axis=1),
        damage_2=two.mean(axis=1),
        damage_both=both.mean(axis=1),
        interaction=values.mean(axis=1),
        n=values.shape[1],
        ci_low=interval.low,
        ci_high=interval.high,
        p_value=p_values,
        q_value=statistics.benjamini_hochberg(p_values),
    )


def with_similarity(table: pd.DataFrame, lines: pd.DataFrame, by: str) -> pd.DataFrame:
    """Add to pairs how alike they are, and whether one is the other's nearest among these heads.

    Args:
        table: One line a pair.
        lines: One line a pair and measure.
        by: The measure that decides who is nearest.
    """
    wide = lines.pivot(index=PAIR, columns="measure", values="value")
    table = table.merge(wide[list(dict.fromkeys(lines["measure"]))].reset_index(), "left", on=PAIR)
    of = lines[lines["measure"] == by].merge(table[PAIR], on=PAIR)
    found = set(nearest(of).items()) if len(of) else set()
    pairs = zip(from_table(table), from_table(table, HEAD_2), strict=True)
    return table.assign(is_twin=[(a, b) in found or (b, a) in found for a, b in pairs])


def similar(
    table: pd.DataFrame, measures: Sequence[str], *, rounding: float, n_draws: int, seed: int
) -> pd.DataFrame:
    """Ask whether heads that are alike stand in for each other.

    Heads in neighbouring layers are more alike than others, and may interact for other reasons, so
    there are three answers, each beside what it is when heads are exchanged:

        spearman                of similarity (distances turned around) and interaction over pairs
        spearman_same_distance  the same after the mean over pairs as many layers apart was taken
                                off both
        twins_less_others       the mean interaction of nearest twins, less that of the other pairs
                                as many layers apart, in the metric's unit

    Args:
        table: One line a pair: its address, `interaction`, and the measures. (Who is nearest is
            decided by each measure in turn.)
        measures: Which of them.
        rounding: An interaction closer to 0 counts as 0, lest its sign be ranked.
        n_draws: Exchanges.
        seed: Where they come from.

    Returns:
        One line a site, measure and statistic: `site, measure, statistic, value, null_mean,
        null_low, null_high` (the middle 95 % of exchanges), `n_heads, n` (pairs, or twins). None of
        a site where no pair interacts.
    """
    found = []
    for site, lines in table[table["site"] == table["site_2"]].groupby("site"):
        heads = tables.heads(lines)
        layer = np.array([head.layer for head in heads])
        distance = np.abs(layer[:, None] - layer)
        acts = tables.square(lines.assign(value=lines["interaction"]), heads)
        acts[np.abs(acts) < rounding] = 0.0
        if not np.nansum(np.abs(acts)):
            continue
        for measure in measures:
            near = tables.square(lines.assign(value=lines[measure]), heads)
            near = similarity.similarity(measure, near)
            kept = {"n_draws": n_draws, "seed": seed}
            answers = {
                "spearman": tables.mantel(near, acts, **kept),
                "spearman_same_distance": tables.mantel(
                    _residual(near, distance), _residual(acts, distance), **kept
                ),
                "twins_less_others": _twins_less_others(near, acts, distance, **kept),
            }
            found += [
                (site, measure, name, value, null.mean(), *np.quantile(null, NULL), len(heads), n)
                for name, (value, null, n) in answers.items()
                if not np.isnan(value)
            ]
    return pd.DataFrame(found, columns=SIMILAR)


def _residual(
    values: Float[np.ndarray, "head head"], distance: Int[np.ndarray, "head head"]
) -> Float[np.ndarray, "head head"]:
    """Take off the mean over pairs as many layers apart."""
    left = values.copy()
    off = ~np.eye(len(values), dtype=bool)
    for apart in np.unique(distance):
        here = (distance == apart) & off & ~np.isnan(values)
        if here.any():
            left[here] -= values[here].mean()
    return left


def _twins_less_others(
    near: Float[np.ndarray, "head head"],
    acts: Float[np.ndarray, "head head"],
    distance: Int[np.ndarray, "head head"],
    *,
    n_draws: int,
    seed: int,
) -> tuple[float, Float[np.ndarray, " draw"], int]:
    """Compare nearest twins with other pairs as many layers apart; as `tables.mantel`."""
    near = np.where(np.eye(len(near), dtype=bool) | np.isnan(near), -np.inf, near)
    best = near.argmax(axis=1)
    has_twin = near.max(axis=1) > -np.inf
    are_twins = np.zeros(near.shape, dtype=bool)
    are_twins[np.flatnonzero(has_twin), best[has_twin]] = True
    are_twins |= are_twins.T
    upper = np.triu_indices(len(near), 1)
    apart, acting = distance[upper], acts[upper]

    def difference(twin: Bool[np.ndarray, " pair"]) -> tuple[float, int]:
        known = ~np.isnan(acting)
        other = known & ~twin
        n = np.bincount(apart[other], minlength=apart.max() + 1)
        mean = np.bincount(apart[other], acting[other], minlength=len(n)) / np.maximum(n, 1)
        compared = known & twin & (n[apart] > 0)
        count = int(compared.sum())
        return float((acting - mean[apart])[compared].mean()) if count else np.nan, count

    value, n = difference(are_twins[upper])
    rng = np.random.default_rng(seed)
    draws = [rng.permutation(len(near)) for _ in range(n_draws)]
    null = np.array([difference(are_twins[np.ix_(draw, draw)][upper])[0] for draw in draws])
    return value, null[~np.isnan(null)] if n else null, n


def merges(lines: pd.DataFrame) -> list[Pair]:
    """Say which head takes whose pattern, the most alike first.

    Pairs are gone through from the most alike on. The head of the later layer takes the pattern of
    the other, which has been computed by then; of the same layer either may. A head that has been
    merged lends its pattern to no one, and one that lends its own keeps it: so every pattern that
    is used is one that some head still computes. Pairs that would break this are passed over; in
    the end every head is merged or lends, unless there is no one left for it.

    Args:
        lines: One line a pair, of one measure; sites do not mix.

    Returns:
        The merged head, and the one whose pattern it takes.
    """
    measure = "".join(set(lines["measure"]))
    nearness = similarity.similarity(measure, lines["value"].to_numpy())
    order = lines.iloc[np.argsort(-nearness, kind="stable")]
    found: dict[Head, Head] = {}
    lending: set[Head] = set()
    for first, second in zip(from_table(order), from_table(order, HEAD_2), strict=True):
        ways = [(second, first)]
        if first.layer == second.layer:
            ways.append((first, second))
        for head, twin in ways:
            if head not in found and head not in lending and twin not in found:
                found[head] = twin
                lending.add(twin)
                break
    return list(found.items())


def strangers(
    merged: Sequence[Pair], sites: Sequence[Site], rng: np.random.Generator
) -> list[Pair]:
    """Give merged heads the pattern of a random head of their twin's layer, but not the twin's.

    (Where the layer has no third head, the twin's after all.)
    """
    every = all_heads(sites)
    found = []
    for head, twin in merged:
        place = twin.site, twin.layer
        others = [h for h in every if (h.site, h.layer) == place and h not in (head, twin)]
        found.append((head, others[rng.integers(len(others))] if others else twin))
    return found


def curve(
    damage: Mapping[tuple[str, int], Float[np.ndarray, "step example"]],
    clean: Float[np.ndarray, " example"],
    clusters: Labels,
    counts: Sequence[int],
    *,
    n_heads: int,
    higher_is_better: bool,
    n_draws: int,
    level: float,
    seed: int,
) -> pd.DataFrame:
    """Put the ways of doing without some heads' patterns beside each other.

    Args:
        damage: For each way (`merged`, …) and seed, the damage at each step.
        clean: The clean scores.
        clusters: Each example's cluster.
        counts: How many heads are merged at each step.
        n_heads: The heads of the model.
        higher_is_better: The metric's direction.
        n_draws: Bootstrap draws.
        level: The intervals' level of confidence.
        seed: The seed of the draws.

    Returns:
        One line a way, seed and step, 0 heads included: `how, seed, n_merged, fraction` (of all
        heads), `value, ci_low, ci_high` (the metric), `damage`, and `above_merged, above_low,
        above_high`: how much more damage this does than merging, example by example.
    """
    bootstrap = partial(statistics.cluster_bootstrap, n_draws=n_draws, seed=seed, level=level)
    sign = -1.0 if higher_is_better else 1.0
    nothing = np.zeros((1, len(clean)))
    ways = {way: np.vstack([nothing, steps]) for way, steps in damage.items()}
    frames = []
    for (how, number), steps in ways.items():
        value = bootstrap(clean + sign * steps, clusters)
        above = bootstrap(steps - ways["merged", 0], clusters)
        frames.append(
            pd.DataFrame(
                {
                    "how": how,
                    "seed": number,
                    "n_merged": [0, *counts],
                    "fraction": np.array([0, *counts]) / n_heads,
                    "value": value.mean,
                    "ci_low": value.low,
                    "ci_high": value.high,
                    "damage": steps.mean(axis=1),
                    "above_merged": above.mean,
                    "above_low": above.low,
                    "above_high": above.high,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
