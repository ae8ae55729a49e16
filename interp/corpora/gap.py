"""GAP: pronouns of Wikipedia, each with two names that it may refer to.

Source: Webster et al. 2018, https://github.com/google-research-datasets/gap-coreference.
"""

from dataclasses import replace
from pathlib import Path

from interp.corpora import reading
from interp.corpora.corpus import Corpus, Mention, Passage
from interp.errors import InputError

COLUMNS = (
    "ID",
    "Text",
    "Pronoun",
    "Pronoun-offset",
    "A",
    "A-offset",
    "A-coref",
    "B",
    "B-offset",
    "B-coref",
    "URL",
)
LICENCE = "Apache-2.0 (annotations); text from Wikipedia"


def gap(path: str, *, skip_bad: bool) -> Corpus:
    """Read a TSV file with GAP's columns, or the .tsv files of a folder.

    A row is a document of one passage; rows of one Wikipedia page are one cluster. Its words are
    cut by rule and have no trees; names are `PROPN`, the pronoun `PRON`. The pronoun, A and B are
    mentions: a name with coref TRUE has the pronoun's entity, a name with FALSE one of its own.
    `her` is possessive or personal by the word that follows (`reading.english_pronoun`). With
    `skip_bad`, a row with a mistake is left out and noted.

    Raises:
        InputError: A mistake in a file, with its line; or nothing to read.
    """
    skipped: list[str] = []
    passages: dict[str, Passage] = {}
    documents = {}
    for file in reading.found(path, "*.tsv"):
        rows: list[tuple[int, list[str]]] = []
        with reading.leaving_out(skipped, skip_bad):
            rows = rows_of(file)
        header = rows[0][1] if rows else []
        for number, cells in rows[1:]:
            with reading.leaving_out(skipped, skip_bad):
                if len(cells) != len(header):
                    raise reading.at(
                        file, number, f"{len(cells)} cells (by tabs), the header has {len(header)}"
                    )
                row = dict(zip(header, cells, strict=True))
                if row["ID"] in passages:
                    raise reading.at(file, number, f"a second row with the ID '{row['ID']}'")
                passages[row["ID"]] = passage(row, file, number)
                documents[row["ID"]] = {"source": row["URL"], "licence": LICENCE}
    return reading.corpus(path, list(passages.values()), documents, skipped)


def rows_of(file: Path) -> list[tuple[int, list[str]]]:
    """Read a file's lines as cells, with their numbers; cells are taken verbatim."""
    rows = [(i, line.split("\t")) for i, line in enumerate(reading.lines(file), 1) if line.strip()]
    number, header = rows[0]
    for name in COLUMNS:
        if name not in header:
            raise reading.at(
                file, number, f"no column '{name}' in the header; expected {', '.join(COLUMNS)}"
            )
    return rows


def passage(row: dict[str, str], file: Path, number: int) -> Passage:
    """Read a row."""

    def wrong(reason: str) -> InputError:
        return reading.at(file, number, reason)

    text = row["Text"]
    places = {}
    for name in ("Pronoun", "A", "B"):
        said, offset = row[name], row[f"{name}-offset"]
        if not said.strip():
            raise wrong(f"the cell '{name}' is empty")
        if not (offset.isascii() and offset.isdigit()):
            raise wrong(f"'{name}-offset' {offset}: the number of a character was expected")
        start = int(offset)
        there = text[start : start + len(said)]
        if there != said:
            raise wrong(f"'{name}-offset' {offset}: the text has '{there}' there, not '{said}'")
        places[name] = start, start + len(said)
    for name in ("A-coref", "B-coref"):
        if row[name] not in ("TRUE", "FALSE"):
            raise wrong(f"'{name}' is '{row[name]}': TRUE or FALSE was expected")

    words = reading.words(text, cuts=[border for place in places.values() for border in place])
    runs = {name: reading.overlapping(words, *place) for name, place in places.items()}
    for name in ("A", "B"):
        for i in runs[name]:
            if words[i].upos != "PUNCT":
                words[i] = replace(words[i], upos="PROPN")
    if len(runs["Pronoun"]) != 1 or reading.english_pronoun(words, runs["Pronoun"][0]) is None:
        raise wrong(f"'Pronoun' is '{row['Pronoun']}': an English pronoun was expected")
    i = runs["Pronoun"][0]
    words[i] = replace(words[i], upos="PRON", pronoun=reading.english_pronoun(words, i))
    entities = {name: "pronoun" if row[f"{name}-coref"] == "TRUE" else name for name in "AB"}
    mentions = [
        Mention({"Pronoun": "pronoun", **entities}[name], run[0], run[-1])
        for name, run in runs.items()
    ]
    return Passage(
        text,
        tuple(words),
        document=row["ID"],
        cluster=row["URL"],
        mentions=tuple(sorted(mentions, key=lambda mention: (mention.first, mention.last))),
    )
