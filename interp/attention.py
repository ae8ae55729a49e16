"""Multi-head attention as the textbook writes it, with every step open to hooks.

    MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O
    head_i             = softmax(Q W_Q^i (K W_K^i)ᵀ / √d_head) V W_V^i

(Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.2), with a bias added by each
projection. In self-attention Q, K and V are one sequence; in cross-attention K and V are another.
In grouped-query attention (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245) consecutive query
heads share the keys and values of one kv_head.

Names and shapes are those of TransformerLens, so that what reads its models reads these too.
"""

from dataclasses import dataclass
from math import inf, prod, sqrt

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from interp.axes import Pattern, Z
from interp.errors import InputError

Query = Float[Tensor, "batch query d_model"]
KeyValue = Float[Tensor, "batch key d_model"]
KeyMask = Bool[Tensor, "batch key"]
Visible = Bool[Tensor, "#batch 1 #query key"]
"""The keys that each query may attend to; alike for all heads."""


class MultiHeadAttention(HookedRootModule):
    """Let every position gather information from others, in several ways (heads) at once.

    Parameters (no biases where `bias` is false):

        W_Q [n_heads d_model d_head]             b_Q [n_heads d_head]
        W_K, W_V [n_kv_heads d_model d_head]     b_K, b_V [n_kv_heads d_head]
        W_O [n_heads d_head d_model]             b_O [d_model]

    Weights start as Xavier-uniform draws from torch's default generator: each of the four
    projections is taken as the one matrix it is with its heads side by side. Biases start at 0.

    Hook points, in the order in which they fire; what a hook returns, or writes in place, is what
    the computation goes on with:

        hook_q [batch query head d_head]     hook_k, hook_v [batch key kv_head d_head]
        hook_attn_scores, hook_pattern [batch head query key]; hidden keys score -inf
        hook_z [batch query head d_head]
        hook_result [batch query head d_model]: what each head adds to the output; the largest of
            all, so it is computed, and fires, only while `use_attn_result` is true
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        causal: bool = False,
        bias: bool = True,
    ) -> None:
        """Draw the weights.

        Args:
            d_model: Width of what it reads and writes.
            n_heads: Query heads.
            n_kv_heads: Key/value heads (default: one for each query head).
            d_head: Width of a head (default: d_model / n_heads).
            causal: Hide the keys that come after the query.
            bias: Whether each projection adds a bias.

        Raises:
            InputError: The heads do not share d_model, or the kv heads, evenly.
        """
        super().__init__()
        self.d_model, self.n_heads, self.causal = d_model, n_heads, causal
        self.n_kv_heads, self.d_head = head_shape(d_model, n_heads, n_kv_heads, d_head)
        self.use_attn_result = False

        kv_heads, d_head = self.n_kv_heads, self.d_head
        self.W_Q = _weight(d_model, (n_heads, d_model, d_head))
        self.W_K = _weight(d_model, (kv_heads, d_model, d_head))
        self.W_V = _weight(d_model, (kv_heads, d_model, d_head))
        self.W_O = _weight(d_model, (n_heads, d_head, d_model))
        self.b_Q = nn.Parameter(torch.zeros(n_heads, d_head)) if bias else None
        self.b_K = nn.Parameter(torch.zeros(kv_heads, d_head)) if bias else None
        self.b_V = nn.Parameter(torch.zeros(kv_heads, d_head)) if bias else None
        self.b_O = nn.Parameter(torch.zeros(d_model)) if bias else None

        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()
        self.setup()

    def forward(
        self,
        query: Query,
        key_value: KeyValue | None = None,
        *,
        key_mask: KeyMask | None = None,
    ) -> Query:
        """Attend from each position of `query` to the positions of `key_value`.

        A query that may see no key at all has a zero pattern and a zero z: its output is b_O.

        Args:
            query: The sequence that asks.
            key_value: The sequence that is looked at (default: `query`, i.e. self-attention).
            key_mask: True where a key may be attended (default: everywhere).

        Raises:
            InputError: The layer is causal and the two sequences differ in length.
        """
        key_value = query if key_value is None else key_value
        visible = self._visible(query, key_value, key_mask)
        q = self.hook_q(_project(query, self.W_Q, self.b_Q))
        k = self.hook_k(_project(key_value, self.W_K, self.b_K))
        v = self.hook_v(_project(key_value, self.W_V, self.b_V))
        scores = self._scores(q, k)
        if visible is not None:
            hidden = torch.zeros_like(visible, dtype=scores.dtype).masked_fill(~visible, -inf)
            scores = scores + hidden  # several times faster than masked_fill on the scores
        pattern = self.hook_pattern(softmax(self.hook_attn_scores(scores)))
        return self._output(self.hook_z(self._z(pattern, v)))

    def _visible(
        self, query: Query, key_value: KeyValue, key_mask: KeyMask | None
    ) -> Visible | None:
        """Mark the keys that each query may see; None where nothing is hidden."""
        real = None if key_mask is None else key_mask[:, None, None, :]
        if not self.causal:
            return real
        n, n_keys = query.shape[1], key_value.shape[1]
        if n != n_keys:
            raise InputError(
                f"causal attention needs as many keys as queries, to know which come after; "
                f"got {n} queries and {n_keys} keys"
            )
        past = torch.ones(1, 1, n, n, dtype=torch.bool, device=query.device).tril()
        return past if real is None else past & real

    def _scores(self, q: Z, k: Float[Tensor, "batch key kv_head d_head"]) -> Pattern:
        """Compare every query with every key: q·k / √d_head."""
        q = rearrange(
            q / sqrt(self.d_head),
            "batch query (kv_head group) d_head -> batch kv_head group query d_head",
            kv_head=self.n_kv_heads,
        )
        k = rearrange(k, "batch key kv_head d_head -> batch kv_head 1 d_head key")
        return (q @ k).flatten(1, 2)  # (for narrow heads a matmul is faster than an einsum)

    def _z(self, pattern: Pattern, v: Float[Tensor, "batch key kv_head d_head"]) -> Z:
        """Average the values by the pattern."""
        v = rearrange(v, "batch key kv_head d_head -> batch kv_head 1 key d_head")
        z = pattern.unflatten(1, (self.n_kv_heads, -1)) @ v
        return rearrange(
            z, "batch kv_head group query d_head -> batch query (kv_head group) d_head"
        )

    def _output(self, z: Z) -> Query:
        """Concatenate the heads and multiply by W_O, i.e. add up what each head writes."""
        if self.use_attn_result:
            each = "batch query head d_head, head d_head d_model -> batch query head d_model"
            output = self.hook_result(einsum(z, self.W_O, each)).sum(dim=2)
        else:
            added = "batch query head d_head, head d_head d_model -> batch query d_model"
            output = einsum(z, self.W_O, added)
        return output if self.b_O is None else output + self.b_O


def softmax(scores: Pattern) -> Pattern:
    """Turn scores into shares that add up to 1; where every key is hidden (-inf), all are 0.

    Such a row is emptied before the softmax as well as after it, for the gradient of a softmax of
    -inf alone is NaN even where its value is thrown away.
    """
    pattern = scores.softmax(dim=-1)
    if not pattern[..., :1].isnan().any():  # the usual case; the rest would double the cost
        return pattern
    blind = scores.isneginf().all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0).softmax(dim=-1).masked_fill(blind, 0)


@dataclass(frozen=True)
class Cost:
    """What one attention layer costs on one sequence."""

    parameters: int
    """Numbers that are learned."""
    score_entries: int
    """Scores held at once: the part of the memory that grows with n · n_keys."""
    multiply_adds: int
    """Multiply-adds in the matrix products (half the floating-point operations)."""


def cost(
    n: int,
    d_model: int,
    n_heads: int,
    *,
    d_head: int | None = None,
    n_kv_heads: int | None = None,
    n_keys: int | None = None,
    bias: bool = True,
) -> Cost:
    """Count what attention over n positions costs in parameters, memory and arithmetic.

    With h heads, of which g are kv heads, n queries and m keys:

        parameters      d_model · d_head · (2h + 2g), and biases d_head · (h + 2g) + d_model
        score entries   h · n · m
        multiply-adds   d_model · d_head · (2hn + 2gm) for the projections, plus
                        2 · h · n · m · d_head for the scores and the weighted means

    At d_head = d_model / h the number of heads h changes only the score entries. A causal layer
    computes the hidden half of its scores too, so it costs the same.

    Args:
        n: Queries.
        d_model: Width of the residual stream.
        n_heads: Query heads.
        d_head: Width of a head (default: d_model / n_heads).
        n_kv_heads: Key/value heads (default: one for each query head).
        n_keys: Keys (default: n, i.e. self-attention).
        bias: Whether each projection adds a bias.
    """
    n_kv_heads, d_head = head_shape(d_model, n_heads, n_kv_heads, d_head)
    n_keys = n if n_keys is None else n_keys
    weights = d_model * d_head * (2 * n_heads + 2 * n_kv_heads)
    biases = d_head * (n_heads + 2 * n_kv_heads) + d_model if bias else 0
    score_entries = n_heads * n * n_keys
    projections = d_model * d_head * (2 * n_heads * n + 2 * n_kv_heads * n_keys)
    return Cost(weights + biases, score_entries, projections + 2 * score_entries * d_head)


def head_shape(
    d_model: int, n_heads: int, n_kv_heads: int | None, d_head: int | None
) -> tuple[int, int]:
    """Fill in the number of kv heads and the width of a head where they are not given.

    Raises:
        InputError: A size is below 1, or one does not divide the other.
    """
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if min(d_model, n_heads, n_kv_heads) < 1 or (d_head is not None and d_head < 1):
        raise InputError(
            f"sizes of attention must be at least 1, got d_model={d_model}, n_heads={n_heads}, "
            f"n_kv_heads={n_kv_heads}, d_head={d_head}"
        )
    if d_head is None and d_model % n_heads:
        raise InputError(
            f"d_model={d_model} is not divisible by n_heads={n_heads}: change one, or give d_head"
        )
    if n_heads % n_kv_heads:
        raise InputError(f"n_heads={n_heads} is not divisible by n_kv_heads={n_kv_heads}")
    return n_kv_heads, d_head or d_model // n_heads


def _project(
    x: Float[Tensor, "batch position d_model"],
    weight: Float[Tensor, "head d_model d_head"],
    bias: Float[Tensor, "head d_head"] | None,
) -> Float[Tensor, "batch position head d_head"]:
    heads = einsum(
        x, weight, "batch position d_model, head d_model d_head -> batch position head d_head"
    )
    return heads if bias is None else heads + bias


def _weight(d_model: int, shape: tuple[int, int, int]) -> nn.Parameter:
    """Draw a projection between d_model and all heads, Xavier-uniform (Glorot and Bengio 2010)."""
    bound = sqrt(6 / (d_model + prod(shape) // d_model))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
