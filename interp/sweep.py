"""An exact sweep over gate settings: every setting on every example, at the cost of a few.

The unit of work is a row: one example under one gate setting. Rows whose first closed head lies in
the same block (or in neighbouring ones) go through together, as settings x examples, and the blocks
before it are replayed from a clean run of the batch (HeadModel.replaying). A row run this way
equals the same row run by a plain full forward, to 1e-4 in float32: matrix products differ in the
last bits with their shapes.

What is run in which order is a pure function of the configuration (`plan`): batches hold examples
of equal token counts, so that hardly a position is padding, and a part is a run of micro-batches
whose rows are written to disk together.

An adaptive sweep adds examples in rounds (`looks`) and stops measuring a setting once its class is
decided (`run_rounds`); a full sweep is one round.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp import gates, statistics
from interp.axes import Score
from interp.errors import InputError
from interp.gates import Baseline, Setting
from interp.models.head_model import HeadModel, Rows
from interp.runs import Run, read_parts
from interp.tasks.task import Questions, Task

PART_TOKENS = 1 << 12
"""A part ends with the first micro-batch that takes it over this many tokens."""
ENOUGH = 1 << 8
"""Below so many tokens a micro-batch wastes more time on small matrix products than on running a
few blocks that it might have replayed."""
NEAR = 4
"""Blocks further apart than this are never run together."""
BUDGETS = tuple(1 << power for power in range(9, 18))
"""Tokens a micro-batch may be tried with."""
GAIN = 1.05
"""A larger micro-batch must be so much faster to be worth its memory."""


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


@dataclass(frozen=True)
class Look:
    """The end of a round: how many examples there are, and the level of the intervals."""

    n: int
    level: float


def plan(
    model: HeadModel,
    task: Task,
    settings: Sequence[Setting],
    n_draws: int,
    tokens_per_batch: int,
    *,
    numbers: Sequence[int] | None = None,
    examples: Sequence[int] | None = None,
) -> Plan:
    """Lay out a sweep.

    Args:
        model: The model.
        task: The examples.
        settings: The heads that are closed together in a row.
        n_draws: How many versions of the baseline there are.
        tokens_per_batch: The most tokens in a micro-batch, its padding included; a single row may
            exceed it.
        numbers: Which settings to run; None: all.
        examples: On which examples; None: all.

    Raises:
        InputError: tokens_per_batch is not positive.
    """
    if tokens_per_batch < 1:
        raise InputError(f"tokens_per_batch={tokens_per_batch}: at least 1")
    first = {
        number: _first_block(model, settings[number])
        for number in (range(len(settings)) if numbers is None else numbers)
    }
    jobs = [
        (tokens, Job(batch, min(map(first.__getitem__, chunk)), tuple(chunk), draw))
        for batch, tokens in example_batches(task, tokens_per_batch, examples)
        for group in _neighbours(first, enough=-(-ENOUGH // tokens))
        for draw in range(n_draws)
        for chunk in _even(group, max(1, tokens_per_batch // tokens))
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


def example_batches(
    task: Task, tokens_per_batch: int, examples: Sequence[int] | None = None
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Group examples (None: all) of equal padded size; yield batches and their sizes in tokens."""

    def size(number: int) -> tuple[int, int]:
        shapes = [item.shape for item in task.examples[number]]
        return max(text for text, _ in shapes), max(target for _, target in shapes)

    chosen = range(len(task)) if examples is None else examples
    order = sorted(chosen, key=lambda number: (size(number), number))
    for (text, target), group in groupby(order, key=size):
        numbers = list(group)
        tokens = (text + target) * task.n_sequences
        for chunk in _even(numbers, max(1, tokens_per_batch // tokens)):
            yield tuple(chunk), tokens * len(chunk)


def batches(model: HeadModel, task: Task, tokens_per_batch: int) -> Iterator[Questions]:
    """Yield all examples of a task in batches of equal padded size."""
    for examples, _ in example_batches(task, tokens_per_batch):
        yield task.questions(model, examples)


def _first_block(model: HeadModel, setting: Setting) -> int:
    """Say from which block on a setting differs from the clean run."""
    return min(model.block(head) for head in setting)


def _neighbours(first: Mapping[int, int], enough: int) -> Iterator[list[int]]:
    """Group settings by their first block; while one has too few, those of the next join it."""
    group: list[int] = []
    for block, members in groupby(sorted(first, key=lambda n: (first[n], n)), first.__getitem__):
        if group and (len(group) >= enough or block > first[group[0]] + NEAR):
            yield group
            group = []
        group += members
    if group:
        yield group


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
    for examples, _ in example_batches(task, tokens_per_batch):
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
        self.baseline, self.positions = copy(baseline), positions  # (made ready per batch)
        self.heads = {head for setting in settings for head in setting}
        self.examples: tuple[int, ...] = ()

    def check(self) -> None:
        """Find out on the first example whether positions and baseline can be served.

        Raises:
            InputError: They cannot.
        """
        with torch.inference_mode():
            self.start((0,))

    def plan(
        self,
        tokens_per_batch: int,
        numbers: Sequence[int],
        examples: Sequence[int] | None = None,
    ) -> Plan:
        """Lay out some settings on some examples (None: all)."""
        return plan(
            self.model,
            self.task,
            self.settings,
            self.baseline.n_draws,
            tokens_per_batch,
            numbers=numbers,
            examples=examples,
        )

    @torch.inference_mode()
    def run(self, job: Job) -> pd.DataFrame:
        """Run one micro-batch.

        Returns:
            One line a row: `setting, example, draw, clean, ablated`, where `setting` and `example`
            are numbers in the lists that the plan was made from.
        """
        with self.closing(job) as (asked, _):
            ablated = self.task.score(self.model, asked)
        return self.lines(job, ablated)

    def lines(self, job: Job, ablated: Score) -> pd.DataFrame:
        """Lay out what `run` returns."""
        n_examples, n_settings = len(job.examples), len(job.settings)
        return pd.DataFrame(
            {
                "setting": np.repeat(job.settings, n_examples),
                "example": np.tile(job.examples, n_settings),
                "draw": job.draw,
                "clean": np.tile(self.clean, n_settings),
                "ablated": ablated.double().cpu().numpy(),
            }
        )

    @contextmanager
    def closing(self, job: Job) -> Iterator[tuple[Questions, Rows]]:
        """Close the gates of a job's rows, and replay the blocks before them.

        Yields:
            What to ask of the rows, and for each row the sequence of the batch that it repeats.
        """
        if job.examples != self.examples:
            self.start(job.examples)
        rows = torch.arange(len(self.asked.batch), device=self.model.device)
        rows = rows.repeat(len(job.settings))
        closed = [
            self.settings[number]
            for number in job.settings
            for _ in range(len(job.examples) * self.task.n_sequences)
        ]
        asked = self.asked.select(rows)
        acts = {site: mark[rows] for site, mark in self.acts.items()}
        opening = gates.xi(self.model, asked.batch, closed, acts)
        with (
            self.model.replaying(job.block, self.recorded, rows),
            gates.gated(self.model, opening, self.baseline, rows, job.draw),
        ):
            yield asked, rows

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


def measured_budget(engine: Engine) -> int:
    """Find how many tokens a micro-batch should hold on this machine: as many as make it faster.

    The settings of the middle block are run in micro-batches of 512, 1024, … tokens until the next
    larger one is no faster by GAIN, or cannot be filled, or does not fit into memory.
    """
    blocks = [_first_block(engine.model, setting) for setting in engine.settings]
    middle = sorted(blocks)[len(blocks) // 2]
    numbers = [number for number, block in enumerate(blocks) if block == middle]
    best, best_rate, largest = BUDGETS[0], 0.0, 0
    for budget in BUDGETS:
        jobs = [job for part in engine.plan(budget, numbers).parts for job in part]
        job = max(jobs, key=lambda job: job.n_rows)
        try:
            engine.run(job)  # the batch's clean run, and the first touch of memory
            started = time.perf_counter()
            engine.run(job)
            seconds = time.perf_counter() - started
        except torch.OutOfMemoryError:
            break
        tokens = engine.asked.batch.n_tokens * len(job.settings)
        if tokens <= largest or tokens / seconds < GAIN * best_rate:
            break
        best, best_rate, largest = budget, tokens / seconds, tokens
    return best


def looks(n_examples: int, shares: Sequence[float], level: float) -> list[Look]:
    """Say when an adaptive sweep looks at its results, and how sure it has to be each time.

    Args:
        n_examples: How many examples there are.
        shares: The share of them that is there at each look.
        level: The confidence that all of a unit's intervals hold together.

    Raises:
        InputError: The shares do not grow up to 1.
    """
    if sorted({0.0, *shares}) != [0.0, *shares] or shares[-1:] != [1.0]:
        raise InputError(f"rounds={list(shares)}: growing shares up to 1, such as [0.25,0.5,1]")
    counts = list(dict.fromkeys(ceil(share * n_examples) for share in shares))
    levels = statistics.look_levels([count / n_examples for count in counts], level)
    return [Look(count, level) for count, level in zip(counts, levels, strict=True)]


def run_rounds(
    run: Run,
    engine: Engine,
    numbers: Sequence[int],
    *,
    looks: Sequence[Look],
    tokens_per_batch: int,
    tolerance: float,
    seed: int,
    advance: Callable[[int], object],
) -> list[Path]:
    """Run settings round by round, each until its class is decided; what is on disk is not rerun.

    The examples of a round are drawn at random, lest an order in the file pass for a result.

    Args:
        run: Where parts are kept.
        engine: What runs them.
        numbers: Which of the engine's settings to run.
        looks: The end of each round; with one, all settings meet all examples.
        tokens_per_batch: The most tokens in a micro-batch.
        tolerance: The damage up to which a setting counts as negligible, in the metric's unit.
        seed: The seed of the order of examples.
        advance: Is told how many rows are done, or need not be done any more.

    Returns:
        The parts that hold the rows.
    """
    order = np.random.default_rng(seed).permutation(len(engine.task))
    clusters = engine.task.table["cluster"].to_numpy()
    damage = np.full((len(engine.settings), len(engine.task)), np.nan)  # up to its sign
    parts: list[Path] = []
    done, still_open = 0, np.array(numbers, dtype=int)
    for turn, look in enumerate(looks):
        todo = engine.plan(tokens_per_batch, still_open.tolist(), order[done : look.n].tolist())
        new = _carry_out(run, engine, todo, turn, advance)
        parts += new
        done = look.n
        if look is looks[-1] or not len(still_open):
            break
        rows = read_parts(new).groupby(["setting", "example"])[["clean", "ablated"]].mean()
        setting, example = (rows.index.get_level_values(name) for name in rows.index.names)
        damage[setting, example] = rows["ablated"] - rows["clean"]
        interval = statistics.cluster_t(damage[still_open], clusters, level=look.level)
        classes = statistics.classify(interval.low, interval.high, tolerance)
        is_open = classes == "undecided"
        advance(int((~is_open).sum()) * (len(engine.task) - done) * engine.baseline.n_draws)
        still_open = still_open[is_open]
    return parts


def measured(
    run: Run, engine: Engine, *, stage: int, tokens_per_batch: int, advance: Callable[[int], object]
) -> pd.DataFrame:
    """Run every setting on every example, as `damages` does; return the engine's rows."""
    todo = engine.plan(tokens_per_batch, range(len(engine.settings)))
    return read_parts(_carry_out(run, engine, todo, stage, advance))


def damages(
    run: Run, engine: Engine, *, stage: int, tokens_per_batch: int, advance: Callable[[int], object]
) -> Float[np.ndarray, "setting example"]:
    """Measure every setting on every example; what is on disk is not rerun.

    Args:
        run: Where parts are kept.
        engine: What runs them.
        stage: Tells the parts of several such sweeps in one run apart.
        tokens_per_batch: The most tokens in a micro-batch.
        advance: Is told how many rows are done.

    Returns:
        The damage, averaged over draws, in the metric's unit: positive where the model got worse.
    """
    rows = measured(run, engine, stage=stage, tokens_per_batch=tokens_per_batch, advance=advance)
    return _damage(engine, rows)


def at_once(engine: Engine, tokens_per_batch: int) -> Float[np.ndarray, "setting example"]:
    """Measure every setting on every example, as `damages` does, and keep nothing on disk."""
    todo = engine.plan(tokens_per_batch, range(len(engine.settings)))
    rows = [engine.run(job) for part in todo.parts for job in part]
    return _damage(engine, pd.concat(rows, ignore_index=True))


def _damage(engine: Engine, rows: pd.DataFrame) -> Float[np.ndarray, "setting example"]:
    """Lay rows out, averaged over draws and signed as damage."""
    effect = (rows["ablated"] - rows["clean"]).groupby([rows["setting"], rows["example"]]).mean()
    matrix = effect.unstack().to_numpy()
    return -matrix if engine.task.higher_is_better else matrix


def _carry_out(
    run: Run, engine: Engine, todo: Plan, turn: int, advance: Callable[[int], object]
) -> list[Path]:
    """Run the parts of a plan that are not on disk yet; return where all of them are."""
    paths = [run.part(turn, number) for number in range(len(todo.parts))]
    for path, part in zip(paths, todo.parts, strict=True):
        if path.exists():
            advance(sum(job.n_rows for job in part))
            continue
        rows = []
        for job in part:
            rows.append(engine.run(job))
            advance(job.n_rows)
        run.write_part(path, pd.concat(rows, ignore_index=True))
    return paths
