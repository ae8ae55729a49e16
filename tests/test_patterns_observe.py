"""Observations depend on nothing but the example; and one sentence, question by question."""

from copy import copy
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from interp.corpora.builtin import builtin
from interp.corpora.corpus import Corpus, Mention, Passage, Word
from interp.errors import InputError
from interp.models.custom import from_transformer
from interp.models.text import byte_tokenizer
from interp.patterns import observe, sentence
from interp.transformer import Transformer, TransformerConfig

RELATIONS = ["nsubj", "obj", "det", "amod", "advmod"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Four passages of one sentence, and one of two."""
    passages = [one for one in builtin(n_sentences=8, seed=0).passages if len(one.text) < 90]
    first, second = sorted(passages, key=lambda one: len(one.text))[:2]
    n, shift = len(first.words), len(first.text) + 1
    moved = tuple(
        replace(
            word,
            start=word.start + shift,
            end=word.end + shift,
            sentence=1,
            head=None if word.head is None else word.head + n,
        )
        for word in second.words
    )
    both = replace(first, text=f"{first.text} {second.text}", words=first.words + moved)
    return Corpus("mine", (both, *passages[2:4], *passages[-2:]), {})


def loaded(model, name):
    name, _, side = name.partition(" ")
    one = copy(model(name, side or "right"))
    one.codec = replace(one.codec, prepend_bos=True)
    return one


def examples(model, corpus) -> list[observe.Example]:
    return observe.examples(model, corpus, n_chunks=2, n_repeats=2, seed=0)


def seen(model, corpus, groups) -> pd.DataFrame:
    """Observe groups of examples one after the other; put the lines in order."""
    what = observe.watch(corpus, RELATIONS)
    table = pd.concat([observe.observe(model, group, what) for group in groups])
    names = ["source", "example", "site", "feature", "subset"]
    table["nth"] = table.groupby(names).cumcount()  # sentences of a passage have a line each
    return table.sort_values([*names, "nth"]).set_index([*names, "nth"]).sort_index(axis=1)


def assert_same(a: pd.DataFrame, b: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(a, b, rtol=0, atol=1e-5, check_like=True)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_llama left", "tiny_bert", "tiny_bart"])
def test_order_company_and_padding_change_no_observation(model, corpus, name, monkeypatch):
    one = loaded(model, name)
    shown = examples(one, corpus)
    alone = seen(one, corpus, [[example] for example in shown])
    planned = [[shown[n] for n in group] for group in observe.batches(shown)]
    assert_same(seen(one, corpus, planned), alone)
    monkeypatch.setattr(observe, "AREA", 2 * 64**2)
    small = [[shown[n] for n in group][::-1] for group in observe.batches(shown)]
    assert 3 <= len(planned) < len(small) < len(shown)
    assert_same(seen(one, corpus, small[::-1]), alone)


def test_batches_hold_each_example_once_and_no_more_than_fits(model, corpus, monkeypatch):
    shown = examples(loaded(model, "tiny_bert"), corpus)
    monkeypatch.setattr(observe, "AREA", 3 * 64**2)
    groups = observe.batches(shown)
    assert sorted(n for group in groups for n in group) == list(range(len(shown)))
    for group in groups:
        assert len({shown[n].source for n in group}) == 1
        longest = max(len(shown[n].text) for n in group)
        assert len(group) == 1 or len(group) * longest**2 <= 3 * 64**2
    assert max(map(len, groups)) > 1
    monkeypatch.setattr(observe, "AREA", 1)
    assert observe.batches(shown) == [[n] for group in groups for n in group]


# ------------------------------------------------------------------ another route to the patterns
@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_bert"])
def test_attention_that_hugging_face_returns_makes_the_same_observations(model, corpus, name):
    one = loaded(model, name)
    plain = type(one.module)(one.module.config)
    plain.load_state_dict(one.module.state_dict())
    plain.set_attn_implementation("eager")
    plain.eval()

    def patterns(batch, sites):
        inputs = {"input_ids": batch.text.tokens, "attention_mask": batch.text.mask.long()}
        found = plain(**inputs, output_attentions=True).attentions
        return {("attn", layer): pattern for layer, pattern in enumerate(found)}

    other = copy(one)
    other.patterns = patterns
    shown = examples(one, corpus)
    groups = [[shown[n] for n in group] for group in observe.batches(shown)]
    assert_same(seen(other, corpus, groups), seen(one, corpus, groups))


# ------------------------------------------------------------------ what is looked at
def test_every_site_of_an_encoder_decoder_has_its_lines(model, corpus):
    one = loaded(model, "tiny_bart")
    table = seen(one, corpus, [[example] for example in examples(one, corpus)]).reset_index()
    assert table.filter(regex=r"^L\dH\d$").notna().all(axis=None)
    features = table.groupby(["source", "site"])["feature"].agg(set)
    for site in ("encoder_attn", "decoder_self_attn"):
        text = {
            "offset:-1",
            "entropy",
            "punctuation",
            "det:head->dep",
            "rare",
            "uuas:mst",
            "reach:5",
        }
        assert features["text", site] >= text
        assert features["chunks", site] == {"first_token"}
        assert features["repeats", site] == {"induction", "duplicate"}
    assert "det:dep->head" in features["text", "encoder_attn"]
    assert "det:dep->head" not in features["text", "decoder_self_attn"]  # it looks back
    cross = {f"source_offset:{k:+d}" if k else "source_offset:0" for k in range(-5, 6)}
    assert features["text", "decoder_cross_attn"] == cross | {"monotone", "entropy", "uniform"}
    assert set(features.index.get_level_values("site")) == set(one.site)
    assert set(table["n"].loc[table["feature"] == "induction"]) == {
        example.period for example in examples(one, corpus) if example.period
    }


def test_a_target_of_its_own_is_read_and_has_no_annotation(model, corpus):
    one = loaded(model, "tiny_bart")
    passages = [replace(passage, target="un chat!") for passage in corpus.passages[1:3]]
    other = replace(corpus, passages=tuple(passages))
    shown = observe.examples(one, other, n_chunks=0, n_repeats=0, seed=0)
    assert shown[0].target == one.shifted(one.codec.encode_target("un chat!"))
    table = observe.observe(one, shown, observe.watch(other, RELATIONS))
    features = table.groupby("site")["feature"].agg(set)
    assert "det:head->dep" in features["encoder_attn"]
    assert {"offset:-1", "punctuation"} <= features["decoder_self_attn"]
    assert not {"det:head->dep", "rare", "uuas:mst", "reach:5"} & features["decoder_self_attn"]
    # the decoder reads two special tokens and "un chat!", whose last byte alone sees the mark
    is_mark = (table["feature"] == "punctuation") & (table["site"] == "decoder_self_attn")
    assert table.loc[is_mark, "rule uniform"].tolist() == pytest.approx([1 / 10 / 8] * 2)


def test_only_plain_decoders_are_asked_about_copying(model, corpus):
    for name, copied in (("tiny_gpt2", True), ("tiny_bert", False), ("custom_decoder", True)):
        one = loaded(model, name)
        table = observe.observe(one, examples(one, corpus)[-2:], observe.watch(corpus, []))
        assert ("copying" in set(table["feature"])) == copied


def test_punctuation_is_what_holds_neither_a_letter_nor_a_digit(model):
    text = "Ah, no… 7é (🚀)!"
    words = tuple(Word(text[i], i, i + 1, 0) for i in range(len(text)) if text[i] != " ")
    mine = Corpus("mine", (Passage(text, words, "d", "d"),), {})
    one = loaded(model, "tiny_bert")
    shown = observe.examples(one, mine, n_chunks=0, n_repeats=0, seed=0)
    table = observe.observe(one, shown, observe.watch(mine, [])).set_index(["feature", "subset"])
    line = table.loc["punctuation", "all"]
    batch = one.batch([shown[0].text])
    marks = torch.tensor([a < b and text[a:b] in ",…(🚀)!" for a, b in shown[0].text.offsets])
    assert marks.sum() == 1 + 3 + 1 + 4 + 1 + 1  # in bytes
    for layer, pattern in enumerate(one.patterns(batch, ["attn"]).values()):
        mass = pattern[0, :, 1:-1, marks].sum(-1).mean(-1).tolist()
        assert [line[f"L{layer}H{head}"] for head in range(4)] == pytest.approx(mass, abs=1e-5)
    # and attention to words more than five words away
    reach = table.loc["reach:5", "all"]
    place = {word.start: number for number, word in enumerate(words)}
    owner = [place.get(a) if a < b else None for a, b in shown[0].text.offsets]
    for layer, pattern in enumerate(one.patterns(batch, ["attn"]).values()):
        total = torch.zeros(4)
        for q, k in product(range(len(owner)), repeat=2):
            if None not in (owner[q], owner[k]) and abs(owner[q] - owner[k]) > 5:
                total += pattern[0, :, q, k].detach() / owner.count(owner[q])
        mean = (total / len(words)).tolist()
        assert [reach[f"L{layer}H{head}"] for head in range(4)] == pytest.approx(mean, abs=1e-5)


def documents(n_passages, text="{name} says {n:02d}") -> Corpus:
    """Make 12 documents of so many passages, which say where they stand."""
    return Corpus(
        "mine",
        tuple(
            Passage(text.format(name=name, n=n), (), name, name)
            for name in "ABCDEFGHIJKL"
            for n in range(n_passages)
        ),
        {},
    )


def chunks_of(model, corpus, n) -> list[tuple[observe.Example, str]]:
    """Cut chunks, and read their text."""
    shown = observe.examples(model, corpus, n_chunks=n, n_repeats=0, seed=0)
    chunks = [example for example in shown if example.source == "chunks"]
    halves = {example.cluster: example.split for example in shown if example.source == "text"}
    assert [chunk.number for chunk in chunks] == [*range(len(chunks))]
    assert all(chunk.split == halves[chunk.cluster] for chunk in chunks)
    return [(chunk, model.codec.tokenizer.decode(chunk.text.ids[1:-1])) for chunk in chunks]


def test_chunks_are_running_text_of_one_document_in_the_tokenizer_s_frame(model):
    one, long = loaded(model, "tiny_bert"), documents(20)
    found = chunks_of(one, long, 20)
    before, after = one.codec.frame()
    for chunk, _ in found:
        assert (chunk.text[:1], chunk.text[-1:], len(chunk.text)) == (before, after, 64)
    halves = pd.Series([chunk.split for chunk, _ in found])
    assert halves.value_counts().to_dict() == {"select": 10, "report": 10}
    for name in "ABCDEFGHIJKL":  # 6 in each half: a chunk of each, then a second of the first 4
        text = "\n".join(f"{name} says {n:02d}" for n in range(20))
        read = [said for chunk, said in found if chunk.cluster == name]
        assert len(read) in (1, 2)
        assert "".join(read) == text[: 62 * len(read)]
    narrow = copy(one)
    narrow.codec = replace(one.codec, n_ctx=48, truncation="right")
    assert [len(chunk.text) for chunk, _ in chunks_of(narrow, long, 3)] == [48] * 3


def test_documents_too_short_for_a_chunk_are_joined_with_others_of_their_half(model):
    one = loaded(model, "tiny_bert")
    short = documents(3)  # of 29 letters
    found = chunks_of(one, short, 20)
    assert len(found) == 4  # three of the six documents of a half make one
    for chunk, text in found:
        half = observe.split("ABCDEFGHIJKL", seed=0)
        names = [name for name in "ABCDEFGHIJKL" if half[name] == chunk.split]
        [joined] = [some for some in (names[:3], names[3:]) if chunk.cluster in some]
        assert text == "\n".join(f"{name} says {n:02d}" for name in joined for n in range(3))[:62]


LETTERS = "abcdefghijklmnopqrstuvwxyz \n"


class TwoVocabularies:
    """Reads bytes; what it is to write are letters, numbered by themselves."""

    def __init__(self) -> None:
        letters = {letter: 3 + n for n, letter in enumerate(LETTERS)}
        known = models.WordLevel({"?": 0} | letters, unk_token="?")
        self.bytes, self.letters = byte_tokenizer("both"), Tokenizer(known)
        self.letters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")

    def __getattr__(self, name):
        return getattr(self.__dict__["bytes"], name)

    def __call__(self, text=None, text_target=None, **choices):
        if text is not None:
            return self.bytes(text, **choices)
        found = self.letters.encode(text_target)
        none = [0] * len(found)
        return dict(input_ids=found.ids, offset_mapping=found.offsets, special_tokens_mask=none)

    def read(self, ids) -> str:
        return "".join(map(self.letters.id_to_token, ids))


def test_a_decoder_with_a_smaller_vocabulary_reads_its_own_tokens(model, corpus):
    """31 tokens, where the encoder has 260."""
    config = TransformerConfig(
        *("encoder_decoder", 260),
        **dict(d_model=32, n_layers=1, n_heads=2, n_ctx=128, d_vocab_target=31),
    )
    tokenizer = TwoVocabularies()
    one = from_transformer(Transformer(config), tokenizer, name="two", padding_side="right")
    shown = examples(one, corpus)
    assert {example.source for example in shown} == {"text", "chunks", "repeats"}
    assert all(max(example.target.ids) < 31 for example in shown)
    for chunk in (example for example in shown if example.source == "chunks"):
        assert len(chunk.target) == 64
        said = tokenizer.decode(chunk.text.ids[1:-1])
        known = "".join(letter if letter in LETTERS else "?" for letter in said)
        assert tokenizer.read(chunk.target.ids[1:])[:62] == known
    table = seen(one, corpus, [[example] for example in shown]).reset_index()
    features = table[table["site"] == "decoder_self_attn"].groupby("source")["feature"].agg(set)
    assert features["chunks"] == {"first_token"}
    assert features["repeats"] == {"induction", "duplicate"}
    assert "det:head->dep" in features["text"]


def even(model):
    """Let all heads of a model attend alike to all that they see."""

    def patterns(batch, sites):
        seen = {
            (site.name, layer): model.visible(batch, site, layer)[:, None].float()
            for site in map(model.site.__getitem__, sites)
            for layer in range(site.n_layers)
        }
        return {
            place: (keys / keys.sum(-1, keepdim=True)).nan_to_num().expand(-1, 4, -1, -1)
            for place, keys in seen.items()
        }

    other = copy(model)
    other.patterns = patterns
    return other


@pytest.mark.parametrize("name", ["tiny_llama left", "tiny_bert", "tiny_gemma2", "tiny_bart"])
def test_even_attention_scores_its_law(model, corpus, name):
    """Words of several tokens, special ones, sliding windows and all."""
    one = even(loaded(model, name))
    shown = examples(one, corpus)
    groups = [[shown[n] for n in group] for group in observe.batches(shown)]
    table = seen(one, corpus, groups).reset_index()
    values = table.filter(regex=r"^L\dH\d$").to_numpy(float)
    assert values.shape[1] == 12
    is_mass, is_offset = table["subset"] == "mass", table["feature"].str.contains("offset:")
    shares = "special|punctuation|distance|entropy|first_token|induction|duplicate"
    has_law = is_mass | (table["feature"].str.fullmatch(shares) & ~is_offset)
    laws = table["rule uniform"].to_numpy()[has_law, None].repeat(12, axis=1)
    measured = ~np.isnan(values[has_law])
    np.testing.assert_allclose(values[has_law][measured], laws[measured], atol=2e-6)
    assert (table.loc[is_mass, "rule uniform"] > 0).mean() > 0.9
    masses = set(table.loc[is_mass, "feature"])
    assert masses >= {"det:head->dep", "rare", "uuas:max", "uuas:mst", "offset:-1"}
    flat = values[table["feature"] == "uniform"]
    np.testing.assert_allclose(flat[~np.isnan(flat)], 1, atol=1e-5)


def test_layers_of_different_windows_have_lines_of_their_own(model, corpus):
    one = loaded(model, "tiny_gemma2")
    [site] = one.sites
    assert [one.window(site, layer) for layer in range(3)] == [4, None, 4]
    shown = [e for e in examples(one, corpus) if e.source == "text"][:1]
    batch = one.batch([shown[0].text])
    table = observe.observe(one, shown, observe.watch(corpus, RELATIONS))
    lines = table[table["feature"] == "entropy"].reset_index()
    sizes = np.arange(2, len(shown[0].text) + 1)  # what is seen by all but BOS, which is not asked
    assert lines["n"].tolist() == [len(sizes)] * 2
    assert lines["rule uniform"].tolist() == pytest.approx(
        [np.log(np.minimum(sizes, 4)).mean(), np.log(sizes).mean()], rel=1e-5
    )
    for layer, pattern in enumerate(one.patterns(batch, ["attn"]).values()):
        entropy = torch.special.entr(pattern[0, :, 1:]).sum(-1).mean(-1).detach()
        own = lines[[f"L{layer}H{head}" for head in range(4)]].to_numpy()
        assert np.isnan(own).all(axis=1).tolist() == [layer == 1, layer != 1]
        np.testing.assert_allclose(own[int(layer == 1)], entropy, atol=1e-5)


def test_words_without_a_token_are_counted_and_not_asked(model):
    one = loaded(model, "tiny_bert")
    words = (  # "du": de + le share their characters, and the first of them has the tokens
        Word("de", 0, 2, 0, "ADP", "de", 2, "case"),
        Word("le", 0, 2, 0, "DET", "le", 2, "det"),
        Word("chat", 3, 7, 0, "NOUN", "chat"),
    )
    mine = Corpus("mine", (Passage("du chat", words, "d", "d"),), {})
    shown = observe.examples(one, mine, n_chunks=0, n_repeats=1, seed=0)
    assert observe.unaligned(one, shown) == 1
    table = observe.observe(one, shown[:1], observe.watch(mine, ["case", "det"]))
    asked = table[table["subset"] == "all"].set_index("feature")["n"]
    assert asked[["case:dep->head", "case:head->dep", "uuas:max", "reach:5"]].tolist() == [
        1,
        1,
        1,
        2,
    ]
    assert not asked.index.str.startswith("det").any()


def test_a_text_that_is_too_long_is_refused_with_its_document(model):
    long = Passage("a" * 200, (Word("a" * 200, 0, 200, 0),), "my document", "d")
    with pytest.raises(InputError, match="my document: text of 2"):
        examples(loaded(model, "tiny_gpt2"), Corpus("mine", (long,), {}))


# ------------------------------------------------------------------ halves
def test_halves_share_no_cluster_and_are_as_large():
    clusters = [f"document {n % 21}" for n in range(100)]
    found = observe.split(clusters, seed=3)
    assert set(found) == set(clusters)
    assert sorted([*found.values()].count(half) for half in ("select", "report")) == [10, 11]
    assert observe.split(clusters[::-1], seed=3) == found
    assert any(observe.split(clusters, seed=s) != found for s in range(5))


def test_passages_of_one_cluster_are_in_one_half_unless_there_are_too_few_clusters(model, corpus):
    one = loaded(model, "tiny_bert")

    def halves(n_clusters):
        passages = [
            replace(corpus.passages[n % 5], cluster=f"c{n % n_clusters}") for n in range(40)
        ]
        shown = examples(one, replace(corpus, passages=tuple(passages)))
        assert [example.number for example in shown if example.source == "text"] == [*range(40)]
        table = pd.DataFrame([(e.source, e.cluster, e.split) for e in shown])
        for _, part in table.groupby(0):
            assert abs((part[2] == "select").mean() - 0.5) < 0.1
        assert (table.groupby([0, 1])[2].nunique() == 1).all()
        return table.loc[table[0] == "text", 1].nunique()

    assert halves(10) == 10
    assert halves(9) == 40


# ------------------------------------------------------------------ one sentence
SAID = Passage(
    "The old cook saw her son today",
    tuple(
        Word(form, start, start + len(form), 0, upos, form, head, deprel, pronoun)
        for form, start, upos, head, deprel, pronoun in [
            ("The", 0, "DET", 2, "det", None),
            ("old", 4, "ADJ", 2, "amod", None),
            ("cook", 8, "NOUN", 3, "nsubj", None),
            ("saw", 13, "VERB", None, "root", None),
            ("her", 17, "PRON", 5, "nmod:poss", "possessive"),
            ("son", 21, "NOUN", 3, "obj", None),
            ("today", 25, "NOUN", 3, "obl:tmod", None),
        ]
    ),
    "d",
    "d",
    (Mention("cook", 0, 2), Mention("cook", 4, 4)),
)


def between_words(model) -> np.ndarray:
    """Read attention between the words of SAID off the patterns: [layer head query key]."""
    batch = model.batch([model.codec.encode(SAID.text)])
    places = batch.text.offsets[0].tolist()
    pieces = [
        [n for n, (start, end) in enumerate(places) if word.start <= start < end <= word.end]
        for word in SAID.words
    ]
    patterns = torch.stack([*model.patterns(batch, ["attn"]).values()])[:, 0].detach().numpy()
    columns = np.stack([patterns[..., keys].sum(-1) for keys in pieces], axis=-1)
    return np.stack([columns[..., rows, :].mean(-2) for rows in pieces], axis=-2)


@pytest.mark.parametrize("name", ["tiny_bert", "tiny_llama"])
def test_a_sentence_is_asked_who_did_what_to_whom_and_when(model, name):
    one = loaded(model, name)
    causal = one.sites[0].causal
    found = sentence.look(one, SAID)
    by_hand = {  # question: of which word, answer; in a causal model the later word is asked
        "which": (2, 1),
        "who": (3, 2),
        "what": (5, 3) if causal else (3, 5),
        "when": (6, 3) if causal else (3, 6),
        "refers to": (4, 2),
        "whose": (5, 4),
    }
    forms = [word.form for word in SAID.words]
    assert found["question"].unique().tolist() == [*by_hand]
    assert len(found) == len(by_hand) * 12
    what = found[found["question"] == "what"]
    assert (set(what["about"]), set(what["answer"])) == ({"saw"}, {"son"})
    attention = between_words(one)
    for line in found.itertuples():
        word, answer = by_hand[line.question]
        assert (line.word, line.looks_at) == (forms[word], forms[answer])
        row = attention[line.layer, line.head, word].copy()
        assert line.attention == pytest.approx(row[answer], abs=1e-6)
        row[word] = -1
        row[word + 1 if causal else 7 :] = -1
        assert line.most == (row.argmax() == answer)
    assert 0 < found["most"].mean() < 1


def test_without_annotation_a_sentence_is_asked_where_each_word_looks(model):
    bare = replace(
        SAID,
        words=tuple(replace(word, head=None, deprel=None, pronoun=None) for word in SAID.words),
        mentions=(),
    )
    found = sentence.look(loaded(model, "tiny_bert"), bare)
    assert set(found["question"]) == {"looks at"}
    assert len(found) == 7 * 6 * 12
    # of each word and head one other is looked at most
    assert (found.groupby(["layer", "head", "word"])["most"].sum() == 1).all()
    # in a causal model each pair is there once, from the later to the earlier word
    back = sentence.look(loaded(model, "tiny_llama"), bare)
    assert not back.duplicated(["word", "looks_at", "layer", "head"]).any()
    assert len(back) == 7 * 6 / 2 * 12
    assert (back.groupby(["layer", "head", "word"])["most"].sum() == 1).all()


def test_one_head_s_attention_is_laid_out_for_a_figure(model):
    one = loaded(model, "tiny_bert")
    table = sentence.between(one, SAID, "attn", 1, 2)
    square = table.pivot(index="query", columns="key", values="attention").to_numpy()
    np.testing.assert_allclose(square, between_words(one)[1, 2], atol=1e-6)
