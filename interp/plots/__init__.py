"""Figures: a table in, a seaborn figure out, in one visual language.

Damage is drawn in colours that diverge from white at 0: red where removing a head makes the model
worse, blue where it makes it better.
"""

from interp.plots.benchmark import speed
from interp.plots.heads import head_map, pair_map, strongest
from interp.plots.importance import estimates, pruning_curves
from interp.plots.redundancy import (
    cluster_choice,
    cluster_map,
    merge_curve,
    pairs_by_similarity,
    plane,
    similarity,
)
from interp.plots.roles import attention, beside_rules, role_map
from interp.plots.self_repair import repair, restored, slopes
from interp.plots.training import gates, head_count, history, specialisation

__all__ = [
    "attention",
    "beside_rules",
    "cluster_choice",
    "cluster_map",
    "estimates",
    "gates",
    "head_count",
    "head_map",
    "history",
    "merge_curve",
    "pair_map",
    "pairs_by_similarity",
    "plane",
    "pruning_curves",
    "repair",
    "restored",
    "role_map",
    "similarity",
    "slopes",
    "specialisation",
    "speed",
    "strongest",
]
