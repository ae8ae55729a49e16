"""Estimates of importance: by hand, against finite differences, exact ablation and other code."""

import json
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats
from test_experiments import files, run, write
from test_gates import build, family, padded_task, prompt_task, resampled_task, swept

from interp import gates, plots, results, sweep
from interp.gates import Mean, Resample, Uniform, Zero
from interp.heads import Head, all_heads
from interp.models.custom import from_transformer
from interp.models.planted import planted
from interp.models.text import byte_tokenizer
from interp.models.tiny import FAMILIES, tiny
from interp.redundancy import importance, ranking
from interp.redundancy.importance import GRADIENT, HEAD
from interp.redundancy.ranking import Scores
from interp.tasks import planted as planted_prompts
from interp.tasks import similarity
from interp.transformer import Transformer, TransformerConfig

CHOICES = {
    "device": "cpu",
    "prepend_bos": "auto",
    "padding_side": "right",
    "truncation": "error",
    "weights_seed": 0,
}
ALL = {"positions": "all"}
NEAR = {"rtol": 1e-3, "atol": 1e-4}


@cache
def precise(name):
    """A model in float64, without kinks where that can be chosen."""
    if name in FAMILIES:
        model = tiny(name, dtype="float64", **CHOICES)
        for part in model.module.modules():
            if isinstance(getattr(part, "act", None), torch.nn.ReLU):
                part.act = torch.nn.GELU()
        return model
    if name == "planted":
        return planted("redundant", dtype="float64", **CHOICES)
    model = build(name)
    model.module.double()
    return model


def smooth(model, asked):
    """A metric in float64: what it reads, squashed and added up."""
    if model.kind == "encoder":
        mask = asked.batch.text.mask[..., None]
        read = (model.hidden(asked.batch).sin() * mask).sum((1, 2))
        return read.view(-1, 3).sum(1)
    logits = model.logits(asked.batch, asked.read)
    read = logits.gather(-1, asked.ids)[..., 0].sin().where(asked.asked, 0).sum(-1)
    return read.view(-1, 2).sum(1)


def smooth_task(model):
    task = padded_task(model)
    return replace(task, score=smooth)


def mean(model, task):
    batches = sweep.batches(model, task, 10_000)
    return Mean(gates.means(model, batches, by_position=False, specials=True))


def value(rows, head, column):
    ours = rows[(rows[HEAD] == [head.site, head.layer, head.head]).all(axis=1)]
    return ours.sort_values("example")[column].to_numpy()


def some(model):
    """A head of each layer, in changing sites."""
    return [
        Head(site.name, (layer + number) % 3, (layer + 1) % 4)
        for number, site in enumerate(model.sites)
        for layer in ((0, 2) if number == 0 else (1,))
    ]


# ------------------------------------------------------------------ the gradient
def slope(model, task, baseline, head, closed=(), at=1.0):
    """∂m/∂ξ of one head by a difference of fourth order, with other gates closed."""
    asked, acts = importance.prepared(model, task, range(len(task)), baseline, "all")
    rows = torch.arange(len(asked.batch))
    # some norms round to float32, which asks for long steps; the MLPs of ours have kinks
    step = 2.0**-10 if model.name == "custom_decoder" else 2.0**-7

    def score(xi):
        opening = gates.xi(model, asked.batch, [closed] * len(asked.batch), acts)
        place = (head.site, head.layer)
        if at < 1:
            opening = importance.all_gates(model, acts, at)
        gate = opening.get(place)
        shape = *asked.batch.queries(model.site[head.site]).tokens.shape, 4
        gate = torch.ones(shape) if gate is None else gate.clone()
        gate[..., head.head] = torch.where(acts[head.site], xi, 1)
        with torch.no_grad(), gates.gated(model, {**opening, place: gate}, baseline, rows, 0):
            return task.score(model, asked)

    near, far = (score(at + reach) - score(at - reach) for reach in (step, 2 * step))
    return ((8 * near - far) / 12 / step).numpy()


@pytest.mark.parametrize(
    "name", ["tiny_llama", "tiny_bert", "tiny_t5", "tiny_bart", "custom_decoder"]
)
def test_the_gradient_of_a_gate_equals_a_finite_difference(name):
    model = precise(name)
    task = smooth_task(model)
    average = mean(model, task)
    rows = importance.gradients(model, task, range(len(task)), average, **ALL)
    assert len(rows) == len(all_heads(model.sites)) * len(task)
    for head in some(model):
        for baseline, column in ((Zero(), "gate"), (average, "attribution")):
            wanted = slope(model, task, baseline, head)
            assert np.abs(wanted).max() > 1e-3
            np.testing.assert_allclose(value(rows, head, column), wanted, **NEAR)


def test_the_gradient_under_uniform_attention_equals_a_finite_difference():
    model = precise("tiny_llama")
    task, head = smooth_task(model), Head("attn", 1, 2)
    rows = importance.gradients(model, task, range(2), Uniform(model), **ALL)
    wanted = slope(model, task, Uniform(model), head)
    np.testing.assert_allclose(value(rows, head, "attribution"), wanted, **NEAR)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_t5"])
def test_with_gates_closed_the_gradient_is_that_of_what_is_left(name):
    model = precise(name)
    task, site = smooth_task(model), model.sites[0].name
    average, head = mean(model, task), Head(site, 1, 3)
    closed = (Head(site, 0, 1), Head(site, 1, 0), Head(model.sites[-1].name, 2, 2))
    rows = importance.gradients(model, task, range(2), average, **ALL, closed=closed)
    wanted = slope(model, task, average, head, closed)
    found = value(rows, head, "attribution")
    np.testing.assert_allclose(found, wanted, **NEAR)
    whole = importance.gradients(model, task, range(2), average, **ALL)
    assert np.abs(value(whole, head, "attribution") - found).max() > 1e-3
    table = importance.estimates(model, task, average, **ALL, tokens_per_batch=1000, closed=closed)
    left = set(table[HEAD].itertuples(index=False, name=None))
    shut = {(head.site, head.layer, head.head) for head in closed}
    assert left == {(h.site, h.layer, h.head) for h in all_heads(model.sites)} - shut


def test_with_gates_closed_the_draws_are_averaged():
    model = precise("tiny_gpt2")
    task = replace(resampled_task(model), score=smooth)
    partners = np.array([[1, 2, 0], [2, 0, 1]])
    closed, head = (Head("attn", 0, 1),), Head("attn", 1, 3)
    for shut in ((), closed):
        rows = importance.gradients(
            model, task, range(3), Resample(partners, task.examples), **ALL, closed=shut
        )
        alone = [
            importance.gradients(
                model, task, range(3), Resample(draw[None], task.examples), **ALL, closed=shut
            )
            for draw in partners
        ]
        one, other = (value(each, head, "attribution") for each in alone)
        assert np.abs(one - other).max() > 1e-3
        np.testing.assert_allclose(value(rows, head, "attribution"), (one + other) / 2)


def test_on_the_path_all_gates_stand_at_the_same_place():
    model = precise("tiny_llama")
    task, head = smooth_task(model), Head("attn", 1, 2)
    average = mean(model, task)
    asked, acts = importance.prepared(model, task, range(2), average, "all")
    found = importance.path_gradient(model, task, asked, acts, average, xi=0.25, draw=0)
    by_row = found["attn", 1][..., 2].sum(1).view(2, 2).sum(1)
    wanted = slope(model, task, average, head, at=0.25)
    np.testing.assert_allclose(by_row.numpy(), wanted, **NEAR)


def test_gates_act_where_they_are_told():
    model = precise("tiny_gpt2")
    task, head = smooth_task(model), Head("attn", 0, 1)
    by_place = {
        positions: importance.gradients(model, task, [0], Zero(), positions=positions)
        for positions in ("all", "not_first")
    }
    lengths = sum(len(item.text) for item in task.examples[0])
    assert value(by_place["all"], head, "n_tokens") == lengths
    assert value(by_place["not_first"], head, "n_tokens") == lengths - 2
    alone = [value(rows, head, "by_token")[0] for rows in by_place.values()]
    assert alone[0] > alone[1] > 0


def test_nothing_is_left_behind_even_after_an_error():
    model = build("tiny_llama")
    task = padded_task(model)
    wants = [weight.requires_grad for weight in model.module.parameters()]
    assert any(wants)

    def count():
        parts = model.module.modules()
        return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in parts)

    before = count()

    def broken(model, asked):
        model.visit(asked.batch)
        assert not any(weight.requires_grad for weight in model.module.parameters())
        raise KeyboardInterrupt

    with torch.inference_mode():  # (as a caller may be in)
        importance.gradients(model, task, [0], mean(model, task), **ALL)
    with pytest.raises(KeyboardInterrupt):
        importance.gradients(model, replace(task, score=broken), [0], Zero(), **ALL)
    assert [weight.requires_grad for weight in model.module.parameters()] == wants
    assert all(weight.grad is None for weight in model.module.parameters())
    assert count() == before


# ------------------------------------------------------------------ against exact ablation
def linear():
    """One layer of attention whose logits are linear in z."""
    config = TransformerConfig(
        "decoder", d_vocab=260, d_model=32, n_layers=1, n_heads=4, n_ctx=64, d_mlp=None, norm="none"
    )
    return from_transformer(Transformer(config).double(), byte_tokenizer("none"), name="linear")


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_where_the_metric_is_linear_predictions_are_exact(kind, higher_is_better):
    model = linear()
    task = prompt_task(model, [("the key", "x", "y"), ("dog ran", "a", "b"), ("one day", "s", "t")])
    task = replace(task, higher_is_better=higher_is_better)
    baseline = {
        "zero": Zero(),
        "mean": mean(model, task),
        "resample": Resample(np.array([[1, 2, 0], [2, 0, 1]]), task.examples),
    }[kind]
    ablated, clean = swept(model, task, [(head,) for head in all_heads(model.sites)], baseline)
    exact = (clean - ablated.mean(0)) * (1 if higher_is_better else -1)
    assert np.abs(exact).max() > 1e-2
    rows = importance.gradients(model, task, range(3), baseline, **ALL)
    steps = {"steps": 1, "draws": range(baseline.n_draws)}
    paths = importance.integrated(model, task, range(3), baseline, **ALL, **steps)
    np.testing.assert_allclose(importance.matrix(rows, "attribution"), exact, atol=1e-5)
    np.testing.assert_allclose(importance.matrix(paths, "ig"), exact, atol=1e-5)
    total = exact.sum(0)  # the heads' parts add up
    np.testing.assert_allclose(importance.matrix(paths, "whole")[0], total, atol=1e-5)


def test_planted_heads_are_judged_by_what_they_do():
    model = planted("redundant", dtype="float32", **CHOICES)
    task = planted_prompts.task(model, min_accuracy=0.0).first(8)
    average = mean(model, task)
    rows = importance.gradients(model, task, range(8), average, **ALL)
    rows = rows.merge(
        importance.integrated(model, task, range(8), average, **ALL, steps=2, draws=[0])
    )
    found = {name: each.score for name, each in importance.measured(rows).items()}
    found["michel_batch"] = importance.by_batch(rows)
    heads = [Head(*line) for line in importance.heads(rows).itertuples(index=False)]
    ablated, clean = swept(model, task, [(head,) for head in heads], average)
    found["exact"] = (clean - ablated[0]).mean(1)
    dead = [head in model.heads_of("dead") or "dead" in model.truth[head] for head in heads]
    [harmful] = [heads.index(head) for head in model.heads_of("harmful")]
    assert sum(dead) == 5
    for name, score in found.items():
        assert (score[dead] == 0).all(), name
        assert (score[harmful] < 0) == (name in (*importance.SIGNED, "exact")), name
    for twin in model.heads_of("twin"):  # either is enough
        assert abs(found["attribution"][heads.index(twin)]) < 1e-4
        assert abs(found["exact"][heads.index(twin)]) < 0.05


# ------------------------------------------------------------------ integrated gradients
@pytest.mark.parametrize(
    ("name", "kind"),
    [("tiny_llama", "resample"), ("tiny_bert", "mean"), ("tiny_t5", "mean"), ("planted", "mean")],
)
def test_integrated_gradients_add_up_to_closing_all_gates(name, kind):
    model = precise(name)
    if name == "planted":  # two pronouns, each of which errs by a clipped sum of its own
        task, examples = planted_prompts.task(model, min_accuracy=0.0).first(16), [4, 9]
    else:
        task, examples = replace(resampled_task(model), score=smooth), [0]
    baseline = Resample(np.array([[1, 2, 0]]), task.examples)
    if kind == "mean":
        baseline = mean(model, task)
    options = {"steps": 8 if name == "tiny_t5" else 32, "draws": [0]}
    rows = importance.integrated(model, task, examples, baseline, **ALL, **options)
    gap, share = importance.incompleteness(rows)
    assert rows["whole"].abs().max() > 0.1
    assert share <= 0.01
    assert abs(gap) <= 0.01 * rows.groupby("example")["whole"].first().abs().mean()


def test_a_gap_is_the_difference_and_its_share():
    rows = pd.DataFrame(
        {"example": [0, 0, 1, 1], "ig": [1.0, 2.0, -3.0, 0.0], "whole": [2.0, 2.0, -2.0, -2.0]}
    )
    assert importance.incompleteness(rows) == (0.0, 0.5)


# ------------------------------------------------------------------ averaging
ROWS = pd.DataFrame(
    [  # head, example, gate, by_token, n_tokens, attribution
        (0, 0, 2.0, 4.0, 2, 1.0),
        (0, 1, -4.0, 4.0, 6, -2.0),
        (0, 2, 1.0, 1.0, 2, 4.0),
        (1, 0, 1.0, 1.0, 2, 0.0),
        (1, 1, 1.0, 3.0, 6, 0.0),
        (1, 2, 1.0, 6.0, 2, 0.0),
    ],
    columns=["head", "example", "gate", "by_token", "n_tokens", "attribution"],
).assign(site="attn", layer=0)


def test_each_average_by_hand(monkeypatch):
    monkeypatch.setattr(importance, "BATCH", 2)
    table = importance.scores(ROWS)
    assert list(table) == [*HEAD, "estimator", "score"]
    found = table.pivot(index="estimator", columns="head", values="score")
    wanted = {
        "michel_example": [7 / 3, 1.0],  # (2 + 4 + 1) / 3
        "michel_token": [0.9, 1.0],  # (4 + 4 + 1) / 10
        "michel_batch": [1.0, 1.0],  # (|2 - 4| / 2 + 1) / 2
        "attribution": [1.0, 0.0],
    }
    assert set(found.index) == set(wanted) == set(GRADIENT)
    for name, scores in wanted.items():
        assert found.loc[name].tolist() == pytest.approx(scores), name


def test_the_order_of_examples_matters_to_batches_alone(monkeypatch):
    monkeypatch.setattr(importance, "BATCH", 2)
    swapped = ROWS.assign(example=ROWS["example"].map({0: 0, 1: 2, 2: 1}))
    first, second = (importance.scores(rows).set_index("estimator") for rows in (ROWS, swapped))
    same = (first["score"] - second["score"]).abs().groupby("estimator").max() < 1e-12
    assert same.to_dict() == {name: name != "michel_batch" for name in GRADIENT}


def test_what_goes_through_together_does_not_matter():
    model = family("tiny_bart")
    task = resampled_task(model)
    average = mean(model, task)
    whole, alone = (
        importance.estimates(model, task, average, **ALL, tokens_per_batch=tokens)
        for tokens in (10_000, 1)
    )
    assert len(whole) == 4 * 36
    assert (whole["score"].abs() > 1e-3).any()
    pd.testing.assert_frame_equal(whole, alone, rtol=1e-4, atol=1e-5)


def test_scores_are_scaled_in_each_layer():
    heads = pd.DataFrame({"site": ["a", "a", "a", "b", "b"], "layer": [0, 0, 1, 0, 0]})
    scores = np.array([[3.0, 0.0], [4.0, -2.0], [5.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    wanted = [[0.6, 0], [0.8, -1], [1, 0], [0, 1], [0, 0]]
    assert importance.normalised(heads, scores).tolist() == wanted


# ------------------------------------------------------------------ against other code
def test_michel_by_token_equals_the_code_of_the_paper():
    """`dot = einsum("bhli,bhli->bhl", grad_ctx, ctx)`, of Hugging Face's own attention."""
    model = family("tiny_bert")
    task = padded_task(model)
    kept = []

    def keep(_module, _args, output):
        output[0].retain_grad()
        kept.append(output[0])

    layers = model.module.bert.encoder.layer
    handles = [layer.attention.self.register_forward_hook(keep) for layer in layers]
    asked = task.questions(model, range(len(task)))
    try:
        task.score(model, asked).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    mask = asked.batch.text.mask
    wanted = []
    for context in kept:
        ctx, grad_ctx = (x.unflatten(-1, (4, 8)).transpose(1, 2) for x in (context, context.grad))
        dot = torch.einsum("bhli,bhli->bhl", grad_ctx, ctx)
        wanted.append((dot.abs() * mask[:, None]).sum(-1).sum(0) / mask.sum())
    model.module.zero_grad()
    found = importance.estimates(model, task, Zero(), **ALL, tokens_per_batch=10_000)
    found = found[found["estimator"] == "michel_token"].sort_values(HEAD)["score"]
    wanted = torch.cat(wanted).detach().numpy()
    assert wanted.min() > 1e-5
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_bert"])
def test_confidence_and_norms_equal_a_loop_over_sequences(name):
    model = family(name)
    task = padded_task(model)
    rows = importance.looks(model, task, range(len(task)))
    module = model.module
    module.set_attn_implementation("eager")
    sure, norm, n = np.zeros((3, 4)), np.zeros((3, 4)), 0
    if name == "tiny_bert":
        outs = [layer.attention.output.dense for layer in module.bert.encoder.layer]
    else:
        outs = [layer.self_attn.o_proj for layer in module.model.layers]
    for item in (item for example in task.examples for item in example):
        zs = []

        def keep(_module, args, zs=zs):
            zs.append(args[0][0])

        with ExitStack() as stack, torch.no_grad():
            for out in outs:
                stack.callback(out.register_forward_pre_hook(keep).remove)
            attentions = module(
                input_ids=torch.tensor([item.text.ids]), output_attentions=True
            ).attentions
        real = [not special for special in item.text.special]
        n += sum(real)
        for layer, pattern in enumerate(attentions):
            sure[layer] += pattern[0][:, real][..., real].amax(-1).sum(-1).numpy()
            for head in range(4):
                part = slice(8 * head, 8 * head + 8)
                written = zs[layer][real][:, part] @ outs[layer].weight[:, part].T
                norm[layer, head] += written.norm(dim=-1).sum().item()
    found = importance.measured(rows)
    assert set(found) == {"confidence", "z_norm"}
    assert rows.groupby(HEAD)["n_looked"].sum().eq(n).all()
    np.testing.assert_allclose(found["confidence"].score, sure.ravel() / n, rtol=1e-4)
    np.testing.assert_allclose(found["z_norm"].score, norm.ravel() / n, rtol=1e-4)


def test_the_norm_of_w_ov_is_that_of_the_product():
    model = family("tiny_llama")
    wanted = []
    for block in model.module.model.layers:
        gain = block.input_layernorm.weight.detach()
        values, output = (
            part.weight.detach() for part in (block.self_attn.v_proj, block.self_attn.o_proj)
        )
        for head in range(4):
            group, own = slice(8 * (head // 2), 8 * (head // 2) + 8), slice(8 * head, 8 * head + 8)
            wanted.append((output[:, own] @ (values[group] * gain)).norm().item())
    table = importance.ov_norms(model)
    np.testing.assert_allclose(table["ov_norm"], wanted, rtol=1e-4)
    assert len(importance.ov_norms(family("tiny_t5"))) == 36


# ------------------------------------------------------------------ rankings
def fixed(*score):
    return Scores(np.array(score), np.tile(np.array(score)[:, None], 50))


def test_agreement_by_hand():
    first, second = fixed(8.0, 7, 6, 5, 4, 3, 2, 1), fixed(7.0, 8, 0, 5, 4, 3, 2, 1)
    found = ranking.agreement(first, second, top=2, level=0.95)
    numbers = first.score, second.score
    assert found["spearman"] == pytest.approx(stats.spearmanr(*numbers).statistic)
    assert found["kendall"] == pytest.approx(stats.kendalltau(*numbers).statistic)
    assert (found["top_k"], found["overlap"], found["n_heads"]) == (2, 1.0, 8)
    assert found["ci_low"] == found["ci_high"] == pytest.approx(found["spearman"])
    assert ranking.agreement(first, second, top=10, level=0.95)["top_k"] == 2  # a quarter
    third = fixed(0.0, 8, 9, 5, 4, 3, 2, 1)
    assert ranking.agreement(first, third, top=2, level=0.95)["overlap"] == 0.5


def test_nothing_agrees_with_what_is_all_the_same():
    found = ranking.agreement(fixed(1.0, 2, 3), fixed(0.0, 0, 0), top=1, level=0.95)
    assert np.isnan([found[name] for name in ("spearman", "kendall", "ci_low")]).all()


def test_the_interval_is_that_of_both_on_the_same_resampled_examples():
    rng = np.random.default_rng(0)
    skill, clusters = rng.normal(size=(30, 1)), np.arange(40) // 2
    damage, guess = skill + 2 * rng.normal(size=(2, 30, 40))
    exact, same, other = (
        Scores(each.score, each.draws(clusters, n_draws=1000, seed=0))
        for each in (
            importance.Measured(value, np.ones_like(value)) for value in (damage, 3 * damage, guess)
        )
    )
    alike = ranking.agreement(same, exact, top=3, level=0.9)
    assert alike["ci_low"] == alike["ci_high"] == pytest.approx(1)
    found = ranking.agreement(other, exact, top=3, level=0.9)
    wanted = []  # the same by a loop
    for pick in rng.integers(20, size=(1000, 20)):
        columns = np.concatenate([[2 * cluster, 2 * cluster + 1] for cluster in pick])
        means = (values[:, columns].mean(axis=1) for values in (guess, damage))
        wanted.append(stats.spearmanr(*means).statistic)
    low, high = np.quantile(wanted, [0.05, 0.95])
    assert 0.1 < low < high - 0.1
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((low, high), abs=0.03)


# ------------------------------------------------------------------ the command
@pytest.fixture
def undrawn(elsewhere, monkeypatch):
    """Run in an empty folder, without the figure."""
    monkeypatch.setattr(plots, "estimates", lambda *_args, **_kwargs: Figure())


SMALL = ["n_examples=3", "task.min_accuracy=0", "ig.steps=1", "bootstrap_draws=20"]
IMPORTANCE = "model task ablation positions site layer head estimator score ci_low ci_high"
AGREEMENT = (
    "model task ablation positions site estimator target spearman kendall top_k overlap ci_low "
    "ci_high n_heads"
)
EXTRA = ("run", "seed", "n_examples", "dtype")


def load(name, folder="results"):
    table = results.load(folder, name)
    return table.drop(columns=[column for column in EXTRA if column in table])


@pytest.mark.usefixtures("elsewhere")
def test_writes_the_tables_of_the_contract(capsys):
    assert run("importance", "model=tiny_llama", "ablation=uniform", *SMALL) == 0
    table, ranked = load("importance"), load("agreement")
    assert list(table) == IMPORTANCE.split()
    assert list(ranked) == AGREEMENT.split()
    assert set(table["estimator"]) == set(importance.ESTIMATORS)
    assert table.groupby("estimator").size().eq(12).all()
    assert not table.drop(columns="estimator").isna().any().any()
    assert (table["ci_low"] <= table["ci_high"]).all()
    exact = table[table["estimator"] == "exact"]
    assert (
        run("ablation", "model=tiny_llama", "ablation=uniform", *SMALL[:2], "hydra.run.dir=exact")
        == 0
    )
    summary = results.load("exact")
    both = exact.merge(summary, on=HEAD)
    assert both["score"].to_numpy() == pytest.approx(both["damage"].to_numpy(), abs=1e-5)
    for line in ranked.itertuples():
        signed = line.estimator in ("attribution", "ig")
        assert line.target == ("damage" if signed else "abs_damage")
        ours = table[table["estimator"] == line.estimator].merge(exact, on=HEAD)
        wanted = ours["score_y"] if signed else ours["score_y"].abs()
        assert line.spearman == pytest.approx(stats.spearmanr(ours["score_x"], wanted).statistic)
    [path] = Path("results").rglob("run.json")
    record = json.loads(path.read_text())
    assert set(record["seconds_of_passes"]) == {"clean_forward", "gradient", "ig_step"}
    assert record["ig_gap"]["share"] >= 0
    assert (path.parent / "estimates.png").exists()
    said = capsys.readouterr().out
    assert "attribution ranks heads most like damage" in said or "ig ranks heads most" in said
    assert "gradients of all heads cost" in said


@pytest.mark.usefixtures("undrawn")
def test_sites_are_ranked_apart_and_together():
    write("s.csv", "source,target\nhello you,hallo du\ngood day,guten tag\nabc,xyz\n")
    options = ["task=seq2seq", "task.path=s.csv", "ig.steps=1", "bootstrap_draws=20"]
    assert run("importance", "model=tiny_t5", *options, "normalise=layer") == 0
    ranked = load("agreement")
    sizes = ranked.groupby("site")["n_heads"].unique().str[0].to_dict()
    apart = dict.fromkeys(["encoder_attn", "decoder_self_attn", "decoder_cross_attn"], 12)
    assert sizes == {**apart, "all": 36}
    table = load("importance")
    michel = table[table["estimator"] == "michel_token_l2"]
    sizes = (michel["score"] ** 2).groupby([michel["site"], michel["layer"]]).sum()
    assert len(sizes) == 9
    assert sizes.to_numpy() == pytest.approx(np.ones(9))
    assert {"michel_token_l2", "attribution"} < set(table["estimator"])


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_goes_on_and_ends_the_same(monkeypatch):
    lines = "".join(f"{prompt}, is, are\n" for prompt in ["The dog", "Our cat"])
    write("p.csv", f"prompt,answer,distractor\n{lines}")
    options = ["model=tiny_gpt2", "task=prompts", "task.path=p.csv", *SMALL]
    options += ["ablation=resample", "resample.draws=1", "tokens_per_batch=8"]
    assert run("importance", *options, "hydra.run.dir=whole") == 0
    honest, calls = importance.integrated, []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("pulled the plug")
        return honest(*args, **kwargs)

    monkeypatch.setattr(importance, "integrated", failing)
    with pytest.raises(RuntimeError, match="plug"):
        run("importance", *options, "hydra.run.dir=broken")
    assert not Path("broken/importance.parquet").exists()
    assert run("importance", *options, "hydra.run.dir=broken") == 0
    assert len(calls) == 3  # two batches, one of them twice
    for name in ("importance", "agreement"):
        whole, broken = (
            pd.read_parquet(f"{folder}/{name}.parquet") for folder in ("whole", "broken")
        )
        pd.testing.assert_frame_equal(whole, broken, check_exact=True)


BAD = {
    "zero, where paths do not add up": (["ablation=zero"], "ig.force=true"),
    "an unknown ablation": (["ablation=median"], "ablation=median"),
    "an unknown scale": (["normalise=head"], "normalise=head"),
    "no draws": (["ig.draws=0"], "ig.draws=0"),
    "no heads to compare": (["top_k=0"], "top_k=0"),
    "no answers": (["positions=answer", "model=tiny_bert", "task=similarity"], "positions=answer"),
}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("overrides", "names"), BAD.values(), ids=BAD)
def test_bad_input_ends_in_one_line_and_leaves_nothing(overrides, names, capsys):
    before = files()
    assert run("importance", "model=tiny_gpt2", *SMALL, *overrides) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert names in line
    assert files() == before


@pytest.mark.usefixtures("undrawn")
def test_zero_goes_where_it_is_asked_for():
    options = ["model=tiny_gpt2", *SMALL, "ablation=zero", "hydra.run.dir=here"]
    assert run("importance", *options, "ig.steps=0") == 0
    assert "ig" not in set(load("importance", "here")["estimator"])
    assert "ig_gap" not in json.loads(Path("here/run.json").read_text())


def test_attribution_ranks_the_heads_of_a_real_model_as_ablation_does(model):
    minilm = model("minilm")
    task = similarity.task(minilm, min_accuracy=0.0).first(2)
    average = mean(minilm, task)
    rows = importance.gradients(minilm, task, range(2), average, **ALL)
    heads = [Head(*line) for line in importance.heads(rows).itertuples(index=False)]
    ablated, clean = swept(minilm, task, [(head,) for head in heads], average)
    predicted = importance.measured(rows)["attribution"].score
    exact = (clean - ablated[0]).mean(1)
    assert stats.spearmanr(predicted, exact).statistic > 0.8
