"""Small transformers whose every part can be seen: encoder, decoder, encoder-decoder.

The architecture is that of Vaswani et al. (2017), https://arxiv.org/abs/1706.03762, with the usual
variants to choose from: normalisation before or after each sub-layer or none (Xiong et al. 2020,
https://arxiv.org/abs/2002.04745), learned, sinusoidal or no positions, with or without MLPs.

Modules and hook points are named as in TransformerLens:

    encoder, decoder    embed  pos_embed  blocks.0.attn  ln_final  unembed
    encoder-decoder     embed  pos_embed  encoder_blocks.0.attn  encoder_ln_final
                        decoder_embed  decoder_pos_embed  decoder_blocks.0.self_attn
                        decoder_blocks.0.cross_attn  decoder_ln_final  unembed

A block takes and gives the residual stream, one tensor [batch position d_model]. Its hook points,
beside those of its attention (see interp.attention) and the neurons `mlp.hook_pre, mlp.hook_post`:

    hook_resid_pre         the stream that comes in
    hook_attn_out          what (self-)attention adds
    hook_resid_mid         the stream after it
    hook_cross_attn_out    what cross-attention adds
    hook_resid_mid_cross   the stream after it
    hook_mlp_out           what the MLP adds
    hook_resid_post        the stream that goes out

and `embed.hook_out, pos_embed.hook_out` are what the embeddings add to the stream.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from interp.attention import MultiHeadAttention, head_shape
from interp.axes import Logits, Mask, Residual, Tokens
from interp.errors import InputError

Kind = Literal["encoder", "decoder", "encoder_decoder"]
Norm = Literal["pre", "post", "none"]
Positions = Literal["learned", "sinusoidal", "none"]

Memory = Float[Tensor, "batch source d_model"]
"""What an encoder makes of its input, for a decoder to look at."""


WEIGHTS = "model.safetensors"
CONFIG = "config.json"


@no_type_check  # in tests: its own checks, below, have the clearer messages
@dataclass(frozen=True)
class TransformerConfig:
    """Everything that determines a model before training, its random weights included."""

    kind: Kind
    d_vocab: int
    """Tokens that it reads (in an encoder-decoder: that the encoder reads)."""
    d_model: int
    n_layers: int
    """Blocks of each stack."""
    n_heads: int
    n_ctx: int
    """The longest sequence, padding included."""
    d_vocab_out: int | None = None
    """Classes that it predicts (default: the tokens that its last stack reads)."""
    d_vocab_target: int | None = None
    """Tokens that the decoder of an encoder-decoder reads (default: d_vocab)."""
    n_kv_heads: int | None = None
    d_head: int | None = None
    d_mlp: int | None = None
    """Neurons of each MLP (default: none, the model is attention-only)."""
    norm: Norm = "pre"
    positions: Positions = "learned"
    bias: bool = True
    """Whether attention, MLPs, norms and the unembedding add biases."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value, for it may come from a file.

        Raises:
            InputError: A value is of the wrong type or out of range, or two do not go together.
        """
        for name, choices in (("kind", Kind), ("norm", Norm), ("positions", Positions)):
            if getattr(self, name) not in get_args(choices):
                accepted = ", ".join(get_args(choices))
                raise InputError(f"{name}={getattr(self, name)!r} is not one of: {accepted}")
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "seed" else 1
            counts = field.type is int or (field.type == int | None and value is not None)
            if counts and (type(value) is not int or value < least):
                raise InputError(f"{field.name}={value!r} is not a whole number from {least} up")
        if type(self.bias) is not bool:
            raise InputError(f"bias={self.bias!r} is neither true nor false")
        if self.d_vocab_target is not None and self.kind != "encoder_decoder":
            raise InputError(f"d_vocab_target={self.d_vocab_target} needs kind=encoder_decoder")
        head_shape(self.d_model, self.n_heads, self.n_kv_heads, self.d_head)


class Transformer(HookedRootModule):
    """A transformer that reads tokens and gives, at each position, a score for every class.

    Weights are a function of the configuration: the same seed gives the same bits, and torch's own
    random state stays as it was. Attention starts as interp.attention says, the rest as torch's
    layers do (token embeddings: N(0, 1)).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        # Not torch.manual_seed: it would also reseed the accelerators, which are not put back.
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(config.seed)
            self._build(config)
        self.setup()

    def _build(self, config: TransformerConfig) -> None:
        layers = range(config.n_layers)
        d_vocab_target = config.d_vocab_target or config.d_vocab
        self.embed = Embedding(config.d_vocab, config.d_model)
        self.pos_embed = _pos_embed(config)
        if config.kind == "encoder_decoder":
            self.encoder_blocks = nn.ModuleList(Block(config, causal=False) for _ in layers)
            self.encoder_ln_final = _ln_final(config)
            self.decoder_embed = Embedding(d_vocab_target, config.d_model)
            self.decoder_pos_embed = _pos_embed(config)
            self.decoder_blocks = nn.ModuleList(CrossBlock(config) for _ in layers)
            self.decoder_ln_final = _ln_final(config)
        else:
            causal = config.kind == "decoder"
            self.blocks = nn.ModuleList(Block(config, causal=causal) for _ in layers)
            self.ln_final = _ln_final(config)
        self.unembed = nn.Linear(
            config.d_model, config.d_vocab_out or d_vocab_target, bias=config.bias
        )

    def forward(
        self,
        tokens: Tokens,
        *,
        mask: Mask | None = None,
        decoder_tokens: Int[Tensor, "batch target"] | None = None,
        decoder_mask: Bool[Tensor, "batch target"] | None = None,
    ) -> Logits:
        """Score every class at each position (of the decoder, in an encoder-decoder).

        Positions count from the first real token, so padding on the left and on the right give the
        same logits at real tokens; those at padding mean nothing.

        Args:
            tokens: What the model, or its encoder, reads.
            mask: True at real tokens, False at padding (default: all are real).
            decoder_tokens: What the decoder of an encoder-decoder reads.
            decoder_mask: The same as `mask`, for `decoder_tokens`.

        Raises:
            InputError: A sequence is longer than n_ctx, or decoder tokens are missing or misplaced.
        """
        if self.config.kind != "encoder_decoder":
            if decoder_tokens is not None or decoder_mask is not None:
                raise InputError(f"a model of kind={self.config.kind} takes no decoder_tokens")
            residual = self._embed(tokens, mask, self.embed, self.pos_embed)
            for block in self.blocks:
                residual = block(residual, mask)
            return self.unembed(self.ln_final(residual))

        if decoder_tokens is None:
            raise InputError("a model of kind=encoder_decoder needs decoder_tokens")
        memory = self._embed(tokens, mask, self.embed, self.pos_embed)
        for block in self.encoder_blocks:
            memory = block(memory, mask)
        memory = self.encoder_ln_final(memory)
        residual = self._embed(
            decoder_tokens, decoder_mask, self.decoder_embed, self.decoder_pos_embed
        )
        for block in self.decoder_blocks:
            residual = block(residual, decoder_mask, memory, mask)
        return self.unembed(self.decoder_ln_final(residual))

    def _embed(
        self, tokens: Tokens, mask: Mask | None, embed: nn.Module, pos_embed: nn.Module | None
    ) -> Residual:
        """Start the residual stream: a vector for the token, plus one for its position."""
        if tokens.shape[1] > self.config.n_ctx:
            raise InputError(
                f"a sequence of {tokens.shape[1]} tokens is longer than n_ctx={self.config.n_ctx}"
            )
        residual = embed(tokens)
        return residual if pos_embed is None else residual + pos_embed(positions(tokens, mask))


class Block(nn.Module):
    """Let each position gather from the others (attention), then work on what it has (MLP).

    Each of the two, f, reads the residual stream x and adds to it:

        norm=pre    x + f(norm(x))
        norm=post   norm(x + f(x))
        norm=none   x + f(x)
    """

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__()
        self.post_norm = config.norm == "post"
        self.ln1, self.attn = _norm(config), _attention(config, causal=causal)
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.has_mlp = config.d_mlp is not None
        if config.d_mlp is not None:
            self.ln2, self.mlp = _norm(config), Mlp(config.d_model, config.d_mlp, bias=config.bias)
            self.hook_resid_mid, self.hook_mlp_out = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()

    def forward(self, residual: Residual, mask: Mask | None = None) -> Residual:
        """Add what attention and the MLP write; `mask` is True at real tokens."""

        def attend(x: Residual) -> Residual:
            return self.hook_attn_out(self.attn(x, key_mask=mask))

        residual = _add(attend, self.hook_resid_pre(residual), self.ln1, self.post_norm)
        if self.has_mlp:
            residual = self.hook_resid_mid(residual)
            residual = _add(self._think, residual, self.ln2, self.post_norm)
        return self.hook_resid_post(residual)

    def _think(self, x: Residual) -> Residual:
        return self.hook_mlp_out(self.mlp(x))


class CrossBlock(nn.Module):
    """A decoder's block that also gathers from what an encoder has read (the memory)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.post_norm = config.norm == "post"
        self.ln1, self.self_attn = _norm(config), _attention(config, causal=True)
        self.ln2, self.cross_attn = _norm(config), _attention(config, causal=False)
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.hook_resid_mid, self.hook_cross_attn_out = HookPoint(), HookPoint()
        self.has_mlp = config.d_mlp is not None
        if config.d_mlp is not None:
            self.ln3, self.mlp = _norm(config), Mlp(config.d_model, config.d_mlp, bias=config.bias)
            self.hook_resid_mid_cross, self.hook_mlp_out = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()

    def forward(
        self,
        residual: Residual,
        mask: Mask | None,
        memory: Memory,
        memory_mask: Bool[Tensor, "batch source"] | None = None,
    ) -> Residual:
        """Add what self-attention, cross-attention and the MLP write; masks are True at tokens."""

        def attend(x: Residual) -> Residual:
            return self.hook_attn_out(self.self_attn(x, key_mask=mask))

        def look_up(x: Residual) -> Residual:
            return self.hook_cross_attn_out(self.cross_attn(x, memory, key_mask=memory_mask))

        residual = _add(attend, self.hook_resid_pre(residual), self.ln1, self.post_norm)
        residual = _add(look_up, self.hook_resid_mid(residual), self.ln2, self.post_norm)
        if self.has_mlp:
            residual = self.hook_resid_mid_cross(residual)
            residual = _add(self._think, residual, self.ln3, self.post_norm)
        return self.hook_resid_post(residual)

    def _think(self, x: Residual) -> Residual:
        return self.hook_mlp_out(self.mlp(x))


class Mlp(nn.Module):
    """Work on each position alone: W_out relu(W_in x + b_in) + b_out."""

    def __init__(self, d_model: int, d_mlp: int, *, bias: bool) -> None:
        super().__init__()
        self.W_in = nn.Linear(d_model, d_mlp, bias=bias)
        self.W_out = nn.Linear(d_mlp, d_model, bias=bias)
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Residual) -> Residual:
        """Give what the MLP adds to the residual stream."""
        return self.W_out(self.hook_post(self.hook_pre(self.W_in(x)).relu()))


class Embedding(nn.Embedding):
    """Look up a learned vector for each token, or position; the table starts as N(0, 1)."""

    def __init__(self, n_entries: int, d_model: int) -> None:
        super().__init__(n_entries, d_model)
        self.hook_out = HookPoint()

    def forward(self, entries: Tokens) -> Residual:
        """Give the vector of each entry."""
        return self.hook_out(super().forward(entries))


class SinusoidalEmbedding(nn.Module):
    """Mark each position by waves of many lengths, as clock hands mark the time.

    PE(p, 2i) = sin(p / 10000^(2i / d_model)) and PE(p, 2i + 1) = cos of the same (Vaswani et al.
    2017, section 3.5). Nothing is learned.
    """

    def __init__(self, n_ctx: int, d_model: int) -> None:
        super().__init__()
        self.table: Tensor
        frequency = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
        angle = torch.arange(n_ctx)[:, None] * frequency
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]
        self.register_buffer("table", table, persistent=False)
        self.hook_out = HookPoint()

    def forward(self, entries: Tokens) -> Residual:
        """Give the vector of each position."""
        return self.hook_out(self.table[entries])


def positions(tokens: Tokens, mask: Mask | None) -> Int[Tensor, "#batch position"]:
    """Number the tokens from 0, starting at the first real one; padding before it is 0 too."""
    if mask is None:
        return torch.arange(tokens.shape[1], device=tokens.device)[None]
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


def save(model: Transformer, folder: str | Path) -> None:
    """Write a model's weights and configuration into `folder`, which is made if need be."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(asdict(model.config), indent=2) + "\n")


def load(folder: str | Path) -> Transformer:
    """Read back, onto the CPU, the model that `save` wrote; nothing is ever unpickled.

    Raises:
        InputError: The folder, or one of its two files, is missing or is not such a file.
    """
    folder = Path(folder)
    for path in (folder, folder / CONFIG, folder / WEIGHTS):
        if not path.exists():
            raise InputError(f"{path} does not exist: a checkpoint is {CONFIG} and {WEIGHTS}")
    model = Transformer(_read_config(folder / CONFIG))
    weights = _read_weights(folder / WEIGHTS, model.state_dict())
    model.load_state_dict(weights, assign=True)  # assign: keep the checkpoint's dtype
    return model


def _read_config(path: Path) -> TransformerConfig:
    try:
        values: Any = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no object of settings but a {type(values).__name__}")
    known = {field.name for field in fields(TransformerConfig)}
    needed = {field.name for field in fields(TransformerConfig) if field.default is MISSING}
    _compare(path, needed - values.keys(), values.keys() - known)
    try:
        return TransformerConfig(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read_weights(path: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from error
    _compare(path, expected.keys() - weights.keys(), weights.keys() - expected.keys())
    for name, value in weights.items():
        if value.shape != expected[name].shape:
            raise InputError(
                f"{path}: {name} has shape {list(value.shape)}, "
                f"its {CONFIG} asks for {list(expected[name].shape)}"
            )
        if not value.is_floating_point():
            raise InputError(f"{path}: {name} is {value.dtype}, not a floating-point type")
    return weights


def _compare(path: Path, missing: Iterable[str], unknown: Iterable[str]) -> None:
    """Refuse a file whose keys are not those expected, naming the ones at fault."""
    faults = [f"lacks {key}" for key in sorted(missing)]
    faults += [f"has the unknown key {key}" for key in sorted(unknown)]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise InputError(f"{path} {', '.join(faults[:3])}{more}")


def _add(
    sublayer: Callable[[Residual], Residual], residual: Residual, norm: nn.Module, post_norm: bool
) -> Residual:
    """Add to the residual stream what `sublayer` makes of it; see Block for the formulae."""
    if post_norm:
        return norm(residual + sublayer(residual))
    return residual + sublayer(norm(residual))


def _norm(config: TransformerConfig) -> nn.Module:
    if config.norm == "none":
        return nn.Identity()
    return nn.LayerNorm(config.d_model, bias=config.bias)


def _ln_final(config: TransformerConfig) -> nn.Module:
    """Make the norm after the last block; norm=post has had its own there already."""
    return _norm(config) if config.norm == "pre" else nn.Identity()


def _pos_embed(config: TransformerConfig) -> nn.Module | None:
    if config.positions == "none":
        return None
    table = Embedding if config.positions == "learned" else SinusoidalEmbedding
    return table(config.n_ctx, config.d_model)


def _attention(config: TransformerConfig, *, causal: bool) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=config.d_head,
        causal=causal,
        bias=config.bias,
    )
