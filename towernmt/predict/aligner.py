"""`Aligner`: align the words of existing sentence pairs with a trained run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import FactorError
from towernmt.models.interface import NMTModel, batch_signature, shift_right
from towernmt.predict.lines.batch_inputs import plan_batches
from towernmt.predict.lines.hypotheses import WordAlignment, words_of_line
from towernmt.predict.lines.words_of_lines import word_weights
from towernmt.predict.search.search_settings import StreamSettings
from towernmt.predict.trained_model import TrainedModel

_NO_ATTENTION = np.zeros([0, 0], np.float32)


class Aligner:
    """Aligns the words of sentence pairs with a checkpoint of a training run.

    Args:
        run_dir: directory of a training run (its --logdir) or a package.
        checkpoint: "best", "last", "step-N" or the prefix of a checkpoint; by default the average that the run kept
            at its end, else the best by validation, else the last.
        device: "cpu", "gpu" or "gpu:N"; by default a GPU if available.
        averaged: whether to use the moving average of the weights, if the run has one.
        batch_tokens: maximum tokens of the longer side in a batch, with padding (at least one pair).
        window: number of pairs to read ahead and sort by length.
        model: the `NMTModel` of the run, or its class, if the run does not contain its code.
        trust_code: whether the code of a model in a package may be executed.

    Attributes:
        checkpoint: the checkpoint in use (TensorFlow's prefix).
        source_vocabulary, target_vocabulary: the run's vocabularies.

    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: a model without attention, an invalid value, not a run, or a missing GPU.
    """

    def __init__(self, run_dir: str | Path, checkpoint: str | None = None, *, device: str | None = None,
                 averaged: bool = True, batch_tokens: int = StreamSettings.batch_tokens,
                 window: int = StreamSettings.window, model: Any = None, trust_code: bool = False) -> None:
        self._settings = StreamSettings(batch_tokens=batch_tokens, window=window)
        with TrainedModel(run_dir, checkpoint, device=device, averaged=averaged, model=model,
                          trust_code=trust_code) as trained:
            if not trained.model.gives_attention:
                raise SettingsError(f"{run_dir}: its model ({type(trained.model).__name__}) has no attention to "
                                    "align words by: use a run of a different model.")
            self.checkpoint = trained.checkpoint
            self.source_vocabulary, self.target_vocabulary = trained.source_vocabulary, trained.target_vocabulary
            self._predictor = trained.predictor(
                _attention_tower(trained.model), batch_signature(trained.model.source_factor_count)[:4], ["attention"])

    @overload
    def align(self, pairs: tuple[str, str]) -> WordAlignment: ...

    @overload
    def align(self, pairs: Iterable[tuple[str, str]]) -> list[WordAlignment]: ...

    def align(self, pairs: tuple[str, str] | Iterable[tuple[str, str]]) -> WordAlignment | list[WordAlignment]:
        """Return the alignment of each (source, target) pair, or of one: `align(("Hallo!", "Hello!"))`."""
        if isinstance(pairs, tuple) and len(pairs) == 2 and all(isinstance(side, str) for side in pairs):
            return next(self.align_stream([cast("tuple[str, str]", pairs)]))
        return list(self.align_stream(cast("Iterable[tuple[str, str]]", pairs)))

    def align_stream(self, pairs: Iterable[tuple[str, str]], name: str = "input") -> Iterator[WordAlignment]:
        """Yield the alignment of each pair, and read at most `window` pairs ahead.

        Args:
            pairs: (source, target) pairs.
            name: name of the source, for errors.

        Raises:
            DataError: a source word lacks its factors.
            DivergenceError: the model's output is not a number.
        """
        remaining, first_line = iter(pairs), 1
        while window := list(islice(remaining, self._settings.window)):
            try:
                sources = _encoded(self.source_vocabulary, [source for source, _ in window])
            except FactorError as error:
                raise error.at(name, first_line + error.index) from None
            targets = _encoded(self.target_vocabulary, [target for _, target in window])
            yield from self._align_window(list(map(_Pair, range(len(window)), sources, targets)))
            first_line += len(window)

    def _align_window(self, pairs: list[_Pair]) -> list[WordAlignment]:
        alignments: dict[int, WordAlignment] = {}
        nonempty = sorted((pair for pair in pairs if pair.source.ids and pair.target.ids), key=len)
        for batch in plan_batches(nonempty, self._settings.batch_tokens, len(pairs)):
            arrays = [*pad_sentences([pair.source.ids for pair in batch], self.source_vocabulary.streams),
                      *pad_sentences([pair.target.ids for pair in batch])]
            (attention,) = self._predictor(*arrays)     # [batch, target length, source length]
            if not np.isfinite(attention).all():
                raise DivergenceError(f"{self.checkpoint}: the model's output is not a number (NaN), so nothing can be "
                                      "aligned: training has diverged; take an earlier checkpoint.")
            for pair, attention_of_pair in zip(batch, attention, strict=True):
                alignments[pair.index] = pair.alignment(attention_of_pair)
        # A pair with a blank side has no alignment.
        return [alignments.get(pair.index) or pair.alignment(_NO_ATTENTION) for pair in pairs]


@dataclass(frozen=True)
class _Side:
    """A sentence: its words, the ids of its tokens, and the index of the word of each token."""

    words: list[str]
    ids: list[Any]
    word_of_token: list[int]


@dataclass(frozen=True)
class _Pair:
    index: int
    source: _Side
    target: _Side

    def __len__(self) -> int:
        return max(len(self.source.ids), len(self.target.ids))

    def alignment(self, attention: np.ndarray) -> WordAlignment:
        """Return the alignment by attention `[target tokens, source tokens]`, with EOS and padding at the end."""
        source, target = self.source, self.target
        attention = attention[:len(target.ids), :len(source.ids)]
        weights = np.zeros([len(target.words), len(source.words)], np.float32)
        if attention.size:
            weights = word_weights(attention, source.word_of_token, target.word_of_token, weights.shape[::-1])
        return WordAlignment(source.words, target.words, weights)


def _encoded(vocabulary: Vocabulary, lines: Sequence[str]) -> list[_Side]:
    encoded = zip(*vocabulary.encode_with_words(lines), strict=True)
    return [_Side(words_of_line(vocabulary, line), ids, words)
            for line, (ids, words) in zip(lines, encoded, strict=True)]


def _attention_tower(model: NMTModel) -> Callable[..., Tensor]:
    def tower(source: Tensor, source_length: Tensor, target: Tensor, target_length: Tensor) -> Tensor:
        memory = model.encode(source, source_length)
        _, attention = model.decode_with_attention(memory, shift_right(target))
        model.output_projection()   # all variables of a checkpoint must be in the graph
        return tf.identity(tf.cast(attention, tf.float32), name="attention")
    return tower
