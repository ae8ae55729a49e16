"""Patching with corrupted prompts: noising, denoising, and what is kept or regained of a score.

The other route (`plain` of test_gates and of test_against_huggingface) runs one prompt at a time
with plain hooks: it keeps what the heads do on one prompt and puts it into the run of its twin.
"""

from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import test_against_huggingface as huggingface
import torch
from test_experiments import files, run
from test_gates import CLOSE, family, plain

from experiments import ablation, inputs
from interp import results, units
from interp.gates import Resample
from interp.heads import Head, all_heads, parse
from interp.sweep import Engine, clean_scores
from interp.tasks import prompts

COLUMNS = ["prompt", "answer", "distractor", "corrupted"]
# Bytes are tokens. The third prompt's answers part after a shared space: it is read one byte later.
# The first and the last are of one length and go through together.
TWINS = [
    ("the key", "s", "x", "two men"),
    ("dogs bark", "s", "x", "cats meow"),
    ("a red cat", " is", " are", "six sheep"),
    ("she ran", "x", "y", "two sat"),
]
SAME_END = [
    ("the key", "s", "x", "two boy"),
    ("dogs bark", "s", "x", "bird sank"),
    ("a red cat", " is", " are", "six sheep"),  # read at the space that follows both
]
TINY = ("tiny_gpt2", "tiny_llama", "tiny_gemma2", "tiny_neox")
DIRECTIONS = ("noising", "denoising")


@pytest.fixture(autouse=True)
def _plainly(elsewhere, monkeypatch):
    """Draw no figures: they take longer than the rest."""
    monkeypatch.setattr(ablation, "draw", lambda *_: [])


def twins_of(rows):
    """Let prompts and twins change places."""
    return [(corrupted, a, d, prompt) for prompt, a, d, corrupted in rows]


def task_of(model, rows):
    table = pd.DataFrame(rows, columns=COLUMNS)
    return prompts.from_table(model, table, name="prompts", min_accuracy=0.0)


# ------------------------------------------------------------------ two routes
def patched(model, rows, settings, direction):
    """Patch prompt by prompt with plain hooks: scores `[setting example]`."""
    task = task_of(model, rows)
    into, source = task.examples, task.corrupted
    if direction == "denoising":
        into, source = source, into
    scores = np.empty((len(settings), len(rows)))
    for example, ((item,), (other,)) in enumerate(zip(into, source, strict=True)):
        kept = plain(model, other)[2]
        for number, closed in enumerate(settings):

            def edit(place, z, v, kept=kept, closed=closed):
                for head in closed:
                    if (head.site, head.layer) == place:
                        z[:, head.head] = kept[place][:, head.head]
                return z

            scores[number, example] = read(plain(model, item, edit)[0], item)
    return scores


def read(logits, item):
    """Subtract the distractor's logit from the answer's."""
    ((answer, distractor),) = item.ids
    row = logits[item.read[0]]
    return float(row[answer] - row[distractor])


def alone(model, items):
    """Score prompts one by one."""
    return np.array([read(plain(model, item)[0], item) for (item,) in items])


def swept(model, rows, settings, direction, positions="all"):
    """Patch with the engine, all rows of a block in one go: scores `[setting example]`."""
    task = task_of(model, rows)
    task = inputs.reversed_twins(task) if direction == "denoising" else task
    baseline = Resample(np.arange(len(rows))[None], task.corrupted)
    engine = Engine(model, task, settings, baseline, positions)
    jobs = [job for part in engine.plan(10_000, range(len(settings))).parts for job in part]
    table = pd.concat([engine.run(job) for job in jobs])
    return table.pivot(index="setting", columns="example", values="ablated").to_numpy()


def command(rows, direction, *overrides, model="tiny_gpt2", folder="here"):
    """Patch with the command: effects and summary."""
    Path(f"{folder}.csv").write_text(pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False))
    choices = [f"model={model}", "task=prompts", f"task.path={folder}.csv", "task.min_accuracy=0"]
    choices += [f"direction={direction}", f"hydra.run.dir={folder}", *overrides]
    assert run("ablation", *choices) == 0
    return tuple(pd.read_parquet(f"{folder}/{name}.parquet") for name in ("effects", "summary"))


def mixed(model):
    """A head, heads of one layer, heads of several."""
    return [
        (Head("attn", 0, 1),),
        (Head("attn", 2, 3),),
        (Head("attn", 1, 0), Head("attn", 1, 3)),
        (Head("attn", 0, 2), Head("attn", 1, 2), Head("attn", 2, 0)),
    ]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", [*TINY, "custom_decoder"])
def test_a_patched_row_equals_a_plain_loop(name, direction):
    model = family(name)
    wanted = patched(model, TWINS, mixed(model), direction)
    task = task_of(model, TWINS)
    clean = alone(model, task.corrupted if direction == "denoising" else task.examples)
    assert (np.abs(wanted - clean).max(axis=1) > 10 * CLOSE).all()
    assert np.abs(swept(model, TWINS, mixed(model), direction) - wanted).max() < CLOSE


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_prompts_padded_on_the_left_are_patched_alike(direction):
    left = swept(family("tiny_llama", "left"), TWINS, mixed(None), direction)
    assert np.abs(left - swept(family("tiny_llama"), TWINS, mixed(None), direction)).max() < CLOSE


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("name", "unit", "overrides"),
    [
        ("tiny_gpt2", "head", ["heads=[L0H1,L2H3]"]),
        ("tiny_llama", "kv_group", []),
        ("tiny_gemma2", "all_but_one", ["heads=[L1H2]"]),
        ("tiny_neox", "pair", ["heads=[L0H1,L1H0,L2H3]"]),
    ],
)
def test_the_command_writes_what_a_plain_loop_finds(name, unit, overrides, direction):
    effects, summary = command(TWINS, direction, f"unit={unit}", *overrides, model=name)
    model = family(name)
    closed = pd.read_parquet("here/units.parquet")["closed"]
    settings = [tuple(parse(head, model.sites) for head in heads.split("+")) for heads in closed]
    ablated = patched(model, TWINS, settings, direction)
    task = task_of(model, TWINS)
    clean, corrupted = alone(model, task.examples), alone(model, task.corrupted)
    start = clean if direction == "noising" else corrupted
    expected = {
        "clean": np.broadcast_to(clean, ablated.shape),
        "corrupted": np.broadcast_to(corrupted, ablated.shape),
        "ablated": ablated,
        "effect": ablated - start,
        "damage": start - ablated,
    }
    assert effects["example"].tolist() == [0, 1, 2, 3] * len(settings)
    for column, values in expected.items():
        assert np.abs(effects[column].to_numpy() - values.ravel()).max() < CLOSE, column
    damage = (start - ablated).mean(axis=1)
    assert np.abs(summary["damage"].to_numpy() - damage).max() < CLOSE
    assert set(effects["direction"]) == set(summary["direction"]) == {direction}
    assert set(effects["ablation"]) == {"resample"}
    assert "draw_sd" not in summary


# ------------------------------------------------------------------ laws
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_prompt_that_is_its_own_twin_changes_nothing(direction):
    rows = [(prompt, answer, distractor, prompt) for prompt, answer, distractor, _ in TWINS]
    effects, summary = command(rows, direction, "unit=layer")
    assert effects["effect"].abs().max() < 1e-6
    assert (effects["clean"] == effects["corrupted"]).all()
    assert effects["normalised"].isna().all()
    assert summary["normalised"].isna().all()


def test_noising_is_denoising_of_the_file_with_prompts_and_twins_exchanged():
    noised, _ = command(TWINS, "noising", folder="here")
    denoised, _ = command(twins_of(TWINS), "denoising", folder="there")
    assert (noised["ablated"] == denoised["ablated"]).all()
    assert (noised["effect"] == denoised["effect"]).all()
    assert (noised["clean"] == denoised["corrupted"]).all()
    assert (noised["corrupted"] == denoised["clean"]).all()
    kept = noised["normalised"].dropna()
    assert len(kept) > 12
    assert kept.to_numpy() == pytest.approx(1 - denoised["normalised"].dropna().to_numpy())


def test_with_the_answers_exchanged_too_only_the_sign_changes():
    noised, _ = command(TWINS, "noising", folder="here")
    rows = [(corrupted, d, a, prompt) for prompt, a, d, corrupted in TWINS]
    denoised, _ = command(rows, "denoising", folder="there")
    for column in ("ablated", "effect", "damage"):
        assert (noised[column] == -denoised[column]).all()
    assert noised["effect"].abs().max() > 1e-2


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("positions", ["all", "answer"])
@pytest.mark.parametrize("name", [*TINY, "custom_decoder"])
def test_twins_with_the_same_last_token_differ_there_by_their_heads_alone(
    name, positions, direction
):
    """The residual at the last token is its embedding and what the blocks add.

    So all heads of one run, put into the other, give the one's score, and at the last token alone.
    """
    model = family(name)
    task = task_of(model, SAME_END)
    clean, corrupted = alone(model, task.examples), alone(model, task.corrupted)
    assert (np.abs(clean - corrupted) > 10 * CLOSE).all()
    found = swept(model, SAME_END, [tuple(all_heads(model.sites))], direction, positions)
    assert np.abs(found[0] - (corrupted if direction == "noising" else clean)).max() < CLOSE


def test_twins_with_other_last_tokens_differ_by_more_than_their_heads():
    model = family("tiny_gpt2")
    found = swept(model, TWINS[:2], [tuple(all_heads(model.sites))], "noising")
    corrupted = alone(model, task_of(model, TWINS[:2]).corrupted)
    assert (np.abs(found[0] - corrupted) > 10 * CLOSE).all()


def test_of_all_heads_as_one_set_nothing_is_kept_and_all_is_regained():
    every = ",".join(f"L{layer}H{head}" for layer in range(3) for head in range(4))
    for direction, share in (("noising", 0), ("denoising", 1)):
        overrides = ["unit=set", f"sets=[[{every}]]"]
        effects, summary = command(SAME_END, direction, *overrides, folder=direction)
        assert summary["normalised"].to_numpy() == pytest.approx([share], abs=1e-3)
        assert effects["normalised"].dropna().to_numpy() == pytest.approx(share, abs=1e-3)
        assert len(effects) == 3


# ------------------------------------------------------------------ what is kept or regained
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_normalised_is_the_share_of_the_way_from_corrupted_to_clean(direction):
    rows = [*TWINS, ("we ran", "s", "x", "we ran")]  # nothing to regain in the last one
    effects, summary = command(rows, direction, "unit=layer")
    span = effects["clean"] - effects["corrupted"]
    once = effects.drop_duplicates("example")
    mean = (once["clean"] - once["corrupted"]).abs().mean()
    is_usable = span.abs() >= results.TINY * mean
    assert is_usable.groupby(effects["example"]).all().tolist() == [True] * 4 + [False]
    by_hand = ((effects["ablated"] - effects["corrupted"]) / span).where(is_usable)
    pd.testing.assert_series_equal(effects["normalised"], by_hand, check_names=False)
    means = effects[is_usable].groupby("layer")[["clean", "corrupted", "ablated"]].mean()
    ratio = means.eval("(ablated - corrupted) / (clean - corrupted)")
    assert summary["normalised"].to_numpy() == pytest.approx(ratio.to_numpy())
    assert (summary["n"] == 5).all()  # damage is over all examples


def by_hand(clean, corrupted, ablated, direction="noising"):
    """Make the table of effects of one head."""
    n = len(clean)
    rows = pd.DataFrame({"setting": 0, "example": range(n), "draw": 0, "ablated": ablated})
    examples = pd.DataFrame({"example": range(n), "cluster": range(n)})
    return results.effects(
        rows.assign(clean=clean if direction == "noising" else corrupted),
        units.table([units.Unit((), dict(zip(units.ADDRESS, ("attn", 0, 0, 0), strict=True)))]),
        examples.assign(clean=clean, corrupted=corrupted),
        higher_is_better=True,
        direction=direction,
        model="m",
    )


def test_normalised_worked_out_by_hand():
    # spans 4, -2, 0.1, 1.9: their mean size is 2, so that 0.1 is just enough
    clean, corrupted = np.array([4, 0, 1.1, 3]), np.array([0, 2, 1.0, 1.1])
    table = by_hand(clean, corrupted, np.array([3, 3, 1.2, 1.1]))
    assert table["normalised"].tolist() == pytest.approx([0.75, -0.5, 2, 0])
    assert table["effect"].tolist() == pytest.approx([-1, 3, 0.1, -1.9])
    back = by_hand(clean, corrupted, np.array([3, 3, 1.2, 1.1]), "denoising")
    assert back["normalised"].tolist() == pytest.approx([0.75, -0.5, 2, 0])
    assert back["effect"].tolist() == pytest.approx([3, 1, 0.2, 0])
    assert back["damage"].tolist() == pytest.approx([-3, -1, -0.2, 0])


def test_a_span_below_the_least_normalises_nothing():
    # spans 4, -2, 0.09, 1.9: a twentieth of their mean size is 0.0999
    clean, corrupted = np.array([4, 0, 1.09, 3]), np.array([0, 2, 1.0, 1.1])
    table = by_hand(clean, corrupted, np.array([3, 3, 1.2, 1.1]))
    assert table["normalised"].isna().tolist() == [False, False, True, False]
    line = results.summary(table, n_draws=10, level=0.95, seed=0)
    # (7.1 - 3.1) / (7 - 3.1), without the third
    assert line["normalised"].tolist() == pytest.approx([4 / 3.9])
    assert line["n"].tolist() == [4]


def test_without_any_span_nothing_is_normalised():
    same = np.array([1.0, 2.0])
    table = by_hand(same, same, np.array([1.5, 2.0]))
    assert table["normalised"].isna().all()
    assert results.summary(table, n_draws=10, level=0.95, seed=0)["normalised"].isna().all()


# ------------------------------------------------------------------ what cannot be
REFUSED = {
    "a task without twins": (["task=agreement", "direction=noising"], "no corrupted prompts"),
    "a file without twins": (["direction=denoising"], "no corrupted prompts"),
    "another ablation": (["direction=noising", "ablation=mean"], "ablation=resample, not mean"),
    "another partner": (
        ["direction=denoising", "resample.partner=any"],
        "resample.partner=corrupted, not any",
    ),
    "adaptive": (["direction=noising", "adaptive=true"], "adaptive=true"),
    "an unknown direction": (["direction=sideways"], "null, noising, denoising"),
}


@pytest.mark.parametrize(("overrides", "names"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_patched_is_refused_in_one_line(overrides, names, capsys):
    rows = pd.DataFrame(TWINS, columns=COLUMNS).drop(columns="corrupted")
    Path("plain.csv").write_text(rows.to_csv(index=False))
    before = files()
    if "task=agreement" not in overrides:
        overrides = ["task=prompts", "task.path=plain.csv", *overrides]
    assert run("ablation", "model=tiny_gpt2", "task.min_accuracy=0", *overrides) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert names in line
    assert files() == before


# ------------------------------------------------------------------ a real model
REAL = [
    ("Right now, the key to the doors", " is", " are", "Right now, the keys to the doors"),
    ("Right now, the keys to the doors", " are", " is", "Right now, the key to the doors"),
    ("Even now, the dogs behind the fence", " are", " is", "Even now, the dog behind the fence"),
]
REAL_HEADS = ["L26H0", "L27H8", "L19H6", "L0H2"]


@contextmanager
def on_projections(theirs, hook):
    """Hand `hook` each layer's number and what its output projection is about to read."""

    def at(layer):
        return lambda _module, args: hook(layer, args[0].clone())

    path = huggingface.W_O["smollm2"]["attn"]
    with ExitStack() as stack:
        for layer in range(theirs.config.num_hidden_layers):
            projection = theirs.get_submodule(path.format(layer=layer))
            stack.callback(projection.register_forward_pre_hook(at(layer)).remove)
        yield


@torch.no_grad()
def plainly_patched(theirs, score, prompt, twin, heads):
    """Put each head's slice of what the projection reads from the twin's run into the prompt's."""
    width = theirs.config.hidden_size // theirs.config.num_attention_heads
    kept, scores = {}, []
    with on_projections(theirs, kept.__setitem__):
        score(twin)
    for head in heads:
        mine = slice(head.head * width, (head.head + 1) * width)

        def put(layer, z, head=head, mine=mine):
            if layer == head.layer:
                z[..., mine] = kept[layer][..., mine]
            return (z,)

        with on_projections(theirs, put):
            scores.append(score(prompt))
    return scores


def test_in_smollm2_both_directions_equal_a_plain_loop(model):
    ours = model("smollm2")
    theirs, tokenizer = huggingface.plain("smollm2", ours), ours.codec.tokenizer
    heads = [parse(name, ours.sites) for name in REAL_HEADS]
    every = tuple(all_heads(ours.sites))
    task = task_of(ours, REAL)
    clean = clean_scores(ours, task, 512)
    corrupted = clean_scores(ours, inputs.reversed_twins(task), 512)
    assert (clean > 0).all()
    assert (corrupted < 0).all()
    for direction in DIRECTIONS:
        rows = REAL if direction == "noising" else twins_of(REAL)
        wanted = [
            plainly_patched(
                theirs,
                lambda text, ends=row[1:3]: huggingface.next_token_difference(
                    theirs, tokenizer, text, *ends
                ),
                row[0],
                row[3],
                heads,
            )
            for row in rows
        ]
        wanted = np.array(wanted).T
        found = swept(ours, REAL, [*((head,) for head in heads), every], direction)
        assert np.abs(found[:-1] - wanted).max() < CLOSE
        start, end = (clean, corrupted) if direction == "noising" else (corrupted, clean)
        assert (np.abs(wanted - start).max(axis=1) > 10 * CLOSE).all()
        assert np.abs(found[-1] - end).max() < CLOSE  # the last tokens are the same
