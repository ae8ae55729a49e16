"""Whole trees: how much of a sentence's syntax can be read off one head?

The undirected unlabelled attachment score (UUAS) is the share of a sentence's dependencies, without
direction, that a set of edges between its words contains (Htut et al. 2019,
https://arxiv.org/abs/1911.12246):

    uuas:max    an edge from every word to the word that it attends to most
    uuas:mst    the maximum spanning tree of the attention between two words, both ways added up

against the rules

    right_branching   an edge from every word to the next
    random            a tree drawn at random: each pair is in it with probability 2 / words

Dependencies of punctuation do not count, though punctuation may be attended to.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse.csgraph import minimum_spanning_tree

from interp.corpora.corpus import Word

Edges = Bool[np.ndarray, "head word word"]


def dependencies(
    words: Sequence[Word], first: int, known: Bool[np.ndarray, " word"]
) -> Bool[np.ndarray, "word word"]:
    """Mark a sentence's dependencies between aligned words, both ways.

    Args:
        words: The sentence's words.
        first: The number of its first word in the passage, which heads count from.
        known: Which words are aligned.
    """
    gold = np.zeros((len(words), len(words)), dtype=bool)
    for number, word in enumerate(words):
        if word.head is not None and word.upos != "PUNCT":
            head = word.head - first
            if known[number] and known[head]:
                gold[number, head] = gold[head, number] = True
    return gold


def most_attended(answers: Int[np.ndarray, "head word"]) -> Edges:
    """Draw an edge from each word to its answer, both ways."""
    n_heads, n = answers.shape
    edges = np.zeros((n_heads, n, n), dtype=bool)
    head, word = np.nonzero(answers >= 0)
    edges[head, word, answers[head, word]] = True
    return edges | edges.transpose(0, 2, 1)


def spanning(attention: Float[np.ndarray, "head word word"]) -> Edges:
    """Find every head's maximum spanning tree, both ways.

    All heads at once: the trees of separate blocks of one large graph.
    """
    n_heads, n = attention.shape[:2]
    row, column = np.triu_indices(n, 1)
    strength = (attention + attention.transpose(0, 2, 1))[:, row, column].astype(np.float64)
    block = n * np.arange(n_heads)[:, None]
    cost = 4 - strength  # at most 2; a cost of 0 would be no edge
    at = (block + row).ravel(), (block + column).ravel()
    graph = sparse.csr_array((cost.ravel(), at), shape=(n_heads * n, n_heads * n))
    tree = minimum_spanning_tree(graph).tocoo()
    edges = np.zeros((n_heads, n, n), dtype=bool)
    edges[tree.row // n, tree.row % n, tree.col % n] = True
    return edges | edges.transpose(0, 2, 1)


def uuas(edges: Edges, gold: Bool[np.ndarray, "word word"]) -> Float[np.ndarray, " head"]:
    """Take the share of dependencies that each head's edges contain."""
    pairs = np.triu(gold)
    return edges[:, pairs].mean(axis=1)


def share(
    attention: Float[np.ndarray, "head word word"],
    gold: Bool[np.ndarray, "word word"],
    asking: Bool[np.ndarray, " word"],
) -> Float[np.ndarray, " head"]:
    """Say which share of the attention of the words that are asking goes along dependencies.

    Args:
        attention: Each head's, between the words of a sentence.
        gold: The dependencies, both ways.
        asking: The words that may attend to another one.
    """
    return (attention * gold).sum(axis=2)[:, asking].mean(axis=1)


def rules(gold: Bool[np.ndarray, "word word"]) -> dict[str, float]:
    """Score what knows nothing of the model."""
    n = len(gold)
    chain = np.eye(n, k=1, dtype=bool)
    return {
        "right_branching": float(uuas((chain | chain.T)[None], gold)[0]),
        "random": 2 / n,
    }
