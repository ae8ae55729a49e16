"""One sentence: who did what, where and when, and which heads look from one to the other?

Every annotated relation between two words is a question. An encoder's head is asked at the word
that the sentence is about (the verb, the noun, the pronoun); in a causal model words see only what
is to their left, so the later of the two is asked where it looks. Without annotation every word is
asked where it looks, among the words that it sees.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from interp.corpora.corpus import Passage
from interp.models.head_model import Batch, HeadModel
from interp.patterns import observe, words
from interp.patterns.questions import antecedents, core, relation

ASKED = {
    "nsubj": "who",
    "obj": "what",
    "iobj": "to whom",
    "obl": "where",
    "obl:unmarked": "when",
    "advmod": "how",
    "amod": "which",
    "nmod:poss": "whose",
    "nmod": "of what",
}
"""What each relation asks of the word above."""
ANTECEDENT = "refers to"
ANYTHING = "looks at"


@dataclass(frozen=True)
class Pair:
    """A word, what is asked about it, and the words that are right."""

    question: str
    word: int
    answers: tuple[int, ...]


def pairs(passage: Passage) -> list[Pair]:
    """List what an annotated passage asks; without annotation, where each word looks."""
    found = []
    for number, word in enumerate(passage.words):
        name = relation(word.deprel, tuple(ASKED))
        if name is not None and word.head is not None:
            found.append(Pair(ASKED[name], word.head, (number,)))
    for mention in passage.mentions:
        if mention.first == mention.last and passage.words[mention.first].pronoun:
            cores = [core(passage.words, other) for other in antecedents(passage, mention)]
            if cores:
                answers = tuple(sorted(set.union(*cores)))
                found.append(Pair(ANTECEDENT, mention.first, answers))
    if not found:
        n = range(len(passage.words))
        found = [Pair(ANYTHING, word, (other,)) for word in n for other in n if other != word]
    return sorted(found, key=lambda pair: (pair.word, pair.answers))


def look(model: HeadModel, passage: Passage) -> pd.DataFrame:
    """Say how much every head attends, for each question, from the one word to the other.

    Returns:
        One line a question and head: `number, question, about, answer` (what is asked, of which
        word, and the annotated answer), `word, looks_at` (the word that is asked and where it
        should look), `site, layer, head, attention` (the share on all pieces of `looks_at`; Clark
        et al. 2019) and `most` (whether no other word gets more).
    """
    batch = _batch(model, passage)
    with torch.inference_mode():
        patterns = model.patterns(batch, [site.name for site in model.sites])
    lines = []
    for site in model.sites:
        if site.module == "cross_attn":
            continue
        owners = words.pieces(batch.queries(site), [passage.words])
        allowed = words.others(owners, owners, causal=site.causal)
        for layer in range(site.n_layers):
            attention = words.between_words(patterns[site.name, layer].float(), owners, owners)
            best = words.most_attended(attention, allowed)[0]
            for number, pair in enumerate(pairs(passage)):
                last = max(pair.answers)
                turned = site.causal and last > pair.word
                if turned and pair.question == ANYTHING:
                    continue  # (the later word is asked about the earlier one anyway)
                word, answers = (last, (pair.word,)) if turned else (pair.word, pair.answers)
                share = attention[0, :, word, list(answers)].sum(-1)
                for head in range(site.n_heads):
                    lines.append(
                        {
                            "number": number,
                            "question": pair.question,
                            "about": passage.words[pair.word].form,
                            "answer": _phrase(passage, pair.answers),
                            "word": passage.words[word].form,
                            "looks_at": _phrase(passage, answers),
                            "site": site.name,
                            "layer": layer,
                            "head": head,
                            "attention": float(share[head]),
                            "most": int(best[head, word]) in answers,
                        }
                    )
    return pd.DataFrame(lines)


def _batch(model: HeadModel, passage: Passage) -> Batch:
    text, target = observe.encoded(model, passage.text)
    return model.batch([text], [] if target is None else [target])


def _phrase(passage: Passage, numbers: tuple[int, ...]) -> str:
    return " ".join(passage.words[number].form for number in numbers)


def between(model: HeadModel, passage: Passage, site: str, layer: int, head: int) -> pd.DataFrame:
    """Lay out one head's attention between the words of a passage, for a figure.

    Returns:
        One line a pair of words: `site, layer, head, query, key` (numbers of words), `query_word,
        key_word, attention`.
    """
    batch = _batch(model, passage)
    with torch.inference_mode():
        pattern = model.patterns(batch, [site])[site, layer][:, [head]].float()
    owners = words.pieces(batch.queries(model.site[site]), [passage.words])
    attention = words.between_words(pattern, owners, owners)[0, 0].cpu().numpy()
    forms = [word.form for word in passage.words]
    query, key = np.indices(attention.shape).reshape(2, -1)
    return pd.DataFrame({"query": query, "key": key, "attention": attention.ravel()}).assign(
        **{"site": site, "layer": layer, "head": head},
        query_word=[forms[n] for n in query],
        key_word=[forms[n] for n in key],
    )
