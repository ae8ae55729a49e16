"""The written sentence sets: their shape, balance and order. No model is needed."""

import pandas as pd
import pytest

from interp.tasks import agreement, pronouns, triplets

CHOICES = {"agreement": agreement, "pronouns": pronouns}
SETS = {**CHOICES, "triplets": triplets}
PREFIXES = (16, 32, 64, 128)


@pytest.fixture(params=SETS)
def any_set(request: pytest.FixtureRequest) -> pd.DataFrame:
    return SETS[request.param].sentences()


@pytest.fixture(params=CHOICES)
def choices(request: pytest.FixtureRequest) -> pd.DataFrame:
    return CHOICES[request.param].sentences()


def contrast(frame: pd.DataFrame) -> pd.Series:
    """The stratum without its last part: the construction, or the feature that is contrasted."""
    return frame["stratum"].str.rsplit("_", n=1).str[0]


@pytest.mark.parametrize("name", SETS)
def test_deterministic(name: str) -> None:
    pd.testing.assert_frame_equal(SETS[name].sentences(), SETS[name].sentences())


@pytest.mark.parametrize(("name", "rows"), [("agreement", 320), ("pronouns", 256)])
def test_choice_columns_and_counts(name: str, rows: int) -> None:
    frame = CHOICES[name].sentences()
    assert list(frame.columns) == ["prompt", "answer", "distractor", "cluster", "stratum"]
    assert list(frame.index) == list(range(rows))
    assert frame.notna().all(axis=None)


def test_triplet_columns_and_counts() -> None:
    frame = triplets.sentences()
    assert list(frame.columns) == ["anchor", "near", "far", "cluster", "stratum"]
    assert list(frame.index) == list(range(128))
    assert frame.notna().all(axis=None)


def test_clusters(any_set: pd.DataFrame) -> None:
    assert any_set["cluster"].nunique() >= 24


def test_strata_are_equally_large(any_set: pd.DataFrame) -> None:
    assert any_set["stratum"].value_counts().nunique() == 1


def test_every_prefix_has_about_equally_many_rows_of_each_contrast(any_set: pd.DataFrame) -> None:
    groups = contrast(any_set)
    names = groups.unique()
    for length in range(16, len(any_set) + 1):
        counts = groups.head(length).value_counts().reindex(names, fill_value=0)
        assert counts.max() - counts.min() <= 4


def test_prompts_are_distinct_and_tidy(choices: pd.DataFrame) -> None:
    prompts = choices["prompt"]
    assert prompts.is_unique
    assert prompts.str[0].str.isupper().all()
    assert (prompts == prompts.str.split().str.join(" ")).all()
    assert prompts.str.split().str.len().between(3, 12).all()


def test_answers_are_words_with_a_leading_space(choices: pd.DataFrame) -> None:
    for column in ("answer", "distractor"):
        assert choices[column].str.fullmatch(" [a-z]+").all()
    assert (choices["answer"] != choices["distractor"]).all()


@pytest.mark.parametrize("length", PREFIXES)
def test_answers_are_distractors_equally_often(choices: pd.DataFrame, length: int) -> None:
    head = choices.head(length)
    for _, rows in head.groupby(contrast(head)):
        assert sorted(rows["answer"]) == sorted(rows["distractor"])


def test_neighbours_are_pairs_that_differ_in_the_answer(choices: pd.DataFrame) -> None:
    first, second = (choices.iloc[start::2].reset_index(drop=True) for start in (0, 1))
    assert (first["cluster"] == second["cluster"]).all()
    assert (first["answer"] == second["distractor"]).all()
    assert (first["distractor"] == second["answer"]).all()
    lengths = (half["prompt"].str.split().str.len() for half in (first, second))
    assert next(lengths).equals(next(lengths))


@pytest.mark.parametrize("length", [*PREFIXES, 320])
def test_agreement_is_balanced_in_number(length: int) -> None:
    head = agreement.sentences().head(length)
    number = head["stratum"].str.rsplit("_", n=1).str[1]
    assert number.value_counts().to_dict() == {"singular": length // 2, "plural": length // 2}
    assert (number.groupby(head["cluster"]).nunique() == 2).all()
    assert (number.groupby(contrast(head)).nunique() == 2).all()


def test_agreement_is_a_full_cross() -> None:
    frame = agreement.sentences()
    assert (frame.groupby(["cluster", "stratum"]).size() == 1).all()
    assert frame.groupby(["cluster", "stratum"]).ngroups == len(frame)
    verbs = frame["answer"].value_counts()
    assert verbs.to_dict() == {
        f" {verb}": n
        for pair, n in (("is are", 80), ("was were", 40), ("has have", 40))
        for verb in pair.split()
    }


def test_attractors_have_the_number_their_stratum_says() -> None:
    frame = agreement.sentences().set_index(["cluster", "stratum"])["prompt"].str.split()
    for cluster in frame.index.unique("cluster"):
        last = frame[cluster].str[-1]
        for kind in ("pp", "rc"):
            assert last[f"{kind}_same_singular"] == last[f"{kind}_different_plural"]
            assert last[f"{kind}_same_plural"] == last[f"{kind}_different_singular"]
        assert last["pp_same_singular"] != last["pp_same_plural"]
        assert last["simple_singular"] == cluster


def test_agreement_pairs_differ_in_nouns_only() -> None:
    words = agreement.sentences()["prompt"].str.split()
    for one, many in zip(words[0::2], words[1::2], strict=True):
        differing = sum(a != b for a, b in zip(one, many, strict=True))
        assert differing == (1 if len(one) == 4 else 2)


def test_pronoun_strata() -> None:
    frame = pronouns.sentences()
    assert frame["stratum"].nunique() == 16
    reflexive = frame["stratum"].str.startswith("reflexive")
    assert set(frame.loc[reflexive, "answer"]) == {" himself", " herself", " themselves", " itself"}
    plain = frame["stratum"].str.startswith("pronoun")
    assert set(frame.loc[plain, "answer"]) == {" he", " she", " they", " it"}


@pytest.mark.parametrize("length", [32, 64, 128, 256])
def test_pronouns_are_balanced_in_gender(length: int) -> None:
    head = pronouns.sentences().head(length)
    counts = head["answer"].value_counts()
    for masculine, feminine in ((" himself", " herself"), (" he", " she")):
        assert counts[masculine] == counts[feminine]


def test_triplets_are_distinct_sentences() -> None:
    frame = triplets.sentences()
    assert frame["anchor"].is_unique
    assert frame["near"].is_unique
    assert frame["far"].is_unique
    for column in ("anchor", "near", "far"):
        assert frame[column].str.fullmatch(r"[A-Z].*[a-z]\.").all()
    assert (frame["anchor"] != frame["near"]).all()
    assert (frame["near"] != frame["far"]).all()
    assert (frame["anchor"] != frame["far"]).all()


def test_each_domain_has_one_triplet_per_stratum() -> None:
    frame = triplets.sentences()
    assert (frame.groupby(["cluster", "stratum"]).size() == 1).all()
    blocks = frame["stratum"].groupby(frame.index // 4).nunique()
    assert (blocks == 4).all()


def test_negation_goes_both_ways() -> None:
    frame = triplets.sentences()
    rows = frame[frame["stratum"] == "negation"]
    negative = r"\b(?:not|no|nobody|none|neither|never|cannot|failed)\b"
    near, far = (rows[column].str.contains(negative, case=False) for column in ("near", "far"))
    assert (near != far).all()
    assert near.sum() == len(rows) // 2
    assert near.head(8).sum() == 4


def words(sentences: pd.Series) -> pd.Series:
    """The set of lower-case words of each sentence."""
    return sentences.str.lower().str.findall(r"[a-z]+").map(lambda found: {*found})


def test_word_sense_repeats_a_word_and_role_swap_all_words() -> None:
    frame = triplets.sentences()
    frame = frame.assign(**{column: words(frame[column]) for column in ("anchor", "near", "far")})
    function_words = {"a", "and", "at", "in", "is", "of", "on", "our", "the", "was", "with"}
    for row in frame[frame["stratum"] == "word_sense"].itertuples():
        assert (row.anchor & row.near & row.far) - function_words
    swaps = frame[frame["stratum"] == "role_swap"]
    assert (swaps["near"] == swaps["far"]).all()
