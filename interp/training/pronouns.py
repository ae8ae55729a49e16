"""Pronouns: what does she do, what does it do, what do they do?

    the (old|stone|…){0,2} NOUN watched
    the (old|stone|…){0,2} NOUN behind
    the (old|stone|…){0,2} NOUN because she → VERB because it → VERB when they → VERB

Words are those of the planted language (interp.models.planted.language). Each of the three nouns
agrees in gender and number with one pronoun and with no other. Each noun of the language has a verb
of its own (drawn by the language's seed, each as often among the nouns of every pronoun), to be
learned word by word; asked at each pronoun is the verb of the noun that it stands for. (It is not
written: what comes next is the next clause.)

The nouns, whose verbs are three different ones, their order, that of the pronouns and the number of
words between are drawn independently of each other. So no place is a better guess than another, and
no verb, whatever the pronoun; and the bag of all words leaves it open which of the three it is. The
pronoun must be traced to its noun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from interp.corpora.corpus import Corpus, Mention, Passage, Word
from interp.models.planted.language import AGREEMENT, CLASSES, PEOPLE, pronoun
from interp.models.text import word_tokenizer
from interp.training.lesson import NO_LABEL, Examples, Lesson, padded
from interp.transformer import Kind

PRONOUNS = tuple(AGREEMENT)
NOUNS = (*PEOPLE, *CLASSES["thing"])
AGREEING = {said: tuple(noun for noun in NOUNS if pronoun(noun) == said) for said in PRONOUNS}
N_OWN = min(map(len, AGREEING.values()))
OWN, VERBS = CLASSES["verb"][:N_OWN], CLASSES["verb"][N_OWN:]
"""Verbs that nouns have as their own, and those that stand in sentences."""
LINKS = (VERBS, CLASSES["preposition"], CLASSES["conjunction"])
"""What follows each noun."""
MODIFIERS = (*CLASSES["adjective"], *CLASSES["compound"])
MOST_MODIFIERS = 2
KINDS = {
    "the": "DET",
    **dict.fromkeys(CLASSES["adjective"], "ADJ"),
    **dict.fromkeys(CLASSES["compound"], "NOUN"),
    **dict.fromkeys(NOUNS, "NOUN"),
    **dict.fromkeys(CLASSES["verb"], "VERB"),
    **dict.fromkeys(CLASSES["preposition"], "ADP"),
    **dict.fromkeys(CLASSES["conjunction"], "SCONJ"),
    **dict.fromkeys(PRONOUNS, "PRON"),
}
"""Each word's universal part of speech."""
DOCUMENTS = 20


class Sentence(NamedTuple):
    """A sentence and what its pronouns stand for."""

    words: tuple[str, ...]
    nouns: tuple[int, ...]
    """Where its nouns stand."""
    pronouns: tuple[int, ...]
    """Where its pronouns stand."""
    antecedents: tuple[int, ...]
    """Where the noun stands that each of them stands for."""


@cache
def own_verbs(language_seed: int) -> dict[str, str]:
    """Give each noun its verb; each verb has as many of the nouns that agree with a pronoun."""
    rng = np.random.default_rng(language_seed)
    return {
        str(noun): OWN[number % len(OWN)]
        for nouns in AGREEING.values()
        for number, noun in enumerate(rng.permutation(nouns))
    }


def sentence(rng: np.random.Generator, verb: Mapping[str, str]) -> Sentence:
    """Draw a sentence of nouns with different verbs."""

    def any_of(words: Sequence[str]) -> str:
        return words[int(rng.integers(len(words)))]

    said = rng.choice(PRONOUNS, len(LINKS), replace=False).tolist()
    does = rng.choice(OWN, len(LINKS), replace=False).tolist()
    words, nouns = list[str](), list[int]()
    for pronoun_, own, link in zip(said, does, LINKS, strict=True):
        modifiers = [any_of(MODIFIERS) for _ in range(rng.integers(MOST_MODIFIERS + 1))]
        noun = any_of([noun for noun in AGREEING[pronoun_] if verb[noun] == own])
        words += ["the", *modifiers, noun, any_of(link)]
        nouns.append(len(words) - 2)
    order, pronouns = rng.permutation(len(LINKS)), list[int]()
    for number in order:
        pronouns.append(len(words))
        words += [said[number], any_of(CLASSES["conjunction"])]
    antecedents = tuple(nouns[number] for number in order)
    return Sentence(tuple(words[:-1]), tuple(nouns), tuple(pronouns), antecedents)


@dataclass(frozen=True)
class Pronouns(Lesson):
    """Three nouns and three pronouns; asked is the verb of what each pronoun stands for."""

    kind: ClassVar[Kind] = "decoder"
    language_seed: int
    """Which verb each noun has."""

    @cached_property
    def tokenizer(self) -> Any:
        """The words of the language."""
        return word_tokenizer(tuple(KINDS), "start")

    @property
    def n_ctx(self) -> int:
        """The longest sentence and its beginning."""
        return len(LINKS) * (MOST_MODIFIERS + 5)

    def draw(self, rng: np.random.Generator, n: int, split: str) -> Examples:
        """Draw sentences."""
        verb = own_verbs(self.language_seed)
        drawn = [sentence(rng, verb) for _ in range(n)]
        tokens, mask = padded(
            [self.ids(("<s>", *s.words)) for s in drawn], self.tokenizer.pad_token_id
        )
        labels = torch.full_like(tokens, NO_LABEL)
        for row, one in enumerate(drawn):
            places = torch.tensor(one.pronouns) + 1  # after <s>
            answers = [verb[one.words[noun]] for noun in one.antecedents]
            labels[row, places] = torch.tensor(self.ids(answers))
        return Examples(tokens, mask, labels[..., None])


def corpus(n: int, seed: int, language_seed: int) -> Corpus:
    """Write sentences as a corpus, with what the pronouns refer to, for experiments.roles."""
    rng, verb = np.random.default_rng(seed), own_verbs(language_seed)
    passages = []
    for number in range(n):
        drawn = sentence(rng, verb)
        words, start = list[Word](), 0
        for form in drawn.words:
            kind = "personal" if form in PRONOUNS else None
            word = Word(form, start, start + len(form), 0, KINDS[form], form, pronoun=kind)
            words.append(word)
            start = word.end + 1
        said = dict(zip(drawn.pronouns, drawn.antecedents, strict=True))
        mentions = [Mention(f"entity {noun}", noun, noun) for noun in drawn.nouns]
        mentions += [Mention(f"entity {noun}", place, place) for place, noun in said.items()]
        document = f"pronouns-{number % DOCUMENTS:02d}"
        passages.append(
            Passage(" ".join(drawn.words), tuple(words), document, document, tuple(mentions))
        )
    source = {"source": f"interp.training.pronouns, seed {seed}", "licence": "Apache-2.0"}
    documents = {passage.document: source for passage in passages}
    return Corpus(f"pronouns, seed {seed}", tuple(passages), documents)
