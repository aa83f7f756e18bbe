"""Models of each architecture in two sizes, and random batches, for `train.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.models import architecture
from towernmt.optim.optimizer import make_optimizer
from towernmt.optim.optimizer_settings import OptimizerSettings

VOCABULARY = {"tiny": 8000, "base": 32000}
PRESETS = {
    "transformer": {"tiny": "tiny", "base": "base"},
    "seq2seq": {"tiny": "tiny", "base": "luong"},
    "rnnsearch": {"tiny": "tiny", "base": "bahdanau"},
    "convs2s": {"tiny": "tiny", "base": "fconv_wmt_en_ro"},
}
"""Preset by architecture and --config. Except for the Transformer, `base` has the sizes of the paper."""
EOS, PAD, FIRST_WORD = 2, 0, 4
LONGEST = 98


def make_model(name: str, config: str, preset: str | None = None, optimizer: str = "adam", **changes: Any) -> Any:
    """Return a model of architecture `name` and size `config`.

    Args:
        name: architecture.
        config: "tiny" or "base".
        preset: preset to use instead of the one for `config`; the vocabulary size stays.
        optimizer: name of the optimizer.
        changes: changed settings.
    """
    kind = architecture(name)
    sizes: dict[str, Any] = dict(kind.presets[preset or PRESETS[name][config]])
    sizes.update(source_vocab_size=VOCABULARY[config], target_vocab_size=VOCABULARY[config])
    model = kind.model(dataclasses.replace(kind.settings(**sizes), **changes))
    model.make_optimizer = partial(make_optimizer, OptimizerSettings(optimizer, learning_rate=3e-4))
    return model


class FixedBatches:
    """A list of batches that repeats for ever.

    Args:
        batches: distinct batches.
        order: indices of the batches in training order; None means the order of the list.
    """

    def __init__(self, batches: Sequence[Batch], order: Sequence[int] | None = None) -> None:
        self.batches = batches if order is None else [batches[i % len(batches)] for i in order]

    def batches_per_epoch(self) -> int:
        """Return the number of batches in the list."""
        return len(self.batches)

    def read(self, position: Position | None = None, start: int = 0, step: int = 1) -> Iterator[tuple[Position, Batch]]:
        """Yield every `step`-th batch with its position, for ever."""
        index = start
        while True:
            yield Position(0, 0, index + 1), self.batches[index % len(self.batches)]
            index += step


def twice_each(first: int, groups: int, cycle: int = 1) -> list[int]:
    """Return indices of batches from `first` on, in groups of `cycle`, each group twice: a a b b c c."""
    starts = [first + group * cycle for group in range(groups)]
    return [start + i for start in starts for _ in range(2) for i in range(cycle)]


def load(path: str) -> list[Batch]:
    """Read the batches of an .npz file: int arrays `s0`, `t0`, `s1`, ... and their number `n`."""
    with np.load(path) as arrays:
        return [make_batch(arrays[f"s{i}"], arrays[f"t{i}"]) for i in range(int(arrays["n"]))]


def draw(vocabulary: int, batch_tokens: int, pairs: int = 40_000, seed: int = 1) -> list[Batch]:
    """Return shuffled batches of random pairs whose target can be learnt from the source.

    Source lengths are log-normal with a mean of about 23 and a maximum of 86; words follow Zipf's law. Each word has
    one translation, except that a tenth of the words have two and a tenth have none. A batch holds as many pairs of
    similar length as fit: sentences x longest side (EOS included) <= `batch_tokens`.
    """
    random = np.random.default_rng(seed)
    words = vocabulary - FIRST_WORD
    lengths = np.clip(np.exp(random.normal(np.log(20.0), 0.5, pairs)).round(), 3, LONGEST - 12).astype(int)
    chances = np.cumsum(1.0 / (np.arange(words) + 2.7))
    word_ids = np.searchsorted(chances / chances[-1], random.random(int(lengths.sum()))).clip(0, words - 1)
    dictionary = random.permutation(words)
    ends = np.cumsum(lengths)
    source = [word_ids[end - length:end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    target = [_translation(sentence, dictionary) for sentence in source]
    groups = _by_length(np.array([max(map(len, pair)) + 1 for pair in zip(source, target, strict=True)]), batch_tokens)
    return [make_batch(*(_padded([side[i] for i in groups[g]]) for side in (source, target)))
            for g in random.permutation(len(groups))]


def _translation(source: NDArray[np.int64], dictionary: NDArray[np.int64]) -> NDArray[np.int64]:
    """Translate each word by `dictionary`; words that end in 0 have two translations, words that end in 1 none."""
    counts = np.where(source % 10 == 0, 2, np.where(source % 10 == 1, 0, 1))
    if not counts.any():
        counts[0] = 1
    indices = np.repeat(np.arange(len(source)), counts)
    second = np.diff(indices, prepend=-1) == 0
    return dictionary[(source[indices] + 7 * second) % len(dictionary)][:LONGEST]


def _by_length(longest: NDArray[np.int64], batch_tokens: int) -> list[list[int]]:
    """Return indices of pairs, sorted by `longest` and cut into batches of `batch_tokens`."""
    groups: list[list[int]] = []
    group: list[int] = []
    for i in np.argsort(longest, kind="stable").tolist():
        if group and longest[i] * (len(group) + 1) > batch_tokens:
            groups.append(group)
            group = []
        group.append(i)
    return [*groups, group]


def _padded(sentences: Sequence[NDArray[np.int64]]) -> NDArray[np.int32]:
    """Return int32 `[batch, longest + 1]`: words offset by the special ids, then EOS, then padding."""
    ids = np.full((len(sentences), max(map(len, sentences)) + 1), PAD, np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[:len(sentence)] = sentence + FIRST_WORD
        row[len(sentence)] = EOS
    return ids


def make_batch(source: NDArray[Any], target: NDArray[Any]) -> Batch:
    """Return the batch of padded ids."""
    lengths = [(ids != PAD).sum(1).astype(np.int32) for ids in (source, target)]
    return Batch(source.astype(np.int32), lengths[0], target.astype(np.int32), lengths[1],
                 np.array(lengths[1].sum(), np.float32))
