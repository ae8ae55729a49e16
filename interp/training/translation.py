"""Translation: a toy language with agreement and another order of words, for encoder-decoders.

    old red dog -s  see  small cat       →       dogoj ruboj malnovoj  katino eta  vidas …

Source: a phrase, a verb, a phrase; a phrase is 0 to 2 adjectives, a noun and, in the plural, `-s`.
Target: both phrases, each its noun and then its adjectives in reverse, agreeing with it in gender
and number; the verb comes last and agrees with the subject in number. Which gender a noun has is
fixed by the language's seed and must be learned word by word.

Target words are written out as stem, gender and number (`cat:f:pl`), so that sentences can be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from interp.models.text import word_tokenizer
from interp.training.lesson import NO_LABEL, Examples, Lesson, padded
from interp.transformer import Kind

NOUNS, ADJECTIVES, VERBS = (
    tuple(words.split())
    for words in (
        "dog cat horse bird fish wolf fox bear king queen baker nurse pilot child friend farmer "
        "house tree river ship lamp book stone bell",
        "old new red small tall quiet heavy bright strange clean poor happy",
        "sees hears finds likes leaves follows pulls calls knows helps draws moves",
    )
)
PLURAL = "-s"
GENDERS, NUMBERS = ("m", "f"), ("sg", "pl")
MOST_ADJECTIVES = 2


class Phrase(NamedTuple):
    """A noun with its adjectives."""

    adjectives: tuple[str, ...]
    noun: str
    number: str

    @property
    def source(self) -> list[str]:
        """Say it in the source language."""
        return [*self.adjectives, self.noun, *([PLURAL] if self.number == "pl" else [])]

    def target(self, gender: str) -> list[str]:
        """Say it in the target language."""
        ending = f"{gender}:{self.number}"
        return [f"{word}:{ending}" for word in (self.noun, *reversed(self.adjectives))]


@dataclass(frozen=True)
class Translation(Lesson):
    """Pairs of sentences."""

    kind: ClassVar[Kind] = "encoder_decoder"
    language_seed: int

    @cached_property
    def gender(self) -> dict[str, str]:
        """Each noun's gender; half of them have each."""
        order = np.random.default_rng(self.language_seed).permutation(len(NOUNS))
        return {noun: GENDERS[place % 2] for noun, place in zip(NOUNS, order, strict=True)}

    @cached_property
    def tokenizer(self) -> Any:
        """The words of both languages; a text ends in `</s>`."""
        endings = [":".join(both) for both in product(GENDERS, NUMBERS)]
        return word_tokenizer(
            [
                *(*NOUNS, *ADJECTIVES, *VERBS, PLURAL),
                *(f"{noun}:{self.gender[noun]}:{number}" for noun in NOUNS for number in NUMBERS),
                *(f"{word}:{ending}" for word in ADJECTIVES for ending in endings),
                *(f"{verb}:{number}" for verb in VERBS for number in NUMBERS),
            ],
            "end",
        )

    @property
    def n_ctx(self) -> int:
        """Two phrases, a verb and the end."""
        return 2 * (MOST_ADJECTIVES + 2) + 2

    def translated(self, subject: Phrase, verb: str, thing: Phrase) -> list[str]:
        """Say a sentence in the target language."""
        return [
            *subject.target(self.gender[subject.noun]),
            *thing.target(self.gender[thing.noun]),
            f"{verb}:{subject.number}",
        ]

    def pairs(self, rng: np.random.Generator, n: int) -> list[tuple[list[str], list[str]]]:
        """Draw sentences; returns each in both languages, as words."""

        def any_of(words: Sequence[str]) -> str:
            return words[int(rng.integers(len(words)))]

        def phrase() -> Phrase:
            adjectives = [any_of(ADJECTIVES) for _ in range(rng.integers(MOST_ADJECTIVES + 1))]
            return Phrase(tuple(adjectives), any_of(NOUNS), any_of(NUMBERS))

        drawn = [(phrase(), any_of(VERBS), phrase()) for _ in range(n)]
        return [
            ([*subject.source, verb, *thing.source], self.translated(subject, verb, thing))
            for subject, verb, thing in drawn
        ]

    def draw(self, rng: np.random.Generator, n: int, split: str) -> Examples:
        """Draw pairs; the decoder reads the target shifted right by `<s>`."""
        pairs = self.pairs(rng, n)
        pad = self.tokenizer.pad_token_id
        tokens, mask = padded([self.ids([*source, "</s>"]) for source, _ in pairs], pad)
        read, read_mask = padded([self.ids(["<s>", *target]) for _, target in pairs], pad)
        labels, _ = padded([self.ids([*target, "</s>"]) for _, target in pairs], NO_LABEL)
        return Examples(tokens, mask, labels[..., None], read, read_mask)
