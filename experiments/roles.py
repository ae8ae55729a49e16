"""What does each head attend to?

Looks at every head on annotated text and on repeated random tokens (interp.patterns.observe says at
what), scores it on every feature beside simple rules, and names the roles that heads have earned
(interp.patterns.classify).

    python -m experiments.roles
    python -m experiments.roles model=minilm corpus=conllu corpus.path=FOLDER
    python -m experiments.roles corpus=gap corpus.path=gap-validation.tsv
    python -m experiments.roles sentence="The student delivered the book to the library yesterday."
    python -m experiments.roles ablate=true

Writes observations (one line a feature and example, with every head's value), scores (one line a
head, feature, half of the examples and rule), roles, figures and run.json. An interrupted run goes
on where it stopped. `sentence` and `ablate` add to the folder of the same settings; what was
measured there before is not measured again.
"""

import hashlib
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from experiments import ablation, inputs
from experiments.command import build, command, identity
from experiments.inputs import loaded, read
from interp import plots, statistics
from interp.corpora import reading
from interp.corpora import text as text_
from interp.corpora.corpus import Passage
from interp.errors import InputError
from interp.heads import HEAD, Head, from_table
from interp.models.head_model import HeadModel
from interp.patterns import classify, observe, sentence
from interp.patterns.scores import scores
from interp.runs import Run

MOST_PANELS = 16
"""Heads in a figure of attention."""
NOT_DRAWN = ("first_token", "uuas:max", "uuas:mst")
"""Features that attention between words does not show."""
LONGEST_SHOWN = 16
"""Words of the sentence that stands for the corpus in the figure of attention."""
MATCHING = {"antecedent": "pronouns", "nsubj": "agreement", "induction": "repeated_tokens"}
"""The task that a feature should matter for (by its name up to `:`)."""
ROLE, RANDOM, DIFFERENCE = "role", "random ", "role - random"
"""How the sets that are taken out are called."""
TRIES = 50
"""Draws for each random set that is wanted, since some come twice."""
EXCLUDED = 0.3
"""Heads that score more on induction are no control for induction heads."""


def measure(cfg: DictConfig, run: Run) -> None:
    """Look at all heads, and turn what was seen into tables."""
    model, corpus = loaded(cfg), read(cfg)
    inputs.check_words(model, corpus)
    shown = observe.examples(
        model, corpus, n_chunks=cfg.n_chunks, n_repeats=cfg.n_repeats, seed=cfg.seed
    )
    what = observe.watch(corpus, cfg.relations)
    unaligned = observe.unaligned(model, shown)
    groups = observe.batches(shown)
    passages = [example for example in shown if example.passage is not None]
    run.start(
        {
            "model_name": model.name,
            "model": model.record | {"prepend_bos": model.codec.prepend_bos},
            "kind": model.kind,
            "corpus": corpus.name,
            "has_few_clusters": observe.has_few_clusters(corpus),
            "documents": corpus.documents,
            "skipped": corpus.skipped,
            "n_passages": len(passages),
            "n_words": sum(len(e.passage.words) for e in passages if e.passage is not None),
            "unaligned_words": unaligned,
            "plan": {"batches": groups},
        },
        {
            "passages": pd.DataFrame(
                {
                    "example": [e.number for e in passages],
                    "document": [e.passage.document for e in passages if e.passage is not None],
                    "cluster": [e.cluster for e in passages],
                    "split": [e.split for e in passages],
                    "text": [e.passage.text for e in passages if e.passage is not None],
                }
            )
        },
    )
    with run.working():
        parts = []
        with tqdm(total=len(shown), unit="sequence", desc=f"{model.name} attention") as bar:
            for number, group in enumerate(groups):
                some = [shown[n] for n in group]
                parts.append(run.once(0, number, partial(observe.observe, model, some, what)))
                bar.update(len(group))
        run.end_shard(parts)
    with run.finishing() as is_left:
        if is_left:
            _finish(cfg, run, model, [e.passage for e in passages if e.passage is not None])


def _finish(cfg: DictConfig, run: Run, model: HeadModel, passages: list[Passage]) -> None:
    """Score, classify, and keep the attention that is drawn."""
    observations = run.rows()
    print(f"scoring {len(observations)} observations", file=sys.stderr)
    table = scores(observations, model=model.name, corpus=run.record["corpus"], level=cfg.level)
    found = classify.roles(table, thresholds(cfg))
    run.write("observations", observations)
    run.write("scores", table)
    run.write("roles", found)
    run.write("attention", drawn(model, found, passages))
    run.finish()


def thresholds(cfg: DictConfig) -> classify.Thresholds:
    """Read what a role takes."""
    plain: Any = OmegaConf.to_container(cfg.thresholds, resolve=True)
    plain.pop("uniform")
    return classify.Thresholds(**plain)


def drawn(model: HeadModel, roles: pd.DataFrame, passages: list[Passage]) -> pd.DataFrame:
    """Keep the attention of each role's strongest heads in the passage that has most to show."""
    short = [p for p in passages if 4 < len(p.words) <= LONGEST_SHOWN] or passages
    best = max(short, key=lambda p: len({pair.question for pair in sentence.pairs(p)}))
    inside = roles[~(roles["site"].str.contains("cross") | roles["feature"].isin(NOT_DRAWN))]
    frames = [
        sentence.between(model, best, row.site, row.layer, row.head).assign(panel=row.feature)
        for row in inside.drop_duplicates("feature").head(MOST_PANELS).itertuples()
    ]
    empty = pd.DataFrame({"query_word": [word.form for word in best.words]})
    return pd.concat(frames, ignore_index=True) if frames else empty


def draw(run: Run) -> list[str]:
    """Draw the figures that a finished run lacks; return the names of all."""
    record = run.record
    title = f"{record['model_name']} on {record['corpus']} ({record['n_passages']} passages)"
    table, found, attention = run.read("scores"), run.read("roles"), run.read("attention")
    min_n = record["config"]["thresholds"]["min_n"]
    figures = {
        "roles": partial(plots.role_map, table, found, title=title),
        "features": partial(plots.beside_rules, table, found, min_n=min_n, title=title),
    }
    if "attention" in attention:
        figures["attention"] = partial(plots.attention, attention, title=title)
    return run.draw(figures)


def names(table: pd.DataFrame) -> pd.Series:
    """Name each line's head."""
    return pd.Series(map(str, from_table(table)), index=table.index)


def report(run: Run, cfg: DictConfig) -> None:
    """Print how many heads have which role, and the strongest of each."""
    record, table, found = run.record, run.read("scores"), run.read("roles")
    figures = draw(run)
    heads = table[HEAD].drop_duplicates()
    n_named = len(found[HEAD].drop_duplicates())
    print(
        f"{record['model_name']} on {record['corpus']}: {record['n_passages']} passages, "
        f"{record['n_words']} words; {n_named} of {len(heads)} heads have a role"
    )
    if record["unaligned_words"]:
        print(f"{record['unaligned_words']} words have no token of their own and were not asked")
    if record["has_few_clusters"]:
        print(
            f"fewer than {observe.FEW} documents: the halves and the intervals are over passages, "
            f"as if those of one document were independent"
        )
    if record["skipped"]:
        print(f"{len(record['skipped'])} left out (run.json, `skipped`): {record['skipped'][0]}")
    for role, lines in found.groupby("role", sort=False):
        print(f"\n{role}")
        first = {name: place for place, name in enumerate(lines["feature"].unique())}
        best = lines.groupby("feature", sort=False).head(cfg.top)
        best = best.sort_values("feature", key=lambda column: column.map(first), kind="stable")
        count = lines.groupby("feature")["feature"].transform("size")
        shown = pd.DataFrame(
            {
                "feature": best["feature"],
                "heads": count[best.index].astype(str),
                "strongest": names(best),
                "score": best["score"].map("{:.2f}".format),
                "rule": best["baseline"].map("{:.2f} ".format) + best["baseline_name"],
                "margin": [
                    f"{m:+.2f} [{low:+.2f}, {high:+.2f}]"
                    for m, low, high in best[["margin", "margin_low", "margin_high"]].itertuples(
                        index=False
                    )
                ],
                "n": best["n"],
                "note": best["note"],
            }
        )
        repeated = shown.duplicated("feature")
        shown.loc[repeated, ["feature", "heads"]] = ""
        print(shown.to_string(index=False))
    unjudged = too_little(table, cfg.thresholds)
    if unjudged:
        more = f" and {len(unjudged) - 6} more" if len(unjudged) > 6 else ""
        print(
            f"\ntoo little text to judge (a half needs {cfg.thresholds.min_n} queries and "
            f"{cfg.thresholds.min_clusters} clusters): {', '.join(unjudged[:6])}{more}"
        )
    print(f"\n{described(table, cfg.thresholds.uniform)}")
    print(
        f"{run.folder}: scores, roles, observations, passages, attention.parquet, "
        f"{', '.join(figures)}, run.json"
    )


def too_little(table: pd.DataFrame, limits: DictConfig) -> list[str]:
    """List the features that no head can be named after, for want of queries or clusters."""
    lines = table[table["gating"]]
    enough = (lines["n"] >= limits.min_n) & (lines["n_clusters"] >= limits.min_clusters)
    halves = lines.assign(enough=enough).groupby(["feature", "split"])["enough"].any().unstack()
    judged = halves.reindex(columns=["select", "report"]).fillna(value=False).all(axis=1)
    return sorted(judged.index[~judged.astype(bool)])


def described(table: pd.DataFrame, uniform: float) -> str:
    """Say what the maps look like: shares of kinds, and of heads that are nearly uniform."""
    lines = table[(table["role"] == "description") & (table["split"] == "report")]
    lines = lines.drop_duplicates([*HEAD, "feature"])
    by_feature = lines.groupby("feature")["score"]
    kinds = by_feature.mean()
    kinds = kinds[kinds.index.str.startswith("kind:") & (kinds >= 0.005)]
    kinds = kinds.sort_values(ascending=False)
    shares = ", ".join(f"{share:.0%} {name.partition(':')[2]}" for name, share in kinds.items())
    even = lines[lines["feature"] == "uniform"]["score"]
    return (
        f"maps: {shares}\nheads described as uniform (entropy of {uniform:.0%} of the maximum or "
        f"more): {(even >= uniform).sum()} of {len(even)}"
    )


def annotated(cfg: DictConfig) -> Passage:
    """Find the sentence, with its annotation, in the corpus or among our own; or parse it."""
    text = " ".join(str(cfg.sentence).split())
    if not text:
        raise InputError("sentence is empty: write sentence='The student delivered the book.'")
    ours = compose("roles", ["corpus=builtin", "corpus.n_sentences=0"]).corpus
    for corpus in (build(ours), build(cfg.corpus)):
        for passage in corpus.passages:
            if passage.text == text:
                return passage
    pipeline = OmegaConf.select(cfg, "corpus.pipeline")
    parts = (
        text_.by_rule([text]) if pipeline is None else text_.parsed(text_.load(pipeline), [text])
    )
    return reading.joined(list(parts), "sentence")


def ask(cfg: DictConfig, run: Run) -> None:
    """Say which heads look at who, what, where and when in the user's sentence."""
    digest = hashlib.sha256(str(cfg.sentence).encode()).hexdigest()[:6]
    name, model, passage = f"sentence-{digest}", loaded(cfg), annotated(cfg)
    found = run.read("roles")
    found = found[~found["feature"].isin(["first_token"])]
    held = found.groupby(HEAD)["feature"].agg(", ".join).rename("roles").reset_index()
    table = sentence.look(model, passage).merge(held, on=HEAD, how="left")
    table = table.fillna({"roles": ""}).assign(sentence=passage.text)
    run.write(name, table)
    # a word of unknown grammar is one question: where does it look?
    asked = table["number"].where(table["question"] != sentence.ANYTHING, table["word"])
    order = {question: place for place, question in enumerate(asked.unique())}
    best = table.assign(place=asked.map(order)).sort_values(
        ["place", "attention"], ascending=[True, False], kind="stable"
    )
    best = best.groupby("place").head(cfg.top)
    print(f"\n{passage.text}")
    if (table["question"] == sentence.ANYTHING).all():
        print(
            "not annotated, so every word is asked where it looks "
            "(corpus=text corpus.path=FILE has it parsed by spaCy)"
        )
    shown = best.assign(head=names(best), attention=best["attention"].map("{:.2f}".format))
    columns = ["about", "question", "answer", "word", "looks_at", "head", "attention", "roles"]
    print(shown[columns].to_string(index=False))
    panels = pd.concat(
        [
            sentence.between(model, passage, row.site, row.layer, row.head).assign(
                panel=f"{row.place + 1}. {row.about}: {row.question}?"
            )
            for row in best.drop_duplicates("place").head(MOST_PANELS).itertuples()
        ]
    )
    run.draw({name: partial(plots.attention, panels, title=passage.text)})
    print(f"{run.folder}: {name}.parquet, {name}.png")


def ablate(cfg: DictConfig, run: Run, choice: str) -> None:
    """Take the strongest heads of each role out, and as many random heads of the same layers.

    Args:
        cfg: The configuration.
        run: The finished run.
        choice: The model's group in conf/.
    """
    if run.record["kind"] != "decoder":
        raise InputError(
            f"ablate=true needs a decoder, for its tasks ask what comes next; "
            f"{run.record['model_name']} is an {run.record['kind'].replace('_', '-')}"
        )
    found, table = run.read("roles"), run.read("scores")
    frames = []
    for feature, matching in MATCHING.items():
        task = cfg.ablate_with.task or matching
        lines = found[found["feature"].str.split(":").str[0] == feature]
        lines = lines.sort_values("score", ascending=False)
        named = from_table(lines.drop_duplicates(HEAD))
        if not named:
            print(f"\n{feature}: no head has this role, so none is taken out on task={task}")
            continue
        excluded = set(named)
        if feature == "induction":  # heads that do some of it are no control either
            some = table[(table["feature"] == feature) & (table["score"] > EXCLUDED)]
            excluded |= set(from_table(some))
        chosen = named[: cfg.ablate_with.n_heads]
        try:
            sets = random_sets(chosen, all_of(table), excluded, cfg.ablate_with.n_random, cfg.seed)
            frames.append(damage_of(cfg, run, choice, task, chosen, sets).assign(feature=feature))
        except InputError as error:
            print(f"\n{feature}: {error}")
    if not frames:
        return
    damage = pd.concat(frames, ignore_index=True)
    run.write("damage", damage)
    for feature, lines in damage.groupby("feature", sort=False):
        by_set = lines.set_index("set")
        ours, more = by_set.loc[ROLE], by_set.loc[DIFFERENCE]
        others = by_set[by_set.index.str.startswith(RANDOM)]["damage"]
        print(
            f"\n{feature}: without {ours['heads']} the damage on {ours['task']} is "
            f"{ours['damage']:+.3f} [{ours['ci_low']:+.3f}, {ours['ci_high']:+.3f}] "
            f"({ours['metric']}, n = {ours['n']}); without as many random heads of the same layers "
            f"{others.mean():+.3f} (mean of {len(others)} sets, at most {others.max():+.3f}); "
            f"difference {more['damage']:+.3f} [{more['ci_low']:+.3f}, {more['ci_high']:+.3f}]"
        )
        if "accuracy" in by_set and pd.notna(ours["accuracy"]):
            left = by_set.loc[by_set.index.str.startswith(RANDOM), "accuracy"]
            print(
                f"of the answers {ours['clean_accuracy']:.2f} are right; without the former "
                f"{ours['accuracy']:.2f}, without the latter {left.mean():.2f} "
                f"({left.min():.2f} to {left.max():.2f})"
            )
    print(f"{run.folder}: damage.parquet")


def all_of(table: pd.DataFrame) -> list[Head]:
    """List the heads of a table of scores."""
    return sorted(from_table(table.drop_duplicates(HEAD)))


def random_sets(
    heads: list[Head], every: list[Head], excluded: set[Head], n: int, seed: int
) -> list[list[Head]]:
    """Draw different sets with as many heads of each layer, none of those excluded.

    There are fewer than `n` where the layers do not hold so many.

    Raises:
        InputError: A layer has too few other heads.
    """
    rng = np.random.default_rng(seed)
    wanted = Counter((head.site, head.layer) for head in heads)
    pools = {
        layer: [h for h in every if (h.site, h.layer) == layer and h not in excluded]
        for layer in wanted
    }
    for layer, count in wanted.items():
        if len(pools[layer]) < count:
            raise InputError(
                f"ablate_with.n_heads={len(heads)}: layer {layer[1]} has {count} of the heads that "
                f"are taken out and {len(pools[layer])} to compare them with (take fewer)"
            )
    found: dict[tuple[Head, ...], None] = {}
    for _ in range(TRIES * n):
        if len(found) == n:
            break
        drawn = [
            pools[layer][k]
            for layer, count in wanted.items()
            for k in rng.choice(len(pools[layer]), count, replace=False)
        ]
        found[tuple(sorted(drawn))] = None
    return [list(group) for group in found]


def damage_of(
    cfg: DictConfig,
    run: Run,
    choice: str,
    task: str,
    heads: list[Head],
    sets: list[list[Head]],
) -> pd.DataFrame:
    """Sweep a role's heads and its control sets on a task, in a folder of its own below the run's.

    Returns:
        One line a set: `task, metric, set, heads, damage, ci_low, ci_high, n` and, of a metric that
        is a difference, the share of examples above 0, `accuracy` and `clean_accuracy`; `set` is
        `role`, `random 0`, … or `role - random`, the paired difference from the mean of the random
        sets, with its own interval.
    """
    options = cfg.ablate_with
    config = compose(
        "ablation",
        [
            *(f"model={choice}", f"task={task}", f"ablation={options.ablation}", "unit=set"),
            *(f"n_examples={options.n_examples}", f"seed={cfg.seed}", f"level={cfg.level}"),
        ],
    )
    for key in ("model", "device", "dtype", "tokens_per_batch"):
        config[key] = cfg[key]
    groups = {ROLE: heads} | {f"{RANDOM}{number}": group for number, group in enumerate(sets)}
    config.sets = [[str(head) for head in group] for group in groups.values()]
    settings = identity(config)
    digest = hashlib.sha256(str(settings).encode()).hexdigest()[:8]
    inner = Run(run.folder / f"{task}-{digest}", settings, {})
    if not inner.is_done:
        ablation.measure(config, inner)
    called = {"+".join(map(str, sorted(group))): name for name, group in groups.items()}
    summary, effects = inner.read("summary"), inner.read("effects")
    table = summary[["task", "metric", "set", "damage", "ci_low", "ci_high", "n"]]
    table = table.assign(heads=table["set"], set=table["set"].map(called))
    effects = effects.assign(set=effects["set"].map(called))
    if table["metric"].iloc[0].endswith("diff"):
        is_right = effects.assign(
            accuracy=effects["ablated"] > 0, clean_accuracy=effects["clean"] > 0
        )
        shares = is_right.groupby("set")[["accuracy", "clean_accuracy"]].mean()
        table = table.merge(shares, left_on="set", right_index=True)
    wide = effects.pivot(index=["example", "cluster"], columns="set", values="damage")
    more = wide[ROLE] - wide.drop(columns=ROLE).mean(axis=1)
    interval = statistics.cluster_bootstrap(
        more.to_numpy()[None],
        wide.index.get_level_values("cluster").to_numpy(),
        n_draws=config.bootstrap_draws,
        seed=cfg.seed,
        level=cfg.level,
    )
    difference = (
        table[table["set"] == ROLE]
        .drop(columns=["accuracy"], errors="ignore")
        .assign(set=DIFFERENCE, damage=interval.mean, ci_low=interval.low, ci_high=interval.high)
    )
    return pd.concat([table.sort_values("set"), difference], ignore_index=True)


@command("roles")
def main(cfg: DictConfig, folder: Path) -> None:
    """Measure unless that was done before, report, and answer what else was asked."""
    run = Run(folder, identity(cfg), inputs.hashes(cfg))
    was_done = run.is_done
    if not was_done:
        measure(cfg, run)
    if not (was_done and (cfg.sentence is not None or cfg.ablate)):
        report(run, cfg)
    if cfg.sentence is not None:
        ask(cfg, run)
    if cfg.ablate:
        ablate(cfg, run, HydraConfig.get().runtime.choices["model"])


if __name__ == "__main__":
    main()
