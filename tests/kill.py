"""Kill sweeps at random moments until they are done; their tables must be those of a quiet run.

    python tests/kill.py [--seed 0] [--kills 20 20 6] [FOLDER]

Every attempt is a fork that runs the whole command and is killed (SIGKILL) after a random part of
the time that a quiet run takes: while it loads, writes run.json, a part, a table or a figure.
Ends with status 1 where a folder differs from the quiet run's: a row twice, a row missing, a bit of
a number, a file too many.
"""

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import pandas as pd
import torch
from hydra.core.global_hydra import GlobalHydra
from tqdm import tqdm

from experiments import ablation
from interp import results, runs, sweep

PART_TOKENS = 200
"""Small parts, so that there are many."""
ARGUMENTS = [
    "model=tiny_gpt2",
    "task.min_accuracy=0",
    "tokens_per_batch=64",
    "bootstrap_draws=200",
]
FULL = ["n_examples=12"]
ADAPTIVE = [*FULL, "adaptive=true", "rounds=[0.4,0.7,1]", "tolerance=0.5"]
CASES = {
    "one shard": [FULL],
    "two shards": [[*FULL, "shard=0/2"], [*FULL, "shard=1/2"]],
    "adaptive": [ADAPTIVE],
}
"""What each process of a run is told."""
TO_PARQUET = pd.DataFrame.to_parquet
PATIENCE = 120
"""Seconds after which an attempt that nobody kills counts as stuck."""


def command(folder: Path, arguments: list[str]) -> None:
    """Run the command in this process."""
    GlobalHydra.instance().clear()
    sys.argv = ["ablation", *ARGUMENTS, *arguments, f"hydra.run.dir={folder}"]
    ablation.main()


def to_parquet(frame: pd.DataFrame, path: Path | None = None, **choices: object) -> bytes | None:
    """Write a table as a slow disk would, so that kills find it half written."""
    data = TO_PARQUET(frame, None, **choices)
    if path is None:
        return data
    with path.open("wb") as file:
        file.write(data[:100])
        file.flush()
        time.sleep(0.02)
        file.write(data[100:])
    return None


def start(folder: Path, arguments: list[str]) -> int:
    """Run the command in a fork; return its process number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        command(folder, arguments)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(status)


def is_killed(folder: Path, arguments: list[str], delay: float) -> bool:
    """Start the command and kill it after a while; return whether it was still alive then.

    Raises:
        RuntimeError: It ended by itself, but not well.
    """
    pid, deadline = start(folder, arguments), time.monotonic() + delay
    ended, status = 0, 0
    while not ended and time.monotonic() < deadline:
        time.sleep(0.002)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)  # a process that has ended meanwhile keeps its own status
        _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    if status:
        raise RuntimeError(f"{folder}: {folder.with_suffix('.log').read_text()}")
    return False


def run_quietly(folder: Path, shards: list[list[str]]) -> float:
    """Let every shard come to its end; return the seconds that the slowest took."""
    seconds = []
    for arguments in shards:
        started = time.monotonic()
        if is_killed(folder, arguments, PATIENCE):
            raise RuntimeError(f"{folder}: stuck")
        seconds.append(time.monotonic() - started)
    return max(seconds)


def is_done(folder: Path) -> bool:
    """Whether run.json says so (parts are not read before the last fork)."""
    file = folder / "run.json"
    return file.exists() and json.loads(file.read_text())["done"]


def stage(folder: Path, n_shards: int) -> str:
    """Say how far a run has come."""
    if is_done(folder):
        return "in the figures"
    if len(list(folder.glob("parts/[0-9]*.json"))) == n_shards:
        return "in the tables"
    if list(folder.glob("parts/[0-9]*.parquet")):
        return "between parts"
    return "after run.json" if (folder / "run.json").exists() else "before run.json"


def torment(
    root: Path, shards: list[list[str]], kills: int, duration: float, chance: random.Random
) -> tuple[list[Path], Counter[str]]:
    """Kill runs until there were enough kills; the last one is then left to end.

    Returns:
        The finished folders, and how often a run was killed at which stage.
    """
    folders, counts = [root / "0"], Counter[str]()
    for arguments in itertools.cycle(shards):
        if counts.total() >= kills:
            break
        folder, started = folders[-1], time.monotonic()
        is_fresh = not folder.exists()
        if is_killed(folder, arguments, chance.uniform(0, duration)):
            counts[stage(folder, len(shards))] += 1
            continue
        if is_fresh:
            duration = time.monotonic() - started  # the machine is less busy than before
        if is_done(folder):
            folders.append(root / str(len(folders)))
    run_quietly(folders[-1], shards)
    return folders, counts


def files(folder: Path) -> set[str]:
    """List the files of a run."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def rows(folder: Path) -> pd.DataFrame:
    """Read the rows of all parts, sorted."""
    table = runs.Run.at(folder).rows()
    return table.sort_values(["setting", "example", "draw"], ignore_index=True)


def table(folder: Path, name: str) -> bytes:
    """Read a table, sort it, and take its bytes."""
    frame = pd.read_parquet(folder / f"{name}.parquet")
    by = [key for key in (*results.keys(frame), "example") if key in frame]
    return bytes(frame.sort_values(by, ignore_index=True).to_parquet(index=False))


def differences(folder: Path, quiet: Path) -> list[str]:
    """Say in what a finished run differs from a quiet one."""
    found = [f"{name} is there in one only" for name in sorted(files(folder) ^ files(quiet))]
    measured = rows(folder)
    twice = measured.duplicated(["setting", "example", "draw"]).sum()
    if twice:
        found.append(f"{twice} rows are there twice")
    if len(measured) != len(rows(quiet)):
        found.append(f"{len(measured)} rows instead of {len(rows(quiet))}")
    elif not measured.equals(rows(quiet)):
        found.append("the rows differ")
    for name in ("effects", "summary"):
        if table(folder, name) != table(quiet, name):
            found.append(f"{name}.parquet differs")
    return [f"{folder}: {line}" for line in found]


def case(name: str, root: Path, seed: int, n_kills: int) -> bool:
    """Run one case and report; return whether all was well."""
    started, quiet, shards = time.monotonic(), root / "quiet", CASES[name]
    root.mkdir()
    duration = run_quietly(quiet, shards)
    chance = random.Random(f"{seed} {name}")
    folders, counts = torment(root, shards, n_kills, duration, chance)
    found = [line for folder in folders for line in differences(folder, quiet)]
    record = json.loads((quiet / "run.json").read_text())
    if name == "adaptive" and len(rows(quiet)) == record["plan"]["n_units"] * 12:
        found.append("adaptive: nothing was decided early, so this shows nothing")
    print(
        f"{name}: {counts.total()} kills ({', '.join(f'{n} {k}' for k, n in counts.items())}), "
        f"{len(folders)} runs, {len(found)} differences; "
        f"a quiet run took {duration:.1f} s, all {time.monotonic() - started:.0f} s"
    )
    print(*found, sep="\n", end="\n" if found else "")
    return not found


def check(root: Path, seed: int, kills: list[int]) -> bool:
    """Run the cases side by side; return whether all was well."""
    torch.set_num_threads(1)
    sweep.PART_TOKENS = PART_TOKENS
    pd.DataFrame.to_parquet = to_parquet
    tqdm.set_lock(threading.RLock())  # tqdm's own is shared by forks, and would die with one
    tqdm.monitor_interval = 0
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        command(root / "first", FULL)  # imports what is imported late
    pids = []
    for name, n_kills in zip(CASES, kills, strict=True):
        pid = os.fork()
        if not pid:
            is_fine = False
            try:
                is_fine = case(name, root / name.replace(" ", "-"), seed, n_kills)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                os._exit(not is_fine)
        pids.append(pid)
    return not any([os.waitpid(pid, 0)[1] for pid in pids])


def main() -> None:
    """Read the command line, check, and exit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where runs go, and are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, nargs=len(CASES), default=[20, 20, 6])
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = (choices.folder or Path(scratch)).absolute()
        root.mkdir(parents=True, exist_ok=True)
        is_fine = check(root, choices.seed, choices.kills)
    sys.exit(not is_fine)


if __name__ == "__main__":
    main()
