"""How many heads does a layer of fixed width want?

Trains one layer of attention, again and again, with different numbers of heads, on a lesson in
which each query must gather several things at once (interp.training.relations):

    fixed_width     d_head = d_model / h: as many parameters whatever h. One head has one
                    distribution for all that is asked; of many heads each has few dimensions to
                    compare queries and keys in (Bhojanapalli et al. 2020,
                    https://arxiv.org/abs/2002.07028)
    fixed_d_head    each head brings its own width along
    no_mixing       W_O is the identity: heads stay side by side
    one_relation    one thing is asked at once: what is left of the harm of few heads?
    one_query       all queries are alike: what is left of the harm of narrow heads?

    python -m experiments.head_count
    python -m experiments.head_count -m shard=0/2,1/2 hydra/launcher=joblib
    python -m experiments.head_count training.plan.steps=2400

Writes head_count (one line a model), summary (one line an arm and number of heads, with intervals
over seeds), history, a figure and run.json. The budget of steps is part of the result: narrow heads
learn slowly, and some of what they lack at the end they would learn later.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from omegaconf import DictConfig
from tqdm import tqdm

from experiments import inputs
from experiments.command import build, command, identity
from interp import plots, statistics
from interp.attention import cost
from interp.errors import InputError
from interp.runs import Run
from interp.training.lesson import Lesson
from interp.training.trainer import Plan, Progress, fit
from interp.transformer import Transformer

PUBLISHED = Path(__file__).parent.parent / "results" / "published" / "vaswani2017_table3a.csv"
MODEL = ["arm", "n_heads", "d_head", "seed"]
"""What tells a model from the others."""
ARM = ["arm", "n_heads", "d_head"]


class Job(NamedTuple):
    """A model to be trained."""

    arm: str
    n_heads: int
    seed: int


def jobs(cfg: DictConfig) -> list[Job]:
    """List the models; all arms get a seed before any gets the next."""
    return [
        Job(str(arm), int(n_heads), cfg.seed + seed)
        for seed in range(cfg.n_seeds)
        for arm, choices in cfg.arms.items()
        for n_heads in choices.n_heads
    ]


def pupil(cfg: DictConfig, job: Job) -> tuple[Lesson, Transformer]:
    """Make the lesson of a job, and the model that is to learn it.

    Raises:
        InputError: The sizes do not go together.
    """
    arm = cfg.arms[job.arm]
    model = {**arm.model, "n_heads": job.n_heads}
    lesson, module = inputs.pupil(cfg, job.seed, {"lesson": arm.lesson, "model": model})
    if not arm.mixing:
        for name, value in module.named_parameters():
            if name.endswith("W_O"):
                unmixed(value)
    return lesson, module


@torch.no_grad()
def unmixed(W_O: torch.nn.Parameter) -> None:
    """Let each head write into dimensions of its own, for good: W_O becomes the identity.

    Raises:
        InputError: Heads side by side are not as wide as the residual stream.
    """
    n_heads, d_head, d_model = W_O.shape
    if n_heads * d_head != d_model:
        raise InputError(
            f"mixing=false: {n_heads} heads of width {d_head} do not fill d_model={d_model}"
        )
    W_O.copy_(torch.eye(d_model).view(W_O.shape))
    W_O.requires_grad_(False)


def measure(cfg: DictConfig, run: Run) -> None:
    """Train this process' share of the models; the last of several makes the tables."""
    torch.set_num_threads(cfg.threads)
    plan: Plan = build(cfg.training.plan)
    every = jobs(cfg)
    for job in every[: len(every) // cfg.n_seeds]:
        pupil(cfg, job)  # what is wrong is said before the first is trained
    run.start(
        {
            "model_name": "one layer of attention",
            "plan": {"n_models": len(every), "threads": torch.get_num_threads()},
        },
        {},
    )
    numbers = range(len(every))[run.index :: run.n_shards]
    with run.working(), tqdm(total=len(numbers) * plan.steps, unit="step") as bar:
        parts = []
        for done, number in enumerate(numbers):
            part = run.part(0, number)
            if not part.exists():
                job = every[number]
                bar.set_description(f"{job.arm}, {_heads(job.n_heads)}, seed {job.seed}")
                state = run.folder / "parts" / f"{run.shard}-{number}.safetensors"
                lesson, model = pupil(cfg, job)
                watch = partial(_show, bar, done * plan.steps)
                history = fit(model, lesson, plan, seed=job.seed, state=state, watch=watch)
                run.write_part(part, described(model, history, plan).assign(**job._asdict()))
                state.unlink(missing_ok=True)
            bar.update((done + 1) * plan.steps - bar.n)  # it may have stopped early
            parts.append(part)
        run.end_shard(parts)
    with run.finishing() as is_left:
        if is_left:
            _finish(cfg, run)


def _show(bar: tqdm, before: int, now: Progress) -> None:
    bar.update(before + now.step - bar.n)


def described(model: Transformer, history: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """Add to a model's history what it costs, for one batch and its layer of attention."""
    config = model.config
    shape = cost(
        config.n_ctx,
        config.d_model,
        config.n_heads,
        d_head=config.d_head,
        n_kv_heads=config.n_kv_heads,
        bias=config.bias,
    )
    tokens = plan.batch_size * config.n_ctx
    return history.assign(
        d_head=config.d_head or config.d_model // config.n_heads,
        n_parameters=sum(value.numel() for value in model.parameters()),
        attention_parameters=shape.parameters,
        score_entries=plan.batch_size * shape.score_entries,
        multiply_adds=plan.batch_size * shape.multiply_adds,
        seconds_per_step=tokens / history["tokens_per_second"].median(),
    )


def _finish(cfg: DictConfig, run: Run) -> None:
    """Write the tables."""
    rows = run.rows()
    scores = ["step", "split", "loss", "accuracy", "exact_match", "tokens_per_second"]
    run.write("history", rows[[*MODEL, *scores]])
    tests = rows[rows["split"] == "test"]
    last = tests.loc[tests.groupby(MODEL, sort=False)["step"].idxmax()]
    costs = [*rows.columns[rows.columns.get_loc("n_parameters") : rows.columns.get_loc("arm")]]
    table = last[[*MODEL, "step", "loss", "accuracy", "exact_match", *costs]]
    run.write("head_count", table)
    run.write("summary", summary(table, cfg.level))
    run.finish()


def summary(table: pd.DataFrame, level: float) -> pd.DataFrame:
    """Average over seeds.

    Returns:
        One line an arm and number of heads: `n` seeds, mean `accuracy` with its interval `ci_low,
        ci_high` (Student's t), mean `loss`, and what the layer costs.
    """
    lines = []
    for place, part in table.groupby(ARM, sort=False):
        values = part["accuracy"].to_numpy()[None]
        found = statistics.cluster_t(values, part["seed"].to_numpy(), level=level)
        lines.append(
            dict(zip(ARM, place, strict=True))
            | {
                "n": len(part),
                "accuracy": values.mean(),
                "ci_low": float(found.low[0]),
                "ci_high": float(found.high[0]),
                "loss": part["loss"].mean(),
                **part.iloc[0][["n_parameters", "score_entries", "multiply_adds"]].to_dict(),
                "seconds_per_step": part["seconds_per_step"].median(),
            }
        )
    return pd.DataFrame(lines)


def finding(lines: pd.DataFrame) -> str:
    """Say of one arm which number of heads is best, and whether the ends are clearly worse."""
    best = lines.loc[lines["accuracy"].idxmax()]
    said = [f"best with {_heads(best['n_heads'])} ({best['accuracy']:.2f})"]
    for end in (lines.iloc[0], lines.iloc[-1]):
        if end["n_heads"] != best["n_heads"]:
            is_worse = end["ci_high"] < best["ci_low"]
            how = "clearly worse" if is_worse else "not clearly worse"
            said.append(f"{_heads(end['n_heads'])}: {end['accuracy']:.2f}, {how}")
    return "; ".join(said)


def _heads(n: int) -> str:
    return "1 head" if n == 1 else f"{n} heads"


def report(run: Run) -> None:
    """Print accuracy by number of heads, what it costs, and what was found."""
    record, table = run.record, run.read("summary")
    published = pd.read_csv(PUBLISHED)
    plan = record["config"]["training"]["plan"]
    n = table["n"].max()
    title = f"{record['config']['training']['model']['d_model']} wide, {plan['steps']} steps"
    models = run.read("head_count")
    figures = run.draw({"head_count": partial(plots.head_count, models, published, title=title)})
    print(f"accuracy after {plan['steps']} steps, mean of {n} seeds ({title}):")
    wide = table.pivot(index="arm", columns="n_heads", values="accuracy")
    wide = wide.reindex(table["arm"].drop_duplicates())
    print(wide.to_string(float_format="{:.2f}".format, na_rep=""))
    for arm, lines in table.groupby("arm", sort=False):
        print(f"{arm}: {finding(lines.sort_values('n_heads'))}")
    print(costs(table[table["arm"] == table["arm"].iloc[0]].sort_values("n_heads")))
    print(
        "published (Vaswani et al. 2017, table 3 A; BLEU): "
        + ", ".join(f"{_heads(row.n_heads)} {row.bleu}" for row in published.itertuples())
    )
    print(f"{run.folder}: summary, head_count, history.parquet, {', '.join(figures)}, run.json")


def costs(lines: pd.DataFrame) -> str:
    """Say how costs grow from the fewest to the most heads."""
    few, many = lines.iloc[0], lines.iloc[-1]
    names: Mapping[str, str] = {
        "n_parameters": "parameters",
        "multiply_adds": "multiply-adds",
        "score_entries": "entries of the score matrices",
        "seconds_per_step": "measured time",
    }
    grown = ", ".join(f"{said} × {many[key] / few[key]:.2g}" for key, said in names.items())
    return f"from {_heads(few['n_heads'])} to {_heads(many['n_heads'])}: {grown}"


def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is out of range.
    """
    inputs.check_least(cfg, {"n_seeds": 1, "threads": 1})
    inputs.check_level(cfg)
    if not cfg.arms:
        raise InputError("arms={}: name at least one")
    for arm, choices in cfg.arms.items():
        if set(choices or ()) != {"n_heads", "mixing", "lesson", "model"} or not choices.n_heads:
            raise InputError(
                f"arms.{arm}={choices}: needs n_heads (a list), mixing, lesson and model "
                f"(~arms.{arm} leaves it out)"
            )


@command("head_count")
def main(cfg: DictConfig, folder: Path) -> None:
    """Train unless that was done before, and report."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg), inputs.shard(cfg.shard))
    if not run.is_done:
        measure(cfg, run)
    if run.is_done:
        report(run)
    else:
        print(f"{folder}: shard {cfg.shard} is done; not yet: {', '.join(run.unfinished)}")


if __name__ == "__main__":
    main()
