"""How alike heads are: by hand, by law, and against loops over scipy and numpy."""

from functools import cache
from math import log, sqrt

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.linalg import subspace_angles
from scipy.spatial.distance import jensenshannon

from interp.heads import Head, Site, all_heads
from interp.models import weights
from interp.models.planted import planted
from interp.redundancy import seen, similarity, spaces, tables
from interp.redundancy.seen import Seen
from interp.redundancy.similarity import OUTPUTS, PATTERNS, Measured

CHOICES = {
    "device": "cpu",
    "dtype": "float32",
    "prepend_bos": "auto",
    "padding_side": "right",
    "truncation": "error",
}
TEXTS = ["The cat sat.", "Dogs run", "Is it so?", "He left."]
MODELS = ["tiny_gemma2", "tiny_bert", "tiny_t5", "custom_decoder"]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def rng(seed=0):
    return np.random.default_rng(seed)


def put(rows, z=None, W_O=None, sequence=None) -> Seen:
    """Put what heads did together, from each position's rows `[head key]`."""
    n_heads, n = len(rows[0]), len(rows)
    z = np.ones((n_heads, n, 1)) if z is None else z
    W_O = np.ones((n_heads, z.shape[-1], 1)) if W_O is None else W_O
    return Seen(
        Site("attn", "blocks", "attn", 1, n_heads, n_heads, z.shape[-1], True),
        torch.tensor(np.concatenate(rows, axis=1), dtype=torch.float64),
        torch.tensor(z, dtype=torch.float64),
        torch.tensor(W_O, dtype=torch.float64),
        torch.tensor([row.shape[1] for row in map(np.asarray, rows)]),
        torch.arange(n) if sequence is None else torch.tensor(sequence),
    )


def drawn(n_heads=5, n=40, seed=0, d_head=3, d_model=7) -> Seen:
    """Draw rows of 2 to 8 keys, some of whose entries are exactly 0, and outputs."""
    random = rng(seed)
    rows = []
    for _ in range(n):
        keys = int(random.integers(2, 9))
        row = random.dirichlet(np.full(keys, 0.5), n_heads)
        row[:, 1:] *= random.random((n_heads, keys - 1)) > 0.2
        row[:, 0] += 1e-3
        rows.append(row / row.sum(1, keepdims=True))
    z = random.normal(size=(n_heads, n, d_head)) + 1
    return put(rows, z, random.normal(size=(n_heads, d_head, d_model)))


def values(one: Seen, *names) -> dict:
    return {name: found.value for name, found in similarity.measured(one, names).items()}


# By hand


def test_divergences_are_what_they_are_by_hand():
    one = put([[[1, 0], [0, 1], [0.5, 0.5]]])
    found = values(one, "js", "tv", "pattern_cosine")
    half = 0.75 * log(4 / 3) + 0.25 * log(4) - log(2) / 2
    assert found["js"] == pytest.approx(
        np.array([[0, log(2), half], [log(2), 0, half], [half, half, 0]])
    )
    assert half == pytest.approx(0.2157615543)
    assert found["tv"] == pytest.approx(np.array([[0, 1, 0.5], [1, 0, 0.5], [0.5, 0.5, 0]]))
    diagonal = sqrt(0.5)
    assert found["pattern_cosine"][0] == pytest.approx([1, 0, diagonal])


def test_measures_of_patterns_are_means_over_positions():
    rows = [[[1, 0], [0, 1]], [[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]]]
    found = similarity.measured(put(rows), ["js", "tv", "pattern_cosine"])
    assert found["js"].value[0, 1] == pytest.approx(log(2) / 2)
    assert found["tv"].value[0, 1] == pytest.approx(0.5)
    assert found["pattern_cosine"].value[0, 1] == pytest.approx(0.5)
    assert (found["js"].n == 2).all()


def test_correlation_is_taken_where_three_keys_are_seen_and_neither_row_is_flat():
    three = [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1 / 3] * 3]
    found = similarity.measured(put([[[1, 0], [0, 1], [0, 1]], three]), ["pattern_correlation"])
    value, n = found["pattern_correlation"]
    assert value[0, 1] == pytest.approx(-13 / 14)
    assert np.isnan(value[2]).all()
    assert n.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]


def test_without_its_first_key_a_row_is_scaled_up():
    rows = [[[0.5, 0.5, 0], [0.8, 0.1, 0.1], [1, 0, 0]], [[0.9, 0.1], [0, 1], [0.5, 0.5]]]
    found = similarity.measured(put(rows), ["js_without_first", "tv_without_first"])
    value, n = found["js_without_first"]
    assert value[0, 1] == pytest.approx(0.2157615543)
    assert found["tv_without_first"].value[0, 1] == pytest.approx(0.5)
    assert np.isnan(value[2]).all()  # all of its attention is on the first key
    assert n.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]  # two keys leave no choice
    rows.append([[0.5, 0.2, 0.3], [0.5, 0.2, 0.3], [0, 0.4, 0.6]])
    value, n = similarity.measured(put(rows), ["js_without_first"])["js_without_first"]
    assert value[0, 1] == pytest.approx(0.2157615543 / 2)
    assert value[0, 2] == pytest.approx(0, abs=1e-12)
    assert n.tolist() == [[2, 2, 1], [2, 2, 1], [1, 1, 1]]


def test_output_cosine_is_taken_where_both_heads_write_something():
    z = np.array([[[1.0], [1.0]], [[2.0], [0.0]], [[-1.0], [1.0]]])
    W_O = np.array([[[1.0, 0.0]], [[1.0, 1.0]], [[1.0, 0.0]]])
    value, n = similarity.measured(put([[[1, 0]] * 3] * 2, z, W_O), ["output_cosine"])[
        "output_cosine"
    ]
    assert value[0, 1] == pytest.approx(sqrt(0.5))
    assert value[0, 2] == pytest.approx(0)  # -1 and 1
    assert n[0].tolist() == [2, 1, 2]


def test_cka_of_a_line_and_of_its_square_by_hand():
    # x = (-1, 0, 1) and (1, -2, 1) are orthogonal after centring; x and 3 x + 5 are not
    z = np.array([[[-1.0], [0.0], [1.0]], [[1.0], [0.0], [1.0]], [[2.0], [5.0], [8.0]]])
    found = values(put([[[1, 0]] * 3] * 3, z), "cka")["cka"]
    assert found == pytest.approx(np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]]), abs=1e-12)


# By law


def test_js_is_at_most_ln_2_and_0_for_a_copy():
    one = drawn()
    copied = Seen(
        one.site,
        torch.cat([one.pattern, one.pattern[:1]]).float(),
        torch.cat([one.z, one.z[:1]]),
        torch.cat([one.W_O, one.W_O[:1]]),
        one.n_keys,
        one.sequence,
    )
    found = values(copied, *PATTERNS, *OUTPUTS)
    assert (found["js"] <= log(2)).all()
    assert (found["js"] >= 0).all()
    for name, value in found.items():
        alike = 0 if name in similarity.DISTANCES else 1
        assert value[0, -1] == pytest.approx(alike, abs=1e-6), name
        assert np.diag(value) == pytest.approx(alike, abs=1e-6), name
        assert value == pytest.approx(value.T), name
    assert (found["js"][0, 1:-1] > 0.01).all()


def test_rows_that_share_no_key_are_ln_2_apart():
    rows = [[[0.3, 0.7, 0, 0], [0, 0, 0.9, 0.1]]] * 3
    found = values(put(rows), "js", "tv")
    assert found["js"][0, 1] == pytest.approx(log(2))
    assert found["tv"][0, 1] == pytest.approx(1)


@pytest.mark.parametrize("c", [0.01, 100.0])
def test_cka_does_not_change_under_rotation_scaling_and_shift(c):
    one = drawn()
    before = values(one, "cka")["cka"]
    turn = torch.tensor(stats.ortho_group.rvs(7, random_state=0))
    W_O, z = one.W_O.clone(), one.z.clone()
    W_O[0] = c * W_O[0] @ turn
    z[1] += torch.tensor([5.0, -3.0, 1.0])
    changed = values(Seen(one.site, one.pattern, z, W_O, one.n_keys, one.sequence), "cka")["cka"]
    assert changed == pytest.approx(before, abs=1e-9)
    shear = one.W_O.clone()
    shear[0, :, 0] *= 10
    other = Seen(one.site, one.pattern, one.z, shear, one.n_keys, one.sequence)
    assert abs(values(other, "cka")["cka"] - before)[0, 1:].max() > 0.01


def test_the_axes_inside_a_head_do_not_matter():
    one = drawn()
    order = torch.tensor([2, 0, 1])
    W_O, z = one.W_O.clone(), one.z.clone()
    W_O[3], z[3] = W_O[3, order], z[3][:, order]
    changed = values(Seen(one.site, one.pattern, z, W_O, one.n_keys, one.sequence), *OUTPUTS)
    for name, value in values(one, *OUTPUTS).items():
        assert changed[name] == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_a_head_that_writes_nothing_or_always_the_same_has_no_cka(constant):
    one = drawn()
    one.z[2] = constant
    found = values(one, "cka")["cka"]
    assert np.isnan(found[2]).all()
    assert np.isnan(found).sum() == 9


def test_what_stands_twice_counts_twice_and_changes_no_mean():
    one = drawn()
    twice = one.select(torch.arange(len(one.n_keys)).repeat(2))
    for name, value in values(one, *PATTERNS, *OUTPUTS).items():
        assert values(twice, name)[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


def test_positions_may_come_in_any_order():
    one = drawn()
    other = one.select(torch.tensor(rng(1).permutation(len(one.n_keys))))
    for name, value in values(one, *PATTERNS, *OUTPUTS).items():
        assert values(other, name)[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


def test_similarity_grows_to_1():
    assert similarity.similarity("js", np.array([0, log(2)])).tolist() == [1, 0]
    assert similarity.similarity("tv", np.array([0.25])).tolist() == [0.75]
    assert similarity.similarity("cka", np.array([0.25])).tolist() == [0.25]


# Another route


def rows_of(one: Seen) -> list[np.ndarray]:
    return np.split(one.pattern.numpy(), one.n_keys.cumsum(0)[:-1].numpy(), axis=1)


def slow(one: Seen) -> dict:
    """Compare all pairs of heads, position by position."""
    rows, n = rows_of(one), len(one.pattern)
    found = {name: np.full((n, n), np.nan) for name in PATTERNS + OUTPUTS}
    outputs = [one.z[head].numpy() @ one.W_O[head].numpy() for head in range(n)]
    for i in range(n):
        for j in range(n):
            each = {name: [] for name in (*PATTERNS, "output_cosine")}
            for place, row in enumerate(rows):
                p, q = row[i], row[j]
                each["js"].append(jensenshannon(p, q) ** 2)
                each["tv"].append(np.abs(p - q).sum() / 2)
                each["pattern_cosine"].append(p @ q / np.linalg.norm(p) / np.linalg.norm(q))
                if len(p) > 2:
                    each["pattern_correlation"].append(np.corrcoef(p, q)[0, 1])
                    if min(p[1:].sum(), q[1:].sum()) >= similarity.REST:
                        p, q = p[1:] / p[1:].sum(), q[1:] / q[1:].sum()
                        each["js_without_first"].append(jensenshannon(p, q) ** 2)
                        each["tv_without_first"].append(np.abs(p - q).sum() / 2)
                x, y = outputs[i][place], outputs[j][place]
                each["output_cosine"].append(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
            for name, numbers in each.items():
                found[name][i, j] = np.nanmean(numbers)
            X, Y = (outputs[k] - outputs[k].mean(0) for k in (i, j))
            found["cka"][i, j] = np.linalg.norm(X.T @ Y) ** 2 / (
                np.linalg.norm(X.T @ X) * np.linalg.norm(Y.T @ Y)
            )
    return found


@pytest.mark.parametrize(("matrix", "block"), [(2**24, 2**18), (300, 60)])
def test_measures_equal_a_loop_over_scipy_and_numpy(monkeypatch, matrix, block):
    monkeypatch.setattr(similarity, "MATRIX", matrix)
    monkeypatch.setattr(similarity, "BLOCK", block)
    one = drawn(n=60)
    expected, found = slow(one), values(one, *PATTERNS, *OUTPUTS)
    assert set(found) == set(expected)
    for name, value in found.items():
        assert value == pytest.approx(expected[name], abs=1e-9), name


def test_single_precision_is_enough():
    one = drawn(n=300)
    other = Seen(
        one.site, one.pattern.float(), one.z.float(), one.W_O.float(), one.n_keys, one.sequence
    )
    for name, value in values(one, *PATTERNS, *OUTPUTS).items():
        assert values(other, name)[name] == pytest.approx(value, abs=2e-6), name


# What heads were seen to do


def batches(model, texts, groups):
    for group in groups:
        chosen = [model.codec.encode(texts[n]) for n in group]
        targets = [model.shifted(model.codec.encode_target(texts[n])) for n in group]
        is_pair = model.kind == "encoder_decoder"
        yield model.batch(chosen, targets if is_pair else []), group


def looked(model, texts=TEXTS, groups=None, n=10**6) -> dict[str, Seen]:
    groups = [range(len(texts))] if groups is None else groups
    return seen.look(model, batches(model, texts, groups), n)


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_the_patterns_of_the_text_that_sees_two_keys(model, name):
    one = model(name)
    found = looked(one)
    for site in one.sites:
        ours, place = found[site.name], 0
        rows = rows_of(ours)
        for number in range(len(TEXTS)):
            [(batch, _)] = batches(one, TEXTS, [[number]])  # nothing is padded
            patterns = one.patterns(batch, [site.name])
            with one.watching_z() as z:
                one.visit(batch)
            special = batch.queries(site).special[0].tolist()
            n_key = batch.keys(site).tokens.shape[1]
            for query, is_special in enumerate(special):
                keys = query + 1 if site.causal else n_key
                if is_special or keys < 2:
                    continue
                assert ours.sequence[place] == number
                assert rows[place].shape == (len(all_heads([site])), keys)
                heads = all_heads([site])
                attention = [patterns[site.name, h.layer][0, h.head, query, :keys] for h in heads]
                np.testing.assert_allclose(rows[place], torch.stack(attention), atol=1e-5)
                written = [z[site.name, h.layer][0, query, h.head] for h in heads]
                np.testing.assert_allclose(ours.z[:, place], torch.stack(written), atol=1e-4)
                place += 1
        assert place == len(ours.n_keys)
        assert ours.z.shape[1] == place
        np.testing.assert_allclose([row.sum(1) for row in rows], 1, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_neither_padding_nor_the_order_of_batches_changes_a_value(model, name):
    one = model(name)
    together, apart = looked(one), looked(one, groups=[[3, 1], [2], [0]])
    for site in one.sites:
        a, b = (similarity.measured(found[site.name]) for found in (together, apart))
        for measure in PATTERNS + OUTPUTS:
            assert a[measure].n.tolist() == b[measure].n.tolist()
            # (a batch of another shape moves z in its last digits, and small rows most)
            np.testing.assert_allclose(a[measure].value, b[measure].value, atol=2e-4)


def test_padding_on_the_left_changes_nothing(model):
    left, right = (
        similarity.measured(looked(model("tiny_llama", side))["attn"]) for side in ("left", "right")
    )
    for measure in PATTERNS + OUTPUTS:
        np.testing.assert_allclose(left[measure].value, right[measure].value, atol=2e-4)


def test_rows_end_where_no_layer_sees_further(model, monkeypatch):
    one = model("tiny_llama")
    monkeypatch.setattr(one, "window", lambda site, layer: (3, 5, 4)[layer])
    n_keys = looked(one, TEXTS[:1])["attn"].n_keys
    assert n_keys.tolist() == [2, 3, 4] + [5] * (len(TEXTS[0]) - 4)
    monkeypatch.setattr(one, "window", lambda site, layer: (3, None, 4)[layer])
    n_keys = looked(one, TEXTS[:1])["attn"].n_keys
    assert n_keys.tolist() == list(range(2, len(TEXTS[0]) + 1))


def test_five_percent_of_unrelated_pairs_are_beyond_the_null():
    draws = rng().normal(size=(5, 20000))
    place = pd.DataFrame({name: 0 for name in tables.PAIR}, index=range(20000))
    lines = place.assign(site="attn", site_2="attn", head=range(20000), measure="cka")
    rows = [lines.assign(value=values, draw=k, source="permuted") for k, values in enumerate(draws)]
    observed = lines.assign(value=rng(1).normal(size=20000), draw=0, source="observed")
    table = tables.similarity(pd.concat([*rows, observed], ignore_index=True))
    assert (table["value"] > table["null_p95"]).mean() == pytest.approx(0.05, abs=0.005)


def test_positions_are_taken_from_the_first_sequences(model):
    one = model("tiny_bert")
    every, few = looked(one)["attn"], looked(one, groups=[[2, 3], [0, 1]], n=25)["attn"]
    assert len(few.n_keys) == 25
    assert few.sequence.tolist() == every.sequence[:25].tolist()
    torch.testing.assert_close(few.pattern, every.pattern[:, : few.pattern.shape[1]])


def test_shuffling_moves_rows_with_their_outputs_among_rows_as_long():
    one = drawn(n=200)
    one.z[:, :, 0] = torch.arange(200.0)
    other = one.permuted(rng())
    rows = rows_of(one), rows_of(other)
    moved = 0
    for head in range(5):
        source = other.z[head, :, 0].long().tolist()
        assert sorted(source) == list(range(200))
        for place, origin in enumerate(source):
            assert one.n_keys[origin] == one.n_keys[place]
            np.testing.assert_array_equal(rows[1][place][head], rows[0][origin][head])
        moved += sum(place != origin for place, origin in enumerate(source))
    assert moved > 900
    assert other.z[0, :, 0].tolist() != other.z[1, :, 0].tolist()


def test_shuffling_tells_agreement_on_the_text_from_agreement_on_places():
    random, rows = rng(), []
    for _ in range(300):  # two heads look at the same random key, two at the one before
        same = np.eye(6)[random.integers(6)]
        rows.append(np.stack([same, same, np.eye(6)[4], np.eye(6)[4]]))
    one = put(rows)
    before, after = values(one, "js")["js"], values(one.permuted(rng(1)), "js")["js"]
    assert before[0, 1] == pytest.approx(0)
    assert after[0, 1] == pytest.approx(log(2) * 5 / 6, abs=0.05)
    assert after[2, 3] == pytest.approx(0)


def test_resampling_draws_whole_documents():
    one = drawn(n=12)
    one = Seen(
        one.site, one.pattern, one.z, one.W_O, one.n_keys, torch.tensor([0] * 3 + [1] * 4 + [2] * 5)
    )
    other = one.resampled(np.array(["a", "b", "b"]), rng())
    counts = {n: other.sequence.tolist().count(n) for n in range(3)}
    assert counts[0] % 3 == 0
    assert counts[1] * 5 == counts[2] * 4
    assert counts[0] / 3 + counts[1] / 4 == 2
    assert len({tuple(one.resampled(np.arange(3), rng(s)).sequence.tolist()) for s in range(9)}) > 3


# Weights


def test_the_overlap_of_two_planes_that_share_a_line_is_a_half():
    axes = torch.eye(3, dtype=torch.float64)
    basis = torch.stack([axes[:, :2], axes[:, 1:], axes[:, :2]])
    found = spaces.overlap(spaces.Space(basis, torch.tensor([2, 2, 2])))
    assert found.numpy() == pytest.approx(np.array([[1, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 1]]))


def test_a_line_in_a_plane_overlaps_it_by_a_half():
    basis = torch.eye(3, dtype=torch.float64)[:, :2].repeat(2, 1, 1)
    basis[1, :, 1] = 0
    found = spaces.overlap(spaces.Space(basis, torch.tensor([2, 1])))
    assert found.numpy() == pytest.approx(np.array([[1, 0.5], [0.5, 1]]))


def test_overlap_is_the_mean_squared_cosine_of_the_principal_angles():
    left, right = (torch.tensor(rng(s).normal(size=(4, 9, 3))) for s in range(2))
    for space, factor in zip(spaces.sides(left, right), (left, right), strict=True):
        found = spaces.overlap(space).numpy()
        for i in range(4):
            for j in range(4):
                angles = subspace_angles(factor[i].numpy(), factor[j].numpy())
                assert found[i, j] == pytest.approx((np.cos(angles) ** 2).mean(), abs=1e-5)


def test_the_subspaces_are_those_of_the_product_though_a_factor_is_wider():
    left, right = (torch.tensor(rng(s).normal(size=(1, 6, 3))) for s in range(2))
    right[:, :, 2] = 0  # the third column of the other is never read
    column, row = spaces.sides(left, right)
    assert column.dimension.tolist() == row.dimension.tolist() == [2]
    U, _, Vh = np.linalg.svd((left[0] @ right[0].T).numpy())
    for space, basis in ((column, U[:, :2]), (row, Vh[:2].T)):
        ours = space.basis[0].numpy()
        assert ours @ ours.T == pytest.approx(basis @ basis.T, abs=1e-6)


def test_random_subspaces_overlap_by_their_share_of_the_dimensions_and_groups_share_theirs():
    basis, site = torch.zeros(40, 30, 6), Site("attn", "blocks", "attn", 5, 8, 4, 6, True)
    whole, thin = (spaces.Space(basis, torch.full((40,), n)) for n in (6, 2))
    found = spaces.turned({"ov_overlap": (whole, thin), "qk_overlap": (whole, whole)}, site, rng())
    pairs = np.triu_indices(40, 1)
    same_group = pairs[0] // 2 == pairs[1] // 2
    for name, place, share, grouped in (
        ("ov_overlap", 0, 6, 1),
        ("ov_overlap", 1, 2, 2 / 30),
        ("qk_overlap", 0, 6, 6 / 30),
        ("qk_overlap", 1, 6, 1),
    ):
        value = spaces.overlap(found[name][place]).numpy()
        assert np.diag(value) == pytest.approx(1, abs=1e-5)
        assert value[pairs][~same_group].mean() == pytest.approx(share / 30, abs=0.01)
        assert value[pairs][same_group].mean() == pytest.approx(grouped, abs=0.04)


def test_a_head_that_writes_nothing_has_no_overlap():
    left = torch.tensor(rng().normal(size=(3, 6, 2)))
    right = left.clone()
    right[1] = 0
    found = spaces.overlap(spaces.sides(left, right)[0]).numpy()
    assert np.isnan(found[1]).all()
    assert np.isnan(found).sum() == 5


def test_heads_of_one_group_read_the_same(model):
    found = spaces.spaces(weights.read(model("tiny_llama"))["attn"])
    for name, (one, two) in found.items():
        shared = spaces.overlap(one if name == "ov_overlap" else two).numpy()
        assert shared[0, 1] == pytest.approx(1, abs=1e-5)
        assert shared[0, 2] < 0.9
        value, n = spaces.overlaps(found)[name]
        assert value == pytest.approx((spaces.overlap(one) + spaces.overlap(two)).numpy() / 2)
        assert (n == 0).all()


def test_heads_that_look_at_the_same_few_directions_share_their_space():
    random = torch.Generator().manual_seed(0)
    few = torch.randn(20, 4, generator=random)
    mixed = torch.randn(6, 4, 5, generator=random)
    layer = weights.Weights(
        few @ mixed,  # [head d_model d_head]
        torch.randn(3, 20, 5, generator=random),
        torch.randn(3, 20, 5, generator=random),
        torch.randn(6, 5, 20, generator=random),
        None,
        None,
    )
    table = spaces.shared_space(layer, [0.2, 0.5], n_draws=4, seed=0).set_index(
        ["matrix", "fraction"]
    )
    assert table["directions"].tolist() == [4, 10] * 3
    assert table.loc[("W_Q", 0.2), "energy"] == pytest.approx(1)
    assert table.loc[("W_Q W_K", 0.2), "energy"] == pytest.approx(1)
    beside = layer.W_K.transpose(0, 1).reshape(20, 15).numpy()
    sigma = np.linalg.svd(beside, compute_uv=False) ** 2
    assert table.loc[("W_K", 0.2), "energy"] == pytest.approx(sigma[:4].sum() / sigma.sum())
    assert table.loc[("W_Q", 0.2), "random_mean"] < 0.6
    assert table.loc[("W_K", 0.5), "energy"] == pytest.approx(
        table.loc[("W_K", 0.5), "random_mean"], abs=0.1
    )
    assert (table["random_p95"] >= table["random_mean"]).all()


# Planted twins


@cache
def redundant(order):
    """The planted model `redundant`; with an order, one twin's d_head axes are exchanged."""
    one = planted("redundant", 0, **CHOICES)
    if order is not None:
        head = one.heads_of("twin")[0]
        attention = one.module.blocks[head.layer].attn
        axes = torch.tensor(rng(order).permutation(attention.d_head))
        for name in ("W_Q", "W_K", "W_V"):
            weight = getattr(attention, name)
            weight.data[head.head] = weight.data[head.head][:, axes]
        attention.W_O.data[head.head] = attention.W_O.data[head.head][axes]
    return one


@cache
def compared(order) -> pd.DataFrame:
    one = redundant(order)
    texts = [passage.text for passage in one.corpus.passages[:40]]
    found = similarity.measured(looked(one, texts)["attn"])
    found |= spaces.overlaps(spaces.spaces(weights.read(one)["attn"]))
    return tables.pairs(one.site["attn"], found).assign(source="observed", draw=0)


@pytest.mark.parametrize("order", [None, 7])
def test_planted_twins_are_each_other_s_nearest(order):
    rows = compared(order)
    first, second = redundant(order).heads_of("twin")
    best = tables.nearest(rows).set_index(["measure", "layer", "head"])
    for measure in ("output_cosine", "ov_overlap"):
        for twin, other in ((first, second), (second, first)):
            line = best.loc[(measure, twin.layer, twin.head)]
            assert (line["layer_2"], line["head_2"]) == (other.layer, other.head), measure
            assert line["value"] == pytest.approx(1, abs=1e-4)
    # what other readers write is the same up to a rotation, and they look at the same word
    pair = rows[(rows["layer"] == 0) & (rows["head"] == min(first.head, second.head))]
    pair = pair[(pair["layer_2"] == 0) & (pair["head_2"] == max(first.head, second.head))]
    value = pair.set_index("measure")["value"]
    assert value["cka"] == pytest.approx(1, abs=1e-4)
    assert value["js"] < 1e-3
    assert value["pattern_cosine"] == pytest.approx(1, abs=1e-3)


def test_exchanging_axes_inside_a_head_changes_no_measure():
    plain, exchanged = compared(None), compared(7)
    assert plain["value"].to_numpy() == pytest.approx(exchanged["value"].to_numpy(), abs=1e-3)


def test_the_dead_head_has_no_output_to_compare():
    dead = next(head for head, known in redundant(None).truth.items() if "dead" in known)
    rows = compared(None)
    own = rows[
        ((rows["layer"] == dead.layer) & (rows["head"] == dead.head))
        | ((rows["layer_2"] == dead.layer) & (rows["head_2"] == dead.head))
    ]
    assert not {"cka", "output_cosine", "ov_overlap"} & set(own["measure"])
    assert {"js", "qk_overlap"} <= set(own["measure"])


# Tables


SITE = Site("attn", "blocks", "attn", 2, 2, 2, 1, True)


def symmetric(upper) -> np.ndarray:
    matrix = np.zeros((4, 4))
    matrix[np.triu_indices(4, 1)] = upper
    return matrix + matrix.T


def lines(source, draw=0, **measures) -> pd.DataFrame:
    """List the pairs 01, 02, 03, 12, 13, 23 of two layers of two heads."""
    found = {
        name: Measured(symmetric(upper), np.full((4, 4), 9)) for name, upper in measures.items()
    }
    return tables.pairs(SITE, found).assign(source=source, draw=draw)


ROWS = pd.concat(
    [
        lines("observed", js=[0.1, 0.4, 0.5, 0.6, 0.2, 0.3], cka=[0.9, 0.1, 0.2, 0.3, 0.8, 0.4]),
        lines("other_half", js=[0.2, 0.4, 0.5, 0.6, 0.2, 0.3], cka=[0.9, 0.1, 0.2, 0.3, 0.8, 0.4]),
        lines("permuted", 0, js=[0.5, 0.4, 0.5, 0.6, 0.2, 0.3], cka=[0.2, 0.5, 0, 0, 0, 0]),
        lines("permuted", 1, js=[0.7, 0.4, 0.5, 0.6, 0.2, 0.3], cka=[0.4, 0.5, 0, 0, 0, 0]),
        lines("random_weights", js=[0.1, 0.2, 0.3, 0.4, 0.5, 0.3], cka=[0, 0.1, 0.2, 0.3, 0.4, 1]),
    ],
    ignore_index=True,
)


def test_pairs_are_listed_once_from_the_lower_address():
    table = lines("observed", js=[1, 2, 3, 4, 5, 6])
    assert table[["layer", "head", "layer_2", "head_2", "value"]].to_numpy().tolist() == [
        [0, 0, 0, 1, 1],
        [0, 0, 1, 0, 2],
        [0, 0, 1, 1, 3],
        [0, 1, 1, 0, 4],
        [0, 1, 1, 1, 5],
        [1, 0, 1, 1, 6],
    ]
    heads = tables.heads(table)
    assert heads == [Head("attn", layer, head) for layer in range(2) for head in range(2)]
    assert tables.square(table, heads).tolist() == symmetric([1, 2, 3, 4, 5, 6]).tolist()
    assert tables.square(table, heads[:2]).tolist() == [[0, 1], [1, 0]]


def test_undefined_values_have_no_line():
    assert len(lines("observed", cka=[np.nan, 1, 1, 1, 1, 1])) == 5


def test_each_pair_stands_beside_its_nulls():
    table = tables.similarity(ROWS).set_index(["measure", "null_name", "layer", "head", "head_2"])
    assert len(table) == 6 * 2 * 3
    first = table[table["layer_2"] == 0]
    line = first.loc[("js", "permuted", 0, 0, 1)]
    assert line["null_mean"] == pytest.approx(0.6)
    reach = stats.t.ppf(0.95, 1) * sqrt(0.02) * sqrt(1.5)  # .5 and .7, and one draw more
    assert line["null_p95"] == pytest.approx(0.6 - reach)  # the most alike have the lowest js
    line = first.loc[("cka", "permuted", 0, 0, 1)]
    assert line["null_mean"] == pytest.approx(0.3)
    assert line["null_p95"] == pytest.approx(0.3 + reach)
    # pairs of one layer: 01 and 23
    line = first.loc[("js", "random_weights", 0, 0, 1)]
    assert line["null_mean"] == pytest.approx(0.2)
    assert line["null_p95"] == pytest.approx(0.11)
    line = first.loc[("cka", "random_weights", 0, 0, 1)]
    assert line["null_mean"] == pytest.approx(0.5)
    # one of six pairs moves, by .1
    line = first.loc[("js", "other_half", 0, 0, 1)]
    assert line["null_mean"] == pytest.approx(0.2)
    assert line["null_p95"] == pytest.approx(0.2 - np.quantile([0] * 5 + [0.1], 0.95))


def test_the_twin_is_the_most_similar_head_whatever_the_direction_of_the_measure():
    table = tables.twins(ROWS)
    one = table[table["null_name"] == "permuted"].set_index(["measure", "layer", "head"])
    assert one["twin"].loc["js"].tolist() == ["L0H1", "L0H0", "L1H1", "L0H1"]
    assert one["value"].loc["js"].tolist() == [0.1, 0.1, 0.3, 0.2]
    assert one["is_mutual"].loc["js"].tolist() == [True, True, False, False]
    assert one["twin"].loc["cka"].tolist() == ["L0H1", "L0H0", "L1H1", "L0H1"]
    # the nearest of L0H0 in the two draws: js .4 and .4; cka .5 and .5
    assert one.loc[("js", 0, 0), "null_mean"] == pytest.approx(0.4)
    assert one.loc[("cka", 0, 0), "null_mean"] == pytest.approx(0.5)
    random = table[table["null_name"] == "random_weights"].set_index(["measure", "layer", "head"])
    assert random.loc[("js", 1, 1), "null_mean"] == pytest.approx(np.mean([0.1, 0.1, 0.2, 0.3]))
    other = table[table["null_name"] == "other_half"].set_index(["measure", "layer", "head"])
    assert other.loc[("js", 0, 1), "null_mean"] == pytest.approx(0.2)
    assert len(table) == 3 * 2 * 4


def test_a_tie_goes_to_the_first_head():
    best = tables.nearest(lines("observed", cka=[0.5] * 6))
    assert best[["layer_2", "head_2"]].to_numpy().tolist() == [[0, 1], [0, 0], [0, 0], [0, 0]]


def test_agreement_is_spearman_s_correlation_over_pairs():
    table = tables.agreement(ROWS, n_draws=20, seed=0).set_index(["measure", "measure_2"])
    js, cka = ([0.1, 0.4, 0.5, 0.6, 0.2, 0.3], [0.9, 0.1, 0.2, 0.3, 0.8, 0.4])
    expected = -stats.spearmanr(js, cka).statistic
    assert table.loc[("js", "cka"), "spearman"] == pytest.approx(expected)
    assert table.loc[("js", "cka"), "other"] == "same_text"
    assert table.loc[("cka", "cka"), "spearman"] == pytest.approx(1)
    assert table.loc[("cka", "cka"), "other"] == "other_half"
    assert (table["n"] == 6).all()


def test_matrices_that_have_nothing_to_do_with_each_other_agree_no_more_than_by_chance():
    a, b = (rng(s).normal(size=(30, 30)) for s in range(2))
    a, b = a + a.T, b + b.T
    value, null, n = tables.mantel(a, b, n_draws=200, seed=0)
    assert n == 435
    assert abs(value) < 0.15
    assert null.mean() == pytest.approx(0, abs=0.02)
    same, null, _ = tables.mantel(a, a, n_draws=200, seed=0)
    assert same == pytest.approx(1)
    assert same > 3 * np.quantile(null, 0.95)
    a[3] = a[:, 3] = np.nan
    upper = np.triu_indices(30, 1)
    value, _, n = tables.mantel(a, b, n_draws=2, seed=0)
    known = ~np.isnan(a[upper])
    assert n == 406
    assert value == pytest.approx(stats.spearmanr(a[upper][known], b[upper][known]).statistic)
    assert np.isnan(tables.mantel(np.ones((5, 5)), b[:5, :5], n_draws=2, seed=0)[0])
