"""The sweep: its law (a row equals a plain full forward), its plan, and what it leaves behind."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from test_gates import (
    CLOSE,
    MODELS,
    SITES,
    Noise,
    family,
    loop,
    padded_task,
    prompt_task,
    some_heads,
    swept,
)

from interp import sweep
from interp.errors import InputError
from interp.gates import Uniform, Zero
from interp.heads import Head, all_heads
from interp.models.head_model import Replayed
from interp.sweep import Engine, Job


def noise_standin(model):
    """Give what Noise puts in a head's place, for the loop."""
    noise = Noise()
    noise.prepare(model, None, ())
    return lambda _example: lambda place, z, v, n: noise.at(place, None, 0)[None]


def assert_law(model, task, settings):
    wanted = loop(model, task, settings, noise_standin(model))
    ablated, clean = swept(model, task, settings, Noise())
    # every setting does something, so that agreement means something
    assert (np.abs(wanted - clean).max(axis=1) > 10 * CLOSE).all()
    assert np.abs(ablated[0] - wanted).max() < CLOSE


# ------------------------------------------------------------------ the law
@pytest.mark.parametrize(("name", "site"), SITES)
def test_a_row_equals_a_plain_full_forward(name, site):
    model = family(name)
    settings = [(Head(site, layer, (layer + 1) % 4),) for layer in range(3)]
    # several heads in different layers; in one layer; the last layer's alone
    settings.append((Head(site, 2, 0), Head(site, 0, 3), Head(site, 1, 1)))
    settings.append((Head(site, 1, 0), Head(site, 1, 3)))
    assert_law(model, padded_task(model), settings)


@pytest.mark.parametrize("name", ["tiny_t5", "tiny_bart", "custom_encoder_decoder"])
def test_a_row_of_heads_in_several_sites_equals_a_plain_full_forward(name):
    model = family(name)
    encoder, own, cross = (site.name for site in model.sites)
    settings = [
        (Head(own, 1, 2), Head(encoder, 2, 0)),
        (Head(cross, 0, 1), Head(own, 0, 1), Head(own, 2, 3)),
        (Head(cross, 2, 3), Head(encoder, 0, 2), Head(own, 1, 0)),
    ]
    assert [model.block(head) for head in settings[2]] == [5, 0, 4]
    assert_law(model, padded_task(model), settings)


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_gemma2", "tiny_neox", "custom_decoder"])
def test_a_row_equals_a_plain_full_forward_with_pads_on_the_left(name):
    model = family(name, "left")
    settings = [*some_heads(model, "attn"), (Head("attn", 2, 0), Head("attn", 1, 3))]
    assert_law(model, padded_task(model), settings)


@pytest.mark.parametrize("name", ["tiny_t5", "tiny_llama"])
def test_a_row_equals_a_plain_full_forward_without_any_padding(name):
    model = family(name)
    full = padded_task(model)
    task = replace(full, examples=[example[:1] * 2 for example in full.examples])
    others = [(second, first) for first, second in full.examples]
    task = replace(task, examples=[(a[0], replace(a[0], ids=a[0].ids[::-1])) for a in others])
    assert all(len({item.shape for item in example}) == 1 for example in task.examples)
    assert_law(model, task, some_heads(model, model.sites[0].name))


def test_engines_take_turns_with_one_baseline(uneven):
    model, task = uneven
    baseline = Uniform(model)
    one, other = (Engine(model, task, [(Head("attn", 1, 2),)], baseline, "all") for _ in range(2))
    short, long = (Job(examples, 1, (0,), 0) for examples in ((1,), (3,)))
    alone = one.run(short)
    other.run(long)
    pd.testing.assert_frame_equal(one.run(short), alone)


# ------------------------------------------------------------------ the plan
@pytest.fixture
def uneven(monkeypatch):
    """Seven prompts of three lengths; blocks are kept apart."""
    monkeypatch.setattr(sweep, "ENOUGH", 1)
    model = family("tiny_gpt2")
    words = ["the key", "a", "cat", "the dog", "b", "she ran", "c"]
    return model, prompt_task(model, [(word, "x", "y") for word in words])


@pytest.mark.parametrize("tokens_per_batch", [1, 7, 16, 40, 10_000])
def test_every_setting_meets_every_example_once_a_draw(uneven, tokens_per_batch):
    model, task = uneven
    settings = [(head,) for head in all_heads(model.sites)]
    settings += [(Head("attn", 2, 0), Head("attn", 1, 1))]
    plan = sweep.plan(model, task, settings, 3, tokens_per_batch)
    rows = [
        (setting, example, job.draw)
        for part in plan.parts
        for job in part
        for setting in job.settings
        for example in job.examples
    ]
    assert len(rows) == len(set(rows)) == plan.n_rows == 13 * 7 * 3
    assert set(rows) == {(s, e, d) for s in range(13) for e in range(7) for d in range(3)}


@pytest.mark.parametrize("tokens_per_batch", [1, 7, 16, 40, 10_000])
def test_a_micro_batch_is_within_its_tokens_and_its_examples_are_of_one_size(
    uneven, tokens_per_batch
):
    model, task = uneven
    settings = [(head,) for head in all_heads(model.sites)]
    sizes = []
    for part in sweep.plan(model, task, settings, 1, tokens_per_batch).parts:
        for job in part:
            (length,) = {len(task.examples[example][0].text) for example in job.examples}
            sizes.append((job.n_rows * length, job.n_rows))
    assert all(tokens <= tokens_per_batch or rows == 1 for tokens, rows in sizes)
    # ... and as large as its tokens allow
    assert (
        max(rows for _, rows in sizes) == {1: 1, 7: 6, 16: 12, 40: 12, 10_000: 12}[tokens_per_batch]
    )


@pytest.mark.parametrize("name", ["tiny_t5", "tiny_llama"])
def test_padding_and_targets_count_as_tokens(name):
    model = family(name)
    task, settings = padded_task(model), [(head,) for head in all_heads(model.sites)]
    for part in sweep.plan(model, task, settings, 1, 100).parts:
        for job in part:
            asked = task.questions(model, job.examples)
            n_tokens = asked.batch.text.tokens.numel()
            n_tokens += asked.batch.target.tokens.numel() if asked.batch.target else 0
            assert n_tokens * len(job.settings) <= 100


def test_settings_go_with_the_first_block_they_close(uneven):
    model, task = uneven
    settings = [
        (Head("attn", 2, 0),),
        (Head("attn", 2, 1), Head("attn", 0, 1)),
        (Head("attn", 1, 3),),
    ]
    jobs = [job for part in sweep.plan(model, task, settings, 1, 10_000).parts for job in part]
    assert {(job.block, job.settings) for job in jobs} == {(2, (0,)), (0, (1,)), (1, (2,))}


def test_neighbouring_blocks_join_where_one_has_too_few_tokens(uneven, monkeypatch):
    model, task = uneven
    settings = [(head,) for head in all_heads(model.sites)]
    n_tokens = len(task.examples[0][0].text)

    def groups(enough):
        monkeypatch.setattr(sweep, "ENOUGH", enough)
        jobs = sweep.plan(model, task, settings, 1, 10_000, examples=[0]).parts[0]
        return [(job.block, len(job.settings)) for job in jobs]

    assert groups(4 * n_tokens) == [(0, 4), (1, 4), (2, 4)]
    assert groups(4 * n_tokens + 1) == [(0, 8), (2, 4)]
    assert groups(9 * n_tokens) == [(0, 12)]
    monkeypatch.setattr(sweep, "NEAR", 1)
    assert groups(9 * n_tokens) == [(0, 8), (2, 4)]


def test_blocks_are_numbered_over_both_stacks(monkeypatch):
    monkeypatch.setattr(sweep, "ENOUGH", 1)
    model = family("tiny_bart")
    settings = [(Head("decoder_cross_attn", 1, 0),), (Head("encoder_attn", 1, 0),)]
    jobs = [
        job
        for part in sweep.plan(model, padded_task(model), settings, 1, 10_000).parts
        for job in part
    ]
    assert {(job.block, job.settings) for job in jobs} == {(4, (0,)), (1, (1,))}


def test_a_plan_of_some_settings_and_examples_has_those_alone(uneven):
    model, task = uneven
    settings = [(head,) for head in all_heads(model.sites)]
    cut = sweep.plan(model, task, settings, 2, 30, numbers=[7, 1], examples=[5, 0, 3])
    jobs = [job for part in cut.parts for job in part]
    assert {number for job in jobs for number in job.settings} == {1, 7}
    assert {example for job in jobs for example in job.examples} == {0, 3, 5}
    assert cut.n_rows == 2 * 3 * 2
    none = sweep.plan(model, task, settings, 2, 30, numbers=[])
    assert none.parts == ()


def test_the_plan_is_the_same_each_time(uneven):
    model, task = uneven
    settings = [(head,) for head in all_heads(model.sites)]
    first, second = (sweep.plan(model, task, settings, 2, 30) for _ in range(2))
    assert first == second
    assert first != sweep.plan(model, task, settings, 2, 60)


def test_a_part_ends_with_the_micro_batch_that_fills_it(uneven, monkeypatch):
    model, task = uneven
    settings = [(head,) for head in all_heads(model.sites)]
    whole = sweep.plan(model, task, settings, 2, 30)
    assert len(whole.parts) == 1
    monkeypatch.setattr(sweep, "PART_TOKENS", 100)
    cut = sweep.plan(model, task, settings, 2, 30)
    assert [job for part in cut.parts for job in part] == list(whole.parts[0])
    assert len(cut.parts) > 2

    def tokens(job: Job) -> int:
        return job.n_rows * len(task.examples[job.examples[0]][0].text)

    for part in cut.parts[:-1]:
        sizes = [tokens(job) for job in part]
        assert sum(sizes[:-1]) < 100 <= sum(sizes)


@pytest.mark.parametrize("tokens", [0, -5])
def test_no_tokens_a_batch_are_refused(uneven, tokens):
    model, task = uneven
    with pytest.raises(InputError, match=f"tokens_per_batch={tokens}: at least 1"):
        sweep.plan(model, task, [(Head("attn", 0, 0),)], 1, tokens)


# ------------------------------------------------------------------ what comes out
@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_bert", "tiny_t5"])
def test_rows_do_not_depend_on_the_size_of_batches(name):
    model = family(name)
    task, settings = padded_task(model), some_heads(model, model.sites[0].name)
    alone, clean = swept(model, task, settings, Noise(), tokens_per_batch=1)
    assert np.abs(alone - clean).max() > 1e-2
    for tokens in (50, 100_000):
        ablated, again = swept(model, task, settings, Noise(), tokens_per_batch=tokens)
        assert np.abs(ablated - alone).max() < CLOSE
        assert np.abs(again - clean).max() < CLOSE


@pytest.mark.parametrize("name", MODELS)
def test_clean_scores_are_those_of_each_example_alone(name):
    model = family(name)
    task = padded_task(model)
    found = sweep.clean_scores(model, task, 100)
    wanted = loop(model, task, [()], lambda _: None)[0]
    assert len(set(wanted.round(4))) == len(task)
    assert np.abs(found - wanted).max() < CLOSE


def test_clean_scores_keep_the_order_of_examples_of_mixed_lengths(uneven):
    model, task = uneven
    found = sweep.clean_scores(model, task, 8)
    with torch.inference_mode():
        alone = [task.score(model, task.questions(model, [n])).item() for n in range(len(task))]
    assert len(set(alone)) == 7
    assert np.abs(found - alone).max() < CLOSE


def test_batches_hold_every_example_once(uneven):
    model, task = uneven
    found = list(sweep.batches(model, task, 8))
    texts = [tuple(row.tolist()) for asked in found for row in asked.batch.text.tokens]
    assert sorted(texts) == sorted(item.text.ids for (item,) in task.examples)
    assert all(asked.batch.text.mask.all() for asked in found)


def test_a_line_names_its_setting_example_and_draw():
    model = family("tiny_gpt2")
    task, settings = padded_task(model, 3), some_heads(model, "attn")
    rows = Engine(model, task, settings, Zero(), "all").run(Job((2, 1), 0, (2, 0), 0))
    assert rows[["setting", "example"]].to_numpy().tolist() == [[2, 2], [2, 1], [0, 2], [0, 1]]
    assert (rows["draw"] == 0).all()
    ablated, clean = swept(model, task, settings, Zero())
    wanted = ablated[0][rows["setting"], rows["example"]]
    assert np.abs(rows["ablated"] - wanted).max() < CLOSE
    assert np.abs(rows["clean"] - clean[rows["example"]]).max() < CLOSE
    assert np.diff(np.sort(wanted)).min() > 10 * CLOSE


@pytest.mark.parametrize("name", ["tiny_gemma2", "tiny_bart", "custom_encoder"])
def test_the_same_job_gives_the_same_bits(name):
    model = family(name)
    task, settings = padded_task(model), some_heads(model, model.sites[-1].name)
    job = sweep.plan(model, task, settings, 1, 300).parts[0][0]
    engine = Engine(model, task, settings, Noise(), "all")
    first = engine.run(job)
    elsewhere = replace(job, examples=(1 - job.examples[0],))
    pd.testing.assert_frame_equal(first, engine.run(job), check_exact=True)
    assert not engine.run(elsewhere).equals(first)
    pd.testing.assert_frame_equal(first, engine.run(job), check_exact=True)
    other = Engine(model, task, settings, Noise(), "all")
    pd.testing.assert_frame_equal(first, other.run(job), check_exact=True)


# ------------------------------------------------------------------ what is left behind
class Failing(Noise):
    """A baseline that raises, while it prepares or in the middle of a forward."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def prepare(self, model, task, examples) -> None:
        super().prepare(model, task, examples)
        if self.moment == "prepare":
            raise RuntimeError("on purpose")

    def at(self, place, rows, draw):
        if self.moment == "at":
            raise RuntimeError("on purpose")
        return super().at(place, rows, draw)


def traces(model) -> tuple[int, list[str]]:
    """Count the hooks in a model, and list its modules' types."""
    parts = list(model.module.modules())
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in parts)
    return hooks, [type(part).__name__ for part in parts]


@pytest.mark.parametrize("moment", ["prepare", "at", "never"])
@pytest.mark.parametrize("name", MODELS)
def test_after_an_exception_the_model_is_as_before_to_the_bit(name, moment):
    model = family(name)
    task, site = padded_task(model), model.sites[-1].name
    asked = task.questions(model, [0])
    before = traces(model)
    with torch.inference_mode():
        clean = model.run(asked.batch)
    settings = [(Head(site, 2, 1),), (Head(site, 2, 0),)]
    engine = Engine(model, task, settings, Failing(moment), "all")
    job = Job((0,), model.block(settings[0][0]), (0, 1), 0)
    if moment == "never":
        engine.run(job)
    else:
        with pytest.raises(RuntimeError, match="on purpose"):
            engine.run(job)
    assert traces(model) == before
    assert not any(isinstance(part, Replayed) for part in model.module.modules())
    with torch.inference_mode():
        assert torch.equal(model.run(asked.batch), clean)


def test_a_forward_that_fails_halfway_leaves_no_stub_and_no_hook(monkeypatch):
    model = family("tiny_llama")
    before = traces(model)

    def broken(_model, _asked):
        assert any(isinstance(part, Replayed) for part in model.module.modules())
        raise KeyboardInterrupt

    task = padded_task(model)
    engine = Engine(model, task, [(Head("attn", 2, 1),)], Zero(), "all")
    job = Job((0,), 2, (0,), 0)
    engine.run(job)
    engine.task = replace(task, score=broken)
    with pytest.raises(KeyboardInterrupt):
        engine.run(job)
    assert traces(model) == before


def test_a_batch_that_could_not_start_does_not_stand_in_for_the_former_one():
    model = family("tiny_gpt2")
    task = padded_task(model)
    engine = Engine(model, task, [(Head("attn", 0, 0),)], Failing("never"), "all")
    good, bad = Job((0,), 0, (0,), 0), Job((1,), 0, (0,), 0)
    first = engine.run(good)
    engine.baseline.moment = "prepare"
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.run(bad)
    engine.baseline.moment = "never"
    pd.testing.assert_frame_equal(engine.run(good), first)


def test_check_finds_what_cannot_be_served_before_the_sweep():
    model = family("tiny_bert")
    task = padded_task(model)
    Engine(model, task, [(Head("attn", 0, 0),)], Zero(), "all").check()
    with pytest.raises(InputError, match="positions=answer"):
        Engine(model, task, [(Head("attn", 0, 0),)], Zero(), "answer").check()
    with pytest.raises(RuntimeError, match="on purpose"):
        Engine(model, task, [(Head("attn", 0, 0),)], Failing("prepare"), "all").check()
