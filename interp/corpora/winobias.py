"""WinoBias: sentences with two occupations and a pronoun that fits the stereotype, or does not.

Source: Zhao et al. 2018, https://github.com/uclanlp/corefBias. A line is

    1 [The developer] argued with the designer because [he] did not like the design.

and says in brackets what corefers: one occupation, and one pronoun or several.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from interp.corpora import reading
from interp.corpora.corpus import Corpus, Mention, Passage
from interp.errors import InputError

NAME = re.compile(r"(pro|anti)_stereotyped_type([12])\.txt(.*)")
NUMBER = re.compile(r"^\d+\s+")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
PRONOUNS = frozenset(reading.PRONOUNS) | {"her"}
DETERMINERS = ("the", "a", "an")
KINDS = {"his": "possessive", "him": "personal"}
"""What `her` is, by the pronoun of its twin."""


@dataclass(frozen=True)
class Line:
    """A line, its brackets removed."""

    file: Path
    number: int
    stratum: str
    cluster: str
    text: str
    brackets: tuple[tuple[int, int], ...]
    """Where in the text the brackets were."""

    def said(self) -> list[str]:
        """List what stood in the brackets, in lower case."""
        return [self.text[start:end].lower() for start, end in self.brackets]

    def occupation(self) -> str:
        """Name the occupation in brackets, without its determiner."""
        return next(bare(said) for said in self.said() if said not in PRONOUNS)


def winobias(path: str, *, skip_bad: bool) -> Corpus:
    """Read a file {pro,anti}_stereotyped_type{1,2}.txt*, or those of a folder.

    A line is a passage; its stratum is `pro` or `anti`, its cluster its type and the pair of lines
    that it is of (1 and 2, 3 and 4, …): they are about the same two people, and so are their twins.
    The occupation and the pronouns in brackets are mentions of one entity; "the" and another
    occupation are a mention of another. Occupations are what is in brackets in some line, or in a
    *_occupations.txt beside it. Words are cut by rule and have no trees; in mentions, determiners
    are `DET`, pronouns `PRON`, the rest `NOUN`. `her` is what its twin is (his: possessive, him:
    personal); without one, `reading.english_pronoun` says. With `skip_bad`, a line with a mistake
    is left out and noted.

    Raises:
        InputError: A mistake in a file, with its line; or nothing to read.
    """
    skipped: list[str] = []
    read: list[Line] = []
    for file in reading.found(path, "*_stereotyped_type*.txt*"):
        with reading.leaving_out(skipped, skip_bad):
            match = NAME.fullmatch(file.name)
            if match is None:
                raise InputError(
                    f"{file}: the name does not say what it is: "
                    "pro_ or anti_stereotyped_type1.txt or type2.txt (then .dev or .test)"
                )
            for number, text in enumerate(reading.lines(file), 1):
                if text.strip():
                    with reading.leaving_out(skipped, skip_bad):
                        cluster = f"type{match[2]}{match[3]}:{number}"
                        read.append(line(text, file, number, match[1], cluster))
    names = {one.occupation() for one in read}
    with reading.leaving_out(skipped, skip_bad):
        names.update(listed(one.file for one in read))
    occupations = {
        name: [word.lemma for word in reading.words(name)]
        for name in sorted(names, key=lambda name: (-len(name), name))
    }
    twins = {(one.cluster, one.stratum): one.said() for one in read}
    passages = [
        passage(
            one,
            occupations,
            twins.get((one.cluster, "anti" if one.stratum == "pro" else "pro"), []),
        )
        for one in read
    ]
    documents = {
        one.file.name: {"source": f"WinoBias (Zhao et al. 2018), {one.file.name}", "licence": "MIT"}
        for one in read
    }
    return reading.corpus(path, passages, documents, skipped)


def line(text: str, file: Path, number: int, stratum: str, cluster: str) -> Line:
    """Read a line: take off its number and brackets."""
    content = NUMBER.sub("", text.strip())
    plain, brackets, end = "", [], 0
    for match in BRACKETS.finditer(content):
        inner = match[1].strip()
        plain += content[end : match.start()]
        brackets.append((len(plain), len(plain) + len(inner)))
        plain += inner
        end = match.end()
    plain += content[end:]
    one = Line(file, number, stratum, cluster, plain, tuple(brackets))
    others = [said for said in one.said() if said not in PRONOUNS]
    if "[" in plain or "]" in plain:
        raise reading.at(file, number, "a bracket that is not closed, or not opened")
    if len(brackets) < 2 or len(others) != 1 or not bare(others[0]):
        raise reading.at(
            file,
            number,
            f"one occupation and a pronoun in brackets were expected, not {one.said()}",
        )
    return one


def listed(read: Iterable[Path]) -> Iterator[str]:
    """Read the occupations of *_occupations.txt beside the files."""
    for folder in sorted({file.parent for file in read}):
        for file in sorted(folder.glob("*_occupations.txt")):
            yield from (name.strip().lower() for name in reading.lines(file) if name.strip())


def bare(name: str) -> str:
    """Take off a determiner."""
    first, _, rest = name.partition(" ")
    return rest.strip() if first in DETERMINERS else name


def passage(one: Line, occupations: Mapping[str, list[str]], twin: list[str]) -> Passage:
    """Find the mentions of a line, and the words' parts of speech.

    Args:
        one: The line.
        occupations: The words of each occupation, the longest first.
        twin: What stands in the brackets of the line's twin; nothing where there is none.
    """
    words = reading.words(one.text, cuts=[border for place in one.brackets for border in place])
    forms = [word.lemma for word in words]
    mentions = []
    for number, (place, said) in enumerate(zip(one.brackets, one.said(), strict=True)):
        run = reading.overlapping(words, *place)
        mentions.append(Mention(one.occupation(), run[0], run[-1]))
        if said in PRONOUNS:
            kind = reading.english_pronoun(words, run[0])
            if said == "her" and len(twin) == len(one.brackets):
                kind = KINDS.get(twin[number], kind)
            words[run[0]] = replace(words[run[0]], upos="PRON", pronoun=kind)
    free = [not any(m.first <= i <= m.last for m in mentions) for i in range(len(words))]
    for name, parts in occupations.items():
        for first in range(1, len(words) - len(parts) + 1):
            after = first + len(parts)
            here = forms[first - 1] == "the" and forms[first:after] == parts
            if here and all(free[first - 1 : after]):
                mentions.append(Mention(name, first - 1, after - 1))
                free[first - 1 : after] = [False] * (after - first + 1)
    for mention in mentions:
        for i in range(mention.first, mention.last + 1):
            if words[i].upos == "X":
                tag = "DET" if forms[i] in DETERMINERS else "NOUN"
                words[i] = replace(words[i], upos=tag)
    kind, _, line_number = one.cluster.rpartition(":")
    return Passage(
        one.text,
        tuple(words),
        document=one.file.name,
        cluster=f"{kind}:{(int(line_number) + 1) // 2}",
        mentions=tuple(sorted(mentions, key=lambda mention: (mention.first, mention.last))),
        stratum=one.stratum,
    )
