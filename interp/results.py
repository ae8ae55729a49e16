"""Tables on disk: schemas, parts that survive an interrupt, and how to read them back.

A run is a folder:

    run.json              resolved configuration, plan, versions, model; written first
    parts/00000.parquet   rows of a finished part of the plan; a part is there whole or not at all
    effects.parquet       one line a head and example
    summary.parquet       one line a head, with interval and test
    heads.png, …          figures

A run that was interrupted goes on with the parts it lacks. A folder never takes rows of two
configurations.
"""

import hashlib
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp import statistics
from interp.errors import InputError

HEAD = ["site", "layer", "head"]
KEYS = ["model", *HEAD, "kv_group", "unit", "ablation", "positions", "task", "metric"]
"""What identifies a line of `summary`; `effects` adds `example` and `cluster`."""
OURS = ("parts", "multirun.yaml", ".hydra", ".submitit")
"""What a run's folder may hold before the run starts."""
PACKAGES = ["manyheads", "torch", "transformers", "transformer-lens", "pandas", "numpy", "scipy"]


class Run:
    """A run's folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
        """Look at a folder that may or may not exist.

        Args:
            folder: Where the run lives.
            config: Its resolved configuration.
            inputs: The hashes of the files it reads (see `file_hash`).

        Raises:
            InputError: The folder holds a run of another configuration, or files of another kind.
        """
        self.folder = folder
        self.identity = json.loads(json.dumps({"config": config, "inputs": inputs}))
        if self.record_path.exists():
            _check_same(folder, self.record, self.identity)
        elif folder.is_dir():
            others = [file.name for file in folder.iterdir() if file.name not in OURS]
            if others:
                raise InputError(f"{folder} holds {others[0]} and no run: choose another folder")

    @property
    def record_path(self) -> Path:
        """Where the run's facts are."""
        return self.folder / "run.json"

    @property
    def record(self) -> dict[str, Any]:
        """What run.json says."""
        return json.loads(self.record_path.read_text())

    @property
    def is_started(self) -> bool:
        """Whether the folder holds a run of this configuration."""
        return self.record_path.exists()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.is_started and self.record["done"]

    def start(self, facts: Mapping[str, Any]) -> None:
        """Write run.json, before the first row."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {"done": False, **self.identity, **facts, **environment()}
        write_text(self.record_path, json.dumps(record, indent=2))

    def part(self, number: int) -> Path:
        """Say where a part is or will be."""
        return self.folder / "parts" / f"{number:05d}.parquet"

    def write_part(self, number: int, rows: pd.DataFrame) -> None:
        """Add a finished part."""
        self.part(number).parent.mkdir(exist_ok=True)
        write_table(self.part(number), rows)

    def rows(self, n_parts: int) -> pd.DataFrame:
        """Read all parts."""
        parts = [pd.read_parquet(self.part(number)) for number in range(n_parts)]
        return pd.concat(parts, ignore_index=True)

    def write(self, name: str, table: pd.DataFrame) -> None:
        """Write a finished table."""
        write_table(self.folder / f"{name}.parquet", table)

    def read(self, name: str) -> pd.DataFrame:
        """Read a finished table."""
        return pd.read_parquet(self.folder / f"{name}.parquet")

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Mark the run as done."""
        write_text(self.record_path, json.dumps({**self.record, **facts, "done": True}, indent=2))


def _check_same(folder: Path, record: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another run, naming what differs."""
    old, new = (_flat({key: r[key] for key in identity}) for r in (record, identity))
    differing = [
        f"{key.removeprefix('config.')} ({old.get(key)} there, {new.get(key)} here)"
        if key.startswith("config.")
        else f"the content of {key.removeprefix('inputs.')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if differing:
        raise InputError(
            f"{folder} holds a run that differs in {'; '.join(differing)}: "
            f"choose another folder (hydra.run.dir=…) or remove that one"
        )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix: tree}
    return {
        path: value
        for key, branch in tree.items()
        for path, value in _flat(branch, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as Parquet so that it is there whole or not at all."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    os.close(handle)
    try:
        table.to_parquet(scratch, index=False)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def environment() -> dict[str, Any]:
    """Describe what the numbers were computed with."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {"versions": versions, "commit": commit}


def file_hash(path: Path) -> str:
    """Hash a file, or a folder's files in order of name (sha256)."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def effects(
    rows: pd.DataFrame,
    units: pd.DataFrame,
    examples: pd.DataFrame,
    *,
    higher_is_better: bool,
    **constants: str,
) -> pd.DataFrame:
    """Turn a sweep's rows into the table of effects.

    Args:
        rows: `setting, example, draw, clean, ablated`, as interp.sweep returns them.
        units: The columns that name each setting (`site, layer, head, kv_group`), by its number.
        examples: `example, cluster` and, where known, `stratum, n_tokens`, by the example's number
            in the task.
        higher_is_better: The metric's direction.
        **constants: Columns that are the same in all lines: model, unit, ablation, …

    Returns:
        One line a unit and example, averaged over draws: effect = ablated - clean, in the metric's
        unit; damage = the effect signed so that positive means that the model got worse.
    """
    means = rows.groupby(["setting", "example"], as_index=False)[["clean", "ablated"]].mean()
    more = [name for name in ("stratum", "n_tokens") if name in examples]
    known = examples.loc[means["example"], ["example", "cluster", *more]].reset_index(drop=True)
    effect = means["ablated"] - means["clean"]
    table = pd.concat(
        [
            units.loc[means["setting"]].reset_index(drop=True),
            known.astype({"cluster": str}),
            means[["clean", "ablated"]],
        ],
        axis=1,
    ).assign(**constants, effect=effect, damage=-effect if higher_is_better else effect)
    return table[[*KEYS, "example", "cluster", "clean", "ablated", "effect", "damage", *more]]


def summary(table: pd.DataFrame, *, n_draws: int, level: float, seed: int) -> pd.DataFrame:
    """Average effects over examples, with intervals and tests of the damage.

    Args:
        table: Effects, in which every unit was measured on the same examples in the same order.
        n_draws: Bootstrap draws.
        level: The intervals' level of confidence.
        seed: The seed of the draws.

    Returns:
        One line a unit: `n, n_clusters, clean, ablated, effect, damage, se, ci_low, ci_high,
        p_value, q_value`; see interp.statistics for their definitions.
    """
    groups = table.groupby(KEYS, sort=False, dropna=False)
    means = groups[["clean", "ablated", "effect", "damage"]].mean().reset_index()
    n_units = len(means)
    damage = table["damage"].to_numpy().reshape(n_units, -1)
    clusters = table["cluster"].to_numpy()[: damage.shape[1]]
    interval = statistics.cluster_bootstrap(
        damage, clusters, n_draws=n_draws, seed=seed, level=level
    )
    p_values = statistics.sign_flip(damage, clusters, seed=seed)
    return means[KEYS].assign(
        n=damage.shape[1],
        n_clusters=len(set(clusters)),
        **{name: means[name] for name in ("clean", "ablated", "effect", "damage")},
        se=interval.se,
        ci_low=interval.low,
        ci_high=interval.high,
        p_value=p_values,
        q_value=statistics.benjamini_hochberg(p_values),
    )


def draw_spread(rows: pd.DataFrame) -> np.ndarray:
    """Measure how far the draws of a baseline disagree.

    Returns:
        The standard deviation over draws of each setting's mean, in the metric's unit; missing
        where there is one draw.
    """
    means = rows.groupby(["setting", "draw"])["ablated"].mean().unstack()
    return means.std(axis=1).to_numpy()


def load(path: str | Path, table: str = "summary") -> pd.DataFrame:
    """Read a table of one run, or of every run under a folder or matched by a glob.

    Args:
        path: A run's folder, a folder above several, or a glob of folders.
        table: `summary`, `effects`, or another table that the experiment writes.

    Returns:
        One frame. Columns from each run's configuration that the table lacks are added in front:
        `run` (its folder), `seed`, `n_examples`, `dtype`.

    Raises:
        InputError: Nothing finished is there.
    """
    starts = sorted(glob(str(path))) or [str(path)]
    records = sorted({file for start in starts for file in Path(start).rglob("run.json")})
    frames = [_with_config(file, table) for file in records if json.loads(file.read_text())["done"]]
    frames = [frame for frame in frames if frame is not None]
    if not frames:
        found = f"{len(records)} unfinished" if records else "no"
        raise InputError(f"{path}: {found} run(s) with a table '{table}' (expected a run's folder)")
    return pd.concat(frames, ignore_index=True)


def _with_config(record: Path, table: str) -> pd.DataFrame | None:
    """Read a run's table and add the main keys of its configuration."""
    file = record.parent / f"{table}.parquet"
    if not file.exists():
        return None
    frame = pd.read_parquet(file)
    config = json.loads(record.read_text())["config"]
    for name in ("dtype", "n_examples", "seed"):
        if name in config and name not in frame:
            frame.insert(0, name, config[name])
    frame.insert(0, "run", str(record.parent))
    return frame


def strongest(table: pd.DataFrame, n: int) -> pd.DataFrame:
    """Pick the units with the most damage from a summary."""
    return table.nlargest(n, "damage", keep="first")


def names(table: pd.DataFrame) -> Sequence[str]:
    """Write each line's head as L5H1, with the site where there are several."""
    many = table["site"].nunique() > 1
    return [
        f"{site}.L{layer}H{head}" if many else f"L{layer}H{head}"
        for site, layer, head in table[HEAD].itertuples(index=False)
    ]
