"""Sentences for the choice of a pronoun: by gender, number, animacy, and between two candidates.

What the set measures. A pronoun copies gender, number and animacy from the noun it stands for, its
antecedent. Every prompt ends right before a word that shows which antecedent was found, and the
metric is logit(answer) - logit(distractor) at the prompt's last token. Strata come in pairs that
share a contrast:

* ``reflexive_gender_{masculine,feminine}``: "The king looked at" -> " himself" / " herself";
* ``reflexive_number_{singular,plural}``: "The boys looked at" -> " themselves" / " himself";
* ``reflexive_animacy_{animate,inanimate}``: "The bank protected" -> " itself" / " himself";
* ``pronoun_gender_*``, ``pronoun_number_*``, ``pronoun_animacy_*``: the same three contrasts with
  " he", " she", " they" and " it" in a second clause: "The train stopped because" -> " it" / " he";
* ``two_candidates_number_{subject,object}``: the textbook's kind of sentence, "The animal did not
  cross the road because it was too", where the next word, " tired" or " wide", tells which of two
  nouns the pronoun stands for. With two singular nouns both words are fine and no answer is right;
  here one noun is plural, and *it was* or *they were* decides: "The animals did not cross the road
  because it was too" -> " wide" / " tired". The suffix names the antecedent's role;
* ``two_candidates_causality_{subject,object}``: two people of different gender, and the verb's
  implicit causality decides: "Mary thanked John because" -> " he" / " she" (one thanks people for
  what *they* did), "Mary apologized to John because" -> " she" / " he". These are preferences of
  readers rather than rules of grammar.

Both kinds with two candidates are hard for small models: SmolLM2-135M tends to take the object for
the antecedent, whatever the sentence says. Report them by stratum.

Balance. Each of the eight contrasts has 16 pairs of neighbouring rows: 256 rows, 32 per contrast
and 16 in each stratum. A pair swaps answer and distractor, so within each contrast a word is as
often the one as the other, and a fixed preference for a word adds up to zero. Rows come in rounds
of 16 with one pair of every contrast, so every prefix is about balanced. Feminine and masculine
antecedents alternate where gender is not the contrast. Gender is carried by words that settle it
(kin terms, royal titles, *man*, *girl*, common names), never by an occupation. Clusters are couples
of people (king/queen), things, schemas (animal/road), or causal verbs.

Sources. Reflexives as a probe of language models follow Marvin and Linzen (2018, "Targeted
syntactic evaluation of language models"); the two-candidate schemas go back to Winograd (1972) and
Levesque, Davis and Morgenstern (2012, "The Winograd schema challenge"); implicit causality to
Garvey and Caramazza (1974, "Implicit causality in verbs"). The sentences are our own, apart from
the textbook's animal and road, of which we use a variant.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from interp.models.head_model import HeadModel
from interp.tasks import prompts
from interp.tasks.task import Task


class _Couple(NamedTuple):
    """A masculine noun phrase and its feminine counterpart."""

    masculine: str
    feminine: str


class _Schema(NamedTuple):
    """A sentence with two candidates and, for each, the adjective that would explain it."""

    subject: str
    subjects: str
    predicate: str
    object: str
    objects: str
    subject_adjective: str
    object_adjective: str


class _Side(NamedTuple):
    """One prompt of a pair, its answer and the last part of its stratum's name."""

    prompt: str
    answer: str
    label: str


_COUPLES = (
    _Couple("the king", "the queen"),
    _Couple("John", "Mary"),
    _Couple("the man", "the woman"),
    _Couple("David", "Sarah"),
    _Couple("the boy", "the girl"),
    _Couple("Peter", "Anna"),
    _Couple("my uncle", "my aunt"),
    _Couple("Paul", "Emma"),
    _Couple("my brother", "my sister"),
    _Couple("James", "Alice"),
    _Couple("my father", "my mother"),
    _Couple("Robert", "Laura"),
    _Couple("my son", "my daughter"),
    _Couple("Tom", "Lucy"),
    _Couple("the prince", "the princess"),
    _Couple("George", "Helen"),
)

_PEOPLE = (  # singular, plural; masculine and feminine in turn
    ("king", "kings"),
    ("queen", "queens"),
    ("man", "men"),
    ("woman", "women"),
    ("boy", "boys"),
    ("girl", "girls"),
    ("lord", "lords"),
    ("lady", "ladies"),
    ("brother", "brothers"),
    ("sister", "sisters"),
    ("son", "sons"),
    ("daughter", "daughters"),
    ("father", "fathers"),
    ("mother", "mothers"),
    ("husband", "husbands"),
    ("wife", "wives"),
)

_REFLEXIVE_VERBS = (
    "looked at",
    "hurt",
    "blamed",
    "defended",
    "introduced",
    "taught",
    "praised",
    "talked to",
)

_CLAUSES = (
    "went home because",
    "slept badly, so",
    "laughed because",
    "came back early because",
    "missed the train, so",
    "stayed in bed because",
    "got lost, so",
    "left the room because",
)

_REFLEXIVE_THINGS = (  # a thing, and a verb that a person may have as well
    ("company", "defended"),
    ("bank", "protected"),
    ("computer", "repeated"),
    ("city", "defended"),
    ("school", "described"),
    ("machine", "examined"),
    ("country", "freed"),
    ("museum", "praised"),
    ("program", "corrected"),
    ("church", "saved"),
    ("newspaper", "contradicted"),
    ("hotel", "advertised"),
    ("plant", "protected"),
    ("firm", "renamed"),
    ("book", "contradicted"),
    ("engine", "stopped"),
)

_PRONOUN_THINGS = (
    ("train", "arrived late because"),
    ("ball", "disappeared when"),
    ("bus", "stopped because"),
    ("box", "fell over because"),
    ("car", "moved slowly because"),
    ("phone", "disappeared, but"),
    ("ship", "turned around because"),
    ("machine", "made a noise because"),
    ("plane", "left early because"),
    ("lamp", "fell over when"),
    ("boat", "came back late because"),
    ("chair", "got wet because"),
    ("truck", "moved slowly because"),
    ("tree", "fell down because"),
    ("taxi", "arrived late because"),
    ("book", "got wet because"),
)

_SCHEMAS = (
    _Schema("animal", "animals", "did not cross", "road", "roads", "tired", "wide"),
    _Schema("truck", "trucks", "did not pass under", "bridge", "bridges", "tall", "low"),
    _Schema("horse", "horses", "did not pull", "wagon", "wagons", "weak", "heavy"),
    _Schema("dog", "dogs", "did not catch", "rabbit", "rabbits", "slow", "fast"),
    _Schema("key", "keys", "did not fit into", "lock", "locks", "big", "small"),
    _Schema("cat", "cats", "did not climb", "tree", "trees", "lazy", "tall"),
    _Schema("rope", "ropes", "did not reach", "boat", "boats", "short", "far"),
    _Schema("table", "tables", "did not go through", "door", "doors", "wide", "narrow"),
    _Schema("ball", "balls", "did not break", "window", "windows", "soft", "thick"),
    _Schema("fire", "fires", "did not burn", "log", "logs", "weak", "wet"),
    _Schema("bag", "bags", "did not hold", "book", "books", "small", "big"),
    _Schema("lion", "lions", "did not swim across", "river", "rivers", "tired", "deep"),
    _Schema("knife", "knives", "did not cut", "stone", "stones", "dull", "hard"),
    _Schema("bear", "bears", "did not enter", "cave", "caves", "afraid", "dark"),
    _Schema("goat", "goats", "did not jump over", "wall", "walls", "tired", "high"),
    _Schema("bird", "birds", "did not drink from", "lake", "lakes", "shy", "dirty"),
)

_CAUSAL_VERBS = (  # whose doing the verb points to: the subject's or the object's
    ("apologized to", "subject"),
    ("thanked", "object"),
    ("disappointed", "subject"),
    ("praised", "object"),
    ("confessed to", "subject"),
    ("punished", "object"),
    ("impressed", "subject"),
    ("admired", "object"),
    ("annoyed", "subject"),
    ("congratulated", "object"),
    ("lied to", "subject"),
    ("blamed", "object"),
    ("amused", "subject"),
    ("comforted", "object"),
    ("amazed", "subject"),
    ("scolded", "object"),
)

_FORMS = {
    "reflexive": (" himself", " herself", " themselves", " itself"),
    "pronoun": (" he", " she", " they", " it"),
}


def _pair(contrast: str, cluster: str, first: _Side, second: _Side) -> list[dict[str, str]]:
    """Two rows in which each side's answer is the other's distractor."""
    return [
        {
            "prompt": side.prompt,
            "answer": side.answer,
            "distractor": other.answer,
            "cluster": cluster,
            "stratum": f"{contrast}_{side.label}",
        }
        for side, other in ((first, second), (second, first))
    ]


def _by_antecedent(turn: int) -> Iterator[list[dict[str, str]]]:
    """The turn's pairs for gender, number and animacy, reflexive and not."""
    for kind, tails, things in (
        ("reflexive", _REFLEXIVE_VERBS, _REFLEXIVE_THINGS),
        ("pronoun", _CLAUSES, _PRONOUN_THINGS),
    ):
        he, she, they, it = _FORMS[kind]
        man, woman = _COUPLES[turn]
        tail = tails[turn % len(tails)]
        yield _pair(
            f"{kind}_gender",
            f"{man.split()[-1]}/{woman.split()[-1]}",
            _Side(f"Yesterday {man} {tail}", he, "masculine"),
            _Side(f"Yesterday {woman} {tail}", she, "feminine"),
        )
        one, many = _PEOPLE[turn]
        singular = she if turn % 2 else he
        tail = tails[(turn + turn // len(tails) + 4) % len(tails)]  # both genders meet each tail
        yield _pair(
            f"{kind}_number",
            "/".join(noun for noun, _ in _PEOPLE[turn - turn % 2 :][:2]),
            _Side(f"Yesterday the {one} {tail}", singular, "singular"),
            _Side(f"Yesterday the {many} {tail}", they, "plural"),
        )
        thing, tail = things[turn]
        yield _pair(
            f"{kind}_animacy",
            thing,
            _Side(f"Yesterday the {one} {tail}", singular, "animate"),
            _Side(f"Yesterday the {thing} {tail}", it, "inanimate"),
        )


def _by_number(turn: int) -> list[dict[str, str]]:
    """Two candidates of different number; the plural one is the subject in every other turn."""
    schema = _SCHEMAS[turn]
    if turn % 2:
        clause = f"The {schema.subject} {schema.predicate} the {schema.objects} because"
        of_subject, of_object = "it was", "they were"
    else:
        clause = f"The {schema.subjects} {schema.predicate} the {schema.object} because"
        of_subject, of_object = "they were", "it was"
    return _pair(
        "two_candidates_number",
        f"{schema.subject}/{schema.object}",
        _Side(f"{clause} {of_subject} too", f" {schema.subject_adjective}", "subject"),
        _Side(f"{clause} {of_object} too", f" {schema.object_adjective}", "object"),
    )


def _by_causality(turn: int) -> list[dict[str, str]]:
    """Two people of different gender; the verb tells whose doing it was."""
    verb, role = _CAUSAL_VERBS[turn]
    man, woman = _COUPLES[turn]
    he, she = _FORMS["pronoun"][:2]
    return _pair(
        "two_candidates_causality",
        verb,
        _Side(f"Yesterday {man} {verb} {woman} because", he if role == "subject" else she, role),
        _Side(f"Yesterday {woman} {verb} {man} because", she if role == "subject" else he, role),
    )


def sentences() -> pd.DataFrame:
    """Return the pronoun sentences, in an order in which every prefix is about balanced.

    Returns:
        256 rows with the columns ``prompt``, ``answer`` and ``distractor`` (words with a leading
        space), ``cluster`` (the nouns or the verb the pair is about) and ``stratum``.
    """
    pairs = (
        pair
        for turn in range(len(_COUPLES))
        for pair in (*_by_antecedent(turn), _by_number(turn), _by_causality(turn))
    )
    return pd.DataFrame(itertools.chain.from_iterable(pairs))


def task(model: HeadModel, *, min_accuracy: float) -> Task:
    """Make the task: logit(answer) - logit(distractor) at the last position of each prompt."""
    return prompts.from_table(model, sentences(), name="pronouns", min_accuracy=min_accuracy)
