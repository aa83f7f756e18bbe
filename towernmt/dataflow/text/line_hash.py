"""A random number for each line; it depends on (seed, line number) alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def line_hash(line_numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """uint64 `[lines]`, uniform: SplitMix64 (Steele et al., 2014) of the line number, keyed by the seed."""
    with np.errstate(over="ignore"):
        key = _mix(np.asarray([seed], np.int64).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        return _mix(key + line_numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
