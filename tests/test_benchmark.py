"""The benchmark, run as a user runs it, on models that take no time."""

import ctypes
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import test_experiments

from experiments import benchmark, command
from experiments.benchmark import Work
from interp import results
from interp.heads import Head

pytestmark = pytest.mark.usefixtures("elsewhere")
RUNNERS = ["replay", "batched_heads", "hf_loop", "bridge_loop"]
QUICK = ["gemm=64", "repeats=2", "layers=1", "growth.repeats=1"]
SMALL = ["shapes=[[2,6,last],[2,6,all]]", "growth.examples=[[1,6],[2,6]]", "growth.tokens=[[2,8]]"]
COLUMNS = (
    "model examples tokens read runner seconds_per_head ratio_to_bridge_loop utilisation "
    "max_difference peak_mb"
)


run = partial(test_experiments.run, "benchmark")


def read(table):
    frame = results.load("results", table)
    return frame.drop(columns=["run", "seed", "dtype"])


def test_writes_the_tables_of_the_contract_for_several_models():
    assert run("-m", "model=tiny_llama,tiny_gpt2", *QUICK, *SMALL) == 0
    table, growth = read("benchmark"), read("growth")
    assert list(table) == COLUMNS.split()
    assert list(growth) == ["model", "axis", "value", "runner", "seconds_per_head"]
    shapes = table.groupby(["model", "examples", "tokens", "read"])["runner"].agg(list)
    assert shapes.to_list() == [RUNNERS] * 4
    assert (table["max_difference"] < 1e-4).all()
    assert (table.loc[table["runner"] == "bridge_loop", "ratio_to_bridge_loop"] == 1).all()
    assert (table[["seconds_per_head", "utilisation", "peak_mb"]] > 0).all(axis=None)
    curves = growth[growth["model"] == "tiny_llama"].groupby(["axis", "runner"])["value"].agg(list)
    for axis, values in {"examples": [1, 2], "tokens": [8], "layers": [1, 2, 3]}.items():
        assert curves[axis].to_list() == [values] * 2
    assert len(list(Path("results").rglob("benchmark.png"))) == 2


@pytest.mark.parametrize("name", RUNNERS)
def test_every_runner_closes_the_heads_it_is_given(name, model):
    llama = model("tiny_llama")
    for what in ("last", "all"):
        task = benchmark.random_task(llama, 3, 7, what, seed=0)
        clean = task.score(llama, task.questions(llama, range(3))).tolist()
        heads = [Head("attn", layer, head) for layer in (0, 2) for head in (1, 3)]
        # a budget of two prompts: examples and heads are cut into several micro-batches
        found, seconds = benchmark.RUNNERS[name](Work(llama, task, heads, 14))
        asked = task.questions(llama, range(3))
        for head, scores in zip(heads, found, strict=True):
            weight = llama.module.model.layers[head.layer].self_attn.o_proj.weight
            kept = weight.detach().clone()
            weight.data[:, 8 * head.head : 8 * head.head + 8] = 0.0  # what nothing is read from
            alone = task.score(llama, asked).tolist()
            weight.data.copy_(kept)
            assert scores.tolist() == pytest.approx(alone, abs=1e-5)
            assert scores.tolist() != pytest.approx(clean, abs=1e-6)
        assert seconds > 0


def test_counts_the_multiply_adds_by_hand(model):
    llama = model("tiny_llama")
    # q and o: 32 x 32; k and v: 32 x 16; three matrices 32 x 64; the vocabulary
    block = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    unembedding = 32 * llama.unembed.weight.shape[0]
    task = benchmark.random_task(llama, 2, 5, "last", seed=0)
    assert benchmark.multiply_adds(llama, task, [1]) == 10 * 2 * block + 2 * unembedding
    task = benchmark.random_task(llama, 2, 5, "all", seed=0)
    assert benchmark.multiply_adds(llama, task, [0, 2]) == 10 * 2 * block + 8 * unembedding


def test_layers_are_spread_around_the_middle():
    assert benchmark.spread(2, 30) == (7, 22)  # on average as many blocks follow as of all layers
    assert benchmark.spread(5, 3) == (0, 1, 2)


def test_texts_beyond_the_context_are_left_out_of_the_growth_curves():
    growth = ["growth.tokens=[[1,8],[1,128],[1,256]]", "growth.examples=[[1,4]]", "growth.layers=1"]
    assert run("model=tiny_llama", *QUICK, "shapes=[[1,4,last]]", *growth) == 0
    table = read("growth")
    assert set(table.loc[table["axis"] == "tokens", "value"]) == {8, 128}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("shapes=[[2,6,first]]", "is not [examples, tokens, last or all]"),
        ("shapes=[[2,6]]", "is not [examples, tokens, last or all]"),
        ("shapes=[[2,500,all]]", "takes at most 128"),
        ("repeats=0", "repeats=0: at least 1"),
        ("growth.layers=0", "growth.layers=0: at least 1"),
        ("model=tiny_bert", "needs a decoder"),
    ],
)
def test_bad_input_ends_in_one_line(override, message, capsys):
    assert run(*(["model=tiny_llama"] if "model" not in override else []), override) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not Path("results").exists()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_command_keeps_freed_memory_for_its_next_tensor():
    code = """
import resource, numpy as np
from experiments.command import keep_memory
keep_memory()
np.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    root = Path(command.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert int(done.stdout) < 100  # 32,768 pages of 4 KiB


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_c_libraries_are_left_alone(error, monkeypatch):
    def without(name):
        raise error

    monkeypatch.setattr(ctypes, "CDLL", without)
    command.keep_memory()
