"""What a map looks like at a glance: the five kinds of Kovaleva et al. (2019).

    vertical            a column or two, the same for all queries: special tokens, full stops
    diagonal            parallel to the main diagonal: the token before, after, itself
    vertical+diagonal   both
    block               within each sentence of several
    heterogeneous       none of these

The paper (https://arxiv.org/abs/1908.08593) trained a network on some 400 maps labelled by hand.
These are rules, on three numbers taken off every map but for its first query, which in a causal
model sees nothing but itself:

    column      the largest mean attention to one key, among keys that half of the queries see
    rest        the mean share of attention that two such columns leave
    diagonal    the largest mean attention at one offset from -2 to +2, outside those two columns

Their thresholds were set on one half of 240 maps of MiniLM and SmolLM2 that two people had labelled
before, without knowledge of each other (they agree on 95 %, Cohen's kappa .92); on the other half
88 % of the maps get the label on which both agree: F1 is .94 for vertical, .82 for
vertical+diagonal, .77 for heterogeneous and, on five maps, .57 for diagonal
(tests/test_kinds.py). Among the 240 was one block, so that rule is a definition.

A kind is a description of what a map looks like, never a role.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patterns.maps import Maps, Measured

KINDS = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")

COLUMN, DIAGONAL = 0.22, 0.11
"""What is a column, and what a diagonal."""
CLEAR_COLUMN = 0.5
"""A column that makes a map vertical whatever the rest does."""
WIDE_REST = 0.65
"""With so much of the attention outside its columns a map is heterogeneous."""
LONE_COLUMN = 0.25
"""Below this, a diagonal of twice DIAGONAL stands alone."""
INSIDE = 0.25
"""How much more attention stays within sentences than if it were even, in a block map."""

Kind = Bool[Tensor, "batch head"]


def kinds(maps: Maps, sentence: Int[Tensor, "batch position"]) -> dict[str, Measured]:
    """Sort maps into kinds: 1 where a map is of that kind, else 0.

    Args:
        maps: Self-attention.
        sentence: The number of each token's sentence; -1 for tokens of none.
    """
    column, rest, diagonal = _lines(maps)
    has_diagonal = diagonal >= DIAGONAL
    alone = (diagonal >= 2 * DIAGONAL) & (column < LONE_COLUMN)
    wide = (rest >= WIDE_REST) & (column < CLEAR_COLUMN)
    irregular = ~alone & (wide | (column < COLUMN))
    inside = irregular & _stays_inside(maps, sentence)
    vertical = ~alone & ~irregular
    found = dict(
        zip(
            KINDS,
            (
                vertical & ~has_diagonal,
                alone,
                vertical & has_diagonal,
                inside,
                irregular & ~inside,
            ),
            strict=True,
        )
    )
    one = torch.ones(len(column), dtype=column.dtype, device=column.device)
    return {f"kind:{name}": Measured(kind.to(column.dtype), one) for name, kind in found.items()}


def _lines(maps: Maps) -> tuple[Float[Tensor, "batch head"], ...]:
    """Measure columns, what they leave, and diagonals."""
    asked = maps.query.mask & (maps.query.position > 0)
    n = asked.sum(-1).clamp(min=1)[:, None]
    pattern = maps.pattern * asked[:, None, :, None]
    seen = (maps.visible & asked[..., None]).sum(1)
    counted = seen >= (n + 1) / 2
    share = torch.where(counted[:, None], pattern.sum(2) / seen.clamp(min=1)[:, None], 0)
    top, place = share.topk(min(2, share.shape[-1]), dim=-1)
    left = pattern.scatter(3, place[:, :, None].expand(*pattern.shape[:3], -1), 0.0)
    rest = left.sum((2, 3)) / n
    diagonals = []
    for offset in range(-2, 3):
        on = maps.visible & asked[..., None] & (maps.distance == offset)
        diagonals.append((left * on[:, None]).sum((2, 3)) / on.sum((1, 2)).clamp(min=1)[:, None])
    return top[..., 0], rest, torch.stack(diagonals).amax(0)


def _stays_inside(maps: Maps, sentence: Int[Tensor, "batch position"]) -> Kind:
    """Say where attention to text stays within sentences, in passages of several."""
    same = (sentence[:, :, None] == sentence[:, None]) & maps.text
    asked = (sentence >= 0) & maps.asking
    text = (maps.pattern * maps.text[:, None]).sum(-1)
    inside = (maps.pattern * same[:, None]).sum(-1) / text.clamp(min=1e-30)
    even = same.sum(-1) / maps.text.sum(-1).clamp(min=1)
    n = asked.sum(-1).clamp(min=1)[:, None]
    more = ((inside - even[:, None]) * asked[:, None]).sum(-1) / n
    return (more >= INSIDE) & (sentence.amax(-1) > 0)[:, None]
