"""From strings to padded batches of tokens, with nothing implicit.

Beginning-of-sequence token, padding side and truncation are stated in the configuration. Every
token keeps its character offsets and a flag that says whether the tokenizer added it (`special`),
so that statistics can leave out what is not text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from interp.axes import Mask, Tokens
from interp.errors import InputError


@dataclass(frozen=True)
class Encoded:
    """One tokenised string, unpadded."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    """First and one-past-last character of each token; (0, 0) for special tokens."""
    special: tuple[bool, ...]
    """True for tokens that are not text: BOS, EOS, [CLS], [SEP]."""

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self.ids)

    def __add__(self, other: "Encoded") -> "Encoded":
        """Put two runs of tokens together."""
        return Encoded(
            self.ids + other.ids, self.offsets + other.offsets, self.special + other.special
        )

    def __getitem__(self, cut: slice) -> "Encoded":
        """Cut out a run of tokens."""
        return Encoded(self.ids[cut], self.offsets[cut], self.special[cut])


@dataclass(frozen=True)
class Text:
    """Padded sequences."""

    tokens: Tokens
    mask: Mask
    """True at real tokens, False at pads."""
    special: Mask
    """True at special tokens and at pads."""
    offsets: Int[Tensor, "batch position 2"]

    @property
    def position(self) -> Int[Tensor, "batch position"]:
        """Each token's place counted from its sequence's first real token; pads before it are 0."""
        return (self.mask.cumsum(-1) - 1).clamp(min=0)

    def select(self, rows: Int[Tensor, " row"]) -> "Text":
        """Pick sequences, in the given order, with repetition."""
        return Text(self.tokens[rows], self.mask[rows], self.special[rows], self.offsets[rows])

    def to(self, device: str) -> "Text":
        """Move to a device."""
        return Text(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def pad(sequences: Sequence[Encoded], pad_id: int, side: str) -> Text:
    """Pad sequences to the length of the longest, on the `left` or the `right`."""
    length = max(map(len, sequences))
    shape = len(sequences), length
    tokens = torch.full(shape, pad_id)
    mask = torch.zeros(shape, dtype=torch.bool)
    special = torch.ones(shape, dtype=torch.bool)
    offsets = torch.zeros((*shape, 2), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        n = len(sequence)
        real = slice(length - n, length) if side == "left" else slice(0, n)
        tokens[row, real] = torch.tensor(sequence.ids)
        mask[row, real] = True
        special[row, real] = torch.tensor(sequence.special)
        offsets[row, real] = torch.tensor(sequence.offsets)
    return Text(tokens, mask, special, offsets)


@dataclass(frozen=True)
class Codec:
    """A tokenizer and the choices that go with it."""

    tokenizer: Any
    prepend_bos: bool
    """Whether sequences begin with the beginning-of-sequence token (never twice)."""
    truncation: str
    """What happens to a text longer than the context: `error`, or the side that is cut (special
    tokens stay)."""
    n_ctx: int | None
    """The longest sequence the model takes; None where it has no limit."""

    @property
    def pad_id(self) -> int:
        """The id that fills pads; masked everywhere, so any id of the vocabulary serves."""
        pad_id = self.tokenizer.pad_token_id
        return 0 if pad_id is None else pad_id

    def encode(self, text: str) -> Encoded:
        """Tokenise one text.

        Raises:
            InputError: The text is empty, or longer than the context while truncation is `error`.
        """
        if not text.strip():
            raise InputError("empty text: nothing to tokenise")
        return self._fit(self.with_bos(self._tokenise(text=text)), text)

    def frame(self, *, as_target: bool = False) -> tuple[Encoded, Encoded]:
        """Give the special tokens that stand before and after a text, or a target."""
        encoded = self.encode_target("a") if as_target else self.encode("a")
        text = [place for place, special in enumerate(encoded.special) if not special]
        return encoded[: text[0]], encoded[text[-1] + 1 :]

    def encode_long(self, text: str, *, as_target: bool = False) -> Encoded:
        """Tokenise a text of any length, or a target, without special tokens."""
        side = "text_target" if as_target else "text"
        return self._tokenise(**{side: text}, add_special_tokens=False)

    def encode_target(self, text: str) -> Encoded:
        """Tokenise what an encoder-decoder is to write, its end token included."""
        if not text.strip():
            raise InputError("empty text: nothing to tokenise")
        encoded = self._tokenise(text_target=text)
        end = self.tokenizer.eos_token_id
        if end is not None and encoded.ids[-1] != end:
            encoded = Encoded(
                (*encoded.ids, end), (*encoded.offsets, (0, 0)), (*encoded.special, True)
            )
        return self._fit(encoded, text)

    def _tokenise(self, **choices: Any) -> Encoded:
        encoding = self.tokenizer(
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            verbose=False,
            **choices,
        )
        return Encoded(
            tuple(encoding["input_ids"]),
            tuple(map(tuple, encoding["offset_mapping"])),
            tuple(map(bool, encoding["special_tokens_mask"])),
        )

    def encode_pair(self, prefix: str, continuations: Sequence[str]) -> list[Encoded]:
        """Tokenise `prefix + continuation` for each continuation, without a closing token."""
        return [self.without_end(self.encode(prefix + text)) for text in continuations]

    def without_end(self, encoded: Encoded) -> Encoded:
        """Drop special tokens from the end."""
        n = len(encoded)
        while n and encoded.special[n - 1]:
            n -= 1
        return encoded[:n]

    def with_bos(self, encoded: Encoded) -> Encoded:
        """Add or drop the beginning-of-sequence token, as `prepend_bos` says; never double it."""
        bos = bos_id(self.tokenizer)
        has_bos = bos is not None and encoded.ids[:1] == (bos,)
        if has_bos == self.prepend_bos or bos is None:
            return encoded
        if has_bos:
            return encoded[1:]
        return Encoded((bos, *encoded.ids), ((0, 0), *encoded.offsets), (True, *encoded.special))

    def _fit(self, encoded: Encoded, text: str) -> Encoded:
        if self.n_ctx is None or len(encoded) <= self.n_ctx:
            return encoded
        if self.truncation == "error":
            raise InputError(
                f"text of {len(encoded)} tokens is longer than the context of {self.n_ctx}: "
                f"'{text[:40]}…' (shorten it, or set model.truncation=left or right)"
            )
        n = len(encoded)
        first = next((place for place in range(n) if not encoded.special[place]), 0)
        last = n - next((place for place in range(n) if not encoded.special[-1 - place]), 0)
        room = self.n_ctx - first - (n - last)
        if self.truncation == "left":
            return encoded[:first] + encoded[last - room : last] + encoded[last:]
        return encoded[:first] + encoded[first : first + room] + encoded[last:]


def bos_id(tokenizer: Any) -> int | None:
    """Find the BOS token; a name that is not in the vocabulary, as MiniLM's, is none."""
    bos = tokenizer.bos_token_id
    known = bos is not None and tokenizer.convert_ids_to_tokens(bos) == tokenizer.bos_token
    return bos if known else None


def codec(tokenizer: Any, *, prepend_bos: bool | str, truncation: str, n_ctx: int | None) -> Codec:
    """Bind a tokenizer to its choices; `prepend_bos="auto"` does what the tokenizer itself does.

    Raises:
        InputError: A choice is not one of those offered, or the tokenizer has no such token.
    """
    if prepend_bos not in (True, False, "auto"):
        raise InputError(f"model.prepend_bos={prepend_bos}: auto, true or false")
    if truncation not in ("error", "left", "right"):
        raise InputError(f"model.truncation={truncation}: error, left or right")
    bos = bos_id(tokenizer)
    if prepend_bos == "auto":
        prepend_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    elif prepend_bos and bos is None:
        raise InputError(
            "model.prepend_bos=true: this tokenizer has no BOS token (use auto or false)"
        )
    return Codec(tokenizer, bool(prepend_bos), truncation, n_ctx)


BYTE_SPECIALS = ("<pad>", "<s>", "</s>", "<mask>")


def byte_tokenizer(frame: str = "none") -> Any:
    """Build a tokenizer whose tokens are the 256 bytes, for models without one of their own.

    Args:
        frame: What surrounds a text: `none`, `end` (`… </s>`) or `both` (`<s> … </s>`).
    """
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*BYTE_SPECIALS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if frame != "none":
        single = "<s> $A </s>" if frame == "both" else "$A </s>"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<s>", vocab["<s>"]), ("</s>", vocab["</s>"])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        mask_token="<mask>",
    )


WORD_SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")


def word_tokenizer(words: Sequence[str], frame: str) -> Any:
    """Build a tokenizer whose tokens are words with white space between them.

    Args:
        words: The vocabulary; special tokens come before it.
        frame: What surrounds a text: `none`, `start` (`<s> …`) or `end` (`… </s>`).
    """
    from transformers import PreTrainedTokenizerFast

    vocab = {word: number for number, word in enumerate((*WORD_SPECIALS, *words))}
    backend = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if frame != "none":
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A" if frame == "start" else "$A </s>",
            special_tokens=[("<s>", vocab["<s>"]), ("</s>", vocab["</s>"])],
        )
    names = ("pad_token", "bos_token", "eos_token", "unk_token", "mask_token")
    specials = dict(zip(names, WORD_SPECIALS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **specials)


def visible(
    query: Text, key: Text, *, causal: bool, window: int | None
) -> Bool[Tensor, "batch query key"]:
    """Mark the keys that each query may attend to: real tokens, none in the future, in the window.

    Args:
        query: The sequences that ask.
        key: The sequences that are asked.
        causal: Whether a query sees no later key.
        window: How many keys a query sees at most, itself included; None for no limit.
    """
    n_query, n_key = query.tokens.shape[1], key.tokens.shape[1]
    seen = key.mask[:, None, :].expand(-1, n_query, -1)
    if causal or window is not None:
        distance = torch.arange(n_query)[:, None] - torch.arange(n_key)[None, :]
        distance = distance.to(seen.device)
        if causal:
            seen = seen & (distance >= 0)
        if window is not None:
            seen = seen & (distance.abs() < window)
    return seen
