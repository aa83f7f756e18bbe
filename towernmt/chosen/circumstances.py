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
        validation_pairs: of the first validation set.
        gpus: how many are used.
        processors: that this process may use.
        bfloat16: whether the device multiplies bfloat16 in hardware.
        rates: of products; None: not measured.
    """

    target_tokens: int | None
    pairs: int | None
    vocabulary: int
    validation_pairs: int
    gpus: int
    processors: int
    bfloat16: bool
    rates: ProductRates | None

    def updates(self, settings: Settings) -> float | None:
        """About how many updates training makes within its limit; None: there is no limit, or too little is known."""
        tokens = self.tokens(settings)
        return None if tokens is None else tokens / (self._tokens_of_batch(settings) * settings.train.update_cycle)

    def _tokens_of_batch(self, settings: Settings) -> float:
        """About how many target tokens a batch has."""
        size = float(settings.data.batch_tokens)
        if settings.data.batch_type == "source+target":
            return size / 2
        if settings.data.batch_type == "sentences" and self.target_tokens and self.pairs:
            return size * self.target_tokens / self.pairs
        return size

    def passes(self, settings: Settings) -> float | None:
        """About how often training sees each pair within its limit; None: there is no limit, or too little is known."""
        tokens = self.tokens(settings)
        if tokens is None or not self.target_tokens:
            return float(settings.train.epochs) or None
        return tokens / self.target_tokens

    def tokens(self, settings: Settings) -> float | None:
        """About how many target tokens training sees within its limit; None: there is none, or too little is known."""
        train, speed, limits = settings.train, self.tokens_per_second(settings), []
        if train.steps:
            limits.append(train.steps * train.update_cycle * self._tokens_of_batch(settings))
        if train.minutes and speed is not None:
            limits.append(train.minutes * 60 * speed)
        if train.epochs and self.target_tokens:
            limits.append(float(train.epochs * self.target_tokens))
        return min(limits, default=None)

    def tokens_per_second(self, settings: Settings) -> float | None:
        """About how many target tokens training takes a second: right within a factor of two. None: not known."""
        if self.rates is None or settings.model is None:
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
    return bool(settings.train.minutes) or ("train.precision" not in given and _multiplies_bfloat16(gpus))


def circumstances_of(data: TrainingData, gpus: Sequence[int] | None, rates: ProductRates | None) -> Circumstances:
    """The circumstances of a training on this machine.

    Args:
        gpus: the numbers of those used; None: the processors are.
    """
    prepared = data if isinstance(data, PreparedData) else None
    return Circumstances(
        target_tokens=prepared.target_tokens + prepared.pairs if prepared else None,
        pairs=prepared.pairs if prepared else None,
        vocabulary=len(data.target_vocabulary), validation_pairs=len(data.valid_source), gpus=len(gpus or ()),
        processors=processors(), bfloat16=_multiplies_bfloat16(gpus), rates=rates)


def _multiplies_bfloat16(gpus: Sequence[int] | None) -> bool:
    return bool(gpus) or has_fast_bfloat16()
