"""What a map of attention looks like, whatever the text says: places, spread, special tokens.

Each measure turns the pattern of every head on every sequence into one number, the mean over the
sequence's queries. Queries and, where said, keys are *text*: tokens that the tokenizer did not add.

    offset:k        how often the text key with most attention stands k tokens away (k < 0: before);
                    among queries that have a text token there. A head with 0.90 or more is
                    positional (Voita et al. 2019, https://arxiv.org/abs/1905.09418, section 5);
                    beside it, the share of all attention that goes there
    first_token     the share of attention on the sequence's first token, among all queries: 0.3 or
                    more, on sequences of 64 tokens, is an attention sink (Gu et al. 2025,
                    https://arxiv.org/abs/2410.10781; see interp.patterns.observe)
    special         the share on special tokens ([CLS], [SEP], BOS)
    punctuation     the share on tokens of marks, without a letter or digit; white space alone is no
                    mark (Clark et al. 2019, https://arxiv.org/abs/1906.04341)
    distance        how many tokens away attention to text goes on average, among queries that give
                    text any (Vig & Belinkov 2019, https://arxiv.org/abs/1906.04284)
    entropy         -Σ p ln p, in nats (Clark et al. 2019)
    uniform         entropy as a share of its maximum, ln of the number of keys that the query sees;
                    among queries that see two or more. Heads of random weights are at 0.95 and more

The law `uniform` beside a measure is what a head would score that attends to all keys alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.axes import Pattern
from interp.models.text import Text

OFFSETS = range(-5, 6)

PerMap = Float[Tensor, "batch head"]
PerText = Float[Tensor, " batch"]


@dataclass(frozen=True)
class Measured:
    """One measure of every head on every sequence."""

    value: PerMap
    """NaN where no query was counted, or where the head has nothing to measure."""
    n: PerText
    """The queries counted."""
    uniform: PerText | None = None
    """What even attention would score."""


@dataclass(frozen=True)
class Maps:
    """The patterns of some heads on a batch, and who stands where."""

    pattern: Pattern
    query: Text
    key: Text
    visible: Bool[Tensor, "batch query key"]

    @cached_property
    def asking(self) -> Bool[Tensor, "batch query"]:
        """Mark the queries that are text."""
        return ~self.query.special

    @cached_property
    def text(self) -> Bool[Tensor, "batch query key"]:
        """Mark the keys that are text and visible."""
        return self.visible & ~self.key.special[:, None]

    @cached_property
    def even(self) -> Float[Tensor, "batch query key"]:
        """What a head would attend to that attends to all visible keys alike."""
        n_visible = self.visible.sum(-1, keepdim=True).clamp(min=1)
        return self.visible.to(self.pattern.dtype) / n_visible

    @cached_property
    def distance(self) -> Float[Tensor, "query key"]:
        """How far each key stands behind (> 0) or before (< 0) each query."""
        n_query, n_key = self.pattern.shape[-2:]
        keys = torch.arange(n_key, device=self.pattern.device)
        queries = torch.arange(n_query, device=self.pattern.device)
        return (keys[None] - queries[:, None]).to(self.pattern.dtype)

    @cached_property
    def looked_at(self) -> Float[Tensor, "batch head query"]:
        """The distance of the text key with most attention; NaN where no text key has any."""
        best, key = self.pattern.masked_fill(~self.text[:, None], -1.0).max(dim=-1)
        queries = torch.arange(key.shape[-1], device=key.device)
        return (key - queries).to(best.dtype).masked_fill(best <= 0, torch.nan)

    def mean(
        self,
        values: Float[Tensor, "batch _ query"],
        counted: Bool[Tensor, "batch query"],
        uniform: Float[Tensor, "batch query"] | None = None,
    ) -> Measured:
        """Average over the queries counted; where a head's value is NaN, over its others."""
        value = values.where(counted[:, None], torch.nan).nanmean(-1)
        law = None if uniform is None else uniform.where(counted, torch.nan).nanmean(-1)
        return Measured(value, counted.sum(-1).to(value.dtype), law)

    def offsets(self) -> dict[str, Measured]:
        """Measure how often each offset is looked at most."""
        n_text = self.text.sum(-1).clamp(min=1)
        return {
            offset_name(offset): self.mean(
                (self.looked_at == offset).to(self.pattern.dtype), place.any(-1), 1 / n_text
            )
            for offset, place in self._places()
        }

    def offset_masses(self) -> dict[str, Measured]:
        """Measure how much attention goes to each offset."""
        n_visible = self.visible.sum(-1).clamp(min=1)
        return {
            offset_name(offset): self.mean(
                (self.pattern * place[:, None]).sum(-1), place.any(-1), 1 / n_visible
            )
            for offset, place in self._places()
        }

    def _places(self) -> Iterator[tuple[int, Bool[Tensor, "batch query key"]]]:
        """Mark, for each text query, the text key at each offset that occurs."""
        asked = self.text & self.asking[:, :, None]
        for offset in OFFSETS:
            place = asked & (self.distance == offset)
            if place.any():
                yield offset, place

    def spread(self, punctuation: Bool[Tensor, "batch key"]) -> dict[str, Measured]:
        """Measure where attention goes on the whole, and how far it spreads."""
        pattern, n_visible = self.pattern, self.visible.sum(-1).clamp(min=1)

        def share(keys: Bool[Tensor, "batch query key"]) -> Measured:
            mass = (pattern * keys[:, None]).sum(-1)
            return self.mean(mass, self.asking, keys.sum(-1) / n_visible)

        to_text = pattern * self.text[:, None]
        away = (to_text * self.distance.abs()).sum(-1) / to_text.sum(-1)  # 0/0 where none is
        even = (self.text * self.distance.abs()).sum(-1) / self.text.sum(-1).clamp(min=1)
        return {
            "special": share(self.visible & self.key.special[:, None]),
            "punctuation": share(self.text & punctuation[:, None]),
            "distance": self.mean(away, self.asking & self.text.any(-1), even),
        }

    def evenness(self) -> dict[str, Measured]:
        """Measure entropy."""
        n_visible = self.visible.sum(-1)
        entropy, most = torch.special.entr(self.pattern).sum(-1), n_visible.clamp(min=1).log()
        return {
            "entropy": self.mean(entropy, self.asking, most),
            "uniform": self.mean(entropy / most[:, None], self.asking & (n_visible > 1)),
        }

    def first_token(self) -> Measured:
        """Measure the attention on the first token."""
        first = self.visible & (self.key.mask & (self.key.position == 0))[:, None]
        mass = (self.pattern * first[:, None]).sum(-1)
        return self.mean(mass, self.query.mask, first.sum(-1) / self.visible.sum(-1).clamp(min=1))


def offset_name(offset: int) -> str:
    """Name an offset: `offset:-1`, `offset:0`, `offset:+1`."""
    return f"offset:{offset:+d}" if offset else "offset:0"
