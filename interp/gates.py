"""The head gate: every intervention on a head is z' = ξ·z + (1 - ξ)·b.

ξ is 1 where a head does its work and 0 where it is replaced by a baseline b:

    zero                b = 0 (Michel et al. 2019, Voita et al. 2019): the value bias is part of z
                        and goes with it, W_O's bias stays, no other head is rescaled
    mean                b = the mean of z over the real tokens of a reference text
    mean_by_position    the same for each position, counted from the first real token
    resample            b = z at the same position in a partner example of equal token counts,
                        averaged over several draws of partners
    uniform             b = the mean of the head's own values over the keys that the query may see
                        (Kovaleva et al. 2019): attention without preference
    twin                b = the head's own values under another head's pattern: what merging two
                        heads' attention comes to, where one pattern is computed for both

Zero takes a head's constant part away with its variable part, mean leaves the constant, resample
keeps the output typical but uninformed, uniform asks for the pattern alone, twin for what is the
head's own in its pattern: they answer different questions and rank heads differently.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.axes import Z
from interp.errors import InputError
from interp.heads import Head
from interp.models.head_model import Batch, HeadModel, Rows, Values
from interp.tasks.task import Questions, Task, questions

Place = tuple[str, int]
"""A layer of a site."""
Xi = Float[Tensor, "row _ head"]
Setting = tuple[Head, ...]
"""The heads whose gates are closed in a row."""
KINDS = ("zero", "mean", "mean_by_position", "resample", "uniform", "twin")
POSITIONS = ("all", "not_first", "answer")


@runtime_checkable
class Baseline(Protocol):
    """What stands in for z where a gate is closed."""

    @property
    def n_draws(self) -> int:
        """How many versions of it there are; the effect is averaged over them."""

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Get ready for the rows of one batch of examples."""

    def watching(self, places: Iterable[Place]) -> AbstractContextManager[None]:
        """Watch what it needs of the forward under way, in the layers where gates are closed."""
        return nullcontext()

    def at(self, place: Place, rows: Rows, draw: int) -> Float[Tensor, "..."]:
        """Give b for the rows (indices of the batch's sequences), broadcastable to z."""


@dataclass
class Zero(Baseline):
    """Replace z by 0."""

    n_draws: int = 1

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Remember the device."""
        self.zero = torch.zeros((), device=model.device)

    def at(self, place: Place, rows: Rows, draw: int) -> Tensor:
        """Give 0."""
        return self.zero


@dataclass
class Mean(Baseline):
    """Replace z by its mean over the real tokens of a reference."""

    means: Mapping[Place, Float[Tensor, "head d_head"]]
    n_draws: int = 1

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Nothing depends on the batch."""

    def at(self, place: Place, rows: Rows, draw: int) -> Tensor:
        """Give the head's mean, the same for all rows and positions."""
        return self.means[place]


@dataclass
class MeanByPosition(Baseline):
    """Replace z by its mean at the same position of a reference."""

    means: Mapping[Place, Float[Tensor, "position head d_head"]]
    n_draws: int = 1

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Find each token's position, and check that the reference has it."""
        batch = task.questions(model, examples).batch
        self.position = {site.name: batch.queries(site).position for site in model.sites}
        for (name, layer), means in self.means.items():
            if layer > 0:
                continue  # the reference has the same positions in all layers of a site
            text = batch.queries(model.site[name])
            needed = text.position[text.mask].unique()
            known = needed < len(means)
            lacking = needed[~known | means[needed.clamp(max=len(means) - 1)].isnan().any((-1, -2))]
            if len(lacking):
                raise InputError(
                    f"ablation=mean_by_position: the reference has no token at position "
                    f"{int(lacking[0])} of {name} (longest: {len(means)} tokens; special tokens "
                    f"count only under reference.specials=true)"
                )

    def at(self, place: Place, rows: Rows, draw: int) -> Tensor:
        """Give the head's mean at each token's position."""
        return self.means[place][self.position[place[0]][rows]]


@dataclass
class Resample(Baseline):
    """Replace z by a partner's, at the same position."""

    partners: Int[np.ndarray, "draw example"]
    """For each draw, every example's partner; or the corrupted twins, for which see `sources`."""
    sources: Sequence[tuple]
    """The examples that partners are taken from."""

    @property
    def n_draws(self) -> int:
        """Count the draws."""
        return len(self.partners)

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Run the partners, each once in however many draws it is, and keep their z."""
        drawn = self.partners[:, list(examples)]
        distinct, number = np.unique(drawn, return_inverse=True)
        parts = []
        for start in range(0, len(distinct), len(examples)):  # as many together as examples
            chosen = distinct[start : start + len(examples)]
            with model.watching_z() as z:
                task.score(model, questions(model, [self.sources[n] for n in chosen]))
            parts.append(z)
        self.z = {place: torch.cat([z[place] for z in parts]) for place in parts[0]}
        first = torch.tensor(number.reshape(drawn.shape) * task.n_sequences)
        self.rows = (first[..., None] + torch.arange(task.n_sequences)).flatten(1).to(model.device)

    def at(self, place: Place, rows: Rows, draw: int) -> Tensor:
        """Give the partners' z."""
        return self.z[place][self.rows[draw][rows]]


Weights = Float[Tensor, "batch _ query key"]
"""What each head takes from each key; one for all heads, or one for each."""


@dataclass
class Reweighted(Baseline):
    """Replace a head's pattern: its own values, of the forward under way, under other weights."""

    kind: ClassVar[str]
    model: HeadModel
    n_draws: int = 1
    is_checked: bool = False

    def weights_of(self, batch: Batch) -> dict[Place, Weights]:
        """Lay out the weights that replace the patterns on a batch."""
        raise NotImplementedError

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Lay out the weights, and check on the first batch that z is pattern · values."""
        batch = task.questions(model, examples).batch
        if not self.is_checked:
            check_values(model, batch, self.kind)
            self.is_checked = True
        self.weights = self.weights_of(batch)

    def at(self, place: Place, rows: Rows, draw: int) -> Z:
        """Average the values of the forward that is under way."""
        v = self.values[place]
        return (self.weights[place][rows].to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2)

    @contextmanager
    def watching(self, places: Iterable[Place]) -> Iterator[None]:
        """Catch the values of the given layers as the model makes them, one for each head."""
        with watching_values(self.model, places) as self.values:
            yield


class Uniform(Reweighted):
    """Replace a head's attention by equal weights on the keys that each query may see."""

    kind = "uniform"

    def weights_of(self, batch: Batch) -> dict[Place, Weights]:
        """Share one among the visible keys."""
        found = {}
        for name, layer in self.model.attentions:
            seen = self.model.visible(batch, self.model.site[name], layer).float()
            found[name, layer] = (seen / seen.sum(-1, keepdim=True).clamp(min=1))[:, None]
        return found


@dataclass
class Twin(Reweighted):
    """Replace a head's attention by that of another head, in the clean run of the same example.

    The twin is of the same site and of any layer. (Where it is in the same layer or an earlier one
    and no gate is closed before it, the clean run's pattern is also that of the run under way.)
    What it gives to keys that the head's own layer may not see, behind a sliding window, is left
    out and the rest scaled to add up to 1.
    """

    kind = "twin"
    twins: Mapping[Head, Head] = field(kw_only=True)
    """Whose pattern each head gets; a head that is not there keeps its own."""

    def weights_of(self, batch: Batch) -> dict[Place, Weights]:
        """Read the twins' patterns."""
        found = {}
        patterns = self.model.patterns(batch, [site.name for site in self.model.sites])
        for (name, layer), own in patterns.items():
            site = self.model.site[name]
            heads = [Head(name, layer, number) for number in range(site.n_heads)]
            twins = [self.twins.get(head, head) for head in heads]
            taken = [patterns[name, twin.layer][:, twin.head] for twin in twins]
            seen = self.model.visible(batch, site, layer)[:, None]
            weights = torch.stack(taken, dim=1).where(seen, 0)
            total = weights.sum(-1, keepdim=True)
            found[name, layer] = weights / total.clamp(min=torch.finfo(own.dtype).tiny)
        return found


@contextmanager
def watching_values(
    model: HeadModel, places: Iterable[Place]
) -> Iterator[dict[Place, Float[Tensor, "batch key head d_head"]]]:
    """Keep the values of the given layers, each query head's own, while the `with` block runs."""
    kept: dict[Place, Tensor] = {}

    def keep(place: Place) -> Callable[[Values], None]:
        site = model.site[place[0]]
        group = site.n_heads // site.n_kv_heads
        return lambda v: kept.__setitem__(place, v.repeat_interleave(group, dim=2))

    with ExitStack() as stack:
        for place in places:
            stack.callback(model.attentions[place].watch_v(keep(place)).remove)
        yield kept


def check_values(model: HeadModel, batch: Batch, kind: str) -> None:
    """Check that what we take for pattern, values and visible keys does make z.

    Raises:
        InputError: It does not, so that attention cannot be replaced in this architecture.
    """
    sites = [site.name for site in model.sites]
    with model.watching_z() as z, watching_values(model, model.attentions) as values:
        model.visit(batch)
    for (name, layer), pattern in model.patterns(batch, sites).items():
        site = model.site[name]
        if not (pattern.any() or z[name, layer].any()):
            continue  # a layer without heads, in a pruned model
        v = values[name, layer]
        real = batch.queries(site).mask
        made = torch.einsum("bhqk,bkhd->bqhd", pattern.to(v.dtype), v)[real]
        seen = model.visible(batch, site, layer)[real]
        most = pattern.movedim(1, 2)[real].amax(1)  # over heads: weights are never negative
        leak = (most * ~seen).max()
        unused = bool((seen & (most == 0)).any())
        error = (made - z[name, layer][real]).abs().max() / z[name, layer][real].abs().max()
        if leak > 1e-6 or error > 1e-2 or unused:
            raise InputError(
                f"ablation={kind}: {model.name} does not compute {name} layer {layer} as "
                f"pattern · values over the keys we take as visible (relative error {error:.2g}, "
                f"weight on hidden keys {leak:.2g}, visible keys without weight: {unused}); "
                f"use zero, mean or resample"
            )


@torch.inference_mode()
def means(
    model: HeadModel, batches: Iterable[Questions], *, by_position: bool, specials: bool
) -> dict[Place, Tensor]:
    """Average z over the real tokens of some batches, overall or at each position.

    Args:
        model: The model.
        batches: The reference.
        by_position: Average each position apart, counted from the first real token.
        specials: Count BOS, [CLS] and the like as real tokens.

    Returns:
        For each layer of each site `[head d_head]`, or `[position head d_head]`, NaN at positions
        that hold no real token.
    """
    batches = list(batches)
    widths = [
        text.tokens.shape[1] for b in batches for text in (b.batch.text, b.batch.target) if text
    ]
    n_positions = max(widths) if by_position else 1
    sums: dict[Place, Tensor] = {}
    counts: dict[Place, Tensor] = {}
    for asked in batches:
        with model.watching_z() as z:
            model.visit(asked.batch)
        for place, values in z.items():
            text = asked.batch.queries(model.site[place[0]])
            real = text.mask if specials else text.mask & ~text.special
            at = text.position[real] if by_position else torch.zeros_like(text.tokens[real])
            empty = values.new_zeros((n_positions, *values.shape[2:]), dtype=torch.float64)
            sums[place] = sums.get(place, empty).index_add(0, at, values[real].double())
            none = empty.new_zeros(n_positions)
            counts[place] = counts.get(place, none) + at.bincount(minlength=n_positions)
    if any(count.sum() == 0 for count in counts.values()):
        raise InputError(
            "the reference has no real tokens (reference.specials=true counts special ones)"
        )
    dtype = next(model.module.parameters()).dtype
    result = {place: (sums[place] / counts[place][:, None, None]).to(dtype) for place in sums}
    return result if by_position else {place: mean[0] for place, mean in result.items()}


def derangements(
    groups: Sequence[object], n_draws: int, rng: np.random.Generator, forbidden: Sequence[object]
) -> Int[np.ndarray, "draw example"]:
    """Draw partners: permutations within groups of equal token counts that leave no one in place.

    Args:
        groups: Each example's token counts.
        n_draws: How many permutations.
        rng: The source of randomness.
        forbidden: A label per example; partners must differ in it (its own number: anyone else).

    Raises:
        InputError: An example has no admissible partner.
    """
    labels = np.unique(np.array([str(label) for label in forbidden]), return_inverse=True)[1]
    members: dict[object, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    draws = np.empty((n_draws, len(groups)), dtype=int)
    for group, numbers in members.items():
        indices = np.array(numbers)
        counts = np.bincount(labels[indices])
        largest = counts.max()
        if 2 * largest > len(indices):
            lonely = numbers[int((labels[indices] == counts.argmax()).argmax())]
            raise InputError(
                f"ablation=resample: example {lonely} ({group} tokens) has no partner: of "
                f"{len(numbers)} examples with as many tokens, {largest} may not be each other's "
                f"partner (leave it out, or give it company: n_examples, task.context)"
            )
        for draw in draws:
            draw[indices] = indices[_derangement(labels[indices], rng)]
    return draws


def _derangement(labels: Int[np.ndarray, " member"], rng: np.random.Generator) -> np.ndarray:
    """Draw a permutation under which every member's label changes.

    Labels and members are shuffled, members sorted by label, and the sequence is turned by at least
    the largest label's count and at most the rest: each member meets another label.
    """
    labels = rng.permutation(labels.max() + 1)[labels]
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    largest = np.bincount(labels).max()
    turn = rng.integers(largest, len(labels) - largest, endpoint=True)
    partner = np.empty_like(order)
    partner[order] = np.roll(order, turn)
    return partner


def xi(
    model: HeadModel,
    batch: Batch,
    settings: Sequence[Setting],
    acts: Mapping[str, Bool[Tensor, "row _"]],
) -> dict[Place, Xi]:
    """Lay out the gates of some rows: 0 where a row's heads are closed, 1 elsewhere.

    Args:
        model: The model.
        batch: The rows.
        settings: The closed heads of each row.
        acts: For each site, the positions where gates act; open elsewhere.
    """
    closed: dict[Place, list[tuple[int, int]]] = {}
    for row, setting in enumerate(settings):
        for head in setting:
            closed.setdefault((head.site, head.layer), []).append((row, head.head))
    gates = {}
    for place, entries in closed.items():
        site = model.site[place[0]]
        rows, heads = torch.tensor(entries, device=model.device).unbind(-1)
        shape = *batch.queries(site).tokens.shape, site.n_heads
        gates[place] = torch.ones(shape, device=model.device)
        gates[place][rows, :, heads] = (~acts[site.name][rows]).float()
    return gates


@contextmanager
def gated(
    model: HeadModel, gates: Mapping[Place, Xi], baseline: Baseline, rows: Rows, draw: int
) -> Iterator[None]:
    """Put the gates in force: z' = ξ·z + (1 - ξ)·b, exact at ξ = 1 and at ξ = 0."""

    def edit(place: Place) -> Callable[[Z], Z]:
        def blend(z: Z) -> Z:
            b = baseline.at(place, rows, draw).to(z.dtype).expand_as(z)
            return torch.lerp(b, z, gates[place][..., None].to(z.dtype))

        return blend

    with ExitStack() as stack:
        stack.enter_context(baseline.watching(gates))
        stack.enter_context(model.editing({place: edit(place) for place in gates}))
        yield


def acting(
    model: HeadModel, asked: Questions, positions: str, heads: Iterable[Head]
) -> dict[str, Bool[Tensor, "batch _"]]:
    """Mark, for each site, the positions where gates act.

    Args:
        model: The model.
        asked: A batch and what is read from it.
        positions: `all`; `not_first` (all but the first real token); or `answer` (those whose
            logits are read).
        heads: The heads that will be gated.

    Raises:
        InputError: `answer`, where a gated site has no position that is read.
    """
    sites = {head.site for head in heads}
    marks = {}
    for site in (site for site in model.sites if site.name in sites):
        text = asked.batch.queries(site)
        mark = text.mask.clone()
        if positions == "not_first":
            mark &= text.mask.cumsum(-1) > 1
        elif positions == "answer":
            if site.stack == "encoder_blocks" or not asked.asked.any():
                raise InputError(
                    f"positions=answer: no logits are read at the positions of {site.name} "
                    f"(use all or not_first, or name heads of another site)"
                )
            mark = torch.zeros_like(mark)
            rows, reads = asked.asked.nonzero().unbind(-1)
            mark[rows, asked.read[rows, reads]] = True
        marks[site.name] = mark
    return marks
