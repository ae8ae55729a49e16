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
