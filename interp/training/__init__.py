"""Small models, trained in minutes: what do heads become, and which of them does a task need?

lesson          what is learned: examples made on the fly, a function of (seed, split, step)
trainer         how: AdamW, warm-up and cosine, clipping, evaluation, exact resume
relations       each verb must report its subject, object, place and time at once
pronouns        what does she do? what the noun does that the pronoun stands for
induction       what came next, the last time?
translation     a toy language with agreement and another order of words
text            the next token, or hidden ones, of a user's own files
lessons         all of them, and the models of ours that were trained on them (checkpoints/)
specialisation  what heads become on the way, and when
gates           which heads can be closed? (Hard Concrete gates, learned with the weights or alone)
"""
