"""What is ablated at once: a head, a pair, a layer, any set of heads.

A unit is a set of heads whose gates are closed together, and the address by which tables know it:

    head                 one head
    kv_group             the query heads that share one key/value head; without grouping, one head
    layer                all heads of a layer of a site
    pair                 two heads, written so that (site, layer, head) of the first is the smaller
    all_but_one          all heads of a layer of a site but the named one (Michel et al. 2019)
    all_but_one_group    all key/value groups of a layer of a site but the one that is named
    set                  heads chosen by hand
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from interp.errors import InputError
from interp.heads import Head, Site, all_heads

KINDS = ("head", "kv_group", "layer", "pair", "all_but_one", "all_but_one_group", "set")
ADDRESS = ("site", "layer", "head", "kv_group")
SECOND = tuple(f"{name}_2" for name in ADDRESS)
COLUMNS = (*ADDRESS, *SECOND, "set")
"""All columns that may be part of a unit's address; a table has those that its kind needs."""


NONE_BECAUSE = {
    "pair": "a pair needs two heads (heads=[L5H1,L6H2,…], or null for all)",
    "all_but_one": "the layer has one head, so that nothing is left to ablate",
    "all_but_one_group": "the layer has one key/value group, so that nothing is left to ablate",
    "set": "name the sets, such as sets=[[L5H1,L6H2],[L7H0]]",
}


@dataclass(frozen=True)
class Unit:
    """Heads that are closed together, and their address."""

    closed: tuple[Head, ...]
    address: dict[str, str | int | None]


def units(
    kind: str, sites: Iterable[Site], heads: Sequence[Head], sets: Sequence[Sequence[Head]] = ()
) -> list[Unit]:
    """List the units of a kind.

    Args:
        kind: One of KINDS.
        sites: The model's kinds of attention.
        heads: The heads that units are made from: each head by itself, the groups and layers that
            they belong to, the pairs among them, the ones that are kept.
        sets: The units of kind `set`; nothing else looks at them.

    Raises:
        InputError: There is no such unit.
    """
    site = {s.name: s for s in sites}
    every = all_heads(site.values())

    def group(head: Head) -> tuple[str, int, int]:
        return head.site, head.layer, site[head.site].group(head.head)

    def layer(head: Head) -> tuple[str, int]:
        return head.site, head.layer

    def named(head: Head) -> dict[str, str | int | None]:
        return dict(zip(ADDRESS, (*layer(head), head.head, group(head)[-1]), strict=True))

    groups = list(dict.fromkeys(map(group, heads)))
    layers = list(dict.fromkeys(map(layer, heads)))
    match kind:
        case "head":
            found = [Unit((head,), named(head)) for head in heads]
        case "kv_group":
            found = [
                Unit(tuple(h for h in every if group(h) == g), _place(*g[:2], kv_group=g[2]))
                for g in groups
            ]
        case "layer":
            found = [Unit(tuple(h for h in every if layer(h) == at), _place(*at)) for at in layers]
        case "pair":
            found = [
                Unit(pair, named(pair[0]) | dict(zip(SECOND, named(pair[1]).values(), strict=True)))
                for pair in combinations(sorted(heads), 2)
            ]
        case "all_but_one":
            found = [
                Unit(tuple(h for h in every if layer(h) == layer(kept) and h != kept), named(kept))
                for kept in heads
            ]
        case "all_but_one_group":
            found = [
                Unit(
                    tuple(h for h in every if layer(h) == g[:2] and group(h) != g),
                    _place(*g[:2], kv_group=g[2]),
                )
                for g in groups
            ]
        case "set":
            found = [
                Unit(closed, _place(None, None) | {"set": "+".join(map(str, closed))})
                for closed in dict.fromkeys(tuple(sorted(set(chosen))) for chosen in sets)
            ]
        case _:
            raise InputError(f"unit={kind}: one of {', '.join(KINDS)}")
    found = [unit for unit in found if unit.closed]
    if not found:
        raise InputError(f"unit={kind}: {NONE_BECAUSE.get(kind, 'no heads')}")
    return found


def _place(
    site: str | None, layer: int | None, kv_group: int | None = None
) -> dict[str, str | int | None]:
    """Address what is larger than a head."""
    return dict(zip(ADDRESS, (site, layer, None, kv_group), strict=True))


def table(found: Sequence[Unit]) -> pd.DataFrame:
    """Put addresses into columns, one line a unit; integers are nullable where some are missing."""
    frame = pd.DataFrame([unit.address for unit in found])
    gaps = [name for name in frame if frame[name].isna().any()]
    return frame.astype({name: "str" if name == "site" else "Int64" for name in gaps})


def names(frame: pd.DataFrame) -> list[str]:
    """Write units for people: L5H1, L5H1+L6H2, L5 group 2, L5, L5 but H1; with their sites.

    Args:
        frame: The columns of an address, and `unit`, its kind.
    """
    return [_name(line) for _, line in frame.iterrows()]


def _name(line: pd.Series) -> str:
    if line["unit"] == "set":
        return line["set"]
    layer = str(Head(line["site"], line["layer"], 0)).removesuffix("H0")
    match line["unit"]:
        case "kv_group":
            return f"{layer} group {line['kv_group']}"
        case "layer":
            return layer
        case "pair":
            return f"{layer}H{line['head']}+{Head(line['site_2'], line['layer_2'], line['head_2'])}"
        case "all_but_one":
            return f"{layer} but H{line['head']}"
        case "all_but_one_group":
            return f"{layer} but group {line['kv_group']}"
    return f"{layer}H{line['head']}"
