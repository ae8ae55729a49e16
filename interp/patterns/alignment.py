"""Cross-attention: does the decoder walk along the source?

source_offset:k   how often the source token with most attention stands k places beyond the
decoder's own (places counted from the first token of each sequence); among
queries that have such a source token
monotone          the rank correlation, over the decoder's tokens, between their places and the
places they look at (Spearman; 0 where they all look at one place): 1 for a
head that walks from left to right at any speed
"""

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from interp.patterns.maps import OFFSETS, Maps, Measured, offset_name

SHORTEST = 4
"""Fewer queries have no order to speak of."""


def alignment(maps: Maps) -> dict[str, Measured]:
    """Measure where a decoder's tokens look in the source."""
    n_text = maps.text.sum(-1).clamp(min=1)
    found = {}
    for offset in OFFSETS:
        counted = (maps.text & (maps.distance == offset) & maps.query.mask[:, :, None]).any(-1)
        if counted.any():
            hit = (maps.looked_at == offset).to(maps.pattern.dtype)
            found[f"source_{offset_name(offset)}"] = maps.mean(hit, counted, 1 / n_text)
    return found | {"monotone": _monotone(maps)}


def _monotone(maps: Maps) -> Measured:
    places = torch.arange(maps.looked_at.shape[-1], device=maps.looked_at.device)
    looked_at = maps.looked_at + places
    value = torch.full(looked_at.shape[:2], torch.nan)
    n = maps.query.mask.sum(-1)
    n = n.where(n >= SHORTEST, 0)
    for row in n.nonzero().ravel().tolist():
        real = maps.query.mask[row]
        value[row] = _spearman(places[real].double().cpu(), looked_at[row][:, real].double().cpu())
    return Measured(value, n.to(value.dtype), torch.zeros(len(n)))


def _spearman(
    places: Float[Tensor, " query"], looked_at: Float[Tensor, "head query"]
) -> Float[Tensor, " head"]:
    """Correlate ranks, head by head; ranks that are all equal correlate with nothing."""
    ranks = torch.tensor(stats.rankdata(looked_at.nan_to_num(-1.0).numpy(), axis=-1))
    x, y = places - places.mean(), ranks - ranks.mean(-1, keepdim=True)
    size = (x.square().sum() * y.square().sum(-1)).sqrt()
    return torch.where(size > 0, (y @ x) / size.clamp(min=1e-30), 0.0).float()
