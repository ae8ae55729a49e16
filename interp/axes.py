"""The name of every tensor axis, and the tensor types built from them.

    batch       sequences that go through a model together
    row         one sequence under one gate setting (see interp.gates); the batch axis of a sweep
    example     one item of a task; it owns one or more sequences
    position    a token's place in its padded sequence; `query` and `key` where two of them meet
    layer       a block of a stack, from 0
    head        a query head; `kv_head` a key/value head, shared by a group of query heads
    d_model     width of the residual stream; `d_head` width of a head
    vocab       entries of the vocabulary
    read        positions whose logits a metric reads

Shapes are checked in the tests (`pytest --jaxtyping-packages=interp,beartype.beartype`), at no cost
in runs.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Tokens = Int[Tensor, "batch position"]
Mask = Bool[Tensor, "batch position"]
Residual = Float[Tensor, "batch position d_model"]
Z = Float[Tensor, "batch position head d_head"]
"""Each head's output before W_O (TransformerLens `hook_z`)."""
Pattern = Float[Tensor, "batch head query key"]
"""Attention probabilities (TransformerLens `hook_pattern`)."""
Logits = Float[Tensor, "batch read vocab"]
Score = Float[Tensor, " example"]
