"""A corpus of our own: sentences annotated by hand, and as many as wanted from a small grammar.

The grammar is data: templates whose slots are filled with words that go together (people read
letters and eat berries, keys are small and bridges are wide). They are written in brackets, one for
each phrase, with its relation to the word that it depends on:

    [nsubj=x the old sailor] did not cross [obj=y the river] [advcl because [nsubj=y it] was wide] .

A phrase's head is its last word outside inner brackets (before a full stop or 's). Its other words
depend on the head as their part of speech says (determiner, adjective, auxiliary, …), inner phrases
as their bracket says; `=x` names what a phrase refers to. So each sentence comes with its tree. The
relations are those of Universal Dependencies 2 for English: `obl:unmarked` for times without a
preposition, `obl:agent` for the passive's by-phrase, `iobj` for whom one gives, tells or teaches.
Mentions are the phrases with a name for what they refer to, and proper names.

About half of the templates are plain; objects and subjects stand at many distances from their
verbs. The others ask for the antecedent of a pronoun, which agreement or sense tells: by turns it
is the first of two candidates and the second, with other nouns before, between and after them, so
that neither the nearest noun, nor the first, nor the subject is right more than about half of the
time.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from interp.corpora.corpus import Corpus, Mention, Passage, Word
from interp.corpora.treebank import treebank
from interp.errors import InputError

TEXTBOOK = Path(__file__).with_name("textbook.conllu")
FACTS = {"source": "manyheads", "licence": "Apache-2.0"}
N_DOCUMENTS = 24
"""Generated sentences are dealt out to so many documents in turn."""
PATIENCE = 1000
"""So many draws in a row without a new sentence mean that there is none."""
ONCE = ("because", "every", "some", "this")
"""Words that a sentence has at most once; content words too."""
MODIFIERS = {"first": 0.3, "participles": 0.2, "second": 0.3}
"""How often nouns have them, of each field of `Kind`."""
CONTENT = ("NOUN", "PROPN", "VERB", "ADJ", "ADV")

BRACKET = re.compile(r"\[(?P<relation>[\w:]+)(?:=(?P<entity>\w+))?|(?P<closed>\])|[^\s\[\]]+")
ATTACHED = {
    "ADJ": "amod",
    "ADP": "case",
    "ADV": "advmod",
    "AUX": "aux",
    "CCONJ": "cc",
    "DET": "det",
    "NOUN": "compound",
    "PROPN": "compound",
    "PUNCT": "punct",
    "SCONJ": "mark",
    "VERB": "amod",
    "'s": "case",
    "not": "advmod",
    "to": "mark",
}
"""How a word depends on the head of its own phrase: by its part of speech, particles by form."""


class Kind(NamedTuple):
    """Nouns that can be used alike."""

    nouns: Sequence[str]
    first: Sequence[str] = ()
    """Adjectives."""
    participles: Sequence[str] = ()
    """Participles that follow those."""
    second: Sequence[str] = ()
    """Adjectives that follow both."""
    determiners: Sequence[str] = ()
    after: Sequence[str] = ()
    """What may follow the noun."""
    names: Sequence[str] = ()


class Scene(NamedTuple):
    """What is done, by whom and to what."""

    forms: dict[str, str]
    """The verb's base, past, participle and -ing form."""
    subject: list[str]
    object: list[str]
    adverbs: list[str]
    settings: list[str]


class Puzzle(NamedTuple):
    """Two candidates, what happens, and how it goes on if a pronoun means the one or the other."""

    x: list[str]
    y: list[str]
    action: str
    if_x: str
    if_y: str


def _rows(table: str) -> list[list[str]]:
    """Split a table at lines and bars; an indented line goes on with the one before."""
    lines = re.sub(r"\n +", " ", table.strip()).split("\n")
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def _list(cell: str) -> list[str]:
    """Split a cell at semicolons."""
    return [item.strip() for item in cell.split(";") if item.strip()]


# ---- Kinds of nouns:
# nouns | adjectives | participles | more adjectives | determiners | what may follow | names
#
# In all tables ; separates choices, {room} is a noun of that kind, and word:UPOS tells a word from
# another that is written alike.

DETERMINERS = {
    "definite": ["the"],
    "one": ["the", "the", "the", "a", "this", "every"],
    "any": ["the", "a", "this", "every"],
    "owned": ["the", "a", "this", "[nmod:poss the {person} 's]"],
    "several": ["the", "the", "these", "some"],
    "mass": ["the", "the", "some"],
}
KINDS = {
    name: Kind(*map(_list, cells))
    for name, *cells in _rows("""
person | student; teacher; engineer; nurse; gardener; farmer; painter; writer; pilot; judge;
    developer; doctor; baker; history student; village doctor; taxi driver; ship captain
  | tall; friendly; clever; famous; cheerful | smiling; retired; injured | young; old; French | one
  | [nmod from {city}]; [nmod with the red umbrella]; [acl:relcl [nsubj who] loved [obj music]];
    [acl:relcl [nsubj who] lived [obl near the {outdoors}]];
    [acl:relcl [nsubj who] had missed [obj the last train]];
    [acl:relcl [nsubj who] had come [advmod early]]; [acl wearing [obj a blue uniform]]
  | Anna [flat Berg]; Peter; Emma [flat Lind]; David [flat Stone]; Eva [flat Maria] [flat Hall]
man | king; prince; boy; man; duke; monk; waiter; actor
  | tall; friendly; clever; famous | smiling; injured | young; French | definite
  | [nmod from {city}]; [acl wearing [obj a blue coat]]; [acl:relcl [nsubj who] loved [obj music]]
  | Peter; Tom; David [flat Stone]; Paul [flat Weber]; Jan [flat Erik] [flat Holm]
woman | queen; princess; girl; woman; duchess; nun; waitress; actress
  | tall; friendly; clever; famous | smiling; injured | young; French | definite
  | [nmod from {city}]; [acl wearing [obj a blue coat]]; [acl:relcl [nsubj who] loved [obj music]]
  | Maria; Lucy; Anna [flat Berg]; Emma [flat Lind]; Sarah
people | students; children; sailors; farmers; tourists; soldiers; pupils; twins
  | friendly; clever; cheerful; noisy | laughing; singing | young; French | several
  | [nmod from {city}]; [acl waiting [obl at the {town}]];
    [acl:relcl [nsubj who] lived [obl near the {outdoors}]]
animal | dog; cat; horse; goat; fox; rabbit; farm dog; circus horse
  | small; hungry; fluffy; lazy | frightened; sleeping | brown; black; white | one
  | [nmod with the long tail]; [acl:relcl [nsubj which] lived [obl near the {outdoors}]];
    [acl:relcl [nsubj that:PRON] belonged [obl to the {person}]]
text | letter; book; poem; report; novel; love letter; history book; travel guide; newspaper article
  | long; short; strange; boring | printed; forgotten; stolen | new; old; English | owned
  | [nmod about the sea]; [nmod about {city}]; [acl written [obl:agent by the {person}]];
    [acl:relcl [obj that:PRON] [nsubj the {person}] had recommended]
fruit | berry; apple; pear; plum; cherry; melon
  | ripe; sweet; fresh; juicy | peeled; washed | red; green; yellow | owned
  | [nmod from the {outdoors}]; [acl:relcl [obj that:PRON] [nsubj the {person}] had brought]
dish | soup; cake; stew; omelette; apple pie; fish soup; chocolate cake
  | hot; delicious; fresh; simple | steaming; frozen | French; Italian | owned
  | [nmod for the {people}]; [acl:relcl [obj that:PRON] [nsubj the {person}] had ordered]
opening | door; window; gate; garden gate; kitchen window; cellar door
  | heavy; narrow; small | broken; painted; damaged | old; wooden; green | any
  | [nmod of the castle]; [nmod of the hotel]
machine | computer; server; printer; radio; clock; coffee machine; kitchen clock
  | expensive; noisy; small | broken; damaged | new; old | owned
  | [nmod from {city}]; [acl:relcl [obj that:PRON] [nsubj the {person}] had chosen]
vehicle | car; truck; bus; tractor; delivery van; fire engine
  | fast; slow; noisy; heavy | stolen; damaged | new; old; red | owned
  | [nmod from {city}]; [acl:relcl [nsubj which] stood [obl near the {outdoors}]]
building | tower; castle; church; barn; bridge; hotel; town hall; railway station
  | large; beautiful; famous | ruined; restored; painted | old; white | any
  | [nmod in {city}]; [nmod near the {outdoors}]; [acl built [obl:agent by the {people}]]
  | the Silver Bridge; the Royal Museum; the North Tower; the [compound Silver Lake] Hotel
small | key; ring; coin; wallet; umbrella; house key; gold ring; silver coin; train ticket
  | small; strange; valuable | stolen; forgotten; polished | new; old | owned
  | [acl lying [obl on the floor]]; [acl:relcl [nsubj which] belonged [obl to the {person}]]
container | basket; box; bag; suitcase; tool box; fruit basket
  | heavy; large; light | packed; borrowed; damaged | brown; old; red | owned
  | [nmod with the food]; [acl:relcl [obj that:PRON] [nsubj the {person}] had packed]
clothing | coat; hat; dress; scarf; shirt; winter coat; straw hat; wool scarf
  | warm; elegant; thin | borrowed; washed | red; blue; new | owned
  | [nmod from {city}]; [acl:relcl [obj that:PRON] [nsubj the {person}] had chosen]
song | song; waltz; melody; folk song; love song
  | slow; sad; cheerful; beautiful | forgotten | old; French; new | owned
  | [nmod about the sea]; [acl written [obl:agent by the {person}]]
plant | rose; tree; bush; oak; apple tree; rose bush
  | tall; small; beautiful | flowering | young; green | owned
  | [nmod near the {outdoors}]; [acl:relcl [obj that:PRON] [nsubj the {person}] had bought]
drink | tea; coffee; milk; juice; apple juice
  | hot; fresh; sweet | steaming | | mass
  | [nmod from {city}]; [acl:relcl [obj that:PRON] [nsubj the {person}] had ordered]
city | Paris; Rome; Oslo; Berlin
room | library; kitchen; cellar; attic; hall; living room; dining room
  | dark; large; small; quiet | | old
outdoors | garden; park; field; yard; forest; rose garden; village square
  | large; sunny; quiet; green | | old
town | market; harbour; station; school; museum; bus station; town hall | old; new; busy
""")
}
PLURALS = {"children": "child"} | {
    noun: noun.removesuffix("s") for noun in KINDS["people"].nouns if noun != "children"
}
KIN = {
    "man": _list("sister; mother; aunt"),
    "woman": _list("brother; father; uncle"),
}
"""Relatives of the other gender."""

# ---- Plain sentences

SCENES = [
    Scene(
        dict(zip(("base", "past", "participle", "ing"), forms, strict=True)),
        *map(_list, cells),
    )
    for verb, *cells in _rows("""
read read reading | person | text | slowly; quietly; carefully
  | in the {room}; on the train; at the kitchen table
write wrote written writing | person | text | quickly; carefully | in the {room}; with a pencil
translate translated translating | person | text | patiently; quickly
  | with a dictionary; in the {room}
eat ate eaten eating | person; animal | fruit | happily; slowly; greedily
  | in the {outdoors}; under the bridge
prepare prepared preparing | person | dish | patiently; carefully
  | before the party; for the guests
taste tasted tasting | person | dish | curiously; carefully | before dinner; in the {room}
open opened opening | person | opening | slowly; carefully | with a knife; after the storm
close closed closing | person | opening | quickly; gently | before the storm; after dinner
paint painted painting | person | building; opening | patiently; carefully
  | with a broad brush; before the festival
repair repaired repairing | person | machine; vehicle | patiently; quickly
  | in the workshop; with simple tools
drive drove driven driving | person | vehicle | slowly; carefully
  | through the tunnel; to the {town}
sell sold selling | person | vehicle; fruit; plant | cheaply; quickly | at the {town}
buy bought buying | person | clothing; container | happily; quickly
  | at the {town}; for the festival
borrow borrowed borrowing | person | small; text | politely; secretly
  | before the meeting; after dinner
examine examined examining | person | small; container | carefully; curiously
  | in the {room}; near the window
hide hid hidden hiding | person | small | secretly; quickly
  | behind the door; in the {room}; under the bed
carry carried carrying | person | container | slowly; carefully; proudly
  | across the bridge; up the hill; to the {town}
wash washed washing | person | clothing | carefully; gently | in the river; with cheap soap
wear wore worn wearing | person | clothing | proudly; often | at the party; in the {outdoors}
chase chased chasing | animal | animal | playfully; suddenly
  | through the {outdoors}; across the street
feed fed feeding | person | animal | regularly; gently | on the farm; behind the house
draw drew drawn drawing | person | animal; building | skilfully; quickly
  | with a pencil; in the {outdoors}
visit visited visiting | person | building | often; briefly | with a friend; before dinner
photograph photographed photographing | person | building; animal | secretly; skilfully
  | with a cheap camera; from the window
clean cleaned cleaning | person | machine; container | thoroughly; quickly
  | with a brush; after dinner
sing sang sung singing | person | song | softly; loudly | at the party; in the church
water watered watering | person | plant | regularly; carefully
  | in the {outdoors}; behind the house
plant planted planting | person | plant | carefully; proudly | near the fence; behind the house
drink drank drunk drinking | person | drink | slowly; quickly | in the {room}; after dinner
test tested testing | person | machine | thoroughly; patiently
  | in the workshop; before the meeting
deliver delivered delivering | person | container; text | promptly; safely
  | to the {town}; before noon
""")
    for base, *rest in [verb.split()]
    for forms in [(base, rest[0], rest[-2], rest[-1])]
]
TENSES = ["{adverb} {past}"] * 5 + ["had {adverb} {participle}", "{was} {ing}", "did not {base}"]
TIMES = [
    f"[obl:unmarked {time}]"
    for time in _list("yesterday; last week; last night; last spring; this morning; last Monday")
]
OCCASIONS = [
    f"[obl {occasion}]" for occasion in ("in the morning", "after lunch", "after the storm")
]
FRONTS = [*TIMES, *OCCASIONS, "[obl [case because:ADP [fixed of]] the rain]"]
PLACES = ["[obl in the {outdoors}]", "[obl in the {room}]", "[obl at the {town}]"]

# A slot with a 2 belongs to a second scene, whose subject is of the same kind.
PLAIN = {
    name: template
    for name, template in _rows("""
transitive | {front}[nsubj {subject}] {verb} [obj {long_object}]{back} .
passive | {front}[nsubj:pass {theme}] was {adverb} {participle}
  [obl:agent by {short_subject}]{setting} .
coordination | {front}[nsubj {subject}] {adverb} {past} [obj {object}]
  [conj and {past2} [obj {object2}]{setting2}] .
two subjects | {front}[nsubj {short_subject} [conj {joined} {short_subject2}]] {past}
  [obj {long_object}]{back} .
control | {front}[nsubj {subject}] {wanted} [xcomp to:PART {base} [obj {long_object}]{back}] .
report | {front}[nsubj {giver}] {said}
  [ccomp that [nsubj {subject}] {verb} [obj {long_object}]{back}] .
relative | [nsubj the {noun} [acl:relcl [nsubj {who}] {adverb} {past} [obj {object}]]]
  {past2} [obj {long_object2}]{back2} .
while | {front}[nsubj {subject}] {past} [obj {object}]
  [advcl while [nsubj {subject2}] {was2} {ing2} [obj {object2}]{setting2}] .
two objects | {front}[nsubj {giver}] {gave} [iobj {long_recipient}] [obj {gift}]{time} .
dative | {front}[nsubj {giver}] {gave} [obj {gift}] [obl to {recipient}]{time} .
motion | {front}[nsubj {subject}] {walked} [advmod {manner}] [obl {path}]
  [obl to the {town}]{time} .
state | [nsubj {thing}] was {degree} {adjective}{time} .
""")
}
CHOICES = {
    name: _list(cell)
    for name, cell in _rows("""
wanted | wanted; decided; tried; hoped; refused; learned; forgot; promised
said | said; believed; knew; noticed; remembered; thought; explained
gave | gave; sent; showed; sold; lent; brought; offered
walked | walked; ran; hurried; wandered; strolled
manner | quietly; happily; cheerfully; alone
joined | and; and; [cc as:ADV [fixed well] [fixed as:ADP]]
path | through the {outdoors}; across the bridge; along the river; past the {building}
degree | very; quite; rather; too; not; extremely
""")
}
GIFTS = ("text", "small", "clothing", "container", "fruit")

# ---- Sentences with a pronoun, which stands for x or y

PRONOUNS = {
    "man": ("he", "him", "his", "himself", "was"),
    "woman": ("she", "her", "her", "herself", "was"),
    "people": ("they", "them", "their", "themselves", "were"),
    "thing": ("it", "it", "its", "itself", "was"),
}
ONE = ("man", "woman")
PAIRS = [ONE, ONE[::-1]] * 3 + [pair for one in ONE for pair in ((one, "people"), ("people", one))]
"""Two kinds of people that a pronoun tells apart."""
BECAUSE = "{front}[nsubj=x {x}] {action}{back} [advcl because {tail}] ."
CLOSELY = "{front}[nsubj=x {x}] {action}{gap} {tail}{back} ."
NEUTRAL = Kind([], ["other", "strange"], second=["old"])
"""Adjectives of nouns that are of no kind."""
GAPS = [f"[advmod {adverb}]" for adverb in ("quietly", "again", "briefly")]
PEOPLE = "anyone | anyone | "
"""What a row begins with in a table of people."""


def _puzzles(table: str, start: str = "") -> list[Puzzle]:
    """Read a table of action | if x | if y, with x | y before it unless all rows start alike."""
    rows = _rows("\n".join(start + line for line in table.strip().split("\n")))
    return [Puzzle(_list(x), _list(y), *cells) for x, y, *cells in rows]


PUZZLES = {
    "because of someone": (
        BECAUSE,
        _puzzles(
            """
thanked [obj=y {y}] | {he} felt [xcomp grateful] | {he} had found [obj the ring]
called [obj=y {y}] | {he} needed [obj advice] | {he} knew [obj the answer]
visited [obj=y {y}] | {he} had [obj good news] | [nsubj the storm] had frightened {him}
followed [obj=y {y}] | {he} {was} curious | {he} knew [obj the way]
helped [obj=y {y}] | {he} {was} kind | {he} {was} weak
scolded [obj=y {y}] | {he} {was} angry | {he} had broken [obj the vase]
hired [obj=y {y}] | {he} needed [obj help] | {he} could repair [obj roofs]
avoided [obj=y {y}] | {he} felt [xcomp shy] | {he} asked [obj many questions]
praised [obj=y {y}] | [nsubj the song] had moved {him} | {he} had won [obj the race]
waited [obl=y for {y}] | {he} had [obj a question] | [nsubj the rain] had delayed {him}
apologized [obl=y to {y}] | {he} had forgotten [obj the meeting] | {he} looked [xcomp upset]
laughed [obl=y at {y}] | {he} {was} rude | {he} wore [obj a strange hat]
ran [obl=y to {y}] | [nsubj a dog] had bitten {him} | {he} had called [advmod loudly]
invited [obj=y {y}] | {he} felt [xcomp lonely] | {he} danced [advmod well]
""",
            PEOPLE,
        ),
    ),
    "because of something": (
        BECAUSE,
        _puzzles("""
person | machine | restarted [obj=y {y}] | {he} needed [obj a break] | {he} had stopped
person | vehicle | sold [obj=y {y}] | {he} needed [obj money] | {he} {was} too small
person | opening | painted [obj=y {y}] | {he} liked [obj bright colours] | {he} looked [xcomp dull]
person | container | dropped [obj=y {y}] | [nsubj a noise] had surprised {him} 
  | {he} {was} too big
person | text | closed [obj=y {y}] | {he} felt [xcomp sleepy] | {he} {was} boring
person | machine | moved [obj=y {y}] | {he} had [obj time] | [nsubj the rain] had damaged {him}
person | building | left [obj=y {y}] | {he} {was} hungry | {he} {was} cold
person | container | carried [obj=y {y}] | {he} {was} strong | {he} held [obj food]
person | clothing | bought [obj=y {y}] | [nsubj the wind] had chilled {him}
  | {he} looked [xcomp good]
person | clothing | washed [obj=y {y}] | {he} expected [obj guests] | {he} smelled [obl of smoke]
person | text | studied [obj=y {y}] | {he} {was} curious | {he} {was} difficult
person | animal | fed [obj=y {y}] | {he} loved [obj animals] | {he} looked [xcomp hungry]
person | small | kept [obj=y {y}] | {he} {was} careful | {he} {was} valuable
person | song | listened [obl=y to {y}] | {he} {was} sad | {he} sounded [xcomp familiar]
"""),
    ),
    "too": (
        BECAUSE,
        _puzzles("""
dog; horse; fox; goat | road; river; bridge; street
  | did not cross [obj=y {y}] | {he} {was} too tired | {he} {was} too wide
truck; bus; tractor | bridge; arch; gate
  | did not pass [obl=y under {y}] | {he} {was} too tall | {he} {was} too low
key; coin | lock; slot
  | did not fit [obl=y into {y}] | {he} {was} too thick | {he} {was} too narrow
ball; apple; snowball | window; mirror
  | did not break:VERB [obj=y {y}] | {he} {was} too soft | {he} {was} too thick
ladder; rope | roof; balcony
  | did not reach [obj=y {y}] | {he} {was} too short | {he} {was} too high
table; sofa; piano | door; corridor
  | did not go [obl=y through {y}] | {he} {was} too large | {he} {was} too narrow
goat; horse; dog | wall; fence; ditch
  | did not jump [obl=y over {y}] | {he} {was} too lazy | {he} looked [xcomp dangerous]
knife; razor | rope; branch; cable
  | did not cut [obj=y {y}] | {he} {was} too dull | {he} {was} too thick
ship; ferry | harbour; bay
  | did not enter [obj=y {y}] | {he} {was} too large | {he} {was} too shallow
basket; box; bag | melon; vase; lamp
  | did not hold [obj=y {y}] | {he} {was} too weak | {he} {was} too heavy
lion; bear; wolf | cave; tunnel
  | avoided [obj=y {y}] | {he} {was} too shy | {he} {was} too dark
stove; heater | hall; attic; church
  | did not warm:VERB [obj=y {y}] | {he} {was} too old | {he} {was} too large
horse; donkey | wagon; cart
  | did not pull [obj=y {y}] | {he} {was} too weak | {he} {was} too heavy
bird; owl; eagle | lake; fountain
  | did not drink [obl=y from {y}] | {he} {was} too shy | {he} {was} too dirty
"""),
    ),
    "that": (
        "{front}[nsubj=x {x}] {action}{back} [ccomp that {tail}] .",
        _puzzles(
            """
told [iobj=y {y}] | {he} {was} leaving [advmod soon] | {he} had won [obj the prize]
warned [iobj=y {y}] | {he} {was} losing [obj patience] | {he} {was} in danger
reminded [iobj=y {y}] | {he} had paid [obj the bill] | {he} had promised [obj a song]
assured [iobj=y {y}] | {he} felt [xcomp better] | [nsubj the dog] would like {him}
informed [iobj=y {y}] | {he} {was} moving [obl to {city}] | {he} could stay
convinced [iobj=y {y}] | {he} {was} innocent | {he} deserved [obj a prize]
promised [iobj=y {y}] | {he} would return | {he} would get [obj a present]
""",
            PEOPLE,
        ),
    ),
    "when": (
        "[advcl when [nsubj=x {x}] {action}{back} ,] {tail} .",
        _puzzles(
            """
met [obj=y {y}] | {he} {was} carrying [obj a heavy bag] | {he} {was} walking [obl with a dog]
saw [obj=y {y}] | {he} {was} waiting [obl for the bus] | {he} {was} wearing [obj a red scarf]
called [obj=y {y}] | {he} {was} drinking [obj tea] | {he} {was} making [obj breakfast]
found [obj=y {y}] | {he} began [xcomp to:PART laugh] | {he} {was} sleeping [obl under a tree]
left [obj=y {y}] | {he} took [obj the umbrella] | {he} began [xcomp to:PART cry]
woke [obj=y {y}] | {he} {was} holding [obj a lamp] | {he} looked [xcomp confused]
passed [obj=y {y}] | {he} {was} whistling [obj a melody] | {he} {was} reading [obj a newspaper]
greeted [obj=y {y}] | {he} lifted [obj the hat] | {he} smiled
interrupted [obj=y {y}] | {he} raised [obj a hand] | {he} {was} telling [obj a story]
""",
            PEOPLE,
        ),
    ),
    "owner": (
        "{front}[nsubj=y [nmod:poss=x {x} 's] {y}] {action}{back} [advcl because {tail}] .",
        _puzzles(
            """
called [obj a doctor] | {he} had [obj a fever] | {he} had fallen
bought [obj bread] | {he} {was} hungry | {he} had found [obj money]
opened [obj the window] | {he} felt [xcomp dizzy] | {he} liked [obj fresh air]
waited [obl at the station] | {he} {was} coming [advmod home] | {he} had missed [obj the train]
lit [obj a fire] | {he} {was} cold | {he} wanted [obj tea]
stopped [obj the car] | {he} felt [xcomp sick] | {he} had seen [obj a deer]
sang [obj a song] | [nsubj the thunder] had frightened {him} | {he} {was} happy
sold [obj the house] | {he} had left [obj the country] | {he} needed [obj money]
smiled | {he} had passed [obj the exam] | {he} had [obj good news]
""",
            "anyone | kin | ",
        ),
    ),
    "own": (
        CLOSELY,
        _puzzles(
            """
showed [iobj=y {y}] | [obj {his} sketch] | [obj {his} room]
gave [iobj=y {y}] | [obj {his} umbrella] | [obj {his} ticket]
met [obj=y {y}] | [obl at {his} office] | [obl near {his} house]
drove [obj=y {y}] | [obl to {his} house] | [obl to {his} hotel]
talked [obl=y to {y}] | [obl about {his} childhood] | [obl about {his} health]
visited [obj=y {y}] | [obl with {his} family] | [obl in {his} garden]
photographed [obj=y {y}] | [obl with {his} camera] | [obl in {his} kitchen]
followed [obj=y {y}] | [obl in {his} car] | [obl into {his} shop]
""",
            PEOPLE,
        ),
    ),
    "part": (
        CLOSELY,
        _puzzles("""
parrot; crow | nut; seed; envelope | opened [obj=y {y}] | [obl with {his} beak] |
elephant | log; branch; bucket | lifted [obj=y {y}] | [obl with {his} trunk] |
dog; bear; horse | door; gate; cart | pushed [obj=y {y}] | [obl with {his} nose] |
cat; lion; fox | ball; stone; drum | touched [obj=y {y}] | [obl with {his} paw] |
dog; wolf; fox | bone; ball; shoe | took [obj=y {y}] | [obl to {his} den] |
tree; oak; rose bush | path; street; bench | covered [obj=y {y}] | [obl with {his} leaves] |
museum; gallery | portrait; statue; throne | kept [obj=y {y}] | [obl in {his} cellar] |
person | basket; box; bag | carried [obj=y {y}] | | [obl by {his} handle]
person | lamp; vase; clock; book | put [obj=y {y}] | | [obl on {his} shelf]
person | violin; camera; flute | took [obj=y {y}] | | [obl from {his} case]
person | castle; palace; museum | painted [obj=y {y}] | | [obl from {his} garden]
person | bird; rabbit; parrot | returned [obj=y {y}] | | [obl to {his} cage]
person | horse; donkey; cow | led [obj=y {y}] | | [obl to {his} stable]
person | pot; pan; kettle | lifted [obj=y {y}] | | [obl by {his} handle]
"""),
    ),
    "self": (
        CLOSELY,
        _puzzles("""
anyone | anyone | showed [iobj=y {y}]
  | [obj a picture [nmod={a} of {himself}]] | [obj a portrait [nmod={a} of {himself}]]
anyone | anyone | told [iobj=y {y}]
  | [obj a story [nmod={a} about {himself}]] | [obj the truth [nmod={a} about {himself}]]
anyone | anyone | wrote [iobj=y {y}]
  | [obj a poem [nmod={a} about {himself}]] | [obj a song [nmod={a} about {himself}]]
anyone | anyone | talked [obl=y to {y}]
  | [obl={a} about {himself}] | [obl={a} about {himself}]
anyone | anyone | promised [iobj=y {y}] | [xcomp to:PART control [obj={a} {himself}]] |
anyone | anyone | compared [obj=y {y}] | [obl={a} with {himself}] |
anyone | anyone | asked [iobj=y {y}] | | [xcomp to:PART describe [obj={a} {himself}]]
anyone | anyone | taught [iobj=y {y}] | | [xcomp to:PART defend [obj={a} {himself}]]
person | parrot; dog; cat | taught [iobj=y {y}] | | [xcomp to:PART feed [obj={a} {himself}]]
person | robot; computer | programmed [obj=y {y}] | | [xcomp to:PART repair [obj={a} {himself}]]
cat; fox; rabbit | dog; wolf; eagle | hid | [obj={a} {himself}] [obl=y from {y}] |
"""),
    ),
    "and": (
        "{front}[nsubj=x {x}] {action}{back} [conj , and {tail}] .",
        _puzzles("""
person | text | wrote [obj=y {y}] | {he} {was} proud | {he} {was} ready [obl by noon]
person | cake; pie; bread | baked [obj=y {y}] | {he} {was} happy | {he} {was} delicious
person | plant | planted [obj=y {y}] | {he} felt [xcomp happy] | {he} grew [advmod quickly]
person | vase; cup; plate; mirror | dropped [obj=y {y}] | {he} apologized | {he} broke
person | fish; rabbit; butterfly | caught [obj=y {y}] | {he} smiled | {he} escaped
person | opening | pushed [obj=y {y}] | {he} entered [obj the house] | {he} opened [advmod slowly]
person | ball; stone; bottle | kicked [obj=y {y}] | {he} fell | {he} rolled [obl down the hill]
person | building | painted [obj=y {y}] | {he} earned [obj money] | {he} looked [xcomp new]
person | small | lost [obj=y {y}] | {he} cried | [nsubj a child] found {him}
"""),
    ),
}

# ---- All other words: part of speech | words, with the dictionary form after / where it differs

WORDS = """
DET | the; a; an/a; every; this; these/this; some
ADP | in; on; at; with; for; before; after; under; through; to; near; behind; across; up; by; from;
    of; about; along; past; into; over; down; because:ADP; as:ADP
PART | not; to:PART/to; 's
SCONJ | because; that; while; when
CCONJ | and
PUNCT | .; ,
AUX | was/be; were/be; had/have; did/do; could/can; would/will
PRON | he; him/he; his; himself; she; her/she; herself; it; its; itself; they; them/they; their;
    themselves; who; which; that:PRON/that
ADV | very; quite; rather; too; extremely; again; alone; soon; home; well; as:ADV; early
ADJ | last; red; blue; broad; warm; cheap; simple; long; grateful; good; curious; kind; weak; angry;
    many; upset; rude; lonely; shy; bright; dull; sleepy; strong; difficult; careful; tired; wide;
    low; thick; soft; high; shallow; dirty; better; innocent; confused; dizzy; sick; happy; proud;
    ready; dangerous; cold; big; familiar; other
NOUN | umbrella; uniform; music; train; tail; sea; food; table; pencil; dictionary; guests/guest;
    dinner; storm; brush; festival; workshop; tools/tool; tunnel; bed; hill; river; soap; party;
    street; farm; house; friend; camera; fence; meeting; noon; yesterday; week; night; spring;
    morning; lunch; advice; answer; news; way; vase; help; roofs/roof; questions/question; race;
    question; rain; break; money; colours/colour; noise; time; wind; smoke; animals/animal; prize;
    patience; danger; bill; present; breakfast; lamp; newspaper; hand; story; fever; bread; air;
    fire; deer; thunder; country; exam; sketch; room; ticket; office; hotel; childhood; health;
    family; shop; road; arch; lock; slot; ball; snowball; mirror; ladder; rope; roof; balcony; sofa;
    piano; corridor; wall; ditch; knife; razor; branch; cable; ship; ferry; bay; lion; bear; wolf;
    cave; stove; heater; donkey; wagon; cart; bird; owl; eagle; lake; fountain; parrot; crow; nut;
    seed; envelope; beak; elephant; log; bucket; bottle; trunk; nose; stone; drum; paw; bone; shoe;
    den; path; bench; leaves/leaf; gallery; portrait; statue; throne; handle; shelf; violin; flute;
    case; palace; cage; cow; stable; pot; pan; kettle; picture; truth; robot; pie; cup; plate; fish;
    butterfly; child; floor
VERB | apologized/apologize; asked/ask; assured/assure; avoided/avoid; baked/bake; began/begin;
    believed/believe; belonged/belong; bitten/bite; break:VERB/break; broke/break; broken/break;
    brought/bring; built/build; called/call; caught/catch; chilled/chill; chosen/choose; come;
    coming/come; compared/compare; control; convinced/convince; covered/cover; cried/cry; cross;
    cry; cut; damaged/damage; danced/dance; decided/decide; defend; delayed/delay; describe;
    deserved/deserve; dropped/drop; earned/earn; enter; entered/enter; escaped/escape;
    expected/expect; explained/explain; fallen/fall; fell/fall; felt/feel; fit; flowering/flower;
    followed/follow; forgot/forget; forgotten/forget; found/find; frightened/frighten;
    frozen/freeze; gave/give; get; go; greeted/greet; grew/grow; held/hold; helped/help; hired/hire;
    hold; holding/hold; hoped/hope; hurried/hurry; informed/inform; injured/injure;
    interrupted/interrupt; invited/invite; jump; kept/keep; kicked/kick; knew/know; laugh;
    laughed/laugh; laughing/laugh; learned/learn; leaving/leave; led/lead; left/leave; lent/lend;
    lifted/lift; like; liked/like; listened/listen; lit/light; lived/live; looked/look; losing/lose;
    lost/lose; loved/love; lying/lie; making/make; met/meet; missed/miss; moved/move; moving/move;
    needed/need; noticed/notice; offered/offer; ordered/order; packed/pack; paid/pay; pass;
    passed/pass; peeled/peel; polished/polish; praised/praise; printed/print; programmed/program;
    promised/promise; pull; pushed/push; put; raised/raise; ran/run; reach; recommended/recommend;
    refused/refuse; remembered/remember; reminded/remind; restarted/restart; restored/restore;
    retired/retire; return; returned/return; rolled/roll; ruined/ruin; said/say; saw/see;
    scolded/scold; seen/see; sent/send; showed/show; sleeping/sleep; smelled/smell; smiled/smile;
    smiling/smile; sounded/sound; stay; steaming/steam; stolen/steal; stood/stand; stopped/stop;
    strolled/stroll; studied/study; surprised/surprise; talked/talk; taught/teach; telling/tell;
    thanked/thank; thought/think; told/tell; took/take; touched/touch; tried/try; waited/wait;
    waiting/wait; walked/walk; walking/walk; wandered/wander; wanted/want; warm:VERB/warm;
    warned/warn; whistling/whistle; woke/wake; won/win
"""


def _lexicon() -> dict[str, tuple[str, str]]:
    """List the part of speech and the dictionary form of every word that is not capitalised."""
    entries = [(upos, item) for upos, cell in _rows(WORDS) for item in _list(cell)]
    nouns = [*(noun for kind in KINDS.values() for noun in kind.nouns), *KIN["man"], *KIN["woman"]]
    entries += [
        ("NOUN", f"{noun}/{PLURALS.get(noun, noun)}")
        for noun in " ".join(nouns).split()
        if noun.islower()
    ]
    for kind in KINDS.values():
        entries += [("ADJ", word) for word in (*kind.first, *kind.second)]
    for scene in SCENES:
        entries += [("VERB", f"{form}/{scene.forms['base']}") for form in scene.forms.values()]
        entries += [("ADV", word) for word in scene.adverbs]
    entries += [("ADV", word) for word in CHOICES["manner"]]
    lexicon: dict[str, tuple[str, str]] = {}
    for upos, item in entries:
        form, _, lemma = item.partition("/")
        entry = (upos, lemma or form.partition(":")[0])
        if lexicon.setdefault(form, entry) != entry:
            raise ValueError(f"'{form}' is {lexicon[form]} and {entry}: write one as form:UPOS")
    return lexicon


LEXICON = _lexicon()


def builtin(*, n_sentences: int, seed: int) -> Corpus:
    """Put together the sentences annotated by hand and `n_sentences` from the grammar.

    A passage is one sentence. The first sentences are the same however many follow them. A cluster
    is a template with its main verb; a sentence annotated by hand is a cluster of its own.

    Raises:
        InputError: Fewer than no sentences, or more than the grammar has.
    """
    if n_sentences < 0:
        raise InputError(f"n_sentences={n_sentences}: 0 or more are possible")
    textbook = treebank(str(TEXTBOOK), sentences=1, skip_bad=False)
    passages = [
        replace(passage, cluster=f"textbook:{number}")
        for number, passage in enumerate(textbook.passages)
    ]
    documents = {**textbook.documents}
    generated = generate(seed)
    for number in range(n_sentences):
        passage = next(generated, None)
        if passage is None:
            raise InputError(f"n_sentences={n_sentences}: the grammar found only {number}")
        name = f"grammar-{number % N_DOCUMENTS + 1:02}"
        documents[name] = FACTS
        passages.append(replace(passage, document=name))
    return Corpus("builtin", tuple(passages), documents)


def generate(seed: int) -> Iterator[Passage]:
    """Draw sentences, all different, until no more are found; templates take turns."""
    rng = random.Random(seed)
    seen: set[str] = set()
    turn = 0
    while True:
        families = [*PLAIN, *PUZZLES]
        rng.shuffle(families)
        for family in families:
            for _ in range(PATIENCE):
                notation = _puzzle(rng, family, turn) if family in PUZZLES else _plain(rng, family)
                passage = parse(notation)
                if passage.text not in seen and _natural(passage):
                    break
            else:
                return
            seen.add(passage.text)
            root = next(word for word in passage.words if word.head is None)
            yield replace(passage, cluster=f"{family}:{root.lemma}")
        turn += 1


def _natural(passage: Passage) -> bool:
    """Say whether a sentence repeats no content word or word of ONCE, and has no every with not."""
    said = [word.lemma for word in passage.words]
    once = [word.lemma for word in passage.words if word.upos in CONTENT or word.lemma in ONCE]
    return len(set(once)) == len(once) and not {"every", "not"} <= set(said)


# ---- From slots to sentences in brackets


class Slots(dict[str, str]):
    """Fills the slots of a template: with what is given, or else with a noun of that kind."""

    def __init__(self, rng: random.Random, **given: str) -> None:
        super().__init__(given)
        self.rng = rng

    def __missing__(self, kind: str) -> str:
        return _noun(self.rng, kind)


def _fill(rng: random.Random, template: str, **given: str) -> str:
    return template.format_map(Slots(rng, **given))


def _noun(rng: random.Random, kind: str, fields: Iterable[str] = MODIFIERS) -> str:
    """Draw a noun with up to two modifiers; what is no kind is the noun itself."""
    known = KINDS.get(kind, NEUTRAL)
    options = [
        some for name in fields if (some := getattr(known, name)) and rng.random() < MODIFIERS[name]
    ]
    drawn = [rng.choice(some) for some in options[:2]]
    return " ".join([*drawn, rng.choice(known.nouns or [kind])])


def _noun_phrase(
    rng: random.Random, kind: str, *, after: float = 0.0, named: float = 0.2, definite: bool = False
) -> str:
    """Draw a noun with its determiner, or, with probability `named`, a name.

    Args:
        after: With what probability something follows the noun.
        definite: Whether the determiner is `the`.
    """
    known = KINDS.get(kind, NEUTRAL)
    if known.names and rng.random() < named:
        return rng.choice(known.names)
    determiner = "the" if definite else rng.choice(DETERMINERS[known.determiners[0]])
    phrase = f"{determiner} {_noun(rng, kind)}"
    if known.after and rng.random() < after and "'s" not in determiner:
        phrase += f" {rng.choice(known.after)}"
    return _fill(rng, phrase)


def _maybe(rng: random.Random, probability: float, options: list[str]) -> str:
    """Draw one of the options, with a space before it, or nothing."""
    return " " + rng.choice(options) if rng.random() < probability else ""


def _fronted(adjunct: str) -> str:
    """Move an adjunct to the beginning of a sentence."""
    return f"{adjunct.strip()[:-1]} ,] " if adjunct else ""


def _plain(rng: random.Random, family: str) -> str:
    """Draw a plain sentence."""
    scene = rng.choice(SCENES)
    kind = rng.choice(scene.subject)
    alike = [other for other in SCENES if kind in other.subject and other is not scene]
    slots = _slots(rng, scene, kind)
    slots |= {f"{name}2": value for name, value in _slots(rng, rng.choice(alike), kind).items()}
    slots |= {name: rng.choice(options) for name, options in CHOICES.items()}
    slots |= {
        "giver": _noun_phrase(rng, "person", after=0.4),
        "recipient": _noun_phrase(rng, rng.choice(["person", "people"])),
        "long_recipient": _noun_phrase(rng, rng.choice(["person", "people"]), after=0.3),
        "gift": _noun_phrase(rng, rng.choice(GIFTS)),
    }
    return _fill(rng, _fill(rng, PLAIN[family], **slots))  # the second: slots within slots


def _slots(rng: random.Random, scene: Scene, kind: str) -> dict[str, str]:
    """Draw what a template may say about a scene."""
    if kind == "person" and rng.random() < 0.15:
        kind = "people"
    thing = rng.choice(scene.object)
    was = "were" if kind == "people" else "was"
    setting = _maybe(rng, 0.5, [f"[obl {place}]" for place in scene.settings])
    front = _fronted(_maybe(rng, 0.25, FRONTS))
    time = "" if front else _maybe(rng, 0.4, TIMES)
    adverb, place = rng.choice(scene.adverbs), rng.choice(["before", "after", "", ""])
    before = adverb if place == "before" else ""
    back = (f" [advmod {adverb}]" if place == "after" else "") + setting + time
    return {
        **scene.forms,
        "noun": _noun(rng, kind),
        "subject": _noun_phrase(rng, kind, after=0.4),
        "short_subject": _noun_phrase(rng, kind),
        "object": _noun_phrase(rng, thing),
        "long_object": _noun_phrase(rng, thing, after=0.0 if back else 0.6),
        "theme": _noun_phrase(rng, thing, after=0.4),
        "thing": "the " + _noun(rng, thing, ["second"]),
        "adjective": rng.choice(KINDS[thing].first),
        "who": "which" if kind == "animal" else "who",
        "was": was,
        "verb": rng.choice(TENSES).format(was=was, adverb=before, **scene.forms),
        "adverb": before,
        "front": front,
        "setting": setting,
        "time": time,
        "back": back,
    }


def _puzzle(rng: random.Random, family: str, turn: int) -> str:
    """Draw a sentence whose pronoun stands for x and for y by turns."""
    template, rows = PUZZLES[family]
    of_y = (turn + list(PUZZLES).index(family)) % 2
    row = rng.choice([row for row in rows if (row.if_x, row.if_y)[of_y]])
    (x, y), kinds = _candidates(rng, row)
    he, him, his, himself, was = PRONOUNS[kinds[of_y]]
    a = "xy"[of_y]
    slots = {
        "x": x,
        "y": y,
        "a": a,
        "he": f"[nsubj={a} {he}]",
        "him": f"[obj={a} {him}]",
        "his": f"[nmod:poss={a} {his}]",
        "himself": himself,
        "was": was,
    }
    front = _fronted(_maybe(rng, 0.35, FRONTS)) if "{front}" in template else ""
    times = [] if front else TIMES + OCCASIONS
    places = PLACES if row.y == ["anyone"] and template != CLOSELY else []
    tail = (row.if_x, row.if_y)[of_y]
    gap = (
        _maybe(rng, 0.5, GAPS if front else GAPS + TIMES)
        if template == CLOSELY and tail.startswith("[obl")
        else ""
    )
    back = _maybe(rng, 0.4, times + places) if times + places and not gap else ""
    parts = {"action": row.action, "tail": tail, "back": back}
    filled = {name: _fill(rng, part, **slots) for name, part in parts.items()}
    return template.format(front=front, gap=gap, x=x, y=y, **filled)


def _candidates(rng: random.Random, row: Puzzle) -> tuple[tuple[str, str], tuple[str, str]]:
    """Draw the two candidates and the kinds of pronouns that stand for them."""
    if row.y == ["kin"]:
        kind, other = rng.choice([ONE, ONE[::-1]])
        return (_noun_phrase(rng, kind, definite=True), rng.choice(KIN[kind])), (kind, other)
    if row.x == ["anyone"]:
        x, y = rng.choice(PAIRS)
        phrases = (
            _noun_phrase(rng, x, after=0.25, definite=True),
            _noun_phrase(rng, y, definite=True),
        )
        return phrases, (x, y)
    x, y = rng.choice(row.x), rng.choice(row.y)
    kind = "thing"
    if x == "person":
        kind = rng.choice(ONE)
        x = rng.choice([x, kind])
    named = 0.0 if x == "person" else 0.2  # a name tells whether it is a man or a woman
    x = _noun_phrase(rng, x, named=named, definite=True)
    return (x, _noun_phrase(rng, y, definite=True)), (kind, "thing")


# ---- From brackets to trees


@dataclass
class Phrase:
    """A bracket that is being read."""

    relation: str
    entity: str | None
    start: int
    own: list[int] = field(default_factory=list)
    """Its words outside inner brackets."""
    inner: list["Phrase"] = field(default_factory=list)
    head: int = -1
    end: int = -1


Links = dict[int, tuple[int | None, str]]
"""The head and the relation of each word."""


def parse(notation: str) -> Passage:
    """Read a sentence in brackets, as the module describes them.

    Raises:
        KeyError: A word that is not in the lexicon; capitalised ones are proper names.
    """
    words: list[Word] = []
    links: Links = {}
    mentions: list[Mention] = []
    text = ""
    opened = [Phrase("root", None, 0)]
    for token in BRACKET.finditer(re.sub(r"(?<!\S)a (?=[aeiouAEIO])", "an ", notation) + "]"):
        if token["relation"]:
            opened.append(Phrase(token["relation"], token["entity"], len(words)))
        elif token["closed"]:
            phrase = opened.pop()
            phrase.end = len(words)
            phrase.head = [i for i in phrase.own if words[i].upos not in {"PUNCT", "PART"}][-1]
            links |= _links(words, phrase)
            if opened:
                opened[-1].inner.append(phrase)
            mentions += _mentions(words, phrase, links)
        else:
            form = token[0].partition(":")[0]
            gap = " " if text and form not in {".", ",", "'s"} else ""
            text += gap + (form if words else form[0].upper() + form[1:])
            opened[-1].own.append(len(words))
            name = token[0] not in LEXICON and form[0].isupper()
            upos, lemma = ("PROPN", form) if name else LEXICON[token[0]]
            words.append(Word(text[-len(form) :], len(text) - len(form), len(text), 0, upos, lemma))
    read = tuple(_linked(word, *links.get(i, (None, "root"))) for i, word in enumerate(words))
    mentions.sort(key=lambda mention: (mention.first, -mention.last))
    return Passage(text, read, document="", cluster="", mentions=tuple(mentions))


def _links(words: list[Word], phrase: Phrase) -> Links:
    """Link a phrase's words and inner phrases to its head."""
    links: Links = {inner.head: (phrase.head, inner.relation) for inner in phrase.inner}
    passive = any(inner.relation == "nsubj:pass" for inner in phrase.inner)
    for i in phrase.own:
        word = words[i]
        if i == phrase.head:
            continue
        relation = ATTACHED[word.form if word.upos == "PART" else word.upos]
        if word.lemma == "be" and words[phrase.head].upos != "VERB":
            relation = "cop"
        elif word.lemma == "be" and passive:
            relation = "aux:pass"
        links[i] = (phrase.head, relation)
    return links


def _linked(word: Word, head: int | None, relation: str) -> Word:
    """Link a word, with what follows from its relation."""
    word = replace(word, head=head, deprel=relation)
    if word.upos == "AUX" and relation not in {"aux", "aux:pass", "cop"}:
        return replace(word, upos="VERB")  # "had a question"
    if word.upos != "PRON":
        return word
    if relation == "nmod:poss":
        return replace(word, pronoun="possessive", lemma=word.form)
    if word.form in {"who", "which", "that"}:
        return replace(word, pronoun="other")
    reflexive = word.form.endswith(("self", "selves"))
    return replace(word, pronoun="reflexive" if reflexive else "personal")


def _mentions(words: list[Word], phrase: Phrase, links: Links) -> list[Mention]:
    """List the mention that a phrase is, if any; prepositions, 's and conjuncts are outside."""
    named = words[phrase.head].upos == "PROPN" and phrase.relation not in {"flat", "obl:unmarked"}
    if not (named or phrase.entity):
        return []
    outside = {i for i in phrase.own if i in links and links[i][1] in {"case", "cc", "punct"}}
    for inner in phrase.inner:
        if inner.relation in {"case", "cc", "conj"}:
            outside |= {*range(inner.start, inner.end)}
    span = [i for i in range(phrase.start, phrase.end) if i not in outside]
    return [Mention(phrase.entity or words[phrase.head].form, span[0], span[-1])]
