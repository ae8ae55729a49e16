"""A task: examples, and the metric that turns each into one number.

    example     one item; it owns one or more sequences (a minimal pair owns two)
    cluster     what an example shares with others (its noun, sentence or document): the unit that
                is resampled for intervals, since examples of one cluster are not independent
    metric      logit_diff      logit(answer) - logit(distractor) where the answer is due
                logprob_diff    log-probability of one sequence minus another's, in nats
                loss            mean negative log-probability, in nats per token
                cos_diff        cos(anchor, near) - cos(anchor, far)

The example axis is kept: averages and tests are taken on the tables.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cosine_similarity

from interp.axes import Score
from interp.errors import InputError
from interp.models.head_model import Batch, HeadModel, Rows
from interp.models.text import Encoded

CHUNK = 64
"""Positions whose log-softmax is taken at once: their logits stay in the processor's cache."""


@dataclass(frozen=True)
class Item:
    """One sequence of an example, and what the metric reads from it."""

    text: Encoded
    target: Encoded | None = None
    """For an encoder-decoder: what the decoder reads."""
    read: tuple[int, ...] = ()
    """Positions whose logits are read, counted from the sequence's first token."""
    ids: tuple[tuple[int, ...], ...] = ()
    """For each of them, the tokens whose logits are read."""

    @property
    def shape(self) -> tuple[int, int]:
        """Count the tokens of text and target."""
        return len(self.text), len(self.target or ())


@dataclass(frozen=True)
class Questions:
    """What the metric reads from a batch; the sequences of one example stand side by side."""

    batch: Batch
    read: Int[Tensor, "batch read"]
    asked: Bool[Tensor, "batch read"]
    """False where `read` is padding."""
    ids: Int[Tensor, "batch read candidate"]

    def select(self, rows: Rows) -> "Questions":
        """Pick sequences, in the given order, with repetition."""
        return Questions(self.batch.select(rows), self.read[rows], self.asked[rows], self.ids[rows])


Metric = Callable[[HeadModel, Questions], Score]


@dataclass(frozen=True)
class Task:
    """Examples and the metric that scores them."""

    name: str
    metric: str
    higher_is_better: bool
    unit: str
    score: Metric
    examples: Sequence[tuple[Item, ...]]
    table: pd.DataFrame
    """One line an example: `example` (row number in the source), `cluster`, and what is known."""
    min_accuracy: float = 0.0
    """The clean model's share of examples above 0 must exceed this; 0 switches the check off."""
    corrupted: Sequence[tuple[Item, ...]] | None = None
    """Each example's corrupted twin, where the source has one."""

    def __len__(self) -> int:
        """Count the examples."""
        return len(self.examples)

    @property
    def n_sequences(self) -> int:
        """Count the sequences of one example."""
        return len(self.examples[0])

    def first(self, n: int | None) -> "Task":
        """Keep the first n examples; None keeps all.

        Raises:
            InputError: n is not positive.
        """
        if n is None:
            return self
        if n < 1:
            raise InputError(f"n_examples={n}: at least 1, or null for all {len(self)}")
        return self.select(range(min(n, len(self))))

    def select(self, numbers: Sequence[int]) -> "Task":
        """Keep the examples of the given numbers, in that order."""
        return replace(
            self,
            examples=[self.examples[number] for number in numbers],
            table=self.table.iloc[list(numbers)],
            corrupted=self.corrupted and [self.corrupted[number] for number in numbers],
        )

    def questions(self, model: HeadModel, examples: Sequence[int]) -> Questions:
        """Batch some of the examples."""
        return questions(model, [self.examples[number] for number in examples])


def questions(model: HeadModel, examples: Sequence[tuple[Item, ...]]) -> Questions:
    """Batch examples: pad their sequences and the positions that are read."""
    items = [item for example in examples for item in example]
    targets = [item.target for item in items if item.target is not None]
    batch = model.batch([item.text for item in items], targets)
    width = batch.target or batch.text
    n_read = max(1, *(len(item.read) for item in items))
    n_ids = max((len(ids) for item in items for ids in item.ids), default=1)
    read = torch.zeros(len(items), n_read, dtype=torch.long)
    asked = torch.zeros(len(items), n_read, dtype=torch.bool)
    ids = torch.zeros(len(items), n_read, n_ids, dtype=torch.long)
    first = width.mask.long().argmax(-1)  # sequences may be padded on the left
    for row, item in enumerate(items):
        n = len(item.read)
        if n:
            read[row, :n] = torch.tensor(item.read) + first[row].item()
            asked[row, :n] = True
            ids[row, :n] = torch.tensor(item.ids)
    return Questions(batch, read.to(model.device), asked.to(model.device), ids.to(model.device))


def logit_difference(model: HeadModel, asked: Questions) -> Score:
    """Subtract the distractor's logit from the answer's, at the one position that is read."""
    logits = model.chosen_logits(asked.batch, asked.read, asked.ids)[:, 0]
    answer, distractor = logits.float().unbind(-1)
    return answer - distractor


def log_probabilities(model: HeadModel, asked: Questions) -> Float[Tensor, "batch read"]:
    """Compute the log-probability of each token asked for, in nats; 0 where none is."""
    logits = model.logits(asked.batch, asked.read)
    flat, ids = logits.flatten(0, 1), asked.ids[..., 0].flatten()
    chosen = torch.cat(
        [
            part.gather(-1, want[:, None])[:, 0].float() - part.float().logsumexp(-1)
            for part, want in zip(flat.split(CHUNK), ids.split(CHUNK), strict=True)
        ]
    )
    return chosen.view(asked.read.shape).where(asked.asked, 0.0)


def loss(model: HeadModel, asked: Questions) -> Score:
    """Average the negative log-probability over the tokens asked for, in nats per token."""
    return -log_probabilities(model, asked).sum(-1) / asked.asked.sum(-1)


def log_probability_difference(model: HeadModel, asked: Questions) -> Score:
    """Subtract the second sequence's log-probability from the first's, in nats."""
    first, second = log_probabilities(model, asked).sum(-1).view(-1, 2).unbind(-1)
    return first - second


def cosine_difference(model: HeadModel, asked: Questions) -> Score:
    """Compute cos(anchor, near) - cos(anchor, far) of mean-pooled final hidden states.

    The mean is over all tokens but pads, [CLS] and [SEP] included: how sentence encoders pool.
    """
    mask = asked.batch.text.mask[..., None]
    hidden = model.hidden(asked.batch).float()
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    anchor, near, far = pooled.view(-1, 3, pooled.shape[-1]).unbind(1)
    return cosine_similarity(anchor, near, dim=-1) - cosine_similarity(anchor, far, dim=-1)
