"""What each head of the planted models does, as data.

Two layers of six heads for every kind of attention. A feature is `planted` in the head made for it;
it is `implied` where it cannot be otherwise:

    first_token             of heads that seldom find what they look for and rest on the first token
    uniform                 of heads of small random weights, whose attention is nearly even
    antecedent:personal     of `antecedent`: the language has no other pronouns
    monotone                of `source_offset`: who reads at a fixed distance reads in order

No head that looks at grammar has a second feature of grammar, and the head behind `induction`
(which needs to know what came before each token) is the planted `offset:-1`.
"""

from collections.abc import Callable

from interp.models.planted.language import AGREEMENT, PEOPLE, WORDS, features, pronoun
from interp.models.planted.wiring import Link, Space, Wiring
from interp.models.text import WORD_SPECIALS

N_CTX = 80
N_SCRATCH = 16
LATER = 1 / 3
"""What a verb's score of a key grows by with each place: e^3 from one to the next."""
LATEST = LATER * N_CTX
PRONOUNS = tuple(AGREEMENT)
WRONG = {"he": "she", "she": "he", "they": "it"}
"""What the harmful head writes in place of each answer."""
REDUNDANT = ("twin", "clipped", "main", "evidence")
"""What the redundant heads write about each pronoun."""

PLANTED, IMPLIED = "planted", "implied"
RESTS = {"first_token": IMPLIED}

Layers = tuple[tuple[Wiring, ...], ...]


def space() -> Space:
    """Name the coordinates of the residual stream."""
    tokens = (*WORD_SPECIALS, *WORDS)
    return Space(
        [
            *(f"token:{word}" for word in tokens),
            *(feature for word in tokens for feature in features(word)),
            *(f"position:{place}" for place in range(N_CTX)),
            *(f"previous:{word}" for word in tokens),
            *(f"{what}:{word}" for what in REDUNDANT for word in PRONOUNS),
            *(f"scratch:{number}" for number in range(N_SCRATCH)),
        ]
    )


def at(*distances: int, elsewhere: float = 0.0) -> Callable[[int], float]:
    """Prefer keys that are so far behind the query."""
    return lambda distance: elsewhere + 2.0 * (distance in distances)


def around(distance: int) -> Callable[[int], float]:
    """Prefer keys that are so far behind the query; of the others, those nearest to there."""
    return lambda other: 2.0 if other == distance else -0.05 * abs(other - distance)


def before(score: float) -> Callable[[int], float]:
    """Take `score` from the query itself and from what follows it."""
    return lambda distance: -score * (distance <= 0)


PREVIOUS = Wiring({"offset:-1": PLANTED}, kernel=at(1), writes=[("token:*", "previous:*", 1.0)])
BEFORE_PREVIOUS = Wiring({"offset:-2": PLANTED}, kernel=at(2))
CURRENT = Wiring({"offset:0": PLANTED}, kernel=at(0))
NEXT = Wiring({"offset:+1": PLANTED}, kernel=at(-1))
SINK = Wiring({"first_token": PLANTED})
UNIFORM = Wiring({"uniform": PLANTED}, rest=0.0)
DUPLICATE = Wiring(
    {"duplicate": PLANTED, **RESTS}, [("token:*", "token:*", 2.0)], kernel=before(2.0)
)
INDUCTION = Wiring(
    {"induction": PLANTED, **RESTS}, [("token:*", "previous:*", 2.0)], kernel=before(2.0)
)
ANTECEDENT = Wiring(
    {"antecedent": PLANTED, "antecedent:personal": IMPLIED, **RESTS},
    [
        *(  # 4 for a noun with all traits, 2 for one with half of them
            (f"token:{word}", trait, 4 / len(traits))
            for word, traits in AGREEMENT.items()
            for trait in traits
        ),
        ("pronoun", "position:0", 2.0),
    ],
    kernel=before(4.0),
)
SUBJECT = Wiring(
    {"nsubj:head->dep": PLANTED, **RESTS},
    [
        *(("verb", kind, LATEST + 2) for kind in ("person", "pronoun")),
        *(("verb", f"position:{place}", LATER * place) for place in range(1, N_CTX)),
        ("verb", "position:0", LATEST),
    ],
    kernel=before(LATEST + 2),
)
ADJECTIVE = Wiring(  # no noun's adjective is further away, and another noun's always is
    {"amod:head->dep": PLANTED, **RESTS},
    [("noun", "adjective", 2.0)],
    kernel=at(1, 2, 3, elsewhere=-2.0),
)
RANDOM = Wiring({"uniform": IMPLIED}, looks=False)

SAME_PLACE = Wiring({"source_offset:0": PLANTED, "monotone": IMPLIED}, kernel=around(0))
NEXT_PLACE = Wiring({"source_offset:+1": PLANTED, "monotone": IMPLIED}, kernel=around(-1))

DECODER: Layers = (
    (PREVIOUS, CURRENT, DUPLICATE, SINK, ADJECTIVE, RANDOM),
    (INDUCTION, BEFORE_PREVIOUS, UNIFORM, ANTECEDENT, SUBJECT, RANDOM),
)
ENCODER: Layers = (
    (PREVIOUS, CURRENT, DUPLICATE, SINK, ADJECTIVE, NEXT),
    (INDUCTION, BEFORE_PREVIOUS, UNIFORM, ANTECEDENT, SUBJECT, RANDOM),
)
CROSS: Layers = (
    (SAME_PLACE, UNIFORM, RANDOM, RANDOM, RANDOM, RANDOM),
    (NEXT_PLACE, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM),
)


def _about(what: str, amount: float, *, wrong: bool = False) -> list[Link]:
    """Write which pronoun stands for the person that is looked at, or one that does not."""
    said = {noun: pronoun(noun) for noun in PEOPLE}
    return [
        (f"token:{noun}", f"{what}:{WRONG[word] if wrong else word}", amount)
        for noun, word in said.items()
    ]


def _reader(role: str, writes: list[Link], more: tuple[Link, ...] = ()) -> Wiring:
    """Look from `because` or `when` at the person."""
    return Wiring({role: PLANTED}, [("conjunction", "person", 2.0), *more], writes=writes)


IDLE = Wiring({"dead": IMPLIED}, looks=False)
TWIN = _reader("twin", _about("twin", 1.5))
LINEAR_TWIN = _reader("linear_twin", _about("evidence", 1.0))
BACKUP = _reader(  # rests, by 4 units to 2, if the main head has written
    "backup",
    _about("evidence", 1.5),
    tuple((f"main:{word}", "position:0", 3.0) for word in PRONOUNS),
)
REDUNDANT_DECODER: Layers = (
    (
        _reader("dead", _about("evidence", 0.0)),
        TWIN,
        TWIN,
        LINEAR_TWIN,
        LINEAR_TWIN,
        _reader("main", _about("main", 1.0)),
    ),
    (BACKUP, _reader("harmful", _about("evidence", 0.75, wrong=True)), IDLE, IDLE, IDLE, IDLE),
)
READOUT = {"clipped": 3.0, "main": 2.0, "evidence": 1.0}
"""What each kind of evidence for a pronoun adds to its logit."""
