"""A pruned model is compared with the whole one whose heads write nothing, and with itself."""

import json
from collections.abc import Callable, Collection

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from interp import gates
from interp.errors import InputError
from interp.heads import Head, Site, all_heads, parse
from interp.models import weights
from interp.models.head_model import Batch, HeadModel
from interp.models.pretrained import PretrainedModel, pretrained
from interp.models.prune import NoHeads, PrunedModel, Spread, load, n_parameters, prune, save
from interp.models.tiny import FAMILIES, tiny

CHOICES = {
    "device": "cpu",
    "dtype": "float32",
    "prepend_bos": "auto",
    "padding_side": "right",
    "truncation": "error",
}
CLOSE = {"atol": 1e-5, "rtol": 0}
REAL = ["stories260k", "aren_transliteration", "minilm"]
ENCODER_DECODERS = ["tiny_t5", "tiny_bart", "aren_transliteration"]
TEXTS = ["The cat sat on a mat.", "Dogs run", "Is it so?"]
TARGETS = ["le chat", "les chiens courent", "oui"]
ARABIC = ["اتزمون", "سلام", "بك"]
ENGLISH = ["atzmon", "salam", "bk"]
# model -> W_O of layer 1 of its first site
W_O = {
    "tiny_gpt2": "transformer.h.1.attn.c_proj",
    "tiny_llama": "model.layers.1.self_attn.o_proj",
    "tiny_gemma2": "model.layers.1.self_attn.o_proj",
    "tiny_neox": "gpt_neox.layers.1.attention.dense",
    "tiny_bert": "bert.encoder.layer.1.attention.output.dense",
    "tiny_t5": "encoder.block.1.layer.0.SelfAttention.o",
    "tiny_bart": "model.encoder.layers.1.self_attn.out_proj",
}


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def padded(ours: HeadModel) -> Batch:
    """Three sequences of different lengths."""
    texts, targets = (ARABIC, ENGLISH) if "aren" in ours.name else (TEXTS, TARGETS)
    if ours.kind != "encoder_decoder":
        targets = []
    return ours.batch(
        [ours.codec.encode(text) for text in texts],
        [ours.codec.encode_target(text) for text in targets],
    )


def computed(ours: HeadModel, batch: Batch) -> Tensor:
    """What the model computes at real tokens: logits, or hidden states where there are none."""
    out = ours.run(batch) if ours.unembed is not None else ours.hidden(batch)
    return out[(batch.target or batch.text).mask]


def gated(ours: HeadModel, heads: Collection[Head], batch: Batch) -> Tensor:
    """The same while the heads' z is 0."""

    def close(place: tuple[str, int]) -> Callable[[Tensor], Tensor]:
        numbers = [head.head for head in heads if (head.site, head.layer) == place]

        def edit(z: Tensor) -> Tensor:
            z = z.clone()
            z[:, :, numbers] = 0
            return z

        return edit

    places = {(head.site, head.layer) for head in heads}
    with ours.editing({place: close(place) for place in places}):
        return computed(ours, batch)


def named(ours: HeadModel, *texts: str) -> list[Head]:
    """Read addresses; `L1H*` is a whole layer, and a head without a site is of every site."""
    found = []
    for text in texts:
        for site in ours.sites:
            for number in range(site.n_heads):
                address = f"{site.name}.{text.replace('*', str(number))}"
                found.append(parse(address, ours.sites))
    return list(dict.fromkeys(found))


def chosen(ours: HeadModel, which: str) -> list[Head]:
    """Some heads of every site, or a random set."""
    sets = {
        "none": [],
        "one": ["L1H2"],
        "a layer": ["L1H*"],
        "the first layer": ["L0H*"],
        "all but one": ["L0H*", "L1H*", "L2H0", "L2H1", "L2H2"],
        "a group": ["L0H0", "L0H1"],
        "single heads": ["L0H0", "L1H1", "L2H3"],
        "one of each group": ["L0H0", "L0H3"],
        "mixed": ["L0H1", "L0H2", "L0H3", "L1H*", "L2H2"],
    }
    everything = all_heads(ours.sites)
    if which == "all":
        return everything
    if which in sets:
        return named(ours, *sets[which])
    generator = torch.Generator().manual_seed(int(which.split()[1]))
    share = torch.rand(1, generator=generator)
    gone = torch.rand(len(everything), generator=generator) < share
    return [head for head, is_gone in zip(everything, gone, strict=True) if is_gone]


def weights_of_heads(site: Site, layer_of: Collection[int], bias: bool) -> int:
    """Count what a layer's heads own: W_Q and W_O each, W_K and W_V a group, biases but W_O's."""
    groups = {site.group(head) for head in layer_of}
    d_model = 32
    in_and_bias = d_model + bias
    return site.d_head * (len(layer_of) * (in_and_bias + d_model) + len(groups) * 2 * in_and_bias)


SETS = ["none", "a layer", "all but one", "a group", "one of each group", "mixed", "all"]


# ------------------------------------------------------------------ equal
@pytest.mark.parametrize("which", SETS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_pruned_model_computes_what_the_gated_one_does(name, which, model):
    ours = model(name)
    heads, batch = chosen(ours, which), padded(ours)
    wanted = gated(ours, heads, batch)
    smaller = prune(ours, heads)
    torch.testing.assert_close(computed(smaller, batch), wanted, **CLOSE)
    change = (wanted - computed(ours, batch)).abs().max()
    assert change > 1e-3 if heads else change == 0
    alone = batch.select(torch.tensor([1]))  # a short text, with its padding
    torch.testing.assert_close(computed(smaller, alone), gated(ours, heads, alone), **CLOSE)


@pytest.mark.parametrize("which", ["mixed", "all"])
@pytest.mark.parametrize("name", REAL)
def test_real_models_too(name, which, model):
    ours = model(name)
    heads, batch = chosen(ours, which), padded(ours)
    wanted = gated(ours, heads, batch)
    torch.testing.assert_close(computed(prune(ours, heads), batch), wanted, **CLOSE)


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_llama", "tiny_gemma2", "tiny_neox"])
def test_decoders_may_pad_on_the_left(name, model):
    ours = model(name, "left")
    heads, batch = chosen(ours, "mixed"), padded(ours)
    assert not batch.text.mask[1, 0]
    smaller = prune(ours, heads)
    torch.testing.assert_close(computed(smaller, batch), gated(ours, heads, batch), **CLOSE)


@pytest.mark.parametrize("name", FAMILIES)
def test_zeros_in_a_plain_models_w_o_do_the_same(name):
    ours = tiny(name, weights_seed=3, **CHOICES)
    site = ours.sites[0]
    batch = padded(ours)
    smaller = prune(ours, [Head(site.name, 1, 0), Head(site.name, 1, 3)])
    weight = ours.module.get_submodule(W_O[name]).weight
    by_input = weight if name == "tiny_gpt2" else weight.T
    for head in (0, 3):
        by_input[head * site.d_head : (head + 1) * site.d_head] = 0
    torch.testing.assert_close(computed(smaller, batch), computed(ours, batch), **CLOSE)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_t5"])
def test_in_float64_the_two_agree_to_twelve_places(name):
    ours = tiny(name, weights_seed=1, **CHOICES | {"dtype": "float64"})
    heads, batch = chosen(ours, "mixed"), padded(ours)
    found = computed(prune(ours, heads), batch)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, gated(ours, heads, batch), atol=1e-12, rtol=0)


@pytest.mark.parametrize("site", ["encoder_attn", "decoder_self_attn", "decoder_cross_attn"])
@pytest.mark.parametrize("name", ["tiny_t5", "tiny_bart"])
def test_one_site_can_be_pruned_alone(name, site, model):
    ours = model(name)
    batch = padded(ours)
    heads = [head for head in chosen(ours, "mixed") if head.site == site]
    smaller = prune(ours, heads)
    torch.testing.assert_close(computed(smaller, batch), gated(ours, heads, batch), **CLOSE)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_whole_model_stays_as_it_was(name):
    ours = tiny(name, weights_seed=0, **CHOICES)
    batch = padded(ours)
    before, run = {}, computed(ours, batch)
    for key, value in ours.module.state_dict().items():
        before[key] = value.clone()
    prune(ours, chosen(ours, "mixed"))
    after = ours.module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(computed(ours, batch), run)
    shared = {id(weight) for weight in ours.module.parameters()}
    smaller = prune(ours, [])
    assert not shared & {id(weight) for weight in smaller.module.parameters()}


# ------------------------------------------------------------------ smaller
@pytest.mark.parametrize("which", ["one of each group", "mixed"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_weights_of_the_heads_are_gone_and_no_others(name, which, model):
    ours = model(name)
    heads = chosen(ours, which)
    expected = n_parameters(ours)
    bias = name in ("tiny_gpt2", "tiny_neox", "tiny_bert", "tiny_bart")
    for site in ours.sites:
        for layer in range(site.n_layers):
            left = [n for n in range(site.n_heads) if Head(site.name, layer, n) not in heads]
            expected -= weights_of_heads(site, range(site.n_heads), bias)
            expected += weights_of_heads(site, left, bias)
        if name == "tiny_t5" and not site.name.endswith("cross_attn"):  # 32 distances a head
            in_any_layer = {h.head for h in all_heads([site]) if h not in heads}
            expected -= 32 * (site.n_heads - len(in_any_layer))
    assert n_parameters(prune(ours, heads)) == expected


def test_by_hand_a_head_of_gpt2_has_1048_weights(model):
    ours = model("tiny_gpt2")
    smaller = prune(ours, [Head("attn", 0, 0)])
    # 8 columns of three 32 x 32 maps with biases, 8 rows of W_O
    assert n_parameters(ours) - n_parameters(smaller) == 3 * 8 * (32 + 1) + 8 * 32 == 1048
    attention = smaller.module.get_submodule("transformer.h.0.attn")
    assert attention.c_attn.weight.shape == (32, 72)
    assert attention.c_proj.weight.shape == (24, 32)


def test_by_hand_llamas_groups(model):
    ours = model("tiny_llama")  # four heads of width 8 in two groups
    smaller = prune(ours, [parse(h, ours.sites) for h in ("L0H2", "L0H3", "L1H1", "L2H0", "L2H2")])
    layers = [smaller.module.get_submodule(f"model.layers.{n}.self_attn") for n in range(3)]
    assert [layer.q_proj.weight.shape[0] for layer in layers] == [16, 24, 16]
    assert [layer.o_proj.weight.shape[1] for layer in layers] == [16, 24, 16]
    assert layers[0].k_proj.weight.shape[0] == layers[0].v_proj.weight.shape[0] == 8
    assert layers[0].num_key_value_groups == 2
    assert isinstance(layers[1].k_proj, Spread), "groups of one and of two heads"
    assert layers[1].k_proj.linear.weight.shape[0] == layers[1].v_proj.linear.weight.shape[0] == 16
    assert layers[2].k_proj.weight.shape[0] == 16
    assert layers[2].num_key_value_groups == 1


def test_a_layer_without_heads_adds_w_os_bias(model):
    ours = model("tiny_gpt2")
    smaller = prune(ours, chosen(ours, "a layer"))
    empty = smaller.module.get_submodule("transformer.h.1.attn")
    assert isinstance(empty, NoHeads)
    added = empty(torch.randn(2, 5, 32))[0]
    bias = ours.module.get_submodule("transformer.h.1.attn.c_proj").bias
    assert torch.equal(added, bias.expand(2, 5, 32))


# ------------------------------------------------------------------ a HeadModel like any other
@pytest.mark.parametrize("name", FAMILIES)
def test_heads_that_are_left_keep_their_names(name, model):
    ours = model(name)
    heads, batch = chosen(ours, "mixed"), padded(ours)
    smaller = prune(ours, heads)
    assert smaller.sites == ours.sites
    assert {str(head.layer) for head in smaller.pruned} == {str(head.layer) for head in heads}
    for site in ours.sites:
        for head in (Head(site.name, 0, 0), Head(site.name, 2, 3)):
            torch.testing.assert_close(
                gated(smaller, [head], batch), gated(ours, [*heads, head], batch), **CLOSE
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_z_values_and_what_is_written_are_0_for_heads_that_are_gone(name, model):
    ours = model(name)
    heads, batch = chosen(ours, "mixed"), padded(ours)
    smaller = prune(ours, heads)
    values: list[dict] = []
    for each in (ours, smaller):
        seen = {}
        handles = [
            attention.watch_v(lambda v, place=place, seen=seen: seen.__setitem__(place, v))
            for place, attention in each.attentions.items()
        ]
        with each.watching_z() as z:
            each.run(batch)
        for handle in handles:
            handle.remove()
        values.append({"z": z, "v": seen})
    old, new = values
    assert old["z"].keys() == new["z"].keys() == old["v"].keys() == new["v"].keys()
    for (name_of_site, layer), z in new["z"].items():
        site = ours.site[name_of_site]
        gone = [n for n in range(4) if Head(name_of_site, layer, n) in heads]
        left = [n for n in range(4) if n not in gone]
        groups = sorted({site.group(n) for n in left})
        v = new["v"][name_of_site, layer]
        assert z.shape == old["z"][name_of_site, layer].shape
        assert v.shape == old["v"][name_of_site, layer].shape
        assert (z[:, :, gone] == 0).all()
        assert (z[:, :, left] != 0).any() or not left
        assert (v[:, :, [n for n in range(site.n_kv_heads) if n not in groups]] == 0).all()
        if layer == 0 and name_of_site == ours.sites[0].name:  # nothing upstream has changed
            assert_same = torch.testing.assert_close
            assert_same(z[:, :, left], old["z"][name_of_site, layer][:, :, left], **CLOSE)
            assert_same(v[:, :, groups], old["v"][name_of_site, layer][:, :, groups], **CLOSE)
        noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
        written = smaller.attentions[name_of_site, layer].write(noise)
        wanted = ours.attentions[name_of_site, layer].write(noise)
        assert (written[:, :, gone] == 0).all()
        torch.testing.assert_close(written[:, :, left], wanted[:, :, left], **CLOSE)


@pytest.mark.parametrize("name", FAMILIES)
def test_patterns_are_those_of_the_gated_model_and_0_for_heads_that_are_gone(name, model):
    ours = model(name)
    heads, batch = chosen(ours, "mixed"), padded(ours)
    smaller = prune(ours, heads)
    names = [site.name for site in ours.sites]
    attention = smaller.module.config._attn_implementation

    def close(z: Tensor, hook) -> Tensor:
        site = next(s for s in ours.sites if hook.name.startswith(f"{s.stack}."))
        site = next(s for s in ours.sites if f".{s.module}." in hook.name and s.stack == site.stack)
        layer = int(hook.name.split(".")[1])
        z = z.clone()
        z[:, :, [n for n in range(4) if Head(site.name, layer, n) in heads]] = 0
        return z

    hooks = [
        (f"{site.stack}.{layer}.{site.module}.hook_z", close)
        for site in ours.sites
        for layer in range(site.n_layers)
    ]
    with ours.hooked.hooks(fwd_hooks=hooks):
        wanted = ours.patterns(batch, names)
    found = smaller.patterns(batch, names)
    assert found.keys() == wanted.keys()
    for (name_of_site, layer), pattern in found.items():
        gone = [n for n in range(4) if Head(name_of_site, layer, n) in heads]
        left = [n for n in range(4) if n not in gone]
        real = batch.queries(ours.site[name_of_site]).mask
        assert (pattern[:, gone] == 0).all()
        ours_left, theirs = (
            p.movedim(1, 2)[real][:, left] for p in (pattern, wanted[name_of_site, layer])
        )
        torch.testing.assert_close(ours_left, theirs, **CLOSE)
    assert smaller.module.config._attn_implementation == attention
    assert smaller.patterns(batch, names[:1]).keys() == {(names[0], n) for n in range(3)}


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_are_replayed(name, model):
    smaller = prune(model(name), chosen(model(name), "the first layer"))
    batch = padded(smaller)
    rows = torch.tensor([0, 0, 1, 2, 2])
    with smaller.recording() as outputs:
        smaller.run(batch)
    full = computed(smaller, batch.select(rows))
    for start in range(len(smaller.blocks) + 1):
        with smaller.replaying(start, outputs, rows):
            torch.testing.assert_close(computed(smaller, batch.select(rows)), full, **CLOSE)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_else_a_model_is_asked_for_is_the_copys_own(name, model):
    ours = model(name)
    smaller, batch = prune(ours, chosen(ours, "mixed")), padded(ours)
    read = torch.tensor([[1, 2], [0, 1], [2, 0]])
    wanted = smaller.run(batch).gather(1, read[..., None].expand(-1, -1, 260))
    torch.testing.assert_close(smaller.logits(batch, read), wanted, **CLOSE)
    ids = torch.tensor([[[5, 6]] * 2] * 3)
    few = smaller.chosen_logits(batch, read, ids)
    torch.testing.assert_close(few, wanted.gather(-1, ids), **CLOSE)
    parts = {id(part) for part in smaller.module.modules()}
    assert {id(stack) for stack, _ in smaller.blocks} <= parts
    assert (smaller.final_norm is None) == (ours.final_norm is None)
    assert smaller.final_norm is None or id(smaller.final_norm) in parts
    assert not parts & {id(part) for part in ours.module.modules()}
    for fact in ("kind", "codec", "padding_side", "decoder_start", "takes_position_ids"):
        assert getattr(smaller, fact) == getattr(ours, fact)


def test_gradients_reach_the_weights_that_are_left(model):
    smaller = prune(model("tiny_llama"), chosen(model("tiny_llama"), "mixed"))
    with torch.enable_grad():
        smaller.run(padded(smaller)).square().mean().backward()
    assert all(weight.grad is not None for weight in smaller.module.parameters() if weight.numel())


# ------------------------------------------------------------------ on disk
SAVED = [(name, which) for name in FAMILIES for which in ("mixed", "all")]


@pytest.mark.parametrize(
    ("name", "which"), [*SAVED, ("minilm", "mixed"), ("aren_transliteration", "mixed")]
)
def test_a_pruned_model_is_saved_and_loaded_bit_for_bit(name, which, model, tmp_path):
    smaller = prune(model(name), chosen(model(name), which))
    folder = tmp_path / "small"
    save(smaller, folder)
    random_state = torch.random.get_rng_state()
    again = load(str(folder), **CHOICES)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    batch = padded(smaller)
    assert torch.equal(
        batch.text.tokens, padded(again if "aren" not in name else smaller).text.tokens
    )
    assert torch.equal(computed(again, batch), computed(smaller, batch))
    assert again.pruned == smaller.pruned
    assert n_parameters(again) == n_parameters(smaller)
    assert (again.kind, again.sites) == (smaller.kind, smaller.sites)
    assert (again.unembed is None) == (smaller.unembed is None)
    assert again.name == "small"
    assert again.record["weights"] == smaller.record["weights"]
    written = json.loads((folder / "config.json").read_text())["pruned_heads"]
    found = {
        Head(site, int(layer), head)
        for site, layers in written.items()
        for layer, heads in layers.items()
        for head in heads
    }
    assert found == smaller.pruned
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors", ".txt", ".jinja"}
    assert json.loads(json.dumps(again.record))["pruned_heads"] == written


def test_a_loaded_model_may_be_of_another_type_and_pad_left(model, tmp_path):
    ours = model("tiny_llama")
    heads = chosen(ours, "single heads")
    save(prune(ours, heads), tmp_path)
    again = load(str(tmp_path), **CHOICES | {"dtype": "float64", "padding_side": "left"})
    batch = padded(again)
    wanted = gated(model("tiny_llama", "left"), heads, batch)
    torch.testing.assert_close(computed(again, batch).float(), wanted, **CLOSE)


def test_the_file_holds_the_weights_that_are_left_and_no_others(model, tmp_path):
    for which in ("none", "mixed"):
        smaller = prune(model("tiny_bert"), chosen(model("tiny_bert"), which))
        save(smaller, tmp_path / which)
        found = load_file(tmp_path / which / "model.safetensors")
        assert sum(weight.numel() for weight in found.values()) == n_parameters(smaller)


# ------------------------------------------------------------------ refusals
def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("tiny_gpt2", Head("attn", 3, 0)),
        ("tiny_gpt2", Head("attn", 0, 4)),
        ("tiny_gpt2", Head("attn", 0, -1)),
        ("tiny_gpt2", Head("encoder_attn", 0, 0)),
        ("tiny_t5", Head("attn", 0, 0)),
    ],
)
def test_a_head_that_does_not_exist_is_refused(name, head, model):
    with pytest.raises(InputError) as error:
        prune(model(name), [Head(model(name).sites[0].name, 0, 0), head])
    assert f"L{head.layer}H{head.head}" in one_line(error)


def test_models_of_ours_are_refused(model):
    with pytest.raises(InputError, match="custom_decoder") as error:
        prune(model("custom_decoder"), [Head("attn", 0, 0)])
    one_line(error)


def test_a_pruned_model_is_not_pruned_further(model):
    smaller = prune(model("tiny_gpt2"), [Head("attn", 0, 1)])
    with pytest.raises(InputError, match="tiny_gpt2-pruned is pruned: cut all heads out") as error:
        prune(smaller, [Head("attn", 0, 2)])
    one_line(error)


def attention_of(ours: PretrainedModel) -> nn.Module:
    return ours.module.get_submodule("model.layers.0.self_attn")


def test_an_attention_of_unknown_projections_is_refused():
    ours = tiny("tiny_llama", weights_seed=0, **CHOICES)
    attention = attention_of(ours)
    attention.query_map = attention.q_proj
    del attention.q_proj
    with pytest.raises(InputError, match="LlamaAttention: it has none of q_proj/") as error:
        prune(ours, [Head("attn", 0, 0)])
    one_line(error)


def test_an_attention_whose_heads_see_each_other_is_refused():
    ours = tiny("tiny_llama", weights_seed=0, **CHOICES)
    mean = lambda _module, _args, q: q - q.mean(-1, keepdim=True)  # noqa: E731
    attention_of(ours).q_proj.register_forward_hook(mean)
    with pytest.raises(InputError, match="tiny_llama computes something else") as error:
        prune(ours, [Head("attn", 0, 0)])
    one_line(error)


def test_a_model_that_counts_its_heads_elsewhere_is_refused():
    ours = tiny("tiny_llama", weights_seed=0, **CHOICES)
    ours.module.get_submodule("model.layers.0.self_attn.o_proj").register_forward_pre_hook(
        lambda _module, args: (args[0].unflatten(-1, (4, 8)).flatten(-2),)
    )
    with pytest.raises(InputError, match="tiny_llama cannot run without") as error:
        prune(ours, [Head("attn", 0, 0)])
    one_line(error)


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_without_preference_is_defined_where_heads_are_left(name, model):
    """A layer without heads has neither patterns nor z, and is nothing to check or to replace."""
    smaller = prune(model(name), chosen(model(name), "mixed"))
    gates.check_values(smaller, padded(smaller), "uniform")


def test_weights_of_heads_that_are_gone_cannot_be_compared(model):
    with pytest.raises(InputError, match="is pruned: weights are compared in the whole model"):
        weights.read(prune(model("tiny_gpt2"), [Head("attn", 0, 1)]))


@pytest.fixture
def saved(model, tmp_path):
    save(prune(model("tiny_gpt2"), [Head("attn", 0, 1)]), tmp_path)
    return tmp_path


def change(folder, **values) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pruned_heads": None}, "is not of a pruned model"),
        ({"pruned_heads": [1]}, "is not of a pruned model"),
        ({"has_lm_head": None}, "is not of a pruned model"),
        ({"kind": "dragon"}, "is not of a pruned model"),
        ({"pruned_heads": {"attn": {"9": [0]}}}, "L9H0"),
        ({"pruned_heads": {"attn": {"0": ["x"]}}}, "L0Hx"),
        ({"pruned_heads": {"attn": {"0": [1, 2]}}}, "does not hold this model's weights"),
        ({"n_layer": 4}, "does not hold this model's weights"),
        ({"model_type": "dragon"}, "cannot be loaded"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(values, message, saved):
    change(saved, **values)
    with pytest.raises(InputError, match=message) as error:
        load(str(saved), **CHOICES)
    one_line(error)


def test_missing_or_damaged_files_are_refused(saved):
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="does not hold this model's weights") as error:
        load(str(saved), **CHOICES)
    one_line(error)
    file.unlink()
    with pytest.raises(InputError, match=r"model\.safetensors does not exist"):
        load(str(saved), **CHOICES)
    with pytest.raises(InputError, match="nowhere does not exist"):
        load(str(saved / "nowhere"), **CHOICES)


def test_a_pruned_model_is_not_taken_for_a_whole_one(saved):
    with pytest.raises(InputError, match="cannot be loaded: it is pruned") as error:
        pretrained(str(saved), **CHOICES)
    one_line(error)


def test_a_pruned_model_is_a_pretrained_one(model):
    smaller = prune(model("tiny_gpt2"), [Head("attn", 0, 1)])
    assert isinstance(smaller, PrunedModel)
    assert smaller.record["pruned_heads"] == {"attn": {"0": [1]}}
    assert "pruned_heads" not in model("tiny_gpt2").record
