"""Sentence triplets for encoders: an anchor, a paraphrase, and a sentence of another meaning.

What the set measures. A sentence encoder should place a sentence nearer to its paraphrase than to a
sentence that means something else. With mean pooling over the real tokens, the metric is
cos(anchor, near) - cos(anchor, far); above zero is right. The strata say what makes ``far`` far. In
the last three, ``near`` and ``far`` share words with the anchor. By word overlap (Jaccard) alone
``near`` wins in two thirds of the ``word_sense`` and ``negation`` rows and ties in ``role_swap``:

* ``topic``: ``far`` is about something else (it is the paraphrase of another domain's anchor);
* ``word_sense``: ``near`` and ``far`` both repeat a word of the anchor that has several senses,
  ``near`` in the same sense and ``far`` in another ("The match ended in a draw.", "Neither team won
  the match.", "He lit the candle with a match.");
* ``negation``: ``near`` restates the anchor and ``far`` denies it; the two differ in polarity only
  ("She got better with the medicine.", "She did not get better with the medicine.");
* ``role_swap``: ``near`` restates who did what to whom and ``far`` swaps the two, in the same words
  ("The dog chased the cat.", "The dog ran after the cat.", "The cat ran after the dog.").

Paraphrases that change active into passive are left out on purpose: all-MiniLM-L6-v2 places "The
cat chased the dog." nearer to "The dog chased the cat." than the passive of the latter, in all 32
such triplets made from our table, so an ablation would start from a metric with the wrong sign.

Balance. 32 everyday domains (the clusters) times four strata: 128 rows, 32 in each stratum, one of
each stratum in each cluster. Rows come in four rounds of 32; a round visits every domain once, with
the strata rotating, so any four rows from a multiple of four on have one row of each stratum. Half
of the ``negation`` anchors are affirmative and half negative, in turn, so that a "not" is as often
near as far.

Sources. Triplets of this form are how sentence encoders are trained and evaluated (Reimers and
Gurevych 2019, "Sentence-BERT"); keeping word overlap uninformative follows Zhang, Baldridge and He
(2019, "PAWS"), and the negation stratum Ettinger (2020, "What BERT is not"). All sentences are our
own; none is taken from these data sets.
"""

from typing import NamedTuple

import pandas as pd


class _Triplet(NamedTuple):
    anchor: str
    near: str
    far: str


class _Swap(NamedTuple):
    """Who did what to whom, with the verb in two wordings."""

    agent: str
    verb: str
    paraphrase: str
    patient: str


class _Domain(NamedTuple):
    """One everyday domain with its material for each stratum."""

    name: str
    topic: tuple[str, str]  # a sentence and its paraphrase
    word_sense: _Triplet
    negation: _Triplet
    role_swap: _Swap


_DOMAINS = (
    _Domain(
        "cooking",
        ("She baked a loaf of bread this morning.", "This morning she made bread in the oven."),
        _Triplet(
            "The roast needs an hour in the oven.",
            "Cook the roast for sixty minutes.",
            "The comedian got a roast from his friends.",
        ),
        _Triplet(
            "The soup is too salty.",
            "There is too much salt in the soup.",
            "There is not too much salt in the soup.",
        ),
        _Swap("cook", "thanked", "said thanks to", "waiter"),
    ),
    _Domain(
        "weather",
        ("Heavy rain fell all night.", "It poured without a break until dawn."),
        _Triplet(
            "A cold front arrived from the north.",
            "A front of chilly air came in.",
            "There is a garden in front of the house.",
        ),
        _Triplet(
            "It will not snow tomorrow.",
            "No snow is expected tomorrow.",
            "Snow is expected tomorrow.",
        ),
        _Swap("storm", "followed", "came after", "heat"),
    ),
    _Domain(
        "travel",
        ("We flew to Spain for our holiday.", "Our vacation began with a flight to Spain."),
        _Triplet(
            "We packed one trunk for the voyage.",
            "A single trunk held all our clothes for the trip.",
            "The elephant lifted its trunk.",
        ),
        _Triplet(
            "Our luggage arrived on time.",
            "The bags were here when they were due.",
            "The bags were not here when they were due.",
        ),
        _Swap("guide", "followed", "walked behind", "tourist"),
    ),
    _Domain(
        "money",
        ("He saves a part of his wages every month.", "Each month he puts some of his pay aside."),
        _Triplet(
            "The bank raised its interest rates.",
            "Loans from the bank are now more expensive.",
            "We sat on the bank of the river.",
        ),
        _Triplet(
            "She did not pay the bill.",
            "She never settled the bill.",
            "She has settled the bill.",
        ),
        _Swap("buyer", "paid", "gave money to", "seller"),
    ),
    _Domain(
        "health",
        ("The patient has a high fever.", "The sick man's temperature is far above normal."),
        _Triplet(
            "The nurse gave him a shot in the arm.",
            "He got a flu shot from the nurse.",
            "The striker scored with a long shot.",
        ),
        _Triplet(
            "The medicine helped her.",
            "She got better with the medicine.",
            "She did not get better with the medicine.",
        ),
        _Swap("doctor", "visited", "came to see", "nurse"),
    ),
    _Domain(
        "school",
        ("The pupils are studying for their exam.", "The students prepare for a test."),
        _Triplet(
            "The teacher marks our papers on Sunday.",
            "Our papers are graded at the weekend.",
            "The papers reported on the election.",
        ),
        _Triplet(
            "No student passed the test.",
            "None of the class got through the exam.",
            "All of the class got through the exam.",
        ),
        _Swap("teacher", "praised", "said good things about", "student"),
    ),
    _Domain(
        "music",
        ("The pianist played a slow waltz.", "A gentle waltz sounded from the piano."),
        _Triplet(
            "She sings in a low key.",
            "The key of her song is low.",
            "The key opens the front door.",
        ),
        _Triplet(
            "He can play the violin.",
            "He knows how to play the violin.",
            "He does not know how to play the violin.",
        ),
        _Swap("singer", "accompanied", "played along with", "drummer"),
    ),
    _Domain(
        "sport",
        ("The home team won the match in overtime.", "The hosts took the game after extra time."),
        _Triplet(
            "The match ended in a draw.",
            "Neither team won the match.",
            "He lit the candle with a match.",
        ),
        _Triplet(
            "The runner did not finish the race.",
            "The runner failed to reach the finish line.",
            "The runner reached the finish line.",
        ),
        _Swap("coach", "called", "rang up", "player"),
    ),
    _Domain(
        "pets",
        ("The puppy is asleep on the sofa.", "A young dog is napping on the couch."),
        _Triplet(
            "The dog's bark was loud.",
            "We heard the bark of the puppy.",
            "The bark of the oak is rough.",
        ),
        _Triplet(
            "The cat likes to be touched.",
            "The cat enjoys being stroked.",
            "The cat does not enjoy being stroked.",
        ),
        _Swap("dog", "chased", "ran after", "cat"),
    ),
    _Domain(
        "home",
        ("They painted the kitchen walls yellow.", "The walls of the kitchen got a yellow coat."),
        _Triplet(
            "She changed the bulb in the bedroom lamp.",
            "The lamp needed a new bulb.",
            "She planted a tulip bulb.",
        ),
        _Triplet(
            "The door was not locked.",
            "Nobody had locked the door.",
            "Somebody had locked the door.",
        ),
        _Swap("painter", "helped", "assisted", "plumber"),
    ),
    _Domain(
        "office",
        ("The meeting was moved to Friday.", "They rescheduled the meeting for Friday."),
        _Triplet(
            "The staff met in the board room.",
            "The company's board held a meeting.",
            "He cut the board with a saw.",
        ),
        _Triplet(
            "She accepted the offer.",
            "She said yes to the offer.",
            "She did not say yes to the offer.",
        ),
        _Swap("manager", "called", "phoned", "client"),
    ),
    _Domain(
        "garden",
        ("The roses bloom in early summer.", "The rose bushes flower when summer begins."),
        _Triplet(
            "He watered the plant on the balcony.",
            "The plant in the pot got some water.",
            "The plant makes car engines.",
        ),
        _Triplet(
            "The apples are not ripe yet.",
            "The apples are not ready to be picked.",
            "The apples are ready to be picked.",
        ),
        _Swap("bee", "followed", "flew behind", "butterfly"),
    ),
    _Domain(
        "sea",
        ("The ship sank off the coast.", "A vessel went down near the shore."),
        _Triplet(
            "The waves rocked the boat.",
            "The boat moved up and down on the waves.",
            "The radio waves carry the signal.",
        ),
        _Triplet(
            "The water is deep here.",
            "The water goes a long way down here.",
            "The water does not go a long way down here.",
        ),
        _Swap("shark", "followed", "swam behind", "diver"),
    ),
    _Domain(
        "cinema",
        ("The movie made the audience cry.", "The film moved its viewers to tears."),
        _Triplet(
            "The star of the film signed autographs.",
            "The famous actress was the star of the movie.",
            "The star is many light years away.",
        ),
        _Triplet(
            "I did not enjoy the film.",
            "I did not have a good time at the film.",
            "I had a good time at the film.",
        ),
        _Swap("actor", "praised", "spoke well of", "director"),
    ),
    _Domain(
        "books",
        (
            "She is writing a novel about her village.",
            "Her village is the subject of her new book.",
        ),
        _Triplet(
            "This volume contains all her poems.",
            "Her collected poems are in one volume.",
            "Turn down the volume of the radio.",
        ),
        _Triplet(
            "The novel has a happy ending.",
            "The novel ends well for everyone.",
            "The novel does not end well for everyone.",
        ),
        _Swap("author", "invited", "extended an invitation to", "editor"),
    ),
    _Domain(
        "city",
        ("The streets are crowded at noon.", "At midday the roads are full of people."),
        _Triplet(
            "We parked two blocks from the station.",
            "The station is two blocks away.",
            "The child plays with wooden blocks.",
        ),
        _Triplet(
            "The bridge is not open to cars.",
            "Cars may not drive across the bridge.",
            "Cars may drive across the bridge.",
        ),
        _Swap("mayor", "invited", "sent an invitation to", "reporter"),
    ),
    _Domain(
        "science",
        ("The chemist mixed two liquids.", "Two fluids were combined by a chemist."),
        _Triplet(
            "The cell divided under the microscope.",
            "The biologist saw the cell become two.",
            "The prisoner sat in his cell.",
        ),
        _Triplet(
            "The experiment worked.",
            "The experiment was a success.",
            "The experiment was not a success.",
        ),
        _Swap("chemist", "helped", "assisted", "student"),
    ),
    _Domain(
        "art",
        ("The painting hangs in a museum.", "A gallery has the picture on its wall."),
        _Triplet(
            "The artist made a bust of the queen.",
            "The bust shows the queen's head in marble.",
            "The business went bust.",
        ),
        _Triplet(
            "The portrait was not sold.",
            "Nobody bought the portrait.",
            "Somebody bought the portrait.",
        ),
        _Swap("artist", "visited", "went to see", "collector"),
    ),
    _Domain(
        "family",
        ("My sister got married in May.", "My sister's wedding was in May."),
        _Triplet(
            "The twins had a birthday party.",
            "Friends came to the party for the twins.",
            "The party lost the election.",
        ),
        _Triplet(
            "My uncle has children.",
            "My uncle is a father.",
            "My uncle is not a father.",
        ),
        _Swap("aunt", "invited", "sent an invitation to", "uncle"),
    ),
    _Domain(
        "clothes",
        ("He bought a warm coat for the winter.", "He got himself a thick winter jacket."),
        _Triplet(
            "He wore a tie with his suit.",
            "His suit was matched with a silk tie.",
            "The game ended in a tie.",
        ),
        _Triplet(
            "The shirt is not clean.",
            "The shirt has not been washed.",
            "The shirt has been washed.",
        ),
        _Swap("tailor", "called", "phoned", "customer"),
    ),
    _Domain(
        "cars",
        ("The car broke down on the motorway.", "Our vehicle failed on the highway."),
        _Triplet(
            "The mechanic replaced a tire and the brakes.",
            "The car got a new tire.",
            "Long walks tire the old man.",
        ),
        _Triplet(
            "The engine starts at once.",
            "The engine comes on right away.",
            "The engine does not come on right away.",
        ),
        _Swap("truck", "followed", "drove behind", "taxi"),
    ),
    _Domain(
        "phones",
        ("My phone's battery is empty.", "There is no power left in my mobile."),
        _Triplet(
            "I will give you a ring tonight.",
            "Expect a ring from me on the phone this evening.",
            "He gave her a gold ring.",
        ),
        _Triplet(
            "He did not answer the phone.",
            "He did not take the call.",
            "He took the call.",
        ),
        _Swap("lawyer", "called", "rang up", "witness"),
    ),
    _Domain(
        "trains",
        ("The train leaves in five minutes.", "The train is going to depart very soon."),
        _Triplet(
            "The coach was full of passengers.",
            "Every seat in the coach was taken.",
            "The coach trains the football team.",
        ),
        _Triplet(
            "The train was late.",
            "The train had a delay.",
            "The train did not have a delay.",
        ),
        _Swap("guard", "helped", "assisted", "passenger"),
    ),
    _Domain(
        "farming",
        ("The farmer harvested the wheat.", "The grain was brought in by the farmer."),
        _Triplet(
            "The cows graze in the field.",
            "The cattle eat grass on the field.",
            "Physics is a difficult field.",
        ),
        _Triplet(
            "The harvest was not good.",
            "The farm did not bring in many crops.",
            "The farm brought in many crops.",
        ),
        _Swap("farmer", "helped", "gave a hand to", "neighbor"),
    ),
    _Domain(
        "law",
        ("The judge sent the thief to prison.", "The robber was given a jail sentence."),
        _Triplet(
            "The court heard the witness.",
            "A witness spoke before the court.",
            "The tennis court was wet.",
        ),
        _Triplet(
            "The witness told the truth.",
            "What the witness said was true.",
            "What the witness said was not true.",
        ),
        _Swap("lawyer", "accused", "brought charges against", "judge"),
    ),
    _Domain(
        "building",
        ("Workers are putting up a new tower.", "A new tall building is under construction."),
        _Triplet(
            "The crane lifted the steel beams.",
            "The beams were raised by a tall crane.",
            "The crane caught a fish in the marsh.",
        ),
        _Triplet(
            "The house is not finished.",
            "The work on the house is not done.",
            "The work on the house is done.",
        ),
        _Swap("builder", "paid", "gave money to", "owner"),
    ),
    _Domain(
        "space",
        ("The rocket carried a probe to Mars.", "A spacecraft was launched to the red planet."),
        _Triplet(
            "The shuttle took off from the launch pad.",
            "The shuttle was launched into space.",
            "A shuttle bus runs to the hotel.",
        ),
        _Triplet(
            "The astronauts returned safely.",
            "The crew came home from space unharmed.",
            "The crew did not come home from space unharmed.",
        ),
        _Swap("pilot", "trained", "taught", "astronaut"),
    ),
    _Domain(
        "birds",
        ("The eagle built its nest on a cliff.", "An eagle made its home high on the rocks."),
        _Triplet(
            "The duck swam across the pond.",
            "On the pond a duck paddled around.",
            "Tall people must duck under the beam.",
        ),
        _Triplet(
            "This bird cannot fly.",
            "This bird is not able to fly.",
            "This bird is able to fly.",
        ),
        _Swap("hawk", "chased", "flew after", "pigeon"),
    ),
    _Domain(
        "sleep",
        ("I woke up very early today.", "I was out of bed before sunrise this morning."),
        _Triplet(
            "He took a nap on the sofa.",
            "A short nap on the couch did him good.",
            "The velvet has a soft nap.",
        ),
        _Triplet(
            "The baby is awake.",
            "The baby has opened her eyes.",
            "The baby has not opened her eyes.",
        ),
        _Swap("mother", "kissed", "gave a kiss to", "boy"),
    ),
    _Domain(
        "news",
        ("The paper reported on the election.", "There was an article about the vote."),
        _Triplet(
            "The press covered the summit.",
            "The summit was in every newspaper.",
            "The hikers reached the summit at dawn.",
        ),
        _Triplet(
            "The story is not true.",
            "The story never happened.",
            "The story really happened.",
        ),
        _Swap("reporter", "accused", "made claims against", "minister"),
    ),
    _Domain(
        "coffee",
        ("He drinks two cups of coffee a day.", "His daily amount of coffee is two cups."),
        _Triplet(
            "Freshly ground beans make the best coffee.",
            "Coffee tastes best when the beans were just ground.",
            "She lay down on the ground.",
        ),
        _Triplet(
            "She takes sugar in her coffee.",
            "She drinks her coffee with sugar.",
            "She does not drink her coffee with sugar.",
        ),
        _Swap("waiter", "thanked", "said thanks to", "guest"),
    ),
    _Domain(
        "mountains",
        ("The climbers reached the peak.", "The mountaineers got to the top of the mountain."),
        _Triplet(
            "The trail led to a narrow pass.",
            "We crossed the mountains by a high pass.",
            "Show your bus pass to the driver.",
        ),
        _Triplet(
            "The hut is not easy to reach.",
            "Hikers cannot get to the hut with ease.",
            "Hikers can get to the hut with ease.",
        ),
        _Swap("hiker", "helped", "gave a hand to", "climber"),
    ),
)

_STRATA = ("topic", "role_swap", "word_sense", "negation")


def _role_swap(swap: _Swap) -> _Triplet:
    """Who did it to whom, the same in other words, and those words with the roles swapped."""
    return _Triplet(
        f"The {swap.agent} {swap.verb} the {swap.patient}.",
        f"The {swap.agent} {swap.paraphrase} the {swap.patient}.",
        f"The {swap.patient} {swap.paraphrase} the {swap.agent}.",
    )


def _triplet(place: int, stratum: str) -> _Triplet:
    """The triplet of the domain at a place in the table for a stratum."""
    domain = _DOMAINS[place]
    if stratum == "topic":
        elsewhere = _DOMAINS[(place + len(_DOMAINS) // 2) % len(_DOMAINS)]
        return _Triplet(*domain.topic, elsewhere.topic[1])
    if stratum == "role_swap":
        return _role_swap(domain.role_swap)
    return domain.word_sense if stratum == "word_sense" else domain.negation


def sentences() -> pd.DataFrame:
    """Return the triplets, in an order in which every prefix is about balanced over the strata.

    Returns:
        128 rows with the columns ``anchor``, ``near``, ``far``, ``cluster`` (the domain) and
        ``stratum``.
    """
    rows = []
    for turn in range(len(_STRATA)):
        for place, domain in enumerate(_DOMAINS):
            stratum = _STRATA[(place + place // len(_STRATA) + turn) % len(_STRATA)]
            rows.append(
                {
                    **_triplet(place, stratum)._asdict(),
                    "cluster": domain.name,
                    "stratum": stratum,
                }
            )
    return pd.DataFrame(rows)
