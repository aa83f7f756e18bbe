"""Which models CTranslate2 can express exactly; the others are refused by the name of the setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import factors_of
from towernmt.models.transformer.settings import TransformerSettings
from towernmt.predict.trained_model import TrainedModel

FACTOR_SEPARATOR = "\uffe8"
"""By which CTranslate2 splits a source token from its factors."""


def pre_norm(settings: TransformerSettings) -> bool:
    """Whether the stacks are pre-norm; else they are post-norm. Only for settings that `refusal` lets pass."""
    return "n" in settings.preprocess


def check_expressible(trained: TrainedModel) -> TransformerSettings:
    """The settings of a model that CTranslate2 can express.

    Raises:
        SettingsError: it cannot express the model; the message names the setting.
    """
    from towernmt.models.transformer.model import Transformer

    architecture = trained.run.architecture()
    if type(trained.model) is not Transformer:
        raise SettingsError(f"architecture={architecture}: CTranslate2 has only Transformers like `transformer`; "
                            "choose another --format.")
    settings = trained.model.settings
    if problem := refusal(settings):
        raise SettingsError(f"{problem}; choose another --format.")
    for vocabulary in (trained.source_vocabulary, trained.target_vocabulary):
        check_pieces(vocabulary)
    return settings


def refusal(settings: TransformerSettings) -> str:
    """What CTranslate2 cannot express of the settings, in one clause; "" for nothing."""
    return next((text(settings) for fits, text in _RULES if not fits(settings)), "")


def _sequences(settings: TransformerSettings) -> tuple[str, str]:
    """What stands before and behind each sublayer, without dropout."""
    return settings.preprocess.replace("d", ""), settings.postprocess.replace("d", "")


_RULES: Sequence[tuple[Callable[[TransformerSettings], bool], Callable[[TransformerSettings], str]]] = (
    (lambda s: s.decoder_cell == "attention",
     lambda s: f"model.decoder_cell={s.decoder_cell}: CTranslate2's decoder has self-attention alone"),
    (lambda s: _sequences(s) in (("n", "r"), ("", "rn")),
     lambda s: f"model.preprocess='{s.preprocess}' with model.postprocess='{s.postprocess}': CTranslate2 has only "
               "pre-norm ('n' and 'dr') and post-norm ('' and 'drn')"),
)
"""Whether the settings fit, and what to say if they do not."""


def check_pieces(vocabulary: Vocabulary) -> None:
    """CTranslate2 knows tokens by their text: refuse a vocabulary in which two have one.

    Raises:
        SettingsError: two tokens are written the same, or one holds the separator of factors.
    """
    factors = factors_of(vocabulary)
    for one in (vocabulary, *factors):
        pieces = [one.id_to_piece(id) for id in range(one.size)]
        if len(set(pieces)) < len(pieces):
            raise SettingsError("vocabulary: two of its tokens are written the same, and CTranslate2 knows tokens by "
                                "their text alone; choose another --format.")
        if factors and any(FACTOR_SEPARATOR in piece for piece in pieces):
            raise SettingsError(f"vocabulary: a token holds {FACTOR_SEPARATOR} (U+FFE8), by which CTranslate2 splits "
                                "factors; choose another --format.")
