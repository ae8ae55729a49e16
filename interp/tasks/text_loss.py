"""Plain text: how well does the model predict each next token?

Metric: mean negative log-probability in nats per token. Examples are consecutive chunks of
`context` tokens of a file, or of each file of a folder; with a BOS (see `prepend_bos`) every token
of a chunk is predicted, without one all but the first. The cluster is the file, or the chunk where
there is only one file.
"""

import pandas as pd

from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.tasks import files
from interp.tasks.minimal_pairs import scored
from interp.tasks.task import Task, loss


def task(model: HeadModel, *, path: str, context: int) -> Task:
    """Cut a text file, or the files of a folder, into chunks.

    Raises:
        InputError: The model is no decoder, the text is too short, or `context` does not fit.
    """
    if model.kind != "decoder":
        raise InputError(f"task=text_loss needs a causal language model; {model.name} is none")
    bos = int(model.codec.prepend_bos)
    longest = model.codec.n_ctx or context + bos
    if not 2 <= context <= longest - bos:
        raise InputError(f"task.context={context}: 2 to {longest - bos} tokens for {model.name}")
    examples, facts = [], []
    documents = files.texts(path)
    for name, content in documents.items():
        whole = model.codec.encode_long(content)
        for number, start in enumerate(range(0, len(whole), context)):
            chunk = model.codec.with_bos(whole[start : start + context])
            if len(chunk) < 2:
                continue  # a last chunk without anything to predict
            cluster = name if len(documents) > 1 else f"{name}:{number}"
            examples.append((scored(chunk),))
            facts.append({"cluster": cluster, "file": name, "n_tokens": len(chunk) - 1})
    if not examples:
        raise InputError(f"task.path={path}: too short, no token has a predecessor")
    return Task(
        name="text_loss",
        metric="loss",
        higher_is_better=False,
        unit="nats per token",
        score=loss,
        examples=examples,
        table=pd.DataFrame(facts).assign(example=range(len(facts))),
    )
