"""Sentences for subject-verb agreement, with and without attractors.

What the set measures. English present-tense verbs (and *was*/*were*) agree in number with the head
of their subject, however many nouns stand in between. Every prompt ends right before such a verb,
as in "Right now, the key to the doors", and the metric is logit(answer) - logit(distractor) at the
prompt's last token, here logit(" is") - logit(" are"). A model that only looks at the nearest noun
does well on most strata and fails where the nearest noun, the *attractor*, has another number.

Strata are ``{construction}_{number}``, where number is that of the subject, ``singular`` or
``plural``, and construction is one of

* ``simple``: no attractor ("Right now, the key");
* ``pp_same``, ``pp_different``: a prepositional phrase whose noun has the subject's number ("the
  key to the door") or the other one ("the key to the doors");
* ``rc_same``, ``rc_different``: a subject relative clause whose object has the subject's number
  ("the key that opened the door") or the other one ("the key that opened the doors"). The clause's
  own verb is in the past tense, which shows no number.

Balance. The set is a full cross of 32 subject nouns (the clusters; 16 name people or animals, 16
things), five constructions and two numbers: 320 rows, 32 in each of the ten strata, as many plural
as singular. Singular and plural rows of a pair are neighbours and differ in the two nouns only.
Rows come in five rounds of 64; a round visits every noun once, with the constructions rotating, so
every prefix is balanced to within a few rows. Four openings rotate, each with a pair of verb forms
in the tense that it sets; a noun meets all of them.

Sources. The attractor paradigm is that of Bock and Miller (1991, "Broken agreement") for speakers
and of Linzen, Dupoux and Goldberg (2016, "Assessing the ability of LSTMs to learn syntax-sensitive
dependencies") for language models; the templates follow the spirit of Marvin and Linzen (2018,
"Targeted syntactic evaluation of language models"). All sentences are our own; none is taken from
these data sets.
"""

from typing import NamedTuple

import pandas as pd

from interp.models.head_model import HeadModel
from interp.tasks import prompts
from interp.tasks.task import Task


class _Noun(NamedTuple):
    """A subject noun with the phrases that may follow it, each ending in its attractor."""

    singular: str
    plural: str
    preposition: str
    relative: str
    attractor_singular: str
    attractor_plural: str


class _Verb(NamedTuple):
    """A pair of verb forms with an opening that calls for their tense."""

    opening: str
    singular: str
    plural: str


_NOUNS = (
    _Noun("author", "authors", "of", "who wrote", "book", "books"),
    _Noun("key", "keys", "to", "that opened", "door", "doors"),
    _Noun("teacher", "teachers", "with", "who praised", "student", "students"),
    _Noun("letter", "letters", "to", "that angered", "editor", "editors"),
    _Noun("doctor", "doctors", "beside", "who trained", "nurse", "nurses"),
    _Noun("picture", "pictures", "of", "that showed", "castle", "castles"),
    _Noun("pilot", "pilots", "near", "who flew", "plane", "planes"),
    _Noun("report", "reports", "about", "that described", "accident", "accidents"),
    _Noun("farmer", "farmers", "behind", "who repaired", "wagon", "wagons"),
    _Noun("song", "songs", "about", "that mentioned", "river", "rivers"),
    _Noun("lawyer", "lawyers", "with", "who called", "client", "clients"),
    _Noun("house", "houses", "near", "that faced", "lake", "lakes"),
    _Noun("singer", "singers", "with", "who dropped", "guitar", "guitars"),
    _Noun("road", "roads", "to", "that reached", "village", "villages"),
    _Noun("driver", "drivers", "of", "who parked", "truck", "trucks"),
    _Noun("tree", "trees", "beside", "that shaded", "building", "buildings"),
    _Noun("guard", "guards", "at", "who locked", "gate", "gates"),
    _Noun("box", "boxes", "with", "that held", "shirt", "shirts"),
    _Noun("child", "children", "with", "who found", "toy", "toys"),
    _Noun("boat", "boats", "near", "that left", "island", "islands"),
    _Noun("woman", "women", "behind", "who bought", "car", "cars"),
    _Noun("window", "windows", "above", "that faced", "garden", "gardens"),
    _Noun("man", "men", "beside", "who fed", "horse", "horses"),
    _Noun("machine", "machines", "in", "that supplied", "factory", "factories"),
    _Noun("dog", "dogs", "behind", "that jumped", "fence", "fences"),
    _Noun("bridge", "bridges", "over", "that crossed", "canal", "canals"),
    _Noun("bird", "birds", "near", "that built", "nest", "nests"),
    _Noun("shop", "shops", "behind", "that faced", "church", "churches"),
    _Noun("cat", "cats", "under", "that scratched", "chair", "chairs"),
    _Noun("lamp", "lamps", "above", "that lit", "desk", "desks"),
    _Noun("artist", "artists", "behind", "who sold", "painting", "paintings"),
    _Noun("story", "stories", "about", "that described", "battle", "battles"),
)

_VERBS = (
    _Verb("Right now, the", " is", " are"),
    _Verb("Last week, the", " was", " were"),
    _Verb("So far, the", " has", " have"),
    _Verb("Even now, the", " is", " are"),
)

_CONSTRUCTIONS = ("simple", "pp_same", "rc_different", "pp_different", "rc_same")


def _subject(noun: _Noun, construction: str, plural: bool) -> str:
    """The subject without its determiner, such as ``key to the doors``."""
    head = noun.plural if plural else noun.singular
    if construction == "simple":
        return head
    kind, number = construction.split("_")
    link = noun.preposition if kind == "pp" else noun.relative
    attractor_plural = plural == (number == "same")
    attractor = noun.attractor_plural if attractor_plural else noun.attractor_singular
    return f"{head} {link} the {attractor}"


def sentences() -> pd.DataFrame:
    """Return the agreement sentences, in an order in which every prefix is about balanced.

    Returns:
        320 rows with the columns ``prompt``, ``answer`` and ``distractor`` (verb forms with a
        leading space), ``cluster`` (the subject noun's singular) and ``stratum``.
    """
    rows = []
    for turn in range(len(_CONSTRUCTIONS)):
        for place, noun in enumerate(_NOUNS):
            construction = _CONSTRUCTIONS[(place + turn) % len(_CONSTRUCTIONS)]
            verb = _VERBS[(place + turn) % len(_VERBS)]
            for plural in (False, True):
                answer, distractor = (
                    (verb.plural, verb.singular) if plural else (verb.singular, verb.plural)
                )
                rows.append(
                    {
                        "prompt": f"{verb.opening} {_subject(noun, construction, plural)}",
                        "answer": answer,
                        "distractor": distractor,
                        "cluster": noun.singular,
                        "stratum": f"{construction}_{'plural' if plural else 'singular'}",
                    }
                )
    return pd.DataFrame(rows)


def task(model: HeadModel, *, min_accuracy: float) -> Task:
    """Make the task: logit(answer) - logit(distractor) at the last position of each prompt."""
    return prompts.from_table(model, sentences(), name="agreement", min_accuracy=min_accuracy)
