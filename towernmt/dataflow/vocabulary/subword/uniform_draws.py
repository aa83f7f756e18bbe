"""Random numbers for texts; those of a text depend on (seed, its number) alone.

They are raw output of a counter-based generator (Philox; Salmon et al., 2011): the counter of a number is made of the
text's number and of the place in the text. So neither the process, nor NumPy's version, nor the other texts of a
call change them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BLOCK = 64  # numbers of a text in each layer; a longer text takes several layers
_OUTPUTS = 4  # of Philox for each value of its counter
_LAYER = 1 << 64  # values of the counter for each layer


def uniform_draws(seed: int, first: int, counts: Sequence[int]) -> list[list[float]]:
    """Numbers from 0 to below 1, `counts[i]` of them for the text of number `first + i`.

    Args:
        seed: from 0.
        first: number of the first text, from 0.
        counts: how many numbers each text gets.
    """
    wanted = np.asarray(counts, np.int64)
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    drawn: list[list[float]] = [[] for _ in counts]
    for layer in range(-(-int(wanted.max(initial=0)) // _BLOCK)):
        rows = np.flatnonzero(wanted > layer * _BLOCK)
        begin, end = int(rows[0]), int(rows[-1]) + 1
        counter = layer * _LAYER + (first + begin) * (_BLOCK // _OUTPUTS)
        raw = np.random.Philox(key=key, counter=counter).random_raw((end - begin) * _BLOCK)
        uniform = ((raw >> np.uint64(11)).astype(np.float64) * 2.0 ** -53).reshape(end - begin, _BLOCK)
        for row in rows.tolist():
            drawn[row] += uniform[row - begin, :wanted[row] - layer * _BLOCK].tolist()
    return drawn
