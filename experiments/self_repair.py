"""What do later layers restore when a head is taken out?

Closes every head in turn, and every layer of attention, and tells what the answer loses of the
head's own output (direct) from what it loses after all (total): the difference is what other heads,
MLPs and the last norm's scale restore (interp.redundancy.self_repair has the definitions).

    python -m experiments.self_repair
    python -m experiments.self_repair task=pronouns
    python -m experiments.self_repair model=pretrained model.name=gpt2 ablation=resample
    python -m experiments.self_repair heads=[L26H0,L27H8] positions=answer
    python -m experiments.self_repair -m ablation=zero,mean,resample

Writes self_repair (one line a head), restorers (what each later part restores of the heads with the
largest direct effects), compensation (one line a layer, with its Hydra slope), parts (what each
part adds to the logit difference of the clean model), examples, figures and run.json. An
interrupted run goes on where it stopped. Encoders, encoder-decoders, post-norm models, soft-capped
logits and metrics other than logit_diff are refused.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig
from tqdm import tqdm

from experiments import inputs
from experiments.command import command, identity
from interp import plots, sweep
from interp.errors import InputError
from interp.heads import Head, all_heads
from interp.redundancy import self_repair
from interp.redundancy.self_repair import Engine
from interp.runs import Run

SINGLE, PARTED = 0, 1
"""The stages: every head and layer; the heads with the largest direct effects, part by part."""
EQUAL = 1e-4
"""What two runs of the same row may differ by, in logits (interp.sweep): less is nothing."""
N_NAMED = 8
"""Heads named in the scatter plot."""


def measure(cfg: DictConfig, run: Run) -> None:
    """Close heads and layers, part by part, and turn what was measured into tables."""
    subject = inputs.subject(cfg)
    model, task = subject.model, subject.task
    reader = self_repair.Reader(model, task)
    added = self_repair.contributions(reader, task, inputs.tokens_per_batch(cfg))
    heads = all_heads(model.sites)
    chosen = heads if cfg.heads is None else inputs.named_heads(model, cfg.heads, "heads")
    places = sorted({(head.site, head.layer) for head in heads})
    layers = [tuple(h for h in heads if (h.site, h.layer) == place) for place in places]
    source = inputs.baseline(cfg, model, task)
    settings = [*((head,) for head in chosen), *layers]
    engine = Engine(model, task, settings, source, cfg.positions)
    engine.check()
    tokens = inputs.budget(cfg, run, engine)
    n_parted = min(cfg.n_restored, len(chosen))
    record = run.start(
        {
            **subject.facts,
            "plan": {
                "tokens_per_batch": tokens,
                "threads": torch.get_num_threads(),
                "n_heads": len(chosen),
                "n_layers": len(layers),
                "n_parted": n_parted,
                "n_draws": source.n_draws,
            },
        },
        {"examples": task.table.assign(clean=subject.clean)},
    )
    n_rows = (len(settings) + n_parted) * len(task) * source.n_draws
    with run.working(), tqdm(total=n_rows, unit="row", desc=f"{model.name} {task.name}") as bar:
        how: dict[str, Any] = {
            "tokens_per_batch": record["plan"]["tokens_per_batch"],
            "advance": bar.update,
        }
        effects = self_repair.effects(sweep.measured(run, engine, stage=SINGLE, **how))
        single = {name: value[: len(chosen)] for name, value in effects.items()}
        whole = {name: value[len(chosen) :] for name, value in effects.items()}
        order = np.argsort(-single["direct"].mean(axis=1), kind="stable")
        parted = [chosen[number] for number in order[:n_parted]]
        engine = Engine(
            model, task, [(head,) for head in parted], source, cfg.positions, part_by_part=True
        )
        rows = sweep.measured(run, engine, stage=PARTED, **how)
        run.end_shard([])
    clusters = task.table["cluster"].to_numpy()
    bootstrap = inputs.drawn(cfg)
    tables = {
        "self_repair": self_repair.table(
            single, chosen, clusters, top_share=cfg.top_share, **bootstrap
        ),
        "restorers": self_repair.restorers(rows, parted, clusters, **bootstrap),
        "compensation": self_repair.compensation(whole, places, clusters, **bootstrap),
        "parts": self_repair.parts(added, heads[0].site, clusters, **bootstrap),
    }
    with run.finishing() as is_left:
        if is_left:
            _finish(run, tables, n_rows)


def _finish(run: Run, tables: Mapping[str, pd.DataFrame], n_rows: int) -> None:
    """Write the tables, each with what was measured in front."""
    record = run.record
    known = {"model": record["model_name"], "task": record["task"]}
    ablated = {name: record["config"][name] for name in ("ablation", "positions")}
    for name, table in tables.items():
        front = known if name == "parts" else known | ablated
        run.write(name, table, **front)
    run.finish(n_rows=n_rows)


def draw(run: Run) -> list[str]:
    """Draw the figures that a finished run lacks; return the names of all."""
    record, table = run.record, run.read("self_repair")
    config, unit = record["config"], record["unit_of_metric"]
    what = (
        f"{record['model_name']}, {record['task']} (n = {table['n'].max()}), "
        f"{config['ablation']} ablation"
    )
    strongest = named(table.nlargest(config["n_restored"], "direct"))
    figures = {
        "repair": partial(plots.repair, table, named=N_NAMED, title=what, unit=unit),
        "restored": partial(plots.restored, strongest, title=what, unit=unit),
        "slopes": partial(plots.slopes, run.read("compensation"), title=f"{what} of layers"),
    }
    return run.draw(figures)


def named(table: pd.DataFrame, end: str = "") -> pd.DataFrame:
    """Write addresses for people."""
    places = table[[f"site{end}", f"layer{end}", f"head{end}"]].itertuples(index=False)
    names = [
        f"MLP{layer}" if pd.isna(head) else str(Head(site, int(layer), int(head)))
        for site, layer, head in places
    ]
    return table.assign(**{f"name{end}": names})


def report(run: Run, top: int) -> None:
    """Print what the logit difference is made of, what is repaired and by what, and the files."""
    record, table = run.record, run.read("self_repair")
    figures = draw(run)
    unit = record["unit_of_metric"]
    print(
        f"{record['model_name']}, {record['task']} (n = {table['n'].max()}), "
        f"{record['config']['ablation']} ablation: clean {record['metric']} "
        f"{record['clean_score']:.3f} {unit} = {made_of(run.read('parts'))}"
    )
    strongest = named(table.nlargest(top, "direct"))
    print(f"\nthe heads with the largest direct effects, {len(strongest)} of {len(table)}:")
    print(shown(strongest).to_string(index=False))
    tolerance = record["config"]["tolerance"] * abs(record["clean_score"])
    print(f"\n{repaired(table, unit, tolerance)}\n")
    print(backups(run.read("restorers"), top))
    print(hydra(run.read("compensation")))
    print(
        f"{run.folder}: self_repair, restorers, compensation, parts, examples.parquet, "
        f"{', '.join(figures)}, run.json"
    )


def made_of(parts: pd.DataFrame) -> str:
    """Say what each kind of part adds to the clean logit difference."""
    sums = parts.groupby("kind")["contribution"].sum()
    called = {"head": "heads", "mlp": "MLPs"}
    kinds = ("embeddings", "head", "mlp", "biases")
    return " ".join(f"{sums[kind]:+.3f} {called.get(kind, kind)}" for kind in kinds)


def shown(lines: pd.DataFrame) -> pd.DataFrame:
    """Lay out heads for the screen."""
    columns = {
        "head": lines["name"],
        **{
            name.replace("_", " "): lines[name].map("{:+.3f}".format)
            for name in ("direct", "total", "self_repair")
        },
        "interval": [
            f"[{low:+.3f}, {high:+.3f}]"
            for low, high in lines[["ci_low", "ci_high"]].itertuples(index=False)
        ],
        "q": lines["q_value"].map("{:.2g}".format),
    }
    columns |= {
        name.replace("_", " "): lines[name].map("{:+.3f}".format)
        for name in ("by_heads", "by_mlps", "by_norm")
    }
    return pd.DataFrame(columns)


def repaired(table: pd.DataFrame, unit: str, tolerance: float) -> str:
    """Say how much of the direct effects is repaired, and by what.

    Args:
        table: One line a head.
        unit: The metric's unit.
        tolerance: What is too little to be shared out.
    """
    helpful = table[table["direct_low"] > EQUAL]
    direct = helpful["direct"].sum()
    if direct <= tolerance:
        return f"no heads have direct effects that are clear of 0 and above {tolerance:.3g} {unit}"
    shares = {
        name: helpful[name].sum() / direct
        for name in ("self_repair", "by_heads", "by_mlps", "by_norm")
    }
    top = helpful["self_repair_top"].sum() / helpful["direct_top"].sum()
    clear = helpful["q_value"] < 0.05
    more, less = (clear & (sign * helpful["self_repair"] > EQUAL) for sign in (1, -1))
    return (
        f"{len(helpful)} of {len(table)} heads help the answer directly (interval above 0), by "
        f"{direct:.3f} {unit} together when each is ablated alone; later parts restore "
        f"{shares['self_repair']:+.0%} of that (heads {shares['by_heads']:+.0%}, MLPs "
        f"{shares['by_mlps']:+.0%}, norms {shares['by_norm']:+.0%}; below 0: they lose by it too); "
        f"on the {helpful['n_top'].iloc[0]} examples to which each head contributes most: "
        f"{top:+.0%}.\nOf these heads {more.sum()} are repaired in part, {less.sum()} do more "
        f"damage than directly (q < 0.05)."
    )


def backups(table: pd.DataFrame, top: int) -> str:
    """List the heads, and the MLPs, that restore most of a head, of those clear of 0."""
    clear = table[(table["q_value"] < 0.05) & (table["restored"] > EQUAL)]
    said = []
    for kind, called in (("head", "heads"), ("mlp", "MLPs")):
        lines = clear[clear["kind"] == kind]
        best = named(named(lines.nlargest(max(1, top // 2), "restored")), "_2")
        pairs = [f"{row.name_2} for {row.name} {row.restored:+.3f}" for row in best.itertuples()]
        said.append(f"{called} that restore something clear of 0: {', '.join(pairs) or 'none'}")
    return "\n".join(said)


def hydra(table: pd.DataFrame) -> str:
    """Say in which layers what is restored grows with what is lost, the closest fits first."""
    clear = table[table["ci_low"] > 0].sort_values("r2", ascending=False, kind="stable")
    fits = [f"L{row.layer} {row.slope:.2f} (r² {row.r2:.2f})" for row in clear.head(5).itertuples()]
    return (
        f"whole layers: in {len(clear)} of {len(table)} later heads and MLPs restore the more, the "
        f"more the layer loses directly (the slope's interval is above 0)"
        f"{': ' * bool(fits)}{', '.join(fits)}"
    )


def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is not among those known, or out of range.
    """
    inputs.check_gated(cfg)
    inputs.check_least(cfg, {"n_restored": 1})
    if not 0 < cfg.top_share < 1:
        raise InputError(f"top_share={cfg.top_share:g}: between 0 and 1, such as 0.125")


@command("self_repair")
def main(cfg: DictConfig, folder: Path) -> None:
    """Measure unless that was done before, and report."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg))
    if not run.is_done:
        measure(cfg, run)
    report(run, cfg.top)


if __name__ == "__main__":
    main()
