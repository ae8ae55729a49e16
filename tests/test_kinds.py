"""Kinds of maps, against 240 that two people labelled before the rules were made.

tests/data/kinds.csv: model, layer and head, the text (ours), and what each of the two said. SmolLM2
read the texts after its BOS.
"""

from pathlib import Path

import pandas as pd
import pytest
import torch

from interp.models.text import Encoded, pad, visible

LABELS = pd.read_csv(Path(__file__).parent / "data" / "kinds.csv")


@pytest.fixture(scope="module")
def sorted_maps(model):
    """Sort the labelled maps; half of them set the thresholds, the other half judges."""
    from dataclasses import replace

    from interp.patterns.kinds import kinds
    from interp.patterns.maps import Maps

    found = pd.Series("", index=LABELS.index)
    for (name, text), group in LABELS.groupby(["model", "text"]):
        loaded = model(name)
        codec = loaded.codec if name == "minilm" else replace(loaded.codec, prepend_bos=True)
        batch = loaded.batch([codec.encode(text)])
        with torch.inference_mode():
            patterns = loaded.patterns(batch, ["attn"])
        sentence = torch.zeros_like(batch.text.tokens)  # (no rule but that of blocks reads it)
        for row in group.itertuples():
            maps = Maps(
                patterns["attn", row.layer][:, [row.head]],
                batch.text,
                batch.text,
                loaded.visible(batch, loaded.sites[0], row.layer),
            )
            [kind] = [name for name, m in kinds(maps, sentence).items() if m.value.item()]
            found[row.Index] = kind.removeprefix("kind:")
    return LABELS.assign(found=found, judges=LABELS.index % 2 == 1)


def test_the_two_who_labelled_agree():
    agreement = (LABELS["label_1"] == LABELS["label_2"]).mean()
    shares = [LABELS[name].value_counts(normalize=True) for name in ("label_1", "label_2")]
    chance = (shares[0] * shares[1]).sum()
    assert len(LABELS) == 240
    assert agreement == pytest.approx(0.954, abs=0.001)
    assert (agreement - chance) / (1 - chance) == pytest.approx(0.92, abs=0.01)


def test_rules_agree_with_people_on_the_maps_that_did_not_set_them(sorted_maps):
    agreed = sorted_maps[sorted_maps["label_1"] == sorted_maps["label_2"]]
    held_out = agreed[agreed["judges"]]
    right = held_out["found"] == held_out["label_1"]
    f1 = {}
    for kind, n in held_out["label_1"].value_counts().items():
        hits = (right & (held_out["found"] == kind)).sum()
        f1[kind] = 2 * hits / (n + (held_out["found"] == kind).sum())
    weights = held_out["label_1"].value_counts(normalize=True)
    assert right.mean() >= 0.85  # of one label a map, this is the micro-averaged F1
    assert sum(f1[kind] * weights[kind] for kind in f1) >= 0.85
    assert f1["vertical"] >= 0.9
    assert f1["vertical+diagonal"] >= 0.8
    assert f1["heterogeneous"] >= 0.7


def kind_of(pattern, sentence, causal=False):
    from interp.patterns.kinds import kinds
    from interp.patterns.maps import Maps

    n = len(pattern)
    encoded = Encoded((7,) * n, tuple((i, i + 1) for i in range(n)), (False,) * n)
    text = pad([encoded], 0, "right")
    maps = Maps(pattern[None, None], text, text, visible(text, text, causal=causal, window=None))
    found = kinds(maps, torch.tensor([sentence]))
    assert sum(m.value.item() for m in found.values()) == 1
    return next(name for name, m in found.items() if m.value.item())


def test_drawn_maps_are_what_they_were_drawn_as():
    n = 8
    one = [0] * n
    column = torch.zeros(n, n)
    column[:, 0] = 1
    before = torch.eye(n).roll(-1, dims=1)
    far = torch.eye(n).roll(4, dims=1)
    even, within = torch.full((20, 20), 1 / 20), torch.full((10, 10), 1 / 10)
    two = [0] * 10 + [1] * 10
    assert kind_of(column, one) == "kind:vertical"
    assert kind_of(before, one) == "kind:diagonal"
    assert kind_of((column + before) / 2, one) == "kind:vertical+diagonal"
    assert kind_of(far, one) == "kind:heterogeneous"
    assert kind_of(even, two) == "kind:heterogeneous"
    assert kind_of(torch.block_diag(within, within), two) == "kind:block"
    assert kind_of(torch.block_diag(within, within), [0] * 20) == "kind:heterogeneous"
