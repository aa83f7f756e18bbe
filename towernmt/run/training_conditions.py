"""Facts about the data and the machine that are known before training begins, and estimates from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from towernmt.core.gpus import smallest_memory
from towernmt.core.machine import has_fast_bfloat16, processors
from towernmt.run.product_rates import ProductRates
from towernmt.run.run_settings import Settings

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData

RATE_FRACTION = 0.65
"""Fraction of the machine's rate of float32 products that training reaches: 0.35 to 0.8 in docs/notes/performance.md.
Four trainings of `mini` on a Zen 4 reached 0.67 (two cores) to 0.78 (one core), without the gain of bfloat16."""
BFLOAT16_SPEEDUP = 1.5
"""Speed of training in bfloat16 relative to float32, if bfloat16 is used: 1.4 to 2.2 in docs/notes/performance.md."""


@dataclass(frozen=True)
class TrainingConditions:
    """Facts about data and machine that are known before training begins.

    Attributes:
        target_tokens: number of target tokens in one pass over the corpus, EOS included; None if unknown, as for a
            stream.
        pairs: number of sentence pairs in the corpus; None if unknown.
        vocabulary: size of the target vocabulary.
        unigram: whether both vocabularies are unigram models.
        validation_pairs: number of sentence pairs in the first validation set.
        gpus: number of GPUs that train, in all processes; 0 for the CPU.
        processors: number of processors that this process may use.
        bfloat16: whether the device has hardware for bfloat16 products; None if that is unknown.
        rates: measured rates of matrix products; None if not measured.
        gpu_memory: memory of the smallest of these GPUs in bytes; 0 if unknown.
        validation_sets: number of validation sets.
        has_only_general_sets: whether all validation sets are those of general data.
        is_mixed: whether general data or translated pairs are mixed in; `target_tokens` and `pairs` are those of the
            new data.
        is_translated: whether the pairs that are mixed in are translations of monolingual text.
        processes: number of processes that train together.
    """

    target_tokens: int | None
    pairs: int | None
    vocabulary: int
    unigram: bool
    validation_pairs: int
    gpus: int
    processors: int
    bfloat16: bool | None
    rates: ProductRates | None
    gpu_memory: int = 0
    validation_sets: int = 1
    has_only_general_sets: bool = False
    is_mixed: bool = False
    is_translated: bool = False
    processes: int = 1

    @property
    def has_general_data(self) -> bool:
        """Whether general data are mixed in, which keep a trained model from forgetting."""
        return self.is_mixed and not self.is_translated

    def has_deciding_set(self, settings: Settings) -> bool:
        """Return whether validation may choose checkpoints and end the run; see `validation_decides`."""
        return bool(self.validation_pairs) and (bool(settings.validation.metric_set) or not self.has_only_general_sets)

    def updates(self, settings: Settings) -> float | None:
        """Estimate the number of updates within the training limit; None without a limit, or if too little is known."""
        train = settings.train
        if train.steps and not (train.minutes or (train.epochs and self.target_tokens)):
            return float(train.steps)
        tokens, of_update = self.tokens(settings), self._tokens_of_update(settings)
        return None if tokens is None or of_update is None else tokens / of_update

    def _tokens_of_update(self, settings: Settings) -> float | None:
        """Estimate the number of target tokens per update; None if it is unknown before training begins.

        A batch has at most the tokens of one pass, because it does not extend over the end of a pass.
        """
        data, per_pass = settings.data, self.tokens_per_pass(settings)
        if data.memory_gb:      # which determines the batch size when the run begins
            return None
        tokens = data.batch_tokens / (2 if data.batch_type == "source+target" else 1)
        if data.batch_type == "sentences":
            if not self.target_tokens or not self.pairs:
                return None
            tokens = data.batch_tokens * self.target_tokens / self.pairs
        return settings.train.update_cycle * (min(tokens, per_pass) if per_pass else tokens)

    def tokens_per_pass(self, settings: Settings) -> float | None:
        """Estimate the target tokens of a pass over the corpus, with the general data; None if unknown."""
        if self.target_tokens is None:
            return None
        return self.target_tokens / (1 - settings.data.general_share) if self.is_mixed else float(self.target_tokens)

    def passes(self, settings: Settings) -> float | None:
        """Estimate the number of passes within the training limit; None without a limit, or if too little is known."""
        train, tokens, per_pass = settings.train, self.tokens(settings), self.tokens_per_pass(settings)
        if tokens is not None and per_pass:
            return tokens / per_pass
        epochs_alone = train.epochs and not (train.steps or train.minutes)
        return float(train.epochs) if epochs_alone else None

    def updates_per_pass(self, settings: Settings) -> float | None:
        """Estimate the number of updates in one pass over the corpus; None if too little is known."""
        of_update, per_pass = self._tokens_of_update(settings), self.tokens_per_pass(settings)
        return per_pass / of_update if of_update and per_pass else None

    def passes_of_updates(self, settings: Settings, updates: float) -> float | None:
        """Estimate the number of passes over the corpus in a number of updates; None if too little is known."""
        per_pass = self.updates_per_pass(settings)
        return updates / per_pass if per_pass else None

    def tokens(self, settings: Settings) -> float | None:
        """Estimate the target tokens within the training limit; None without a limit, or if too little is known."""
        train, limits = settings.train, []
        if train.steps:
            of_update = self._tokens_of_update(settings)
            limits.append(None if of_update is None else train.steps * of_update)
        if train.minutes:
            speed = self.tokens_per_second(settings)
            limits.append(None if speed is None else train.minutes * 60 * speed)
        if train.epochs and (per_pass := self.tokens_per_pass(settings)):
            limits.append(train.epochs * per_pass)
        known = [limit for limit in limits if limit is not None]
        return min(known) if known and len(known) == len(limits) else None

    def minutes(self, settings: Settings) -> float | None:
        """Estimate the duration of a run that `train.minutes` limits, in minutes; another limit may end it earlier."""
        tokens, speed, limit = self.tokens(settings), self.tokens_per_second(settings), settings.train.minutes
        if not limit:
            return None
        return limit if tokens is None or speed is None else min(limit, tokens / speed / 60)

    def tokens_per_second(self, settings: Settings) -> float | None:
        """Estimate the target tokens per second within a factor of two; None if unknown, as on GPUs (not measured)."""
        if self.rates is None or settings.model is None or self.gpus:
            return None
        faster = BFLOAT16_SPEEDUP if settings.train.precision == "bfloat16" else 1.0
        operations = 6.0 * passes_of_batch(settings.model) * parameters_in_products(settings.model, self.vocabulary)
        return RATE_FRACTION * faster * self.rates.float32 / operations


def passes_of_batch(model: object) -> int:
    """Return how often an update computes each batch: twice with R-Drop, which compares two passes."""
    return 2 if getattr(model, "r_drop_alpha", 0.0) else 1


def parameters_in_products(model: object, vocabulary: int) -> float:
    """Estimate the number of parameters in the matrix products of one source token and one target token.

    Args:
        model: settings of a model; a model other than a Transformer is estimated as the preset `tiny`.
        vocabulary: size of the target vocabulary.
    """
    depth, filters, encoder, decoder = (
        getattr(model, name, usual) for name, usual in (
            ("hidden_size", 256), ("filter_size", 1024), ("encoder_layers", 3), ("decoder_layers", 3)))
    if not hasattr(model, "filter_size"):
        depth, filters, encoder, decoder = 256, 1024, 3, 3
    layers = encoder * (4 * depth + 2 * filters) + decoder * (8 * depth + 2 * filters)
    return float(depth * (layers + vocabulary))


def needs_product_rates(settings: Settings, specified: Collection[str], gpus: Sequence[int] | None) -> bool:
    """Return whether an automatic setting depends on the rate of matrix products, whose measurement takes seconds.

    Args:
        settings: specified settings.
        specified: dotted keys that the user specifies.
        gpus: numbers of the GPUs; None for the CPU.
    """
    if gpus:
        return "train.precision" not in specified and _multiplies_bfloat16(gpus) is None
    return bool(settings.train.minutes) or "train.precision" not in specified and bool(_multiplies_bfloat16(gpus))


def training_conditions(data: TrainingData, gpus: Sequence[int] | None, rates: ProductRates | None,
                        processes: int = 1) -> TrainingConditions:
    """Return the conditions of training on this machine, or by several processes on machines like this one.

    Args:
        data: training data.
        gpus: numbers of the GPUs of each process; None for the CPU.
        rates: rates of matrix products; None if not measured.
        processes: number of processes that train together.
    """
    from towernmt.dataflow.batches.mixed_data import MixedData, has_only_general_sets
    from towernmt.dataflow.preparation.prepared_data import PreparedData

    prepared = data if isinstance(data, (PreparedData, MixedData)) else None
    return TrainingConditions(
        target_tokens=prepared.target_tokens + prepared.pairs if prepared else None,
        pairs=prepared.pairs if prepared else None,
        vocabulary=len(data.target_vocabulary),
        unigram=data.source_vocabulary.has_probabilities and data.target_vocabulary.has_probabilities,
        validation_pairs=len(data.valid_source), gpus=processes * len(gpus or ()),
        processors=processors(), bfloat16=_multiplies_bfloat16(gpus), rates=rates, gpu_memory=smallest_memory(gpus),
        validation_sets=len(data.validation_sets), has_only_general_sets=has_only_general_sets(data),
        is_mixed=isinstance(data, MixedData),
        is_translated=isinstance(data, MixedData) and data.translated, processes=processes)


def has_general_data(data: TrainingData | None) -> bool:
    """Return whether general data are mixed into training data, which keep a trained model from forgetting."""
    from towernmt.dataflow.batches.mixed_data import MixedData

    return isinstance(data, MixedData) and not data.translated


BFLOAT16_CAPABILITY = (8, 0)
"""The first compute capability of NVIDIA's GPUs with hardware for bfloat16."""


def _multiplies_bfloat16(gpus: Sequence[int] | None) -> bool | None:
    """Return whether the processor, or each of these GPUs, has hardware for bfloat16 products; None if unknown."""
    if not gpus:
        return has_fast_bfloat16()
    from towernmt.core.session import gpu_capability  # imports TensorFlow

    capabilities = [gpu_capability(gpu) for gpu in gpus]
    return None if None in capabilities else all(
        capability >= BFLOAT16_CAPABILITY for capability in capabilities if capability is not None)
