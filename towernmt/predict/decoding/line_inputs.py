"""What serves an input that only some lines have: the registry of per-line inputs.

A plain line is translated by the plain search. A line with further inputs is translated by a search of its own, which
is the plain one changed by what is registered here for each of these inputs. To add an input:

1. Write a processor (what a token may be) or a strategy (what is kept) that declares the input in its `inputs()`: a
   `tf.TensorSpec` with the input's name, its first dimension the batch.
2. Write a function here from the `Plain` search to the changed one, and its line in `SERVED_BY`.
3. Where lines ask for it by text, add a field to `LineOptions`, and its line in `INPUTS` of
   `predict/lines/target_text.py`.

Nothing else is to be done: lines with the same inputs share batches, and each set of inputs has a tower, built on the
same variables when a line first needs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.decoding.assembly import constrained_for
from towernmt.predict.decoding.length_limit import LimitBehindPrefix
from towernmt.predict.decoding.loop import Decoding
from towernmt.predict.decoding.processors.avoided_phrases import AvoidedPhrases
from towernmt.predict.decoding.processors.forcing import Forcing, GivesWay
from towernmt.predict.decoding.processors.target_prefix import TargetPrefix, WordBeginning
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.lines.surfaces import Surfaces


class Plain(NamedTuple):
    """A search without the input.

    Attributes:
        decoding: its strategy, processors and limit.
        settings: what it was made from.
        vocabulary: of the target.
    """

    decoding: Decoding
    settings: SearchSettings
    vocabulary: Vocabulary


def _prefix(plain: Plain) -> Decoding:
    decoding = _forced(plain.decoding, TargetPrefix())
    return dataclasses.replace(
        decoding, limit=LimitBehindPrefix(decoding.limit, plain.settings.max_length_constant))


def _word_beginning(plain: Plain) -> Decoding:
    return _forced(plain.decoding, WordBeginning(Surfaces(plain.vocabulary).lengths))


def _avoid(plain: Plain) -> Decoding:
    processors = [*plain.decoding.processors, AvoidedPhrases(Surfaces(plain.vocabulary).breaks)]
    return dataclasses.replace(plain.decoding, processors=processors)


def _constraints(plain: Plain) -> Decoding:
    return dataclasses.replace(plain.decoding, strategy=constrained_for(plain.settings))


def _forced(decoding: Decoding, forcing: Forcing) -> Decoding:
    """With a processor before which the others give way."""
    others = [GivesWay(processor, forcing) for processor in decoding.processors]
    return dataclasses.replace(decoding, processors=[forcing, *others])


SERVED_BY: dict[str, Callable[[Plain], Decoding]] = {
    "constraints": _constraints,
    "avoid": _avoid,
    "prefix": _prefix,
    "continuation": _word_beginning,
}
"""The search with an input, by the input's name. They change the plain one in this order: what forces comes last."""


def decoding_with(names: Collection[str], plain: Plain) -> Decoding:
    """The search of lines that have the inputs `names` beyond those of the plain one.

    Raises:
        SettingsError: one of them is not known.
    """
    unknown = sorted(set(names) - SERVED_BY.keys())
    if unknown:
        raise SettingsError(f"The input '{unknown[0]}' of a line is not known: there are {', '.join(SERVED_BY)}, and "
                            "what the model and the processors of your own declare.")
    for name, serve in SERVED_BY.items():
        if name in names:
            plain = plain._replace(decoding=serve(plain))
    return plain.decoding
