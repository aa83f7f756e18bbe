"""The choices of the models' settings. They are not in the modules that use them, since those need TensorFlow."""

from __future__ import annotations

TIES = ("all", "target", "none")
"""Which embedding tables are one (`embeddings`)."""
FACTORS = ("sum", "concat")
"""How source factors join their word (`embeddings`)."""
STARTS = ("bos", "zero")
"""What a decoder reads before the first word (`embeddings`)."""
ACTIVATIONS = ("relu", "swish", "gelu_sigmoid", "gelu_tanh")
"""Of feed-forward layers without a gate."""
FEED_FORWARDS = (*ACTIVATIONS, "glu", "swiglu", "geglu")
"""Without a gate, or with one of `feed_forward.GATES`."""
CELLS = ("gru", "lstm")
KERNELS = ("auto", "fused", "loop")
"""`auto`: the fused kernels in towers that do not train; in those that do, the loop, whose gradient is written out.
(Training steps of the presets `tiny`, float32, 1,024 tokens, two towers on two cores: with fused kernels 0.70 of the
loop's speed for Seq2Seq's LSTMs, 0.87 for RNNSearch's GRUs.)"""
SCORES = ("additive", "dot", "general")
"""Of attention in recurrent models."""
COVERAGES = ("none", "linguistic")
PRECISIONS = ("float32", "bfloat16", "float16")
