"""Prompts with an answer and a distractor: which of the two does the model expect next?

Metric: logit(answer) - logit(distractor) at the position before the first token in which the two
continuations `prompt + answer` and `prompt + distractor` differ. Both are tokenised as a whole, so
an answer is read as it stands after its prompt.
"""

import pandas as pd

from interp import files
from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.tasks.task import Item, Task, logit_difference


def task(model: HeadModel, *, path: str, min_accuracy: float) -> Task:
    """Read a CSV file with the columns `prompt, answer, distractor` and, optionally, `corrupted`.

    `cluster` and `stratum` are taken over where the file has them; otherwise each prompt is its own
    cluster.
    """
    table = files.csv(path, ["prompt", "answer", "distractor"], ["corrupted"])
    return from_table(model, table, name="prompts", min_accuracy=min_accuracy)


def from_table(model: HeadModel, table: pd.DataFrame, *, name: str, min_accuracy: float) -> Task:
    """Make a task of a table of prompts.

    Raises:
        InputError: The model is no decoder, or a row cannot be used; the line names the row.
    """
    if model.kind != "decoder":
        raise InputError(
            f"task={name} needs a causal language model; {model.name} is an "
            f"{model.kind.replace('_', '-')} (try task=similarity, masked_tokens or seq2seq)"
        )
    columns = table[["prompt", "answer", "distractor"]]
    pairs = [
        _pair(model, *row, place=f"task={name}, row {number}")
        for number, row in enumerate(columns.itertuples(index=False))
    ]
    items = [item for item, _ in pairs]
    facts = pd.DataFrame([fact for _, fact in pairs])
    known = table.reset_index(drop=True).drop(columns=["corrupted"], errors="ignore")
    facts = known.assign(example=range(len(known)), **facts)
    if "cluster" not in facts:
        facts["cluster"] = facts["example"].astype(str)
    return Task(
        name=name,
        metric="logit_diff",
        higher_is_better=True,
        unit="logits",
        score=logit_difference,
        examples=[(item,) for item in items],
        table=facts,
        min_accuracy=min_accuracy,
        corrupted=_corrupted(model, table, items) if "corrupted" in table else None,
    )


def _pair(
    model: HeadModel, prompt: str, answer: str, distractor: str, *, place: str
) -> tuple[Item, dict[str, object]]:
    """Tokenise one prompt with its two continuations and find where they part."""
    if answer == distractor:
        raise InputError(f"{place}: answer and distractor are both '{answer}'")
    try:
        good, bad = model.codec.encode_pair(prompt, [answer, distractor])
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
    shortest = min(len(good), len(bad))
    shared = next((n for n in range(shortest) if good.ids[n] != bad.ids[n]), shortest)
    if shared == shortest:
        raise InputError(
            f"{place}: the tokens of '{answer}' and '{distractor}' do not part: "
            f"one is the beginning of the other"
        )
    if shared == 0:
        raise InputError(f"{place}: '{prompt}' leaves no token to read before the answer")
    first, second = good.ids[shared], bad.ids[shared]
    item = Item(good[:shared], read=(shared - 1,), ids=((first, second),))
    n_prompt = len(model.codec.without_end(model.codec.encode(prompt)))
    tokens = model.codec.tokenizer.convert_ids_to_tokens([first, second])
    facts = {
        "n_prompt_tokens": shared,
        "answer_token": tokens[0],
        "distractor_token": tokens[1],
        # True where the two share their first tokens (or merge with the prompt's last one), so that
        # the metric is read elsewhere than right after the prompt
        "moved": shared != n_prompt,
    }
    return item, facts


def _corrupted(model: HeadModel, table: pd.DataFrame, items: list[Item]) -> list[tuple[Item, ...]]:
    """Tokenise the corrupted twins; their answers must stand where the prompts' do."""
    columns = table[["corrupted", "answer", "distractor"]]
    twins: list[tuple[Item, ...]] = []
    for number, (row, item) in enumerate(zip(columns.itertuples(index=False), items, strict=True)):
        twin, _ = _pair(model, *row, place=f"corrupted prompt of row {number}")
        if (len(twin.text), twin.ids) != (len(item.text), item.ids):
            raise InputError(
                f"corrupted prompt of row {number}: {len(twin.text)} tokens before the answer, "
                f"its clean twin has {len(item.text)}; tokens must be as many and answers the same"
            )
        twins.append((twin,))
    return twins
