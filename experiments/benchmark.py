"""How fast is the sweep, and against what?

In one process, on the same batch of random tokens, four runners ablate the same heads to zero one
by one and must find the same numbers:

    replay          our sweep
    batched_heads   heads x examples as one batch in micro-batches of the same size, every block run
    hf_loop         one plain Hugging Face forward a head, with a pre-hook on W_O
    bridge_loop     one `TransformerBridge.run_with_hooks` a head

The loops are as one would write them: all positions are unembedded, then the metric is taken.

    python -m experiments.benchmark
    python -m experiments.benchmark -m model=smollm2,tiny_llama
    python -m experiments.benchmark model=pretrained model.name=gpt2 'shapes=[[8,64,last]]'

Writes benchmark.png and two tables. benchmark has one line a shape and runner:

    model                   its name
    examples, tokens        prompts in the batch, and tokens of each
    read                    last: a logit difference at the last position; all: the mean loss
    runner                  one of the four
    seconds_per_head        median over repeats, in each of which the runners take turns
    ratio_to_bridge_loop    how many times faster than the bridge's loop
    utilisation             multiply-adds that an exact sweep needs (blocks from the ablated one on,
                            and the unembedding of the positions read), as a share of what large
                            matrix products right before and after did a second; median
    max_difference          largest difference from the bridge loop's ablated metric, in its unit
    peak_mb                 the process' largest resident memory while the runner ran, in MiB

growth has one line a point and runner (replay and bridge_loop), the last position being read:

    model                   its name
    axis                    what grows: examples | tokens | layers
    value                   how many: prompts; tokens of each; blocks from the ablated one on
    runner                  one of the two
    seconds_per_head        median over repeats
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from tqdm import tqdm

from experiments.command import build, command, plain
from interp import gates, plots, sweep
from interp.errors import InputError
from interp.heads import Head, all_heads
from interp.models.head_model import HeadModel
from interp.models.text import Encoded
from interp.runs import Run, whole
from interp.tasks.minimal_pairs import scored
from interp.tasks.task import Item, Questions, Task, logit_difference, loss


@dataclass(frozen=True)
class Work:
    """What a runner is given."""

    model: HeadModel
    task: Task
    heads: Sequence[Head]
    tokens_per_batch: int


Runner = Callable[[Work], tuple[np.ndarray, float]]
"""Returns the ablated metric `[head example]`, and the seconds a head."""


def random_task(model: HeadModel, examples: int, tokens: int, read: str, seed: int) -> Task:
    """Make a task of random tokens: a logit difference at the last position, or the mean loss."""
    rng = np.random.default_rng(seed)
    vocabulary = model.codec.tokenizer.vocab_size
    items = []
    for _ in range(examples):
        ids = tuple(rng.integers(vocabulary // 10, vocabulary, tokens).tolist())
        text = Encoded(ids, ((0, 0),) * tokens, (False,) * tokens)
        if read == "last":
            items.append(Item(text, read=(tokens - 1,), ids=(ids[:2],)))
        else:
            items.append(scored(text))
    return Task(
        name="random",
        metric="logit_diff" if read == "last" else "loss",
        higher_is_better=read == "last",
        unit="logits" if read == "last" else "nats per token",
        score=logit_difference if read == "last" else loss,
        examples=[(item,) for item in items],
        table=pd.DataFrame({"example": range(examples)}),
    )


def replay(work: Work) -> tuple[np.ndarray, float]:
    """Run our sweep."""
    return _swept(work, _jobs(work))


def batched_heads(work: Work) -> tuple[np.ndarray, float]:
    """Run micro-batches as full as the budget allows through the whole model."""
    jobs = []
    for examples in dict.fromkeys(job.examples for job in _jobs(work)):
        n_tokens = sum(len(work.task.examples[number][0].text) for number in examples)
        n_jobs = -(-len(work.heads) // max(1, work.tokens_per_batch // n_tokens))
        for settings in np.array_split(range(len(work.heads)), n_jobs):
            jobs.append(sweep.Job(examples, 0, tuple(settings.tolist()), 0))
    return _swept(work, jobs)


def _jobs(work: Work) -> list[sweep.Job]:
    """List the micro-batches of our sweep."""
    settings = [(head,) for head in work.heads]
    plan = sweep.plan(work.model, work.task, settings, 1, work.tokens_per_batch)
    return [job for part in plan.parts for job in part]


def _swept(work: Work, jobs: Sequence[sweep.Job]) -> tuple[np.ndarray, float]:
    """Run micro-batches; clean runs serve all heads of the model, so each head bears its share."""
    settings = [(head,) for head in work.heads]
    engine = sweep.Engine(work.model, work.task, settings, gates.Zero(), "all")
    n_all = len(all_heads(work.model.sites))
    rows, seconds = [], 0.0
    for job in jobs:
        if job.examples != engine.examples:
            started = time.perf_counter()
            with torch.inference_mode():
                engine.start(job.examples)
            seconds += (time.perf_counter() - started) / n_all
        started = time.perf_counter()
        rows.append(engine.run(job))
        seconds += (time.perf_counter() - started) / len(work.heads)
    table = pd.concat(rows).sort_values(["setting", "example"])
    return table["ablated"].to_numpy().reshape(len(work.heads), -1), seconds


def hf_loop(work: Work) -> tuple[np.ndarray, float]:
    """Run one plain forward a head, with a hook on W_O's input."""

    def forward(asked: Questions, head: Head) -> Tensor:
        def close(z: Tensor) -> Tensor:
            z = z.clone()
            z[:, :, head.head] = 0.0
            return z

        with work.model.editing({(head.site, head.layer): close}):
            return work.model.run(asked.batch)

    return _looped(work, forward)


def bridge_loop(work: Work) -> tuple[np.ndarray, float]:
    """Run one hooked forward of the bridge a head."""
    site = work.model.sites[0]

    def forward(asked: Questions, head: Head) -> Tensor:
        def close(z: Tensor, hook: Any) -> Tensor:
            z = z.clone()
            z.view(*z.shape[:2], site.n_heads, site.d_head)[:, :, head.head] = 0.0
            return z

        return work.model.hooked.run_with_hooks(
            asked.batch.text.tokens,
            attention_mask=asked.batch.text.mask.long(),
            fwd_hooks=[(f"blocks.{head.layer}.attn.hook_z", close)],
        )

    return _looped(work, forward)


@torch.inference_mode()
def _looped(work: Work, forward: Callable[[Questions, Head], Tensor]) -> tuple[np.ndarray, float]:
    """Take the metric from the logits of one forward a head."""
    started = time.perf_counter()
    asked = work.task.questions(work.model, range(len(work.task)))
    scores = []
    for head in work.heads:
        logits = forward(asked, head)
        if work.task.metric == "logit_diff":
            answer, distractor = logits[:, -1].gather(-1, asked.ids[:, 0]).unbind(-1)
            scores.append(answer - distractor)
        else:
            following = asked.batch.text.tokens[:, 1:, None]
            log_probs = logits[:, :-1].log_softmax(-1).gather(-1, following)
            scores.append(-log_probs[..., 0].mean(-1))
    found = torch.stack(scores).double().cpu().numpy()
    return found, (time.perf_counter() - started) / len(work.heads)


LOOPS: Mapping[str, Runner] = {"hf_loop": hf_loop, "bridge_loop": bridge_loop}
RUNNERS: Mapping[str, Runner] = {"replay": replay, "batched_heads": batched_heads, **LOOPS}


def multiply_adds(model: HeadModel, task: Task, layers: Sequence[int]) -> float:
    """Count the multiply-adds that an exact sweep needs for one head, averaged over layers."""
    weights = [
        sum(p.numel() for p in stack[index].parameters() if p.ndim > 1)
        for stack, index in model.blocks
    ]
    n_tokens = sum(len(item.text) for example in task.examples for item in example)
    n_read = sum(len(item.read) for example in task.examples for item in example)
    blocks = statistics.mean(sum(weights[layer:]) for layer in layers)
    unembedding: Any = model.unembed
    return n_tokens * blocks + n_read * unembedding.weight.numel()


def peak_rate(model: HeadModel, size: int, repeats: int = 3) -> float:
    """Measure the multiply-adds a second of a large matrix product, the best of a few."""
    weight = next(model.module.parameters())
    a, b = torch.randn(2, size, size, device=weight.device).to(weight.dtype)
    rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for the device
        rates.append(size**3 / (time.perf_counter() - started))
    return max(rates)


@contextmanager
def watching_memory() -> Iterator[list[float]]:
    """Sample the process' resident memory; the list's only entry ends as its peak in MiB."""
    process, peak, done = psutil.Process(), [0.0], threading.Event()

    def sample() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], process.memory_info().rss / 2**20)
            done.wait(0.01)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


@dataclass
class Timing:
    """What the repeats of one runner gave: one entry each, and the scores of the last."""

    scores: np.ndarray = field(default_factory=lambda: np.empty(0))
    seconds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)

    @property
    def seconds_per_head(self) -> float:
        """Take the median over repeats."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Point:
    """What is timed at once."""

    examples: int
    tokens: int
    read: str
    layers: tuple[int, ...]
    """The sweeps run all heads of these layers, as they come in a micro-batch; the loops, whose
    heads all take equally long, run one of each."""
    runners: tuple[str, ...]
    repeats: int
    axis: str = ""
    value: int = 0
    """Where on the growth curves this is."""

    def measure(self, cfg: DictConfig, model: HeadModel, bar: tqdm) -> pd.DataFrame:
        """Let the runners take turns; return one line a runner, with the columns of both tables."""
        task = random_task(model, self.examples, self.tokens, self.read, cfg.seed)
        n_heads = model.sites[0].n_heads
        heads = [Head("attn", layer, head) for layer in self.layers for head in range(n_heads)]
        some = [Head("attn", layer, n % n_heads) for n, layer in enumerate(self.layers)]
        timings = {name: Timing() for name in self.runners}
        for _ in range(self.repeats):
            rate = peak_rate(model, cfg.gemm)
            for name, timing in timings.items():
                chosen = some if name in LOOPS else heads
                with watching_memory() as peak:
                    timing.scores, seconds = RUNNERS[name](
                        Work(model, task, chosen, cfg.tokens_per_batch)
                    )
                before, rate = rate, peak_rate(model, cfg.gemm)
                timing.seconds.append(seconds)
                timing.rates.append((before + rate) / 2)
                timing.peak_mb.append(peak[0])
                bar.update()
        needed = multiply_adds(model, task, self.layers)
        loop = timings["bridge_loop"]
        common = [heads.index(head) for head in some]
        return pd.DataFrame(
            {
                "model": model.name,
                "axis": self.axis,
                "value": self.value,
                "examples": self.examples,
                "tokens": self.tokens,
                "read": self.read,
                "runner": name,
                "seconds_per_head": timing.seconds_per_head,
                "ratio_to_bridge_loop": loop.seconds_per_head / timing.seconds_per_head,
                "utilisation": statistics.median(
                    needed / seconds / rate
                    for seconds, rate in zip(timing.seconds, timing.rates, strict=True)
                ),
                "max_difference": np.abs(
                    (timing.scores if name in LOOPS else timing.scores[common]) - loop.scores
                ).max(),
                "peak_mb": max(timing.peak_mb),
            }
            for name, timing in timings.items()
        )


def shapes(cfg: DictConfig, n_layers: int) -> list[Point]:
    """List what the table `benchmark` is made of.

    Raises:
        InputError: A shape is none.
    """
    layers, runners = spread(cfg.layers, n_layers), tuple(RUNNERS)
    found = []
    for shape in cfg.shapes:
        if len(shape) != 3 or shape[2] not in ("last", "all"):
            raise InputError(f"shapes: {shape} is not [examples, tokens, last or all]")
        examples, tokens, read = shape
        found.append(Point(examples, tokens, read, layers, runners, cfg.repeats))
    return found


def growth(cfg: DictConfig, n_layers: int) -> list[Point]:
    """List what the table `growth` is made of."""
    runners, repeats = ("replay", "bridge_loop"), cfg.growth.repeats
    layers = spread(cfg.layers, n_layers)
    found = []
    for axis in ("examples", "tokens"):
        for examples, tokens in cfg.growth[axis]:
            value = examples if axis == "examples" else tokens
            found.append(Point(examples, tokens, "last", layers, runners, repeats, axis, value))
    examples, tokens = cfg.growth.at
    depths = np.linspace(n_layers - 1, 0, min(cfg.growth.layers, n_layers)).round().astype(int)
    for layer in depths.tolist():
        value = n_layers - layer
        found.append(Point(examples, tokens, "last", (layer,), runners, repeats, "layers", value))
    return found


def spread(n: int, n_layers: int) -> tuple[int, ...]:
    """Choose n layers, evenly spaced, or all where there are fewer."""
    n = min(n, n_layers)
    return tuple(int((number + 0.5) * n_layers / n) for number in range(n))


@command("benchmark")
def main(cfg: DictConfig, folder: Path) -> None:
    """Time every point, write tables and figure, and print the tables."""
    for key in ("repeats", "layers", "gemm", "growth.repeats", "growth.layers"):
        if OmegaConf.select(cfg, key) < 1:
            raise InputError(f"{key}=0: at least 1")
    model = build(cfg.model)
    if model.kind != "decoder":
        raise InputError(f"experiments.benchmark needs a decoder; {model.name} is an {model.kind}")
    n_layers, longest = model.sites[0].n_layers, model.codec.n_ctx or float("inf")
    compared = shapes(cfg, n_layers)
    for point in compared:
        if point.tokens > longest:
            raise InputError(f"shapes: {point.tokens} tokens, {model.name} takes at most {longest}")
    grown = [point for point in growth(cfg, n_layers) if point.tokens <= longest]
    run = Run(folder, plain(cfg), {})
    n_turns = sum(point.repeats * len(point.runners) for point in (*compared, *grown))
    with tqdm(total=n_turns, unit="turn", desc=f"{model.name} benchmark") as bar:
        table, curves = (
            pd.concat([point.measure(cfg, model, bar) for point in some], ignore_index=True)
            for some in (compared, grown)
        )
    table = table.drop(columns=["axis", "value"])
    curves = curves[["model", "axis", "value", "runner", "seconds_per_head"]]
    weights = sum(p.numel() * p.element_size() for p in model.module.parameters()) / 2**20
    run.start(
        {"model": model.record, "weights_mb": round(weights), "threads": torch.get_num_threads()},
        {},
    )
    run.write("benchmark", table)
    run.write("growth", curves)
    title = f"{model.name}: all heads ablated one by one"
    with whole(run.folder / "benchmark.png") as scratch:
        plots.speed(table, curves, title=title).savefig(scratch, dpi=150)
    run.finish()
    print(table.to_string(index=False, float_format="{:.3g}".format))
    print(
        curves.pivot(index=["axis", "value"], columns="runner", values="seconds_per_head").round(4)
    )
    print(
        f"weights: {weights:.0f} MB; {folder}: benchmark, growth.parquet, benchmark.png, run.json"
    )


if __name__ == "__main__":
    main()
