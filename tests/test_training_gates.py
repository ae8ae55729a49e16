"""Learned gates: the formulae by hand, the laws, and a model whose idle heads are known."""

from collections import Counter
from math import exp, log
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import CHOICES
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from test_experiments import run

from experiments import gates as experiment
from experiments.command import CONF
from interp import results, sweep
from interp.gates import Zero
from interp.heads import Head, all_heads, from_table
from interp.models.custom import custom, from_transformer
from interp.models.planted import planted
from interp.tasks.prompts import from_table as prompts
from interp.training import gates, lessons
from interp.training import lesson as lesson_
from interp.training.gates import Course, Gates, drawn, p_open, typical
from interp.training.pronouns import Pronouns
from interp.training.trainer import Settings, Trainer
from interp.training.translation import Translation

SETTINGS = {
    "warmup": 0,
    "decay_from": 1.0,
    "final_rate": 1.0,
    "weight_decay": 0.0,
    "beta2": 0.999,
    "clip": 1.0,
}
SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 16, "d_mlp": 16}


@pytest.fixture(scope="module")
def redundant():
    """A model whose heads are known, and a task made of its prompts."""
    model = planted("redundant", 0, padding_side="right", **CHOICES)
    return model, prompts(model, pd.DataFrame(model.examples), name="planted", min_accuracy=0.0)


def pupil(lesson, seed=0):
    """An untrained model for a lesson."""
    module = lesson.untrained(seed=seed, **SIZES)
    return from_transformer(module, lesson.tokenizer, name=lesson.name)


def course(steps, **choices):
    return Course(Settings(steps=steps, **SETTINGS), choices.pop("watch", print_nothing), **choices)


def print_nothing(now):
    pass


def sigmoid(x):
    return 1 / (1 + exp(-x))


def closing(model, heads):
    """Open all gates but those of some heads."""
    return gates.only(model, [head for head in all_heads(model.sites) if head not in heads])


# ------------------------------------------------------------------ by hand
def test_gates_are_as_worked_out_by_hand():
    log_alpha = torch.tensor([0.0, 2.0, -3.0])
    u = torch.tensor([0.5, 0.2, 0.9])
    inner = [sigmoid((log(v / (1 - v)) + a) / 0.33) for v, a in ((0.5, 0), (0.2, 2), (0.9, -3))]
    expected = [min(1, max(0, s * 1.2 - 0.1)) for s in inner]
    assert drawn(log_alpha, u).tolist() == pytest.approx(expected, abs=1e-6)
    assert drawn(log_alpha, u)[0].item() == pytest.approx(0.5)
    assert p_open(torch.zeros(1)).item() == pytest.approx(11**0.33 / (11**0.33 + 1))
    expected = [0.5, sigmoid(2) * 1.2 - 0.1, 0.0]
    assert typical(log_alpha).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("value", [-2.0, 0.0, 1.5])
def test_gates_are_open_as_often_as_their_probability_says(value):
    n = 20_000
    u = torch.rand(n, generator=torch.Generator().manual_seed(0))
    found = drawn(torch.full((n,), value), u)
    assert (found > 0).float().mean().item() == pytest.approx(
        p_open(torch.tensor([value])).item(), abs=0.015
    )
    likelier = (found == 1).sum() > (found == 0).sum()
    assert value == 0 or likelier == (value > 0)


@pytest.mark.parametrize(("value", "is_settled"), [(-2.0, True), (-1.9, False), (1.9, False)])
def test_a_gate_is_settled_beyond_the_log_alpha_that_the_module_names(value, is_settled):
    gate = typical(torch.tensor([value])).tolist()
    assert (gates.settled(pd.DataFrame({"gate": gate})) == 1.0) == is_settled


def test_settled_gates_are_those_near_0_or_1():
    table = pd.DataFrame({"gate": [0.0, 0.04, 0.06, 0.5, 0.96, 1.0]})
    assert gates.settled(table) == pytest.approx(4 / 6)


def test_the_price_is_that_of_the_heads_that_are_open_on_average(redundant):
    model, _ = redundant
    learned = Gates(model, start=1.0)
    n = len(all_heads(model.sites))
    each = sigmoid(1.0 + 0.33 * log(11))
    assert learned.expected().item() == pytest.approx(n * each, rel=1e-5)
    assert learned.n_open() == n


def test_the_table_names_heads_in_the_order_of_their_gates(redundant):
    model, _ = redundant
    learned = Gates(model, start=-1.0)
    with torch.no_grad():
        learned.log_alpha[1][2] = 3.0
    table = learned.table()
    assert gates.kept(table) == [Head("attn", 1, 2)]
    assert from_table(table) == all_heads(model.sites)
    assert learned.n_open() == 1
    rounded = learned.each(gates.rounded)
    assert rounded["attn", 1][0, 0].tolist() == [0, 0, 1, *[0] * (rounded["attn", 1].shape[-1] - 3)]
    for place, gate in gates.only(model, [Head("attn", 1, 2)]).items():
        assert torch.equal(gate, rounded[place])


def test_random_sets_are_of_one_size_and_of_all_heads_alike(redundant):
    model, _ = redundant
    heads = all_heads(model.sites)
    sets = gates.random_sets(model, 3, 400, seed=1)
    assert {len(set(chosen)) for chosen in sets} == {3}
    counts = Counter(head for chosen in sets for head in chosen)
    expected = 400 * 3 / len(heads)
    assert {*counts} == {*heads}
    assert all(abs(n - expected) < 5 * expected**0.5 for n in counts.values())
    assert gates.random_sets(model, 3, 5, seed=1) == sets[:5]
    assert gates.random_sets(model, 3, 5, seed=2) != sets[:5]


def test_differences_are_learned_by_their_logistic_loss_and_losses_as_they_are(redundant):
    model, task = redundant
    opening = gates.only(model, all_heads(model.sites))
    found = gates.scores(model, task, opening, 512)
    errors = gates.errors_at_task(model, lambda step: task)(0, opening).item()
    assert errors == pytest.approx(np.mean([-log(sigmoid(x)) for x in found]), abs=1e-5)
    lesson = Pronouns(language_seed=0)
    other = pupil(lesson)
    task = lesson_.task(lesson, n=5, seed=0, metric="loss")
    opening = gates.only(other, all_heads(other.sites))
    errors = gates.errors_at_task(other, lambda step: task)(0, opening).item()
    assert errors == pytest.approx(gates.scores(other, task, opening, 512).mean(), abs=1e-6)


# ------------------------------------------------------------------ other routes
@pytest.mark.parametrize("lesson", [Pronouns(language_seed=0), Translation(language_seed=0)])
def test_a_lesson_is_learned_from_the_answers_that_its_task_asks_for(lesson):
    model = pupil(lesson)
    opening = Gates(model, 0.5).noisy(np.random.default_rng(0))
    errors = gates.errors_at_lesson(model, lesson, 6, 3)(2, opening).item()
    task = lesson_.task(lesson, n=6, seed=3, metric="loss", split="train", step=2)
    scores = gates.scores(model, task, opening, 64)
    assert errors == pytest.approx(np.average(scores, weights=task.table["n_tokens"]), abs=1e-5)


@pytest.mark.parametrize("kind", ["planted", "translation"])
def test_rounded_gates_score_as_the_sweep_does_with_these_heads_closed(kind, redundant):
    model, task = redundant
    if kind == "translation":
        lesson = Translation(language_seed=0)
        model, task = pupil(lesson), lesson_.task(lesson, n=9, seed=0, metric="loss")
    learned = Gates(model, start=2.0)
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for log_alpha in learned.log_alpha:
            log_alpha.copy_(torch.tensor(rng.normal(size=len(log_alpha)), dtype=torch.float32))
    shut = tuple(sorted({*all_heads(model.sites)} - {*gates.kept(learned.table())}))
    engine = sweep.Engine(model, task, [shut], Zero(), "all")
    rows = pd.concat([engine.run(job) for part in engine.plan(512, [0]).parts for job in part])
    rows = rows.sort_values("example")
    found = gates.scores(model, task, learned.each(gates.rounded), 64)
    assert found == pytest.approx(rows["ablated"].to_numpy(), abs=1e-4)
    assert np.abs(found - rows["clean"].to_numpy()).max() > 1e-2
    whole = gates.scores(model, task, closing(model, []), 64)
    assert whole == pytest.approx(rows["clean"].to_numpy(), abs=1e-4)


def test_a_gate_that_is_half_open_lets_half_of_the_head_through(redundant):
    model, task = redundant
    numbers = range(3)
    asked = task.questions(model, numbers)
    opening = {place: 0.5 * gate for place, gate in closing(model, []).items()}

    def halve(_module, _args, z):
        return z / 2

    handles = [b.attn.hook_z.register_forward_hook(halve) for b in model.module.blocks]
    with torch.no_grad():
        expected = task.score(model, asked)
        for handle in handles:
            handle.remove()
        found = gates.score(model, task, opening, numbers)
    torch.testing.assert_close(found, expected)


# ------------------------------------------------------------------ learning
def learned_at(model, task, price, **choices):
    """Learn gates alone."""
    learned = choices.pop("learned", None) or Gates(model, choices.pop("start", 2.0))
    gates.learn(
        model,
        learned,
        gates.errors_at_task(model, lambda step: task),
        course(choices.pop("steps", 8), **choices),
        price=price,
        rate=0.3,
        weights_rate=None,
        seed=0,
    )
    return learned


def test_the_needed_head_is_kept_and_idle_and_harmful_ones_are_closed(redundant):
    model, task = redundant
    before = [value.clone() for value in model.module.parameters()]
    table = learned_at(model, task.first(8), 0.05, steps=40).table()
    kept = {*gates.kept(table)}
    assert not kept & {*model.heads_of("dead"), *model.heads_of("harmful")}
    assert {*model.heads_of("main")} <= kept
    assert len(kept) < len(table) / 2
    scores = gates.scores(model, task, gates.only(model, kept), 512)
    assert (scores > 0).mean() > 0.9  # the task is still done
    without = gates.scores(model, task, gates.only(model, kept - {*model.heads_of("main")}), 512)
    assert without.mean() < scores.mean() - 0.5
    for ours, theirs in zip(model.module.parameters(), before, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.requires_grad
        assert ours.grad is None


def test_gates_are_drawn_anew_at_each_step_the_same_for_a_seed(redundant):
    model, _ = redundant

    def draws(seed):
        seen = []

        def errors(step, opening):
            seen.append(torch.cat([gate.detach().flatten() for gate in opening.values()]))
            return 0 * sum(gate.sum() for gate in opening.values())

        learned = Gates(model, 0.0)
        choices = {"price": 0.0, "rate": 0.1, "weights_rate": None, "seed": seed}
        gates.learn(model, learned, errors, course(3), **choices)
        assert (learned.table()["log_alpha"] == 0).all()  # nothing pulls at them
        return seen

    first, again, other = draws(0), draws(0), draws(1)
    assert all(map(torch.equal, first, again))
    assert len({tuple(draw.tolist()) for draw in [*first, *other]}) == 6


def test_free_gates_stay_open_and_dear_ones_close(redundant):
    model, task = redundant
    few = task.first(4)
    assert learned_at(model, few, 100.0, steps=12, start=1.0).n_open() == 0
    free = learned_at(model, few, 0.0, steps=12, start=1.0)
    dead = model.heads_of("dead")[0]
    assert free.log_alpha[dead.layer][dead.head].item() == 1.0  # nothing pulls at it
    shut = {*all_heads(model.sites)} - {*gates.kept(free.table())}
    assert shut <= {*model.heads_of("harmful")}


def test_learning_that_was_stopped_ends_with_the_same_gates_and_weights(tmp_path):
    lesson, state = Pronouns(language_seed=0), tmp_path / "gates.safetensors"

    def learned(seed=0, start=2.0, **choices):
        model = pupil(lesson)
        found = Gates(model, start)
        gates.learn(
            model,
            found,
            gates.errors_at_lesson(model, lesson, 4, seed),
            course(8, save_every=2, **choices),
            price=0.1,
            rate=0.3,
            weights_rate=0.01,
            seed=seed,
        )
        return found.table(), [value.detach() for value in model.module.parameters()]

    table, weights = learned()

    def stop(now):
        if now.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learned(state=state, watch=stop)
    steps = []
    again, same = learned(
        state=state, start=0.0, watch=lambda now: steps.append((now.step, now.n_open))
    )
    assert [step for step, _ in steps] == [5, 6, 7, 8]
    assert steps[-1][1] == table["open"].sum()
    pd.testing.assert_frame_equal(again, table, check_exact=True)
    assert all(map(torch.equal, weights, same))
    at_the_end, _ = learned(state=state, start=0.0)  # nothing left to do
    pd.testing.assert_frame_equal(at_the_end, table, check_exact=True)
    other, _ = learned(seed=1)
    assert not np.array_equal(other["log_alpha"], table["log_alpha"])


def test_borrowed_weights_come_back_whatever_was_done_to_them():
    lesson = Pronouns(language_seed=0)
    model = pupil(lesson)
    heads = all_heads(model.sites)[:1]
    before = [value.detach().clone() for value in model.module.parameters()]
    errors = gates.errors_at_lesson(model, lesson, 4, 0)
    with pytest.raises(RuntimeError, match="stop"), gates.borrowed(model):  # noqa: PT012
        gates.retrain(model, heads, errors, course(2), rate=0.01)
        pairs = [*zip(model.module.parameters(), before, strict=True)]
        assert not all(torch.equal(now, then) for now, then in pairs)
        raise RuntimeError("stop")
    assert all(torch.equal(now, then) for now, then in pairs)
    assert all(value.grad is None for value in model.module.parameters())


def test_closed_heads_learn_nothing_while_the_others_are_trained():
    lesson = Pronouns(language_seed=0)
    model = pupil(lesson)
    [first, *_] = all_heads(model.sites)
    W_V = [block.attn.W_V.detach().clone() for block in model.module.blocks]
    errors = gates.errors_at_lesson(model, lesson, 4, 0)
    gates.retrain(model, [first], errors, course(3), rate=0.01)
    for layer, (block, before) in enumerate(zip(model.module.blocks, W_V, strict=True)):
        moved = (before != block.attn.W_V).flatten(1).any(1).tolist()
        assert moved == [(layer, head) == (0, 0) for head in range(2)]


# ------------------------------------------------------------------ the command
SHORT = [
    *("prices=[0,5]", "scratch=0", "steps=4", "batch_size=4", "n_examples=10"),
    *("task.min_accuracy=0", "n_random=3", "scratch_steps=3", "save_every=1", "start=0"),
    *("gate_rate=0.5", "bootstrap_draws=50"),
]
TABLES = ["gates", "quality", "scratch"]
elsewhere = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def checkpoint(elsewhere):
    """A checkpoint that was hardly trained, as arguments."""
    lesson = Translation(language_seed=0)
    Path("model").mkdir()
    lessons_write(Path("model"), lesson)
    return ["model=custom", "model.path=model", *SHORT]


def lessons_write(folder, lesson):
    lesson_.write(folder, lesson.untrained(seed=0, **SIZES), lesson)


def read(folder):
    return {name: results.load(folder, name).drop(columns="run") for name in TABLES}


@elsewhere
def test_the_tables_agree_with_each_other_and_with_an_ablation_of_the_closed_heads(
    checkpoint, capsys
):
    arguments = [*checkpoint, "weights=[trained,frozen]"]
    assert run("gates", *arguments, "hydra.run.dir=here") == 0
    said = capsys.readouterr().out
    table, quality, scratch = read("here").values()
    job = ["price", "weights", "seed"]
    assert not table.duplicated([*job, "site", "layer", "head"]).any()
    assert len(table) == 4 * 12
    assert (table["open"] == (table["log_alpha"] > 0)).all()
    counts = table.groupby(job)["open"].sum()
    assert (quality.groupby(job)["n_open"].first() == counts).all()
    assert set(quality["metric"]) == {"loss", "logit_diff", "accuracy"}
    assert set(quality["heads"]) == {"all", "gated", "rounded", "random"}
    assert set(quality[quality["heads"] == "random"]["price"]) == {0}  # there is one set of none
    assert (counts[5.0] == 0).all()
    assert quality[quality["heads"] == "all"].groupby("metric")["value"].nunique().eq(1).all()
    assert (quality[["ci_low", "value", "ci_high"]].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    sets = quality[quality["heads"] == "random"]
    sign = np.where(sets["metric"] == "loss", -1, 1)
    for better, worse in (("best", "value"), ("value", "worst")):
        assert (sign * (sets[better] - sets[worse]) >= -1e-9).all()
    assert quality[quality["heads"] != "random"]["best"].isna().all()
    frozen = table[(table["weights"] == "frozen") & (table["price"] == 0)]
    assert 0 < frozen["open"].sum() < 12
    # the same heads, closed by the sweep on the same examples
    model = custom("model", padding_side="right", **CHOICES)
    task = lessons.task(model, n=10, seed=0, metric="logit_diff", min_accuracy=0.0)
    engine = sweep.Engine(model, task, [tuple(from_table(frozen[~frozen["open"]]))], Zero(), "all")
    effects = pd.concat([engine.run(job) for part in engine.plan(512, [0]).parts for job in part])
    line = quality[
        (quality["weights"] == "frozen") & (quality["price"] == 0) & (quality["heads"] == "rounded")
    ].set_index("metric")
    assert line["value"]["logit_diff"] == pytest.approx(effects["ablated"].mean(), abs=1e-4)
    assert line["value"]["accuracy"] == (effects["ablated"] > 0).mean()
    assert "heads open by site" in said
    assert "heads kept with price 0, weights trained, seed 0" in said
    assert Path("here/gates.png").exists()
    assert not [*Path("here").rglob("*.safetensors")]
    assert set(scratch["how"]) == {"pruned", "scratch", "random", "whole"}
    assert set(scratch["price"]) == {0}
    assert (scratch[scratch["how"] == "pruned"]["ahead"] == 0).all()
    pruned = quality[
        (quality["weights"] == "trained")
        & (quality["price"] == 0)
        & (quality["heads"] == "rounded")
    ].set_index("metric")["value"]
    same = scratch[scratch["how"] == "pruned"].set_index("metric")["value"]
    assert same.sort_index().equals(pruned.sort_index())
    others = scratch[scratch["how"] != "pruned"]
    sign = np.where(others["metric"] == "loss", -1, 1)
    assert (sign * (others["metric"].map(pruned) - others["value"])).to_numpy() == pytest.approx(
        others["ahead"].to_numpy()
    )
    whole = scratch[scratch["how"] == "whole"]
    assert (whole["n_open"] == 12).all()
    assert set(scratch[scratch["how"] == "scratch"]["steps"]) == {3}


@elsewhere
def test_a_run_that_breaks_off_goes_on_and_ends_the_same(checkpoint, monkeypatch):
    checkpoint = [*checkpoint, "prices=0"]
    assert run("gates", *checkpoint, "hydra.run.dir=whole") == 0
    honest, calls = Trainer.advance, []
    stops = {3, 8}  # in gates, and in what their heads are compared with

    def failing(trainer):
        calls.append(trainer)
        if len(calls) in stops:
            raise OSError("the disk is full")
        return honest(trainer)

    monkeypatch.setattr(Trainer, "advance", failing)
    for _ in stops:
        with pytest.raises(OSError, match="full"):
            run("gates", *checkpoint, "hydra.run.dir=broken")
        GlobalHydra.instance().clear()
    assert run("gates", *checkpoint, "hydra.run.dir=broken") == 0
    assert len(calls) == 4 + 2 * 4 + 3 + len(stops)
    for whole, broken in zip(read("whole").values(), read("broken").values(), strict=True):
        pd.testing.assert_frame_equal(whole, broken, check_exact=True)
    assert not [*Path("broken").rglob("*.safetensors")]


@elsewhere
def test_a_finite_task_is_learned_on_one_half_and_reported_on_the_other(monkeypatch, capsys):
    honest, learned = gates.errors_at_task, []

    def watched(model, examples):
        def remembered(step):
            learned.append(examples(step))
            return learned[-1]

        return honest(model, remembered)

    monkeypatch.setattr(gates, "errors_at_task", watched)
    arguments = ["model=planted", "model.variant=redundant", "task=planted", "steps=25"]
    arguments += ["prices=0.05", "gate_rate=0.3", "n_examples=24"]
    arguments += ["n_random=3", "bootstrap_draws=50"]
    assert run("gates", *arguments, "hydra.run.dir=here") == 0
    reported = pd.read_parquet("here/examples.parquet")
    seen = pd.concat([task.table for task in learned])
    assert {len(task) for task in learned} == {8}
    assert not set(seen["cluster"]) & set(reported["cluster"])
    assert {*seen["example"], *reported["example"]} == {*range(24)}
    assert len({tuple(task.table["example"]) for task in learned}) > 20
    quality = results.load("here", "quality")
    assert set(quality["metric"]) == {"logit_diff", "accuracy"}
    assert set(quality["weights"]) == {"frozen"}
    assert not Path("here/scratch.parquet").exists()
    value = quality.pivot(index="heads", columns="metric", values="value")
    assert value["accuracy"]["rounded"] > 0.9
    assert value["logit_diff"]["rounded"] > value["logit_diff"]["random"]
    assert "logit_diff on 12 examples" in capsys.readouterr().out


def chosen(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("gates", [*overrides, "device=cpu"])
    GlobalHydra.instance().clear()
    return experiment.choices(cfg)


def test_auto_is_what_the_configuration_says_of_lessons_and_of_other_tasks():
    found = chosen("n_seeds=2", "seed=3", "prices=0.1", "weights=[trained,frozen]")
    assert found.jobs == [
        (0.1, "trained", 3),
        (0.1, "frozen", 3),
        (0.1, "trained", 4),
        (0.1, "frozen", 4),
    ]
    assert found.rivalled == [0, 2]
    usual = chosen()
    assert usual.weights == ["trained"]
    assert usual.scratch == max(usual.prices)
    assert chosen("scratch=null").rivalled == []
    finite = chosen("model=smollm2", "task=agreement", "steps=7")
    assert (finite.weights, finite.settings.steps, finite.scratch) == (["frozen"], 7, None)


def test_another_model_of_the_same_shape_has_other_weights():
    model = pupil(Pronouns(language_seed=0))
    other, third = (experiment.untrained(model, seed) for seed in (0, 1))
    assert other.sites == model.sites
    assert other.module.config.n_ctx == model.module.config.n_ctx
    W_Q = [which.module.blocks[0].attn.W_Q for which in (model, other, third)]
    assert len({tuple(weights.flatten().tolist()) for weights in W_Q}) == 3


def test_roles_are_counted_over_the_heads_that_are_open():
    table = pd.DataFrame(
        {
            "price": [0.1] * 4,
            "weights": "frozen",
            "seed": 0,
            "site": "attn",
            "layer": [0, 0, 1, 1],
            "head": [0, 1, 0, 1],
            "open": [True, False, True, False],
        }
    )
    both = pd.concat([table, table.assign(price=0.2, open=[True, True, True, False])])
    roles = pd.DataFrame(
        {
            "site": "attn",
            "layer": [0, 1, 0],
            "head": [0, 1, 1],
            "role": ["positional", "positional", "token"],
            "feature": ["offset:-1", "offset:-1", "induction"],
        }
    )
    said = experiment.surviving_roles(both, roles, "there").splitlines()
    assert said == [
        "roles: of all heads 62% are open",
        "  positional offset:-1: 50% of 2",
        "  token induction: 50% of 1",
    ]
    with pytest.raises(experiment.InputError, match="L7H0"):
        experiment.surviving_roles(both, roles.assign(layer=[0, 7, 0], head=0), "there")


BAD = {
    "a price that is none": (["prices=[cheap]"], "prices=['cheap']"),
    "a negative price": (["prices=[-1]"], "prices=[-1]"),
    "no prices": (["prices=[]"], "prices=[]"),
    "a price twice": (["prices=[0.1,0.1]"], "name each once"),
    "unknown weights": (["weights=warm"], "weights=warm"),
    "no steps": (["steps=0"], "steps=0"),
    "a word for a batch": (["batch_size=big"], "batch_size=big"),
    "no random sets": (["n_random=0"], "n_random=0"),
    "no seeds": (["n_seeds=0"], "n_seeds=0"),
    "another price from scratch": (["scratch=0.3"], "scratch=0.3"),
    "no steps from scratch": (["scratch_steps=0"], "scratch_steps=0"),
    "settings out of range": (["settings.clip=0"], "clip=0"),
    "roles that are not there": (["roles=nowhere"], "nowhere"),
    "a level in per cent": (["level=95"], "level=95"),
    "a task without lesson": (["task=agreement", "scratch=0.01"], "only task=trained"),
}


@elsewhere
@pytest.mark.parametrize(("overrides", "names"), BAD.values(), ids=BAD)
def test_bad_input_ends_in_one_line_and_leaves_nothing(checkpoint, overrides, names, capsys):
    assert run("gates", *checkpoint, *overrides) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert names in line
    assert not Path("results").exists()
