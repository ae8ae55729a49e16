"""How much each head matters, as far as one gradient can tell.

A head's gate ξ is 1 where the head does its work and 0 where a baseline b stands in its place:
z' = ξ·z + (1 - ξ)·b (interp.gates). One forward and one backward give ∂m/∂ξ = (z - b)·∂m/∂z' of
the metric m for all heads at once, and estimates are made of that:

    attribution       what closing the gate would do to m were m linear in it, signed as damage:
                      positive where the model would get worse (Nanda 2023, attribution patching;
                      here of a head's output, under any baseline)
    michel_example    the size of ∂m/∂ξ for b = 0, averaged over examples: I_h of Michel et al.
                      2019 (https://arxiv.org/abs/1905.10650), eq. 2
    michel_token      the same taken token by token, Σ |…| / the number of tokens: their code
    michel_batch      the same of the mean over BATCH examples, averaged over such batches, as
                      Hugging Face's run_bertology.py does

The three of Michel rank heads differently, since gradients of different signs cancel within an
example or a batch. They have no sign: they say how much a head moves the metric, not which way.

Four more estimates need more, or less:

    ig                integrated gradients (Sundararajan et al. 2017, https://arxiv.org/abs/1703.01365)
                      over the gate: all gates move together from 1 to 0, and each head gets the
                      integral of ∂m/∂ξ along the way, by the midpoint rule; signed as damage. Over
                      heads they add up to the damage of closing all gates, but for the rule's error
    confidence        the largest attention weight, averaged over tokens (Voita et al. 2019,
                      https://arxiv.org/abs/1905.09418); weights on special tokens are left out, and
                      what is left is not scaled up
    z_norm            the length of what the head adds to the residual stream, ‖z W_O‖, averaged
                      over tokens
    ov_norm           the Frobenius norm of W_V W_O, with the gain of the norm in front folded in

An example's gate is closed at all positions where gates act, and in all of its sequences;
confidence and z_norm average over all tokens but pads and special ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from interp import gates, statistics, sweep
from interp.axes import Score, Z
from interp.gates import Baseline, Place, Setting, Xi
from interp.heads import HEAD, all_heads
from interp.models import weights
from interp.models.head_model import HeadModel
from interp.tasks.task import Questions, Task

SIGNED = ("attribution", "ig")
"""Estimates of damage; the others are of its size."""
MICHEL = ("michel_example", "michel_token", "michel_batch")
GRADIENT = (*MICHEL, "attribution")
ESTIMATORS = (*GRADIENT, "ig", "confidence", "z_norm", "ov_norm", "exact")
BATCH = 8
"""Examples, as they follow each other in the task, that michel_batch averages before it takes the
absolute value; the last batch may hold fewer. What goes through the model together is no matter."""

COLUMNS: dict[str, tuple[str, str | None]] = {
    "michel_example": ("gate", None),
    "michel_token": ("by_token", "n_tokens"),
    "attribution": ("attribution", None),
    "ig": ("ig", None),
    "confidence": ("confidence", "n_looked"),
    "z_norm": ("z_norm", "n_looked"),
    "exact": ("damage", None),
}
"""The columns that estimates are made of: values, and what to divide their sum by (examples)."""
Matrix = Float[np.ndarray, "head example"]


class Measured(NamedTuple):
    """An estimate, example by example: the score is Σ value / Σ weight."""

    value: Matrix
    weight: Matrix

    @property
    def score(self) -> Float[np.ndarray, " head"]:
        """Score heads; NaN where there was nothing to measure."""
        with np.errstate(invalid="ignore"):
            return self.value.sum(axis=1) / self.weight.sum(axis=1)

    def draws(
        self, clusters: Shaped[np.ndarray, " example"], *, n_draws: int, seed: int
    ) -> Float[np.ndarray, "head draw"]:
        """Score heads on clusters of examples that are drawn again (statistics.bootstrap_means)."""
        value, weight = (
            statistics.bootstrap_means(part, clusters, n_draws=n_draws, seed=seed) for part in self
        )
        with np.errstate(invalid="ignore"):
            return value / weight


class Gated(NamedTuple):
    """What a layer's heads did in a pass."""

    z: Z
    b: Z
    """The baseline, averaged over draws."""
    gradient: Z
    """∂m/∂z' of each example's metric, where z' is what W_O reads."""


def estimates(
    model: HeadModel,
    task: Task,
    baseline: Baseline,
    *,
    positions: str,
    tokens_per_batch: int,
    closed: Setting = (),
) -> pd.DataFrame:
    """Estimate how much each head matters, by gradients.

    Args:
        model: The model; its weights need no gradients.
        task: The examples, and the metric.
        baseline: What stands in for a head; attribution alone depends on it.
        positions: Where gates act: `all`, `not_first` or `answer`.
        tokens_per_batch: The most tokens that go through the model together.
        closed: Heads whose gates are closed already, at the same baseline: the estimates are of
            the model without them, and they are left out.

    Returns:
        One line a head and estimator: `site, layer, head, estimator, score`, in the metric's unit
        (michel_token: per token).
    """
    rows = pd.concat(
        gradients(model, task, examples, baseline, positions=positions, closed=closed)
        for examples, _ in sweep.example_batches(task, tokens_per_batch)
    )
    return scores(rows)


def scores(rows: pd.DataFrame) -> pd.DataFrame:
    """Average what `gradients` returned over examples, as `estimates` does."""
    score = {name: found.score for name, found in measured(rows).items()}
    score["michel_batch"] = by_batch(rows)
    return pd.concat(
        [heads(rows).assign(estimator=name, score=score[name]) for name in GRADIENT],
        ignore_index=True,
    )


def measured(rows: pd.DataFrame) -> dict[str, Measured]:
    """Lay out as head x example the estimates that have a value for each example.

    Args:
        rows: What `gradients` returned, or several such tables merged.
    """
    found = {}
    for name, (column, weight) in COLUMNS.items():
        if column in rows:
            value = matrix(rows, column)
            counts = np.ones_like(value) if weight is None else matrix(rows, weight)
            found[name] = Measured(np.abs(value) if name == "michel_example" else value, counts)
    return found


def by_batch(rows: pd.DataFrame) -> Float[np.ndarray, " head"]:
    """Score heads by michel_batch."""
    gate = matrix(rows, "gate")
    starts = range(BATCH, gate.shape[1], BATCH)
    means = [np.abs(part.mean(axis=1)) for part in np.split(gate, starts, axis=1)]
    return np.mean(means, axis=0)


def matrix(rows: pd.DataFrame, column: str) -> Matrix:
    """Lay a column out as head x example, in the order of `heads`."""
    return rows.pivot(index=HEAD, columns="example", values=column).to_numpy(dtype=np.float64)


def heads(rows: pd.DataFrame) -> pd.DataFrame:
    """List the heads, in order."""
    return rows[HEAD].drop_duplicates().sort_values(HEAD, ignore_index=True)


def gradients(
    model: HeadModel,
    task: Task,
    examples: Sequence[int],
    baseline: Baseline,
    *,
    positions: str,
    closed: Setting = (),
) -> pd.DataFrame:
    """Differentiate the metric of a batch of examples by all open gates.

    One forward and one backward; with closed gates, one of each for every draw of the baseline.

    Returns:
        One line a head and example, without the closed heads:
            gate         ∂m/∂ξ for b = 0
            by_token     Σ over positions of its absolute value at each
            n_tokens     positions where the gate acts
            attribution  predicted damage: ∂m/∂ξ for the baseline, times -1 for a loss; the mean
                         over draws
    """
    asked, acts = prepared(model, task, examples, baseline, positions)
    opening = gates.xi(model, asked.batch, [closed] * len(asked.batch), acts)
    every = range(baseline.n_draws)
    # with all gates open the draws share their pass: only b differs
    passes = [[draw] for draw in every] if closed else [list(every)]
    frames = []
    for draws in passes:
        found = differentiate(model, task, asked, baseline, opening, draws)[1]
        for (site, layer), (z, b, gradient) in found.items():
            act = acts[site][..., None]
            gate = (z * gradient).sum(-1).where(act, 0)
            predicted = ((z - b) * gradient).sum(-1).where(act, 0)  # (b may be missing elsewhere)
            frames.append(
                _frame(
                    (site, layer),
                    task,
                    examples,
                    gate=gate,
                    by_token=gate.abs(),
                    n_tokens=act.expand_as(gate),
                    attribution=predicted if task.higher_is_better else -predicted,
                )
            )
    rows = pd.concat(frames, ignore_index=True)
    rows = rows.groupby([*HEAD, "example"], as_index=False).mean()  # over draws
    shut = pd.MultiIndex.from_tuples([(h.site, h.layer, h.head) for h in closed], names=HEAD)
    return rows[~pd.MultiIndex.from_frame(rows[HEAD]).isin(shut)] if closed else rows


def integrated(
    model: HeadModel,
    task: Task,
    examples: Sequence[int],
    baseline: Baseline,
    *,
    positions: str,
    steps: int,
    draws: Sequence[int],
) -> pd.DataFrame:
    """Integrate the gradient of a batch's metric over all gates, moved together from 1 to 0.

    Args:
        model: The model.
        task: The examples, and the metric.
        examples: Which of them.
        baseline: What stands in for heads.
        positions: Where gates act.
        steps: Points of the midpoint rule; each takes a forward and a backward.
        draws: The versions of the baseline along whose paths to go; the mean is taken.

    Returns:
        One line a head and example: `ig`, and `whole`, the damage of closing all gates, which
        `ig` should add up to over heads.
    """
    asked, acts = prepared(model, task, examples, baseline, positions)
    sign = 1 if task.higher_is_better else -1
    rows = torch.arange(len(asked.batch), device=model.device)
    total: dict[Place, Tensor] = {}
    damage = torch.zeros(len(examples), device=model.device)
    for draw in draws:
        closed = all_gates(model, acts, 0.0)
        with torch.inference_mode():
            clean = task.score(model, asked)
            with gates.gated(model, closed, baseline, rows, draw):
                damage = damage + sign * (clean - task.score(model, asked)) / len(draws)
        for step in range(steps):
            xi = (step + 0.5) / steps
            found = path_gradient(model, task, asked, acts, baseline, xi=xi, draw=draw)
            for place, gradient in found.items():
                part = gradient.double() * (sign / steps / len(draws))
                total[place] = total[place] + part if place in total else part
    frames = [_frame(place, task, examples, ig=ig) for place, ig in total.items()]
    whole = dict(zip(examples, damage.double().tolist(), strict=True))
    lines = pd.concat(frames, ignore_index=True)
    return lines.assign(whole=lines["example"].map(whole))


def path_gradient(
    model: HeadModel,
    task: Task,
    asked: Questions,
    acts: Mapping[str, Bool[Tensor, "row _"]],
    baseline: Baseline,
    *,
    xi: float,
    draw: int,
) -> dict[Place, Float[Tensor, "row position head"]]:
    """Compute ∂m/∂ξ at each position where all gates stand at the same ξ; 0 where none acts."""
    opening = all_gates(model, acts, xi)
    found = differentiate(model, task, asked, baseline, opening, [draw])[1]
    return {
        place: ((z - b) * gradient).sum(-1).where(acts[place[0]][..., None], 0)
        for place, (z, b, gradient) in found.items()
    }


def all_gates(
    model: HeadModel, acts: Mapping[str, Bool[Tensor, "row _"]], xi: float
) -> dict[Place, Xi]:
    """Open all gates of all heads as far as ξ says, where they act."""
    return {
        (site.name, layer): (1 - (1 - xi) * acts[site.name].float())[..., None].expand(
            -1, -1, site.n_heads
        )
        for site in model.sites
        for layer in range(site.n_layers)
    }


def incompleteness(rows: pd.DataFrame) -> tuple[float, float]:
    """Compare what `integrated` returned with the damage of closing all gates.

    Returns:
        Σ over heads of ig - the damage, averaged over examples, in the metric's unit; and the mean
        size of the difference as a share of the mean size of the damage.
    """
    by_example = rows.groupby("example").agg({"ig": "sum", "whole": "first"})
    gap = by_example["ig"] - by_example["whole"]
    return float(gap.mean()), float(gap.abs().mean() / by_example["whole"].abs().mean())


@torch.inference_mode()
def looks(model: HeadModel, task: Task, examples: Sequence[int]) -> pd.DataFrame:
    """Look at a batch: how sure heads are where they look, and how much they write.

    Returns:
        One line a head and example: `confidence` and `z_norm`, summed over tokens, and `n_looked`,
        how many tokens there are.
    """
    asked = task.questions(model, examples)
    with model.watching_z() as z:
        model.visit(asked.batch)
    frames = []
    for place, pattern in model.patterns(asked.batch, [site.name for site in model.sites]).items():
        site = model.site[place[0]]
        queries, keys = asked.batch.queries(site), asked.batch.keys(site)
        looking = (queries.mask & ~queries.special)[..., None]
        at = (keys.mask & ~keys.special)[:, None, None]
        most = pattern.where(at, 0).amax(-1).transpose(1, 2)
        size = model.attentions[place].write(z[place]).norm(dim=-1)
        frames.append(
            _frame(
                place,
                task,
                examples,
                confidence=most.where(looking, 0),
                z_norm=size.where(looking, 0),
                n_looked=looking.expand_as(size),
            )
        )
    return pd.concat(frames, ignore_index=True)


@torch.no_grad()
def ov_norms(model: HeadModel) -> pd.DataFrame:
    """Measure heads' weights: one line a head, `ov_norm`."""
    frames = []
    for name, layers in weights.read(model).items():
        for layer, read in enumerate(layers):
            W_V = weights.folded(read.W_V, read.key_norm)
            W_V = W_V.repeat_interleave(len(read.W_O) // len(W_V), dim=0)
            # ‖V O‖² = tr(Vᵀ V O Oᵀ), without a matrix of d_model x d_model
            squared = ((W_V.mT @ W_V) * (read.W_O @ read.W_O.mT)).sum((1, 2))
            norm = squared.clamp(min=0).sqrt().double().cpu().numpy()
            lines = {"site": name, "layer": layer, "head": np.arange(len(norm)), "ov_norm": norm}
            frames.append(pd.DataFrame(lines))
    return pd.concat(frames, ignore_index=True)


def normalised(
    table: pd.DataFrame, values: Float[np.ndarray, "head draw"]
) -> Float[np.ndarray, "head draw"]:
    """Divide scores by their ℓ2 norm over the heads of each layer; a layer of zeros stays 0.

    Args:
        table: The heads, one line each.
        values: One or more scores of each.
    """
    layer = table.groupby(["site", "layer"], sort=False).ngroup().to_numpy()
    squares = np.zeros((layer.max() + 1, values.shape[1]))
    np.add.at(squares, layer, values**2)
    norm = np.sqrt(squares)[layer]
    return values / np.where(norm > 0, norm, 1)


def prepared(
    model: HeadModel, task: Task, examples: Sequence[int], baseline: Baseline, positions: str
) -> tuple[Questions, dict[str, Tensor]]:
    """Batch examples, and get the baseline ready for them."""
    with torch.inference_mode(False), torch.no_grad():
        asked = task.questions(model, examples)
        acts = gates.acting(model, asked, positions, all_heads(model.sites))
        baseline.prepare(model, task, examples)
    return asked, acts


def differentiate(
    model: HeadModel,
    task: Task,
    asked: Questions,
    baseline: Baseline,
    opening: Mapping[Place, Xi],
    draws: Sequence[int],
) -> tuple[Score, dict[Place, Gated]]:
    """Run a batch once forward and once backward under given gates.

    Args:
        model: The model.
        task: The metric.
        asked: The batch.
        baseline: What stands in for heads, ready for the batch.
        opening: The gates that are not open.
        draws: The versions of the baseline to average; the first is put where gates are closed.

    Returns:
        Each example's metric, and what every layer's heads did.
    """
    rows = torch.arange(len(asked.batch), device=model.device)
    leaves: dict[Place, Tensor] = {}

    def add_leaf(place: Place, z: Z) -> Z:
        leaves[place] = torch.zeros_like(z, requires_grad=True)
        return z + leaves[place]

    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(frozen(model.module))
        kept = stack.enter_context(model.watching_z())  # before any gate
        stack.enter_context(gates.gated(model, opening, baseline, rows, draws[0]))
        stack.enter_context(baseline.watching(model.attentions))  # not of closed gates alone
        adders = {place: lambda z, place=place: add_leaf(place, z) for place in model.attentions}
        stack.enter_context(model.editing(adders))
        score = task.score(model, asked)
        # (a head that the metric does not depend on has gradient 0)
        found = torch.autograd.grad(
            score.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
    result = {}
    with torch.no_grad():
        for place, gradient in zip(leaves, found, strict=True):
            z = kept[place].detach()
            versions = [baseline.at(place, rows, draw).to(z.dtype).expand_as(z) for draw in draws]
            result[place] = Gated(z, torch.stack(versions).mean(0), gradient)
    return score.detach(), result


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Ask for no gradients of weights: a backward then costs about as much as a forward."""
    thawed = [weight for weight in module.parameters() if weight.requires_grad]
    for weight in thawed:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in thawed:
            weight.requires_grad_(True)


def _frame(
    place: Place,
    task: Task,
    examples: Sequence[int],
    **values: Shaped[Tensor, "row position head"],
) -> pd.DataFrame:
    """Sum values over each example's sequences and positions; one line a head and example."""
    sums = {
        name: value.double().unflatten(0, (-1, task.n_sequences)).sum((1, 2)).cpu().numpy()
        for name, value in values.items()
    }
    n_heads = next(iter(sums.values())).shape[1]
    return pd.DataFrame(
        {
            "site": place[0],
            "layer": place[1],
            "head": np.tile(np.arange(n_heads), len(examples)),
            "example": np.repeat(list(examples), n_heads),
            **{name: total.ravel() for name, total in sums.items()},
        }
    )
