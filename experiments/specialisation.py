"""What do heads become while a model is trained, and when?

Trains models of several kinds (arms) from several seeds on a lesson and examines every head along
the way (interp.training.specialisation): what it looks at, what closing it costs, and how many
heads can go.

    python -m experiments.specialisation
    python -m experiments.specialisation training=pronouns
    python -m experiments.specialisation -m shard=0/2,1/2 hydra/launcher=joblib
    python -m experiments.specialisation 'checkpoints=[0,200,400,600]' 'orders=[attribution]'

The lesson `induction` has three arms: two layers, which can learn to look after the last copy of a
token whatever the distance; one layer, which cannot; and one layer on segments of one length, which
succeeds by position alone and fails on segments of other lengths (`elsewhere`).

Writes four tables, a figure and run.json. An interrupted run goes on where it stopped.

    history         one line a model, evaluation and split: `arm, seed, step, split` (train, test,
                    elsewhere), `loss, accuracy, exact_match, tokens_per_second`
    specialisation  one line a model, step, head and feature: `arm, seed, step, site, layer, head,
                    feature, score, even, rate, rule, rule_rate, has_role, damage`
    emergence       one line a model and feature: since when, which head, and whether its score
                    rises with the accuracy
    pruning         one line a model, step, order and number of heads: `arm, seed, step, order,
                    n_pruned, fraction, loss, value, shape`
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from tqdm import tqdm

from experiments import inputs
from experiments.command import build, command, identity
from experiments.roles import thresholds
from interp import plots
from interp.errors import InputError
from interp.heads import HEAD, all_heads, from_table, to_table
from interp.models.custom import CustomModel, from_transformer
from interp.patterns import observe
from interp.redundancy import pruning
from interp.runs import Run
from interp.training import lesson as lessons
from interp.training import specialisation
from interp.training.lesson import Examples, Lesson
from interp.training.lessons import sentences
from interp.training.specialisation import MODEL, Examination, View
from interp.training.trainer import Plan, Progress, evaluate, fit
from interp.transformer import Transformer

HISTORY, ELSEWHERE, HEADS, CURVES = range(4)
"""The rounds of parts: one for each model, and three for each of its checkpoints."""


class Job(NamedTuple):
    """A model to be trained."""

    arm: str
    seed: int


@dataclass(frozen=True)
class Pupil:
    """A model, what it is to learn, and what it is examined by."""

    lesson: Lesson
    module: Transformer
    model: CustomModel
    view: View
    at: Examination
    elsewhere: Examples | None
    """What it is examined on besides."""


def chosen(cfg: DictConfig) -> DictConfig:
    """Find the arms, and what heads are shown, of the lesson."""
    name = str(cfg.training.lesson._target_).rpartition(".")[2].lower()
    return cfg.lessons[name if name in cfg.lessons else "other"]


def jobs(cfg: DictConfig) -> list[Job]:
    """List the models; all arms get a seed before any gets the next."""
    return [Job(str(arm), cfg.seed + n) for n in range(cfg.n_seeds) for arm in chosen(cfg).arms]


def pupil(cfg: DictConfig, job: Job) -> Pupil:
    """Make a model and all that it meets.

    Raises:
        InputError: The sizes do not go together.
    """
    lesson, module = inputs.pupil(cfg, job.seed, chosen(cfg).arms[job.arm])
    model = from_transformer(module, lesson.tokenizer, name=job.arm, truncation="right")
    return Pupil(
        lesson,
        module,
        model,
        view(cfg, lesson, model, job.seed),
        examination(cfg, lesson, job.seed),
        elsewhere(cfg, model, job.seed),
    )


def view(cfg: DictConfig, lesson: Lesson, model: CustomModel, seed: int) -> View:
    """Choose what heads are shown."""
    choices = chosen(cfg)
    corpus = sentences(lesson, choices.passages, seed)
    counts = {"n_chunks": cfg.n_chunks, "n_repeats": choices.repeats}
    return View(
        observe.examples(model, corpus, **counts, seed=seed),
        observe.watch(corpus, cfg.relations),
        list(choices.features),
        thresholds(cfg),
        cfg.level,
    )


def examination(cfg: DictConfig, lesson: Lesson, seed: int) -> Examination:
    """Choose what heads are closed at."""
    task = lessons.task(lesson, n=cfg.n_examples, seed=seed, metric="loss")
    halves = pruning.halves(task.table["cluster"].to_numpy(), seed)
    tokens = inputs.tokens_per_batch(cfg)
    return Examination(task, halves, list(cfg.orders), cfg.level, tokens)


def elsewhere(cfg: DictConfig, model: CustomModel, seed: int) -> Examples | None:
    """Make the examples of another lesson, if there is one."""
    changes = chosen(cfg).elsewhere
    if not changes:
        return None
    other: Any = OmegaConf.merge(cfg.training.lesson, changes)
    lesson: Lesson = build(other)
    return lesson.examples(cfg.n_examples, seed=seed, split="fresh").to(str(model.device))


def checkpoints(cfg: DictConfig, plan: Plan) -> list[int]:
    """List the steps after which heads are examined.

    Raises:
        InputError: The model is not evaluated then, or may stop before.
    """
    if plan.patience or plan.enough <= 1:
        raise InputError(
            f"training.plan.patience={plan.patience}, enough={plan.enough:g}: models are compared "
            f"step by step, so none may stop early (patience=0, enough=2)"
        )
    steps = sorted({*range(0, plan.steps, plan.evaluate_every), plan.steps})
    if cfg.checkpoints is None:
        return steps
    asked = cfg.checkpoints if isinstance(cfg.checkpoints, ListConfig) else [cfg.checkpoints]
    if len(set(asked)) < 2 or not set(asked) <= set(steps):
        raise InputError(
            f"checkpoints={cfg.checkpoints}: null, or at least two of the steps at which the model "
            f"is evaluated: 0, {plan.evaluate_every}, … {plan.steps}"
        )
    return sorted(set(asked))


def measure(cfg: DictConfig, run: Run) -> None:
    """Train this process' share of the models; the last of several makes the tables."""
    torch.set_num_threads(cfg.threads)
    plan: Plan = build(cfg.training.plan)
    every, steps = jobs(cfg), checkpoints(cfg, plan)
    for job in every[: len(chosen(cfg).arms)]:  # what is wrong is said before the first is trained
        new = pupil(cfg, job)
        examine(new)
    run.start(
        {
            "model_name": new.lesson.name,
            "task": new.lesson.name,
            "plan": {
                "n_models": len(every),
                "steps": steps,
                "threads": torch.get_num_threads(),
            },
        },
        {},
    )
    numbers = range(len(every))[run.index :: run.n_shards]
    with run.working(), tqdm(total=len(numbers) * plan.steps, unit="step") as bar:
        parts = []
        for done, number in enumerate(numbers):
            bar.set_description(f"{every[number].arm}, seed {every[number].seed}")
            bar.update(done * plan.steps - bar.n)
            parts += follow(cfg, run, number, every[number], plan, bar)
        run.end_shard(parts)
    with run.finishing() as is_left:
        if is_left:
            _finish(cfg, run)


def follow(cfg: DictConfig, run: Run, number: int, job: Job, plan: Plan, bar: tqdm) -> list[Path]:
    """Train a model and examine it at its checkpoints; say where the parts are."""
    places = {step: number * (plan.steps + 1) + step for step in run.record["plan"]["steps"]}
    end = run.part(HISTORY, number)
    if not end.exists():
        new, before = pupil(cfg, job), bar.n
        state = run.folder / "parts" / f"{run.shard}-{number}.safetensors"

        def watch(now: Progress) -> None:
            bar.update(before + now.step - bar.n)
            place = places.get(now.step)
            if place is not None and not run.part(HEADS, place).exists():
                for round_, table in examine(new).items():
                    known = table.assign(**job._asdict(), step=now.step)
                    run.write_part(run.part(round_, place), known)

        history = fit(new.module, new.lesson, plan, seed=job.seed, state=state, watch=watch)
        run.write_part(end, history.assign(**job._asdict()))
        state.unlink(missing_ok=True)
    rounds = [HEADS, CURVES, *([ELSEWHERE] if chosen(cfg).elsewhere else [])]
    return [end, *(run.part(round_, place) for round_ in rounds for place in places.values())]


def examine(new: Pupil) -> dict[int, pd.DataFrame]:
    """Examine a model as it is now; returns the parts this makes by their rounds, HEADS last."""
    found = {}
    if new.elsewhere is not None:
        scores = evaluate(new.module, new.elsewhere, len(new.elsewhere))
        found[ELSEWHERE] = pd.DataFrame([{"split": "elsewhere", **scores._asdict()}])
    baseline = new.at.baseline(new.model)
    damage = specialisation.alone(new.model, baseline, new.at)
    found[CURVES] = specialisation.curves(new.model, baseline, new.at, damage)
    heads = to_table(all_heads(new.model.sites)).assign(damage=damage.mean(axis=1))
    found[HEADS] = specialisation.looks(new.model, new.view).merge(heads, on=HEAD)
    return found


def _finish(cfg: DictConfig, run: Run) -> None:
    """Write the tables, their lines in the order of arms in the configuration."""
    arms = list(chosen(cfg).arms)

    def in_order(table: pd.DataFrame) -> pd.DataFrame:
        by = ["seed", "arm", "step"]
        key = {"arm": arms.index}
        return table.sort_values(
            by, key=lambda column: column.map(key.get(column.name, int)), ignore_index=True
        )

    history = run.rows(HISTORY)
    if chosen(cfg).elsewhere:
        history = pd.concat([history, run.rows(ELSEWHERE)], ignore_index=True)
    history, heads, curves = map(in_order, (history, run.rows(HEADS), run.rows(CURVES)))
    scores = ["split", "loss", "accuracy", "exact_match", "tokens_per_second"]
    run.write("history", history[[*MODEL, "step", *scores]])
    measures = ["score", "even", "rate", "rule", "rule_rate", "has_role", "damage"]
    run.write("specialisation", heads[[*MODEL, "step", *HEAD, "feature", *measures]])
    run.write("emergence", specialisation.emergence(heads, history, cfg.threshold))
    points = ["order", "n_pruned", "fraction", "loss", "value", "shape"]
    run.write("pruning", curves[[*MODEL, "step", *points]])
    run.finish()


# ------------------------------------------------------------------ what is said of it
def report(run: Run, cfg: DictConfig) -> None:
    """Print what heads became, when, and whether they can be spared."""
    record, history, emerged = run.record, run.read("history"), run.read("emergence")
    heads, pruned = run.read("specialisation"), specialisation.ends(run.read("pruning"))
    steps = record["plan"]["steps"]
    seeds = f"{cfg.n_seeds} seed{'s' * (cfg.n_seeds > 1)}"
    title = f"{record['task']}: {seeds}, {steps[-1]} steps"
    figures = run.draw(
        {"specialisation": partial(plots.specialisation, history, heads, pruned, title=title)}
    )
    print(f"{title}; at the end, mean over seeds [range]:")
    print(outcome(history, emerged, list(chosen(cfg).features)).to_string())
    print("(a feature: the share of attention that the best head gives its targets)")
    apart = float(np.diff(steps).max())
    last = heads[heads["step"] == steps[-1]]
    grown = specialisation.growth(pruned, cfg.level)
    for arm, lines in emerged.groupby("arm", sort=False):
        print(f"\n{arm}")
        said = [*appearing(lines, cfg.threshold, apart), *named(last[last["arm"] == arm])]
        said += spared(grown[grown["arm"] == arm], cfg.level)
        print("\n".join(f"  {line}" for line in said))
    print(
        f"{run.folder}: history, specialisation, emergence, pruning.parquet, "
        f"{', '.join(figures)}, run.json"
    )


def outcome(history: pd.DataFrame, emerged: pd.DataFrame, features: list[str]) -> pd.DataFrame:
    """Lay out what each arm came to: accuracy, and the best head's score on each feature."""
    ends = history[(history["split"] != "train") & (history["step"] == history["step"].max())]
    names = {"test": "accuracy", "elsewhere": "elsewhere"}
    measured = pd.concat(
        [
            ends.assign(what=ends["split"].map(names), value=ends["accuracy"]),
            emerged.assign(what=emerged["feature"], value=emerged["best"]),
        ]
    )
    said = measured.groupby(["arm", "what"])["value"].agg(with_range).unstack()
    columns = [name for name in (*names.values(), *features) if name in said]
    said = said.reindex(index=emerged["arm"].drop_duplicates(), columns=columns)
    return said.rename_axis(index=None, columns=None)


def with_range(values: pd.Series) -> str:
    """Write a mean, and between what the values lie."""
    return f"{values.mean():.2f} [{values.min():.2f}, {values.max():.2f}]"


def appearing(lines: pd.DataFrame, threshold: float, apart: float) -> list[str]:
    """Say of an arm what appeared when, in which order, and whether the loss fell with it.

    Args:
        lines: The arm's, of the table `emergence`.
        threshold: The score that counts.
        apart: Steps between checkpoints, at most.
    """
    said = []
    there = lines[lines["appears"].notna()]
    for feature, own in there.groupby("feature", sort=False):
        since = ", ".join(
            f"{row.appears} ({head})"
            for row, head in zip(own.itertuples(), from_table(own), strict=True)
        )
        beside = ", ".join(f"{steps:+d}" for steps in own["apart"])
        said.append(
            f"{feature}: at {threshold:g} or above from step {since}; rises most {beside} steps "
            f"after the loss falls most; follows accuracy with r = {with_range(own['correlation'])}"
        )
    missing = [
        feature for feature in lines["feature"].unique() if feature not in {*there["feature"]}
    ]
    if missing:
        said.append(f"no head for {', '.join(missing)}")
    orders = {
        seed: specialisation.sequence(own, apart) for seed, own in lines.groupby("seed", sort=False)
    }
    if not there.empty and len(orders) > 1:
        first, *others = orders.values()
        if {*others} == {first}:
            said.append(f"the same order in all seeds: {first}")
        else:
            each = "; ".join(f"seed {seed}: {order or 'none'}" for seed, order in orders.items())
            said.append(f"the order differs over seeds: {each}")
    return said


def named(last: pd.DataFrame) -> list[str]:
    """Say which roles an arm's heads have in the end, and what closing one of them costs.

    Args:
        last: The arm's lines of the table `specialisation` at the last step of each model.
    """
    said = []
    held = last[last["has_role"]]
    for feature, own in held.groupby("feature", sort=False):
        counts = own.groupby("seed").size().reindex(last["seed"].unique(), fill_value=0)
        rule = own.sort_values("rate").iloc[-1]
        said.append(
            f"role {feature}: {', '.join(map(str, counts))} heads in the seeds; closing one costs "
            f"{own['damage'].min():.2f} to {own['damage'].max():.2f} nats per answer; the best "
            f"scores {rule['rate']:.2f}, the rule {rule['rule']} {rule['rule_rate']:.2f}"
        )
    return said or ["no head has a role"]


def spared(lines: pd.DataFrame, level: float) -> list[str]:
    """Say of an arm how its pruning curves change, from its lines of `growth`."""
    said = []
    for line in lines.itertuples():
        steps = "–".join(dict.fromkeys(map(str, (line.from_step, line.to_step))))
        change = f"pruned by {line.order}: shape {line.early:+.2f} at step {steps}, "
        change += f"{line.late:+.2f} at the end"
        if line.n < 2:
            said.append(f"{change} (one seed: no interval)")
            continue
        verdict = "no clear change"
        if line.ci_low > 0:
            verdict = "more heads can be spared late than early"
        elif line.ci_high < 0:
            verdict = "fewer heads can be spared late than early"
        interval = f"[{line.ci_low:+.2f}, {line.ci_high:+.2f}] ({level:.0%})"
        said.append(f"{change}; difference {line.more:+.2f} {interval}: {verdict}")
    return said or ["no pruning curve: closing all heads costs nothing that is clear"]


def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is out of range.
    """
    inputs.check_least(cfg, {"n_seeds": 1, "threads": 1})
    if cfg.n_examples is None or cfg.n_examples < 4:
        raise InputError(f"n_examples={cfg.n_examples}: at least 4, of which half choose orders")
    inputs.check_level(cfg)
    if not 0 < cfg.threshold < 1:
        raise InputError(f"threshold={cfg.threshold:g}: between 0 and 1")
    unknown = [name for name in cfg.orders if name not in specialisation.ORDERS]
    if unknown or not cfg.orders:
        known = ", ".join(specialisation.ORDERS)
        raise InputError(f"orders={list(cfg.orders)}: some of {known}")
    for name, choices in cfg.lessons.items():
        for key in ("arms", "features"):
            if not choices[key]:
                raise InputError(f"lessons.{name}.{key}: name at least one")
        inputs.check_least(cfg, {f"lessons.{name}.passages": 2})
        for arm, changes in choices.arms.items():
            if set(changes or ()) != {"lesson", "model"}:
                key = f"lessons.{name}.arms.{arm}"
                raise InputError(f"{key}={changes}: needs lesson and model (~{key} leaves it out)")


@command("specialisation")
def main(cfg: DictConfig, folder: Path) -> None:
    """Train unless that was done before, and report."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg), inputs.shard(cfg.shard))
    if not run.is_done:
        measure(cfg, run)
    if run.is_done:
        report(run, cfg)
    else:
        print(f"{folder}: shard {cfg.shard} is done; not yet: {', '.join(run.unfinished)}")


if __name__ == "__main__":
    main()
