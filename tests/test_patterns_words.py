"""Words and tokens: pieces of four families of tokenizers, and Clark's rule; by hand, by loops."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from interp.corpora.corpus import Word
from interp.models.bundled import PACKAGES
from interp.models.conversion import cache_folder
from interp.models.text import Encoded, codec, pad
from interp.patterns import words

SMOLLM2 = PACKAGES["smollm2"]
BYTE_PAIRS = [  # the tokens of each word; what a tokenizer does with spaces is its own affair
    ("I don't think so.", "I do n't think so .", ["I", "don", "'t", "think", "so", "."]),
    ("so unbelievably", "so unbelievably", ["so", "unbelie+v+ably"]),
    ("the café's 3.14%", "the café 's 3.14 %", ["the", "café", "'s", "3+.+1+4", "%"]),
    ("“rock”, he said", "“ rock ” , he said", ["“", "rock", "”,", "", "he", "said"]),
    ("go 👩‍🚀 go", "go 👩‍🚀 go", ["go", "👩+👩+👩+\u200d+\u200d+🚀+🚀+🚀", "go"]),
]
WORD_PIECES = [
    ("I don't think so.", "I do n't think so .", ["I", "don", "'+t", "think", "so", "."]),
    ("unbelievably long", "unbelievably long", ["un+bel+ie+va+bly", "long"]),
    ("the café's 3.14%", "the café 's 3.14 %", ["the", "café", "'+s", "3+.+14", "%"]),
    ("go 👩‍🚀 go", "go 👩‍🚀 go", ["go", "👩‍🚀", "go"]),
]
SENTENCE_PIECES = [
    ("I don't think so.", "I do n't think so .", ["I", "d+on", "'+t", "th+in+k", "so", "."]),
    ("a naïve café", "a naïve café", ["a", "n+a+ï+ï+ve", "c+a+f+é"]),
    ("go 👩‍🚀 go", "go 👩‍🚀 go", ["g+o", "+".join("👩👩👩👩\u200d\u200d\u200d🚀🚀🚀🚀"), "g+o"]),
]
BYTES = [
    ("I don't.", "I do n't .", ["I", "d+o", "n+'+t", "."]),
    ("à 🚀", "à 🚀", ["à+à", "🚀+🚀+🚀+🚀"]),
]
HANDMADE = [
    (name, *case)
    for name, cases in (
        ("smollm2", BYTE_PAIRS),
        ("minilm", WORD_PIECES),
        ("stories260k", SENTENCE_PIECES),
        ("tiny_gpt2", BYTES),
    )
    for case in cases
]
HARD = "Don't! “Rock'n'roll”, U.S.A.'s naïve 👩‍🚀 (e.g. 3.14%) unbelievably—isn't it?"
HARD_WORDS = (
    "Do n't ! “ Rock 'n' roll ” , U.S.A. 's naïve 👩‍🚀 ( e.g. 3.14 % ) unbelievably — is n't it ?"
)


@pytest.fixture(scope="module")
def codec_of(model):
    """Give a model's codec; SmolLM2's without the model, where its tokenizer is at hand."""

    @cache
    def load(name):
        folder = cache_folder() / f"{Path(SMOLLM2.file).stem}-{SMOLLM2.sha256[:12]}"
        if name != "smollm2" or not folder.is_dir():
            return model(name).codec
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return codec(tokenizer, prepend_bos="auto", truncation="error", n_ctx=None)

    return load


def located(text: str, forms: str) -> tuple[Word, ...]:
    """Place words in a text, from left to right."""
    found, at = [], 0
    for form in forms.split():
        start = text.index(form, at)
        at = start + len(form)
        found.append(Word(form, start, at, sentence=0))
    return tuple(found)


def owners_by_characters(encoded: Encoded, passage) -> list[list[bool]]:
    """Let the characters of each token vote for a word; the first word with most votes owns it."""
    owned = [[False] * len(encoded) for _ in passage]
    for token, (start, end) in enumerate(encoded.offsets):
        votes = [sum(word.start <= at < word.end for at in range(start, end)) for word in passage]
        if not encoded.special[token] and max(votes) > 0:
            owned[votes.index(max(votes))][token] = True
    return owned


@pytest.mark.parametrize(("name", "text", "forms", "wanted"), HANDMADE)
def test_pieces_of_a_word_by_hand(codec_of, name, text, forms, wanted):
    encoded = codec_of(name).encode(text)
    owned = words.pieces(pad([encoded], 0, "right"), [located(text, forms)])[0]
    shown = [text[start:end].strip() for start, end in encoded.offsets]
    assert ["+".join(shown[place] for place in word.nonzero().ravel()) for word in owned] == wanted


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["smollm2", "minilm", "stories260k", "tiny_gpt2", "tiny_t5"])
def test_pieces_by_a_vote_of_characters_whatever_the_padding(codec_of, name, side):
    pairs = [(HARD, HARD_WORDS), ("It is.", "It is ."), ("Don't! Don't.", "Do n't ! Do n't .")]
    passages = [located(*pair) for pair in pairs]
    encoded = [codec_of(name).encode(text) for text, _ in pairs]
    padded = pad(encoded, 0, side)
    owned = words.pieces(padded, passages)
    assert owned.shape[1] == len(passages[0])
    for row, (tokens, passage) in enumerate(zip(encoded, passages, strict=True)):
        real = padded.mask[row]
        assert owned[row][: len(passage), real].tolist() == owners_by_characters(tokens, passage)
        assert not owned[row][len(passage) :].any()
        assert not owned[row][:, ~real].any()


def tokens(*offsets, special=()) -> Encoded:
    n = len(offsets)
    return Encoded((7,) * n, tuple(offsets), tuple(place in special for place in range(n)))


def test_a_word_without_a_token_of_its_own_is_unaligned_and_its_tokens_have_no_sentence():
    # "du": French de + le share their characters; the last word lies beyond a truncated text
    passage = (
        Word("de", 0, 2, sentence=0),
        Word("le", 0, 2, sentence=0),
        Word("chat", 3, 7, sentence=0),
        Word("dort", 8, 12, sentence=1),
        Word("ici", 13, 16, sentence=1),
    )
    text = pad([tokens((0, 0), (0, 2), (2, 7), (7, 8), (8, 12), special=(0,))], 0, "right")
    owned = words.pieces(text, [passage])
    assert owned.any(-1).tolist() == [[True, False, True, True, False]]
    assert words.sentence(owned, [passage]).tolist() == [[-1, 0, 0, -1, 1]]


def test_equal_shares_go_to_the_first_word():
    text = pad([tokens((0, 1), (1, 3))], 0, "right")
    owned = words.pieces(text, [(Word("ab", 0, 2, 0), Word("cd", 2, 4, 0))])
    assert owned.tolist() == [[[True, True], [False, False]]]


def test_clark_s_rule_by_hand():
    # [CLS] un ##known word: "unknown" has two pieces; [CLS] belongs to no word
    pattern = torch.tensor(
        [
            [0.7, 0.1, 0.1, 0.1],
            [0.4, 0.1, 0.2, 0.3],
            [0.0, 0.5, 0.4, 0.1],
            [0.2, 0.3, 0.1, 0.4],
        ]
    )
    owned = torch.tensor([[[False, True, True, False], [False, False, False, True]]])
    found = words.between_words(pattern[None, None], owned, owned)
    # from unknown: the mean of (.1 + .2, .3) and (.5 + .4, .1); from word: (.3 + .1, .4)
    wanted = torch.tensor([[[[0.6, 0.2], [0.4, 0.4]]]])
    torch.testing.assert_close(found, wanted)


def test_clark_s_rule_by_a_loop_over_words_and_pieces(model):
    """On MiniLM: rows add up to 1 minus what goes to [CLS] and [SEP]."""
    minilm = model("minilm")
    batch = minilm.batch([minilm.codec.encode(text) for text in (HARD, "It isn't it.")])
    passages = [located(HARD, HARD_WORDS), located("It isn't it.", "It is n't it .")]
    with torch.inference_mode():
        pattern = minilm.patterns(batch, ["attn"])["attn", 3].double()
    owned = words.pieces(batch.text, passages)
    found = words.between_words(pattern, owned, owned)
    for row, passage in enumerate(passages):
        encoded = minilm.codec.encode([HARD, "It isn't it."][row])
        pieces = [
            [token for token, mine in enumerate(word) if mine]
            for word in owners_by_characters(encoded, passage)
        ]
        to_special = pattern[row, :, :, batch.text.special[row]].sum(-1)
        for query, rows in enumerate(pieces):
            for key, columns in enumerate(pieces):
                wanted = sum(pattern[row, :, q, k] for q in rows for k in columns) / len(rows)
                torch.testing.assert_close(found[row, :, query, key], wanted)
            rest = 1 - to_special[:, rows].mean(-1)
            torch.testing.assert_close(found[row, :, query].sum(-1), rest, atol=1e-6, rtol=0)


def test_words_of_one_token_each_have_the_tokens_pattern():
    pattern = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    owned = torch.eye(5, dtype=torch.bool).expand(2, 5, 5)
    torch.testing.assert_close(words.between_words(pattern, owned, owned), pattern)


def test_the_word_attended_most_is_one_allowed_with_some_attention_and_the_first_of_equals():
    attention = torch.tensor([[[[0.9, 0.1, 0.0], [0.3, 0.4, 0.3], [0.0, 0.0, 1.0]]]])
    allowed = ~torch.eye(3, dtype=torch.bool)[None]
    assert words.most_attended(attention, allowed).tolist() == [[[1, 0, -1]]]
    nothing = torch.zeros_like(allowed)
    assert words.most_attended(attention, nothing).tolist() == [[[-1, -1, -1]]]


def test_words_look_at_other_aligned_words_and_in_causal_models_back():
    aligned = torch.tensor([[[True], [False], [True], [True]]])
    two_ways = words.others(aligned, aligned, causal=False)[0]
    assert two_ways.nonzero().tolist() == [[0, 2], [0, 3], [2, 0], [2, 3], [3, 0], [3, 2]]
    back = words.others(aligned, aligned, causal=True)[0]
    assert back.nonzero().tolist() == [[2, 0], [3, 0], [3, 2]]


def test_bos_in_front_moves_no_piece_to_another_word(model):
    plain = model("tiny_llama").codec
    passage = [located(HARD, HARD_WORDS)]
    with_bos = replace(plain, prepend_bos=True).encode(HARD)
    without = words.pieces(pad([plain.encode(HARD)], 0, "right"), passage)
    found = words.pieces(pad([with_bos], 0, "right"), passage)
    assert with_bos.special[0]
    assert not found[..., 0].any()
    assert torch.equal(found[..., 1:], without)
