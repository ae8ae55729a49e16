"""How fast the sweep is, and against what."""

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from interp.plots.style import COLOURS

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
