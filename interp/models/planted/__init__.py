"""Transformers wired by hand, so that it is known what each head does: the measure of measures.

Nothing is trained. Each head's weights are set to look for one thing in a small language (see
`language`, and `wiring` for how), and `truth` says which: that is what a measure must find, and all
that it may find.

    decoder, encoder, encoder_decoder    heads with known patterns, and a corpus to see them on
    redundant    a decoder whose heads' parts in one task are known, and its prompts; which pronoun
                 stands for the person, read off after `because` or `when`:

        main          writes the answer
        backup        writes it if main has not, only then; makes up for three quarters
        twin          two, of which each alone is enough: the readout clips their sum
        linear_twin   two whose contributions add up
        harmful       writes a wrong answer
        dead          reads, and writes nothing (implied: writes where nobody reads)

The seed decides the order of heads in each layer, that of the vocabulary, the heads of random
weights, a little noise (1e-3 on every entry of W_Q and W_K), the corpus and the prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from interp.corpora.corpus import Corpus
from interp.errors import InputError
from interp.heads import Head
from interp.models.custom import CustomModel, from_transformer
from interp.models.planted import language, variants
from interp.models.planted.variants import N_CTX, PRONOUNS, READOUT, Layers
from interp.models.planted.wiring import Space, d_head, wire
from interp.models.pretrained import float_type, torch_device
from interp.models.text import WORD_SPECIALS
from interp.transformer import Transformer, TransformerConfig

VARIANTS: dict[str, dict[str, Layers]] = {
    "decoder": {"attn": variants.DECODER},
    "encoder": {"attn": variants.ENCODER},
    "encoder_decoder": {
        "encoder_attn": variants.ENCODER,
        "decoder_self_attn": variants.DECODER,
        "decoder_cross_attn": variants.CROSS,
    },
    "redundant": {"attn": variants.REDUNDANT_DECODER},
}
"""The heads of each site of each variant."""
N_EXAMPLES = 48


class Example(NamedTuple):
    """A prompt with the right next word and a wrong one, each with the space before it."""

    prompt: str
    answer: str
    distractor: str


class PlantedModel(CustomModel):
    """A Transformer of ours whose heads are known."""

    truth: Mapping[Head, Mapping[str, str]]
    """For every head, what it does: feature → `planted` or `implied`; the rest is absent."""
    corpus: Corpus
    """Sentences in its language."""
    examples: Sequence[Example]
    """Prompts of the variant `redundant`."""

    def __init__(
        self,
        model: CustomModel,
        truth: Mapping[Head, Mapping[str, str]],
        corpus: Corpus,
        examples: Sequence[Example],
    ) -> None:
        """Take over everything that `from_transformer` found, and add what is known."""
        self.__dict__.update(vars(model))
        self.truth, self.corpus, self.examples = truth, corpus, examples

    def heads_of(self, feature: str) -> list[Head]:
        """List the heads in which a feature is planted."""
        return [head for head, known in self.truth.items() if known.get(feature) == "planted"]


def planted(
    variant: str,
    weights_seed: int,
    *,
    device: str,
    dtype: str,
    prepend_bos: bool | str,
    padding_side: str,
    truncation: str,
) -> PlantedModel:
    """Build a model whose heads are known.

    Raises:
        InputError: There is no such variant.
    """
    if variant not in VARIANTS:
        raise InputError(f"model.variant={variant}: one of {', '.join(VARIANTS)}")
    kind = "decoder" if variant == "redundant" else variant
    rng = np.random.default_rng(weights_seed)
    space = variants.space()
    words = [*WORD_SPECIALS, *rng.permutation(language.WORDS).tolist()]
    config = TransformerConfig(
        kind,  # type: ignore[arg-type]
        d_vocab=len(words),
        d_model=len(space),
        n_layers=len(variants.DECODER),
        n_heads=len(variants.DECODER[0]),
        d_head=d_head(space, N_CTX),
        d_mlp=2 * len(PRONOUNS) if variant == "redundant" else None,
        n_ctx=N_CTX,
        norm="none",
        bias=False,
        seed=weights_seed,
    )
    module = Transformer(config)
    model = from_transformer(
        module,
        tokenizer(words, kind),
        name=f"planted_{variant}",
        prepend_bos=prepend_bos,
        padding_side=padding_side,
        truncation=truncation,
        record={"name": f"planted_{variant}", "weights": f"set by hand, seed {weights_seed}"},
    )
    truth: dict[Head, Mapping[str, str]] = {}
    with torch.no_grad():
        _embed(module, words, space)
        for site_name, layers in VARIANTS[variant].items():
            site = model.site[site_name]
            for layer, heads in enumerate(layers):
                block = getattr(module, site.stack)[layer]
                order = [heads[number] for number in rng.permutation(len(heads))]
                wire(getattr(block, site.module), order, space, rng)
                truth |= {Head(site_name, layer, n): head.truth for n, head in enumerate(order)}
        if variant == "redundant":
            _read_out(module, words, space)
    module.to(torch_device(device), float_type(dtype))
    examples = _examples(rng) if variant == "redundant" else ()
    return PlantedModel(model, truth, language.corpus(weights_seed), examples)


def tokenizer(words: Sequence[str], kind: str) -> Any:
    """Build a tokenizer whose tokens are words, numbered in the given order.

    A decoder's text begins with `<s>`, an encoder's stands in `<s> … </s>`. A target ends in
    `</s>`; shifted right by the start `<s>`, its words stand at the same places as a source's.
    """
    from transformers import PreTrainedTokenizerFast

    vocab = {word: number for number, word in enumerate(words)}
    ends = [(token, vocab[token]) for token in ("<s>", "</s>")]
    source, target = (
        processors.TemplateProcessing(single=frame, special_tokens=ends)
        for frame in ("<s> $A" if kind == "decoder" else "<s> $A </s>", "$A </s>")
    )

    class WordTokenizer(PreTrainedTokenizerFast):
        def _switch_to_input_mode(self) -> None:
            self.backend_tokenizer.post_processor = source

        def _switch_to_target_mode(self) -> None:
            self.backend_tokenizer.post_processor = target

    backend = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ("pad_token", "bos_token", "eos_token", "unk_token", "mask_token")
    specials = dict(zip(names, WORD_SPECIALS, strict=True))
    made = WordTokenizer(tokenizer_object=backend, **specials)
    made._switch_to_input_mode()
    return made


def _embed(module: Any, words: Sequence[str], space: Space) -> None:
    """Set the embeddings: 1 at each feature of a token, and at its position."""
    tables = [(module.embed, module.pos_embed)]
    if module.config.kind == "encoder_decoder":
        tables.append((module.decoder_embed, module.decoder_pos_embed))
    for embed, pos_embed in tables:
        embed.weight.zero_()
        for number, word in enumerate(words):
            for name in (f"token:{word}", *language.features(word)):
                embed.weight[number, space[name]] = 1
        pos_embed.weight.zero_()
        for place in range(N_CTX):
            pos_embed.weight[place, space[f"position:{place}"]] = 1


def _read_out(module: Any, words: Sequence[str], space: Space) -> None:
    """Let the first MLP clip what the twins write, min(x, 1), and logits add up the evidence."""
    for block in module.blocks:
        for linear in (block.mlp.W_in, block.mlp.W_out):
            linear.weight.zero_()
    module.unembed.weight.zero_()
    mlp = module.blocks[0].mlp
    for number, word in enumerate(PRONOUNS):  # min(x, 1) = relu(x) - relu(x - 1) for x >= 0
        mlp.W_in.weight[2 * number : 2 * number + 2, space[f"twin:{word}"]] = 1
        mlp.W_in.weight[2 * number + 1, space["one"]] = -1
        mlp.W_out.weight[space[f"clipped:{word}"], 2 * number] = 1
        mlp.W_out.weight[space[f"clipped:{word}"], 2 * number + 1] = -1
        for what, weight in READOUT.items():
            module.unembed.weight[words.index(word), space[f"{what}:{word}"]] = weight


def _examples(rng: np.random.Generator) -> tuple[Example, ...]:
    """Draw prompts; a distractor is the word that the harmful head writes."""
    found = []
    for _ in range(N_EXAMPLES):
        prompt, person = language.opening(rng)
        answer = language.pronoun(person)
        found.append(Example(prompt, f" {answer}", f" {variants.WRONG[answer]}"))
    return tuple(found)
