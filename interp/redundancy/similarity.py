"""How alike are two heads? By where they look and what they write (by weights: .spaces).

Of patterns, for heads with rows p and q of attention, averaged over positions:

    js                   Jensen-Shannon divergence H((p + q) / 2) - (H(p) + H(q)) / 2, in nats: 0
                         for equal rows, ln 2 for rows that share no key (Lin 1991,
                         https://doi.org/10.1109/18.61115; between heads: Clark et al. 2019,
                         https://arxiv.org/abs/1906.04341, section 6, who add it up). scipy's
                         `jensenshannon` is its square root
    tv                   total variation, Σ|p - q| / 2, from 0 to 1 (Bhojanapalli et al. 2021,
                         https://arxiv.org/abs/2110.06821, whose similarity is 1 - tv)
    pattern_cosine       p·q / |p||q|, from 0 to 1 (Bian et al. 2021,
                         https://aclanthology.org/2021.naacl-main.72)
    pattern_correlation  the same of p and q less their means, from -1 to 1; at positions that see
                         three keys or more (two keys correlate perfectly) and where neither row is
                         flat (Bian et al. 2021)
    js_without_first, tv_without_first
                         the same with each row's first key left out and the rest scaled to add up
                         to 1: heads that park their attention on the first token all look alike
                         with it. At positions that see three keys or more and where both heads
                         leave the rest at least REST of their attention

Of outputs x = z W_O, what a head adds to the residual stream (bias left out):

    cka                  linear centred kernel alignment |XᵀY|² / |XᵀX||YᵀY| (Frobenius norms) of
                         the outputs X, Y at all positions less their means: from 0 to 1, which is
                         reached by any rotation and scaling of the same outputs (Kornblith et al.
                         2019, https://arxiv.org/abs/1905.00414)
    output_cosine        x·y / |x||y|, averaged over positions where both write something: from -1
                         to 1; unlike cka it asks for the same directions

A pair for which a measure is undefined (a head that writes nothing) gets NaN.
"""

from collections.abc import Collection
from dataclasses import replace
from math import log
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.redundancy.seen import LEAST_KEYS, Rows, Seen, spread, totals

PATTERNS = (
    *("js", "tv", "js_without_first", "tv_without_first"),
    *("pattern_cosine", "pattern_correlation"),
)
OUTPUTS = ("cka", "output_cosine")
DISTANCES = {"js": log(2), "tv": 1.0, "js_without_first": log(2), "tv_without_first": 1.0}
"""The measures that are smaller the more alike two heads are, and their largest value."""

REST = 1e-6
"""Where a head leaves keys but the first less attention than this, it says nothing about them."""
FLAT = 1e-6
"""A row that varies less (in Euclidean norm) is even, but for rounding; so is an output that varies
less than this share of its size."""
BLOCK = 2**18
"""Entries of all heads held at a time where heads are compared one by one (they fit a cache)."""
MATRIX = 2**24
"""Numbers held at a time where heads are compared by a matrix product."""

Square = Float[Tensor, "head head"]
Valid = Bool[Tensor, "head position"]


class Measured(NamedTuple):
    """One measure of all pairs of heads of a site."""

    value: Float[np.ndarray, "head head"]
    n: Int[np.ndarray, "head head"]
    """Positions that it was averaged over; 0 for weights, which need none."""


@torch.no_grad()
def measured(seen: Seen, names: Collection[str] = PATTERNS + OUTPUTS) -> dict[str, Measured]:
    """Compare all pairs of heads of a site.

    Args:
        seen: What they did.
        names: The measures wanted.
    """
    found: dict[str, tuple[Square, Square]] = {}
    if {"js", "tv"} & set(names):
        found |= divergences(seen)
    if {"js_without_first", "tv_without_first"} & set(names):
        rest, valid = without_first(seen)
        both = divergences(rest, valid)
        found |= {f"{name}_without_first": value for name, value in both.items()}
    if "pattern_cosine" in names:
        found["pattern_cosine"] = cosine(seen)
    if "pattern_correlation" in names:
        found["pattern_correlation"] = correlation(seen)
    if "cka" in names:
        found["cka"] = cka(seen)
    if "output_cosine" in names:
        found["output_cosine"] = output_cosine(seen)
    return {
        name: Measured(value.double().cpu().numpy(), n.round().long().cpu().numpy())
        for name, (value, n) in found.items()
        if name in names
    }


def divergences(seen: Seen, valid: Valid | None = None) -> dict[str, tuple[Square, Square]]:
    """Compute js and tv.

    Args:
        seen: What heads did.
        valid: The rows that count; the others must be 0. None: all.

    Returns:
        Each measure, and the positions that it was averaged over.
    """
    # Sums over all entries need no loop over positions: Σ JS = Σ -m ln m + Σ (p ln p + q ln q) / 2.
    # Where one row is missing (0) this adds ln 2 / 2, and Σ|p - q| / 2 adds 1/2: taken off below.
    n_heads, device = len(seen.pattern), seen.pattern.device
    entropy, distance = torch.zeros(2, n_heads, n_heads, dtype=torch.float64, device=device)
    own = torch.zeros(n_heads, dtype=torch.float64, device=device)
    for rows in (seen.pattern / 2).split(max(1, BLOCK // n_heads), dim=1):
        own += _entropy(2 * rows)
        for head in range(n_heads):
            entropy[head, head:] += _entropy(rows[head:] + rows[head])
            distance[head, head:] += (rows[head:] - rows[head]).abs_().sum(-1)
    n = torch.full_like(entropy, len(seen.n_keys))
    if valid is not None:
        n = gram(valid.double())
    alone = n.diag()[:, None] + n.diag() - 2 * n
    js = _mirrored(entropy) - (own[:, None] + own) / 2 - alone * log(2) / 2
    tv = _mirrored(distance) - alone / 2
    return {
        "js": ((js / n).clamp(0, log(2)), n),
        "tv": ((tv / n).clamp(0, 1), n),
    }


def _entropy(rows: Rows) -> Float[Tensor, " head"]:
    """Add up -p ln p, 0 for p = 0."""
    tiny = torch.finfo(rows.dtype).tiny
    return -rows.clamp_min(tiny).log_().mul_(rows).sum(-1)


def _mirrored(upper: Square) -> Square:
    """Complete a symmetric matrix of which the lower triangle is 0."""
    return upper + upper.triu(1).T


def without_first(seen: Seen) -> tuple[Seen, Valid]:
    """Leave the first key out of each row, and scale the rest to add up to 1.

    Returns:
        What heads did at the positions that still see enough keys, and which rows have a rest;
        those that have none are 0.
    """
    left = seen.select((seen.n_keys > LEAST_KEYS).nonzero()[:, 0])
    kept = torch.ones(left.pattern.shape[1], dtype=torch.bool, device=left.pattern.device)
    kept[left.n_keys.cumsum(0) - left.n_keys] = False
    pattern, n_keys = left.pattern[:, kept], left.n_keys - 1
    rest = totals(pattern, n_keys)
    valid = rest >= REST
    scale = torch.where(valid, 1 / rest.clamp(min=REST), 0)
    return replace(left, pattern=pattern * spread(scale, n_keys), n_keys=n_keys), valid


def cosine(seen: Seen) -> tuple[Square, Square]:
    """Compute pattern_cosine; a row that is 0 counts for nothing."""
    size = totals(seen.pattern.square(), seen.n_keys).sqrt()
    varies = size > FLAT
    scale = torch.where(varies, 1 / size.clamp(min=FLAT), 0)
    n = gram(varies.double())
    return (gram(seen.pattern * spread(scale, seen.n_keys)) / n).clamp(-1, 1), n


def correlation(seen: Seen) -> tuple[Square, Square]:
    """Compute pattern_correlation."""
    enough = seen.select((seen.n_keys > 2).nonzero()[:, 0])
    mean = spread(1 / enough.n_keys, enough.n_keys)
    return cosine(replace(enough, pattern=enough.pattern - mean))


def cka(seen: Seen) -> tuple[Square, Square]:
    """Compute cka."""
    # z W_O = z Rᵀ Qᵀ with W_Oᵀ = Q R; the orthonormal columns of Q change no norm of a product, so
    # features of width d_head do for outputs of width d_model.
    R = torch.linalg.qr(seen.W_O.mT, mode="r").R
    written = seen.z @ R.mT
    centred = written - written.mean(1, keepdim=True)
    size = centred.flatten(1).norm(dim=1)
    varies = size > FLAT * written.flatten(1).norm(dim=1)
    products = squared_products(centred / torch.where(varies, size, 1)[:, None, None])
    own = torch.where(varies, products.diag(), torch.nan).sqrt()
    value = products / (own[:, None] * own)
    return value.clamp(0, 1), torch.full_like(value, len(seen.n_keys))


def output_cosine(seen: Seen) -> tuple[Square, Square]:
    """Compute output_cosine."""
    n_heads = len(seen.z)
    total = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=seen.z.device)
    n = torch.zeros_like(total)
    step = max(1, MATRIX // (n_heads * seen.W_O.shape[-1]))
    for z in seen.z.split(step, dim=1):
        written = z @ seen.W_O
        size = written.norm(dim=-1, keepdim=True)
        total += gram((written / torch.where(size > 0, size, 1)).flatten(1))
        n += gram((size[..., 0] > 0).double())
    return (total / n).clamp(-1, 1), n


def gram(rows: Float[Tensor, "head column"]) -> Square:
    """Multiply all pairs of rows."""
    return (rows @ rows.T).double()


def squared_products(features: Float[Tensor, "head row column"]) -> Square:
    """Compute |AᵀB|² (Frobenius) of all pairs of matrices: Σ over rows i, j of (AAᵀ)ᵢⱼ (BBᵀ)ᵢⱼ."""
    n_heads, n_rows, _ = features.shape
    total = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=features.device)
    step = max(1, MATRIX // (n_heads * n_rows))
    for first in range(0, n_rows, step):  # (i, j) and (j, i) are the same: later rows count twice
        here, later = features[:, first : first + step], features[:, first + step :]
        total += gram((here @ here.mT).flatten(1)) + 2 * gram((here @ later.mT).flatten(1))
    return total


def similarity(name: str, value: Float[np.ndarray, "*pairs"]) -> Float[np.ndarray, "*pairs"]:
    """Turn a measure into one that grows to 1 the more alike heads are: 1 - js / ln 2, 1 - tv."""
    return 1 - value / DISTANCES[name] if name in DISTANCES else value
