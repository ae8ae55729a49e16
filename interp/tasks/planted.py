"""The planted model's own prompts (interp.models.planted): each head's part in them is known."""

import pandas as pd

from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.tasks.prompts import from_table
from interp.tasks.task import Task


def task(model: HeadModel, *, min_accuracy: float) -> Task:
    """Take the prompts that come with a model.

    Raises:
        InputError: It has none.
    """
    examples = pd.DataFrame(getattr(model, "examples", ()))
    if examples.empty:
        raise InputError(
            f"task=planted needs model=planted model.variant=redundant: {model.name} brings no "
            f"prompts of its own"
        )
    return from_table(model, examples, name="planted", min_accuracy=min_accuracy)
