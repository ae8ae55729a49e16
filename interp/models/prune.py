"""Cut heads out of a model for good, so that it becomes smaller and faster.

A pruned model computes what the whole one does while these heads' gates are closed under the zero
baseline (see interp.gates): the heads' z, value bias included, is 0; W_O's bias stays; nothing is
rescaled. It holds no weights of theirs any more:

    W_Q, W_K, W_V    lose the outputs, W_O the inputs that belong to the heads. A key/value head
                     goes when all query heads that read it have gone. Where the groups that are
                     left differ in size, keys and values are copied for each query head once they
                     are made (the activations; no weight is there twice).
    position biases  T5's first layer looks them up for all layers. In a pruned T5 each layer looks
                     up those of its own heads, in one table, which lacks heads that no layer has.
    whole layers     An attention without heads adds W_O's bias, or 0.

Heads keep their names: `sites` are those of the whole model, a head that is gone has z = 0 and a
pattern of 0, and editing it does nothing. Thus all that runs on a HeadModel runs on a pruned one.
`prune` compares what it has made with the gated model before it returns it, and refuses a model
whose attention is not made of the parts above.
"""

import copy
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from interp.axes import Pattern, Residual, Z
from interp.errors import InputError
from interp.heads import Head, Site, parse
from interp.models.head_model import Batch, Handle, HeadModel, Values
from interp.models.pretrained import (
    CLASSES,
    PretrainedModel,
    ProjectedAttention,
    fingerprint,
    float_type,
    from_module,
    quiet,
    torch_device,
)
from interp.models.text import Encoded

PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj"),  # Llama, Gemma, BART and their kin
    ("query", "key", "value"),  # BERT
    ("q", "k", "v"),  # T5
    ("c_attn",),  # GPT-2: W_Q, W_K and W_V side by side
    ("query_key_value",),  # GPT-NeoX: the same, head by head
)
"""What attentions call the maps that make queries, keys and values."""
WEIGHTS = "model.safetensors"
CONFIG = "config.json"


class Spread(nn.Module):
    """A map that makes keys or values, followed by a copy of them for each head that reads them."""

    def __init__(self, linear: nn.Module, readers: Sequence[int], d_head: int) -> None:
        """Take the map and, for each query head, the number of the key/value head it reads."""
        super().__init__()
        self.linear = linear
        self.columns: Tensor
        self.register_buffer("columns", _columns(linear, readers, d_head), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Make keys or values, for each query head its own."""
        return self.linear(x).index_select(-1, self.columns)


class OwnBias(nn.Module):
    """A T5 layer's position biases: its own heads' columns of the table that all layers share."""

    def __init__(self, table: nn.Module, columns: Sequence[int]) -> None:
        super().__init__()
        self.table = table
        self.columns: Tensor
        self.register_buffer("columns", _columns(table, columns, 1), persistent=False)

    def forward(self, bucket: Tensor) -> Tensor:
        """Look up each head's bias for each distance."""
        return self.table(bucket).index_select(-1, self.columns)


class NoHeads(nn.Module):
    """Stands in for an attention whose heads are all gone: W_O has nothing to read."""

    def __init__(self, W_O: Mapping[str, nn.Module], n_outputs: int) -> None:
        """Take W_O by its name, unless it is applied elsewhere, and how many things to return."""
        super().__init__()
        self.source = nn.Identity()  # where values were made: to be watched
        self.names, self.n_outputs = tuple(W_O), n_outputs
        for name, part in W_O.items():
            self.add_module(name, part)

    def forward(
        self, hidden_states: Tensor, *_: Any, key_value_states: Tensor | None = None, **__: Any
    ) -> tuple[Tensor | None, ...]:
        """Return what attention without heads adds; last, the patterns of no heads."""
        keys = hidden_states if key_value_states is None else key_value_states
        self.source(keys[..., :0])
        output = hidden_states[..., :0]
        for name in self.names:
            output = getattr(self, name)(output)
        patterns = output.new_zeros(len(output), 0, hidden_states.shape[1], keys.shape[1])
        return output, *[None] * (self.n_outputs - 2), patterns


class PrunedAttention:
    """One attention of a pruned model; outwards it has all heads, those that are gone being 0."""

    def __init__(self, small: ProjectedAttention, part: nn.Module, site: Site, kept: Sequence[int]):
        """Bind the attention as it is now.

        Args:
            small: The heads that are left, numbered as they lie in the weights.
            part: The module that computes their patterns.
            site: The shape of the whole attention.
            kept: The heads that are left, by their names.
        """
        self.small, self.part, self.site, self.kept = small, part, site, list(kept)

    def edit_z(self, edit: Callable[[Z], Z]) -> Handle:
        """Pass each forward's z through `edit` before W_O reads it."""
        kept, n_heads = self.kept, self.site.n_heads
        return self.small.edit_z(lambda z: edit(_among(z, kept, n_heads, 2))[:, :, kept])

    def watch_v(self, watch: Callable[[Values], None]) -> Handle:
        """Show each forward's values to `watch`; it is called before z is made."""
        groups, n_groups = _groups(self.site, self.kept), self.site.n_kv_heads
        return self.small.watch_v(lambda v: watch(_among(v, groups, n_groups, 2)))

    def write(self, z: Z) -> Float[Tensor, "batch position head d_model"]:
        """Compute what each head adds to the attention's output: z W_O, without the bias."""
        return _among(self.small.write(z[:, :, self.kept]), self.kept, self.site.n_heads, 2)

    def constant(self) -> Float[Tensor, " d_model"]:
        """Give what the attention adds whatever its heads do: the bias."""
        return self.small.constant()

    def watch_pattern(self, watch: Callable[[Pattern], None]) -> Handle:
        """Show each forward's attention probabilities to `watch`, where they are computed."""

        def hook(_: nn.Module, __: Any, output: tuple[Any, ...]) -> None:
            watch(_among(output[-1], self.kept, self.site.n_heads, 1))

        return self.part.register_forward_hook(hook)


class PrunedModel(PretrainedModel):
    """A Hugging Face model without some of its heads."""

    def __init__(self, *, pruned: frozenset[Head], **parts: Any) -> None:
        """Take what `prune` made, and the heads that are gone."""
        super().__init__(**parts)
        self.pruned = pruned

    def patterns(self, batch: Batch, sites: Sequence[str]) -> dict[tuple[str, int], Pattern]:
        """Read the attention probabilities of whole sites; a head that is gone has none."""
        kept: dict[tuple[str, int], Pattern] = {}
        handles = []
        for site in map(self.site.__getitem__, sites):
            for layer in range(site.n_layers):
                attention: Any = self.attentions[site.name, layer]
                keep = partial(kept.__setitem__, (site.name, layer))
                handles.append(attention.watch_pattern(keep))
        try:
            self.run_hooked(batch)
        finally:
            for handle in handles:
                handle.remove()
        return kept

    def run_hooked(self, batch: Batch) -> None:
        """Run the model in the way that computes its attention probabilities one by one."""
        with _eager(self.module):
            self.visit(batch)


def prune(model: HeadModel, heads: Collection[Head]) -> PrunedModel:
    """Copy a model without the given heads; the model itself stays as it is.

    Raises:
        InputError: The model has no such head, or heads cannot be cut out of its kind of attention.
    """
    if not isinstance(model, PretrainedModel):
        raise InputError(f"{model.name}: heads are cut out of Hugging Face models only")
    if isinstance(model, PrunedModel):
        raise InputError(f"{model.name} is pruned: cut all heads out of the whole model at once")
    for head in heads:
        parse(str(head), model.sites)
    try:
        smaller = _without(model, frozenset(heads))
        found = _look(smaller)
    except (RuntimeError, TypeError, AttributeError, IndexError) as error:
        raise InputError(
            f"{model.name} cannot run without some of its heads: {_first_line(error)}"
        ) from error
    _compare(model, smaller.pruned, found)
    return smaller


@contextmanager
def closed(model: HeadModel, heads: Collection[Head]) -> Iterator[None]:
    """Close the gates of some heads under the zero baseline: the model that `prune` makes smaller.

    All positions are closed, pads among them, as they are where a head is gone.
    """

    def close(site: str, layer: int) -> Callable[[Z], Z]:
        every = range(model.site[site].n_heads)
        is_open = torch.tensor([Head(site, layer, head) not in heads for head in every])
        return lambda z: z * is_open.to(z.device)[:, None]

    with model.editing({place: close(*place) for place in {(h.site, h.layer) for h in heads}}):
        yield


def n_parameters(model: HeadModel) -> int:
    """Count a model's weights, shared ones once."""
    return sum(weight.numel() for weight in model.module.parameters())


def save(model: PrunedModel, folder: str | Path) -> None:
    """Write a pruned model into `folder`, which is made if need be.

    It holds the weights that are left (safetensors), the tokenizer, and the whole model's
    config.json, to which `pruned_heads`, {site: {layer: [head, …]}}, and three facts are added.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model.module, str(folder / WEIGHTS), metadata={"format": "pt"})
    model.codec.tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)
    config = json.loads((folder / CONFIG).read_text())
    config |= {
        "pruned_heads": _by_layer(model.pruned),
        "kind": model.kind,
        "has_lm_head": model.unembed is not None,
        "weights": model.record["weights"],
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def load(
    path: str,
    *,
    device: str,
    dtype: str,
    prepend_bos: bool | str,
    padding_side: str,
    truncation: str,
) -> PrunedModel:
    """Read back a model that `save` wrote: its architecture is built, pruned and filled.

    Raises:
        InputError: The folder, or one of its files, is missing or is not of a pruned model.
    """
    import transformers

    folder = Path(path).expanduser()
    heads, kind, has_lm_head, weights = _read_config(folder)
    with quiet(offline=True), torch.random.fork_rng():
        try:
            config = transformers.AutoConfig.from_pretrained(folder)
            auto_class = getattr(transformers, CLASSES[kind])
            module = auto_class.from_config(config, dtype=float_type(dtype))
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} cannot be loaded: {_first_line(error)}") from error
        whole = from_module(
            module.to(torch_device(device)),
            tokenizer,
            name=folder.name,
            folder=str(folder),
            kind=kind,
            prepend_bos=prepend_bos,
            padding_side=padding_side,
            truncation=truncation,
            has_lm_head=has_lm_head,
            record={"name": path, "sha256": fingerprint(folder), "weights": weights},
        )
    model = _without(whole, frozenset(parse(head, whole.sites) for head in heads))
    model.name = folder.name
    try:
        load_model(model.module, folder / WEIGHTS)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InputError(
            f"{folder / WEIGHTS} does not hold this model's weights: {_first_line(error)}"
        ) from error
    return model


# ------------------------------------------------------------------ cutting
def _without(model: PretrainedModel, heads: frozenset[Head]) -> PrunedModel:
    """Copy a model and cut heads out of the copy."""
    copies: dict[int, Any] = {}
    module = copy.deepcopy(model.module, copies)
    path = {id(part): path for path, part in model.module.named_modules()}
    attentions = {}
    for site in model.sites:
        kept, paths = [], []
        for layer in range(site.n_layers):
            whole: Any = model.attentions[site.name, layer]
            # the module that makes patterns holds the map that makes values
            paths.append((path[id(whole.value_input)].rpartition(".")[0], path[id(whole.output)]))
            gone = {h.head for h in heads if (h.site, h.layer) == (site.name, layer)}
            kept.append([head for head in range(site.n_heads) if head not in gone])
        if any(len(layer) < site.n_heads for layer in kept):
            _separate_biases([module.get_submodule(inner) for inner, _ in paths], kept)
        for layer, left in enumerate(kept):
            attentions[site.name, layer] = _smaller(module, *paths[layer], site, left)
    stacks = {id(stack): copies[id(stack)] for stack, _ in model.blocks}
    return PrunedModel(
        pruned=heads,
        config=model.config,
        name=f"{model.name}-pruned",
        kind=model.kind,
        module=module,
        hooked=module,
        sites=model.sites,
        stacks=list(stacks.values()),
        attentions=attentions,
        unembed=copies[id(model.unembed)] if model.unembed is not None else None,
        codec=model.codec,
        padding_side=model.padding_side,
        record=model.record | {"pruned_heads": _by_layer(heads)},
        decoder_start=model.decoder_start,
        final_norm=copies[id(model.final_norm)] if model.final_norm is not None else None,
    )


def _smaller(
    module: nn.Module, path: str, output_path: str, site: Site, kept: list[int]
) -> PrunedAttention:
    """Cut one layer's attention down to the heads that are left."""
    part, output = module.get_submodule(path), module.get_submodule(output_path)
    if not kept:
        n_outputs = 3 if hasattr(part, "has_relative_attention_bias") else 2  # T5's position bias
        inner, output = output_path.removeprefix(f"{path}."), _reading_nothing(output)
        part = NoHeads({inner: output} if inner != output_path else {}, n_outputs)
        _put(module, path, part)
        if inner == output_path:
            _put(module, output_path, output)
    elif len(kept) < site.n_heads:
        _cut_attention(part, output, site, kept)
    source, value = _values(part, site, len(kept))
    shape = replace(site, n_heads=len(kept), n_kv_heads=len(_groups(site, kept)))
    return PrunedAttention(ProjectedAttention(output, source, value, shape), part, site, kept)


def _cut_attention(part: Any, output: nn.Module, site: Site, kept: list[int]) -> None:
    """Cut heads out of an attention, of which some stay."""
    names, d_head = _projections(part), site.d_head
    groups = Counter(site.group(head) for head in kept)
    readers = 1
    if names == ("c_attn",):
        sides = [head + side * site.n_heads for side in range(3) for head in kept]
        _cut(part.c_attn, "out", _columns(output, sides, d_head))
    elif names == ("query_key_value",):
        _cut(part.query_key_value, "out", _columns(output, kept, 3 * d_head))
    else:
        query, *others = names
        _cut(getattr(part, query), "out", _columns(output, kept, d_head))
        is_even = len(set(groups.values())) == 1
        readers = groups[site.group(kept[0])] if is_even else 1
        own = [list(groups).index(site.group(head)) for head in kept]
        for name in others:
            linear = getattr(part, name)
            _cut(linear, "out", _columns(output, list(groups), d_head))
            setattr(part, name, linear if is_even else Spread(linear, own, d_head))
    _cut(output, "in", _columns(output, kept, d_head))
    counts = dict.fromkeys(("num_heads", "n_heads", "num_attention_heads"), len(kept))
    widths = dict.fromkeys(("split_size", "all_head_size", "inner_dim"), len(kept) * d_head)
    shared = {"num_key_value_heads": len(kept) // readers, "num_key_value_groups": readers}
    for name, value in (counts | widths | shared).items():
        if hasattr(part, name):
            setattr(part, name, value)


def _separate_biases(parts: Sequence[Any], kept: Sequence[Sequence[int]]) -> None:
    """Let each layer of a T5 look up position biases for itself: layers no longer share heads."""
    for part in parts:
        if hasattr(part, "compute_bias"):
            part.register_forward_pre_hook(_forget_bias, with_kwargs=True)
    tables = [part.relative_attention_bias for part in parts if _has_biases(part)]
    if not tables:
        return  # another family, or cross-attention
    [table] = tables
    left = sorted({head for layer in kept for head in layer})
    table.weight = nn.Parameter(table.weight.detach().index_select(1, _columns(table, left, 1)))
    table.embedding_dim = len(left)
    for part, heads in zip(parts, kept, strict=True):
        part.has_relative_attention_bias = True
        part.relative_attention_bias = OwnBias(table, [left.index(head) for head in heads])


def _forget_bias(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keep the position biases of the layer before from an attention of T5."""
    return args, kwargs | {"position_bias": None}


def _has_biases(part: nn.Module) -> bool:
    return "relative_attention_bias" in part._modules


def _cut(part: Any, side: str, index: Tensor) -> None:
    """Keep some of the outputs (`out`) or inputs (`in`) of a linear map."""
    is_linear = isinstance(part, nn.Linear)  # else a Conv1D, whose weight is [in, out]
    axis = int((side == "in") == is_linear)
    part.weight = nn.Parameter(part.weight.detach().index_select(axis, index))
    if side == "out" and part.bias is not None:
        part.bias = nn.Parameter(part.bias.detach().index_select(0, index))
    linear, conv = {"out": ("out_features", "nf"), "in": ("in_features", "nx")}[side]
    setattr(part, linear if is_linear else conv, len(index))


def _reading_nothing(output: Any) -> nn.Linear:
    """Make a W_O that reads no heads and gives its bias."""
    is_linear = isinstance(output, nn.Linear)
    d_model = output.weight.shape[0 if is_linear else 1]
    made = nn.Linear(1, d_model, bias=False, device="meta")
    made.in_features, made.bias = 0, output.bias
    made.weight = nn.Parameter(output.weight.new_empty(d_model, 0))
    return made


def _values(part: Any, site: Site, n_heads: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Find the module whose input values are made from, and the map to them, without hooks."""
    if isinstance(part, NoHeads):
        return part.source, part.source.forward
    names = _projections(part)
    last = getattr(part, names[-1])
    made = last.linear if isinstance(last, Spread) else last
    if names == ("c_attn",):
        return made, lambda x: made.forward(x).chunk(3, -1)[2]
    if names == ("query_key_value",):
        shape = n_heads, 3, site.d_head
        return made, lambda x: made.forward(x).unflatten(-1, shape)[..., 2, :].flatten(-2)
    return made, made.forward


# ------------------------------------------------------------------ checks
def _projections(part: nn.Module) -> tuple[str, ...]:
    """Find what an attention calls the maps that make queries, keys and values."""
    for names in PROJECTIONS:
        if all(name in part._modules for name in names):
            return names
    raise InputError(
        f"heads cannot be cut out of {type(part).__name__}: it has none of "
        f"{', '.join('/'.join(names) for names in PROJECTIONS)}"
    )


@torch.inference_mode()
def _look(model: PretrainedModel) -> Residual:
    """Run a model on tokens from all over its vocabulary."""
    module: Any = model.module
    n = min(8, model.codec.n_ctx or 8)
    ids = tuple(token * module.get_input_embeddings().num_embeddings // n for token in range(n))
    text = Encoded(ids, ((0, 0),) * n, (False,) * n)
    return model.hidden(model.batch([text], [text] if model.kind == "encoder_decoder" else []))


def _compare(model: PretrainedModel, gone: Collection[Head], found: Residual) -> None:
    """Refuse a copy that does not compute what the model does without these heads."""
    with closed(model, gone):
        wanted = _look(model)
    difference, scale = float((found - wanted).abs().max()), float(wanted.abs().max())
    if not difference <= min(1000 * torch.finfo(wanted.dtype).eps, 0.1) * scale:
        raise InputError(
            f"{model.name} computes something else once heads are cut out of it than with their "
            f"output set to 0 (by {difference:.2g}): its attention is of an unknown kind"
        )


def _read_config(folder: Path) -> tuple[list[str], str, bool, str]:
    """Read which heads are gone, the model's kind, whether it unembeds, and what weights it had."""
    for path in (folder, folder / CONFIG, folder / WEIGHTS):
        if not path.exists():
            raise InputError(f"{path} does not exist: a pruned model is {CONFIG} and {WEIGHTS}")
    try:
        config = json.loads((folder / CONFIG).read_text())
        heads = [
            f"{site}.L{layer}H{head}"
            for site, layers in config["pruned_heads"].items()
            for layer, numbers in layers.items()
            for head in numbers
        ]
        if config["kind"] not in CLASSES:
            raise ValueError
        return heads, config["kind"], bool(config["has_lm_head"]), str(config["weights"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder / CONFIG} is not of a pruned model: pruned_heads, "
            f"{{site: {{layer: [head, …]}}}}, kind, has_lm_head and weights are expected"
        ) from error


# ------------------------------------------------------------------ small parts
def _groups(site: Site, kept: Sequence[int]) -> list[int]:
    """List the key/value heads that these heads read."""
    return sorted({site.group(head) for head in kept})


def _by_layer(heads: Collection[Head]) -> dict[str, dict[str, list[int]]]:
    """Sort heads into {site: {layer: [head, …]}}."""
    table: dict[str, dict[str, list[int]]] = {}
    for head in sorted(heads):
        table.setdefault(head.site, {}).setdefault(str(head.layer), []).append(head.head)
    return table


def _columns(weights: Any, blocks: Sequence[int], width: int) -> Tensor:
    """Number the rows (or columns) of blocks of equal width, on the device of `weights`."""
    device = next(weights.parameters()).device
    starts = torch.tensor(blocks, dtype=torch.long, device=device) * width
    return (starts[:, None] + torch.arange(width, device=device)).flatten()


def _among(x: Tensor, places: Sequence[int], size: int, axis: int) -> Tensor:
    """Put slices into their places along an axis of the given size, and 0 in between."""
    if len(places) == size:
        return x
    shape = [*x.shape[:axis], size, *x.shape[axis + 1 :]]
    index = torch.tensor(places, dtype=torch.long, device=x.device)
    return x.new_zeros(shape).index_copy(axis, index, x)


def _put(module: nn.Module, path: str, part: nn.Module) -> None:
    """Replace a part of a module."""
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, part)


@contextmanager
def _eager(module: Any) -> Iterator[None]:
    """Let attention compute its probabilities for a while, which fused kernels never hold."""
    usual = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(usual)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0][:200]
