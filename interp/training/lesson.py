"""A lesson: examples to learn from, and the questions that the model must answer in each.

A question is a position (of the last stack) and a label. A lesson with several slots asks for
several labels at one position at once: its logits are as many blocks of classes, side by side.

Examples are a function of (seed, split, step), so that training can go on from any step as if it
had never stopped, and what a model is tested on is never what it is trained on:

    train    step t's batch
    test     what is evaluated along the way
    fresh    what a trained model is examined on afterwards (`task`)

Where no split can be kept apart by files (interp.training.text), they are independent draws.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.axes import Mask, Score, Tokens
from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.models.text import Encoded
from interp.tasks.task import Item, Questions, Task
from interp.transformer import Kind, Transformer, TransformerConfig, save

SPLITS = ("train", "test", "fresh")
NO_LABEL = -100
"""Stands where nothing is asked (what torch's cross-entropy leaves out by itself)."""
LESSON = "lesson.json"
"""What a checkpoint was trained on; it lies beside the weights."""


@dataclass(frozen=True)
class Examples:
    """Padded sequences and what is asked of them."""

    tokens: Tokens
    mask: Mask
    labels: Int[Tensor, "batch asked slot"]
    """The right class at each position of the last stack, for each slot; or NO_LABEL."""
    decoder_tokens: Int[Tensor, "batch asked"] | None = None
    """For an encoder-decoder: the target, shifted right by its start."""
    decoder_mask: Bool[Tensor, "batch asked"] | None = None

    def __len__(self) -> int:
        """Count the sequences."""
        return len(self.tokens)

    def __getitem__(self, cut: slice) -> "Examples":
        """Cut out a run of sequences."""
        return self._each(lambda part: part[cut])

    @property
    def n_tokens(self) -> int:
        """Count the tokens that are no padding."""
        return sum(int(mask.sum()) for mask in (self.mask, self.decoder_mask) if mask is not None)

    def to(self, device: str) -> "Examples":
        """Move to a device."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Examples":
        target = self.decoder_tokens, self.decoder_mask
        return Examples(
            *map(change, (self.tokens, self.mask, self.labels)),
            *(None if part is None else change(part) for part in target),
        )

    def logits(self, model: nn.Module) -> Float[Tensor, "batch asked slot class_"]:
        """Run a model on them."""
        logits = model(
            self.tokens,
            mask=None if bool(self.mask.all()) else self.mask,
            decoder_tokens=self.decoder_tokens,
            decoder_mask=self.decoder_mask,
        )
        return logits.unflatten(-1, (self.labels.shape[-1], -1))


@dataclass(frozen=True)
class Lesson(ABC):
    """What a model is to learn. Its fields are all that it depends on."""

    kind: ClassVar[Kind]
    """The kind of model that can take it."""
    n_slots: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """What to call it: its class, in small letters."""
        return type(self).__name__.lower()

    @cached_property
    @abstractmethod
    def tokenizer(self) -> Any:
        """From text to its tokens; saved beside a checkpoint."""

    @property
    @abstractmethod
    def n_ctx(self) -> int:
        """The longest sequence."""

    @property
    def sizes(self) -> dict[str, Any]:
        """What a model must be like to take it: arguments of TransformerConfig."""
        return {"kind": self.kind, "d_vocab": len(self.tokenizer), "n_ctx": self.n_ctx}

    def untrained(self, *, seed: int, **sizes: Any) -> Transformer:
        """Draw the model that is to learn it; `sizes` are the other arguments of its config."""
        return Transformer(TransformerConfig(**self.sizes, **sizes, seed=seed))

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int, split: str) -> Examples:
        """Make `n` examples; a lesson that does not tell splits apart ignores `split`."""

    def examples(self, n: int, *, seed: int, split: str, step: int = 0) -> Examples:
        """Make `n` examples, always the same for the same arguments."""
        return self.draw(np.random.default_rng([seed, SPLITS.index(split), step]), n, split)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return self.tokenizer.get_vocab()

    def ids(self, words: Sequence[str]) -> list[int]:
        """Find words of the vocabulary."""
        return [self._vocabulary[word] for word in words]


def padded(
    rows: Sequence[Sequence[int]], fill: int
) -> tuple[Int[Tensor, "row position"], Bool[Tensor, "row position"]]:
    """Pad rows on the right; returns them and where they are real."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    values = torch.full(mask.shape, fill)
    values[mask] = torch.tensor([value for row in rows for value in row])
    return values, mask


def write(folder: Path, model: Transformer, lesson: Lesson, **facts: Any) -> None:
    """Save a checkpoint that `model=custom model.path=…` loads: weights, tokenizer, lesson.

    Args:
        folder: Where to; it is made if need be.
        model: What was trained.
        lesson: What on.
        facts: What else is to be known of it.
    """
    save(model, folder)
    lesson.tokenizer.save_pretrained(folder)
    facts = {"lesson": lesson.name, "settings": asdict(lesson), **facts}
    (folder / LESSON).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def own_logits(
    model: HeadModel, asked: Questions, n_slots: int
) -> tuple[Float[Tensor, "batch read class_"], Int[Tensor, "batch read"]]:
    """Compute the logits of the slot that each question is about, and which class is right.

    A question about class c of slot s asks for id s·(number of classes) + c.
    """
    logits = model.logits(asked.batch, asked.read).unflatten(-1, (n_slots, -1))
    n_classes = logits.shape[-1]
    slot, right = asked.ids[..., 0] // n_classes, asked.ids[..., 0] % n_classes
    index = slot[..., None, None].expand(-1, -1, 1, n_classes)
    return logits.gather(2, index)[:, :, 0], right


def loss(model: HeadModel, asked: Questions, *, n_slots: int) -> Score:
    """Average the negative log-probability of the right classes, in nats per question."""
    logits, right = own_logits(model, asked, n_slots)
    chosen = logits.float().log_softmax(-1).gather(-1, right[..., None])[..., 0]
    return -chosen.where(asked.asked, 0.0).sum(-1) / asked.asked.sum(-1)


def logit_diff(model: HeadModel, asked: Questions, *, n_slots: int) -> Score:
    """Subtract the best wrong class's logit from the right one's, where this is smallest.

    So it is above 0 where every question of a sequence is answered right. Where each position
    predicts the next token that is exact match under greedy decoding: the first token that greedy
    decoding gets wrong, it gets wrong after the right ones.
    """
    logits, right = own_logits(model, asked, n_slots)
    answer = logits.gather(-1, right[..., None])[..., 0]
    best = logits.scatter(-1, right[..., None], -torch.inf).amax(-1)
    return (answer - best).float().masked_fill(~asked.asked, torch.inf).amin(-1)


METRICS: dict[str, dict[str, Any]] = {
    "loss": {"score": loss, "higher_is_better": False, "unit": "nats per answer"},
    "logit_diff": {"score": logit_diff, "higher_is_better": True, "unit": "logits"},
}


def task(
    lesson: Lesson,
    *,
    n: int,
    seed: int,
    metric: str,
    split: str = "fresh",
    step: int = 0,
    min_accuracy: float = 0.0,
) -> Task:
    """Turn examples of a lesson into a task, for whatever measures heads at a task.

    Args:
        lesson: The lesson.
        n: How many examples.
        seed: The seed of the examples.
        metric: `loss` (nats per question), or `logit_diff`: the right answer against the best wrong
            one, of the question where that is smallest; its accuracy is exact match.
        split: Which examples.
        step: For the examples that one step of training sees.
        min_accuracy: For `logit_diff`: see interp.tasks.task.

    Raises:
        InputError: The metric is unknown, or there are no examples.
    """
    if metric not in METRICS:
        raise InputError(f"task.metric={metric}: one of {', '.join(METRICS)}")
    if n < 1:
        raise InputError(f"task.n={n}: at least 1")
    chosen = METRICS[metric]
    items = _items(lesson, lesson.examples(n, seed=seed, split=split, step=step))
    return Task(
        name=lesson.name,
        metric=metric,
        examples=[(item,) for item in items],
        table=pd.DataFrame(
            {
                "example": range(n),
                "cluster": [str(number) for number in range(n)],
                "n_tokens": [len(item.read) for item in items],
            }
        ),
        min_accuracy=min_accuracy if metric == "logit_diff" else 0.0,
        **chosen | {"score": partial(chosen["score"], n_slots=lesson.n_slots)},
    )


def _items(lesson: Lesson, drawn: Examples) -> list[Item]:
    special = {*lesson.tokenizer.all_special_ids}
    n_classes = (lesson.sizes.get("d_vocab_out") or len(lesson.tokenizer)) // lesson.n_slots

    def encoded(tokens: Tensor, mask: Tensor) -> Encoded:
        ids = tuple(tokens[mask].tolist())
        return Encoded(ids, ((0, 0),) * len(ids), tuple(number in special for number in ids))

    items = []
    for row, labels in enumerate(drawn.labels):
        target = None
        if drawn.decoder_tokens is not None and drawn.decoder_mask is not None:
            target = encoded(drawn.decoder_tokens[row], drawn.decoder_mask[row])
        places, slots = (labels != NO_LABEL).nonzero().unbind(-1)
        ids = slots * n_classes + labels[places, slots]
        text = encoded(drawn.tokens[row], drawn.mask[row])
        items.append(Item(text, target, tuple(places.tolist()), tuple((i,) for i in ids.tolist())))
    return items
