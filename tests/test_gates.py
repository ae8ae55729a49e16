"""Every baseline is checked against a loop written here, with plain hooks on W_O's input.

The loop (`plain`) knows each family's modules by name, runs one unpadded sequence at a time and
uses nothing of interp.gates; the gates run the same sequences padded, in batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from interp import gates, results, sweep
from interp.errors import InputError
from interp.gates import Mean, MeanByPosition, Resample, Twin, Uniform, Zero
from interp.heads import Head, all_heads
from interp.models.custom import from_transformer
from interp.models.head_model import HeadModel
from interp.models.text import Encoded, byte_tokenizer
from interp.models.tiny import FAMILIES, tiny
from interp.tasks import prompts
from interp.tasks.task import (
    Item,
    Task,
    cosine_difference,
    log_probability_difference,
    logit_difference,
)
from interp.transformer import Transformer, TransformerConfig

CUSTOM = ("custom_decoder", "custom_encoder", "custom_encoder_decoder")
MODELS = (*FAMILIES, *CUSTOM)
CLOSE = 1e-4
DECODER_SITES = {"self_attn": "decoder_self_attn", "cross_attn": "decoder_cross_attn"}
# model -> site -> the modules that read z (W_O) and make v (W_V, or a joint W_QKV) in a layer
PLACES: dict[str, dict[str, tuple[str, str]]] = {
    "tiny_gpt2": {"attn": ("transformer.h.{}.attn.c_proj", "transformer.h.{}.attn.c_attn")},
    "tiny_llama": {
        "attn": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.self_attn.v_proj")
    },
    "tiny_neox": {
        "attn": (
            "gpt_neox.layers.{}.attention.dense",
            "gpt_neox.layers.{}.attention.query_key_value",
        )
    },
    "tiny_bert": {
        "attn": (
            "bert.encoder.layer.{}.attention.output.dense",
            "bert.encoder.layer.{}.attention.self.value",
        )
    },
    "tiny_t5": {
        site: (f"{path}.o", f"{path}.v")
        for site, path in (
            ("encoder_attn", "encoder.block.{}.layer.0.SelfAttention"),
            ("decoder_self_attn", "decoder.block.{}.layer.0.SelfAttention"),
            ("decoder_cross_attn", "decoder.block.{}.layer.1.EncDecAttention"),
        )
    },
    "tiny_bart": {
        site: (f"{path}.out_proj", f"{path}.v_proj")
        for site, path in (
            ("encoder_attn", "model.encoder.layers.{}.self_attn"),
            ("decoder_self_attn", "model.decoder.layers.{}.self_attn"),
            ("decoder_cross_attn", "model.decoder.layers.{}.encoder_attn"),
        )
    },
    "custom_decoder": {"attn": ("blocks.{}.attn.hook_z", "blocks.{}.attn.hook_v")},
    "custom_encoder": {"attn": ("blocks.{}.attn.hook_z", "blocks.{}.attn.hook_v")},
    "custom_encoder_decoder": {
        site: (f"{path}.hook_z", f"{path}.hook_v")
        for site, path in (
            ("encoder_attn", "encoder_blocks.{}.attn"),
            ("decoder_self_attn", "decoder_blocks.{}.self_attn"),
            ("decoder_cross_attn", "decoder_blocks.{}.cross_attn"),
        )
    },
}
PLACES["tiny_gemma2"] = PLACES["tiny_llama"]
SITES = [(name, site) for name in MODELS for site in PLACES[name]]


def build(name: str, padding_side: str = "right", prepend_bos: bool | str = "auto") -> HeadModel:
    """Make a model anew, for tests that change its weights."""
    if name in FAMILIES:
        return tiny(
            name,
            weights_seed=0,
            device="cpu",
            dtype="float32",
            prepend_bos=prepend_bos,
            padding_side=padding_side,
            truncation="error",
        )
    kind = name.removeprefix("custom_")
    norms = {"decoder": "pre", "encoder": "post", "encoder_decoder": "pre"}
    config = TransformerConfig(
        kind=kind,
        d_vocab=260,
        d_model=32,
        n_layers=3,
        n_heads=4,
        n_kv_heads=2,
        n_ctx=64,
        d_mlp=48,
        norm=norms[kind],
    )
    module = Transformer(config)
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for path, parameter in module.named_parameters():
            if "b_" in path or "bias" in path:  # they start at 0 and would hide mistakes
                parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
    tokenizer = byte_tokenizer("none" if kind == "decoder" else "both")
    return from_transformer(
        module, tokenizer, name=name, padding_side=padding_side, prepend_bos=prepend_bos
    )


@cache
def family(name: str, padding_side: str = "right", prepend_bos: bool | str = "auto") -> HeadModel:
    """Make a model once for all tests; they leave it as it was."""
    return build(name, padding_side, prepend_bos)


# ------------------------------------------------------------------ a task of padded sequences
TEXTS = ["a cat", "dogs bark", "the key", "he sat up", "we ran", "she slept."]
"""In threes or in pairs, no two texts of an example are as long."""


def padded_task(model: HeadModel, n_examples: int = 2, texts: Sequence[str] = TEXTS) -> Task:
    """Several sequences of unequal lengths an example: the shorter ones are padded."""
    if model.kind == "encoder":
        n, score = 3, cosine_difference
        items = [Item(model.codec.encode(text)) for text in texts]
    else:
        n, score = 2, log_probability_difference
        items = [_scored(model, text, texts[-1 - number]) for number, text in enumerate(texts)]
    examples = [tuple(items[start : start + n]) for start in range(0, n_examples * n, n)]
    return Task(
        name="padded",
        metric="cos_diff" if n == 3 else "logprob_diff",
        higher_is_better=True,
        unit="nats",
        score=score,
        examples=examples,
        table=pd.DataFrame({"example": range(len(examples)), "cluster": "all"}),
    )


def _scored(model: HeadModel, text: str, other: str) -> Item:
    encoded = model.codec.encode(text)
    if model.kind == "encoder_decoder":
        labels = model.codec.encode_target(other)
        decoder = Encoded(
            (model.decoder_start, *labels.ids[:-1]),
            ((0, 0), *labels.offsets[:-1]),
            (True, *labels.special[:-1]),
        )
        read = tuple(range(len(labels)))
        return Item(encoded, decoder, read=read, ids=tuple((i,) for i in labels.ids))
    read = tuple(range(len(encoded) - 1))
    return Item(encoded, read=read, ids=tuple((i,) for i in encoded.ids[1:]))


def prompt_task(model: HeadModel, rows: Sequence[tuple[str, str, str]]) -> Task:
    table = pd.DataFrame(rows, columns=["prompt", "answer", "distractor"])
    return prompts.from_table(model, table, name="prompts", min_accuracy=0.0)


# ------------------------------------------------------------------ the loop to compare with
Edit = Callable[[tuple[str, int], Tensor, Tensor], Tensor]


@torch.no_grad()
def plain(model: HeadModel, item: Item, edit: Edit | None = None):
    """Run one sequence, unpadded, with plain hooks.

    Args:
        model: Where the module is taken from.
        item: The sequence.
        edit: From a place, its z `[query head d_head]` and v `[key kv_head d_head]`, the new z.

    Returns:
        Logits `[position vocab]`, final hidden states, and every z and v as the model made them.
    """
    zs: dict[tuple[str, int], Tensor] = {}
    vs: dict[tuple[str, int], Tensor] = {}
    handles = []
    module, is_custom = model.module, model.name in CUSTOM

    def hook(place: tuple[str, int], out: torch.nn.Module, source: torch.nn.Module) -> None:
        site = model.site[place[0]]
        d = site.d_head

        def keep_v(_module, _args, output) -> None:
            if model.name == "tiny_gpt2":
                output = output.chunk(3, dim=-1)[2]
            if model.name == "tiny_neox":
                output = output.view(1, -1, site.n_heads, 3 * d)[..., 2 * d :]
            vs[place] = output.reshape(-1, site.n_kv_heads, d)

        def change(z: Tensor) -> Tensor:
            heads = z.reshape(-1, site.n_heads, d)
            zs[place] = heads.clone()
            new = heads if edit is None else edit(place, heads.clone(), vs[place])
            return new.reshape(z.shape)

        handles.append(source.register_forward_hook(keep_v))
        if is_custom:
            handles.append(out.register_forward_hook(lambda _module, _args, z: change(z)))
        else:
            handles.append(out.register_forward_pre_hook(lambda _module, args: (change(args[0]),)))

    for site, paths in PLACES[model.name].items():
        for layer in range(3):
            hook((site, layer), *(module.get_submodule(path.format(layer)) for path in paths))
    hidden: list[Tensor] = []
    if model.kind == "encoder":
        last = module.ln_final if is_custom else module.bert.encoder.layer[2]
        handles.append(last.register_forward_hook(lambda _m, _a, output: hidden.append(output)))
    tokens = torch.tensor([item.text.ids])
    try:
        if is_custom:
            more = {"decoder_tokens": torch.tensor([item.target.ids])} if item.target else {}
            logits = module(tokens, **more)
        else:
            more = {} if model.kind == "encoder" else {"use_cache": False}
            if item.target:
                more["decoder_input_ids"] = torch.tensor([item.target.ids])
            logits = module(input_ids=tokens, attention_mask=torch.ones_like(tokens), **more).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits[0], (hidden[0][0] if hidden else None), zs, vs


def plain_score(model: HeadModel, task: Task, example: int, edits: Sequence[Edit | None]) -> float:
    """Score one example, each of its sequences under its own edit."""
    items = task.examples[example]
    runs = [plain(model, item, edit) for item, edit in zip(items, edits, strict=True)]
    if task.metric == "cos_diff":
        anchor, near, far = (hidden.double().mean(0) for _, hidden, _, _ in runs)
        return float(anchor @ near / anchor.norm() / near.norm()) - float(
            anchor @ far / anchor.norm() / far.norm()
        )
    if task.metric == "logit_diff":
        ((answer, distractor),) = items[0].ids
        row = runs[0][0][items[0].read[0]]
        return float(row[answer] - row[distractor])
    sums = []
    for item, (logits, *_) in zip(items, runs, strict=True):
        rows = logits.double().log_softmax(-1)
        sums.append(
            sum(float(rows[at, ids[0]]) for at, ids in zip(item.read, item.ids, strict=True))
        )
    return sums[0] - sums[1]


Where = Callable[[str, Item], Sequence[int] | None]
Standin = Callable[[tuple[str, int], Tensor, Tensor, int], Tensor]


def loop(
    model: HeadModel,
    task: Task,
    settings: Sequence[tuple[Head, ...]],
    standin: Callable[[int], Standin],
    where: Where | None = None,
) -> np.ndarray:
    """Ablate setting by setting and example by example: `[setting example]`.

    Args:
        model: The model.
        task: The examples.
        settings: The heads replaced together.
        standin: For an example, what replaces z, from (place, z, v, number of the sequence).
        where: The positions at which it does, from (site, item); None for all.
    """

    def edit(setting: tuple[Head, ...], example: int, number: int) -> Edit:
        item, make = task.examples[example][number], standin(example)

        def change(place: tuple[str, int], z: Tensor, v: Tensor) -> Tensor:
            for head in setting:
                if (head.site, head.layer) == place:
                    b = make(place, z, v, number).expand_as(z)[:, head.head].clone()
                    at = where(head.site, item) if where else range(len(z))
                    z[list(at), head.head] = b[list(at)]
            return z

        return change

    scores = [
        [
            plain_score(
                model,
                task,
                example,
                [edit(setting, example, n) for n in range(task.n_sequences)],
            )
            for example in range(len(task))
        ]
        for setting in settings
    ]
    return np.array(scores)


def swept(
    model: HeadModel,
    task: Task,
    settings: Sequence[tuple[Head, ...]],
    baseline: gates.Baseline,
    positions: str = "all",
    tokens_per_batch: int = 300,
) -> tuple[np.ndarray, np.ndarray]:
    """Run the engine; give `ablated [draw setting example]` and `clean [example]`."""
    engine = sweep.Engine(model, task, settings, baseline, positions)
    plan = sweep.plan(model, task, settings, baseline.n_draws, tokens_per_batch)
    rows = pd.concat([engine.run(job) for part in plan.parts for job in part])
    ablated = np.full((baseline.n_draws, len(settings), len(task)), np.nan)
    ablated[rows["draw"], rows["setting"], rows["example"]] = rows["ablated"]
    assert not np.isnan(ablated).any()
    clean = np.full(len(task), np.nan)
    clean[rows["example"]] = rows["clean"]
    return ablated, clean


def some_heads(model: HeadModel, site: str) -> list[tuple[Head, ...]]:
    """One head of the first layer, one of the last, and all but one of the middle."""
    single = [(Head(site, 0, 0),), (Head(site, 2, 1),)]
    return [*single, tuple(Head(site, 1, head) for head in range(3))]


def heads_of_all_sites(model: HeadModel) -> list[tuple[Head, ...]]:
    """Settings of each site; in an encoder-decoder a single head and two in each."""
    if len(model.sites) == 1:
        return some_heads(model, "attn")
    single = [(Head(site.name, layer, 1),) for layer, site in enumerate(model.sites)]
    return [*single, *((Head(site.name, 0, 2), Head(site.name, 2, 3)) for site in model.sites)]


def assert_agree(
    found: np.ndarray, wanted: np.ndarray, clean: np.ndarray, least: float = 1e-3
) -> None:
    """Compare, and make sure that the ablations did something that could be seen."""
    assert np.abs(wanted - clean).max() > least
    assert np.abs(found - wanted).max() < CLOSE


# ------------------------------------------------------------------ zero
@pytest.mark.parametrize("name", MODELS)
def test_zero_replaces_z_by_nothing_and_leaves_the_bias_of_w_o(name):
    model = family(name)
    task, settings = padded_task(model), heads_of_all_sites(model)
    wanted = loop(model, task, settings, lambda _: lambda place, z, v, n: torch.zeros(1, 1, 1))
    ablated, clean = swept(model, task, settings, Zero())
    assert_agree(ablated[0], wanted, clean)


# ------------------------------------------------------------------ mean
def hand_means(model: HeadModel, task: Task, specials: bool) -> dict[tuple[str, int], Tensor]:
    """Average every z over the tokens of all sequences, one by one."""
    gathered: dict[tuple[str, int], list[Tensor]] = {}
    for example in task.examples:
        for item in example:
            zs = plain(model, item)[2]
            for place, z in zs.items():
                side = item.text if place[0] in ("attn", "encoder_attn") else item.target
                for at in range(len(side)):
                    if specials or not side.special[at]:
                        gathered.setdefault(place, []).append(z[at])
    return {place: torch.stack(rows).mean(0) for place, rows in gathered.items()}


def engine_means(model: HeadModel, task: Task, **choices) -> dict[tuple[str, int], Tensor]:
    return gates.means(model, sweep.batches(model, task, 100), **choices)


@pytest.mark.parametrize("specials", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_means_are_taken_over_real_tokens_and_not_over_pads_or_special_tokens(name, specials):
    model = family(name, prepend_bos=True) if name == "tiny_llama" else family(name)
    task = padded_task(model)
    assert any(len({item.shape for item in example}) > 1 for example in task.examples)
    wanted = hand_means(model, task, specials)
    found = engine_means(model, task, by_position=False, specials=specials)
    assert found.keys() == wanted.keys()
    for place in wanted:
        torch.testing.assert_close(found[place], wanted[place], atol=1e-5, rtol=0)
    has_specials = any(any(item.text.special) for example in task.examples for item in example)
    if has_specials:
        other = hand_means(model, task, not specials)
        assert max((found[place] - other[place]).abs().max() for place in found) > 1e-3


def test_means_leave_out_pads_on_the_left():
    model = family("tiny_gpt2", "left")
    task = padded_task(model)
    found = engine_means(model, task, by_position=False, specials=False)
    for place, mean in hand_means(model, task, False).items():
        torch.testing.assert_close(found[place], mean, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_mean_replaces_z_by_the_mean_over_all_tokens(name):
    model = family(name)
    task, settings = padded_task(model), heads_of_all_sites(model)
    means = hand_means(model, task, False)
    wanted = loop(model, task, settings, lambda _: lambda place, z, v, n: means[place][None])
    baseline = Mean(engine_means(model, task, by_position=False, specials=False))
    ablated, clean = swept(model, task, settings, baseline)
    assert_agree(ablated[0], wanted, clean)


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_llama", "tiny_gemma2", "tiny_neox"])
def test_the_mean_over_one_token_has_no_effect_on_that_token(name):
    model = family(name)
    task = prompt_task(model, [("a", "b", "c")])
    assert task.examples[0][0].shape == (1, 0)
    settings = [(head,) for head in all_heads(model.sites)]
    means = engine_means(model, task, by_position=False, specials=False)
    ablated, clean = swept(model, task, settings, Mean(means))
    assert np.abs(ablated - clean).max() < 1e-5
    zeroed, _ = swept(model, task, settings, Zero())
    assert np.abs(zeroed - clean).max() > 1e-2


def test_the_mean_over_one_longer_example_is_that_of_its_tokens_by_hand():
    model = family("tiny_gpt2")
    task = prompt_task(model, [("the key to", "a", "b")])
    z = plain(model, task.examples[0][0])[2]
    assert len(z["attn", 0]) == 10
    by_hand = {place: sum(z[place][at] for at in range(10)) / 10 for place in z}
    means = engine_means(model, task, by_position=False, specials=False)
    settings = some_heads(model, "attn")
    wanted = loop(model, task, settings, lambda _: lambda place, z, v, n: by_hand[place][None])
    ablated, clean = swept(model, task, settings, Mean(means))
    assert_agree(ablated[0], wanted, clean)


def test_a_reference_of_special_tokens_alone_is_refused():
    model = family("tiny_llama")
    text = Encoded((1, 1), ((0, 0), (0, 0)), (True, True))
    task = replace(padded_task(model), examples=[(Item(text), Item(text))])
    with pytest.raises(InputError, match=r"no real tokens .*specials=true"):
        engine_means(model, task, by_position=False, specials=False)


# ------------------------------------------------------------------ mean by position
@pytest.mark.parametrize("name", MODELS)
def test_the_mean_by_position_over_one_example_has_no_effect_on_it(name):
    model = family(name)
    task = padded_task(model)
    # one sequence, however often it occurs, is its own mean
    same = replace(task, examples=[task.examples[0][:1] * task.n_sequences])
    means = engine_means(model, same, by_position=True, specials=True)
    hidden = max(
        (means[place][: len(z)] - z).abs().max()
        for place, z in plain(model, same.examples[0][0])[2].items()
    )
    assert hidden < 1e-5
    # the two sides of the metric would cancel: compare what the model computes
    asked = same.questions(model, [0])
    rows = torch.arange(len(asked.batch))
    baseline = MeanByPosition(means)
    baseline.prepare(model, same, [0])
    marks = {site.name: asked.batch.queries(site).mask for site in model.sites}
    opening = gates.xi(model, asked.batch, [tuple(all_heads(model.sites))] * len(rows), marks)
    with torch.inference_mode():
        clean = model.run(asked.batch)
        with gates.gated(model, opening, baseline, rows, 0):
            replaced = model.run(asked.batch)
        with gates.gated(model, opening, _zero(), rows, 0):
            zeroed = model.run(asked.batch)
    assert (replaced - clean).abs().max() < 1e-5
    assert (zeroed - clean).abs().max() > 1e-2


def _zero() -> Zero:
    zero = Zero()
    zero.zero = torch.zeros(())
    return zero


@pytest.mark.parametrize(
    ("name", "side"),
    [("tiny_gpt2", "right"), ("tiny_gpt2", "left"), ("tiny_neox", "left"), ("tiny_llama", "left")],
)
def test_positions_are_counted_from_the_first_real_token(name, side):
    model = family(name, side)
    task, settings = padded_task(model), some_heads(model, "attn")
    sums: dict[tuple[str, int], list[list[Tensor]]] = {}
    for example in task.examples:
        for item in example:
            for place, z in plain(model, item)[2].items():
                rows = sums.setdefault(place, [])
                rows.extend([] for _ in range(len(z) - len(rows)))
                for at, value in enumerate(z):
                    rows[at].append(value)
    means = {
        place: torch.stack([torch.stack(values).mean(0) for values in rows])
        for place, rows in sums.items()
    }
    found = engine_means(model, task, by_position=True, specials=False)
    for place, mean in means.items():
        torch.testing.assert_close(found[place], mean, atol=1e-5, rtol=0)
    wanted = loop(model, task, settings, lambda _: lambda place, z, v, n: means[place][: len(z)])
    ablated, clean = swept(model, task, settings, MeanByPosition(found))
    assert_agree(ablated[0], wanted, clean)


def test_cross_attention_has_the_positions_of_its_queries():
    model = family("tiny_bart")
    task, settings = padded_task(model), some_heads(model, "decoder_cross_attn")
    found = engine_means(model, task, by_position=True, specials=True)
    targets = [item.target for example in task.examples for item in example]
    known = ~found["decoder_cross_attn", 0].isnan().any((-1, -2))
    assert known.sum() == max(map(len, targets))
    wanted = loop(model, task, settings, lambda _: lambda place, z, v, n: found[place][: len(z)])
    ablated, clean = swept(model, task, settings, MeanByPosition(found))
    assert_agree(ablated[0], wanted, clean)


def test_an_example_longer_than_the_reference_is_refused():
    model = family("tiny_gpt2")
    short = prompt_task(model, [("the", "a", "b")])
    long = prompt_task(model, [("the key", "a", "b")])
    means = engine_means(model, short, by_position=True, specials=False)
    head = (Head("attn", 0, 0),)
    swept(model, short, [head], MeanByPosition(means))
    with pytest.raises(InputError, match=r"no token at position 3 of attn .*3 tokens"):
        swept(model, long, [head], MeanByPosition(means))


@pytest.mark.parametrize(("name", "bos"), [("tiny_gpt2", True), ("tiny_bert", "auto")])
def test_a_position_where_the_reference_has_special_tokens_alone_is_refused(name, bos):
    model = family(name, prepend_bos=bos)
    task, heads = padded_task(model), [(Head("attn", 0, 0),)]
    assert task.examples[0][0].text.special[0]
    means = engine_means(model, task, by_position=True, specials=False)
    with pytest.raises(InputError, match=r"no token at position 0 of attn .*specials=true"):
        swept(model, task, heads, MeanByPosition(means))
    means = engine_means(model, task, by_position=True, specials=True)
    ablated, _ = swept(model, task, heads, MeanByPosition(means))
    assert np.isfinite(ablated).all()


# ------------------------------------------------------------------ resample
def test_partners_are_others_with_as_many_tokens():
    groups = [(3,), (5,), (3,), (5,), (3,), (3,)]
    draws = gates.derangements(groups, 50, np.random.default_rng(0), range(6))
    assert draws.shape == (50, 6)
    for draw in draws:
        assert sorted(draw) == list(range(6))
        assert all(draw[number] != number for number in range(6))
        assert [groups[partner] for partner in draw] == groups


def test_every_derangement_of_a_group_can_be_drawn():
    draws = gates.derangements([(3,)] * 4, 200, np.random.default_rng(0), range(4))
    assert len({tuple(draw.tolist()) for draw in draws}) == 9


def test_every_other_example_of_the_group_is_a_partner_in_some_draw():
    draws = gates.derangements([(3,)] * 4, 200, np.random.default_rng(0), range(4))
    for number in range(4):
        assert set(draws[:, number]) == set(range(4)) - {number}


def test_partners_have_another_answer_where_labels_are_given():
    labels = [" is", " are", " is", " are", " was", " is"]
    draws = gates.derangements([(4,)] * 6, 50, np.random.default_rng(0), labels)
    for draw in draws:
        assert sorted(draw) == list(range(6))
        assert all(labels[partner] != label for partner, label in zip(draw, labels, strict=True))


def test_the_same_seed_gives_the_same_partners():
    first, second, other = (
        gates.derangements([(3,)] * 7, 4, np.random.default_rng(seed), range(7))
        for seed in (1, 1, 2)
    )
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("groups", "labels", "named"),
    [
        ([(3,), (4,), (3,)], [0, 1, 2], r"example 1 \(\(4,\) tokens\) has no partner: of 1 "),
        (
            [(3,), (3,), (4,), (4,)],
            list("abcc"),
            r"example 2 .* of 2 examples with as many tokens, 2 ",
        ),
        ([(3,), (3,), (3,)], list("aab"), r"example 0 .* of 3 examples with as many tokens, 2 "),
    ],
)
def test_an_example_without_a_partner_is_named(groups, labels, named):
    with pytest.raises(InputError, match=f"ablation=resample: {named}"):
        gates.derangements(groups, 2, np.random.default_rng(0), labels)


def test_the_example_that_is_named_is_one_without_a_partner():
    with pytest.raises(InputError, match=r"example [12] "):
        gates.derangements([(3,)] * 3, 2, np.random.default_rng(0), list("baa"))


def resampled_task(model: HeadModel) -> Task:
    """Groups of three examples with equal token counts, their sequences of unequal lengths."""
    n = 3 if model.kind == "encoder" else 2
    texts = ["a cat", "dogs bark", "the key"][:n]
    others = ["x men", "cats purr", "one day"][:n]
    more = ["b dog", "bird sing", "his son"][:n]
    tasks = [padded_task(model, len(texts) // n, some) for some in (texts, others, more)]
    examples = [example for task in tasks for example in task.examples]
    table = pd.DataFrame({"example": range(len(examples)), "cluster": "all"})
    return replace(tasks[0], examples=examples, table=table)


@pytest.mark.parametrize("name", MODELS)
def test_resample_replaces_z_by_the_partners_in_each_draw(name):
    model = family(name)
    task, settings = resampled_task(model), heads_of_all_sites(model)
    shapes = [tuple(item.shape for item in example) for example in task.examples]
    partners = np.unique(
        gates.derangements(shapes, 20, np.random.default_rng(3), range(len(task))), axis=0
    )[:2]
    assert len(partners) == 2
    zs = [[plain(model, item)[2] for item in example] for example in task.examples]
    baseline = Resample(partners, task.examples)
    ablated, clean = swept(model, task, settings, baseline)
    for draw, chosen in enumerate(partners):
        wanted = loop(
            model,
            task,
            settings,
            lambda example, chosen=chosen: lambda place, z, v, n: zs[chosen[example]][n][place],
        )
        assert_agree(ablated[draw], wanted, clean)


def test_effects_are_averaged_over_draws():
    model = family("tiny_gpt2")
    task, settings = resampled_task(model), some_heads(model, "attn")
    shapes = [tuple(item.shape for item in example) for example in task.examples]
    partners = gates.derangements(shapes, 3, np.random.default_rng(3), range(len(task)))
    baseline = Resample(partners, task.examples)
    ablated, clean = swept(model, task, settings, baseline)
    engine = sweep.Engine(model, task, settings, baseline, "all")
    plan = sweep.plan(model, task, settings, 3, 300)
    rows = pd.concat([engine.run(job) for part in plan.parts for job in part])
    units = pd.DataFrame({"site": "attn", "layer": 0, "head": 0, "kv_group": range(len(settings))})
    names = {"model": "m", "unit": "set", "ablation": "resample", "positions": "all"}
    names |= {"task": "t", "metric": "logprob_diff"}
    table = results.effects(rows, units, task.table, higher_is_better=True, **names)
    found = table.pivot(index="kv_group", columns="example", values="effect").to_numpy()
    assert np.abs(found - (ablated.mean(0) - clean)).max() < 1e-9
    assert np.abs(ablated - ablated.mean(0)).max() > 1e-3


def test_a_partner_runs_once_in_however_many_draws_it_is():
    model = family("tiny_gpt2")
    task = resampled_task(model)
    ran = []

    def score(model, asked):
        ran.append(len(asked.batch) // task.n_sequences)
        return task.score(model, asked)

    partners = np.array([[1, 2, 0], [2, 0, 1], [1, 2, 0]])
    baseline = Resample(partners, task.examples)
    with torch.no_grad():
        baseline.prepare(model, replace(task, score=score), [0, 1, 2])
        assert ran == [3]
        baseline.prepare(model, replace(task, score=score), [2])
        assert ran == [3, 1, 1]


def test_a_corrupted_twin_is_the_partner():
    model = family("tiny_llama")
    table = pd.DataFrame(
        {"prompt": ["the key", "a cat"], "answer": ["s", "x"], "distractor": ["z", "y"]}
    ).assign(corrupted=["two men", "1 dog"])
    task = prompts.from_table(model, table, name="prompts", min_accuracy=0.0)
    settings = some_heads(model, "attn")
    baseline = Resample(np.arange(2)[None], task.corrupted)
    twins = [
        plain(model, replace(task.examples[n][0], text=model.codec.encode(text)))[2]
        for n, text in enumerate(table["corrupted"])
    ]
    wanted = loop(
        model, task, settings, lambda example: lambda place, z, v, n: twins[example][place]
    )
    ablated, clean = swept(model, task, settings, baseline)
    assert_agree(ablated[0], wanted, clean)


# ------------------------------------------------------------------ uniform
def equal_weights(model: HeadModel, place: tuple[str, int], z: Tensor, v: Tensor) -> Tensor:
    """Average each head's own values over the keys that each query may see, one by one."""
    site, layer = place
    causal = model.kind == "decoder" or site == "decoder_self_attn"
    made = torch.empty_like(z)
    for query in range(len(z)):
        keys = range(query + 1) if causal else range(len(v))
        if model.name == "tiny_gemma2" and layer % 2 == 0:  # every other layer slides
            keys = range(max(0, query - 3), query + 1)  # 4 keys, itself included
        for head in range(z.shape[1]):
            own = v[:, head * v.shape[1] // z.shape[1]]
            made[query, head] = sum(own[key] for key in keys) / len(keys)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_uniform_averages_a_heads_own_values_over_the_keys_it_sees(name):
    model = family(name)
    task, settings = padded_task(model), heads_of_all_sites(model)
    # an upstream head that is replaced too changes the values that are averaged
    site = model.sites[-1].name
    settings.append((Head(site, 0, 1), Head(site, 2, 2)))
    wanted = loop(
        model, task, settings, lambda _: lambda place, z, v, n: equal_weights(model, place, z, v)
    )
    ablated, clean = swept(model, task, settings, Uniform(model))
    assert_agree(ablated[0], wanted, clean)


@pytest.mark.parametrize(
    ("name", "side", "bos"),
    [("tiny_gpt2", "left", "auto"), ("tiny_gemma2", "left", True), ("tiny_neox", "right", True)],
)
def test_uniform_includes_the_bos_and_leaves_out_pads_on_the_left(name, side, bos):
    model = family(name, side, bos)
    task, settings = padded_task(model), some_heads(model, "attn")
    wanted = loop(
        model, task, settings, lambda _: lambda place, z, v, n: equal_weights(model, place, z, v)
    )
    ablated, clean = swept(model, task, settings, Uniform(model))
    assert_agree(ablated[0], wanted, clean)


def test_the_query_heads_of_a_group_get_the_same_uniform_output_and_others_another():
    model = family("tiny_llama")
    z, v = plain(model, padded_task(model).examples[0][0])[2:]
    made = equal_weights(model, ("attn", 0), z["attn", 0], v["attn", 0])
    assert (made[:, 0] == made[:, 1]).all()
    assert (made[:, 2] == made[:, 3]).all()
    assert (made[:, 1] - made[:, 2]).abs().max() > 0.1


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_bart", "custom_decoder"])
def test_a_model_whose_z_is_not_pattern_times_values_is_refused(name, monkeypatch):
    model = family(name)
    site = model.sites[-1]
    attention = model.attentions[site.name, 1]
    honest = attention.watch_v
    monkeypatch.setattr(
        attention, "watch_v", lambda watch: honest(lambda values: watch(values.flip(2)))
    )
    batch = padded_task(model).questions(model, [0]).batch
    with torch.inference_mode(), pytest.raises(InputError, match=f"{site.name} layer 1") as error:
        gates.check_values(model, batch, "uniform")
    assert str(error.value).startswith(f"ablation=uniform: {name} does not compute")
    assert "use zero, mean or resample" in str(error.value)
    baseline = Uniform(model)
    with pytest.raises(InputError, match="ablation=uniform"):
        swept(model, padded_task(model), [(Head(site.name, 0, 0),)], baseline)


def test_a_model_that_attends_to_keys_taken_for_hidden_is_refused(monkeypatch):
    model = family("tiny_llama")
    batch = padded_task(model).questions(model, [0]).batch
    with torch.inference_mode():
        gates.check_values(model, batch, "uniform")
        monkeypatch.setattr(model, "window", lambda site, layer: 2)
        with pytest.raises(InputError, match="weight on hidden keys"):
            gates.check_values(model, batch, "uniform")


# ------------------------------------------------------------------ twin
def patterns_of(model: HeadModel, item: Item) -> dict[tuple[str, int], Tensor]:
    """Read the patterns of one sequence, unpadded: `[head query key]` of each place."""
    batch = model.batch([item.text], [item.target] if item.target else [])
    with torch.inference_mode():
        found = model.patterns(batch, [site.name for site in model.sites])
    return {place: pattern[0] for place, pattern in found.items()}


def own_under(pattern: Tensor, v: Tensor, head: int, n_heads: int, window: int | None) -> Tensor:
    """Average a head's own values under `[query key]`, one by one, within its layer's window."""
    own = v[:, head * v.shape[1] // n_heads]
    made = []
    for query, row in enumerate(pattern):
        seen = [k for k in range(len(row)) if window is None or k > query - window]
        total = sum(row[k] for k in seen)
        made.append(sum(row[k] / total * own[k] for k in seen))
    return torch.stack(made)


def turned(model: HeadModel, task: Task) -> tuple[dict[Head, Head], Callable]:
    """Make every head's twin the next head of the next layer, and a stand-in for the loop."""
    twins = {
        head: Head(head.site, (head.layer + 1) % 3, (head.head + 1) % 4)
        for head in all_heads(model.sites)
    }
    shown = [[patterns_of(model, item) for item in example] for example in task.examples]

    def standin(example: int):
        def replace_z(place, z: Tensor, v: Tensor, number: int) -> Tensor:
            slides = model.name == "tiny_gemma2" and place[1] % 2 == 0
            made = torch.empty_like(z)
            for head in range(z.shape[1]):
                twin = twins[Head(*place, head)]
                pattern = shown[example][number][twin.site, twin.layer][twin.head]
                made[:, head] = own_under(pattern, v, head, z.shape[1], 4 if slides else None)
            return made

        return replace_z

    return twins, standin


@pytest.mark.parametrize("name", MODELS)
def test_a_twin_lends_its_pattern_and_a_head_keeps_its_values(name):
    model = family(name)
    task, settings = padded_task(model), heads_of_all_sites(model)
    # an upstream head that is replaced too changes the values, and not the twin's pattern
    site = model.sites[-1].name
    settings.append((Head(site, 0, 1), Head(site, 2, 2)))
    twins, standin = turned(model, task)
    wanted = loop(model, task, settings, standin)
    ablated, clean = swept(model, task, settings, Twin(model, twins=twins))
    assert_agree(ablated[0], wanted, clean)


@pytest.mark.parametrize(("name", "bos"), [("tiny_gpt2", "auto"), ("tiny_gemma2", True)])
def test_twins_leave_out_pads_on_the_left(name, bos):
    model = family(name, "left", bos)
    task, settings = padded_task(model), some_heads(model, "attn")
    twins, standin = turned(model, task)
    wanted = loop(model, task, settings, standin)
    ablated, clean = swept(model, task, settings, Twin(model, twins=twins))
    assert_agree(ablated[0], wanted, clean)


@pytest.mark.parametrize("name", MODELS)
def test_a_head_that_is_its_own_twin_loses_nothing(name):
    model = family(name)
    task, every = padded_task(model), tuple(all_heads(model.sites))
    for twins in ({head: head for head in every}, {}):
        ablated, clean = swept(model, task, [every], Twin(model, twins=twins))
        assert np.abs(ablated[0] - clean).max() < 1e-5


def test_a_twin_that_attends_evenly_is_uniform_ablation():
    model, even = build("custom_decoder"), Head("attn", 1, 3)
    with torch.no_grad():
        attention = model.attentions["attn", 1].attention
        attention.W_Q[even.head] = 0
        attention.b_Q[even.head] = 0
    task, heads = padded_task(model), all_heads(model.sites)
    settings = [(head,) for head in heads]
    lent, clean = swept(model, task, settings, Twin(model, twins=dict.fromkeys(heads, even)))
    uniform, _ = swept(model, task, settings, Uniform(model))
    assert np.abs(lent - uniform).max() < 1e-5
    assert np.abs(lent - clean).max() > 1e-2


# ------------------------------------------------------------------ positions
def not_first(site: str, item: Item) -> range:
    side = item.text if site in ("attn", "encoder_attn") else item.target
    return range(1, len(side))


@pytest.mark.parametrize(
    ("name", "side"), [*((name, "right") for name in MODELS), ("tiny_gpt2", "left")]
)
def test_not_first_leaves_the_first_real_token_alone(name, side):
    model = family(name, side)
    task, settings = padded_task(model), heads_of_all_sites(model)
    make = lambda _: lambda place, z, v, n: torch.zeros(1, 1, 1)  # noqa: E731
    wanted = loop(model, task, settings, make, not_first)
    ablated, clean = swept(model, task, settings, Zero(), "not_first")
    assert_agree(ablated[0], wanted, clean)
    everywhere, _ = swept(model, task, settings, Zero())
    assert np.abs(everywhere - ablated).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "site", "side"),
    [
        ("tiny_gpt2", "attn", "right"),
        ("tiny_gpt2", "attn", "left"),
        ("tiny_gemma2", "attn", "left"),
        ("custom_decoder", "attn", "right"),
        ("tiny_t5", "decoder_self_attn", "right"),
        ("tiny_bart", "decoder_cross_attn", "right"),
        ("custom_encoder_decoder", "decoder_cross_attn", "right"),
    ],
)
def test_answer_acts_where_logits_are_read(name, site, side):
    model = family(name, side)
    full = padded_task(model)
    # read two positions of each sequence only, others in each
    examples = [
        tuple(
            replace(item, read=(n, n + 2), ids=(item.ids[n], item.ids[n + 2]))
            for n, item in enumerate(example)
        )
        for example in full.examples
    ]
    task, settings = replace(full, examples=examples), some_heads(model, site)
    make = lambda _: lambda place, z, v, n: torch.zeros(1, 1, 1)  # noqa: E731
    wanted = loop(model, task, settings, make, lambda site, item: item.read)
    ablated, clean = swept(model, task, settings, Zero(), "answer")
    assert_agree(ablated[0], wanted, clean)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("positions", ["all", "not_first", "answer"])
def test_only_the_positions_named_change_in_the_layer_that_is_gated(positions, side):
    model = family("tiny_gpt2", side)
    task = padded_task(model)
    task = replace(
        task,
        examples=[tuple(replace(item, read=(2,), ids=item.ids[2:3]) for item in task.examples[0])],
    )
    lengths = [len(item.text) for item in task.examples[0]]
    assert lengths == [5, 9]
    asked = task.questions(model, [0])
    head = Head("attn", 1, 2)
    acts = gates.acting(model, asked, positions, [head])
    opening = gates.xi(model, asked.batch, [(head,)] * 2, acts)
    with torch.inference_mode(), model.watching_z() as clean:
        model.run(asked.batch)
    gate = gates.gated(model, opening, _zero(), torch.arange(2), 0)
    with torch.inference_mode(), gate, model.watching_z() as edited:
        model.run(asked.batch)
    assert (edited["attn", 0] == clean["attn", 0]).all()
    changed = edited["attn", 1] != clean["attn", 1]
    assert not changed[:, :, [0, 1, 3]].any()
    chosen = {"all": range(9), "not_first": range(1, 9), "answer": [2]}[positions]
    for row, length in enumerate(lengths):
        first = 9 - length if side == "left" else 0
        wanted = [first + at for at in chosen if at < length]
        assert changed[row, :, 2].any(-1).nonzero().flatten().tolist() == wanted
    assert (edited["attn", 2] != clean["attn", 2]).any()


@pytest.mark.parametrize("name", ["tiny_t5", "tiny_bart", "custom_encoder_decoder"])
def test_answer_is_refused_where_encoder_heads_are_gated(name):
    model = family(name)
    asked = padded_task(model).questions(model, [0])
    decoder = Head("decoder_self_attn", 0, 0)
    assert set(gates.acting(model, asked, "answer", [decoder])) == {"decoder_self_attn"}
    with pytest.raises(InputError) as error:
        gates.acting(model, asked, "answer", [decoder, Head("encoder_attn", 0, 0)])
    assert str(error.value).startswith(
        "positions=answer: no logits are read at the positions of encoder_attn (use all or "
    )


@pytest.mark.parametrize("name", ["tiny_bert", "custom_encoder"])
def test_answer_is_refused_where_the_metric_pools(name):
    model = family(name)
    asked = padded_task(model).questions(model, [0])
    with pytest.raises(InputError) as error:
        gates.acting(model, asked, "answer", [Head("attn", 0, 0)])
    assert str(error.value).startswith(
        "positions=answer: no logits are read at the positions of attn (use all or not_first"
    )


# ------------------------------------------------------------------ the gate itself
class Noise(gates.Baseline):
    """A baseline of random numbers, another at every place."""

    n_draws = 1

    def prepare(self, model, task, examples) -> None:
        self.model = model

    def at(self, place, rows, draw) -> Tensor:
        site = self.model.site[place[0]]
        generator = torch.Generator().manual_seed(hash(place[0]) % 1000 + place[1])
        return torch.randn(site.n_heads, site.d_head, generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_gates_that_are_open_everywhere_change_no_bit(name):
    model = family(name)
    asked = padded_task(model).questions(model, [0, 1])
    rows = torch.arange(len(asked.batch))
    noise = Noise()
    noise.prepare(model, None, ())
    ones = {}
    for site, layer in model.attentions:
        shape = *asked.batch.queries(model.site[site]).tokens.shape, 4
        ones[site, layer] = torch.ones(shape)
    zeros = {place: torch.zeros_like(gate) for place, gate in ones.items()}
    with torch.inference_mode():
        clean = model.run(asked.batch)
        with gates.gated(model, ones, noise, rows, 0):
            opened = model.run(asked.batch)
        with gates.gated(model, zeros, noise, rows, 0):
            closed = model.run(asked.batch)
    assert torch.equal(opened, clean)
    assert (closed - clean).abs().max() > 1e-2


def test_the_gate_is_exact_at_both_ends_and_a_mixture_between():
    model = family("tiny_llama")
    asked = padded_task(model).questions(model, [0])
    n, length = asked.batch.text.tokens.shape
    noise = Noise()
    noise.prepare(model, None, ())
    noise.at = lambda place, rows, draw: torch.full((4, 8), 1e-3) * 1e6  # far from z
    gate = torch.zeros(n, length, 4)
    gate[..., 1], gate[..., 2], gate[..., 3] = 1, 0.25, 0.75
    with torch.inference_mode(), model.watching_z() as clean:
        model.run(asked.batch)
    opening = gates.gated(model, {("attn", 0): gate}, noise, torch.arange(n), 0)
    with torch.inference_mode(), opening, model.watching_z() as edited:
        model.run(asked.batch)
    old, new = clean["attn", 0], edited["attn", 0]
    b = noise.at(("attn", 0), None, 0)[0]
    assert torch.equal(new[:, :, 0], b.expand(n, length, 8))
    assert torch.equal(new[:, :, 1], old[:, :, 1])
    torch.testing.assert_close(new[:, :, 2], 0.25 * old[:, :, 2] + 0.75 * b, rtol=1e-5, atol=0)
    torch.testing.assert_close(new[:, :, 3], 0.75 * old[:, :, 3] + 0.25 * b, rtol=1e-5, atol=0)


def test_gates_are_closed_only_for_the_heads_of_their_row():
    model = family("tiny_llama")
    asked = padded_task(model).questions(model, [0])
    acts = gates.acting(model, asked, "all", [Head("attn", 0, 0)])
    settings = [(Head("attn", 0, 1), Head("attn", 2, 3)), (Head("attn", 0, 2),)]
    opening = gates.xi(model, asked.batch, settings, acts)
    assert opening.keys() == {("attn", 0), ("attn", 2)}
    first, last = opening["attn", 0], opening["attn", 2]
    assert (first[0, :5, 1] == 0).all()  # five tokens, four pads
    assert (first[0, 5:, 1] == 1).all()
    assert (first[1, :, 2] == 0).all()
    assert first.sum() == 2 * 9 * 4 - 5 - 9
    assert (last[0, :5, 3] == 0).all()
    assert last.sum() == 2 * 9 * 4 - 5


@pytest.mark.parametrize("baseline", [Noise, Zero])
@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_gemma2", "tiny_bart", "custom_decoder"])
def test_a_head_that_w_o_ignores_has_no_effect_to_the_bit(name, baseline):
    model = build(name)
    site, layer, head = model.sites[-1], 1, 2
    width = slice(head * site.d_head, (head + 1) * site.d_head)
    with torch.no_grad():
        out = model.module.get_submodule(PLACES[name][site.name][0].format(layer))
        if name == "custom_decoder":
            model.module.blocks[layer].attn.W_O[head] = 0
        elif name == "tiny_gpt2":  # a Conv1D: [in, out]
            out.weight[width] = 0
        else:
            out.weight[:, width] = 0
    task = padded_task(model)
    dead, alive = (Head(site.name, layer, head),), (Head(site.name, layer, 0),)
    engine = sweep.Engine(model, task, [dead, alive], baseline(), "all")
    # one setting: the micro-batch is the clean batch
    for example in range(len(task)):
        rows = engine.run(sweep.Job((example,), model.block(dead[0]), (0,), 0))
        assert (rows["ablated"] == rows["clean"]).all()
        rows = engine.run(sweep.Job((example,), model.block(dead[0]), (1,), 0))
        assert (rows["ablated"] != rows["clean"]).all()
    # several settings: an ungated run of the same micro-batch
    rows = engine.run(sweep.Job((0,), model.block(dead[0]), (0, 1, 0), 0))
    repeated = torch.arange(2).repeat(3)
    with (
        torch.inference_mode(),
        model.replaying(model.block(dead[0]), engine.recorded, repeated),
    ):
        ungated = task.score(model, engine.asked.select(repeated)).double().numpy()
    assert rows["ablated"][0] == ungated[0]
    assert rows["ablated"][2] == ungated[2]
    assert rows["ablated"][1] != ungated[1]


def test_logit_differences_too_equal_the_loops():
    model = family("tiny_gpt2")
    task = prompt_task(model, [("the key to", " is", " are"), ("dogs", "x", "y")])
    assert task.score is logit_difference
    settings = some_heads(model, "attn")
    wanted = loop(model, task, settings, lambda _: lambda place, z, v, n: torch.zeros(1, 1, 1))
    ablated, clean = swept(model, task, settings, Zero())
    assert_agree(ablated[0], wanted, clean)
