"""Which heads are alike, and what becomes of one that takes another's pattern."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.spatial.distance import cdist

from interp.plots.roles import most_telling
from interp.plots.style import COLOURS, LAYERS, ROLE_COLOURS, SHARPNESS

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
