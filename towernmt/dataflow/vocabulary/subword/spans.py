"""Many runs of a flat array at once, without a Python loop over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def spans(begins: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """int64 `[sum of counts]`: for each i the places from `begins[i]` on, `counts[i]` of them."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(begins - ends + counts, counts)
