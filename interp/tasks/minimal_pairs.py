"""Minimal pairs: does the model find the acceptable sentence more probable?

Metric: log-probability of the good sentence minus that of the bad one, in nats, over all tokens
that have a predecessor (the first token is scored only after a BOS). The format is BLiMP's
(Warstadt et al. 2020): one JSON object a line, with `sentence_good` and `sentence_bad`.
"""

from interp import files
from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.models.text import Encoded
from interp.tasks.task import Item, Task, log_probability_difference


def task(model: HeadModel, *, path: str, min_accuracy: float) -> Task:
    """Read a JSON-lines file; each pair is its own cluster unless it names one (`cluster`)."""
    if model.kind != "decoder":
        raise InputError(f"task=minimal_pairs needs a causal language model; {model.name} is none")
    table = files.json_lines(path, ["sentence_good", "sentence_bad"])
    examples = []
    for number, (good, bad) in enumerate(
        zip(table["sentence_good"], table["sentence_bad"], strict=True)
    ):
        if good == bad:
            raise InputError(f"{path}, pair {number}: the two sentences are equal")
        try:
            examples.append(tuple(scored(model.codec.encode(text)) for text in (good, bad)))
        except InputError as error:
            raise InputError(f"{path}, pair {number}: {error}") from error
    facts = table.assign(example=range(len(table)))
    if "cluster" not in facts:
        facts["cluster"] = facts["example"].astype(str)
    return Task(
        name="minimal_pairs",
        metric="logprob_diff",
        higher_is_better=True,
        unit="nats",
        score=log_probability_difference,
        examples=examples,
        table=facts,
        min_accuracy=min_accuracy,
    )


def scored(text: Encoded) -> Item:
    """Ask for the log-probability of every token but the first."""
    if len(text) < 2:
        raise InputError(f"a text of {len(text)} token(s) has none with a predecessor")
    return Item(text, read=tuple(range(len(text) - 1)), ids=tuple((i,) for i in text.ids[1:]))
