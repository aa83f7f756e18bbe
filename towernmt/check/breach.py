"""A breach of the rules of tower functions, and the rules by name."""

from __future__ import annotations

from typing import NamedTuple

RULES = {
    "fails": "the function can be called again, in every way that a tower is built",
    "enclosing-scope": "a trainable variable's name starts with the variable scope that encloses the call",
    "scope-twice": "a trainable variable's name holds the enclosing variable scope once",
    "name-scope": "a trainable variable's name does not depend on a name scope",
    "tensor-name": "a trainable variable's name does not depend on a tensor's name",
    "second-tower": "the second tower makes no trainable variable: it reuses the first one's",
    "reuse": "the function does not switch on the reuse of a variable scope that is not its own",
    "trainable-collection": "TRAINABLE_VARIABLES holds variables that gradient descent trains, each once",
    "model-variables": "what is not trained but needed to predict is in MODEL_VARIABLES",
    "tower-word": "no scope or variable has 'tower' in its name",
    "grows": "graph collections and attributes do not grow with each call",
    "mode": "training and predicting make the same variables",
}
"""Rules by name, from tensorpack's "Rules of Tower Function"."""
DECODER_RULES = {
    "padding": "a sentence's logits do not depend on the padding of its source",
    "causal": "a target position's logits do not depend on later target words",
    "stepwise": "decode_step gives the logits that decode gives, step after step and after reordering",
}
"""Further rules, for an `NMTModel`."""


class Breach(NamedTuple):
    """One breach of one rule by one variable.

    Attributes:
        rule: a key of `RULES` or of `DECODER_RULES`.
        variable: what breaks it, by the name that it has in a training tower alone; for some rules a scope, a
            collection or an attribute; "" if it is the function itself.
        message: one sentence: what is wrong, and how to mend it.
        where: the place in the user's code, `file:line`; "" if unknown.
    """

    rule: str
    variable: str
    message: str
    where: str

    def __str__(self) -> str:
        return f"{self.where or '?'}: [{self.rule}] {self.message}"
