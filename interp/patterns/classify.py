"""From scores to roles: which heads have earned a name?

Half of the examples select heads, the other half judges them. A head is selected for a role if it
passes the role's thresholds there. It has the role if on the other half it passes them again, beats
every gating rule with the whole interval of the margin above 0, and does so at a false-discovery
rate held among all heads selected (Benjamini & Hochberg 1995). It can have several roles, or none.

One gate is the same for all that is judged by where most attention goes (special tokens apart): the
odds that attention goes to the targets, share / (1 - share), must also be half as high again as if
it were even (`mass`). Without it a head that rests on the first token would be named after the last
crumbs that it leaves to words, and one whose attention is nearly even after the faintest of its
preferences. (In 15 planted models, heads of random weights that pass all else reach 1.4 times the
even odds on what they happen to prefer.)

    positional      offset:k             score ≥ 0.90    (Voita et al. 2019)
                    first_token          score ≥ 0.30    (Gu et al. 2025)
    token           induction, duplicate score ≥ 0.30
    syntactic       obj:dep->head, …     margin ≥ 0.10 over the best fixed offset (Voita et al.
                                         2019) and the sentence's first word
    pronoun         antecedent           margin ≥ 0.10 over the best fixed offset, first word,
                                         first noun, nearest noun and subject
    semantic        same:…, collocation  margin ≥ 0.10 over the best fixed offset, first word and
                                         nearest content word
    alignment       source_offset:k, monotone   score ≥ 0.90
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from interp import statistics
from interp.patterns.observe import MASS

HEAD = ["model", "corpus", "site", "layer", "head", "role", "feature"]
POS_EXPLAINS = "pos_explains"


@dataclass(frozen=True)
class Thresholds:
    """What a role takes."""

    score: Mapping[str, float]
    """By the beginning of a feature's name, up to `:`."""
    margin: Mapping[str, float]
    """By role."""
    mass: float
    """How many times as high as for even attention the odds must be that it goes to the targets."""
    min_n: int
    """Queries in each half, at least."""
    min_clusters: int
    fdr: float


def roles(scores: pd.DataFrame, limits: Thresholds) -> pd.DataFrame:
    """Find the heads with roles.

    Args:
        scores: As `interp.patterns.scores.scores` returns them.
        limits: The thresholds.

    Returns:
        One line a head and feature, strongest margin first: `model, corpus, site, layer, head,
        role, feature, score, baseline, baseline_name, margin, margin_low, margin_high, q_value, n,
        note`, on `report`, against the strongest of the gating rules. `note` is `pos_explains`
        where the nearest word of the target's part of speech does as well.
    """
    gating = scores[scores["gating"]]
    selected = _passing(gating[gating["split"] == "select"], limits, clear=False)
    reported = gating[gating["split"] == "report"]
    reported = reported.merge(selected[HEAD], on=HEAD)
    on_target = reported[reported["baseline_name"] != MASS]
    strongest = on_target.sort_values("margin").drop_duplicates(HEAD)
    worst = reported.groupby(HEAD)["p_value"].max().rename("worst").reset_index()
    strongest = strongest.merge(worst, on=HEAD)
    strongest["q_value"] = statistics.benjamini_hochberg(strongest["worst"].to_numpy(np.float64))
    found = strongest.merge(_passing(reported, limits, clear=True)[HEAD], on=HEAD)
    found = found[found["q_value"] <= limits.fdr]
    nearest = scores[(scores["baseline_name"] == "nearest_pos") & (scores["split"] == "report")]
    found = found.merge(nearest[[*HEAD, "baseline"]], on=HEAD, how="left", suffixes=("", "_pos"))
    found["note"] = np.where(found["baseline_pos"] >= found["score"], POS_EXPLAINS, "")
    columns = ["score", "baseline", "baseline_name", "margin", "margin_low", "margin_high"]
    found = found[[*HEAD, *columns, "q_value", "n", "note"]]
    return found.sort_values(["role", "margin"], ascending=[True, False], ignore_index=True)


def _passing(lines: pd.DataFrame, limits: Thresholds, *, clear: bool) -> pd.DataFrame:
    """List the heads and features that pass on all their lines, one line for each rule.

    Args:
        lines: Scores against gating rules, on one half.
        limits: The thresholds.
        clear: Whether the intervals of all margins must be above 0.
    """
    kind = lines["feature"].str.split(":").str[0]
    enough = lines["score"] >= kind.map(limits.score).astype(float).fillna(-np.inf)
    enough &= lines["margin"] >= lines["role"].map(limits.margin).astype(float).fillna(-np.inf)
    share, even = lines["score"], lines["baseline"]
    is_much = share * (1 - even) >= limits.mass * even * (1 - share)
    enough = enough.mask(lines["baseline_name"] == MASS, is_much)
    enough &= (lines["margin_low"] > 0) | (not clear)
    enough &= (lines["n"] >= limits.min_n) & (lines["n_clusters"] >= limits.min_clusters)
    passed = lines.assign(passed=enough).groupby(HEAD, as_index=False)["passed"].all()
    return passed[passed["passed"]]
