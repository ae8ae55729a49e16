"""Hard Concrete gates: which heads can be closed, if the model may choose?

Each head gets a number log α that is learned along with the weights, or with the weights frozen
(Voita et al. 2019, https://arxiv.org/abs/1905.09418):

    s = σ((log u − log(1 − u) + log α) / β), u uniform    a draw, anew for each batch
    ξ = min(1, max(0, s (ζ − γ) + γ))                     the gate: 0 and 1 have mass of their own
    P(ξ > 0) = σ(log α − β log(−γ / ζ))                   the probability that it is open
    loss = loss of the task + λ Σ P(ξ > 0)

with β = 0.33, γ = −0.1 and ζ = 1.1 (Louizos et al. 2018, https://arxiv.org/abs/1712.01312). λ is
the price of one head, in nats; Voita's code divides its coefficient by the number of layers.

What is left afterwards is told in two ways, both without draws:

    typical    ξ of s = σ(log α): what Voita's code evaluates. It is settled within SETTLED of 0 or
               1, which takes |log α| ≥ 1.95
    rounded    open where ξ = 1 is likelier than ξ = 0, i.e. where log α > 0, and else closed

ξ stands where all gates stand (interp.gates): z' = ξ·z + (1 − ξ)·0.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from interp import sweep
from interp.axes import Score
from interp.gates import Place, Zero, gated
from interp.heads import Head, all_heads, from_table
from interp.models.head_model import HeadModel
from interp.redundancy import importance
from interp.tasks.task import Task
from interp.training.lesson import Lesson
from interp.training.trainer import Group, Settings, Trainer

BETA, GAMMA, ZETA = 0.33, -0.1, 1.1
SETTLED = 0.05
"""A gate within this of 0 or 1 is settled."""

LogAlpha = Float[Tensor, " head"]
Opening = Mapping[Place, Float[Tensor, "1 1 head"]]
"""How far each head's gate is open, the same for all rows and positions."""
Errors = Callable[[int, Opening], Float[Tensor, ""]]
"""The loss of the task at a step, in nats, under some gates."""


# ------------------------------------------------------------------ gates
def drawn(log_alpha: LogAlpha, u: Float[Tensor, " head"]) -> Float[Tensor, " head"]:
    """Turn uniform draws into gates."""
    return _stretched(((u / (1 - u)).log() + log_alpha).div(BETA).sigmoid())


def typical(log_alpha: LogAlpha) -> Float[Tensor, " head"]:
    """Give the gates that stand for all draws: without noise and temperature, as Voita's code."""
    return _stretched(log_alpha.sigmoid())


def rounded(log_alpha: LogAlpha) -> Float[Tensor, " head"]:
    """Give the gates as they are afterwards: open or closed."""
    return (log_alpha > 0).float()


def p_open(log_alpha: LogAlpha) -> Float[Tensor, " head"]:
    """Compute the probability that a gate is not 0."""
    return (log_alpha - BETA * log(-GAMMA / ZETA)).sigmoid()


def _stretched(s: Float[Tensor, " head"]) -> Float[Tensor, " head"]:
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


class Gates(nn.Module):
    """A gate for each head of a model."""

    def __init__(self, model: HeadModel, start: float) -> None:
        """Let every log α start at the same value."""
        super().__init__()
        self.places = [(site.name, layer) for site in model.sites for layer in range(site.n_layers)]
        n_heads = [model.site[site].n_heads for site, _ in self.places]
        self.log_alpha = nn.ParameterList(
            torch.full((n,), start, device=model.device) for n in n_heads
        )

    def each(self, make: Callable[[LogAlpha], Float[Tensor, " head"]]) -> Opening:
        """Make gates of every layer's log α."""
        pairs = zip(self.places, self.log_alpha, strict=True)
        return {place: make(log_alpha)[None, None] for place, log_alpha in pairs}

    def noisy(self, rng: np.random.Generator) -> Opening:
        """Draw gates."""
        tiny = torch.finfo(torch.float32).eps

        def draw(log_alpha: LogAlpha) -> Tensor:
            u = torch.tensor(rng.random(len(log_alpha)), dtype=torch.float32)
            return drawn(log_alpha, u.clamp(tiny, 1 - tiny).to(log_alpha.device))

        return self.each(draw)

    def expected(self) -> Float[Tensor, ""]:
        """Count the heads that are open, on average over draws: Σ P(ξ > 0)."""
        return torch.stack([p_open(log_alpha).sum() for log_alpha in self.log_alpha]).sum()

    def n_open(self) -> int:
        """Count the heads that are open once gates are rounded."""
        return int(sum((log_alpha > 0).sum() for log_alpha in self.log_alpha))

    def table(self) -> pd.DataFrame:
        """List the gates: `site, layer, head, log_alpha, p_open, gate` (the typical), `open`."""
        lines = []
        for (site, layer), log_alpha in zip(self.places, self.log_alpha, strict=True):
            columns = log_alpha, p_open(log_alpha), typical(log_alpha), log_alpha > 0
            for head, values in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
                lines.append((site, layer, head, *values))
        names = ["site", "layer", "head", "log_alpha", "p_open", "gate", "open"]
        return pd.DataFrame(lines, columns=names)


def kept(table: pd.DataFrame) -> list[Head]:
    """List the heads whose gates are open."""
    return from_table(table[table["open"]])


def settled(table: pd.DataFrame) -> float:
    """Say which share of the typical gates is within SETTLED of 0 or 1."""
    gate = table["gate"]
    return float(((gate < SETTLED) | (gate > 1 - SETTLED)).mean())


def only(model: HeadModel, heads: Collection[Head]) -> Opening:
    """Open the gates of some heads, and close those of all others."""
    opening = {
        place: torch.zeros(1, 1, model.site[place[0]].n_heads, device=model.device)
        for place in model.attentions
    }
    for head in heads:
        opening[head.site, head.layer][..., head.head] = 1
    return opening


def random_sets(model: HeadModel, size: int, n: int, seed: int) -> list[list[Head]]:
    """Draw sets of as many heads, from all heads alike."""
    heads = all_heads(model.sites)
    rng = np.random.default_rng([seed, size])
    return [[heads[k] for k in rng.permutation(len(heads))[:size]] for _ in range(n)]


# ------------------------------------------------------------------ a model with gates
@contextmanager
def opened(model: HeadModel, opening: Opening, n: int) -> Iterator[None]:
    """Put gates in force for batches of `n` sequences, differentiably."""
    baseline = Zero()
    baseline.zero = torch.zeros((), device=model.device)
    xi = {place: gate.expand(n, -1, -1) for place, gate in opening.items()}
    with gated(model, xi, baseline, torch.arange(n, device=model.device), 0):
        yield


def score(model: HeadModel, task: Task, opening: Opening, examples: Sequence[int]) -> Score:
    """Score some examples of a task with gates in force, differentiably."""
    asked = task.questions(model, examples)
    with opened(model, opening, len(asked.batch)):
        return task.score(model, asked)


@torch.no_grad()
def scores(
    model: HeadModel, task: Task, opening: Opening, tokens_per_batch: int
) -> Float[np.ndarray, " example"]:
    """Score all examples of a task with gates in force."""
    found = np.empty(len(task))
    for examples, _ in sweep.example_batches(task, tokens_per_batch):
        found[list(examples)] = score(model, task, opening, examples).double().cpu()
    return found


def errors_at_task(model: HeadModel, examples: Callable[[int], Task]) -> Errors:
    """Make a loss of a task's scores: their mean or, of differences, that of −log σ(difference).

    Args:
        model: The model.
        examples: What is asked at a step.
    """

    def errors(step: int, opening: Opening) -> Tensor:
        task = examples(step)
        found = score(model, task, opening, range(len(task)))
        return (softplus(-found) if task.higher_is_better else found).mean()

    return errors


def errors_at_lesson(model: HeadModel, lesson: Lesson, n: int, seed: int) -> Errors:
    """Make the loss that the model was trained with, per answer, on `n` new examples a step."""

    def errors(step: int, opening: Opening) -> Tensor:
        batch = lesson.examples(n, seed=seed, split="train", step=step).to(model.device)
        with opened(model, opening, n):
            logits = batch.logits(model.module)
        return cross_entropy(logits.float().flatten(0, -2), batch.labels.flatten())

    return errors


# ------------------------------------------------------------------ learning
class Now(NamedTuple):
    """Where learning stands."""

    step: int
    """Steps that are done."""
    loss: float
    """The last step's, with the price of open heads where they have one."""
    n_open: int


@dataclass(frozen=True)
class Course:
    """How learning goes, whatever is learned."""

    settings: Settings
    watch: Callable[[Now], None]
    """Called after each step."""
    state: Path | None = None
    """The file that the state is kept in, and from which learning goes on; None: nowhere."""
    save_every: int = 50
    """Steps between two states; the last step leaves one in any case."""

    def take(
        self, groups: Sequence[Group], loss: Callable[[int], Tensor], n_open: Callable[[], int]
    ) -> None:
        """Go on until all steps are done.

        Args:
            groups: What is learned.
            loss: The loss at a step.
            n_open: Counts the heads that are open.
        """
        trainer = Trainer(groups, loss, self.settings)
        if self.state is not None and self.state.exists():
            trainer.load(self.state)
        while trainer.step < self.settings.steps:
            value = trainer.advance()
            self.watch(Now(trainer.step, value, n_open()))
            is_last = trainer.step == self.settings.steps
            if self.state is not None and (is_last or trainer.step % self.save_every == 0):
                trainer.save(self.state, {})


def learn(
    model: HeadModel,
    gates: Gates,
    errors: Errors,
    course: Course,
    *,
    price: float,
    rate: float,
    weights_rate: float | None,
    seed: int,
) -> None:
    """Learn gates, in place.

    Args:
        model: The model; its weights change where they have a rate.
        gates: The gates.
        errors: The loss of the task.
        course: How learning goes.
        price: λ, the price of an open head, in nats.
        rate: The rate of log α.
        weights_rate: The rate of the model's weights; None: they are frozen.
        seed: The seed of the draws.
    """

    def loss(step: int) -> Tensor:
        opening = gates.noisy(np.random.default_rng([seed, step]))
        return errors(step, opening) + price * gates.expected()

    groups = [Group({f"gates.{k}": value for k, value in gates.named_parameters()}, rate)]
    if weights_rate is None:
        with importance.frozen(model.module):
            course.take(groups, loss, gates.n_open)
    else:
        course.take([*groups, Group(weights(model), weights_rate)], loss, gates.n_open)


def retrain(
    model: HeadModel, heads: Collection[Head], errors: Errors, course: Course, *, rate: float
) -> None:
    """Train a model's weights in place, with all heads closed but some.

    Args:
        model: The model.
        heads: The heads that are open.
        errors: The loss of the task.
        course: How training goes.
        rate: The rate of the weights.
    """
    opening = only(model, heads)
    course.take(
        [Group(weights(model), rate)], lambda step: errors(step, opening), lambda: len(heads)
    )


def weights(model: HeadModel) -> dict[str, nn.Parameter]:
    """Name the weights of a model that can be trained."""
    return {name: value for name, value in model.module.named_parameters() if value.requires_grad}


@contextmanager
def borrowed(model: HeadModel) -> Iterator[None]:
    """Give a model its weights back at the end of the `with` block, whatever was done to them."""
    before = {value: value.detach().clone() for value in weights(model).values()}
    try:
        yield
    finally:
        with torch.no_grad():
            for value, old in before.items():
                value.copy_(old)
                value.grad = None
