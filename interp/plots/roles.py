"""What heads attend to, beside rules, and which roles they have."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from interp.plots.style import ROLE_COLOURS

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
