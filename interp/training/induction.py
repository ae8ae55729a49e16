"""Induction: what came next, the last time?

    <s> x₁ … x_n x₁ … x_n x₁ …       n drawn for each sequence, x₁ … x_n different from each other

Asked is each token that the earlier copy of the token before it predicts: from x₂ of the second
copy on. What ends a segment is random, and so is all of the first copy. With segments of one length
"so many tokens ago" would do as well, which a single layer can do by position alone. It is what
induction heads are for (Olsson et al. 2022, https://arxiv.org/abs/2209.11895).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from interp.errors import InputError
from interp.models.text import WORD_SPECIALS, word_tokenizer
from interp.training.lesson import NO_LABEL, Examples, Lesson
from interp.transformer import Kind


@dataclass(frozen=True)
class Induction(Lesson):
    """Random segments, repeated to fill a sequence."""

    kind: ClassVar[Kind] = "decoder"
    vocabulary: int
    """Words."""
    length: int
    """Words of a sequence."""
    shortest: int
    longest: int
    """Words of a segment, at least and at most."""

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            InputError: Segments do not fit twice, or do not fit the vocabulary.
        """
        if not 1 <= self.shortest <= self.longest <= min(self.vocabulary, self.length // 2):
            raise InputError(
                f"segments of {self.shortest} to {self.longest} words: at least 1, and at most the "
                f"vocabulary ({self.vocabulary}) and half the length ({self.length // 2})"
            )

    @cached_property
    def tokenizer(self) -> Any:
        """Words `w0`, `w1`, …."""
        return word_tokenizer([f"w{number}" for number in range(self.vocabulary)], "start")

    @property
    def n_ctx(self) -> int:
        """The words, and the beginning."""
        return self.length + 1

    def draw(self, rng: np.random.Generator, n: int, split: str) -> Examples:
        """Draw sequences."""
        size = rng.integers(self.shortest, self.longest, n, endpoint=True)[:, None]
        order = rng.random((n, self.vocabulary)).argsort(axis=1)
        place = np.arange(self.length)
        words = np.take_along_axis(order, place % size, axis=1) + len(WORD_SPECIALS)
        tokens = torch.full((n, self.length + 1), self.tokenizer.bos_token_id)
        tokens[:, 1:] = torch.from_numpy(words)
        labels = torch.full_like(tokens, NO_LABEL)
        labels[:, :-1] = tokens[:, 1:].where(torch.from_numpy(place > size), NO_LABEL)
        return Examples(tokens, torch.ones_like(tokens, dtype=torch.bool), labels[..., None])
