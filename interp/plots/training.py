"""What becomes of heads in training, and of models that may close some."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interp.plots.style import ARMS, COLOURS


def history(table: pd.DataFrame, *, title: str) -> Figure:
    """Draw how loss and accuracy change while a model is trained.

    Args:
        table: `step, split, loss, accuracy, exact_match`; what was not measured is null.
        title: The figure's title.
    """
    colours = dict(zip(("test", "train"), mpl.colormaps[COLOURS]([0.1, 0.75]), strict=True))
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        said = {"x": "step", "hue": "split", "hue_order": list(colours), "palette": colours}
        sns.lineplot(table, y="loss", ax=left, **said)
        sns.lineplot(table, y="accuracy", ax=right, legend=False, **said)
        tests = table[table["split"] == "test"]
        right.plot(
            tests["step"], tests["exact_match"], color=colours["test"], linestyle=":", label="all"
        )
        left.set(ylabel="loss (nats per answer)", ylim=(0, None))
        right.set(ylabel="answers that are right\n(dotted: examples, in all answers)")
        right.set(ylim=(0, 1.02))
        left.legend(title="", frameon=False)
        figure.suptitle(title, fontsize="medium")
    return figure


COSTS = {
    "n_parameters": "parameters",
    "multiply_adds": "multiply-adds",
    "score_entries": "score entries",
    "seconds_per_step": "measured time",
}


def head_count(models: pd.DataFrame, published: pd.DataFrame, *, title: str) -> Figure:
    """Draw what the number of heads does: to accuracy, to costs, and in a published table.

    Args:
        models: One line a model: `arm, n_heads, seed, accuracy`, and COSTS. The first arm is drawn
            strongly, and its costs are shown.
        published: `n_heads, bleu`.
        title: The figure's title.
    """
    arms = list(dict.fromkeys(models["arm"]))
    colours = dict(zip(arms, sns.color_palette(ARMS, len(arms)), strict=True))
    counts = sorted({*models["n_heads"], *published["n_heads"]})
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(13, 3.8), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
        for arm in arms:
            lines = models[models["arm"] == arm]
            means = lines.groupby("n_heads")["accuracy"].mean()
            width = 2.5 if arm == arms[0] else 1.2
            left.plot(means.index, means, color=colours[arm], linewidth=width, label=arm)
            left.scatter(lines["n_heads"], lines["accuracy"], color=colours[arm], s=12, zorder=3)
        left.set(ylabel="accuracy (points: seeds)", ylim=(0, 1.02))
        left.legend(frameon=False, fontsize="small")
        costs = models[models["arm"] == arms[0]].groupby("n_heads")[list(COSTS)].median()
        for (key, said), style in zip(COSTS.items(), ("-", "--", "-", "-"), strict=True):
            relative = costs[key] / costs[key].iloc[0]  # (the first two lie on each other)
            middle.plot(costs.index, relative, style, marker="o", markersize=4, label=said)
        middle.set(yscale="log", ylabel=f"cost, against {costs.index[0]} head ({arms[0]})")
        middle.yaxis.set_major_formatter("{x:g}")
        middle.legend(frameon=False, fontsize="small")
        right.plot(published["n_heads"], published["bleu"], color="0.3", marker="o", markersize=4)
        right.set(ylabel="BLEU (Vaswani et al. 2017, table 3 A)")
        for axis in (left, middle, right):
            axis.set(xscale="log", xlabel="heads")
            axis.set_xticks(counts, list(map(str, counts)))
            axis.minorticks_off()
        figure.suptitle(title, fontsize="medium")
    return figure


def specialisation(
    history: pd.DataFrame, heads: pd.DataFrame, pruned: pd.DataFrame, *, title: str
) -> Figure:
    """Draw what heads become while models are trained, an arm a row; seeds thin, their mean thick.

    Args:
        history: `arm, seed, step, split, accuracy`; `train` is left out.
        heads: `arm, seed, step, feature, score`, one line a head: the best is drawn.
        pruned: Pruning curves: `arm, seed, order, when` (early or late), `fraction, value`; those
            of the first order are drawn.
        title: The figure's title.
    """
    arms, features = list(dict.fromkeys(heads["arm"])), list(dict.fromkeys(heads["feature"]))
    best = heads.groupby(["arm", "seed", "step", "feature"], as_index=False)["score"].max()
    tests = history[history["split"] != "train"]
    curves = pruned[pruned["order"] == pruned["order"].iloc[0]] if len(pruned) else pruned
    ends = dict(zip(("late", "early"), sns.color_palette("rocket", 5)[1:4:2], strict=True))
    panels: list[tuple[pd.DataFrame, dict[str, Any], dict[str, Any]]] = [
        (
            tests,
            {"x": "step", "y": "accuracy"},
            dict(zip(("test", "elsewhere"), ("0.1", "0.6"), strict=True)),
        ),
        (
            best,
            {"x": "step", "y": "score"},
            dict(zip(features, sns.color_palette(ARMS, len(features)), strict=True)),
        ),
        (curves, {"x": "fraction", "y": "value"}, ends),
    ]
    hues = ("split", "feature", "when")
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(12, 0.8 + 2.6 * len(arms)), layout="constrained")
        axes = figure.subplots(len(arms), 3, squeeze=False, sharex="col")
        for arm, row in zip(arms, axes, strict=True):
            for axis, hue, (table, place, colours) in zip(row, hues, panels, strict=True):
                own = table[table["arm"] == arm]
                if own.empty:  # nothing to prune
                    continue
                shades = {name: colours[name] for name in colours if name in set(own[hue])}
                said = {**place, "hue": hue, "palette": shades, "hue_order": list(shades)}
                thin = {"units": "seed", "estimator": None, "linewidth": 0.7, "alpha": 0.5}
                sns.lineplot(own, ax=axis, legend=False, **said, **thin)
                mean = own.groupby([hue, place["x"]], as_index=False)[place["y"]].mean()
                is_first = axis in axes[0]
                sns.lineplot(mean, ax=axis, legend=is_first, linewidth=2.4, **said)
                if axis.get_legend() is not None:
                    axis.legend(title="", frameon=False, fontsize="small")
            row[0].set(ylabel=f"{arm}\naccuracy", ylim=(0, 1.02))
            row[1].set(ylabel="best head's attention to targets", ylim=(0, 1.02))
            row[2].set(ylabel="kept of what heads save", xlabel="share of heads closed")
            row[2].axline((0, 1), (1, 0), color="0.7", linewidth=1, linestyle=":")
        figure.suptitle(title, fontsize="medium")
    return figure


KINDS = {"gated": "gated", "rounded": "kept heads", "random": "random sets"}
"""Kinds of heads that learned gates are compared by, and how they are called."""


def gates(table: pd.DataFrame, quality: pd.DataFrame, *, title: str, label: str) -> Figure:
    """Draw which heads stay open at what price, and how good a model they make.

    Args:
        table: One line a price, way to learn and head: `price, weights, seed, site, layer, head,
            open`.
        quality: One line a price, way to learn and kind of heads: `price, weights, seed, heads,
            n_open, value, ci_low, ci_high, worst, best`.
        title: The figure's title.
        label: What the value is.
    """
    share = table.groupby(["weights", "site", "price"])["open"].mean().reset_index()
    where = table["site"] + " L" + table["layer"].astype(str)
    if table["site"].nunique() == 1:
        where = where.str.partition(" ")[2]
    lasting = table.assign(layer=where).groupby(["layer", "head"], sort=False)["open"].mean()
    matrix = lasting.unstack().reindex(where.drop_duplicates())
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(14, 4), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.2, 1])
        style = "weights" if share["weights"].nunique() > 1 else None
        sns.lineplot(
            share, x="price", y="open", hue="site", style=style, marker="o", ax=left, palette=ARMS
        )
        if share["price"].min() > 0:
            left.set(xscale="log")
        prices = sorted(set(share["price"]))
        left.set_xticks(prices, [f"{price:g}" for price in prices])
        left.minorticks_off()
        left.set(
            ylabel="share of heads open", ylim=(-0.02, 1.02), xlabel="price of an open head (nats)"
        )
        left.legend(frameon=False, fontsize="small")
        colours = dict(zip(KINDS, sns.color_palette(ARMS, len(KINDS)), strict=True))
        for kind, name in KINDS.items():
            lines = quality[quality["heads"] == kind]
            if lines.empty:
                continue
            ends = [lines["ci_low"], lines["ci_high"]]
            reach = lines["value"] - ends[0], ends[1] - lines["value"]
            middle.errorbar(
                lines["n_open"],
                lines["value"],
                yerr=np.clip([side.fillna(0) for side in reach], 0, None),
                fmt="s" if kind == "gated" else "o",
                markerfacecolor="none" if kind == "gated" else colours[kind],
                markersize=10 if kind == "gated" else 6,
                color=colours[kind],
                capsize=3,
                label=name,
            )
        sets = quality[quality["heads"] == "random"]
        middle.vlines(
            sets["n_open"], sets["worst"], sets["best"], color=colours["random"], alpha=0.3
        )
        whole = quality[quality["heads"] == "all"]["value"].iloc[0]
        middle.axhline(whole, color="0.4", linewidth=1, label="whole model")
        middle.set(xlabel="heads open (bars: intervals; thin: worst to best set)", ylabel=label)
        middle.xaxis.set_major_locator(MaxNLocator(integer=True))
        middle.legend(loc="center", frameon=False, fontsize="small")
        sns.heatmap(matrix, ax=right, cmap="Blues", vmin=0, vmax=1, linewidths=0.5, square=True)
        right.set(ylabel="", xlabel="head", title="open in this share of runs")
        right.title.set_fontsize("small")
        right.tick_params(rotation=0)
        figure.suptitle(title, fontsize="medium")
    return figure
