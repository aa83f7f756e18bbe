"""How the members of an ensemble are joined. Nothing here needs TensorFlow, so that a command line parses fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.settings import check_ranges, setting

MEANS = ("probabilities", "log-probabilities")


@dataclass(frozen=True)
class EnsembleSettings:
    """The mean of the members' distributions over the next token.

    Both means are distributions: that of the log-probabilities is normalised again at each step. They are what Sockeye
    (Hieber et al. 2017) calls linear and log-linear interpolation.

    Raises:
        SettingsError: a value that cannot work.
    """

    mean: str = setting(
        "probabilities", "What the mean is taken of: probabilities follow a member that is sure of a token, "
        "log-probabilities keep to tokens that no member thinks unlikely.", choices=MEANS)
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        if any(not 0.0 < weight < float("inf") for weight in self.weights):
            raise SettingsError(f"The weights {self.shown_weights()} of an ensemble: each must be a number above 0.")

    def shares(self, members: int) -> list[float]:
        """The weight of each member; together they are 1.

        Raises:
            SettingsError: there are not as many weights as members.
        """
        weights = self.weights or (1.0,) * members
        if len(weights) != members:
            raise SettingsError(f"The ensemble has {members} members and the {len(weights)} weights "
                                f"{self.shown_weights()}: give one to each, or none at all.")
        return [weight / sum(weights) for weight in weights]

    def shown_weights(self) -> str:
        """As the command line has them."""
        return ",".join(f"{weight:g}" for weight in self.weights)


def several(value: Any) -> list[Any]:
    """What is given for the members, as a list: of one value, one."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
