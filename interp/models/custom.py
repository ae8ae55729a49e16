"""Models made of interp.transformer, behind the common interface."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.axes import Residual, Z
from interp.heads import Site
from interp.models.head_model import Batch, Handle, HeadModel, Values, Writers
from interp.models.pretrained import fingerprint, float_type, torch_device
from interp.models.text import byte_tokenizer, codec
from interp.transformer import Transformer, load


class HookedAttention:
    """An interp.attention.MultiHeadAttention: its hook points are modules, so plain hooks do."""

    def __init__(self, attention: Any) -> None:
        """Bind the attention."""
        self.attention = attention

    def edit_z(self, edit: Callable[[Z], Z]) -> Handle:
        """Pass each forward's z through `edit` before W_O reads it."""
        return self.attention.hook_z.register_forward_hook(lambda _module, _args, z: edit(z))

    def watch_v(self, watch: Callable[[Values], None]) -> Handle:
        """Show each forward's values to `watch`; it is called before z is made."""
        return self.attention.hook_v.register_forward_hook(lambda _module, _args, v: watch(v))

    def write(self, z: Z) -> Float[Tensor, "batch position head d_model"]:
        """Compute what each head adds to the attention's output: z W_O, without the bias."""
        return torch.einsum("bphd,hdm->bphm", z, self.attention.W_O)

    def constant(self) -> Float[Tensor, " d_model"]:
        """Give what the attention adds whatever its heads do: the bias."""
        bias, W_O = self.attention.b_O, self.attention.W_O
        return W_O.new_zeros(W_O.shape[-1]) if bias is None else bias


class CustomModel(HeadModel):
    """A Transformer of ours."""

    def run(self, batch: Batch) -> Tensor:
        """Run the model natively and return its logits."""
        target = batch.target
        if target is None:
            return self.module(batch.text.tokens, mask=batch.text.mask)
        return self.module(
            batch.text.tokens,
            mask=batch.text.mask,
            decoder_tokens=target.tokens,
            decoder_mask=target.mask,
        )

    def hidden(self, batch: Batch) -> Residual:
        """Run the model up to its final hidden states, after the last norm."""
        kept: list[Tensor] = []
        unembed: Any = self.module.unembed
        handle = unembed.register_forward_pre_hook(lambda _module, args: kept.append(args[0]))
        try:
            self.run(batch)
        finally:
            handle.remove()
        return kept[0]

    def run_hooked(self, batch: Batch) -> None:
        """Run the model, for the sake of its hooks."""
        self.run(batch)


def from_transformer(
    module: Transformer,
    tokenizer: Any,
    *,
    name: str,
    prepend_bos: bool | str = "auto",
    padding_side: str = "right",
    truncation: str = "error",
    record: dict[str, Any] | None = None,
) -> CustomModel:
    """Put a Transformer and a tokenizer behind the common interface."""
    config = module.config
    sites, stacks, attentions = [], list[nn.ModuleList](), {}
    places = (
        [
            ("encoder_attn", "encoder_blocks", "attn", False),
            ("decoder_self_attn", "decoder_blocks", "self_attn", True),
            ("decoder_cross_attn", "decoder_blocks", "cross_attn", False),
        ]
        if config.kind == "encoder_decoder"
        else [("attn", "blocks", "attn", config.kind == "decoder")]
    )
    for site_name, stack, place, causal in places:
        blocks = getattr(module, stack)
        if not any(blocks is known for known in stacks):
            stacks.append(blocks)
        first = getattr(blocks[0], place)
        n_kv_heads, _, d_head = first.W_K.shape
        n_heads = len(first.W_Q)
        sites.append(
            Site(site_name, stack, place, len(blocks), n_heads, n_kv_heads, d_head, causal)
        )
        for layer, block in enumerate(blocks):
            attentions[site_name, layer] = HookedAttention(getattr(block, place))
    return CustomModel(
        name=name,
        kind=config.kind,
        module=module,
        hooked=module,
        sites=sites,
        stacks=stacks,
        attentions=attentions,
        unembed=module.unembed,
        codec=codec(tokenizer, prepend_bos=prepend_bos, truncation=truncation, n_ctx=config.n_ctx),
        padding_side=padding_side,
        record={"weight_processing": "none", **(record or {"name": name})},
        decoder_start=tokenizer.bos_token_id or 0,
        final_norm=module.ln_final if config.kind == "decoder" else None,
        writers=[Writers(getattr(block, "mlp", None)) for block in module.blocks]
        if config.kind == "decoder"
        else (),
    )


def custom(
    path: str,
    *,
    device: str,
    dtype: str,
    prepend_bos: bool | str,
    padding_side: str,
    truncation: str,
) -> CustomModel:
    """Load a checkpoint of interp.transformer; its tokenizer is the one beside it, or bytes."""
    module = load(Path(path))
    if (Path(path) / "tokenizer.json").is_file():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path)
    else:
        tokenizer = byte_tokenizer("none" if module.config.kind == "decoder" else "both")
    return from_transformer(
        module.to(torch_device(device), float_type(dtype)),
        tokenizer,
        name=Path(path).name,
        prepend_bos=prepend_bos,
        padding_side=padding_side,
        truncation=truncation,
        record={"name": path, "sha256": fingerprint(Path(path)), "weights": dtype},
    )
