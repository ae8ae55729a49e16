"""Figures: a table in, a seaborn figure out, in one visual language.

Damage is drawn in colours that diverge from white at 0: red where removing a head makes the model
worse, blue where it makes it better.
"""

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

COLOURS = "RdBu_r"
SHARPNESS = 98
"""The percentile of |damage| at which colours are full, lest one head outshine the rest."""


def head_map(summary: pd.DataFrame, *, value: str, title: str, label: str) -> Figure:
    """Draw a layer x head map of each site, in colours that diverge from 0.

    Args:
        summary: One line a head: `site, layer, head` and the value.
        value: The column to draw.
        title: The figure's title.
        label: What the colours mean, with the unit.
    """
    sites = list(dict.fromkeys(summary["site"]))
    limit = float(np.nanpercentile(summary[value].abs(), SHARPNESS)) or 1.0
    maps = [
        summary[summary["site"] == site].pivot(index="layer", columns="head", values=value)
        for site in sites
    ]
    size = 1.5 + sum(0.42 * m.shape[1] + 1 for m in maps), 1.5 + 0.27 * max(map(len, maps))
    with sns.axes_style("white"):
        figure = Figure(figsize=(max(size[0], 5.5), max(size[1], 3)), layout="constrained")
        axes = figure.subplots(1, len(maps), squeeze=False)[0]
        for axis, site, matrix in zip(axes, sites, maps, strict=True):
            sns.heatmap(
                matrix,
                ax=axis,
                cmap=COLOURS,
                vmin=-limit,
                vmax=limit,
                linewidths=0.5,
                cbar=axis is axes[-1],
                cbar_kws={"label": label, "extend": "both"},
            )
            axis.set(title="" if len(sites) == 1 else site)
            axis.tick_params(rotation=0)
        figure.suptitle(title, fontsize="medium")
    return figure


def top_heads(summary: pd.DataFrame, *, names: list[str], title: str, label: str) -> Figure:
    """Draw the damage of some heads, strongest first, with their intervals.

    Args:
        summary: One line a head: `damage, ci_low, ci_high`.
        names: What to call them.
        title: The figure's title.
        label: What damage means, with the unit.
    """
    colours = mpl.colormaps[COLOURS]
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(6, 1.2 + 0.28 * len(summary)), layout="constrained")
        axis = figure.subplots()
        sns.scatterplot(x=summary["damage"], y=names, ax=axis, color=colours(0.9), s=45, zorder=3)
        low = summary["damage"] - summary["ci_low"].fillna(summary["damage"])
        high = summary["ci_high"].fillna(summary["damage"]) - summary["damage"]
        axis.errorbar(
            summary["damage"],
            names,
            xerr=np.clip([low, high], 0, None),
            fmt="none",
            ecolor=colours(0.8),
            capsize=3,
        )
        axis.axvline(0, color="0.4", linewidth=1)
        axis.set(xlabel=label, ylabel="", title=title)
        axis.title.set_fontsize("medium")
    return figure
