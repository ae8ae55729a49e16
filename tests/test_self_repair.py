"""Self-repair: worked by hand, its laws, planted truth, and a slow loop over HF modules."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from test_experiments import files, run
from test_gates import CLOSE, build, family, padded_task, prompt_task

from interp import plots, results, sweep
from interp.errors import InputError
from interp.gates import Mean, Resample, Zero
from interp.heads import Head, all_heads
from interp.models.custom import from_transformer
from interp.models.planted import planted
from interp.models.text import byte_tokenizer
from interp.redundancy import self_repair
from interp.redundancy.self_repair import EFFECTS, Engine, Parts, Reader, slope
from interp.tasks import prompts
from interp.transformer import Transformer, TransformerConfig

CHOICES = {
    "device": "cpu",
    "dtype": "float32",
    "prepend_bos": "auto",
    "padding_side": "right",
    "truncation": "error",
}
FAMILIES = ["tiny_gpt2", "tiny_llama", "tiny_neox", "uncapped", "custom_decoder"]
ROWS = [
    ("a cat", "x", "y"),
    ("dogs bark at", "p", "q"),
    ("the key", "s", "t"),
    ("he sat", "u", "v"),
]
HOW = {"n_draws": 200, "level": 0.95, "seed": 0}
TABLE = (
    "model task ablation positions site layer head contribution direct total self_repair by_heads "
    "by_mlps by_norm n ci_low ci_high q_value direct_low direct_high total_low total_high n_top "
    "contribution_top direct_top total_top self_repair_top"
)


@cache
def model_of(name):
    """Give a decoder; `uncapped` is a Gemma 2 without the soft cap on its logits."""
    if name != "uncapped":
        return family(name)
    model = build("tiny_gemma2")
    for config in (model.config, model.module.config):  # (the one that runs is a copy)
        config.final_logit_softcapping = None
    return model


def noisy_mean(model):
    """Put something other than a mean into each head's place."""
    noise = torch.Generator().manual_seed(1)
    return Mean(
        {
            (site.name, layer): torch.randn(site.n_heads, site.d_head, generator=noise)
            for site in model.sites
            for layer in range(site.n_layers)
        }
    )


def measured(model, task, settings, baseline, positions="all", **options):
    """Run settings on all examples in micro-batches of several rows."""
    engine = Engine(model, task, settings, baseline, positions, **options)
    jobs = [job for part in engine.plan(600, range(len(settings))).parts for job in part]
    return pd.concat([engine.run(job) for job in jobs], ignore_index=True)


def single(model):
    return [(head,) for head in all_heads(model.sites)]


# ------------------------------------------------------------------ worked by hand
def by_hand():
    """One layer, two heads, no norm and no MLP: everything a head writes goes to the logits."""
    config = TransformerConfig(
        "decoder", 260, d_model=4, n_layers=1, n_heads=2, n_ctx=16, norm="none", bias=False
    )
    return from_transformer(Transformer(config), byte_tokenizer("none"), name="by_hand")


def test_without_norms_and_later_parts_nothing_is_repaired():
    model = by_hand()
    task = prompt_task(model, ROWS)
    effects = self_repair.effects(measured(model, task, single(model), Zero()))
    item = task.examples[1][0]
    with torch.no_grad(), model.watching_z() as z:
        model.run(model.batch([item.text]))
    [[right, wrong]] = item.ids
    W_U = model.module.unembed.weight.detach()
    direction = W_U[right] - W_U[wrong]
    for head in (0, 1):
        W_O = model.module.blocks[0].attn.W_O[head].detach()
        written = z["attn", 0][0, item.read[0], head] @ W_O
        for name in ("contribution", "direct", "total"):
            assert effects[name][head, 1] == pytest.approx(float(written @ direction), abs=1e-5)
    for name in ("self_repair", "by_norm", "by_heads", "by_mlps"):
        assert np.abs(effects[name]).max() < 1e-5


def test_a_norm_is_read_through_at_the_scale_it_has():
    norm = torch.nn.LayerNorm(4)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        norm.bias.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    given = torch.tensor([[3.0, -3.0, 3.0, -3.0], [1.0, 2.0, 4.0, 8.0]])
    direction = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, -1.0, 2.0, 0.5]]).double()
    with torch.no_grad():
        pulled, constant = self_repair.through(norm, given, direction)
        made = (direction * norm(given)).sum(-1)
    # scale 3, gain 1 and 2, and the mean of 1/3 and 2/3 over four taken off
    assert pulled[0].tolist() == pytest.approx([1 / 3 - 1 / 4, 2 / 3 - 1 / 4, -1 / 4, -1 / 4])
    assert constant.tolist() == [1, -1]
    assert (pulled * given).sum(-1) + constant == pytest.approx(made, abs=1e-5)


def test_what_is_left_over_is_the_norm_s():
    rows = pd.DataFrame(
        {
            "setting": [0, 0, 0, 0],
            "example": [0, 0, 1, 1],
            "draw": [0, 1, 0, 1],
            "clean": [5.0, 5.0, 2.0, 2.0],
            "ablated": [4.0, 3.0, 2.0, 2.0],
            "contribution": [3.0, 3.0, 1.0, 1.0],
            "direct": [2.5, 3.5, 1.0, 1.0],
            "by_heads": [0.5, 1.0, 0.0, 0.0],
            "by_mlps": [0.5, 0.0, 0.25, 0.75],
        }
    )
    found = self_repair.effects(rows)
    assert {name: value.tolist() for name, value in found.items()} == {
        "contribution": [[3, 1]],
        "direct": [[3, 1]],
        "total": [[1.5, 0]],
        "self_repair": [[1.5, 1]],
        "by_heads": [[0.75, 0]],
        "by_mlps": [[0.25, 0.5]],
        "by_norm": [[0.5, 0.5]],
    }


# ------------------------------------------------------------------ laws
@pytest.mark.parametrize("name", [*FAMILIES, "left"])
def test_what_parts_add_comes_to_the_logit_difference(name):
    model = family("tiny_neox", "left") if name == "left" else model_of(name)
    task = prompt_task(model, ROWS)
    asked = task.questions(model, range(4))
    with torch.no_grad():
        read, score = Reader(model, task).readout(asked), task.score(model, asked)
    assert (read.total - score).abs().max() < CLOSE
    for part in (read.clean.heads, read.clean.mlps, read.embeddings[:, None]):
        assert part.abs().amax(0).min() > 1e-3  # every part has a part in it
    has_biases = name not in ("tiny_llama", "uncapped")
    assert (read.biases.abs().min() > 1e-3) == has_biases


@pytest.mark.parametrize(
    ("name", "positions"), [*((name, "all") for name in FAMILIES), ("tiny_llama", "answer")]
)
def test_total_is_the_damage_of_a_sweep(name, positions):
    model = model_of(name)
    task = prompt_task(model, ROWS)
    settings, source = [*single(model), (Head("attn", 0, 1), Head("attn", 2, 2))], noisy_mean(model)
    effects = self_repair.effects(measured(model, task, settings, source, positions))
    engine = sweep.Engine(model, task, settings, source, positions)
    jobs = [job for part in engine.plan(64, range(len(settings))).parts for job in part]
    rows = pd.concat([engine.run(job) for job in jobs])
    damage = (rows["clean"] - rows["ablated"]).groupby([rows["setting"], rows["example"]]).mean()
    assert np.abs(effects["total"] - damage.unstack().to_numpy()).max() < CLOSE
    assert np.abs(effects["total"]).max(axis=1).min() > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_only_what_comes_later_reacts(name):
    """The MLP of the head's own layer comes later, but where the two run in parallel (NeoX)."""
    model = model_of(name)
    heads = [Head("attn", layer, 1) for layer in range(3)]
    task = prompt_task(model, ROWS)
    settings = [(head,) for head in heads]
    rows = measured(model, task, settings, noisy_mean(model), part_by_part=True)
    change = rows.groupby("setting")[Reader(model, task).names].agg(lambda x: x.abs().max())
    for number, own in enumerate(range(3)):
        for layer in range(3):
            for head in range(4):
                moves = change.loc[number, f"L{layer}H{head}"] > 1e-4
                assert moves == (layer > own or (layer, head) == (own, 1)), (own, layer, head)
            moves = change.loc[number, f"MLP{layer}"] > 1e-4
            assert moves == (layer >= own + (name == "tiny_neox"))


def test_a_layer_s_direct_effect_is_that_of_its_heads():
    model = model_of("tiny_llama")
    task, source = prompt_task(model, ROWS), noisy_mean(model)
    layers = [tuple(Head("attn", layer, head) for head in range(4)) for layer in range(3)]
    alone = self_repair.effects(measured(model, task, single(model), source))["direct"]
    whole = self_repair.effects(measured(model, task, layers, source, "answer"))
    together = alone.reshape(3, 4, -1).sum(1)  # (what heads of a layer write is independent)
    assert np.abs(whole["direct"] - together).max() < CLOSE
    assert np.abs(whole["by_norm"]).max() > 1e-3


def test_draws_are_averaged():
    model = model_of("tiny_gpt2")
    task = prompt_task(model, [("a cat", "x", "y"), ("a dog", "p", "q"), ("a key", "s", "t")])
    partners = np.array([[1, 2, 0], [2, 0, 1]])
    both, *each = [
        self_repair.effects(measured(model, task, single(model), Resample(draws, task.examples)))
        for draws in (partners, partners[:1], partners[1:])
    ]
    for name in EFFECTS:
        assert np.allclose(both[name], (each[0][name] + each[1][name]) / 2, atol=CLOSE)
    assert np.abs(each[0]["direct"] - each[1]["direct"]).max() > 1e-2


# ------------------------------------------------------------------ an independent route
def loop_modules(model):
    """Name what a slow loop hooks: blocks, W_O, MLPs, the last norm and the unembedding."""
    module = model.module
    if model.name == "tiny_gpt2":
        blocks = list(module.transformer.h)
        parts = [(block.attn.c_proj, block.mlp) for block in blocks]
        matrices = [block.attn.c_proj.weight for block in blocks]  # Conv1D: [in, out]
        return blocks, parts, matrices, module.transformer.ln_f, module.lm_head
    blocks = list(module.model.layers)
    parts = [(block.self_attn.o_proj, block.mlp) for block in blocks]
    matrices = [block.self_attn.o_proj.weight.T for block in blocks]
    return blocks, parts, matrices, module.model.norm, module.lm_head


def plain_run(model, item, closed=None):
    """Run one prompt on the Hugging Face module; zero one head's slice of W_O's input.

    Returns the logit difference, and what heads, MLPs and the block's input are at the answer.
    """
    blocks, parts, matrices, norm, unembed = loop_modules(model)
    site, at = model.site["attn"], item.read[0]
    seen, handles = {}, []

    def edit(layer):
        def hook(_, args):
            z = args[0].clone()
            if closed is not None and closed.layer == layer:
                z[..., closed.head * site.d_head : (closed.head + 1) * site.d_head] = 0
            seen["z", layer] = z[0, at]
            return (z,)

        return hook

    def keep(name):
        return lambda _, args, out: seen.__setitem__(
            name, (out[0] if isinstance(out, tuple) else out)[0, at]
        )

    for layer, (w_o, mlp) in enumerate(parts):
        handles.append(w_o.register_forward_pre_hook(edit(layer)))
        handles.append(mlp.register_forward_hook(keep(("mlp", layer))))
    handles.append(
        norm.register_forward_pre_hook(lambda _, args: seen.__setitem__("last", args[0][0, at]))
    )
    try:
        with torch.no_grad():
            tokens = torch.tensor([item.text.ids])
            logits = model.module(tokens, use_cache=False).logits[0, at].double()
    finally:
        for handle in handles:
            handle.remove()
    [[right, wrong]] = item.ids
    written = {
        (layer, head): z.double() @ matrix.double()
        for layer, matrix in enumerate(matrices)
        for head, (z, matrix) in enumerate(
            zip(
                seen["z", layer].view(site.n_heads, site.d_head),
                matrix.view(site.n_heads, site.d_head, -1),
                strict=True,
            )
        )
    }
    mlps = {layer: seen["mlp", layer].double() for layer in range(len(blocks))}
    direction = (unembed.weight[right] - unembed.weight[wrong]).detach().double()
    return logits[right] - logits[wrong], written, mlps, seen["last"].double(), direction


def slowly(model, item, head):
    """Work out self-repair of one head on one prompt from textbook formulae of the two norms."""
    norm = loop_modules(model)[3]
    clean, heads, mlps, last, direction = plain_run(model, item)
    after, new_heads, new_mlps, new_last, _ = plain_run(model, item, head)
    is_layer_norm = isinstance(norm, torch.nn.LayerNorm)
    epsilon = norm.eps if is_layer_norm else norm.variance_epsilon

    def centred(x):
        return x - x.mean() if is_layer_norm else x

    scale = (centred(last).pow(2).mean() + epsilon).sqrt()

    def add(x):
        return float((direction * norm.weight.detach().double()) @ centred(x) / scale)

    bias = float(direction @ norm.bias.detach().double()) if is_layer_norm else 0.0
    assert add(last) + bias == pytest.approx(float(clean), abs=1e-4)
    own = (head.layer, head.head)
    direct = add(heads[own]) - add(new_heads[own])
    return {
        "contribution": add(heads[own]),
        "direct": direct,
        "total": float(clean - after),
        "self_repair": direct - float(clean - after),
        "by_heads": sum(add(new_heads[h]) - add(heads[h]) for h in heads if h != own),
        "by_mlps": sum(add(new_mlps[layer]) - add(mlps[layer]) for layer in mlps),
        "by_norm": float(after) - add(new_last) - bias,
    }


def assert_agrees(model, task, heads):
    effects = self_repair.effects(measured(model, task, [(head,) for head in heads], Zero()))
    for number, head in enumerate(heads):
        for example in range(len(task)):
            wanted = slowly(model, task.examples[example][0], head)
            found = {name: effects[name][number, example] for name in EFFECTS}
            assert found == pytest.approx(wanted, abs=CLOSE), (head, example)
            parts = wanted["by_heads"] + wanted["by_mlps"] + wanted["by_norm"]
            assert parts == pytest.approx(wanted["self_repair"], abs=CLOSE)
            assert abs(wanted["by_norm"]) > 1e-4


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_llama"])
def test_agrees_with_a_slow_loop_over_the_hugging_face_module(name):
    model = model_of(name)
    heads = [Head("attn", 0, 2), Head("attn", 1, 1), Head("attn", 2, 3)]
    assert_agrees(model, prompt_task(model, ROWS[:2]), heads)


def test_agrees_with_a_slow_loop_on_smollm2(model):
    smollm2 = model("smollm2")
    rows = [("The key to the cabinets", " is", " are"), ("The dogs", " are", " is")]
    task = prompt_task(smollm2, rows)
    asked = task.questions(smollm2, range(2))
    with torch.no_grad():
        read = Reader(smollm2, task).readout(asked)
        assert (read.total - task.score(smollm2, asked)).abs().max() < CLOSE
    assert_agrees(smollm2, task, [Head("attn", 26, 0), Head("attn", 11, 0)])


# ------------------------------------------------------------------ planted truth
@cache
def redundant():
    """The planted model `redundant`, its task, and its heads under zero ablation, part by part."""
    model = planted("redundant", 0, **CHOICES)
    table = pd.DataFrame(model.examples)
    task = prompts.from_table(model, table, name="planted", min_accuracy=0.5)
    return model, task, measured(model, task, single(model), Zero(), part_by_part=True)


def test_planted_parts_come_out():
    model, _, rows = redundant()
    heads = all_heads(model.sites)
    effects = self_repair.effects(rows)
    mean = {
        head: {name: effects[name][n].mean() for name in EFFECTS} for n, head in enumerate(heads)
    }
    [main], [backup], [harmful] = map(model.heads_of, ("main", "backup", "harmful"))
    near = {"abs": 0.02}
    wanted = {"direct": 2, "total": 0.5, "self_repair": 1.5, "by_heads": 1.5, "by_mlps": 0}
    assert {name: mean[main][name] for name in wanted} == pytest.approx(wanted, **near)
    assert mean[main]["by_norm"] == pytest.approx(0, abs=1e-5)
    assert mean[harmful]["direct"] == pytest.approx(-0.75, **near)
    assert mean[backup]["direct"] == pytest.approx(0, **near)
    for head in model.heads_of("linear_twin"):
        assert mean[head]["direct"] == pytest.approx(1, **near)
        assert mean[head]["self_repair"] == pytest.approx(0, abs=1e-5)
    for head in model.heads_of("twin"):  # what they write is read by the MLP alone
        assert mean[head]["direct"] == 0
    dead = [n for n, head in enumerate(heads) if "dead" in model.truth[head]]
    for name in EFFECTS:
        assert not effects[name][dead].any()


def test_the_backup_is_what_restores_most_of_main():
    model, task, rows = redundant()
    heads = all_heads(model.sites)
    [main], [backup] = model.heads_of("main"), model.heads_of("backup")
    lines = rows[rows["setting"] == heads.index(main)]
    table = self_repair.restorers(lines, [main], task.table["cluster"].to_numpy(), **HOW)
    assert len(table) == 6 + 2  # the heads of the second layer, and the MLPs of both
    first = table.iloc[0]
    assert (first["site_2"], first["layer_2"], first["head_2"]) == ("attn", 1, backup.head)
    assert (first["kind"], first["rank"]) == ("head", 1)
    assert first["restored"] == pytest.approx(1.5, abs=0.02)
    assert first["ci_low"] <= first["restored"] <= first["ci_high"]
    assert first["q_value"] < 0.05
    assert table["restored"].iloc[1] == pytest.approx(0, abs=0.02)
    assert table[table["kind"] == "mlp"]["head_2"].isna().all()


# ------------------------------------------------------------------ tables
def test_the_line_of_compensation_is_least_squares():
    x, y = np.array([0.0, 1, 2, 3]), np.array([1.0, 2, 4, 4])
    clusters = np.arange(4)
    found = slope(x, y, clusters, n_draws=50, level=0.9, seed=0)
    assert found[0] == pytest.approx(np.polyfit(x, y, 1)[0])
    assert found[3] == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)
    assert found[1] < found[0] < found[2]
    assert slope(x, 3 * x - 7, clusters, n_draws=50, level=0.9, seed=0) == pytest.approx(
        (3,) * 3 + (1,)
    )
    assert np.isnan(slope(np.ones(4), y, clusters, n_draws=50, level=0.9, seed=0)).all()
    alone = slope(x, y, np.zeros(4), n_draws=50, level=0.9, seed=0)
    assert np.isnan(alone[1:3]).all()
    assert alone[0] == pytest.approx(found[0])


def test_the_examples_on_top_are_those_that_a_head_contributes_most_to():
    effects = {name: np.array([[1.0, 2, 3, 4], [4, 3, 2, 1]]) for name in EFFECTS}
    effects["contribution"] = np.array([[0.0, 9, 8, 1], [0, 9, 8, 10]])
    heads = [Head("attn", 0, 0), Head("attn", 1, 2)]
    table = self_repair.table(effects, heads, np.arange(4), top_share=0.3, **HOW)
    assert table["n_top"].tolist() == [2, 2]
    assert table["direct_top"].tolist() == [2.5, 2]
    assert table["contribution_top"].tolist() == [8.5, 9.5]
    assert table["direct"].tolist() == [2.5, 2.5]
    assert table[["layer", "head"]].to_numpy().tolist() == [[0, 0], [1, 2]]


def test_parts_of_the_clean_model_come_to_its_logit_difference():
    model = model_of("tiny_gpt2")
    task = prompt_task(model, ROWS)
    clean = sweep.clean_scores(model, task, 64)
    for tokens in (1, 30):
        added = self_repair.contributions(Reader(model, task), task, tokens)
        assert np.abs(sum(added.values()) - clean).max() < CLOSE
    table = self_repair.parts(added, "attn", np.arange(4), **HOW)
    assert table["contribution"].sum() == pytest.approx(clean.mean(), abs=CLOSE)
    assert table["kind"].value_counts().to_dict() == {
        "head": 12,
        "mlp": 3,
        "embeddings": 1,
        "biases": 1,
    }


def test_rows_of_parts_are_subtracted():
    one = Parts(torch.ones(3, 1, 2), torch.arange(3.0)[:, None])
    left = one.select(torch.tensor([2, 0])) - one.select(torch.tensor([1, 1]))
    assert left.mlps.tolist() == [[1], [-1]]
    assert not left.heads.any()


# ------------------------------------------------------------------ what is undefined
def post_norm():
    config = TransformerConfig(
        "decoder", 260, d_model=8, n_layers=2, n_heads=2, n_ctx=32, d_mlp=8, norm="post"
    )
    return from_transformer(Transformer(config), byte_tokenizer("none"), name="post_norm")


def scaled():
    """A Llama that halves what its first MLP writes (as Granite does)."""
    model = build("tiny_llama")
    mlp = model.module.model.layers[0].mlp
    mlp.register_forward_hook(lambda _module, _args, output: output / 2)
    return model


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: family("tiny_gemma2"), "soft-capped"),
        (post_norm, "post-norm"),
        (scaled, "scales what they write"),
    ],
    ids=["soft_cap", "post_norm", "scaled"],
)
def test_what_does_not_add_up_is_refused(make, says):
    model = make()
    with pytest.raises(InputError, match=says) as error:
        Engine(model, prompt_task(model, ROWS), single(model), Zero(), "all").check()
    assert "\n" not in str(error.value)
    assert "take a" in str(error.value)


def test_other_metrics_and_kinds_are_refused():
    gpt2 = family("tiny_gpt2")
    with pytest.raises(InputError, match="logprob_diff of task=padded"):
        Reader(gpt2, padded_task(gpt2))
    for name in ("tiny_bert", "tiny_t5"):
        with pytest.raises(InputError, match=r"not defined for tiny_\w+, an encoder"):
            Reader(family(name), padded_task(family(name)))


# ------------------------------------------------------------------ the command
SMALL = ["n_examples=4", "task.min_accuracy=0", "bootstrap_draws=50", "n_restored=3"]


@pytest.mark.usefixtures("elsewhere")
def test_writes_the_tables_of_the_contract_and_goes_on_after_an_interrupt(monkeypatch, capsys):
    arguments = ["model=tiny_neox", *SMALL, "tokens_per_batch=2000"]
    monkeypatch.setattr(sweep, "PART_TOKENS", 500)
    assert run("self_repair", *arguments, "hydra.run.dir=whole") == 0
    printed = capsys.readouterr().out
    honest, calls = Engine.run, []

    def failing(engine, job):
        calls.append(job)
        if len(calls) == 8:  # in the second stage; the first is there
            raise OSError("pulled the plug")
        return honest(engine, job)

    monkeypatch.setattr(Engine, "run", failing)
    with pytest.raises(OSError, match="plug"):
        run("self_repair", *arguments, "hydra.run.dir=broken")
    assert list(Path("broken/parts").glob("*-0-*.parquet"))
    assert not Path("broken/self_repair.parquet").exists()
    assert run("self_repair", *arguments, "hydra.run.dir=broken") == 0
    for name in ("self_repair", "restorers", "compensation", "parts"):
        whole, broken = (
            pd.read_parquet(f"{where}/{name}.parquet") for where in ("whole", "broken")
        )
        pd.testing.assert_frame_equal(whole, broken, check_exact=True)
    table = pd.read_parquet("whole/self_repair.parquet")
    assert list(table) == TABLE.split()
    assert len(table) == 12
    assert not table.isna().any().any()
    assert table["self_repair"].to_numpy() == pytest.approx(
        (table["by_heads"] + table["by_mlps"] + table["by_norm"]).to_numpy(), abs=CLOSE
    )
    assert (table["ablation"], table["positions"])[0].unique().tolist() == ["mean"]
    best = table.nlargest(3, "direct")[["layer", "head"]].to_numpy().tolist()
    assert sorted(best) == sorted(
        pd.read_parquet("whole/restorers.parquet")[["layer", "head"]]
        .drop_duplicates()
        .to_numpy()
        .tolist()
    )
    compensation = pd.read_parquet("whole/compensation.parquet")
    assert compensation["layer"].tolist() == [0, 1, 2]
    made = {path.rpartition("/")[2] for path in files() if path.startswith("whole/")}
    assert {"repair.png", "restored.png", "slopes.png", "examples.parquet"} < made
    assert "the heads with the largest direct effects, 10 of 12" in printed
    assert len(results.load("whole", "self_repair")) == 12


@pytest.mark.usefixtures("elsewhere")
def test_says_what_is_planted(capsys):
    arguments = ["model=planted", "model.variant=redundant", "task=planted", "ablation=zero"]
    assert run("self_repair", *arguments, "n_examples=12") == 0
    printed = capsys.readouterr().out
    model, _, _ = redundant()
    [main], [backup] = model.heads_of("main"), model.heads_of("backup")
    assert f"heads that restore something clear of 0: {backup} for {main} +1.500\n" in printed
    assert "3 of 12 heads help the answer directly" in printed
    assert "Of these heads 1 are repaired in part, 0 do more damage" in printed


BAD = {
    "an encoder": (["model=tiny_bert", "task=similarity"], "tiny_bert, an encoder"),
    "a share in per cent": (["model=tiny_gpt2", "top_share=2"], "top_share=2"),
    "a head that does not exist": (["model=tiny_gpt2", "heads=[L9H0]"], "L9H0"),
}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("overrides", "names"), BAD.values(), ids=BAD)
def test_bad_input_ends_in_one_line_and_leaves_nothing(overrides, names, capsys):
    assert run("self_repair", "n_examples=4", "task.min_accuracy=0", *overrides) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert names in line
    assert not files()


def test_a_last_head_has_no_restorers_but_its_layer_s_mlp():
    model = model_of("tiny_gpt2")
    task, heads = prompt_task(model, ROWS), [Head("attn", 1, 1), Head("attn", 2, 0)]
    rows = measured(model, task, [(head,) for head in heads], Zero(), part_by_part=True)
    table = self_repair.restorers(rows, heads, np.arange(4), **HOW).groupby(["layer", "head"])
    assert table.size().to_dict() == {(1, 1): 4 + 2, (2, 0): 1}


def test_figures_stand_on_heads_without_spread():
    table = pd.DataFrame(
        {"site": "attn", "layer": [0], "head": [0], "name": ["L0H0"], "direct": [0.0]}
    ).assign(total=0.0, by_heads=0.0, by_mlps=0.0, by_norm=0.0)
    plots.repair(table, named=3, title="t", unit="logits")
    plots.restored(table, title="t", unit="logits")
    empty = pd.DataFrame({"layer": [0], "slope": [np.nan], "ci_low": [np.nan], "ci_high": [np.nan]})
    plots.slopes(empty.assign(r2=np.nan), title="t")
