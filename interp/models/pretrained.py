"""Pretrained Hugging Face models, through TransformerLens' TransformerBridge.

The bridge knows where each of its architectures keeps blocks, projections and unembedding, and
gives them common names and hook points. Its own forward is slower than Hugging Face's and cannot
skip blocks, so the arithmetic is left to a twin of the original module that shares every weight
with it; the bridge serves as the map, and to read attention patterns.

Weights are loaded from safetensors only.
"""

import contextlib
import copy
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn

from interp.axes import Residual, Z
from interp.errors import InputError
from interp.heads import Site
from interp.models.conversion import converted, sha256
from interp.models.head_model import Batch, Handle, HeadModel, Values, Writers
from interp.models.text import codec

CLASSES = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
}


class ProjectedAttention:
    """One attention of a Hugging Face model: z is what its output projection reads."""

    def __init__(
        self,
        output: nn.Module,
        value_input: nn.Module,
        value: Callable[[Tensor], Tensor],
        site: Site,
    ) -> None:
        """Bind the modules.

        Args:
            output: W_O; its input is z of all heads, side by side.
            value_input: The module whose input the values are made from (W_V, or a joint W_QKV).
            value: The linear map from that input to the values alone.
            site: The shape of the attention.
        """
        self.output, self.value_input, self.value, self.site = output, value_input, value, site

    def edit_z(self, edit: Callable[[Z], Z]) -> Handle:
        """Pass each forward's z through `edit` before W_O reads it."""

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            z = args[0]
            heads = z.reshape(*z.shape[:2], self.site.n_heads, self.site.d_head)
            return (edit(heads).reshape(z.shape), *args[1:])

        return self.output.register_forward_pre_hook(hook)

    def watch_v(self, watch: Callable[[Values], None]) -> Handle:
        """Show each forward's values to `watch`; it is called before z is made."""

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            values = self.value(args[0])
            shape = *values.shape[:2], self.site.n_kv_heads, self.site.d_head
            watch(values.reshape(shape))

        return self.value_input.register_forward_pre_hook(hook)

    def write(self, z: Z) -> Float[Tensor, "batch position head d_model"]:
        """Compute what each head adds to the attention's output: z W_O, without the bias."""
        size = self.site.n_heads * self.site.d_head
        # W_O is [out, in] in a Linear and [in, out] in GPT-2's Conv1D: what it does is the same
        rows = torch.cat([torch.zeros_like(z[0, 0]).reshape(1, size), z.new_ones(size).diag()])
        W_O = self.output(rows[1:]) - self.output(rows[:1])
        return torch.einsum("bphd,hdm->bphm", z, W_O.unflatten(0, z.shape[2:]))

    def constant(self) -> Float[Tensor, " d_model"]:
        """Give what the attention adds whatever its heads do: the bias."""
        like = next(self.output.parameters())
        return self.output(like.new_zeros(self.site.n_heads * self.site.d_head))


class PretrainedModel(HeadModel):
    """A Hugging Face model and the bridge that maps it."""

    def __init__(self, *, config: Any, **parts: Any) -> None:
        """Take what `from_module` found."""
        super().__init__(**parts)
        self.config = config
        arguments = inspect.signature(self.module.forward).parameters
        self.takes_position_ids = "position_ids" in arguments

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        text, target = batch.text, batch.target
        inputs: dict[str, Any] = {"input_ids": text.tokens, "attention_mask": text.mask.long()}
        if self.kind != "encoder":
            inputs["use_cache"] = False  # a cache kept from a clean run would poison a replay
        if target is not None:
            inputs["decoder_input_ids"] = target.tokens
            inputs["decoder_attention_mask"] = target.mask.long()
        elif self.padding_side == "left" and self.takes_position_ids:
            inputs["position_ids"] = text.position  # the mask alone does not move GPT-2's positions
        return inputs

    def run(self, batch: Batch) -> Tensor:
        """Run the model natively and return its logits."""
        return self.module(**self._inputs(batch)).logits

    def hidden(self, batch: Batch) -> Residual:
        """Run the model up to its final hidden states, after the last norm."""
        module: Any = self.module
        if module.base_model is not module:
            return module.base_model(**self._inputs(batch)).last_hidden_state
        kept: list[Tensor] = []  # T5's parts hang on the model with the head itself
        handle = module.get_decoder().register_forward_hook(
            lambda _module, _args, output: kept.append(output.last_hidden_state)
        )
        try:
            self.run(batch)
        finally:
            handle.remove()
        return kept[0]

    def run_hooked(self, batch: Batch) -> None:
        """Run the bridge's blocks, for the sake of their hooks; nothing is unembedded."""
        self.hooked.original_model.base_model(**self._inputs(batch))

    def window(self, site: Site, layer: int) -> int | None:
        """Say how many keys a query of this layer sees at most; None without a sliding window."""
        size = getattr(self.config, "sliding_window", None)
        kinds = getattr(self.config, "layer_types", None)
        if size is None or getattr(self.config, "use_sliding_window", True) is False:
            return None
        return None if kinds and kinds[layer] != "sliding_attention" else size


def pretrained(
    name: str,
    *,
    device: str,
    dtype: str,
    prepend_bos: bool | str,
    padding_side: str,
    truncation: str,
    random_weights: bool = False,
    weights_seed: int = 0,
) -> PretrainedModel:
    """Load a model by hub id, from a folder or from a GGUF file.

    With `random_weights` it keeps nothing of what it learned: the same shape with weights drawn as
    before training, by `weights_seed`, for comparison.

    Raises:
        InputError: No such model, weights that are not safetensors, or an architecture whose heads
            the bridge cannot map.
    """
    import transformers

    given = name
    name = str(Path(name).expanduser()) if name.startswith("~") else name
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise InputError(f"model.name={given}: no such file")
        with quiet(offline=True):
            name = str(converted(Path(name)))
    local = Path(name).is_dir()
    if not name or (not local and name.startswith((".", "/"))):
        raise InputError(f"model.name={given}: no such folder")
    if local and not (Path(name) / "config.json").is_file():
        raise InputError(f"model.name={name}: the folder has no config.json")
    with quiet(offline=local):
        try:
            config = transformers.AutoConfig.from_pretrained(name)
            if getattr(config, "pruned_heads", None):
                raise ValueError(f"it is pruned (use model=pruned model.path={name})")
            kind = _kind(config)
            module, loading = getattr(transformers, CLASSES[kind]).from_pretrained(
                name, use_safetensors=True, dtype=float_type(dtype), output_loading_info=True
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise InputError(f"model.name={name} cannot be loaded: {first[:300]}") from error
    missing = sorted(loading["missing_keys"])
    if missing and kind != "encoder":
        raise InputError(
            f"model.name={name}: the weights lack {missing[0]} ({len(missing)} missing)"
        )
    if random_weights:
        with torch.random.fork_rng():
            torch.manual_seed(weights_seed)
            module = type(module)(config).to(float_type(dtype))
    record = {"name": name, "revision": getattr(config, "_commit_hash", None)}
    if local:
        record["sha256"] = fingerprint(Path(name))
    return from_module(
        module.to(torch_device(device)),
        tokenizer,
        name=(Path(name).name if local else name) + "-random" * random_weights,
        folder=name,
        kind=kind,
        prepend_bos=prepend_bos,
        padding_side=padding_side,
        truncation=truncation,
        has_lm_head=not missing,
        record={**record, "weights": f"random, seed {weights_seed}" if random_weights else dtype},
    )


def fingerprint(folder: Path) -> str:
    """Hash a folder's weights: the sha256 of its safetensors file, or of several's sha256."""
    hashes = [sha256(path) for path in sorted(folder.glob("*.safetensors"))]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def from_module(
    module: nn.Module,
    tokenizer: Any,
    *,
    name: str,
    folder: str,
    kind: str,
    prepend_bos: bool | str,
    padding_side: str,
    truncation: str,
    has_lm_head: bool,
    record: dict[str, Any],
) -> PretrainedModel:
    """Map a Hugging Face module's heads with a bridge, and give it a twin that runs.

    Args:
        module: The model, in evaluation mode or not.
        tokenizer: Its tokenizer, one that was loaded from a folder or the hub.
        name: What to call the model.
        folder: Where its config.json is; the bridge reads the architecture from there.
        kind: `decoder`, `encoder` or `encoder_decoder`.
        prepend_bos: `auto`, true or false.
        padding_side: `left` or `right`.
        truncation: `error`, `left` or `right`.
        has_lm_head: False for an encoder whose language-model head is untrained: never read it.
        record: Facts about the weights for run.json.
    """
    from transformer_lens.model_bridge import TransformerBridge

    module.eval()
    # not the buffers: the bridge clears some (BART's bias on the logits)
    shared = {id(tensor): tensor for tensor in module.parameters()}
    twin: Any = copy.deepcopy(module, shared)
    paths = {id(part): path for path, part in module.named_modules()}
    with quiet(offline=Path(folder).is_dir()):
        try:
            bridge = TransformerBridge.boot_transformers(
                folder, hf_model=module, tokenizer=tokenizer
            )
        except (ValueError, KeyError, NotImplementedError, AttributeError) as error:
            architecture = type(module).__name__
            raise InputError(
                f"TransformerBridge cannot map {name} ({architecture}): {str(error)[:200]}"
            ) from error

    def twin_of(part: Any) -> nn.Module:
        if id(part.original_component) not in paths:
            raise InputError(
                f"{name} ({type(module).__name__}): its heads have no modules of their own"
            )
        return twin.get_submodule(paths[id(part.original_component)])

    def part_of(whole: Any, name: str) -> nn.Module | None:
        """Find a part by its common name; None where there is none, or no module of its own."""
        part = whole._modules.get(name)
        return twin_of(part) if part and id(part.original_component) in paths else None

    def writers(block: Any) -> Writers:
        mlp = part_of(block, "mlp")
        if "mlp" in block._modules:  # where the block computes the MLP (OPT), its last map is one
            mlp = part_of(block.mlp, "out") or mlp
        return Writers(mlp, part_of(block, "ln1_post"), part_of(block, "ln2_post"))

    sites, stacks, attentions = [], [], {}
    for stack in ("blocks", "encoder_blocks", "decoder_blocks"):
        if stack not in bridge._modules:
            continue
        blocks = getattr(bridge, stack)
        stacks.append(
            twin.get_submodule(paths[id(blocks[0].original_component)].rpartition(".")[0])
        )
        for place in ("attn", "self_attn", "cross_attn"):
            if place not in blocks[0]._modules:
                continue
            if any(place not in block._modules for block in blocks):
                raise InputError(f"{name}: not every block has attention, which a sweep needs")
            layers = [getattr(block, place) for block in blocks]
            site = _site(stack, place, layers, module.config, kind, name)
            sites.append(site)
            for layer, part in enumerate(layers):
                source = part.qkv if "qkv" in part._modules else part.v
                attentions[site.name, layer] = ProjectedAttention(
                    twin_of(part.o), twin_of(source), part.v.original_component, site
                )
    return PretrainedModel(
        config=module.config,
        name=name,
        kind=kind,
        module=twin,
        hooked=bridge,
        sites=sites,
        stacks=stacks,
        attentions=attentions,
        unembed=twin.get_output_embeddings() if has_lm_head else None,
        codec=codec(
            tokenizer, prepend_bos=prepend_bos, truncation=truncation, n_ctx=_n_ctx(module.config)
        ),
        padding_side=padding_side,
        record={"weight_processing": "none", **record},
        decoder_start=getattr(module.config, "decoder_start_token_id", None) or 0,
        final_norm=twin_of(bridge.ln_final) if "ln_final" in bridge._modules else None,
        writers=list(map(writers, bridge.blocks)) if kind == "decoder" else (),
    )


def _site(stack: str, place: str, layers: list[Any], config: Any, kind: str, name: str) -> Site:
    """Read a site's shape off its projections."""
    site_name = {
        ("blocks", "attn"): "attn",
        ("encoder_blocks", "attn"): "encoder_attn",
        ("decoder_blocks", "self_attn"): "decoder_self_attn",
        ("decoder_blocks", "cross_attn"): "decoder_cross_attn",
    }[stack, place]
    side = "encoder" if stack == "encoder_blocks" else "decoder"
    n_heads = getattr(config, f"{side}_attention_heads", config.num_attention_heads)
    shapes = {_shape(part, n_heads, config.hidden_size) for part in layers}
    if len(shapes) > 1:
        raise InputError(
            f"{name}: the layers of {site_name} differ in their heads' shapes {shapes}"
        )
    d_head, n_kv_heads = shapes.pop()
    causal = kind != "encoder" and place != "cross_attn" and stack != "encoder_blocks"
    return Site(site_name, stack, place, len(layers), n_heads, n_kv_heads, d_head, causal)


def _shape(part: Any, n_heads: int, d_model: int) -> tuple[int, int]:
    """Read d_head and the number of key/value heads off one attention's projections."""
    # W_O is [out, in] as a Linear and [in, out] as GPT-2's Conv1D: only its size is common
    d_head = part.o.original_component.weight.numel() // d_model // n_heads
    return d_head, part.v.original_component.out_features // d_head


def _kind(config: Any) -> str:
    """Tell a decoder from an encoder and an encoder-decoder."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if config.is_encoder_decoder:
        return "encoder_decoder"
    architectures = set(getattr(config, "architectures", None) or ())
    masked = MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(config.model_type)
    if architectures & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        return "decoder"
    if masked is not None:
        return "encoder"
    return "decoder"


def _n_ctx(config: Any) -> int | None:
    """Read the longest sequence a model takes; models with relative positions have no limit."""
    if config.model_type in ("t5", "mt5", "longt5"):
        return None
    for name in ("max_position_embeddings", "n_positions", "seq_length"):
        if getattr(config, name, None):
            return getattr(config, name)
    return None


def torch_device(device: str) -> str:
    """Choose the device: `auto` is cuda where there is one, or else cpu."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device={device}: not available here (auto, cpu or cuda)") from error
    return device


def float_type(name: str) -> torch.dtype:
    """Read the name of a floating-point type."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype={name}: float32, float64, bfloat16 or float16")
    return dtype


@contextlib.contextmanager
def quiet(*, offline: bool) -> Iterator[None]:
    """Silence the libraries' own progress and advice; with `offline`, keep them off the network."""
    import huggingface_hub.constants
    import transformers

    was_offline = huggingface_hub.constants.HF_HUB_OFFLINE
    level = transformers.logging.get_verbosity()
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    huggingface_hub.constants.HF_HUB_OFFLINE = offline or was_offline
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        transformers.logging.set_verbosity(level)
        huggingface_hub.constants.HF_HUB_OFFLINE = was_offline
