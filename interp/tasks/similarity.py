"""Sentence similarity, for encoders: is a paraphrase nearer than a look-alike?

Metric: cos(anchor, near) - cos(anchor, far) of mean-pooled final hidden states.
"""

from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.tasks import triplets
from interp.tasks.task import Item, Task, cosine_difference


def task(model: HeadModel, *, min_accuracy: float) -> Task:
    """Make the task of our own triplets (interp.tasks.triplets)."""
    if model.kind != "encoder":
        raise InputError(
            f"task=similarity needs an encoder; {model.name} is a {model.kind.replace('_', '-')}"
        )
    table = triplets.sentences()
    columns = ["anchor", "near", "far"]
    return Task(
        name="similarity",
        metric="cos_diff",
        higher_is_better=True,
        unit="cosine",
        score=cosine_difference,
        examples=[
            tuple(Item(model.codec.encode(text)) for text in row)
            for row in table[columns].itertuples(index=False)
        ],
        table=table.assign(example=range(len(table))),
        min_accuracy=min_accuracy,
    )
