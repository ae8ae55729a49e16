"""From a configuration to what an experiment on heads works with: heads, baseline, clean model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from omegaconf import DictConfig, ListConfig, OmegaConf

from experiments.command import build, plain
from interp import gates, heads, statistics, sweep, units
from interp.corpora.corpus import Corpus
from interp.errors import InputError
from interp.heads import Head
from interp.models.head_model import HeadModel
from interp.models.pretrained import float_type, torch_device
from interp.models.text import bos_id
from interp.redundancy import interactions, similarity
from interp.runs import Run, file_hash
from interp.sweep import Engine
from interp.tasks.chunks import chunks
from interp.tasks.task import Item, Task
from interp.training.lesson import Lesson
from interp.transformer import Transformer
from interp.units import Unit

DEFAULT_TOKENS = 1024
"""Tokens a micro-batch holds where no measurement has said better."""
PASSAGES = 50
"""Passages that tell whether a model knows the words of a corpus."""
MOST_UNKNOWN = 0.9
"""The share of tokens that may be unknown to a model, which can still look at repetition."""
FILES = (
    "corpus.path",
    "model.name",
    "model.path",
    "reference.path",
    "task.path",
    "training.lesson.path",
)
"""Keys that may name a file or folder that is read."""


@dataclass(frozen=True)
class Subject:
    """A model at a task that it can do."""

    model: HeadModel
    task: Task
    clean: Float[np.ndarray, " example"]
    """Its scores."""
    facts: dict[str, Any]
    """What run.json says of it."""


def subject(cfg: DictConfig) -> Subject:
    """Load a model and the first examples of a task, and score them.

    Raises:
        InputError: With status 3, where the model cannot do the task.
    """
    model = build(cfg.model)
    task = build(cfg.task, model).first(cfg.n_examples)
    clean = sweep.clean_scores(model, task, tokens_per_batch(cfg))
    return Subject(
        model,
        task,
        clean,
        {
            **check_clean(task, clean),
            "task": task.name,
            "metric": task.metric,
            "unit_of_metric": task.unit,
            "higher_is_better": task.higher_is_better,
            "model_name": model.name,
            "model": model.record | {"prepend_bos": model.codec.prepend_bos},
            "has_kv_groups": any(site.n_kv_heads < site.n_heads for site in model.sites),
        },
    )


def loaded(cfg: DictConfig) -> HeadModel:
    """Load the model; a decoder reads a BOS first unless the user says otherwise.

    The first token draws attention that means nothing; it should not be the text's first word.
    """
    model: HeadModel = build(cfg.model)
    codec = model.codec
    if cfg.model.prepend_bos == "auto" and model.kind == "decoder" and bos_id(codec.tokenizer):
        model.codec = replace(codec, prepend_bos=True)
    return model


def pupil(
    cfg: DictConfig, seed: int, changes: Mapping[str, Any] | None = None
) -> tuple[Lesson, Transformer]:
    """Make the lesson that `cfg.training` describes, and draw the model that is to learn it.

    Args:
        cfg: The configuration.
        seed: The seed of the model's first weights.
        changes: What is to be different, under `lesson` and `model`.

    Raises:
        InputError: The sizes do not go together.
    """
    training: Any = OmegaConf.merge(cfg.training, changes or {})
    lesson: Lesson = build(training.lesson)
    model = lesson.untrained(seed=seed, **plain(training.model))
    return lesson, model.to(torch_device(cfg.device), float_type(cfg.dtype))


def read(cfg: DictConfig) -> Corpus:
    """Read the corpus, up to `n_examples` passages."""
    corpus: Corpus = build(cfg.corpus)
    if cfg.n_examples is None:
        return corpus
    if cfg.n_examples < 1:
        raise InputError(f"n_examples={cfg.n_examples}: at least 1, or null for all")
    return replace(corpus, passages=corpus.passages[: cfg.n_examples])


def check_words(model: HeadModel, corpus: Corpus) -> None:
    """Check that a model knows some of the words that it is to read.

    Raises:
        InputError: Nearly all are unknown to it.
    """
    tokenizer = model.codec.tokenizer
    if tokenizer.unk_token_id is None:
        return
    texts = [passage.text for passage in corpus.passages[:PASSAGES]]
    ids = [number for text in texts for number in tokenizer(text)["input_ids"]]
    share = ids.count(tokenizer.unk_token_id) / max(1, len(ids))
    if share > MOST_UNKNOWN:
        raise InputError(
            f"corpus {corpus.name}: {share:.0%} of its tokens are unknown to {model.name} "
            f"(corpus=trained has sentences for a model of experiments.train)"
        )


def hashes(cfg: DictConfig) -> dict[str, str]:
    """Hash the files and folders that a configuration names, by their keys."""
    paths = {key: path for key in FILES if (path := OmegaConf.select(cfg, key))}
    return {key: file_hash(Path(path)) for key, path in paths.items() if Path(path).exists()}


def check_choices(cfg: DictConfig, known: Mapping[str, Sequence[str | None]]) -> None:
    """Check that each key's value is one of those known.

    Raises:
        InputError: One is not.
    """
    for key, values in known.items():
        if cfg[key] not in values:
            names = ", ".join("null" if value is None else value for value in values)
            raise InputError(f"{key}={cfg[key]}: one of {names}")


def check_least(cfg: DictConfig, least: Mapping[str, int]) -> None:
    """Check that each key's value is no less than it may be.

    Raises:
        InputError: One is.
    """
    for key, number in least.items():
        value = OmegaConf.select(cfg, key)
        if value < number:
            raise InputError(f"{key}={value}: at least {number}")


def check_gated(cfg: DictConfig, kinds: Sequence[str] = gates.KINDS) -> None:
    """Check what all experiments share that close gates at a task.

    Args:
        cfg: The configuration.
        kinds: The baselines that the experiment takes.

    Raises:
        InputError: A choice is not among those known, or out of range.
    """
    check_choices(cfg, {"ablation": kinds, "positions": gates.POSITIONS})
    check_level(cfg)
    check_least(cfg, {"bootstrap_draws": 1, "top": 1})


def check_level(cfg: DictConfig) -> None:
    """Check the level of intervals.

    Raises:
        InputError: It is out of range.
    """
    if not 0 < cfg.level < 1:
        raise InputError(f"level={cfg.level:g}: between 0 and 1, such as 0.95")


def drawn(cfg: DictConfig) -> dict[str, Any]:
    """Give what intervals by bootstrap depend on: arguments of statistics.cluster_bootstrap."""
    return {"n_draws": cfg.bootstrap_draws, "level": cfg.level, "seed": cfg.seed}


def tokens_per_batch(cfg: DictConfig) -> int:
    """Say how many tokens go through the model together, as far as that is known unmeasured."""
    tokens = cfg.tokens_per_batch
    if tokens == "auto":
        return DEFAULT_TOKENS
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise InputError(f"tokens_per_batch={tokens}: auto, or a whole number of at least 1")
    return tokens


def budget(cfg: DictConfig, run: Run, engine: Engine) -> int:
    """Say how many tokens a micro-batch of a sweep holds: as the run's plan says, or measured."""
    if run.is_started:
        return run.record["plan"]["tokens_per_batch"]
    auto = cfg.tokens_per_batch == "auto"
    return sweep.measured_budget(engine) if auto else tokens_per_batch(cfg)


def shard(text: str) -> tuple[int, int]:
    """Read which shard of how many a process is to run: `0/4` to `3/4`."""
    match = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if match is None or not int(match[1]) < int(match[2]):
        raise InputError(f"shard={text}: write i/n, from 0/n to (n-1)/n, such as 0/4")
    return int(match[1]), int(match[2])


def reversed_twins(task: Task) -> Task:
    """Let clean and corrupted prompts change places.

    Raises:
        InputError: There are no corrupted prompts.
    """
    return replace(task, examples=_twins(task), corrupted=task.examples)


def _twins(task: Task) -> Sequence[tuple[Item, ...]]:
    """Take the corrupted prompts.

    Raises:
        InputError: There are none.
    """
    if task.corrupted is None:
        raise InputError(
            f"task={task.name} has no corrupted prompts, "
            f"which direction= and resample.partner=corrupted take heads from"
        )
    return task.corrupted


def baseline(cfg: DictConfig, model: HeadModel, task: Task) -> gates.Baseline:
    """Make the baseline that `cfg.ablation` names (see interp.gates)."""
    match cfg.ablation:
        case "zero":
            return gates.Zero()
        case "uniform":
            return gates.Uniform(model)
        case "twin":
            lines = alike(cfg, model, task, [cfg.twins.measure])
            return gates.Twin(model, twins=interactions.twins(model.sites, lines))
        case "resample":
            return _resample(cfg, task)
        case "mean" | "mean_by_position":
            by_position = cfg.ablation == "mean_by_position"
            source = task if cfg.reference.path is None else _reference(cfg, model, task)
            means = gates.means(
                model,
                sweep.batches(model, source, tokens_per_batch(cfg)),
                by_position=by_position,
                specials=cfg.reference.specials,
            )
            return gates.MeanByPosition(means) if by_position else gates.Mean(means)
    raise InputError(f"ablation={cfg.ablation}: one of {', '.join(gates.KINDS)}")


def alike(cfg: DictConfig, model: HeadModel, task: Task, measures: Sequence[str]) -> pd.DataFrame:
    """Measure how alike heads are on a task's own examples, one line a pair and measure.

    Raises:
        InputError: A measure is unknown, or there is nothing to measure it on.
    """
    known = similarity.PATTERNS + similarity.OUTPUTS
    unknown = [name for name in measures if name not in known]
    if unknown:
        key = "twins.measure" if unknown[0] == cfg.twins.measure else "measures"
        raise InputError(f"{key}={unknown[0]}: one of {', '.join(known)}")
    if cfg.twins.n_positions < 1:
        raise InputError(f"twins.n_positions={cfg.twins.n_positions}: at least 1")
    return interactions.alike(
        model,
        task,
        measures,
        n_positions=cfg.twins.n_positions,
        tokens_per_batch=tokens_per_batch(cfg),
    )


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
        return gates.Resample(np.arange(n)[None], _twins(task))
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


def named_heads(model: HeadModel, names: Sequence[str] | str, key: str) -> list[Head]:
    """Find heads by their names, in the order of blocks."""
    names = [names] if isinstance(names, str) else names
    numbers = [text for text in names if not isinstance(text, str)]
    if numbers:
        raise InputError(f"{key}: {numbers[0]} reads as a number; write L5H1, or '5.1' in quotes")
    found = {heads.parse(text, model.sites) for text in names}
    if not found:
        raise InputError(f"{key}: name at least one head{', or null for all' * (key == 'heads')}")
    return sorted(found, key=lambda head: (model.block(head), head))


def chosen_units(cfg: DictConfig, model: HeadModel) -> list[Unit]:
    """List what to ablate: the units of `cfg.unit` among the heads named, or among all."""
    if cfg.unit == "set":
        if cfg.heads is not None:
            raise InputError("unit=set takes its heads from sets=[[L5H1,L6H2],…]: leave heads out")
        alone = [names for names in cfg.sets or () if not isinstance(names, list | ListConfig)]
        if alone:
            raise InputError(f"sets: {alone[0]} is no list; write sets=[[L5H1,L6H2],[L7H0]]")
        sets = [named_heads(model, names, "sets") for names in cfg.sets or ()]
        return units.units("set", model.sites, (), sets)
    if cfg.sets is not None:
        raise InputError(f"sets={cfg.sets}: only for unit=set, not unit={cfg.unit}")
    among = (
        heads.all_heads(model.sites)
        if cfg.heads is None
        else named_heads(model, cfg.heads, "heads")
    )
    return units.units(cfg.unit, model.sites, among)


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
