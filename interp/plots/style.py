"""The colours that figures share."""

COLOURS = "RdBu_r"
SHARPNESS = 98
"""The percentile of |damage| at which colours are full, lest one head outshine the rest."""
ROLE_COLOURS = {
    "pronoun": "#c44e52",
    "syntactic": "#55a868",
    "semantic": "#8172b3",
    "token": "#dd8452",
    "alignment": "#937860",
    "positional": "#4c72b0",
    "first token": "#8c8c8c",
}
"""From the most to the least telling: of a head with several roles a map shows the first."""
LAYERS = "viridis"
"""From the first layer to the last."""
ARMS = "colorblind"
