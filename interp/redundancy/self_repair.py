"""What do later layers restore when a head is taken out?

A head adds to the answer by what it writes itself, and by what later parts make of it. Take it out,
and later parts may make up for some of the loss (McGrath et al. 2023, the Hydra effect,
https://arxiv.org/abs/2307.15771; Rushing & Nanda 2024, https://arxiv.org/abs/2402.15390). In units
of damage, m being the logit difference:

    contribution   DE(head): what the head's output adds to m in the clean run
    direct         −ΔDE(head): what the answer loses of that
    total          −Δm: what it loses after all, the damage of a sweep
    self_repair    direct − total = by_heads + by_mlps + by_norm
    by_heads       ΔDE of all other heads
    by_mlps        ΔDE of all MLPs, the one of the head's own layer included
    by_norm        −[m(ablated, scales as in the clean run) − m(ablated, live scales)]

DE(part), the direct effect, is linear in what the part writes: on its way to the logits it goes
through every norm with the scale that the norm has in the clean run, so that

    m = Σ heads + Σ MLPs + embeddings + biases

holds in the clean run (a law that every batch is checked for), and what norms restore, whose scales
shrink with the stream that they divide, is told apart from what parts do. That needs a metric that
is linear in the logits (logit_diff) and logits that are linear in the last norm's output, of a
decoder whose blocks add to one stream.

Later parts do two things: they make something of what the head wrote, which is lost with it and
makes self_repair negative, and they make up for what is missing, which makes it positive. It is the
sum of both that is measured; a head whose total exceeds its direct effect works through others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp import statistics, sweep
from interp.axes import Z
from interp.errors import InputError
from interp.gates import Baseline, Setting
from interp.heads import HEAD, Head, to_table
from interp.models import weights
from interp.models.head_model import Handle, HeadModel, Rows, norm_gain
from interp.redundancy.tables import HEAD_2
from interp.sweep import Job
from interp.tasks.task import Questions, Task

ROUNDING = 64
"""How many units in the last place of the sum of what parts add, each taken positive, the law may
be missed by."""
EFFECTS = ("contribution", "direct", "total", "self_repair", "by_heads", "by_mlps", "by_norm")
REST = ("embeddings", "biases")
"""What adds to the logit difference beside heads and MLPs."""
Matrix = Float[np.ndarray, "setting example"]


@dataclass(frozen=True)
class Parts:
    """What heads and MLPs add to the logit difference, in logits (direct effects)."""

    heads: Float[Tensor, "row layer head"]
    mlps: Float[Tensor, "row layer"]

    def select(self, rows: Rows) -> "Parts":
        """Pick rows, in the given order, with repetition."""
        return Parts(self.heads[rows], self.mlps[rows])

    def __sub__(self, other: "Parts") -> "Parts":
        """Subtract row by row."""
        return Parts(self.heads - other.heads, self.mlps - other.mlps)


@dataclass(frozen=True)
class Readout:
    """How the logit difference of some examples is read off what parts write, and what it comes to.

    Directions are those of the stream that add to the logit difference, each part's seen through
    the norms behind it, whose scales are those of the clean run.
    """

    position: Int[Tensor, " example"]
    """Where the logits are read."""
    heads: list[Float[Tensor, "example head d_head"]]
    """For each layer, directions of z."""
    mlps: list[Float[Tensor, "example d_model"]]
    """For each layer, directions of what the MLP returns."""
    clean: Parts
    embeddings: Float[Tensor, " example"]
    biases: Float[Tensor, " example"]
    """Of attentions, norms and the unembedding."""

    @property
    def total(self) -> Float[Tensor, " example"]:
        """Add everything up: the logit difference."""
        return self.clean.heads.sum((1, 2)) + self.clean.mlps.sum(1) + self.embeddings + self.biases


class Reader:
    """Reads what each part of a decoder adds to a logit difference."""

    def __init__(self, model: HeadModel, task: Task) -> None:
        """Bind the model.

        Raises:
            InputError: Self-repair is not defined for this model or task.
        """
        if model.kind != "decoder":
            raise InputError(
                f"self-repair is not defined for {model.name}, an {model.kind.replace('_', '-')}: "
                f"its heads do not add to one stream up to the logits; take a decoder that "
                f"normalises before each block (GPT-2, GPT-NeoX, Llama, Gemma)"
            )
        if task.metric != "logit_diff":
            raise InputError(
                f"self-repair needs a metric that is linear in the logits, and {task.metric} of "
                f"task={task.name} is not: take a task of logit_diff (agreement, pronouns, prompts)"
            )
        cap = getattr(getattr(model, "config", None), "final_logit_softcapping", None)
        if cap is not None:
            raise InputError(
                f"self-repair is not defined for {model.name}: its logits are soft-capped "
                f"(final_logit_softcapping={cap:g}), so that what parts add to them does not add "
                f"up; take a model without a cap"
            )
        if (
            not isinstance(model.unembed, nn.Linear)
            or model.final_norm is None
            or len(model.writers) != len(model.blocks)
        ):
            raise InputError(
                f"self-repair: what writes into the stream of {model.name} is not known; take a "
                f"decoder that is whole and normalises before each block"
            )
        self.model, self.task, [self.site] = model, task, model.sites
        self.unembed, self.final_norm = model.unembed, model.final_norm
        layers = range(self.site.n_layers)
        with torch.inference_mode():
            self.W_O = [weights.output(model, self.site, layer) for layer in layers]

    @property
    def names(self) -> list[str]:
        """Name every part: heads, then MLPs."""
        layers = range(self.site.n_layers)
        heads = [f"L{layer}H{head}" for layer in layers for head in range(self.site.n_heads)]
        return [*heads, *(f"MLP{layer}" for layer in layers)]

    @torch.inference_mode()
    def readout(self, asked: Questions) -> Readout:
        """Run a batch clean and find out how to read it.

        Raises:
            InputError: What parts add does not add up to the logit difference.
        """
        read, score = self._clean_inputs(asked)
        right, wrong = asked.ids[:, 0].unbind(-1)
        difference = self.unembed.weight[right].double() - self.unembed.weight[wrong].double()
        last, bias = through(self.final_norm, read["last"], difference)
        if self.unembed.bias is not None:
            bias = bias + self.unembed.bias[right].double() - self.unembed.bias[wrong].double()
        made = last * read["last"].double()
        self._same(made.sum(-1) + bias, score, made.abs().sum(-1), UNEMBEDDED)
        heads, mlps = [], []
        for layer, (W_O, writers) in enumerate(zip(self.W_O, self.model.writers, strict=True)):
            pulled, constant = through(writers.attn_norm, read.get(f"attn{layer}"), last)
            heads.append(torch.einsum("em,hdm->ehd", pulled, W_O.double()))
            fixed = self.model.attentions[self._place(layer)].constant().double()
            bias = bias + constant + pulled @ fixed
            pulled, constant = through(writers.mlp_norm, read.get(f"mlp{layer}"), last)
            mlps.append(pulled)
            bias = bias + constant
        n_examples, n_layers = len(last), self.site.n_layers
        nothing = Parts(
            last.new_zeros(n_examples, n_layers, self.site.n_heads),
            last.new_zeros(n_examples, n_layers),
        )
        embeddings = (last * read["first"].double()).sum(-1)
        found = Readout(asked.read[:, 0], heads, mlps, nothing, embeddings, bias)
        with self.watching(found, torch.arange(n_examples, device=last.device)) as clean:
            self.task.score(self.model, asked)
        found = replace(found, clean=clean)
        size = clean.heads.abs().sum((1, 2)) + clean.mlps.abs().sum(1) + embeddings.abs()
        self._same(found.total, score, size, ADDED)
        return found

    @contextmanager
    def watching(self, readout: Readout, rows: Rows, start: int = 0) -> Iterator[Parts]:
        """Read what parts add while the `with` block runs a batch.

        Args:
            readout: How.
            rows: For each row of the coming batch, the example of the readout that it repeats.
            start: The first block that runs; what is before it stays as in the clean run.
        """
        parts = readout.clean.select(rows)
        every, at = torch.arange(len(rows), device=rows.device), readout.position[rows]

        def head_reader(layer: int) -> Callable[[Z], Z]:
            def read(z: Z) -> Z:
                direction = readout.heads[layer][rows]
                parts.heads[:, layer] = (z[every, at].double() * direction).sum(-1)
                return z

            return read

        def mlp_reader(layer: int) -> Callable[..., None]:
            def read(_: nn.Module, __: Any, output: Any) -> None:
                written = _at(output, every, at).double()
                parts.mlps[:, layer] = (written * readout.mlps[layer][rows]).sum(-1)

            return read

        layers = range(start, self.site.n_layers)
        with ExitStack() as stack:
            for layer in layers:
                if (mlp := self.model.writers[layer].mlp) is not None:
                    stack.callback(mlp.register_forward_hook(mlp_reader(layer)).remove)
            edits = {self._place(layer): head_reader(layer) for layer in layers}
            stack.enter_context(self.model.editing(edits))
            yield parts

    def _clean_inputs(
        self, asked: Questions
    ) -> tuple[dict[str, Float[Tensor, "example d_model"]], Float[Tensor, " example"]]:
        """Keep what the first block and the norms between a part and the logits read.

        Returns:
            Their inputs where the logits are read: `first, last` and, where there are such norms,
            `attn0, mlp0, …`; and the logit difference.
        """
        kept: dict[str, Tensor] = {}
        every = torch.arange(len(asked.batch), device=asked.read.device)

        def keep(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
                given = args[0] if args else kwargs["hidden_states"]
                kept[name] = _at(given, every, asked.read[:, 0])

            return hook

        stack, number = self.model.blocks[0]
        modules: dict[str, nn.Module | None] = {"first": stack[number], "last": self.final_norm}
        for layer, writers in enumerate(self.model.writers):
            modules[f"attn{layer}"], modules[f"mlp{layer}"] = writers.attn_norm, writers.mlp_norm
        handles: list[Handle] = [
            module.register_forward_pre_hook(keep(name), with_kwargs=True)
            for name, module in modules.items()
            if module is not None
        ]
        try:
            score = self.task.score(self.model, asked)
        finally:
            for handle in handles:
                handle.remove()
        return kept, score.double()

    def _same(
        self,
        made: Float[Tensor, " example"],
        score: Float[Tensor, " example"],
        size: Float[Tensor, " example"],
        problem: str,
    ) -> None:
        """Refuse a model whose logit difference is not what its parts come to."""
        epsilon = torch.finfo(self.unembed.weight.dtype).eps
        off = (made - score).abs()
        if not (off <= ROUNDING * epsilon * (1 + size)).all():  # (NaN is refused, too)
            raise InputError(
                f"self-repair is not defined for {self.model.name}: {problem} "
                f"(off by {off.max():.2g} logits)"
            )

    def _place(self, layer: int) -> tuple[str, int]:
        return self.site.name, layer


UNEMBEDDED = (
    "its logits are not the unembedding of its last norm's output (something follows, such as a "
    "scale); take a model without"
)
ADDED = (
    "its stream is not the sum of what embeddings, heads and MLPs write (a post-norm model, or one "
    "that scales what they write); take a decoder that normalises before each block"
)


def _at(
    output: Any, every: Int[Tensor, " row"], at: Int[Tensor, " row"]
) -> Float[Tensor, "row d_model"]:
    """Take what a module made at one position of each row; some flatten rows and positions."""
    made = output[0] if isinstance(output, tuple) else output
    return made.reshape(len(every), -1, made.shape[-1])[every, at]


def through(
    norm: nn.Module | None,
    given: Float[Tensor, "example d_model"] | None,
    direction: Float[Tensor, "example d_model"],
) -> tuple[Float[Tensor, "example d_model"], Float[Tensor, " example"]]:
    """Turn a direction that reads a norm's output into one that reads its input.

    With norm(x) = gain · (x − mean) / scale + bias (no mean in an RMSNorm) and the scale as it is:

        direction · norm(x) = pulled · x + constant

    Args:
        norm: The norm; None leaves everything as it is.
        given: The x whose scale is meant.
        direction: What reads the output.

    Returns:
        pulled, constant.
    """
    if norm is None or given is None:
        return direction, direction.new_zeros(len(direction))
    gain, is_centred = norm_gain(norm, torch.ones_like(given[0]))
    bias = norm(torch.zeros_like(given)).double()
    x = given.double()
    varying = gain.double() * (x - x.mean(-1, keepdim=True) if is_centred else x)
    made = norm(given).double() - bias
    inverse_scale = (made * varying).sum(-1, keepdim=True) / (varying**2).sum(-1, keepdim=True)
    pulled = direction * gain.double() * inverse_scale
    if is_centred:
        pulled = pulled - pulled.mean(-1, keepdim=True)
    return pulled, (direction * bias).sum(-1)


class Engine(sweep.Engine):
    """Runs the jobs of a plan and tells what heads, MLPs and norms do in each row."""

    def __init__(
        self,
        model: HeadModel,
        task: Task,
        settings: Sequence[Setting],
        baseline: Baseline,
        positions: str,
        *,
        part_by_part: bool = False,
    ) -> None:
        """Bind what stays the same in all jobs.

        Raises:
            InputError: Self-repair is not defined for this model or task.
        """
        super().__init__(model, task, settings, baseline, positions)
        self.reader, self.part_by_part = Reader(model, task), part_by_part

    def start(self, examples: tuple[int, ...]) -> None:
        """Run a new batch clean, and find out how to read it."""
        super().start(examples)
        self.examples = ()  # until all of the new batch is in place
        self.readout = self.reader.readout(self.asked)
        self.examples = examples

    @torch.inference_mode()
    def run(self, job: Job) -> pd.DataFrame:
        """Run one micro-batch.

        Returns:
            As the sweep's engine, with `contribution, direct, by_heads, by_mlps` (see the module)
            of the closed heads together; with `part_by_part` also the ΔDE of each part, by names
            such as `L5H1` and `MLP5`.
        """
        with (
            self.closing(job) as (asked, rows),
            self.reader.watching(self.readout, rows, job.block) as parts,
        ):
            ablated = self.task.score(self.model, asked)
        clean = self.readout.clean.select(rows)
        change, closed = parts - clean, self._closed(job)
        columns = {
            "contribution": (clean.heads * closed).sum((1, 2)),
            "direct": -(change.heads * closed).sum((1, 2)),
            "by_heads": (change.heads * ~closed).sum((1, 2)),
            "by_mlps": change.mlps.sum(1),
        }
        table = self.lines(job, ablated).assign(
            **{name: value.cpu().numpy() for name, value in columns.items()}
        )
        if not self.part_by_part:
            return table
        every = torch.cat([change.heads.flatten(1), change.mlps], dim=1).float().cpu().numpy()
        return pd.concat([table, pd.DataFrame(every, columns=self.reader.names)], axis=1)

    def _closed(self, job: Job) -> Bool[Tensor, "row layer head"]:
        """Mark the heads that are closed in each row."""
        site = self.reader.site
        shape = len(job.settings), site.n_layers, site.n_heads
        mark = torch.zeros(shape, dtype=torch.bool, device=self.model.device)
        for number, setting in enumerate(job.settings):
            for head in self.settings[setting]:
                mark[number, head.layer, head.head] = True
        return mark.repeat_interleave(len(job.examples), dim=0)


def contributions(
    reader: Reader, task: Task, tokens_per_batch: int
) -> dict[str, Float[np.ndarray, " example"]]:
    """Take the logit difference of the clean model apart.

    Returns:
        What each part adds on each example, in logits: heads (`L5H1`), MLPs (`MLP5`), `embeddings`
        and `biases`; together the logit difference.
    """
    names = [*reader.names, *REST]
    found = np.empty((len(names), len(task)))
    for examples, _ in sweep.example_batches(task, tokens_per_batch):
        read = reader.readout(task.questions(reader.model, examples))
        single = torch.stack([read.embeddings, read.biases], dim=1)
        added = torch.cat([read.clean.heads.flatten(1), read.clean.mlps, single], dim=1)
        found[:, list(examples)] = added.T.cpu().numpy()
    return dict(zip(names, found, strict=True))


def parts(
    added: Mapping[str, Float[np.ndarray, " example"]], site: str, clusters: np.ndarray, **how: Any
) -> pd.DataFrame:
    """Average what each part adds to the logit difference of the clean model.

    Args:
        added: As `contributions` returns it.
        site: The site of the heads.
        clusters: Each example's cluster.
        how: `n_draws, level, seed` of the intervals.

    Returns:
        One line a part: `site, layer, head, kind, contribution, n, ci_low, ci_high`; `kind` is
        `head`, `mlp`, `embeddings` or `biases`.
    """
    values = np.stack(list(added.values()))
    interval = statistics.cluster_bootstrap(values, clusters, **how)
    return _named(list(added), site).assign(
        contribution=interval.mean,
        n=values.shape[1],
        ci_low=interval.low,
        ci_high=interval.high,
    )


def effects(rows: pd.DataFrame) -> dict[str, Matrix]:
    """Lay out what the engine measured, averaged over draws, in logits (see the module)."""
    total = rows["clean"] - rows["ablated"]
    repair = rows["direct"] - total
    by_norm = repair - rows["by_heads"] - rows["by_mlps"]
    rows = rows.assign(total=total, self_repair=repair, by_norm=by_norm)
    means = rows.groupby(["setting", "example"])[list(EFFECTS)].mean()
    return {name: means[name].unstack().to_numpy() for name in EFFECTS}


def table(
    measured: Mapping[str, Matrix],
    heads: Sequence[Head],
    clusters: np.ndarray,
    *,
    top_share: float,
    **how: Any,
) -> pd.DataFrame:
    """Average over examples, with intervals.

    Args:
        measured: As `effects` returns it.
        heads: The head that each setting closed.
        clusters: Each example's cluster.
        top_share: The share of the examples, those to which the head contributes most, that are
            also averaged apart (Rushing & Nanda: 2 % of a hundred thousand tokens).
        how: `n_draws, level, seed` of the intervals.

    Returns:
        One line a head: `site, layer, head, contribution, direct, total, self_repair, by_heads,
        by_mlps, by_norm, n, ci_low, ci_high, q_value` (of self_repair), `direct_low, direct_high,
        total_low, total_high, n_top, contribution_top, direct_top, total_top, self_repair_top`.
    """
    interval = {
        name: statistics.cluster_bootstrap(measured[name], clusters, **how)
        for name in ("self_repair", "direct", "total")
    }
    p_values = statistics.sign_flip(measured["self_repair"], clusters, seed=how["seed"])
    n = measured["total"].shape[1]
    n_top = ceil(top_share * n)
    top = np.argsort(-measured["contribution"], axis=1, kind="stable")[:, :n_top]
    return to_table(heads).assign(
        **{name: measured[name].mean(axis=1) for name in EFFECTS},
        n=n,
        ci_low=interval["self_repair"].low,
        ci_high=interval["self_repair"].high,
        q_value=statistics.benjamini_hochberg(p_values),
        **{
            f"{name}_{end}": getattr(interval[name], end)
            for name in ("direct", "total")
            for end in ("low", "high")
        },
        n_top=n_top,
        **{
            f"{name}_top": np.take_along_axis(measured[name], top, axis=1).mean(axis=1)
            for name in ("contribution", "direct", "total", "self_repair")
        },
    )


def compensation(
    measured: Mapping[str, Matrix],
    places: Sequence[tuple[str, int]],
    clusters: np.ndarray,
    **how: Any,
) -> pd.DataFrame:
    """Ask how much of what a whole attention layer loses later layers make up for.

    McGrath et al. (2023): CE = Σ ΔDE of later attentions and of MLPs (the norm left out), against
    the loss of the layer's direct effect, example by example; a slope of 0.7 says that of each
    logit lost 0.7 come back.

    Args:
        measured: As `effects` returns it, each setting all heads of a layer.
        places: Site and number of each layer.
        clusters: Each example's cluster.
        how: `n_draws, level, seed` of the intervals.

    Returns:
        One line a layer: `site, layer, contribution, direct, total, compensation, by_heads,
        by_mlps, by_norm, n, slope, ci_low, ci_high, r2`: of the least-squares line of compensation
        over direct, null where direct does not vary; the interval is the slope's.
    """
    lost, back = measured["direct"], measured["by_heads"] + measured["by_mlps"]
    lines = [slope(x, y, clusters, **how) for x, y in zip(lost, back, strict=True)]
    return pd.DataFrame(places, columns=HEAD[:2]).assign(
        **{name: measured[name].mean(axis=1) for name in ("contribution", "direct", "total")},
        compensation=back.mean(axis=1),
        **{name: measured[name].mean(axis=1) for name in ("by_heads", "by_mlps", "by_norm")},
        n=lost.shape[1],
        **pd.DataFrame(lines, columns=["slope", "ci_low", "ci_high", "r2"]),
    )


def slope(
    x: Float[np.ndarray, " example"],
    y: Float[np.ndarray, " example"],
    clusters: np.ndarray,
    *,
    n_draws: int,
    level: float,
    seed: int,
) -> tuple[float, float, float, float]:
    """Fit a line by least squares.

    Returns:
        Its slope; the ends of the slope's interval, by resampling clusters (as
        statistics.cluster_bootstrap does); r². NaN where x does not vary.
    """
    x, y = x - x.mean(), y - y.mean()
    if (x * x).sum() <= np.finfo(np.float32).eps ** 2:
        return np.nan, np.nan, np.nan, np.nan
    terms = np.stack([x, y, x * x, x * y])
    drawn = statistics.bootstrap_means(terms, clusters, n_draws=n_draws, seed=seed)
    mean_x, mean_y, mean_xx, mean_xy = drawn
    variance = mean_xx - mean_x**2
    varies = variance > np.finfo(np.float64).eps * mean_xx  # (not in a draw of one cluster alone)
    slopes = ((mean_xy - mean_x * mean_y)[varies]) / variance[varies]
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(slopes, tails) if len(slopes) else (np.nan, np.nan)
    with np.errstate(invalid="ignore"):
        r2 = (x * y).sum() ** 2 / ((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / (x * x).sum()), low, high, float(r2)


def restorers(
    rows: pd.DataFrame, heads: Sequence[Head], clusters: np.ndarray, **how: Any
) -> pd.DataFrame:
    """List what each later part restores of what a head loses: the candidates for backups first.

    Args:
        rows: As the engine returns them part by part.
        heads: The head that each setting closed.
        clusters: Each example's cluster.
        how: `n_draws, level, seed` of the intervals.

    Returns:
        One line a head and later part: `site, layer, head, kind, site_2, layer_2, head_2, restored,
        n, ci_low, ci_high, q_value, rank`: ΔDE of the second, a head or (head_2 null) an MLP. There
        are too many pairs for a test by draws: q is of `statistics.cluster_t`.
    """
    names = [name for name in rows if name.startswith(("L", "MLP"))]
    means = rows.groupby(["setting", "example"])[names].mean()
    every = _named(names, heads[0].site)
    frames = []
    for (_, lines), head in zip(means.groupby("setting"), heads, strict=True):
        behind = (every["layer"] > head.layer) | (
            (every["layer"] == head.layer) & (every["kind"] == "mlp")
        )
        values = lines.to_numpy(dtype=np.float64).T[behind]
        if not len(values):
            continue
        interval = statistics.cluster_bootstrap(values, clusters, **how)
        p_value = statistics.p_value(statistics.cluster_t(values, clusters, level=how["level"]))
        second = every[behind].rename(columns=dict(zip(HEAD, HEAD_2, strict=True)))
        frame = pd.concat([to_table([head] * len(values)), second.reset_index(drop=True)], axis=1)
        frame = frame.assign(
            restored=interval.mean,
            n=values.shape[1],
            ci_low=interval.low,
            ci_high=interval.high,
            p_value=p_value,
        ).sort_values("restored", ascending=False, kind="stable", ignore_index=True)
        frames.append(frame.assign(rank=1 + np.arange(len(frame))))
    found = pd.concat(frames, ignore_index=True)
    found["q_value"] = statistics.benjamini_hochberg(found["p_value"].to_numpy())
    measured = ["restored", "n", "ci_low", "ci_high", "q_value", "rank"]
    return found[[*HEAD, "kind", *HEAD_2, *measured]]


def _named(names: Sequence[str], site: str) -> pd.DataFrame:
    """Turn names of parts into `site, layer, head, kind`; what a part has none of is null."""
    found = pd.Series(names).str.extract(r"^(?:L(\d+)H(\d+)|MLP(\d+))$")
    kind = np.where(found[0].notna(), "head", np.where(found[2].notna(), "mlp", names))
    layer = found[0].fillna(found[2]).astype("Int64")
    return pd.DataFrame(
        {"site": site, "layer": layer, "head": found[1].astype("Int64"), "kind": kind}
    )
