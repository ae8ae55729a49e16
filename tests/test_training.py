"""Training is checked against slow rewritings of it, and stopped where it hurts."""

import json
from collections import Counter
from dataclasses import replace
from math import cos, pi, sqrt

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import CHOICES

from interp.errors import InputError
from interp.models.custom import custom
from interp.models.text import pad
from interp.training import lesson as lessons
from interp.training import pronouns
from interp.training.induction import Induction
from interp.training.lesson import NO_LABEL, Examples
from interp.training.lessons import CHECKPOINTS, corpus, read, sentences, shipped, task, trained
from interp.training.pronouns import Pronouns
from interp.training.relations import Relations
from interp.training.text import Text
from interp.training.trainer import Group, Plan, Settings, Trainer, evaluate, fit
from interp.training.translation import Translation
from interp.transformer import Transformer, TransformerConfig

SETTINGS = Settings(
    steps=10, warmup=4, decay_from=0.5, final_rate=0.2, weight_decay=0.1, beta2=0.9, clip=1.0
)
PLAN = Plan(
    steps=6,
    warmup=2,
    decay_from=0.5,
    final_rate=0.0,
    weight_decay=0.0,
    beta2=0.99,
    clip=1.0,
    rate=0.01,
    batch_size=4,
    n_test=6,
    evaluate_every=2,
    patience=0,
    enough=2.0,
)
INDUCTION = Induction(vocabulary=9, length=12, shortest=3, longest=6)
SMALL_RELATIONS = Relations(
    n_cases=6, n_nouns=5, n_verbs=4, n_asked=3, verbs_per_sentence=2, language_seed=0
)
LESSONS = {
    "induction": INDUCTION,
    "pronouns": Pronouns(language_seed=0),
    "relations": SMALL_RELATIONS,
    "translation": Translation(language_seed=0),
}
TEXT = "the cat sat on the mat and the dog ran to the old red barn by the river"


@pytest.fixture
def texts(tmp_path):
    """Two files of which no run of four words comes twice in train and test parts."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(
            " ".join(rng.choice(TEXT.split(), 400)), encoding="utf-8"
        )
    return folder


def text_lesson(folder, kind):
    return Text(kind=kind, path=str(folder), vocabulary=300, context=8)


def transformer(lesson, seed=0, **more):
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, **more}
    return Transformer(TransformerConfig(**lesson.sizes, **sizes, seed=seed))


def same(ours, theirs):
    return all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def nothing(_now):
    pass


# The trainer


def test_the_rate_climbs_stays_and_falls_as_worked_out_by_hand():
    shares = [SETTINGS.share(step) for step in range(11)]
    fallen = [0.2 + 0.8 * (1 + cos(pi * step / 5)) / 2 for step in range(1, 6)]
    assert shares == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 1, 1, *fallen])
    assert shares[-1] == pytest.approx(0.2)
    constant = replace(SETTINGS, warmup=0, final_rate=1.0)
    assert [constant.share(step) for step in range(10)] == [1.0] * 10
    always = replace(SETTINGS, warmup=0, decay_from=1.0)
    assert [always.share(step) for step in range(10)] == [1.0] * 10


def adamw(start, gradient, settings, rate):
    """AdamW as its paper writes it, on one vector, with clipping before it."""
    x, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for step in range(settings.steps):
        g = gradient(x, step)
        g = g * min(1.0, settings.clip / (np.linalg.norm(g) + 1e-6))
        now = rate * settings.share(step)
        x = x * (1 - now * settings.weight_decay)
        first = 0.9 * first + 0.1 * g
        second = settings.beta2 * second + (1 - settings.beta2) * g**2
        corrected = second / (1 - settings.beta2 ** (step + 1))
        x = x - now * first / (1 - 0.9 ** (step + 1)) / (np.sqrt(corrected) + 1e-8)
    return x


def test_a_step_is_that_of_adamw_on_a_clipped_gradient():
    start, slope = np.array([1.0, -2.0, 0.5]), np.array([3.0, 0.1, 1.0])
    value = torch.nn.Parameter(torch.tensor(start))
    scale = [40.0, 0.01, 1.0, 5.0, 0.1, 2.0, 0.3, 9.0, 0.7, 1.0]  # some are clipped, some are not

    def loss(step):
        return scale[step] * (torch.tensor(slope) * value**2).sum() / 2

    trainer = Trainer([Group({"x": value}, 0.1)], loss, SETTINGS)
    for _ in range(SETTINGS.steps):
        trainer.advance()
    expected = adamw(start, lambda x, step: scale[step] * slope * x, SETTINGS, 0.1)
    assert value.detach().numpy() == pytest.approx(expected, rel=1e-6)


def test_groups_learn_at_rates_of_their_own():
    one, two = (torch.nn.Parameter(torch.tensor([1.0])) for _ in range(2))
    settings = replace(SETTINGS, warmup=0, weight_decay=0.0)
    groups = [Group({"one": one}, 0.1), Group({"two": two}, 0.2)]
    trainer = Trainer(groups, lambda step: (one + two).sum(), settings)
    trainer.advance()
    assert one.item() == pytest.approx(0.9)
    assert two.item() == pytest.approx(0.8)


def test_a_loss_that_is_no_number_ends_in_one_line():
    value = torch.nn.Parameter(torch.tensor([1.0]))
    trainer = Trainer([Group({"x": value}, 0.1)], lambda step: (value * 1e39).sum(), SETTINGS)
    with pytest.raises(InputError, match="the loss is inf at step 1: try a lower rate"):
        trainer.advance()


@pytest.mark.parametrize("name", LESSONS)
def test_training_that_was_stopped_ends_with_the_same_weights(name, tmp_path):
    lesson, state = LESSONS[name], tmp_path / "state.safetensors"

    def trained(**choices):
        return fit(made, lesson, PLAN, seed=1, **choices)

    made = quiet = transformer(lesson)
    history = trained(state=None, watch=nothing)

    def stop(now):
        if now.step == 5:
            raise KeyboardInterrupt

    made = transformer(lesson)
    with pytest.raises(KeyboardInterrupt):
        trained(state=state, watch=stop)
    made = transformer(lesson, seed=9)  # what it starts from is in the state
    seen = []
    resumed = trained(state=state, watch=lambda now: seen.append(now.step))
    assert seen == [5, 6]
    assert same(made, quiet)
    assert not same(made, transformer(lesson))
    timed = "tokens_per_second"
    pd.testing.assert_frame_equal(resumed.drop(columns=timed), history.drop(columns=timed))
    assert history["step"].tolist() == [0, 2, 2, 4, 4, 6, 6]


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    made = [transformer(INDUCTION) for _ in range(3)]
    for model, seed in zip(made, (1, 1, 2), strict=True):
        fit(model, INDUCTION, PLAN, seed=seed, state=None, watch=nothing)
    assert same(made[0], made[1])
    assert not same(made[0], made[2])


def test_a_state_of_other_weights_is_refused(tmp_path):
    state = tmp_path / "state.safetensors"
    fit(transformer(INDUCTION), INDUCTION, PLAN, seed=0, state=state, watch=nothing)
    other = transformer(INDUCTION, d_model=8)
    with pytest.raises(InputError, match="holds other weights"):
        fit(other, INDUCTION, PLAN, seed=0, state=state, watch=nothing)
    state.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="is damaged"):
        fit(transformer(INDUCTION), INDUCTION, PLAN, seed=0, state=state, watch=nothing)


def test_training_stops_when_it_is_good_enough_or_gets_no_better():
    def steps(**choices):
        model, plan = transformer(INDUCTION), replace(PLAN, **choices)
        return fit(model, INDUCTION, plan, seed=0, state=None, watch=nothing)["step"].max()

    assert steps(enough=0.0) == 0
    assert steps(patience=1, rate=0.0) == 2
    assert steps(patience=2, rate=0.0) == 4
    assert steps(patience=2) == 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("steps", 0), ("batch_size", 0), ("n_test", 0), ("evaluate_every", 0)),
        *(("clip", 0.0), ("beta2", 1.0), ("decay_from", 1.5)),
    ],
)
def test_a_plan_out_of_range_is_refused(name, value):
    with pytest.raises(InputError, match=f"{name}={value}"):
        replace(PLAN, **{name: value})


# Examples


@pytest.mark.parametrize("name", LESSONS)
def test_examples_are_a_function_of_seed_split_and_step(name):
    lesson = LESSONS[name]

    def drawn(**choices):
        where = {"seed": 0, "split": "train", "step": 0} | choices
        return lesson.examples(20, **where).tokens.tolist()

    assert drawn() == drawn()
    others = [drawn(seed=1), drawn(split="test"), drawn(split="fresh"), drawn(step=1)]
    assert all(other != drawn() for other in others)


def test_induction_asks_for_what_followed_the_same_word_before_and_for_nothing_else():
    drawn = INDUCTION.examples(40, seed=0, split="train")
    lengths = set()
    for tokens, labels in zip(drawn.tokens.tolist(), drawn.labels[..., 0].tolist(), strict=True):
        assert tokens[0] == INDUCTION.tokenizer.bos_token_id
        for place, (token, label) in enumerate(zip(tokens, labels, strict=True)):
            earlier = [before for before in range(place) if tokens[before] == token]
            is_asked = bool(earlier) and place + 1 < len(tokens)
            assert label == (tokens[earlier[-1] + 1] if is_asked else NO_LABEL)
        lengths.add(tokens[2:].index(tokens[1]) + 1)
    assert lengths == {3, 4, 5, 6}


def test_no_fixed_distance_predicts_induction():
    drawn = INDUCTION.examples(2000, seed=0, split="train")
    asked = drawn.labels[..., 0] != NO_LABEL
    for distance in range(1, 8):
        copied = drawn.tokens.roll(distance - 1, 1)  # the word so many before the next one
        assert (copied == drawn.labels[..., 0])[asked].float().mean() < 0.5


def test_relations_ask_for_the_nouns_in_the_cases_that_a_verb_governs():
    lesson = SMALL_RELATIONS
    drawn = lesson.examples(30, seed=0, split="train")
    words = lesson.tokenizer.convert_ids_to_tokens
    places = set()
    for tokens, labels in zip(drawn.tokens.tolist(), drawn.labels.tolist(), strict=True):
        nouns = [word.split("-") for word in words(tokens[:6])]
        noun_in = {case: int(noun[1:]) for noun, case in nouns}
        assert len(noun_in) == 6
        places.add(tuple(case for _, case in nouns))
        assert labels[:6] == [[NO_LABEL] * 3] * 6
        for verb, answers in zip(words(tokens[6:]), labels[6:], strict=True):
            governed = lesson.governed[int(verb[1:])]
            assert len(set(governed)) == 3
            assert answers == [noun_in[f"k{case}"] for case in governed]
    assert len(places) > 25  # in random order


FITS = {
    "he": "king boy uncle monk duke wizard",
    "she": "queen girl aunt nun duchess witch",
    "they": "kings boys uncles monks dukes wizards queens girls aunts nuns duchesses witches",
    "it": "lamp boat clock wagon kite drum ladder mirror barrel candle basket bell",
}


OWN_VERBS = {"watched", "followed", "called", "passed", "heard", "moved"}


@pytest.mark.parametrize("language_seed", [0, 3])
def test_every_verb_is_as_frequent_whatever_the_pronoun(language_seed):
    verb = pronouns.own_verbs(language_seed)
    assert set(verb) == {noun for nouns in FITS.values() for noun in nouns.split()}
    for nouns in FITS.values():
        counts = Counter(verb[noun] for noun in nouns.split())
        assert set(counts) == OWN_VERBS
        assert len(set(counts.values())) == 1
    assert verb != pronouns.own_verbs(language_seed + 1)


def test_the_answer_is_the_verb_of_the_noun_that_the_pronoun_stands_for():
    lesson = Pronouns(language_seed=2)
    verb = pronouns.own_verbs(2)
    drawn = lesson.examples(90, seed=0, split="train")
    words = lesson.tokenizer.convert_ids_to_tokens
    lengths = set()
    for tokens, mask, labels in zip(drawn.tokens, drawn.mask, drawn.labels[..., 0], strict=True):
        said = words(tokens[mask].tolist())
        assert said[0] == "<s>"
        assert not OWN_VERBS & set(said)
        places = (labels != NO_LABEL).nonzero()[:, 0].tolist()
        assert [place for place, word in enumerate(said) if word in FITS] == places
        assert len({said[place] for place in places}) == len(places) == 3
        answers = words(labels[places].tolist())
        assert len(set(answers)) == 3
        for place, answer in zip(places, answers, strict=True):
            [noun] = [word for word in said if word in FITS[said[place]].split()]
            assert answer == verb[noun]
        lengths.add(len(said))
    assert len(lengths) == 7
    assert max(lengths) == lesson.n_ctx


def test_no_place_and_no_verb_is_a_better_guess_than_another_whatever_the_pronoun():
    rng, verb, lines = np.random.default_rng(0), pronouns.own_verbs(0), []
    for _ in range(1500):
        drawn = pronouns.sentence(rng, verb)
        each = zip(drawn.pronouns, drawn.antecedents, strict=True)
        for number, (place, noun) in enumerate(each):
            lines.append(
                {
                    "pronoun": drawn.words[place],
                    "number": number,
                    "length": len(drawn.words),
                    "place": drawn.nouns.index(noun),
                    "verb": verb[drawn.words[noun]],
                }
            )
    table = pd.DataFrame(lines)
    for known in (["pronoun"], ["number"], ["pronoun", "number"], ["length"]):
        for guess, n_kinds in (("place", 3), ("verb", 6)):
            groups = table.groupby(known)[guess]
            shares, n = groups.value_counts(normalize=True).unstack(), groups.size().to_numpy()
            error = np.sqrt((1 - 1 / n_kinds) / n_kinds / n)[:, None]
            assert shares.shape[1] == n_kinds
            assert (np.abs(shares.to_numpy() - 1 / n_kinds) < 4 * error).all(), (known, guess)


def slowly_translated(words, gender):
    """Translate by reading word by word."""
    verbs = {"sees", "hears", "finds", "likes", "leaves", "follows", "pulls", "calls", "knows"}
    verbs |= {"helps", "draws", "moves"}
    [cut] = [place for place, word in enumerate(words) if word in verbs]
    said = []
    for phrase in (words[:cut], words[cut + 1 :]):
        number = "pl" if phrase[-1] == "-s" else "sg"
        bare = [word for word in phrase if word != "-s"]
        said += [f"{word}:{gender[bare[-1]]}:{number}" for word in bare[::-1]]
    return [*said, f"{words[cut]}:{'pl' if words[cut - 1] == '-s' else 'sg'}"]


def test_translations_agree_and_turn_round():
    lesson = LESSONS["translation"]
    assert Counter(lesson.gender.values()) == {"m": 12, "f": 12}
    drawn = lesson.examples(60, seed=0, split="train")
    words = lesson.tokenizer.convert_ids_to_tokens
    lengths = set()
    for row in range(60):
        source = words(drawn.tokens[row][drawn.mask[row]].tolist())
        read = words(drawn.decoder_tokens[row][drawn.decoder_mask[row]].tolist())
        labels = drawn.labels[row, :, 0]
        target = words(labels[labels != NO_LABEL].tolist())
        assert source[-1] == target[-1] == "</s>"
        assert read == ["<s>", *target[:-1]]
        assert target[:-1] == slowly_translated(source[:-1], lesson.gender)
        lengths.add(len(source))
    assert min(lengths) == 4
    assert max(lengths) == lesson.n_ctx == 10


@pytest.mark.parametrize("split", ["train", "test"])
def test_text_asks_a_decoder_for_each_next_token_of_the_right_part(texts, split):
    lesson = text_lesson(texts, "decoder")
    drawn = lesson.examples(20, seed=0, split=split)
    part = 0 if split == "train" else 1
    known = [both[part] for both in lesson.documents.values()]
    for tokens, labels in zip(drawn.tokens.tolist(), drawn.labels[..., 0].tolist(), strict=True):
        assert tokens[0] == lesson.tokenizer.bos_token_id
        assert labels == [*tokens[1:], NO_LABEL]
        run = lesson.tokenizer.decode(tokens[1:])
        assert any(run in text for text in known)
    whole = "".join(known)
    assert abs(len(whole) / sum(len(f.read_text()) for f in texts.iterdir()) - (0.9, 0.1)[part]) < (
        0.01
    )


def test_text_asks_an_encoder_for_hidden_tokens(texts):
    lesson = text_lesson(texts, "encoder")
    drawn = lesson.examples(2000, seed=0, split="train")
    asked = drawn.labels[..., 0] != NO_LABEL
    assert asked.any(-1).all()
    assert not asked[:, [0, -1]].any()
    share = asked[:, 1:-1].float().mean()
    assert 0.15 <= share < 0.15 + 0.85**8 / 8 + 0.01  # at least one of the eight
    masked = (drawn.tokens == lesson.tokenizer.mask_token_id)[asked].float().mean()
    kept = (drawn.tokens == drawn.labels[..., 0])[asked].float().mean()
    assert masked == pytest.approx(0.8, abs=0.03)
    assert kept == pytest.approx(0.1, abs=0.03)
    whole = torch.where(asked, drawn.labels[..., 0], drawn.tokens)
    known = [both[0] for both in lesson.documents.values()]
    for tokens in whole[:20, 1:-1].tolist():
        assert any(lesson.tokenizer.decode(tokens) in text for text in known)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"vocabulary": 200}, "vocabulary=200"),
        ({"context": 1}, "context=1"),
        ({"kind": "encoder_decoder"}, "encoder_decoder"),
        ({"path": "/no/such"}, "/no/such"),
        ({"context": 5000}, "too short for context=5000"),
    ],
)
def test_text_that_cannot_be_used_is_refused(texts, choice, said):
    with pytest.raises(InputError, match=said):
        replace(text_lesson(texts, "decoder"), **choice).examples(1, seed=0, split="train")


@pytest.mark.parametrize("longest", [7, 2])
def test_segments_that_do_not_fit_are_refused(longest):
    with pytest.raises(InputError, match=f"segments of 3 to {longest}"):
        replace(INDUCTION, longest=longest)


def test_verbs_cannot_govern_more_cases_than_there_are():
    with pytest.raises(InputError, match="7 of 6"):
        replace(SMALL_RELATIONS, n_asked=7)
    with pytest.raises(InputError, match="n_nouns=0"):
        replace(SMALL_RELATIONS, n_nouns=0)


# Evaluation, checkpoints, tasks


def test_scores_are_those_of_a_count_by_hand():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]], [[2.0, 0.0], [9.0, 0.0]]])
    labels = torch.tensor([[0, 0], [0, NO_LABEL]])[..., None]
    tokens = torch.zeros(2, 2, dtype=torch.long)
    examples = Examples(tokens, torch.ones(2, 2, dtype=torch.bool), labels)

    class Fixed(torch.nn.Module):
        def forward(self, tokens, **_):
            self.cut = getattr(self, "cut", 0) + len(tokens)
            return logits[self.cut - len(tokens) : self.cut]

    right, wrong = np.log(1 + np.exp(-2)), np.log(1 + np.exp(2))
    for batch_size in (1, 2):
        scores = evaluate(Fixed(), examples, batch_size)
        assert scores == pytest.approx(((2 * right + wrong) / 3, 2 / 3, 1 / 2))


def greedy(model, lesson, drawn, row):
    """Let a model write one token after the other."""
    said = [lesson.tokenizer.bos_token_id]
    for _ in range(lesson.n_ctx):
        logits = model(
            drawn.tokens[row : row + 1],
            mask=drawn.mask[row : row + 1],
            decoder_tokens=torch.tensor([said]),
        )
        said.append(int(logits[0, -1].argmax()))
    return said[1:]


def test_all_right_is_exact_match_under_greedy_decoding():
    lesson = LESSONS["translation"]
    model, drawn = transformer(lesson, n_layers=1), lesson.examples(8, seed=0, split="test")
    with torch.no_grad():
        written = torch.tensor([greedy(model, lesson, drawn, row) for row in range(8)])
    labels = written.clone()
    for row in range(0, 8, 2):  # one token of every other target is another than what is written
        labels[row, row] = (labels[row, row] + 1) % len(lesson.tokenizer)
    start = torch.full((8, 1), lesson.tokenizer.bos_token_id)
    read = torch.cat([start, labels[:, :-1]], dim=1)
    real = torch.ones_like(read, dtype=torch.bool)
    shown = Examples(drawn.tokens, drawn.mask, labels[..., None], read, real)
    assert evaluate(model, shown, 8).exact_match == 1 / 2
    assert [evaluate(model, shown[row : row + 1], 1).exact_match for row in range(8)] == [0, 1] * 4


def slow_margins(module, examples):
    """Compare the right class with each wrong one, one by one."""
    with torch.no_grad():
        logits = examples.logits(module).tolist()
    found = []
    for row, labels in zip(logits, examples.labels.tolist(), strict=True):
        margins = [
            values[right] - max(value for c, value in enumerate(values) if c != right)
            for slots, rights in zip(row, labels, strict=True)
            for values, right in zip(slots, rights, strict=True)
            if right != NO_LABEL
        ]
        found.append(min(margins))
    return found


@pytest.mark.parametrize("name", [*LESSONS, "text"])
def test_a_checkpoint_is_a_custom_model_and_examines_as_training_does(name, tmp_path, texts):
    lesson = text_lesson(texts, "decoder") if name == "text" else LESSONS[name]
    module = transformer(lesson)
    with torch.no_grad():
        for value in module.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))
    lessons.write(tmp_path / "model", module, lesson)
    model = custom(str(tmp_path / "model"), padding_side="right", **CHOICES)
    assert read(tmp_path / "model") == lesson
    fresh = lesson.examples(12, seed=3, split="fresh")
    expected = evaluate(module, fresh, 5)
    with torch.no_grad():
        made = task(model, n=12, seed=3, metric="loss", min_accuracy=0.0)
        losses = made.score(model, made.questions(model, range(12))).numpy()
        made = task(model, n=12, seed=3, metric="logit_diff", min_accuracy=0.0)
        margins = made.score(model, made.questions(model, range(12))).numpy()
    weights = made.table["n_tokens"]
    assert np.average(losses, weights=weights) == pytest.approx(expected.loss, rel=1e-5)
    assert (margins > 0).mean() == expected.exact_match
    assert margins == pytest.approx(slow_margins(module, fresh), abs=1e-5)
    words = model.codec.tokenizer.decode(
        fresh.tokens[0][fresh.mask[0]].tolist(), skip_special_tokens=True
    )
    real = fresh.tokens[0][fresh.mask[0]]
    assert model.codec.encode(words).ids == tuple(real.tolist())
    padded = pad([model.codec.encode(words)], model.codec.pad_id, "right")
    assert torch.equal(padded.tokens[0], real)


def test_targets_are_read_as_in_training(tmp_path):
    lesson = LESSONS["translation"]
    lessons.write(tmp_path / "model", transformer(lesson), lesson)
    model = custom(str(tmp_path / "model"), padding_side="right", **CHOICES)
    [(_, target)] = lesson.pairs(np.random.default_rng(0), 1)
    labels = model.codec.encode_target(" ".join(target))
    assert labels.ids == tuple(lesson.ids([*target, "</s>"]))
    assert model.shifted(labels).ids == tuple(lesson.ids(["<s>", *target]))


def test_the_corpus_of_pronouns_says_what_each_stands_for():
    made = pronouns.corpus(30, 0, language_seed=0)
    for passage in made.passages:
        for word in passage.words:
            assert passage.text[word.start : word.end] == word.form
        forms = [word.form for word in passage.words]
        assert len(passage.mentions) == 6
        for said in (mention for mention in passage.mentions if forms[mention.first] in FITS):
            [noun] = [m for m in passage.mentions if m.entity == said.entity and m is not said]
            assert forms[noun.first] in FITS[forms[said.first]].split()
            assert noun.first < said.first
            assert passage.words[said.first].pronoun == "personal"


def test_an_unknown_metric_and_a_model_without_a_lesson_are_refused(tmp_path, model):
    lessons.write(tmp_path / "model", transformer(INDUCTION), INDUCTION)
    trained = custom(str(tmp_path / "model"), padding_side="right", **CHOICES)
    with pytest.raises(InputError, match=r"task\.metric=accuracy: one of loss, logit_diff"):
        task(trained, n=1, seed=0, metric="accuracy", min_accuracy=0.0)
    with pytest.raises(InputError, match=r"task\.n=0"):
        task(trained, n=0, seed=0, metric="loss", min_accuracy=0.0)
    with pytest.raises(InputError, match=r"needs a checkpoint of experiments\.train"):
        task(model("custom_decoder"), n=1, seed=0, metric="loss", min_accuracy=0.0)
    (tmp_path / "model" / "lesson.json").write_text("{}")
    with pytest.raises(InputError, match=r"lesson\.json is damaged"):
        task(trained, n=1, seed=0, metric="loss", min_accuracy=0.0)


def test_a_model_learns():
    lesson = Induction(vocabulary=4, length=8, shortest=2, longest=2)
    plan = replace(PLAN, steps=60, rate=0.02, batch_size=16, evaluate_every=60, n_test=32)
    history = fit(transformer(lesson), lesson, plan, seed=0, state=None, watch=nothing)
    first, last = history[history["split"] == "test"]["loss"].iloc[[0, -1]]
    assert last < 0.6 * first
    assert sqrt(last) > 0


# What is shipped


@pytest.mark.parametrize("name", ["induction", "pronouns", "relations", "translation"])
def test_a_shipped_model_can_do_what_it_was_trained_on(name):
    model = trained(name, padding_side="right", **CHOICES)
    made = task(model, n=200, seed=1, metric="logit_diff", min_accuracy=0.9)
    with torch.no_grad():
        margins = made.score(model, made.questions(model, range(200)))
    assert (margins > 0).float().mean() >= (0.99 if name == "translation" else 0.95)
    known = json.loads((CHECKPOINTS / name / "lesson.json").read_text())
    assert known["command"] == f"python -m experiments.train training={name}"


def test_shipped_models_are_small_and_of_every_architecture():
    assert shipped() == ["induction", "pronouns", "relations", "translation"]
    files = [path for path in CHECKPOINTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
    kinds = {read(CHECKPOINTS / name).kind for name in shipped()}
    assert kinds == {"encoder", "decoder", "encoder_decoder"}
    with pytest.raises(InputError, match=r"model\.name=chess: one of induction, pronouns"):
        trained("chess", padding_side="right", **CHOICES)


def test_a_trained_model_has_a_corpus_in_its_own_words():
    for name in shipped():
        made = corpus(name, n=5, seed=3)
        assert made.passages == sentences(read(CHECKPOINTS / name), 5, 3).passages
        assert corpus(str(CHECKPOINTS / name), n=5, seed=3).passages == made.passages
        model = trained(name, padding_side="right", **CHOICES)
        unknown = model.codec.tokenizer.unk_token_id
        assert all(unknown not in model.codec.encode(p.text).ids for p in made.passages)
    with pytest.raises(InputError, match=r"corpus\.lesson=chess: one of induction"):
        corpus("chess", n=5, seed=0)
    with pytest.raises(InputError, match=r"corpus\.n=0"):
        corpus("pronouns", n=0, seed=0)
