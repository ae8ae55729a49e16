"""The lessons there are, and what a checkpoint was trained on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interp.corpora.corpus import Corpus, Passage, Word
from interp.errors import InputError
from interp.models.custom import CustomModel, custom
from interp.models.head_model import HeadModel
from interp.tasks.task import Task
from interp.training import lesson, pronouns
from interp.training.induction import Induction
from interp.training.lesson import LESSON, Lesson
from interp.training.pronouns import Pronouns
from interp.training.relations import Relations
from interp.training.text import Text
from interp.training.translation import Translation

LESSONS: dict[str, type[Lesson]] = {
    kind.__name__.lower(): kind for kind in (Induction, Pronouns, Relations, Text, Translation)
}
CHECKPOINTS = Path(__file__).parent / "checkpoints"
"""Models of ours; `make checkpoints` trains them again."""


def read(folder: Path) -> Lesson:
    """Say what a checkpoint was trained on.

    Raises:
        InputError: It does not say.
    """
    path = folder / LESSON
    if not path.is_file():
        raise InputError(
            f"task=trained needs a checkpoint of experiments.train: there is no {path}"
        )
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return LESSONS[facts["lesson"]](**facts["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error


def task(model: HeadModel, *, n: int, seed: int, metric: str, min_accuracy: float) -> Task:
    """Examine a trained model on fresh examples of its lesson (see interp.training.lesson.task).

    Raises:
        InputError: The model was not trained on a lesson, or the metric is unknown.
    """
    known = read(Path(str(model.record["name"])))
    return lesson.task(known, n=n, seed=seed, metric=metric, min_accuracy=min_accuracy)


def shipped() -> list[str]:
    """List the lessons of which a trained model comes with the project."""
    return sorted(path.name for path in CHECKPOINTS.iterdir() if (path / LESSON).is_file())


def trained(
    name: str,
    *,
    device: str,
    dtype: str,
    prepend_bos: bool | str,
    padding_side: str,
    truncation: str,
) -> CustomModel:
    """Load a model of ours that was trained on the lesson of that name.

    Raises:
        InputError: There is none of that name.
    """
    if name not in shipped():
        raise InputError(f"model.name={name}: one of {', '.join(shipped())}")
    return custom(
        str(CHECKPOINTS / name),
        device=device,
        dtype=dtype,
        prepend_bos=prepend_bos,
        padding_side=padding_side,
        truncation=truncation,
    )


def corpus(lesson: str, *, n: int, seed: int) -> Corpus:
    """Write fresh examples of a trained model's lesson as a corpus.

    Args:
        lesson: The lesson of a model that comes with the project, or a checkpoint's folder.
        n: How many passages.
        seed: Their seed.

    Raises:
        InputError: There is no such model, or there are no passages.
    """
    if lesson not in shipped() and not (Path(lesson) / LESSON).is_file():
        known = ", ".join(shipped())
        raise InputError(f"corpus.lesson={lesson}: one of {known}, or a checkpoint's folder")
    if n < 1:
        raise InputError(f"corpus.n={n}: at least 1")
    return sentences(read(CHECKPOINTS / lesson if lesson in shipped() else Path(lesson)), n, seed)


def sentences(lesson: Lesson, n: int, seed: int) -> Corpus:
    """Write fresh examples of a lesson as a corpus; of pronouns, with what they stand for."""
    if isinstance(lesson, Pronouns):
        return pronouns.corpus(n, seed, lesson.language_seed)
    drawn = lesson.examples(n, seed=seed, split="fresh")

    def text(tokens: Any, mask: Any) -> str:
        return lesson.tokenizer.decode(tokens[mask], skip_special_tokens=True)

    passages = []
    for row in range(n):
        said, target = text(drawn.tokens[row], drawn.mask[row]), None
        if drawn.decoder_tokens is not None and drawn.decoder_mask is not None:
            target = text(drawn.decoder_tokens[row], drawn.decoder_mask[row])
        passages.append(Passage(said, tuple(_words(said)), str(row), str(row), target=target))
    return Corpus(f"{lesson.name}, seed {seed}", tuple(passages), {})


def _words(text: str) -> Iterator[Word]:
    """Cut a text at its white space."""
    end = 0
    for form in text.split():
        start = text.index(form, end)
        end = start + len(form)
        yield Word(form, start, end, 0, lemma=form.lower())
