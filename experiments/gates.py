"""Which heads can be closed, if the model may choose?

Learns a Hard Concrete gate for each head of a trained model, at a price λ for each that is open
(Voita et al. 2019; interp.training.gates has the formulae), along with the weights or with the
weights frozen, and scores what is left:

    all        every head open, before learning
    gated      gates as they were learned, real numbers without draws
    rounded    gates open (log α > 0) or closed: the kept heads
    random     as many heads drawn at random, with the same weights

    python -m experiments.gates
    python -m experiments.gates prices=[0.01,0.05,0.2] weights=[trained,frozen] n_seeds=3
    python -m experiments.gates model=custom model.path=FOLDER
    python -m experiments.gates model=smollm2 task=agreement
    python -m experiments.gates model=minilm task=similarity roles=results/roles/minilm/builtin

At task=trained gates learn from new examples of the lesson at each step and are reported on fresh
ones. Other tasks have an end: gates learn on one half of the clusters, and are reported on the
other; what they lose is −log σ(difference) where the metric is a difference, or else the metric.

Writes tables, a figure and run.json. An interrupted run goes on where it stopped.

    gates      one line a price, `weights`, seed and head: `log_alpha`, `p_open` = P(ξ > 0), `gate`
               (the real number), `open`
    quality    one line a price, `weights`, seed, metric and kind of `heads` (above): `n_open,
               n_heads`, the share of gates `settled` (below 0.05 or above 0.95), `value` with its
               interval `ci_low, ci_high` over examples; of random sets, whose value is the mean
               over sets, also `worst` and `best`. The accuracy is the share of examples where a
               difference is above 0; on a lesson that is exact match
    scratch    of one price of a lesson, one line a seed, metric and way to so many heads, `how`:
               `pruned` (the kept heads), `scratch` (the same heads of a new model, trained as long
               as the first one was), `random` (as many random heads of the trained model) and
               `whole` (all of its heads), both trained on as long as the gates; `ahead, ahead_low,
               ahead_high` say how much better the pruned model is

Random sets work with weights that suit the kept heads, where weights were trained along; `random`
in the table scratch had its own chance, and with weights=frozen no set has had one.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from hydra import compose
from omegaconf import DictConfig, ListConfig
from tqdm import tqdm

from experiments import inputs
from experiments.command import build, command, identity, plain
from interp import plots, results, statistics
from interp.errors import InputError
from interp.heads import HEAD, Head, all_heads, from_table
from interp.models.custom import from_transformer
from interp.models.head_model import HeadModel
from interp.redundancy.pruning import halves
from interp.runs import Run, read_parts
from interp.tasks.task import Task
from interp.training import gates, lessons
from interp.training import lesson as lesson_
from interp.training.gates import Course, Errors, Gates, Now, Opening
from interp.training.lesson import Lesson
from interp.training.trainer import Plan, Settings
from interp.transformer import Transformer

BEFORE, LEARNED, SCORES, SCRATCH = range(4)
"""The stages of a run."""
WEIGHTS = ("trained", "frozen")
JOB = ["price", "weights", "seed"]
PRUNED = "pruned"
RIVALS = ("scratch", "random", "whole")
"""Other ways to a model, which the pruned one is compared with."""
AUTO = "auto"
ENOUGH = 0.95
"""The share of gates that has to be settled for gates to count as open or closed."""
LOST = 0.005
"""The share of the whole model's quality that rounding may cost."""


class Job(NamedTuple):
    """A set of gates to be learned."""

    price: float
    weights: str
    seed: int


@dataclass(frozen=True)
class Choices:
    """What is learned, with nothing left open."""

    prices: list[float]
    weights: list[str]
    settings: Settings
    batch_size: int
    threads: int | None
    scratch: float | None
    """The price whose kept heads are compared with other ways to so many heads."""
    seeds: range

    @property
    def jobs(self) -> list[Job]:
        """List the gates to be learned; all prices get a seed before any gets the next."""
        return [
            Job(price, weights, seed)
            for seed in self.seeds
            for weights in self.weights
            for price in self.prices
        ]

    @property
    def rivalled(self) -> list[int]:
        """Number the jobs whose heads are compared with other ways to so many heads."""
        wanted = self.scratch, self.weights[0]
        return [n for n, job in enumerate(self.jobs) if (job.price, job.weights) == wanted]


@dataclass(frozen=True)
class Material:
    """What is learned from, and what is reported on."""

    errors: Callable[[HeadModel, int], Errors]
    """The loss of a model, by the seed of the examples."""
    reported: Sequence[Task]
    """The same examples under one or more metrics."""
    tokens_per_batch: int
    lesson: Lesson | None = None

    @property
    def clusters(self) -> np.ndarray:
        """Each reported example's cluster."""
        return self.reported[0].table["cluster"].to_numpy()

    def lines(self, model: HeadModel, opening: Opening) -> pd.DataFrame:
        """Score a model under some gates: one line a metric and example."""
        found: dict[str, np.ndarray] = {}
        for task in self.reported:
            found[task.metric] = gates.scores(model, task, opening, self.tokens_per_batch)
            if task.metric.endswith("diff"):
                found["accuracy"] = (found[task.metric] > 0).astype(float)
        example = range(len(self.reported[0]))
        return pd.concat(
            pd.DataFrame({"metric": metric, "example": example, "value": values})
            for metric, values in found.items()
        )


def material(cfg: DictConfig, model: HeadModel, task: Task, batch_size: int) -> Material:
    """Say what gates learn from, and lay out what they are reported on."""
    tokens = inputs.tokens_per_batch(cfg)
    if on_lesson(cfg):
        lesson = lessons.read(Path(str(model.record["name"])))
        reported = [
            lesson_.task(lesson, n=cfg.task.n, seed=cfg.task.seed, metric=metric)
            for metric in lesson_.METRICS
        ]
        return Material(
            lambda model, seed: gates.errors_at_lesson(model, lesson, batch_size, seed),
            [task.first(cfg.n_examples) for task in reported],
            tokens,
            lesson,
        )
    numbers = halves(task.table["cluster"].to_numpy(), cfg.seed)
    select, report = (task.select(numbers[half].tolist()) for half in ("select", "report"))

    def examples(seed: int, step: int) -> Task:
        rng = np.random.default_rng([seed, step])
        return select.select(rng.permutation(len(select))[:batch_size].tolist())

    return Material(
        lambda model, seed: gates.errors_at_task(model, partial(examples, seed)), [report], tokens
    )


def on_lesson(cfg: DictConfig) -> bool:
    """Tell whether examples can be made without end."""
    return cfg.task._target_ == "interp.training.lessons.task"


# ------------------------------------------------------------------ learning
@dataclass
class Learner:
    """Learns, and scores what was learned, unless that is on disk."""

    cfg: DictConfig
    run: Run
    choices: Choices
    model: HeadModel
    material: Material
    bar: tqdm

    def gated(self, number: int) -> Path:
        """Learn the gates of a job; returns where the scores of what is left are."""
        job, path = self.choices.jobs[number], self.run.part(SCORES, number)
        if path.exists():
            self.bar.update(self.choices.settings.steps)
            return path
        with_weights = job.weights == "trained"
        course = self.course(f"gates-{number}", f"{job.weights}, price {job.price:g}")
        learned = Gates(self.model, self.cfg.start)
        with gates.borrowed(self.model) if with_weights else nullcontext():
            gates.learn(
                self.model,
                learned,
                self.material.errors(self.model, job.seed),
                course,
                price=job.price,
                rate=self.cfg.gate_rate,
                weights_rate=self.cfg.weights_rate if with_weights else None,
                seed=job.seed,
            )
            rows = self.left(learned, job.seed)
        self.run.write_part(self.run.part(LEARNED, number), learned.table().assign(**job._asdict()))
        self.run.write_part(path, rows.assign(**job._asdict()))
        forget(course)
        return path

    def left(self, learned: Gates, seed: int) -> pd.DataFrame:
        """Score what is left of a model: `heads, draw, metric, example, value`."""
        heads = gates.kept(learned.table())
        n_draws = self.cfg.n_random if 0 < len(heads) < len(all_heads(self.model.sites)) else 0
        with torch.no_grad():
            openings = [
                ("gated", 0, learned.each(gates.typical)),
                ("rounded", 0, learned.each(gates.rounded)),
                *(
                    ("random", draw, gates.only(self.model, drawn))
                    for draw, drawn in enumerate(
                        gates.random_sets(self.model, len(heads), n_draws, seed)
                    )
                ),
            ]
        return pd.concat(
            [
                self.material.lines(self.model, opening).assign(heads=name, draw=draw)
                for name, draw, opening in openings
            ]
        )

    def rivals(self, number: int) -> Iterator[Path]:
        """Train what the kept heads of a job are compared with; gives where the scores are."""
        job = self.choices.jobs[number]
        heads = gates.kept(pd.read_parquet(self.run.part(LEARNED, number)))
        every = all_heads(self.model.sites)
        [drawn] = gates.random_sets(self.model, len(heads), 1, job.seed)
        plan = first_plan(self.cfg, self.material.lesson)
        on = partial(
            self.retrained, number, settings=self.choices.settings, rate=self.cfg.weights_rate
        )
        yield on("random", self.model, drawn)
        yield on("whole", self.model, every)
        new = untrained(self.model, job.seed)
        yield self.retrained(number, "scratch", new, heads, settings=plan, rate=plan.rate)

    def retrained(
        self,
        number: int,
        how: str,
        model: HeadModel,
        heads: Collection[Head],
        *,
        settings: Settings,
        rate: float,
    ) -> Path:
        """Train the weights with some heads alone; returns where the scores are."""
        job = self.choices.jobs[number]
        path = self.run.part(SCRATCH, len(RIVALS) * number + RIVALS.index(how))
        if path.exists():
            self.bar.update(settings.steps)
            return path
        course = self.course(f"{how}-{number}", f"{how}, price {job.price:g}", settings)
        with gates.borrowed(model):
            gates.retrain(model, heads, self.material.errors(model, job.seed), course, rate=rate)
            rows = self.material.lines(model, gates.only(model, heads))
        self.run.write_part(path, rows.assign(how=how, steps=settings.steps, **job._asdict()))
        forget(course)
        return path

    def course(self, name: str, said: str, settings: Settings | None = None) -> Course:
        """Make a course that shows where it is, and keeps its state beside the parts."""
        before = self.bar.n

        def watch(now: Now) -> None:
            self.bar.set_postfix(loss=f"{now.loss:.3f}", open=now.n_open, refresh=False)
            self.bar.update(before + now.step - self.bar.n)

        self.bar.set_description(said)
        state = self.run.folder / "parts" / f"{name}.safetensors"
        return Course(settings or self.choices.settings, watch, state, self.cfg.save_every)


def forget(course: Course) -> None:
    """Remove the state of a course whose results are on disk."""
    if course.state is not None:
        course.state.unlink(missing_ok=True)


def first_plan(cfg: DictConfig, lesson: Lesson | None) -> Plan:
    """Say how a model is trained on a lesson from the start."""
    assert lesson is not None  # (checked before: `choices`)
    plan: Plan = build(compose("train", [f"training={lesson.name}"]).training.plan)
    return plan if cfg.scratch_steps == AUTO else replace(plan, steps=cfg.scratch_steps)


def untrained(model: HeadModel, seed: int) -> HeadModel:
    """Draw another model of the same shape."""
    config: Any = model.module.config
    module = Transformer(replace(config, seed=config.seed + 1 + seed))
    module.to(model.device, next(model.module.parameters()).dtype)
    return from_transformer(module, model.codec.tokenizer, name=model.name)


def measure(cfg: DictConfig, run: Run) -> None:
    """Learn gates at all prices, score what is left, and write the tables."""
    found = choices(cfg)
    if found.threads is not None:
        torch.set_num_threads(found.threads)
    subject = inputs.subject(cfg)
    model = subject.model
    stuff = material(cfg, model, subject.task, found.batch_size)
    rivalled = found.rivalled
    first_steps = first_plan(cfg, stuff.lesson).steps if rivalled else 0
    run.start(
        {
            **subject.facts,
            "n_heads": len(all_heads(model.sites)),
            "sites": [site.name for site in model.sites],
            "n_examples": len(stuff.clusters),
            "n_clusters": len(set(stuff.clusters)),
            "plan": {
                "prices": found.prices,
                "weights": found.weights,
                "steps": found.settings.steps,
                "batch_size": found.batch_size,
                "scratch": found.scratch,
                "scratch_steps": first_steps,
                "threads": torch.get_num_threads(),
            },
        },
        {"examples": stuff.reported[0].table},
    )
    steps = len(found.jobs) * found.settings.steps + len(rivalled) * (
        2 * found.settings.steps + first_steps
    )
    with run.working(), tqdm(total=steps, unit="step") as bar:
        learner = Learner(cfg, run, found, model, stuff, bar)
        whole = gates.only(model, all_heads(model.sites))
        before = run.once(BEFORE, 0, lambda: stuff.lines(model, whole))
        scored = [learner.gated(number) for number in range(len(found.jobs))]
        rivals = [path for number in rivalled for path in learner.rivals(number)]
        run.end_shard([])
    with run.finishing() as is_left:
        if is_left:
            write(cfg, run, found, stuff.clusters, before, scored, rivals)


# ------------------------------------------------------------------ what it comes to
def write(
    cfg: DictConfig,
    run: Run,
    found: Choices,
    clusters: np.ndarray,
    before: Path,
    scored: Sequence[Path],
    rivals: Sequence[Path],
) -> None:
    """Turn what was learned into tables."""
    tables = read_parts([run.part(LEARNED, number) for number in range(len(found.jobs))])
    columns = ["log_alpha", "p_open", "gate", "open"]
    known = {"model": run.record["model_name"], "task": run.record["task"]}
    run.write("gates", tables[[*JOB, *HEAD, *columns]], **known)
    whole, rows = pd.read_parquet(before), read_parts(list(scored))
    each = [whole.assign(heads="all", draw=0, **job._asdict()) for job in found.jobs]
    rows = pd.concat([*each, rows], ignore_index=True)
    drawn = inputs.drawn(cfg)
    run.write("quality", quality(tables, rows, clusters, **drawn), **known)
    if rivals:
        jobs = pd.DataFrame([found.jobs[number] for number in found.rivalled])
        pruned = rows[rows["heads"] == "rounded"].merge(jobs, on=JOB)
        pruned = pruned.assign(how=PRUNED, steps=found.settings.steps)
        both = pd.concat([pruned, read_parts(list(rivals))], ignore_index=True)
        run.write("scratch", ahead(tables, both, clusters, **drawn), **known)
    run.finish()


def averaged(
    rows: pd.DataFrame, keys: Sequence[str], clusters: np.ndarray, **drawn: Any
) -> pd.DataFrame:
    """Average over examples, and before that over draws: one line a value of the keys.

    Returns:
        The keys, `value`, and `ci_low, ci_high`, its interval over clusters of examples.
    """
    order = rows[list(keys)].drop_duplicates()
    wide = rows.groupby([*keys, "example"])["value"].mean().unstack()
    found = statistics.cluster_bootstrap(wide.to_numpy(), clusters, **drawn)
    ends = {"value": found.mean, "ci_low": found.low, "ci_high": found.high}
    return order.merge(wide.index.to_frame(index=False).assign(**ends), on=list(keys))


def quality(
    tables: pd.DataFrame, rows: pd.DataFrame, clusters: np.ndarray, **drawn: Any
) -> pd.DataFrame:
    """Say how good each kind of heads is.

    Args:
        tables: The gates of all jobs.
        rows: `heads, draw, metric, example, value` of all jobs.
        clusters: Each example's cluster.
        **drawn: How intervals are drawn: `n_draws, level, seed`.
    """
    keys = [*JOB, "metric", "heads"]
    found = averaged(rows, keys, clusters, **drawn)
    sets = rows[rows["heads"] == "random"].groupby([*keys, "draw"])["value"].mean()
    ends = sets.groupby(keys).agg(["min", "max"]).reset_index()
    ends["worst"], ends["best"] = (
        ends[end].where(ends["metric"].map(is_better_high), ends[other])
        for end, other in (("min", "max"), ("max", "min"))
    )
    found = found.merge(ends[[*keys, "worst", "best"]], how="left", on=keys)
    counts = pd.DataFrame(
        [
            (*job, lines["open"].sum(), len(lines), gates.settled(lines))
            for job, lines in tables.groupby(JOB)
        ],
        columns=[*JOB, "n_open", "n_heads", "settled"],
    )
    columns = [*keys, "n_open", "n_heads", "settled", "value", "ci_low", "ci_high", "worst", "best"]
    return found.merge(counts, on=JOB)[columns].sort_values([*JOB, "metric"], kind="stable")


def is_better_high(metric: str) -> bool:
    """Say whether more of a metric is better."""
    return metric != "loss"


def ahead(
    tables: pd.DataFrame, rows: pd.DataFrame, clusters: np.ndarray, **drawn: Any
) -> pd.DataFrame:
    """Compare pruned models with others, example by example.

    Args:
        tables: The gates of all jobs.
        rows: `how, steps, metric, example, value` of the jobs that are compared.
        clusters: Each example's cluster.
        **drawn: How intervals are drawn: `n_draws, level, seed`.
    """
    keys = [*JOB, "metric", "how", "steps"]
    found = averaged(rows, keys, clusters, **drawn)
    mine = rows[rows["how"] == PRUNED]
    both = rows.merge(mine, on=[*JOB, "metric", "example"], suffixes=("", "_pruned"))
    sign = np.where(both["metric"].map(is_better_high), 1, -1)
    both["value"] = sign * (both["value_pruned"] - both["value"])
    names = {"value": "ahead", "ci_low": "ahead_low", "ci_high": "ahead_high"}
    found = found.merge(averaged(both, keys, clusters, **drawn).rename(columns=names), on=keys)
    counts = tables.groupby(JOB)["open"].agg(["sum", "size"]).reset_index()
    found = found.merge(counts, on=JOB)
    found["n_open"] = found["sum"].where(found["how"] != "whole", found["size"])
    columns = ["n_open", "value", "ci_low", "ci_high", *names.values()]
    return found[[*keys, *columns]]


# ------------------------------------------------------------------ what it says
def report(run: Run, cfg: DictConfig) -> None:
    """Print how many heads are left at each price, how good they are, and where they are."""
    record, table, scored = run.record, run.read("gates"), run.read("quality")
    metric = "accuracy" if on_lesson(cfg) else record["metric"]
    lines = scored[scored["metric"] == metric]
    title = " at ".join(dict.fromkeys([record["model_name"], record["task"]]))
    print(
        f"{title}, {record['plan']['steps']} steps at each price; {metric} on "
        f"{record['n_examples']} examples{' (exact match)' if on_lesson(cfg) else ''}:"
    )
    print(by_price(lines).to_string(index=False))
    for said in findings(lines, metric):
        print(said)
    print(f"\nheads open by site, of {by_size(table)}:")
    print(by_site(table).to_string())
    print(survivors(table))
    names = ["gates", "quality", "examples"]
    if record["plan"]["scratch"] is not None:
        names.insert(2, "scratch")
        rivals = run.read("scratch")
        print(f"\n{rivalry(rivals, metric)}\n{rivalry(rivals, 'loss')}")
    if cfg.roles is not None:
        print(f"\n{surviving_roles(table, results.load(cfg.roles, 'roles'), cfg.roles)}")
    figures = run.draw({"gates": partial(plots.gates, table, lines, title=title, label=metric)})
    print(f"{run.folder}: {', '.join(names)}.parquet, {', '.join(figures)}, run.json")


def by_price(lines: pd.DataFrame) -> pd.DataFrame:
    """Describe the quality of each job's heads by one metric."""
    shown = []
    for job, part in lines.groupby(JOB, sort=False):
        of = part.set_index("heads")
        one = part.iloc[0]
        line = dict(zip(JOB, job, strict=True)) | {
            "open": f"{one['n_open']} of {one['n_heads']}",
            "settled": f"{one['settled']:.0%}",
            "all": f"{of['value']['all']:.3f}",
            "gated": f"{of['value']['gated']:.3f}",
            "rounded": with_ends(of.loc["rounded"]),
        }
        if "random" in of.index:
            line["random sets"] = with_ends(of.loc["random"])
            line["best of them"] = f"{of['best']['random']:.3f}"
        shown.append(line)
    return pd.DataFrame(shown).fillna("")


def with_ends(line: pd.Series) -> str:
    """Write a value with its interval."""
    return f"{line['value']:.3f} [{line['ci_low']:.3f}, {line['ci_high']:.3f}]"


def findings(lines: pd.DataFrame, metric: str) -> list[str]:
    """Say whether gates are open or closed, what rounding costs, and whether the choice matters.

    Args:
        lines: The quality by one metric.
        metric: Its name.
    """
    wide = lines.pivot(index=JOB, columns="heads", values=["value", "ci_low", "ci_high", "best"])
    share = lines.groupby(JOB)["settled"].first()
    least = share.idxmin()
    sign = 1 if is_better_high(metric) else -1
    lost = sign * (wide["value"]["gated"] - wide["value"]["rounded"])
    lost = (lost / wide["value"]["all"].abs()).where(lost != 0, 0.0)  # (all may be at 0)
    most = lost.idxmax()
    said = [
        f"settled: {share.min():.0%} of the gates or more are below {gates.SETTLED:g} or above "
        f"{1 - gates.SETTLED:g} ({'at least' if share.min() >= ENOUGH else 'less than'} "
        f"{ENOUGH:.0%}; fewest with {called(least)})",
        f"rounding them costs at most {max(lost.max(), 0):.1%} of the whole model's {metric} "
        f"({'no more' if lost.max() <= LOST else 'more'} than {LOST:.1%}; with {called(most)})",
    ]
    if "random" not in wide["value"]:
        return [*said, "no random sets: all heads are open, or none"]
    wide = wide[wide["value"]["random"].notna()]
    kept, sets = ("ci_low", "ci_high") if sign > 0 else ("ci_high", "ci_low")
    apart = sign * (wide[kept]["rounded"] - wide[sets]["random"]) > 0
    best = sign * (wide["value"]["rounded"] - wide["best"]["random"]) > 0
    said.append(
        f"the kept heads beat random sets of as many, whole intervals apart, in {apart.sum()} of "
        f"{len(wide)} cases; they beat the best set in {best.sum()}"
    )
    return said


def called(job: Any) -> str:
    """Name a job."""
    price, weights, seed = job
    return f"price {price:g}, weights {weights}, seed {seed}"


def by_size(table: pd.DataFrame) -> str:
    """Say how many heads each site has."""
    sizes = table[HEAD].drop_duplicates().groupby("site", sort=False).size()
    return ", ".join(f"{n} in {site}" for site, n in sizes.items())


def by_site(table: pd.DataFrame) -> pd.DataFrame:
    """Count the open heads of each job and site."""
    return table.pivot_table(
        index=JOB, columns="site", values="open", aggfunc="sum", sort=False
    ).astype(int)


def survivors(table: pd.DataFrame) -> str:
    """Say which sites keep how much of their heads, over all jobs."""
    share = table.groupby("site")["open"].mean().sort_values()
    said = ", ".join(f"{site} {value:.0%}" for site, value in share.items())
    return f"open over all of these, fewest first: {said}"


def rivalry(table: pd.DataFrame, metric: str) -> str:
    """Say how the kept heads do against other ways to so many heads."""
    names = {  # (steps come behind)
        "scratch": "the same heads from scratch",
        "random": "as many random heads, trained on",
        "whole": "the whole model, trained on",
    }
    said = []
    for job, part in table[table["metric"] == metric].groupby(JOB, sort=False):
        of = part.set_index("how")
        said.append(
            f"{metric} of the {of['n_open'][PRUNED]} heads kept with {called(job)}: "
            f"{with_ends(of.loc[PRUNED])}"
        )
        for how, name in names.items():
            line = of.loc[how]
            said.append(
                f"  {name} {line['steps']} steps: {with_ends(line)}; pruned is ahead by "
                f"{line['ahead']:+.3f} [{line['ahead_low']:+.3f}, {line['ahead_high']:+.3f}]"
            )
    return "\n".join(said)


def surviving_roles(table: pd.DataFrame, roles: pd.DataFrame, path: str) -> str:
    """Say of each role how many of its heads are open, against the share of all.

    Raises:
        InputError: The roles are those of another model.
    """
    heads = roles[[*HEAD, "role", "feature"]].drop_duplicates()
    strangers = set(from_table(heads)) - set(from_table(table))
    if strangers:
        raise InputError(f"roles={path}: the model has no head {min(strangers)}")
    both = table.merge(heads, on=HEAD)
    n_jobs = len(table[JOB].drop_duplicates())
    said = [f"roles: of all heads {table['open'].mean():.0%} are open"]
    for (role, feature), part in both.groupby(["role", "feature"], sort=False):
        n = len(part) // n_jobs
        said.append(f"  {role} {feature}: {part['open'].mean():.0%} of {n}")
    return "\n".join(said)


# ------------------------------------------------------------------ choices
def choices(cfg: DictConfig) -> Choices:
    """Put in what `auto` stands for, and check all choices.

    Raises:
        InputError: One of them is not among those known, or out of range.
    """
    usual = cfg.auto.lesson if on_lesson(cfg) else cfg.auto.other
    got = {key: usual[key] if cfg[key] == AUTO else cfg[key] for key in usual}
    prices, weights = (listed(got[key]) for key in ("prices", "weights"))
    if not prices or not all(is_number(price) and price >= 0 for price in prices):
        raise InputError(f"prices={cfg.prices}: numbers of at least 0, such as [0.02,0.05]")
    if not weights or not set(weights) <= set(WEIGHTS):
        raise InputError(f"weights={cfg.weights}: one or both of {', '.join(WEIGHTS)}")
    for key, values in (("prices", prices), ("weights", weights)):
        if len(set(values)) < len(values):
            raise InputError(f"{key}={cfg[key]}: name each once")
    counts = {key: got[key] for key in ("steps", "batch_size")}
    if got["threads"] is not None:
        counts["threads"] = got["threads"]
    if cfg.scratch_steps != AUTO:
        counts["scratch_steps"] = cfg.scratch_steps
    for key, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{key}={value}: auto, or a whole number of at least 1")
    inputs.check_least(cfg, {"n_seeds": 1, "save_every": 1, "n_random": 1, "bootstrap_draws": 1})
    inputs.check_level(cfg)
    return Choices(
        prices=[float(price) for price in prices],
        weights=weights,
        settings=Settings(steps=got["steps"], **plain(cfg.settings)),
        batch_size=got["batch_size"],
        threads=got["threads"],
        scratch=scratch_price(cfg, prices),
        seeds=range(cfg.seed, cfg.seed + cfg.n_seeds),
    )


def scratch_price(cfg: DictConfig, prices: Sequence[float]) -> float | None:
    """Say which price's heads are trained from scratch.

    Raises:
        InputError: It is none of the prices, or there is nothing to train on.
    """
    if cfg.scratch is None or (cfg.scratch == AUTO and not on_lesson(cfg)):
        return None
    if not on_lesson(cfg):
        raise InputError(f"scratch={cfg.scratch}: only task=trained says how to train from scratch")
    price = max(prices) if cfg.scratch == AUTO else cfg.scratch
    if price not in prices:
        raise InputError(f"scratch={cfg.scratch}: one of prices={list(prices)}, auto or null")
    return float(price)


def listed(value: Any) -> list[Any]:
    """Take one thing as a list of one."""
    return list(value) if isinstance(value, ListConfig) else [value]


def is_number(value: Any) -> bool:
    """Tell numbers from other things."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@command("gates")
def main(cfg: DictConfig, folder: Path) -> None:
    """Learn unless that was done before, and report."""
    choices(cfg)
    if cfg.roles is not None:
        results.load(cfg.roles, "roles")
    run = Run(folder, identity(cfg), inputs.hashes(cfg))
    if not run.is_done:
        measure(cfg, run)
    report(run, cfg)


if __name__ == "__main__":
    main()
