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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import nn

from interp.corpora.corpus import Corpus, Passage
from interp.errors import InputError
from interp.heads import Site
from interp.models.head_model import Batch, HeadModel
from interp.models.text import Encoded, visible
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
    clusters, each passage counts as one.
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
    for number, (text, target) in enumerate(_chunks(model, passages, n_chunks)):
        side = ("select", "report")[number % 2]
        found.append(Example("chunks", number, f"chunk {number}", side, text, target))
    for number, (text, period) in enumerate(repeated(model, n_repeats, seed)):
        side = ("select", "report")[number % 2]
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
    return {names[n]: ("select", "report")[place % 2] for place, n in enumerate(order)}


def encoded(
    model: HeadModel, text: str, target: str | None = None
) -> tuple[Encoded, Encoded | None]:
    """Tokenise a text and, for an encoder-decoder, what its decoder reads (or else the same)."""
    encoded = model.codec.encode(text)
    if model.kind != "encoder_decoder":
        return encoded, None
    return encoded, model.shifted(model.codec.encode_target(text if target is None else target))


def _chunks(
    model: HeadModel, passages: Sequence[Passage], n: int
) -> list[tuple[Encoded, Encoded | None]]:
    """Cut running text into sequences of CHUNK tokens."""
    tokens = model.codec.encode_long("\n".join(passage.text for passage in passages))
    before, after = model.codec.frame()
    room = min(CHUNK, model.codec.n_ctx or CHUNK) - len(before) - len(after)
    cuts = [tokens[at : at + room] for at in range(0, len(tokens) - room + 1, room)][:n]
    found = [before + cut + after for cut in cuts]
    # (its decoder's vocabulary is taken to hold the same tokens)
    decoder = [model.shifted(cut) if model.kind == "encoder_decoder" else None for cut in found]
    return list(zip(found, decoder, strict=True))


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
    for site in model.sites:
        pattern = torch.cat([patterns[site.name, layer] for layer in range(site.n_layers)], dim=1)
        # (a layer's sliding window is not counted as hiding: what lies beyond has no attention)
        maps = Maps(
            pattern.float(),
            batch.queries(site),
            batch.keys(site),
            visible(batch.queries(site), batch.keys(site), causal=site.causal, window=None),
        )
        if source == "text":
            sheet.add_maps(site, "description", maps.evenness())
        if site.module == "cross_attn":
            if source == "text":
                sheet.add_maps(site, "alignment", alignment.alignment(maps))
        elif source == "chunks":
            sheet.add_maps(site, "positional", {"first_token": maps.first_token()})
        elif source == "repeats":
            periods = [example.period for example in shown]
            sheet.add_maps(site, "token", repeats.repetition(maps, periods))
            if needs_z:
                shares = repeats.copying(model, batch, maps, periods, z)
                sheet.add_maps(site, "token", {"copying": shares})
        else:
            sheet.add_maps(site, "positional", maps.offsets())
            sheet.add_maps(site, "positional", maps.offset_masses(), MASS)
            sheet.add_maps(site, "description", maps.spread(_punctuation(batch, site, shown)))
            _add_words(sheet, site, maps, shown, what)
    return sheet.table()


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
        site: Site,
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
                *(site.name, role, feature, subset, n),
            )
        )
        self.heads.append(dict(zip(_names(site), value, strict=True)))
        self.rules.append({f"{RULE}{name}": score for name, score in rules.items()})

    def add_maps(
        self, site: Site, role: str, measured: Mapping[str, Measured], subset: str = "all"
    ) -> None:
        """Note measures of whole maps."""
        for feature, measure in measured.items():
            value, n = measure.value.cpu().numpy(), measure.n.cpu().numpy()
            law = None if measure.uniform is None else measure.uniform.cpu().numpy()
            for row in np.flatnonzero(n):
                rules = {} if law is None else {"uniform": float(law[row])}
                self.add(site, int(row), role, feature, value[row], float(n[row]), rules, subset)

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


def _names(site: Site) -> list[str]:
    """Name a site's heads, without the site."""
    return [f"L{layer}H{head}" for layer in range(site.n_layers) for head in range(site.n_heads)]


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
    sheet: _Sheet, site: Site, maps: Maps, shown: Sequence[Example], what: Watch
) -> None:
    """Look at attention between words."""
    passages = [example.passage for example in shown if example.passage is not None]
    if any(passage.target is not None for passage in passages) and site.stack == "decoder_blocks":
        return  # (a target of its own has no annotation)
    owners = words.pieces(maps.query, [passage.words for passage in passages])
    of_token = words.sentence(owners, [passage.words for passage in passages])
    sheet.add_maps(site, "description", kinds.kinds(maps, of_token))
    allowed = words.others(owners, owners, causal=site.causal)
    attention = words.between_words(maps.pattern, owners, owners)
    answers = words.most_attended(attention, allowed).cpu().numpy()
    aligned, seen, masses = (x.cpu().numpy() for x in (owners.any(-1), allowed, attention))
    for row, passage in enumerate(passages):
        n = len(passage.words)
        known, mass, answer = aligned[row, :n], masses[row, :, :n, :n], answers[row, :, :n]
        for asked in questions.questions(
            passage, causal=site.causal, relations=what.relations, counts=what.counts
        ):
            _add_questions(sheet, site, row, asked.among(known), answer, mass, seen[row, :n, :n])
        if known.any():
            far = np.abs(np.arange(n)[:, None] - np.arange(n)) > REACH
            reach = (mass * far).sum(-1)[:, known].mean(-1)
            sheet.add(site, row, "token", f"reach:{REACH}", reach, float(known.sum()), {})
        _add_trees(sheet, site, row, passage, known, answer, mass, seen[row, :n, :n])


def _add_questions(
    sheet: _Sheet,
    site: Site,
    row: int,
    asked: questions.Questions,
    answer: Int[np.ndarray, "head word"],
    mass: Float[np.ndarray, "head word word"],
    seen: Bool[np.ndarray, "word word"],
) -> None:
    """Note how often heads and rules answer a feature's questions rightly."""
    for subset, part in _subsets(asked).items():
        value, n = part.hits(answer[:, part.query]).mean(-1), float(len(part.query))
        rules = {rule: float(part.hits(said).mean()) for rule, said in part.rules.items()}
        sheet.add(site, row, part.role, part.feature, value, n, rules, subset)
    if len(asked.query):
        share = (mass[:, asked.query] * asked.targets).sum(-1).mean(-1)
        even = float((asked.targets.sum(-1) / seen[asked.query].sum(-1)).mean())
        n, rules = float(len(asked.query)), {"uniform": even}
        sheet.add(site, row, asked.role, asked.feature, share, n, rules, MASS)


def _add_trees(
    sheet: _Sheet,
    site: Site,
    row: int,
    passage: Passage,
    known: Bool[np.ndarray, " word"],
    answer: Int[np.ndarray, "head word"],
    mass: Float[np.ndarray, "head word word"],
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
        along, even = trees.share(mass[:, own, own], gold, seen[own, own])
        for name, edges in (
            ("max", trees.most_attended(inside)),
            ("mst", trees.spanning(mass[:, own, own])),
        ):
            value = trees.uuas(edges, gold)
            sheet.add(site, row, "syntactic", f"uuas:{name}", value, n, rules)
            sheet.add(site, row, "syntactic", f"uuas:{name}", along, n, {"uniform": even}, MASS)


def _subsets(asked: questions.Questions) -> dict[str, questions.Questions]:
    """Take all questions, and those that nearest_pos answers wrongly, where there are any."""
    parts = {"all": asked}
    if "nearest_pos" in asked.rules:
        parts[POS_WRONG] = asked.only(~asked.hits(asked.rules["nearest_pos"]))
    return {name: part for name, part in parts.items() if len(part.query)}
