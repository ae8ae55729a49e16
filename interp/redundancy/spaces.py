"""What do heads read and write, by their weights alone?

A head has four subspaces of the residual stream:

    ov_read    what z is made from: the column space of W_V W_O  [d_model d_model]
    ov_write   what it adds to: the row space of W_V W_O
    qk_query   what of the query counts: the column space of W_Q W_Kᵀ
    qk_key     what of the key counts: the row space of W_Q W_Kᵀ

with the norm in front of the attention folded in (interp.models.weights). Rotary embeddings turn
W_Q and W_K within the head, by the distance of query and key; these spaces are those at distance 0,
and they are the same at any. The overlap of two subspaces with orthonormal bases U₁, U₂ is
|U₁ᵀU₂|² / d, where d is the larger dimension, d_head as a rule: 1 for the same subspace, 0 for
orthogonal ones, and d / d_model on average for random ones. It is the mean squared cosine of the
principal angles (Björck & Golub 1973, https://doi.org/10.2307/2005662).

    ov_overlap   the mean of the overlaps of ov_read and of ov_write
    qk_overlap   the mean of those of qk_query and of qk_key

Query heads of one group share W_K and W_V, hence one ov_read and, as a rule, one qk_key: half of
what makes them alike by weights is given by the architecture.

Which axes a head uses inside (d_head) makes no difference. A head that writes nothing has no
subspaces: NaN.

`shared_space` asks of the heads of a layer together whether they look at the same few directions
(Cordonnier, Loukas & Jaggi 2020, https://arxiv.org/abs/2006.16362, section 3).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.heads import Site
from interp.models.weights import Weights, folded
from interp.redundancy.similarity import Measured, Square, squared_products

WEIGHTS = ("ov_overlap", "qk_overlap")
"""The measures of weights."""
MATRICES = ("W_Q", "W_K", "W_Q W_K")
"""What `shared_space` looks at: the heads' matrices side by side, and their product."""

Factor = Float[Tensor, "head d_model d_head"]


class Space(NamedTuple):
    """One subspace of every head of a site."""

    basis: Float[Tensor, "head d_model d_head"]
    """Orthonormal columns; those beyond the dimension are 0."""
    dimension: Int[Tensor, " head"]


@torch.no_grad()
def spaces(layers: Sequence[Weights]) -> dict[str, tuple[Space, Space]]:
    """Find what all heads of a site read and write, by measure, layer by layer."""
    found: dict[str, list[tuple[Space, Space]]] = {name: [] for name in WEIGHTS}
    for layer in layers:
        share = len(layer.W_Q) // len(layer.W_K)
        value = folded(layer.W_V, layer.key_norm).repeat_interleave(share, 0)
        query = folded(layer.W_Q, layer.query_norm)
        key = folded(layer.W_K, layer.key_norm).repeat_interleave(share, 0)
        found["ov_overlap"].append(sides(value, layer.W_O.mT))
        found["qk_overlap"].append(sides(query, key))
    return {
        name: (_joined([left for left, _ in parts]), _joined([right for _, right in parts]))
        for name, parts in found.items()
    }


def _joined(layers: Sequence[Space]) -> Space:
    bases, dimensions = zip(*layers, strict=True)
    return Space(torch.cat(bases), torch.cat(dimensions))


def sides(left: Factor, right: Factor) -> tuple[Space, Space]:
    """Find the column and the row space of left rightᵀ, by its singular value decomposition."""
    # (of a matrix no larger than d_head, between the orthonormal bases of the two factors)
    Q_left, R_left = torch.linalg.qr(left.double())
    Q_right, R_right = torch.linalg.qr(right.double())
    U, S, Vh = torch.linalg.svd(R_left @ R_right.mT)
    rounding = torch.finfo(torch.float32).eps * max(left.shape[-2:])
    counts = S / S[:, :1].clamp(min=torch.finfo(S.dtype).tiny) > rounding
    dimension = counts.sum(-1)
    return (
        Space((Q_left @ U * counts[:, None]).float(), dimension),
        Space((Q_right @ Vh.mT * counts[:, None]).float(), dimension),
    )


def turned(
    found: Mapping[str, tuple[Space, Space]], site: Site, rng: np.random.Generator
) -> dict[str, tuple[Space, Space]]:
    """Turn each subspace at random; what heads of a group share goes on being shared."""
    share = site.n_heads // site.n_kv_heads
    read, write = found["ov_overlap"]
    query, key = found["qk_overlap"]
    return {
        "ov_overlap": (_turned(read, share, rng), _turned(write, 1, rng)),
        "qk_overlap": (_turned(query, 1, rng), _turned(key, share, rng)),
    }


def _turned(space: Space, share: int, rng: np.random.Generator) -> Space:
    """Turn subspaces to any of the same dimension, all as likely, `share` heads together."""
    n, *size = space.basis.shape
    basis = torch.linalg.qr(torch.from_numpy(rng.normal(size=(n // share, *size)))).Q
    basis = basis.to(space.basis).repeat_interleave(share, 0)
    used = torch.arange(basis.shape[-1], device=basis.device) < space.dimension[:, None]
    return Space(basis * used[:, None], space.dimension)


def overlap(space: Space) -> Square:
    """Compute the overlap of all pairs of heads."""
    largest = torch.maximum(space.dimension[:, None], space.dimension).double()
    some = (space.dimension > 0).double()
    value = squared_products(space.basis) / largest.clamp(min=1)
    return torch.where((some[:, None] * some) > 0, value, torch.nan).clamp(0, 1)


def overlaps(found: Mapping[str, tuple[Space, Space]]) -> dict[str, Measured]:
    """Compute the measures of weights."""
    values = {
        name: ((overlap(one) + overlap(two)) / 2).cpu().numpy()
        for name, (one, two) in found.items()
    }
    return {name: Measured(value, np.zeros(value.shape, int)) for name, value in values.items()}


@torch.no_grad()
def shared_space(
    layer: Weights, fractions: Sequence[float], *, n_draws: int, seed: int
) -> pd.DataFrame:
    """Ask how few directions of the residual stream all heads of a layer look at.

    The energy of a matrix is its sum of squares; the share that its k leading directions hold is
    σ₁² + … + σ_k² over the sum of all σ² (singular values). The matrices are W_Q of all heads side
    by side, [d_model, n_heads · d_head], the same of W_K, and their product Σ W_Q W_Kᵀ over heads,
    as they are stored, without a norm. What heads that know nothing of each other would share is
    told by random matrices: normal entries, each head's scaled to the size of its own.

    Args:
        layer: The weights of a layer.
        fractions: The leading directions, as shares of d_model.
        n_draws: Random matrices of each kind.
        seed: Where they come from.

    Returns:
        One line a matrix and fraction: `matrix, fraction, directions, energy, random_mean,
        random_p95`.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(weight: Factor) -> Factor:
        drawn = torch.randn(weight.shape, generator=generator).to(weight)
        return drawn * (_size(weight) / _size(drawn))

    d_model = layer.W_Q.shape[1]
    directions = [max(1, round(fraction * d_model)) for fraction in fractions]
    W_Q, W_K = layer.W_Q.double(), layer.W_K.double()
    own = _energies(W_Q, W_K, directions)
    drawn = np.stack([_energies(random(W_Q), random(W_K), directions) for _ in range(n_draws)])
    return pd.DataFrame(
        {
            "matrix": np.repeat(MATRICES, len(fractions)),
            "fraction": np.tile(np.array(fractions, float), len(MATRICES)),
            "directions": np.tile(directions, len(MATRICES)),
            "energy": own.ravel(),
            "random_mean": drawn.mean(0).ravel(),
            "random_p95": np.quantile(drawn, 0.95, axis=0).ravel(),
        }
    )


def _size(weight: Factor) -> Float[Tensor, "head 1 1"]:
    return weight.flatten(1).norm(dim=1)[:, None, None]


def _energies(
    W_Q: Float[Tensor, "head d_model d_head"],
    W_K: Float[Tensor, "kv_head d_source d_head"],
    directions: Sequence[int],
) -> Float[np.ndarray, "matrix fraction"]:
    """Compute the shares of energy of the leading directions of each matrix."""
    keys = W_K.repeat_interleave(len(W_Q) // len(W_K), 0)
    product = torch.einsum("hmd,hnd->mn", W_Q, keys)
    found = []
    for matrix in (_beside(W_Q), _beside(W_K), product):
        energy = torch.linalg.svdvals(matrix).square().cumsum(0)
        energy = energy / energy[-1]
        found.append([float(energy[min(k, len(energy)) - 1]) for k in directions])
    return np.array(found)


def _beside(weight: Factor) -> Float[Tensor, "d_model columns"]:
    """Put the heads' matrices side by side."""
    return weight.transpose(0, 1).flatten(1)
