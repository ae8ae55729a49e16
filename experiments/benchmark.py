"""How fast is the sweep, and against what?

In one process and on one batch of random tokens: our sweep (`replay`), and the loop that one would
write without it (`bridge_loop`: one `TransformerBridge.run_with_hooks` a head, then the metric from
the logits it returns). Both ablate the same heads to zero and must find the same numbers.

    python -m experiments.benchmark
    python -m experiments.benchmark model=pretrained model.name=gpt2 'shapes=[[8,64,last]]'

Writes the table benchmark:

    seconds_per_head        median over interleaved repeats
    ratio_to_bridge_loop    how many times faster than the loop
    utilisation             multiply-adds that an exact sweep needs (blocks from the ablated one on,
                            and the unembedding of the positions read), as a share of what the best
                            of three large matrix products beside it would do in the time
    max_difference          between the two runners' ablated metrics, in the metric's unit
    peak_mb                 the process' largest resident memory while the runner ran
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from omegaconf import DictConfig
from tqdm import tqdm

from experiments.command import build, command, plain
from interp import gates, results, sweep
from interp.errors import InputError
from interp.heads import Head, all_heads
from interp.models.head_model import HeadModel
from interp.models.text import Encoded
from interp.tasks.minimal_pairs import scored
from interp.tasks.task import Item, Task, logit_difference, loss


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


def replay(
    model: HeadModel, task: Task, heads: list[Head], budget: int
) -> tuple[np.ndarray, float]:
    """Run our sweep.

    Returns:
        The ablated metric `[head example]`, and the seconds a head: the heads' own, and their share
        of the clean runs, which serve all heads of the model whatever number is timed here.
    """
    settings = [(head,) for head in heads]
    plan = sweep.plan(model, task, settings, 1, budget)
    engine = sweep.Engine(model, task, settings, gates.Zero(), "all")
    n_all = len(all_heads(model.sites))
    rows, seconds = [], 0.0
    for job in (job for part in plan.parts for job in part):
        if job.examples != engine.examples:
            started = time.perf_counter()
            with torch.inference_mode():
                engine.start(job.examples)
            seconds += (time.perf_counter() - started) / n_all
        started = time.perf_counter()
        rows.append(engine.run(job))
        seconds += (time.perf_counter() - started) / len(heads)
    table = pd.concat(rows).sort_values(["setting", "example"])
    return table["ablated"].to_numpy().reshape(len(heads), -1), seconds


@torch.inference_mode()
def bridge_loop(model: HeadModel, task: Task, heads: list[Head]) -> tuple[np.ndarray, float]:
    """Run one hooked forward a head; returns what `replay` does."""
    started = time.perf_counter()
    asked = task.questions(model, range(len(task)))
    tokens, mask = asked.batch.text.tokens, asked.batch.text.mask.long()
    scores = []
    for head in heads:

        def close(z: torch.Tensor, hook: Any, number: int = head.head) -> torch.Tensor:
            z = z.clone()
            site = model.sites[0]
            z.view(*z.shape[:2], site.n_heads, site.d_head)[:, :, number] = 0.0
            return z

        logits = model.hooked.run_with_hooks(
            tokens,
            attention_mask=mask,
            fwd_hooks=[(f"blocks.{head.layer}.attn.hook_z", close)],
        )
        if task.metric == "logit_diff":
            answer, distractor = logits[:, -1].gather(-1, asked.ids[:, 0]).unbind(-1)
            scores.append(answer - distractor)
        else:
            log_probs = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])
            scores.append(-log_probs[..., 0].mean(-1))
    found = torch.stack(scores).double().cpu().numpy()
    return found, (time.perf_counter() - started) / len(heads)


def multiply_adds(model: HeadModel, task: Task, layers: list[int]) -> float:
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


def peak_rate(size: int, repeats: int = 3) -> float:
    """Measure the multiply-adds a second of a large matrix product, the best of a few."""
    a, b = torch.randn(2, size, size)
    rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        a @ b
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


def compare(cfg: DictConfig, model: HeadModel, shape: list[Any]) -> list[dict[str, Any]]:
    """Time both runners on one shape, in turn."""
    examples, tokens, read = shape
    if read not in ("last", "all"):
        raise InputError(f"shapes: '{read}' in {shape}: last or all")
    task = random_task(model, examples, tokens, read, cfg.seed)
    n_layers, n_heads = model.sites[0].n_layers, model.sites[0].n_heads
    n_sampled = min(cfg.layers, n_layers)
    layers = [int((n + 0.5) * n_layers / n_sampled) for n in range(n_sampled)]
    heads = [Head("attn", layer, head) for layer in layers for head in range(n_heads)]
    looped = heads[:: n_heads + 1] if n_heads > 1 else heads
    runners: dict[str, Callable[[], tuple[np.ndarray, float]]] = {
        "replay": lambda: replay(model, task, heads, cfg.tokens_per_batch),
        "bridge_loop": lambda: bridge_loop(model, task, looped),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    rates: list[float] = []
    found: dict[str, np.ndarray] = {}
    memory: dict[str, float] = {}
    for _ in range(cfg.repeats):
        rates.append(peak_rate(cfg.gemm))
        for name, run in runners.items():
            with watching_memory() as peak:
                found[name], taken = run()
            seconds[name].append(taken)
            memory[name] = max(memory.get(name, 0), peak[0])
    ours = found["replay"][[heads.index(head) for head in looped]]
    needed = multiply_adds(model, task, layers)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return [
        {
            "model": model.name,
            "examples": examples,
            "tokens": tokens,
            "read": read,
            "runner": name,
            "seconds_per_head": medians[name],
            "ratio_to_bridge_loop": medians["bridge_loop"] / medians[name],
            "utilisation": needed / medians[name] / statistics.median(rates),
            "max_difference": float(np.abs(ours - found["bridge_loop"]).max()),
            "peak_mb": memory[name],
        }
        for name in runners
    ]


@command("benchmark")
def main(cfg: DictConfig, folder: Path) -> None:
    """Compare the runners on every shape, and print the table."""
    model = build(cfg.model)
    if model.kind != "decoder":
        raise InputError(f"experiments.benchmark needs a decoder; {model.name} is an {model.kind}")
    run = results.Run(folder, plain(cfg), {})
    lines = [line for shape in tqdm(cfg.shapes) for line in compare(cfg, model, list(shape))]
    table = pd.DataFrame(lines)
    weights = sum(p.numel() * p.element_size() for p in model.module.parameters()) / 2**20
    run.start(
        {"model": model.record, "weights_mb": round(weights), "threads": torch.get_num_threads()}
    )
    run.write("benchmark", table)
    run.finish({})
    print(table.round(4).to_string(index=False))
    print(f"weights: {weights:.0f} MB; {folder}: benchmark.parquet, run.json")


if __name__ == "__main__":
    main()
