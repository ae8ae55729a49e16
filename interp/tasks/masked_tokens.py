"""Masked tokens: how well does a masked language model fill in what was hidden?

Metric: mean negative log-probability of the hidden tokens, in nats per token. Examples are
consecutive chunks of a text; a share of each chunk's tokens, drawn with a seed, is replaced by the
mask token (all of them: no random or kept tokens as in BERT's training).
"""

import numpy as np
import pandas as pd

from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.models.text import Encoded
from interp.tasks.chunks import chunks
from interp.tasks.task import Item, Task, loss


def task(model: HeadModel, *, path: str, context: int, mask_rate: float, seed: int) -> Task:
    """Cut a text file, or the files of a folder, into chunks and hide tokens in each.

    Raises:
        InputError: The model is no masked language model, or a number is out of range.
    """
    mask_id = model.codec.tokenizer.mask_token_id
    if model.kind != "encoder" or model.unembed is None or mask_id is None:
        reason = "no language-model head" if model.kind == "encoder" else "no masked language model"
        raise InputError(f"task=masked_tokens: {model.name} has {reason} (use task=similarity)")
    if not 0 < mask_rate <= 1:
        raise InputError(f"task.mask_rate={mask_rate}: above 0, at most 1")
    rng = np.random.default_rng(seed)
    found = chunks(model, path, context)
    items = [_hide(chunk.text, mask_id, mask_rate, rng) for chunk in found]
    return Task(
        name="masked_tokens",
        metric="loss",
        higher_is_better=False,
        unit="nats per token",
        score=loss,
        examples=[(item,) for item in items],
        table=pd.DataFrame(
            {
                "example": range(len(found)),
                "cluster": [chunk.cluster for chunk in found],
                "file": [chunk.file for chunk in found],
                "n_tokens": [len(item.read) for item in items],
            }
        ),
    )


def _hide(text: Encoded, mask_id: int, rate: float, rng: np.random.Generator) -> Item:
    """Hide a share of a text's real tokens, at least one."""
    real = [position for position, special in enumerate(text.special) if not special]
    n_hidden = max(1, round(rate * len(real)))
    hidden = sorted(rng.choice(real, n_hidden, replace=False).tolist())
    ids = tuple(mask_id if place in set(hidden) else token for place, token in enumerate(text.ids))
    return Item(
        Encoded(ids, text.offsets, text.special),
        read=tuple(hidden),
        ids=tuple((text.ids[place],) for place in hidden),
    )
