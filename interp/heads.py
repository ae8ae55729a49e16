"""Where a head is: its site, layer and number, and how it is written.

site    one kind of attention in a model: `attn` in a model of one stack; `encoder_attn`,
        `decoder_self_attn` and `decoder_cross_attn` in an encoder-decoder
head    (site, layer, head), counted from 0; printed `L5H1`, or `encoder_attn.L5H1` where a model
        has several sites; read from `L5H1`, `5.1` and `encoder_attn.L5H1`
group   the query heads that share one key/value head (grouped-query attention)
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from interp.errors import InputError

HEAD = ["site", "layer", "head"]
"""The columns by which tables name a head."""
ADDRESS = re.compile(r"(?:(?P<site>[a-z_]+)\.)?(?:L(\d+)H(\d+)|(\d+)\.(\d+))")


@dataclass(frozen=True, order=True)
class Head:
    """The address of one head."""

    site: str
    layer: int
    head: int

    def __str__(self) -> str:
        """Print `L5H1`, with the site in front where it is not the only one."""
        prefix = "" if self.site == "attn" else f"{self.site}."
        return f"{prefix}L{self.layer}H{self.head}"


@dataclass(frozen=True)
class Site:
    """One kind of attention in a model, and its shape."""

    name: str
    stack: str
    """The list of blocks it belongs to: `blocks`, `encoder_blocks` or `decoder_blocks`."""
    module: str
    """The attention's name inside a block: `attn`, `self_attn` or `cross_attn`."""
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    causal: bool

    def group(self, head: int) -> int:
        """Say which key/value head the query head `head` reads."""
        return head // (self.n_heads // self.n_kv_heads)


def all_heads(sites: Iterable[Site]) -> list[Head]:
    """List every head of a model, site by site and layer by layer."""
    return [
        Head(site.name, layer, head)
        for site in sites
        for layer in range(site.n_layers)
        for head in range(site.n_heads)
    ]


def parse(text: str, sites: Sequence[Site]) -> Head:
    """Read a head's address and check that the model has that head.

    Raises:
        InputError: The text is not an address, or the model has no such head.
    """
    match = ADDRESS.fullmatch(text.strip())
    if match is None:
        raise InputError(f"'{text}' is not a head: write L5H1, '5.1' or SITE.L5H1")
    by_name = {site.name: site for site in sites}
    names = ", ".join(by_name)
    name = match["site"] or (next(iter(by_name)) if len(by_name) == 1 else None)
    if name is None:
        raise InputError(
            f"head '{text}' needs its site, e.g. {sites[0].name}.{text} (sites: {names})"
        )
    if name not in by_name:
        raise InputError(f"head '{text}': this model has no site '{name}' (sites: {names})")
    site = by_name[name]
    layer, head = (int(part) for part in match.groups()[1:] if part is not None)
    if layer >= site.n_layers or head >= site.n_heads:
        raise InputError(
            f"head '{text}' does not exist: {name} has layers 0-{site.n_layers - 1} "
            f"and heads 0-{site.n_heads - 1}"
        )
    return Head(name, layer, head)


def from_table(table: pd.DataFrame, columns: Sequence[str] = HEAD) -> list[Head]:
    """Read the head of each line of a table."""
    return [Head(*place) for place in table[list(columns)].itertuples(index=False)]


def to_table(heads: Iterable[Head]) -> pd.DataFrame:
    """List heads, one line each: `site, layer, head`."""
    return pd.DataFrame([(head.site, head.layer, head.head) for head in heads], columns=HEAD)
