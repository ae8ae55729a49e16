"""Random tokens, said twice: can the model go on from what it has seen once?

A segment of different random tokens follows itself: [BOS] x₁ … x_n x₁ … x_n. From x₂ of the second
copy on every token is predictable from the first, and from nothing else; that is what induction
heads do (Olsson et al. 2022, https://arxiv.org/abs/2209.11895). Segments differ in length, lest a
fixed distance do as well. Metric: mean negative log-probability of those tokens, in nats per token.
"""

import numpy as np
import pandas as pd

from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.models.text import Encoded
from interp.tasks.task import Item, Task, loss

SHORTEST, LONGEST = 8, 24
"""Tokens of a segment."""


def repeated(model: HeadModel, n: int, seed: int) -> list[tuple[Encoded, int]]:
    """Draw repeated segments; returns each sequence and its segment's length.

    All stacks of an encoder-decoder can read them.

    Raises:
        InputError: The model's vocabulary or context is too small.
    """
    rng = np.random.default_rng(seed)
    tokenizer = model.codec.tokenizer
    added = tokenizer.added_tokens_decoder.items()  # (all_special_ids lists named ones alone)
    special = {*tokenizer.all_special_ids, *(n for n, token in added if token.special)}
    vocabulary = np.setdiff1d(np.arange(model.n_readable), list(special))
    before, after = model.codec.frame()
    longest = min(LONGEST, len(vocabulary))
    if model.codec.n_ctx is not None:
        longest = min(longest, (model.codec.n_ctx - len(before) - len(after)) // 2)
    if n and longest < SHORTEST:
        raise InputError(
            f"{model.name}: too few tokens, or too short a context, for repetition "
            f"(where there is n_repeats=, 0 does without)"
        )
    found = []
    for _ in range(n):
        length = int(rng.integers(SHORTEST, longest + 1))
        segment = tuple(rng.choice(vocabulary, length, replace=False).tolist())
        tokens = Encoded(segment * 2, ((0, 0),) * 2 * length, (False,) * 2 * length)
        found.append((before + tokens + after, length))
    return found


def task(model: HeadModel, *, n: int, seed: int) -> Task:
    """Draw `n` sequences.

    Raises:
        InputError: The model is no decoder, or too small.
    """
    if model.kind != "decoder":
        raise InputError(
            f"task=repeated_tokens needs a causal language model; {model.name} is none"
        )
    found, n_before = repeated(model, n, seed), len(model.codec.frame()[0])
    items = []
    for text, length in found:
        known = [n_before + length + place for place in range(1, length)]
        ids = tuple((text.ids[place],) for place in known)
        items.append((Item(text, read=tuple(place - 1 for place in known), ids=ids),))
    return Task(
        name="repeated_tokens",
        metric="loss",
        higher_is_better=False,
        unit="nats per token",
        score=loss,
        examples=items,
        table=pd.DataFrame(
            {
                "example": range(n),
                "cluster": [str(number) for number in range(n)],
                "n_tokens": [length - 1 for _, length in found],
            }
        ),
    )
