"""What heads did at some positions: where they looked from there, and what they wrote there.

A position is a token of text (no pads, no tokens that the tokenizer added) that sees two keys or
more in every layer: who sees one key has no choice. Its row is its attention over the keys that it
sees in any layer, special ones included, which adds up to 1; all rows lie side by side. So where
only some layers have a sliding window, all heads are compared over the same keys, and what lies
beyond a head's window has no attention; where all have the same, rows end there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from interp.axes import Mask, Pattern, Z
from interp.errors import InputError
from interp.heads import Site
from interp.models import weights
from interp.models.head_model import Batch, HeadModel

LEAST_KEYS = 2
"""Keys that a position must see."""

Positions = Int[Tensor, " position"]
Rows = Float[Tensor, "head entry"]


@dataclass(frozen=True)
class Seen:
    """What all heads of one site did, layer by layer, at the same positions."""

    site: Site
    pattern: Rows
    """Each position's row after the other; a row begins with the first token that is seen."""
    z: Float[Tensor, "head position d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    n_keys: Positions
    """How long each row is."""
    sequence: Positions
    """The number of the sequence that each position is from."""

    def entries(self, positions: Int[Tensor, " some"]) -> Int[Tensor, " entry"]:
        """List the entries of positions, row after row."""
        length = self.n_keys[positions]
        start, begins = (self.n_keys.cumsum(0) - self.n_keys)[positions], length.cumsum(0) - length
        every = torch.arange(int(length.sum()), device=length.device)
        return every + spread(start - begins, length)

    def select(self, positions: Int[Tensor, " some"]) -> "Seen":
        """Pick positions, in the given order, with repetition."""
        return replace(
            self,
            pattern=self.pattern[:, self.entries(positions)],
            z=self.z[:, positions],
            n_keys=self.n_keys[positions],
            sequence=self.sequence[positions],
        )

    def permuted(self, rng: np.random.Generator) -> "Seen":
        """Shuffle each head's rows, and what it wrote, among positions that see as many keys.

        Each head on its own, so that two heads no longer agree on what stands where, only on how
        they look at and write about text in general. Behind a causal mask, who sees as many keys
        stands at the same place, and heads that look at fixed places or distances stay alike;
        without one a row goes to any place of a sequence as long, and distances get lost too.
        """
        n_keys = self.n_keys.cpu().numpy()
        in_order = np.argsort(n_keys, kind="stable")
        pattern, z = torch.empty_like(self.pattern), torch.empty_like(self.z)
        for head in range(len(pattern)):
            source = np.empty_like(in_order)
            source[in_order] = np.lexsort((rng.random(len(n_keys)), n_keys))
            positions = torch.from_numpy(source).to(self.n_keys.device)
            pattern[head] = self.pattern[head, self.entries(positions)]
            z[head] = self.z[head, positions]
        return replace(self, pattern=pattern, z=z)

    def resampled(
        self, documents: Shaped[np.ndarray, " sequence"], rng: np.random.Generator
    ) -> "Seen":
        """Draw as many documents as there are, with replacement.

        Args:
            documents: The document of each sequence, by the sequence's number.
            rng: Where the draws come from.
        """
        own = documents[self.sequence.cpu().numpy()]
        names = np.unique(own)
        drawn = rng.choice(names, len(names))
        positions = np.concatenate([np.flatnonzero(own == name) for name in drawn])
        return self.select(torch.from_numpy(positions).to(self.n_keys.device))


@torch.no_grad()
def look(
    model: HeadModel, batches: Iterable[tuple[Batch, Sequence[int]]], n_positions: int
) -> dict[str, Seen]:
    """Look at all heads of a model on some text.

    Args:
        model: The model.
        batches: What it reads, each batch with the numbers of its sequences.
        n_positions: At most so many positions of each site: those of the sequences with the lowest
            numbers.

    Returns:
        What was seen, by site; positions are in the order of their sequences' numbers.

    Raises:
        InputError: There is no such position.
    """
    parts: dict[str, list[tuple[Tensor, ...]]] = {site.name: [] for site in model.sites}
    for batch, numbers in batches:
        with model.watching_z() as z:
            model.visit(batch)
        patterns = model.patterns(batch, list(parts))
        for site in model.sites:
            layers = [(site.name, layer) for layer in range(site.n_layers)]
            parts[site.name].append(
                _part(
                    torch.stack([model.visible(batch, site, layer) for _, layer in layers]),
                    batch.queries(site).special,
                    torch.tensor(numbers, device=batch.text.tokens.device),
                    torch.cat([patterns[place] for place in layers], dim=1),
                    torch.cat([z[place] for place in layers], dim=2),
                )
            )
    found = {}
    for site in model.sites:
        pattern, z_, n_keys, sequence = zip(*parts[site.name], strict=True)
        if not sum(map(len, n_keys)):
            raise InputError(f"no token of the text sees {LEAST_KEYS} keys in {site.name}")
        W_O = [weights.output(model, site, layer) for layer in range(site.n_layers)]
        every = Seen(
            site,
            torch.cat(pattern, dim=1),
            torch.cat(z_, dim=1),
            _wide(torch.cat(W_O)),
            torch.cat(n_keys),
            torch.cat(sequence),
        )
        order = every.sequence.argsort(stable=True)
        found[site.name] = every.select(order[:n_positions])
    return found


def _part(
    visible: Bool[Tensor, "layer batch query key"],
    special: Mask,
    numbers: Int[Tensor, " batch"],
    pattern: Pattern,
    z: Z,
) -> tuple[Tensor, ...]:
    """Take the rows and outputs of one batch."""
    seen = visible.any(0)
    asking = ~special & (visible.sum(-1) >= LEAST_KEYS).all(0)
    rows = _wide(pattern.transpose(0, 1)[:, seen & asking[..., None]])
    n_keys = seen.sum(-1)[asking]
    rows = rows / spread(totals(rows, n_keys), n_keys)  # (1, but for rounding)
    sequence = numbers[:, None].expand(asking.shape)[asking]
    return rows, _wide(z[asking].transpose(0, 1)), n_keys, sequence


def totals(rows: Rows, n_keys: Positions) -> Float[Tensor, "head position"]:
    """Add up the entries of each row."""
    row = torch.arange(len(n_keys), device=n_keys.device).repeat_interleave(n_keys)
    return rows.new_zeros(len(rows), len(n_keys)).index_add_(1, row, rows)


def spread(values: Shaped[Tensor, "*head position"], n_keys: Positions) -> Shaped[Tensor, "..."]:
    """Give each entry the value of its row."""
    return values.repeat_interleave(n_keys, dim=-1)


def _wide(values: Tensor) -> Tensor:
    """Compute in single precision at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
