"""Which heads stand in for each other, and which can share a pattern?

Closes heads one by one and in pairs: the interaction of a pair is what both together damage beyond
the sum of each (interp.redundancy.interactions). Then asks whether heads that are alike interact
more, and merges heads instead of removing them: from the most alike pair on, one takes the
pattern of the other and keeps its own values.

    python -m experiments.interactions
    python -m experiments.interactions model=minilm task=similarity
    python -m experiments.interactions choose=similarity twins.measure=cka
    python -m experiments.interactions heads=[L26H0,L27H8,L19H6] ablation=zero
    python -m experiments.interactions model=planted model.variant=redundant task=planted

Writes pairs (one line a pair), similar (does similarity go with interaction?), merges (which head
takes whose pattern, in order), merge_curve (the score after so many, beside closing the same heads
and beside random patterns), figures and run.json. An interrupted run goes on where it stopped.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from omegaconf import DictConfig, ListConfig
from tqdm import tqdm

from experiments import inputs
from experiments.command import command, identity
from interp import gates, plots, sweep, units
from interp.errors import InputError
from interp.heads import Head, all_heads
from interp.models.head_model import HeadModel
from interp.redundancy import interactions, similarity, tables
from interp.redundancy.interactions import Pair
from interp.redundancy.tables import PAIR
from interp.runs import Run

ABLATIONS = tuple(kind for kind in gates.KINDS if kind != "twin")
CHOICES = ("damage", "similarity", "all")
MERGED, PRUNED, RANDOM = "merged", "pruned", "random"
N_DRAWN = 20
"""Pairs in the figure of the strongest."""
ROUNDING = 1e-4
"""An interaction smaller than this share of the clean score may be rounding (in float32)."""
DISCOVERY = 0.05
"""The q-value up to which an interaction counts."""


def measure(cfg: DictConfig, run: Run) -> None:
    """Close heads alone, then in pairs; merge them; turn what was measured into tables."""
    subject = inputs.subject(cfg)
    model, task = subject.model, subject.task
    measures = list(dict.fromkeys([*cfg.measures, cfg.twins.measure]))
    lines = inputs.alike(cfg, model, task, measures)
    near = lines[lines["measure"] == cfg.twins.measure]
    source = inputs.baseline(cfg, model, task)
    engine = partial(sweep.Engine, model, task, positions=cfg.positions)
    heads = candidates(cfg, model, near)
    singles = engine([(head,) for head in heads], source)
    merged = interactions.merges(near) if cfg.merge.fractions else []
    counts = steps(cfg, model, merged)
    settings = [tuple(head for head, _ in merged[:count]) for count in counts]
    merging = {
        way: engine(settings, baseline)
        for way, baseline in ways(cfg, model, merged, source).items()
    }
    for each in (singles, *merging.values()):
        each.check()
    tokens = inputs.budget(cfg, run, singles)
    n_chosen = len(heads) if cfg.heads is not None else n_heads(cfg, model)
    n_pairs = n_chosen * (n_chosen - 1) // 2
    n_rows = len(task) * (
        source.n_draws * (len(heads) + n_pairs)
        + sum(each.baseline.n_draws * len(counts) for each in merging.values())
    )
    record = run.start(
        {
            **subject.facts,
            "tolerance": cfg.tolerance * abs(float(subject.clean.mean())),
            "n_heads": len(all_heads(model.sites)),
            "plan": {
                "tokens_per_batch": tokens,
                "threads": torch.get_num_threads(),
                "n_draws": source.n_draws,
                "n_rows": n_rows,
            },
        },
        {"examples": task.table},
    )
    label = f"{model.name} {task.name}"
    with run.working(), tqdm(total=n_rows, unit="row", desc=label) as bar:
        sweep_all = partial(
            sweep.damages,
            run,
            tokens_per_batch=record["plan"]["tokens_per_batch"],
            advance=bar.update,
        )
        single = dict(zip(heads, sweep_all(singles, stage=0), strict=True))
        chosen = heads
        if cfg.heads is None and cfg.choose == "damage":
            chosen = sorted(heads, key=lambda head: -abs(single[head].mean()))[:n_chosen]
        pairs = list(combinations(sorted(chosen), 2))
        both = sweep_all(engine(pairs, source), stage=1)
        curves = {
            way: sweep_all(each, stage=2 + number)
            for number, (way, each) in enumerate(merging.items())
        }
        run.end_shard([])
    with run.finishing() as is_left:
        if not is_left:
            return
        clusters = task.table["cluster"].to_numpy()
        drawn = inputs.drawn(cfg)
        table = interactions.interactions(pairs, single, both, clusters, **drawn)
        table = interactions.with_similarity(table, lines, cfg.twins.measure)
        similar = interactions.similar(
            table,
            measures,
            rounding=ROUNDING * abs(record["clean_score"]),
            n_draws=cfg.exchanges,
            seed=cfg.seed,
        )
        known = {"model": model.name, "task": task.name, "metric": task.metric}
        known |= {"ablation": cfg.ablation, "positions": cfg.positions}
        run.write("pairs", table, **known)
        run.write("similar", similar, **known)
        if merged:
            values = tables.doubled(near)[[*PAIR, "measure", "value"]]
            taken = interactions.twin_table(dict(merged)).merge(values, on=PAIR, how="left")
            curve = interactions.curve(
                curves,
                subject.clean,
                clusters,
                counts,
                n_heads=record["n_heads"],
                higher_is_better=task.higher_is_better,
                **drawn,
            )
            by = np.where(curve["how"] == PRUNED, cfg.ablation, "twin")
            run.write("merges", taken, model=model.name, task=task.name)
            run.write("merge_curve", curve, **known | {"ablation": by})
        run.finish()


def candidates(cfg: DictConfig, model: HeadModel, near: pd.DataFrame) -> list[Head]:
    """List the heads that are closed one by one: those whose pairs follow, or may.

    Args:
        cfg: The configuration.
        model: The model.
        near: How alike pairs of heads are, by one measure.
    """
    if cfg.heads is not None:
        named = inputs.named_heads(model, cfg.heads, "heads")
        if len(named) < 2:
            raise InputError("heads: name at least two, whose pairs are closed")
        return named
    if cfg.choose == "similarity":
        return interactions.most_alike(near, n_heads(cfg, model))
    return all_heads(model.sites)


def n_heads(cfg: DictConfig, model: HeadModel) -> int:
    """Say how many heads are chosen, where none are named."""
    every = len(all_heads(model.sites))
    return every if cfg.choose == "all" else min(cfg.n_heads, every)


def steps(cfg: DictConfig, model: HeadModel, merged: Sequence[Pair]) -> list[int]:
    """Say how many heads are merged at each step."""
    every = len(all_heads(model.sites))
    counts = {min(round(share * every), len(merged)) for share in cfg.merge.fractions}
    return sorted(counts - {0})


def ways(
    cfg: DictConfig, model: HeadModel, merged: Sequence[Pair], source: gates.Baseline
) -> dict[tuple[str, int], gates.Baseline]:
    """List what may stand in for merged heads, by how it is called and its seed."""
    if not merged:
        return {}
    found: dict[tuple[str, int], gates.Baseline] = {
        (MERGED, 0): gates.Twin(model, twins=dict(merged)),
        (PRUNED, 0): source,
    }
    for number in range(cfg.merge.random):
        rng = np.random.default_rng([cfg.seed, number])
        taken = interactions.strangers(merged, model.sites, rng)
        found[RANDOM, number] = gates.Twin(model, twins=dict(taken))
    return found


def beyond(table: pd.DataFrame, bound: float) -> tuple[Bool[np.ndarray, " pair"], ...]:
    """Mark the pairs whose interaction is clear of a bound: above it, and below minus it."""
    found = (table["q_value"] <= DISCOVERY).to_numpy()
    return found & (table["ci_low"] > bound), found & (table["ci_high"] < -bound)


def ranked(run: Run) -> pd.DataFrame:
    """Sort pairs: stand-ins that are clear of 0 first, and by interaction; with their names."""
    table = run.read("pairs")
    clear, _ = beyond(table, ROUNDING * abs(run.record["clean_score"]))
    named = table.assign(
        name=units.names(table.assign(unit="pair")),
        value=table["interaction"],
        low=table["ci_low"],
        high=table["ci_high"],
        clear=clear,
    )
    return named.sort_values(["clear", "value"], ascending=False, kind="stable")


def draw(run: Run, table: pd.DataFrame) -> list[str]:
    """Draw the figures that a finished run lacks; return the names of all."""
    record = run.record
    config, unit = record["config"], record["unit_of_metric"]
    what = f"{record['model_name']}, {record['task']}, {config['ablation']} ablation"
    title, label = f"Interaction of pairs: {what}", f"interaction ({record['metric']}, {unit})"
    ends = pd.concat([table.head(N_DRAWN // 2), table.tail(N_DRAWN // 2)])
    said = {"title": title, "label": label}
    figures = {
        "pairs": partial(plots.pair_map, table, **said),
        "strongest": partial(plots.strongest, ends.drop_duplicates("name"), **said),
    }
    measures = [name for name in config["measures"] if table[name].notna().any()]
    if measures:
        alike = table.assign(
            **{name: similarity.similarity(name, table[name].to_numpy()) for name in measures}
        )
        figures["similar"] = partial(plots.pairs_by_similarity, alike, measures, **said)
    if config["merge"]["fractions"]:
        figures["merge_curve"] = partial(
            plots.merge_curve,
            run.read("merge_curve"),
            title=f"Merging heads: {what}",
            label=f"damage ({record['metric']}, {unit})",
        )
    return run.draw(figures)


def report(run: Run, top: int) -> None:
    """Print how many pairs stand in for each other, the strongest, similarity, and merging."""
    record, table = run.record, ranked(run)
    figures = draw(run, table)
    config, unit = record["config"], record["unit_of_metric"]
    accuracy = record.get("clean_accuracy")
    share = "" if accuracy is None else f", accuracy {accuracy:.3f}"
    print(
        f"clean {record['metric']} {record['clean_score']:.3f} {unit}{share} "
        f"(n = {table['n'].max()}); {len(table)} pairs of {len(tables.heads(table))} heads, "
        f"{config['ablation']} ablation\n\ninteraction = damage of both - damage of each alone:"
    )
    for bound, said in (
        (ROUNDING * abs(record["clean_score"]), "clear of 0"),
        (
            record["tolerance"],
            f"beyond {record['tolerance']:.3g} {unit}, "
            f"{config['tolerance']:.0%} of the clean score",
        ),
    ):
        above, below = beyond(table, bound)
        print(
            f"  {said}: {above.sum()} pairs above (stand-ins: each makes up for the other), "
            f"{below.sum()} below (both are needed for one thing)"
        )
    n_clusters = run.read("examples")["cluster"].nunique()
    if 2 / 2**n_clusters * len(table) > DISCOVERY:
        print(
            f"  ({n_clusters} clusters of examples cannot tell any of so many pairs from chance: "
            f"take more examples, or fewer heads)"
        )
    print(f"\n{strongest(table.head(top), config).to_string(index=False)}")
    print(f"\n{answer(run.read('similar'), table, unit)}")
    names = ["pairs", "similar", "examples"]
    if config["merge"]["fractions"]:
        names += ["merges", "merge_curve"]
        print(f"\n{merging(run)}")
    print(f"\n{run.folder}: {', '.join(names)}.parquet, {', '.join(figures)}, run.json")


def strongest(table: pd.DataFrame, config: Mapping[str, Any]) -> pd.DataFrame:
    """Lay out the strongest pairs for people."""
    shown = {"pair": table["name"]}
    for name in ("damage_1", "damage_2", "damage_both", "interaction"):
        shown[name.removeprefix("damage_")] = table[name].map("{:+.3f}".format)
    shown["95 % interval" if config["level"] == 0.95 else "interval"] = [
        f"[{low:+.3f}, {high:+.3f}]" for low, high in table[["low", "high"]].itertuples(index=False)
    ]
    shown["q"] = table["q_value"].map("{:.2g}".format)
    for name in config["measures"]:
        shown[name] = table[name].map("{:.3f}".format)
    return pd.DataFrame(shown).rename(columns={"1": "first", "2": "second"})


def answer(similar: pd.DataFrame, table: pd.DataFrame, unit: str) -> str:
    """Say whether heads that are alike stand in for each other."""
    said = ["Do similar heads stand in for each other? (in brackets: what exchanged heads give)"]
    if similar.empty:
        return f"{said[0]}\n  no pair of one site interacts by more than rounding"
    several = similar["site"].nunique() > 1
    for (site, name), lines in similar.groupby(["site", "measure"], sort=False):
        of = lines.set_index("statistic")
        parts = []
        for statistic, called, end in (
            ("spearman", "Spearman over pairs", ""),
            ("spearman_same_distance", "of the same layer distance", ""),
            ("twins_less_others", "nearest twins less others of that distance", f" {unit}"),
        ):
            if statistic in of.index:
                line = of.loc[statistic]
                parts.append(
                    f"{called} {line['value']:+.3f}{end} "
                    f"[{line['null_low']:+.3f}, {line['null_high']:+.3f}]"
                )
        judged = of.loc["spearman_same_distance"] if "spearman_same_distance" in of.index else None
        said.append(
            f"  {f'{site}, ' if several else ''}by {name}{verdict(judged)}: {'; '.join(parts)}"
        )
    twins = table["is_twin"]
    if twins.any() and not twins.all():
        clear = table["clear"]
        said.append(
            f"  of the {twins.sum()} pairs of nearest twins {clear[twins].sum()} stand in for each "
            f"other ({clear[twins].mean():.0%}), of the {(~twins).sum()} other pairs "
            f"{clear[~twins].sum()} ({clear[~twins].mean():.0%})"
        )
    return "\n".join(said)


def verdict(line: pd.Series | None) -> str:
    """Compare a correlation with what exchanged heads give."""
    if line is None:
        return ""
    if line["value"] > line["null_high"]:
        return ", more than chance"
    return ", less than chance" if line["value"] < line["null_low"] else ", no more than chance"


def merging(run: Run) -> str:
    """Say what merging costs, beside closing the same heads."""
    record, curve = run.record, run.read("merge_curve")
    means = curve.groupby(["n_merged", "fraction", "how"])["value"].mean().unstack()
    shown = means.reset_index().rename_axis(columns=None)
    ways_ = [name for name in (MERGED, PRUNED, RANDOM) if name in shown]
    out = pd.DataFrame(
        {
            "heads": shown["n_merged"],
            "of all": shown["fraction"].map("{:.0%}".format),
            **{name: shown[name].map("{:.3f}".format) for name in ways_},
        }
    )
    pruned = curve[curve["how"] == PRUNED]
    out["pruned does more damage by"] = [
        f"{line.above_merged:+.3f} [{line.above_low:+.3f}, {line.above_high:+.3f}]"
        for line in pruned.sort_values("n_merged").itertuples()
    ]
    within = curve[curve["damage"] <= record["tolerance"]].groupby("how")["n_merged"].max()
    return (
        f"merging the most alike heads (one pattern for two, own values), {record['metric']}:\n"
        f"{out.to_string(index=False)}\n"
        f"within {record['config']['tolerance']:.0%} of the clean score: "
        f"{within[MERGED]} of {record['n_heads']} heads merged, {within[PRUNED]} closed; closing "
        f"them does more damage than merging at {(pruned['above_low'] > 0).sum()} of "
        f"{len(pruned) - 1} steps, less at {(pruned['above_high'] < 0).sum()} (by intervals)"
    )


def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is not among those known, or out of range.
    """
    inputs.check_gated(cfg, ABLATIONS)
    inputs.check_choices(cfg, {"choose": CHOICES})
    inputs.check_least(cfg, {"n_heads": 2, "exchanges": 1})
    if not isinstance(cfg.measures, ListConfig) or not cfg.measures:
        raise InputError(f"measures={cfg.measures}: a list, such as [js,cka]")
    shares = cfg.merge.fractions
    if not isinstance(shares, ListConfig) or not all(
        isinstance(share, float | int) and 0 < share <= 1 for share in shares
    ):
        raise InputError(f"merge.fractions={shares}: shares above 0 up to 1, such as [0.1,0.5]")


@command("interactions")
def main(cfg: DictConfig, folder: Path) -> None:
    """Check the choices, measure unless that was done before, and report."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg))
    if not run.is_done:
        measure(cfg, run)
    report(run, cfg.top)


if __name__ == "__main__":
    main()
