"""Random tokens said twice: the sequences, what is measured on them, and the task."""

from copy import copy
from dataclasses import replace

import pytest
import torch
from test_against_huggingface import W_O
from torch.nn.functional import cross_entropy
from transformers import AddedToken

from interp.errors import InputError
from interp.models.bundled import bundled
from interp.models.text import Encoded, byte_tokenizer, pad, visible
from interp.models.tiny import tiny
from interp.patterns.maps import Maps
from interp.patterns.repeats import copying, repetition
from interp.tasks import repeated_tokens
from interp.tasks.repeated_tokens import repeated

CLOSE = {"atol": 1e-5, "rtol": 0}
CHOICES = {"device": "cpu", "dtype": "float32", "prepend_bos": "auto", "truncation": "error"}


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def with_codec(model, **changes):
    """Change a model's codec, in a copy."""
    other = copy(model)
    other.codec = replace(model.codec, **changes)
    return other


# ------------------------------------------------------------------ sequences
@pytest.mark.parametrize(
    ("name", "bos"), [("tiny_gpt2", True), ("tiny_bert", True), ("tiny_t5", False)]
)
def test_a_segment_of_different_tokens_follows_itself_within_the_tokenizer_s_frame(
    model, name, bos
):
    one = with_codec(model(name), prepend_bos=bos)
    found = repeated(one, 80, seed=0)
    before, after = one.codec.frame()
    for text, length in found:
        own = text[len(before) : len(text) - len(after)]
        assert text == before + own + after
        assert own.ids == own.ids[:length] * 2
        assert len(set(own.ids)) == length
        assert not any(own.special)
        assert not set(own.ids) & set(one.codec.tokenizer.all_special_ids)
    lengths = [length for _, length in found]
    assert (min(lengths), max(lengths)) == (8, 24)
    assert repeated(one, 80, seed=0) == found
    assert repeated(one, 80, seed=1) != found
    assert len({text.ids for text, _ in found}) == 80


def test_tokens_that_were_added_as_special_are_never_drawn(model):
    tokenizer = byte_tokenizer()
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokenizer.add_tokens([AddedToken(letter, special=True) for letter in letters])
    assert len(tokenizer) == 260
    drawn = repeated(with_codec(model("tiny_gpt2"), tokenizer=tokenizer), 40, seed=0)
    added = set(tokenizer.convert_tokens_to_ids(letters))
    assert not any(added & set(text.ids) for text, _ in drawn)


def test_all_stacks_can_read_the_tokens_that_are_drawn(model):
    one = copy(model("tiny_bart"))
    one.unembed = torch.nn.Linear(32, 60)
    drawn = {token for text, _ in repeated(one, 40, seed=0) for token in text.ids}
    assert drawn <= {*range(60)}
    assert len(drawn) > 50


def test_segments_fit_the_context_or_are_refused(model):
    one = with_codec(model("tiny_bert"), n_ctx=24)
    found = repeated(one, 30, seed=0)
    assert max(len(text) for text, _ in found) <= 24
    assert {length for _, length in found} == {8, 9, 10, 11}
    with pytest.raises(InputError, match="too short a context"):
        repeated(with_codec(model("tiny_bert"), n_ctx=17), 1, seed=0)


# ------------------------------------------------------------------ induction, duplicates
def maps_of(model, found, layer, place="attn"):
    texts = [text for text, _ in found]
    targets = list(map(model.shifted, texts)) if model.kind == "encoder_decoder" else []
    batch = model.batch(texts, targets)
    site = model.site[place]
    pattern = model.patterns(batch, [place])[place, layer]
    text = batch.queries(site)
    return Maps(pattern, text, text, visible(text, text, causal=site.causal, window=None))


@pytest.mark.parametrize(
    ("name", "side", "place"),
    [
        ("tiny_llama", "right", "attn"),
        ("tiny_llama", "left", "attn"),
        ("tiny_bert", "right", "attn"),
        ("tiny_bart", "right", "encoder_attn"),
        ("tiny_bart", "right", "decoder_self_attn"),
    ],
)
def test_induction_and_duplicates_by_a_loop_over_tokens(model, name, side, place):
    one = with_codec(model(name, side), prepend_bos=name != "tiny_t5")
    found = repeated(one, 4, seed=0)
    maps = maps_of(one, found, 1, place)
    measured = repetition(maps, [length for _, length in found])
    for row, (_, length) in enumerate(found):
        real = maps.key.mask[row].nonzero().ravel().tolist()
        ids, special = maps.key.tokens[row].tolist(), maps.key.special[row].tolist()
        own = [place for place in real if not special[place]]
        assert len(own) == 2 * length
        values = {"induction": [], "duplicate": []}
        laws = []
        for query in own[length:]:
            [earlier] = [k for k in own if k < query and ids[k] == ids[query]]
            values["duplicate"].append(maps.pattern[row, :, query, earlier])
            values["induction"].append(maps.pattern[row, :, query, earlier + 1])
            laws.append(1 / sum(k <= query or not one.site[place].causal for k in real))
        for feature, measure in measured.items():
            wanted = torch.stack(values[feature]).mean(0)
            torch.testing.assert_close(measure.value[row], wanted, **CLOSE)
            assert measure.n[row] == length
            assert measure.uniform[row].item() == pytest.approx(sum(laws) / length)


def test_heads_made_for_it_score_1_and_even_ones_the_law():
    length, n_bos = 9, 1
    n = n_bos + 2 * length
    text = pad([Encoded((7,) * n, ((0, 0),) * n, (True, *[False] * (n - 1)))], 0, "right")
    seen = visible(text, text, causal=True, window=None)
    pattern = torch.zeros(1, 3, n, n)
    pattern[0, :2, : n_bos + length, 0] = 1  # in the first copy both rest on BOS
    for query in range(n_bos + length, n):
        pattern[0, 0, query, query - length + 1] = 1
        pattern[0, 1, query, query - length] = 1
    pattern[0, 2] = seen[0] / seen[0].sum(-1, keepdim=True)
    found = repetition(Maps(pattern, text, text, seen), [length])
    law = found["induction"].uniform.item()
    assert law == pytest.approx(sum(1 / (k + 1) for k in range(10, 19)) / 9)
    assert found["induction"].value[0].tolist() == pytest.approx([1, 0, law])
    assert found["duplicate"].value[0].tolist() == pytest.approx([0, 1, law])


# ------------------------------------------------------------------ copying
def parts_of(model, layer):
    """Find W_O [head, d_head, d_model], the final norm's gain and W_U by their own names."""
    module, site = model.module, model.sites[0]
    if model.name == "tiny_llama":
        W = module.model.layers[layer].self_attn.o_proj.weight.T
        gain, U = module.model.norm.weight, module.lm_head.weight
    elif model.name == "tiny_gpt2":
        W, gain = module.transformer.h[layer].attn.c_proj.weight, module.transformer.ln_f.weight
        U = module.lm_head.weight
    else:
        W, gain = module.blocks[layer].attn.W_O.flatten(0, 1), module.ln_final.weight
        U = module.unembed.weight
    return W.view(site.n_heads, site.d_head, -1), gain, U


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_gpt2", "custom_decoder"])
def test_copying_by_a_loop_over_positions_with_the_weights_themselves(model, name):
    one = with_codec(model(name), prepend_bos=True)
    found = repeated(one, 2, seed=3)
    batch = one.batch([text for text, _ in found])
    with one.watching_z() as z:
        one.visit(batch)
    patterns = [*one.patterns(batch, ["attn"]).values()]
    text = batch.text
    seen = visible(text, text, causal=True, window=None)
    maps = Maps(torch.cat(patterns, dim=1), text, text, seen)
    measured = copying(one, batch, maps, range(3), [length for _, length in found], z)
    assert measured.n.tolist() == [length for _, length in found]
    for row, (encoded, length) in enumerate(found):
        segment = torch.tensor(encoded.ids[1 : 1 + length])
        assert measured.uniform[row].item() == pytest.approx(1 / length)
        for layer, pattern in enumerate(patterns):
            W, gain, U = parts_of(one, layer)
            for head in range(4):
                shares = []
                for query in range(1, 1 + length):
                    written = z["attn", layer][row, query, head] @ W[head]
                    if name != "tiny_llama":  # a LayerNorm takes off the mean, an RMSNorm does not
                        written = written - written.mean()
                    logits = U @ (gain * written)
                    raised = (logits[segment] - logits.mean()).clamp(min=0)
                    attended = pattern[row, head, query, 1 : query + 1].argmax()
                    total = raised.sum()
                    shares.append((raised[attended] / total).item() if total > 0 else 0.0)
                value = measured.value[row, 4 * layer + head].item()
                assert value == pytest.approx(sum(shares) / length, abs=1e-4)


def test_copying_of_some_layers_is_that_of_all_at_their_places(model):
    one = with_codec(model("tiny_llama"), prepend_bos=True)
    found = repeated(one, 2, seed=3)
    batch, lengths = one.batch([text for text, _ in found]), [length for _, length in found]
    with one.watching_z() as z:
        one.visit(batch)
    patterns = [*one.patterns(batch, ["attn"]).values()]
    seen = visible(batch.text, batch.text, causal=True, window=None)

    def measured(layers):
        pattern = torch.cat([patterns[layer] for layer in layers], dim=1)
        maps = Maps(pattern, batch.text, batch.text, seen)
        return copying(one, batch, maps, layers, lengths, z).value

    torch.testing.assert_close(measured([0, 2]), measured(range(3))[:, [*range(4), *range(8, 12)]])


def everything_written(model, batch, hooked, place) -> dict:
    """Run a model and keep z and what its attentions' output projections return."""
    kept, handles = {}, []
    for layer in range(model.site[place].n_layers):

        def keep(_module, _args, output, layer=layer):
            kept[layer] = output

        handles.append(hooked(layer).register_forward_hook(keep))
    with model.watching_z() as z:
        model.visit(batch)
    for handle in handles:
        handle.remove()
    return {layer: (z[place, layer], output) for layer, output in kept.items()}


TINY_SITES = [(name, place) for name in W_O if name.startswith("tiny_") for place in W_O[name]]


@pytest.mark.parametrize(("name", "place"), TINY_SITES)
def test_what_heads_write_adds_up_to_the_attention_s_output(model, name, place):
    one = model(name)
    texts = [one.codec.encode(text) for text in ("The keys to it", "Red")]
    batch = one.batch(texts, texts if one.kind == "encoder_decoder" else [])

    def projection(layer):
        return one.module.get_submodule(W_O[name][place].format(layer=layer))

    found = everything_written(one, batch, projection, place)
    assert len(found) == 3
    for layer, (z, output) in found.items():
        written = one.attentions[place, layer].write(z)
        assert written.shape == (*z.shape[:3], 32)
        bias = getattr(projection(layer), "bias", None)
        total = written.sum(2) + (0 if bias is None else bias)
        torch.testing.assert_close(total, output, **CLOSE)
        alone = torch.zeros_like(z)
        alone[:, :, 1] = z[:, :, 1]
        only = torch.zeros_like(written)
        only[:, :, 1] = written[:, :, 1]
        torch.testing.assert_close(one.attentions[place, layer].write(alone), only, **CLOSE)


@pytest.mark.parametrize("name", ["custom_decoder", "custom_encoder_decoder"])
def test_what_heads_of_our_own_models_write_adds_up_too(model, name):
    one = model(name)
    texts = [one.codec.encode(text) for text in ("The keys to it", "Red")]
    batch = one.batch(texts, texts if one.kind == "encoder_decoder" else [])
    for site in one.sites:

        def attention(layer, site=site):
            return getattr(getattr(one.module, site.stack)[layer], site.module)

        found = everything_written(one, batch, attention, site.name)
        for layer, (z, output) in found.items():
            written = one.attentions[site.name, layer].write(z)
            torch.testing.assert_close(written.sum(2) + attention(layer).b_O, output, **CLOSE)


@pytest.mark.parametrize(
    ("name", "centred"),
    [
        ("tiny_gpt2", True),
        ("tiny_neox", True),
        ("custom_decoder", True),
        ("tiny_llama", False),
        ("tiny_gemma2", False),
    ],
)
def test_the_final_gain_is_what_the_norm_does_apart_from_its_scale(model, name, centred):
    one = model(name)
    gain, takes_mean = one.final_gain()
    assert takes_mean == centred
    stream = 3 * torch.randn(5, 32, generator=torch.Generator().manual_seed(0)) + 1
    bias = getattr(one.final_norm, "bias", None)
    normed = one.final_norm(stream) - (0 if bias is None else bias)
    stream = stream - stream.mean(-1, keepdim=True) if centred else stream
    wanted = gain * stream / stream.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(normed, wanted, atol=1e-4, rtol=0)
    assert gain.std() > 0.02


def test_a_model_without_a_final_norm_has_a_gain_of_1(model):
    gain, centred = model("custom_encoder").final_gain()
    assert gain.tolist() == [1.0] * 32
    assert not centred


# ------------------------------------------------------------------ shifted, frame, random weights
def test_what_a_decoder_reads_is_its_target_behind_a_start_token(model):
    bart = model("tiny_bart")
    labels = Encoded((5, 6, 7), ((0, 1), (1, 2), (0, 0)), (False, False, True))
    shifted = Encoded((2, 5, 6), ((0, 0), (0, 1), (1, 2)), (True, False, False))
    assert bart.shifted(labels) == shifted
    ids = torch.tensor([bart.codec.encode_target("ab c").ids])
    theirs = bart.module.prepare_decoder_input_ids_from_labels(ids)[0].tolist()
    assert theirs == list(bart.shifted(bart.codec.encode_target("ab c")).ids)


@pytest.mark.parametrize(
    ("name", "bos", "before", "after"),
    [
        ("tiny_gpt2", False, [], []),
        ("tiny_gpt2", True, ["<s>"], []),
        ("tiny_bert", True, ["<s>"], ["</s>"]),
        ("tiny_t5", False, [], ["</s>"]),
        ("minilm", False, ["[CLS]"], ["[SEP]"]),
        ("stories260k", True, ["<s>"], []),
    ],
)
def test_a_text_s_frame_is_what_its_tokenizer_puts_around_it(model, name, bos, before, after):
    codec = replace(model(name).codec, prepend_bos=bos)
    found = codec.frame()
    assert [codec.tokenizer.convert_ids_to_tokens(part.ids) for part in found] == [before, after]
    for text in ("a b", "The keys, it's said!"):
        assert found[0] + codec.encode_long(text) + found[1] == codec.encode(text)


def test_a_pretrained_model_of_random_weights_says_so_and_attends_evenly(model):
    learned = model("minilm")
    random = bundled("minilm", padding_side="right", random_weights=True, weights_seed=3, **CHOICES)
    assert random.name == "minilm-random"
    assert random.record["weights"] == "random, seed 3"
    assert random.record["package"] == learned.record["package"]
    batch = learned.batch([learned.codec.encode("The keys to the old cabinet are here, he said.")])
    seen = visible(batch.text, batch.text, causal=False, window=None)
    evenness = {}
    for one in (random, learned):
        pattern = torch.cat([*one.patterns(batch, ["attn"]).values()], dim=1)
        evenness[one.name] = Maps(pattern, batch.text, batch.text, seen).evenness()["uniform"].value
    assert evenness["minilm-random"].min() > 0.95
    assert evenness["minilm"].median() < 0.8


# ------------------------------------------------------------------ the task
@pytest.mark.parametrize(("name", "side"), [("tiny_llama", "left"), ("custom_decoder", "right")])
def test_the_loss_is_torchs_on_what_the_first_copy_foretells(model, name, side):
    one = with_codec(model(name, side), prepend_bos=True)
    task = repeated_tokens.task(one, n=5, seed=0)
    assert (task.metric, task.unit, task.higher_is_better) == ("loss", "nats per token", False)
    assert task.table["cluster"].nunique() == len(task) == 5
    found = task.score(one, task.questions(one, range(5)))
    for number, (text, length) in enumerate(repeated(one, 5, seed=0)):
        tokens = torch.tensor([text.ids])
        logits = one.run(one.batch([text]))[0]
        # BOS, x_1 … x_n, x_1: from here on x_2 … x_n are known
        first = 1 + length
        assert tokens.shape[1] == 1 + 2 * length
        wanted = cross_entropy(logits[first:-1], tokens[0, first + 1 :])
        torch.testing.assert_close(found[number], wanted, atol=1e-4, rtol=0)
        assert task.table["n_tokens"][number] == length - 1


def test_a_closing_token_moves_no_question():
    decoder = tiny("tiny_gpt2", weights_seed=0, padding_side="right", **CHOICES)
    closed = with_codec(decoder, tokenizer=byte_tokenizer("end"))
    [(item,)] = repeated_tokens.task(closed, n=1, seed=0).examples
    length = len(item.text) // 2
    assert item.text.special == (False,) * 2 * length + (True,)
    assert [ids for (ids,) in item.ids] == list(item.text.ids[1:length])
    assert item.read == tuple(range(length, 2 * length - 1))


def test_only_decoders_are_asked(model):
    with pytest.raises(InputError, match="causal language model"):
        repeated_tokens.task(model("tiny_bert"), n=1, seed=0)
