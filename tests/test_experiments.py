"""Every command, run as a user runs it, on models that take no time."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from experiments import (
    ablation,
    benchmark,
    gates,
    head_count,
    importance,
    interactions,
    pruning,
    redundancy,
    roles,
    self_repair,
    specialisation,
    train,
    validate,
)
from experiments.command import CONF
from interp import results, sweep

COMMANDS = {
    "ablation": ablation.main,
    "benchmark": benchmark.main,
    "gates": gates.main,
    "head_count": head_count.main,
    "importance": importance.main,
    "interactions": interactions.main,
    "pruning": pruning.main,
    "redundancy": redundancy.main,
    "roles": roles.main,
    "self_repair": self_repair.main,
    "specialisation": specialisation.main,
    "train": train.main,
    "validate": validate.main,
}
pytestmark = pytest.mark.usefixtures("elsewhere")
TEXT = "The cat sat on the mat. It was a fine day, and nobody came to disturb its long sleep.\n"
SUMMARY = (
    "model site layer head kv_group unit ablation positions task metric n n_clusters clean ablated "
    "effect damage se ci_low ci_high p_value q_value class"
)
EFFECTS = (
    "model site layer head kv_group unit ablation positions task metric example cluster clean "
    "ablated effect damage stratum"
)


def run(name, *overrides):
    """Run a command; return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *overrides])
        patch.setenv("HYDRA_FULL_ERROR", "1")
        try:
            COMMANDS[name]()
        except SystemExit as stop:
            return stop.code
        finally:
            GlobalHydra.instance().clear()
    return 0


def stop_at(n, error, monkeypatch):
    """Let the n-th micro-batch from now fail, once."""
    honest, calls = sweep.Engine.run, []

    def failing(engine, job):
        calls.append(job)
        if len(calls) == n:
            raise error
        return honest(engine, job)

    monkeypatch.setattr(sweep.Engine, "run", failing)


def write(name, text):
    Path(name).write_text(text, encoding="utf-8")
    return name


def files():
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def test_every_configuration_composes_and_names_arguments_that_exist():
    from inspect import signature

    from hydra.utils import get_method

    with initialize_config_dir(str(CONF), version_base="1.3"):
        for name, group in (("ablation", "model"), ("ablation", "task"), ("roles", "corpus")):
            for option in sorted((CONF / group).glob("*.yaml")):
                node = compose(name, [f"{group}={option.stem}"])[group]
                keys = {key for key in node if key != "_target_"}
                arguments = set(signature(get_method(node["_target_"])).parameters) - {"model"}
                assert keys == arguments, option
        for option in sorted((CONF / "training").glob("*.yaml")):
            chosen = compose("train", [f"training={option.stem}"]).training
            for node in (chosen.lesson, chosen.plan):
                keys = {key for key in node if key != "_target_"}
                assert keys == set(signature(get_method(node["_target_"])).parameters), option
        for experiment in COMMANDS:
            compose(experiment)


def test_writes_the_tables_of_the_contract(capsys):
    assert run("ablation", "model=tiny_llama", "n_examples=8", "task.min_accuracy=0") == 0
    [record] = Path("results").rglob("run.json")
    assert str(record.parent) == (
        "results/ablation/tiny_llama/agreement-mean,n_examples=8,task.min_accuracy=0"
    )
    made = {path.name for path in record.parent.iterdir()}
    assert made >= {"effects.parquet", "summary.parquet", "heads.png", "strongest.png", "run.json"}
    summary, effects = results.load("results"), results.load("results", "effects")
    assert [
        c for c in summary if c not in ("run", "seed", "n_examples", "dtype")
    ] == SUMMARY.split()
    assert [
        c for c in effects if c not in ("run", "seed", "n_examples", "dtype")
    ] == EFFECTS.split()
    assert len(summary) == 12
    assert len(effects) == 12 * 8
    assert not effects.duplicated(["site", "layer", "head", "example"]).any()
    assert not summary.drop(columns="run").isna().any().any()
    means = effects.groupby(["layer", "head"])["damage"].mean()
    assert means.to_numpy() == pytest.approx(summary["damage"].to_numpy())
    facts = json.loads(record.read_text())
    assert facts["done"]
    assert facts["n_rows"] == 96
    assert facts["model"]["weight_processing"] == "none"
    assert facts["model"]["prepend_bos"] is False
    assert "the heads with the most damage, 10 of 12" in capsys.readouterr().out


def test_a_finished_run_is_not_repeated(monkeypatch, capsys):
    arguments = ["model=tiny_gpt2", "n_examples=4", "task.min_accuracy=0", "hydra.run.dir=here"]
    assert run("ablation", *arguments) == 0
    first = capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in Path("here").rglob("*")}
    monkeypatch.setattr(ablation, "measure", None)
    assert run("ablation", *arguments) == 0
    assert capsys.readouterr().out == first
    assert {path: path.stat().st_mtime_ns for path in Path("here").rglob("*")} == before


def test_an_interrupted_run_goes_on_and_ends_the_same(monkeypatch):
    monkeypatch.setattr(sweep, "PART_TOKENS", 300)
    arguments = ["model=tiny_gpt2", "n_examples=6", "task.min_accuracy=0"]
    arguments.append("tokens_per_batch=128")  # what is measured may differ
    assert run("ablation", *arguments, "hydra.run.dir=whole") == 0
    stop_at(8, OSError("the disk is full"), monkeypatch)
    with pytest.raises(OSError, match="full"):
        run("ablation", *arguments, "hydra.run.dir=broken")
    done = len(list(Path("broken/parts").glob("*.parquet")))
    assert 0 < done < len(list(Path("whole/parts").glob("*.parquet")))
    assert not Path("broken/effects.parquet").exists()
    assert run("ablation", *arguments, "hydra.run.dir=broken") == 0
    for table in ("effects", "summary"):
        whole, broken = (pd.read_parquet(f"{f}/{table}.parquet") for f in ("whole", "broken"))
        pd.testing.assert_frame_equal(whole, broken, check_exact=True)


def test_a_folder_never_takes_another_configuration(capsys):
    prompts = write("p.csv", "prompt,answer,distractor\nThe dog, is, are\nThe cats, are, is\n")
    arguments = ["model=tiny_gpt2", "task=prompts", f"task.path={prompts}", "task.min_accuracy=0"]
    assert run("ablation", *arguments, "hydra.run.dir=here") == 0
    before = Path("here/effects.parquet").read_bytes()
    assert run("ablation", *arguments, "hydra.run.dir=here", "seed=1") == 2
    assert "seed (0 there, 1 here)" in capsys.readouterr().err
    write("p.csv", "prompt,answer,distractor\nThe dog, is, are\nThe men, are, is\n")
    assert run("ablation", *arguments, "hydra.run.dir=here") == 2
    assert "the content of task.path" in capsys.readouterr().err
    assert Path("here/effects.parquet").read_bytes() == before


def test_a_single_head_needs_no_brackets():
    arguments = ["model=tiny_gpt2", "n_examples=4", "task.min_accuracy=0"]
    assert run("ablation", *arguments, "heads=L1H2") == 0
    [line] = results.load("results").itertuples()
    assert (line.layer, line.head) == (1, 2)


def test_a_multirun_loads_as_one_frame():
    arguments = ["-m", "model=tiny_gpt2", "n_examples=4", "task.min_accuracy=0"]
    assert run("ablation", *arguments, "ablation=zero,mean") == 0
    summary = results.load("results/ablation")
    assert summary.groupby("ablation").size().to_dict() == {"zero": 12, "mean": 12}
    assert summary["run"].nunique() == 2


def test_a_job_that_fails_does_not_stop_the_others_of_a_multirun(capsys):
    arguments = ["-m", "model=tiny_gpt2", "n_examples=4", "task.min_accuracy=0"]
    assert run("ablation", *arguments, "heads=[L0H9],[L0H1]") == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert "L0H9" in lines[0]
    assert len(results.load("results")) == 1


def tasks():
    """Every task on a model that can take it, with files of our own."""
    write("pairs.jsonl", '{"sentence_good": "She runs.", "sentence_bad": "She run."}\n' * 2)
    write("text.txt", TEXT * 4)
    write("s.csv", "source,target\nhello you,hallo du\ngood day,guten tag\nabc,xyz\n")
    write("sd.csv", "source,target,distractor\nhello,hallo,hello\ngood,guten,tag\n")
    return {
        "pronouns": ["model=tiny_neox", "n_examples=4"],
        "minimal_pairs": ["model=tiny_gemma2", "task.path=pairs.jsonl"],
        "text_loss": ["model=tiny_gpt2", "task.path=text.txt", "task.context=32", "n_examples=4"],
        "masked_tokens": [
            "model=tiny_bert",
            "task.path=text.txt",
            "task.context=32",
            "n_examples=4",
        ],
        "similarity": ["model=tiny_bert", "n_examples=4"],
        "seq2seq": ["model=tiny_t5", "task.path=s.csv"],
    }


@pytest.mark.parametrize("kind", ["zero", "mean", "mean_by_position", "resample", "uniform"])
@pytest.mark.parametrize(
    "task", ["pronouns", "minimal_pairs", "text_loss", "masked_tokens", "similarity", "seq2seq"]
)
def test_every_task_runs_under_every_ablation(task, kind, capsys):
    choices = [*tasks()[task], f"task={task}", f"ablation={kind}", "hydra.run.dir=here"]
    if task in ("pronouns", "minimal_pairs", "similarity"):
        choices.append("task.min_accuracy=0")
    if kind == "mean_by_position" and task in ("masked_tokens", "similarity", "seq2seq"):
        assert run("ablation", *choices) == 2  # [CLS], [SEP] and </s> are no text
        assert "reference.specials=true" in capsys.readouterr().err
        choices.append("reference.specials=true")
    status = run("ablation", *choices)
    if kind == "resample" and task in ("similarity", "seq2seq"):
        assert status == 2  # no two of these few sentences are equally long
        assert "has no partner" in capsys.readouterr().err
        return
    assert status == 0
    summary = results.load("here")
    assert summary["damage"].notna().all()
    assert ("draw_sd" in summary) == (kind == "resample")


BAD = {
    "a misspelt key": (["taks=prompts"], "'taks'"),
    "a misspelt key of a group": (["model.nmae=x"], "'model.nmae'"),
    "an added key": (["+model.foo=1"], "foo"),
    "an unknown model": (["model=gpt5"], "gpt5"),
    "a missing name": (["model=pretrained"], "model.name is missing"),
    "an unknown folder": (["model=pretrained", "model.name=/no/such/folder"], "/no/such/folder"),
    "an unknown checkpoint": (["model=custom", "model.path=/no/such"], "/no/such"),
    "an unknown task": (["task=chess"], "chess"),
    "an unknown ablation": (["ablation=median"], "ablation=median"),
    "unknown positions": (["positions=last"], "positions=last"),
    "an unknown unit": (["unit=neuron"], "unit=neuron"),
    "a head that does not exist": (["heads=[L99H1]"], "L99H1"),
    "what is no head": (["heads=[H5]"], "'H5' is not a head"),
    "a head that Hydra takes for a number": (["heads=[5.10]"], "5.1 reads as a number"),
    "no heads": (["heads=[]"], "heads: name at least one"),
    "a word for a number": (["n_examples=many"], "n_examples=many"),
    "a negative number": (["seed=-1"], "seed=-1"),
    "no examples": (["n_examples=0"], "n_examples=0"),
    "a level in per cent": (["level=95"], "level=95"),
    "no draws": (["bootstrap_draws=0"], "bootstrap_draws=0"),
    "a folder that cannot be": (["hydra.run.dir=/proc/x"], "/proc/x cannot be written"),
    "a folder of other things": (["hydra.run.dir=."], "choose another folder"),
    "no tokens": (["tokens_per_batch=0"], "tokens_per_batch=0"),
    "a word for tokens": (["tokens_per_batch=lots"], "tokens_per_batch=lots"),
    "a shard that is none": (["shard=2/2"], "shard=2/2"),
    "a shard of another form": (["shard=1"], "shard=1"),
    "one head for a pair": (["unit=pair", "heads=[L0H1]"], "unit=pair"),
    "a set without heads": (["unit=set"], "unit=set"),
    "a set that is no list": (["unit=set", "sets=[L0H1,L1H1]"], "L0H1 is no list"),
    "sets for another unit": (["sets=[[L0H1]]"], "unit=head"),
    "heads beside sets": (["unit=set", "sets=[[L0H1]]", "heads=[L0H1]"], "leave heads out"),
    "rounds that shrink": (["adaptive=true", "rounds=[0.5,0.25,1]"], "rounds=[0.5, 0.25, 1.0]"),
    "rounds that do not end": (["adaptive=true", "rounds=[0.5]"], "rounds=[0.5]"),
    "rounds that are no list": (["rounds=0.5"], "rounds=0.5"),
    "rounds that are no numbers": (["rounds=[a,b]"], "rounds=['a', 'b']"),
    "an unknown direction": (["direction=up"], "direction=up"),
    "a direction without twins": (["direction=noising"], "no corrupted prompts"),
    "a direction and a mean": (["direction=noising", "ablation=mean"], "ablation=resample"),
    "an unknown device": (["device=abacus"], "device=abacus"),
    "an unknown dtype": (["dtype=int7"], "int7"),
    "an encoder on prompts": (["model=tiny_bert"], "tiny_bert"),
    "padding a T5 left": (["model=tiny_t5", "model.padding_side=left"], "padding_side=left"),
    "an unknown partner": (["ablation=resample", "resample.partner=x"], "resample.partner=x"),
    "twins that are not there": (["ablation=resample", "resample.partner=corrupted"], "corrupted"),
    "a reference that is not there": (["reference.path=/no/such.txt"], "/no/such.txt"),
    "a file that is not there": (["task=prompts", "task.path=/no/such.csv"], "/no/such.csv"),
    "a wrong column": (["task=prompts", "task.path=column.csv"], "'answer'"),
    "an empty file": (["task=prompts", "task.path=empty.csv"], "empty.csv"),
    "a table without rows": (["task=prompts", "task.path=header.csv"], "header.csv"),
    "an empty cell": (["task=prompts", "task.path=cell.csv"], "'distractor'"),
    "a prompt too long": (["task=prompts", "task.path=long.csv"], "longer than the context of 128"),
    "equal answers": (["task=prompts", "task.path=equal.csv"], "' is'"),
    "an answer that begins the other": (["task=prompts", "task.path=prefix.csv"], "' barks'"),
    "bytes that are no text": (["task=prompts", "task.path=latin.csv"], "latin.csv"),
}


@pytest.mark.parametrize(("overrides", "names"), BAD.values(), ids=BAD)
def test_bad_input_ends_in_one_line_and_leaves_nothing(overrides, names, capsys):
    head = "prompt,answer,distractor\n"
    write("column.csv", "prompt,answr,distractor\nThe dog, is, are\n")
    write("empty.csv", "")
    write("header.csv", head)
    write("cell.csv", head + "The dog, is,\n")
    write("long.csv", head + "word " * 60 + ", is, are\n")
    write("equal.csv", head + "The dog, is, is\n")
    write("prefix.csv", head + "The dog, barks, bark\n")
    Path("latin.csv").write_bytes((head + "Die Kühe, sind, ist\n").encode("latin-1"))
    before = files()
    model = [] if any(o.startswith("model=") for o in overrides) else ["model=tiny_gpt2"]
    status = run("ablation", *model, "task.min_accuracy=0", *overrides)
    captured = capsys.readouterr()
    [line] = captured.err.strip().splitlines()
    assert status == 2
    assert line.startswith("error: ")
    assert names in line
    assert "Traceback" not in captured.err
    assert files() == before
    assert not Path("results").exists()


def test_a_model_that_cannot_do_the_task_stops_with_status_3(capsys):
    assert run("ablation", "model=tiny_gpt2") == 3
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "lower 95 % bound" in line
    assert not Path("results").exists()


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(ablation, "measure", lambda cfg, run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("ablation", "model=tiny_gpt2")


def test_the_configured_dtype_is_used():
    arguments = ["model=tiny_gpt2", "n_examples=4", "task.min_accuracy=0", "dtype=bfloat16"]
    assert run("ablation", *arguments) == 0
    summary = results.load("results")
    assert summary["damage"].dtype == torch.zeros((), dtype=torch.float64).numpy().dtype
    assert (summary["dtype"] == "bfloat16").all()


SHORT = [
    "training.plan.steps=6",
    "training.plan.evaluate_every=2",
    "training.plan.n_test=8",
    "training.plan.batch_size=4",
]
LESSONS = {
    "induction": [],
    "pronouns": [],
    "relations": ["training.lesson.n_cases=6", "training.lesson.n_verbs=6"],
    "translation": [],
    "text": ["training.lesson.path=text.txt", "training.lesson.context=8"],
}


@pytest.mark.parametrize("name", LESSONS)
def test_what_was_trained_is_a_model_for_every_other_command(name, capsys):
    write("text.txt", TEXT * 20)
    assert run("train", f"training={name}", *LESSONS[name], *SHORT, "checkpoints=[0,3]") == 0
    said = capsys.readouterr().out
    assert f"{name}, " in said
    history = results.load("results/train", "history")
    assert {"task", "seed", "step", "split", "loss", "accuracy", "tokens_per_second"} <= {*history}
    assert history[history["split"] == "test"]["step"].tolist() == [0, 2, 4, 6]
    [folder] = (path.parent for path in Path("results").rglob("run.json"))
    assert (folder / "history.png").exists()
    assert sorted(path.name for path in folder.glob("checkpoints/*")) == [
        f"{name}-00000",
        f"{name}-00003",
    ]
    [found] = [word for word in said.split() if "model.path=" in word]
    arguments = ["model=custom", found.strip("')").replace('"', ""), "task=trained"]
    arguments[1] = f"model.path='{arguments[1].partition('=')[2]}'"
    arguments += ["task.n=4", "task.min_accuracy=0"]
    assert run("ablation", *arguments, "hydra.run.dir=there") == 0
    assert results.load("there")["damage"].notna().all()


def test_training_that_breaks_off_goes_on_and_ends_the_same(monkeypatch):
    arguments = ["training=induction", *SHORT, "checkpoints=[3]"]
    assert run("train", *arguments, "hydra.run.dir=whole") == 0
    honest = train.fit

    def failing(*args, watch, **choices):
        def stop(now):
            watch(now)
            if now.step == 5:
                raise OSError("the disk is full")

        return honest(*args, watch=stop, **choices)

    monkeypatch.setattr(train, "fit", failing)
    with pytest.raises(OSError, match="full"):
        run("train", *arguments, "hydra.run.dir=broken")
    assert Path("broken/parts/state.safetensors").exists()
    assert not Path("broken/induction").exists()
    monkeypatch.setattr(train, "fit", honest)
    assert run("train", *arguments, "hydra.run.dir=broken") == 0
    for name in ("induction", "checkpoints/induction-00003"):
        files = [Path(folder, name, "model.safetensors") for folder in ("whole", "broken")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert not Path("broken/parts/state.safetensors").exists()
    tables = [pd.read_parquet(f"{f}/history.parquet") for f in ("whole", "broken")]
    whole, broken = (table.drop(columns="tokens_per_second") for table in tables)
    pd.testing.assert_frame_equal(whole, broken, check_exact=True)


FEW_HEADS = [
    *("n_seeds=2", "training.lesson.n_cases=6", "training.lesson.n_verbs=6"),
    *("arms.fixed_width.n_heads=[1,4,32]", "arms.fixed_d_head.n_heads=[1,2]"),
    *("~arms.one_query", "~arms.one_relation", "arms.no_mixing.n_heads=[2]"),
]


def test_the_head_count_is_the_same_in_one_go_in_shards_and_after_a_break(monkeypatch, capsys):
    arguments = [*FEW_HEADS, *SHORT]
    assert run("head_count", *arguments, "hydra.run.dir=whole") == 0
    said = capsys.readouterr().out
    assert (
        "from 1 head to 32 heads: parameters × 1, multiply-adds × 1, entries of the score" in said
    )
    assert "fixed_width: best with" in said
    for shard in ("1/2", "0/2"):
        assert run("head_count", *arguments, f"shard={shard}", "hydra.run.dir=shards") == 0
    honest, calls = head_count.fit, []

    def failing(*args, **choices):
        calls.append(args)
        if len(calls) == 4:
            raise OSError("the disk is full")
        return honest(*args, **choices)

    monkeypatch.setattr(head_count, "fit", failing)
    with pytest.raises(OSError, match="full"):
        run("head_count", *arguments, "hydra.run.dir=broken")
    assert run("head_count", *arguments, "hydra.run.dir=broken") == 0
    assert len(calls) == 13  # 12 models, one of them twice
    order = ["arm", "n_heads", "seed"]
    whole, *others = (
        pd.read_parquet(f"{folder}/head_count.parquet")
        .sort_values(order, ignore_index=True)
        .drop(columns="seconds_per_step")
        for folder in ("whole", "shards", "broken")
    )
    for other in others:
        pd.testing.assert_frame_equal(whole, other, check_exact=True)
    assert not whole.duplicated(order).any()
    width = whole[whole["arm"] == "fixed_width"]
    assert width["n_parameters"].nunique() == width["multiply_adds"].nunique() == 1
    entries = width.groupby("n_heads")["score_entries"].first()
    assert (entries / entries[1]).to_dict() == {1: 1, 4: 4, 32: 32}


def test_heads_that_are_not_mixed_write_side_by_side_for_good():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("head_count", [*FEW_HEADS, *SHORT, "device=cpu"])
    GlobalHydra.instance().clear()
    job = head_count.Job("no_mixing", 2, 0)
    lesson, model = head_count.pupil(cfg, job)
    before = model.blocks[0].attn.W_O.clone()
    plan = head_count.build(cfg.training.plan)
    head_count.fit(model, lesson, plan, seed=0, state=None, watch=lambda now: None)
    assert torch.equal(model.blocks[0].attn.W_O, before)
    z = torch.randn(1, 3, 2, 16)
    assert torch.equal(model.blocks[0].attn._output(z), z.flatten(2))
    _, mixed = head_count.pupil(cfg, head_count.Job("fixed_width", 4, 0))
    assert mixed.blocks[0].attn.W_O.requires_grad


BAD_TRAINING = {
    "checkpoints beyond the end": (["checkpoints=[7]"], "steps from 0 to 6"),
    "checkpoints that are no list": (["checkpoints=3"], "checkpoints=3"),
    "heads that do not share the width": (["training.model.n_heads=3"], "n_heads=3"),
    "no steps": (["training.plan.steps=0"], "steps=0"),
    "a text without a path": (["training=text"], "training.lesson.path is missing"),
    "a text that is not there": (["training=text", "training.lesson.path=/no/such"], "/no/such"),
    "an unknown lesson": (["training=chess"], "chess"),
}


@pytest.mark.parametrize(("overrides", "names"), BAD_TRAINING.values(), ids=BAD_TRAINING)
def test_bad_training_ends_in_one_line_and_leaves_nothing(overrides, names, capsys):
    assert run("train", *SHORT, *overrides) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert names in line
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("n_seeds=0", "n_seeds=0"),
        ("arms.fixed_width.n_heads=[]", "arms.fixed_width"),
        ("arms.fixed_width.n_heads=[5]", "n_heads=5"),
        ("arms.no_mixing.model.d_head=4", "2 heads of width 4 do not fill d_model=32"),
    ],
)
def test_a_bad_head_count_ends_in_one_line_and_leaves_nothing(override, names, capsys):
    assert run("head_count", *FEW_HEADS, *SHORT, override) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert names in line
    assert not Path("results").exists()


@pytest.mark.parametrize("experiment", ["roles", "redundancy"])
def test_a_corpus_in_words_unknown_to_the_model_is_refused(experiment, capsys):
    assert run(experiment, "model=trained", "model.name=relations") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "tokens are unknown to relations (corpus=trained has sentences" in line
    assert not Path("results").exists()
