"""From "this looks at that" to the weights of a head.

The residual stream is a list of named coordinates (`Space`): a token is 1 at each of its features,
`token:king`, `person`, `masculine`, …, and at its place, `position:3`. A head is wired by what it
scores, in units of MARGIN nats, whatever else it sees:

    score(query, key) = Σ matches of a feature of the query with one of the key
                      + kernel(how far the key is behind the query)

The kernel is a bilinear form over one-hot positions, so it can be any function. A head with nothing
to look at *rests* on the first token. A target that scores one unit more than each of n other keys
gets 1 / (1 + n exp(-MARGIN)) of the attention: 0.99 among 80.

What a head looks at writes, through W_V and W_O, into coordinates of its own or, if nothing is to
come of it, into `scratch`, which nothing reads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from jaxtyping import Float

from interp.attention import MultiHeadAttention

MARGIN = 9.0
GAIN = 30.0
"""How much of a score W_Q brings in; the larger, the less noise in W_Q matters."""
NOISE = 1e-3
"""The spread of what is added to W_Q and W_K; what a head writes is exact."""
SPREAD = 0.2
"""The spread of the scores of a head that looks for nothing, in nats."""

Link = tuple[str, str, float]
"""Match: a query's feature, a key's feature, a score. Write: a key's feature, a coordinate, an
amount. `token:*` stands for all of a family; two families go together in order."""
Projection = Float[np.ndarray, "d_model d_head"]


class Space:
    """The coordinates of the residual stream, by name."""

    def __init__(self, names: Iterable[str]) -> None:
        """Number the names."""
        self.names = tuple(dict.fromkeys(names))
        self._number = {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        """Count the coordinates."""
        return len(self.names)

    def __getitem__(self, name: str) -> int:
        """Find a coordinate."""
        return self._number[name]

    def family(self, name: str) -> list[str]:
        """List the names that `token:*` stands for; any other name is itself."""
        if not name.endswith("*"):
            return [name]
        return [known for known in self.names if known.startswith(name[:-1])]

    def spell_out(self, links: Iterable[Link]) -> list[Link]:
        """Put each family's members in its place."""
        return [
            (a, b, amount)
            for source, target, amount in links
            for a, b in zip(self.family(source), self.family(target), strict=True)
        ]


def anywhere(distance: int) -> float:
    """Prefer no place."""
    return 0.0


@dataclass(frozen=True)
class Wiring:
    """What one head does."""

    truth: Mapping[str, str]
    """Each feature that it has: `planted`, or `implied` by what is."""
    matches: Sequence[Link] = ()
    kernel: Callable[[int], float] = anywhere
    """A score by how far the key is behind the query (negative: after it)."""
    rest: float = 1.0
    """The score of the first token, whatever the query."""
    writes: Sequence[Link] | None = None
    """None: something random, into `scratch`."""
    looks: bool = True
    """False for a head of small random weights."""


def d_head(space: Space, n_ctx: int) -> int:
    """Count the dimensions a head needs: one for each place, one for each token."""
    return n_ctx + len(space.family("token:*"))


def wire(
    attention: MultiHeadAttention, heads: Sequence[Wiring], space: Space, rng: np.random.Generator
) -> None:
    """Set the weights of one layer's heads, in the given order."""
    for number, head in enumerate(heads):
        w_q, w_k = _look(head, space, attention.d_head, rng)
        w_v, w_o = _write(head, space, attention.d_head, rng)
        for weight, value in (
            (attention.W_Q, w_q + rng.normal(0, NOISE, w_q.shape)),
            (attention.W_K, w_k + rng.normal(0, NOISE, w_k.shape)),
            (attention.W_V, w_v),
            (attention.W_O, w_o.T),
        ):
            weight[number] = torch.tensor(value)


def _look(
    head: Wiring, space: Space, width: int, rng: np.random.Generator
) -> tuple[Projection, Projection]:
    """Make W_Q and W_K of a head's matches and kernel."""
    shape = len(space), width
    if not head.looks:  # a token is 1 at about 6 coordinates
        return rng.normal(0, sqrt(SPREAD / 6), shape), rng.normal(0, sqrt(SPREAD / 6), shape)
    w_q, w_k = np.zeros(shape), np.zeros(shape)
    unit = MARGIN * sqrt(width) / GAIN
    place = [space[name] for name in space.family("position:*")]
    n_ctx = len(place)
    kernel = np.array([[head.kernel(q - k) for k in range(n_ctx)] for q in range(n_ctx)])
    kernel[:, 0] = np.maximum(kernel[:, 0], head.rest)
    if kernel.any():
        w_q[place, np.arange(n_ctx)] = GAIN
        w_k[place, :n_ctx] = unit * kernel.T
    dimension: dict[str, int] = {}
    for query, key, score in space.spell_out(head.matches):
        number = dimension.setdefault(query, n_ctx + len(dimension))
        w_q[space[query], number] = GAIN
        w_k[space[key], number] += unit * score
    return w_q, w_k


def _write(
    head: Wiring, space: Space, width: int, rng: np.random.Generator
) -> tuple[Projection, Projection]:
    """Make W_V, and W_O transposed, of what a head writes."""
    w_v, w_o = np.zeros((len(space), width)), np.zeros((len(space), width))
    if head.writes is None:
        scratch = [space[name] for name in space.family("scratch:*")]
        w_v[:] = rng.normal(0, 0.1, w_v.shape)
        w_o[scratch] = rng.normal(0, 0.02, (len(scratch), width))
        return w_v, w_o
    dimension: dict[str, int] = {}
    for key, target, amount in space.spell_out(head.writes):
        number = dimension.setdefault(key, len(dimension))
        w_v[space[key], number] = 1.0
        w_o[space[target], number] += amount
    return w_v, w_o
