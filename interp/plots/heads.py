"""One number a head, pair or set: maps and bars."""

import textwrap

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.plots.style import COLOURS, SHARPNESS

WIDEST = 40
"""Letters of a line beside a figure."""


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
    units = units.assign(name=units["name"].map(wrapped))
    n_lines = units["name"].str.count("\n").max() + 1
    with sns.axes_style("whitegrid"):
        height = 1.2 + (0.12 + 0.16 * n_lines) * len(units)
        figure = Figure(figsize=(6, height), layout="constrained")
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
        axis.set(xlabel=label, ylabel="", title=title, ylim=(len(units) - 0.5, -0.5))
        axis.title.set_fontsize("medium")
    return figure


def wrapped(name: str) -> str:
    """Break a long set's name after some of its heads, to leave room for the points beside it."""
    lines = textwrap.wrap(name.replace("+", "+ "), WIDEST)
    return "\n".join(line.replace("+ ", "+") for line in lines)
