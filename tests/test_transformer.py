"""Transformers are checked against torch's layers, by hand, and by the laws of padding and time."""

import json
from math import cos, sin

import pytest
import torch
from einops import rearrange
from safetensors.torch import load_file, save_file
from torch import nn

from interp import transformer
from interp.errors import InputError
from interp.transformer import Transformer, TransformerConfig

KINDS = ["encoder", "decoder", "encoder_decoder"]
CLOSE = {"atol": 1e-5, "rtol": 0}


def config(kind="decoder", **changes) -> TransformerConfig:
    sizes = {"d_vocab": 11, "d_model": 12, "n_layers": 2, "n_heads": 3, "n_ctx": 8, "d_mlp": 20}
    return TransformerConfig(kind, **(sizes | changes))


def tokens(*shape, seed=1) -> torch.Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(seed))


def inputs(kind) -> dict[str, torch.Tensor]:
    both = {"tokens": tokens(2, 5), "decoder_tokens": tokens(2, 6, seed=2)}
    return both if kind == "encoder_decoder" else {"tokens": both["tokens"]}


def randomise(model: Transformer) -> Transformer:
    """Move the biases and norms from their 0 and 1, lest a test pass for their sake."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def copy_attention(attn, to: nn.MultiheadAttention) -> None:
    into = [
        rearrange(w, "h d_model d_head -> (h d_head) d_model")
        for w in (attn.W_Q, attn.W_K, attn.W_V)
    ]
    to.in_proj_weight.copy_(torch.cat(into))
    to.in_proj_bias.copy_(torch.cat([b.flatten() for b in (attn.b_Q, attn.b_K, attn.b_V)]))
    to.out_proj.weight.copy_(rearrange(attn.W_O, "h d_head d_model -> d_model (h d_head)"))
    to.out_proj.bias.copy_(attn.b_O)


def copy(layers: dict[nn.Module, nn.Module]) -> None:
    for ours, theirs in layers.items():
        theirs.load_state_dict(ours.state_dict(), strict=True)


@torch.no_grad()
def torch_encoder_layer(block, norm) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        12, 3, 20, dropout=0, batch_first=True, norm_first=norm == "pre"
    )
    copy_attention(block.attn, layer.self_attn)
    copy(
        {
            block.ln1: layer.norm1,
            block.ln2: layer.norm2,
            block.mlp.W_in: layer.linear1,
            block.mlp.W_out: layer.linear2,
        }
    )
    return layer


@torch.no_grad()
def torch_decoder_layer(block, norm) -> nn.TransformerDecoderLayer:
    layer = nn.TransformerDecoderLayer(
        12, 3, 20, dropout=0, batch_first=True, norm_first=norm == "pre"
    )
    copy_attention(block.self_attn, layer.self_attn)
    copy_attention(block.cross_attn, layer.multihead_attn)
    copy(
        {
            block.ln1: layer.norm1,
            block.ln2: layer.norm2,
            block.ln3: layer.norm3,
            block.mlp.W_in: layer.linear1,
            block.mlp.W_out: layer.linear2,
        }
    )
    return layer


FUTURE = torch.ones(6, 6, dtype=torch.bool).triu(1)
REAL = torch.tensor([[True, True, True, True, True], [True, True, True, False, False]])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_encoder_equals_torchs_layers(norm):
    model = randomise(Transformer(config("encoder", norm=norm, d_vocab_out=4)))
    x = model.embed(tokens(2, 5)) + model.pos_embed(torch.arange(5)[None])
    for block in model.blocks:
        x = torch_encoder_layer(block, norm)(x, src_key_padding_mask=~REAL)
    if norm == "pre":
        x = nn.functional.layer_norm(x, (12,), model.ln_final.weight, model.ln_final.bias)
    expected = x @ model.unembed.weight.T + model.unembed.bias
    logits = model(tokens(2, 5), mask=REAL)
    assert logits.shape == (2, 5, 4)
    torch.testing.assert_close(logits[REAL], expected[REAL], **CLOSE)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_decoder_equals_torchs_layers(norm):
    model = randomise(Transformer(config("decoder", norm=norm)))
    x = model.embed(tokens(2, 6)) + model.pos_embed(torch.arange(6)[None])
    for block in model.blocks:
        x = torch_encoder_layer(block, norm)(x, src_mask=FUTURE)
    expected = model.unembed(model.ln_final(x))
    torch.testing.assert_close(model(tokens(2, 6)), expected, **CLOSE)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_encoder_decoder_equals_torchs_layers(norm):
    model = randomise(Transformer(config("encoder_decoder", norm=norm, d_vocab_target=13)))
    source, target = tokens(2, 5), tokens(2, 6, seed=2)
    memory = model.embed(source) + model.pos_embed(torch.arange(5)[None])
    for block in model.encoder_blocks:
        memory = torch_encoder_layer(block, norm)(memory, src_key_padding_mask=~REAL)
    memory = model.encoder_ln_final(memory)
    x = model.decoder_embed(target) + model.decoder_pos_embed(torch.arange(6)[None])
    for block in model.decoder_blocks:
        layer = torch_decoder_layer(block, norm)
        x = layer(x, memory, tgt_mask=FUTURE, memory_key_padding_mask=~REAL)
    expected = model.unembed(model.decoder_ln_final(x))
    logits = model(source, mask=REAL, decoder_tokens=target)
    assert logits.shape == (2, 6, 13)
    torch.testing.assert_close(logits, expected, **CLOSE)


def test_without_norms_the_stream_is_the_sum_of_what_is_written_to_it():
    model = randomise(Transformer(config("encoder_decoder", norm="none")))
    logits, cache = model.run_with_cache(**inputs("encoder_decoder"))
    stream = cache["decoder_embed.hook_out"] + cache["decoder_pos_embed.hook_out"]
    for name in ("attn", "cross_attn", "mlp"):
        for layer in range(2):
            stream = stream + cache[f"decoder_blocks.{layer}.hook_{name}_out"]
    torch.testing.assert_close(logits, model.unembed(stream))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_model_without_mlps_adds_only_attention(kind):
    model = randomise(Transformer(config(kind, d_mlp=None)))
    assert not any("mlp" in name or "mid" in name for name, _ in model.named_modules())
    _, cache = model.run_with_cache(tokens(2, 5))
    added = cache["blocks.1.hook_resid_post"] - cache["blocks.1.hook_resid_pre"]
    torch.testing.assert_close(added, cache["blocks.1.hook_attn_out"], **CLOSE)


def test_sinusoidal_positions_follow_the_formula():
    model = Transformer(config(positions="sinusoidal", d_model=9))
    _, cache = model.run_with_cache(tokens(1, 8))
    expected = [
        [(cos if i % 2 else sin)(p / 10000 ** ((i - i % 2) / 9)) for i in range(9)]
        for p in range(8)
    ]
    torch.testing.assert_close(cache["pos_embed.hook_out"], torch.tensor([expected]))
    assert not any(name.startswith("pos_embed") for name in model.state_dict())


def test_without_positions_an_encoder_does_not_know_the_order():
    order = torch.tensor([3, 0, 4, 1, 2])
    blind = Transformer(config("encoder", positions="none"))
    torch.testing.assert_close(
        blind(tokens(2, 5)[:, order]), blind(tokens(2, 5))[:, order], **CLOSE
    )
    sees = Transformer(config("encoder"))
    assert (sees(tokens(2, 5)[:, order]) - sees(tokens(2, 5))[:, order]).abs().max() > 0.1


def test_future_tokens_change_no_bit_of_any_head():
    model = randomise(Transformer(config("decoder")))
    x = tokens(2, 6)
    changed = torch.cat([x[:, :4], (x[:, 4:] + 1) % 11], dim=1)
    before, cache_before = model.run_with_cache(x)
    after, cache_after = model.run_with_cache(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])
    for layer in range(2):
        z, pattern = f"blocks.{layer}.attn.hook_z", f"blocks.{layer}.attn.hook_pattern"
        assert torch.equal(cache_before[z][:, :4], cache_after[z][:, :4])
        assert torch.equal(cache_before[pattern][:, :, :4], cache_after[pattern][:, :, :4])


def test_an_encoder_sees_the_future_and_so_does_cross_attention():
    changed = tokens(2, 5)
    changed[:, 4] = (changed[:, 4] + 1) % 11
    encoder = Transformer(config("encoder"))
    assert (encoder(tokens(2, 5)) - encoder(changed))[:, 0].abs().min() > 0
    both, target = Transformer(config("encoder_decoder")), tokens(2, 6)
    difference = both(tokens(2, 5), decoder_tokens=target) - both(changed, decoder_tokens=target)
    assert difference[:, 0].abs().min() > 0


def pad(x, n, side):
    padding = torch.full((x.shape[0], n), 10)
    real, empty = torch.ones_like(x, dtype=torch.bool), torch.zeros_like(padding, dtype=torch.bool)
    if side == "left":
        return torch.cat([padding, x], dim=1), torch.cat([empty, real], dim=1)
    return torch.cat([x, padding], dim=1), torch.cat([real, empty], dim=1)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_padding_on_either_side_changes_nothing_at_real_tokens(kind, side, positions):
    model = randomise(Transformer(config(kind, positions=positions)))
    padded, mask = pad(tokens(2, 5), 3, side)
    logits = model(padded, mask=mask)
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[mask], model(tokens(2, 5)).flatten(0, 1), **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_either_sequence_of_an_encoder_decoder_changes_nothing(side):
    model = randomise(Transformer(config("encoder_decoder")))
    source, target = tokens(2, 5), tokens(2, 6, seed=2)
    padded, mask = pad(source, 3, side)
    decoder_padded, decoder_mask = pad(target, 2, side)
    logits = model(padded, mask=mask, decoder_tokens=decoder_padded, decoder_mask=decoder_mask)
    expected = model(source, decoder_tokens=target).flatten(0, 1)
    torch.testing.assert_close(logits[decoder_mask], expected, **CLOSE)


def test_positions_count_from_the_first_real_token():
    mask = torch.tensor([[False, False, True, True], [True, True, True, False]])
    counted = transformer.positions(tokens(2, 4), mask)
    assert counted.tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]
    assert transformer.positions(tokens(2, 4), None).tolist() == [[0, 1, 2, 3]]


ATTENTION = ["q", "k", "v", "attn_scores", "pattern", "z"]
STREAM = ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"]
CROSS = [*STREAM, "cross_attn_out", "resid_mid_cross"]


def names(block, attentions, stream):
    return (
        {f"{block}.{attn}.hook_{name}" for attn in attentions for name in ATTENTION}
        | {f"{block}.hook_{name}" for name in stream}
        | {f"{block}.mlp.hook_pre", f"{block}.mlp.hook_post"}
    )


ONE_STACK = {"embed.hook_out", "pos_embed.hook_out"}.union(
    *(names(f"blocks.{layer}", ["attn"], STREAM) for layer in range(2))
)
HOOKS_THAT_FIRE = {
    "encoder": ONE_STACK,
    "decoder": ONE_STACK,
    "encoder_decoder": {
        *("embed.hook_out", "pos_embed.hook_out"),
        *("decoder_embed.hook_out", "decoder_pos_embed.hook_out"),
    }.union(
        *(names(f"encoder_blocks.{layer}", ["attn"], STREAM) for layer in range(2)),
        *(names(f"decoder_blocks.{i}", ["self_attn", "cross_attn"], CROSS) for i in range(2)),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_hooks_that_fire(kind):
    _, cache = Transformer(config(kind)).run_with_cache(**inputs(kind))
    assert set(cache) == HOOKS_THAT_FIRE[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_hook_takes_effect(kind):
    model, given = randomise(Transformer(config(kind))), inputs(kind)
    clean = model(**given)
    torch.manual_seed(0)
    for name in sorted(name for name in HOOKS_THAT_FIRE[kind] if "blocks.0" not in name):
        hooks = [(name, lambda value, hook: torch.rand_like(value))]
        edited = model.run_with_hooks(**given, fwd_hooks=hooks)
        assert (edited - clean).abs().max() > 1e-3, name
    assert torch.equal(model(**given), clean)


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_modules_are_named_as_in_transformer_lens(kind, norm):
    names = {name for name, _ in Transformer(config(kind, norm=norm)).named_modules()}
    final = (
        {"encoder_ln_final", "decoder_ln_final", "decoder_embed", "decoder_pos_embed"}
        if kind == "encoder_decoder"
        else {"ln_final", "blocks.1.ln1", "blocks.1.ln2"}
    )
    assert {"embed", "pos_embed", "unembed"} | final <= names


def test_blocks_can_be_replaced_by_their_stored_output():
    model, x = randomise(Transformer(config("decoder"))), tokens(2, 5)
    clean, cache = model.run_with_cache(x)

    class Stub(nn.Module):
        def forward(self, *_args):
            return cache["blocks.0.hook_resid_post"]

    model.blocks[0] = Stub()
    assert torch.equal(model(x), clean)


@pytest.mark.parametrize("kind", KINDS)
def test_the_unembedding_can_be_made_to_read_fewer_positions(kind):
    model, given = randomise(Transformer(config(kind))), inputs(kind)
    clean = model(**given)
    handle = model.unembed.register_forward_pre_hook(lambda _, args: args[0][:, -1:])
    logits = model(**given)
    handle.remove()
    assert logits.shape == (2, 1, 11)
    torch.testing.assert_close(logits, clean[:, -1:], **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bits_and_leaves_torchs_state_alone(kind):
    before = torch.random.get_rng_state()
    first = Transformer(config(kind, seed=3)).state_dict()
    torch.rand(5)
    again = Transformer(config(kind, seed=3)).state_dict()
    other = Transformer(config(kind, seed=4)).state_dict()
    torch.random.set_rng_state(before)
    Transformer(config(kind, seed=3))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["unembed.weight"], other["unembed.weight"])


def test_layers_differ_from_one_another():
    weights = Transformer(config()).state_dict()
    assert not torch.equal(weights["blocks.0.attn.W_Q"], weights["blocks.1.attn.W_Q"])


def test_bias_false_leaves_no_bias():
    assert not any(
        "b_" in name or name.endswith("bias")
        for name, _ in Transformer(config("encoder_decoder", bias=False)).named_parameters()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"kind": "perceiver"},
            "kind='perceiver' is not one of: encoder, decoder, encoder_decoder",
        ),
        ({"norm": "rms"}, "norm='rms' is not one of: pre, post, none"),
        ({"positions": "rotary"}, "positions='rotary' is not one of: learned, sinusoidal, none"),
        ({"d_model": 10}, "d_model=10 is not divisible by n_heads=3"),
        ({"n_kv_heads": 2}, "n_heads=3 is not divisible by n_kv_heads=2"),
        ({"n_layers": 0}, "n_layers=0 is not a whole number from 1 up"),
        ({"d_vocab": "11"}, "d_vocab='11' is not a whole number"),
        ({"n_ctx": True}, "n_ctx=True is not a whole number"),
        ({"d_mlp": 1.5}, "d_mlp=1.5 is not a whole number"),
        ({"d_mlp": 0}, "d_mlp=0 is not a whole number"),
        ({"seed": -1}, "seed=-1 is not a whole number from 0 up"),
        ({"bias": 1}, "bias=1 is neither true nor false"),
        ({"d_vocab_target": 9}, "d_vocab_target=9 needs kind=encoder_decoder"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("decoder", {"tokens": tokens(2, 9)}, "9 tokens is longer than n_ctx=8"),
        (
            "encoder",
            {"tokens": tokens(2, 5), "decoder_tokens": tokens(2, 5)},
            "kind=encoder takes no",
        ),
        ("encoder_decoder", {"tokens": tokens(2, 5)}, "needs decoder_tokens"),
        (
            "encoder_decoder",
            {"tokens": tokens(2, 5), "decoder_tokens": tokens(2, 9)},
            "9 tokens is longer than n_ctx=8",
        ),
    ],
)
def test_inputs_that_make_no_sense_are_refused(kind, given, message):
    with pytest.raises(InputError, match=message):
        Transformer(config(kind))(**given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_saving_and_loading_keeps_every_bit(kind, dtype, tmp_path):
    model = randomise(Transformer(config(kind, n_kv_heads=1))).to(dtype)
    transformer.save(model, tmp_path / "new" / "folder")
    loaded = transformer.load(tmp_path / "new" / "folder")
    assert loaded.config == model.config
    assert torch.equal(loaded(**inputs(kind)), model(**inputs(kind)))
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert loaded.unembed.weight.dtype == dtype


@pytest.fixture
def checkpoint(tmp_path):
    transformer.save(Transformer(config()), tmp_path)
    return tmp_path


def change_config(folder, change) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(change(settings)))


def change_weights(folder, change) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors")


def without(key):
    return lambda values: {name: value for name, value in values.items() if name != key}


BREAK = {  # what the message says: how the checkpoint is broken
    "config.json does not exist": lambda f: (f / "config.json").unlink(),
    "model.safetensors does not exist": lambda f: (f / "model.safetensors").unlink(),
    "config.json is not JSON": lambda f: (f / "config.json").write_text("{'d_model': 12"),
    "not JSON: .* codec": lambda f: (f / "config.json").write_bytes(b"\xff\xfe\xff"),
    "config.json holds no object of settings but a list": lambda f: change_config(f, list),
    "config.json lacks d_model": lambda f: change_config(f, without("d_model")),
    "has the unknown key width": lambda f: change_config(f, lambda c: c | {"width": 1}),
    "config.json: d_model='12'": lambda f: change_config(f, lambda c: c | {"d_model": "12"}),
    "is not a safetensors file": lambda f: (f / "model.safetensors").write_bytes(b"cos\nsystem\n"),
    "model.safetensors lacks unembed.bias": lambda f: change_weights(f, without("unembed.bias")),
    "has the unknown key extra": lambda f: change_weights(
        f, lambda w: w | {"extra": torch.zeros(1)}
    ),
    "lacks blocks.1.* and 13 more": lambda f: change_weights(
        f, lambda w: {n: v for n, v in w.items() if not n.startswith("blocks.1")}
    ),
    r"unembed.bias has shape \[5\], its config.json asks for \[11\]": lambda f: change_weights(
        f, lambda w: w | {"unembed.bias": torch.zeros(5)}
    ),
    "unembed.bias is torch.int64, not a floating-point type": lambda f: change_weights(
        f, lambda w: w | {"unembed.bias": torch.zeros(11, dtype=torch.int64)}
    ),
}


@pytest.mark.parametrize("message", BREAK)
def test_broken_checkpoints_are_refused_in_one_line(checkpoint, message):
    transformer.load(checkpoint)
    BREAK[message](checkpoint)
    with pytest.raises(InputError, match=message) as caught:
        transformer.load(checkpoint)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere does not exist"):
        transformer.load(tmp_path / "nowhere")
