"""`AutomaticSetting`, the result of the rules for automatic settings, and functions that several rules call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from towernmt.models.architectures import ARCHITECTURES, architecture
from towernmt.models.model_location import is_findable
from towernmt.models.model_settings import TransformerSettings
from towernmt.run.run_settings import Settings
from towernmt.run.training_conditions import TrainingConditions


class AutomaticSetting(NamedTuple):
    """An automatic value of a setting or option, with its reason.

    Attributes:
        key: dotted key of a setting, or an option: `--towers`.
        value: its value.
        reason: end of a sentence: "because ...".
    """

    key: str
    value: Any
    reason: str

    @property
    def sentence(self) -> str:
        """The setting and its reason, for the log."""
        return f"Automatic setting: {self.key}={self.value}, because {self.reason}."


Rule = Callable[[Settings, TrainingConditions], Iterator[AutomaticSetting]]


FEW_PASSES = 6
"""Number of passes from which a model learns pairs by heart."""
MANY_PASSES = 30
"""Number of passes over new pairs from which a trained model forgets much, although as many general pairs are mixed in:
it did in 39 passes, and not in 19 (docs/notes/measurements.md, "A trained model in another domain")."""


def is_transformer(settings: Settings) -> bool:
    """Whether the model is a Transformer, or a custom class with the same settings that does not override `optimizer`.

    Classes that are derived from `Transformer` usually change little, so they get the same automatic settings. Then
    the scores of both can be compared, too.
    """
    return isinstance(settings.model, TransformerSettings) and not overrides(
        settings.architecture, "optimizer", "make_optimizer")


def overrides(name: str, *attributes: str) -> bool:
    """Return whether a custom model replaces one of these attributes of `NMTModel`; True if that is not known.

    Args:
        name: name of an architecture or of a custom model, see `Settings`.
        attributes: names of methods or other attributes.
    """
    if name in ARCHITECTURES:
        return False        # without TensorFlow
    if not is_findable(name):
        return True
    from towernmt.models.interface import NMTModel

    model = architecture(name).model        # a function that makes a model has none of the attributes
    return any(getattr(model, each, ...) is not getattr(NMTModel, each) for each in attributes)


def is_post_norm(settings: Settings) -> bool:
    """Whether the normalisation of a Transformer follows its sublayers."""
    return "n" in getattr(settings.model, "postprocess", "")


def updates_before_patience_ends(settings: Settings) -> int:
    """Return the minimum number of updates of a run that only `train.stop_patience` ends.

    0 if the run has another limit, or if its validations follow the clock.
    """
    train = settings.train
    limited = train.steps or train.epochs or train.minutes
    return 0 if limited else train.stop_patience * settings.validation.steps


def round_down(number: float) -> int:
    """Return a number rounded down to two significant digits, for the reason of an estimate."""
    integer = int(number)
    unit = 10 ** max(0, len(str(integer)) - 2)
    return integer // unit * unit
