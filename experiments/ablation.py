"""Which heads does a behaviour need?

Replaces every head in turn (or every pair, layer, … : interp.units) by a baseline and measures what
that does to a task's metric, example by example (interp.gates says which baselines there are,
interp.sweep how it is done fast).

    python -m experiments.ablation
    python -m experiments.ablation model=minilm task=similarity
    python -m experiments.ablation model=pretrained model.name=gpt2 task=prompts task.path=FILE.csv
    python -m experiments.ablation ablation=zero positions=not_first heads=[L0H1,L5H3]
    python -m experiments.ablation unit=pair heads=[L26H0,L27H8,L19H6]
    python -m experiments.ablation adaptive=true n_examples=null
    python -m experiments.ablation task=prompts task.path=FILE.csv direction=denoising
    python -m experiments.ablation -m ablation=zero,mean,resample
    python -m experiments.ablation -m shard=0/2,1/2

Writes effects (one line a unit and example), summary (one line a unit, with interval, test and
class), examples, units, figures and run.json. An interrupted run goes on where it stopped.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from tqdm import tqdm

from experiments import inputs
from experiments.command import command, identity
from interp import gates, plots, results, statistics, sweep, units
from interp.errors import InputError
from interp.redundancy.interactions import twin_table
from interp.runs import Run

N_DRAWN = 20
"""Units in the figure of the strongest."""
FEW = 10
"""Clusters below which a bootstrap interval deserves a warning."""
DIRECTIONS = (None, "noising", "denoising")
PLURAL = {
    "head": "heads",
    "kv_group": "KV groups",
    "layer": "layers",
    "pair": "pairs",
    "all_but_one": "heads left alone",
    "all_but_one_group": "KV groups left alone",
    "set": "sets",
}


def measure(cfg: DictConfig, run: Run) -> None:
    """Sweep this process' share of the units; the last of several turns all rows into tables."""
    subject = inputs.subject(cfg)
    model, task, clean = subject.model, subject.task, subject.clean
    targets = inputs.chosen_units(cfg, model)
    twin = inputs.reversed_twins(task) if cfg.direction is not None else task
    # denoising is noising with clean and corrupted exchanged
    swept = twin if cfg.direction == "denoising" else task
    source = inputs.baseline(cfg, model, swept)
    engine = sweep.Engine(model, swept, [unit.closed for unit in targets], source, cfg.positions)
    engine.check()
    looks = [sweep.Look(len(task), cfg.level)]
    if cfg.adaptive:
        looks = sweep.looks(len(task), [float(share) for share in cfg.rounds], cfg.level)
    tokens = inputs.budget(cfg, run, engine)
    examples, scale = task.table, float(clean.mean())
    if cfg.direction is not None:
        corrupted = sweep.clean_scores(model, twin, inputs.tokens_per_batch(cfg))
        examples = examples.assign(clean=clean, corrupted=corrupted)
        scale = float((clean - corrupted).mean())
    record = run.start(
        {
            **subject.facts,
            # (what is restored has no classes)
            "tolerance": None if cfg.direction == "denoising" else cfg.tolerance * abs(scale),
            "plan": {
                "tokens_per_batch": tokens,
                "threads": torch.get_num_threads(),
                "n_units": len(targets),
                "n_draws": source.n_draws,
                "looks": [asdict(look) for look in looks],
            },
        },
        {
            "examples": examples,
            "units": units.table(targets).assign(
                closed=["+".join(map(str, unit.closed)) for unit in targets]
            ),
            **({"twins": twin_table(source.twins)} if isinstance(source, gates.Twin) else {}),
        },
    )
    numbers = range(len(targets))[run.index :: run.n_shards]
    n_rows = len(numbers) * len(task) * source.n_draws
    label = f"{model.name} {task.name}" + (f" {cfg.shard}" if run.n_shards > 1 else "")
    with run.working(), tqdm(total=n_rows, unit="row", desc=label) as bar:
        parts = sweep.run_rounds(
            run,
            engine,
            numbers,
            looks=looks,
            tokens_per_batch=record["plan"]["tokens_per_batch"],
            tolerance=record["tolerance"] or 0.0,
            seed=cfg.seed,
            advance=bar.update,
        )
        run.end_shard(parts)
    results.assemble(run)


def ranked(record: Mapping[str, Any], summary: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Sort units by what people ask for: damage, or what is restored when denoising.

    Returns:
        How to call it, and the summary with it as `value, low, high` and with the units' names.
    """
    value, ends = summary["damage"], summary[["ci_low", "ci_high"]]
    called = "damage"
    if record["config"]["direction"] == "denoising":
        value, ends, called = -value, -ends[["ci_high", "ci_low"]], "restored"
    low, high = (ends[name] for name in ends)
    table = summary.assign(value=value, low=low, high=high, name=units.names(summary))
    return called, table.sort_values("value", ascending=False, kind="stable")


def draw(run: Run, called: str, table: pd.DataFrame) -> list[str]:
    """Draw the figures that a finished run lacks of its ranked units; return the names of all."""
    record = run.record
    config, unit = record["config"], record["config"]["unit"]
    what = config["direction"] or f"{config['ablation']} ablation"
    n = table["n"].max()
    title = f"{record['model_name']}: {what} of {PLURAL[unit]}, {record['task']} (n = {n})"
    label = f"{called} ({record['metric']}, {record['unit_of_metric']})"
    said = {"title": title, "label": label}
    figures = {"strongest": partial(plots.strongest, table.head(N_DRAWN), **said)}
    if unit in ("head", "all_but_one"):
        figures["heads"] = partial(plots.head_map, table, column="head", **said)
    elif unit in ("kv_group", "all_but_one_group"):
        figures["groups"] = partial(plots.head_map, table, column="kv_group", **said)
    elif unit == "pair":
        figures["pairs"] = partial(plots.pair_map, table, **said)
    return run.draw(figures)


def report(run: Run, top: int) -> None:
    """Print the clean score, the units with the most damage, and where the files lie."""
    record = run.record
    config, unit = record["config"], record["config"]["unit"]
    called, table = ranked(record, run.read("summary"))
    figures = draw(run, called, table)
    strongest = table.head(top)
    shown = {unit: strongest["name"], called: strongest["value"].map("{:+.3f}".format)}
    shown["95 % interval" if config["level"] == 0.95 else "interval"] = [
        f"[{low:+.3f}, {high:+.3f}]"
        for low, high in strongest[["low", "high"]].itertuples(index=False)
    ]
    if config["adaptive"]:
        shown["n"] = strongest["n"]
    else:
        shown["q"] = strongest["q_value"].map("{:.2g}".format)
    for name in ("normalised", "class"):
        if name in strongest:
            shown[name] = strongest[name]
    accuracy = record.get("clean_accuracy")
    share = "" if accuracy is None else f", accuracy {accuracy:.3f}"
    examples = run.read("examples")
    print(
        f"clean {record['metric']} {record['clean_score']:.3f} {record['unit_of_metric']}{share} "
        f"(n = {len(examples)}); the {PLURAL[unit]} with the most {called}, "
        f"{len(strongest)} of {len(table)}:"
    )
    for stratum, value in record.get("clean_accuracy_by_stratum", {}).items():
        print(f"  accuracy {value:.3f}  {stratum}")
    print(pd.DataFrame(shown).to_string(index=False, float_format="{:.3f}".format))
    if "class" in table:
        counts = table["class"].value_counts()
        print(
            f"at a tolerance of {record['tolerance']:.3g} {record['unit_of_metric']} "
            f"({config['tolerance']:.0%} of "
            f"{'the clean score' if config['direction'] is None else 'clean - corrupted'}): "
            + ", ".join(f"{counts.get(name, 0)} {name}" for name in statistics.CLASSES)
        )
    if table["n_clusters"].max() < FEW:
        print(f"only {table['n_clusters'].max()} clusters: such intervals are too narrow")
    if (
        config["direction"] is not None
        and (examples["clean"] <= examples["corrupted"]).mean() > 0.5
    ):
        print("most corrupted prompts score no lower than the clean ones: mind `normalised`")
    if config["adaptive"]:
        full = len(table) * len(examples) * record["plan"]["n_draws"]
        print(f"{record['n_rows']} rows instead of {full} ({record['n_rows'] / full:.0%})")
    if "group" in unit and not record["has_kv_groups"]:
        print(f"{record['model_name']} has no grouped heads: every KV group is one head")
    if examples.get("moved", pd.Series(dtype=bool)).any():
        print(
            f"{examples['moved'].sum()} of {len(examples)} answers share their first tokens with "
            f"the distractor or the prompt: read where they part (column `moved` of examples)"
        )
    print(
        f"{run.folder}: summary, effects, examples, units.parquet, {', '.join(figures)}, run.json"
    )


def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is not among those known, or two do not go together.
    """
    inputs.check_gated(cfg)
    inputs.check_choices(cfg, {"unit": units.KINDS, "direction": DIRECTIONS})
    if not isinstance(cfg.rounds, ListConfig) or not all(
        isinstance(share, int | float) for share in cfg.rounds
    ):
        raise InputError(f"rounds={cfg.rounds}: growing shares up to 1, such as [0.25,0.5,1]")
    if cfg.direction is not None:
        for key, needed in (("ablation", "resample"), ("resample.partner", "corrupted")):
            if OmegaConf.select(cfg, key) != needed:
                raise InputError(
                    f"direction={cfg.direction} takes heads from corrupted prompts: it needs "
                    f"{key}={needed}, not {OmegaConf.select(cfg, key)}"
                )
        if cfg.adaptive:
            raise InputError(
                f"adaptive=true sorts heads by damage: leave out direction={cfg.direction}"
            )


@command("ablation")
def main(cfg: DictConfig, folder: Path) -> None:
    """Check the choices, sweep unless that was done before, and report."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg), inputs.shard(cfg.shard))
    if not run.is_done:
        measure(cfg, run)
    if run.is_done:
        report(run, cfg.top)
    else:
        print(f"{folder}: shard {cfg.shard} is done; not yet: {', '.join(run.unfinished)}")


if __name__ == "__main__":
    main()
