"""Look at every head on text and on random tokens, and keep what was seen, example by example.

Three kinds of input, each for what only it shows:

    text        the corpus' passages: places, spread, grammar, names, pronouns
    chunks      the corpus' text cut into sequences of 64 tokens: the attention sink, which in short
                sequences even attention would pass for
    repeats     random tokens said twice: induction, duplicates, copying

An observation is one feature on one example: how many queries it was measured on, what every head
scored there, and what simple rules scored on the same queries. Heads and rules are columns of one
table, so that a head can be compared with a rule, example by example.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import nn

from interp.corpora.corpus import Corpus, Passage
from interp.errors import InputError
from interp.heads import Site
from interp.models.head_model import Batch, HeadModel
from interp.models.text import Encoded
from interp.patterns import alignment, kinds, questions, repeats, trees, words
from interp.patterns.maps import Maps, Measured
from interp.patterns.questions import Counts, count
from interp.tasks.repeated_tokens import repeated

KEYS = ["source", "example", "cluster", "split", "site", "role", "feature", "subset", "n"]
"""The columns of an observation that are neither head nor rule."""
RULE = "rule "
"""How the columns of rules begin."""
POS_WRONG, MASS = "pos_wrong", "mass"
"""The subsets of observations beside `all`; see `observe`."""
CHUNK = 64
"""Tokens of a chunk, special ones included."""
REACH = 5
"""Words beyond which attention counts as far."""
AREA = 2**16
"""Entries of one head's patterns in a batch: what is held is so many times the number of heads."""
SPLITS = ("select", "report")
FEW = 10
"""With fewer clusters in a corpus every passage counts as its own."""


@dataclass(frozen=True)
class Example:
    """One sequence to look at."""

    source: str
    """`text`, `chunks` or `repeats`."""
    number: int
    cluster: str
    split: str
    """`select` or `report`."""
    text: Encoded
    target: Encoded | None = None
    """For an encoder-decoder: what its decoder reads."""
    passage: Passage | None = None
    period: int = 0
    """The length of a repeated segment."""


@dataclass(frozen=True)
class Watch:
    """What to look for."""

    relations: Sequence[str]
    counts: Counts


def watch(corpus: Corpus, relations: Sequence[str]) -> Watch:
    """Prepare for a corpus."""
    return Watch(relations, count(corpus.passages))


def examples(
    model: HeadModel, corpus: Corpus, *, n_chunks: int, n_repeats: int, seed: int
) -> list[Example]:
    """List what to look at, half of it for selecting heads, half for reporting on them.

    The halves share no cluster: no document, no template. Where a corpus has fewer than FEW
    clusters, each passage counts as one. Chunks are cut from either half's text, evenly from all
    its clusters. For an encoder-decoder, `n_repeats` sequences are of tokens that both its stacks
    can read.
    """
    passages = corpus.passages
    clusters = [passage.cluster for passage in passages]
    if has_few_clusters(corpus):
        clusters = [str(number) for number in range(len(passages))]
    splits = split(clusters, seed)
    found = []
    for number, (passage, cluster) in enumerate(zip(passages, clusters, strict=True)):
        try:
            text, target = encoded(model, passage.text, passage.target)
        except InputError as error:
            raise InputError(f"{passage.document}: {error}") from error
        found.append(
            Example("text", number, cluster, splits[cluster], text, target, passage=passage)
        )
    of_cluster: dict[str, list[Passage]] = {}
    for passage, cluster in zip(passages, clusters, strict=True):
        of_cluster.setdefault(cluster, []).append(passage)
    chunks: list[Chunk] = []
    for side, n in zip(SPLITS, (n_chunks - n_chunks // 2, n_chunks // 2), strict=True):
        own = {name: some for name, some in of_cluster.items() if splits[name] == side}
        chunks += _chunks(model, own)[:n]
    for number, (cluster, text, target) in enumerate(chunks):
        found.append(Example("chunks", number, cluster, splits[cluster], text, target))
    for number, (text, period) in enumerate(repeated(model, n_repeats, seed)):
        side = SPLITS[number % 2]
        target = model.shifted(text) if model.kind == "encoder_decoder" else None
        found.append(
            Example("repeats", number, f"repeat {number}", side, text, target, period=period)
        )
    return found


def has_few_clusters(corpus: Corpus) -> bool:
    """Say whether passages have to count as independent, for want of documents."""
    return len({passage.cluster for passage in corpus.passages}) < FEW


def split(clusters: Sequence[str], seed: int) -> dict[str, str]:
    """Deal clusters out, at random, to `select` and `report`."""
    names = sorted(set(clusters))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[n]: SPLITS[place % 2] for place, n in enumerate(order)}


def encoded(
    model: HeadModel, text: str, target: str | None = None
) -> tuple[Encoded, Encoded | None]:
    """Tokenise a text and, for an encoder-decoder, what its decoder reads (or else the same)."""
    encoded = model.codec.encode(text)
    if model.kind != "encoder_decoder":
        return encoded, None
    return encoded, model.shifted(model.codec.encode_target(text if target is None else target))


Chunk = tuple[str, Encoded, Encoded | None]
"""A cluster, a sequence from it and, for an encoder-decoder, what its decoder reads."""


def _chunks(model: HeadModel, passages: Mapping[str, Sequence[Passage]]) -> list[Chunk]:
    """Cut each cluster's text into chunks: the first of each cluster, then the second of each, ….

    Clusters too short for a chunk are joined with the next, and count as one with it; what is left
    at the end of a cluster is dropped.

    Args:
        model: The model.
        passages: The passages of each cluster.
    """
    runs, joined = list[list[Chunk]](), list[Passage]()
    for cluster, own in passages.items():
        joined += own
        cuts = [*_cut(model, [passage.text for passage in joined])]
        read: list[Encoded | None] = [None] * len(cuts)
        if model.kind == "encoder_decoder":
            targets = [passage.target or passage.text for passage in joined]
            read = [model.shifted(cut) for cut in _cut(model, targets, as_target=True)]
        run = [(cluster, text, target) for text, target in zip(cuts, read, strict=False)]
        if run:
            runs.append(run)
            joined = []
    return [chunk for nth in zip_longest(*runs) for chunk in nth if chunk is not None]


def _cut(model: HeadModel, texts: Sequence[str], *, as_target: bool = False) -> Iterator[Encoded]:
    """Cut running text into sequences of CHUNK tokens."""
    tokens = model.codec.encode_long("\n".join(texts), as_target=as_target)
    before, after = model.codec.frame(as_target=as_target)
    room = min(CHUNK, model.codec.n_ctx or CHUNK) - len(before) - len(after)
    for at in range(0, len(tokens) - room + 1, room):
        yield before + tokens[at : at + room] + after


def unaligned(model: HeadModel, shown: Sequence[Example]) -> int:
    """Count the words of the passages that no token is left for."""
    n = 0
    for example in shown:
        if example.passage is not None:
            text = model.batch([example.text], [] if example.target is None else [example.target])
            owned = words.pieces(text.text, [example.passage.words]).any(-1)
            n += int((~owned).sum())
    return n


def batches(found: Sequence[Example]) -> list[list[int]]:
    """Put examples of a kind and of like lengths together, none of them too large."""
    order = sorted(
        range(len(found)),
        key=lambda n: (found[n].source, _length(found[n]), n),
    )
    groups: list[list[int]] = []
    for n in order:
        fits = (
            groups
            and found[groups[-1][0]].source == found[n].source
            and (len(groups[-1]) + 1) * _length(found[n]) ** 2 <= AREA
        )
        if fits:
            groups[-1].append(n)
        else:
            groups.append([n])
    return groups


def _length(example: Example) -> int:
    return max(len(example.text), len(example.target or ()))


@torch.inference_mode()
def observe(model: HeadModel, shown: Sequence[Example], what: Watch) -> pd.DataFrame:
    """Look at all heads on a batch of examples of one kind.

    Returns:
        One line an observation: `source, example, cluster, split, site, role, feature, subset, n`,
        then a column for each head of the site (`L0H0`, …) and one for each rule (`rule offset:-1`,
        `rule uniform`, …). `subset` is `all`; or `pos_wrong`, for those questions that the rule
        nearest_pos answers wrongly; or `mass`, where the value is the share of attention on the
        targets (and `rule uniform` that of even attention) instead of how often they get most.
        Layers of another sliding window have lines of their own, with the laws of theirs, and NaN
        for the heads of the rest.
    """
    source = shown[0].source
    batch = model.batch(
        [example.text for example in shown],
        [example.target for example in shown if example.target is not None],
    )
    needs_z = source == "repeats" and _has_direct_path(model)
    with model.watching_z() as z:
        if needs_z:
            model.visit(batch)
    patterns = model.patterns(batch, [site.name for site in model.sites])
    sheet = _Sheet(shown)
    for layers in _layers(model):
        site = layers.site
        maps = Maps(
            torch.cat([patterns[site.name, layer] for layer in layers.numbers], dim=1).float(),
            batch.queries(site),
            batch.keys(site),
            model.visible(batch, site, layers.numbers[0]),
        )
        if source == "text":
            sheet.add_maps(layers, "description", maps.evenness())
        if site.module == "cross_attn":
            if source == "text":
                sheet.add_maps(layers, "alignment", alignment.alignment(maps))
        elif source == "chunks":
            sheet.add_maps(layers, "positional", {"first_token": maps.first_token()})
        elif source == "repeats":
            periods = [example.period for example in shown]
            sheet.add_maps(layers, "token", repeats.repetition(maps, periods))
            if needs_z:
                shares = repeats.copying(model, batch, maps, layers.numbers, periods, z)
                sheet.add_maps(layers, "token", {"copying": shares})
        else:
            sheet.add_maps(layers, "positional", maps.offsets())
            sheet.add_maps(layers, "positional", maps.offset_masses(), MASS)
            sheet.add_maps(layers, "description", maps.spread(_punctuation(batch, site, shown)))
            _add_words(sheet, layers, maps, shown, what)
    return sheet.table()


@dataclass(frozen=True)
class Layers:
    """Layers of a site whose queries see the same keys."""

    site: Site
    numbers: tuple[int, ...]

    @property
    def heads(self) -> list[str]:
        """Name their heads, without the site."""
        return [f"L{layer}H{head}" for layer in self.numbers for head in range(self.site.n_heads)]


def _layers(model: HeadModel) -> Iterator[Layers]:
    """Put the layers of a site together that have the same sliding window."""
    for site in model.sites:
        alike: dict[int | None, list[int]] = {}
        for layer in range(site.n_layers):
            alike.setdefault(model.window(site, layer), []).append(layer)
        yield from (Layers(site, tuple(numbers)) for numbers in alike.values())


def _has_direct_path(model: HeadModel) -> bool:
    return model.kind == "decoder" and isinstance(model.unembed, nn.Linear)


class _Sheet:
    """Collects observations."""

    def __init__(self, shown: Sequence[Example]) -> None:
        self.shown = shown
        self.keys: list[tuple[object, ...]] = []
        self.heads: list[dict[str, float]] = []
        self.rules: list[dict[str, float]] = []

    def add(
        self,
        layers: Layers,
        row: int,
        role: str,
        feature: str,
        value: Float[np.ndarray, " head"],
        n: float,
        rules: Mapping[str, float],
        subset: str = "all",
    ) -> None:
        """Note one observation."""
        example = self.shown[row]
        self.keys.append(
            (
                *(example.source, example.number, example.cluster, example.split),
                *(layers.site.name, role, feature, subset, n),
            )
        )
        self.heads.append(dict(zip(layers.heads, value, strict=True)))
        self.rules.append({f"{RULE}{name}": score for name, score in rules.items()})

    def add_maps(
        self, layers: Layers, role: str, measured: Mapping[str, Measured], subset: str = "all"
    ) -> None:
        """Note measures of whole maps."""
        for feature, measure in measured.items():
            value, n = measure.value.cpu().numpy(), measure.n.cpu().numpy()
            law = None if measure.uniform is None else measure.uniform.cpu().numpy()
            for row in np.flatnonzero(n):
                rules = {} if law is None else {"uniform": float(law[row])}
                self.add(layers, int(row), role, feature, value[row], float(n[row]), rules, subset)

    def table(self) -> pd.DataFrame:
        """Put all observations together."""
        return pd.concat(
            [
                pd.DataFrame(self.keys, columns=KEYS),
                pd.DataFrame(self.heads, dtype=np.float32),
                pd.DataFrame(self.rules, dtype=np.float32),
            ],
            axis=1,
        )


def _punctuation(batch: Batch, site: Site, shown: Sequence[Example]) -> torch.Tensor:
    """Mark the tokens without a letter or a digit."""
    keys = batch.keys(site)
    found = torch.zeros_like(keys.mask)
    for row, example in enumerate(shown):
        text = _text_of(example, site)
        for place, (start, end) in enumerate(keys.offsets[row].tolist()):
            piece = text[start:end]
            found[row, place] = bool(piece.strip()) and not any(map(str.isalnum, piece))
    return found & ~keys.special


def _text_of(example: Example, site: Site) -> str:
    """The text that a site's keys stand on."""
    assert example.passage is not None
    target = example.passage.target
    return target if target and site.stack == "decoder_blocks" else example.passage.text


def _add_words(
    sheet: _Sheet, layers: Layers, maps: Maps, shown: Sequence[Example], what: Watch
) -> None:
    """Look at attention between words."""
    site = layers.site
    passages = [example.passage for example in shown if example.passage is not None]
    if any(passage.target is not None for passage in passages) and site.stack == "decoder_blocks":
        return  # (a target of its own has no annotation)
    owners = words.pieces(maps.query, [passage.words for passage in passages])
    of_token = words.sentence(owners, [passage.words for passage in passages])
    sheet.add_maps(layers, "description", kinds.kinds(maps, of_token))
    allowed = words.others(owners, owners, causal=site.causal)
    attention = words.between_words(maps.pattern, owners, owners)
    answers = words.most_attended(attention, allowed).cpu().numpy()
    even = words.between_words(maps.even[:, None], owners, owners)
    aligned, seen, masses, laws = (
        x.cpu().numpy() for x in (owners.any(-1), allowed, attention, even)
    )
    for row, passage in enumerate(passages):
        n = len(passage.words)
        known, seen_by, answer = aligned[row, :n], seen[row, :n, :n], answers[row, :, :n]
        mass = Between(masses[row, :, :n, :n], laws[row, :, :n, :n])
        for asked in questions.questions(
            passage, causal=site.causal, relations=what.relations, counts=what.counts
        ):
            _add_questions(sheet, layers, row, asked.among(known), answer, mass)
        if known.any():
            far = np.abs(np.arange(n)[:, None] - np.arange(n)) > REACH
            reach = (mass.heads * far).sum(-1)[:, known].mean(-1)
            sheet.add(layers, row, "token", f"reach:{REACH}", reach, float(known.sum()), {})
        _add_trees(sheet, layers, row, passage, known, answer, mass, seen_by)


@dataclass(frozen=True)
class Between:
    """Attention between the words of a passage."""

    heads: Float[np.ndarray, "head word word"]
    even: Float[np.ndarray, "1 word word"]
    """That of a head that attends to all keys alike: words of more tokens get more."""


def _add_questions(
    sheet: _Sheet,
    layers: Layers,
    row: int,
    asked: questions.Questions,
    answer: Int[np.ndarray, "head word"],
    mass: Between,
) -> None:
    """Note how often heads and rules answer a feature's questions rightly."""
    for subset, part in _subsets(asked).items():
        value, n = part.hits(answer[:, part.query]).mean(-1), float(len(part.query))
        rules = {rule: float(part.hits(said).mean()) for rule, said in part.rules.items()}
        sheet.add(layers, row, part.role, part.feature, value, n, rules, subset)
    if len(asked.query):
        share, even = (
            (of[:, asked.query] * asked.targets).sum(-1).mean(-1) for of in (mass.heads, mass.even)
        )
        n, rules = float(len(asked.query)), {"uniform": float(even[0])}
        sheet.add(layers, row, asked.role, asked.feature, share, n, rules, MASS)


def _add_trees(
    sheet: _Sheet,
    layers: Layers,
    row: int,
    passage: Passage,
    known: Bool[np.ndarray, " word"],
    answer: Int[np.ndarray, "head word"],
    mass: Between,
    seen: Bool[np.ndarray, "word word"],
) -> None:
    """Note how much of each sentence's tree heads and rules contain."""
    for first, sentence in questions.sentences(passage.words):
        own = slice(first, first + len(sentence))
        gold = trees.dependencies(sentence, first, known[own])
        if not gold.any():
            continue
        inside = answer[:, own] - first
        inside[(inside < 0) | (inside >= len(sentence))] = -1
        rules, n = trees.rules(gold), float(np.triu(gold).sum())
        asking = seen[own, own].sum(axis=1) > 0
        share, even = (trees.share(of[:, own, own], gold, asking) for of in (mass.heads, mass.even))
        n_asking, law = float(asking.sum()), {"uniform": float(even[0])}
        for name, edges in (
            ("max", trees.most_attended(inside)),
            ("mst", trees.spanning(mass.heads[:, own, own])),
        ):
            value, feature = trees.uuas(edges, gold), f"uuas:{name}"
            sheet.add(layers, row, "syntactic", feature, value, n, rules)
            sheet.add(layers, row, "syntactic", feature, share, n_asking, law, MASS)


def _subsets(asked: questions.Questions) -> dict[str, questions.Questions]:
    """Take all questions, and those that nearest_pos answers wrongly, where there are any."""
    parts = {"all": asked}
    if "nearest_pos" in asked.rules:
        parts[POS_WRONG] = asked.only(~asked.hits(asked.rules["nearest_pos"]))
    return {name: part for name, part in parts.items() if len(part.query)}
