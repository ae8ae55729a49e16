"""What a word may look at: questions with known answers, put to heads and to simple rules alike.

A question takes one word (the query) and asks which other word gets most of its attention; the
answer is right if it is one of the targets. The same question is put to rules that know nothing of
the model, and a head is worth a name only if it beats them:

    offset:k        the word k places away (k words to the left for k < 0)
    first_word      the sentence's first word
    nearest_pos     the nearest word of the target's part of speech, on the target's side
    nearest_content the nearest other noun, verb, adjective, adverb or number
    nearest_noun    the nearest noun before the query
    first_noun      the first noun
    subject         the nearest subject before the query

Features, by role:

    syntactic   obj:dep->head   from an object to its verb; obj:head->dep the other way round, where
                any object of the verb is right (Universal Dependencies; Clark et al. 2019,
                https://arxiv.org/abs/1906.04341, and Voita et al. 2019,
                https://arxiv.org/abs/1905.09418)
    semantic    same:flat, same:fixed, same:compound, same:entity   from a word to the others of one
                name, fixed expression, compound (but not a verb's particle) or mention;
                collocation: to the earlier content word with the highest pointwise mutual
                information (Church & Hanks 1990)
    pronoun     antecedent      from a pronoun to any word of any earlier mention of what it refers
                to; antecedent:head to the mentions' heads alone, as Clark et al. count (stricter:
                the determiner of "the old judge" will not do); also by type of pronoun and by the
                corpus' strata
    token       rare            to the rarest other word (Voita et al. 2019)

A causal model is only asked what it can see: targets to the left of the query.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import log

import numpy as np
from jaxtyping import Bool, Int

from interp.corpora.corpus import Mention, Passage, Word
from interp.patterns.maps import offset_name

CONTENT = ("NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM")
NOUNS = ("NOUN", "PROPN")
ALIASES = {"obl:tmod": "obl:unmarked", "obl:npmod": "obl:unmarked"}
"""Names that older treebanks use."""
PHRASAL = "compound:prt"
"""A particle and its verb ("give up") are no compound."""
REACH = 10
"""Fixed offsets are tried up to so many words away."""
LONGEST_ENTITY = 5
"""Mentions of more words are phrases rather than names."""

Answers = Int[np.ndarray, " query"]
"""One word for each query; -1 for none."""


@dataclass(frozen=True)
class Questions:
    """The questions of one feature in one passage."""

    role: str
    feature: str
    query: Int[np.ndarray, " query"]
    """The words that are asked."""
    targets: Bool[np.ndarray, "query word"]
    rules: Mapping[str, Answers] = field(default_factory=dict)
    """What each rule answers."""

    def hits(self, answers: Int[np.ndarray, "*some query"]) -> Bool[np.ndarray, "*some query"]:
        """Say which answers are right."""
        return self.targets[np.arange(len(self.query)), answers] & (answers >= 0)

    def only(self, chosen: Bool[np.ndarray, " query"]) -> "Questions":
        """Keep some of the questions."""
        rules = {name: answers[chosen] for name, answers in self.rules.items()}
        return replace(self, query=self.query[chosen], targets=self.targets[chosen], rules=rules)

    def among(self, known: Bool[np.ndarray, " word"]) -> "Questions":
        """Keep what can be asked where only some words are aligned."""
        targets = self.targets & known
        return replace(self, targets=targets).only(known[self.query] & targets.any(axis=1))


@dataclass(frozen=True)
class Counts:
    """How often words occur in a corpus, and how often together in a sentence."""

    words: Counter[str]
    sentences: Counter[str]
    """Sentences that hold a content lemma."""
    together: Counter[tuple[str, str]]
    n_sentences: int

    def pmi(self, a: str, b: str) -> float:
        """Pointwise mutual information of two lemmas, in nats; -inf below two joint sentences."""
        n = self.together[min(a, b), max(a, b)]
        if n < 2:
            return -np.inf
        return log(n * self.n_sentences / (self.sentences[a] * self.sentences[b]))


def count(passages: Iterable[Passage]) -> Counts:
    """Count a corpus' words."""
    counts = Counts(Counter(), Counter(), Counter(), 0)
    n = 0
    for passage in passages:
        counts.words.update(word.form.lower() for word in passage.words)
        for _, sentence in sentences(passage.words):
            lemmas = sorted({word.lemma for word in sentence if word.upos in CONTENT})
            counts.sentences.update(lemmas)
            counts.together.update(combinations(lemmas, 2))
            n += 1
    return Counts(counts.words, counts.sentences, counts.together, n)


def questions(
    passage: Passage, *, causal: bool, relations: Sequence[str], counts: Counts
) -> list[Questions]:
    """List everything that is asked about a passage.

    Args:
        passage: An annotated passage; what is not annotated is not asked.
        causal: Whether queries see only what is to their left.
        relations: The syntactic relations to ask about; one with a subtype in its name stands for
            that subtype alone, others for all subtypes that are not listed themselves.
        counts: The counts of the whole corpus.
    """
    words = passage.words
    pairs_of = [
        *_syntactic(words, relations),
        *_semantic(passage, counts),
        *_pronouns(passage),
        ("token", "rare", _rarest(words, counts, causal)),
    ]
    found = []
    for role, feature, pairs in pairs_of:
        queries = sorted(pairs)
        targets = np.zeros((len(queries), len(words)), dtype=bool)
        for row, query in enumerate(queries):
            seen = [word for word in pairs[query] if word != query and (word < query or not causal)]
            targets[row, seen] = True
        asked = Questions(role, feature, np.array(queries, dtype=np.int64), targets)
        asked = asked.only(targets.sum(axis=1) > 0)
        if len(asked.query):
            found.append(replace(asked, rules=_rules(asked, words, causal)))
    return found


Pairs = Mapping[int, set[int]]
"""For each query, its targets."""


def relation(deprel: str | None, relations: Sequence[str]) -> str | None:
    """Find the listed relation that a label falls under, as it is listed; None without one."""
    if deprel is None:
        return None
    listed = {ALIASES.get(name, name): name for name in relations}
    label = ALIASES.get(deprel, deprel)
    return listed.get(label, listed.get(general(label)))


def general(label: str | None) -> str:
    """Give a relation without its subtype."""
    return (label or "").partition(":")[0]


def _syntactic(words: Sequence[Word], relations: Sequence[str]) -> Iterator[tuple[str, str, Pairs]]:
    up: dict[str, dict[int, set[int]]] = {}
    down: dict[str, dict[int, set[int]]] = {}
    for number, word in enumerate(words):
        name = relation(word.deprel, relations)
        if name is None or word.head is None:
            continue
        up.setdefault(name, {})[number] = {word.head}
        down.setdefault(name, {}).setdefault(word.head, set()).add(number)
    for name in up:
        yield "syntactic", f"{name}:dep->head", up[name]
        yield "syntactic", f"{name}:head->dep", down[name]


def _semantic(passage: Passage, counts: Counts) -> Iterator[tuple[str, str, Pairs]]:
    words = passage.words
    for kind in ("flat", "fixed", "compound"):
        groups: list[set[int]] = []
        for number, word in enumerate(words):
            if word.head is not None and general(word.deprel) == kind and word.deprel != PHRASAL:
                joined = {number, word.head}
                apart = [group for group in groups if not group & joined]
                groups = [*apart, joined.union(*(g for g in groups if g & joined))]
        yield "semantic", f"same:{kind}", _each_other(groups)
    spans = [
        {n for n in span(mention) if words[n].upos in CONTENT}
        for mention in passage.mentions
        if 0 < mention.last - mention.first < LONGEST_ENTITY
    ]
    yield "semantic", "same:entity", _each_other(spans)
    best: dict[int, set[int]] = {}
    for number, word in enumerate(words):
        earlier = [
            n for n in range(number) if words[n].upos in CONTENT and words[n].lemma != word.lemma
        ]
        if word.upos in CONTENT and earlier:
            pmi = [counts.pmi(word.lemma, words[n].lemma) for n in earlier]
            if max(pmi) > 0:
                best[number] = {
                    n for n, value in zip(earlier, pmi, strict=True) if value == max(pmi)
                }
    yield "semantic", "collocation", best


def _each_other(groups: Iterable[set[int]]) -> Pairs:
    pairs: dict[int, set[int]] = {}
    for group in groups:
        for member in group:
            pairs.setdefault(member, set()).update(group - {member})
    return pairs


def _pronouns(passage: Passage) -> Iterator[tuple[str, str, Pairs]]:
    kinds: dict[str, dict[int, set[int]]] = {}
    for mention in passage.mentions:
        kind = passage.words[mention.first].pronoun
        if mention.first != mention.last or kind in (None, "other"):
            continue
        pronoun = mention.first
        earlier = antecedents(passage, mention)
        names = ["antecedent", f"antecedent:{kind}"]
        if passage.stratum is not None:
            names.append(f"antecedent:{passage.stratum}")
        for name in names if earlier else ():
            kinds.setdefault(name, {})[pronoun] = {n for m in earlier for n in span(m)}
        if earlier:
            cores = {n for m in earlier for n in core(passage.words, m)}
            kinds.setdefault("antecedent:head", {})[pronoun] = cores
    for name, pairs in kinds.items():
        yield "pronoun", name, pairs


def antecedents(passage: Passage, pronoun: Mention) -> list[Mention]:
    """List the earlier mentions of what a pronoun refers to."""
    return [
        other
        for other in passage.mentions
        if other.entity == pronoun.entity and other.last < pronoun.first
    ]


def span(mention: Mention) -> range:
    """Number a mention's words."""
    return range(mention.first, mention.last + 1)


def core(words: Sequence[Word], mention: Mention) -> set[int]:
    """Find the words that a mention is about: its syntactic head, with further names and conjuncts.

    In "the old judge of Rome" that is "judge". Without a tree: its nouns, or else all its words.
    """
    inside = span(mention)
    if all(words[n].deprel is None for n in inside):
        return {n for n in inside if words[n].upos in NOUNS} or set(inside)
    found = {n for n in inside if words[n].head not in inside}
    more = {
        n for n in inside if words[n].head in found and general(words[n].deprel) in ("flat", "conj")
    }
    return found | more


def _rarest(words: Sequence[Word], counts: Counts, causal: bool) -> Pairs:
    """Find the rarest of the words that each word sees, where it sees two at least."""
    frequency = [counts.words[word.form.lower()] for word in words]
    pairs = {}
    for query in range(len(words)):
        seen = [n for n in range(query if causal else len(words)) if n != query]
        if len(seen) >= 2:
            least = min(frequency[n] for n in seen)
            pairs[query] = {n for n in seen if frequency[n] == least}
    return pairs


def sentences(words: Sequence[Word]) -> Iterator[tuple[int, Sequence[Word]]]:
    """Cut words into sentences; yields each with the number of its first word."""
    first = 0
    for number in range(1, len(words) + 1):
        if number == len(words) or words[number].sentence != words[first].sentence:
            yield first, words[first:number]
            first = number


def _rules(asked: Questions, words: Sequence[Word], causal: bool) -> dict[str, Answers]:
    """Let the rules answer."""
    n, query = len(words), asked.query
    rules = {}
    for offset in range(-REACH, 1 if causal else REACH + 1):
        if offset:
            place = query + offset
            rules[offset_name(offset)] = np.where((place >= 0) & (place < n), place, -1)
    starts = np.array([first for first, part in sentences(words) for _ in part])
    rules["first_word"] = np.where(starts[query] == query, -1, starts[query])
    if asked.role == "syntactic":
        rules["nearest_pos"] = np.array(
            [_like_target(words, int(q), row) for q, row in zip(query, asked.targets, strict=True)]
        )
    if asked.role == "semantic":
        sees = (lambda q, w: w < q) if causal else (lambda q, w: w != q)
        rules["nearest_content"] = _nearest(query, _are(words, CONTENT), sees)
    if asked.role == "pronoun":
        nouns = _are(words, NOUNS)
        rules["nearest_noun"] = _nearest(query, nouns, lambda q, w: w < q)
        first = int(np.flatnonzero(nouns)[0]) if nouns.any() else -1
        rules["first_noun"] = np.where(query > first, first, -1)
        if any(word.deprel for word in words):
            subjects = np.array([(word.deprel or "").startswith("nsubj") for word in words])
            rules["subject"] = _nearest(query, subjects, lambda q, w: w < q)
    return rules


def _are(words: Sequence[Word], tags: Sequence[str]) -> Bool[np.ndarray, " word"]:
    return np.array([word.upos in tags for word in words])


def _nearest(
    query: Answers, wanted: Bool[np.ndarray, " word"], sees: Callable[[int, int], bool]
) -> Answers:
    """Find the nearest word that is wanted and seen; the left one of equals."""
    places = np.flatnonzero(wanted)
    found = []
    for q in query.tolist():
        seen = [w for w in places.tolist() if sees(q, w)]
        found.append(min(seen, key=lambda w: (abs(w - q), w), default=-1))
    return np.array(found)


def _like_target(words: Sequence[Word], query: int, targets: Bool[np.ndarray, " word"]) -> int:
    """Find the nearest word that has a target's part of speech and is on the target's side."""
    target: int = min(np.flatnonzero(targets).tolist(), key=lambda w: (abs(w - query), w))
    side = range(query - 1, -1, -1) if target < query else range(query + 1, len(words))
    return next((w for w in side if words[w].upos == words[target].upos), -1)
