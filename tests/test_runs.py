"""A run's folder, without a model: what is written when, who may write, what a kill leaves."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from interp import runs
from interp.errors import InputError
from interp.runs import SCRATCH, Run

ROOT = Path(__file__).parent.parent
CONFIG = {"seed": 0, "model": {"name": "a", "path": None}, "heads": ["L0H1"]}
INPUTS = {"task.path": "1234"}
FACTS = {"plan": {"tokens_per_batch": 64}}
ROWS = pd.DataFrame({"setting": [0, 1], "example": [5, 5], "ablated": [0.25, 0.5]})
HOLD = """
import sys, time
from pathlib import Path
from interp.runs import Run
run = Run(Path(sys.argv[1]), {"seed": 0, "model": {"name": "a", "path": None}, "heads": ["L0H1"]},
          {"task.path": "1234"}, (int(sys.argv[2]), int(sys.argv[3])))
with run.working():
    print("working", flush=True)
    time.sleep(60)
"""


def run(folder, config=CONFIG, inputs=INPUTS, shard=(0, 1)):
    return Run(folder, config, inputs, shard)


def started(folder, **choices):
    made = run(folder, **choices)
    made.start(FACTS, {})
    return made


def end(made, *numbers):
    """Let a shard write one row in each of some parts, and end."""
    parts = [made.part(0, number) for number in numbers]
    for number, part in zip(numbers, parts, strict=True):
        made.write_part(part, ROWS.assign(example=number))
    made.end_shard(parts)


def scratch(folder):
    return sorted(path.name for path in folder.rglob(f"{SCRATCH}*"))


@contextmanager
def other_process(folder, shard=(0, 1)):
    """Let a second process work on a shard."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder, *map(str, shard)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "working\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_run_json_is_written_before_anything_else(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        Run, "write", lambda made, name, table: seen.append((name, made.is_started))
    )
    made = run(tmp_path / "deep" / "here")
    assert not made.is_started
    made.start(FACTS, {"examples": ROWS, "units": ROWS})
    assert seen == [("examples", True), ("units", True)]
    assert not list(made.folder.rglob("*.parquet"))
    record = json.loads((made.folder / "run.json").read_text())
    assert record["config"] == CONFIG
    assert record["inputs"] == INPUTS
    assert record["n_shards"] == 1
    assert record["plan"] == FACTS["plan"]
    assert record["versions"].keys() >= {"python", "torch", "numpy"}
    assert record["done"] is False
    assert not made.is_done


def test_tables_that_a_killed_start_did_not_write_are_written_by_the_next(tmp_path):
    started(tmp_path)
    run(tmp_path).start(FACTS, {"examples": ROWS})
    pd.testing.assert_frame_equal(run(tmp_path).read("examples"), ROWS)


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        ({"config": CONFIG | {"seed": 1}}, ["seed (0 there, 1 here)"]),
        ({"config": CONFIG | {"model": {"name": "b"}}}, ["model.name (a there, b here)"]),
        ({"config": CONFIG | {"heads": None}}, ["heads (['L0H1'] there, None here)"]),
        ({"config": CONFIG | {"level": 0.9}}, ["level (None there, 0.9 here)"]),
        ({"inputs": {"task.path": "5678"}}, ["the content of task.path"]),
        ({"inputs": {}}, ["the content of task.path"]),
        ({"shard": (0, 2)}, ["n_shards (1 there, 2 here)"]),
        (
            {"config": CONFIG | {"seed": 1}, "inputs": {"task.path": "5"}, "shard": (0, 2)},
            ["seed (0 there, 1 here)", "the content of task.path", "n_shards (1 there, 2 here)"],
        ),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_a_folder_of_another_run_is_refused_with_what_differs(choices, names, tmp_path):
    started(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(InputError) as refusal:
        run(tmp_path, **choices)
    head, _, rest = str(refusal.value).partition(" holds a run that differs in ")
    told, _, advice = rest.rpartition(": ")
    assert head == str(tmp_path)
    assert sorted(told.split("; ")) == sorted(names)
    assert advice == "choose another folder (hydra.run.dir=…) or remove that one"
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_folder_of_the_same_run_is_taken_again(tmp_path):
    first = started(tmp_path)
    again = run(tmp_path, config={key: CONFIG[key] for key in reversed(CONFIG)})
    assert again.record == first.record
    assert Run.at(tmp_path).identity == first.identity


def test_a_run_that_another_configuration_has_overtaken_does_not_start(tmp_path):
    slow = run(tmp_path, config=CONFIG | {"seed": 1})
    started(tmp_path)
    with pytest.raises(InputError, match=r"seed \(0 there, 1 here\)"):
        slow.start(FACTS, {})
    assert run(tmp_path).record["config"]["seed"] == 0


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"holds thesis\.tex and no run"):
        run(tmp_path)


def test_what_a_killed_start_and_hydra_leave_is_not_foreign(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "multirun.yaml").touch()
    (tmp_path / f"{SCRATCH}-12ab.json").write_text('{"do')
    assert not run(tmp_path).is_started


def test_scratch_files_of_killed_processes_are_gone_in_the_end(tmp_path):
    made = started(tmp_path)
    for name in (f"{SCRATCH}-1.json", f"{SCRATCH}-2.parquet", f"parts/{SCRATCH}0of1-3.parquet"):
        (tmp_path / name).write_text("half")
    with made.working():
        assert scratch(tmp_path / "parts") == []
        end(made, 0)
    made.finish()
    assert scratch(tmp_path) == []
    assert run(tmp_path).is_done


def test_a_run_is_done_only_after_it_has_been_cleared_up(tmp_path, monkeypatch):
    made = started(tmp_path)
    end(made, 0)
    (tmp_path / f"{SCRATCH}-1.png").touch()
    left, honest = [], runs.write_json
    monkeypatch.setattr(
        runs, "write_json", lambda *done: (left.extend(scratch(tmp_path)), honest(*done))
    )
    made.finish()
    assert left == []
    assert made.is_done


def test_a_shard_leaves_alone_what_another_one_is_writing(tmp_path):
    ours, theirs = (started(tmp_path, shard=(index, 2)) for index in range(2))
    with runs.whole(theirs.part(0, 0), theirs.shard) as unfinished:
        ROWS.to_parquet(unfinished)
        with ours.working():
            end(ours, 0)
    assert theirs.part(0, 0).exists()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_file_is_written_whole_or_not_at_all(error, tmp_path):
    path = tmp_path / "table.txt"

    def write(text, stop):
        with runs.whole(path) as scratch_file:
            scratch_file.write_text(text)
            assert not path.exists() or path.read_text() == "old"
            if stop:
                raise error

    with pytest.raises(error):
        write("half", stop=True)
    assert list(tmp_path.iterdir()) == []
    write("old", stop=False)
    with pytest.raises(error):
        write("half", stop=True)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
    write("new", stop=False)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["new"]


def test_what_cannot_be_written_is_named_in_one_line(tmp_path):
    path = tmp_path / "no folder" / "table.txt"
    with (
        pytest.raises(InputError, match=r"table\.txt cannot be written: No such file or directory"),
        runs.whole(path) as scratch_file,
    ):
        scratch_file.write_text("text")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_umask_gives(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        made = started(tmp_path)
        end(made, 0)
        made.write("effects", ROWS)
    finally:
        os.umask(before)
    written = [*tmp_path.glob("*.*"), *tmp_path.glob("parts/0of1*")]
    assert len(written) == 4
    assert {file.stat().st_mode & 0o777 for file in written} == {mode}


def test_the_plan_of_the_shard_that_starts_first_holds_for_all(tmp_path):
    first, second = (run(tmp_path, shard=(index, 2)) for index in range(2))
    other = ROWS.assign(example=7)
    assert first.start(FACTS, {"units": ROWS})["plan"] == FACTS["plan"]
    got = second.start({"plan": {"tokens_per_batch": 512}}, {"units": other, "examples": other})
    assert got["plan"] == first.record["plan"] == FACTS["plan"]
    pd.testing.assert_frame_equal(second.read("units"), ROWS)
    pd.testing.assert_frame_equal(second.read("examples"), other)


def test_a_second_process_is_turned_away_until_the_first_one_dies(tmp_path):
    made = started(tmp_path, shard=(0, 2))
    with other_process(tmp_path, (0, 2)) as process:
        with pytest.raises(InputError) as refusal, made.working():
            pass
        assert str(refusal.value).startswith(f"{tmp_path}: another process is at work")
        assert "\n" not in str(refusal.value)
        with run(tmp_path, shard=(1, 2)).working():
            pass  # the other shard is free
        process.send_signal(signal.SIGKILL)
        process.wait()
        with made.working():
            pass


def test_a_shard_is_free_again_after_its_work(tmp_path):
    made = started(tmp_path)
    for _ in range(2):
        with made.working():
            pass
    with pytest.raises(RuntimeError, match="stop"), made.working():
        raise RuntimeError("stop")
    with other_process(tmp_path):
        pass


def test_shards_end_one_by_one_and_their_rows_come_together(tmp_path):
    first, second = (started(tmp_path, shard=(index, 2)) for index in range(2))
    assert first.unfinished == ["0/2", "1/2"]
    end(second, 3)
    assert first.unfinished == second.unfinished == ["0/2"]
    first.write_part(first.part(0, 9), ROWS)  # of a round that was never ended
    end(first, 0, 1)
    assert first.unfinished == []
    assert [shard["parts"] for shard in first.shards()] == [
        ["0of2-0-00000.parquet", "0of2-0-00001.parquet"],
        ["1of2-0-00003.parquet"],
    ]
    assert all(shard["seconds"] >= 0 and shard["peak_mb"] > 0 for shard in first.shards())
    for reader in (first, second, Run.at(tmp_path)):
        rows = reader.rows()
        assert rows["example"].tolist() == [0, 0, 1, 1, 3, 3]
        assert rows["ablated"].tolist() == [0.25, 0.5] * 3


def test_a_process_that_comes_late_does_not_end_a_shard_again(tmp_path):
    made = started(tmp_path)
    end(made, 0)
    late = run(tmp_path)
    late.opened -= 1e6
    late.end_shard([made.part(0, 0)])
    assert made.shards()[0]["seconds"] < 1e6


def test_parts_of_shards_rounds_and_numbers_have_names_of_their_own(tmp_path):
    names = {
        run(tmp_path, shard=shard).part(round_, number)
        for shard in [(0, 2), (1, 2), (0, 12), (10, 12)]
        for round_ in range(3)
        for number in range(3)
    }
    assert len(names) == 4 * 3 * 3


def test_parts_are_turned_into_tables_once(tmp_path):
    first, second = (started(tmp_path, shard=(index, 2)) for index in range(2))

    def is_left(made):
        with made.finishing() as answer:
            return answer

    end(first, 0)
    assert not is_left(first)
    end(second, 0)
    assert is_left(second)
    assert is_left(first)  # the last one stopped before it was through
    first.finish(n_rows=4)
    assert not is_left(first)
    assert not is_left(second)
    assert first.record["n_rows"] == 4
    assert first.record["config"] == CONFIG


def test_who_comes_second_waits_for_the_tables(tmp_path):
    first, second = started(tmp_path), started(tmp_path)
    end(first, 0)
    answers = []

    def come_second():
        with second.finishing() as answer:
            answers.append(answer)

    other = threading.Thread(target=come_second)
    with first.finishing() as answer:
        answers.append(answer)
        other.start()
        time.sleep(0.3)
        assert len(answers) == 1
        first.finish()
    other.join(60)
    assert answers == [True, False]


def test_a_hash_follows_content_and_names(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.txt").write_text("two")
    (folder / "a.txt").write_text("one")
    before = runs.file_hash(folder)
    assert runs.file_hash(folder) == before
    (folder / "a.txt").write_text("One")
    assert runs.file_hash(folder) != before
    assert runs.file_hash(folder / "a.txt") != runs.file_hash(folder / "b.txt")
    (folder / "a.txt").write_text("one")
    assert runs.file_hash(folder) == before
    (folder / "a.txt").rename(folder / "a2.txt")
    assert runs.file_hash(folder) != before
