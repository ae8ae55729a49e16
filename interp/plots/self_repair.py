"""What later parts restore of what a head wrote."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from interp.plots.style import COLOURS, LAYERS

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
