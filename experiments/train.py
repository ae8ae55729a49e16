"""What does a small model learn, and how fast?

Trains a model of interp.transformer on a lesson of interp.training: examples are made on the fly, a
text of yours is cut into runs of tokens.

    python -m experiments.train
    python -m experiments.train training=translation
    python -m experiments.train training=text training.lesson.path=FOLDER
    python -m experiments.train training=induction training.model.n_layers=1
    python -m experiments.train -m training=induction seed=0,1,2
    python -m experiments.train checkpoints=[0,200,400]

Writes history (one line an evaluation and split), a figure, run.json and checkpoints that are used
as any other model, on a task of one's own or on fresh examples of the lesson:

    python -m experiments.ablation model=custom model.path=FOLDER task=trained

An interrupted run goes on where it stopped, and ends with the same weights.
"""

import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig
from tqdm import tqdm

from experiments import inputs
from experiments.command import build, command, identity, path_argument
from interp import plots
from interp.errors import InputError
from interp.runs import Run
from interp.training import lesson as lessons
from interp.training.lesson import Lesson
from interp.training.trainer import Plan, Progress, fit
from interp.transformer import Transformer

STATE = "state.safetensors"
"""What training goes on from; it lies with the parts until the run is done."""


def measure(cfg: DictConfig, run: Run) -> None:
    """Train, keeping checkpoints on the way, and write what came of it."""
    torch.set_num_threads(cfg.threads)
    plan: Plan = build(cfg.training.plan)
    lesson, model = inputs.pupil(cfg, cfg.seed)
    lesson.examples(1, seed=cfg.seed, split="test")  # a text that is too short says so now
    run.start(
        {
            "model_name": lesson.name,
            "task": lesson.name,
            "n_parameters": sum(value.numel() for value in model.parameters()),
            "n_words": len(lesson.tokenizer),
            "plan": {"threads": torch.get_num_threads()},
        },
        {},
    )
    state = run.folder / "parts" / STATE
    wanted = {int(step): f"{lesson.name}-{step:05d}" for step in cfg.checkpoints}
    with run.working(), tqdm(total=plan.steps, unit="step", desc=lesson.name) as bar:

        def watch(now: Progress) -> None:
            if now.step in wanted:
                keep(run, f"checkpoints/{wanted[now.step]}", model, lesson, now.step)
            if now.step:
                bar.set_postfix(loss=f"{now.loss:.3f}", rate=f"{now.rate:.1e}", refresh=False)
            bar.update(now.step - bar.n)

        history = fit(model, lesson, plan, seed=cfg.seed, state=state, watch=watch)
        keep(run, lesson.name, model, lesson, int(history["step"].max()))
        part = run.once(0, 0, lambda: history.assign(task=lesson.name, seed=cfg.seed))
        run.end_shard([part])
    with run.finishing() as is_left:
        if is_left:
            rows = run.rows()
            run.write("history", rows[["task", "seed", *history.columns]])
            run.finish()
            state.unlink(missing_ok=True)


def keep(run: Run, name: str, model: Transformer, lesson: Lesson, step: int) -> None:
    """Write a checkpoint into the run's folder, whole or not at all, unless it is there.

    Its lesson.json says which command made it.
    """
    place, scratch = run.folder / name, run.folder / "parts" / "checkpoint"
    if place.exists():
        return
    shutil.rmtree(scratch, ignore_errors=True)
    chosen = " ".join(HydraConfig.get().overrides.task)
    facts = {"command": f"python -m experiments.train {chosen}".strip(), "step": step}
    lessons.write(scratch, model, lesson, **facts)
    place.parent.mkdir(exist_ok=True)
    scratch.rename(place)


def report(run: Run) -> None:
    """Print how training went, and where the checkpoints lie."""
    record, table = run.record, run.read("history")
    tests = table[table["split"] == "test"]
    first, last = tests.iloc[0], tests.iloc[-1]
    speed = table["tokens_per_second"].median()
    title = f"{record['task']}, {record['n_parameters']:,} parameters, seed {last['seed']}"
    figures = run.draw({"history": partial(plots.history, table, title=title)})
    print(
        f"{title}: {last['step']} steps in {record['seconds']:.0f} s ({speed:,.0f} tokens a second)"
    )
    shown = pd.DataFrame([first, *steepest(tests), last]).drop_duplicates("step")
    columns = ["step", "loss", "accuracy", "exact_match"]
    print(shown[columns].to_string(index=False, float_format="{:.3f}".format))
    best = tests.loc[tests["loss"].idxmin()]
    if best["step"] != last["step"]:
        print(f"the test loss was lowest, {best['loss']:.3f}, after {best['step']} steps")
    kept = sorted(path.name for path in run.folder.glob("checkpoints/*"))
    print(
        f"{run.folder}: history.parquet, {', '.join(figures)}, run.json, {record['task']} "
        f"(use it: model=custom {path_argument(run.folder / record['task'])})"
    )
    if kept:
        print(f"{run.folder / 'checkpoints'}: {', '.join(kept)}")


def steepest(tests: pd.DataFrame) -> list[pd.Series]:
    """Find the two evaluations between which the loss fell most."""
    if len(tests) < 2:
        return []
    place = int(tests["loss"].diff().to_numpy()[1:].argmin())
    return [tests.iloc[place], tests.iloc[place + 1]]


def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is out of range.
    """
    inputs.check_least(cfg, {"threads": 1})
    steps = cfg.training.plan.steps
    if not isinstance(cfg.checkpoints, ListConfig) or not all(
        isinstance(step, int) and 0 <= step <= steps for step in cfg.checkpoints
    ):
        raise InputError(f"checkpoints={cfg.checkpoints}: steps from 0 to {steps}, such as [0,100]")


@command("train")
def main(cfg: DictConfig, folder: Path) -> None:
    """Train unless that was done before, and report."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg))
    if not run.is_done:
        measure(cfg, run)
    report(run)


if __name__ == "__main__":
    main()
