"""Whatever stops a run, the same command ends with the tables that a quiet run has."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import test_experiments

from interp import sweep

pytestmark = pytest.mark.usefixtures("elsewhere")
ROOT = Path(__file__).parent.parent
TINY = ["model=tiny_gpt2", "task.min_accuracy=0", "bootstrap_draws=200"]
SMALL = [*TINY, "n_examples=12", "tokens_per_batch=64"]
LONG = [*TINY, "n_examples=200", "tokens_per_batch=256"]
"""Enough parts for a real process to be met among them."""
PAGE = 4096


def run(folder, *arguments):
    """Run the command in this process; return its exit status."""
    return test_experiments.run("ablation", *arguments, f"hydra.run.dir={folder}")


def start(folder, *arguments, experiment="ablation"):
    """Run the command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{experiment}", *arguments, f"hydra.run.dir={folder}"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # where the tests themselves run in a shell's background, Ctrl-C is switched off
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def parts(folder):
    return sorted(path.name for path in Path(folder).glob("parts/[0-9]*.parquet"))


def tables(folder):
    return [pd.read_parquet(Path(folder) / f"{name}.parquet") for name in ("effects", "summary")]


def assert_same(folder, quiet):
    for ours, theirs in zip(tables(folder), tables(quiet), strict=True):
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    names = [
        {str(path.relative_to(root)) for path in Path(root).rglob("*")} for root in (folder, quiet)
    ]
    assert names[0] == names[1]


def lines(stderr):
    """Take a process' lines apart from its progress bar."""
    every = stderr.replace("\r", "\n").splitlines()
    return [line for line in every if line.strip() and "row/s]" not in line]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """A long run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("quiet") / "run"
    assert run(folder, *LONG) == 0
    assert len(parts(folder)) > 3
    return folder


def test_runs_killed_at_random_moments_end_with_the_tables_of_a_quiet_run():
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "kill.py", "--seed", "0"],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "one shard: 20 kills" in done.stdout
    assert done.stdout.count(" 0 differences") == 3


def test_ctrl_c_ends_in_one_line_and_the_same_command_goes_on(quiet, tmp_path):
    folder = tmp_path / "run"
    process = start(folder, *LONG)
    while not parts(folder) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    [line] = lines(stderr)
    assert "the same command goes on" in line
    assert out == ""
    kept = {name: (folder / "parts" / name).stat().st_mtime_ns for name in parts(folder)}
    assert 0 < len(kept) < len(parts(quiet))
    assert run(folder, *LONG) == 0
    assert {n: (folder / "parts" / n).stat().st_mtime_ns for n in kept} == kept
    assert_same(folder, quiet)


def test_of_two_processes_at_once_one_works_and_the_other_ends_in_one_line(quiet, tmp_path):
    folder = tmp_path / "run"
    both = [start(folder, *LONG) for _ in range(2)]
    ends = [(*process.communicate(timeout=300), process.returncode) for process in both]
    statuses = sorted(status for _, _, status in ends)
    assert statuses in ([0, 2], [0, 0])  # the second may come when all is done
    for out, stderr, status in ends:
        if status:
            [line] = lines(stderr)
            assert line.startswith(f"error: {folder}: another process is at work")
        else:
            assert "the heads with the most damage" in out
            assert lines(stderr) == []
    assert_same(folder, quiet)


@contextmanager
def small_disk(place):
    """Mount an empty disk; yields a function that sets its size to so many pages."""
    place.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        return subprocess.run(command, capture_output=True, text=True)

    try:
        made = mount(f"size={PAGE}")
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if made.returncode:
        pytest.skip(f"a disk cannot be mounted here: {made.stderr.strip()}")

    def resize(pages):
        assert mount(f"remount,size={pages * PAGE}").returncode == 0

    try:
        yield resize
    finally:
        subprocess.run(["umount", str(place)], check=True)


def pages(path):
    return -(-path.stat().st_size // PAGE)


def test_a_full_disk_ends_in_one_line_at_whatever_file_and_the_same_command_goes_on(
    monkeypatch, capsys
):
    monkeypatch.setattr(sweep, "PART_TOKENS", 200)
    whole, folder = Path("whole"), Path("disk/run")
    assert run(whole, *SMALL) == 0
    with small_disk(Path("disk")) as resize:
        Path("disk/others").write_bytes(b"x" * PAGE)
        for name in (
            "run.json",
            "examples.parquet",
            "parts/0of1-0-00000.parquet",
            "parts/0of1-0-00009.parquet",
            "parts/0of1.json",
            "effects.parquet",
            "summary.parquet",
            "strongest.png",
            "heads.png",
        ):
            written = [f for f in whole.rglob("*.*") if age(f) < age(whole / name)]
            resize(1 + sum(map(pages, written)) + pages(whole / name) - 1)
            capsys.readouterr()
            assert run(folder, *SMALL) == 2
            [line] = lines(capsys.readouterr().err)
            assert line.startswith(f"error: {folder / name} cannot be written: No space left")
            assert set(parts(folder)) >= {f.name for f in written if f.match("parts/*.parquet")}
            assert not list(folder.rglob(".writing-*"))
            print(line)
        resize(1000)
        assert run(folder, *SMALL) == 0
        assert_same(folder, whole)


def age(path):
    """Say when a file was first written: run.json, which is written again, before all others."""
    return 0 if path.name == "run.json" else path.stat().st_mtime_ns


def test_a_measured_budget_is_measured_once(monkeypatch):
    monkeypatch.setattr(sweep, "PART_TOKENS", 200)
    arguments = [*TINY, "n_examples=12", "tokens_per_batch=auto"]
    monkeypatch.setattr(sweep, "measured_budget", lambda engine: 64)
    assert run("whole", *arguments) == 0
    test_experiments.stop_at(20, RuntimeError("stop"), monkeypatch)
    with pytest.raises(RuntimeError, match="stop"):
        run("broken", *arguments)
    assert 0 < len(parts("broken")) < len(parts("whole"))
    monkeypatch.setattr(sweep, "measured_budget", lambda engine: 512)
    assert run("broken", *arguments) == 0
    assert_same("broken", "whole")
    assert run("other", *arguments) == 0
    assert len(parts("other")) != len(parts("whole"))


TRAINING = ["training=induction", "training.plan.steps=60", "training.plan.evaluate_every=5"]


def test_training_that_was_killed_ends_with_the_same_weights(tmp_path):
    quiet, killed = (tmp_path / name for name in ("quiet", "killed"))
    assert test_experiments.run("train", *TRAINING, f"hydra.run.dir={quiet}") == 0
    process = start(killed, *TRAINING, experiment="train")
    while not (killed / "parts" / "state.safetensors").exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "induction").exists()
    assert test_experiments.run("train", *TRAINING, f"hydra.run.dir={killed}") == 0
    weights = [(folder / "induction" / "model.safetensors") for folder in (quiet, killed)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    history = [pd.read_parquet(folder / "history.parquet") for folder in (quiet, killed)]
    before, after = (table.drop(columns="tokens_per_second") for table in history)
    pd.testing.assert_frame_equal(before, after, check_exact=True)
