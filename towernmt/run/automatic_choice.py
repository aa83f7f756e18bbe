"""An automatic setting with its reason, and the rule that proposes the size of a Transformer.

Imports no TensorFlow: `towernmt prepare` uses it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CHOSEN = "chosen.yaml"
"""In the run's directory: what was chosen for it, and why."""


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
        key: a setting, dotted, or an option: "--towers".
        value: of it.
        reason: the end of a sentence: "because ...".
    """

    key: str
    value: Any
    reason: str


def round_down(number: float) -> int:
    """The whole of a number with its first two digits, for a reason that is an estimate."""
    whole = int(number)
    unit = 10 ** max(0, len(str(whole)) - 2)
    return whole // unit * unit


PROPOSED = ("mini", "tiny", "base")
FEW, MANY = 100_000, 1_000_000
"""Pairs below which a text is too little for `base`, and from which it is too much for `tiny`."""
SHORT, MEDIUM = 15_000_000, 50_000_000
"""Target tokens that `tiny` would train on, below which `mini` is taken, and from which `base` may be."""


def proposed_preset(pairs: int, gpus: int, tokens: float | None = None) -> Choice:
    """A preset of the Transformer.

    What a short training lacks is updates. In 13 minutes on one core `mini` came to 37.8 BLEU on Tatoeba and `tiny` to
    31.7: after as many updates they know as much, and `mini` makes half as many again; after 7.5 million target tokens
    `mini` had 46.2 (docs/notes/defaults.md, "The size of the model"), `tiny` after 7.8 million 45.9
    (docs/notes/measurements.md, "Settings that were chosen"). `base` is the size of Vaswani et al. 2017 for 4.5 million
    pairs. Little text asks for narrower models in long trainings (Araabi and Monz 2020, "Optimizing Transformer for
    low-resource neural machine translation"); in short ones of 5,000 and 10,000 pairs they did not pay
    (docs/notes/defaults.md, "What pays on little text"). The limits are guesses: no preset was measured on either side
    of them.

    Args:
        pairs: of the corpus.
        gpus: that train; 0: the processors do.
        tokens: target tokens that `tiny` would train on within the limit; None: there is none, or it is not known.
    """
    if not gpus and tokens is not None and tokens < MEDIUM:
        seen = f"processors would train tiny on about {round_down(tokens):,} tokens"
        return Choice("--preset", "mini" if tokens < SHORT else "tiny", seen)
    if pairs >= MANY:
        return Choice("--preset", "base", f"there are {pairs:,} pairs")
    if gpus and pairs >= FEW:
        return Choice("--preset", "base", f"there are {pairs:,} pairs, and a GPU")
    return Choice("--preset", "tiny", f"there are {pairs:,} pairs" + (", too few for more" if gpus else ", and no GPU"))
