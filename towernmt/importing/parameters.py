"""The parameters of a foreign model by their names there: each is taken in a known shape, and none is left over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from towernmt.core.errors import CheckpointError


class Parameters:
    """Parameters to be taken one by one.

    Args:
        origin: the file, for messages.
        shapes: of all, by name.
        read: gives the value of a name.
    """

    def __init__(self, origin: str, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Any]) -> None:
        self.origin = origin
        self._shapes, self._read = shapes, read
        self._taken: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Of all parameters."""
        return list(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter.

        Raises:
            CheckpointError: there is none of this name.
        """
        if name not in self._shapes:
            raise CheckpointError(f"{self.origin}: the parameter {name} is missing: is the file whole, and of a model "
                                  "that its settings tell of?")
        return self._shapes[name]

    def take(self, name: str, *shape: int) -> np.ndarray:
        """The value of a parameter, float32.

        Args:
            shape: that it must have, but for dimensions of 1, which Marian adds.
        Raises:
            CheckpointError: it is missing, has another shape, or holds numbers that are not finite.
        """
        there = self.shape(name)
        if [size for size in there if size != 1] != [size for size in shape if size != 1]:
            raise CheckpointError(f"{self.origin}: the parameter {name} has the shape {list(there)}, and its settings "
                                  f"ask for {list(shape)}: take the model's own settings.")
        self._taken.add(name)
        value = np.asarray(self._read(name))
        if value.dtype.kind not in "f" or not np.isfinite(value).all():
            raise CheckpointError(f"{self.origin}: the parameter {name} holds what are not finite numbers: the file is "
                                  "damaged, or the training has diverged.")
        return value.astype(np.float32).reshape(shape)

    def drop(self, name: str) -> None:
        """Take a parameter that has no effect, if it is there."""
        self._taken.add(name)

    def check_all_taken(self) -> None:
        """Refuse what was not taken: the model has a part that is not known here.

        Raises:
            CheckpointError: something is left.
        """
        left = sorted(name for name in self._shapes if name not in self._taken)
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise CheckpointError(f"{self.origin}: the parameter {left[0]}{more} belongs to a part of a model that "
                                  "towernmt's transformer does not have: it cannot be imported.")
