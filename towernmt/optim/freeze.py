"""Which variables an update changes, by patterns on their names: the others are frozen."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.optim.gradients import GradsAndVars


@dataclass(frozen=True)
class TrainedVariables:
    """A choice among the trainable variables. What is frozen costs no gradient, and has no optimizer's slot.

    Args:
        only: regular expressions, found anywhere in a name; train what one of them matches, or all if there is none.
        freeze: regular expressions; of that, leave out what one of these matches.
    Raises:
        SettingsError: something is no regular expression.
    """

    only: Sequence[str] = ()
    freeze: Sequence[str] = ()

    def __post_init__(self) -> None:
        for key, pattern in self._patterns():
            try:
                re.compile(pattern)
            except re.error as error:
                raise SettingsError(f"train.{key}={pattern}: not a regular expression ({error}); for example "
                                    "/encoder/ for all whose name holds that.") from error

    def choose(self, gradients: GradsAndVars) -> GradsAndVars:
        """The pairs (gradient, variable) to be trained.

        Raises:
            SettingsError: a pattern matches no variable, or nothing is left.
        """
        if not self.only and not self.freeze:
            return gradients
        names = [variable.op.name for _, variable in gradients]
        for key, pattern in self._patterns():
            if not any(re.search(pattern, name) for name in names):
                raise SettingsError(f"train.{key}={pattern} matches no trainable variable: they are named like "
                                    f"{', '.join(names[:: max(1, len(names) // 3)][:4])}.")
        chosen = [pair for pair, name in zip(gradients, names, strict=True) if self._trains(name)]
        if not chosen:
            raise SettingsError(f"train.only={','.join(self.only)} and train.freeze={','.join(self.freeze)} leave no "
                                "variable to train: freeze fewer.")
        logger.info(f"Training {_parameters(chosen):,} of {_parameters(gradients):,} parameters, {len(chosen)} of "
                    f"{len(gradients)} variables; the others are frozen.")
        return chosen

    def _trains(self, name: str) -> bool:
        wanted = not self.only or any(re.search(pattern, name) for pattern in self.only)
        return wanted and not any(re.search(pattern, name) for pattern in self.freeze)

    def _patterns(self) -> list[tuple[str, str]]:
        return [("only", pattern) for pattern in self.only] + [("freeze", pattern) for pattern in self.freeze]


def _parameters(gradients: GradsAndVars) -> int:
    return sum(math.prod(variable.shape.as_list()) for _, variable in gradients)
