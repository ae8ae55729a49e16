"""Tasks: metrics by hand and against Hugging Face's own losses; files, good and bad."""

import json
from dataclasses import replace
from functools import cache
from math import log
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from interp import sweep
from interp.errors import InputError
from interp.models.head_model import HeadModel
from interp.models.pretrained import pretrained
from interp.models.text import Encoded
from interp.models.tiny import tiny
from interp.tasks import masked_tokens, minimal_pairs, prompts, seq2seq, similarity, text_loss
from interp.tasks.task import (
    CHUNK,
    Item,
    cosine_difference,
    log_probabilities,
    log_probability_difference,
    logit_difference,
    loss,
    questions,
)

SHARED = Path(__file__).parent.parent.parent / "shared"
CHOICES = {"device": "cpu", "dtype": "float32", "truncation": "error"}


@cache
def family(name, padding_side="right", prepend_bos="auto"):
    return tiny(name, weights_seed=0, padding_side=padding_side, prepend_bos=prepend_bos, **CHOICES)


@pytest.fixture
def write(tmp_path):
    """Write a file and give its path."""

    def _write(content, name="file.txt"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return _write


def fact(task, column):
    return task.table[column].tolist()


def text(n):
    return Encoded(tuple(range(n)), ((0, 0),) * n, (False,) * n)


class Scripted(HeadModel):
    """A model whose logits, or hidden states, are given."""

    device = "cpu"
    kind = "decoder"
    unembed = None

    def __init__(self, *, logits=None, hidden=None):
        self._logits, self._hidden = logits, hidden

    def run(self, batch):
        return self._logits

    def logits(self, batch, read):
        return self._logits.gather(1, read[..., None].expand(-1, -1, self._logits.shape[-1]))

    def hidden(self, batch):
        return self._hidden

    def run_hooked(self, batch):
        raise AssertionError


# ------------------------------------------------------------------ metrics
def test_the_logit_difference_is_answer_minus_distractor_at_the_position_read():
    logits = torch.zeros(2, 3, 5)
    logits[0, 2, 4], logits[0, 2, 1], logits[0, 1, 4] = 7.0, 2.5, 100.0
    logits[1, 0, 3], logits[1, 0, 0] = -1.0, 1.0
    items = [(Item(text(3), read=(2,), ids=((4, 1),)),), (Item(text(2), read=(0,), ids=((3, 0),)),)]
    asked = questions(family("tiny_gpt2"), items)
    score = logit_difference(Scripted(logits=logits), asked)
    assert score.tolist() == [4.5, -2.0]


def test_the_loss_is_the_mean_of_the_tokens_asked_for_and_of_no_padding():
    probabilities = torch.tensor(
        [[[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [[0.25, 0.25, 0.5]] * 2]
    )
    items = [
        (Item(text(2), read=(0, 1), ids=((1,), (0,))),),
        (Item(text(2), read=(1,), ids=((2,),)),),
    ]
    asked = questions(family("tiny_gpt2"), items)
    model = Scripted(logits=probabilities.log() + 3)  # a constant is no matter
    assert loss(model, asked).tolist() == pytest.approx([(log(4) + log(8)) / 2, log(2)])
    found = log_probabilities(model, asked)
    assert found.flatten().tolist() == pytest.approx([-log(4), -log(8), -log(2), 0])
    difference = log_probability_difference(model, asked)
    assert difference.tolist() == pytest.approx([-log(4) - log(8) + log(2)])


def test_log_probabilities_are_torchs_own_beyond_one_chunk():
    model = family("tiny_gpt2")
    lengths = (90, 61, 7)
    rng = np.random.default_rng(0)
    items = []
    for n in lengths:
        ids = tuple(rng.integers(4, 260, n).tolist())
        encoded = Encoded(ids, ((0, 0),) * n, (False,) * n)
        items.append(minimal_pairs.scored(encoded))
    assert sum(lengths) > 2 * CHUNK
    with torch.inference_mode():
        found = log_probabilities(model, questions(model, [(item,) for item in items]))
        for row, item in zip(found, items, strict=True):
            tokens = torch.tensor([item.text.ids])
            logits = model.module(input_ids=tokens).logits[0]
            wanted = F.log_softmax(logits[:-1], -1).gather(-1, tokens[0, 1:, None])[:, 0]
            torch.testing.assert_close(row[: len(wanted)], wanted, atol=1e-4, rtol=0)
            assert (row[len(wanted) :] == 0).all()


def test_the_cosine_difference_pools_all_tokens_but_pads():
    hidden = torch.zeros(3, 2, 2)
    hidden[0] = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    hidden[1] = torch.tensor([[3.0, 4.0], [9.0, -9.0]])  # the second token is a pad
    hidden[2] = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    items = [(Item(text(2)), Item(text(1)), Item(text(2)))]
    asked = questions(family("tiny_gpt2"), items)
    score = cosine_difference(Scripted(hidden=hidden), asked)
    assert score.tolist() == pytest.approx([3 / 5 - 2**-0.5])


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_are_read_from_the_first_real_token(side):
    model = family("tiny_gpt2", side)
    items = [
        (Item(text(4), read=(3,), ids=((1, 2),)),),
        (Item(text(2), read=(0, 1), ids=((5,), (6,))),),
    ]
    asked = questions(model, items)
    first = 2 if side == "left" else 0
    assert asked.read.tolist() == [[3, 0], [first, first + 1]]
    assert asked.asked.tolist() == [[True, False], [True, True]]
    assert asked.ids[0, 0].tolist() == [1, 2]
    assert asked.ids[1, :, 0].tolist() == [5, 6]


# ------------------------------------------------------------------ prompts
HEADER = "prompt,answer,distractor"


def prompt_task(write, *lines, model="tiny_gpt2", header=HEADER, **choices):
    path = write("\n".join([header, *lines]) + "\n")
    return prompts.task(family(model, **choices), path=path, min_accuracy=0.5)


def test_answers_are_read_as_they_stand_after_the_prompt(write):
    task = prompt_task(write, "the key,s,ed")
    ((item,),) = task.examples
    ids = family("tiny_gpt2").codec.tokenizer("the keys e")["input_ids"]
    assert item.text.ids == tuple(ids[:7])
    assert (item.read, item.ids) == ((6,), ((ids[7], ids[9]),))
    assert (fact(task, "answer_token"), fact(task, "distractor_token")) == (["s"], ["e"])
    assert (fact(task, "moved"), task.min_accuracy) == ([False], 0.5)
    with torch.inference_mode():
        logits = family("tiny_gpt2").module(input_ids=torch.tensor([ids[:7]])).logits[0, -1]
        score = task.score(family("tiny_gpt2"), task.questions(family("tiny_gpt2"), [0]))
    assert score.item() == pytest.approx(float(logits[ids[7]] - logits[ids[9]]), abs=1e-4)


def test_answers_of_several_tokens_are_compared_where_they_part(write):
    task = prompt_task(write, "the dog, barks, barked", "the dog,s,eats")
    (first,), (second,) = task.examples
    decode = family("tiny_gpt2").codec.tokenizer.decode
    assert decode(list(first.text.ids)) == "the dog bark"
    assert decode(list(first.ids[0])) == "se"
    assert first.read == (11,)
    assert decode(list(second.text.ids)) == "the dog"
    assert decode(list(second.ids[0])) == "se"
    assert second.read == (6,)
    assert fact(task, "moved") == [True, False]


def test_a_leading_space_is_part_of_the_answer(write):
    task = prompt_task(write, "the key, is,s", '"a, b"," x",  y')
    decode = family("tiny_gpt2").codec.tokenizer.decode
    (first,), (second,) = task.examples
    assert decode(list(first.ids[0])) == " s"
    assert decode(list(second.text.ids)) == "a, b "
    assert decode(list(second.ids[0])) == "x "
    assert fact(task, "answer") == [" is", " x"]


def test_words_that_look_like_missing_values_are_words(write):
    task = prompt_task(write, "null,NA,nan")
    assert fact(task, "prompt") == ["null"]
    assert fact(task, "answer") == ["NA"]


def test_clusters_and_strata_are_taken_over_and_a_prompt_is_else_its_own_cluster(write):
    assert fact(prompt_task(write, "a,b,c", "d,e,f"), "cluster") == ["0", "1"]
    header = HEADER + ",cluster,stratum"
    task = prompt_task(write, "a,b,c,noun,s1", "d,e,f,noun,s2", header=header)
    assert fact(task, "cluster") == ["noun", "noun"]
    assert fact(task, "stratum") == ["s1", "s2"]
    assert fact(task, "example") == [0, 1]


def test_a_bos_stands_before_the_prompt_once(write):
    task = prompt_task(write, "ab,c,d", prepend_bos=True)
    ((item,),) = task.examples
    assert item.text.ids[0] == 1
    assert item.text.ids.count(1) == 1
    assert (len(item.text), item.read) == (3, (2,))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a dog, bark, barks", "row 0: the tokens of ' bark' and ' barks' do not part"),
        ("a dog, is, is", "row 0: answer and distractor are both ' is'"),
        (f"{'a dog ' * 22}, is, are", r"row 0: text of 13\d tokens is longer .* context of 128"),
        ("a dog,,x", "row 0: the cell 'answer' is empty"),
        ('"a dog,b,c', "is not a CSV file"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(write, line, message):
    with pytest.raises(InputError, match=message):
        prompt_task(write, line)


def test_the_row_at_fault_is_named_by_its_number(write):
    with pytest.raises(InputError, match="row 2: "):
        prompt_task(write, "a,b,c", "a,b,c", "a,b,b", "a,b,b")


def test_a_missing_column_is_refused_with_those_found_and_those_expected(write):
    with pytest.raises(InputError) as error:
        prompt_task(write, "a,b,c", header="prompt,answer,wrong")
    assert "has no column 'distractor': found prompt, answer, wrong" in str(error.value)
    assert "expected prompt, answer, distractor, corrupted (optional)" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "the file is empty"), (" \n", "the file is empty"), (HEADER + "\n", "no rows")],
)
def test_a_file_without_rows_is_refused(write, content, message):
    path = write(content)
    with pytest.raises(InputError, match=message) as error:
        prompts.task(family("tiny_gpt2"), path=path, min_accuracy=0.0)
    assert path in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    path = str(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"none\.csv: no such file"):
        prompts.task(family("tiny_gpt2"), path=path, min_accuracy=0.0)
    with pytest.raises(InputError, match="path is empty"):
        prompts.task(family("tiny_gpt2"), path="", min_accuracy=0.0)


def test_a_file_that_is_not_utf8_is_refused_with_the_byte(write):
    path = write(b"prompt,answer,distractor\ncaf\xe9,a,b\n")
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 28\)"):
        prompts.task(family("tiny_gpt2"), path=path, min_accuracy=0.0)
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 28\)"):
        text_loss.task(family("tiny_gpt2"), path=path, context=8)


@pytest.mark.parametrize("name", ["tiny_bert", "tiny_t5"])
def test_prompts_are_refused_for_models_that_do_not_continue_them(write, name):
    with pytest.raises(InputError, match=f"needs a causal language model; {name} is an encoder"):
        prompt_task(write, "a,b,c", model=name)


def test_a_cell_with_an_unquoted_comma_does_not_shift_the_columns(write):
    with pytest.raises(InputError):
        prompt_task(write, "Right now, the key, is, are", "So far, the key, has, have")


def test_a_corrupted_twin_has_the_prompts_answer_and_position(write):
    task = prompt_task(write, "the dog,s,z,two men", header=HEADER + ",corrupted")
    ((item,),), ((twin,),) = task.examples, task.corrupted
    assert family("tiny_gpt2").codec.tokenizer.decode(list(twin.text.ids)) == "two men"
    assert (twin.read, twin.ids) == (item.read, item.ids)
    assert prompt_task(write, "the dog,s,z").corrupted is None


def test_a_corrupted_twin_too_is_read_where_the_answers_part(write):
    task = prompt_task(write, "the dog, barks, barked,two men", header=HEADER + ",corrupted")
    ((item,),), ((twin,),) = task.examples, task.corrupted
    assert family("tiny_gpt2").codec.tokenizer.decode(list(twin.text.ids)) == "two men bark"
    assert (twin.read, twin.ids) == (item.read, item.ids)


def test_a_corrupted_twin_of_another_length_is_refused_with_both_lengths(write):
    with pytest.raises(InputError, match=r"row 0.* 8 tokens.* 7"):
        prompt_task(write, "the dog,s,z,three men"[:-1], header=HEADER + ",corrupted")


def test_the_first_examples_are_kept_with_all_that_is_known_of_them(write):
    task = prompt_task(write, *["ab,c,d,ef"] * 2, "xy,c,d,zz", header=HEADER + ",corrupted")
    kept = task.first(2)
    assert len(kept) == len(kept.table) == len(kept.corrupted) == 2
    assert kept.examples == task.examples[:2]
    assert task.first(None) is task
    assert len(task.first(99)) == 3
    for n in (0, -1):
        with pytest.raises(InputError, match=f"n_examples={n}: at least 1, or null for all 3"):
            task.first(n)


# ------------------------------------------------------------------ minimal pairs
def jsonl(*records):
    return "\n".join(json.dumps(record) for record in records) + "\n"


PAIR = {"sentence_good": "she sees herself.", "sentence_bad": "she sees himself.", "pairID": "0"}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("bos", [True, False])
def test_a_minimal_pair_is_scored_by_the_log_probability_of_whole_sentences(write, bos, side):
    model = family("tiny_llama", side, bos)
    other = {"sentence_good": "a", "sentence_bad": "they go"} if bos else PAIR
    task = minimal_pairs.task(model, path=write(jsonl(PAIR, other)), min_accuracy=0.0)
    sums = []
    for item in (item for example in task.examples for item in example):
        tokens = torch.tensor([item.text.ids])
        assert (item.text.ids[0] == 1) == bos
        with torch.inference_mode():
            logits = model.module(input_ids=tokens).logits[0].log_softmax(-1)
        sums.append(float(logits[:-1].gather(-1, tokens[0, 1:, None]).sum()))
    found = sweep.clean_scores(model, task, 500)
    assert found == pytest.approx([sums[0] - sums[1], sums[2] - sums[3]], abs=2e-4)
    assert (task.n_sequences, task.metric, task.higher_is_better) == (2, "logprob_diff", True)
    assert fact(task, "pairID")[0] == "0"
    assert fact(task, "cluster") == ["0", "1"]


def test_pairs_may_name_their_cluster(write):
    path = write(jsonl(PAIR | {"cluster": "verb"}))
    task = minimal_pairs.task(family("tiny_llama"), path=path, min_accuracy=0.0)
    assert fact(task, "cluster") == ["verb"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence_good": "a b"', "line 2: "),
        ("[1, 2]", "line 2: a JSON object was expected"),
        ('{"sentence_good": "a b"}', "line 2: no text in the field 'sentence_bad'"),
        ('{"sentence_good": "a b", "sentence_bad": 3}', "line 2: no text in .*'sentence_bad'"),
        ('{"sentence_good": "ab", "sentence_bad": "ab"}', "pair 1: the two sentences are equal"),
        ('{"sentence_good": "ab", "sentence_bad": "a"}', r"pair 1: a text of 1 token\(s\)"),
    ],
)
def test_a_line_that_is_no_pair_is_named(write, line, message):
    path = write(jsonl(PAIR) + line + "\n")
    with pytest.raises(InputError, match=message) as error:
        minimal_pairs.task(family("tiny_llama"), path=path, min_accuracy=0.0)
    assert path in str(error.value)


def test_blank_lines_are_passed_over_and_an_empty_file_is_refused(write):
    task = minimal_pairs.task(
        family("tiny_llama"), path=write("\n" + jsonl(PAIR) + "\n\n"), min_accuracy=0.0
    )
    assert len(task) == 1
    with pytest.raises(InputError, match="the file is empty"):
        minimal_pairs.task(family("tiny_llama"), path=write("\n"), min_accuracy=0.0)


def test_a_line_separator_inside_a_sentence_does_not_end_the_line(write):
    pair = PAIR | {"sentence_good": "one\u2028two"}
    path = write(json.dumps(pair, ensure_ascii=False) + "\n")
    task = minimal_pairs.task(family("tiny_llama"), path=path, min_accuracy=0.0)
    assert fact(task, "sentence_good") == ["one\u2028two"]


@pytest.mark.parametrize("name", ["tiny_bert", "tiny_bart"])
def test_minimal_pairs_are_refused_for_models_that_are_not_causal(write, name):
    with pytest.raises(InputError, match=f"causal language model; {name} is none"):
        minimal_pairs.task(family(name), path=write(jsonl(PAIR)), min_accuracy=0.0)


# ------------------------------------------------------------------ text loss
PROSE = "The quick brown fox jumps over the lazy dog, then sleeps."  # 57 bytes


@pytest.mark.parametrize("bos", [True, False])
def test_chunks_are_consecutive_and_their_loss_is_hugging_faces_own(write, bos):
    model = family("tiny_gpt2", prepend_bos=bos)
    task = text_loss.task(model, path=write(PROSE), context=20)
    items = [item for (item,) in task.examples]
    decode = model.codec.tokenizer.decode
    real = [[i for i, s in zip(x.text.ids, x.text.special, strict=True) if not s] for x in items]
    assert [decode(ids) for ids in real] == [PROSE[:20], PROSE[20:40], PROSE[40:]]
    assert fact(task, "n_tokens") == ([20, 20, 17] if bos else [19, 19, 16])
    assert fact(task, "cluster") == ["file.txt:0", "file.txt:1", "file.txt:2"]
    found = sweep.clean_scores(model, task, 45)
    for score, item in zip(found, items, strict=True):
        tokens = torch.tensor([item.text.ids])
        assert (tokens[0, 0] == 1) == bos
        with torch.inference_mode():
            wanted = model.module(input_ids=tokens, labels=tokens).loss.item()
        assert score == pytest.approx(wanted, abs=1e-4)
    assert (task.metric, task.higher_is_better) == ("loss", False)


@pytest.mark.parametrize(("bos", "n"), [(True, 2), (False, 1)])
def test_a_last_chunk_of_one_token_counts_only_after_a_bos(write, bos, n):
    task = text_loss.task(family("tiny_gpt2", prepend_bos=bos), path=write("abcde"), context=4)
    assert len(task) == n


def test_the_files_of_a_folder_are_read_in_order_of_name_and_are_the_clusters(write, tmp_path):
    for name, content in (("b.txt", "bbbbbb"), ("a.txt", "aaa"), (".hidden", "ccc"), ("c", "  ")):
        write(content, name)
    task = text_loss.task(family("tiny_gpt2"), path=str(tmp_path), context=4)
    assert fact(task, "file") == fact(task, "cluster") == ["a.txt", "b.txt", "b.txt"]
    assert fact(task, "n_tokens") == [2, 3, 1]
    assert fact(task, "example") == [0, 1, 2]


@pytest.mark.parametrize(
    ("bos", "context", "longest"), [(False, 129, 128), (True, 128, 127), (False, 1, 128)]
)
def test_a_context_out_of_range_is_refused_with_the_range(write, bos, context, longest):
    with pytest.raises(InputError) as error:
        text_loss.task(family("tiny_gpt2", prepend_bos=bos), path=write(PROSE), context=context)
    assert str(context) in str(error.value)
    assert f"2 to {longest} " in str(error.value)
    most = text_loss.task(
        family("tiny_gpt2", prepend_bos=bos), path=write(PROSE * 3), context=longest
    )
    assert len(most.examples[0][0].text) == 128


def test_text_with_nothing_to_predict_is_refused(write):
    with pytest.raises(InputError, match="too short"):
        text_loss.task(family("tiny_gpt2"), path=write("a"), context=4)
    with pytest.raises(InputError, match="no text"):
        text_loss.task(family("tiny_gpt2"), path=write("  \n"), context=4)
    with pytest.raises(InputError, match="causal language model"):
        text_loss.task(family("tiny_bert"), path=write(PROSE), context=4)


# ------------------------------------------------------------------ masked tokens
def masked(write, content=PROSE, **choices):
    choices = {"context": 20, "mask_rate": 0.25, "seed": 0} | choices
    return masked_tokens.task(family("tiny_bert"), path=write(content), **choices)


def test_hidden_tokens_are_replaced_by_the_mask_and_asked_for(write):
    task = masked(write)
    assert len(task) == 3
    for number, (item,) in enumerate(task.examples):
        ids = [1, *family("tiny_bert").codec.tokenizer(PROSE)["input_ids"][1:-1], 2]
        chunk = [1, *ids[1 + 20 * number : min(21 + 20 * number, 58)], 2]
        assert len(item.read) == fact(task, "n_tokens")[number] == round(0.25 * (len(chunk) - 2))
        assert 0 not in item.read
        assert len(chunk) - 1 not in item.read
        assert item.ids == tuple((chunk[at],) for at in item.read)
        assert item.text.ids == tuple(3 if at in item.read else i for at, i in enumerate(chunk))


def test_the_loss_of_hidden_tokens_is_hugging_faces_own(write):
    model, task = family("tiny_bert"), masked(write)
    found = sweep.clean_scores(model, task, 50)
    for score, (item,) in zip(found, task.examples, strict=True):
        labels = torch.full((1, len(item.text)), -100)
        labels[0, list(item.read)] = torch.tensor(item.ids).flatten()
        tokens = torch.tensor([item.text.ids])
        with torch.inference_mode():
            wanted = model.module(input_ids=tokens, labels=labels).loss.item()
        assert score == pytest.approx(wanted, abs=1e-4)


def test_the_seed_decides_which_tokens_are_hidden(write):
    first, again, other = (masked(write, seed=seed) for seed in (0, 0, 1))
    assert first.examples == again.examples
    assert first.examples != other.examples
    assert [item.read for (item,) in first.examples[:2]] != [first.examples[0][0].read] * 2


@pytest.mark.parametrize(("rate", "n"), [(1.0, 20), (0.001, 1), (0.5, 10)])
def test_the_rate_decides_how_many_are_hidden_at_least_one(write, rate, n):
    assert fact(masked(write, mask_rate=rate), "n_tokens")[0] == n


@pytest.mark.parametrize("rate", [0.0, 1.5, -0.1])
def test_a_rate_out_of_range_is_refused(write, rate):
    with pytest.raises(InputError, match=f"mask_rate={rate}: above 0, at most 1"):
        masked(write, mask_rate=rate)


def test_masked_tokens_need_a_masked_language_model_and_a_context_that_fits(write):
    with pytest.raises(InputError, match="tiny_gpt2 has no masked language model"):
        masked_tokens.task(
            family("tiny_gpt2"), path=write(PROSE), context=20, mask_rate=0.2, seed=0
        )
    with pytest.raises(InputError, match=r"127.* to 126 "):
        masked(write, context=127)
    assert len(masked(write, PROSE * 3, context=126).examples[0][0].text) == 128


# ------------------------------------------------------------------ sequence to sequence
def hugging_face_loss(model, source, target):
    with torch.inference_mode():
        return model.module(
            input_ids=torch.tensor([model.codec.tokenizer(source)["input_ids"]]),
            labels=torch.tensor([model.codec.tokenizer(text_target=target)["input_ids"]]),
        ).loss.item()


@pytest.mark.parametrize("name", ["tiny_t5", "tiny_bart"])
def test_the_loss_of_a_target_is_hugging_faces_own(write, name):
    model = family(name)
    pairs = [("hello", "bonjour"), ("cat", "chat"), ("a dog", "un chien")]
    path = write("source,target\n" + "\n".join(map(",".join, pairs)))
    task = seq2seq.task(model, path=path, min_accuracy=0.9)
    found = sweep.clean_scores(model, task, 60)
    wanted = [hugging_face_loss(model, *pair) for pair in pairs]
    assert found == pytest.approx(wanted, abs=1e-4)
    extra = {"tiny_t5": 1, "tiny_bart": 2}[name]  # </s>, and <s> where the tokenizer has it
    assert fact(task, "n_tokens") == [len(target) + extra for _, target in pairs]
    assert (task.metric, task.higher_is_better, task.min_accuracy) == ("loss", False, 0)


@pytest.mark.parametrize("name", ["tiny_t5", "tiny_bart"])
def test_with_a_distractor_the_targets_log_probability_is_compared(write, name):
    model = family(name)
    path = write("source,target,distractor\nhello,bonjour,bonsoir madame\ncat,chat,chien\n")
    task = seq2seq.task(model, path=path, min_accuracy=0.9)
    extra = {"tiny_t5": 1, "tiny_bart": 2}[name]
    wanted = [
        -hugging_face_loss(model, source, target) * (len(target) + extra)
        + hugging_face_loss(model, source, other) * (len(other) + extra)
        for source, target, other in [
            ("hello", "bonjour", "bonsoir madame"),
            ("cat", "chat", "chien"),
        ]
    ]
    assert sweep.clean_scores(model, task, 100) == pytest.approx(wanted, abs=5e-4)
    assert (task.metric, task.higher_is_better, task.min_accuracy) == ("logprob_diff", True, 0.9)


def test_sequence_to_sequence_needs_an_encoder_decoder_and_two_different_targets(write):
    path = write("source,target,distractor\na,b,c\nhello,x,x\n")
    with pytest.raises(InputError, match="row 1: target and distractor are equal"):
        seq2seq.task(family("tiny_t5"), path=path, min_accuracy=0.0)
    for name in ("tiny_gpt2", "tiny_bert"):
        with pytest.raises(InputError, match=f"needs an encoder-decoder; {name} is "):
            seq2seq.task(family(name), path=path, min_accuracy=0.0)
    with pytest.raises(InputError, match="row 0: text of 202 tokens is longer than the context"):
        seq2seq.task(
            family("tiny_bart"), path=write(f"source,target\n{'a' * 200},b\n"), min_accuracy=0.0
        )


# ------------------------------------------------------------------ similarity
def test_similarity_is_for_encoders():
    task = similarity.task(family("tiny_bert"), min_accuracy=0.25)
    assert (task.n_sequences, task.metric, task.min_accuracy) == (3, "cos_diff", 0.25)
    assert len(task) == len(task.table) == 128
    for name, kind in (("tiny_gpt2", "decoder"), ("tiny_t5", "encoder-decoder")):
        with pytest.raises(InputError, match=f"needs an encoder; {name} is an? {kind}"):
            similarity.task(family(name), min_accuracy=0.0)


# ------------------------------------------------------------------ real data beside the checkout
@cache
def stories():
    folder = SHARED / "models" / "stories260k"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return pretrained(str(folder), prepend_bos="auto", padding_side="right", **CHOICES)


def corpus(*parts):
    path = SHARED.joinpath("data", *parts)
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return str(path)


def test_a_small_story_model_gets_three_quarters_of_blimps_anaphors_right():
    path = corpus("blimp", "anaphor_gender_agreement.jsonl")
    task = minimal_pairs.task(stories(), path=path, min_accuracy=0.0).first(100)
    assert len(task) == 100
    accuracy = (sweep.clean_scores(stories(), task, 512) > 0).mean()
    assert 0.7 <= accuracy <= 0.82


def test_a_small_story_model_finds_an_encyclopedia_hard_but_not_random():
    path = corpus("wikitext2_raw", "wiki.test.raw")
    task = text_loss.task(stories(), path=path, context=64).first(4)
    losses = sweep.clean_scores(stories(), task, 512)
    assert fact(task, "n_tokens") == [64 if stories().codec.prepend_bos else 63] * 4
    assert 2 < losses.mean() < log(512)
    table = pd.DataFrame(task.table)
    shuffled = [
        (replace(item, ids=item.ids[::-1]),) for (item,) in task.examples
    ]  # the same tokens, asked for elsewhere
    worse = sweep.clean_scores(stories(), replace(task, examples=shuffled, table=table), 512)
    assert (worse > losses).all()
