"""Which heads do the same thing?

Compares all pairs of heads of each site, by their patterns and outputs on text and by their weights
(interp.redundancy.similarity and .spaces say how), beside what the same numbers are without a
reason to be alike (.tables), finds each head's nearest twin, and sorts heads into clusters.

    python -m experiments.redundancy
    python -m experiments.redundancy model=minilm corpus=conllu corpus.path=FOLDER
    python -m experiments.redundancy cluster_by=cka
    python -m experiments.redundancy roles=results/roles/smollm2/builtin

Writes similarity (one line a pair, measure and null), twins (the most similar head of each),
agreement (of measures, with each other and on other text), clusters (one line a head),
cluster_choice (one line a number of clusters), shared_space (one line a layer, matrix and
fraction), figures and run.json. An interrupted run goes on where it stopped. `roles` adds a figure
to the folder of the same settings.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from omegaconf import DictConfig, ListConfig, OmegaConf
from tqdm import tqdm

from experiments import inputs
from experiments.command import command, identity
from experiments.inputs import loaded, read
from interp import plots, results
from interp.errors import InputError
from interp.heads import HEAD, Head, from_table, to_table
from interp.models import weights
from interp.models.head_model import HeadModel
from interp.models.planted import PlantedModel
from interp.patterns import observe
from interp.redundancy import clusters, seen, similarity, spaces, tables
from interp.redundancy.seen import Seen
from interp.redundancy.similarity import OUTPUTS, PATTERNS
from interp.redundancy.spaces import WEIGHTS, Space
from interp.redundancy.tables import (
    OBSERVED,
    OTHER_HALF,
    PERMUTED,
    RANDOM_WEIGHTS,
    RESAMPLED,
)
from interp.runs import Run

MEASURES = (*PATTERNS, *OUTPUTS, *WEIGHTS)
HALVES = {OBSERVED: "select", OTHER_HALF: "report"}
"""The half of the documents that each is measured on."""
EXCHANGES = 100
"""Random exchanges of heads that the agreement of measures is compared with."""
CLEAR = 0.25
"""The mean silhouette below which there are no clear groups (Kaufman & Rousseeuw 1990)."""
STABLE = 0.75
"""Jaccard's index from which a cluster is trusted (Hennig 2007)."""
FEWEST = 3
"""Heads of a site that can be clustered."""
CLUSTERS = [*HEAD, "cluster", "stability"]
CHOICES = ["site", "measure", "n_clusters", "silhouette", "agreement", "chosen"]


class Job(NamedTuple):
    """A part of the work: what all pairs are measured on."""

    source: str
    draw: int = 0


def jobs(cfg: DictConfig) -> list[Job]:
    """List the parts of the work."""
    with_null = OmegaConf.select(cfg, "model.random_weights") is False
    resamples = 0 if cfg.cluster_by in WEIGHTS else cfg.resamples
    return [
        Job(OBSERVED),
        Job(OTHER_HALF),
        *([Job(RANDOM_WEIGHTS)] if with_null else []),
        *(Job(PERMUTED, draw) for draw in range(cfg.null_draws)),
        *(Job(RESAMPLED, draw) for draw in range(resamples)),
    ]


def sample(cfg: DictConfig, model: HeadModel) -> tuple[str, dict[str, list[observe.Example]]]:
    """Choose what to look at: whole passages in random order, as many as hold `n_positions`.

    Returns:
        The corpus' name, and the passages of each half of its documents.
    """
    corpus = model.corpus if isinstance(model, PlantedModel) else read(cfg)
    inputs.check_words(model, corpus)
    shown = observe.examples(model, corpus, n_chunks=0, n_repeats=0, seed=cfg.seed)
    found: dict[str, list[observe.Example]] = {half: [] for half in HALVES.values()}
    room = dict.fromkeys(found, cfg.n_positions)
    for number in np.random.default_rng(cfg.seed).permutation(len(shown)):
        example = shown[number]
        if room[example.split] > 0:
            found[example.split].append(example)
            read_ = (example.text, *([example.target] if example.target else []))
            # (the first token of a sequence may see no other)
            room[example.split] -= min(len(text) - sum(text.special) for text in read_) - 1
    empty = [half for half, examples in found.items() if not examples]
    if empty:
        raise InputError(f"{corpus.name}: one passage has no other half; at least 2 are needed")
    return corpus.name, found


def look(
    model: HeadModel, examples: Sequence[observe.Example], n_positions: int
) -> dict[str, Seen]:
    """Look at a half."""
    groups = observe.batches(examples)
    batches = (
        (
            model.batch(
                [examples[n].text for n in group],
                [target for n in group if (target := examples[n].target) is not None],
            ),
            group,
        )
        for group in groups
    )
    return seen.look(model, batches, n_positions)


def measurer(
    cfg: DictConfig, model: HeadModel, halves: Mapping[str, Sequence[observe.Example]]
) -> Callable[[Job], pd.DataFrame]:
    """Make what measures all pairs for a part of the work, and looks at what that needs alone."""

    @cache
    def looked(half: str) -> dict[str, Seen]:
        return look(model, halves[half], cfg.n_positions)

    @cache
    def spread() -> dict[str, dict[str, tuple[Space, Space]]]:
        return {site: spaces.spaces(layers) for site, layers in weights.read(model).items()}

    def random() -> pd.DataFrame:
        other = cfg.copy()
        other.model.random_weights = True
        return measurer(cfg, loaded(other), halves)(Job(OBSERVED))

    def measure(job: Job) -> pd.DataFrame:
        if job.source == RANDOM_WEIGHTS:
            return random().assign(source=job.source)
        names = [cfg.cluster_by] if job.source == RESAMPLED else PATTERNS + OUTPUTS
        frames = []
        for site, all_seen in looked(HALVES.get(job.source, HALVES[OBSERVED])).items():
            rng = np.random.default_rng([cfg.seed, job.draw])
            if job.source == PERMUTED:
                all_seen = all_seen.permuted(rng)
            elif job.source == RESAMPLED:
                documents = [example.cluster for example in halves[HALVES[OBSERVED]]]
                all_seen = all_seen.resampled(np.array(documents), rng)
            found = similarity.measured(all_seen, names)
            if job.source == OBSERVED:
                found |= spaces.overlaps(spread()[site])
            elif job.source == PERMUTED:
                found |= spaces.overlaps(spaces.turned(spread()[site], model.site[site], rng))
            frames.append(tables.pairs(model.site[site], found))
        table = pd.concat(frames, ignore_index=True)
        return table.assign(source=job.source, draw=job.draw)

    return measure


def measure(cfg: DictConfig, run: Run) -> None:
    """Measure all pairs, part by part, and turn what was measured into tables."""
    model = loaded(cfg)
    if all(site.n_layers * site.n_heads < 2 for site in model.sites):
        raise InputError(f"{model.name} has one head: nothing to compare it with")
    corpus, halves = sample(cfg, model)
    chosen = jobs(cfg)
    run.start(
        {
            "model_name": model.name,
            "model": model.record | {"prepend_bos": model.codec.prepend_bos},
            "corpus": corpus,
            "n_passages": {half: len(examples) for half, examples in halves.items()},
            "plan": {"jobs": [job._asdict() for job in chosen]},
        },
        {},
    )
    with run.working():
        parts, measured = [], measurer(cfg, model, halves)
        with tqdm(total=len(chosen), unit="part", desc=f"{model.name} pairs") as bar:
            for number, job in enumerate(chosen):
                bar.set_postfix_str(job.source)
                parts.append(run.once(0, number, partial(measured, job)))
                bar.update()
        run.end_shard(parts)
    with run.finishing() as is_left:
        if is_left:
            _finish(cfg, run, model)


def _finish(cfg: DictConfig, run: Run, model: HeadModel) -> None:
    """Write the tables."""
    rows = run.rows()
    again = rows["source"] == RESAMPLED
    groups, choices = clustered(cfg, rows[~again], rows[again])
    rows = rows[~again]
    shared = [
        spaces.shared_space(layer, cfg.fractions, n_draws=cfg.null_draws, seed=cfg.seed).assign(
            site=site, layer=number
        )
        for site, layers in weights.read(model).items()
        for number, layer in enumerate(layers)
    ]
    for name, table in {
        "similarity": tables.similarity(rows),
        "twins": tables.twins(rows),
        "agreement": tables.agreement(rows, n_draws=EXCHANGES, seed=cfg.seed),
        "cluster_choice": choices,
        "shared_space": pd.concat(shared, ignore_index=True),
    }.items():
        places = [place for place in HEAD if place in table]
        table = table[[*places, *table.columns.drop(places)]]
        run.write(name, table, model=model.name, corpus=run.record["corpus"])
    run.write("clusters", groups)
    run.finish()


def clustered(
    cfg: DictConfig, rows: pd.DataFrame, resampled: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cluster the heads of each site.

    Returns:
        One line a head: `site, layer, head, cluster, stability`; and one line a site and number of
        clusters: `site, measure, n_clusters, silhouette, agreement, chosen`. Heads without a value
        are left out, as are sites of fewer than three heads.
    """
    groups, choices = [], []
    for site, lines in observed(rows, cfg.cluster_by).groupby("site"):
        heads = tables.heads(lines)
        heads = [heads[k] for k in clusters.comparable(tables.square(lines, heads))]
        if len(heads) < FEWEST:
            continue
        others = resampled[resampled["site"] == site].groupby("draw")
        drawn = [apart(part, cfg.cluster_by, heads) for _, part in others]
        found = clusters.clustering(
            apart(lines, cfg.cluster_by, heads),
            [matrix for matrix in drawn if not np.isnan(matrix).any()],
            cfg.max_clusters,
        )
        groups.append(to_table(heads).assign(cluster=found.labels, stability=found.stability))
        choices.append(
            pd.DataFrame(
                {
                    "site": site,
                    "measure": cfg.cluster_by,
                    "n_clusters": found.n_clusters,
                    "silhouette": found.silhouette,
                    "agreement": found.agreement,
                    "chosen": found.n_clusters == found.labels.max() + 1,
                }
            )
        )
    if not groups:
        return pd.DataFrame(columns=CLUSTERS), pd.DataFrame(columns=CHOICES)
    return pd.concat(groups, ignore_index=True), pd.concat(choices, ignore_index=True)


def observed(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Take the lines of one measure, as it was observed."""
    return rows[(rows["source"] == OBSERVED) & (rows["measure"] == measure)]


def apart(lines: pd.DataFrame, measure: str, heads: Sequence[Head]) -> clusters.Distances:
    """Lay out how far apart some heads are, 0 between a head and itself: √(1 - similarity)."""
    distances = np.sqrt(1 - similarity.similarity(measure, tables.square(lines, heads)))
    np.fill_diagonal(distances, 0.0)
    return distances


def draw(run: Run, cfg: DictConfig) -> list[str]:
    """Draw the figures that a finished run lacks; return the names of all."""
    record, groups, table = run.record, run.read("clusters"), run.read("similarity")
    if groups.empty:
        return []
    measure = record["config"]["cluster_by"]
    title = f"{record['model_name']} on {record['corpus']}: heads by {measure}"
    table = table[(table["measure"] == measure) & (table["null_name"] == PERMUTED)]
    figures: dict[str, Callable[[], Any]] = {}
    places, shares = [], {}
    for site, lines in groups.groupby("site"):
        heads = from_table(lines)
        distances = apart(table[table["site"] == site], measure, heads)
        at, shares[site] = clusters.plane(distances)
        places.append(lines.assign(x=at[:, 0], y=at[:, 1]))
        name = "clusters" if groups["site"].nunique() == 1 else f"clusters-{site}"
        names = list(map(str, heads))
        figures[name] = partial(
            plots.cluster_map,
            pd.DataFrame(1 - distances**2, index=names, columns=names),
            clusters.tree(distances),
            list(lines["cluster"]),
            title=title,
            label=plots.similarity(measure),
        )
    plane = partial(plots.plane, pd.concat(places), shares, title=title)
    figures["plane"] = partial(plane, roles=None)
    if cfg.roles is not None:
        found = results.load(cfg.roles, "roles")
        digest = hashlib.sha256(found.to_csv().encode()).hexdigest()[:6]
        figures[f"plane_by_role-{digest}"] = partial(plane, roles=found)
    figures["cluster_choice"] = partial(
        plots.cluster_choice, run.read("cluster_choice"), title=title
    )
    return run.draw(figures)


def report(run: Run, cfg: DictConfig) -> None:
    """Print how alike heads are by each measure, the nearest twins, clusters and shared space."""
    figures = draw(run, cfg)
    record, table, twins = run.record, run.read("similarity"), run.read("twins")
    measure, choices = record["config"]["cluster_by"], run.read("cluster_choice")
    print(
        f"{record['model_name']} on {record['corpus']}: {len(twins.drop_duplicates(HEAD))} heads, "
        f"{len(table.drop_duplicates(tables.PAIR))} pairs, {twins['n'].max()} positions"
    )
    for site, lines in table.groupby("site", sort=False):
        if table["site"].nunique() > 1:
            print(f"\n{site}")
        print(by_measure(lines).to_string(index=False))
    print(
        f"\nmore alike by {measure} than all but 5% are by chance: "
        f"pairs {against(table, measure)}; nearest twins {against(twins, measure)}"
    )
    print(f"nearest twins by {measure}: {neighbours(twins, measure)}")
    print(nearest(twins, measure, cfg.top).to_string(index=False))
    print()
    for site, lines in run.read("clusters").groupby("site", sort=False):
        where = "" if table["site"].nunique() == 1 else f"{site}: "
        print(f"{where}{grouped(lines, choices[choices['site'] == site])}")
    print(agreeing(run.read("agreement"), measure))
    print(shared(run.read("shared_space")))
    print(
        f"{run.folder}: similarity, twins, agreement, clusters, cluster_choice, "
        f"shared_space.parquet, {''.join(f'{name}, ' for name in figures)}run.json"
    )


def by_measure(lines: pd.DataFrame) -> pd.DataFrame:
    """Describe the pairs of a site by each measure: means, nulls, and the shares beyond them."""
    shown = []
    for name in MEASURES:
        of = dict(list(lines[lines["measure"] == name].groupby("null_name")))
        if PERMUTED not in of:
            continue
        line = {"measure": name, "mean": f"{of[PERMUTED]['value'].mean():.3f}"}
        for null, called in ((PERMUTED, "shuffled"), (RANDOM_WEIGHTS, "random")):
            if null in of:
                line[called] = f"{of[null]['null_mean'].mean():.3f}"
                line[f"beyond {called}"] = f"{beyond(of[null]):.0%}"
        if OTHER_HALF in of:
            moved = (of[OTHER_HALF]["value"] - of[OTHER_HALF]["null_mean"]).abs()
            line["on other text ±"] = f"{moved.mean():.3f}"
        shown.append(line)
    return pd.DataFrame(shown).fillna("")


def beyond(lines: pd.DataFrame) -> float:
    """Compute the share that is more alike than the 5 % of the null that are most alike."""
    sign = np.where(lines["measure"].isin(list(similarity.DISTANCES)), -1, 1)
    return float((sign * (lines["value"] - lines["null_p95"]) > 0).mean())


def against(table: pd.DataFrame, measure: str) -> str:
    """Say how many of some pairs are more alike than 95 % are without a reason."""
    of = dict(list(table[table["measure"] == measure].groupby("null_name")))
    nulls = {PERMUTED: "shuffled heads", RANDOM_WEIGHTS: "random weights"}
    return ", ".join(
        f"{beyond(of[null]):.0%} against {name}" for null, name in nulls.items() if null in of
    )


def neighbours(twins: pd.DataFrame, measure: str) -> str:
    """Say how much nearer, in layers, twins are than heads in general."""
    lines = twins[twins["measure"] == measure].drop_duplicates(HEAD)
    pairs = lines[HEAD].merge(lines[HEAD], on="site", suffixes=("", "_2"))
    pairs = pairs[(pairs["layer"] != pairs["layer_2"]) | (pairs["head"] != pairs["head_2"])]
    close, by_chance = (
        ((table["layer"] - table["layer_2"]).abs() <= 1).mean() for table in (lines, pairs)
    )
    return (
        f"{close:.0%} are in the same or the next layer ({by_chance:.0%} of all pairs are), "
        f"{lines['is_mutual'].mean():.0%} are mutual"
    )


def nearest(twins: pd.DataFrame, measure: str, top: int) -> pd.DataFrame:
    """List the pairs of nearest twins that are most alike."""
    twins = twins[twins["measure"] == measure]
    name = list(map(str, from_table(twins)))
    twins = twins.assign(name=name, pair=np.sort(np.stack([name, twins["twin"]], 1)).sum(1))
    by_null = twins.pivot(index=HEAD, columns="null_name", values="null_mean")
    best = twins.drop_duplicates(HEAD).sort_values(
        "value", ascending=measure in similarity.DISTANCES, kind="stable"
    )
    best = best.drop_duplicates("pair").head(top).join(by_null, on=HEAD)
    shown = {
        measure: "value",
        "nearest if shuffled": PERMUTED,
        "this pair on other text": OTHER_HALF,
    }
    return pd.DataFrame(
        {"head": best["name"], "twin": best["twin"]}
        | {
            called: best[column].map("{:.4f}".format)
            for called, column in shown.items()
            if column in best
        }
    )


def grouped(lines: pd.DataFrame, choices: pd.DataFrame) -> str:
    """Say how many clusters a site has, why, and how far to trust them."""
    sizes = lines["cluster"].value_counts().sort_index()
    [chosen] = choices[choices["chosen"]].itertuples()
    said = (
        f"{len(sizes)} clusters (of {' + '.join(map(str, sizes))} heads): of "
        f"{choices['n_clusters'].min()} to {choices['n_clusters'].max()} the number with the "
        f"largest mean silhouette, {chosen.silhouette:.2f}"
    )
    if chosen.silhouette < CLEAR:
        said += f" (below {CLEAR}: there are no clear groups)"
    if not np.isnan(chosen.agreement):
        stable = lines[lines["stability"] >= STABLE]
        said += (
            f"; on resampled documents the adjusted Rand index is {chosen.agreement:.2f}, and "
            f"{stable['cluster'].nunique()} clusters with {len(stable)} of {len(lines)} heads are "
            f"stable (Jaccard {STABLE} or more)"
        )
    return said


def agreeing(table: pd.DataFrame, measure: str) -> str:
    """Say how well a measure agrees with the others, and with itself on other text."""
    names = {"measure": "measure_2", "measure_2": "measure"}
    both = pd.concat([table, table.rename(columns=names)])
    both = both[both["measure"] == measure]
    other = both["measure_2"].where(both["other"] != OTHER_HALF, "itself on other text")
    means = both["spearman"].groupby(other).mean().sort_values(ascending=False)
    return (
        f"which pairs are alike by {measure}, against others (Spearman's correlation): "
        f"{', '.join(f'{name} {value:.2f}' for name, value in means.items())}"
    )


def shared(table: pd.DataFrame) -> str:
    """Say how much of the heads' weights lies in few directions."""
    fractions = sorted(set(table["fraction"]))
    fraction = fractions[len(fractions) // 2]
    means = table[table["fraction"] == fraction].groupby("matrix")[["energy", "random_mean"]].mean()
    said = [
        f"{matrix} {energy:.0%} (random {random:.0%})"
        for matrix, energy, random in means.itertuples()
    ]
    return (
        f"energy of a layer's heads together in the leading {fraction:.0%} of the directions of "
        f"the residual stream: {', '.join(said)}"
    )


def check(cfg: DictConfig) -> None:
    """Check the choices.

    Raises:
        InputError: One of them is not among those known, or out of range.
    """
    inputs.check_choices(cfg, {"cluster_by": MEASURES})
    inputs.check_least(cfg, {"n_positions": 10, "null_draws": 2, "max_clusters": 2, "top": 1})
    if (
        not isinstance(cfg.fractions, ListConfig)
        or not cfg.fractions
        or not all(isinstance(f, float | int) and 0 < f <= 1 for f in cfg.fractions)
    ):
        raise InputError(f"fractions={cfg.fractions}: shares above 0 up to 1, such as [0.1,0.3333]")
    if cfg.roles is not None:
        results.load(cfg.roles, "roles")


@command("redundancy")
def main(cfg: DictConfig, folder: Path) -> None:
    """Measure unless that was done before, and report."""
    check(cfg)
    run = Run(folder, identity(cfg), inputs.hashes(cfg))
    if not run.is_done:
        measure(cfg, run)
    report(run, cfg)


if __name__ == "__main__":
    main()
