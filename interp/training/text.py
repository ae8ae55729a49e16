"""Text: the next token, or hidden ones, of a user's own files.

Tokens are those of a byte-level BPE (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909) that
is built from the same files' first parts. The last tenth of each file is kept for tests.

    decoder    <s> and a run of tokens; asked is each next token
    encoder    <s> a run of tokens </s>; asked are 15 % of them, of which 80 % are replaced by
               <mask>, 10 % by any token and 10 % stay (Devlin et al. 2019,
               https://arxiv.org/abs/1810.04805)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from interp import files
from interp.errors import InputError
from interp.models.text import BYTE_SPECIALS
from interp.training.lesson import NO_LABEL, Examples, Lesson
from interp.transformer import Kind

HELD_OUT = 0.1
"""The share of each file that is kept for tests: its end."""
HIDDEN, MASKED, REPLACED = 0.15, 0.8, 0.1
"""The share of tokens that is asked of an encoder; of these, what is masked or replaced."""
FEWEST = len(BYTE_SPECIALS) + 256
"""Special tokens and bytes."""


@dataclass(frozen=True)
class Text(Lesson):
    """Runs of tokens of text files."""

    kind: Kind  # type: ignore[misc]
    path: str
    """A text file, or a folder of them."""
    vocabulary: int
    """Tokens at most."""
    context: int
    """Tokens of a run."""

    def __post_init__(self) -> None:
        """Check the choices.

        Raises:
            InputError: One of them is out of range.
        """
        if self.kind not in ("decoder", "encoder"):
            raise InputError(f"a model of text is a decoder or an encoder, not {self.kind}")
        if self.vocabulary < FEWEST:
            raise InputError(f"vocabulary={self.vocabulary}: at least {FEWEST} (bytes come first)")
        if self.context < 2:
            raise InputError(f"context={self.context}: at least 2 tokens")

    @cached_property
    def documents(self) -> Mapping[str, tuple[str, str]]:
        """Each file's text: what is trained on, and the end that is kept for tests."""
        cut = {name: int(len(text) * (1 - HELD_OUT)) for name, text in self._texts.items()}
        return {name: (text[: cut[name]], text[cut[name] :]) for name, text in self._texts.items()}

    @cached_property
    def _texts(self) -> dict[str, str]:
        return files.texts(self.path)

    @cached_property
    def tokenizer(self) -> Any:
        """Pairs of bytes, merged as often as the vocabulary allows."""
        from transformers import PreTrainedTokenizerFast

        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            special_tokens=list(BYTE_SPECIALS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        backend.train_from_iterator((train for train, _ in self.documents.values()), trainer)
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A" if self.kind == "decoder" else "<s> $A </s>",
            special_tokens=[(end, backend.token_to_id(end)) for end in ("<s>", "</s>")],
        )
        names = ("pad_token", "bos_token", "eos_token", "mask_token")
        specials = dict(zip(names, BYTE_SPECIALS, strict=True))
        return PreTrainedTokenizerFast(tokenizer_object=backend, **specials)

    @property
    def n_ctx(self) -> int:
        """A run and its ends."""
        return self.context + (1 if self.kind == "decoder" else 2)

    @cached_property
    def tokens(self) -> dict[str, list[Int[np.ndarray, " token"]]]:
        """The tokens of each file's part that is trained on, and of that for tests.

        Raises:
            InputError: No file has a run of tokens in both parts.
        """
        encode = self.tokenizer.backend_tokenizer.encode
        found = {
            part: [
                np.array(encode(both[number], add_special_tokens=False).ids)
                for both in self.documents.values()
            ]
            for number, part in enumerate(("train", "test"))
        }
        kept = {part: [t for t in every if len(t) >= self.context] for part, every in found.items()}
        if not all(kept.values()):
            raise InputError(
                f"{self.path}: too short for context={self.context}: no file has as many tokens "
                f"in its first nine tenths and in its last (tests are taken from there)"
            )
        return kept

    def draw(self, rng: np.random.Generator, n: int, split: str) -> Examples:
        """Cut out runs of tokens, from anywhere in the part of the files that the split may see."""
        parts = self.tokens["train" if split == "train" else "test"]
        starts = np.array([len(part) - self.context + 1 for part in parts])
        ends = starts.cumsum()
        drawn = rng.integers(ends[-1], size=n)
        part = np.searchsorted(ends, drawn, side="right")
        place = drawn - (ends - starts)[part]
        runs = np.stack(
            [parts[p][s : s + self.context] for p, s in zip(part, place, strict=True)]
        ).astype(np.int64)
        first = np.full((n, 1), self.tokenizer.bos_token_id)
        if self.kind == "decoder":
            tokens = np.concatenate([first, runs], axis=1)
            labels = np.concatenate([runs, np.full((n, 1), NO_LABEL)], axis=1)
        else:
            last = np.full((n, 1), self.tokenizer.eos_token_id)
            nothing = np.full((n, 1), NO_LABEL)
            hidden, asked = self._hide(rng, runs)
            tokens = np.concatenate([first, hidden, last], axis=1)
            labels = np.concatenate([nothing, asked, nothing], axis=1)
        read = torch.from_numpy(tokens)
        mask = torch.ones_like(read, dtype=torch.bool)
        return Examples(read, mask, torch.from_numpy(labels)[..., None])

    def _hide(
        self, rng: np.random.Generator, runs: Int[np.ndarray, "run token"]
    ) -> tuple[Int[np.ndarray, "run token"], Int[np.ndarray, "run token"]]:
        """Hide some tokens, at least one of each run; returns the runs and what is asked."""
        chance = rng.random(runs.shape)
        asked = chance <= np.maximum(HIDDEN, chance.min(axis=1, keepdims=True))
        fate = rng.random(runs.shape)
        words = rng.integers(len(BYTE_SPECIALS), len(self.tokenizer), runs.shape)
        hidden = np.where(asked & (fate < MASKED), self.tokenizer.mask_token_id, runs)
        replaced = asked & (fate >= MASKED) & (fate < MASKED + REPLACED)
        return np.where(replaced, words, hidden), np.where(asked, runs, NO_LABEL)
