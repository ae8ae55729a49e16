"""Scores and roles: tables made by hand, where turning one condition turns the outcome."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from interp import plots, statistics
from interp.patterns.classify import Thresholds, roles
from interp.patterns.observe import KEYS
from interp.patterns.scores import scores


# ------------------------------------------------------------------ statistics
def test_weights_are_as_good_as_examples_written_out_so_many_times():
    rng = np.random.default_rng(0)
    values, clusters, weights = rng.normal(size=(4, 20)), np.arange(20) % 6, rng.integers(1, 5, 20)
    values[1, ::3] = np.nan
    values[2, clusters > 0] = np.nan
    found = statistics.cluster_t(values, clusters, level=0.9, weights=weights.astype(np.float64))
    many = statistics.cluster_t(
        np.repeat(values, weights, axis=1), np.repeat(clusters, weights), level=0.9
    )
    for name in ("mean", "se", "low", "high", "n_clusters"):
        np.testing.assert_allclose(getattr(found, name), getattr(many, name), rtol=1e-12)
    doubled = statistics.cluster_t(values, clusters, level=0.9, weights=2.0 * weights)
    np.testing.assert_allclose(doubled.low, found.low, rtol=1e-12)


def test_p_is_that_of_scipy_s_t_test_for_clusters_of_one():
    values = np.random.default_rng(1).normal(0.3, 1, size=(6, 15))
    values[5, 9:] = np.nan
    p = statistics.p_value(statistics.cluster_t(values, np.arange(15), level=0.95))
    wanted = stats.ttest_1samp(values, 0, axis=1, nan_policy="omit").pvalue
    np.testing.assert_allclose(p, wanted, rtol=1e-9)


def test_p_without_spread_or_without_clusters():
    values = np.array([[0.0, 0, 0], [1, 1, 1], [1, np.nan, np.nan]])
    p = statistics.p_value(statistics.cluster_t(values, np.arange(3), level=0.95))
    np.testing.assert_array_equal(p, [1, 0, np.nan])


def test_p_is_at_the_level_where_the_interval_touches_0():
    values, clusters = np.random.default_rng(2).normal(size=(5, 12)), np.arange(12) % 5
    p = statistics.p_value(statistics.cluster_t(values, clusters, level=0.95))
    touching = statistics.cluster_t(values, clusters, level=1 - p)
    np.testing.assert_allclose(np.minimum(abs(touching.low), abs(touching.high)), 0, atol=1e-9)


# ------------------------------------------------------------------ scores
def seen(feature, lines, *, role="syntactic", site="attn", **same) -> pd.DataFrame:
    """Note observations: `cluster split n`, then what heads and rules scored."""
    table = pd.DataFrame(lines).assign(
        source="text", example=range(len(lines)), site=site, role=role, feature=feature, **same
    )
    if "subset" not in table:
        table["subset"] = "all"
    measures = [name for name in table if name not in KEYS]
    return table[KEYS + measures].astype({name: np.float32 for name in measures})


def scored(*tables) -> pd.DataFrame:
    return scores(pd.concat(tables, ignore_index=True), model="m", corpus="c", level=0.95)


def line(cluster, split, n, *heads, **rules) -> dict:
    values = {f"L{number // 2}H{number % 2}": value for number, value in enumerate(heads)}
    named = {f"rule {name}": value for name, value in rules.items()}
    return {"cluster": cluster, "split": split, "n": float(n), **values, **named}


BY_HAND = [
    line("a", "select", 1, 1.0, 0.0, first_word=1.0, **{"offset:-1": 0.0, "offset:+2": 1.0}),
    line("b", "select", 3, 0.5, 1.0, first_word=0.0, **{"offset:-1": 0.5, "offset:+2": 0.0}),
    line("c", "report", 2, 1.0, 0.5, first_word=0.0, **{"offset:-1": 0.0, "offset:+2": 1.0}),
    line("c", "report", 2, 0.5, 0.5, first_word=0.5, **{"offset:-1": 0.5, "offset:+2": 1.0}),
    line("d", "report", 4, 1.0, 0.0, first_word=0.5, **{"offset:-1": 0.25, "offset:+2": 1.0}),
]


def test_scores_are_means_over_queries_and_margins_are_paired():
    table = scored(seen("obj:dep->head", BY_HAND))
    first = table[(table["head"] == 0) & (table["split"] == "report")].set_index("baseline_name")
    one = first.loc["offset:-1"]
    # 8 queries in 2 clusters: (2 · 1 + 2 · .5 + 4 · 1) / 8; differences 1, 0, .75
    assert (one["score"], one["baseline"], one["n"]) == pytest.approx((7 / 8, 0.25, 8))
    assert one["margin"] == pytest.approx((2 * 1 + 2 * 0 + 4 * 0.75) / 8)
    assert one["n_clusters"] == 2
    # clusters' sums are off by 2 - 4 · 5/8 and 3 - 4 · 5/8; se² = 2/1 · (.25 + .25) / 8²
    reach = 12.706205 * np.sqrt(2 * 0.5) / 8
    assert (one["margin_low"], one["margin_high"]) == pytest.approx((5 / 8 - reach, 5 / 8 + reach))
    assert one["p_value"] == pytest.approx(2 * stats.t.sf(5 / 8 / (1 / 8), 1))
    # scores: 3 - 4 · 7/8 and 4 - 4 · 7/8
    assert (one["ci_low"], one["ci_high"]) == pytest.approx((7 / 8 - reach, 7 / 8 + reach))
    other = first.loc["first_word"]
    assert (other["score"], other["baseline"]) == pytest.approx((7 / 8, 3 / 8))
    assert other["margin"] == pytest.approx((2 * 1 + 2 * 0 + 4 * 0.5) / 8)


def test_the_offset_kept_is_the_best_on_the_selecting_half_whatever_the_other_says():
    # on select offset:-1 answers 3 · .5 / 4, offset:+2 1 / 4; on report +2 is always right
    table = scored(seen("obj:dep->head", BY_HAND))
    assert set(table["baseline_name"]) == {"offset:-1", "first_word"}
    other = {"select": "report", "report": "select"}
    turned = scored(
        seen("obj:dep->head", [one | {"split": other[one["split"]]} for one in BY_HAND])
    )
    assert set(turned["baseline_name"]) == {"offset:+2", "first_word"}


def test_halves_are_scored_apart():
    table = scored(seen("obj:dep->head", BY_HAND))
    alone = scored(seen("obj:dep->head", BY_HAND[:2]))
    half = table[table["split"] == "select"].reset_index(drop=True)
    pd.testing.assert_frame_equal(half, alone)


def test_scores_are_what_pandas_finds_on_random_observations():
    rng = np.random.default_rng(0)
    lines = [
        line(
            f"{side} {rng.integers(6)}",
            side,
            rng.integers(1, 5),
            *rng.random(4),
            first_word=rng.random(),
        )
        for side in rng.choice(["select", "report"], 60)
    ]
    table = scored(seen("obj:dep->head", lines))
    long = pd.DataFrame(lines).melt(["cluster", "split", "n", "rule first_word"], var_name="name")
    long["margin"] = long["value"] - long["rule first_word"]
    for (side, name), part in long.groupby(["split", "name"]):
        place = [side, int(name[1]), int(name[3])]
        one = table.set_index(["split", "layer", "head"]).loc[*place]
        ends = {
            "value": (one["score"], one["ci_low"]),
            "margin": (one["margin"], one["margin_low"]),
        }
        for kind, (mean, low) in ends.items():
            weighted = part[kind] * part["n"]
            assert mean == pytest.approx(weighted.sum() / part["n"].sum(), abs=1e-6)
            off = (weighted - mean * part["n"]).groupby(part["cluster"]).sum()
            n = len(off)
            se = np.sqrt(n / (n - 1) * (off**2).sum()) / part["n"].sum()
            assert low == pytest.approx(mean - stats.t.ppf(0.975, n - 1) * se, abs=1e-6)
            assert one["n_clusters"] == n


def test_which_rules_decide_and_which_are_only_shown():
    def gating(feature, role, **rules):
        lines = [line(str(k), side, 1, 0.5, **rules) for side in ("select", "report") for k in "ab"]
        table = scored(seen(feature, lines, role=role))
        return dict(zip(table["baseline_name"], table["gating"], strict=True))

    rules = {"offset:-1": 0.1, "first_word": 0.2, "nearest_pos": 0.9}
    assert gating("obj:dep->head", "syntactic", **rules) == {
        "offset:-1": True,
        "first_word": True,
        "nearest_pos": False,
    }
    assert gating("uuas:mst", "syntactic", right_branching=0.4, random=0.2) == {
        "right_branching": True,
        "random": False,
    }
    assert gating("induction", "token", uniform=0.1) == {"uniform": True}
    for feature, role in [
        ("copying", "token"),
        ("rare", "token"),
        ("antecedent:personal", "pronoun"),
        ("entropy", "description"),
    ]:
        assert gating(feature, role, uniform=0.1) == {"uniform": False}
    [(name, decides)] = gating("reach:5", "token").items()
    assert pd.isna(name)
    assert not decides


def test_lines_without_a_rule_have_a_score_and_no_margin():
    lines = [line("a", "report", 2, 0.5), line("b", "report", 2, 1.0)]
    [one] = scored(seen("reach:5", lines, role="token")).itertuples()
    assert (one.score, one.n, one.n_clusters) == (0.75, 4, 2)
    assert np.isnan([one.baseline, one.margin, one.margin_low, one.p_value]).all()


def test_what_nearest_pos_gets_wrong_and_shares_of_attention_have_lines_of_their_own():
    def lines(n, one, other, **rules):
        return [line("a", "report", n, one, **rules), line("b", "report", n, other, **rules)]

    whole = lines(2, 0.5, 1.0, first_word=0.0, nearest_pos=0.5, **{"offset:-1": 0.0})
    hard = lines(1, 0.0, 1.0, first_word=0.0, nearest_pos=0.0, **{"offset:-1": 0.0})
    mass = lines(2, 0.25, 0.5, uniform=0.125)
    table = scored(
        seen("obj:dep->head", whole),
        seen("obj:dep->head", hard, subset="pos_wrong"),
        seen("obj:dep->head", mass, subset="mass"),
    ).set_index("baseline_name")
    assert table["score"].to_dict() == {
        "first_word": 0.75,
        "nearest_pos": 0.75,
        "pos_wrong": 0.5,
        "mass": 0.375,
    }
    assert table["margin"].to_dict() == {
        "first_word": 0.75,
        "nearest_pos": 0.25,
        "pos_wrong": 0.5,
        "mass": 0.25,
    }
    assert table["n"].to_dict() == {"first_word": 4, "nearest_pos": 4, "pos_wrong": 2, "mass": 4}
    assert table.index[table["gating"]].tolist() == ["first_word", "mass"]


def test_a_rule_that_some_passages_lack_is_compared_on_the_others():
    """`subject` says nothing where there is no tree."""
    lines = [
        line("a", "report", 2, 1.0, first_word=0.5, subject=0.25),
        line("b", "report", 4, 0.5, first_word=0.0, subject=1.0),
        line("c", "report", 4, 0.0, first_word=0.5),
    ]
    table = scored(seen("antecedent", lines, role="pronoun")).set_index("baseline_name")
    assert (table["score"] == 0.4).all()
    assert (table["n"] == 10).all()
    assert table["baseline"].to_dict() == pytest.approx({"first_word": 0.3, "subject": 4.5 / 6})
    margins = {"first_word": 0.1, "subject": (2 * 0.75 - 4 * 0.5) / 6}
    assert table["margin"].to_dict() == pytest.approx(margins)


def test_layers_that_were_measured_apart_are_scored_apart():
    """As are those of different windows: each line has one layer's heads, and laws of its own."""
    near = [line(c, "report", n, 0.5, 0.25, uniform=0.5) for c, n in (("a", 1), ("b", 3))]
    far = [line(c, "report", n, 0.0, 0.0, 0.75, 0.5, uniform=0.25) for c, n in (("a", 2), ("b", 3))]
    far = [{k: v for k, v in one.items() if not k.startswith("L0")} for one in far]
    both = scored(seen("entropy", near + far, role="description"))
    apart = [scored(seen("entropy", lines, role="description")) for lines in (near, far)]
    pd.testing.assert_frame_equal(both, pd.concat(apart, ignore_index=True))
    assert both["n"].tolist() == [4, 4, 5, 5]
    assert both["baseline"].tolist() == [0.5, 0.5, 0.25, 0.25]


def test_sites_may_have_different_numbers_of_heads():
    lines = [line(side, side, 1, 0.5, 0.25, uniform=0.1) for side in ("select", "report")]
    few = [{k: v for k, v in one.items() if k != "L0H1"} for one in lines]
    table = scored(
        seen("first_token", lines, role="positional", site="encoder_attn"),
        seen("first_token", few, role="positional", site="decoder_self_attn"),
    )
    assert table.groupby("site")["head"].unique().map(list).to_dict() == {
        "encoder_attn": [0, 1],
        "decoder_self_attn": [0],
    }


# ------------------------------------------------------------------ roles
LIMITS = Thresholds(
    score={"offset": 0.9, "induction": 0.3},
    margin={"syntactic": 0.1},
    mass=1.5,
    min_n=20,
    min_clusters=5,
    fdr=0.05,
)
GOOD = {
    "score": 0.6,
    "baseline": 0.4,
    "margin": 0.2,
    "margin_low": 0.1,
    "margin_high": 0.3,
    "p_value": 0.001,
    "n": 40,
    "n_clusters": 8,
    "gating": True,
}


RULES = ["offset:-1", "first_word", "mass", "nearest_pos"]


def table_of(*changes, feature="obj:dep->head", role="syntactic", head=0) -> pd.DataFrame:
    """Score one head that is good enough but for the changes: (split, rule, column, value)."""
    rows = []
    for split, rule in product(["select", "report"], RULES):
        row = GOOD | {"split": split, "baseline_name": rule, "gating": rule != "nearest_pos"}
        if rule == "mass":
            row |= {"score": 0.3, "baseline": 0.2, "margin": 0.1, "margin_low": 0.01}
        for at, who, column, value in changes:
            if at in (split, "both") and who in (rule, "all"):
                row[column] = value
        rows.append(row)
    facts = {"model": "m", "corpus": "c", "site": "attn", "layer": 0, "head": head}
    return pd.DataFrame(rows).assign(role=role, feature=feature, **facts)


def judged(*changes, **facts) -> pd.DataFrame:
    return roles(table_of(*changes, **facts), LIMITS)


def test_a_head_with_a_role_by_hand():
    strongest = [
        ("report", "first_word", "margin", 0.15),
        ("report", "first_word", "baseline", 0.45),
    ]
    found = judged(*strongest)
    [one] = found.to_dict("records")
    assert one == {
        "model": "m",
        "corpus": "c",
        "site": "attn",
        "layer": 0,
        "head": 0,
        "role": "syntactic",
        "feature": "obj:dep->head",
        "score": 0.6,
        "baseline": 0.45,
        "baseline_name": "first_word",
        "margin": 0.15,  # the strongest rule
        "margin_low": 0.1,
        "margin_high": 0.3,
        "q_value": 0.001,
        "n": 40,
        "note": "",
    }


@pytest.mark.parametrize(
    "change",
    [
        ("select", "offset:-1", "margin", 0.09),
        ("report", "first_word", "margin", 0.09),
        ("report", "offset:-1", "margin_low", -0.01),
        ("report", "mass", "margin_low", -0.01),
        ("report", "mass", "score", 0.272),
        ("select", "mass", "score", 0.272),
        ("select", "first_word", "n", 19),
        ("report", "all", "n", 19),
        ("select", "all", "n_clusters", 4),
        ("report", "mass", "n_clusters", 4),
        ("report", "first_word", "p_value", 0.06),
        ("report", "mass", "p_value", 0.06),
        ("report", "offset:-1", "margin", np.nan),
    ],
    ids=lambda change: " ".join(map(str, change)),
)
def test_one_condition_that_fails_takes_the_role_away(change):
    assert len(judged()) == 1
    assert judged(change).empty


@pytest.mark.parametrize(
    "change",
    [
        ("both", "nearest_pos", "margin", -0.5),
        ("both", "nearest_pos", "n", 1),
        ("select", "all", "margin_low", -0.05),  # selecting does not judge
        ("select", "all", "p_value", 0.9),
        ("both", "mass", "margin", 0.0),  # it is the odds that count
        ("both", "mass", "score", 0.273),  # 3 to 8, where even attention has 2 to 8
        ("both", "offset:-1", "score", 0.11),
        ("both", "all", "n", 20),
        ("both", "all", "n_clusters", 5),
        ("report", "first_word", "margin", 0.1),
        ("report", "all", "p_value", 0.05),
    ],
    ids=lambda change: " ".join(map(str, change)),
)
def test_what_decides_nothing_and_what_is_just_enough_takes_no_role_away(change):
    assert len(judged(change)) == 1


@pytest.mark.parametrize(
    ("split", "score", "n"),
    [("both", 0.3, 1), ("both", 0.29, 0), ("select", 0.29, 0), ("report", 0.29, 0)],
)
def test_a_score_is_asked_for_by_the_beginning_of_the_feature_s_name(split, score, n):
    change = (split, "all", "score", score)
    small = ("both", "all", "margin", 0.01)  # no margin is asked of token heads
    assert len(judged(change, small, feature="induction", role="token")) == n
    assert judged(change, small, feature="offset:-1", role="positional").empty
    assert len(judged(change, small, feature="duplicate", role="token")) == 1


def test_a_rule_of_the_right_part_of_speech_that_does_as_well_explains_a_role():
    assert judged(("report", "nearest_pos", "baseline", 0.6))["note"].tolist() == ["pos_explains"]
    assert judged(("report", "nearest_pos", "baseline", 0.59))["note"].tolist() == [""]
    assert judged(("select", "nearest_pos", "baseline", 0.99))["note"].tolist() == [""]


def test_a_head_may_have_several_roles_and_others_none():
    changed = ("report", "offset:-1", "margin", 0.15)
    found = roles(
        pd.concat(
            [
                table_of(),
                table_of(changed, feature="amod:dep->head"),
                table_of(feature="induction", role="token"),
                table_of(head=1),
                table_of(("report", "all", "margin", 0.0), head=2),
                table_of(("select", "all", "margin", 0.0), head=3),
            ]
        ),
        LIMITS,
    )
    assert found[["head", "feature"]].to_numpy().tolist() == [
        [0, "obj:dep->head"],
        [1, "obj:dep->head"],
        [0, "amod:dep->head"],  # of a role the strongest margins stand first
        [0, "induction"],
    ]


def test_the_rate_of_false_discoveries_is_held_among_the_heads_selected():
    def p(value, **facts):
        return table_of(("report", "offset:-1", "p_value", value), **facts)

    one = p(0.03)
    assert roles(one, LIMITS)["q_value"].tolist() == pytest.approx([0.03])
    two = pd.concat([one, p(0.5, head=1)])  # 2 · .03 is too much
    assert roles(two, LIMITS).empty
    better = pd.concat([one, p(0.04, feature="amod:dep->head")])
    assert roles(better, LIMITS)["q_value"].tolist() == pytest.approx([0.04, 0.04])
    not_selected = table_of(("select", "all", "margin", 0.0), head=1)
    assert len(roles(pd.concat([one, not_selected]), LIMITS)) == 1
    failing = table_of(("report", "all", "p_value", 0.9), ("report", "all", "margin", 0.0), head=1)
    assert roles(pd.concat([one, failing]), LIMITS).empty  # it was selected, and so it counts


def test_random_hits_give_roles_no_more_often_than_the_level_and_real_ones_do():
    """39 heads and a rule are right by chance, and err alike within a cluster; one head is good."""
    rng, limits = np.random.default_rng(0), replace(LIMITS, margin={"syntactic": 0.02}, min_n=1)
    named = {0.05: [], 1.0: []}
    for _ in range(20):
        hits = rng.random((120, 40)) < rng.uniform(0.1, 0.5, (30, 40)).repeat(4, axis=0)
        hits[:, 0] |= rng.random(120) < 0.6
        table = pd.DataFrame(hits.astype(float), columns=[f"L0H{n}" for n in range(40)])
        table = table.assign(cluster=np.arange(120) // 4, n=1.0)
        table["split"] = np.where(table["cluster"] % 2, "select", "report")
        table["rule offset:-1"] = (rng.random(120) < 0.3).astype(float)
        table = scored(seen("obj:dep->head", table.to_dict("records")))
        for fdr, lists in named.items():
            lists.append(roles(table, replace(limits, fdr=fdr))["head"])
    false = {fdr: np.mean([(heads > 0).any() for heads in lists]) for fdr, lists in named.items()}
    assert false[0.05] <= 0.1
    assert false[1.0] > 0.2  # what the intervals alone would do
    assert np.mean([(heads == 0).any() for heads in named[0.05]]) > 0.7


def test_a_star_in_the_figure_marks_the_head_that_has_the_role():
    table = pd.concat([table_of(), table_of(feature="amod:dep->head", head=1)])
    table = table.assign(ci_low=table["score"] - 0.1, ci_high=table["score"] + 0.1)
    found = roles(table, LIMITS)
    for shown, stars in (
        (found, [True, True]),
        (found[:1], [False, True]),
        (found[:0], [False] * 2),
    ):
        [axis] = plots.beside_rules(table, shown, min_n=20, title="").axes
        labels = [label.get_text() for label in axis.get_yticklabels()]
        assert ["★" in label for label in labels] == stars
    assert labels == ["amod:dep->head  L0H1", "obj:dep->head  L0H0"]


def test_no_heads_at_all_have_no_roles():
    assert roles(table_of(("both", "all", "gating", False)), LIMITS).empty
