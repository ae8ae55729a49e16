"""A layer's weights, head by head, in whatever way the model's family stores them.

    W_Q [head d_model d_head]            W_O [head d_head d_model]
    W_K, W_V [kv_head d_model d_head]    shared by the query heads of a group

Weights are read, never changed, and biases are left out. With them comes the norm that stands in
front of the attention, in models that have one there (pre-norm): what a head reads of the residual
stream is the norm's gain times its weights (`folded`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.attention import MultiHeadAttention
from interp.errors import InputError
from interp.heads import Site
from interp.models.head_model import HeadModel, norm_gain

Reading = Float[Tensor, "heads d_model d_head"]


class Norm(NamedTuple):
    """What a norm does to the residual stream, apart from one scale for all of it."""

    gain: Float[Tensor, " d_model"]
    centred: bool
    """Whether it takes the mean over d_model off first (LayerNorm)."""


@dataclass(frozen=True)
class Weights:
    """One layer of one site."""

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_source d_head"]
    W_V: Float[Tensor, "kv_head d_source d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    query_norm: Norm | None
    """The norm that queries are made from; None where they are made from the stream itself."""
    key_norm: Norm | None
    """The same for keys and values; None in cross-attention, which reads the encoder's output."""


def folded(weight: Reading, norm: Norm | None) -> Reading:
    """Fold a norm into weights: x W' = norm(x) W, apart from the norm's scale and bias."""
    if norm is None:
        return weight
    scaled = weight * norm.gain[:, None]
    return scaled - scaled.mean(-2, keepdim=True) if norm.centred else scaled


@torch.no_grad()
def read(model: HeadModel) -> dict[str, list[Weights]]:
    """Read the weights of every layer of every site.

    Raises:
        InputError: The model is pruned: some of its heads have no weights.
        RuntimeError: A projection is of another shape than its heads.
    """
    if model.record.get("pruned_heads"):
        raise InputError(f"{model.name} is pruned: weights are compared in the whole model")
    norms = _norms(model)
    return {
        site.name: [_read(model, site, layer, norms) for layer in range(site.n_layers)]
        for site in model.sites
    }


def output(model: HeadModel, site: Site, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """Read W_O from what the attention writes of each direction of z."""
    like = next(model.module.parameters())
    every = torch.eye(site.d_head, dtype=like.dtype, device=like.device)[None, :, None]
    written = model.attentions[site.name, layer].write(every.expand(-1, -1, site.n_heads, -1))
    return written[0].transpose(0, 1)


def _read(model: HeadModel, site: Site, layer: int, norms: dict[tuple[str, int], Norm]) -> Weights:
    part: Any = getattr(_block(model, site, layer), site.module)
    if isinstance(part, MultiHeadAttention):
        W_Q, W_K, W_V = (weight.detach() for weight in (part.W_Q, part.W_K, part.W_V))
    else:
        W_Q = _projection(part.q.original_component, site.n_heads, site.d_head)
        W_K, W_V = (
            _projection(source.original_component, site.n_kv_heads, site.d_head)
            for source in (part.k, part.v)
        )
    norm = norms.get((site.name, layer))
    key_norm = None if site.module == "cross_attn" else norm
    return Weights(W_Q, W_K, W_V, output(model, site, layer), norm, key_norm)


def _block(model: HeadModel, site: Site, layer: int) -> Any:
    return getattr(model.hooked, site.stack)[layer]


def _projection(linear: nn.Linear, n_heads: int, d_head: int) -> Reading:
    """Cut the weight of a linear map into heads."""
    if linear.out_features != n_heads * d_head:
        raise RuntimeError(f"a projection to {linear.out_features} for {n_heads} x {d_head}")
    return linear.weight.unflatten(0, (n_heads, d_head)).transpose(1, 2)


def _norms(model: HeadModel) -> dict[tuple[str, int], Norm]:
    """Find the norm whose output each attention reads, by looking at a forward pass.

    Names do not tell: `ln1` stands before the attention in GPT-2 and after it in BERT.
    """
    read: dict[tuple[str, int], list[Tensor]] = {}
    made: dict[tuple[str, int], list[tuple[nn.Module, Tensor]]] = {}
    handles = []

    def reader(place: tuple[str, int]) -> Callable[..., None]:
        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = (*args, *kwargs.values())
            read[place] = [value for value in given if isinstance(value, Tensor)]

        return keep

    def maker(place: tuple[str, int]) -> Callable[..., None]:
        def keep(module: nn.Module, _args: Any, value: Any) -> None:
            if isinstance(value, Tensor):
                made.setdefault(place, []).append((module, value))

        return keep

    for site in model.sites:
        for layer in range(site.n_layers):
            block, place = _block(model, site, layer), (site.name, layer)
            part = getattr(block, site.module)
            handles.append(part.register_forward_pre_hook(reader(place), with_kwargs=True))
            handles += [
                child.register_forward_hook(maker(place))
                for name, child in block.named_children()
                if name.startswith("ln")
            ]
    targets = [model.codec.encode_target("a b")] if model.kind == "encoder_decoder" else []
    try:
        model.run_hooked(
            model.batch([model.codec.encode("a b")], list(map(model.shifted, targets)))
        )
    finally:
        for handle in handles:
            handle.remove()
    found = {}
    for place, inputs in read.items():
        for module, value in made.get(place, ()):
            if any(value.shape == given.shape and torch.equal(value, given) for given in inputs):
                norm: Any = getattr(module, "original_component", module)
                found[place] = Norm(*norm_gain(norm, torch.ones_like(value[0, 0])))
                break
    # cross-attention reads a norm in post-norm models too: there its output is the stream itself,
    # as the block's first attention shows, which reads none
    first = {site.stack: site.name for site in reversed(model.sites)}
    return {
        (site, layer): norm
        for (site, layer), norm in found.items()
        if (first[model.site[site].stack], layer) in found
    }
