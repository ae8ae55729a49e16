"""What heads become, and when: by hand, on planted heads, and through breaks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import CHOICES
from test_experiments import run
from torch.nn.functional import cross_entropy

from experiments import specialisation as experiment
from interp import gates, sweep
from interp.heads import Head, all_heads
from interp.models.custom import from_transformer
from interp.models.planted import planted
from interp.patterns import classify, observe
from interp.redundancy import pruning
from interp.training import lesson as lessons
from interp.training import specialisation
from interp.training.induction import Induction
from interp.training.lesson import NO_LABEL
from interp.training.lessons import sentences
from interp.training.pronouns import Pronouns
from interp.training.specialisation import Examination, View
from interp.training.translation import Translation

LIMITS = classify.Thresholds(
    score={"offset": 0.9, "induction": 0.3},
    margin={"pronoun": 0.1},
    mass=1.5,
    min_n=20,
    min_clusters=5,
    fdr=0.05,
)
INDUCTION = Induction(vocabulary=12, length=16, shortest=3, longest=8)


def viewed(model, corpus, features, n_repeats=30) -> View:
    shown = observe.examples(model, corpus, n_chunks=0, n_repeats=n_repeats, seed=0)
    return View(shown, observe.watch(corpus, []), features, LIMITS, 0.95)


def untrained(lesson, n_layers=2, n_heads=2):
    module = lesson.untrained(seed=0, d_model=16, n_layers=n_layers, n_heads=n_heads)
    return from_transformer(module, lesson.tokenizer, name="untrained")


def examination(lesson, n=12, orders=("exact",)) -> Examination:
    task = lessons.task(lesson, n=n, seed=0, metric="loss")
    halves = {"select": np.arange(n // 2), "report": np.arange(n // 2, n)}
    return Examination(task, halves, orders, 0.95, 512)


# ------------------------------------------------------------------ when
STEP = np.array([0, 10, 20, 40, 50])


@pytest.mark.parametrize(
    ("holds", "since"),
    [
        ([0, 1, 0, 1, 1], 40),  # it rises, falls back and rises again
        ([1, 1, 1, 1, 1], 0),
        ([0, 0, 0, 0, 1], 50),
        ([1, 1, 1, 1, 0], None),
        ([0, 0, 0, 0, 0], None),
    ],
)
def test_what_settles_holds_to_the_end(holds, since):
    assert specialisation.settles(STEP, np.array(holds, dtype=bool)) == since


def test_the_steepest_rise_is_per_step():
    assert specialisation.steepest(STEP, np.array([0.0, 0.1, 0.3, 0.6, 0.5])) == 20
    assert specialisation.steepest(STEP, -np.array([3.0, 3.0, 2.0, 0.2, 0.2])) == 20  # .1 > .09
    assert specialisation.steepest(STEP, np.zeros(5)) == 10


def test_halfway_is_passed_for_the_last_time_on_a_straight_line():
    assert specialisation.halfway(STEP, np.array([0.0, 0.0, 0.2, 0.8, 0.8])) == pytest.approx(
        20 + 20 / 3
    )
    again = np.array([0.0, 0.9, 0.1, 0.9, 1.0])
    assert specialisation.halfway(STEP, again) == pytest.approx(30)
    assert np.isnan(specialisation.halfway(STEP, np.array([0.5, 0.9, 0.9, 0.9, 0.5])))


def scored(scores, roles=None, feature="induction", arm="two", seed=0) -> pd.DataFrame:
    """Scores of heads L0H0, L0H1, … at each step."""
    lines = [
        (arm, seed, step, "attn", 0, head, feature, score, bool(roles and roles[head][n]))
        for head, own in enumerate(scores)
        for n, (step, score) in enumerate(zip(STEP, own, strict=True))
    ]
    columns = ["arm", "seed", "step", "site", "layer", "head", "feature", "score", "has_role"]
    return pd.DataFrame(lines, columns=columns)


def trained(loss, accuracy, arm="two", seed=0) -> pd.DataFrame:
    tests = pd.DataFrame({"step": STEP, "split": "test", "loss": loss, "accuracy": accuracy})
    others = tests.assign(split="train", loss=np.arange(5.0)[::-1] ** 2)
    return pd.concat([others, tests]).assign(arm=arm, seed=seed)


def test_emergence_by_hand():
    rising, back = [0.1, 0.1, 0.4, 0.5, 0.6], [0.1, 0.5, 0.1, 0.8, 0.9]
    table = scored([rising, back], roles=[[0, 0, 0, 0, 1], [0, 1, 0, 1, 1]])
    accuracy = np.array([0.0, 0.1, 0.1, 0.8, 0.9])
    history = trained([3.0, 2.9, 2.8, 0.4, 0.3], accuracy)
    [line] = specialisation.emergence(table, history, 0.3).itertuples()
    assert (line.appears, line.head, line.score) == (20, 0, 0.6)  # the other is back at 40 only
    assert (line.role_from, line.best) == (40, 0.9)
    assert line.halfway == pytest.approx(20 + 20 * 0.4 / 0.7)  # of the head that ends highest
    assert (line.rises, line.drops, line.apart) == (10, 40, -30)  # best: .1 .5 .4 .8 .9
    best = np.array([0.1, 0.5, 0.4, 0.8, 0.9])
    assert line.correlation == pytest.approx(np.corrcoef(best, accuracy)[0, 1])


def test_what_does_not_emerge_has_no_step_and_names_the_nearest_head():
    table = scored([[0.1] * 5, [0.1, 0.9, 0.9, 0.9, 0.2]])
    [line] = specialisation.emergence(table, trained([1.0] * 5, [0.5] * 5), 0.3).itertuples()
    assert pd.isna(line.appears)
    assert pd.isna(line.role_from)
    assert (line.head, line.score) == (1, 0.2)
    assert np.isnan(line.correlation)  # accuracy never changes


def test_models_and_features_are_told_apart():
    late, soon = [0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0, 1.0]
    table = pd.concat(
        [
            scored([late], seed=0),
            scored([soon], seed=0, feature="offset:-1"),
            scored([soon], seed=1),
            scored([late], seed=1, arm="one"),
        ]
    )
    history = pd.concat(
        [
            trained([1, 1, 0, 0, 0], np.linspace(0, 1, 5), seed=0),
            trained([1, 0, 0, 0, 0], np.linspace(0, 1, 5), seed=1),
            trained([1, 1, 1, 1, 0], np.linspace(0, 1, 5), seed=1, arm="one"),
        ]
    )
    found = specialisation.emergence(table, history, 0.5)
    keys = found[["arm", "seed", "feature"]].apply(tuple, axis=1)
    assert dict(zip(keys, found["appears"], strict=True)) == {
        ("two", 0, "induction"): 50,
        ("two", 0, "offset:-1"): 10,
        ("two", 1, "induction"): 10,
        ("one", 1, "induction"): 50,
    }
    assert found["drops"].tolist() == [20, 20, 10, 50]


def test_features_come_in_the_order_in_which_they_are_halfway():
    lines = pd.DataFrame(
        {
            "feature": ["d", "c", "b", "a"],
            "appears": pd.array([40, 10, 20, None], dtype="Int64"),
            "halfway": [33.0, 12.0, 30.0, 5.0],
        }
    )
    assert specialisation.sequence(lines, 1.0) == "c, then b, then d"
    assert specialisation.sequence(lines, 3.0) == "c, then b with d"
    assert specialisation.sequence(lines[3:], 3.0) == ""


# ------------------------------------------------------------------ redundancy
@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([1, 0.75, 0.5, 0.25, 0], 0),
        ([1, 1, 1, 1, 0], 0.375),  # the last of four heads does it all: 1 - 1/8 - 1/2
        ([1, 0, 0, 0, 0], -0.375),
        ([1, 0], 0),
        ([1, 1.2, 0.8, 0], (1.1 + 1.0 + 0.4) / 3 - 0.5),
    ],
)
def test_the_shape_of_a_pruning_curve_by_hand(value, wanted):
    fraction = np.linspace(0, 1, len(value))
    assert specialisation.shape(fraction, np.array(value, dtype=float)) == pytest.approx(wanted)


class Additive(Examination):
    """Closing heads costs the sum of what each costs, or all at once when the last is gone."""

    saturates = False

    def damages(self, model, baseline, settings):
        cost = [0.3, 0.1, 0.4, 0.2]
        heads = all_heads(model.sites)
        lost = np.array([sum(cost[heads.index(head)] for head in closed) for closed in settings])
        if self.saturates:
            lost = (lost > 0.999).astype(float)
        jitter = np.linspace(-0.01, 0.01, len(self.task))
        return lost[:, None] + jitter * lost[:, None]


class Saturating(Additive):
    saturates = True


@pytest.mark.parametrize(
    ("kind", "values", "area"),
    [
        # .1, .2, .3 and .4 go: convex, for what costs most is last: (.5 + .9 + .7 + .4) / 4
        (Additive, [1, 0.9, 0.7, 0.4, 0], 0.625),
        (Saturating, [1, 1, 1, 1, 0], 0.875),
    ],
)
def test_curves_of_heads_whose_worth_is_known(kind, values, area):
    model, at = untrained(INDUCTION), kind(*examination(INDUCTION))
    baseline = at.baseline(model)
    damage = Additive.damages(at, model, baseline, [(head,) for head in all_heads(model.sites)])
    found = specialisation.curves(model, baseline, at, damage)
    assert found["n_pruned"].tolist() == [0, 1, 2, 3, 4]
    assert found["fraction"].tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert found["value"].to_numpy() == pytest.approx(values)
    assert found["shape"].to_numpy() == pytest.approx(area - 0.5)


def test_where_heads_are_worth_nothing_a_curve_has_no_shape():
    class Worthless(Additive):
        def damages(self, model, baseline, settings):
            return super().damages(model, baseline, settings) - 1.0

    model, at = untrained(INDUCTION), Worthless(*examination(INDUCTION))
    damage = np.zeros((4, 12))
    found = specialisation.curves(model, at.baseline(model), at, damage)
    assert found["loss"].notna().all()
    assert found["value"].isna().all()
    assert found["shape"].isna().all()


def test_curves_and_damages_by_plain_runs_of_the_model():
    lesson, orders = INDUCTION, ("exact", "reverse", "michel_example")
    model, at = untrained(lesson), examination(lesson, orders=orders)
    drawn = lesson.examples(12, seed=0, split="fresh")
    labels = drawn.labels[..., 0]

    def losses(closed, rows) -> torch.Tensor:
        kept, handles = {}, []
        for layer, block in enumerate(model.module.blocks):
            here = [head.head for head in closed if head.layer == layer]

            def close(_module, _args, z, layer=layer, here=here):
                z = z.clone()
                z[:, :, here] = means[layer][here] if means else z[:, :, here]
                kept[layer] = z
                return z

            handles.append(block.attn.hook_z.register_forward_hook(close))
        logits = model.module(drawn.tokens)
        for handle in handles:
            handle.remove()
        if not means:
            means.update({layer: z[:, 1:].mean((0, 1)) for layer, z in kept.items()})  # not <s>
        each = cross_entropy(logits.mT, labels, reduction="none", ignore_index=NO_LABEL)
        return (each.sum(-1) / (labels != NO_LABEL).sum(-1))[rows]

    with torch.no_grad():
        means: dict[int, torch.Tensor] = {}
        every = np.arange(12)
        clean = losses((), every)
        heads, baseline = all_heads(model.sites), at.baseline(model)
        damage = specialisation.alone(model, baseline, at)
        for head, found in zip(heads, damage, strict=True):
            wanted = (losses((head,), every) - clean).numpy()
            assert found == pytest.approx(wanted, abs=1e-4)
        table = specialisation.curves(model, baseline, at, damage)
        by_damage = sorted(heads, key=lambda head: damage[heads.index(head), :6].mean())
        for order, going in (("exact", by_damage), ("reverse", by_damage[::-1])):
            lines = table[table["order"] == order]
            wanted = [losses(going[:n], at.halves["report"]).mean().item() for n in range(5)]
            assert lines["loss"].to_numpy() == pytest.approx(wanted, abs=1e-4)
    assert set(table["order"]) == set(orders)
    engine = sweep.Engine(model, at.task, [(head,) for head in heads], gates.Zero(), "all")
    assert sweep.at_once(engine, 64) == pytest.approx(sweep.at_once(engine, 4096), abs=1e-4)


def pruned(shapes, worth=(0.0, 0.02, 1.0, 2.0), seed=0) -> pd.DataFrame:
    """Curves of two points at steps 0, 10, 20, … whose heads save `worth`."""
    lines = [
        ("two", seed, 10 * n, "exact", fraction, saved * fraction, shape)
        for n, (shape, saved) in enumerate(zip(shapes, worth, strict=True))
        for fraction in (0.0, 1.0)
    ]
    columns = ["arm", "seed", "step", "order", "fraction", "loss", "shape"]
    return pd.DataFrame(lines, columns=columns)


def test_early_is_when_heads_first_are_worth_something():
    table = pruned([np.nan, 0.4, 0.0, 0.3])  # at 10 they save a hundredth of what they do at 30
    found = specialisation.ends(table).drop_duplicates("when")
    assert dict(zip(found["when"], found["step"], strict=True)) == {"early": 20, "late": 30}
    assert specialisation.ends(pruned([0.1, 0.1, 0.1, np.nan])).empty


def test_redundancy_grows_where_all_seeds_agree():
    seeds = [pruned([np.nan, 0.4, early, 0.3], seed=n) for n, early in enumerate([0.0, 0.1, 0.2])]
    [line] = specialisation.growth(specialisation.ends(pd.concat(seeds)), 0.95).itertuples()
    assert (line.n, line.from_step, line.to_step) == (3, 20, 20)
    assert [line.early, line.late, line.more] == pytest.approx([0.1, 0.3, 0.2])
    reach = 4.302653 * 0.1 / 3**0.5  # Student's t with 2 degrees of freedom; s = .1
    assert [line.ci_low, line.ci_high] == pytest.approx([0.2 - reach, 0.2 + reach])
    [alone] = specialisation.growth(specialisation.ends(seeds[0]), 0.95).itertuples()
    assert np.isnan(alone.ci_low)
    assert specialisation.growth(specialisation.ends(table := seeds[0][:0]), 0.95).empty
    assert table.empty


# ------------------------------------------------------------------ what heads look at
def test_planted_heads_are_found_and_no_others():
    model = planted("decoder", 0, **CHOICES, padding_side="right")
    features = ["offset:-1", "induction", "antecedent"]
    corpus = replace(model.corpus, passages=model.corpus.passages[:150])
    found = specialisation.looks(model, viewed(model, corpus, features))
    assert not found.duplicated(["site", "layer", "head", "feature"]).any()
    assert set(found["feature"]) == set(features)
    for feature in features:
        lines = found[found["feature"] == feature]
        named = lines[lines["has_role"]]
        heads = {Head("attn", row.layer, row.head) for row in named.itertuples()}
        assert heads == {h for h, known in model.truth.items() if feature in known}, feature
        assert heads
        best = {(row.layer, row.head) for row in lines.nlargest(len(named), "score").itertuples()}
        assert best == {(head.layer, head.head) for head in heads}
        assert (named["score"] > 3 * named["even"]).all()
    offsets = found[(found["feature"] == "antecedent") & found["has_role"]]
    assert (offsets["rate"] > offsets["rule_rate"] + 0.1).all()


def test_shares_of_attention_by_a_loop_over_tokens():
    lesson = INDUCTION
    model, corpus = untrained(lesson), sentences(lesson, 10, 0)
    view = viewed(model, corpus, ["offset:-1"], n_repeats=0)
    found = specialisation.looks(model, view)
    texts = [example.text for example in view.shown if example.split == "report"]
    assert 0 < len(texts) < 10
    with torch.no_grad():
        patterns = model.patterns(model.batch(texts), ["attn"])
    for line in found.itertuples():
        pattern = patterns["attn", line.layer][:, line.head]
        shares = [pattern[row, q, q - 1].item() for row in range(len(texts)) for q in range(2, 17)]
        assert line.score == pytest.approx(np.mean(shares), abs=1e-5)
        assert line.even == pytest.approx(np.mean([1 / (q + 1) for q in range(2, 17)]))


@pytest.mark.parametrize(
    "lesson", [INDUCTION, Translation(language_seed=0), Pronouns(language_seed=0)]
)
def test_a_lesson_s_corpus_is_read_as_the_lesson_s_tokens(lesson):
    found = sentences(lesson, 6, 0)
    model = untrained(lesson)
    assert len(found.passages) == 6
    if isinstance(lesson, Pronouns):
        assert all(passage.mentions for passage in found.passages)
        return
    drawn = lesson.examples(6, seed=0, split="fresh")
    for passage, tokens, mask in zip(found.passages, drawn.tokens, drawn.mask, strict=True):
        assert model.codec.encode(passage.text).ids == tuple(tokens[mask].tolist())
        assert [passage.text[w.start : w.end] for w in passage.words] == passage.text.split()
        assert (passage.target is None) == (lesson.kind == "decoder")


# ------------------------------------------------------------------ the command
SMALL = [
    *("n_seeds=1", "training.plan.steps=4", "training.plan.evaluate_every=2"),
    *("training.plan.batch_size=4", "training.plan.n_test=8", "n_examples=8", "n_repeats=8"),
    *("checkpoints=[0,4]", "orders=[exact]", "~lessons.induction.arms.two_layers"),
    "lessons.induction.passages=8",
]
TABLES = ("history", "specialisation", "emergence", "pruning")


@pytest.mark.usefixtures("elsewhere")
def test_the_tables_are_the_same_in_one_go_and_in_shards_after_a_break(monkeypatch, capsys):
    assert run("specialisation", *SMALL, "hydra.run.dir=whole") == 0
    said = capsys.readouterr().out
    assert "induction: 1 seed, 4 steps" in said
    assert "no head for induction, offset:-1, offset:-5" in said
    before = {path: path.stat().st_mtime_ns for path in Path("whole").rglob("*")}
    assert Path("whole/specialisation.png") in before
    assert run("specialisation", *SMALL, "hydra.run.dir=whole") == 0  # it is only reported
    assert capsys.readouterr().out == said
    assert {path: path.stat().st_mtime_ns for path in Path("whole").rglob("*")} == before
    honest, calls = experiment.examine, []

    def failing(new):
        calls.append(new)
        if len(calls) == 4:  # after the trial of both arms, at the end of the model
            raise OSError("the disk is full")
        return honest(new)

    monkeypatch.setattr(experiment, "report", lambda run, cfg: None)
    monkeypatch.setattr(experiment, "examine", failing)
    with pytest.raises(OSError, match="full"):
        run("specialisation", *SMALL, "shard=0/2", "hydra.run.dir=shards")
    assert Path("shards/parts/0of2-0.safetensors").exists()
    for shard in ("1/2", "0/2"):
        assert run("specialisation", *SMALL, f"shard={shard}", "hydra.run.dir=shards") == 0
    assert len(calls) == 4 + (2 + 2) + (2 + 1)  # trials again, and what was left of 2 x 2 steps
    assert not list(Path("shards/parts").glob("*.safetensors"))
    for name in TABLES:
        whole, shards = (
            pd.read_parquet(f"{folder}/{name}.parquet").drop(
                columns="tokens_per_second", errors="ignore"
            )
            for folder in ("whole", "shards")
        )
        pd.testing.assert_frame_equal(whole, shards, check_exact=True)
        assert list(dict.fromkeys(whole["arm"])) == ["one_layer", "fixed_length"]
    history = pd.read_parquet("whole/history.parquet")
    steps = history.groupby("split")["step"].agg(lambda own: sorted(set(own))).to_dict()
    assert steps == {"test": [0, 2, 4], "train": [2, 4], "elsewhere": [0, 4]}
    heads = pd.read_parquet("whole/specialisation.parquet")
    keys = ["arm", "seed", "step", "layer", "head", "feature"]
    assert not heads.duplicated(keys).any()
    assert len(heads) == 2 * 2 * 4 * 3
    assert heads.groupby(keys[:-1])["damage"].nunique().max() == 1


@pytest.mark.usefixtures("elsewhere")
def test_other_lessons_have_an_arm_too(capsys):
    arguments = [*SMALL[:-2], "training=translation", "training.model.n_layers=1"]
    arguments.append("lessons.translation.passages=12")
    assert run("specialisation", *arguments, "hydra.run.dir=here") == 0
    heads = pd.read_parquet("here/specialisation.parquet")
    assert set(heads["arm"]) == {"default"}
    assert set(heads["site"]) == {"encoder_attn", "decoder_self_attn", "decoder_cross_attn"}
    assert "no head for" in capsys.readouterr().out


BAD = {
    "an unknown order": (["orders=[random]"], "orders=['random']"),
    "no examples": (["n_examples=1"], "n_examples=1"),
    "checkpoints between evaluations": (["checkpoints=[0,3]"], "checkpoints=[0, 3]"),
    "a stop on the way": (["training.plan.enough=0.9"], "none may stop early"),
    "no arms": (["lessons.induction.arms=null"], "lessons.induction.arms"),
    "an arm without its parts": (
        ["~lessons.induction.arms.one_layer.model"],
        "needs lesson and model (~lessons.induction.arms.one_layer leaves it out)",
    ),
    "features that are not there": (
        ["lessons.induction.features=[telepathy]"],
        "features=['telepathy']: none is seen",
    ),
    "segments that do not fit": (
        ["lessons.induction.arms.fixed_length.lesson.longest=20"],
        "segments of 6 to 20",
    ),
}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("overrides", "names"), BAD.values(), ids=BAD)
def test_bad_input_ends_in_one_line_and_leaves_nothing(overrides, names, capsys):
    assert run("specialisation", *SMALL, *overrides) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert names in line
    assert not Path("results").exists()


def test_the_report_says_what_appeared_when_and_in_which_order():
    first, second = [0.0, 0.9, 0.9, 0.9, 0.9], [0.0, 0.0, 0.0, 0.2, 0.8]
    tables = [
        scored([first if (seed == 0) == is_induction else second], seed=seed, feature=feature)
        for seed in (0, 1)
        for feature, is_induction in (("induction", True), ("offset:-1", seed == 1))
    ]
    history = pd.concat(
        [trained([3, 3, 0, 0, 0], np.linspace(0, 1, 5), seed=seed) for seed in (0, 1)]
    )
    lines = specialisation.emergence(pd.concat(tables), history, 0.3)
    said = experiment.appearing(lines, 0.3, 10.0)
    assert said[0].startswith(
        "induction: at 0.3 or above from step 10 (L0H0), 50 (L0H0); "
        "rises most -10, +30 steps after the loss falls most; follows accuracy with r = 0."
    )
    assert said[-1] == (
        "the order differs over seeds: seed 0: induction with offset:-1; "
        "seed 1: offset:-1, then induction"
    ) or said[-1].startswith("the order differs")
    alike = lines[lines["seed"] == 0]
    both = pd.concat([alike, alike.assign(seed=1)])
    assert experiment.appearing(both, 0.3, 10.0)[-1].startswith("the same order in all seeds: ")
    none = experiment.appearing(lines.assign(appears=pd.NA), 0.3, 10.0)
    assert none == ["no head for induction, offset:-1"]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, "more heads"), (-0.3, -0.1, "fewer heads"), (-0.1, 0.3, "no clear change")],
)
def test_the_report_says_whether_redundancy_grew(low, high, verdict):
    line = {"order": "exact", "n": 3, "early": 0.0, "late": 0.2, "from_step": 20, "to_step": 40}
    line |= {"more": 0.2, "ci_low": low, "ci_high": high}
    [said] = experiment.spared(pd.DataFrame([line]), 0.95)
    assert said.startswith("pruned by exact: shape +0.00 at step 20–40, +0.20 at the end; ")
    assert verdict in said
    [alone] = experiment.spared(pd.DataFrame([line | {"n": 1}]), 0.95)
    assert alone.endswith("(one seed: no interval)")


def test_the_halves_of_a_run_share_no_example():
    clusters = lessons.task(INDUCTION, n=9, seed=0, metric="loss").table["cluster"].to_numpy()
    halves = pruning.halves(clusters, 0)
    assert sorted([*halves["select"], *halves["report"]]) == list(range(9))
