"""What the readers share: files and their errors, words and sentences of plain text, pronouns."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unicodedata import category

from interp import files
from interp.corpora.corpus import Corpus, Passage, Word
from interp.errors import InputError

WORD = re.compile(r"['\u2019]s(?![asm])|[as][asm]*(?:['\u2019-][as][asm]*)*|\Sm*(?:j\Sm*)*")
"""'s; letters with inner apostrophes and hyphens; or one sign: in the alphabet of `shape`."""
END = re.compile(r"(\w*)(?:[.!?…]+[\"'\u201d\u2019»)\]]*\s+(?=(\S))|[\u3002\uff01\uff1f]+)")
"""Where a sentence may end, with the word before and the sign after; Chinese needs no space."""
NO_END = re.compile(r"[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Capt|Lt|Rev|vs|No")
"""What a full stop may follow inside a sentence: initials and titles."""

PRONOUNS = {
    word: kind
    for kind, words in {
        "personal": "i me you he him she it we us they them",
        "possessive": "my your his its our their mine yours hers ours theirs",
        "reflexive": "myself yourself himself herself itself ourselves yourselves themselves "
        "themself oneself",
    }.items()
    for word in words.split()
}
"""English pronouns that have one kind; `her` has two."""
_NOT_OWNED = (
    "a about after again also although an and as at away because before but by down during for "
    "from had has he her here him his how i if in into is it like my never not now of off on or "
    "out over she so some that the their them then there these they this through to together too "
    "under until up was we what when where whether which while who why with without would you your"
)
NOT_OWNED = frozenset(_NOT_OWNED.split())
"""Words after which `her` owns nothing: it is personal."""


class Sentence(NamedTuple):
    """A sentence by itself: its text and its words, numbered and placed from 0."""

    text: str
    words: list[Word]


def found(path: str, pattern: str) -> list[Path]:
    """List the file, or the folder's and its subfolders' files of that pattern, in order of name.

    Raises:
        InputError: No such path, or no such files in it; hidden ones do not count.
    """
    place = files.existing(path)
    if not place.is_dir():
        return [place]
    inside = sorted(
        file
        for file in place.rglob(pattern)
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(place).parts)
    )
    if not inside:
        raise InputError(f"{path}: no file {pattern} in the folder")
    return inside


def lines(file: Path) -> list[str]:
    """Read a UTF-8 file's lines.

    Raises:
        InputError: The file cannot be read, is not UTF-8 or has no text.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise at(
            file, number, f"not UTF-8 text (byte 0x{data[error.start]:02x}): save it as UTF-8"
        ) from error
    if not text.strip():
        raise at(file, 1, "the file is empty")
    return text.replace("\r\n", "\n").split("\n")


def at(file: Path, number: int, reason: str) -> InputError:
    """Name the place of a mistake."""
    return InputError(f"{file}, line {number}: {reason}")


@contextmanager
def leaving_out(skipped: list[str], skip_bad: bool) -> Iterator[None]:
    """Note what is wrong with the input and go on, if `skip_bad`; else let it be raised."""
    try:
        yield
    except InputError as error:
        if not skip_bad:
            raise
        skipped.append(str(error))


def corpus(
    path: str,
    passages: Sequence[Passage],
    documents: Mapping[str, Mapping[str, str]],
    skipped: Iterable[str],
) -> Corpus:
    """Put a corpus together.

    Raises:
        InputError: There is no passage.
    """
    skipped = tuple(skipped)
    if not passages:
        first = f"; the first of {len(skipped)} left out: {skipped[0]}" if skipped else ""
        raise InputError(f"{path}: nothing to read in it{first}")
    return Corpus(
        name=Path(path).expanduser().resolve().stem,
        passages=tuple(passages),
        documents=documents,
        skipped=skipped,
    )


def groups(n: int, size: int) -> list[range]:
    """Group `n` things by `size`; the last group may be smaller.

    Raises:
        InputError: `size` is less than 1.
    """
    if size < 1:
        raise InputError(f"sentences={size}: a passage has 1 or more")
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


def joined(sentences: Sequence[Sentence], document: str) -> Passage:
    """Join sentences by a space."""
    words: list[Word] = []
    text = ""
    for number, one in enumerate(sentences):
        start = len(text) + (number > 0)
        first = len(words)
        words += [
            replace(
                word,
                start=word.start + start,
                end=word.end + start,
                sentence=number,
                head=None if word.head is None else word.head + first,
            )
            for word in one.words
        ]
        text += " " * (number > 0) + one.text
    return Passage(text, tuple(words), document=document, cluster=document)


def shape(text: str) -> str:
    """Replace letters and digits by `a` (s stays), marks by `m`, joiners by `j`; signs stay."""
    letters = []
    for letter in text:
        if letter in "sS":
            letters.append("s")
        elif letter.isalnum():
            letters.append("a")
        elif letter == "\u200d":  # binds several emoji into one
            letters.append("j")
        elif category(letter).startswith("M") or "\U0001f3fb" <= letter <= "\U0001f3ff":
            letters.append("m")  # accents, vowel signs, colours of skin
        else:
            letters.append(letter)
    return "".join(letters)


def words(text: str, cuts: Iterable[int] = ()) -> list[Word]:
    """Cut plain text into words and signs, and at `cuts`; signs of punctuation are `PUNCT`.

    A word keeps its apostrophes and hyphens ("don't", "well-known"), but after a cut 's is a word.
    Sentences are numbered as `sentences` finds them.
    """
    outline = shape(text)
    borders = sorted({0, len(text), *cuts})
    ends = [end for _, end in sentences(text)]
    cut = []
    for start, end in pairwise(borders):
        for match in WORD.finditer(outline, start, end):
            form = text[match.start() : match.end()]
            sign = all(category(letter).startswith("P") for letter in form)
            cut.append(
                Word(
                    form,
                    match.start(),
                    match.end(),
                    sentence=sum(end <= match.start() for end in ends),
                    upos="PUNCT" if sign else "X",
                    lemma=form.lower(),
                )
            )
    return cut


def sentences(text: str) -> list[tuple[int, int]]:
    """Say where each sentence of plain text starts and ends: roughly, by its full stops."""
    borders = [0]
    for match in END.finditer(text):
        after = match[2]
        if after is None or not (after.islower() or NO_END.fullmatch(match[1])):
            borders.append(match.end())
    spans = []
    for start, end in zip(borders, [*borders[1:], len(text)], strict=True):
        inner = text[start:end].strip()
        if inner:
            first = text.index(inner, start)
            spans.append((first, first + len(inner)))
    return spans


def overlapping(words: Sequence[Word], start: int, end: int) -> list[int]:
    """List the words, by number, that have characters in common with a span."""
    return [i for i, word in enumerate(words) if word.start < end and start < word.end]


def pronoun(upos: str, features: Mapping[str, str | None]) -> str | None:
    """Name the kind of a pronoun by its Universal Dependencies features."""
    owner = features.get("Poss") == "Yes"
    if upos != "PRON" and not (upos == "DET" and owner):
        return None
    if features.get("Reflex") == "Yes":
        return "reflexive"
    if owner:
        return "possessive"
    return "personal" if features.get("PronType") == "Prs" else "other"


def english_pronoun(words: Sequence[Word], number: int) -> str | None:
    """Name the kind of an English pronoun; None for what is none.

    `her` is possessive before a word ("her book"), unless that is one of NOT_OWNED ("her and").
    """
    form = words[number].lemma
    if form != "her":
        return PRONOUNS.get(form)
    after = words[number + 1] if number + 1 < len(words) else None
    owned = after is not None and after.form[0].isalnum() and after.lemma not in NOT_OWNED
    return "possessive" if owned else "personal"
