"""Cheap estimates beside exact damage, and models without more and more heads."""

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from interp.plots.style import LAYERS


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
