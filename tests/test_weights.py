"""Weights, head by head: against each family's own modules."""

import pytest
import torch

from interp.models import weights
from interp.models.tiny import FAMILIES

CUSTOM = ["custom_decoder", "custom_encoder", "custom_encoder_decoder"]
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def projections(model, site, layer):
    """Find, in the model's own module, the norm in front and the maps to q, k, v, heads apart."""
    one = model.module
    if model.name == "tiny_gpt2":
        block = one.transformer.h[layer]
        return block.ln_1, [lambda x, n=n: block.attn.c_attn(x).chunk(3, -1)[n] for n in range(3)]
    if model.name in ("tiny_llama", "tiny_gemma2"):
        block = one.model.layers[layer]
        part = block.self_attn
        return block.input_layernorm, [part.q_proj, part.k_proj, part.v_proj]
    if model.name == "tiny_neox":
        block = one.gpt_neox.layers[layer]
        joint = block.attention.query_key_value

        def third(n):  # [q k v] of one head after the other
            return lambda x: joint(x).unflatten(-1, (site.n_heads, 3, -1))[..., n, :].flatten(-2)

        return block.input_layernorm, [third(n) for n in range(3)]
    if model.name == "tiny_bert":
        part = one.bert.encoder.layer[layer].attention.self
        return None, [part.query, part.key, part.value]
    if model.name == "tiny_t5":
        stack = one.encoder if site.name == "encoder_attn" else one.decoder
        inner = stack.block[layer].layer[int(site.module == "cross_attn")]
        part = inner.EncDecAttention if site.module == "cross_attn" else inner.SelfAttention
        return inner.layer_norm, [part.q, part.k, part.v]
    if model.name == "tiny_bart":
        stack = one.model.encoder if site.name == "encoder_attn" else one.model.decoder
        block = stack.layers[layer]
        part = block.encoder_attn if site.module == "cross_attn" else block.self_attn
        return None, [part.q_proj, part.k_proj, part.v_proj]
    block = getattr(one, site.stack)[layer]
    part = getattr(block, site.module)
    norm = block.ln2 if site.module == "cross_attn" else block.ln1
    maps = [
        lambda x, w=w: torch.einsum("...m,hmd->...hd", x, w).flatten(-2)
        for w in (part.W_Q, part.W_K, part.W_V)
    ]
    return None if model.name == "custom_encoder" else norm, maps


@pytest.mark.parametrize("name", [*FAMILIES, *CUSTOM])
def test_folded_weights_read_the_stream_as_the_model_does(model, name):
    one = model(name)
    generator = torch.Generator().manual_seed(1)
    found = weights.read(one)
    assert set(found) == {site.name for site in one.sites}
    for site in one.sites:
        assert len(found[site.name]) == site.n_layers
        for layer, ours in enumerate(found[site.name]):
            norm, maps = projections(one, site, layer)
            assert (ours.query_norm is None) == (norm is None)
            x = torch.randn(ours.W_Q.shape[1], generator=generator)
            for matrix, project, known in zip(
                (ours.W_Q, ours.W_K, ours.W_V),
                maps,
                (ours.query_norm, ours.key_norm, ours.key_norm),
                strict=True,
            ):
                is_normed = norm is not None and known is not None
                zero = torch.zeros_like(x)
                theirs = project(norm(x)) - project(norm(zero)) if is_normed else None
                theirs = project(x) - project(zero) if theirs is None else theirs
                read = torch.einsum("m,hmd->hd", x, weights.folded(matrix, known)).flatten()
                scale = (theirs @ read) / (read @ read)  # what the norm divides this stream by
                assert scale > 0
                torch.testing.assert_close(scale * read, theirs, **CLOSE)
                if not is_normed:
                    assert scale == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_llama", "tiny_gemma2", "tiny_bert"])
def test_what_heads_write_adds_up_to_the_output_of_attention(model, name):
    one = model(name)
    [site] = one.sites
    kept = {}
    place = {
        "tiny_gpt2": lambda: one.module.transformer.h[1].attn.c_proj,
        "tiny_bert": lambda: one.module.bert.encoder.layer[1].attention.output.dense,
    }.get(name, lambda: one.module.model.layers[1].self_attn.o_proj)()
    handle = place.register_forward_hook(lambda _m, args, out: kept.update(z=args[0], out=out))
    one.run(one.batch([one.codec.encode("The cat sat.")]))
    handle.remove()
    W_O = weights.read(one)[site.name][1].W_O
    z = kept["z"].unflatten(-1, (site.n_heads, site.d_head))
    bias = 0 if getattr(place, "bias", None) is None else place.bias
    torch.testing.assert_close(torch.einsum("bphd,hdm->bpm", z, W_O) + bias, kept["out"], **CLOSE)


def test_only_cross_attention_reads_what_no_norm_of_its_block_has_touched(model):
    for name in ("tiny_t5", "custom_encoder_decoder"):
        for layer in weights.read(model(name))["decoder_cross_attn"]:
            assert layer.query_norm is not None
            assert layer.key_norm is None


def test_a_norm_after_self_attention_makes_the_stream_that_cross_attention_reads(model):
    for layers in weights.read(model("tiny_bart")).values():
        assert all(layer.query_norm is layer.key_norm is None for layer in layers)


def test_query_heads_of_a_group_share_keys_and_values(model):
    layer = weights.read(model("tiny_llama"))["attn"][0]
    assert layer.W_Q.shape == (4, 32, 8)
    assert layer.W_K.shape == layer.W_V.shape == (2, 32, 8)
    assert layer.W_O.shape == (4, 8, 32)


def test_a_norm_that_takes_the_mean_off_is_folded_with_it():
    norm = weights.Norm(torch.tensor([1.0, 2.0]), True)
    matrix = torch.tensor([[[1.0], [3.0]]])
    # x = (4, 2): less the mean 1, -1; times the gain 1, -2; times the matrix 1 - 6
    assert (torch.tensor([4.0, 2.0]) @ weights.folded(matrix, norm)[0]).tolist() == [-5.0]
    plain = weights.Norm(torch.tensor([1.0, 2.0]), False)
    assert (torch.tensor([4.0, 2.0]) @ weights.folded(matrix, plain)[0]).tolist() == [16.0]
    assert weights.folded(matrix, None) is matrix


def test_reading_weights_leaves_the_model_as_it_was(model):
    one = model("tiny_gpt2")
    batch = one.batch([one.codec.encode("The cat sat.")])
    before = one.run(batch)
    n_hooks = [len(part._forward_hooks) for part in one.hooked.modules()]
    weights.read(one)
    assert torch.equal(one.run(batch), before)
    assert [len(part._forward_hooks) for part in one.hooked.modules()] == n_hooks
