"""Do cheap estimates rank heads as ablation does?

Estimates how much each head matters, from gradients, attention and weights
(interp.redundancy.importance says how), ablates every head on the same examples under the same
baseline, and compares the rankings: estimates of damage with damage, the others with its size.

    python -m experiments.importance
    python -m experiments.importance model=minilm task=similarity
    python -m experiments.importance ablation=resample
    python -m experiments.importance normalise=layer ig.steps=0
    python -m experiments.importance -m ablation=mean,resample

Writes importance (one line a head and estimator), agreement (one line a site and estimator),
figures and run.json. An interrupted run goes on where it stopped.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig
from tqdm import tqdm

from experiments import inputs
from experiments.command import command, identity
from interp import plots, statistics, sweep
from interp.errors import InputError
from interp.gates import Baseline
from interp.heads import HEAD, all_heads, to_table
from interp.models.head_model import HeadModel
from interp.redundancy import importance, ranking
from interp.redundancy.ranking import Scores
from interp.runs import Run, read_parts
from interp.tasks.task import Task

ABLATION, GRADIENTS, INTEGRATED, LOOKS = range(4)
"""Which parts of a run are whose."""
KEYS = ("task", "ablation", "positions")
ALL = "all"
"""The heads of all sites, ranked together."""
MOST_MISSED = 0.05
"""The share by which integrated gradients may miss before we say so."""
ADVICE = (
    ": do not rely on them (the metric leaps somewhere on the way; in a decoder often where the "
    "first token's role as attention sink breaks down, which positions=not_first leaves alone)"
)
REPEATS = 3
"""Interleaved, to say what a pass costs."""


def measure(cfg: DictConfig, run: Run) -> None:
    """Ablate and estimate, part by part, and turn what was measured into tables."""
    subject = inputs.subject(cfg)
    model, task = subject.model, subject.task
    baseline = inputs.baseline(cfg, model, task)
    targets = all_heads(model.sites)
    engine = sweep.Engine(model, task, [(head,) for head in targets], baseline, cfg.positions)
    engine.check()
    tokens = inputs.tokens_per_batch(cfg)
    batches = [examples for examples, _ in sweep.example_batches(task, tokens)]
    paths = range(min(cfg.ig.draws, baseline.n_draws))
    if not run.is_started:
        facts = {
            **subject.facts,
            "tolerance": cfg.tolerance * abs(subject.facts["clean_score"]),
            "plan": {
                "tokens_per_batch": inputs.budget(cfg, run, engine),
                "tokens_per_gradient_batch": tokens,
                "threads": torch.get_num_threads(),
                "n_heads": len(targets),
                "n_draws": baseline.n_draws,
                "ig_draws": len(paths),
                "examples_per_michel_batch": importance.BATCH,
            },
            "seconds_of_passes": costs(cfg, model, task, baseline, max(batches, key=len)),
        }
        run.start(facts, {"examples": task.table})

    def gradients(examples: Sequence[int]) -> pd.DataFrame:
        return importance.gradients(model, task, examples, baseline, positions=cfg.positions)

    def integrated(examples: Sequence[int]) -> pd.DataFrame:
        return importance.integrated(
            model,
            task,
            examples,
            baseline,
            positions=cfg.positions,
            steps=cfg.ig.steps,
            draws=paths,
        )

    def looks(examples: Sequence[int]) -> pd.DataFrame:
        return importance.looks(model, task, examples)

    stages: dict[int, Callable[[Sequence[int]], pd.DataFrame]]
    stages = {GRADIENTS: gradients, LOOKS: looks}
    if cfg.ig.steps:
        stages[INTEGRATED] = integrated
    label = f"{model.name} {task.name}"
    with run.working():
        tables = []
        with tqdm(total=len(stages) * len(task), unit="example", desc=f"{label}: estimates") as bar:
            for stage, estimate in stages.items():
                tables.append(carry_out(run, stage, batches, estimate, bar))
        n_rows = len(targets) * len(task) * baseline.n_draws
        with tqdm(total=n_rows, unit="row", desc=f"{label}: ablation") as bar:
            damage = sweep.damages(
                run,
                engine,
                stage=ABLATION,
                tokens_per_batch=run.record["plan"]["tokens_per_batch"],
                advance=bar.update,
            )
        exact = to_table(targets).merge(pd.DataFrame({"example": range(len(task))}), how="cross")
        exact = exact.assign(damage=damage.ravel())
        run.end_shard([])
    with run.finishing() as is_left:
        if is_left:
            for table in tables:
                exact = exact.merge(table, on=[*HEAD, "example"])
            _finish(cfg, run, task, exact, importance.ov_norms(model))


def carry_out(
    run: Run,
    stage: int,
    batches: Sequence[Sequence[int]],
    estimate: Callable[[Sequence[int]], pd.DataFrame],
    bar: tqdm,
) -> pd.DataFrame:
    """Estimate batch by batch; what is on disk is not done again."""
    parts = []
    for number, examples in enumerate(batches):
        parts.append(run.once(stage, number, partial(estimate, examples)))
        bar.update(len(examples))
    return read_parts(parts)


def costs(
    cfg: DictConfig, model: HeadModel, task: Task, baseline: Baseline, examples: Sequence[int]
) -> dict[str, float]:
    """Time passes of one batch: medians of interleaved repeats, in seconds.

    Returns:
        `clean_forward`; `gradient`, of Michel's importance and attribution patching together, with
        what the baseline runs for the batch; and `ig_step`, one step of integrated gradients.
    """

    def clean() -> None:
        with torch.inference_mode():
            task.score(model, task.questions(model, examples))

    def gradient() -> None:
        importance.gradients(model, task, examples, baseline, positions=cfg.positions)

    asked, acts = importance.prepared(model, task, examples, baseline, cfg.positions)

    def step() -> None:
        importance.path_gradient(model, task, asked, acts, baseline, xi=0.5, draw=0)

    passes = {"clean_forward": clean, "gradient": gradient, "ig_step": step}
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(REPEATS):
        for name, run_pass in passes.items():
            started = time.perf_counter()
            run_pass()
            seconds[name].append(time.perf_counter() - started)
    return {name: round(median(values), 4) for name, values in seconds.items()}


def _finish(
    cfg: DictConfig, run: Run, task: Task, rows: pd.DataFrame, ov_norms: pd.DataFrame
) -> None:
    """Write the tables."""
    record = run.record
    found = scored(cfg, rows, ov_norms, task.table["cluster"].astype(str).to_numpy())
    known = {"model": record["model_name"], "task": task.name}
    known |= {"ablation": cfg.ablation, "positions": cfg.positions}
    lines, heads = [], importance.heads(rows)
    for name, scores in found.items():
        low, high = scores.interval(cfg.level)
        lines.append(heads.assign(estimator=name, score=scores.score, ci_low=low, ci_high=high))
    table = pd.concat(lines, ignore_index=True)
    run.write("importance", table, **known)
    table = agreement(found, heads["site"].to_numpy(), top=cfg.top_k, level=cfg.level)
    run.write("agreement", table, **known)
    facts: dict[str, Any] = {"n_rows": len(rows) * record["plan"]["n_draws"]}
    if "ig" in rows:
        gap, share = importance.incompleteness(rows)
        facts["ig_gap"] = {"mean": gap, "share": share}
    run.finish(**facts)


def scored(
    cfg: DictConfig, rows: pd.DataFrame, ov_norms: pd.DataFrame, clusters: np.ndarray
) -> dict[str, Scores]:
    """Score heads by every estimator, on the examples and on resampled ones."""
    heads = importance.heads(rows)
    drawn = {"n_draws": cfg.bootstrap_draws, "seed": cfg.seed}
    found = {
        name: (each.score, each.draws(clusters, **drawn))
        for name, each in importance.measured(rows).items()
    }
    # what is no mean over examples stays as it is
    for name, score in (
        ("michel_batch", importance.by_batch(rows)),
        ("ov_norm", heads.merge(ov_norms, on=HEAD)["ov_norm"].to_numpy()),
    ):
        found[name] = score, np.tile(score[:, None], cfg.bootstrap_draws)
    result = {}
    for name in (name for name in importance.ESTIMATORS if name in found):
        score, draws = found[name]
        called = name
        if cfg.normalise == "layer" and name in importance.MICHEL:
            score = importance.normalised(heads, score[:, None])[:, 0]
            draws, called = importance.normalised(heads, draws), f"{name}_l2"
        result[called] = Scores(score, draws)
    return result


def agreement(
    found: dict[str, Scores], sites: np.ndarray, *, top: int, level: float
) -> pd.DataFrame:
    """Compare each estimate with exact damage or its size, in each site and in all together."""
    exact, lines = found["exact"], []
    several = sorted(set(sites)) if len(set(sites)) > 1 else []
    for site in [*several, ALL]:
        among = np.full(len(sites), True) if site == ALL else sites == site
        for name, scores in found.items():
            if name == "exact":
                continue
            is_signed = name in importance.SIGNED
            target = exact if is_signed else abs(exact)
            lines.append(
                {"site": site, "estimator": name, "target": "damage" if is_signed else "abs_damage"}
                | ranking.agreement(scores.of(among), target.of(among), top=top, level=level)
            )
    return pd.DataFrame(lines)


def draw(run: Run) -> list[str]:
    """Draw the figure that a finished run lacks; return its name."""
    record, table = run.record, run.read("importance")
    config, ranked = record["config"], run.read("agreement")
    title = (
        f"{record['model_name']}: cheap estimates beside {config['ablation']} ablation, "
        f"{record['task']} (n = {len(run.read('examples'))})"
    )
    label = f"({record['metric']}, {record['unit_of_metric']})"
    ranked = ranked[ranked["site"] == ALL]
    return run.draw({"estimates": lambda: plots.estimates(table, ranked, title=title, label=label)})


def report(run: Run, cfg: DictConfig) -> None:
    """Print how well each estimate ranks heads, and what it costs."""
    figures = draw(run)
    record, table = run.record, run.read("agreement")
    n, plan = len(run.read("examples")), record["plan"]
    print(
        f"{record['model_name']} {record['task']}: {plan['n_heads']} heads, n = {n}, "
        f"{cfg.ablation} ablation; clean {record['metric']} {record['clean_score']:.3f}"
    )
    for site, lines in table.groupby("site", sort=False):
        if table["site"].nunique() > 1:
            print(f"\n{'all sites' if site == ALL else site}")
        print(shown(lines).to_string(index=False))
    print(f"\n{finding(table[table['site'] == ALL])}")
    print(classes(run, cfg))
    if "ig_gap" in record:
        gap = record["ig_gap"]
        print(
            f"integrated gradients over all heads miss the damage of closing all gates by "
            f"{gap['mean']:+.3f} {record['unit_of_metric']} on average, {gap['share']:.1%} in size"
            f"{ADVICE if gap['share'] > MOST_MISSED else ''}"
        )
    seconds = record["seconds_of_passes"]
    clean = seconds["clean_forward"]
    print(
        f"gradients of all heads cost {seconds['gradient'] / clean:.1f} clean forwards, "
        f"a step of integrated gradients {seconds['ig_step'] / clean:.1f}"
    )
    print(f"{run.folder}: importance, agreement.parquet, {', '.join(figures)}, run.json")


def shown(lines: pd.DataFrame) -> pd.DataFrame:
    """Lay out how well estimates rank heads, the best first."""
    lines = lines.sort_values("spearman", ascending=False, kind="stable")
    top = lines["top_k"].iloc[0]
    return pd.DataFrame(
        {
            "estimate": lines["estimator"],
            "of": lines["target"].replace("abs_damage", "|damage|"),
            "Spearman": lines["spearman"].map("{:.2f}".format),
            "interval": [
                f"[{low:.2f}, {high:.2f}]"
                for low, high in lines[["ci_low", "ci_high"]].itertuples(index=False)
            ],
            "Kendall": lines["kendall"].map("{:.2f}".format),
            f"of the top {top}": (lines["overlap"] * top).round().astype(int),
        }
    )


def finding(lines: pd.DataFrame) -> str:
    """Say which estimates come closest."""
    said = []
    for target, called in (("damage", "damage"), ("abs_damage", "the size of damage")):
        among = lines[(lines["target"] == target) & lines["spearman"].notna()]
        if len(among):
            best = among.loc[among["spearman"].idxmax()]
            said.append(
                f"{best['estimator']} ranks heads most like {called} "
                f"(Spearman {best['spearman']:.2f}, {best['overlap']:.0%} of the top "
                f"{best['top_k']})"
            )
    return "; ".join(said) or "all heads have the same damage: there is nothing to rank"


def classes(run: Run, cfg: DictConfig) -> str:
    """Say how many heads are needed, by ablation."""
    table, tolerance = run.read("importance"), run.record["tolerance"]
    exact = table[table["estimator"] == "exact"]
    low, high = (exact[name].to_numpy() for name in ("ci_low", "ci_high"))
    found = pd.Series(statistics.classify(low, high, tolerance)).value_counts()
    return (
        f"by ablation, at a tolerance of {tolerance:.3g} {run.record['unit_of_metric']} "
        f"({cfg.tolerance:.0%} of the clean score): "
        + ", ".join(f"{found.get(name, 0)} {name}" for name in statistics.CLASSES)
    )


def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is not among those known, or two do not go together.
    """
    inputs.check_gated(cfg)
    inputs.check_choices(cfg, {"normalise": ("none", "layer")})
    inputs.check_least(cfg, {"top_k": 1, "ig.draws": 1})
    if cfg.ablation == "zero" and cfg.ig.steps and not cfg.ig.force:
        raise InputError(
            "ablation=zero: integrated gradients towards zero rarely add up on a real model; "
            "ig.steps=0 leaves them out, ig.force=true takes them all the same"
        )


@command("importance")
def main(cfg: DictConfig, folder: Path) -> None:
    """Measure unless that was done before, and report."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg))
    if not run.is_done:
        measure(cfg, run)
    report(run, cfg)


if __name__ == "__main__":
    main()
