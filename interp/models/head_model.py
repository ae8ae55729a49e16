"""The one interface through which everything else sees a model.

A HeadModel runs batches, and lets its heads be watched and edited. Two things make it fast and
exact for any architecture:

    editing     a head's output z is changed on its way into W_O, for the length of a `with` block
    replaying   blocks before the first edited one are replaced by stubs that return the outputs of
                a clean run, while the rest of the model runs natively

Adapters (interp.models.pretrained, .custom) say where a model keeps its blocks and heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from interp.axes import Logits, Pattern, Residual, Z
from interp.errors import InputError
from interp.heads import Head, Site
from interp.models.text import Codec, Encoded, Text, pad, visible

Values = Float[Tensor, "batch key kv_head d_head"]
Rows = Int[Tensor, " row"]
Handle = torch.utils.hooks.RemovableHandle


@dataclass(frozen=True)
class Batch:
    """What a model reads: a text and, for an encoder-decoder, the target shifted right."""

    text: Text
    target: Text | None = None

    def __len__(self) -> int:
        """Count the sequences."""
        return len(self.text.tokens)

    @property
    def n_tokens(self) -> int:
        """Count the tokens, padding included."""
        return self.text.tokens.numel() + (self.target.tokens.numel() if self.target else 0)

    def select(self, rows: Rows) -> "Batch":
        """Pick sequences, in the given order, with repetition."""
        return Batch(self.text.select(rows), self.target.select(rows) if self.target else None)

    def queries(self, site: Site) -> Text:
        """The sequences that a site's queries stand on."""
        return self.target if site.stack == "decoder_blocks" and self.target else self.text

    def keys(self, site: Site) -> Text:
        """The sequences that a site's keys stand on."""
        return self.text if site.module == "cross_attn" else self.queries(site)


@runtime_checkable
class Attention(Protocol):
    """One layer of one site, as an adapter exposes it."""

    def edit_z(self, edit: Callable[[Z], Z]) -> Handle:
        """Pass each forward's z through `edit` before W_O reads it."""

    def watch_v(self, watch: Callable[[Values], None]) -> Handle:
        """Show each forward's values to `watch`; it is called before z is made."""

    def write(self, z: Z) -> Float[Tensor, "batch position head d_model"]:
        """Compute what each head adds to the attention's output: z W_O, without the bias."""

    def constant(self) -> Float[Tensor, " d_model"]:
        """Give what the attention adds whatever its heads do: the bias."""


@dataclass(frozen=True)
class Writers:
    """The modules that write into the residual stream in one block of a decoder, beside heads."""

    mlp: nn.Module | None
    """What it returns is what the MLP adds, or what `mlp_norm` reads; None without an MLP."""
    attn_norm: nn.Module | None = None
    """A norm that stands between the attention's output and the stream (Gemma 2)."""
    mlp_norm: nn.Module | None = None


class Replayed(nn.Module):
    """Stands in for a block and returns an output computed before."""

    def __init__(self, block: nn.Module, output: Any) -> None:
        super().__init__()
        self.__dict__["block"] = block  # out of PyTorch's sight: not a submodule
        self.__dict__["output"] = output

    def __getattr__(self, name: str) -> Any:
        """Models ask their blocks for facts such as the kind of attention: let the block answer."""
        return getattr(self.__dict__["block"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the stored output whatever comes in."""
        return self.__dict__["output"]


class HeadModel(ABC):
    """A model whose heads can be watched and edited."""

    def __init__(
        self,
        *,
        name: str,
        kind: str,
        module: nn.Module,
        hooked: Any,
        sites: Sequence[Site],
        stacks: Sequence[nn.ModuleList],
        attentions: Mapping[tuple[str, int], Attention],
        unembed: nn.Module | None,
        codec: Codec,
        padding_side: str,
        record: Mapping[str, Any],
        decoder_start: int = 0,
        final_norm: nn.Module | None = None,
        writers: Sequence[Writers] = (),
    ) -> None:
        """Collect what an adapter found.

        Args:
            name: What to call the model in tables.
            kind: `decoder`, `encoder` or `encoder_decoder`.
            module: The module that runs.
            hooked: The same weights with TransformerLens hook points, to read patterns from.
            sites: The kinds of attention it has.
            stacks: Its lists of blocks, in the order they run.
            attentions: Every layer of every site.
            unembed: The module that turns final hidden states into logits; None without one.
            codec: How text becomes tokens.
            padding_side: `left` or `right`.
            record: Facts about the weights for run.json.
            decoder_start: The token that an encoder-decoder's decoder starts with.
            final_norm: The norm in front of the unembedding, of a decoder that has one.
            writers: What else writes into the residual stream, for each block of a decoder.
        """
        if padding_side not in ("left", "right"):
            raise InputError(f"model.padding_side={padding_side}: left or right")
        if padding_side == "left" and kind != "decoder":
            raise InputError(
                f"model.padding_side=left: {name} is an {kind.replace('_', '-')}, "
                f"and only decoders pad left (use right)"
            )
        self.name, self.kind, self.module, self.hooked = name, kind, module.eval(), hooked
        self.sites = tuple(sites)
        self.site = {site.name: site for site in sites}
        self.attentions, self.unembed, self.codec = attentions, unembed, codec
        self.padding_side, self.record = padding_side, dict(record)
        self.decoder_start, self.final_norm = decoder_start, final_norm
        self.writers = tuple(writers)
        self.blocks = [(stack, index) for stack in stacks for index in range(len(stack))]
        names = list(dict.fromkeys(site.stack for site in sites))
        self._first_block = dict(
            zip(names, (sum(map(len, stacks[:n])) for n in range(len(stacks))), strict=True)
        )

    @property
    def device(self) -> str:
        """Where the weights are."""
        return str(next(self.module.parameters()).device)

    @property
    def n_readable(self) -> int:
        """Count the ids that all its stacks read: a decoder may have a vocabulary of its own."""
        n_ids: int = self.codec.tokenizer.vocab_size
        unembed: Any = self.unembed
        return min(n_ids, len(unembed.weight)) if self.kind == "encoder_decoder" else n_ids

    def block(self, head: Head) -> int:
        """Number the block a head belongs to, counted over all stacks in the order they run."""
        return self._first_block[self.site[head.site].stack] + head.layer

    def batch(self, texts: Sequence[Encoded], targets: Sequence[Encoded] = ()) -> Batch:
        """Pad sequences and put them on the model's device."""
        text = pad(texts, self.codec.pad_id, self.padding_side).to(self.device)
        target = pad(targets, self.codec.pad_id, "right").to(self.device) if targets else None
        return Batch(text, target)

    def shifted(self, labels: Encoded) -> Encoded:
        """Shift what a decoder is to write by its start token, into what it reads."""
        return Encoded(
            (self.decoder_start, *labels.ids[:-1]),
            ((0, 0), *labels.offsets[:-1]),
            (True, *labels.special[:-1]),
        )

    @abstractmethod
    def run(self, batch: Batch) -> Float[Tensor, "batch read vocab"]:
        """Run the model natively and return its logits."""

    @abstractmethod
    def hidden(self, batch: Batch) -> Residual:
        """Run the model up to its final hidden states, after the last norm."""

    def logits(self, batch: Batch, read: Int[Tensor, "batch read"]) -> Logits:
        """Compute the logits at the positions `read` alone; the unembedding sees nothing else."""
        if self.unembed is None:
            raise InputError(f"{self.name} has no language-model head")

        def keep(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            return (args[0].gather(1, read[..., None].expand(-1, -1, args[0].shape[-1])),)

        handle = self.unembed.register_forward_pre_hook(keep)
        try:
            return self.run(batch)
        finally:
            handle.remove()

    def chosen_logits(
        self,
        batch: Batch,
        read: Int[Tensor, "batch read"],
        ids: Int[Tensor, "batch read candidate"],
    ) -> Float[Tensor, "batch read candidate"]:
        """Compute the logits of a few tokens at the positions `read`.

        Where the unembedding is a plain matrix only its columns for these tokens are multiplied;
        what the model does to logits afterwards (a soft cap, a scale) is done to them natively.
        """
        unembed = self.unembed
        if self.kind != "decoder" or type(unembed) is not nn.Linear:
            return self.logits(batch, read).gather(-1, ids)

        def multiply(hidden: Residual) -> Tensor:
            logits = torch.einsum("bpd,bpcd->bpc", hidden, unembed.weight[ids])
            return logits if unembed.bias is None else logits + unembed.bias[ids]

        unembed.__dict__["forward"] = multiply
        try:
            return self.logits(batch, read)
        finally:
            del unembed.__dict__["forward"]

    def final_gain(self) -> tuple[Float[Tensor, " d_model"], bool]:
        """Say what the final norm multiplies each direction of the residual stream by.

        Returns:
            As `norm_gain`.
        """
        unembed: Any = self.unembed
        ones = torch.ones_like(unembed.weight[0])
        return (ones, False) if self.final_norm is None else norm_gain(self.final_norm, ones)

    def visit(self, batch: Batch) -> None:
        """Run the model for the sake of its heads alone: as little as possible is unembedded."""
        if self.unembed is None:
            self.hidden(batch)
        else:
            width = (batch.target or batch.text).tokens
            self.logits(batch, torch.zeros_like(width[:, :1]))

    @contextmanager
    def recording(self) -> Iterator[list[Any]]:
        """Keep each block's output, in the order of `blocks`, while the `with` block runs."""
        outputs: list[Any] = [None] * len(self.blocks)

        def keep(number: int) -> Callable[..., None]:
            return lambda _module, _args, output: outputs.__setitem__(number, output)

        handles = [
            stack[index].register_forward_hook(keep(number))
            for number, (stack, index) in enumerate(self.blocks)
        ]
        with _removing(handles):
            yield outputs

    @contextmanager
    def replaying(self, start: int, outputs: Sequence[Any], rows: Rows) -> Iterator[None]:
        """Return recorded outputs from the blocks before `start`, expanded to `rows`.

        Only the last replayed block of each stack is ever read, so only its output is expanded.

        Args:
            start: The first block that runs.
            outputs: What `recording` kept.
            rows: For each row of the coming batch, the sequence of the recorded one it repeats.
        """
        replaced, originals = self.blocks[:start], list[nn.Module]()

        def expand(value: Any) -> Any:
            # what broadcasts over the batch (T5's position bias without padding) stays as it is
            is_batch = isinstance(value, Tensor) and (value.shape[0] > 1 or not rows.any())
            return value.index_select(0, rows) if is_batch else value

        try:
            for number, (stack, index) in enumerate(replaced):
                is_last = number + 1 == start or self.blocks[number + 1][1] == 0
                output = tree_map(expand, outputs[number]) if is_last else outputs[number]
                originals.append(stack[index])
                stack[index] = Replayed(stack[index], output)
            yield
        finally:
            for (stack, index), original in zip(replaced, originals, strict=False):
                stack[index] = original

    @contextmanager
    def editing(self, edits: Mapping[tuple[str, int], Callable[[Z], Z]]) -> Iterator[None]:
        """Edit z in the given layers, and check that every edit took place."""
        fired = dict.fromkeys(edits, False)

        def marked(place: tuple[str, int]) -> Callable[[Z], Z]:
            def edit(z: Z) -> Z:
                fired[place] = True
                return edits[place](z)

            return edit

        with _removing([self.attentions[place].edit_z(marked(place)) for place in edits]):
            yield
        missed = [place for place, done in fired.items() if not done]
        if missed:
            raise RuntimeError(f"{self.name}: the edit of z never ran at {missed}")

    @contextmanager
    def watching_z(self) -> Iterator[dict[tuple[str, int], Z]]:
        """Keep the z of every layer of every site while the `with` block runs."""
        kept: dict[tuple[str, int], Z] = {}

        def keep(place: tuple[str, int]) -> Callable[[Z], Z]:
            def watch(z: Z) -> Z:
                kept[place] = z
                return z

            return watch

        with _removing([a.edit_z(keep(place)) for place, a in self.attentions.items()]):
            yield kept

    def patterns(self, batch: Batch, sites: Sequence[str]) -> dict[tuple[str, int], Pattern]:
        """Read the attention probabilities of whole sites, `[batch head query key]` a layer."""
        names = {
            f"{site.stack}.{layer}.{site.module}.hook_pattern": (site.name, layer)
            for site in map(self.site.__getitem__, sites)
            for layer in range(site.n_layers)
        }
        kept: dict[tuple[str, int], Pattern] = {}

        def keep(pattern: Pattern, hook: Any) -> None:
            kept[names[hook.name]] = pattern

        with self.hooked.hooks(fwd_hooks=[(name, keep) for name in names]):
            self.run_hooked(batch)
        return kept

    @abstractmethod
    def run_hooked(self, batch: Batch) -> None:
        """Run `hooked`, for the sake of its hooks."""

    def window(self, site: Site, layer: int) -> int | None:
        """Say how many keys a query of this layer sees at most; None without a sliding window."""
        return None

    def visible(self, batch: Batch, site: Site, layer: int) -> Bool[Tensor, "batch query key"]:
        """Mark the keys each query of a layer may attend to."""
        return visible(
            batch.queries(site),
            batch.keys(site),
            causal=site.causal,
            window=self.window(site, layer),
        )


def norm_gain(
    norm: nn.Module, ones: Float[Tensor, " d_model"]
) -> tuple[Float[Tensor, " d_model"], bool]:
    """Say what a norm multiplies each direction of the residual stream by.

    Args:
        norm: A norm.
        ones: The stream 1, 1, 1, …, of the width, type and place of the norm's input.

    Returns:
        The gain, apart from the scale that depends on the stream; and whether the norm takes the
        mean off first. Read from what the norm does to +1, -1, +1, …, which has mean 0 and size 1,
        and to 1, 1, 1, ….
    """
    signs = ones.clone()
    signs[1::2] = -1
    at_zero = norm(torch.zeros_like(ones))
    gain = (norm(signs) - at_zero) / signs
    return gain, bool(torch.allclose(norm(ones), at_zero, atol=1e-3))


@contextmanager
def _removing(handles: Sequence[Handle]) -> Iterator[None]:
    """Remove hooks at the end, whatever happens."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
