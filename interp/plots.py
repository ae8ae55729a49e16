"""Figures: a table in, a seaborn figure out, in one visual language.

Damage is drawn in colours that diverge from white at 0: red where removing a head makes the model
worse, blue where it makes it better.
"""

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

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


def role_map(scores: pd.DataFrame, roles: pd.DataFrame, *, title: str) -> Figure:
    """Draw a layer x head map of each site: a colour for the role, stronger for higher scores.

    Attention to the first token, which many heads share, is told apart from other positions.

    Args:
        scores: Any table with a line for each head: `site, layer, head`.
        roles: `site, layer, head, role, feature, score`.
        title: The figure's title.
    """
    kind = roles["role"].where(roles["feature"] != "first_token", "first token")
    order = kind.map({name: place for place, name in enumerate(ROLE_COLOURS)})
    shown = roles.assign(kind=kind, order=order).sort_values(
        ["order", "score"], ascending=[True, False], kind="stable"
    )
    shown = shown.drop_duplicates(["site", "layer", "head"])
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


def beside_rules(scores: pd.DataFrame, *, min_n: int, title: str) -> Figure:
    """Draw, for each feature, the best head's score with its interval, and what rules score.

    The head is the best on the one half of the examples; what is drawn is the other half.

    Args:
        scores: As interp.patterns.scores returns them.
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
    lines["name"] = (lines["site"] + " " if several else "") + lines["feature"] + "  " + head
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
        axis.set(xlabel="share of questions answered right", ylabel="", xlim=(0, 1.02))
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
