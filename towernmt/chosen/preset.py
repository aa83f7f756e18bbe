"""The rule by which the size of a Transformer is proposed, with its evidence."""

from __future__ import annotations

from towernmt.chosen.choice import Choice

FEW, MANY = 100_000, 1_000_000
"""Pairs below which a text is too little for `base`, and from which it is too much for `tiny`."""


SHORT = 600
"""Minutes on processors in which `base` sees too few sentences: two cores train it on 450 to 1,400 tokens a second
(docs/notes/performance.md)."""


def proposed_preset(pairs: int, gpus: int, minutes: float = 0.0) -> Choice:
    """A preset of the Transformer.

    `tiny` gave 44.1 BLEU after 15 minutes on two cores for the 166,000 pairs of Tatoeba (docs/notes/measurements.md,
    "The four architectures"). `base` is the size of Vaswani et al. 2017 for 4.5 million pairs. Little text asks for
    narrower models (Araabi and Monz 2020, "Optimizing Transformer for low-resource neural machine translation"). Both
    limits are guesses: neither preset was measured on either side of them.

    Args:
        pairs: of the corpus.
        gpus: that train; 0: the processors do.
        minutes: of training; 0: there is no such limit, or it is not known yet.
    """
    if not gpus and 0 < minutes < SHORT:
        return Choice("--preset", "tiny", f"processors train for {minutes:g} minutes")
    if pairs >= MANY:
        return Choice("--preset", "base", f"there are {pairs:,} pairs")
    if gpus and pairs >= FEW:
        return Choice("--preset", "base", f"there are {pairs:,} pairs, and a GPU")
    return Choice("--preset", "tiny", f"there are {pairs:,} pairs" + (", too few for more" if gpus else ", and no GPU"))
