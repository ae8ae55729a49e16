"""Tables of pairs of heads: what was measured beside what it is to be compared with.

A number such as js = 0.1 says little: how alike are heads anyway? Each pair stands beside

    permuted        the same two heads, each with its rows and outputs shuffled among positions that
                    see as many keys (Seen.permuted), and its subspaces turned at random: what is
                    left without agreement about this text, or between these weights
    random_weights  pairs of heads as many layers apart in a model of the same shape that has
                    learned nothing; its heads look about evenly, hence all alike
    other_half      the same pair on the other half of the documents: no null, but how far the
                    number moves with the text

`null_mean` is the mean of these. `null_p95` is where the 5 % that are most alike begin: of another
draw, as far as the draws tell (Student's prediction bound: mean ± t s √(1 + 1/n)); of the random
pairs; and for the other half, its value and the 95th percentile of how far the site's pairs move.
Of distances (js, tv) that is a low number, of the other measures a high one. So 5 % of pairs are
beyond it by chance.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.heads import HEAD, Head, Site, from_table
from interp.redundancy.similarity import DISTANCES, Measured

HEAD_2 = [f"{name}_2" for name in HEAD]
PAIR = [*HEAD, *HEAD_2]
KEY = [*PAIR, "measure"]
OBSERVED, PERMUTED = "observed", "permuted"
RANDOM_WEIGHTS, OTHER_HALF, RESAMPLED = "random_weights", "other_half", "resampled"
SEARCHED = (OBSERVED, PERMUTED, RANDOM_WEIGHTS)
"""Where a head's nearest twin is looked for."""
NULL = ["null_name", "null_mean", "null_p95"]
TAIL = 0.95


def pairs(site: Site, measured: Mapping[str, Measured]) -> pd.DataFrame:
    """List all pairs of heads of a site.

    Returns:
        One line a pair and measure: `site, layer, head, site_2, layer_2, head_2, measure, value,
        n`; the first head has the lower address. Undefined values have no line.
    """
    layer, head = np.divmod(np.arange(site.n_layers * site.n_heads), site.n_heads)
    first, second = np.triu_indices(len(layer), 1)
    place = pd.DataFrame(
        {
            "site": site.name,
            "layer": layer[first],
            "head": head[first],
            "site_2": site.name,
            "layer_2": layer[second],
            "head_2": head[second],
        }
    )
    frames = [
        place.assign(measure=name, value=value[first, second], n=n[first, second])
        for name, (value, n) in measured.items()
    ]
    return pd.concat(frames, ignore_index=True).dropna(subset="value", ignore_index=True)


def heads(lines: pd.DataFrame) -> list[Head]:
    """List the heads that are in any pair."""
    places = pd.concat([lines[HEAD], lines[HEAD_2].set_axis(HEAD, axis=1)]).drop_duplicates()
    return sorted(from_table(places))


def square(lines: pd.DataFrame, among: Sequence[Head]) -> Float[np.ndarray, "head head"]:
    """Lay the values of the pairs of some heads out as head x head.

    Args:
        lines: One line a pair.
        among: The heads.

    Returns:
        The symmetric matrix: 0 on the diagonal, NaN where there is no line.
    """
    number = {(head.site, head.layer, head.head): place for place, head in enumerate(among)}
    first, second = (
        np.array([number.get(p, -1) for p in lines[names].itertuples(index=False, name=None)], int)
        for names in (HEAD, HEAD_2)
    )
    known = (first >= 0) & (second >= 0)
    first, second, value = first[known], second[known], lines["value"].to_numpy()[known]
    matrix = np.full((len(among), len(among)), np.nan)
    np.fill_diagonal(matrix, 0.0)
    matrix[first, second] = matrix[second, first] = value
    return matrix


def similarity(rows: pd.DataFrame) -> pd.DataFrame:
    """Put every pair beside each of its nulls.

    Args:
        rows: As `pairs`, with what they were measured on, `source` (see the module), and the number
            of the `draw`.

    Returns:
        One line a pair, measure and null: `site, layer, head, site_2, layer_2, head_2, measure,
        value, null_name, null_mean, null_p95`.
    """
    distance = ["site", "measure", "distance"]
    rows = rows.assign(distance=(rows["layer_2"] - rows["layer"]).abs())
    of = dict(list(rows.groupby("source")))
    observed, nulls = of[OBSERVED], {}
    if PERMUTED in of:
        nulls[PERMUTED] = observed.merge(_drawn(of[PERMUTED], KEY), on=KEY, how="left")
    if RANDOM_WEIGHTS in of:
        null = _pooled(of[RANDOM_WEIGHTS], distance)
        nulls[RANDOM_WEIGHTS] = observed.merge(null, on=distance, how="left")
    if OTHER_HALF in of:
        nulls[OTHER_HALF] = observed.merge(_elsewhere(observed, of[OTHER_HALF]), on=KEY)
    return _stacked(nulls)[[*KEY, "value", *NULL]]


def _stacked(nulls: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Put the lines of each null below each other."""
    frames = [lines.assign(null_name=name) for name, lines in nulls.items()]
    return pd.concat(frames, ignore_index=True)


def _drawn(lines: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Describe the draws of each group, and bound what another would give."""
    found = lines.groupby(list(by), sort=False)["value"].agg(["mean", "std", "size"]).reset_index()
    n = found["size"]
    reach = stats.t.ppf(TAIL, n - 1) * found["std"] * np.sqrt(1 + 1 / n)
    tail = found["mean"] + _sign(found["measure"]) * reach
    return found[list(by)].assign(null_mean=found["mean"], null_p95=tail)


def _pooled(lines: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Describe the pairs of each group."""
    alike = lines.assign(alike=_sign(lines["measure"]) * lines["value"])
    groups = alike.groupby(list(by), sort=False)["alike"]
    found = pd.DataFrame({"mean": groups.mean(), "tail": groups.quantile(TAIL)}).reset_index()
    sign = _sign(found["measure"])
    return found[list(by)].assign(null_mean=sign * found["mean"], null_p95=sign * found["tail"])


def _elsewhere(observed: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Say of each pair what it is on other text, and how far it moves at most, as pairs go."""
    both = observed[[*KEY, "value"]].merge(other[[*KEY, "value"]], on=KEY, suffixes=("", "_other"))
    moved = (both["value"] - both["value_other"]).abs()
    reach = moved.groupby([both["site"], both["measure"]]).transform("quantile", TAIL)
    tail = both["value_other"] + _sign(both["measure"]) * reach
    return both[KEY].assign(null_mean=both["value_other"], null_p95=tail)


def _sign(measure: pd.Series) -> pd.Series:
    """Say in which direction of a measure heads are more alike: -1 for distances."""
    return 1.0 - 2.0 * measure.isin(list(DISTANCES))


def twins(rows: pd.DataFrame) -> pd.DataFrame:
    """Find the head that is most like each head.

    The nearest of many is near by chance too, so it is compared with the nearest of each draw in
    which heads are shuffled (`permuted`), with the nearest twins of all heads of the site in a
    model that has learned nothing (`random_weights`), and with the same pair on the other half of
    the documents.

    Args:
        rows: As for `similarity`.

    Returns:
        One line a head, measure and null: `site, layer, head, measure, twin, site_2, layer_2,
        head_2, value, n, is_mutual, null_name, null_mean, null_p95`; `twin` is the other head's
        address, and `is_mutual` says whether this head is its twin's twin.
    """
    key = [*HEAD, "measure"]
    of = dict(list(rows.groupby("source")))
    best = {source: nearest(of[source]) for source in SEARCHED if source in of}
    observed = best[OBSERVED]
    named = list(map(str, from_table(observed, HEAD_2)))
    there = observed[[*HEAD_2, *HEAD, "measure"]].set_axis([*PAIR, "measure"], axis=1)
    mutual = observed[KEY].merge(there, on=KEY, how="left", indicator=True)["_merge"] == "both"
    observed = observed.assign(twin=named, is_mutual=mutual.to_numpy())
    nulls = {}
    if PERMUTED in best:
        nulls[PERMUTED] = observed.merge(_drawn(best[PERMUTED], key), on=key, how="left")
    if RANDOM_WEIGHTS in best:
        by = ["site", "measure"]
        null = _pooled(best[RANDOM_WEIGHTS], by)
        nulls[RANDOM_WEIGHTS] = observed.merge(null, on=by, how="left")
    if OTHER_HALF in of:
        elsewhere = doubled(_elsewhere(of[OBSERVED], of[OTHER_HALF]))
        nulls[OTHER_HALF] = observed.merge(elsewhere, on=KEY)
    columns = [*HEAD, "measure", "twin", *HEAD_2, "value", "n", "is_mutual", *NULL]
    return _stacked(nulls)[columns]


def nearest(rows: pd.DataFrame) -> pd.DataFrame:
    """Find, for each head, measure and draw, the pair that is most alike; of equals the first."""
    frames = []
    for _, lines in rows.groupby("measure", sort=False):
        both = doubled(lines)
        alike = _sign(both["measure"]) * both["value"]
        both = both.assign(alike=alike).sort_values(PAIR, kind="stable", ignore_index=True)
        best = both.groupby(["draw", *HEAD], sort=False)["alike"].idxmax()
        frames.append(both.loc[best])
    return pd.concat(frames, ignore_index=True)


def doubled(rows: pd.DataFrame) -> pd.DataFrame:
    """List each pair from both sides."""
    swapped = dict(zip([*HEAD, *HEAD_2], [*HEAD_2, *HEAD], strict=True))
    return pd.concat([rows, rows.rename(columns=swapped)], ignore_index=True)


def agreement(rows: pd.DataFrame, *, n_draws: int, seed: int) -> pd.DataFrame:
    """Ask whether measures agree on which heads are alike, with each other and on other text.

    Spearman's rank correlation over pairs of heads, after turning distances around so that it is
    positive where the two agree; pairs share heads, so it is compared with what comes out when the
    heads of the one are exchanged at random (Mantel 1967, Cancer Research 27: 209). Bian et al.
    (2021) ask the same of two corpora.

    Args:
        rows: As for `similarity`.
        n_draws: Exchanges.
        seed: Where they come from.

    Returns:
        One line a site and pair of measures: `site, measure, measure_2, other` (`same_text`, or
        `other_half` for a measure and itself), `spearman, null_mean, null_p95, n` (pairs).
    """
    found = []
    rows = rows[rows["source"].isin([OBSERVED, OTHER_HALF])]
    rows = rows.assign(value=_sign(rows["measure"]) * rows["value"])
    for site, lines in rows.groupby("site"):
        every = heads(lines)
        of = {
            source: {name: square(part, every) for name, part in by.groupby("measure", sort=False)}
            for source, by in lines.groupby("source")
        }
        names = list(of[OBSERVED])
        compared = [
            (one, two, "same_text", of[OBSERVED][two])
            for place, one in enumerate(names)
            for two in names[place + 1 :]
        ]
        compared += [(one, one, OTHER_HALF, other) for one, other in of.get(OTHER_HALF, {}).items()]
        for one, two, text, other in compared:
            value, null, n = mantel(of[OBSERVED][one], other, n_draws=n_draws, seed=seed)
            found.append((site, one, two, text, value, null.mean(), np.quantile(null, TAIL), n))
    columns = ["site", "measure", "measure_2", "other", "spearman", "null_mean", "null_p95", "n"]
    return pd.DataFrame(found, columns=columns).dropna(subset="spearman", ignore_index=True)


def mantel(
    first: Float[np.ndarray, "head head"],
    second: Float[np.ndarray, "head head"],
    *,
    n_draws: int,
    seed: int,
) -> tuple[float, Float[np.ndarray, " draw"], int]:
    """Correlate the pairs of two matrices by rank, and again with the heads of one exchanged.

    Returns:
        Spearman's correlation (NaN for fewer than three pairs, or where one matrix is constant),
        that of each draw, and the pairs that both matrices have.
    """
    upper = np.triu_indices(len(first), 1)
    known = ~np.isnan(first[upper]) & ~np.isnan(second[upper])
    n, rng = int(known.sum()), np.random.default_rng(seed)
    ranks = []
    for matrix in (first, second):
        filled = np.zeros(matrix.shape)
        values = stats.rankdata(matrix[upper][known])
        spread = values.std()
        if n < 3 or spread == 0:
            return np.nan, np.full(n_draws, np.nan), n
        filled[upper[0][known], upper[1][known]] = (values - values.mean()) / spread
        ranks.append(filled + filled.T)  # (0, the mean, where there is no pair)
    a, b = ranks
    draws = [rng.permutation(len(first)) for _ in range(n_draws)]
    null = [float((a * b[np.ix_(draw, draw)]).sum() / 2 / n) for draw in draws]
    return float((a * b).sum() / 2 / n), np.array(null), n
