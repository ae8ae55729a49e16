"""Which heads does a behaviour need?

Replaces every head in turn by a baseline and measures what that does to a task's metric, example by
example (interp.gates says which baselines there are, interp.sweep how it is done fast).

    python -m experiments.ablation
    python -m experiments.ablation model=minilm task=similarity
    python -m experiments.ablation model=pretrained model.name=gpt2 task=prompts task.path=FILE.csv
    python -m experiments.ablation ablation=zero positions=not_first heads=[L0H1,L5H3]
    python -m experiments.ablation -m ablation=zero,mean,resample

Writes effects (one line a head and example), summary (one line a head, with interval and test),
heads.png, top_heads.png and run.json. An interrupted run goes on where it stopped.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from experiments.command import build, command, plain
from interp import gates, heads, plots, results, statistics, sweep
from interp.errors import InputError
from interp.heads import Head
from interp.models.head_model import HeadModel
from interp.tasks.chunks import chunks
from interp.tasks.task import Item, Task

UNITS = ("head",)


def baseline(cfg: DictConfig, model: HeadModel, task: Task) -> gates.Baseline:
    """Make the baseline that `cfg.ablation` names (see interp.gates)."""
    match cfg.ablation:
        case "zero":
            return gates.Zero()
        case "uniform":
            return gates.Uniform(model)
        case "resample":
            return _resample(cfg, task)
        case "mean" | "mean_by_position":
            by_position = cfg.ablation == "mean_by_position"
            source = task if cfg.reference.path is None else _reference(cfg, model, task)
            means = gates.means(
                model,
                sweep.batches(model, source, cfg.tokens_per_batch),
                by_position=by_position,
                specials=cfg.reference.specials,
            )
            return gates.MeanByPosition(means) if by_position else gates.Mean(means)
    raise InputError(f"ablation={cfg.ablation}: one of {', '.join(gates.KINDS)}")


def _reference(cfg: DictConfig, model: HeadModel, task: Task) -> Task:
    """Cut the reference text into chunks as long as the task's longest sequence."""
    longest = max(len(item.text) for example in task.examples for item in example)
    n_special = sum(task.examples[0][0].text.special)
    found = chunks(model, cfg.reference.path, max(2, longest - n_special))
    return replace(task, examples=[(Item(chunk.text),) for chunk in found])


def _resample(cfg: DictConfig, task: Task) -> gates.Resample:
    """Choose the partners of resample ablation."""
    partner, n = cfg.resample.partner, len(task)
    if partner == "corrupted":
        if task.corrupted is None:
            raise InputError(
                f"resample.partner=corrupted: task={task.name} has no corrupted prompts"
            )
        return gates.Resample(np.arange(n)[None], task.corrupted)
    if partner not in ("any", "other_answer"):
        raise InputError(f"resample.partner={partner}: any, other_answer or corrupted")
    if partner == "other_answer" and "answer" not in task.table:
        raise InputError(f"resample.partner=other_answer: task={task.name} has no answers")
    if cfg.resample.draws < 1:
        raise InputError(f"resample.draws={cfg.resample.draws}: at least 1")
    labels = task.table["answer"] if partner == "other_answer" else range(n)
    shapes = [tuple(item.shape for item in example) for example in task.examples]
    rng = np.random.default_rng(cfg.seed)
    partners = gates.derangements(shapes, cfg.resample.draws, rng, list(labels))
    return gates.Resample(partners, task.examples)


def chosen_heads(model: HeadModel, wanted: Sequence[str] | None) -> list[Head]:
    """List the heads to ablate: those named, or all."""
    if wanted is None:
        return heads.all_heads(model.sites)
    wanted = [wanted] if isinstance(wanted, str) else wanted
    numbers = [text for text in wanted if not isinstance(text, str)]
    if numbers:
        raise InputError(f"heads: {numbers[0]} reads as a number; write L5H1, or '5.1' in quotes")
    found = [heads.parse(text, model.sites) for text in wanted]
    if not found:
        raise InputError("heads=[]: name at least one head, or null for all")
    return sorted(set(found), key=lambda head: (model.block(head), head))


def check_clean(task: Task, clean: np.ndarray) -> dict[str, Any]:
    """Describe how well the clean model does, and stop where it cannot do the task.

    Raises:
        InputError: With status 3, where the accuracy's lower 95 % bound is not above the least.
    """
    facts: dict[str, Any] = {"clean_score": float(clean.mean())}
    if not task.metric.endswith("diff"):
        return facts
    hits = clean > 0
    bound = statistics.accuracy_lower_bound(int(hits.sum()), len(hits))
    facts["clean_accuracy"] = float(hits.mean())
    if "stratum" in task.table:
        strata = pd.Series(hits).groupby(task.table["stratum"].to_numpy()).mean()
        facts["clean_accuracy_by_stratum"] = strata.round(4).to_dict()
    if task.min_accuracy and bound <= task.min_accuracy:
        raise InputError(
            f"the clean model does not show that it can do task={task.name}: accuracy "
            f"{hits.mean():.3f} (n = {len(hits)}), its lower 95 % bound {bound:.3f} must exceed "
            f"task.min_accuracy={task.min_accuracy:g} (take more examples; 0 switches this off)",
            status=3,
        )
    return facts


def measure(cfg: DictConfig, run: results.Run) -> None:
    """Sweep, and write tables and figures into the run's folder."""
    started = time.time()
    model = build(cfg.model)
    task = build(cfg.task, model).first(cfg.n_examples)
    targets = chosen_heads(model, cfg.heads)
    source = baseline(cfg, model, task)
    clean = sweep.clean_scores(model, task, cfg.tokens_per_batch)
    facts = check_clean(task, clean)
    settings = [(head,) for head in targets]
    engine = sweep.Engine(model, task, settings, source, cfg.positions)
    engine.check()
    plan = sweep.plan(model, task, settings, source.n_draws, cfg.tokens_per_batch)
    if not run.is_started:
        record = model.record | {"prepend_bos": model.codec.prepend_bos}
        metric = {"metric": task.metric, "higher_is_better": task.higher_is_better}
        run.start(facts | metric | {"unit_of_metric": task.unit, "model": record} | plan.record())
    with tqdm(total=plan.n_rows, unit="row", desc=f"{model.name} {task.name}") as bar:
        for number, part in enumerate(plan.parts):
            rows = []
            if not run.part(number).exists():
                for job in part:
                    rows.append(engine.run(job))
                    bar.update(len(rows[-1]))
                run.write_part(number, pd.concat(rows, ignore_index=True))
            else:
                bar.update(sum(job.n_rows for job in part))
    _write(cfg, run, model, task, targets, n_parts=len(plan.parts))
    run.finish(
        {
            "seconds": round(time.time() - started, 1),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
    )


def _write(
    cfg: DictConfig,
    run: results.Run,
    model: HeadModel,
    task: Task,
    targets: Sequence[Head],
    *,
    n_parts: int,
) -> None:
    """Turn the rows into tables and figures."""
    rows = run.rows(n_parts)
    units = pd.DataFrame(
        {
            "site": [head.site for head in targets],
            "layer": [head.layer for head in targets],
            "head": [head.head for head in targets],
            "kv_group": [model.site[head.site].group(head.head) for head in targets],
        }
    )
    effects = results.effects(
        rows,
        units,
        task.table.reset_index(drop=True),
        higher_is_better=task.higher_is_better,
        model=model.name,
        unit=cfg.unit,
        ablation=cfg.ablation,
        positions=cfg.positions,
        task=task.name,
        metric=task.metric,
    )
    summary = results.summary(effects, n_draws=cfg.bootstrap_draws, level=cfg.level, seed=cfg.seed)
    if cfg.ablation == "resample":
        summary["draw_sd"] = results.draw_spread(rows)
    run.write("examples", task.table)
    run.write("effects", effects)
    run.write("summary", summary)
    title = f"{model.name}: {cfg.ablation} ablation of each head, {task.name} (n = {len(task)})"
    label = f"damage ({task.metric}, {task.unit})"
    top = results.strongest(summary, 2 * cfg.top)
    figure = plots.head_map(summary, value="damage", title=title, label=label)
    figure.savefig(run.folder / "heads.png", dpi=150)
    plots.top_heads(top, names=list(results.names(top)), title=title, label=label).savefig(
        run.folder / "top_heads.png", dpi=150
    )


def report(run: results.Run, top: int) -> None:
    """Print the clean score, the heads with the most damage, and where the files lie."""
    record, summary = run.record, run.read("summary")
    strongest = results.strongest(summary, top)
    table = pd.DataFrame(
        {
            "head": results.names(strongest),
            "damage": strongest["damage"].map("{:+.3f}".format),
            "95 % interval" if record["config"]["level"] == 0.95 else "interval": [
                f"[{low:+.3f}, {high:+.3f}]"
                for low, high in strongest[["ci_low", "ci_high"]].itertuples(index=False)
            ],
            "q": strongest["q_value"].map("{:.2g}".format),
        }
    )
    accuracy = record.get("clean_accuracy")
    share = "" if accuracy is None else f", accuracy {accuracy:.3f}"
    n = summary["n"].iloc[0]
    print(
        f"clean {record['metric']} {record['clean_score']:.3f} {record['unit_of_metric']}{share} "
        f"(n = {n}); the heads with the most damage, {len(table)} of {len(summary)}:"
    )
    for stratum, value in record.get("clean_accuracy_by_stratum", {}).items():
        print(f"  accuracy {value:.3f}  {stratum}")
    print(table.to_string(index=False))
    examples = run.read("examples")
    if examples.get("moved", pd.Series(dtype=bool)).any():
        print(
            f"{examples['moved'].sum()} of {len(examples)} answers share their first tokens with "
            f"the distractor or the prompt: read where they part (column `moved` of examples)"
        )
    print(f"{run.folder}: summary.parquet, effects.parquet, heads.png, top_heads.png, run.json")


@command("ablation")
def main(cfg: DictConfig, folder: Path) -> None:
    """Check the choices, sweep unless that was done before, and report."""
    for key, known in (
        ("ablation", gates.KINDS),
        ("positions", gates.POSITIONS),
        ("unit", UNITS),
    ):
        if cfg[key] not in known:
            raise InputError(f"{key}={cfg[key]}: one of {', '.join(known)}")
    if not 0 < cfg.level < 1:
        raise InputError(f"level={cfg.level:g}: between 0 and 1, such as 0.95")
    for key in ("bootstrap_draws", "top"):
        if cfg[key] < 1:
            raise InputError(f"{key}={cfg[key]}: at least 1")
    inputs = {
        key: results.file_hash(Path(path))
        for key in ("task.path", "model.path", "model.name", "reference.path")
        if (path := OmegaConf.select(cfg, key)) and Path(path).exists()
    }
    run = results.Run(folder, plain(cfg), inputs)
    if not run.is_done:
        measure(cfg, run)
    report(run, cfg.top)


if __name__ == "__main__":
    main()
