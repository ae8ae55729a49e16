"""Questions put to heads and to rules: small passages by hand, and a loop beside `observe`."""

from collections import defaultdict
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from interp.corpora.builtin import builtin
from interp.corpora.corpus import Corpus, Mention, Passage, Word
from interp.patterns import observe
from interp.patterns.questions import core, count, questions, relation

GIFT = """
0 The      DET   2 det
0 old      ADJ   2 amod
0 sailor   NOUN  3 nsubj
0 gave     VERB  - root
0 the      DET   5 det
0 boy      NOUN  3 iobj
0 two      NUM   7 nummod
0 maps     NOUN  3 obj
0 last     ADJ   9 amod
0 week     NOUN  3 obl:tmod
0 .        PUNCT 3 punct
"""
TWO = """
0 Once     ADV   2 advmod
0 she      PRON  2 nsubj
0 slept    VERB  - root
0 .        PUNCT 2 punct
1 The      DET   5 det
1 cook     NOUN  8 nsubj
1 never    ADV   8 advmod
1 really   ADV   8 advmod
1 called   VERB  - root
1 her      PRON  8 obj
1 today    ADV   8 advmod
1 .        PUNCT 8 punct
"""
NAMES = """
0 Mary     PROPN 7 nsubj
0 Ann      PROPN 0 flat
0 Lee      PROPN 0 flat:name
0 as       ADV   5 cc
0 well     ADV   3 fixed
0 as       ADP   3 fixed
0 Tom      PROPN 0 conj
0 bought   VERB  - root
0 ice      NOUN  9 compound
0 cream    NOUN  10 compound
0 cones    NOUN  7 obj
0 in       ADP   12 case
0 Rome     PROPN 7 obl
0 up       ADP   7 compound:prt
"""
NOTHING = count([])


def passage(table: str, mentions=(), pronouns=None, **facts) -> Passage:
    """Read `sentence form upos head deprel`; mentions are (entity, first, last)."""
    rows = [line.split() for line in table.strip().splitlines()]
    words, at = [], 0
    for number, (sentence, form, upos, head, deprel) in enumerate(rows):
        words.append(
            Word(
                form,
                at,
                at + len(form),
                int(sentence),
                upos,
                lemma=form.lower(),
                head=None if head == "-" else int(head),
                deprel=deprel,
                pronoun=(pronouns or {}).get(number),
            )
        )
        at += len(form) + 1
    text = " ".join(word.form for word in words)
    return Passage(
        text, tuple(words), "d", "d", tuple(Mention(*mention) for mention in mentions), **facts
    )


def asked(one: Passage, *, causal=False, relations=(), counts=NOTHING) -> dict:
    """Give each feature's questions."""
    found = questions(one, causal=causal, relations=relations, counts=counts)
    assert len({(q.role, q.feature) for q in found}) == len(found)
    return {q.feature: q for q in found}


def pairs(one) -> dict[int, set[int]]:
    return {
        int(query): set(np.flatnonzero(row).tolist())
        for query, row in zip(one.query, one.targets, strict=True)
    }


# ------------------------------------------------------------------ syntactic
def test_a_relation_is_asked_both_ways_and_any_of_several_dependents_is_right():
    relations = ["nsubj", "obj", "det", "advmod", "amod"]
    found = asked(passage(TWO), relations=relations)
    assert found["advmod:dep->head"].role == "syntactic"
    assert {name: pairs(q) for name, q in found.items() if q.role == "syntactic"} == {
        "nsubj:dep->head": {1: {2}, 5: {8}},
        "nsubj:head->dep": {2: {1}, 8: {5}},
        "obj:dep->head": {9: {8}},
        "obj:head->dep": {8: {9}},
        "det:dep->head": {4: {5}},
        "det:head->dep": {5: {4}},
        "advmod:dep->head": {0: {2}, 6: {8}, 7: {8}, 10: {8}},
        "advmod:head->dep": {2: {0}, 8: {6, 7, 10}},
    }


def test_a_causal_model_is_asked_what_stands_to_the_left():
    relations = ["nsubj", "obj", "det", "advmod", "amod"]
    found = asked(passage(TWO), causal=True, relations=relations)
    assert {name: pairs(q) for name, q in found.items() if q.role == "syntactic"} == {
        "nsubj:head->dep": {2: {1}, 8: {5}},
        "obj:dep->head": {9: {8}},
        "det:head->dep": {5: {4}},
        "advmod:dep->head": {10: {8}},
        "advmod:head->dep": {2: {0}, 8: {6, 7}},
    }


def test_subtypes_belong_to_the_general_relation_unless_they_are_listed():
    listed = ["obl", "obl:unmarked", "nmod"]
    labels = ["obl", "obl:agent", "obl:tmod", "obl:npmod", "obl:unmarked", "nmod:poss", "obj", None]
    assert [relation(label, listed) for label in labels] == [
        *("obl", "obl", "obl:unmarked", "obl:unmarked", "obl:unmarked", "nmod", None, None)
    ]
    assert relation("obl:tmod", ["obl"]) == "obl"
    assert relation("obl", ["obl:unmarked"]) is None
    for label in ("obl:tmod", "obl:npmod", "obl:unmarked"):  # by whichever of its names
        assert relation(label, ["obl:tmod", "obl"]) == "obl:tmod"
    found = asked(passage(GIFT), relations=["obl", "obl:unmarked"])
    assert pairs(found["obl:unmarked:dep->head"]) == {9: {3}}
    assert "obl:dep->head" not in found


# ------------------------------------------------------------------ semantic
def test_words_of_one_name_expression_or_compound_look_at_each_other():
    found = asked(passage(NAMES))
    same = {name: pairs(q) for name, q in found.items() if name.startswith("same:")}
    assert same == {
        "same:flat": {0: {1, 2}, 1: {0, 2}, 2: {0, 1}},
        "same:fixed": {3: {4, 5}, 4: {3, 5}, 5: {3, 4}},
        "same:compound": {8: {9, 10}, 9: {8, 10}, 10: {8, 9}},  # a chain is one group
    }
    assert {found[name].role for name in same} == {"semantic"}
    back = asked(passage(NAMES), causal=True)
    assert pairs(back["same:flat"]) == {1: {0}, 2: {0, 1}}


def test_mentions_of_two_to_five_words_are_entities_whose_content_words_belong_together():
    mentions = [
        ("a", 0, 2),  # The old sailor
        ("b", 4, 5),  # the boy: one content word alone
        ("c", 7, 7),
        ("d", 5, 9),  # boy two maps last week
        ("e", 3, 8),  # six words
    ]
    found = asked(passage(GIFT, mentions))["same:entity"]
    five = {5, 6, 7, 8, 9}
    assert pairs(found) == {1: {2}, 2: {1}, **{member: five - {member} for member in five}}


def toy_corpus() -> list[Passage]:
    """Sentences of nouns and verbs; `x` is no content word."""
    lines = [
        ["cat mouse chase", "dog bone", "cat mouse x"],
        ["dog bone x", "mouse cheese x cat x"],
        ["cat dog", "cheese mouse", "dog cat x", "cat"],
        ["bone cheese"],
    ]
    return [
        passage(
            "\n".join(
                f"{sentence} {form} {'DET' if form == 'x' else 'NOUN'} - root"
                for sentence, line in enumerate(group)
                for form in line.split()
            )
        )
        for group in lines
    ]


def test_pmi_is_what_numpy_finds_in_the_table_of_sentences_and_lemmas():
    corpus = toy_corpus()
    counts = count(corpus)
    sentences = defaultdict(set)
    for number, one in enumerate(corpus):
        for word in one.words:
            if word.upos == "NOUN":
                sentences[number, word.sentence].add(word.lemma)
    lemmas = sorted(set.union(*sentences.values()))
    table = np.array([[lemma in sentence for lemma in lemmas] for sentence in sentences.values()])
    together, p = table.T.astype(int) @ table, table.mean(0)
    assert (together >= 2).sum() > len(lemmas)
    for (i, a), (j, b) in combinations(enumerate(lemmas), 2):
        wanted = -np.inf
        if together[i, j] >= 2:
            wanted = np.log(table[:, i][table[:, j]].mean() / p[i])  # ln p(a | b) / p(a)
        assert counts.pmi(a, b) == pytest.approx(wanted)
        assert counts.pmi(b, a) == counts.pmi(a, b)
    assert counts.words["x"] == 5


def test_a_collocation_is_with_the_earlier_content_word_of_the_highest_pmi_above_0():
    corpus = toy_corpus()
    counts = count(corpus)
    # by hand, of 10 sentences: cat and mouse are 3 times together (6 and 4 in all), cheese and
    # mouse twice (3, 4), dog and bone twice (4, 3), cat and dog twice (6, 4), others once at most
    assert counts.pmi("cat", "mouse") == pytest.approx(np.log(3 * 10 / (6 * 4)))
    assert counts.pmi("cheese", "mouse") == pytest.approx(np.log(2 * 10 / (3 * 4)))
    assert counts.pmi("cat", "dog") == pytest.approx(np.log(2 * 10 / (6 * 4)))  # below 0
    rows = ["cat", "dog", "x", "mouse", "cheese", "Mouse", "cat", "bone"]
    one = passage("\n".join(f"0 {w} {'DET' if w == 'x' else 'NOUN'} - root" for w in rows))
    found = asked(one, counts=counts)["collocation"]
    assert found.role == "semantic"
    # the dog has no one; for the second mouse, cheese beats the cat; the second cat has two
    assert pairs(found) == {3: {0}, 4: {3}, 5: {4}, 6: {3, 5}, 7: {1}}


# ------------------------------------------------------------------ pronouns and tokens
STORY = """
0 Ann      PROPN 1 nsubj
0 saw      VERB  - root
0 old      ADJ   3 amod
0 Bob      PROPN 1 obj
0 .        PUNCT 1 punct
1 She      PRON  6 nsubj
1 knew     VERB  - root
1 his      PRON  8 nmod:poss
1 dog      NOUN  6 obj
1 and      CCONJ 10 cc
1 that     PRON  6 conj
1 hurt     VERB  6 conj
1 him      PRON  11 obj
1 himself  PRON  12 nmod
"""
WHO = [
    ("ann", 0, 0),
    ("bob", 2, 3),
    ("ann", 5, 5),
    ("bob", 7, 7),
    ("dog", 7, 8),
    ("dog", 10, 10),
    ("bob", 12, 12),
    ("bob", 13, 13),
    ("ghost", 1, 1),
]
KINDS = {5: "personal", 7: "possessive", 10: "other", 12: "personal", 13: "reflexive"}


def test_any_word_of_any_earlier_mention_is_an_antecedent():
    found = asked(passage(STORY, WHO, KINDS, stratum="pro"))
    she, his, him, himself = {5: {0}}, {7: {2, 3}}, {12: {2, 3, 7}}, {13: {2, 3, 7, 12}}
    assert {name: pairs(q) for name, q in found.items() if q.role == "pronoun"} == {
        "antecedent": she | his | him | himself,
        "antecedent:personal": she | him,
        "antecedent:possessive": his,
        "antecedent:reflexive": himself,
        "antecedent:pro": she | his | him | himself,
        "antecedent:head": she | {7: {3}, 12: {3, 7}, 13: {3, 7, 12}},  # Bob, not old
    }
    assert "antecedent:pro" not in asked(passage(STORY, WHO, KINDS))
    later = passage(STORY, [("ann", 5, 5), ("ann", 8, 8)], KINDS)  # nothing before the pronoun
    assert "antecedent" not in asked(later)


COUPLE = """
0 the      DET   2 det
0 old      ADJ   2 amod
0 queen    NOUN  10 nsubj
0 Ann      PROPN 2 flat
0 of       ADP   6 case
0 sunny    ADJ   6 amod
0 Spain    PROPN 2 nmod
0 and      CCONJ 9 cc
0 her      PRON  9 nmod:poss
0 son      NOUN  2 conj
0 slept    VERB  - root
"""


def test_a_mention_s_core_is_its_head_with_further_names_and_conjuncts():
    words = passage(COUPLE).words
    spans = {
        (0, 9): {2, 3, 9},
        (0, 6): {2, 3},
        (0, 3): {2, 3},
        (8, 9): {9},
        (4, 6): {6},
        (8, 8): {8},
    }
    assert {span: core(words, Mention("x", *span)) for span in spans} == spans
    finer = {"flat": "flat:name", "conj": "conj:and"}
    parted = [replace(word, deprel=finer.get(word.deprel, word.deprel)) for word in words]
    assert {span: core(parted, Mention("x", *span)) for span in spans} == spans
    assert core(words, Mention("x", 2, 10)) == {10}  # the root's head is nowhere
    bare = [replace(word, head=None, deprel=None) for word in words]
    assert core(bare, Mention("x", 0, 6)) == {2, 3, 6}  # without a tree, the nouns
    assert core(bare, Mention("x", 4, 5)) == {4, 5}


def test_the_rarest_of_the_words_that_are_seen():
    corpus = [passage("\n".join(f"0 {w} X - root" for w in "aAabbc"))]
    found = {}
    for causal in (False, True):
        one = asked(corpus[0], causal=causal, counts=count(corpus))["rare"]
        assert one.role == "token"
        found[causal] = pairs(one)
    # a: 3 times (capitals do not count), b: 2, c: 1
    assert found[False] == {n: {5} for n in range(5)} | {5: {3, 4}}
    assert found[True] == {2: {0, 1}, 3: {0, 1, 2}, 4: {3}, 5: {3, 4}}


# ------------------------------------------------------------------ rules
def test_every_rule_s_answer_by_hand():
    found = asked(passage(STORY, WHO, KINDS), relations=["obj", "nmod", "nsubj", "nmod:poss"])
    one = found["obj:dep->head"]
    assert one.query.tolist() == [3, 8, 12]
    answers = {name: said.tolist() for name, said in one.rules.items()}
    assert set(answers) == {
        *(f"offset:{k:+d}" for k in range(-10, 11) if k),
        *("first_word", "nearest_pos"),
    }
    assert answers["offset:-1"] == [2, 7, 11]
    assert answers["offset:+2"] == [5, 10, -1]
    assert answers["offset:-4"] == [-1, 4, 8]
    assert answers["first_word"] == [0, 5, 5]
    # saw, knew, hurt are verbs; to the left of him the nearest is hurt
    assert answers["nearest_pos"] == [1, 6, 11]
    down = found["obj:head->dep"]
    assert down.query.tolist() == [1, 6, 11]
    assert down.rules["nearest_pos"].tolist() == [3, 8, 12]  # no matter that Ann is a name as near
    first = found["nsubj:dep->head"]
    assert first.query.tolist() == [0, 5]
    assert first.rules["first_word"].tolist() == [-1, -1]
    who = found["antecedent"]
    assert who.query.tolist() == [5, 7, 12, 13]
    assert {n: a.tolist() for n, a in who.rules.items() if not n.startswith("offset")} == {
        "first_word": [-1, 5, 5, 5],
        "nearest_noun": [3, 3, 8, 8],
        "first_noun": [0, 0, 0, 0],
        "subject": [0, 5, 5, 5],
    }


def test_rules_of_meaning_and_of_causal_models_by_hand():
    found = asked(passage(NAMES))["same:compound"]
    assert found.rules["nearest_content"].tolist() == [7, 8, 9]  # the left one of equals
    back = asked(passage(NAMES), causal=True)["same:compound"]
    assert back.query.tolist() == [9, 10]
    assert back.rules["nearest_content"].tolist() == [8, 9]
    assert {n for n in back.rules if n.startswith("offset")} == {
        f"offset:-{k}" for k in range(1, 11)
    }
    token = asked(passage(NAMES), causal=True, counts=count([]))["rare"]
    assert not set(token.rules) & {"nearest_content", "nearest_pos", "nearest_noun"}
    bare = [replace(word, head=None, deprel=None) for word in passage(STORY, (), KINDS).words]
    plain = replace(passage(STORY, WHO, KINDS), words=tuple(bare))
    assert "subject" not in asked(plain)["antecedent"].rules  # without trees nobody knows


def test_the_nearest_word_of_the_target_s_part_of_speech_is_looked_for_on_its_side():
    # from week, its verb is to the left; the nearest noun of boy's kind is not asked
    found = asked(passage(GIFT), relations=["nsubj", "det", "iobj", "obj"])
    assert found["nsubj:head->dep"].rules["nearest_pos"].tolist() == [2]
    assert found["obj:head->dep"].rules["nearest_pos"].tolist() == [5]  # boy, and not maps: wrong
    assert not found["obj:head->dep"].hits(found["obj:head->dep"].rules["nearest_pos"]).any()
    assert found["obj:dep->head"].rules["nearest_pos"].tolist() == [3]


def test_hits_and_what_is_left_where_words_are_unaligned():
    one = asked(passage(TWO), relations=["advmod"])["advmod:head->dep"]  # 2: {0}, 8: {6, 7, 10}
    answers = np.array([[0, 7], [-1, 10], [2, -1], [10, 5]])
    assert one.hits(answers).tolist() == [[1, 1], [0, 1], [0, 0], [0, 0]]
    last = asked(passage(TWO), relations=["punct"])["punct:head->dep"]  # 2: {3}, 8: {11}
    assert last.hits(np.array([-1, -1])).tolist() == [
        False,
        False,
    ]  # no answer is not the last word
    known = np.ones(12, dtype=bool)
    known[[0, 7]] = False
    left = one.among(known)
    assert pairs(left) == {8: {6, 10}}
    assert left.rules["first_word"].tolist() == [4]
    known[8] = False
    assert not len(one.among(known).query)
    assert pairs(one) == {2: {0}, 8: {6, 7, 10}}  # nothing is changed in place


# ------------------------------------------------------------------ on models
RELATIONS = ["nsubj", "obj", "iobj", "det", "advmod", "amod", "nmod", "nmod:poss"]


def word_attention(model, site, one: Passage) -> np.ndarray:
    """Read attention between words off the model, without padding: [layer head query key]."""
    batch = model.batch([model.codec.encode(one.text)])
    owned = [
        [
            token
            for token, (start, end) in enumerate(batch.text.offsets[0].tolist())
            if word.start <= start < end <= word.end
        ]
        for word in one.words
    ]
    found = []
    for pattern in model.patterns(batch, [site.name]).values():
        columns = torch.stack([pattern[0, :, :, keys].sum(-1) for keys in owned], dim=-1)
        found.append(torch.stack([columns[:, rows].mean(1) for rows in owned], dim=1))
    return torch.cat(found).detach().double().numpy()


def targets_by_definition(one: Passage, feature: str, seen) -> dict[int, set[int]]:
    """Read a tree, or a list of mentions, literally."""
    found = defaultdict(set)
    name, _, direction = feature.rpartition(":")
    for number, word in enumerate(one.words):
        if direction == "dep->head" and word.deprel == name:
            found[number].add(word.head)
        if direction == "head->dep" and word.deprel == name:
            found[word.head].add(number)
    for pronoun in one.mentions if feature == "antecedent" else ():
        kind = one.words[pronoun.first].pronoun
        if pronoun.first == pronoun.last and kind in ("personal", "possessive", "reflexive"):
            for other in one.mentions:
                if other.entity == pronoun.entity and other.last < pronoun.first:
                    found[pronoun.first] |= {*range(other.first, other.last + 1)}
    kept = {q: {w for w in words if seen(q, w)} for q, words in found.items()}
    return {q: words for q, words in sorted(kept.items()) if words}


def nearest_like(one: Passage, q: int, targets: set[int]) -> int | None:
    target = min(targets, key=lambda w: (abs(w - q), w))
    step = 1 if target > q else -1
    while 0 <= (q := q + step) < len(one.words):
        if one.words[q].upos == one.words[target].upos:
            return q
    return None


def asked_of(one: Passage, features, seen) -> dict:
    """List a passage's questions by feature and subset."""
    found = {}
    for feature in features:
        wanted = targets_by_definition(one, feature, seen)
        found[feature, "all"] = wanted
        if feature != "antecedent":
            hard = {q for q in wanted if nearest_like(one, q, wanted[q]) not in wanted[q]}
            found[feature, "pos_wrong"] = {q: wanted[q] for q in hard}
    return {place: wanted for place, wanted in found.items() if wanted}


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_bert"])
def test_observations_are_what_a_loop_over_words_and_heads_finds(model, name):
    tiny = model(name)
    passages = [passage(GIFT), passage(TWO), passage(STORY, WHO, KINDS), passage(NAMES)]
    passages += builtin(n_sentences=4, seed=0).passages[-4:]
    corpus = Corpus("mine", tuple(passages), {})
    [site] = tiny.sites
    shown = observe.examples(tiny, corpus, n_chunks=0, n_repeats=0, seed=0)
    table = observe.observe(tiny, shown, observe.watch(corpus, RELATIONS))
    table = table.set_index(["example", "feature", "subset"])
    heads = [f"L{layer}H{head}" for layer in range(3) for head in range(4)]
    features = [f"{name}:{way}" for name in RELATIONS for way in ("dep->head", "head->dep")]
    features.append("antecedent")

    def seen(q, w):
        return w < q if site.causal else w != q

    places = []
    for number, one in enumerate(corpus.passages):
        attention = word_attention(tiny, site, one)

        def looks(head, q, attention=attention):
            others = (w for w in range(attention.shape[2]) if seen(q, w))
            return max(others, key=lambda w: attention[head, q, w])

        for place, wanted in asked_of(one, features, seen).items():
            line = table.loc[number, *place]
            assert line["n"] == len(wanted)
            hits = [[looks(h, q) in words for q, words in wanted.items()] for h in range(12)]
            np.testing.assert_allclose(line[heads].astype(float), np.mean(hits, 1), atol=1e-6)
            before = np.mean([q - 1 in words for q, words in wanted.items()])
            assert line["rule offset:-1"] == pytest.approx(before)
            places.append((number, *place))
            if place[1] == "all":
                mass = np.mean([attention[:, q, [*w]].sum(-1) for q, w in wanted.items()], axis=0)
                line = table.loc[number, place[0], "mass"]
                np.testing.assert_allclose(line[heads].astype(float), mass, atol=1e-5)
    syntactic = table[(table["role"] == "syntactic") & table["rule nearest_pos"].notna()]
    assert {*syntactic.index} == {place for place in places if place[1] != "antecedent"}
    assert (table.xs("pos_wrong", level="subset")["rule nearest_pos"] == 0).all()
    assert sum(place[2] == "pos_wrong" for place in places) > 4
    assert sum(place[1] == "antecedent" for place in places) > 1
