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

Zero takes a head's constant part away with its variable part, mean leaves the constant, resample
keeps the output typical but uninformed, uniform asks for the pattern alone: they answer different
questions and rank heads differently.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
KINDS = ("zero", "mean", "mean_by_position", "resample", "uniform")
POSITIONS = ("all", "not_first", "answer")


@runtime_checkable
class Baseline(Protocol):
    """What stands in for z where a gate is closed."""

    @property
    def n_draws(self) -> int:
        """How many versions of it there are; the effect is averaged over them."""

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Get ready for the rows of one batch of examples."""

    def at(self, place: Place, rows: Rows, draw: int) -> Float[Tensor, "..."]:
        """Give b for the rows (indices of the batch's sequences), broadcastable to z."""


@dataclass
class Zero:
    """Replace z by 0."""

    n_draws: int = 1

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Remember the device."""
        self.zero = torch.zeros((), device=model.device)

    def at(self, place: Place, rows: Rows, draw: int) -> Tensor:
        """Give 0."""
        return self.zero


@dataclass
class Mean:
    """Replace z by its mean over the real tokens of a reference."""

    means: Mapping[Place, Float[Tensor, "head d_head"]]
    n_draws: int = 1

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Nothing depends on the batch."""

    def at(self, place: Place, rows: Rows, draw: int) -> Tensor:
        """Give the head's mean, the same for all rows and positions."""
        return self.means[place]


@dataclass
class MeanByPosition:
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
class Resample:
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
        """Run each draw's partners and keep their z."""
        self.z = []
        for draw in self.partners:
            partners = questions(model, [self.sources[number] for number in draw[list(examples)]])
            with model.watching_z() as z:
                task.score(model, partners)
            self.z.append(z)

    def at(self, place: Place, rows: Rows, draw: int) -> Tensor:
        """Give the partners' z."""
        return self.z[draw][place][rows]


@dataclass
class Uniform:
    """Replace a head's attention by equal weights on the keys that each query may see."""

    model: HeadModel
    n_draws: int = 1
    is_checked: bool = False

    def prepare(self, model: HeadModel, task: Task, examples: Sequence[int]) -> None:
        """Lay out the equal weights, and check on the first batch that z is pattern · values."""
        batch = task.questions(model, examples).batch
        if not self.is_checked:
            check_values(model, batch)
            self.is_checked = True
        self.weights = {}
        for site in model.sites:
            for layer in range(site.n_layers):
                seen = model.visible(batch, site, layer).float()
                self.weights[site.name, layer] = seen / seen.sum(-1, keepdim=True).clamp(min=1)

    def at(self, place: Place, rows: Rows, draw: int) -> Tensor:
        """Average the values of the forward that is under way."""
        v = self.values[place].repeat_interleave(self.group_size(place), dim=2)
        weights = self.weights[place][rows].to(v.dtype)
        return torch.einsum("bqk,bkhd->bqhd", weights, v)

    def group_size(self, place: Place) -> int:
        """Count the query heads of one key/value head."""
        site = self.model.site[place[0]]
        return site.n_heads // site.n_kv_heads

    @contextmanager
    def watching(self, places: Iterable[Place]) -> Iterator[None]:
        """Catch the values of the given layers as the model makes them."""
        self.values: dict[Place, Values] = {}
        with ExitStack() as stack:
            for place in places:
                handle = self.model.attentions[place].watch_v(self._keep(place))
                stack.callback(handle.remove)
            yield

    def _keep(self, place: Place) -> Callable[[Values], None]:
        return lambda values: self.values.__setitem__(place, values)


def check_values(model: HeadModel, batch: Batch) -> None:
    """Check that what we take for pattern, values and visible keys does make z.

    Raises:
        InputError: It does not, so that attention cannot be replaced in this architecture.
    """
    uniform = Uniform(model)
    sites = [site.name for site in model.sites]
    with model.watching_z() as z, uniform.watching(model.attentions):
        model.visit(batch)
    for (name, layer), pattern in model.patterns(batch, sites).items():
        site = model.site[name]
        v = uniform.values[name, layer].repeat_interleave(uniform.group_size((name, layer)), dim=2)
        real = batch.queries(site).mask
        made = torch.einsum("bhqk,bkhd->bqhd", pattern.to(v.dtype), v)[real]
        seen = model.visible(batch, site, layer)[real]
        most = pattern.movedim(1, 2)[real].amax(1)  # over heads: weights are never negative
        leak = (most * ~seen).max()
        unused = bool((seen & (most == 0)).any())
        error = (made - z[name, layer][real]).abs().max() / z[name, layer][real].abs().max()
        if leak > 1e-6 or error > 1e-2 or unused:
            raise InputError(
                f"ablation=uniform: {model.name} does not compute {name} layer {layer} as "
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
        if isinstance(baseline, Uniform):
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
