"""An exact sweep over gate settings: every setting on every example, at the cost of a few.

The unit of work is a row: one example under one gate setting. Rows whose first closed head lies in
the same block go through together, as settings x examples, and the blocks before it are replayed
from a clean run of the batch (HeadModel.replaying). A row run this way equals the same row run by a
plain full forward, to 1e-4 in float32: matrix products differ in the last bits with their shapes.

What is run in which order is a pure function of the configuration (`plan`): batches hold examples
of equal token counts, so that hardly a position is padding, and a part is a run of micro-batches
whose rows are written to disk together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp import gates
from interp.errors import InputError
from interp.gates import Baseline, Setting
from interp.models.head_model import HeadModel
from interp.tasks.task import Questions, Task

PART_TOKENS = 1 << 12
"""A part ends with the first micro-batch that takes it over this many tokens."""


@dataclass(frozen=True)
class Job:
    """One micro-batch: settings x examples, all under one draw of the baseline."""

    examples: tuple[int, ...]
    block: int
    """The first block with a closed gate; the blocks before it are replayed."""
    settings: tuple[int, ...]
    draw: int

    @property
    def n_rows(self) -> int:
        """Count the rows."""
        return len(self.examples) * len(self.settings)


@dataclass(frozen=True)
class Plan:
    """Every micro-batch of a sweep, in order, and where parts end."""

    parts: tuple[tuple[Job, ...], ...]

    @property
    def n_rows(self) -> int:
        """Count the rows: settings x examples x draws."""
        return sum(job.n_rows for part in self.parts for job in part)

    def record(self) -> dict[str, int]:
        """Describe the plan for run.json."""
        n_jobs = sum(map(len, self.parts))
        return {"n_rows": self.n_rows, "n_micro_batches": n_jobs, "n_parts": len(self.parts)}


def plan(
    model: HeadModel, task: Task, settings: Sequence[Setting], n_draws: int, tokens_per_batch: int
) -> Plan:
    """Lay out a sweep.

    Args:
        model: The model.
        task: The examples.
        settings: The heads that are closed together in a row.
        n_draws: How many versions of the baseline there are.
        tokens_per_batch: The most tokens in a micro-batch, its padding included; a single row may
            exceed it.

    Raises:
        InputError: tokens_per_batch is not positive.
    """
    if tokens_per_batch < 1:
        raise InputError(f"tokens_per_batch={tokens_per_batch}: at least 1")
    blocks = [min(model.block(head) for head in setting) for setting in settings]
    by_block = {
        block: [number for number, first in enumerate(blocks) if first == block]
        for block in sorted(set(blocks))
    }
    jobs = [
        (tokens, Job(examples, block, tuple(chunk), draw))
        for examples, tokens in _batches(task, tokens_per_batch)
        for block, numbers in by_block.items()
        for draw in range(n_draws)
        for chunk in _even(numbers, max(1, tokens_per_batch // tokens))
    ]
    parts: list[tuple[Job, ...]] = []
    part: list[Job] = []
    filled = 0
    for tokens, job in jobs:
        part.append(job)
        filled += tokens * len(job.settings)
        if filled >= PART_TOKENS:
            parts.append(tuple(part))
            part, filled = [], 0
    return Plan(tuple([*parts, tuple(part)] if part else parts))


def _batches(task: Task, tokens_per_batch: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Group examples of equal padded size; yield each batch with its number of tokens."""

    def size(number: int) -> tuple[int, int]:
        shapes = [item.shape for item in task.examples[number]]
        return max(text for text, _ in shapes), max(target for _, target in shapes)

    order = sorted(range(len(task)), key=lambda number: (size(number), number))
    for (text, target), group in groupby(order, key=size):
        numbers = list(group)
        tokens = (text + target) * task.n_sequences
        for chunk in _even(numbers, max(1, tokens_per_batch // tokens)):
            yield tuple(chunk), tokens * len(chunk)


def batches(model: HeadModel, task: Task, tokens_per_batch: int) -> Iterator[Questions]:
    """Yield all examples of a task in batches of equal padded size."""
    for examples, _ in _batches(task, tokens_per_batch):
        yield task.questions(model, examples)


def _even(numbers: Sequence[int], most: int) -> list[list[int]]:
    """Cut a list into as few pieces of at most `most` as possible, of almost equal length."""
    n_pieces = -(-len(numbers) // most)
    return [piece.tolist() for piece in np.array_split(np.array(numbers), n_pieces)]


@torch.inference_mode()
def clean_scores(
    model: HeadModel, task: Task, tokens_per_batch: int
) -> Float[np.ndarray, " example"]:
    """Score every example with all gates open."""
    scores = np.empty(len(task))
    for examples, _ in _batches(task, tokens_per_batch):
        scores[list(examples)] = task.score(model, task.questions(model, examples)).cpu()
    return scores


class Engine:
    """Runs the jobs of a plan; keeps the clean run of the batch it is at."""

    def __init__(
        self,
        model: HeadModel,
        task: Task,
        settings: Sequence[Setting],
        baseline: Baseline,
        positions: str,
    ) -> None:
        """Bind what stays the same in all jobs."""
        self.model, self.task, self.settings = model, task, settings
        self.baseline, self.positions = baseline, positions
        self.heads = {head for setting in settings for head in setting}
        self.examples: tuple[int, ...] = ()

    def check(self) -> None:
        """Find out on the first example whether positions and baseline can be served.

        Raises:
            InputError: They cannot.
        """
        with torch.inference_mode():
            self.start((0,))

    @torch.inference_mode()
    def run(self, job: Job) -> pd.DataFrame:
        """Run one micro-batch.

        Returns:
            One line a row: `setting, example, draw, clean, ablated`, where `setting` and `example`
            are numbers in the lists that the plan was made from.
        """
        if job.examples != self.examples:
            self.start(job.examples)
        n_examples, n_settings = len(job.examples), len(job.settings)
        rows = torch.arange(len(self.asked.batch), device=self.model.device).repeat(n_settings)
        closed = [
            self.settings[number]
            for number in job.settings
            for _ in range(n_examples * self.task.n_sequences)
        ]
        asked = self.asked.select(rows)
        acts = {site: mark[rows] for site, mark in self.acts.items()}
        opening = gates.xi(self.model, asked.batch, closed, acts)
        with (
            self.model.replaying(job.block, self.recorded, rows),
            gates.gated(self.model, opening, self.baseline, rows, job.draw),
        ):
            ablated = self.task.score(self.model, asked)
        return pd.DataFrame(
            {
                "setting": np.repeat(job.settings, n_examples),
                "example": np.tile(job.examples, n_settings),
                "draw": job.draw,
                "clean": np.tile(self.clean, n_settings),
                "ablated": ablated.double().cpu().numpy(),
            }
        )

    def start(self, examples: tuple[int, ...]) -> None:
        """Run a new batch clean."""
        self.examples = ()  # until all of the new batch is in place
        self.asked: Questions = self.task.questions(self.model, examples)
        with self.model.recording() as self.recorded:
            clean = self.task.score(self.model, self.asked)
        self.clean = clean.double().cpu().numpy()
        self.acts = gates.acting(self.model, self.asked, self.positions, self.heads)
        self.baseline.prepare(self.model, self.task, examples)
        self.examples = examples
