"""Maps and alignment: every measure against a loop over positions, by hand, and TransformerLens."""

from collections import defaultdict
from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from scipy import stats
from transformer_lens.head_detector import detect_head

from interp.models.text import Encoded, pad, visible
from interp.patterns.alignment import alignment
from interp.patterns.maps import Maps
from interp.patterns.repeats import repetition

TEXTS = ["Yes, no: it's.", "A", "The old keys, he said (twice).", "ab."]


def looked_at(model, texts, *, bos=False) -> tuple[Maps, torch.Tensor]:
    """Give the maps of a tiny model's first layer, and its punctuation."""
    codec = replace(model.codec, prepend_bos=bos)
    batch = model.batch([codec.encode(text) for text in texts])
    [site] = model.sites
    with torch.inference_mode():
        pattern = model.patterns(batch, [site.name])[site.name, 0]
    shown = map(codec.tokenizer.convert_ids_to_tokens, batch.text.tokens.tolist())
    marks = torch.tensor([[token in tuple(".,:;'()") for token in row] for row in shown])
    seen = visible(batch.text, batch.text, causal=site.causal, window=None)
    return Maps(pattern, batch.text, batch.text, seen), marks & ~batch.text.special


def drawn(pattern, special, *, causal) -> Maps:
    """Put a map of one head on one sequence, or maps of several heads."""
    n = len(special)
    encoded = Encoded((7,) * n, tuple((i, i + 1) for i in range(n)), tuple(map(bool, special)))
    text = pad([encoded], 0, "right")
    pattern = torch.as_tensor(pattern, dtype=torch.float64).reshape(1, -1, n, n)
    return Maps(pattern, text, text, visible(text, text, causal=causal, window=None))


def measured(maps: Maps, punctuation) -> dict:
    masses = {f"mass {name}": measure for name, measure in maps.offset_masses().items()}
    found = maps.offsets() | masses | maps.spread(punctuation) | maps.evenness()
    return found | {"first_token": maps.first_token()}


def slow(pattern, special, punctuation, *, causal) -> dict:
    """Take every measure of one head on one sequence, query by query: value and law."""
    found = defaultdict(list)
    for q, row in enumerate(pattern):
        seen = [k for k in range(len(row)) if k <= q or not causal]
        text = [k for k in seen if not special[k]]
        even = 1 / len(seen)
        found["first_token"].append((row[0], even))
        if special[q]:
            continue
        best = max(text, key=lambda k: row[k])
        for k in text:
            if abs(k - q) <= 5:
                name = "0" if k == q else f"{k - q:+d}"
                found[f"offset:{name}"].append((float(k == best), 1 / len(text)))
                found[f"mass offset:{name}"].append((row[k], even))
        for name, marked in (("special", special), ("punctuation", punctuation)):
            keys = [k for k in seen if marked[k]]
            found[name].append((sum(row[k] for k in keys), len(keys) * even))
        far = sum(row[k] * abs(k - q) for k in text) / sum(row[k] for k in text)
        found["distance"].append((far, np.mean([abs(k - q) for k in text])))
        entropy = -sum(row[k] * log(row[k]) for k in seen if row[k] > 0)
        found["entropy"].append((entropy, log(len(seen))))
        if len(seen) > 1:
            found["uniform"].append((entropy / log(len(seen)), 1.0))
    return found


@pytest.mark.parametrize(
    ("name", "side", "bos"),
    [("tiny_llama", "right", False), ("tiny_llama", "left", True), ("tiny_bert", "right", True)],
)
def test_every_measure_is_what_a_loop_over_the_unpadded_sequence_finds(model, name, side, bos):
    one = model(name, side)
    maps, marks = looked_at(one, TEXTS, bos=bos)
    found = measured(maps, marks)
    assert len(found) == 2 * (11 if name == "tiny_bert" else 6) + 6
    for row in range(len(TEXTS)):
        real = maps.key.mask[row]
        special, punctuation = maps.key.special[row, real], marks[row, real]
        for head in range(maps.pattern.shape[1]):
            pattern = maps.pattern[row, head][real][:, real].double().numpy()
            wanted = slow(pattern, special, punctuation, causal=one.sites[0].causal)
            for feature, measure in found.items():
                values, laws = np.array(wanted.get(feature, [])).reshape(-1, 2).T
                assert measure.n[row] == len(values), feature
                if not len(values):
                    assert measure.value[row, head].isnan()
                    continue
                value = measure.value[row, head].item()
                assert value == pytest.approx(values.mean(), abs=1e-5), feature
                if measure.uniform is not None:
                    assert measure.uniform[row].item() == pytest.approx(laws.mean(), abs=1e-5)


def test_a_causal_map_by_hand():
    # BOS a , — the queries that are text: a and the comma
    maps = drawn([[1, 0, 0], [3 / 4, 1 / 4, 0], [4 / 8, 3 / 8, 1 / 8]], [1, 0, 0], causal=True)
    found = measured(maps, torch.tensor([[False, False, True]]))
    of_a = 3 / 4 * log(4 / 3) + 1 / 4 * log(4)
    of_comma = 4 / 8 * log(2) + 3 / 8 * log(8 / 3) + 1 / 8 * log(8)
    by_hand = {  # value, queries, law
        "offset:-1": (1, 1, 1 / 2),  # of what is text, the comma looks at a most
        "offset:0": (1 / 2, 2, (1 + 1 / 2) / 2),
        "mass offset:-1": (3 / 8, 1, 1 / 3),
        "mass offset:0": ((2 / 8 + 1 / 8) / 2, 2, (1 / 2 + 1 / 3) / 2),
        "first_token": ((1 + 3 / 4 + 4 / 8) / 3, 3, (1 + 1 / 2 + 1 / 3) / 3),
        "special": ((6 / 8 + 4 / 8) / 2, 2, (1 / 2 + 1 / 3) / 2),
        "punctuation": ((0 + 1 / 8) / 2, 2, (0 + 1 / 3) / 2),
        "distance": ((0 + 3 / 4) / 2, 2, (0 + 1 / 2) / 2),  # the comma's text is 3 : 1
        "entropy": ((of_a + of_comma) / 2, 2, (log(2) + log(3)) / 2),
        "uniform": ((of_a / log(2) + of_comma / log(3)) / 2, 2, None),
    }
    assert found.keys() == by_hand.keys()
    for name, (value, n, law) in by_hand.items():
        assert (found[name].value.item(), found[name].n.item()) == (pytest.approx(value), n)
        if law is None:
            assert found[name].uniform is None
        else:
            assert found[name].uniform.item() == pytest.approx(law), name


def test_a_map_that_looks_both_ways_by_hand():
    # [CLS] a b [SEP]: a looks at b most, b at a; more goes to [SEP], which is no text
    rows = [[1, 0, 0, 0], [0.1, 0.1, 0.2, 0.6], [0, 0.3, 0.1, 0.6], [0, 0, 0, 1]]
    found = measured(drawn(rows, [1, 0, 0, 1], causal=False), torch.zeros(1, 4, dtype=torch.bool))
    assert {name: (m.value.item(), m.n.item()) for name, m in found.items()} == {
        "offset:-1": (1, 1),
        "offset:0": (0, 2),
        "offset:+1": (1, 1),
        "mass offset:-1": (pytest.approx(0.3), 1),
        "mass offset:0": (pytest.approx(0.1), 2),
        "mass offset:+1": (pytest.approx(0.2), 1),
        "special": (pytest.approx(0.65), 2),
        "punctuation": (0, 2),
        "distance": (pytest.approx((2 / 3 + 3 / 4) / 2), 2),
        "entropy": (found["entropy"].value.item(), 2),
        "uniform": (pytest.approx(found["entropy"].value.item() / log(4)), 2),
        "first_token": (pytest.approx(1.1 / 4), 4),
    }


def test_a_query_that_attends_to_no_text_looks_nowhere():
    maps = drawn([[1, 0], [1, 0]], [1, 0], causal=True)
    assert maps.looked_at.isnan().all()
    assert maps.offsets()["offset:0"].value.item() == 0


def test_where_no_attention_goes_to_text_there_is_no_distance():
    # BOS a b; the first head gives text nothing, the second only from b
    rests, once = [[1, 0, 0]] * 3, [[1, 0, 0], [1, 0, 0], [0.6, 0.3, 0.1]]
    maps = drawn([rests, once], [1, 0, 0], causal=True)
    found = maps.spread(torch.zeros(1, 3, dtype=torch.bool))["distance"]
    assert found.value[0, 0].isnan()
    assert found.value[0, 1].item() == pytest.approx(0.75)
    assert found.uniform.item() == pytest.approx((0 + 1 / 2) / 2)


@pytest.mark.parametrize("causal", [True, False])
def test_even_attention_scores_what_the_law_says(causal):
    special = [1, 0, 0, 1, 0, 0, 0]
    even = torch.ones(7, 7, dtype=torch.float64).tril(0 if causal else 7)
    even /= even.sum(-1, keepdim=True)
    marks = torch.tensor([[False, False, True, False, False, True, False]])
    found = measured(drawn(even, special, causal=causal), marks)
    for name, measure in found.items():
        if not name.startswith("offset:"):
            law = 1.0 if measure.uniform is None else measure.uniform.item()
            assert measure.value.item() == pytest.approx(law), name
    # the word attended most is then any of them, by chance
    noise = torch.rand(4000, 7, 7, generator=torch.Generator().manual_seed(0)) * even
    for name, measure in drawn(even + 1e-6 * noise, special, causal=causal).offsets().items():
        if name.startswith("offset:"):
            assert measure.value.mean().item() == pytest.approx(measure.uniform.item(), abs=0.03)


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_bert"])
def test_attention_at_all_offsets_and_on_special_tokens_adds_up_to_all(model, name):
    texts = ["a, b.", "abc", "xy!"]  # so short that no offset is beyond 5
    maps, marks = looked_at(model(name), texts, bos=True)
    found = measured(maps, marks)
    n = found["special"].n[:, None]
    for kind, rest in (("offset:", 0), ("mass ", found["special"].value * n)):
        places = [m for feature, m in found.items() if feature.startswith(kind)]
        total = sum((m.value.nan_to_num() * m.n[:, None] for m in places), rest)
        torch.testing.assert_close(total, n.expand_as(total), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("theirs", "ours", "n"),
    # TransformerLens divides by all queries, we by those that have such a key: all but BOS and the
    # first letter; those of the second copy. And it counts the first letter's attention to BOS.
    [
        ("previous_token", "offset:-1", 11),
        ("duplicate_token", "duplicate", 6),
        ("induction", "induction", 6),
    ],
)
def test_transformer_lens_finds_as_much_attention(model, theirs, ours, n):
    tiny, text = model("tiny_gpt2"), "abcdef" * 2
    scores = detect_head(tiny.hooked, text, f"{theirs}_head", error_measure="mul")
    batch = tiny.batch([replace(tiny.codec, prepend_bos=True).encode(text)])
    assert batch.text.tokens.shape == (1, 13)
    for layer, pattern in enumerate(tiny.patterns(batch, ["attn"]).values()):
        seen = visible(batch.text, batch.text, causal=True, window=None)
        maps = Maps(pattern, batch.text, batch.text, seen)
        found = (maps.offset_masses() | repetition(maps, [6]))[ours]
        assert found.n.item() == n
        first_to_bos = pattern[0, :, 1, 0] if theirs == "previous_token" else 0
        total = n * found.value[0] + first_to_bos
        torch.testing.assert_close(total, 13 * scores[layer], atol=1e-5, rtol=0)


# ------------------------------------------------------------------ alignment
def crossed(looks, n_source) -> Maps:
    """Let each head look, from each target token, at one source token."""
    source, target = (
        pad([Encoded((7,) * n, ((0, 1),) * n, (False,) * n)], 0, "right")
        for n in (n_source, len(looks[0]))
    )
    pattern = torch.eye(n_source)[torch.tensor(looks)][None]
    return Maps(pattern, target, source, visible(target, source, causal=False, window=None))


def test_alignment_by_hand():
    looks = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 2, 2, 2], [0, 2, 4, 5], [0, 1, 1, 0]]
    found = alignment(crossed(looks, 6))
    assert found["monotone"].value[0].tolist() == pytest.approx([1, -1, 0, 1, 0])
    assert found["source_offset:0"].value[0].tolist() == [1, 0, 0.25, 0.25, 0.5]
    assert found["source_offset:+2"].value[0].tolist() == [0, 0, 0.25, 0.5, 0]
    assert found["source_offset:-3"].value[0].tolist() == [0, 1, 0, 0, 1]  # the last token's alone
    assert [found[f"source_offset:{k}"].n.item() for k in ("-3", "0", "+2", "+5")] == [1, 4, 4, 1]
    assert found["source_offset:+2"].uniform.item() == pytest.approx(1 / 6)
    assert "source_offset:-4" not in found
    assert (
        alignment(crossed([[0, 1, 2]], 6))["monotone"].n.item() == 0
    )  # too short to have an order


@pytest.mark.parametrize("name", ["tiny_bart", "tiny_t5"])
def test_alignment_is_what_a_loop_over_the_unpadded_sequences_finds(model, name):
    tiny = model(name)
    sources, targets = ["a longer source", "red", "x"], ["target", "a green one!", "yz"]
    batch = tiny.batch(
        [tiny.codec.encode(text) for text in sources],
        [tiny.shifted(tiny.codec.encode_target(text)) for text in targets],
    )
    site = tiny.site["decoder_cross_attn"]
    pattern = tiny.patterns(batch, [site.name])[site.name, 1]
    query, key = batch.queries(site), batch.keys(site)
    found = alignment(Maps(pattern, query, key, visible(query, key, causal=False, window=None)))
    for row in range(len(batch)):
        text = [k for k, special in enumerate(key.special[row]) if not special]
        n_query = int(query.mask[row].sum())
        for head in range(site.n_heads):
            looks = [max(text, key=lambda k: pattern[row, head, q, k]) for q in range(n_query)]
            for k in range(-5, 6):
                name = f"source_offset:{k:+d}" if k else "source_offset:0"
                hits = [looks[q] == q + k for q in range(n_query) if q + k in text]
                assert found[name].n[row] == len(hits)
                if hits:
                    assert found[name].value[row, head].item() == pytest.approx(np.mean(hits))
            n = found["monotone"].n[row]
            assert n == (n_query if n_query >= 4 else 0)
            if n:
                constant = len(set(looks)) == 1
                rank = 0 if constant else stats.spearmanr(range(n_query), looks).statistic
                assert found["monotone"].value[row, head].item() == pytest.approx(rank, abs=1e-6)
