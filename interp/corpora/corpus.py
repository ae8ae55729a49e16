"""Annotated text: words with their grammar, mentions with what they refer to.

    passage     what a model reads at once: one sentence, or several that follow each other
    document    what passages are taken from, with its source and licence; passages of one document
                are not independent of each other
    word        a syntactic word, placed by its characters in the passage's text
    mention     a run of words that refers to an entity; two mentions of one entity corefer
    stratum     a kind of passage that is also scored apart (WinoBias: pro, anti)

Readers of file formats are beside this module; what is read is the same for all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Word:
    """A syntactic word."""

    form: str
    start: int
    """Its first character in the passage's text."""
    end: int
    """One past its last character; words of one contraction that cannot be told apart (French
    `du` = de + le) share their characters."""
    sentence: int
    """The number of its sentence in the passage, from 0."""
    upos: str = "X"
    """Universal part of speech; `X` where there is no annotation."""
    lemma: str = ""
    """Its dictionary form, or the word itself in lower case."""
    head: int | None = None
    """The word it depends on, by its number in the passage; None for roots and without a tree."""
    deprel: str | None = None
    """The relation to that word (Universal Dependencies); None without a tree."""
    pronoun: str | None = None
    """`personal`, `possessive`, `reflexive` or `other`; None for what is no pronoun."""


@dataclass(frozen=True)
class Mention:
    """A run of words that refers to something."""

    entity: str
    first: int
    """Its first word, by its number in the passage."""
    last: int
    """Its last word."""


@dataclass(frozen=True)
class Passage:
    """What a model reads at once."""

    text: str
    words: tuple[Word, ...]
    document: str
    cluster: str
    """What it shares with others that are not independent of it: its document, its template."""
    mentions: tuple[Mention, ...] = ()
    stratum: str | None = None
    target: str | None = None
    """For encoder-decoders: what the decoder reads, where that is another text."""


@dataclass(frozen=True)
class Corpus:
    """Passages, and where they come from."""

    name: str
    passages: tuple[Passage, ...]
    documents: Mapping[str, Mapping[str, str]]
    """Each document's `source` and `licence`, as far as they are known."""
    skipped: tuple[str, ...] = field(default=())
    """What was left out of it, with file, line and reason."""
