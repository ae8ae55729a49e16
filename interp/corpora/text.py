"""Plain text of the user's own, parsed by spaCy or only cut into words."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from interp.corpora import clearnlp, reading
from interp.corpora.corpus import Corpus, Passage, Word
from interp.corpora.reading import Sentence
from interp.errors import InputError

_UNIVERSAL = (
    "acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det discourse "
    "dislocated expl fixed flat goeswith iobj list mark nmod nsubj nummod obj obl orphan parataxis "
    "punct reparandum root vocative xcomp"
)
UNIVERSAL = frozenset(_UNIVERSAL.split())
"""The relations of Universal Dependencies 2."""


def text(path: str, *, sentences: int, pipeline: str | None, skip_bad: bool) -> Corpus:
    """Read a text file, or those of a folder and its subfolders; each is a document.

    White space is evened out, an empty line ends a sentence. A passage is `sentences` sentences of
    one document that follow each other, joined by a space. With `skip_bad`, a file with a mistake
    is left out and noted.

    Args:
        path: The file or folder.
        sentences: Sentences of a passage.
        pipeline: A spaCy pipeline that parses the text. Trees of its English pipelines are turned
            into Universal Dependencies, approximately (`interp.corpora.clearnlp`). None: words and
            sentences are cut by rule (`reading.words`), and there are no trees.
        skip_bad: Whether to go on without what cannot be read.

    Raises:
        InputError: A file is not text, the pipeline cannot be used, or there is nothing to read.
    """
    reading.groups(0, sentences)
    files = reading.found(path, "*")
    nlp = None if pipeline is None else load(pipeline)
    skipped: list[str] = []
    passages: list[Passage] = []
    documents = {}
    top = Path(path).expanduser()
    for file in files:
        with reading.leaving_out(skipped, skip_bad):
            paragraphs = list(paragraphs_of(reading.lines(file)))
            name = file.name if file == top else str(file.relative_to(top))
            documents[name] = {"source": name, "licence": "the user's own"}
            read = list(by_rule(paragraphs) if nlp is None else parsed(nlp, paragraphs))
            for group in reading.groups(len(read), sentences):
                passages.append(reading.joined([read[i] for i in group], name))
    return reading.corpus(path, passages, documents, skipped)


def paragraphs_of(lines: Sequence[str]) -> Iterator[str]:
    """Join lines up to an empty one."""
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph += line.split()
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []


def by_rule(paragraphs: Sequence[str]) -> Iterator[Sentence]:
    """Cut paragraphs into sentences and words, by rule."""
    for paragraph in paragraphs:
        for start, end in reading.sentences(paragraph):
            sentence = paragraph[start:end]
            yield Sentence(sentence, reading.words(sentence))


def load(pipeline: str) -> Any:
    """Load a spaCy pipeline and check that its parser's labels can be used."""
    try:
        import spacy
    except ImportError as error:
        raise InputError(
            f"pipeline={pipeline} needs spaCy: pip install 'manyheads[nlp]' "
            "(or pipeline=null for words without trees)"
        ) from error
    try:
        nlp = spacy.load(pipeline)
    except ImportError as error:
        raise InputError(f"pipeline={pipeline} cannot be loaded: {error}") from error
    except OSError as error:
        raise InputError(
            f"pipeline={pipeline} is not installed: python -m spacy download {pipeline} "
            "(or pipeline=null for words without trees)"
        ) from error
    if "parser" not in nlp.pipe_names:
        raise InputError(
            f"pipeline={pipeline} has no parser (only {', '.join(nlp.pipe_names) or 'a tokenizer'})"
        )
    is_universal(pipeline, nlp.get_pipe("parser").labels)
    return nlp


def is_universal(pipeline: str, labels: Sequence[str]) -> bool:
    """Tell Universal Dependencies from ClearNLP's labels.

    Raises:
        InputError: They are neither.
    """
    known = {label for label in labels if label.partition(":")[0].lower() in UNIVERSAL}
    if known == set(labels):
        return True
    unknown = sorted(set(labels) - set(clearnlp.NAMES))
    if unknown:
        foreign = sorted(set(unknown) - known) or unknown
        raise InputError(
            f"pipeline={pipeline}: its label '{foreign[0]}' is neither Universal Dependencies nor "
            "ClearNLP (spaCy's English pipelines): pipeline=null reads words without trees"
        )
    return False


def parsed(nlp: Any, paragraphs: Sequence[str]) -> Iterator[Sentence]:
    """Let spaCy parse paragraphs."""
    universal = is_universal(nlp.meta["name"], nlp.get_pipe("parser").labels)
    for paragraph in nlp.pipe(paragraphs):
        for sentence in paragraph.sents:
            tokens = [token for token in sentence if not token.is_space]
            if not tokens:
                continue
            lemmas = [token.lemma_ or token.text.lower() for token in tokens]
            upos = [token.pos_ or "X" for token in tokens]
            number = {token.i: i for i, token in enumerate(tokens)}
            heads = [None if t.head == t else number[t.head.i] for t in tokens]
            labels = [token.dep_ for token in tokens]
            trees = [(h, "root" if h is None else d) for h, d in zip(heads, labels, strict=True)]
            if not universal:
                names = [
                    [number[token.i] for token in entity]
                    for entity in sentence.ents
                    if entity.label_ == "PERSON"
                ]
                trees = clearnlp.universal(lemmas, upos, heads, labels, names)
            start = tokens[0].idx
            yield Sentence(
                paragraph.text[start : tokens[-1].idx + len(tokens[-1])],
                [
                    Word(
                        token.text,
                        token.idx - start,
                        token.idx - start + len(token),
                        sentence=0,
                        upos=tag,
                        lemma=lemma,
                        head=head,
                        deprel=deprel,
                        pronoun=reading.pronoun(tag, token.morph.to_dict()),
                    )
                    for token, tag, lemma, (head, deprel) in zip(
                        tokens, upos, lemmas, trees, strict=True
                    )
                ],
            )
