"""Tables: what a sweep's rows come to, how to read them back, and what people then do with them.

    effects     one line a unit and example
    summary     one line a unit, with interval, test and class
    units       which heads each unit closed
    examples    what each example was

A unit is a head, a pair, a layer, … (interp.units); its address is `site, layer, head, kv_group`
and, for pairs, the same with `_2`; a `set` has a name. Entries that do not apply are null.
"""

import warnings
from collections.abc import Mapping
from glob import glob
from pathlib import Path

import numpy as np
import pandas as pd

from interp import statistics
from interp.errors import InputError
from interp.runs import Run
from interp.units import COLUMNS

MEASURED = ("unit", "ablation", "positions", "direction", "task", "metric")
"""Columns that say what was done to a unit and what was measured."""
TINY = 0.05
"""A difference between clean and corrupted below this share of the mean one normalises nothing."""


def address(table: pd.DataFrame) -> list[str]:
    """List the columns of a table that say which unit a line is about."""
    return [name for name in COLUMNS if name in table]


def keys(table: pd.DataFrame) -> list[str]:
    """List the columns that identify a line of a summary."""
    return ["model", *address(table), *(name for name in MEASURED if name in table)]


def effects(
    rows: pd.DataFrame,
    units: pd.DataFrame,
    examples: pd.DataFrame,
    *,
    higher_is_better: bool,
    direction: str | None = None,
    **constants: str,
) -> pd.DataFrame:
    """Turn a sweep's rows into the table of effects.

    Args:
        rows: `setting, example, draw, clean, ablated`, as interp.sweep returns them.
        units: Each setting's address, by its number.
        examples: `example, cluster` and, where known, `stratum, n_tokens`, by the example's number
            in the task; with a direction, the `clean` and `corrupted` scores.
        higher_is_better: The metric's direction.
        direction: For patching: `noising` (a head of the clean run is taken from the corrupted
            one) or `denoising` (the other way round).
        **constants: Columns that are the same in all lines: model, unit, ablation, …

    Returns:
        One line a unit and example, averaged over draws: effect = ablated - unpatched, in the
        metric's unit, where unpatched is `clean`, or `corrupted` in denoising; damage = the effect
        signed so that positive means that the model got worse. With a direction also `normalised` =
        (ablated - corrupted) / (clean - corrupted), 1 where the clean score is kept or regained and
        0 where nothing of it is; null where clean and corrupted hardly differ (TINY).
    """
    means = rows.groupby(["setting", "example"], as_index=False)[["clean", "ablated"]].mean()
    known = examples.loc[means["example"]].reset_index(drop=True)
    more = [name for name in ("stratum", "n_tokens") if name in examples]
    effect = means["ablated"] - means["clean"]
    table = pd.concat(
        [
            units.loc[means["setting"]].reset_index(drop=True),
            known[["example", "cluster", *more]].astype({"cluster": str}),
            means[["clean", "ablated"]],
        ],
        axis=1,
    ).assign(**constants, effect=effect, damage=-effect if higher_is_better else effect)
    if direction is not None:
        span = known["clean"] - known["corrupted"]
        least = TINY * (examples["clean"] - examples["corrupted"]).abs().mean()
        usable = (span.abs() >= least) & (span != 0)
        normalised = (table["ablated"] - known["corrupted"]) / span.where(usable)
        table = table.assign(
            direction=direction,
            clean=known["clean"],
            corrupted=known["corrupted"],
            normalised=normalised,
        )
        more = ["corrupted", "normalised", *more]
    measured = ["clean", "ablated", "effect", "damage", *more]
    return table[[*keys(table), "example", "cluster", *measured]]


def summary(
    table: pd.DataFrame,
    *,
    n_draws: int,
    level: float,
    seed: int,
    tolerance: float | None = None,
    looks: Mapping[int, float] | None = None,
) -> pd.DataFrame:
    """Average effects over examples, with intervals and tests of the damage.

    Args:
        table: Effects; units may have been measured on differently many examples.
        n_draws: Bootstrap draws.
        level: The intervals' level of confidence.
        seed: The seed of the draws.
        tolerance: The damage, in the metric's unit, up to which a unit counts as negligible;
            None leaves out the column `class`.
        looks: For an adaptive sweep: the level of the look after each number of examples. Such
            intervals come from `statistics.cluster_t`; a test would not be valid, so p is null.

    Returns:
        One line a unit: `n, n_clusters, clean, ablated, effect, damage, se, ci_low, ci_high,
        p_value, q_value, class`; see interp.statistics for their definitions. With `normalised`:
        the same ratio of the means over examples.
    """
    by = keys(table)
    groups = table.groupby(by, sort=False, dropna=False)
    columns = ["clean", "ablated", "effect", "damage"]
    means = groups[columns].mean().reset_index()
    damage, clusters = _damage_matrix(table, groups.ngroup().to_numpy())
    n = (~np.isnan(damage)).sum(axis=1)
    if looks is None:
        interval = statistics.cluster_bootstrap(
            damage, clusters, n_draws=n_draws, seed=seed, level=level
        )
        p_values = statistics.sign_flip(damage, clusters, seed=seed)
    else:
        interval = statistics.cluster_t(damage, clusters, level=np.array([looks[k] for k in n]))
        p_values = np.full(len(means), np.nan)
    result = means[by].assign(
        n=n,
        n_clusters=interval.n_clusters,
        **{name: means[name] for name in columns},
        se=interval.se,
        ci_low=interval.low,
        ci_high=interval.high,
        p_value=p_values,
        q_value=statistics.benjamini_hochberg(p_values),
    )
    if tolerance is not None:
        result["class"] = statistics.classify(interval.low, interval.high, tolerance)
    if "normalised" in table:
        usable = table[table["normalised"].notna()].groupby(by, sort=False, dropna=False)
        ours = usable[["clean", "corrupted", "ablated"]].mean()
        result["corrupted"] = groups["corrupted"].mean().to_numpy()
        ratio = (ours["ablated"] - ours["corrupted"]) / (ours["clean"] - ours["corrupted"])
        result = result.merge(ratio.rename("normalised").reset_index(), on=by, how="left")
    return result


def _damage_matrix(table: pd.DataFrame, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lay damage out as unit x example, NaN where not measured; and name each example's cluster."""
    numbers, example = np.unique(table["example"], return_inverse=True)
    damage = np.full((unit.max() + 1, len(numbers)), np.nan)
    damage[unit, example] = table["damage"]
    clusters = table.drop_duplicates("example").sort_values("example")["cluster"]
    return damage, clusters.to_numpy()


def draw_spread(rows: pd.DataFrame) -> np.ndarray:
    """Measure how far the draws of a baseline disagree.

    Returns:
        The standard deviation over draws of each setting's mean, in the metric's unit; missing
        where there is one draw.
    """
    means = rows.groupby(["setting", "draw"])["ablated"].mean().unstack()
    return means.std(axis=1).to_numpy()


def assemble(run: Run) -> None:
    """Turn the rows of a run whose shards are all done into its tables, unless that is done."""
    with run.finishing() as is_left:
        if not is_left:
            return
        record = run.record
        config, rows = record["config"], run.rows()
        table = effects(
            rows,
            run.read("units").drop(columns="closed"),
            run.read("examples"),
            higher_is_better=record["higher_is_better"],
            direction=config["direction"],
            model=record["model_name"],
            **{name: config[name] for name in ("unit", "ablation", "positions")},
            task=record["task"],
            metric=record["metric"],
        )
        looks = record["plan"]["looks"]
        short = summary(
            table,
            n_draws=config["bootstrap_draws"],
            level=config["level"],
            seed=config["seed"],
            tolerance=record["tolerance"],
            looks={look["n"]: look["level"] for look in looks} if config["adaptive"] else None,
        )
        if config["ablation"] == "resample" and config["direction"] is None:
            short["draw_sd"] = draw_spread(rows)
        run.write("effects", table)
        run.write("summary", short)
        run.finish(n_rows=len(rows))


def load(path: str | Path, table: str = "summary") -> pd.DataFrame:
    """Read a table of one run, or of every run under a folder or matched by a glob.

    Shards that are all done but not yet put together are put together first.

    Args:
        path: A run's folder, a folder above several, or a glob of folders.
        table: `summary`, `effects`, or another table that the experiment writes.

    Returns:
        One frame. Columns from each run's configuration that the table lacks are added in front:
        `run` (its folder), `dtype`, `n_examples`, `seed`. Runs that are not finished are left out
        with a warning.

    Raises:
        InputError: Nothing finished is there.
    """
    starts = sorted(glob(str(path))) or [str(path)]
    folders = sorted({file.parent for start in starts for file in Path(start).rglob("run.json")})
    frames, missing = [], []
    for folder in folders:
        run = Run.at(folder)
        is_sweep = (folder / "units.parquet").exists()  # (others put their tables together alone)
        if is_sweep and not run.is_done and not run.unfinished:
            assemble(run)
        if not run.is_done:
            missing.append(f"{folder} (shard {', '.join(run.unfinished)})")
        elif (folder / f"{table}.parquet").exists():
            frames.append(_with_config(run, table))
    if not frames:
        unfinished = f"; unfinished: {'; '.join(missing)}" if missing else ""
        raise InputError(f"{path}: no finished run with a table '{table}' is there{unfinished}")
    if missing:
        warnings.warn(f"left out, since unfinished: {'; '.join(missing)}", stacklevel=2)
    return pd.concat(frames, ignore_index=True)


def _with_config(run: Run, table: str) -> pd.DataFrame:
    """Read a run's table and add the main keys of its configuration."""
    frame, config = run.read(table), run.record["config"]
    for name in ("seed", "n_examples", "dtype"):
        if name in config and name not in frame:
            frame.insert(0, name, config[name])
    frame.insert(0, "run", str(run.folder))
    return frame


def matrix(
    table: pd.DataFrame, value: str = "damage", row: str = "layer", column: str = "head"
) -> pd.DataFrame:
    """Lay a summary of one run out as layer x head.

    Args:
        table: One line a head, of one site.
        value: The column to lay out.
        row: What rows stand for.
        column: What columns stand for: `head`, or `kv_group`.

    Raises:
        InputError: Several lines fall on one place: pick a run, and a site.
    """
    twice = table[table.duplicated([row, column])]
    if len(twice):
        differing = [
            name
            for name in ("run", "seed", "model", "site", *MEASURED)
            if name in table and table[name].nunique() > 1
        ]
        raise InputError(
            f"matrix: {row} {twice[row].iloc[0]}, {column} {twice[column].iloc[0]} has several "
            f"lines; pick one of {', '.join(differing) or 'them'} first"
        )
    return table.pivot(index=row, columns=column, values=value)


def _named_by(table: pd.DataFrame) -> list[str]:
    """List the columns that name a unit; a head's key/value group follows from the head."""
    follows = {
        f"kv_group{end}"
        for end in ("", "_2")
        if table.get(f"head{end}", pd.Series([None])).notna().all()
    }
    return [name for name in address(table) if name not in follows and table[name].notna().any()]


def join(
    first: pd.DataFrame, second: pd.DataFrame, names: tuple[str, str] = ("1", "2")
) -> pd.DataFrame:
    """Put two runs side by side: one line a unit that both have.

    Args:
        first: Summary of one run (or any table with one line a unit).
        second: Summary of another.
        names: What is put behind the columns of each: `damage_1`, `damage_2`.

    Raises:
        InputError: The tables are about different kinds of units, or a unit occurs twice.
    """
    on = _named_by(first)
    if on != _named_by(second):
        raise InputError(f"join: units by {', '.join(on)} and by {', '.join(_named_by(second))}")
    for table, name in zip((first, second), names, strict=True):
        if table.duplicated(on).any():
            raise InputError(
                f"join: a unit has several lines in table '{name}'; pick one run first"
            )
    return first.merge(second, on=on, suffixes=tuple(f"_{name}" for name in names))


def compare(
    table: pd.DataFrame,
    column: str,
    first: str,
    second: str,
    *,
    n_draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Ask of each unit whether two kinds of runs differ in damage, on the same examples.

    For instance `compare(load("results/ablation", "effects"), "ablation", "zero", "mean")`.

    Args:
        table: Effects of both.
        column: What tells them apart.
        first: Its value in the one.
        second: Its value in the other.
        n_draws: Bootstrap draws.
        level: The intervals' level of confidence.
        seed: The seed of the draws.

    Returns:
        One line a unit: `n`, `damage_<first>`, `damage_<second>`, their `difference` (first -
        second), its `ci_low, ci_high` over clusters, and `q_value`.

    Raises:
        InputError: A unit and example is there several times, or not in both.
    """
    on = [*address(table), "example"]
    if column not in table:
        raise InputError(f"compare: no column '{column}' (there are {', '.join(table)})")
    parts = [table[table[column] == value] for value in (first, second)]
    for part, value in zip(parts, (first, second), strict=True):
        if part.empty:
            known = ", ".join(map(str, table[column].unique()))
            raise InputError(f"compare: no line has {column}={value} (there are {known})")
        if part.duplicated(on).any():
            raise InputError(f"compare: several runs have {column}={value}; pick one of each first")
    both = parts[0].merge(parts[1][[*on, "damage"]], on=on, suffixes=("_first", "_second"))
    if both.empty:
        raise InputError(f"compare: {first} and {second} have no unit and example in common")
    both = both.assign(damage=both["damage_first"] - both["damage_second"])
    groups = both.groupby(address(table), sort=False, dropna=False)
    means = groups[["damage_first", "damage_second", "damage"]].mean().reset_index()
    values, clusters = _damage_matrix(both, groups.ngroup().to_numpy())
    interval = statistics.cluster_bootstrap(
        values, clusters, n_draws=n_draws, seed=seed, level=level
    )
    p_values = statistics.sign_flip(values, clusters, seed=seed)
    means = means.assign(
        ci_low=interval.low, ci_high=interval.high, q_value=statistics.benjamini_hochberg(p_values)
    )
    means.insert(len(address(table)), "n", (~np.isnan(values)).sum(axis=1))
    return means.rename(
        columns={
            "damage_first": f"damage_{first}",
            "damage_second": f"damage_{second}",
            "damage": "difference",
        }
    )
