"""From observations to scores: each head's mean on each feature, beside what simple rules score.

A score is the mean over queries, Σ n · value / Σ n; its margin over a rule is the mean of the
differences on the same queries. Intervals and p-values (of the margin being 0) are cluster-robust
(`interp.statistics.cluster_t`), separately for the examples that heads are selected on and those
that are reported on. Of the fixed offsets only the one that is best on `select` is kept.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from interp import statistics
from interp.patterns.observe import KEYS, MASS, POS_WRONG, RULE

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
    frames = [
        frame
        for (site, role, feature), group in observations.groupby(
            ["site", "role", "feature"], sort=False
        )
        for frame in _feature(group, str(role), str(feature), level)
        for frame in [frame.assign(site=site)]
    ]
    table = pd.concat(frames, ignore_index=True).assign(model=model, corpus=corpus)
    order = ["model", "corpus", "site", "layer", "head", "role", "feature", "score", "baseline"]
    order += ["baseline_name", "gating", "n", "ci_low", "ci_high", "split", "n_clusters"]
    return table[[*order, "margin", "margin_low", "margin_high", "p_value"]]


def _feature(group: pd.DataFrame, role: str, feature: str, level: float) -> Iterator[pd.DataFrame]:
    """Score all heads of a site on one feature."""
    rules = _rules(group[group["subset"] == "all"])
    decides = role != DESCRIPTION and not feature.startswith(UNNAMED)
    for split in SPLITS:
        for subset, names in (("all", rules), (POS_WRONG, ["nearest_pos"]), (MASS, ["uniform"])):
            part = group[(group["split"] == split) & (group["subset"] == subset)]
            if len(part):
                lines = _lines(part, names, level)
                if subset != "all":
                    lines["baseline_name"] = subset
                name = lines["baseline_name"].mask(lines["baseline_name"] == "")
                gates = decides & name.notna() & ~name.isin(COMPANIONS)
                yield lines.assign(
                    role=role, feature=feature, baseline_name=name, gating=gates, split=split
                )


def _rules(group: pd.DataFrame) -> list[str]:
    """List the rules of a feature, with one offset: the best on `select`."""
    said = group[[name for name in group if name.startswith(RULE)]].dropna(axis=1, how="all")
    names = [name.removeprefix(RULE) for name in said]
    offsets = [name for name in names if name.startswith("offset:")]
    chosen = group["split"] == "select"
    if not offsets or not chosen.any():
        return [name for name in names if name not in offsets]
    n = group.loc[chosen, "n"]
    rates = said.loc[chosen, [RULE + name for name in offsets]].mul(n, axis=0).sum() / n.sum()
    best = rates.idxmax().removeprefix(RULE)
    return [best, *(name for name in names if name not in offsets)]


def _lines(part: pd.DataFrame, rules: list[str], level: float) -> pd.DataFrame:
    """Score all heads, and take their margins over each rule: one line a rule and head."""
    heads = part.drop(columns=KEYS).filter(regex=r"^L\d+H\d+$").dropna(axis=1, how="all")
    values = heads.to_numpy(dtype=np.float64).T
    said = part[[RULE + rule for rule in rules]].to_numpy(dtype=np.float64).T
    clusters, weights = part["cluster"].to_numpy(), part["n"].to_numpy(dtype=np.float64)
    rows = [values, *(values - rule for rule in said)]
    found = statistics.cluster_t(np.concatenate(rows), clusters, level=level, weights=weights)
    p_value = statistics.p_value(found)
    n_heads, n_rules = len(values), len(rules) or 1
    of_score, of_margin = slice(0, n_heads), slice(n_heads, None)
    nothing = np.full(n_heads, np.nan)
    address = heads.columns.str.extract(r"L(\d+)H(\d+)").astype(int).to_numpy()
    margins = {
        "margin": found.mean[of_margin],
        "margin_low": found.low[of_margin],
        "margin_high": found.high[of_margin],
        "p_value": p_value[of_margin],
        "baseline": np.repeat(np.average(said, axis=1, weights=weights), n_heads),
    }
    return pd.DataFrame(
        {
            "layer": np.tile(address[:, 0], n_rules),
            "head": np.tile(address[:, 1], n_rules),
            "score": np.tile(found.mean[of_score], n_rules),
            "n": int(weights.sum()),
            "ci_low": np.tile(found.low[of_score], n_rules),
            "ci_high": np.tile(found.high[of_score], n_rules),
            "n_clusters": np.tile(found.n_clusters[of_score], n_rules),
            "baseline_name": np.repeat(np.array(rules or [""], dtype=object), n_heads),
            **{name: value if rules else nothing for name, value in margins.items()},
        }
    )
