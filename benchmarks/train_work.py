"""What `train.py` trains: models of each architecture in two sizes, and batches to train them on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.order.batch import Batch
from towernmt.dataflow.order.position import Position
from towernmt.models import architecture
from towernmt.optim.optimizer import OptimizerSettings

VOCABULARY = {"tiny": 8000, "base": 32000}
PRESETS = {
    "transformer": {"tiny": "tiny", "base": "base"},
    "seq2seq": {"tiny": "tiny", "base": "luong"},
    "rnnsearch": {"tiny": "tiny", "base": "bahdanau"},
    "convs2s": {"tiny": "tiny", "base": "fconv_wmt_en_ro"},
}
"""For each architecture and --config the preset: of the others than the Transformer, `base` has the paper's sizes."""
EOS, PAD, FIRST_WORD = 2, 0, 4
LONGEST = 98


def make_model(name: str, config: str, preset: str | None = None, **changes: Any) -> Any:
    """A model of the architecture `name` in the size `config`, with Adam.

    Args:
        preset: another one than that of the size, with its vocabularies.
        changes: to its settings.
    """
    kind = architecture(name)
    sizes: dict[str, Any] = dict(kind.presets[preset or PRESETS[name][config]])
    sizes.update(source_vocab_size=VOCABULARY[config], target_vocab_size=VOCABULARY[config])
    return kind.model(dataclasses.replace(kind.settings(**sizes), **changes), OptimizerSettings(learning_rate=3e-4))


class FixedBatches:
    """Batches in a list, over and over.

    Args:
        batches: in any order.
        order: their numbers in the order of training; None for that of the list.
    """

    def __init__(self, batches: Sequence[Batch], order: Sequence[int] | None = None) -> None:
        self.batches = batches if order is None else [batches[i % len(batches)] for i in order]

    def batches_per_epoch(self) -> int:
        """Their number."""
        return len(self.batches)

    def read(self, position: Position | None = None, start: int = 0, step: int = 1) -> Iterator[tuple[Position, Batch]]:
        """Every `step`-th batch, for ever."""
        index = start
        while True:
            yield Position(0, 0, index + 1), self.batches[index % len(self.batches)]
            index += step


def twice_each(first: int, groups: int, cycle: int = 1) -> list[int]:
    """Numbers of batches from `first` on, in groups of `cycle`, each group twice: a a b b c c."""
    starts = [first + group * cycle for group in range(groups)]
    return [start + i for start in starts for _ in range(2) for i in range(cycle)]


def load(path: str) -> list[Batch]:
    """The batches of an .npz file: int arrays `s0`, `t0`, `s1`, ... and their number `n`."""
    with np.load(path) as arrays:
        return [make_batch(arrays[f"s{i}"], arrays[f"t{i}"]) for i in range(int(arrays["n"]))]


def draw(vocabulary: int, batch_tokens: int, pairs: int = 40_000, seed: int = 1) -> list[Batch]:
    """Random pairs, of which the target can be learnt from the source, in batches of one length, shuffled.

    Lengths of the source are log-normal with a mean of about 23 and at most 86, its words follow Zipf's law. Each
    word has its one translation, but every tenth has two words for it and every tenth has none. A batch has as many
    sentences as `batch_tokens` holds at the longest side (of source and target, EOS counted) of its sentences.
    """
    random = np.random.default_rng(seed)
    words = vocabulary - FIRST_WORD
    lengths = np.clip(np.exp(random.normal(np.log(20.0), 0.5, pairs)).round(), 3, LONGEST - 12).astype(int)
    chances = np.cumsum(1.0 / (np.arange(words) + 2.7))
    drawn = np.searchsorted(chances / chances[-1], random.random(int(lengths.sum()))).clip(0, words - 1)
    dictionary = random.permutation(words)
    ends = np.cumsum(lengths)
    source = [drawn[end - length:end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    target = [_translation(sentence, dictionary) for sentence in source]
    groups = _by_length(np.array([max(map(len, pair)) + 1 for pair in zip(source, target, strict=True)]), batch_tokens)
    return [make_batch(*(_padded([side[i] for i in groups[g]]) for side in (source, target)))
            for g in random.permutation(len(groups))]


def _translation(source: NDArray[np.int64], dictionary: NDArray[np.int64]) -> NDArray[np.int64]:
    """`dictionary[word]` of each word; two words for those that end in 0, none for those that end in 1."""
    counts = np.where(source % 10 == 0, 2, np.where(source % 10 == 1, 0, 1))
    if not counts.any():
        counts[0] = 1
    places = np.repeat(np.arange(len(source)), counts)
    second = np.diff(places, prepend=-1) == 0
    return dictionary[(source[places] + 7 * second) % len(dictionary)][:LONGEST]


def _by_length(longest: NDArray[np.int64], batch_tokens: int) -> list[list[int]]:
    """Numbers of pairs, sorted by `longest` and cut into batches of `batch_tokens`."""
    groups: list[list[int]] = []
    group: list[int] = []
    for i in np.argsort(longest, kind="stable").tolist():
        if group and longest[i] * (len(group) + 1) > batch_tokens:
            groups.append(group)
            group = []
        group.append(i)
    return [*groups, group]


def _padded(sentences: Sequence[NDArray[np.int64]]) -> NDArray[np.int32]:
    """int32 `[batch, longest + 1]`: words behind the special ids, then EOS, then padding."""
    ids = np.full((len(sentences), max(map(len, sentences)) + 1), PAD, np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[:len(sentence)] = sentence + FIRST_WORD
        row[len(sentence)] = EOS
    return ids


def make_batch(source: NDArray[Any], target: NDArray[Any]) -> Batch:
    """A batch from padded ids."""
    lengths = [(ids != PAD).sum(1).astype(np.int32) for ids in (source, target)]
    return Batch(source.astype(np.int32), lengths[0], target.astype(np.int32), lengths[1],
                 np.array(lengths[1].sum(), np.float32))
