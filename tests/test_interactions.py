"""Interactions of pairs, merging, and experiments.interactions, run as a user runs it."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from test_experiments import files, run, stop_at
from test_planted import without

from interp import results, sweep
from interp.errors import InputError
from interp.heads import Head, Site, all_heads
from interp.models.planted import planted
from interp.redundancy import interactions
from interp.redundancy.tables import HEAD, HEAD_2, PAIR

CHOICES = {
    "device": "cpu",
    "dtype": "float32",
    "prepend_bos": "auto",
    "padding_side": "right",
    "truncation": "error",
}
PLANTED = ["model=planted", "model.variant=redundant", "task=planted"]
TINY = [*("model=tiny_llama", "n_examples=6", "task.min_accuracy=0"), "tokens_per_batch=256"]
PAIRS = (
    "model task metric ablation positions site layer head site_2 layer_2 head_2 damage_1 damage_2 "
    "damage_both interaction n ci_low ci_high p_value q_value js cka is_twin"
)
SIMILAR = (
    "model task metric ablation positions site measure statistic value null_mean null_low "
    "null_high n_heads n"
)
CURVE = (
    "model task metric ablation positions how seed n_merged fraction value ci_low ci_high damage "
    "above_merged above_low above_high"
)
MERGES = "model task site layer head twin site_2 layer_2 head_2 measure value"
EXTRA = ("run", "seed", "n_examples", "dtype")
DRAWN = {"n_draws": 200, "level": 0.95, "seed": 0}


def h(layer, head, site="attn"):
    return Head(site, layer, head)


def alike_of(values, measure="js") -> pd.DataFrame:
    """One line a pair, from {(head, head): value}."""
    lines = [
        (a.site, a.layer, a.head, b.site, b.layer, b.head, measure, value, 10)
        for (a, b), value in values.items()
    ]
    return pd.DataFrame(lines, columns=[*PAIR, "measure", "value", "n"])


def named(table) -> dict:
    """Lines by their pairs of heads."""
    return {
        (Head(*(line[name] for name in HEAD)), Head(*(line[name] for name in HEAD_2))): line
        for line in table.to_dict("records")
    }


# ------------------------------------------------------------------ pairs
def test_interaction_is_what_both_damage_beyond_the_sum():
    one, two, three = h(0, 0), h(0, 1), h(1, 0)
    single = {one: np.array([1.0, 2, 3, 4]), two: np.zeros(4), three: np.array([0.5, 0, 0.5, 0])}
    both = np.array([[2.0, 3, 4, 5], [1.0, 2, 3, 4.0], [0.5, 0, 0.5, 0]])
    pairs = [(one, two), (one, three), (two, three)]
    table = interactions.interactions(pairs, single, both, np.arange(4), **DRAWN)
    assert table["interaction"].tolist() == [1.0, -0.25, 0.0]
    assert table["damage_1"].tolist() == [2.5, 2.5, 0.0]
    assert table["damage_2"].tolist() == [0.0, 0.25, 0.25]
    assert table["damage_both"].tolist() == [3.5, 2.5, 0.25]
    assert table["ci_low"][0] == table["ci_high"][0] == 1.0  # the same on all examples
    assert table["ci_low"][1] == -0.5
    assert table["ci_high"][1] == 0.0
    assert table["p_value"].tolist() == [2 / 2**4, 0.5, 1.0]
    assert table["q_value"].tolist() == [3 / 8, 0.75, 1.0]
    assert [*named(table)] == pairs


def test_whole_clusters_count_as_one():
    heads = [h(0, 0), h(0, 1)]
    single, both = dict.fromkeys(heads, np.zeros(6)), np.arange(6.0)[None]
    apart = interactions.interactions([tuple(heads)], single, both, np.arange(6), **DRAWN)
    shared = interactions.interactions([tuple(heads)], single, both, np.arange(6) // 3, **DRAWN)
    assert shared["p_value"][0] == 0.5
    assert apart["p_value"][0] == 2 / 2**5  # the 0 has no sign
    assert shared["ci_low"][0] == 1.0  # the mean of the lower cluster


# ------------------------------------------------------------------ similarity
def square_pairs(heads, near, acts) -> pd.DataFrame:
    lines = [
        (*(a.site, a.layer, a.head, b.site, b.layer, b.head), near(a, b), acts(a, b))
        for k, a in enumerate(heads)
        for b in heads[k + 1 :]
    ]
    return pd.DataFrame(lines, columns=[*PAIR, "cka", "interaction"])


def answers(table, measure="cka", rounding=0.0, n_draws=300) -> pd.DataFrame:
    found = interactions.similar(table, [measure], rounding=rounding, n_draws=n_draws, seed=0)
    return found.set_index("statistic")


def test_similarity_that_goes_with_interaction_is_told_from_chance():
    heads, rng = (
        [h(layer, head) for layer in range(4) for head in range(5)],
        np.random.default_rng(0),
    )
    noise = {(a, b): rng.normal() for a in heads for b in heads}
    table = square_pairs(heads, lambda a, b: noise[a, b], lambda a, b: np.exp(noise[a, b]))
    found = answers(table)
    assert found.loc["spearman", "value"] == pytest.approx(1)
    assert found.loc["spearman", "null_high"] < 0.3
    assert found.loc["spearman", "null_low"] < 0 < found.loc["spearman", "null_high"]
    assert found.loc["spearman_same_distance", "value"] > 0.9
    assert found.loc["twins_less_others", "value"] > found.loc["twins_less_others", "null_high"]
    assert found.loc["spearman", ["n_heads", "n"]].tolist() == [20, 190]
    # of a distance, near is small
    table = table.assign(js=0.5 - table["cka"] / 100)
    assert answers(table, "js")["value"].tolist() == pytest.approx(found["value"].tolist())


def test_what_layers_explain_is_taken_off():
    """Similarity and interaction both fall with distance, and have nothing else in common."""
    heads, rng = (
        [h(layer, head) for layer in range(5) for head in range(5)],
        np.random.default_rng(1),
    )

    def falls(a, b):
        return -abs(a.layer - b.layer) + 0.1 * rng.normal()

    found = answers(square_pairs(heads, falls, falls))
    assert found.loc["spearman", "value"] > 0.8
    assert abs(found.loc["spearman_same_distance", "value"]) < 0.15
    assert abs(found.loc["twins_less_others", "value"]) < 0.1


def test_twins_are_compared_with_pairs_as_many_layers_apart():
    """Worked by hand: twins are (0.0, 0.1) and (0.2, 1.0)."""
    heads = [h(0, 0), h(0, 1), h(0, 2), h(1, 0)]
    near = {(0, 1): 0.9, (0, 2): 0.1, (1, 2): 0.2, (0, 3): 0.3, (1, 3): 0.4, (2, 3): 0.8}
    acts = {(0, 1): 5.0, (0, 2): 1.0, (1, 2): 2.0, (0, 3): 0.5, (1, 3): 0.7, (2, 3): 3.0}
    place = {head: number for number, head in enumerate(heads)}
    table = square_pairs(
        heads, lambda a, b: near[place[a], place[b]], lambda a, b: acts[place[a], place[b]]
    )
    line = answers(table).loc["twins_less_others"]
    assert line["value"] == pytest.approx(((5 - 1.5) + (3 - 0.6)) / 2)
    assert line["n"] == 2
    joined = interactions.with_similarity(
        table.drop(columns="cka"),
        alike_of({(heads[a], heads[b]): value for (a, b), value in near.items()}, "cka"),
        "cka",
    )
    assert joined["is_twin"].tolist() == [True, False, False, False, False, True]
    assert joined["cka"].tolist() == table["cka"].tolist()


def test_interactions_within_rounding_are_ties():
    heads, rng = [h(0, head) for head in range(8)], np.random.default_rng(0)
    table = square_pairs(heads, lambda a, b: rng.random(), lambda a, b: 1e-7 * rng.normal())
    assert "spearman" in answers(table).index
    assert answers(table, rounding=1e-5).empty


# ------------------------------------------------------------------ merging
def test_the_later_head_takes_the_pattern_of_the_earlier_and_who_lends_keeps_it():
    a, b, c, d, e = h(0, 0), h(1, 0), h(1, 1), h(2, 0), h(2, 1)
    lines = alike_of(
        {
            (b, d): 0.1,  # d takes b's
            (a, b): 0.2,  # b lends and keeps its own; a is earlier and cannot take it
            (c, d): 0.25,  # d has been merged
            (b, c): 0.3,  # of one layer: c takes b's, though it may lend
            (a, e): 0.35,  # e takes a's
            (c, e): 0.4,
        }
    )
    assert interactions.merges(lines) == [(d, b), (c, b), (e, a)]
    # a similarity counts the other way round
    assert interactions.merges(lines.assign(measure="cka"))[0] == (e, c)


def test_in_one_layer_either_head_may_take_the_pattern():
    a, b, c = h(0, 0), h(0, 1), h(1, 0)
    lines = alike_of({(b, c): 0.1, (a, b): 0.2, (a, c): 0.3})
    assert interactions.merges(lines) == [(c, b), (a, b)]  # b lends, so a takes


def test_every_merge_is_well_defined_on_random_values():
    site = Site("attn", "blocks", "attn", 4, 5, 5, 8, True)
    heads, rng = all_heads([site]), np.random.default_rng(0)
    pairs = [(a, b) for k, a in enumerate(heads) for b in heads[k + 1 :]]
    merged = interactions.merges(alike_of({pair: rng.random() for pair in pairs}))
    taking, lending = {head for head, _ in merged}, {twin for _, twin in merged}
    assert not taking & lending
    assert len(taking) == len(merged)
    assert taking | lending == {*heads}
    assert all(twin.layer <= head.layer for head, twin in merged)
    others = interactions.strangers(merged, [site], rng)
    assert [head for head, _ in others] == [head for head, _ in merged]
    for (head, twin), (_, other) in zip(merged, others, strict=True):
        assert other.layer == twin.layer
        assert other not in (head, twin)


def test_the_curve_starts_at_the_clean_score_and_compares_with_merging():
    clean, clusters = np.array([4.0, 6.0]), np.arange(2)
    damage = {("merged", 0): np.array([[1.0, 1.0]]), ("pruned", 0): np.array([[1.0, 3.0]])}
    options = {"n_heads": 8, **DRAWN}
    table = interactions.curve(damage, clean, clusters, [2], higher_is_better=True, **options)
    assert table["value"].tolist() == [5.0, 4.0, 5.0, 3.0]
    assert table["n_merged"].tolist() == [0, 2, 0, 2]
    assert table["fraction"].tolist() == [0, 0.25, 0, 0.25]
    assert table["above_merged"].tolist() == [0, 0, 0, 1.0]
    assert (table["above_low"][3], table["above_high"][3]) == (0.0, 2.0)
    worse = interactions.curve(damage, clean, clusters, [2], higher_is_better=False, **options)
    assert worse["value"].tolist() == [5.0, 6.0, 5.0, 7.0]


def test_the_most_alike_twins_come_first():
    a, b, c, d = h(0, 0), h(0, 1), h(1, 0), h(1, 1)
    lines = alike_of({(a, b): 0.3, (a, c): 0.5, (a, d): 0.5, (b, c): 0.2, (b, d): 0.6, (c, d): 0.1})
    assert {*interactions.most_alike(lines, 2)} == {c, d}
    assert {*interactions.most_alike(lines, 3)} == {b, c, d}
    assert interactions.nearest(lines) == {a: b, b: c, c: d, d: c}


def test_a_head_without_any_twin_is_refused():
    site = Site("attn", "blocks", "attn", 1, 3, 3, 8, True)
    lines = alike_of({(h(0, 0), h(0, 1)): 0.1})
    with pytest.raises(InputError, match=r"L0H2 has no twin.*js"):
        interactions.twins([site], lines)


# ------------------------------------------------------------------ planted truth, by command
@cache
def truth():
    return planted("redundant", 0, **CHOICES)


def test_planted_stand_ins_are_found_as_a_plain_loop_finds_them(elsewhere, capsys):
    settings = ["ablation=zero", "n_examples=16", "merge.fractions=[]", "hydra.run.dir=here"]
    assert run("interactions", *PLANTED, *settings) == 0
    table, model = pd.read_parquet("here/pairs.parquet"), truth()
    assert list(table) == PAIRS.split()
    assert len(table) == 66
    assert (table["n"] == 16).all()
    of = named(table)
    twins, linear = (tuple(sorted(model.heads_of(role))) for role in ("twin", "linear_twin"))
    assert max(of, key=lambda pair: of[pair]["interaction"]) == twins
    assert of[twins]["damage_both"] == pytest.approx(3, abs=1e-4)
    assert abs(of[twins]["damage_1"]) + abs(of[twins]["damage_2"]) < 1e-4
    assert of[twins]["ci_low"] > 2.9
    assert of[twins]["q_value"] < 0.05
    assert of[linear]["interaction"] == pytest.approx(0, abs=1e-5)
    assert of[linear]["damage_1"] == pytest.approx(1, abs=0.02)
    [main], [backup], [harmful] = map(model.heads_of, ("main", "backup", "harmful"))
    assert of[tuple(sorted((main, backup)))]["interaction"] == pytest.approx(1.5, abs=0.05)
    dead = {head for head, known in model.truth.items() if "dead" in known}
    assert len(dead) == 5
    for pair, line in of.items():
        for head, damage in zip(pair, ("damage_1", "damage_2"), strict=True):
            if head in dead:
                assert line[damage] == 0
                assert line["interaction"] == 0
            if head == harmful:
                assert line[damage] == pytest.approx(-0.75, abs=0.02)
    out = capsys.readouterr().out
    assert "clear of 0: 2 pairs above" in out
    assert f"\n{'+'.join(map(str, twins))} +0.000 +0.000 +3.000      +3.000" in out
    with torch.no_grad():
        clean = without(0)
        for one, two in [*of][::5]:
            alone, other, both = (
                (clean - without(0, *heads))[:16] for heads in ([one], [two], [one, two])
            )
            wanted = (both - alone - other).mean()
            assert of[one, two]["interaction"] == pytest.approx(wanted, abs=1e-4)
            assert of[one, two]["damage_both"] == pytest.approx(both.mean(), abs=1e-4)


def test_a_planted_task_needs_a_planted_model(elsewhere, capsys):
    assert run("ablation", "model=planted", "task=planted") == 2
    assert "planted_decoder brings no prompts of its own" in capsys.readouterr().err
    assert not files()


# ------------------------------------------------------------------ the command
def test_writes_the_tables_of_the_contract(elsewhere):
    assert run("interactions", *TINY, "n_heads=5", "merge.random=2") == 0
    [record] = Path("results").rglob("run.json")
    made = {path.name for path in record.parent.iterdir()}
    assert made >= {"pairs.png", "strongest.png", "similar.png", "merge_curve.png"}
    columns = {"pairs": PAIRS, "similar": SIMILAR, "merge_curve": CURVE, "merges": MERGES}
    tables = {name: results.load("results", name) for name in columns}
    for name, table in tables.items():
        ours = [c for c in table if c not in EXTRA or c in columns[name].split()]
        assert ours == columns[name].split(), name
    pairs, curve = tables["pairs"], tables["merge_curve"]
    assert len(pairs) == 10
    assert {*curve["how"]} == {"merged", "pruned", "random"}
    assert {*curve["ablation"]} == {"twin", "mean"}
    assert curve[curve["how"] == "random"]["seed"].nunique() == 2
    facts = json.loads(record.read_text())
    assert facts["done"]
    start = curve[curve["n_merged"] == 0]
    assert start["value"].to_numpy() == pytest.approx(facts["clean_score"])
    # the chosen heads are those of the largest |damage|, as the ablation finds it
    assert run("ablation", *TINY) == 0
    damage = results.load("results/ablation").set_index(HEAD)["damage"]
    wanted = {*damage.abs().nlargest(5).index}
    assert {*pairs[HEAD].itertuples(index=False, name=None)} | {
        *pairs[HEAD_2].set_axis(HEAD, axis=1).itertuples(index=False, name=None)
    } == wanted
    for line in pairs.to_dict("records"):
        place = tuple(line[name] for name in HEAD)
        assert line["damage_1"] == pytest.approx(damage[place], abs=1e-4)


def test_an_interrupted_run_goes_on_and_ends_the_same(elsewhere, monkeypatch):
    monkeypatch.setattr(sweep, "PART_TOKENS", 300)
    settings = [*TINY, "n_heads=3", "n_examples=4", "merge.random=1", "merge.fractions=[0.5]"]
    assert run("interactions", *settings, "hydra.run.dir=whole") == 0
    n_parts = len(list(Path("whole/parts").glob("*.parquet")))
    for stop in (3, 12):  # among the singles, and later
        stop_at(stop, OSError("the disk is full"), monkeypatch)
        with pytest.raises(OSError, match="full"):
            run("interactions", *settings, "hydra.run.dir=broken")
    assert 0 < len(list(Path("broken/parts").glob("*.parquet"))) < n_parts
    assert not Path("broken/pairs.parquet").exists()
    assert run("interactions", *settings, "hydra.run.dir=broken") == 0
    for table in ("pairs", "similar", "merges", "merge_curve"):
        whole, broken = (pd.read_parquet(f"{f}/{table}.parquet") for f in ("whole", "broken"))
        pd.testing.assert_frame_equal(whole, broken, check_exact=True)


@pytest.mark.parametrize(
    ("choice", "n"),
    [
        (["choose=similarity", "n_heads=3"], 3),
        (["choose=all", "n_examples=2"], 66),
        (["heads=[L0H1,L1H2]"], 1),
    ],
)
def test_other_choices_of_pairs(choice, n, elsewhere):
    small = [*TINY, "merge.fractions=[]", "hydra.run.dir=here"]
    assert run("interactions", *small, *choice) == 0
    assert len(pd.read_parquet("here/pairs.parquet")) == n
    assert not Path("here/merges.parquet").exists()


@pytest.mark.parametrize("model", ["tiny_t5", "tiny_bert"])
def test_sites_do_not_mix_in_similarity_and_merging(model, elsewhere):
    Path("s.csv").write_text("source,target\nhello you,hallo du\ngood day,guten tag\n")
    task = ["task=similarity", "task.min_accuracy=0", "n_examples=4"]
    if model == "tiny_t5":
        task = ["task=seq2seq", "task.path=s.csv", "task.min_accuracy=0"]
    small = ["n_heads=6", "merge.random=1", "merge.fractions=[0.5]", "hydra.run.dir=here"]
    assert run("interactions", f"model={model}", *task, *small) == 0
    pairs, merges = (pd.read_parquet(f"here/{name}.parquet") for name in ("pairs", "merges"))
    assert (pairs["js"].isna() == (pairs["site"] != pairs["site_2"])).all()
    assert (merges["site"] == merges["site_2"]).all()


def test_twin_ablation_runs_from_the_command_and_names_the_twins(elsewhere):
    assert run("ablation", *TINY, "ablation=twin", "hydra.run.dir=here") == 0
    twins, summary = (pd.read_parquet(f"here/{name}.parquet") for name in ("twins", "summary"))
    assert list(twins) == [*HEAD, "twin", *HEAD_2]
    assert len(twins) == len(summary) == 12
    assert (summary["damage"].abs() > 1e-6).any()


BAD = {
    "a twin for a baseline": (["ablation=twin"], "ablation=twin"),
    "an unknown choice": (["choose=best"], "choose=best"),
    "one head": (["heads=[L0H1]"], "heads: name at least two"),
    "too few heads": (["n_heads=1"], "n_heads=1"),
    "an unknown measure": (["measures=[likeness]"], "measures=likeness"),
    "an unknown measure of twins": (["twins.measure=ov_overlap"], "twins.measure=ov_overlap"),
    "no positions": (["twins.n_positions=0"], "twins.n_positions=0"),
    "a share above 1": (["merge.fractions=[2]"], "merge.fractions=[2]"),
    "measures that are no list": (["measures=js"], "measures=js"),
}


@pytest.mark.parametrize(("overrides", "names"), BAD.values(), ids=BAD)
def test_bad_input_ends_in_one_line_and_leaves_nothing(overrides, names, elsewhere, capsys):
    assert run("interactions", *TINY, *overrides) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert names in line
    assert not files()
