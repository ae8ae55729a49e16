"""Attention is checked by hand, against torch's own two implementations, and by editing it."""

from math import inf, sqrt

import pytest
import torch
from einops import einsum, rearrange, repeat
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from interp import attention
from interp.attention import MultiHeadAttention
from interp.errors import InputError

EXACT = {"atol": 1e-6, "rtol": 0}
PADDED = torch.tensor([[True, True, True, True, True], [True, True, True, False, False]])


def layer(*sizes, seed=0, **choices) -> MultiHeadAttention:
    """A layer whose biases are not 0, as they would be at first."""
    torch.manual_seed(seed)
    attn = MultiHeadAttention(*sizes, **choices)
    for name, parameter in attn.named_parameters():
        if name.startswith("b_"):
            nn.init.normal_(parameter)
    return attn


def sequence(*shape, seed=1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def torch_twin(attn: MultiHeadAttention) -> nn.MultiheadAttention:
    """Torch's layer with the same weights."""
    twin = nn.MultiheadAttention(
        attn.d_model, attn.n_heads, bias=attn.b_O is not None, batch_first=True
    )
    into = [
        rearrange(w, "h d_model d_head -> (h d_head) d_model")
        for w in (attn.W_Q, attn.W_K, attn.W_V)
    ]
    with torch.no_grad():
        twin.in_proj_weight.copy_(torch.cat(into))
        twin.out_proj.weight.copy_(rearrange(attn.W_O, "h d_head d_model -> d_model (h d_head)"))
        if attn.b_O is not None:
            twin.in_proj_bias.copy_(
                torch.cat([b.flatten() for b in (attn.b_Q, attn.b_K, attn.b_V)])
            )
            twin.out_proj.bias.copy_(attn.b_O)
    return twin


def textbook_layer() -> MultiHeadAttention:
    """One head reads dims 0-1 of four, the other dims 2-3, and W_O is the identity."""
    attn = MultiHeadAttention(4, 2, bias=False)
    with torch.no_grad():
        select = torch.eye(4).view(4, 2, 2).transpose(0, 1)
        for weight in (attn.W_Q, attn.W_K, attn.W_V):
            weight.copy_(select)
        attn.W_O.copy_(torch.eye(4).view(2, 2, 4))
    return attn


def test_textbook_case():
    x = torch.tensor([[[1.0, 0, 1, 0], [0, 1, 0, 1]]])
    output, cache = textbook_layer().run_with_cache(x)
    a = 1 / (1 + torch.e ** (-1 / sqrt(2)))
    assert a == pytest.approx(0.6698, abs=5e-5)
    every_head = torch.tensor([[a, 1 - a], [1 - a, a]]).expand(1, 2, 2, 2)
    torch.testing.assert_close(cache["hook_pattern"], every_head, **EXACT)
    torch.testing.assert_close(
        output, torch.tensor([[[a, 1 - a, a, 1 - a], [1 - a, a, 1 - a, a]]]), **EXACT
    )


def test_shapes_of_the_textbooks_base_model():
    attn = MultiHeadAttention(512, 8)
    output, cache = attn.run_with_cache(sequence(1, 4, 512))
    assert attn.W_Q[0].shape == attn.W_K[0].shape == attn.W_V[0].shape == (512, 64)
    assert cache["hook_z"][0, :, 0].shape == (4, 64)
    assert cache["hook_z"][0].flatten(1).shape == (4, 512)
    assert attn.W_O.flatten(0, 1).shape == (512, 512)
    assert output.shape == (1, 4, 512)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("key_mask", [None, PADDED])
def test_self_attention_equals_torchs_layer(bias, causal, key_mask):
    attn, x = layer(12, 3, causal=causal, bias=bias), sequence(2, 5, 12)
    expected, pattern = torch_twin(attn)(
        x,
        x,
        x,
        key_padding_mask=None if key_mask is None else ~key_mask,
        attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None,
        average_attn_weights=False,
    )
    output, cache = attn.run_with_cache(x, key_mask=key_mask)
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(cache["hook_pattern"], pattern, **EXACT)


@pytest.mark.parametrize("key_mask", [None, PADDED])
def test_cross_attention_equals_torchs_layer(key_mask):
    attn, x, memory = layer(12, 3), sequence(2, 7, 12), sequence(2, 5, 12, seed=2)
    hidden = None if key_mask is None else ~key_mask
    expected, _ = torch_twin(attn)(x, memory, memory, key_padding_mask=hidden)
    torch.testing.assert_close(attn(x, memory, key_mask=key_mask), expected, **EXACT)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("d_head", [None, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_z_equals_torchs_grouped_query_attention(n_kv_heads, d_head, causal):
    attn = layer(12, 6, n_kv_heads=n_kv_heads, d_head=d_head, causal=causal)
    _, cache = attn.run_with_cache(sequence(2, 5, 12))
    q, k, v = (cache[name].transpose(1, 2) for name in ("hook_q", "hook_k", "hook_v"))
    assert k.shape[1] == v.shape[1] == n_kv_heads
    z = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(cache["hook_z"], z.transpose(1, 2), **EXACT)


def test_grouped_heads_equal_full_heads_that_repeat_their_weights():
    grouped, full = layer(12, 6, n_kv_heads=2), layer(12, 6)
    weights = grouped.state_dict()
    for name in ("W_K", "W_V", "b_K", "b_V"):
        weights[name] = repeat(weights[name], "kv_head ... -> (kv_head g) ...", g=3)
    full.load_state_dict(weights)
    x = sequence(2, 5, 12)
    torch.testing.assert_close(grouped(x), full(x), **EXACT)


def test_scores_are_scaled_and_minus_infinity_where_hidden():
    attn = layer(12, 3, causal=True)
    _, cache = attn.run_with_cache(sequence(2, 5, 12), key_mask=PADDED)
    products = einsum(cache["hook_q"], cache["hook_k"], "b q h d, b k h d -> b h q k")
    visible = torch.ones(5, 5, dtype=torch.bool).tril() & PADDED[:, None, None, :]
    expected = torch.where(visible, products / sqrt(4), -inf)
    torch.testing.assert_close(cache["hook_attn_scores"], expected, **EXACT)


def test_future_tokens_change_no_bit_of_any_head():
    attn, x = layer(12, 3, causal=True), sequence(2, 6, 12)
    changed = torch.cat([x[:, :4], sequence(2, 2, 12, seed=9)], dim=1)
    before, cache_before = attn.run_with_cache(x)
    after, cache_after = attn.run_with_cache(changed)
    assert not torch.equal(before[:, 4:], after[:, 4:])
    assert torch.equal(before[:, :4], after[:, :4])
    assert torch.equal(cache_before["hook_z"][:, :4], cache_after["hook_z"][:, :4])
    pattern_before, pattern_after = cache_before["hook_pattern"], cache_after["hook_pattern"]
    assert torch.equal(pattern_before[:, :, :4], pattern_after[:, :, :4])
    assert pattern_before.triu(1).count_nonzero() == 0


def test_masked_keys_change_no_bit():
    attn, x = layer(12, 3), sequence(2, 5, 12)
    changed = torch.where(PADDED[..., None], x, 100.0)
    assert torch.equal(attn(x, x, key_mask=PADDED), attn(x, changed, key_mask=PADDED))
    assert not torch.equal(attn(x), attn(x, changed))


@pytest.mark.parametrize("causal", [True, False])
def test_a_query_that_sees_no_key_gets_only_the_output_bias(causal):
    attn, x = layer(12, 3, causal=causal), sequence(2, 4, 12).requires_grad_()
    mask = torch.tensor([[False, False, True, True], [False, False, False, False]])
    blind = torch.zeros(2, 4, dtype=torch.bool)
    blind[1] = True
    if causal:
        blind[0, :2] = True
    output, cache = attn.run_with_cache(x, key_mask=mask)
    assert cache["hook_pattern"].transpose(1, 2)[blind].count_nonzero() == 0
    assert cache["hook_z"][blind].count_nonzero() == 0
    assert torch.equal(output[blind], attn.b_O.expand_as(output[blind]))
    torch.testing.assert_close(
        cache["hook_pattern"].transpose(1, 2)[~blind].sum(-1), torch.ones(int((~blind).sum()), 3)
    )
    output.square().sum().backward()
    for gradient in (x.grad, *(parameter.grad for parameter in attn.parameters())):
        assert gradient.isfinite().all()
    assert x.grad[0, 2:].count_nonzero() > 0
    assert x.grad[1].count_nonzero() == 0


def test_hiding_every_key_by_hand_gives_a_zero_pattern():
    attn, x = layer(12, 3), sequence(2, 5, 12)
    _, cache = attn.run_with_cache(x)
    scores = cache["hook_attn_scores"].clone()
    scores[:, 1, 2] = -inf
    pattern = attention.softmax(scores)
    assert pattern[:, 1, 2].count_nonzero() == 0
    pattern[:, 1, 2] = cache["hook_pattern"][:, 1, 2]
    assert torch.equal(pattern, cache["hook_pattern"])


def test_no_keys_at_all_is_the_same_as_none_visible():
    attn, x = layer(12, 3), sequence(2, 5, 12)
    assert torch.equal(attn(x, torch.empty(2, 0, 12)), attn.b_O.expand_as(x))


# Each stage of the computation, done again by hand from the one before it.


def scores_of(cache):
    k = cache["hook_k"].repeat_interleave(2, dim=2)
    return einsum(cache["hook_q"], k, "b q h d, b k h d -> b h q k") / sqrt(3)


def z_of(cache):
    v = cache["hook_v"].repeat_interleave(2, dim=2)
    return einsum(cache["hook_pattern"], v, "b h q k, b k h d -> b q h d")


def output_of(attn, cache):
    return cache["hook_z"].flatten(2) @ attn.W_O.flatten(0, 1) + attn.b_O


FROM_THERE_ON = {  # hook: the stages that follow it
    "hook_q": ("hook_attn_scores", "hook_pattern", "hook_z"),
    "hook_k": ("hook_attn_scores", "hook_pattern", "hook_z"),
    "hook_v": ("hook_z",),
    "hook_attn_scores": ("hook_pattern", "hook_z"),
    "hook_pattern": ("hook_z",),
    "hook_z": (),
}
STAGE = {
    "hook_attn_scores": scores_of,
    "hook_pattern": lambda cache: cache["hook_attn_scores"].softmax(dim=-1),
    "hook_z": z_of,
}


def returned(edit):
    return lambda value, hook: edit(value)


def in_place(edit):
    def write(value, hook):
        value.copy_(edit(value))

    return write


@pytest.mark.parametrize("how", [returned, in_place])
@pytest.mark.parametrize("name", FROM_THERE_ON)
def test_an_edit_changes_what_follows_as_predicted(name, how):
    attn, x = layer(12, 4, n_kv_heads=2), sequence(2, 5, 12)
    clean, cache = attn.run_with_cache(x)
    new = sequence(*cache[name].shape, seed=5)
    edited = attn.run_with_hooks(x, fwd_hooks=[(name, how(lambda value: new))])

    predicted = {**cache, name: new}
    for stage in FROM_THERE_ON[name]:
        predicted[stage] = STAGE[stage](predicted)
    torch.testing.assert_close(edited, output_of(attn, predicted), atol=1e-5, rtol=0)
    assert (edited - clean).abs().max() > 0.1
    assert torch.equal(attn(x), clean), "hooks are gone afterwards"


@pytest.mark.parametrize("how", [returned, in_place])
def test_an_edited_result_changes_the_output_by_as_much(how):
    attn, x = layer(12, 4, n_kv_heads=2), sequence(2, 5, 12)
    attn.use_attn_result = True
    clean, cache = attn.run_with_cache(x)

    def silence_head_1(result):
        return torch.where(torch.arange(4)[:, None] == 1, 0.0, result)

    edited = attn.run_with_hooks(x, fwd_hooks=[("hook_result", how(silence_head_1))])
    torch.testing.assert_close(edited, clean - cache["hook_result"][:, :, 1], **EXACT)
    assert (edited - clean).abs().max() > 0.1


def test_results_add_up_to_the_output():
    attn, x = layer(12, 3), sequence(2, 5, 12)
    output, cache = attn.run_with_cache(x)
    assert "hook_result" not in cache
    attn.use_attn_result = True
    same, cache = attn.run_with_cache(x)
    torch.testing.assert_close(same, output, **EXACT)
    torch.testing.assert_close(cache["hook_result"].sum(dim=2) + attn.b_O, output, **EXACT)
    head_2 = cache["hook_z"][:, :, 2] @ attn.W_O[2]
    torch.testing.assert_close(cache["hook_result"][:, :, 2], head_2, **EXACT)


def test_hooks_fire_in_order_with_their_shapes():
    attn, fired = layer(12, 4, n_kv_heads=2, d_head=5), {}
    attn.use_attn_result = True

    def note(value, hook):
        fired[hook.name] = tuple(value.shape)

    attn.run_with_hooks(
        sequence(2, 7, 12), sequence(2, 3, 12), fwd_hooks=[(lambda name: True, note)]
    )
    assert list(fired.items()) == [
        ("hook_q", (2, 7, 4, 5)),
        ("hook_k", (2, 3, 2, 5)),
        ("hook_v", (2, 3, 2, 5)),
        ("hook_attn_scores", (2, 4, 7, 3)),
        ("hook_pattern", (2, 4, 7, 3)),
        ("hook_z", (2, 7, 4, 5)),
        ("hook_result", (2, 7, 4, 12)),
    ]


def test_weights_start_xavier_uniform_and_follow_torchs_seed():
    attn = layer(64, 4, n_kv_heads=2, d_head=8)
    for weight, inputs, outputs in (
        (attn.W_Q, 64, 32),
        (attn.W_K, 64, 16),
        (attn.W_V, 64, 16),
        (attn.W_O, 32, 64),
    ):
        bound = sqrt(6 / (inputs + outputs))
        assert 0.97 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / sqrt(3), rel=0.05)
    assert torch.equal(attn.W_V, layer(64, 4, n_kv_heads=2, d_head=8).W_V)
    assert not torch.equal(attn.W_V, layer(64, 4, n_kv_heads=2, d_head=8, seed=1).W_V)
    assert all(
        bias.count_nonzero() == 0
        for bias in (MultiHeadAttention(4, 2).b_Q, MultiHeadAttention(4, 2).b_O)
    )


@pytest.mark.parametrize(
    ("sizes", "choices", "message"),
    [
        ((10, 3), {}, "d_model=10 is not divisible by n_heads=3"),
        ((12, 6), {"n_kv_heads": 4}, "n_heads=6 is not divisible by n_kv_heads=4"),
        ((12, 0), {}, "at least 1, got d_model=12, n_heads=0"),
        ((12, 3), {"d_head": 0}, "d_head=0"),
    ],
)
def test_heads_that_do_not_fit_are_refused(sizes, choices, message):
    with pytest.raises(InputError, match=message):
        MultiHeadAttention(*sizes, **choices)


def test_causal_attention_to_another_length_is_refused():
    attn = layer(12, 3, causal=True)
    attn(sequence(2, 5, 12), sequence(2, 5, 12))
    with pytest.raises(InputError, match="5 queries and 4 keys"):
        attn(sequence(2, 5, 12), sequence(2, 4, 12))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [{}, {"n_kv_heads": 2}, {"n_kv_heads": 1, "d_head": 5}])
@pytest.mark.parametrize("n_keys", [None, 9])
def test_cost_is_what_torch_counts(bias, shape, n_keys):
    attn = layer(12, 4, bias=bias, **shape)
    x, memory = sequence(1, 7, 12), sequence(1, n_keys or 7, 12)
    count = FlopCounterMode(display=False)
    with count:
        _, cache = attn.run_with_cache(x, memory)
    assert attention.cost(7, 12, 4, n_keys=n_keys, bias=bias, **shape) == attention.Cost(
        parameters=sum(parameter.numel() for parameter in attn.parameters()),
        score_entries=cache["hook_attn_scores"].numel(),
        multiply_adds=count.get_total_flops() // 2,
    )
