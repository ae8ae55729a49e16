"""Plain text: how well does the model predict each next token?

Metric: mean negative log-probability in nats per token. Examples are consecutive chunks of
`context` tokens of a file, or of each file of a folder; with a BOS (see `prepend_bos`) every token
of a chunk is predicted, without one all but the first.
"""

import pandas as pd

from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.tasks.chunks import chunks
from interp.tasks.minimal_pairs import scored
from interp.tasks.task import Task, loss


def task(model: HeadModel, *, path: str, context: int) -> Task:
    """Cut a text file, or the files of a folder, into chunks.

    Raises:
        InputError: The model is no decoder, the text is too short, or `context` does not fit.
    """
    if model.kind != "decoder":
        raise InputError(f"task=text_loss needs a causal language model; {model.name} is none")
    found = [chunk for chunk in chunks(model, path, context) if len(chunk.text) > 1]
    if not found:
        raise InputError(f"{path}: too short, no token has a predecessor")
    return Task(
        name="text_loss",
        metric="loss",
        higher_is_better=False,
        unit="nats per token",
        score=loss,
        examples=[(scored(chunk.text),) for chunk in found],
        table=pd.DataFrame(
            {
                "example": range(len(found)),
                "cluster": [chunk.cluster for chunk in found],
                "file": [chunk.file for chunk in found],
                "n_tokens": [len(chunk.text) - 1 for chunk in found],
            }
        ),
    )
