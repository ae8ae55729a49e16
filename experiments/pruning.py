"""How many heads can go?

Closes the gates of more and more heads, in the order of their importance by several measures, and
scores the model at each point (interp.redundancy.pruning). Orders are chosen on one half of the
examples and scored on the other; the halves share no cluster.

    python -m experiments.pruning
    python -m experiments.pruning model=minilm task=similarity
    python -m experiments.pruning ablation=zero 'orders=[michel_example,exact,random]'
    python -m experiments.pruning model=minilm task=similarity save=0.5 save_order=greedy

Michel et al. (2019) close gates to zero; the default here is the mean, as in the other experiments.
Writes four tables, figures and run.json. An interrupted run goes on where it stopped.

    curve         the score at each point, on the half `report`: `order, seed` (of a random one),
                  `site` (`all`: of all sites together), `n_pruned, fraction, metric, value, ci_low,
                  ci_high, split`; of a metric that is a difference also the accuracy, the share of
                  examples above 0
    prunable      one line a curve and metric: how many heads can go within `tolerance`, and the
                  area under the curve (interp.redundancy.pruning.prunable)
    order         one line a head of each order: `order, seed, among` (the curve's `site`), `rank`
                  (0 goes first), `site, layer, head, score`
    all_but_one   one line a layer and metric; the layer keeps the one head that was best on the
                  half `select`, by the task's metric: `head`, `damage_select` (too good, as the
                  best of several) and, on the half `report`, `clean, damage, ci_low, ci_high`

`save` writes a model without a share of its heads into the folder of a run under ablation=zero,
which is what cutting heads out comes to; `model=pruned model.path=…` then loads it in all
experiments. It adds a line to the table `size`: `order, fraction, n_pruned, path`, what the model
has and takes `_before` and `_after`: `n_parameters`, `mb` (of weights) and `seconds` (the median
of a forward of `speed.examples` texts of `speed.tokens` random tokens), the median `ratio` of the
times, the models taking turns, with `ratio_low, ratio_high` (by order statistics), and the largest
`difference` between outputs of the two, one with heads cut out and one with gates closed.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig, ListConfig
from scipy import stats
from tqdm import tqdm

from experiments import inputs
from experiments.command import build, command, identity, path_argument
from interp import plots, statistics, sweep, units
from interp.errors import InputError
from interp.gates import Baseline, Setting
from interp.heads import Head, all_heads, from_table
from interp.models import prune
from interp.models.head_model import Batch, HeadModel
from interp.models.pretrained import PretrainedModel
from interp.models.text import Encoded
from interp.redundancy import importance, pruning
from interp.redundancy.pruning import ALL, CURVE
from interp.runs import Run
from interp.tasks.task import Task
from interp.units import Unit

HEADS, ORDERS, CURVES, ROUNDS = range(4)
"""The stages of a run: heads closed one by one (and all but one), orders, curves, and from ROUNDS
on the rounds of greedy_by=exact."""
Damages = dict[Setting, np.ndarray]
"""What it does to each example to close some heads."""


@dataclass(frozen=True)
class Half:
    """Half of the examples, and what stands in for heads there."""

    task: Task
    baseline: Baseline
    clean: np.ndarray

    @property
    def clusters(self) -> np.ndarray:
        """Each example's cluster."""
        return self.task.table["cluster"].to_numpy()


class Plan:
    """What is measured on a model, apart from curves, which depend on what is found."""

    def __init__(self, cfg: DictConfig, model: HeadModel) -> None:
        """Lay out single heads, and layers that keep one."""
        self.heads = all_heads(model.sites)
        is_needed = {"exact", "reverse"} & {*cfg.orders, cfg.greedy_by}
        self.singles: list[Setting] = [(head,) for head in self.heads] if is_needed else []
        self.layers: list[Unit] = []
        if cfg.all_but_one and any(site.n_heads > 1 for site in model.sites):
            self.layers = units.units("all_but_one", model.sites, self.heads)

    @property
    def settings(self) -> list[Setting]:
        """List what is closed on the half `select`."""
        return list(dict.fromkeys([*self.singles, *(unit.closed for unit in self.layers)]))


def measure(cfg: DictConfig, run: Run) -> None:
    """Choose orders on one half, score them on the other, and write the tables."""
    subject = inputs.subject(cfg)
    model, task = subject.model, subject.task
    numbers = pruning.halves(task.table["cluster"].to_numpy(), cfg.seed)
    parts = {name: task.select(chosen.tolist()) for name, chosen in numbers.items()}
    half = {
        name: Half(part, inputs.baseline(cfg, model, part), subject.clean[numbers[name]])
        for name, part in parts.items()
    }
    plan = Plan(cfg, model)
    engine = partial(sweep.Engine, model, positions=cfg.positions)
    select, report = half["select"], half["report"]
    # (heads are closed one by one where all gates can be: a check, and a measure of speed)
    trial = plan.settings or [(head,) for head in plan.heads]
    for part in half.values():
        engine(part.task, trial, part.baseline).check()
    tokens = inputs.budget(cfg, run, engine(select.task, trial, select.baseline))
    split = np.full(len(task), "select", dtype=object)
    split[numbers["report"]] = "report"
    run.start(
        {
            **subject.facts,
            "n_heads": len(plan.heads),
            "n_clusters": {name: len(set(part.clusters)) for name, part in half.items()},
            "n_examples": {name: len(part.task) for name, part in half.items()},
            "plan": {
                "tokens_per_batch": tokens,
                "threads": torch.get_num_threads(),
                "n_settings": len(plan.settings),
                "n_draws": {name: part.baseline.n_draws for name, part in half.items()},
            },
        },
        {"examples": task.table.assign(split=split, clean=subject.clean)},
    )

    def damages(part: Half, settings: Sequence[Setting], stage: int, what: str) -> Damages:
        if not settings:
            return {}
        n_rows = len(settings) * len(part.task) * part.baseline.n_draws
        with tqdm(total=n_rows, unit="row", desc=f"{model.name} {task.name} {what}") as bar:
            found = sweep.damages(
                run,
                engine(part.task, settings, part.baseline),
                stage=stage,
                tokens_per_batch=tokens,
                advance=bar.update,
            )
        return dict(zip(settings, found, strict=True))

    stages = count(ROUNDS)

    @cache
    def again(closed: Setting) -> pruning.Scores:
        """Score the heads that are left, on the half that orders are chosen on."""
        if cfg.greedy_by != "exact":
            return pruning.scores(estimated(cfg, model, select, closed), cfg.greedy_by)
        if not closed:
            return means(alone)
        more = {(*closed, head): head for head in plan.heads if head not in closed}
        what = f"without {len(closed)}"
        lost = damages(select, [closed, *more], next(stages), what)
        return {head: float((lost[both] - lost[closed]).mean()) for both, head in more.items()}

    with run.working():
        alone = damages(select, plan.settings, HEADS, "heads")
        # (from the disk, where it is: curves must not change on the way)
        order = pd.read_parquet(
            run.once(ORDERS, 0, lambda: ordered(cfg, model, select, alone, again))
        )
        points = pruning.points(order, [float(share) for share in cfg.fractions])
        kept = pruning.best_alone(plan.layers, alone)
        settings = dict.fromkeys([*filter(None, points["closed"]), *(u.closed for u in kept)])
        damage = damages(report, list(settings), CURVES, "curves")
        run.end_shard([])
    with run.finishing() as is_left:
        if is_left:
            run.write("order", order, **known(run))
            write_curves(cfg, run, points, report, damage)
            if kept:
                write_kept(cfg, run, kept, {"select": (select, alone), "report": (report, damage)})
            run.finish()


def ordered(
    cfg: DictConfig, model: HeadModel, select: Half, alone: Damages, again: pruning.Again
) -> pd.DataFrame:
    """Put heads into all orders."""
    n_rounds = len(cfg.fractions) - 1 if "greedy" in cfg.orders else 0
    among = pruning.groups(model.sites)
    total = n_rounds * len(among) if cfg.greedy_by in importance.GRADIENT else 1
    with tqdm(unit="round", total=total, desc=f"{model.name} {select.task.name} orders") as bar:

        def counted(closed: Setting) -> pruning.Scores:
            bar.update()
            return again(closed)

        return pruning.orders(
            list(cfg.orders),
            among,
            means(alone),
            estimated(cfg, model, select, ()),
            counted,
            fractions=[float(share) for share in cfg.fractions],
            n_random=cfg.random_orders,
            seed=cfg.seed,
        )


def means(alone: Damages) -> dict[Head, float]:
    """Average the damage of single heads over examples."""
    return {closed[0]: float(lost.mean()) for closed, lost in alone.items() if len(closed) == 1}


def estimated(cfg: DictConfig, model: HeadModel, select: Half, closed: Setting) -> pd.DataFrame:
    """Estimate by gradients how much the heads matter that are not closed yet."""
    return importance.estimates(
        model,
        select.task,
        select.baseline,
        positions=cfg.positions,
        tokens_per_batch=inputs.tokens_per_batch(cfg),
        closed=closed,
    )


class Reading(NamedTuple):
    """What a metric says of each example."""

    clean: np.ndarray
    value: np.ndarray
    """With heads closed: [setting, example]."""
    higher_is_better: bool

    @property
    def damage(self) -> np.ndarray:
        """How much worse it is for the heads closed: [setting, example]."""
        return (self.clean - self.value) * (1 if self.higher_is_better else -1)


def readings(
    record: Mapping[str, Any], half: Half, damage: Damages, settings: Iterable[Setting]
) -> dict[str, Reading]:
    """Read some settings by the task's metric and, where that is a difference, by accuracy."""
    clean, is_better = half.clean, record["higher_is_better"]
    lost = np.array([damage[closed] if closed else 0 * clean for closed in settings])
    value = clean - lost if is_better else clean + lost
    found = {record["metric"]: Reading(clean, value, is_better)}
    if record["metric"].endswith("diff"):
        found["accuracy"] = Reading((clean > 0).astype(float), (value > 0).astype(float), True)
    return found


def known(run: Run) -> dict[str, Any]:
    """Give the columns that are the same in all lines of a run's tables."""
    record = run.record
    chosen = {name: record["config"][name] for name in ("ablation", "positions")}
    return {"model": record["model_name"], "task": record["task"], **chosen}


def write_curves(
    cfg: DictConfig, run: Run, points: pd.DataFrame, report: Half, damage: Damages
) -> None:
    """Write the curves, and what they come to."""
    curves, comes_to = [], []
    for metric, read in readings(run.record, report, damage, points["closed"]).items():
        table = pruning.curve(points, read.value, report.clusters, **inputs.drawn(cfg))
        curves.append(table.assign(metric=metric, split="report"))
        table = pruning.prunable(
            points,
            read.clean,
            read.value,
            report.clusters,
            tolerance=cfg.tolerance,
            higher_is_better=read.higher_is_better,
            **inputs.drawn(cfg),
        )
        comes_to.append(table.assign(metric=metric, tolerance=cfg.tolerance, split="report"))
    columns = [*CURVE, "n_pruned", "fraction", "metric", "value", "ci_low", "ci_high", "split"]
    run.write("curve", pd.concat(curves, ignore_index=True)[columns], **known(run))
    run.write("prunable", pd.concat(comes_to, ignore_index=True), **known(run))


def write_kept(
    cfg: DictConfig,
    run: Run,
    kept: Sequence[Unit],
    halves: Mapping[str, tuple[Half, Damages]],
) -> None:
    """Write what it costs that layers keep one head."""
    settings = [unit.closed for unit in kept]
    read = {
        name: readings(run.record, half, damage, settings)
        for name, (half, damage) in halves.items()
    }
    tables = []
    for metric, found in read["report"].items():
        interval = statistics.cluster_bootstrap(
            found.damage, halves["report"][0].clusters, **inputs.drawn(cfg)
        )
        table = units.table(kept).assign(
            metric=metric,
            clean=found.clean.mean(),
            damage_select=read["select"][metric].damage.mean(axis=1),
            damage=interval.mean,
            ci_low=interval.low,
            ci_high=interval.high,
        )
        tables.append(table)
    run.write("all_but_one", pd.concat(tables, ignore_index=True), **known(run))


# ------------------------------------------------------------------ a smaller model
def save(cfg: DictConfig, run: Run) -> None:
    """Write the model without a share of its heads, and compare the two."""
    model = build(cfg.model)
    order = run.read("order")
    lines = order[(order["order"] == cfg.save_order) & (order["among"] == ALL)].sort_values("rank")
    lines = lines[lines["seed"].fillna(cfg.seed) == cfg.seed]  # of random ones, the first
    n_pruned = pruning.steps(len(lines), [float(cfg.save)])[-1]
    gone = from_table(lines)[:n_pruned]
    smaller = prune.prune(model, gone)
    folder = run.folder / f"{cfg.save_order}-{cfg.save:g}"
    with run.working():
        prune.save(smaller, folder)
        line = {
            "model": model.name,
            "order": cfg.save_order,
            "fraction": cfg.save,
            "n_pruned": n_pruned,
            "n_heads": len(lines),
            "path": str(folder),
            **compared(cfg, model, smaller, gone),
        }
        table = pd.DataFrame([line])
        if "size" in files(run):
            before = run.read("size")
            table = pd.concat([before[before["path"] != line["path"]], table], ignore_index=True)
        run.write("size", table)


@torch.inference_mode()
def compared(
    cfg: DictConfig, model: PretrainedModel, smaller: PretrainedModel, gone: Sequence[Head]
) -> dict[str, float]:
    """Compare two models in size, speed and outputs."""
    batch = random_batch(model, cfg.speed.examples, cfg.speed.tokens, cfg.seed)
    outputs: Callable[..., torch.Tensor] = (
        PretrainedModel.run if model.unembed is not None else PretrainedModel.hidden
    )

    def seconds(which: PretrainedModel) -> float:
        started = time.perf_counter()
        outputs(which, batch)[0, 0, 0].item()  # waits for the device
        return time.perf_counter() - started

    with prune.closed(model, gone):
        wanted = outputs(model, batch)
    difference = float((outputs(smaller, batch) - wanted).abs().max())
    both = [(seconds(model), seconds(smaller)) for _ in range(1 + cfg.speed.repeats)]
    times = np.array(both[1:])  # after the first touch of memory
    ratios = times[:, 0] / times[:, 1]
    interval = stats.quantile_test(ratios, p=0.5).confidence_interval(cfg.level)
    found: dict[str, float] = {}
    for which, end, took in ((model, "before", times[:, 0]), (smaller, "after", times[:, 1])):
        found[f"n_parameters_{end}"] = prune.n_parameters(which)
        found[f"mb_{end}"] = sum(weight.nbytes for weight in which.module.parameters()) / 1e6
        found[f"seconds_{end}"] = float(np.median(took))
    return found | {
        "ratio": float(np.median(ratios)),
        "ratio_low": float(interval.low),
        "ratio_high": float(interval.high),
        "difference": difference,
    }


def random_batch(model: HeadModel, n: int, n_tokens: int, seed: int) -> Batch:
    """Make texts (and targets) of random tokens."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(model.codec.tokenizer.vocab_size, size=(n, n_tokens)).tolist()
    texts = [Encoded(tuple(line), ((0, 0),) * n_tokens, (False,) * n_tokens) for line in ids]
    return model.batch(texts, texts if model.kind == "encoder_decoder" else [])


# ------------------------------------------------------------------ what it comes to
def draw(run: Run) -> list[str]:
    """Draw the figures that a finished run lacks; return the names of all."""
    record, curve = run.record, run.read("curve")
    config = record["config"]
    what = f"{record['task']}, {config['ablation']} ablation"
    title = f"{record['model_name']}: {what} (n = {record['n_examples']['report']})"
    figures: dict[str, Callable[[], Any]] = {
        f"curve-{metric}" if metric == "accuracy" else "curve": partial(
            plots.pruning_curves,
            lines,
            tolerance=config["tolerance"] * (1 if record["higher_is_better"] else -1),
            title=title,
            label=metric if metric == "accuracy" else f"{metric} ({record['unit_of_metric']})",
        )
        for metric, lines in curve.groupby("metric", sort=False)
    }
    if "all_but_one" in files(run):
        table = run.read("all_but_one").assign(unit="all_but_one")
        table = table[table["metric"] == record["metric"]]
        shown = table.assign(
            name=units.names(table),
            value=table["damage"],
            low=table["ci_low"],
            high=table["ci_high"],
        )
        figures["all_but_one"] = partial(
            plots.strongest,
            shown,
            title=f"{title}\nlayers that keep one head",
            label=f"damage ({record['metric']}, {record['unit_of_metric']})",
        )
    return run.draw(figures)


def files(run: Run) -> list[str]:
    """List the tables of a finished run."""
    names = ("curve", "prunable", "order", "all_but_one", "examples", "size")
    return [name for name in names if (run.folder / f"{name}.parquet").exists()]


def report(run: Run) -> None:
    """Print how many heads can go by each order, what Michel et al. claim, and layers' best."""
    record, prunable = run.record, run.read("prunable")
    n, clusters, config = record["n_examples"], record["n_clusters"], record["config"]
    print(
        f"{record['model_name']} {record['task']}, {config['ablation']} ablation: clean "
        f"{record['metric']} {record['clean_score']:.3f} {record['unit_of_metric']}; orders chosen "
        f"on {n['select']} examples ({clusters['select']} clusters), scored on {n['report']} "
        f"({clusters['report']})"
    )
    for metric, lines in prunable[prunable["site"] == ALL].groupby("metric", sort=False):
        print(
            f"\nheads that can go within {config['tolerance']:.0%} of the clean {metric}, of "
            f"{lines['n_heads'].iloc[0]}:"
        )
        print(by_order(lines).to_string(index=False))
    print(f"\n{claim(prunable, record)}")
    if prunable["site"].nunique() > 1:
        order = "exact" if "exact" in config["orders"] else config["orders"][0]
        print(f"\nthe heads of one site, while the others stay open, by the order {order}:")
        print(by_site(prunable, order).to_string(index=False))
    if "all_but_one" in files(run):
        for _, lines in run.read("all_but_one").groupby("metric", sort=False):
            print(layers(lines, config["tolerance"]))
    names = [*files(run)[:-1], f"{files(run)[-1]}.parquet"]
    print(f"{run.folder}: {', '.join([*names, *draw(run), 'run.json'])}")


def by_order(lines: pd.DataFrame) -> pd.DataFrame:
    """Describe the curves of a site and metric, one line an order; random orders on average."""
    shown = []
    for name, part in lines.groupby("order", sort=False):
        one, mean = part.iloc[0], part.mean(numeric_only=True)
        several = len(part) > 1
        shown.append(
            {
                "order": f"{name} (mean of {len(part)})" if several else name,
                "heads": f"{mean['n_pruned']:.0f} ({mean['share']:.0%})",
                "interval": f"[{part['n_pruned'].min()}, {part['n_pruned'].max()}] of orders"
                if several
                else f"[{one['n_low']:.0f}, {one['n_high']:.0f}]",
                "surely": f"{mean['n_sure']:.0f}",
                "area": f"{mean['area']:.2f}",
                "area's interval": ""
                if several
                else f"[{one['area_low']:.2f}, {one['area_high']:.2f}]",
            }
        )
    return pd.DataFrame(shown)


def by_site(prunable: pd.DataFrame, order: str) -> pd.DataFrame:
    """Describe the curves of each site, while the others stay open."""
    lines = prunable[(prunable["site"] != ALL) & (prunable["order"] == order)]
    lines = lines.drop_duplicates(["metric", "site"])  # of random orders, the first
    return pd.DataFrame(
        {
            "metric": lines["metric"],
            "site": lines["site"],
            "heads": [
                f"{n} of {whole}"
                for n, whole in zip(lines["n_pruned"], lines["n_heads"], strict=True)
            ],
            "interval": lines["n_low"].map("[{:.0f}, ".format)
            + lines["n_high"].map("{:.0f}]".format),
            "area": lines["area"].map("{:.2f}".format),
            "area's interval": lines["area_low"].map("[{:.2f}, ".format)
            + lines["area_high"].map("{:.2f}]".format),
        }
    )


def claim(prunable: pd.DataFrame, record: Mapping[str, Any]) -> str:
    """Say which orders beat that of single-head damage, as Michel's did in their experiments."""
    lines = prunable[(prunable["metric"] == record["metric"]) & (prunable["site"] == ALL)]
    lines = lines[lines["seed"].isna() & lines["over_exact"].notna()]
    said = []
    for line in lines[lines["order"] != "exact"].itertuples():
        ends = [line.over_exact_low, line.over_exact_high]
        if not record["higher_is_better"]:
            ends = [-line.over_exact_high, -line.over_exact_low]
        verdict = "better" if ends[0] > 0 else "worse" if ends[1] < 0 else "not told apart"
        said.append(
            f"{line.order} {verdict} ({line.over_exact:+.2f} "
            f"[{line.over_exact_low:+.2f}, {line.over_exact_high:+.2f}])"
        )
    return f"area against that of exact: {', '.join(said) or 'not measured'}"


def layers(table: pd.DataFrame, share: float) -> str:
    """Say how many layers can do with one head, by one metric."""
    tolerance = share * abs(table["clean"].iloc[0])
    spared = (table["damage"] <= tolerance).sum()
    sure = (table["ci_high"] <= tolerance).sum()
    worst = from_table(table)[table["damage"].argmax()]
    return (
        f"one head a layer, chosen on the other half: {spared} of {len(table)} layers lose no more "
        f"than {tolerance:.2g} {table['metric'].iloc[0]} ({sure} surely); the mean damage is "
        f"{table['damage'].mean():.3f}, and on the half that chose the head "
        f"{table['damage_select'].mean():.3f}; the worst, {table['damage'].max():.3f}, is that of "
        f"keeping {worst} alone"
    )


def report_size(run: Run, cfg: DictConfig) -> None:
    """Print what a smaller model saves, and how to load it."""
    table = run.read("size")
    line = table[(table["order"] == cfg.save_order) & (table["fraction"] == cfg.save)].iloc[0]
    speed = cfg.speed
    print(
        f"{line['n_pruned']} of {line['n_heads']} heads cut out by {line['order']}: "
        f"{line['n_parameters_before']:,} → {line['n_parameters_after']:,} weights "
        f"({line['mb_before']:.1f} → {line['mb_after']:.1f} MB); a forward of {speed.examples} × "
        f"{speed.tokens} tokens takes {line['seconds_before']:.4f} → {line['seconds_after']:.4f} s:"
        f" {line['ratio']:.2f} times as fast [{line['ratio_low']:.2f}, {line['ratio_high']:.2f}]; "
        f"outputs differ from those with closed gates by at most {line['difference']:.1g}\n"
        f"load it anywhere: model=pruned {path_argument(line['path'])}"
    )


# ------------------------------------------------------------------ choices
def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is not among those known, or two do not go together.
    """
    inputs.check_gated(cfg)
    inputs.check_choices(cfg, {"greedy_by": (*importance.GRADIENT, "exact")})
    inputs.check_least(cfg, {"random_orders": 1})
    if not isinstance(cfg.orders, ListConfig) or not cfg.orders:
        raise InputError(f"orders={cfg.orders}: a list, such as [exact,random]")
    for name in cfg.orders:
        if name not in pruning.ORDERS:
            raise InputError(f"orders: {name} is none of {', '.join(pruning.ORDERS)}")
    fractions = cfg.fractions
    if (
        not isinstance(fractions, ListConfig)
        or not all(isinstance(share, int | float) for share in fractions)
        or sorted({0, *(min(share, 1) for share in fractions), 1}) != list(fractions)
    ):
        raise InputError(f"fractions={fractions}: growing shares from 0 to 1, such as [0,0.5,1]")
    if cfg.save is not None:
        check_save(cfg)


def check_save(cfg: DictConfig) -> None:
    """Check what is said of the model to be written.

    Raises:
        InputError: Something does not fit.
    """
    if isinstance(cfg.save, bool) or not isinstance(cfg.save, int | float) or not 0 < cfg.save <= 1:
        raise InputError(f"save={cfg.save}: a share of the heads above 0 up to 1, such as 0.5")
    if cfg.save_order not in cfg.orders:
        raise InputError(f"save_order={cfg.save_order}: one of {', '.join(cfg.orders)}")
    for key, needed in (("ablation", "zero"), ("positions", "all")):
        if cfg[key] != needed:
            raise InputError(
                f"save={cfg.save} cuts heads out, which is closing them by ablation=zero at "
                f"positions=all: it does not go with {key}={cfg[key]}"
            )
    inputs.check_least(cfg, {f"speed.{key}": 1 for key in ("examples", "tokens", "repeats")})


@command("pruning")
def main(cfg: DictConfig, folder: Path) -> None:
    """Measure unless that was done before, report, and write a smaller model if asked to."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg))
    if not run.is_done:
        measure(cfg, run)
    report(run)
    if cfg.save is not None:
        save(cfg, run)
        report_size(run, cfg)


if __name__ == "__main__":
    main()
