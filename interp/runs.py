"""A run's folder: what was asked, and the rows that are done, through any interrupt.

    run.json                         resolved configuration, plan, versions, model; written first
    parts/0of1-0-00000.parquet       rows of a finished part: shard, round of examples, number
    parts/0of1.json                  a shard that has nothing left to do, and its parts
    <table>.parquet, <figure>.png    what the run came to, once all shards are done

Every file is there whole or not at all, so whatever stops a process, the same command goes on with
the parts that are missing. A folder never takes rows of two configurations, and while a process
works on a shard, a second one is turned away.
"""

import hashlib
import json
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd
from filelock import FileLock, Timeout

from interp.errors import InputError

OURS = ("parts", "multirun.yaml", ".hydra", ".submitit", ".slurm")
"""What a run's folder may hold before the run starts."""
SCRATCH = ".writing-"
"""How names of unfinished files begin."""
PACKAGES = ["manyheads", "torch", "transformers", "transformer-lens", "pandas", "numpy", "scipy"]


class Run:
    """A run's folder, as seen by one of its shards."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        inputs: Mapping[str, str],
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        """Look at a folder that may or may not exist.

        Args:
            folder: Where the run lives.
            config: Its resolved configuration, the same for all shards.
            inputs: The hashes of the files it reads (see `file_hash`).
            shard: Which shard this is, from 0, and of how many.

        Raises:
            InputError: The folder holds a run of another configuration, or files of another kind.
        """
        self.folder, (self.index, self.n_shards) = folder, shard
        self.opened = time.time()
        identity = {"config": config, "inputs": inputs, "n_shards": self.n_shards}
        self.identity = json.loads(json.dumps(identity))
        if self.is_started:
            _check_same(folder, self.record, self.identity)
        elif folder.is_dir():
            others = [f.name for f in folder.iterdir() if not f.name.startswith((*OURS, SCRATCH))]
            if others:
                raise InputError(f"{folder} holds {others[0]} and no run: choose another folder")

    @classmethod
    def at(cls, folder: Path) -> "Run":
        """Open the run that a folder holds."""
        record = read_record(folder / "run.json")
        return cls(folder, record["config"], record["inputs"], (0, record.get("n_shards", 1)))

    @property
    def record(self) -> dict[str, Any]:
        """What run.json says."""
        return read_record(self.folder / "run.json")

    @property
    def is_started(self) -> bool:
        """Whether the folder holds a run of this configuration."""
        return (self.folder / "run.json").exists()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.is_started and self.record["done"]

    @property
    def unfinished(self) -> list[str]:
        """List the shards that are not done."""
        every = range(self.n_shards)
        return [f"{index}/{self.n_shards}" for index in every if not self._end(index).exists()]

    @property
    def shard(self) -> str:
        """How this shard's files begin."""
        return f"{self.index}of{self.n_shards}"

    def start(self, facts: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
        """Write run.json and what is known before the first row, unless another shard has.

        Returns:
            What run.json says now: the plan is that of the shard that came first.
        """
        (self.folder / "parts").mkdir(parents=True, exist_ok=True)
        with self._locked("run", timeout=60.0):
            if not self.is_started:
                record = {"done": False, **self.identity, **facts, **environment()}
                write_json(self.folder / "run.json", record)
            for name, table in tables.items():
                if not (self.folder / f"{name}.parquet").exists():
                    self.write(name, table)
        _check_same(self.folder, self.record, self.identity)
        return self.record

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep other processes away from this shard.

        Raises:
            InputError: A process is at work on it.
        """
        with self._locked(self.shard, timeout=0.0):
            for left_over in self.folder.glob(f"parts/{SCRATCH}{self.shard}-*"):
                left_over.unlink()
            yield

    @contextmanager
    def finishing(self) -> Iterator[bool]:
        """Let one process turn parts into tables; yields whether that is left to do."""
        with self._locked("run", timeout=600.0):
            yield not self.is_done and not self.unfinished

    def draw(self, figures: Mapping[str, Callable[[], Any]]) -> list[str]:
        """Draw the figures that are not there yet, one process at a time.

        Args:
            figures: What makes each figure (of matplotlib), by the name of its file.

        Returns:
            The names of all files.
        """
        files = {self.folder / f"{name}.png": make for name, make in figures.items()}
        missing = [file for file in files if not file.exists()]
        if missing:
            with self._locked("run", timeout=600.0):
                self._clear_up()
                for file in missing:
                    with whole(file) as scratch:
                        files[file]().savefig(scratch, dpi=150)
        return [file.name for file in files]

    @contextmanager
    def _locked(self, name: str, timeout: float) -> Iterator[None]:
        """Hold a lock; the system lets go of it when the process dies, however it dies."""
        try:
            with FileLock(self.folder / "parts" / f".lock-{name}", timeout=timeout):
                yield
        except Timeout as error:
            shard = f"{self.index}/{self.n_shards}"
            raise InputError(
                f"{self.folder}: another process is at work on it (shard {shard})"
            ) from error

    def part(self, round_: int, number: int) -> Path:
        """Say where a part of this shard is or will be."""
        return self.folder / "parts" / f"{self.shard}-{round_}-{number:05d}.parquet"

    def once(self, round_: int, number: int, make: Callable[[], pd.DataFrame]) -> Path:
        """Make a part unless it is there; say where it is."""
        path = self.part(round_, number)
        if not path.exists():
            self.write_part(path, make())
        return path

    def write_part(self, path: Path, rows: pd.DataFrame) -> None:
        """Add a finished part."""
        with whole(path, self.shard) as scratch:
            rows.to_parquet(scratch, index=False)

    def end_shard(self, parts: list[Path]) -> None:
        """Note that this shard has nothing left to do, unless a process has that came before.

        Args:
            parts: Its parts, for `rows` to read; none where they are read by other means.
        """
        end = self._end(self.index)
        if end.exists():
            return  # others may be clearing up scratch files already
        spent = {
            "seconds": round(time.time() - self.opened, 1),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        write_json(end, {**spent, "parts": [part.name for part in parts]})

    def _end(self, index: int) -> Path:
        return self.folder / "parts" / f"{index}of{self.n_shards}.json"

    def shards(self) -> list[dict[str, Any]]:
        """Read what all shards say of their ends."""
        return [json.loads(self._end(index).read_text()) for index in range(self.n_shards)]

    def rows(self, round_: int | None = None) -> pd.DataFrame:
        """Read the rows of all shards, of one round or of all."""
        names = [name for shard in self.shards() for name in shard["parts"]]
        if round_ is not None:
            names = [name for name in names if name.split("-")[1] == str(round_)]
        return read_parts([self.folder / "parts" / name for name in names])

    def write(self, name: str, table: pd.DataFrame, **known: Any) -> None:
        """Write a finished table; columns that are the same in all its lines come in front."""
        table = table.assign(**known)[[*known, *table.columns]]
        with whole(self.folder / f"{name}.parquet") as scratch:
            table.to_parquet(scratch, index=False)

    def read(self, name: str) -> pd.DataFrame:
        """Read a finished table."""
        return pd.read_parquet(self.folder / f"{name}.parquet")

    def finish(self, **facts: Any) -> None:
        """Clear up what killed processes left, and mark the run as done.

        Args:
            facts: What run.json says besides the time and memory that the shards took.
        """
        self._clear_up()
        if not self.unfinished:
            shards = self.shards()
            facts["seconds"] = round(sum(shard["seconds"] for shard in shards), 1)
            facts["peak_mb"] = max(shard["peak_mb"] for shard in shards)
        write_json(self.folder / "run.json", {**self.record, **facts, "done": True})

    def _clear_up(self) -> None:
        for left_over in self.folder.rglob(f"{SCRATCH}*"):
            left_over.unlink(missing_ok=True)


def read_record(path: Path) -> dict[str, Any]:
    """Read a run.json.

    Raises:
        InputError: It is none.
    """
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from error


def read_parts(paths: list[Path]) -> pd.DataFrame:
    """Read parts into one frame."""
    return pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)


def _check_same(folder: Path, record: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another run, naming what differs."""
    known = identity.keys() & record.keys()
    old, new = (leaves({key: tree[key] for key in known}) for tree in (record, identity))
    differing = [
        f"the content of {key.removeprefix('inputs.')}"
        if key.startswith("inputs.")
        else f"{key.removeprefix('config.')} ({old.get(key)} there, {new.get(key)} here)"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if differing:
        raise InputError(
            f"{folder} holds a run that differs in {'; '.join(differing)}: "
            f"choose another folder (hydra.run.dir=…) or remove that one"
        )


def leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        found |= leaves(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found


@contextmanager
def whole(path: Path, tag: str = "") -> Iterator[Path]:
    """Give a path to write to; the file takes its own name once all of it is on the disk.

    Raises:
        InputError: It cannot be written: the disk is full, the folder is read-only.
    """
    try:
        scratch = path.with_name(f"{SCRATCH}{tag}-{uuid4().hex}{path.suffix}")
        try:
            yield scratch
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(
            f"{path} cannot be written: {reason} (what is done is kept; the same command goes on)"
        ) from error


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record."""
    with whole(path) as scratch:
        scratch.write_text(json.dumps(record, indent=2), encoding="utf-8")


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
