"""What do attention heads do, and which of them are needed?

A library of measurements on the attention heads of transformers: no configuration framework, no
printing, no global state. The questions are asked by `experiments`, the answers are tables.
"""
