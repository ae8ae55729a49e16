"""CoNLL-U: treebanks of Universal Dependencies, with coreference where it is annotated.

Sources: https://universaldependencies.org/format.html; coreference as in GUM (Zeldes 2017) and
CorefUD (Nedoluzhko et al. 2022), `Entity=` in the last column.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from conllu.exceptions import ParseException
from conllu.parser import parse_dict_value, parse_id_value, parse_int_value

from interp.corpora import reading
from interp.corpora.corpus import Corpus, Mention, Passage, Word

NEWDOC = re.compile(r"#\s*newdoc(?:\s+id\s*=\s*(\S.*))?")
COMMENT = re.compile(r"#\s*([^=]*?)\s*=\s*(.*)")
BRACKET = re.compile(r"\((?P<opened>[^()]+)(?P<at_once>\)?)|(?P<closed>[^()]+)\)")
PART = re.compile(r"\[\d+/\d+\]$")
"""The piece of a mention with gaps, as in e5[1/2]."""
COLUMNS = 10


class Line(NamedTuple):
    """A line and its number."""

    number: int
    text: str


class Row(NamedTuple):
    """A line of a token: a word, the surface of several (first, "-", last), or an empty node."""

    number: int
    id: int | tuple[int, str, int]
    form: str
    lemma: str
    upos: str
    features: dict[str, str | None]
    head: int | None
    deprel: str
    misc: dict[str, str]


@dataclass(frozen=True)
class Document:
    """A document's blocks of lines: one block a sentence."""

    name: str
    file: Path
    id_field: int
    """Which field of an entity, from 0, is its name."""
    blocks: list[list[Line]]

    def comments(self, block: int) -> dict[str, str]:
        """Read a sentence's `# key = value` lines."""
        matches = (COMMENT.fullmatch(line.text) for line in self.blocks[block])
        return {match[1]: match[2] for match in matches if match}


class Span(NamedTuple):
    """A mention, by the numbers of its words in the document, and the line that opens it."""

    entity: str
    first: int
    last: int
    line: int


def treebank(path: str, *, sentences: int, skip_bad: bool) -> Corpus:
    """Read a .conllu file, or those of a folder and its subfolders.

    A passage is `sentences` sentences of one document (`# newdoc`, or the file) that follow each
    other, joined by a space; the last of a document may be shorter. Empty nodes are left out. A
    mention that does not end in its passage is left out and noted. With `skip_bad`, a document with
    a mistake is left out and noted. A document's source is its `# meta::sourceURL`, or the file;
    its licence the first line of the files LICENSE* in the file's folder, or else above it, as far
    up as `path`.

    Raises:
        InputError: A mistake in a file, with its line; or nothing to read.
    """
    skipped: list[str] = []
    passages: list[Passage] = []
    documents: dict[str, dict[str, str]] = {}
    reading.groups(0, sentences)
    for file in reading.found(path, "*.conllu"):
        read: list[Document] = []
        with reading.leaving_out(skipped, skip_bad):
            read = split(file)
        licence = licence_of(file, Path(path).expanduser())
        for document in read:
            with reading.leaving_out(skipped, skip_bad):
                if document.name in documents:
                    line = document.blocks[0][0].number
                    raise reading.at(file, line, f"a second document '{document.name}'")
                content, notes = passages_of(document, sentences)
                passages.extend(content)
                skipped.extend(notes)
                facts = document.comments(0)
                documents[document.name] = {
                    "source": facts.get("meta::sourceURL", file.name),
                    "licence": facts.get("meta::license", facts.get("meta::licence", licence)),
                }
    return reading.corpus(path, passages, documents, skipped)


def split(file: Path) -> list[Document]:
    """Split a file into documents, and these into blocks at empty lines."""
    documents: list[Document] = []
    block: list[Line] = []
    header = ""
    for number, text in enumerate([*reading.lines(file), ""], 1):
        if text.strip():
            block.append(Line(number, text))
            continue
        if not block:
            continue
        news = [match for line in block if (match := NEWDOC.fullmatch(line.text.rstrip()))]
        entities = [
            match[2]
            for line in block
            if (match := COMMENT.fullmatch(line.text)) and match[1] == "global.Entity"
        ]
        header = entities[-1] if entities else header
        if news or not documents:
            unnamed = file.stem if not documents else f"{file.stem}-{len(documents) + 1}"
            name = (news[0][1] if news else None) or unnamed
            fields = [field.strip() for field in header.split("-")]
            id_field = next((i for i, field in enumerate(fields) if field in ("GRP", "eid")), 0)
            documents.append(Document(name, file, id_field, []))
        documents[-1].blocks.append(block)
        block = []
    return documents


def licence_of(file: Path, top: Path) -> str:
    """Find a licence: the first line of each file LICENSE* that is more than a rule."""
    for folder in file.parents:
        said = []
        for other in sorted(folder.iterdir()):
            if other.name.lower().startswith(("license", "licence")) and other.is_file():
                text = other.read_text(encoding="utf-8-sig", errors="replace")
                titles = (line.strip(" #*=\t") for line in text.split("\n"))
                said += [f"{next(filter(None, titles), 'empty')} ({other.name})"]
        if said:
            return "; ".join(said)
        if top in (file, folder):
            break
    return "not stated"


def passages_of(document: Document, size: int) -> tuple[list[Passage], list[str]]:
    """Read a document; also say which mentions do not end in their passage."""
    read = []
    rows = []
    for number, block in enumerate(document.blocks):
        rows.append(rows_of(block, document.file))
        read.append(sentence(rows[-1], document.comments(number).get("text"), document.file))
    spans = sorted(mentions(rows, document), key=lambda span: (span.first, span.last))
    passages, notes = [], []
    first_word = 0
    for group in reading.groups(len(read), size):
        passage = reading.joined([read[i] for i in group], document.name)
        after = first_word + len(passage.words)
        inside = [span for span in spans if first_word <= span.first < after]
        for span in inside:
            if span.last >= after:
                reason = f"a mention of '{span.entity}' goes on after its passage: left out"
                notes.append(f"{document.file}, line {span.line}: {reason}")
        kept = tuple(
            Mention(span.entity, span.first - first_word, span.last - first_word)
            for span in inside
            if span.last < after
        )
        passages.append(replace(passage, mentions=kept))
        first_word = after
    return passages, notes


def rows_of(block: Iterable[Line], file: Path) -> list[Row]:
    """Read a sentence's tokens."""
    rows = []
    for number, text in block:
        if text.startswith("#"):
            continue
        cells = text.split("\t")
        if len(cells) != COLUMNS:
            raise reading.at(file, number, f"{len(cells)} columns (by tabs), not {COLUMNS}")
        id_, form, lemma, upos, _, features, head, deprel, _, misc = cells
        try:
            parsed = parse_id_value(id_)
        except ParseException:
            parsed = None
        if parsed is None:
            raise reading.at(file, number, f"the ID '{id_}' is none (3, 3-4 or 3.1)")
        if not form.strip():
            raise reading.at(file, number, "the word has no form")
        try:
            parent = parse_int_value(head)
        except ParseException:
            parent = None
        if parent is None and isinstance(parsed, int):
            raise reading.at(file, number, f"the head '{head}' is no number")
        rows.append(
            Row(
                number,
                parsed,
                form,
                form.lower() if lemma == "_" else lemma,
                "X" if upos == "_" else upos,
                parse_dict_value(features) or {},
                parent,
                "dep" if deprel == "_" else deprel,
                {
                    name: value
                    for name, _, value in (fact.partition("=") for fact in misc.split("|"))
                },
            )
        )
    if not any(isinstance(row.id, int) for row in rows):
        raise reading.at(file, next(iter(block)).number, "a sentence without words")
    return rows


def sentence(rows: Sequence[Row], text: str | None, file: Path) -> reading.Sentence:
    """Place a sentence's words in its text and check its tree."""
    words = [row for row in rows if isinstance(row.id, int)]
    for number, row in enumerate(words, 1):
        if row.id != number:
            raise reading.at(file, row.number, f"the ID {row.id} where {number} was expected")
    check_tree(words, file)
    tokens: list[tuple[Row, list[Row]]] = []  # what is written, and the words it stands for
    covered = 0
    n_words = 0
    for row in rows:
        if isinstance(row.id, int):
            n_words += 1
            if row.id > covered:
                tokens.append((row, [row]))
        elif row.id[1] == "-":
            first, _, last = row.id
            if first != n_words + 1 or first <= covered or last > len(words):
                raise reading.at(
                    file, row.number, f"the ID {first}-{last} does not fit the words around it"
                )
            tokens.append((row, words[first - 1 : last]))
            covered = last
    text, starts = placed([token for token, _ in tokens], text)
    read = []
    for (token, parts), start in zip(tokens, starts, strict=True):
        spans = shared(token.form, start, [part.form for part in parts])
        for row, span in zip(parts, spans, strict=True):
            read.append(
                Word(
                    row.form,
                    *span,
                    sentence=0,
                    upos=row.upos,
                    lemma=row.lemma,
                    head=row.head - 1 if row.head else None,
                    deprel=row.deprel if row.head else "root",
                    pronoun=reading.pronoun(row.upos, row.features),
                )
            )
    return reading.Sentence(text, read)


def check_tree(words: Sequence[Row], file: Path) -> None:
    """Check that every word is under a root."""
    heads = [row.head or 0 for row in words]
    for row, head in zip(words, heads, strict=True):
        if not 0 <= head <= len(words):
            raise reading.at(
                file, row.number, f"the head {head} is none of the words: 0 to {len(words)}"
            )
    if 0 not in heads:
        raise reading.at(file, words[0].number, "no word of the sentence is its root (head 0)")
    safe = {0}
    for row in words:
        path: list[int] = []
        step = row.id if isinstance(row.id, int) else 0
        while step not in safe:
            if step in path:
                raise reading.at(
                    file, words[step - 1].number, f"the heads run in a circle through word {step}"
                )
            path.append(step)
            step = heads[step - 1]
        safe.update(path)


def placed(tokens: Sequence[Row], text: str | None) -> tuple[str, list[int]]:
    """Find where tokens start in `# text`; rebuild it (SpaceAfter) where it does not hold them."""
    if text is not None:
        text = text.strip()
        starts: list[int] = []
        end = 0
        for token in tokens:
            start = end + len(text[end:]) - len(text[end:].lstrip())
            if not text.startswith(token.form, start):
                break
            starts.append(start)
            end = start + len(token.form)
        else:
            if end == len(text):
                return text, starts
    rebuilt, gap = "", ""
    starts = []
    for token in tokens:
        starts.append(len(rebuilt + gap))
        rebuilt += gap + token.form
        gap = "" if token.misc.get("SpaceAfter") == "No" else " "
    return rebuilt, starts


def shared(surface: str, start: int, forms: Sequence[str]) -> list[tuple[int, int]]:
    """Share a token's characters among its words; all get the whole where they cannot be told."""
    if "".join(forms).lower() != surface.lower() or sum(map(len, forms)) != len(surface):
        return [(start, start + len(surface))] * len(forms)
    spans = []
    for form in forms:
        spans.append((start, start + len(form)))
        start += len(form)
    return spans


def mentions(sentences: Iterable[Sequence[Row]], document: Document) -> Iterator[Span]:
    """Read a document's Entity brackets.

    A bracket at an empty node opens at the next word and closes at the last; a mention of empty
    nodes alone is none.
    """
    opened: dict[str, list[tuple[int, int]]] = {}
    n_words = 0
    for row in (row for rows in sentences for row in rows):
        is_word = isinstance(row.id, int)
        n_words += is_word
        if "Entity" not in row.misc or (isinstance(row.id, tuple) and row.id[1] == "-"):
            continue
        value = row.misc["Entity"]
        brackets = list(BRACKET.finditer(value))
        if "".join(match[0] for match in brackets) != value or not value:
            raise reading.at(document.file, row.number, f"the brackets of 'Entity={value}'")
        for match in brackets:
            fields = (match["opened"] or match["closed"]).split("-")
            name = fields[document.id_field] if len(fields) > document.id_field else fields[0]
            if match["opened"]:
                opened.setdefault(name, []).append((n_words - is_word, row.number))
            if match["closed"] or match["at_once"]:
                if not opened.get(name):
                    raise reading.at(
                        document.file, row.number, f"Entity: '{name})' closes what was not opened"
                    )
                first, line = opened[name].pop()
                if first < n_words:
                    yield Span(PART.sub("", name), first, n_words - 1, line)
    left = sorted((line, name) for name, places in opened.items() for _, line in places)
    if left:
        raise reading.at(document.file, left[0][0], f"Entity: '({left[0][1]}' is not closed")
