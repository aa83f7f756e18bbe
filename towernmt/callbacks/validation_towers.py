"""The towers of a validation, and the distribution of its batches to the processes.

The towers are beam search and the teacher-forced loss, on the variables in training. Batches are padded arrays of
similar lengths, fed without the input queue. Each process gets the results of all processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np

from towernmt.callbacks.run_hooks import session_for
from towernmt.callbacks.stateful import training_towers
from towernmt.callbacks.validation_metrics import ValidationOutcome
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.runs import Run
from towernmt.core.session import count_gpus
from towernmt.core.world import current_world
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.text.validation_set import ValidationSet
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.evaluate.metrics import corpus_scores
from towernmt.models.interface import ALIGNMENT, NMTModel
from towernmt.optim.optimizer import averaged_weights
from towernmt.predict.search.decoding_tower import build_search_predictor
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.stream import translate_lines


def teacher_forced_batches(source_lines: Sequence[str], target_lines: Sequence[str],
                           source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                           batch_tokens: int) -> Iterator[list[np.ndarray]]:
    """Yield batches that contain every pair once, with similar lengths together.

    Args:
        source_lines: source sentences.
        target_lines: target sentences, one per source sentence.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.
        batch_tokens: maximum number of tokens of the longer side, with padding and EOS; a batch has at least one pair.

    Yields:
        source int32 `[batch, source length]` (with factors `[batch, source length, 1 + factors]`), source_length int32
        `[batch]`, target int32 `[batch, target length]`, target_length int32 `[batch]`, target_tokens float32 `[]` (of
        the batch).
    """
    pairs = list(zip(source_vocabulary.encode_batch(list(source_lines)),
                     target_vocabulary.encode_batch(list(target_lines)), strict=True))
    pairs.sort(key=lambda pair: (max(len(pair[0]), len(pair[1])), len(pair[0])))
    begin = 0
    for end in range(1, len(pairs) + 1):
        following = max(len(pairs[end][0]), len(pairs[end][1])) + 1 if end < len(pairs) else 0
        if end == len(pairs) or (end + 1 - begin) * following > batch_tokens:
            source, source_length = pad_sentences([pair[0] for pair in pairs[begin:end]], source_vocabulary.streams)
            target, target_length = pad_sentences([pair[1] for pair in pairs[begin:end]])
            yield [source, source_length, target, target_length, np.array(target_length.sum(), np.float32)]
            begin = end


A = TypeVar("A")
B = TypeVar("B")


class StoppedError(Exception):
    """A signal has ended training during a validation."""


def map_over_processes(function: Callable[[A], B], batches: Iterable[A]) -> Iterable[B]:
    """Apply `function` to all batches, distributed over the processes; return all results, in order, in every process.

    Process *i* of *N* computes every *N*-th batch. The batches, and so the results, are the same as in a single
    process. Results are exchanged as pickles, which add no risk: a process of the cluster can run any operation in the
    others (see `TensorFlowWorld`).

    Raises:
        DivergenceError, StoppedError: in every process, if one process raised it.
    """
    world = current_world()
    if world.processes == 1:
        return map(function, batches)
    own_results: dict[int, B] = {}
    error: Exception | None = None
    try:
        for number, batch in enumerate(batches):
            if number % world.processes == world.process:
                own_results[number] = function(batch)
    except (DivergenceError, StoppedError) as raised:
        error = raised
    results: dict[int, B] = {}
    for message in world.exchange(pickle.dumps((own_results, error))):
        received, failure = pickle.loads(message)
        if failure is not None:
            raise failure
        results.update(received)
    return [results[number] for number in sorted(results)]


def _device_of(trainer: Any) -> str | None:
    """Return the device of a trainer's first tower; None without GPUs, where it needs no device."""
    if not count_gpus():
        return None
    return next(iter(getattr(trainer, "tower_devices", [])), "/gpu:0")      # "/gpu:0" of tensorpack's trainers


class ValidationTowers:
    """Translates and scores validation sets in a training session; the processes of the world share the batches.

    Args:
        model: the tower function that is being trained.
        search: search options.
        source_vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target.
        batch_tokens: maximum number of padded source (for the loss: target) tokens in a batch; None for the default of
            the device, which for the loss is that of the CPU.
        before_batch: called before each batch; its exception ends the validation.
    """

    def __init__(self, model: NMTModel, search: SearchSettings, source_vocabulary: Vocabulary,
                 target_vocabulary: Vocabulary, batch_tokens: int | None, before_batch: Callable[[], None]) -> None:
        self._model, self._search, self._batch_tokens, self._before_batch = model, search, batch_tokens, before_batch
        self._source_vocabulary, self._target_vocabulary = source_vocabulary, target_vocabulary
        self._loss: Any = None
        self._device: str | None = None

    def build(self, trainer: Any, loss: bool) -> None:
        """Add the towers to the graph; that of the loss only if `loss` is set and the trainer has towers.

        Raises:
            DataError: the shortlist file is missing or damaged.
            SettingsError: the shortlist has other vocabularies, or the tower of the loss has no tensor `nll`.
        """
        if shortlist := self._search.shortlist:
            Lexicon.load(shortlist).check_vocabularies(self._source_vocabulary, self._target_vocabulary, shortlist)
        self._device = device_name = _device_of(trainer)
        self._predictor = build_search_predictor(self._model, self._search, device_name)
        if loss and training_towers(trainer):
            device = int(device_name.rpartition(":")[2]) if device_name and "gpu" in device_name else -1
            names = [spec.name for spec in self._model.inputs() if spec.name != ALIGNMENT]
            with averaged_weights() if self._search.averaged else nullcontext():
                self._loss = self._loss_predictor(trainer, names, device)

    def _loss_predictor(self, trainer: Any, names: list[str], device: int) -> Any:
        try:
            return trainer.get_predictor(names, ["nll"], device)
        except KeyError as error:
            if "nll:0" not in str(error):
                raise
            raise SettingsError(
                f"build_graph of {type(self._model).__name__} creates no tensor named 'nll', which a validation "
                "reports as its loss: name the sum of the negative log-likelihoods so, scaled like the cost "
                "(tf.identity(..., name='nll')).") from None

    def open(self, trainer: Any) -> None:
        """Use the trainer's session."""
        session = session_for(trainer, Run.VALIDATION)
        self._predictor.set_session(session)
        if self._loss is not None:
            self._loss.sess = session

    def outcome(self, validation: ValidationSet) -> ValidationOutcome:
        """Translate a validation set, and score the translations.

        Raises:
            DivergenceError: the model's output is NaN.
        """
        translations = translate_lines(self._translate, self._source_vocabulary, self._target_vocabulary,
                                       validation.source, batch_tokens=self._batch_tokens,
                                       run_batches=map_over_processes, device=self._device or "cpu")
        nll = None if self._loss is None else self._mean_nll(validation)
        return ValidationOutcome(translations, corpus_scores(translations, *validation.references), nll)

    def _translate(self, **inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        self._before_batch()
        return self._predictor(**inputs)

    def _mean_nll(self, validation: ValidationSet) -> float:
        """Return the negative log-likelihood per token of the first reference, EOS included, in nats."""
        batches = teacher_forced_batches(validation.source, validation.references[0], self._source_vocabulary,
                                         self._target_vocabulary, self._batch_tokens or StreamSettings.batch_tokens)
        total = tokens = 0.0
        for mean, count in map_over_processes(self._nll_and_tokens, batches):
            total += count * mean
            tokens += count
        return total / tokens

    def _nll_and_tokens(self, arrays: Sequence[np.ndarray]) -> tuple[float, float]:
        self._before_batch()
        return float(self._loss(*arrays)[0]), float(arrays[-1])
