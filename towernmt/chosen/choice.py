"""A setting or an option that was chosen, and why."""

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
