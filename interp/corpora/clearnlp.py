"""Turn ClearNLP trees, as spaCy's English pipelines draw them, into Universal Dependencies.

An approximation, by rule: prepositions and copulas become dependents of what they introduce, and
names are exchanged. Source of the labels: https://github.com/clir/clearnlp-guidelines; of the
target: https://universaldependencies.org/en/dep. What it does not repair: coordinations in
coordinations, clauses as predicates ("the idea is that ..."), fixed expressions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

NAMES = {
    "ROOT": "root",
    "acl": "acl",
    "acomp": "xcomp",
    "advcl": "advcl",
    "advmod": "advmod",
    "agent": "obl:agent",
    "amod": "amod",
    "appos": "appos",
    "attr": "xcomp",
    "aux": "aux",
    "auxpass": "aux:pass",
    "case": "case",
    "cc": "cc",
    "ccomp": "ccomp",
    "compound": "compound",
    "conj": "conj",
    "csubj": "csubj",
    "csubjpass": "csubj:pass",
    "dative": "iobj",
    "dep": "dep",
    "det": "det",
    "dobj": "obj",
    "expl": "expl",
    "intj": "discourse",
    "mark": "mark",
    "meta": "dep",
    "neg": "advmod",
    "nmod": "nmod",
    "npadvmod": "obl:unmarked",
    "nsubj": "nsubj",
    "nsubjpass": "nsubj:pass",
    "nummod": "nummod",
    "oprd": "xcomp",
    "parataxis": "parataxis",
    "pcomp": "advcl",
    "pobj": "obl",
    "poss": "nmod:poss",
    "preconj": "cc:preconj",
    "predet": "det:predet",
    "prep": "obl",
    "prt": "compound:prt",
    "punct": "punct",
    "quantmod": "advmod",
    "relcl": "acl:relcl",
    "xcomp": "xcomp",
}
"""Each label, and what is left of it after the rules."""
NOMINAL = ("NOUN", "PROPN", "PRON", "NUM", "SYM", "DET")
VERBAL = ("VERB", "AUX")


@dataclass
class Node:
    """A word, its label and its head, both as they are so far."""

    number: int
    lemma: str
    upos: str
    label: str
    head: "Node | None" = None


def universal(
    lemmas: Sequence[str],
    upos: Sequence[str],
    heads: Sequence[int | None],
    labels: Sequence[str],
    names: Sequence[Sequence[int]] = (),
) -> list[tuple[int | None, str]]:
    """Convert the trees of a text: give each word its head (None for a root) and its relation.

    Args:
        lemmas: Each word's lemma.
        upos: Its universal part of speech.
        heads: The number of its head; None for a root.
        labels: ClearNLP's label of its dependency.
        names: The words of each person's name; without them, names are compounds.
    """
    nodes = [
        Node(number, *facts) for number, facts in enumerate(zip(lemmas, upos, labels, strict=True))
    ]
    for node, head in zip(nodes, heads, strict=True):
        node.head = None if head is None else nodes[head]
    _prepositions(nodes)
    _copulas(nodes)
    for name in names:
        _name([nodes[number] for number in name], nodes)
    _coordinations(nodes)
    found = []
    for node in nodes:
        relation = NAMES.get(node.label, node.label)
        if node.label == "aux" and node.lemma == "to":
            relation = "mark"
        head = None if node.head is None else node.head.number
        found.append((head, "root" if head is None else relation))
    return found


def _children(node: Node, nodes: Sequence[Node], *labels: str) -> list[Node]:
    """List a word's dependents of some labels; of any where none is named."""
    return [n for n in nodes if n.head is node and (not labels or n.label in labels)]


def _promote(new: Node, old: Node, nodes: Sequence[Node], relation: str) -> None:
    """Let a dependent take its head's place, with all other dependents of it."""
    for child in _children(old, nodes):
        child.head = new
    new.head, new.label = old.head, old.label
    old.head, old.label = new, relation


def _upwards(nodes: Sequence[Node]) -> list[Node]:
    """List the words, dependents before their heads."""

    def depth(node: Node) -> int:
        return 0 if node.head is None else 1 + depth(node.head)

    return sorted(nodes, key=depth, reverse=True)


def _prepositions(nodes: Sequence[Node]) -> None:
    """Turn in -> Paris into Paris -> in; a clause's preposition becomes its `mark`."""
    introduced = []
    for node in _upwards(nodes):
        objects = _children(node, nodes, "pobj") or _children(node, nodes, "pcomp")
        if not objects and node.label == "prep":  # out -> of -> town, at -> least
            inner = _children(node, nodes, "prep", "amod")
            objects = [n for n in inner if n.number > node.number and n.upos != "ADP"]
        if objects:
            clause = objects[0].label == "pcomp" and objects[0].upos in VERBAL
            _promote(objects[0], node, nodes, "mark" if clause else "case")
            introduced.append((objects[0], clause))
    for node, clause in introduced:
        noun = node.head is not None and node.head.upos in NOMINAL
        if node.label in ("prep", "dative"):
            node.label = "nmod" if noun else "obl"
        if clause and node.label in ("nmod", "obl"):
            node.label = "acl" if noun else "advcl"


def _copulas(nodes: Sequence[Node]) -> None:
    """Turn is -> tired into tired -> is; in "there is", what is there is the subject."""
    for node in _upwards(nodes):
        if node.lemma != "be" or node.label in ("aux", "auxpass"):
            continue
        predicates = _children(node, nodes, "attr", "acomp")
        if _children(node, nodes, "expl"):
            for predicate in predicates[:1]:
                predicate.label = "nsubj"
            continue
        if not predicates:
            predicates = [n for n in _children(node, nodes, "obl") if n.number > node.number]
        if predicates:
            _promote(predicates[0], node, nodes, "cop")


def _name(name: Sequence[Node], nodes: Sequence[Node]) -> None:
    """Let the first word of a name be its head and the others flat."""
    parts = [node for node in name if node.upos == "PROPN"]
    if parts and all(n.head is parts[-1] and n.label == "compound" for n in parts[:-1]):
        for node in parts[1:-1]:
            node.label = "flat"
        if len(parts) > 1:
            _promote(parts[0], parts[-1], nodes, "flat")


def _coordinations(nodes: Sequence[Node]) -> None:
    """Let conjuncts depend on the first of them, and conjunctions on the conjunct that follows."""
    for node in nodes:
        if node.label == "cc" and node.head is not None:
            following = [n for n in _children(node.head, nodes, "conj") if n.number > node.number]
            if following:
                node.head = following[0]
    for node in nodes:
        while node.label == "conj" and node.head is not None and node.head.label == "conj":
            node.head = node.head.head
