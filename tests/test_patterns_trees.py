"""Trees: shares of dependencies by hand, networkx's spanning trees, trees drawn at random."""

import networkx as nx
import numpy as np
import pytest

from interp.corpora.corpus import Corpus, Passage, Word
from interp.patterns import observe, trees

# the old cat slept . — it dreamed of mice   (head: a word's number in the passage)
ROWS = [
    ("the", "DET", 2),
    ("old", "ADJ", 2),
    ("cat", "NOUN", 3),
    ("slept", "VERB", None),
    (".", "PUNCT", 3),
    ("it", "PRON", 6),
    ("dreamed", "VERB", None),
    ("of", "ADP", 8),
    ("mice", "NOUN", 6),
]
FIRST, SECOND = slice(0, 5), slice(5, 9)


def words() -> tuple[Word, ...]:
    found, at = [], 0
    for number, (form, upos, head) in enumerate(ROWS):
        found.append(Word(form, at, at + len(form), number // 5, upos, form, head, "x"))
        at += len(form) + 1
    return tuple(found)


def edges(*pairs, n) -> np.ndarray:
    found = np.zeros((n, n), dtype=bool)
    for a, b in pairs:
        found[a, b] = found[b, a] = True
    return found


def known(*unaligned) -> np.ndarray:
    return ~np.isin(np.arange(9), unaligned)


def test_dependencies_are_those_of_a_sentence_s_aligned_words_but_not_of_punctuation():
    first = trees.dependencies(words()[FIRST], 0, known()[FIRST])
    np.testing.assert_array_equal(first, edges((0, 2), (1, 2), (2, 3), n=5))
    second = trees.dependencies(words()[SECOND], 5, known()[SECOND])
    np.testing.assert_array_equal(second, edges((0, 1), (2, 3), (1, 3), n=4))
    some = trees.dependencies(words()[SECOND], 5, known(8)[SECOND])
    np.testing.assert_array_equal(some, edges((0, 1), n=4))


def test_uuas_by_hand():
    gold = edges((0, 2), (1, 2), (2, 3), n=5)
    answers = np.array([[2, 2, 3, 2, -1], [1, 0, 1, 4, 3], [-1] * 5])
    drawn = trees.most_attended(answers)
    np.testing.assert_array_equal(drawn[1], edges((0, 1), (1, 2), (3, 4), n=5))
    assert trees.uuas(drawn, gold) == pytest.approx([1, 1 / 3, 0])


def test_the_share_of_attention_along_dependencies_by_hand():
    gold = edges((0, 2), (1, 2), n=3)
    attention = np.array([[[0.9, 0.0, 0.0], [0.5, 0.1, 0.0], [0.25, 0.5, 0.1]]])
    assert trees.share(attention, gold, np.ones(3, dtype=bool)).tolist() == [(0 + 0 + 0.75) / 3]
    but_first = np.array([False, True, True])  # in a causal model it sees no other
    assert trees.share(attention, gold, but_first).tolist() == [(0 + 0.75) / 2]


def test_a_maximum_spanning_tree_by_hand():
    # both ways add up to 0-1: .5, 0-2: .6, 1-2: .7; so 0-1 is left out, strong as 0 → 1 may be
    attention = np.array([[[0.0, 0.5, 0.1], [0.0, 0.0, 0.6], [0.5, 0.1, 0.0]]], dtype=np.float32)
    np.testing.assert_array_equal(trees.spanning(attention)[0], edges((0, 2), (1, 2), n=3))


def test_spanning_trees_are_networkx_s_also_where_no_word_gets_attention():
    rng = np.random.default_rng(0)
    attention = rng.dirichlet(np.full(9, 0.2), size=(20, 9)).astype(np.float32)
    attention[5:10] = np.tril(attention[5:10])  # causal
    attention[10, 4:], attention[10, :, 4:] = 0, 0  # unaligned words
    found = trees.spanning(attention)
    for head, weights in enumerate(attention.astype(np.float64) + attention.transpose(0, 2, 1)):
        np.fill_diagonal(weights, 0)
        graph = nx.complete_graph(9)
        nx.set_edge_attributes(graph, {(a, b): weights[a, b] for a, b in graph.edges}, "weight")
        tree = nx.maximum_spanning_tree(graph)
        ours = nx.from_numpy_array(found[head])
        assert nx.is_tree(ours)
        assert np.array_equal(found[head], found[head].T)
        size = sum(weights[a, b] for a, b in ours.edges)
        assert size == pytest.approx(tree.size("weight"))
        if head < 5:  # elsewhere there are ties
            assert {*map(frozenset, ours.edges)} == {*map(frozenset, tree.edges)}


def test_trees_drawn_at_random_hold_as_much_of_a_sentence_as_the_rule_says():
    gold = edges((0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (0, 6), n=7)
    rng = np.random.default_rng(0)
    drawn = [nx.from_prufer_sequence(code) for code in rng.integers(7, size=(4000, 5)).tolist()]
    arrays = np.array([nx.to_numpy_array(tree, nodelist=range(7)) for tree in drawn]) > 0
    found = trees.uuas(arrays, gold)
    said = trees.rules(gold)
    assert said["random"] == 2 / 7
    assert found.mean() == pytest.approx(2 / 7, abs=4 * found.std() / np.sqrt(4000))
    assert said["right_branching"] == pytest.approx(4 / 6)  # 1-2, 2-3, 3-4, 4-5 of the six


def share_by_loops(between: np.ndarray, part: slice, feature: str) -> float:
    """Take one sentence's UUAS of one head from its attention between all words."""
    inside = range(part.start, part.stop)
    if feature == "uuas:mst":
        graph = nx.from_numpy_array((between + between.T)[part, part])
        chosen = [
            (a + part.start, b + part.start) for a, b in nx.maximum_spanning_tree(graph).edges
        ]
    else:
        chosen = [(q, int(between[q].argmax())) for q in inside if between[q].any()]
    gold = [(n, ROWS[n][2]) for n in inside if ROWS[n][2] and ROWS[n][1] != "PUNCT"]
    return float(np.mean([pair in chosen or pair[::-1] in chosen for pair in gold]))


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_bert"])
def test_observations_score_each_sentence_of_a_passage_apart(model, name):
    tiny = model(name)
    text = " ".join(form for form, _, _ in ROWS)
    corpus = Corpus("mine", (Passage(text, words(), "d", "d"),), {})
    shown = observe.examples(tiny, corpus, n_chunks=0, n_repeats=0, seed=0)
    table = observe.observe(tiny, shown, observe.watch(corpus, []))
    batch = tiny.batch([shown[0].text])
    places = batch.text.offsets[0].tolist()
    pieces = [
        [n for n, (start, end) in enumerate(places) if word.start <= start < end <= word.end]
        for word in words()
    ]
    causal = tiny.sites[0].causal
    for feature in ("uuas:max", "uuas:mst"):
        lines, mass = (
            table[(table["feature"] == feature) & (table["subset"] == subset)]
            for subset in ("all", "mass")
        )
        assert lines["n"].tolist() == [3, 3]  # dependencies
        asking = [5 - causal, 4 - causal]  # words; in a causal model all but the first
        assert mass["n"].tolist() == asking
        assert lines["rule random"].tolist() == pytest.approx([2 / 5, 2 / 4])
        assert lines["rule right_branching"].tolist() == pytest.approx([2 / 3, 2 / 3])
        for layer, pattern in enumerate(tiny.patterns(batch, ["attn"]).values()):
            for head, tokens in enumerate(pattern[0].detach().double().numpy()):
                between = np.array(
                    [[tokens[np.ix_(q, k)].sum(1).mean() for k in pieces] for q in pieces]
                )
                np.fill_diagonal(between, 0)
                between = np.tril(between) if causal else between
                wanted = [share_by_loops(between, part, feature) for part in (FIRST, SECOND)]
                assert lines[f"L{layer}H{head}"].tolist() == pytest.approx(wanted)
                along = [0.0, 0.0]
                for n, (_, upos, other) in enumerate(ROWS):
                    if other is not None and upos != "PUNCT":
                        along[n // 5] += between[n, other] + between[other, n]
                wanted = [total / size for total, size in zip(along, asking, strict=True)]
                assert mass[f"L{layer}H{head}"].tolist() == pytest.approx(wanted, abs=1e-5)
