"""Cut plain text into consecutive chunks of tokens."""

from typing import NamedTuple

from interp import files
from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.models.text import Encoded


class Chunk(NamedTuple):
    """A run of a document's tokens, with the special tokens that the model expects around it."""

    text: Encoded
    file: str
    cluster: str
    """The file, or the chunk itself where there is only one file."""


def chunks(model: HeadModel, path: str, context: int) -> list[Chunk]:
    """Cut a text file, or every file of a folder, into chunks of `context` tokens.

    A decoder's chunk is a slice of the file's tokens, after a BOS if the model has `prepend_bos`.
    An encoder's is the slice's text, tokenised anew with its special tokens.

    Raises:
        InputError: The model is an encoder-decoder, the context does not fit, or there is no text.
    """
    if model.kind == "encoder_decoder":
        raise InputError(f"{path}: {model.name} is an encoder-decoder and reads no plain text")
    n_special = int(model.codec.prepend_bos) if model.kind == "decoder" else 2
    longest = (model.codec.n_ctx or context + n_special) - n_special
    if not 2 <= context <= longest:
        raise InputError(f"context={context}: 2 to {longest} tokens for {model.name}")
    documents = files.texts(path)
    found = []
    for name, content in documents.items():
        whole = model.codec.encode_long(content)
        for number, start in enumerate(range(0, len(whole), context)):
            tokens = whole[start : start + context]
            words = content[tokens.offsets[0][0] : tokens.offsets[-1][1]]
            if not words.strip():
                continue
            text = (
                model.codec.with_bos(tokens)
                if model.kind == "decoder"
                else model.codec.encode(words)
            )
            cluster = name if len(documents) > 1 else f"{name}:{number}"
            found.append(Chunk(text, name, cluster))
    return found
