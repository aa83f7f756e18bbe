"""Gains of beads by the lengths of their sentences: the model of Gale & Church (1993).

The characters of a translation are normally distributed around a multiple of those of its source, with a variance in
proportion to them. The gain compares this density with that of unrelated sentences, whose lengths are log-normal, so
it does not favour beads of short sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.documents.alignment.sentence_paths import SHAPES, Bead

SHAPE_GAINS = tuple(float(np.log(probability)) for probability in (0.89, 0.0445, 0.0445, 0.011))
"""Logarithms of the probabilities of the shapes of beads, by Gale & Church."""
VARIANCE = 6.8
"""Variance of the target characters for each source character, in texts of equal length, by Gale & Church."""
_MIN_GAIN = float(np.log(0.02))
_MIN_BEADS = 50


def is_excerpt(source: NDArray[np.integer], target: NDArray[np.integer]) -> bool:
    """Return whether one text seems to translate a part of the other: it has less than half of its sentences and text.

    Args:
        source: int64 `[sentences]`, characters of the sentences.
        target: int64 `[sentences]`, characters of the sentences.
    """
    shorter, longer = sorted((source, target), key=len)
    return len(longer) > 2 * len(shorter) and int(longer.sum()) > 2 * int(shorter.sum())


@dataclass(frozen=True)
class LengthModel:
    """The relation of the lengths of translations.

    Attributes:
        ratio: target characters for each source character.
        variance: variance of the target characters, for each target character.
    """

    ratio: float
    variance: float = VARIANCE

    @classmethod
    def of_texts(cls, source: NDArray[np.integer], target: NDArray[np.integer]) -> LengthModel:
        """Return the model for the numbers of characters of the sentences of texts, one of which may be an excerpt."""
        ratio = float(target.sum()) / max(float(source.sum()), 1.0)
        return cls(ratio * len(source) / len(target) if is_excerpt(source, target) else ratio)

    @classmethod
    def of_beads(cls, source: NDArray[np.integer], target: NDArray[np.integer], otherwise: LengthModel) -> LengthModel:
        """Return the model that fits the numbers of characters of beads best; `otherwise` if there are too few."""
        if len(source) < _MIN_BEADS:
            return otherwise
        ratio = float(target.sum()) / float(source.sum())
        # The median of a squared standard normal variable is 0.455, and outliers do not change a median.
        variance = np.median((target - ratio * source) ** 2 / (ratio * source)) / 0.455
        return cls(ratio, float(np.clip(variance, 1.0, 4 * VARIANCE)))


class LengthGains:
    """The gains of beads by the lengths of their sentences, in nats.

    Args:
        model: the relation of the lengths.
        source, target: int64 `[sentences]`, characters of the sentences.
    """

    def __init__(self, model: LengthModel, source: NDArray[np.integer], target: NDArray[np.integer]) -> None:
        self._model = model
        source_sums = _sums_before_boundaries(source.astype(np.float32) * np.float32(model.ratio))
        self._expected = [np.maximum(sums, np.float32(1)) for sums in source_sums]
        self._lengths = _sums_before_boundaries(target.astype(np.float32))
        self._unrelated = [_log_normal_density(lengths) for lengths in self._lengths]

    def of_rectangle(self, rows: range, columns: range) -> NDArray[np.float32]:
        """Return the gains for `best_path`."""
        gains = np.empty((len(SHAPES), len(rows), len(columns)), np.float32)
        source, target = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        for gain, (sources, targets), of_shape in zip(gains, SHAPES, SHAPE_GAINS, strict=True):
            self._of(self._expected[sources - 1][source, None], targets - 1, target, gain)
            gain += np.float32(of_shape)
        return gains

    def of_beads(self, beads: Sequence[Bead]) -> NDArray[np.float32]:
        """Return the gain of each bead, without that of its shape. No bead is a gap."""
        gains = np.empty(len(beads), np.float32)
        for number, bead in enumerate(beads):
            sources, targets = bead.shape
            self._of(self._expected[sources - 1][bead.source_after, None], targets - 1,
                     slice(bead.target_after, bead.target_after + 1), gains[number:number + 1])
        return gains

    def _of(self, expected: NDArray[np.float32], kind: int, target: slice, gains: NDArray[np.float32]) -> None:
        """Write the gains for expected lengths `[..., 1]` to `gains` `[..., target boundaries]`."""
        variance = np.float32(self._model.variance) * expected
        np.subtract(self._lengths[kind][target], expected, out=gains)
        gains *= gains
        gains *= np.float32(-0.5) / variance
        gains -= self._unrelated[kind][target]
        gains -= np.float32(0.5) * np.log(np.float32(2 * np.pi) * variance)
        np.maximum(gains, np.float32(_MIN_GAIN), out=gains)


def _sums_before_boundaries(lengths: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the length of the last sentence and of the last two before each boundary, `[sentences + 1]`."""
    singles = np.concatenate([np.zeros(1, np.float32), lengths])
    doubles = singles.copy()
    doubles[1:] += singles[:-1]
    return singles, doubles


def _log_normal_density(lengths: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logarithm of the density of each length, by the log-normal distribution that fits all of them."""
    logs = np.log(np.maximum(lengths, 1.0))
    mean, deviation = (float(logs[1:].mean()), max(float(logs[1:].std()), 0.2)) if len(logs) > 1 else (0.0, 1.0)
    density = -0.5 * ((logs - mean) / deviation) ** 2 - logs - np.log(deviation * np.sqrt(2 * np.pi))
    return np.asarray(density, np.float32)
