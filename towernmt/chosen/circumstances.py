"""What settings are chosen by: the corpus, the limit of the training, the model, and the machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from towernmt.chosen.product_rates import ProductRates
from towernmt.core.machine.processor import has_fast_bfloat16, processors
from towernmt.dataflow.order.training_data import TrainingData
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.run.settings import Settings

SHARE = 0.65
"""Of the machine's rate of products in float32, what training reaches (docs/notes/performance.md: 0.35 to 0.8). Four
trainings of `mini` on a Zen 4 reached 0.67 (two cores) to 0.78 (one), the gain by bfloat16 taken off."""
BFLOAT16 = 1.5
"""How many times as fast training is in bfloat16 where it is chosen (docs/notes/performance.md: 1.4 to 2.2)."""


@dataclass(frozen=True)
class Circumstances:
    """What is known before training begins.

    Attributes:
        target_tokens: of a pass over the corpus, with EOS; None: not known, as of a stream.
        pairs: of the corpus; None: not known.
        vocabulary: tokens of the target side.
        unigram: whether the vocabularies of both sides are unigram models.
        validation_pairs: of the first validation set.
        gpus: how many are used.
        processors: that this process may use.
        bfloat16: whether the device multiplies bfloat16 in hardware.
        rates: of products; None: not measured.
    """

    target_tokens: int | None
    pairs: int | None
    vocabulary: int
    unigram: bool
    validation_pairs: int
    gpus: int
    processors: int
    bfloat16: bool
    rates: ProductRates | None

    def updates(self, settings: Settings) -> float | None:
        """About how many updates training makes within its limit; None: there is no limit, or too little is known."""
        train = settings.train
        if train.steps and not (train.minutes or (train.epochs and self.target_tokens)):
            return float(train.steps)
        tokens, of_update = self.tokens(settings), self._tokens_of_update(settings)
        return None if tokens is None or of_update is None else tokens / of_update

    def _tokens_of_update(self, settings: Settings) -> float | None:
        """About how many target tokens an update is made from; None: not known before training begins."""
        data, cycle = settings.data, settings.train.update_cycle
        if data.memory_gb:      # the batch is found when the run begins
            return None
        if data.batch_type == "sentences":
            if not self.target_tokens or not self.pairs:
                return None
            return cycle * data.batch_tokens * self.target_tokens / self.pairs
        return cycle * data.batch_tokens / (2 if data.batch_type == "source+target" else 1)

    def passes(self, settings: Settings) -> float | None:
        """About how often training sees each pair within its limit; None: there is no limit, or too little is known."""
        train, tokens = settings.train, self.tokens(settings)
        if tokens is not None and self.target_tokens:
            return tokens / self.target_tokens
        epochs_alone = train.epochs and not (train.steps or train.minutes)
        return float(train.epochs) if epochs_alone else None

    def passes_of_updates(self, settings: Settings, updates: float) -> float | None:
        """About how often each pair is seen in so many updates; None: too little is known."""
        of_update = self._tokens_of_update(settings)
        return updates * of_update / self.target_tokens if of_update and self.target_tokens else None

    def tokens(self, settings: Settings) -> float | None:
        """About how many target tokens training sees within its limit; None: there is none, or too little is known."""
        train, limits = settings.train, []
        if train.steps:
            of_update = self._tokens_of_update(settings)
            limits.append(None if of_update is None else train.steps * of_update)
        if train.minutes:
            speed = self.tokens_per_second(settings)
            limits.append(None if speed is None else train.minutes * 60 * speed)
        if train.epochs and self.target_tokens:
            limits.append(float(train.epochs * self.target_tokens))
        known = [limit for limit in limits if limit is not None]
        return min(known) if known and len(known) == len(limits) else None

    def minutes(self, settings: Settings) -> float | None:
        """About how many minutes a run lasts that `train.minutes` limits: fewer, where another limit is nearer."""
        tokens, speed, limit = self.tokens(settings), self.tokens_per_second(settings), settings.train.minutes
        if not limit:
            return None
        return limit if tokens is None or speed is None else min(limit, tokens / speed / 60)

    def tokens_per_second(self, settings: Settings) -> float | None:
        """About how many target tokens training takes a second: right within a factor of two. None: not known, as on
        GPUs, of which none was measured.
        """
        if self.rates is None or settings.model is None or self.gpus:
            return None
        faster = BFLOAT16 if settings.train.precision == "bfloat16" else 1.0
        return SHARE * faster * self.rates.float32 / (6.0 * parameters_in_products(settings.model, self.vocabulary))


def parameters_in_products(model: object, vocabulary: int) -> float:
    """About how many parameters a target token is multiplied with, a source token for each target token included.

    Args:
        model: settings of a model. What is no Transformer is taken for one of the preset `tiny`.
        vocabulary: tokens of the target side.
    """
    depth, filters, encoder, decoder = (
        getattr(model, name, usual) for name, usual in (
            ("hidden_size", 256), ("filter_size", 1024), ("encoder_layers", 3), ("decoder_layers", 3)))
    if not hasattr(model, "filter_size"):
        depth, filters, encoder, decoder = 256, 1024, 3, 3
    layers = encoder * (4 * depth + 2 * filters) + decoder * (8 * depth + 2 * filters)
    return float(depth * (layers + vocabulary))


def needs_rates(settings: Settings, given: Collection[str], gpus: Sequence[int] | None) -> bool:
    """Whether anything is chosen by how fast the machine multiplies, which takes seconds to measure.

    Args:
        given: dotted keys that the user has set.
        gpus: the numbers of those used; None: the processors are.
    """
    return bool(settings.train.minutes) and not gpus or (
        "train.precision" not in given and _multiplies_bfloat16(gpus))


def circumstances_of(data: TrainingData, gpus: Sequence[int] | None, rates: ProductRates | None) -> Circumstances:
    """The circumstances of a training on this machine.

    Args:
        gpus: the numbers of those used; None: the processors are.
    """
    prepared = data if isinstance(data, PreparedData) else None
    return Circumstances(
        target_tokens=prepared.target_tokens + prepared.pairs if prepared else None,
        pairs=prepared.pairs if prepared else None,
        vocabulary=len(data.target_vocabulary),
        unigram=data.source_vocabulary.has_probabilities and data.target_vocabulary.has_probabilities,
        validation_pairs=len(data.valid_source), gpus=len(gpus or ()),
        processors=processors(), bfloat16=_multiplies_bfloat16(gpus), rates=rates)


def _multiplies_bfloat16(gpus: Sequence[int] | None) -> bool:
    return bool(gpus) or has_fast_bfloat16()
