"""From tokens to words: which tokens make up a word, and what one word's attention to another is.

Tokenizers cut words into pieces, each in its own way; characters are what all agree on. A token
belongs to the word with which it shares most characters (the first of equals), so a piece that
spans a boundary ("don" in "do|n't") goes where most of it lies. A word that no token is left for is
*unaligned*: it asks nothing and is nobody's target, and it is counted.

Attention between words follows Clark et al. (2019, https://arxiv.org/abs/1906.04341, section 4.1):
*to* a word it is the sum over its pieces, *from* a word the mean over its pieces.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.corpora.corpus import Word
from interp.models.text import Text

Pieces = Bool[Tensor, "batch word position"]
WordPattern = Float[Tensor, "batch head query_word key_word"]


def pieces(text: Text, words: Sequence[Sequence[Word]]) -> Pieces:
    """Mark the tokens of each word; passages of fewer words are padded with words of no token.

    Args:
        text: Tokens with their characters in the passages' texts.
        words: Each passage's words.
    """
    device = text.tokens.device
    bounds = torch.zeros((len(words), max(map(len, words)), 2), dtype=torch.long)
    for row, passage in enumerate(words):
        bounds[row, : len(passage)] = torch.tensor([(word.start, word.end) for word in passage])
    bounds = bounds.to(device)[:, :, None]
    offsets = text.offsets[:, None]
    start = torch.maximum(bounds[..., 0], offsets[..., 0])
    shared = torch.minimum(bounds[..., 1], offsets[..., 1]) - start
    most, owner = shared.max(dim=1, keepdim=True)
    mine = owner == torch.arange(bounds.shape[1], device=device)[None, :, None]
    return mine & (most > 0) & ~text.special[:, None]


def sentence(owners: Pieces, words: Sequence[Sequence[Word]]) -> Int[Tensor, "batch position"]:
    """Number each token's sentence in its passage; -1 for tokens of no word."""
    numbers = torch.full(owners.shape[:2], -1)
    for row, passage in enumerate(words):
        numbers[row, : len(passage)] = torch.tensor([word.sentence for word in passage])
    word = owners.to(torch.uint8).argmax(1)
    return numbers.to(owners.device).gather(1, word).masked_fill(~owners.any(1), -1)


def between_words(
    pattern: Float[Tensor, "batch head query key"],
    query: Bool[Tensor, "batch query_word query"],
    key: Bool[Tensor, "batch key_word key"],
) -> WordPattern:
    """Sum attention over the pieces of the key word, and average it over those of the query word.

    Attention to tokens of no word ([CLS], BOS) is left out, so rows add up to 1 at most.
    """
    share = query.to(pattern.dtype) / query.sum(-1, keepdim=True).clamp(min=1)
    return share[:, None] @ pattern @ key.to(pattern.dtype).transpose(1, 2)[:, None]


def most_attended(
    attention: WordPattern, allowed: Bool[Tensor, "batch query_word key_word"]
) -> Int[Tensor, "batch head query_word"]:
    """Find the word that each word attends to most, among those allowed; the first of equals.

    -1 where there is none, or none receives any attention.
    """
    best, word = attention.masked_fill(~allowed[:, None], -1.0).max(dim=-1)
    return word.masked_fill(best <= 0, -1)


def others(
    query: Bool[Tensor, "batch query_word query"],
    key: Bool[Tensor, "batch key_word key"],
    *,
    causal: bool,
) -> Bool[Tensor, "batch query_word key_word"]:
    """Mark the words that a word may be said to look at: aligned ones, not itself, none hidden."""
    allowed = query.any(-1)[:, :, None] & key.any(-1)[:, None, :]
    shape = allowed.shape[1:]
    distance = torch.arange(shape[0])[:, None] - torch.arange(shape[1])[None, :]
    seen = distance > 0 if causal else distance != 0
    return allowed & seen.to(allowed.device)
