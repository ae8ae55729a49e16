"""What heads attend to: from patterns to observations, scores and roles.

    words         tokens and words; attention between words
    maps          places, spread, special tokens: what a map shows without reading the text
    kinds         what a map looks like at a glance
    questions     grammar, names, pronouns: where a word should look, and what simple rules say
    trees         whole trees
    repeats       random tokens, said twice
    alignment     cross-attention
    observe       all of these, on all heads, example by example
    scores        means, margins over rules, intervals
    classify      roles
    sentence      one sentence, question by question

What is measured is defined in the first seven, and nowhere else.
"""
