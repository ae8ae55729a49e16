"""Relations: a verb must report several things at once, and one head has one distribution.

The textbook's "delivered": who, what, where, when? A sentence holds one noun in each of many cases,
in random order, and some verbs:

    nurse-k07 letter-k31 … ward-k12     delivered-v3 … took-v9

Each verb governs a list of cases of its own (fixed by the language's seed): its subject, object,
place and time. At the verb the model must name the noun that stands in each of them, in order. One
head gives one average of the nouns, too little for several at once; several heads share the work,
as long as each is wide enough to tell the verbs and the cases apart.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int

from interp.errors import InputError
from interp.models.text import WORD_SPECIALS, word_tokenizer
from interp.training.lesson import NO_LABEL, Examples, Lesson
from interp.transformer import Kind, Transformer

QUESTIONS = ("subject", "object", "place", "time")


@dataclass(frozen=True)
class Relations(Lesson):
    """Nouns in cases, and verbs that ask for them."""

    kind: ClassVar[Kind] = "encoder"
    n_cases: int
    n_nouns: int
    n_verbs: int
    n_asked: int
    """Cases that a verb governs."""
    verbs_per_sentence: int
    language_seed: int

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            InputError: A verb governs more cases than there are, or a count is 0.
        """
        counts = {key: value for key, value in asdict(self).items() if key != "language_seed"}
        for key, value in counts.items():
            if value < 1:
                raise InputError(f"{key}={value}: at least 1")
        if self.n_asked > self.n_cases:
            raise InputError(f"a verb cannot govern {self.n_asked} of {self.n_cases} cases")

    @property
    def n_slots(self) -> int:  # type: ignore[override]
        """A slot for each case that a verb governs."""
        return self.n_asked

    @cached_property
    def tokenizer(self) -> Any:
        """Every noun in every case (n0-k0, n1-k0, …), then the verbs."""
        nouns = [f"n{n}-k{case}" for case in range(self.n_cases) for n in range(self.n_nouns)]
        return word_tokenizer([*nouns, *(f"v{verb}" for verb in range(self.n_verbs))], "none")

    @property
    def n_ctx(self) -> int:
        """A noun in each case, and the verbs."""
        return self.n_cases + self.verbs_per_sentence

    @property
    def sizes(self) -> dict[str, Any]:
        """A class for each noun, in each slot."""
        return super().sizes | {"d_vocab_out": self.n_asked * self.n_nouns}

    def untrained(self, *, seed: int, **sizes: Any) -> Transformer:
        """Draw the model; a noun in a case starts as the sum of a vector for each, as if inflected.

        From there on every form learns for itself. Without this start all 16 forms of a case would
        have to be learned as that case one by one, which takes many times as long.
        """
        model = super().untrained(seed=seed, **sizes)
        generator = torch.Generator().manual_seed(seed)
        case, noun = (
            torch.randn(n, model.config.d_model, generator=generator)
            for n in (self.n_cases, self.n_nouns)
        )
        first = len(WORD_SPECIALS)
        with torch.no_grad():
            forms = (case[:, None] + noun).flatten(0, 1)
            model.embed.weight[first : first + len(forms)] = forms
        return model

    @cached_property
    def governed(self) -> Int[np.ndarray, "verb slot"]:
        """The cases that each verb governs, in the order in which it asks."""
        rng = np.random.default_rng(self.language_seed)
        order = rng.random((self.n_verbs, self.n_cases)).argsort(axis=1)
        return order[:, : self.n_asked]

    def draw(self, rng: np.random.Generator, n: int, split: str) -> Examples:
        """Draw sentences; verbs may come twice."""
        noun = rng.integers(self.n_nouns, size=(n, self.n_cases))
        verb = rng.integers(self.n_verbs, size=(n, self.verbs_per_sentence))
        order = rng.random((n, self.n_cases)).argsort(axis=1)  # the case at each place
        items = order * self.n_nouns + np.take_along_axis(noun, order, axis=1)
        verbs = verb + self.n_cases * self.n_nouns
        tokens = torch.from_numpy(np.concatenate([items, verbs], axis=1) + len(WORD_SPECIALS))
        labels = torch.full((*tokens.shape, self.n_asked), NO_LABEL)
        row = np.arange(n)[:, None, None]
        labels[:, self.n_cases :] = torch.from_numpy(noun[row, self.governed[verb]])
        return Examples(tokens, torch.ones_like(tokens, dtype=torch.bool), labels)
