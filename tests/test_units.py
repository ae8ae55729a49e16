"""Units: which heads they close, how tables know them, what people call them."""

from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
from test_experiments import run

from experiments import ablation
from interp import results, units
from interp.errors import InputError
from interp.heads import Head, Site, all_heads, parse
from interp.plots.heads import wrapped

GROUPED = (Site("attn", "blocks", "attn", 2, 6, 3, 8, True),)
SEVERAL = (
    Site("encoder_attn", "encoder_blocks", "attn", 2, 2, 2, 8, False),
    Site("decoder_self_attn", "decoder_blocks", "self_attn", 1, 2, 1, 8, True),
    Site("decoder_cross_attn", "decoder_blocks", "cross_attn", 1, 2, 2, 8, False),
)
UNGROUPED = (Site("attn", "blocks", "attn", 2, 3, 3, 8, True),)
ONE_HEAD = (Site("attn", "blocks", "attn", 2, 1, 1, 8, True),)
ONE_GROUP = (Site("attn", "blocks", "attn", 2, 3, 1, 8, True),)


def found(kind, sites, heads=None, sets=()):
    """List units of the heads named, or of all."""
    heads = all_heads(sites) if heads is None else [parse(name, sites) for name in heads.split()]
    chosen = [[parse(name, sites) for name in names.split()] for names in sets]
    return units.units(kind, sites, heads, chosen)


def listed(*args, **kwargs):
    """List units as people call them, with the heads they close."""
    some = found(*args, **kwargs)
    names = units.names(units.table(some).assign(unit=args[0]))
    assert len(set(names)) == len(names)
    closed = [" ".join(map(str, unit.closed)) for unit in some]
    return dict(zip(names, closed, strict=True))


# ------------------------------------------------------------------ worked out by hand
def test_a_head_closes_itself():
    assert listed("head", GROUPED, "L1H5 L0H2") == {"L1H5": "L1H5", "L0H2": "L0H2"}
    assert list(listed("head", GROUPED)) == [f"L{n}H{h}" for n in (0, 1) for h in range(6)]


def test_a_group_closes_the_heads_that_read_one_key():
    assert listed("kv_group", GROUPED) == {
        "L0 group 0": "L0H0 L0H1",
        "L0 group 1": "L0H2 L0H3",
        "L0 group 2": "L0H4 L0H5",
        "L1 group 0": "L1H0 L1H1",
        "L1 group 1": "L1H2 L1H3",
        "L1 group 2": "L1H4 L1H5",
    }


def test_a_layer_closes_all_its_heads():
    assert listed("layer", GROUPED) == {
        "L0": "L0H0 L0H1 L0H2 L0H3 L0H4 L0H5",
        "L1": "L1H0 L1H1 L1H2 L1H3 L1H4 L1H5",
    }


def test_pairs_are_among_the_heads_named_and_written_in_order():
    assert listed("pair", GROUPED, "L1H0 L0H5 L0H1") == {
        "L0H1+L0H5": "L0H1 L0H5",
        "L0H1+L1H0": "L0H1 L1H0",
        "L0H5+L1H0": "L0H5 L1H0",
    }


def test_all_but_one_closes_the_rest_of_the_layer():
    assert listed("all_but_one", GROUPED, "L0H0 L1H3") == {
        "L0 but H0": "L0H1 L0H2 L0H3 L0H4 L0H5",
        "L1 but H3": "L1H0 L1H1 L1H2 L1H4 L1H5",
    }
    assert len(found("all_but_one", GROUPED)) == 12


def test_all_but_one_group_closes_the_other_groups_of_the_layer():
    assert listed("all_but_one_group", GROUPED) == {
        "L0 but group 0": "L0H2 L0H3 L0H4 L0H5",
        "L0 but group 1": "L0H0 L0H1 L0H4 L0H5",
        "L0 but group 2": "L0H0 L0H1 L0H2 L0H3",
        "L1 but group 0": "L1H2 L1H3 L1H4 L1H5",
        "L1 but group 1": "L1H0 L1H1 L1H4 L1H5",
        "L1 but group 2": "L1H0 L1H1 L1H2 L1H3",
    }


def test_a_set_closes_what_it_names_once_and_in_order():
    sets = ["L1H0 L0H2 L1H0", "L0H4", "L0H2 L1H0"]
    assert listed("set", GROUPED, "", sets) == {"L0H2+L1H0": "L0H2 L1H0", "L0H4": "L0H4"}


def test_heads_name_the_groups_and_layers_that_they_are_in():
    assert list(listed("kv_group", GROUPED, "L1H1 L0H3 L0H2")) == ["L1 group 0", "L0 group 1"]
    assert list(listed("layer", GROUPED, "L1H1 L1H3")) == ["L1"]
    assert list(listed("all_but_one_group", GROUPED, "L0H3 L0H2")) == ["L0 but group 1"]


SEVERAL_BY_HAND = {
    "kv_group": {
        "encoder_attn.L0 group 0": "encoder_attn.L0H0",
        "encoder_attn.L0 group 1": "encoder_attn.L0H1",
        "encoder_attn.L1 group 0": "encoder_attn.L1H0",
        "encoder_attn.L1 group 1": "encoder_attn.L1H1",
        "decoder_self_attn.L0 group 0": "decoder_self_attn.L0H0 decoder_self_attn.L0H1",
        "decoder_cross_attn.L0 group 0": "decoder_cross_attn.L0H0",
        "decoder_cross_attn.L0 group 1": "decoder_cross_attn.L0H1",
    },
    "layer": {
        "encoder_attn.L0": "encoder_attn.L0H0 encoder_attn.L0H1",
        "encoder_attn.L1": "encoder_attn.L1H0 encoder_attn.L1H1",
        "decoder_self_attn.L0": "decoder_self_attn.L0H0 decoder_self_attn.L0H1",
        "decoder_cross_attn.L0": "decoder_cross_attn.L0H0 decoder_cross_attn.L0H1",
    },
    "all_but_one": {
        "encoder_attn.L0 but H0": "encoder_attn.L0H1",
        "encoder_attn.L0 but H1": "encoder_attn.L0H0",
        "encoder_attn.L1 but H0": "encoder_attn.L1H1",
        "encoder_attn.L1 but H1": "encoder_attn.L1H0",
        "decoder_self_attn.L0 but H0": "decoder_self_attn.L0H1",
        "decoder_self_attn.L0 but H1": "decoder_self_attn.L0H0",
        "decoder_cross_attn.L0 but H0": "decoder_cross_attn.L0H1",
        "decoder_cross_attn.L0 but H1": "decoder_cross_attn.L0H0",
    },
    # the decoder's own attention has one group: nothing would be left to ablate
    "all_but_one_group": {
        "encoder_attn.L0 but group 0": "encoder_attn.L0H1",
        "encoder_attn.L0 but group 1": "encoder_attn.L0H0",
        "encoder_attn.L1 but group 0": "encoder_attn.L1H1",
        "encoder_attn.L1 but group 1": "encoder_attn.L1H0",
        "decoder_cross_attn.L0 but group 0": "decoder_cross_attn.L0H1",
        "decoder_cross_attn.L0 but group 1": "decoder_cross_attn.L0H0",
    },
}


@pytest.mark.parametrize("kind", SEVERAL_BY_HAND)
def test_units_keep_to_their_site(kind):
    assert listed(kind, SEVERAL) == SEVERAL_BY_HAND[kind]


def test_a_pair_may_lie_in_two_sites():
    assert listed("pair", SEVERAL, "encoder_attn.L0H1 decoder_self_attn.L0H0") == {
        "decoder_self_attn.L0H0+encoder_attn.L0H1": "decoder_self_attn.L0H0 encoder_attn.L0H1"
    }


PLACE = {"site": "attn", "layer": 0}
ADDRESSES = [
    ("head", "L0H3", PLACE | {"head": 3, "kv_group": 1}),
    ("kv_group", "L0H3", PLACE | {"head": None, "kv_group": 1}),
    ("layer", "L0H3", PLACE | {"head": None, "kv_group": None}),
    ("all_but_one", "L0H3", PLACE | {"head": 3, "kv_group": 1}),
    ("all_but_one_group", "L0H3", PLACE | {"head": None, "kv_group": 1}),
    (
        "pair",
        "L1H5 L0H3",
        PLACE
        | {"head": 3, "kv_group": 1}
        | {"site_2": "attn", "layer_2": 1, "head_2": 5, "kv_group_2": 2},
    ),
]


@pytest.mark.parametrize(("kind", "heads", "address"), ADDRESSES, ids=[a[0] for a in ADDRESSES])
def test_an_address_has_what_applies_and_nulls_elsewhere(kind, heads, address):
    [unit] = found(kind, GROUPED, heads)
    assert unit.address == address
    assert list(unit.address) == list(address)


def test_a_set_has_a_name_and_no_place():
    [unit] = found("set", GROUPED, "", ["L1H5 L0H3"])
    assert unit.address == dict.fromkeys(units.ADDRESS) | {"set": "L0H3+L1H5"}


# ------------------------------------------------------------------ laws
@pytest.mark.parametrize(
    ("group", "head"), [("kv_group", "head"), ("all_but_one_group", "all_but_one")]
)
def test_without_grouping_a_group_is_a_head(group, head):
    by_group, by_head = (found(kind, UNGROUPED) for kind in (group, head))
    assert [unit.closed for unit in by_group] == [unit.closed for unit in by_head]
    numbers = [unit.address["kv_group"] for unit in by_group]
    assert numbers == [unit.address["head"] for unit in by_head]


@pytest.mark.parametrize("sites", [GROUPED, SEVERAL, UNGROUPED])
def test_all_but_one_and_the_kept_head_are_the_layer(sites):
    layers = {unit.closed for unit in found("layer", sites)}
    kept_heads = []
    for unit in found("all_but_one", sites):
        kept = Head(*(unit.address[name] for name in ("site", "layer", "head")))
        assert kept not in unit.closed
        assert tuple(sorted((*unit.closed, kept))) in layers
        kept_heads.append(kept)
    assert kept_heads == all_heads(sites)


@pytest.mark.parametrize("sites", [GROUPED, SEVERAL, UNGROUPED])
@pytest.mark.parametrize("kind", ["head", "kv_group", "layer"])
def test_every_head_is_in_one_unit(kind, sites):
    assert [head for unit in found(kind, sites) for head in unit.closed] == all_heads(sites)


@pytest.mark.parametrize("sites", [GROUPED, SEVERAL])
def test_every_pair_comes_once_smaller_head_first(sites):
    closed = [unit.closed for unit in found("pair", sites)]
    assert all(first < second for first, second in closed)
    assert set(closed) == {tuple(sorted(pair)) for pair in combinations(all_heads(sites), 2)}
    assert len(closed) == len(set(closed))


# ------------------------------------------------------------------ what cannot be
IMPOSSIBLE = {
    "a pair of one": (("pair", GROUPED, "L0H0"), "a pair needs two heads"),
    "all but the only head": (("all_but_one", ONE_HEAD), "the layer has one head"),
    "all but the only group": (("all_but_one_group", ONE_GROUP), "has one key/value group"),
    "no sets": (("set", GROUPED), r"sets=\[\[L5H1,L6H2\],\[L7H0\]\]"),
    "empty sets": (("set", GROUPED, "", [""]), r"sets=\[\[L5H1,L6H2\],\[L7H0\]\]"),
    "an unknown kind": (("neuron", GROUPED), "unit=neuron: one of head, kv_group"),
}


@pytest.mark.parametrize(("args", "says"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_is_no_unit_is_refused_in_one_line(args, says):
    with pytest.raises(InputError, match=says) as error:
        found(*args)
    assert "\n" not in str(error.value)
    assert f"unit={args[0]}" in str(error.value)


# ------------------------------------------------------------------ the table
@pytest.mark.parametrize("kind", units.KINDS)
def test_numbers_are_whole_and_nullable_only_where_some_are_missing(kind):
    table = units.table(found(kind, SEVERAL, None, ["encoder_attn.L0H0"]))
    assert set(table) <= set(units.COLUMNS)
    for name in table:
        is_text = name.startswith(("site", "set"))
        dtype = "str" if is_text else "Int64" if table[name].isna().any() else "int64"
        assert table[name].dtype == dtype, name


def test_one_missing_number_makes_the_column_nullable():
    some = [*found("head", GROUPED, "L0H3"), *found("kv_group", GROUPED, "L1H0")]
    table = units.table(some)
    assert table["head"].tolist() == [3, pd.NA]
    assert table["head"].dtype == "Int64"
    assert table["layer"].dtype == "int64"


# ------------------------------------------------------------------ through the command
ADDRESS = "site layer head kv_group"
SECOND = "site_2 layer_2 head_2 kv_group_2"
MEASURED = "unit ablation positions task metric example cluster clean ablated effect damage"
SUMMARY = "unit ablation positions task metric n n_clusters clean ablated effect damage"
KV = [f"L{layer} group {group}" for layer in range(3) for group in range(2)]
# tiny_llama: three layers of four heads, two heads a group
RUNS = {
    "head": ([], ADDRESS, [f"L{n}H{h}" for n in range(3) for h in range(4)], []),
    "kv_group": ([], ADDRESS, KV, ["head"]),
    "layer": ([], ADDRESS, ["L0", "L1", "L2"], ["head", "kv_group"]),
    "pair": (["heads=[L2H3,L0H1]"], f"{ADDRESS} {SECOND}", ["L0H1+L2H3"], []),
    "all_but_one": (["heads=[L0H1,L2H3]"], ADDRESS, ["L0 but H1", "L2 but H3"], []),
    "all_but_one_group": (["heads=[L1H3]"], ADDRESS, ["L1 but group 1"], ["head"]),
    "set": (["sets=[[L2H0,L0H1],[L1H1]]"], f"{ADDRESS} set", ["L0H1+L2H0", "L1H1"], ADDRESS),
}


@pytest.fixture
def plainly(elsewhere, monkeypatch):
    """Draw no figures: they take longer than the rest."""
    monkeypatch.setattr(ablation, "draw", lambda *_: [])


def sweep(unit, *overrides, model="tiny_llama"):
    """Run the command; return its folder."""
    choices = [f"model={model}", "n_examples=3", "task.min_accuracy=0", "ablation=zero"]
    assert run("ablation", *choices, f"unit={unit}", "hydra.run.dir=here", *overrides) == 0
    return Path("here")


@pytest.mark.parametrize("unit", units.KINDS)
def test_tables_have_the_columns_of_the_contract(unit, elsewhere):
    overrides, address, names, nulls = RUNS[unit]
    folder = sweep(unit, *overrides)
    for table, more in (("effects", MEASURED), ("summary", SUMMARY)):
        frame = pd.read_parquet(folder / f"{table}.parquet")
        wanted = ["model", *address.split(), *more.split()]
        assert list(frame)[: len(wanted)] == wanted
        assert (frame["unit"] == unit).all()
        assert results.address(frame) == address.split()
        for name in address.split():
            is_text = name.startswith(("site", "set"))
            assert frame[name].isna().all() == (name in nulls)
            assert frame[name].notna().all() == (name not in nulls)
            if is_text:
                assert pd.api.types.is_string_dtype(frame[name])
            else:
                assert frame[name].dtype == ("Int64" if name in nulls else "int64")
        once = frame.drop_duplicates(address.split())
        assert units.names(once) == names
        assert len(frame) == len(names) * (3 if table == "effects" else 1)


def test_the_table_of_units_says_what_each_closed(plainly):
    folder = sweep("all_but_one_group", "heads=[L1H3]")
    [closed] = pd.read_parquet(folder / "units.parquet")["closed"]
    assert closed == "L1H0+L1H1"


def test_of_all_but_one_the_address_is_the_head_that_is_kept(plainly):
    folder = sweep("all_but_one", "heads=[L1H2]")
    [line] = pd.read_parquet(folder / "summary.parquet").itertuples()
    assert (line.site, line.layer, line.head, line.kv_group) == ("attn", 1, 2, 1)
    rest = sweep("set", "sets=[[L1H0,L1H1,L1H3]]", "hydra.run.dir=there").with_name("there")
    alone, together = (pd.read_parquet(f / "effects.parquet") for f in (folder, rest))
    assert (alone["ablated"] == together["ablated"]).all()
    assert (alone["effect"].abs() > 1e-3).any()


def test_without_grouping_the_run_says_that_groups_are_heads(plainly, capsys):
    by_head = pd.read_parquet(sweep("head", model="tiny_gpt2") / "effects.parquet")
    assert "has no grouped heads" not in capsys.readouterr().out
    sweep("kv_group", "hydra.run.dir=there", model="tiny_gpt2")
    assert "tiny_gpt2 has no grouped heads: every KV group is one head" in capsys.readouterr().out
    by_group = pd.read_parquet("there/effects.parquet")
    assert by_group["head"].isna().all()
    assert by_group["kv_group"].tolist() == by_head["head"].tolist()
    assert (by_group["ablated"] == by_head["ablated"]).all()
    sweep("kv_group", "hydra.run.dir=grouped")
    assert "has no grouped heads" not in capsys.readouterr().out


def test_a_set_of_many_heads_takes_several_lines_in_a_figure():
    short = ["L5H1", "L5 but H1", "L5H1+L6H2"]
    assert list(map(wrapped, short)) == short
    heads = [f"L{layer}H{head}" for layer in range(3) for head in range(8)]
    lines = wrapped("+".join(heads)).split("\n")
    assert len(lines) == 4
    assert "".join(lines) == "+".join(heads)
    assert max(map(len, lines)) <= 40
