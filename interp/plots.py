"""Figures: a table in, a seaborn figure out, in one visual language.

Damage is drawn in colours that diverge from white at 0: red where removing a head makes the model
worse, blue where it makes it better.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy.spatial.distance import cdist

COLOURS = "RdBu_r"
SHARPNESS = 98
"""The percentile of |damage| at which colours are full, lest one head outshine the rest."""


def head_map(units: pd.DataFrame, *, column: str, title: str, label: str) -> Figure:
    """Draw a layer x head map of each site, in colours that diverge from 0.

    Args:
        units: One line a head or key/value group: `site, layer`, the column, and `value`.
        column: `head` or `kv_group`.
        title: The figure's title.
        label: What the colours mean, with the unit.
    """
    sites = sorted(set(units["site"]))
    maps = [
        units[units["site"] == site].pivot(index="layer", columns=column, values="value")
        for site in sites
    ]
    size = 1.5 + sum(0.42 * m.shape[1] + 1 for m in maps), 1.5 + 0.27 * max(map(len, maps))
    with sns.axes_style("white"):
        figure = Figure(figsize=(max(size[0], 5.5), max(size[1], 3)), layout="constrained")
        axes = figure.subplots(1, len(maps), squeeze=False)[0]
        for axis, site, matrix in zip(axes, sites, maps, strict=True):
            _heat(axis, matrix, units["value"], label if axis is axes[-1] else None)
            axis.set(title="" if len(sites) == 1 else site)
            axis.tick_params(rotation=0)
        figure.suptitle(title, fontsize="medium")
    return figure


def pair_map(units: pd.DataFrame, *, title: str, label: str) -> Figure:
    """Draw a head x head map of pairs, in colours that diverge from 0.

    Args:
        units: One line a pair: `name` (such as `L5H1+L6H2`) and `value`.
        title: The figure's title.
        label: What the colours mean, with the unit.
    """
    pairs = units["name"].str.split("+", expand=True)
    heads = list(dict.fromkeys([*pairs.sort_index()[0], *pairs.sort_index()[1]]))
    once = pd.DataFrame({"row": pairs[1], "column": pairs[0], "value": units["value"]})
    matrix = once.pivot(index="row", columns="column", values="value")
    matrix = matrix.reindex(index=heads[1:], columns=heads[:-1])
    side = 2.5 + min(0.22 * len(heads), 20)
    with sns.axes_style("white"):
        figure = Figure(figsize=(side + 1, side), layout="constrained")
        axis = figure.subplots()
        _heat(axis, matrix, units["value"], label)
        axis.set(xlabel="", ylabel="")
        figure.suptitle(title, fontsize="medium")
    return figure


def _heat(axis: Axes, matrix: pd.DataFrame, values: pd.Series, label: str | None) -> None:
    """Draw a matrix in the colours that all maps share; without a label, without a colour bar."""
    limit = float(np.nanpercentile(values.abs(), SHARPNESS)) or 1.0
    sns.heatmap(
        matrix,
        ax=axis,
        cmap=COLOURS,
        vmin=-limit,
        vmax=limit,
        linewidths=0.5,
        cbar=label is not None,
        cbar_kws={"label": label, "extend": "both"},
    )


def strongest(units: pd.DataFrame, *, title: str, label: str) -> Figure:
    """Draw some units, strongest first, with their intervals.

    Args:
        units: One line a unit: `name, value, low, high`.
        title: The figure's title.
        label: What the value means, with the unit.
    """
    colours = mpl.colormaps[COLOURS]
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(6, 1.2 + 0.28 * len(units)), layout="constrained")
        axis = figure.subplots()
        sns.scatterplot(units, x="value", y="name", ax=axis, color=colours(0.9), s=45, zorder=3)
        reach = units["value"] - units["low"], units["high"] - units["value"]
        axis.errorbar(
            units["value"],
            units["name"],
            xerr=np.clip([side.fillna(0) for side in reach], 0, None),
            fmt="none",
            ecolor=colours(0.8),
            capsize=3,
        )
        axis.axvline(0, color="0.4", linewidth=1)
        axis.set(xlabel=label, ylabel="", title=title)
        axis.title.set_fontsize("medium")
    return figure


RUNNERS = {
    "replay": "sweep (replay)",
    "batched_heads": "heads as one batch",
    "hf_loop": "Hugging Face loop",
    "bridge_loop": "TransformerBridge loop",
}
AXES = {"examples": "prompts", "tokens": "tokens a prompt", "layers": "blocks that run"}


def speed(table: pd.DataFrame, growth: pd.DataFrame, *, title: str) -> Figure:
    """Draw how many times faster than the bridge's loop each runner is, and how time grows.

    Args:
        table: One line a shape and runner: `examples, tokens, read, runner, ratio_to_bridge_loop`.
        growth: One line a point and runner: `axis, value, runner, seconds_per_head`.
        title: The figure's title.
    """
    read = table["read"].map({"last": "last position", "all": "loss"})
    shape = table["examples"].astype(str) + " × " + table["tokens"].astype(str) + "\n" + read
    colours = dict(zip(RUNNERS, mpl.colormaps[COLOURS]([0.9, 0.7, 0.3, 0.1]), strict=True))
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(14, 4), layout="constrained")
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[1, 1.1])[0]
        bars = left.subplots()
        sns.barplot(
            x=shape,
            y=table["ratio_to_bridge_loop"],
            hue=table["runner"],
            palette=colours,
            saturation=1,
            ax=bars,
        )
        for group in bars.containers:
            bars.bar_label(group, fmt="%.1f", fontsize="x-small")
        bars.axhline(1, color="0.4", linewidth=1)
        bars.set(
            xlabel="prompts × tokens, what is read", ylabel="times faster than the bridge loop"
        )
        legend = bars.get_legend()
        legend.set_title("")
        for text in legend.get_texts():
            text.set_text(RUNNERS[text.get_text()])
        panels = right.subplots(1, len(AXES), sharey=True)
        for axis, (name, label) in zip(panels, AXES.items(), strict=True):
            curves = growth[growth["axis"] == name]
            sns.lineplot(
                curves,
                x="value",
                y="seconds_per_head",
                hue="runner",
                palette=colours,
                marker="o",
                legend=False,
                ax=axis,
            )
            axis.set(xscale="log", yscale="log", xlabel=label, ylabel="seconds a head")
            ticks = sorted(set(curves["value"]))
            axis.set_xticks(ticks, list(map(str, ticks)))
            axis.minorticks_off()
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
        figure.suptitle(title, fontsize="medium")
    return figure


ROLE_COLOURS = {
    "pronoun": "#c44e52",
    "syntactic": "#55a868",
    "semantic": "#8172b3",
    "token": "#dd8452",
    "alignment": "#937860",
    "positional": "#4c72b0",
    "first token": "#8c8c8c",
}
"""From the most to the least telling: of a head with several roles a map shows the first."""
WHITE = 0.15
"""How far from white the weakest head of a role is drawn."""


def most_telling(roles: pd.DataFrame) -> pd.DataFrame:
    """Keep one role of each head, the most telling, as `kind`."""
    kind = roles["role"].where(roles["feature"] != "first_token", "first token")
    order = kind.map({name: place for place, name in enumerate(ROLE_COLOURS)})
    shown = roles.assign(kind=kind, order=order).sort_values(
        ["order", "score"], ascending=[True, False], kind="stable"
    )
    return shown.drop_duplicates(["site", "layer", "head"])


def role_map(scores: pd.DataFrame, roles: pd.DataFrame, *, title: str) -> Figure:
    """Draw a layer x head map of each site: a colour for the role, stronger for higher scores.

    Attention to the first token, which many heads share, is told apart from other positions.

    Args:
        scores: Any table with a line for each head: `site, layer, head`.
        roles: `site, layer, head, role, feature, score`.
        title: The figure's title.
    """
    shown = most_telling(roles)
    places = scores[["site", "layer", "head"]].drop_duplicates()
    sites = sorted(set(places["site"]))
    with sns.axes_style("white"):
        shapes = [places[places["site"] == site][["layer", "head"]].max() + 1 for site in sites]
        width = 2.2 + sum(0.42 * shape["head"] + 1 for shape in shapes)
        height = 1.5 + 0.27 * max(shape["layer"] for shape in shapes)
        figure = Figure(figsize=(max(width, 6), max(height, 3)), layout="constrained")
        axes = figure.subplots(1, len(sites), squeeze=False)[0]
        for axis, site, shape in zip(axes, sites, shapes, strict=True):
            picture = np.ones((shape["layer"], shape["head"], 3))
            for row in shown[shown["site"] == site].itertuples():
                full = np.array(mpl.colors.to_rgb(ROLE_COLOURS[row.kind]))
                depth = WHITE + (1 - WHITE) * min(max(row.score, 0), 1)
                picture[row.layer, row.head] = 1 - depth * (1 - full)
            axis.imshow(picture, aspect="auto")
            axis.set_xticks(range(shape["head"]))
            axis.set_yticks(range(shape["layer"]))
            axis.set_xticks(np.arange(shape["head"] + 1) - 0.5, minor=True)
            axis.set_yticks(np.arange(shape["layer"] + 1) - 0.5, minor=True)
            axis.grid(which="minor", color="0.85", linewidth=0.8)
            axis.tick_params(which="both", length=0, labelsize="small")
            axis.set(xlabel="head", ylabel="layer", title="" if len(sites) == 1 else site)
        handles = [
            mpl.patches.Patch(facecolor=colour, label=name)
            for name, colour in ROLE_COLOURS.items()
            if name in set(shown["kind"])
        ]
        if handles:
            figure.legend(handles=handles, loc="outside right upper", frameon=False)
        figure.suptitle(title, fontsize="medium")
    return figure


BARS = ("syntactic", "pronoun", "semantic")
RULES = {
    "offset": ("best fixed offset", "v"),
    "first_word": ("first word", "|"),
    "nearest_pos": ("nearest of that part of speech", "x"),
    "nearest_content": ("nearest content word", "s"),
    "nearest_noun": ("nearest noun", "^"),
    "first_noun": ("first noun", "D"),
    "subject": ("subject", "P"),
}
"""How a rule is called, and its mark."""


def beside_rules(scores: pd.DataFrame, roles: pd.DataFrame, *, min_n: int, title: str) -> Figure:
    """Draw, for each feature, the best head's score with its interval, and what rules score.

    The head is the best on the one half of the examples; what is drawn is the other half. A star
    behind its name says that it has the role.

    Args:
        scores: As interp.patterns.scores returns them.
        roles: `site, layer, head, feature`.
        min_n: Features measured on fewer queries are left out.
        title: The figure's title.
    """
    rule = scores["baseline_name"].str.partition(":")[0]
    table = scores.assign(rule=rule)[scores["role"].isin(BARS) & rule.isin(RULES)]
    place = ["site", "layer", "head", "feature"]
    chosen = table[table["split"] == "select"].sort_values("score", ascending=False)
    chosen = chosen.drop_duplicates(["site", "feature"])[place]
    lines = table[(table["split"] == "report") & (table["n"] >= min_n)].merge(chosen, on=place)
    order = lines["role"].map({role: number for number, role in enumerate(BARS)})
    lines = lines.assign(order=order).sort_values(["order", "feature"], kind="stable")
    head = "L" + lines["layer"].astype(str) + "H" + lines["head"].astype(str)
    several = lines["site"].nunique() > 1
    earned = lines[place].merge(roles[place].drop_duplicates(), how="left", indicator=True)
    star = np.where(earned["_merge"] == "both", " ★", "")
    lines["name"] = (lines["site"] + " " if several else "") + lines["feature"] + "  " + head + star
    bars = lines.drop_duplicates("name").reset_index(drop=True)
    with sns.axes_style("whitegrid"):
        size = 8.5, 1.6 + 0.24 * max(len(bars), 1)
        figure = Figure(figsize=size, layout="constrained")
        axis = figure.subplots()
        if len(bars):
            colours = {role: ROLE_COLOURS[role] for role in BARS if role in set(bars["role"])}
            sns.barplot(
                bars,
                x="score",
                y="name",
                hue="role",
                dodge=False,
                palette=colours,
                alpha=0.6,
                ax=axis,
            )
            reach = bars["score"] - bars["ci_low"], bars["ci_high"] - bars["score"]
            axis.errorbar(
                bars["score"],
                bars["name"],
                xerr=np.clip([side.fillna(0) for side in reach], 0, None),
                fmt="none",
                ecolor="0.3",
                capsize=2,
            )
            for name, (label, mark) in RULES.items():
                points = lines[lines["rule"] == name]
                if len(points):
                    at = points["baseline"], points["name"]
                    axis.scatter(*at, marker=mark, color="black", s=24, zorder=3, label=label)
            axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="")
            axis.set_ylim(len(bars) - 0.5, -0.5)
        label = "share of questions answered right (★: the head has the role)"
        axis.set(xlabel=label, ylabel="", xlim=(0, 1.02))
        figure.suptitle(title, fontsize="medium")
    return figure


def attention(table: pd.DataFrame, *, title: str) -> Figure:
    """Draw heads' attention between the words of one sentence, a panel a head.

    Args:
        table: One line a panel and pair of words: `panel` (its title), `site, layer, head, query,
            key, query_word, key_word, attention`.
        title: The figure's title.
    """
    panels = list(table.groupby(["panel", "site", "layer", "head"], sort=False))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    side = 1.4 + 0.17 * table["query"].nunique()
    with sns.axes_style("white"):
        figure = Figure(figsize=(columns * side, rows * (side + 0.4)), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis, ((name, site, layer, head), lines) in zip(axes, panels, strict=False):
            matrix = lines.pivot(index="query", columns="key", values="attention")
            words = lines.drop_duplicates("query").sort_values("query")["query_word"]
            sns.heatmap(matrix, ax=axis, cmap="Blues", vmin=0, vmax=1, cbar=False)
            ticks = np.arange(len(words)) + 0.5
            axis.set_xticks(ticks, list(words), rotation=90, fontsize="xx-small")
            axis.set_yticks(ticks, list(words), rotation=0, fontsize="xx-small")
            where = f"L{layer}H{head}" if site == "attn" else f"{site}.L{layer}H{head}"
            axis.set(xlabel="", ylabel="")
            axis.set_title(f"{name}  {where}", fontsize="small")
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        figure.suptitle(
            f"{title}\nattention from words (rows) to words (columns)", fontsize="medium"
        )
    return figure


LAYERS = "viridis"
"""From the first layer to the last."""
NO_ROLE = "#dddddd"
ENDS = 100 - SHARPNESS, SHARPNESS
"""The percentiles of pairs at which the colours of a map of them end."""
NAMED = 80
"""Up to so many heads are named beside a map."""
ROOM = 0.025
"""Heads that have no other within this share of a plane's width are named on it."""


def cluster_map(
    matrix: pd.DataFrame,
    tree: Float[np.ndarray, "join 4"],
    clusters: Sequence[int],
    *,
    title: str,
    label: str,
) -> Figure:
    """Draw how alike all pairs of heads are, in the order of a tree, layer and cluster at the side.

    Args:
        matrix: Head x head, with addresses such as `L5H1` as index and columns.
        tree: A linkage matrix of scipy.
        clusters: The number of each head's cluster.
        title: The figure's title.
        label: What the colours mean; darker is more alike.
    """
    low, high = np.percentile(matrix.to_numpy()[~np.eye(len(matrix), dtype=bool)], ENDS)
    layers = matrix.index.str.extract(r"L(\d+)H", expand=False).astype(int)
    shades = {
        "layer": mpl.colormaps[LAYERS](layers / max(layers.max(), 1)),
        "cluster": np.array(sns.husl_palette(max(clusters) + 1))[clusters],
    }
    side = 4 + min(0.2 * len(matrix), 8)
    grid = sns.clustermap(
        matrix,
        row_linkage=tree,
        col_linkage=tree,
        row_colors=pd.DataFrame(
            {name: list(map(tuple, rows)) for name, rows in shades.items()}, matrix.index
        ),
        cmap="Blues",
        vmin=low,
        vmax=high,
        xticklabels=len(matrix) <= NAMED,
        yticklabels=len(matrix) <= NAMED,
        figsize=(side, side),
        cbar_kws={"label": label, "extend": "both"},
    )
    grid.gs.update(top=0.94)  # room for the title
    grid.ax_cbar.set_position((0.02, 0.78, 0.02, 0.14))
    plt.close(grid.figure)  # seaborn hands it to pyplot, which would keep it
    grid.ax_heatmap.set(xlabel="", ylabel="")
    grid.ax_heatmap.tick_params(length=0, labelsize="xx-small")
    ends = [(layer, mpl.colormaps[LAYERS](float(layer > 0))) for layer in {0, layers.max()}]
    grid.ax_col_dendrogram.legend(
        handles=[
            mpl.patches.Patch(facecolor=colour, label=f"layer {layer}") for layer, colour in ends
        ],
        loc="upper right",
        frameon=False,
        fontsize="small",
    )
    grid.figure.suptitle(title, fontsize="medium", y=0.98)
    return grid.figure


def plane(
    table: pd.DataFrame, shares: Mapping[str, float], *, roles: pd.DataFrame | None, title: str
) -> Figure:
    """Draw heads such that those that are alike lie close, coloured by layer or role.

    Args:
        table: One line a head: `site, layer, head, x, y`.
        shares: How much of the heads' variance each site's plane shows.
        roles: `site, layer, head, role, feature, score`; None colours by layer.
        title: The figure's title.
    """
    sites = sorted(set(table["site"]))
    hue, palette = "layer", dict[Any, Any]()
    if roles is None:
        palette = {
            layer: mpl.colormaps[LAYERS](layer / max(table["layer"].max(), 1))
            for layer in sorted(set(table["layer"]))
        }
    else:
        hue, palette = "kind", {"no role": NO_ROLE, **ROLE_COLOURS}
        telling = most_telling(roles)[["site", "layer", "head", "kind"]]
        table = table.merge(telling, on=["site", "layer", "head"], how="left")
        table = table.fillna({"kind": "no role"}).sort_values(
            "kind", key=lambda kind: kind.map({name: n for n, name in enumerate(palette)})
        )
    with sns.axes_style("white"):
        figure = Figure(figsize=(5.5 * len(sites) + 1.5, 5), layout="constrained")
        axes = figure.subplots(1, len(sites), squeeze=False)[0]
        for axis, site in zip(axes, sites, strict=True):
            here = table[table["site"] == site]
            used = {name: colour for name, colour in palette.items() if name in set(here[hue])}
            sns.scatterplot(here, x="x", y="y", hue=hue, palette=used, s=36, ax=axis, legend="full")
            reach = ROOM * (here[["x", "y"]].max() - here[["x", "y"]].min()).max()
            gaps = cdist(here[["x", "y"]], here[["x", "y"]]) + np.diag([np.inf] * len(here))
            for row in here[gaps.min(0) > reach].itertuples():
                name, at = f"L{row.layer}H{row.head}", (row.x, row.y)
                axis.annotate(name, at, (3, 3), textcoords="offset points", size="xx-small")
            label = f"near: alike (the plane shows {shares[site]:.0%} of the variance)"
            axis.set(xlabel=label, ylabel="", title="" if len(sites) == 1 else site)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_aspect("equal", adjustable="datalim")
            axis.legend(
                title="layer" if roles is None else "",
                loc="center left",
                bbox_to_anchor=(1, 0.5),
                frameon=False,
                fontsize="small",
                ncols=1 + (len(used) - 1) // 15,
            )
        figure.suptitle(title, fontsize="medium")
    return figure


def estimates(table: pd.DataFrame, agreement: pd.DataFrame, *, title: str, label: str) -> Figure:
    """Draw cheap estimates against exact damage, a panel an estimator and a point a head.

    Args:
        table: `site, layer, head, estimator, score`, with the estimator `exact`.
        agreement: One line an estimator: `estimator, target, spearman`; panels in its order.
        title: The figure's title.
        label: The metric and its unit.
    """
    place = ["site", "layer", "head"]
    exact = table[table["estimator"] == "exact"][[*place, "score"]]
    both = table.merge(exact, on=place, suffixes=("", "_exact"))
    sites = sorted(set(both["site"]))
    columns = min(4, len(agreement))
    rows = -(-len(agreement) // columns)
    shades = mpl.colors.Normalize(0, max(both["layer"].max(), 1))
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(3.1 * columns + 1, 3 * rows + 0.5), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        panels = zip(axes.ravel(), agreement.itertuples(), strict=False)
        for axis, line in panels:
            here = both[both["estimator"] == line.estimator]
            is_size = line.target == "abs_damage"
            here = here.assign(target=here["score_exact"].abs() if is_size else here["score_exact"])
            sns.scatterplot(
                here,
                x="score",
                y="target",
                hue="layer",
                hue_norm=shades,
                palette=LAYERS,
                style="site" if len(sites) > 1 else None,
                style_order=sites if len(sites) > 1 else None,
                legend=False,
                s=18,
                ax=axis,
            )
            if not is_size:
                axis.axline((0, 0), slope=1, color="0.6", linewidth=1, zorder=0)
            axis.set(
                xlabel=line.estimator,
                ylabel=f"{'|damage|' if is_size else 'damage'} {label}",
                title=f"Spearman {line.spearman:.2f}",
            )
            for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
                text.set_fontsize("small")
            axis.tick_params(labelsize="x-small")
            axis.locator_params(axis="x", nbins=5)
        for axis in axes.ravel()[len(agreement) :]:
            axis.set_axis_off()
        colours = mpl.cm.ScalarMappable(norm=shades, cmap=LAYERS)
        figure.colorbar(colours, ax=axes, label="layer", shrink=0.6)
        if len(sites) > 1:
            marks = dict(zip(sites, ("o", "X", "s"), strict=False))  # as seaborn chooses them
            handles = [
                mpl.lines.Line2D([], [], marker=mark, linestyle="", color="0.3", label=site)
                for site, mark in marks.items()
            ]
            figure.legend(handles=handles, loc="outside lower center", ncols=len(sites))
        figure.suptitle(title, fontsize="medium")
    return figure


ORDER_COLOURS = {
    "exact": "#4c72b0",
    "greedy": "#c44e52",
    "attribution": "#dd8452",
    "michel_example": "#55a868",
    "michel_token": "#8172b3",
    "michel_batch": "#937860",
    "reverse": "#64b5cd",
    "random": "#8c8c8c",
}


def pruning_curves(table: pd.DataFrame, *, tolerance: float, title: str, label: str) -> Figure:
    """Draw the score while more and more heads are closed, a panel a site, a line an order.

    Bands are intervals; that of random orders goes from the lowest of them to the highest.

    Args:
        table: One line a point: `order, seed, site, fraction, value, ci_low, ci_high`.
        tolerance: The share of the clean score that may be lost (negative: gained), which a
            dotted line marks.
        title: The figure's title.
        label: What the score is, with its unit.
    """
    sites = list(dict.fromkeys(table["site"]))
    names = [name for name in ORDER_COLOURS if name in set(table["order"])]
    with sns.axes_style("whitegrid"):
        size = max(4.2 * len(sites) + 1.8, 7), 4.2
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(sites), squeeze=False, sharey=True)[0]
        for axis, site in zip(axes, sites, strict=True):
            here = table[table["site"] == site]
            for name in names:
                points = here[here["order"] == name].groupby("fraction")
                low, high = points["ci_low"].min(), points["ci_high"].max()
                if name == "random":
                    low, high = points["value"].min(), points["value"].max()
                at = 100 * low.index.to_numpy()
                colour, mean = ORDER_COLOURS[name], points["value"].mean()
                sns.lineplot(x=at, y=mean, color=colour, marker="o", label=name, ax=axis)
                axis.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
            clean = here.loc[here["fraction"] == 0, "value"].iloc[0]
            axis.axhline(clean, color="0.4", linewidth=1)
            axis.axhline(clean * (1 - tolerance), color="0.4", linewidth=1, linestyle=":")
            axis.set(
                xlabel="% of heads closed", ylabel=label, title="" if len(sites) == 1 else site
            )
            axis.get_legend().remove()
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False
        )
        figure.suptitle(title, fontsize="medium")
    return figure


def similarity(measure: str) -> str:
    """Say how a measure is called once it grows the more alike heads are."""
    base, _, end = measure.partition("_without")
    turned = {"js": "1 - JS / ln 2", "tv": "1 - total variation"}.get(base, base)
    return turned + (end and ", without the first key")


WAYS = {
    "merged": ("merged with its twin", mpl.colormaps[COLOURS](0.1)),
    "pruned": ("closed", mpl.colormaps[COLOURS](0.9)),
    "random": ("under a random head's pattern", "#8c8c8c"),
}
"""What may become of a head that is merged: how it is called, and its colour."""


def pairs_by_similarity(
    pairs: pd.DataFrame, measures: list[str], *, title: str, label: str
) -> Figure:
    """Draw how much pairs of heads interact by how alike they are, a panel a measure.

    Args:
        pairs: One line a pair: `layer, layer_2, is_twin, value`, and the measures, turned so that
            they grow the more alike heads are.
        measures: Which of them.
        title: The figure's title.
        label: What the value means, with the unit.
    """
    apart = (pairs["layer_2"] - pairs["layer"]).abs().rename("layers apart")
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(4.2 * len(measures) + 1, 4), layout="constrained")
        axes = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
        for axis, name in zip(axes, measures, strict=True):
            at = {"x": pairs[name], "y": pairs["value"], "ax": axis}
            is_last = axis is axes[-1]
            sns.scatterplot(**at, hue=apart, palette=LAYERS, s=22, linewidth=0, legend=is_last)
            twins = pairs[pairs["is_twin"]]
            rings = {"s": 60, "facecolor": "none", "edgecolor": "0.2", "linewidth": 0.8}
            axis.scatter(twins[name], twins["value"], **rings, label="nearest twins")
            axis.axhline(0, color="0.4", linewidth=1)
            axis.set(xlabel=f"similarity ({similarity(name)})")
            axis.set(ylabel=label)
            if is_last:
                axis.legend(
                    title="layers apart",
                    loc="center left",
                    bbox_to_anchor=(1, 0.5),
                    frameon=False,
                    fontsize="small",
                )
        figure.suptitle(title, fontsize="medium")
    return figure


def merge_curve(curve: pd.DataFrame, *, title: str, label: str) -> Figure:
    """Draw the damage of merging more and more heads, and of closing the same ones.

    Bands are intervals of the difference from merging, which is measured example by example.

    Args:
        curve: One line a way, seed and step: `how, seed, fraction, damage, above_merged, above_low,
            above_high`. Seeds are drawn as their mean.
        title: The figure's title.
        label: What the damage is, with the unit.
    """
    merged = curve["damage"] - curve["above_merged"]
    curve = curve.assign(low=merged + curve["above_low"], high=merged + curve["above_high"])
    means = curve.groupby(["how", "fraction"], as_index=False)[["damage", "low", "high"]].mean()
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        axis = figure.subplots()
        for how, (name, colour) in WAYS.items():
            lines = means[means["how"] == how]
            if len(lines):
                ends = lines["low"], lines["high"]
                axis.fill_between(lines["fraction"], *ends, color=colour, alpha=0.15)
                at = {"x": "fraction", "y": "damage", "ax": axis}
                sns.lineplot(lines, **at, marker="o", label=name, color=colour)
        axis.axhline(0, color="0.4", linewidth=1)
        axis.set(xlabel="share of all heads", ylabel=label)
        axis.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axis.legend(title="each of these heads is", frameon=False, fontsize="small")
        figure.suptitle(title, fontsize="medium")
    return figure


def cluster_choice(table: pd.DataFrame, *, title: str) -> Figure:
    """Draw what each number of clusters comes to, and mark the one that was chosen.

    Args:
        table: One line a site and number: `site, n_clusters, silhouette, agreement, chosen`.
        title: The figure's title.
    """
    sites = sorted(set(table["site"]))
    names = {
        "silhouette": "mean silhouette",
        "agreement": "adjusted Rand index with resampled documents",
    }
    table = table.rename(columns=names)
    lines = table.melt(["site", "n_clusters"], list(names.values()), "what", "value")
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(1 + 4.5 * len(sites), 3.5), layout="constrained")
        axes = figure.subplots(1, len(sites), squeeze=False, sharey=True)[0]
        for axis, site in zip(axes, sites, strict=True):
            sns.lineplot(
                lines[lines["site"] == site],
                x="n_clusters",
                y="value",
                hue="what",
                palette=[mpl.colormaps[COLOURS](end) for end in (0.9, 0.1)],
                marker="o",
                ax=axis,
            )
            [chosen] = table[(table["site"] == site) & table["chosen"]]["n_clusters"]
            axis.axvline(chosen, color="0.4", linewidth=1)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set(xlabel="clusters", ylabel="", title="" if len(sites) == 1 else site)
            axis.legend(title="", fontsize="small")
        figure.suptitle(title, fontsize="medium")
    return figure


RESTORING = {"by_heads": "other heads", "by_mlps": "MLPs", "by_norm": "norms"}
"""What restores, and how it is called."""
STEEPEST = -1.5, 2.5
"""The slopes between which layers are told apart: where hardly anything is lost, any come out."""


def repair(table: pd.DataFrame, *, named: int, title: str, unit: str) -> Figure:
    """Draw what each head's loss is directly and after all: below the diagonal, it is repaired.

    Args:
        table: One line a head: `site, layer, head, direct, total`.
        named: How many heads, those with the largest direct effects, are named.
        title: The figure's title.
        unit: The metric's unit.
    """
    shades = mpl.colormaps[LAYERS]
    last = max(table["layer"].max(), 1)
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(6.8, 5.2), layout="constrained")
        axis = figure.subplots()
        axis.axline((0, 0), slope=1, color="0.4", linewidth=1, label="nothing repaired")
        axis.axhline(0, color="0.7", linewidth=1, linestyle="--", label="all repaired")
        points = axis.scatter(
            table["direct"],
            table["total"],
            c=table["layer"],
            cmap=shades,
            vmin=0,
            vmax=last,
            s=36,
            edgecolor="white",
            linewidth=0.5,
            zorder=3,
        )
        for row in table.nlargest(named, "direct").itertuples():
            name, at = f"L{row.layer}H{row.head}", (row.direct, row.total)
            axis.annotate(name, at, (4, 3), textcoords="offset points", size="x-small")
        figure.colorbar(points, ax=axis, label="layer")
        axis.set(
            xlabel=f"direct effect lost ({unit})", ylabel=f"damage after all ({unit})", title=title
        )
        axis.title.set_fontsize("medium")
        axis.legend(loc="upper left", frameon=False, fontsize="small")
    return figure


def restored(table: pd.DataFrame, *, title: str, unit: str) -> Figure:
    """Draw what restores how much of each head's direct effect, and what damage is left.

    Args:
        table: One line a head: `name, direct, total, by_heads, by_mlps, by_norm`, top first.
        title: The figure's title.
        unit: The metric's unit.
    """
    place = np.arange(len(table))
    colours = dict(zip(RESTORING, mpl.colormaps[COLOURS]([0.1, 0.3, 0.7]), strict=True))
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(7.5, 1.4 + 0.3 * len(table)), layout="constrained")
        axis = figure.subplots()
        ends = {True: np.zeros(len(table)), False: np.zeros(len(table))}
        for name, colour in colours.items():
            value = table[name].to_numpy()
            left = np.where(value > 0, ends[True], ends[False])
            axis.barh(place, value, left=left, height=0.7, color=colour, label=RESTORING[name])
            for sign, end in ends.items():
                end += np.where((value > 0) == sign, value, 0)
        axis.scatter(table["direct"], place, marker="|", s=160, color="black", label="direct")
        axis.scatter(table["total"], place, s=30, color="0.35", zorder=3, label="damage after all")
        axis.axvline(0, color="0.4", linewidth=1)
        axis.set_yticks(place, list(table["name"]))
        axis.set_ylim(len(table) - 0.4, -0.6)
        axis.set(xlabel=f"restored ({unit}): to the left, made worse", title=title)
        axis.title.set_fontsize("medium")
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small")
    return figure


def slopes(table: pd.DataFrame, *, title: str) -> Figure:
    """Draw how much of each layer's loss later layers make up for.

    Args:
        table: One line a layer: `layer, slope, ci_low, ci_high, r2`.
        title: The figure's title.
    """
    table = table.dropna(subset="slope")
    shown = table["slope"].clip(*STEEPEST)
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(7.5, 4), layout="constrained")
        axis = figure.subplots()
        reach = shown - table["ci_low"], table["ci_high"] - shown
        axis.errorbar(
            table["layer"],
            shown,
            yerr=np.clip([side.fillna(0) for side in reach], 0, None),
            fmt="none",
            ecolor="0.6",
            capsize=2,
        )
        points = axis.scatter(
            table["layer"],
            shown,
            c=table["r2"],
            cmap="Blues",
            vmin=0,
            vmax=1,
            s=45,
            edgecolor="0.3",
            linewidth=0.7,
            zorder=3,
            clip_on=False,
        )
        figure.colorbar(points, ax=axis, label="r² over examples")
        axis.axhline(0, color="0.4", linewidth=1)
        axis.axhline(1, color="0.7", linewidth=1, linestyle="--")
        axis.set(
            xlabel="layer ablated",
            ylabel="restored of each logit lost (at the edge: beyond)",
            ylim=STEEPEST,
            title=title,
        )
        axis.title.set_fontsize("medium")
    return figure
