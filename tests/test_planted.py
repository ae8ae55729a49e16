"""The planted models do what their truth says: loops that know nothing of weights or scores."""

from collections import Counter
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from interp.errors import InputError
from interp.heads import all_heads
from interp.models.planted import PlantedModel, planted
from interp.models.text import Encoded
from interp.tasks import prompts

CHOICES = {
    "device": "cpu",
    "dtype": "float32",
    "prepend_bos": "auto",
    "padding_side": "right",
    "truncation": "error",
}
SEEDS = [0, 1]
SITES = [
    ("decoder", "attn"),
    ("encoder", "attn"),
    ("encoder_decoder", "encoder_attn"),
    ("encoder_decoder", "decoder_self_attn"),
]
PLACES = ["offset:-2", "offset:-1", "offset:0", "offset:+1", "first_token"]
TOKENS = ["duplicate", "induction"]
GRAMMAR = ["antecedent", "nsubj:head->dep", "amod:head->dep"]
ROLES = {"backup": 1, "dead": 1, "harmful": 1, "linear_twin": 2, "main": 1, "twin": 2}
PEOPLE = {
    "he": {"king", "boy", "uncle", "monk", "duke", "wizard"},
    "she": {"queen", "girl", "aunt", "nun", "duchess", "witch"},
    "they": {"kings", "boys", "uncles", "monks", "dukes", "wizards"}
    | {"queens", "girls", "aunts", "nuns", "duchesses", "witches"},
}
THINGS = {"lamp", "boat", "clock", "wagon", "kite", "drum"}
THINGS |= {"ladder", "mirror", "barrel", "candle", "basket", "bell"}


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@cache
def built(variant, seed=0, **choices) -> PlantedModel:
    return planted(variant, seed, **(CHOICES | choices))


def texts(model) -> list[str]:
    return [passage.text for passage in model.corpus.passages]


def both(model, source, target=None) -> tuple[Encoded, Encoded]:
    """Tokenise a text and, for an encoder-decoder, what its decoder reads."""
    labels = model.codec.encode_target(target or source)
    start = Encoded((model.decoder_start,), ((0, 0),), (True,))
    return model.codec.encode(source), start + labels[:-1]


def look(model, pairs) -> dict:
    """Read each head's pattern on each text (and target), without padding."""
    targets = [target for _, target in pairs] if model.kind == "encoder_decoder" else []
    batch = model.batch([text for text, _ in pairs], targets)
    patterns = model.patterns(batch, [site.name for site in model.sites])
    found = {}
    for site in model.sites:
        real = [batch.queries(site).mask, batch.keys(site).mask]
        for head in all_heads([site]):
            found[head] = [
                pattern[query][:, key].numpy()
                for pattern, query, key in zip(
                    patterns[site.name, head.layer][:, head.head], *real, strict=True
                )
            ]
    return found


@cache
def corpus_of(variant, seed) -> list[tuple[Encoded, Encoded]]:
    model = built(variant, seed)
    return [both(model, text) for text in texts(model)]


@cache
def on_corpus(variant, seed):
    return look(built(variant, seed), corpus_of(variant, seed))


def words_of(model, site, pair) -> list[str]:
    """Name the tokens that a site's queries stand on."""
    return model.codec.tokenizer.convert_ids_to_tokens(list(pair[site[0] == "d"].ids))


# What is true of a sequence


def places(feature, tokens) -> list[set[int]]:
    """Say for each token where a head with the feature must look."""
    found = []
    for q, token in enumerate(tokens):
        if feature == "first_token":
            found.append({0})
        elif feature == "duplicate":
            found.append({k for k in range(q) if tokens[k] == token})
        elif feature == "induction":
            found.append({k + 1 for k in range(q - 1) if tokens[k] == token})
        else:
            found.append({q + int(feature.split(":")[1])} & {*range(len(tokens))})
    return found


def relations(feature, passage, tokens) -> list[set[int]]:
    """Say the same of grammar; a word is the token after it, because of the frame."""
    assert [word.form for word in passage.words] == tokens[1 : len(passage.words) + 1]
    found = [set() for _ in tokens]
    for number, word in enumerate(passage.words):
        if feature == f"{word.deprel}:head->dep":
            found[word.head + 1].add(number + 1)
    for mention in passage.mentions:
        if feature == "antecedent" and passage.words[mention.first].pronoun:
            [noun] = [m for m in passage.mentions if m.entity == mention.entity and m != mention]
            found[mention.first + 1].add(noun.last + 1)
    return found


@cache
def truths(variant, seed, site, feature) -> list[list[set[int]]]:
    """For each sentence of the corpus and each token, where a head with the feature must look."""
    model = built(variant, seed)
    found = []
    for passage, pair in zip(model.corpus.passages, corpus_of(variant, seed), strict=True):
        tokens = words_of(model, site, pair)
        if feature in GRAMMAR:
            wanted = relations(feature, passage, tokens)
        else:
            wanted = places(feature, tokens)
        found.append(
            [
                {k for k in keys if k <= q or site == "encoder_attn" or variant == "encoder"}
                for q, keys in enumerate(wanted)
            ]
        )
    return found


def least(pattern, wanted) -> float:
    """Find the least attention that any query pays to where it must look, or else rest: at 0."""
    return min(sum(pattern[q, k] for k in keys or {0}) for q, keys in enumerate(wanted))


def evenness(pattern, causal) -> float:
    """Average the entropies of queries that see several keys, as shares of the greatest."""
    found = []
    for q, row in enumerate(pattern):
        seen = row[: q + 1] if causal else row
        if len(seen) > 1:
            found.append(-np.sum(seen * np.log(seen + 1e-30)) / np.log(len(seen)))
    return float(np.mean(found))


# Patterns


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("variant", "site"), SITES)
def test_every_planted_head_looks_at_its_target_and_rests_on_the_first_token(variant, site, seed):
    model = built(variant, seed)
    causal = model.site[site].causal
    planted_here = Counter()
    for head, known in model.truth.items():
        for feature in known if head.site == site else ():
            if known[feature] != "planted":
                continue
            planted_here[feature] += 1
            patterns = on_corpus(variant, seed)[head]
            if feature == "uniform":
                assert min(evenness(pattern, causal) for pattern in patterns) > 0.999
            else:
                wanted = truths(variant, seed, site, feature)
                assert min(map(least, patterns, wanted)) > 0.97, feature
    expected = Counter([*PLACES, *TOKENS, *GRAMMAR, "uniform"])
    assert planted_here == expected - Counter(["offset:+1"] * causal)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("variant", "site"), SITES)
def test_what_is_not_listed_is_absent(variant, site, seed):
    """Neither the attention on a feature's targets nor the word attended most gives it away."""
    model = built(variant, seed)
    causal = model.site[site].causal
    shown = range(0, len(model.corpus.passages), 4)
    for head, known in model.truth.items():
        if head.site != site:
            continue
        patterns = [on_corpus(variant, seed)[head][n] for n in shown]
        evenly = np.mean([evenness(pattern, causal) for pattern in patterns])
        assert (evenly > 0.95) == ("uniform" in known), head
        first = np.mean([pattern[:, 0].mean() for pattern in patterns])
        assert (first >= 0.3) == ("first_token" in known), head
        for feature in [*PLACES[: 3 if causal else 4], *TOKENS, *GRAMMAR]:
            mass, hits = [], []
            for n, pattern in zip(shown, patterns, strict=True):
                n_words = len(model.corpus.passages[n].words)
                for q in range(1, n_words + 1):
                    keys = truths(variant, seed, site, feature)[n][q] - {0, n_words + 1}
                    if keys:
                        mass.append(sum(pattern[q, k] for k in keys))
                        hits.append(1 + pattern[q, 1 : n_words + 1].argmax() in keys)
            score = np.mean(mass), np.mean(hits)
            if feature in known:
                assert min(score) > 0.97, (head, feature)
            else:
                assert max(score) < 0.6, (head, feature)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("variant", "site"), SITES)
def test_heads_for_tokens_and_places_work_on_any_tokens(variant, site, seed):
    """On random tokens said twice, and on sequences of 64 tokens and more of running text."""
    model, rng = built(variant, seed), np.random.default_rng(seed)
    causal = model.site[site].causal
    specials = model.codec.tokenizer.all_special_ids
    ids = [n for n in range(model.codec.tokenizer.vocab_size) if n not in specials]
    running = model.codec.encode_long(" ".join(texts(model))).ids
    runs = [2 * tuple(rng.choice(ids, n, replace=False).tolist()) for n in (8, 17, 24)]
    runs += [running[:62], running[400:478]]
    frame = model.codec.encode("the")
    found = [
        frame[:1] + Encoded(run, ((0, 0),) * len(run), (False,) * len(run)) + frame[2:]
        for run in runs
    ]
    patterns = look(model, [(text, text) for text in found])
    for head, known in model.truth.items():
        for feature in [*PLACES, *TOKENS] if head.site == site else ():
            if known.get(feature) == "planted":
                for text, pattern in zip(found, patterns[head], strict=True):
                    wanted = places(feature, words_of(model, site, (text, text)))
                    assert least(pattern, wanted) > 0.97, (feature, len(text))
        if head.site == site and known.get("uniform"):
            assert min(evenness(pattern, causal) for pattern in patterns[head]) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_cross_attention_reads_the_source_word_at_its_distance(seed):
    """A target's word meets the source's word of its number, whatever the lengths of the two."""
    model, sources = built("encoder_decoder", seed), texts(built("encoder_decoder", seed))
    pairs = [both(model, *pair) for pair in zip(sources, sources[1:] + sources[:1], strict=True)]
    patterns = look(model, pairs)
    planted_here = Counter()
    for head, known in model.truth.items():
        if head.site != "decoder_cross_attn":
            continue
        evenly = np.mean([evenness(pattern, False) for pattern in patterns[head]])
        assert (evenly > 0.95) == ("uniform" in known)
        for feature in known:
            planted_here[feature] += known[feature] == "planted"
            if not feature.startswith("source_offset"):
                continue
            assert known["monotone"] == "implied"
            for (text, target), pattern in zip(pairs, patterns[head], strict=True):
                source_words, target_words = (
                    [n for n, special in enumerate(encoded.special) if not special]
                    for encoded in (text, target)
                )
                for number, q in enumerate(target_words):
                    wanted = number + int(feature.split(":")[1])
                    if wanted < len(source_words):
                        assert pattern[q, source_words[wanted]] > 0.97
                looked_at = pattern[: len(source_words), source_words].argmax(-1)
                assert [*looked_at] == sorted(looked_at)
    assert +planted_here == Counter(["source_offset:0", "source_offset:+1", "uniform"])


def test_padding_and_company_do_not_matter():
    for variant in ("decoder", "encoder", "encoder_decoder"):
        model = built(variant)
        found = [both(model, text) for text in texts(model)[:3]]
        together = look(model, found)
        for row, pair in enumerate(found):
            for head, [alone] in look(model, [pair]).items():
                assert np.allclose(together[head][row], alone, atol=1e-4)
    model = built("decoder")
    found = [both(model, text) for text in texts(model)[:3]]
    left = look(built("decoder", padding_side="left"), found)
    for head, patterns in look(model, found).items():
        for ours, theirs in zip(patterns, left[head], strict=True):
            assert np.allclose(ours, theirs, atol=1e-4)


def test_every_head_has_a_truth_and_moves_the_stream():
    for variant in ("decoder", "encoder", "encoder_decoder"):
        model = built(variant)
        assert [*model.truth] == all_heads(model.sites)
        text, target = both(model, texts(model)[0])
        batch = model.batch([text], [target] if model.kind == "encoder_decoder" else [])
        with model.watching_z() as kept:
            model.run(batch)
        for place, z in kept.items():
            written = torch.einsum("bqhd,hdm->bqhm", z, model.attentions[place].attention.W_O)
            assert written.abs().amax(dim=(0, 1, 3)).min() > 1e-3


def test_the_seed_decides_order_vocabulary_weights_and_corpus():
    first, again, other = built("decoder"), planted("decoder", 0, **CHOICES), built("decoder", 1)
    weights = [dict(model.module.named_parameters()) for model in (first, again, other)]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name])
        assert torch.equal(value, weights[2][name]) == (name == "pos_embed.weight")
    assert first.truth == again.truth != other.truth
    assert first.corpus == again.corpus != other.corpus
    vocabularies = [m.codec.tokenizer.get_vocab() for m in (first, again, other)]
    assert vocabularies[0] == vocabularies[1] != vocabularies[2]


def test_frames_are_those_of_the_kind():
    for variant, frame in (
        ("decoder", ["<s>", "the", "king", "."]),
        ("encoder", ["<s>", "the", "king", ".", "</s>"]),
        ("encoder_decoder", ["<s>", "the", "king", ".", "</s>"]),
    ):
        model = built(variant)
        encoded = model.codec.encode("the king.")
        assert model.codec.tokenizer.convert_ids_to_tokens(list(encoded.ids)) == frame
        assert encoded.offsets[1:4] == ((0, 3), (4, 8), (8, 9))
        assert list(encoded.special) == [token[0] == "<" for token in frame]
    pair = both(model, "the king.", "a <mask>.")
    assert words_of(model, "decoder_cross_attn", pair) == ["<s>", "<unk>", "<mask>", "."]


def test_an_unknown_variant_is_refused():
    with pytest.raises(InputError, match=r"variant=tree: one of decoder, encoder"):
        planted("tree", 0, **CHOICES)


# The language


LABELS = {
    ("DET", "det", "NOUN"),
    ("ADJ", "amod", "NOUN"),
    ("NOUN", "compound", "NOUN"),
    ("ADP", "case", "NOUN"),
    ("NOUN", "nmod", "NOUN"),
    ("NOUN", "nsubj", "VERB"),
    ("PRON", "nsubj", "VERB"),
    ("NOUN", "obj", "VERB"),
    ("NOUN", "obl", "VERB"),
    ("ADV", "advmod", "VERB"),
    ("SCONJ", "mark", "VERB"),
    ("VERB", "advcl", "VERB"),
    ("PUNCT", "punct", "VERB"),
    ("VERB", "root", None),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_words_and_trees_are_sound(seed):
    corpus = built("decoder", seed).corpus
    assert len(corpus.passages) >= 150
    documents = Counter(passage.document for passage in corpus.passages)
    assert len(documents) >= 20
    assert {*documents} == {*corpus.documents}
    seen = set()
    for passage in corpus.passages:
        words = passage.words
        assert len(words) + 2 <= 64
        assert passage.text == " ".join(word.form for word in words).replace(" .", ".")
        for number, word in enumerate(words):
            assert passage.text[word.start : word.end] == word.form
            assert word.pronoun == ("personal" if word.upos == "PRON" else None)
            head = None if word.head is None else words[word.head]
            seen.add((word.upos, word.deprel, head and head.upos))
            above, steps = number, 0
            while words[above].head is not None:
                above, steps = words[above].head, steps + 1
                assert steps < len(words)
            for between in range(*sorted((number, number if head is None else word.head))):
                inside = words[between].head  # no two branches cross
                if between != min(number, word.head):
                    assert min(number, word.head) <= inside <= max(number, word.head)
        assert [word.deprel for word in words].count("root") == 1
        verbs = [number for number, word in enumerate(words) if word.upos == "VERB"]
        assert [word.head for word in words if word.deprel == "nsubj"] == verbs
        for mention in passage.mentions:
            last = words[mention.last]
            assert words[mention.first].form == (last.form if last.pronoun else "the")
            assert last.form in {*PEOPLE, "it"} | THINGS | set.union(*PEOPLE.values())
    assert seen == LABELS


@pytest.mark.parametrize("seed", SEEDS)
def test_one_noun_agrees_with_a_pronoun_and_no_simple_rule_finds_it(seed):
    hits, n = Counter(), 0
    for passage in built("decoder", seed).corpus.passages:
        words = passage.words
        for mention in passage.mentions:
            pronoun = words[mention.first]
            if not pronoun.pronoun:
                continue
            n += 1
            before = range(mention.first)
            fitting = {**PEOPLE, "it": THINGS}[pronoun.form]
            [noun] = [m for m in passage.mentions if m.entity == mention.entity and m != mention]
            assert [k for k in before if words[k].form in fitting] == [noun.last]
            nouns = [k for k in before if words[k].upos == "NOUN"]
            heads = [k for k in nouns if words[k].deprel != "compound"]
            subject = next(k for k in before if words[k].deprel == "nsubj")
            rules = {"first": heads[0], "middle": heads[1], "last": heads[2], "subject": subject}
            rules |= {"any first": nouns[0], "any nearest": nouns[-1]}
            rules |= {offset: mention.first - offset for offset in range(1, 20)}
            hits.update(name for name, k in rules.items() if noun.first <= k <= noun.last)
    assert n >= 100
    assert [hits[name] / n for name in ("first", "middle", "last")] == [1 / 3] * 3
    assert max(hits.values()) <= 0.5 * n


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("deprel", ["amod", "nsubj"])
def test_no_fixed_offset_finds_adjectives_or_subjects(deprel, seed):
    distances = Counter(
        word.head - number
        for passage in built("decoder", seed).corpus.passages
        for number, word in enumerate(passage.words)
        if word.deprel == deprel
    )
    assert distances.total() > 200
    assert max(distances.values()) <= 0.45 * distances.total()
    assert len(distances) >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_subject_is_the_nearest_person_before_its_verb_and_often_not_the_nearest_noun(seed):
    people = set.union({"it"}, PEOPLE, *PEOPLE.values())
    nearest = []
    for passage in built("decoder", seed).corpus.passages:
        for number, word in enumerate(passage.words):
            if word.deprel == "nsubj":
                between = passage.words[number + 1 : word.head]
                assert word.form in people
                assert not {other.form for other in between} & people
                nearest.append(all(other.upos != "NOUN" for other in between))
    assert np.mean(nearest) < 0.6


@pytest.mark.parametrize("seed", SEEDS)
def test_the_company_that_words_keep_gives_nothing_away(seed):
    """What each word meets most often, by pointwise mutual information, is seldom its target."""
    passages = built("decoder", seed).corpus.passages
    content = [
        {n: w.form for n, w in enumerate(p.words) if w.upos in ("NOUN", "VERB", "ADJ", "PRON")}
        for p in passages
    ]
    alone = Counter(form for words in content for form in {*words.values()})
    together = Counter(
        (a, b) for words in content for a in {*words.values()} for b in {*words.values()}
    )
    for feature in GRAMMAR:
        hits = []
        for number, words in enumerate(content):
            for q, keys in enumerate(truths("decoder", seed, "attn", feature)[number]):
                met = {  # (what a query's own frequency adds is the same for all)
                    k: together[words[k], words[q - 1]] / alone[words[k]]
                    for k in words
                    if keys and k < q - 1
                }
                if len(met) > 1:
                    hits.append(max(met, key=met.__getitem__) + 1 in keys)
        assert np.mean(hits) < 0.5, feature
        assert len(hits) > 50


# Redundancy


@cache
def asked(seed):
    """The prompts as a batch, where they are read, and the ids of answer and distractor."""
    model = built("redundant", seed)
    table = pd.DataFrame(model.examples)
    task = prompts.from_table(model, table, name="planted", min_accuracy=0.5)
    items = [item for [item] in task.examples]
    read, ids = (torch.tensor([getattr(item, name) for item in items]) for name in ("read", "ids"))
    return model.batch([item.text for item in items]), read, ids


def without(seed, *closed) -> np.ndarray:
    """logit(answer) - logit(distractor) of every example, with some heads' z set to zero."""
    model, (batch, read, ids) = built("redundant", seed), asked(seed)

    def edit(layer):
        def close(z):
            z = z.clone()
            for head in closed:
                if head.layer == layer:
                    z[:, :, head.head] = 0.0
            return z

        return close

    with model.editing({("attn", head.layer): edit(head.layer) for head in closed}):
        logits = model.logits(batch, read)
    good, bad = logits[:, 0].gather(-1, ids[:, 0]).unbind(-1)
    return (good - bad).numpy()


@pytest.mark.parametrize("seed", SEEDS)
def test_redundant_heads_do_what_their_roles_say(seed):
    model = built("redundant", seed)
    roles = {role: model.heads_of(role) for role in ROLES}
    assert {role: len(heads) for role, heads in roles.items()} == ROLES
    clean = without(seed)
    assert clean.min() > 0

    def damage(*heads):
        return clean - without(seed, *heads)

    exact, near = {"atol": 1e-5, "rtol": 0}, {"atol": 0.02, "rtol": 0}
    one, other = roles["twin"]
    assert np.allclose(damage(one), 0, **exact)
    assert np.allclose(damage(other), 0, **exact)
    assert np.allclose(damage(one, other), 3, **exact)
    one, other = roles["linear_twin"]
    assert np.allclose(damage(one), 1, **near)
    assert np.allclose(damage(other), 1, **near)
    assert np.allclose(damage(one, other), damage(one) + damage(other), **exact)
    [main], [backup], [harmful] = roles["main"], roles["backup"], roles["harmful"]
    assert np.allclose(damage(backup), 0, **exact)
    assert np.allclose(damage(main), 2 - 1.5, **near)
    assert np.allclose(damage(main, backup), 2, **near)
    assert np.allclose(damage(harmful), -0.75, **near)
    dead = [head for head, known in model.truth.items() if "dead" in known]
    assert {*roles["dead"]} < {*dead}
    for head in dead:
        assert not damage(head).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_prompt_names_one_person_whom_the_answer_fits(seed):
    examples = built("redundant", seed).examples
    for prompt, answer, distractor in examples:
        people = {word: p for p, words in PEOPLE.items() for word in words & {*prompt.split()}}
        [fitting] = people.values()
        assert answer == f" {fitting}"
        assert distractor in {" he", " she", " it"} - {answer}
    assert len(examples) >= 32
    assert min(Counter(example.answer for example in examples).values()) >= 4
