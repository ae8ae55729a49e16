"""Random tokens, said twice: what a head does with repetition alone, where nothing else helps.

The sequences are those of interp.tasks.repeated_tokens: [BOS] x₁ … x_n x₁ … x_n. Measured at the
queries of the second copy:

    induction   the share of attention on the token *after* the earlier copy of the query's token,
                which is what should come next: prefix matching (Olsson et al. 2022,
                https://arxiv.org/abs/2209.11895, in the sense of its formal definition; with two
                copies there is one such token)
    duplicate   the share on the earlier copy itself (Wang et al. 2022,
                https://arxiv.org/abs/2211.00593)

and at the queries of the first copy, where every token is new:

    copying     how much the head raises the logit of the token that it attends to most, as a share
                of what it raises over all tokens of the segment: head output times W_O, the final
                norm's gain and the unembedding, minus the mean over the vocabulary, negative values
                as 0. Between 0 and 1 (Olsson et al. 2022 scale it to -1 … 1); 1/n for a head that
                raises all n alike. Decoders only. What a head writes is taken to be added to the
                residual stream as it is: a norm after the attention (Gemma 2) is not counted
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.models.head_model import Batch, HeadModel
from interp.patterns.maps import Maps, Measured


def repetition(maps: Maps, lengths: Sequence[int]) -> dict[str, Measured]:
    """Measure induction and duplicates.

    Args:
        maps: Patterns on repeated segments.
        lengths: The length of each sequence's segment.
    """
    length = torch.tensor(lengths, device=maps.pattern.device)[:, None]
    number = maps.asking.cumsum(-1) - 1  # of a query among the sequence's own tokens
    second = maps.asking & (number >= length)
    found = {}
    for name, shift in (("induction", 1), ("duplicate", 0)):
        target = maps.text & (maps.distance == shift - length[..., None])
        mass = (maps.pattern * target[:, None]).sum(-1)
        found[name] = maps.mean(mass, second, (maps.even * target).sum(-1))
    return found


def copying(
    model: HeadModel,
    batch: Batch,
    maps: Maps,
    layers: Sequence[int],
    lengths: Sequence[int],
    z: dict[tuple[str, int], Float[Tensor, "batch position head d_head"]],
) -> Measured:
    """Measure what heads do to the logits of the tokens they attend to.

    Args:
        model: A decoder.
        batch: Repeated segments.
        maps: The patterns of all heads of some layers on them.
        layers: Which layers these are.
        lengths: The length of each sequence's segment.
        z: What the heads of these layers made of the values there.
    """
    assert isinstance(model.unembed, nn.Linear)
    number = maps.asking.cumsum(-1) - 1
    length = torch.tensor(lengths, device=maps.pattern.device)
    first = maps.asking & (number < length[:, None])
    tokens = batch.text.tokens
    attended = maps.pattern.masked_fill(~maps.text[:, None], -1.0).argmax(-1)
    gain, centred = model.final_gain()
    unembed = model.unembed.weight * gain
    unembed = unembed - unembed.mean(0)  # the mean over the vocabulary drops out
    raised, site = [], model.sites[0].name
    for place, layer in enumerate(layers):
        written = model.attentions[site, layer].write(z[site, layer])
        written = written - written.mean(-1, keepdim=True) if centred else written
        raised.append(
            _shares(
                written,
                unembed,
                tokens,
                first,
                attended.unflatten(1, (-1, written.shape[2]))[:, place],
            )
        )
    return maps.mean(torch.cat(raised, dim=1), first, 1 / length[:, None].expand_as(first))


def _shares(
    written: Float[Tensor, "batch position head d_model"],
    unembed: Float[Tensor, "vocab d_model"],
    tokens: Int[Tensor, "batch position"],
    first: Tensor,
    attended: Int[Tensor, "batch head position"],
) -> Float[Tensor, "batch head position"]:
    """Say which share of what a head raises, over the segment, goes to the attended token."""
    logits = torch.einsum("bqhd,bkd->bhqk", written, unembed[tokens]).relu()
    own = logits.gather(-1, attended[..., None]).squeeze(-1)
    return own / (logits * first[:, None, None]).sum(-1).clamp(min=1e-30)
