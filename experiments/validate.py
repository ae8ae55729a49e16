"""Do the detectors find planted truth, and nothing else?

Runs every detector of experiments.roles on models whose heads were wired by hand
(interp.models.planted), so that what each of them does is known, and on models of random weights,
whose heads do nothing.

    python -m experiments.validate
    python -m experiments.validate variants=[encoder] n_seeds=1 random=[]

Writes validation (one line a model, head and feature: planted, implied or absent, and whether it
was found) and run.json. Recall counts what is planted, precision what is absent: a head may do what
is implied by what it was planted for (one that rests on the first token is a sink), and finding
that is neither right nor wrong.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from hydra import compose
from omegaconf import DictConfig
from tqdm import tqdm

from experiments.command import command, identity
from experiments.inputs import loaded, read
from experiments.roles import thresholds
from interp.corpora.corpus import Corpus
from interp.errors import InputError
from interp.heads import HEAD, Head, all_heads, from_table
from interp.models.head_model import HeadModel
from interp.patterns import classify, observe
from interp.patterns.scores import scores
from interp.runs import Run

KEY = [*HEAD, "role", "feature"]
UNIFORM = "uniform"


def found(cfg: DictConfig, model: HeadModel, corpus: Corpus) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run every detector on a model.

    Returns:
        The scores, and the roles with a line `description, uniform` for each head that is so
        described.
    """
    shown = observe.examples(
        model, corpus, n_chunks=cfg.n_chunks, n_repeats=cfg.n_repeats, seed=cfg.seed
    )
    what = observe.watch(corpus, cfg.relations)
    frames = [
        observe.observe(model, [shown[n] for n in group], what) for group in observe.batches(shown)
    ]
    table = scores(
        pd.concat(frames, ignore_index=True), model=model.name, corpus=corpus.name, level=cfg.level
    )
    even = table[(table["feature"] == UNIFORM) & (table["split"] == "report")]
    even = even[even["score"] >= cfg.thresholds.uniform]
    roles = pd.concat([classify.roles(table, thresholds(cfg)), even])
    return table, roles[KEY]


def compared(
    table: pd.DataFrame, roles: pd.DataFrame, truth: Mapping[Head, Mapping[str, str]]
) -> pd.DataFrame:
    """Put what was found beside the truth: one line a head and feature that could be found."""
    decides = table["gating"] | (table["feature"] == UNIFORM)
    lines = table[decides].drop_duplicates(KEY)[KEY]
    heads = from_table(lines)
    known = [
        truth.get(head, {}).get(feature, "absent")
        for head, feature in zip(heads, lines["feature"], strict=True)
    ]
    hits = set(roles.itertuples(index=False, name=None))
    lines = lines.assign(
        truth=known, found=[line in hits for line in lines.itertuples(index=False, name=None)]
    )
    scored = set(zip(heads, lines["feature"], strict=True))
    unmeasured = [
        {"site": head.site, "layer": head.layer, "head": head.head, "feature": feature}
        | {"role": "", "truth": what, "found": False}
        for head, features in truth.items()
        for feature, what in features.items()
        if (head, feature) not in scored
    ]
    return pd.concat([lines, pd.DataFrame(unmeasured, columns=lines.columns)], ignore_index=True)


Made = tuple[HeadModel, Corpus, Mapping[Head, Mapping[str, str]]]


def judged(cfg: DictConfig, make: Callable[[], Made], **known: Any) -> pd.DataFrame:
    """Put what is found on a model beside the truth, with what is known of the model."""
    model, corpus, truth = make()
    return compared(*found(cfg, model, corpus), truth).assign(**known)


def models(cfg: DictConfig) -> Iterator[tuple[str, int, Callable[[], Made]]]:
    """List the models: variant, seed, and what makes it, its corpus and the truth about it."""

    def planted(variant: str, seed: int) -> Made:
        options = [f"model.variant={variant}", f"model.weights_seed={seed}"]
        node = compose("roles", ["model=planted", *options])
        node.device, node.dtype = cfg.device, cfg.dtype
        model: Any = loaded(node)
        return model, model.corpus, model.truth

    def random(name: str) -> Made:
        node = compose("roles", [f"model={name}", "model.random_weights=true"])
        node.device, node.dtype, node.n_examples = cfg.device, cfg.dtype, cfg.n_examples
        model = loaded(node)
        return model, read(node), {head: {UNIFORM: "implied"} for head in all_heads(model.sites)}

    for variant in cfg.variants:
        for seed in range(cfg.n_seeds):
            yield variant, seed, partial(planted, variant, seed)
    for name in cfg.random:
        yield f"{name}-random", 0, partial(random, name)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Count, for each variant and feature, what was planted, found and found wrongly.

    Returns:
        `variant, feature, planted, found, absent, wrong, recall, precision`; precision is missing
        where nothing planted or absent was found.
    """
    planted, absent = table["truth"] == "planted", table["truth"] == "absent"
    counts = (
        table.assign(
            planted=planted,
            hit=planted & table["found"],
            absent=absent,
            wrong=absent & table["found"],
        )
        .groupby(["variant", "feature"], sort=False)[["planted", "hit", "absent", "wrong"]]
        .sum()
        .reset_index()
    )
    n_planted, n_found = counts["planted"], counts["hit"] + counts["wrong"]
    counts["recall"] = counts["hit"] / n_planted.where(n_planted > 0)
    counts["precision"] = counts["hit"] / n_found.where(n_found > 0)
    return counts


@command("validate")
def main(cfg: DictConfig, folder: Path) -> None:
    """Run every detector on every model, unless that was done before, and print the confusion."""
    if not (cfg.variants or cfg.random):
        raise InputError("variants=[] and random=[]: nothing to validate on")
    if cfg.variants and cfg.n_seeds < 1:
        raise InputError(f"n_seeds={cfg.n_seeds}: at least 1")
    run = Run(folder, identity(cfg), {})
    if not run.is_done:
        measure(cfg, run)
    table = run.read("validation")
    counts = summary(table)
    telling = counts[(counts["planted"] > 0) | (counts["wrong"] > 0)]
    print(telling.to_string(index=False, float_format="{:.2f}".format, na_rep=""))
    for name in cfg.random:
        lines = table[table["variant"] == f"{name}-random"]
        even = lines[lines["feature"] == UNIFORM]
        n_roles = lines["found"].sum() - even["found"].sum()
        print(
            f"{name} with random weights: {n_roles} roles; {even['found'].sum()} of {len(even)} "
            f"heads described as uniform"
        )
    planted, absent = table["truth"] == "planted", table["truth"] == "absent"
    n_hit, n_wrong = (planted & table["found"]).sum(), (absent & table["found"]).sum()
    print(
        f"{n_hit} of {planted.sum()} planted features found; {n_wrong} of {absent.sum()} absent "
        f"ones found ({(table['truth'] == 'implied').sum()} are implied and count for neither)"
    )
    print(f"{run.folder}: validation.parquet, run.json")


def measure(cfg: DictConfig, run: Run) -> None:
    """Build, look and compare, model by model."""
    run.start({"corpus": "planted", "model_name": "planted"}, {})
    n_models = len(cfg.variants) * cfg.n_seeds + len(cfg.random)
    with run.working():
        parts = []
        with tqdm(total=n_models, unit="model", desc="validation") as bar:
            for number, (variant, seed, make) in enumerate(models(cfg)):
                judge = partial(judged, cfg, make, variant=variant, seed=seed)
                parts.append(run.once(0, number, judge))
                bar.update()
        run.end_shard(parts)
    with run.finishing() as is_left:
        if is_left:
            order = ["variant", "seed", "role", "feature", *HEAD, "truth", "found"]
            run.write("validation", run.rows()[order])
            run.finish(n_models=n_models)


if __name__ == "__main__":
    main()
