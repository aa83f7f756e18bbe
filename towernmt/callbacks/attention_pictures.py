"""Pictures of the model's attention on validation sentences, for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np
from tensorpack.callbacks import Callback
from tensorpack.tfutils.tower import PredictTowerContext
from tensorpack.utils import logger

from towernmt.callbacks.run_hooks import session_for
from towernmt.callbacks.summaries import image_summary
from towernmt.check.tower_check import TowerWatch
from towernmt.core.runs import Run
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.vocabulary.base import EOS, Vocabulary
from towernmt.models.interface import NMTModel, batch_signature, shift_right
from towernmt.optim.optimizer import averaged_weights

_LONGEST = 30
"""Maximum number of subwords per side; the picture of a longer sentence would be illegible."""


class AttentionPictures(Callback):
    """Draws, after each validation, the decoder's attention to the source while it reads the reference translation.

    The sentences are the same each time, so that pictures can be compared. The attention is that of
    `decode_with_attention`: a Transformer's head for guided alignment, the attention of the other models. Models
    without attention have no pictures. Drawing needs Pillow (`pip install 'towernmt[tensorboard]'`). Put this callback
    after the validator. The images are named `attention/0`, `attention/1` and so on.

    Args:
        model: the tower function that is being trained.
        source_lines: raw source text; the first sentences of legible length are drawn.
        target_lines: translations of `source_lines`.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.
        sentences: number of sentences to draw.
        averaged: use the moving averages of the weights, if they exist.
        score: name of a scalar that each validation records.
    """

    def __init__(self, model: NMTModel, source_lines: Sequence[str], target_lines: Sequence[str],
                 source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, sentences: int = 2,
                 averaged: bool = True, score: str = "validation_bleu") -> None:
        self._model, self._averaged, self._score = model, averaged, score
        self._vocabularies = source_vocabulary, target_vocabulary
        self._text = source_lines, target_lines
        self._sentences, self._drawn_validations = sentences, 0
        self._weights: Tensor | None = None

    def _setup_graph(self) -> None:
        if not getattr(self._model, "gives_attention", False):
            return
        if find_spec("PIL") is None:
            logger.info("Attention pictures are off, because Pillow is missing: pip install 'towernmt[tensorboard]'.")
            return
        self._pairs = self._choose()
        graph = tf1.get_default_graph()
        name = graph.unique_name("tower-attention", mark_as_used=False)
        weights = averaged_weights() if self._averaged else nullcontext()
        with weights, tf1.variable_scope(tf1.get_variable_scope(), reuse=True), PredictTowerContext(name):
            self._inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name)
                            for spec in batch_signature(self._model.source_factor_count)[:3]]
            attention = TowerWatch().around(self._attention)(*self._inputs)
            self._weights = tf.cast(attention, tf.float32)      # [batch, target length, source length]

    def _attention(self, source: Tensor, source_length: Tensor, target: Tensor) -> Tensor:
        """Return the attention of teacher forcing: float32 `[batch, target length, source length]`."""
        memory = self._model.encode(source, source_length)
        return self._model.decode_with_attention(memory, shift_right(target))[1]

    def _before_train(self) -> None:
        self._session = session_for(self.trainer, Run.VALIDATION)

    def _before_epoch(self) -> None:
        self._draw_if_validated()

    def _trigger_step(self) -> None:
        self._draw_if_validated()

    def _after_train(self) -> None:
        self._draw_if_validated()

    def _draw_if_validated(self) -> None:
        validations = len(self.trainer.monitors.get_history(self._score))
        if self._weights is not None and validations > self._drawn_validations:
            self._drawn_validations = validations
            self.draw()

    def draw(self) -> None:
        """Draw the pictures now, and pass them to the monitors."""
        from towernmt.callbacks.heat_map import heat_map

        for number, (source, target) in enumerate(self._pairs):
            source_ids, length = pad_sentences([source], self._vocabularies[0].streams)
            target_ids, _ = pad_sentences([target])
            (weights,) = self._session.run(
                self._weights, dict(zip(self._inputs, (source_ids, length, target_ids), strict=True)))
            word_ids = source_ids[0] if source_ids.ndim == 2 else source_ids[0, :, 0]
            picture = heat_map(weights, self._subwords(1, target_ids[0]), self._subwords(0, word_ids),
                               f"step {self.global_step}: source above, target at the left")
            self.trainer.monitors.put_summary(image_summary(f"attention/{number}", picture))

    def _choose(self) -> list[tuple[Any, Any]]:
        """Return the first pairs of legible length, then the shortest others if these are too few."""
        texts = [list(lines)[:1000] for lines in self._text]
        pairs = list(zip(*(vocabulary.encode_batch(lines) for vocabulary, lines in
                           zip(self._vocabularies, texts, strict=True)), strict=True))
        readable = [pair for pair in pairs if all(5 <= len(side) <= _LONGEST for side in pair)]
        by_length = sorted((pair for pair in pairs if all(pair)), key=lambda pair: max(map(len, pair)))
        return (readable + [pair for pair in by_length if pair not in readable])[:self._sentences]

    def _subwords(self, side: int, ids: np.ndarray) -> list[str]:
        return ["</s>" if id == EOS else self._vocabularies[side].id_to_piece(int(id)) for id in ids]
