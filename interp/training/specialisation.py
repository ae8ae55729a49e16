"""What do heads become while a model is trained, and when?

At some steps of training every head is examined as the heads of a trained model are:

    what it looks at    (interp.patterns) on sentences of the lesson and on random tokens said twice
    whether it matters  (interp.sweep) what closing its gate does to the loss on fresh examples
    whether others do   (interp.redundancy.pruning) what is left of what attention is worth when
                        more and more heads are closed, the least important first

and what is said of the steps together:

    appears    the first step from which on some head's score stays at a threshold or above it; a
               head that falls below it again has not appeared before it is back for good
    halfway    when the best head's score was last halfway between where it began and where it
               ended, by a straight line between the steps that were looked at. It needs no
               threshold, so that features of which heads reach more or less can be put in order
    rises      the end of the steepest rise of the best score; `drops`, of the steepest fall of the
               test loss
    shape      the area under the pruning curve minus 1/2. The curve is what is left of the loss
               that all heads together save, 1 with all and 0 with none, over the share of heads
               that are closed. 0: each head that goes costs alike. Above 0: many can go before it
               costs much, a plateau and then a fall (at most 1/2 - 1/(2 n), when the last of n
               heads alone does it all). Below 0: the first to go cost most.

Michel et al. 2019 (https://arxiv.org/abs/1905.10650, section 6) found straight curves early in
training, and a plateau late.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped

from interp import gates, statistics, sweep
from interp.errors import InputError
from interp.gates import Baseline, Setting
from interp.heads import HEAD, all_heads
from interp.models.head_model import HeadModel
from interp.patterns import classify, observe
from interp.patterns.observe import MASS, Example, Watch
from interp.patterns.scores import scores
from interp.redundancy import importance, pruning
from interp.tasks.task import Task

ORDERS = ("exact", "michel_example", "michel_token", "michel_batch", "attribution", "reverse")
"""Orders in which heads may go."""
MODEL = ["arm", "seed"]
"""What tells the models of a run apart."""
GROWTH = ["arm", "order", "n", "early", "late", "from_step", "to_step", "more", "ci_low", "ci_high"]
POSITIONS = "all"
EARLY = 0.05
"""The share of what heads save in the end from which on there is something to prune; see `ends`."""


# ------------------------------------------------------------------ what heads look at
class View(NamedTuple):
    """What heads are shown at each step, and what of it is noted."""

    shown: Sequence[Example]
    what: Watch
    features: Sequence[str]
    """Roles are judged among these alone (interp.patterns.classify holds a rate among all)."""
    limits: classify.Thresholds
    level: float
    """Of the intervals that roles are judged by."""


def looks(model: HeadModel, view: View) -> pd.DataFrame:
    """Say what every head looks at, on the half of the examples that roles are judged by.

    Returns:
        One line a head and feature that it can show: `site, layer, head, feature`, and
            score, even       the share of attention that goes to the feature's targets, the mean
                              over queries (of alignment what that role is judged by); and what
                              even attention would put there
            rate, rule, rule_rate   how often most attention goes there (of features that are
                              judged by the share: the share), the simple rule that does best at
                              it, and how well that does
            has_role          whether interp.patterns.classify names the head after it

    Raises:
        InputError: None of the features can be seen.
    """
    seen = pd.concat(
        [
            observe.observe(model, [view.shown[n] for n in group], view.what)
            for group in observe.batches(view.shown)
        ],
        ignore_index=True,
    )
    chosen = seen[seen["feature"].isin(list(view.features))]
    if chosen.empty:
        known = ", ".join(sorted(set(seen["feature"])))
        raise InputError(f"features={list(view.features)}: none is seen here, but {known}")
    table = scores(chosen, model=model.name, corpus="", level=view.level)
    key = [*HEAD, "feature"]
    named = classify.roles(table, view.limits)[key].assign(has_role=True)
    table = table[table["split"] == "report"]
    # (`mass` comes before `uniform`, which is about the share where there is no `mass`)
    share = table[table["baseline_name"].isin([MASS, "uniform"])].sort_values("baseline_name")
    share = share.drop_duplicates(key).rename(columns={"baseline": "even"})
    judged = table[table["gating"] & (table["baseline_name"] != MASS)].sort_values("margin")
    judged = judged.drop_duplicates(key).rename(
        columns={"score": "rate", "baseline": "rule_rate", "baseline_name": "rule"}
    )
    found = share[[*key, "score", "even"]].merge(
        judged[[*key, "rate", "rule", "rule_rate"]], on=key, how="left"
    )
    found = found.merge(named, on=key, how="left")
    found["has_role"] = found["has_role"].eq(True)
    return found.sort_values(key, ignore_index=True)


# ------------------------------------------------------------------ what they are worth
class Examination(NamedTuple):
    """What heads are closed at."""

    task: Task
    """Its metric is a loss."""
    halves: Mapping[str, Int[np.ndarray, " some"]]
    """Orders are chosen on the examples `select` and scored on `report`."""
    orders: Sequence[str]
    level: float
    """Of the interval of what all heads together are worth."""
    tokens_per_batch: int

    def baseline(self, model: HeadModel) -> Baseline:
        """Average what the heads of a model do, to be put in the place of one."""
        batches = sweep.batches(model, self.task, self.tokens_per_batch)
        return gates.Mean(gates.means(model, batches, by_position=False, specials=False))

    def damages(
        self, model: HeadModel, baseline: Baseline, settings: Sequence[Setting]
    ) -> Float[np.ndarray, "setting example"]:
        """Measure what closing heads does to the loss of each example, in nats per answer."""
        engine = sweep.Engine(model, self.task, settings, baseline, POSITIONS)
        return sweep.at_once(engine, self.tokens_per_batch)


def alone(
    model: HeadModel, baseline: Baseline, at: Examination
) -> Float[np.ndarray, "head example"]:
    """Close each head alone; its damage on each example, in the order of `all_heads`."""
    return at.damages(model, baseline, [(head,) for head in all_heads(model.sites)])


def curves(
    model: HeadModel,
    baseline: Baseline,
    at: Examination,
    damage: Float[np.ndarray, "head example"],
) -> pd.DataFrame:
    """Close more and more heads, in several orders.

    Args:
        model: The model.
        baseline: What stands in for heads.
        at: The examples, and the orders.
        damage: Of each head alone, as `alone` measures it.

    Returns:
        One line an order and number of heads: `order, n_pruned, fraction, loss` (nats per answer,
        on `report`), `value` (the share that is left of the loss that all heads save) and the
        curve's `shape`. The last two are null where closing all heads does no clear damage: the
        interval of its mean reaches 0.
    """
    heads, report = all_heads(model.sites), at.halves["report"]
    select = at.task.select(at.halves["select"].tolist())
    estimates = importance.estimates(
        model, select, baseline, positions=POSITIONS, tokens_per_batch=at.tokens_per_batch
    )
    mean = damage[:, at.halves["select"]].mean(axis=1).tolist()
    fractions = [n / len(heads) for n in range(len(heads) + 1)]
    order = pruning.orders(
        at.orders,
        {pruning.ALL: heads},
        dict(zip(heads, mean, strict=True)),
        estimates,
        lambda closed: {},
        fractions=fractions,
        n_random=0,
        seed=0,
    )
    points = pruning.points(order, fractions)
    part = at._replace(task=at.task.select(report.tolist()))
    settings = list(dict.fromkeys(filter(None, points["closed"])))
    lost = dict(zip(settings, part.damages(model, baseline, settings), strict=True))
    lost[()] = np.zeros(len(report))
    clean = sweep.clean_scores(model, part.task, at.tokens_per_batch).mean()
    worth = lost[tuple(sorted(heads))]
    [low] = statistics.cluster_t(worth[None], np.arange(len(worth)), level=at.level).low
    mean_lost = np.array([lost[closed].mean() for closed in points["closed"]])
    points["loss"] = clean + mean_lost
    points["value"] = 1 - mean_lost / worth.mean() if low > 0 else np.nan
    areas = {
        name: shape(lines["fraction"].to_numpy(), lines["value"].to_numpy())
        for name, lines in points.groupby("order")
    }
    points["shape"] = points["order"].map(areas)
    return points[["order", "n_pruned", "fraction", "loss", "value", "shape"]]


def shape(fraction: Float[np.ndarray, " point"], value: Float[np.ndarray, " point"]) -> float:
    """Say whether a pruning curve falls late: its area, by trapezoids, minus 1/2.

    Args:
        fraction: The share of heads that are closed, growing from 0 to 1.
        value: What is left then, from 1 to 0 (with fewer heads it may be less than with none).
    """
    return float(np.trapezoid(value, fraction)) - 0.5


def ends(table: pd.DataFrame) -> pd.DataFrame:
    """Take the pruning curves of each model early and late in its training.

    Args:
        table: `arm, seed, step` and what `curves` returns.

    Returns:
        Its lines at two steps of each model, with `when`: `late` is the last step, `early` the
        first at which all heads together save EARLY of what they save then, for before that there
        is nothing to prune. Models whose heads save nothing in the end are left out.
    """
    found = []
    for _, lines in table.groupby([*MODEL, "order"], sort=False):
        loss = lines.pivot(index="step", columns="fraction", values="loss").sort_index()
        worth = loss[1.0] - loss[0.0]
        is_known = lines.groupby("step")["shape"].first().notna()
        step = worth.index[is_known & (worth >= EARLY * worth.iloc[-1])]
        if is_known.iloc[-1]:
            for when, at in (("early", step[0]), ("late", step[-1])):
                found.append(lines[lines["step"] == at].assign(when=when))
    return pd.concat(found, ignore_index=True) if found else table.head(0).assign(when="")


def growth(table: pd.DataFrame, level: float) -> pd.DataFrame:
    """Say whether pruning curves become flatter at first, and fall later, in training.

    Args:
        table: What `ends` returns.
        level: Of the intervals.

    Returns:
        One line an arm and order: `arm, order, n` (seeds), the mean shapes `early` and `late`, the
        first and last of the seeds' early steps `from_step, to_step`, and `more`, the mean of
        (late - early), with its interval over seeds `ci_low, ci_high` (Student's t; NaN for one).
    """
    lines = []
    for (arm, order), part in table.groupby(["arm", "order"], sort=False):
        once = part.drop_duplicates(["seed", "when"])
        wide = once.pivot(index="seed", columns="when", values="shape")
        more = (wide["late"] - wide["early"]).to_numpy()
        found = statistics.cluster_t(more[None], wide.index.to_numpy(), level=level)
        early = once.loc[once["when"] == "early", "step"]
        lines.append(
            {
                **{"arm": arm, "order": order, "n": len(wide)},
                **wide.mean()[["early", "late"]].to_dict(),
                **{"from_step": early.min(), "to_step": early.max(), "more": more.mean()},
                **{"ci_low": float(found.low[0]), "ci_high": float(found.high[0])},
            }
        )
    return pd.DataFrame(lines, columns=GROWTH)


# ------------------------------------------------------------------ when
Steps = Int[np.ndarray, " step"]
Values = Float[np.ndarray, " step"]


def settles(step: Steps, holds: Bool[np.ndarray, " step"]) -> int | None:
    """Find the first step from which on something holds to the end; None if not at the end."""
    lasting = np.logical_and.accumulate(holds[::-1])[::-1]
    return int(step[lasting.argmax()]) if lasting.any() else None


def steepest(step: Steps, values: Values) -> int:
    """Find the step at the end of the steepest rise per step; the first of several alike."""
    return int(step[1 + (np.diff(values) / np.diff(step)).argmax()])


def halfway(step: Steps, values: Values) -> float:
    """Find when values last rose past the middle between the first and the last, by straight lines.

    NaN where the last is not above the first.
    """
    middle = (values[0] + values[-1]) / 2
    if not values[-1] > values[0]:
        return np.nan
    below = int(np.flatnonzero(values < middle).max())
    share = (middle - values[below]) / (values[below + 1] - values[below])
    return float(step[below] + share * (step[below + 1] - step[below]))


def emergence(table: pd.DataFrame, history: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Say when heads become something.

    Args:
        table: `arm, seed, step, site, layer, head, feature, score, has_role`, at two or more steps.
        history: `arm, seed, step, split, loss, accuracy`, with lines of `test` at these steps.
        threshold: The score that counts.

    Returns:
        One line a model and feature: `arm, seed, feature`, and
            appears           the step (null: it does not)
            role_from         the first step from which on some head keeps that role (or null)
            site, layer, head  the head that appears first, of several the one that ends highest;
                              where none appears, the one that ends highest
            score             that it ends at; `best`, the highest at the end
            halfway           of the head that ends highest
            rises, drops      the ends of the steepest rise of the best score and of the steepest
                              fall of the test loss; `apart` = rises - drops
            correlation       of best score and test accuracy, over the steps (Pearson; null where
                              one of them never changes)
    """
    lines = []
    for place, of_model in table.groupby(MODEL, sort=False):
        own = (history[MODEL] == list(place)).all(axis=1) & (history["split"] == "test")
        tests = history[own].set_index("step").sort_index()
        drops = steepest(tests.index.to_numpy(), -tests["loss"].to_numpy())
        for feature, found in of_model.groupby("feature", sort=False):
            known = {**dict(zip(MODEL, place, strict=True)), "feature": feature}
            accuracy = tests["accuracy"].loc[sorted(set(found["step"]))].to_numpy()
            lines.append(known | _emerged(found, accuracy, threshold) | {"drops": drops})
    result = pd.DataFrame(lines).astype({"appears": "Int64", "role_from": "Int64"})
    result["apart"] = result["rises"] - result["drops"]
    return result


def sequence(lines: pd.DataFrame, apart: float) -> str:
    """Put the features that appear in one model in order, by when their scores are halfway.

    Args:
        lines: Of `emergence`, for one model.
        apart: Steps up to which two that follow each other count as one.

    Returns:
        Such as `antecedent, then induction with offset:-1`; empty where nothing appears.
    """
    found = lines[lines["appears"].notna()].sort_values("halfway")
    group = (found["halfway"].diff() > apart).cumsum()
    return ", then ".join(" with ".join(sorted(own)) for _, own in found.groupby(group)["feature"])


def _emerged(lines: pd.DataFrame, accuracy: Values, threshold: float) -> dict[str, Any]:
    """Say when one feature appears in one model."""
    score, role = (
        lines.pivot(index="step", columns=HEAD, values=name).sort_index()
        for name in ("score", "has_role")
    )
    step, values = score.index.to_numpy(), score.to_numpy()
    last = values[-1]
    since = _since(step, values >= threshold)
    first = min(
        range(len(last)), key=lambda n: (np.inf if since[n] is None else since[n], -last[n])
    )
    best, top = values.max(axis=1), values[:, last.argmax()]
    roles = [at for at in _since(step, role.to_numpy(dtype=bool)) if at is not None]
    return {
        "appears": since[first],
        "role_from": min(roles, default=None),
        **dict(zip(HEAD, score.columns[first], strict=True)),
        "score": last[first],
        "best": last.max(),
        "halfway": halfway(step, top),
        "rises": steepest(step, best),
        "correlation": _correlation(best, accuracy),
    }


def _since(step: Steps, holds: Shaped[np.ndarray, "step head"]) -> list[int | None]:
    return [settles(step, column) for column in holds.T]


def _correlation(a: Values, b: Values) -> float:
    """Correlate; NaN where one side never changes."""
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else np.nan
