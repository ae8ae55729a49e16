"""Sequence to sequence: how well does an encoder-decoder predict a given target?

Teacher forcing: the decoder reads the target shifted right by its start token. Metric: mean
negative log-probability in nats per target token, the end included; with a distractor, the
log-probability of the target minus that of the distractor, in nats.
"""

from dataclasses import replace

from interp import files
from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.models.text import Encoded
from interp.tasks.task import Item, Task, log_probability_difference, loss


def task(model: HeadModel, *, path: str, min_accuracy: float) -> Task:
    """Read a CSV file with the columns `source, target` and, optionally, `distractor`.

    `cluster` and `stratum` are taken over where the file has them.

    Raises:
        InputError: The model is no encoder-decoder, or a row cannot be used.
    """
    if model.kind != "encoder_decoder":
        raise InputError(f"task=seq2seq needs an encoder-decoder; {model.name} is a {model.kind}")
    table = files.csv(path, ["source", "target"], ["distractor"])
    columns = ["target", "distractor"] if "distractor" in table else ["target"]
    examples = []
    for number, row in table.iterrows():
        if "distractor" in table and row["target"] == row["distractor"]:
            raise InputError(f"{path}, row {number}: target and distractor are equal")
        try:
            source = model.codec.encode(row["source"])
            examples.append(tuple(_item(model, source, row[column]) for column in columns))
        except InputError as error:
            raise InputError(f"{path}, row {number}: {error}") from error
    facts = table.assign(
        example=range(len(table)), n_tokens=[len(items[0].read) for items in examples]
    )
    if "cluster" not in facts:
        facts["cluster"] = facts["example"].astype(str)
    mean_loss = Task(
        name="seq2seq",
        metric="loss",
        higher_is_better=False,
        unit="nats per token",
        score=loss,
        examples=examples,
        table=facts,
    )
    if len(columns) == 1:
        return mean_loss
    return replace(
        mean_loss,
        metric="logprob_diff",
        higher_is_better=True,
        unit="nats",
        score=log_probability_difference,
        min_accuracy=min_accuracy,
    )


def _item(model: HeadModel, source: Encoded, target: str) -> Item:
    """Shift a target right and ask for each of its tokens."""
    labels = model.codec.encode_target(target)
    return Item(
        source,
        model.shifted(labels),
        read=tuple(range(len(labels))),
        ids=tuple((i,) for i in labels.ids),
    )
