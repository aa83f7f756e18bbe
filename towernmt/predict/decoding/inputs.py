"""The inputs of decoding by name: what the model, the strategy and the processors declare that they read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import TensorSpec
from towernmt.models.interface import NMTModel
from towernmt.predict.decoding.loop import Decoding


def decoding_signature(model: NMTModel, decoding: Decoding) -> list[TensorSpec]:
    """All inputs that a decoding tower has, in their order: those of the encoder first.

    Raises:
        SettingsError: two declare an input of one name in different ways, or one without a name.
    """
    return _merged([model.encoder_inputs(), decoding.strategy.inputs(),
                    *(processor.inputs() for processor in decoding.processors)])


def by_name(names: Sequence[str], in_order: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    """The values of `names`, the first of them given in order and the others by name.

    Raises:
        SettingsError: one is missing, given twice, or not known.
    """
    values = dict(zip(names, in_order, strict=False))
    twice, unknown = values.keys() & named.keys(), [name for name in named if name not in names]
    missing = [name for name in names if name not in values and name not in named]
    if missing or twice or unknown or len(in_order) > len(names):
        given = [*(f"value {place}" for place in range(1, len(in_order) + 1)), *named]
        raise SettingsError(f"Decoding has the inputs {', '.join(names)}, each to be given once; given are "
                            f"{', '.join(given) or 'none'}.")
    return [{**values, **named}[name] for name in names]


def _merged(declared: Iterable[Sequence[TensorSpec]]) -> list[TensorSpec]:
    found: dict[str, TensorSpec] = {}
    for spec in (spec for specs in declared for spec in specs):
        if not spec.name:
            raise SettingsError(f"The input {spec} of decoding has no name: give its TensorSpec one.")
        if found.setdefault(spec.name, spec) != spec:
            raise SettingsError(f"The input '{spec.name}' of decoding is declared twice and differently, as "
                                f"{found[spec.name]} and {spec}: give one of them another name.")
    return list(found.values())
