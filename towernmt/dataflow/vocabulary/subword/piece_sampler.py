"""Random segmentations of whole texts by a SentencePiece model; they depend on the seed alone.

SentencePiece can draw them itself, but seeds its generator differently in each process. Here the library only
normalises the text and, for a draw among the n best segmentations, finds these.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import sentencepiece

from towernmt.dataflow.vocabulary.base import Sampling
from towernmt.dataflow.vocabulary.subword.bpe_dropout import BpeDropout
from towernmt.dataflow.vocabulary.subword.piece_model import PieceModel
from towernmt.dataflow.vocabulary.subword.uniform_draws import uniform_draws
from towernmt.dataflow.vocabulary.subword.unigram_sampling import UnigramSampler


class PieceSampler:
    """Draws segmentations of texts. Several threads may use it: they draw one after another.

    Args:
        processor: of the model.
        sampling: how far from the best segmentation.
    Raises:
        SettingsError: the model has only one segmentation of a text.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, sampling: Sampling) -> None:
        self._processor, self._sampling = processor, sampling
        self._model = PieceModel(processor.serialized_model_proto())
        self._words = (BpeDropout if self._model.is_bpe else UnigramSampler)(self._model, sampling.alpha)
        self._lock = threading.Lock()  # of the cache of words

    def ids(self, texts: Sequence[str], seed: int, first: int) -> list[list[int]]:
        """The model's ids of a segmentation of each text, drawn by (seed, `first` + its index)."""
        if self._among_best:
            return [ids for ids, _ in self._draw_among_best(texts, seed, first)]
        return [self._model.ids(pieces) for pieces in self._draw(texts, seed, first)]

    def written(self, texts: Sequence[str], seed: int, first: int) -> list[list[str]]:
        """The same segmentations, as pieces."""
        if self._among_best:
            return [pieces for _, pieces in self._draw_among_best(texts, seed, first)]
        return [self._model.written(pieces) for pieces in self._draw(texts, seed, first)]

    @property
    def _among_best(self) -> bool:
        return self._sampling.nbest >= 0 and not self._model.is_bpe

    def _draw(self, texts: Sequence[str], seed: int, first: int) -> list[list[str]]:
        normalized = self._processor.normalize(list(texts))
        numbers = uniform_draws(seed, first, [len(text) for text in normalized])
        draw, drawn = self._words.draw, []
        with self._lock:
            for text, uniform in zip(normalized, map(iter, numbers), strict=True):
                pieces: list[str] = []
                for part, whole in self._model.parts(text):
                    pieces += [part] if whole else draw(part, uniform)
                drawn.append(pieces)
        return drawn

    def _draw_among_best(self, texts: Sequence[str], seed: int, first: int) -> list[tuple[list[int], list[str]]]:
        """Ids and pieces as SentencePiece finds them, drawn by their probabilities to the power of alpha."""
        size, drawn = max(1, self._sampling.nbest), []
        for text, (uniform,) in zip(texts, uniform_draws(seed, first, [1] * len(texts)), strict=True):
            best = list(zip(*(self._processor.nbest_encode(text, nbest_size=size, out_type=kind)
                              for kind in (int, str)), strict=True))
            scores = [self._model.score(ids, pieces) for ids, pieces in best]
            bounds = list(accumulate(math.exp(self._sampling.alpha * (score - max(scores))) for score in scores))
            drawn.append(best[bisect_right(bounds[:-1], uniform * bounds[-1])])
        return drawn
