"""Addresses of heads: how they are read, printed, ordered and refused."""

import pytest

from interp.errors import InputError
from interp.heads import Head, Site, all_heads, parse

ALONE = [Site("attn", "blocks", "attn", 3, 8, 2, 16, True)]
SEVERAL = [
    Site("encoder_attn", "encoder_blocks", "attn", 2, 4, 4, 8, False),
    Site("decoder_self_attn", "decoder_blocks", "self_attn", 3, 4, 2, 8, True),
    Site("decoder_cross_attn", "decoder_blocks", "cross_attn", 3, 4, 1, 8, False),
]


@pytest.mark.parametrize("text", ["L2H7", "2.7", "attn.L2H7", "attn.2.7", " L2H7 "])
def test_every_way_to_write_a_head_reads_alike(text):
    assert parse(text, ALONE) == Head("attn", 2, 7)


@pytest.mark.parametrize("text", ["decoder_cross_attn.L1H3", "decoder_cross_attn.1.3"])
def test_a_site_in_front_is_read(text):
    assert parse(text, SEVERAL) == Head("decoder_cross_attn", 1, 3)


def test_numbers_of_two_digits_are_read_whole():
    wide = [Site("attn", "blocks", "attn", 24, 16, 16, 64, True)]
    assert parse("L12H10", wide) == parse("12.10", wide) == Head("attn", 12, 10)
    assert parse("L1H2", wide) == Head("attn", 1, 2)


def test_the_only_site_is_not_printed_and_others_are():
    assert str(Head("attn", 5, 1)) == "L5H1"
    assert str(Head("encoder_attn", 5, 1)) == "encoder_attn.L5H1"


@pytest.mark.parametrize("sites", [ALONE, SEVERAL], ids=["alone", "several"])
def test_what_is_printed_is_read_back(sites):
    heads = all_heads(sites)
    assert [parse(str(head), sites) for head in heads] == heads


@pytest.mark.parametrize(
    "text", ["", "H1", "L1", "L1H", "5", "5.1.2", "L-1H0", "l5h1", "L5 H1", "L5H1x", "ATTN.L0H0"]
)
def test_what_is_no_address_is_refused_with_the_forms_that_are(text):
    with pytest.raises(InputError) as error:
        parse(text, ALONE)
    assert str(error.value) == f"'{text}' is not a head: write L5H1, '5.1' or SITE.L5H1"


@pytest.mark.parametrize("text", ["L3H0", "L0H8", "3.0", "attn.0.8"])
def test_a_head_that_does_not_exist_is_refused_with_the_heads_that_do(text):
    with pytest.raises(InputError) as error:
        parse(text, ALONE)
    assert str(error.value) == (f"head '{text}' does not exist: attn has layers 0-2 and heads 0-7")


def test_a_head_that_only_another_site_has_is_refused():
    assert parse("decoder_self_attn.L2H0", SEVERAL).layer == 2
    with pytest.raises(InputError, match="encoder_attn has layers 0-1 and heads 0-3"):
        parse("encoder_attn.L2H0", SEVERAL)


def test_a_head_without_its_site_is_refused_where_there_are_several():
    with pytest.raises(InputError) as error:
        parse("L0H0", SEVERAL)
    assert "'L0H0' needs its site, e.g. encoder_attn.L0H0" in str(error.value)
    assert "encoder_attn, decoder_self_attn, decoder_cross_attn" in str(error.value)


def test_an_unknown_site_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"'self.L0H0'.* no site 'self' \(sites: attn\)"):
        parse("self.L0H0", ALONE)


def test_heads_are_ordered_by_number_and_not_by_what_is_printed():
    written = ["attn.L10H0", "attn.L2H10", "attn.L2H9", "encoder_attn.L0H0"]
    heads = [Head("attn", 10, 0), Head("attn", 2, 10), Head("attn", 2, 9)]
    heads.append(Head("encoder_attn", 0, 0))
    assert sorted(heads) == [heads[2], heads[1], heads[0], heads[3]]
    assert sorted(written) != ["attn.L2H9", "attn.L2H10", "attn.L10H0", "encoder_attn.L0H0"]


def test_all_heads_are_listed_once_site_by_site_and_layer_by_layer():
    heads = all_heads(SEVERAL)
    assert len(heads) == len(set(heads)) == 2 * 4 + 3 * 4 + 3 * 4
    assert heads[:5] == [*(Head("encoder_attn", 0, head) for head in range(4)), heads[4]]
    assert heads[4] == Head("encoder_attn", 1, 0)
    assert [head.site for head in heads[7:9]] == ["encoder_attn", "decoder_self_attn"]


def test_consecutive_heads_share_a_kv_head():
    assert [ALONE[0].group(head) for head in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [SEVERAL[0].group(head) for head in range(4)] == [0, 1, 2, 3]
    assert [SEVERAL[1].group(head) for head in range(4)] == [0, 0, 1, 1]
    assert [SEVERAL[2].group(head) for head in range(4)] == [0, 0, 0, 0]
