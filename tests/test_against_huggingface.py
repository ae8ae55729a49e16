"""The engine against plain Hugging Face.

The other route knows nothing of ours: it tokenises strings with the model's tokenizer, runs the
unpadded sequence through a model fresh from `transformers` with `eager` attention, and ablates a
head by setting its slice of what the output projection reads to zero, in one full forward per head
and example. The projections are found by the names that Hugging Face gives them, written down here.
"""

from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from torch.nn.functional import cosine_similarity

from interp import gates, sweep, units
from interp.errors import InputError
from interp.heads import Head
from interp.models.bundled import PACKAGES
from interp.models.conversion import cache_folder
from interp.models.head_model import HeadModel
from interp.models.text import Encoded
from interp.sweep import Engine, Job, plan
from interp.tasks import prompts, seq2seq
from interp.tasks.task import Item, Task, cosine_difference, loss

N_HEADS = 20
CLOSE = {"atol": 1e-4, "rtol": 0}

LLAMA = {"attn": "model.layers.{layer}.self_attn.o_proj"}
BART = {
    "encoder_attn": "model.encoder.layers.{layer}.self_attn.out_proj",
    "decoder_self_attn": "model.decoder.layers.{layer}.self_attn.out_proj",
    "decoder_cross_attn": "model.decoder.layers.{layer}.encoder_attn.out_proj",
}
W_O = {
    "tiny_gpt2": {"attn": "transformer.h.{layer}.attn.c_proj"},
    "tiny_llama": LLAMA,
    "tiny_gemma2": LLAMA,
    "tiny_neox": {"attn": "gpt_neox.layers.{layer}.attention.dense"},
    "stories260k": LLAMA,
    "smollm2": LLAMA,
    "tiny_bert": {"attn": "bert.encoder.layer.{layer}.attention.output.dense"},
    "minilm": {"attn": "encoder.layer.{layer}.attention.output.dense"},
    "tiny_t5": {
        "encoder_attn": "encoder.block.{layer}.layer.0.SelfAttention.o",
        "decoder_self_attn": "decoder.block.{layer}.layer.0.SelfAttention.o",
        "decoder_cross_attn": "decoder.block.{layer}.layer.1.EncDecAttention.o",
    },
    "tiny_bart": BART,
    "aren_transliteration": BART,
}
TINY = (3, 4)  # layers of each stack, heads of each layer
SIZES = {
    "stories260k": (5, 8),
    "smollm2": (30, 9),
    "minilm": (6, 12),
    "aren_transliteration": (6, 8),
}
DECODERS = ["tiny_gpt2", "tiny_llama", "tiny_gemma2", "tiny_neox", "stories260k", "smollm2"]
ENCODER_DECODERS = ["tiny_t5", "tiny_bart", "aren_transliteration"]
NO_DECODERS = [*ENCODER_DECODERS, "tiny_bert", "minilm"]

# Of different lengths, and two of the same, which the planner puts into one batch.
PROMPTS = [
    ("The keys to the old cabinet", " are", " is"),
    ("The dogs", " are", " is"),
    ("The cats", " have", " has"),
]
PAIRS = {
    "tiny_t5": [("a longer source", "target"), ("red", "green!"), ("sun", "yellow")],
    "tiny_bart": [("a longer source", "target"), ("red", "green!"), ("sun", "yellow")],
    "aren_transliteration": [("اتزمون", "atzmon"), ("سلام", "salam"), ("كتاب", "kitab")],
}
MASKED = [("The cat sat on the mat", (1, 5, 20)), ("A red dog", (2,)), ("Two cats!", (4, 8))]
TRIPLETS = [
    ("A man is playing a guitar.", "Someone plays the guitar.", "Cooks cut up onions in kitchens."),
    ("It rains.", "Rain is falling on the town.", "It is hot."),
]


def is_tiny(name: str) -> bool:
    return name.startswith("tiny_")


def heads_of(name: str) -> list[Head]:
    """Draw heads at random, as many of each site as of the others."""
    n_layers, n_heads = SIZES.get(name, TINY)
    rng = np.random.default_rng(0)
    drawn = [
        [
            Head(site, *divmod(int(number), n_heads))
            for number in rng.permutation(n_layers * n_heads)
        ]
        for site in W_O[name]
    ]
    in_turn = [head for heads in zip(*drawn, strict=True) for head in heads]
    return in_turn[:N_HEADS]


# The other route


def plain(name: str, ours: HeadModel) -> torch.nn.Module:
    """Load the same weights without us."""
    if is_tiny(name):  # random: there is no file to load
        fresh = type(ours.module)(ours.module.config)
        fresh.load_state_dict(ours.module.state_dict())
        fresh.set_attn_implementation("eager")
    else:
        kind = {"minilm": "", "aren_transliteration": "ForSeq2SeqLM"}.get(name, "ForCausalLM")
        auto = getattr(transformers, f"AutoModel{kind}")
        fresh = auto.from_pretrained(folder_of(name), attn_implementation="eager")
    return fresh.eval()


def folder_of(name: str) -> Path:
    if name not in PACKAGES:
        return Path(__file__).parent.parent.parent / "shared" / "models" / name
    package, _, inside = PACKAGES[name].file.partition("/")
    path = Path(find_spec(package).submodule_search_locations[0]) / inside
    if path.suffix == ".gguf":  # converted when our model was loaded
        return cache_folder() / f"{path.stem}-{PACKAGES[name].sha256[:12]}"
    return path.parent


@contextmanager
def without(module: torch.nn.Module, name: str, heads: Sequence[Head], n_heads: int, means=None):
    """Set the heads' slices of what the output projections read to zero, or to their means."""

    def closing(head: Head):
        def hook(_module, args):
            z = args[0].clone()
            mine = slice_of(head, z.shape[-1] // n_heads)
            z[..., mine] = 0 if means is None else means[head.site, head.layer][mine]
            return (z, *args[1:])

        return hook

    with ExitStack() as stack:
        for head in heads:
            projection = module.get_submodule(W_O[name][head.site].format(layer=head.layer))
            stack.callback(projection.register_forward_pre_hook(closing(head)).remove)
        yield


def slice_of(head: Head, width: int) -> slice:
    return slice(head.head * width, (head.head + 1) * width)


def next_token_difference(module, tokenizer, prompt, answer, distractor) -> float:
    first, second = (tokenizer(prompt + end)["input_ids"] for end in (answer, distractor))
    shared = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    logits = module(input_ids=torch.tensor([first[:shared]])).logits[0, -1]
    return (logits[first[shared]] - logits[second[shared]]).item()


def target_loss(module, tokenizer, source, target) -> float:
    labels = tokenizer(text_target=target)["input_ids"]
    if labels[-1] != tokenizer.eos_token_id:
        labels.append(tokenizer.eos_token_id)
    ids = tokenizer(source)["input_ids"]
    return module(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.item()


def masked_loss(module, tokenizer, text, places) -> float:
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    labels = torch.full_like(ids, -100)  # what the loss leaves out
    labels[0, list(places)] = ids[0, list(places)]
    ids[0, list(places)] = tokenizer.mask_token_id
    return module(input_ids=ids, labels=labels).loss.item()


def similarity_difference(module, tokenizer, *texts) -> float:
    anchor, near, far = (
        module(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0].mean(0)
        for text in texts
    )
    return (cosine_similarity(anchor, near, 0) - cosine_similarity(anchor, far, 0)).item()


def source(name: str) -> tuple:
    """The metric of the other route, and its examples."""
    if name == "minilm":
        return similarity_difference, TRIPLETS
    if name == "tiny_bert":
        return masked_loss, MASKED
    if name in PAIRS:
        return target_loss, PAIRS[name]
    return next_token_difference, PROMPTS[:2] if name == "smollm2" else PROMPTS  # for time's sake


@pytest.fixture(scope="module")
def reference(model):
    """For each model: the heads, the clean metric `[example]` and the ablated `[head example]`."""

    @cache
    @torch.no_grad()
    def compute(name: str) -> SimpleNamespace:
        ours = model(name)
        theirs, tokenizer = plain(name, ours), ours.codec.tokenizer
        metric, examples = source(name)
        n_heads = SIZES.get(name, TINY)[1]

        def scores(*heads: Head) -> list[float]:
            with without(theirs, name, heads, n_heads):
                return [metric(theirs, tokenizer, *example) for example in examples]

        heads = heads_of(name)
        clean, ablated = np.array(scores()), np.array([scores(head) for head in heads])
        return SimpleNamespace(heads=heads, clean=clean, ablated=ablated)

    return compute


# Our route


@pytest.fixture(scope="module")
def task(model, tmp_path_factory):
    """The same examples, as a task of ours."""

    def make(name: str, padding_side: str = "right", examples: Sequence | None = None) -> Task:
        ours = model(name, padding_side)
        examples = source(name)[1] if examples is None else examples
        if name in DECODERS:
            table = pd.DataFrame(examples, columns=["prompt", "answer", "distractor"])
            return prompts.from_table(ours, table, name="test", min_accuracy=0.0)
        if name in PAIRS:
            path = tmp_path_factory.mktemp(name) / "pairs.csv"
            pd.DataFrame(examples, columns=["source", "target"]).to_csv(path, index=False)
            return seq2seq.task(ours, path=str(path), min_accuracy=0.0)
        if name == "minilm":
            items = [tuple(Item(ours.codec.encode(text)) for text in row) for row in examples]
            return our_task("cos_diff", cosine_difference, items)
        return our_task("loss", loss, [(hide(ours, *example),) for example in examples])

    return make


def our_task(metric: str, score, examples: Sequence[tuple[Item, ...]]) -> Task:
    table = pd.DataFrame({"example": range(len(examples))})
    return Task("test", metric, metric != "loss", "", score, examples, table)


def hide(ours: HeadModel, text: str, places: tuple[int, ...]) -> Item:
    whole = ours.codec.encode(text)
    mask = ours.codec.tokenizer.mask_token_id
    ids = tuple(mask if place in places else token for place, token in enumerate(whole.ids))
    hidden = Encoded(ids, whole.offsets, whole.special)
    return Item(hidden, read=places, ids=tuple((whole.ids[place],) for place in places))


def check(ours: HeadModel, task: Task, jobs: Sequence[Job], reference: SimpleNamespace) -> None:
    settings = [(head,) for head in reference.heads]
    engine = Engine(ours, task, settings, gates.Zero(), "all")
    rows = pd.concat([engine.run(job) for job in jobs])
    assert len(rows) == reference.ablated.size
    for column in ("clean", "ablated"):  # `pivot` refuses a row that comes twice
        found = rows.pivot(index="setting", columns="example", values=column).to_numpy()
        expected = np.broadcast_to(getattr(reference, column), found.shape)
        np.testing.assert_allclose(found, expected, **CLOSE, err_msg=column)


def planned(ours: HeadModel, task: Task, reference: SimpleNamespace, tokens: int) -> list[Job]:
    settings = [(head,) for head in reference.heads]
    return [job for part in plan(ours, task, settings, 1, tokens).parts for job in part]


@pytest.mark.parametrize("name", W_O)
def test_the_drawn_heads_lie_in_every_site_and_matter(name, reference):
    drawn = reference(name)
    n_layers, n_heads = SIZES.get(name, TINY)
    assert len(set(drawn.heads)) == min(N_HEADS, n_layers * n_heads * len(W_O[name]))
    assert {head.site for head in drawn.heads} == set(W_O[name])
    effects = np.abs(drawn.ablated - drawn.clean).max(axis=1)
    assert (effects > 10 * CLOSE["atol"]).all(), "a head without effect proves nothing"


@pytest.mark.parametrize("name", W_O)
def test_row_by_row_the_sweep_equals_a_full_forward_per_head(name, model, task, reference):
    ours, drawn = model(name), reference(name)
    jobs = planned(ours, task(name), drawn, tokens=1)
    assert {job.n_rows for job in jobs} == {1}
    check(ours, task(name), jobs, drawn)


@pytest.mark.parametrize("name", [name for name in W_O if name not in PACKAGES])
def test_in_batches_the_sweep_equals_a_full_forward_per_head(name, model, task, reference):
    ours, drawn = model(name), reference(name)
    jobs = planned(ours, task(name), drawn, tokens=512)
    assert max(job.n_rows for job in jobs) > 1
    check(ours, task(name), jobs, drawn)


@pytest.mark.parametrize(
    ("name", "side"),
    [(name, "right") for name in W_O] + [(name, "left") for name in DECODERS],
)
def test_padded_sequences_are_worth_what_they_are_alone(name, side, model, task, reference):
    ours, drawn = model(name, side), reference(name)
    examples = task(name, side)
    numbers = tuple(range(len(examples)))
    text = examples.questions(ours, numbers).batch.text
    assert not text.mask.all()
    assert text.mask[:, 0 if side == "right" else -1].all()
    blocks = [ours.block(head) for head in drawn.heads]
    jobs = [
        Job(numbers, block, tuple(n for n, first in enumerate(blocks) if first == block), 0)
        for block in sorted(set(blocks))
    ]
    check(ours, examples, jobs, drawn)


@pytest.mark.parametrize("name", NO_DECODERS)
def test_only_decoders_pad_left(name, model):
    model(name)  # skips where the weights are missing
    with pytest.raises(InputError, match=r"padding_side=left.*only decoders pad left") as error:
        model(name, padding_side="left")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_llama", "tiny_bert", "tiny_bart"])
@torch.no_grad()
def test_a_slice_of_what_attention_writes_is_no_head(name, model, reference):
    """The trap: after W_O, every head has written into every dimension."""
    ours, drawn = model(name), reference(name)
    theirs, tokenizer = plain(name, ours), ours.codec.tokenizer
    metric, examples = source(name)
    for number, head in enumerate(drawn.heads[:6]):
        width = theirs.config.hidden_size // theirs.config.num_attention_heads

        def hook(_module, _args, output, first=head.head * width, width=width):
            output = output.clone()
            output[..., first : first + width] = 0
            return output

        projection = theirs.get_submodule(W_O[name][head.site].format(layer=head.layer))
        handle = projection.register_forward_hook(hook)
        sliced = np.array([metric(theirs, tokenizer, *example) for example in examples])
        handle.remove()
        assert np.abs(sliced - drawn.clean).max() > 10 * CLOSE["atol"], "the slice did nothing"
        assert np.abs(sliced - drawn.ablated[number]).max() > 10 * CLOSE["atol"]


# Heads that are closed together

AGREEMENT = [
    ("Right now, the key to the doors", " is", " are"),
    ("Right now, the keys to the doors", " are", " is"),
    ("Last week, the dog", " was", " were"),
]
TOGETHER = {"smollm2": AGREEMENT, "minilm": TRIPLETS, **PAIRS}
KINDS = ("kv_group", "layer", "pair", "all_but_one")
GROUP = {"smollm2": 3}  # query heads that read one key; elsewhere each has its own
# What of a sequence is text; the rest was added by the tokenizer, or starts the decoder.
WRITTEN = {
    "attn": {"smollm2": slice(None), "minilm": slice(1, -1)},
    "encoder_attn": {"aren_transliteration": slice(None)},
    "decoder_self_attn": {"aren_transliteration": slice(1, None)},
    "decoder_cross_attn": {"aren_transliteration": slice(1, None)},
}


def drawn_units(name: str, kind: str) -> list[tuple[tuple[Head, ...], tuple[Head, ...]]]:
    """Draw four units of a kind: the heads that name each, and those that it closes."""
    n_layers, n_heads = SIZES[name]
    rng, sites = np.random.default_rng(KINDS.index(kind)), list(W_O[name])

    def draw(turn: int) -> Head:
        layer, head = int(rng.integers(n_layers)), int(rng.integers(n_heads))
        return Head(sites[turn % len(sites)], layer, head)

    drawn = []
    for turn in range(4):
        first, second = draw(turn), draw(turn + 1)  # a pair lies in two sites where there are two
        size = GROUP.get(name, 1)
        start = first.head // size * size
        others = {
            "kv_group": range(start, start + size),
            "layer": range(n_heads),
            "all_but_one": [h for h in range(n_heads) if h != first.head],
        }.get(kind, [])
        closed = tuple(Head(first.site, first.layer, number) for number in others)
        drawn.append(((first, second),) * 2 if kind == "pair" else ((first,), closed))
    return drawn


@pytest.fixture(scope="module")
def theirs(model):
    return cache(lambda name: plain(name, model(name)))


@torch.no_grad()
def plain_means(module, name: str, run) -> dict[tuple[str, int], torch.Tensor]:
    """Average what each output projection reads over the written tokens of all that `run` runs."""
    kept: dict[tuple[str, int], list[torch.Tensor]] = {}

    def keep(site: str, layer: int):
        written = WRITTEN[site][name]
        return lambda _module, args: kept.setdefault((site, layer), []).extend(args[0][0, written])

    with ExitStack() as stack:
        for site, path in W_O[name].items():
            for layer in range(SIZES[name][0]):
                projection = module.get_submodule(path.format(layer=layer))
                stack.callback(projection.register_forward_pre_hook(keep(site, layer)).remove)
        run()
    return {place: torch.stack(rows).mean(0) for place, rows in kept.items()}


@pytest.mark.parametrize("ablation", ["zero", "mean"])
@pytest.mark.parametrize("name", ["smollm2", "minilm", "aren_transliteration"])
@torch.no_grad()
def test_heads_closed_together_equal_a_full_forward_per_unit(name, ablation, model, task, theirs):
    ours, fresh = model(name), theirs(name)
    metric, examples = source(name)[0], TOGETHER[name]
    tokenizer, n_heads = ours.codec.tokenizer, SIZES[name][1]

    def scores() -> list[float]:
        return [metric(fresh, tokenizer, *example) for example in examples]

    means = None if ablation == "zero" else plain_means(fresh, name, scores)
    drawn = [unit for kind in KINDS for unit in drawn_units(name, kind)]
    expected = []
    for _, closed in drawn:
        with without(fresh, name, closed, n_heads, means):
            expected.append(scores())
    assert (np.abs(np.array(expected) - scores()).max(axis=1) > 10 * CLOSE["atol"]).all()

    asked = task(name, examples=examples)
    found = [
        units.units(kind, ours.sites, named)
        for kind in KINDS
        for named, _ in drawn_units(name, kind)
    ]
    settings = [unit.closed for (unit,) in found]
    assert [set(closed) for closed in settings] == [set(closed) for _, closed in drawn]
    baseline = gates.Zero()
    if ablation == "mean":
        batches = sweep.batches(ours, asked, 512)
        baseline = gates.Mean(gates.means(ours, batches, by_position=False, specials=False))
    jobs = [job for part in plan(ours, asked, settings, 1, 512).parts for job in part]
    engine = Engine(ours, asked, settings, baseline, "all")
    rows = pd.concat([engine.run(job) for job in jobs])
    ablated = rows.pivot(index="setting", columns="example", values="ablated").to_numpy()
    np.testing.assert_allclose(ablated, np.array(expected), **CLOSE)


def test_the_drawn_pairs_lie_in_two_sites_where_there_are_several():
    for heads, _ in drawn_units("aren_transliteration", "pair"):
        assert len({head.site for head in heads}) == 2
