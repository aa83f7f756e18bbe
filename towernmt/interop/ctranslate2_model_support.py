"""Check whether CTranslate2 can express a model exactly; if not, name the setting that prevents it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import factors_of
from towernmt.interop.ctranslate2_loader import FACTOR_SEPARATOR, pieces_of_vocabulary
from towernmt.interop.export import UnsupportedModelError, transformer_settings, unconsidered_setting
from towernmt.models.model_settings import TransformerSettings

if TYPE_CHECKING:
    from towernmt.predict.trained_model import TrainedModel


def pre_norm(settings: TransformerSettings) -> bool:
    """Return whether the stacks are pre-norm rather than post-norm, for settings that CTranslate2 can express."""
    return "n" in settings.preprocess


def check_ctranslate2_support(trained: TrainedModel) -> TransformerSettings:
    """Return the settings of a model, if CTranslate2 can express it.

    Raises:
        UnsupportedModelError: CTranslate2 cannot express the model; the message names the setting.
    """
    settings = transformer_settings(trained, "CTranslate2")
    if problem := unsupported_by_ctranslate2(settings):
        raise UnsupportedModelError(f"{problem}.")
    for vocabulary in (trained.source_vocabulary, trained.target_vocabulary):
        check_pieces(vocabulary)
    return settings


def unsupported_by_ctranslate2(settings: TransformerSettings) -> str:
    """Return a clause with the first setting that CTranslate2 cannot express; "" if it can express all."""
    if problem := unconsidered_setting(settings, "CTranslate2"):
        return problem
    for name, values in _CHOICES.items():
        if (value := getattr(settings, name)) not in values:
            return f"model.{name}={value}: CTranslate2 supports only {', '.join(values)}"
    return next((text(settings) for fits, text in _RULES if not fits(settings)), "")


def _sequences(settings: TransformerSettings) -> tuple[str, str]:
    """Return the operations before and after each sublayer, without dropout."""
    return settings.preprocess.replace("d", ""), settings.postprocess.replace("d", "")


ACTIVATION_NAMES = {"relu": "RELU", "swish": "SWISH", "gelu_sigmoid": "GELUSigmoid", "gelu_tanh": "GELUTanh",
                    "glu": "Sigmoid", "swiglu": "SWISH", "geglu": "GELU"}
"""CTranslate2's name of the activation in each kind of feed-forward layers."""
_CHOICES = {"positions": ("sinusoidal", "learned", "relative", "rotary"), "norm": ("layer", "rms"),
            "start": ("bos", "zero"), "feed_forward": tuple(ACTIVATION_NAMES), "source_factors": ("sum", "concat"),
            "tie_embeddings": ("all", "target", "none")}
"""The values of settings that CTranslate2 can express."""
_RULES: Sequence[tuple[Callable[[TransformerSettings], bool], Callable[[TransformerSettings], str]]] = (
    (lambda s: s.decoder_cell == "attention",
     lambda s: f"model.decoder_cell={s.decoder_cell}: CTranslate2's decoder supports only self-attention"),
    (lambda s: _sequences(s) in (("n", "r"), ("", "rn")),
     lambda s: f"model.preprocess='{s.preprocess}' with model.postprocess='{s.postprocess}': CTranslate2 supports only "
               "pre-norm ('n' and 'dr') and post-norm ('' and 'drn')"),
)
"""Pairs of a test of the settings and the message if the test fails."""


def check_pieces(vocabulary: Vocabulary) -> None:
    """Check that the texts of a vocabulary's tokens are unique, because CTranslate2 identifies tokens by their text.

    Raises:
        UnsupportedModelError: two tokens have the same text, or a token contains the separator of factors.
    """
    factors = factors_of(vocabulary)
    for table in (vocabulary, *factors):
        pieces = pieces_of_vocabulary(table)
        if len(set(pieces)) < len(pieces):
            raise UnsupportedModelError("vocabulary: two of its tokens have the same text, and CTranslate2 identifies "
                                        "tokens by their text.")
        if factors and any(FACTOR_SEPARATOR in piece for piece in pieces):
            raise UnsupportedModelError(f"vocabulary: a token contains {FACTOR_SEPARATOR} (U+FFE8), which separates "
                                        "factors in CTranslate2.")
