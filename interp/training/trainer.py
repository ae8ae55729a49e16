"""A plain, fast trainer whose runs can be stopped anywhere and end the same.

Everything that happens at a step is a function of the step and of what training has come to: the
batch, the rate, the noise. So weights, AdamW's two moments and the step are all there is to save.

AdamW (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101); the rate climbs for `warmup`
steps, stays, and falls along half a cosine from the share `decay_from` of the steps on; gradients
longer than `clip`, all weights taken together, are cut to that length.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from interp.errors import InputError
from interp.runs import whole
from interp.training.lesson import NO_LABEL, Examples, Lesson
from interp.transformer import Transformer

PARAMETER = "parameter"
"""How the names of weights begin in a saved state; moments have names of AdamW's."""
BETA1 = 0.9


@dataclass(frozen=True)
class Settings:
    """How long to train, and how fast."""

    steps: int
    warmup: int
    """Steps until the rate is reached."""
    decay_from: float
    """The share of the steps after which the rate falls."""
    final_rate: float
    """What is left of the rate after the last step, as a share; 1: it stays."""
    weight_decay: float
    beta2: float
    """How slowly AdamW forgets squared gradients."""
    clip: float
    """The longest gradient."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            InputError: A value is out of range.
        """
        if self.steps < 1:
            raise InputError(f"steps={self.steps}: at least 1")
        for name in ("decay_from", "final_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)}: a share, from 0 to 1")
        if not 0 <= self.beta2 < 1:
            raise InputError(f"beta2={self.beta2}: from 0 to below 1, such as 0.99")
        if self.clip <= 0:
            raise InputError(f"clip={self.clip}: above 0, such as 1.0")

    def share(self, step: int) -> float:
        """Say which share of the full rate holds at a step, counted from 0."""
        climbed = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        start = self.decay_from * self.steps
        fallen = max(0.0, (step - start) / (self.steps - start)) if step > start else 0.0
        left = self.final_rate + (1 - self.final_rate) * (1 + cos(pi * fallen)) / 2
        return climbed * left


class Group(NamedTuple):
    """Weights that learn at one rate."""

    parameters: Mapping[str, nn.Parameter]
    rate: float


class Trainer:
    """Minimises a loss that is a function of the step."""

    def __init__(
        self, groups: Sequence[Group], loss: Callable[[int], Tensor], settings: Settings
    ) -> None:
        """Get ready for step 0.

        Args:
            groups: What is to be learned; names must differ.
            loss: The loss at a step: a scalar with a gradient.
            settings: How long and how fast.
        """
        self.settings, self.loss, self.rates = settings, loss, [group.rate for group in groups]
        self.parameters = {
            name: value for group in groups for name, value in group.parameters.items()
        }
        self.optimizer = torch.optim.AdamW(
            [{"params": list(group.parameters.values())} for group in groups],
            betas=(BETA1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.step = 0

    @property
    def rate(self) -> float:
        """The rate of the first group at the step that is due."""
        return self.rates[0] * self.settings.share(self.step)

    def advance(self) -> float:
        """Do one step; returns the loss before it.

        Raises:
            InputError: The loss is no number any more.
        """
        share = self.settings.share(self.step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share
        self.optimizer.zero_grad()
        loss = self.loss(self.step)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.clip)
        self.optimizer.step()
        self.step += 1
        value = loss.item()
        if not isfinite(value):
            raise InputError(f"the loss is {value} at step {self.step}: try a lower rate")
        return value

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Write all that the next steps depend on, and facts beside it, into one file."""
        tensors = {f"{PARAMETER}.{name}": value.detach() for name, value in self.parameters.items()}
        for name, value in self.parameters.items():
            for key, moment in self.optimizer.state[value].items():
                tensors[f"{key}.{name}"] = moment
        metadata = {"step": str(self.step), "facts": json.dumps(facts)}
        with whole(path) as scratch:
            save_file({k: v.contiguous() for k, v in tensors.items()}, scratch, metadata)

    def load(self, path: Path) -> dict[str, Any]:
        """Go back to a saved state; returns the facts.

        Raises:
            InputError: It is the state of other weights, or no such file.
        """
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise InputError(f"{path} is damaged: {error} (remove it to start anew)") from error
        with torch.no_grad():
            for name, value in self.parameters.items():
                saved = tensors.pop(f"{PARAMETER}.{name}", None)
                if saved is None or saved.shape != value.shape:
                    raise InputError(f"{path} holds other weights: no such {name}")
                value.copy_(saved)
        for key, value in tensors.items():
            moment, _, name = key.partition(".")
            parameter = self.parameters[name]
            self.optimizer.state[parameter][moment] = value.to(parameter.device)
        self.step = int(metadata["step"])
        return json.loads(metadata["facts"])


class Scores(NamedTuple):
    """How well a model does on some examples."""

    loss: float
    """Mean negative log-probability of the right answers, in nats."""
    accuracy: float
    """Share of questions answered right."""
    exact_match: float
    """Share of examples answered right in all their questions: what greedy decoding gets right."""


@torch.inference_mode()
def evaluate(model: nn.Module, examples: Examples, batch_size: int) -> Scores:
    """Ask a model all questions of some examples."""
    loss, right, whole_, asked = 0.0, 0, 0, 0
    for start in range(0, len(examples), batch_size):
        part = examples[start : start + batch_size]
        logits, labels = part.logits(model), part.labels
        is_asked = labels != NO_LABEL
        loss += cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum").item()
        is_right = logits.argmax(-1) == labels
        right += int(is_right.sum())
        whole_ += int((is_right | ~is_asked).all(-1).all(-1).sum())
        asked += int(is_asked.sum())
    return Scores(loss / asked, right / asked, whole_ / len(examples))


class Progress(NamedTuple):
    """Where training stands."""

    step: int
    """Steps that are done."""
    loss: float
    """The last step's; NaN before the first."""
    rate: float
    """The next step's."""


@dataclass(frozen=True)
class Plan(Settings):
    """How to train on a lesson."""

    rate: float
    batch_size: int
    n_test: int
    """Test examples."""
    evaluate_every: int
    """Steps between evaluations, after each of which the state is saved."""
    patience: int
    """Evaluations without a lower test loss after which to stop; 0: never."""
    enough: float
    """The test accuracy at which to stop; above 1: never."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            InputError: A value is out of range.
        """
        super().__post_init__()
        for name in ("batch_size", "n_test", "evaluate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: at least 1")


def fit(
    model: Transformer,
    lesson: Lesson,
    plan: Plan,
    *,
    seed: int,
    state: Path | None,
    watch: Callable[[Progress], None],
) -> pd.DataFrame:
    """Train a model in place.

    Args:
        model: The model; weights that do not require a gradient stay as they are.
        lesson: What it is to learn.
        plan: How.
        seed: The seed of the examples.
        state: The file that the state is kept in, and from which training goes on; None: nowhere.
        watch: Called before the first step (unless training goes on) and after each.

    Returns:
        One line an evaluation and split: `step, split, loss, accuracy, exact_match,
        tokens_per_second`; train lines are means over the steps since the last evaluation, and
        their exact match is not measured.
    """
    device = str(next(model.parameters()).device)
    seen = list[tuple[int, int, int]]()

    def loss(step: int) -> Tensor:
        batch = lesson.examples(plan.batch_size, seed=seed, split="train", step=step).to(device)
        logits = batch.logits(model)
        right = (logits.detach().argmax(-1) == batch.labels).sum()
        seen.append((int(right), int((batch.labels != NO_LABEL).sum()), batch.n_tokens))
        return cross_entropy(logits.flatten(0, -2), batch.labels.flatten())

    learned = {name: value for name, value in model.named_parameters() if value.requires_grad}
    trainer = Trainer([Group(learned, plan.rate)], loss, plan)
    test = lesson.examples(plan.n_test, seed=seed, split="test").to(device)

    def tested() -> dict[str, Any]:
        found = evaluate(model, test, plan.batch_size)
        return {"step": trainer.step, "split": "test", **found._asdict()}

    if state is not None and state.exists():
        history = trainer.load(state)["history"]
    else:
        history = [tested()]
        watch(Progress(0, float("nan"), trainer.rate))
    while trainer.step < plan.steps and not is_over(history, plan):
        started, losses = perf_counter(), []
        seen.clear()
        for _ in range(min(plan.evaluate_every, plan.steps - trainer.step)):
            losses.append(trainer.advance())
            watch(Progress(trainer.step, losses[-1], trainer.rate))
        seconds = perf_counter() - started
        right, asked, tokens = (sum(column) for column in zip(*seen, strict=True))
        history.append(
            {
                "step": trainer.step,
                "split": "train",
                "loss": sum(losses) / len(losses),
                "accuracy": right / asked,
                "tokens_per_second": tokens / seconds,
            }
        )
        history.append(tested())
        if state is not None:
            trainer.save(state, {"history": history})
    columns = ["step", "split", *Scores._fields, "tokens_per_second"]
    return pd.DataFrame(history, columns=columns)


def is_over(history: Iterable[Mapping[str, Any]], plan: Plan) -> bool:
    """Say whether to stop early: the test accuracy is enough, or its loss has stopped to fall."""
    tests = [line for line in history if line["split"] == "test"]
    if tests[-1]["accuracy"] >= plan.enough:
        return True
    losses = [line["loss"] for line in tests]
    return bool(plan.patience) and losses.index(min(losses)) < len(losses) - plan.patience
