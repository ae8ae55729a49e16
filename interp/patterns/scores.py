"""From observations to scores: each head's mean on each feature, beside what simple rules score.

A score is the mean over queries, Σ n · value / Σ n; its margin over a rule is the mean of the
differences on the same queries. Intervals and p-values (of the margin being 0) are cluster-robust
(`interp.statistics.cluster_t`), separately for the examples that heads are selected on and those
that are reported on. They are Student's, so that of a share may reach below 0 or above 1. Of the
fixed offsets only the one that is best on `select` is kept. A rule that cannot be asked in some
passages (`subject` without a tree) has its baseline and margins on the others.
"""

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from interp import statistics
from interp.patterns.observe import MASS, POS_WRONG, RULE

HEAD_NAME = re.compile(r"L(\d+)H(\d+)")
SPLITS = ("select", "report")
DESCRIPTION = "description"
UNNAMED = ("antecedent:", "reach", "rare", "copying")
"""Features, or beginnings of their names, that are shown beside others and decide nothing."""
COMPANIONS = ("nearest_pos", POS_WRONG, "random")
"""Rules that are shown and decide nothing."""


def scores(observations: pd.DataFrame, *, model: str, corpus: str, level: float) -> pd.DataFrame:
    """Score every head of a model on every feature.

    Args:
        observations: As `interp.patterns.observe.observe` returns them, of all batches.
        model: The model's name.
        corpus: The corpus' name.
        level: The intervals' level of confidence.

    Returns:
        One line a head, feature, split and rule: `model, corpus, site, layer, head, role, feature,
        score, baseline, baseline_name, gating, n, ci_low, ci_high, split` and `n_clusters, margin,
        margin_low, margin_high, p_value`. `ci_low, ci_high` bound the score; `gating` marks the
        rules that a role has to beat. Two lines have a score of their own: on `pos_wrong` it is
        that on the questions which nearest_pos answers wrongly, i.e. where that rule scores 0; on
        `mass` it is the share of attention that goes to the targets, and the baseline what even
        attention would put there. Without a rule, a line has no baseline and no margin.
    """
    lines: list[dict[str, np.ndarray]] = []
    for site, of_site in observations.groupby("site", sort=False):
        measured = of_site.columns[of_site.notna().any()]
        heads = [name for name in measured if HEAD_NAME.fullmatch(name)]
        for (role, feature), group in of_site.groupby(["role", "feature"], sort=False):
            for line in _feature(group, heads, str(role), str(feature), level):
                n = len(line["layer"])
                constant = {"site": site, "role": role, "feature": feature}
                lines.append(line | {name: np.full(n, value) for name, value in constant.items()})
    columns = {name: np.concatenate([line[name] for line in lines]) for name in lines[0]}
    table = pd.DataFrame(columns).assign(model=model, corpus=corpus)
    table["baseline_name"] = table["baseline_name"].mask(table["baseline_name"] == "")
    order = ["model", "corpus", "site", "layer", "head", "role", "feature", "score", "baseline"]
    order += ["baseline_name", "gating", "n", "ci_low", "ci_high", "split", "n_clusters"]
    return table[[*order, "margin", "margin_low", "margin_high", "p_value"]]


Lines = dict[str, Shaped[np.ndarray, " line"]]
"""Columns of a table."""


def _feature(
    group: pd.DataFrame, heads: list[str], role: str, feature: str, level: float
) -> Iterator[Lines]:
    """Score all heads of a site on one feature, for each half and subset."""
    split, subset = group["split"].to_numpy(), group["subset"].to_numpy()
    rules = _rules(group[subset == "all"])
    decides = role != DESCRIPTION and not feature.startswith(UNNAMED)
    for half in SPLITS:
        for name, asked in (("all", rules), (POS_WRONG, ["nearest_pos"]), (MASS, ["uniform"])):
            part = group[(split == half) & (subset == name)]
            if len(part):
                called = asked if name == "all" else [name]
                gates = [decides and rule not in COMPANIONS for rule in called]
                lines = _lines(part, heads, asked, level)
                yield lines | {
                    "baseline_name": np.repeat(np.array(called or [""], object), len(heads)),
                    "gating": np.repeat(gates or [False], len(heads)),
                    "split": np.full(len(lines["layer"]), half, object),
                }


def _rules(group: pd.DataFrame) -> list[str]:
    """List the rules of a feature, with one offset: the best on `select`."""
    names = [name for name in group if name.startswith(RULE) and group[name].notna().any()]
    rules = [name.removeprefix(RULE) for name in names]
    offsets = [name for name in rules if name.startswith("offset:")]
    others = [name for name in rules if name not in offsets]
    chosen = group["split"].to_numpy() == "select"
    if not offsets or not chosen.any():
        return others
    said = group[[RULE + name for name in offsets]].to_numpy(dtype=np.float64)[chosen]
    rates = np.average(said, axis=0, weights=group["n"].to_numpy()[chosen])
    return [offsets[int(rates.argmax())], *others]


def _lines(part: pd.DataFrame, heads: list[str], rules: list[str], level: float) -> Lines:
    """Score all heads, and take their margins over each rule: one line a rule and head."""
    values = part[heads].to_numpy(dtype=np.float64).T
    said = part[[RULE + rule for rule in rules]].to_numpy(dtype=np.float64).T
    clusters, weights = part["cluster"].to_numpy(), part["n"].to_numpy(dtype=np.float64)
    rows = [values, *(values - rule for rule in said)]
    found = statistics.cluster_t(np.concatenate(rows), clusters, level=level, weights=weights)
    n_heads, n_rules = len(heads), len(rules) or 1
    of_score, of_margin = slice(0, n_heads), slice(n_heads, None)
    address = np.array([re.findall(r"\d+", name) for name in heads], dtype=np.int64)
    margins = {
        "margin": found.mean[of_margin],
        "margin_low": found.low[of_margin],
        "margin_high": found.high[of_margin],
        "p_value": statistics.p_value(found)[of_margin],
        "baseline": np.ravel([_mean(rule + 0 * values, weights) for rule in said]),
    }
    return {
        "layer": np.tile(address[:, 0], n_rules),
        "head": np.tile(address[:, 1], n_rules),
        "score": np.tile(found.mean[of_score], n_rules),
        "n": np.tile((weights * ~np.isnan(values)).sum(axis=1).astype(int), n_rules),
        "ci_low": np.tile(found.low[of_score], n_rules),
        "ci_high": np.tile(found.high[of_score], n_rules),
        "n_clusters": np.tile(found.n_clusters[of_score], n_rules),
        **{name: value if rules else np.full(n_heads, np.nan) for name, value in margins.items()},
    }


def _mean(
    values: Float[np.ndarray, "head example"], weights: Float[np.ndarray, " example"]
) -> Float[np.ndarray, " head"]:
    """Average what was measured; NaN where nothing was."""
    with np.errstate(invalid="ignore"):
        return np.nansum(weights * values, axis=1) / (weights * ~np.isnan(values)).sum(axis=1)
