"""Which models Marian can express exactly; the others are refused by the name of the setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from towernmt.core.errors import SettingsError
from towernmt.export.marian.options import FEED_FORWARDS
from towernmt.models.transformer.settings import TransformerSettings
from towernmt.predict.trained_model import TrainedModel

INT8_DEPTH = 64
"""By what the kernels of 8-bit products divide the depth that they sum over."""


def check_expressible(trained: TrainedModel, precision: str) -> TransformerSettings:
    """The settings of a model that Marian can express.

    Raises:
        SettingsError: it cannot express the model, or not in this precision; the message names the setting.
    """
    from towernmt.models.transformer.model import Transformer

    if type(trained.model) is not Transformer:
        raise SettingsError(f"architecture={trained.run.architecture()}: of ours, Marian has the Transformer alone; "
                            "choose another --format.")
    settings = trained.model.settings
    if problem := refusal(settings, precision):
        raise SettingsError(f"{problem}. The preset `student` fits; or choose another --format.")
    if precision == "int8" and any(vocabulary.kind != "sentencepiece" for vocabulary in (
            trained.source_vocabulary, trained.target_vocabulary)):
        raise SettingsError("precision int8: its engines have SentencePiece alone, and the run has another kind of "
                            "vocabulary: take --precision float32, or prepare data with --vocab-kind unigram or bpe.")
    return settings


def refusal(settings: TransformerSettings, precision: str) -> str:
    """What Marian cannot express of the settings in a precision, in one clause; "" for nothing."""
    rules = [*_RULES, *(_INT8_RULES if precision == "int8" else ())]
    return next((text(settings) for fits, text in rules if not fits(settings)), "")


def _order(sequence: str) -> str:
    """What a sequence does where nothing is dropped."""
    return sequence.replace("d", "")


_RULES: Sequence[tuple[Callable[[TransformerSettings], bool], Callable[[TransformerSettings], str]]] = (
    (lambda s: s.start == "zero",
     lambda s: f"model.start={s.start}: Marian's decoder starts from an embedding of zeros (model.start=zero)"),
    (lambda s: not _order(s.preprocess) and _order(s.postprocess) == "rn",
     lambda s: f"model.preprocess='{s.preprocess}' with model.postprocess='{s.postprocess}': Marian's pre-norm leaves "
               "keys and values as they are, so only post-norm ('' and 'drn') is the same in both"),
    (lambda s: s.norm_epsilon <= 1e-5, lambda s: f"model.norm_epsilon={s.norm_epsilon}: Marian's is 1e-6"),
    (lambda s: s.norm == "layer", lambda s: f"model.norm={s.norm}: Marian has layer normalisation"),
    (lambda s: s.positions == "sinusoidal",
     lambda s: f"model.positions={s.positions}: Marian has sinusoidal ones, or one learned table for both stacks"),
    (lambda s: not s.first_position,
     lambda s: f"model.first_position={s.first_position}: Marian counts positions from 0"),
    (lambda s: s.source_end, lambda s: "model.source_end=false: Marian's encoder reads EOS behind the source"),
    (lambda s: s.feed_forward in FEED_FORWARDS,
     lambda s: f"model.feed_forward={s.feed_forward}: Marian has {', '.join(FEED_FORWARDS)}, and no gated layers"),
    (lambda s: not s.source_factor_vocab_sizes,
     lambda s: f"model.source_factors={s.source_factors}: Marian's factors are of another kind"),
    (lambda s: s.hidden_size >= 4, lambda s: f"model.hidden_size={s.hidden_size}: Marian's positions need 4 or more"),
)
"""Whether the settings fit, and what to say if they do not."""
_INT8_RULES: Sequence[tuple[Callable[[TransformerSettings], bool], Callable[[TransformerSettings], str]]] = (
    (lambda s: s.hidden_size % INT8_DEPTH == 0,
     lambda s: f"model.hidden_size={s.hidden_size}: 8-bit products need a multiple of {INT8_DEPTH}"),
    (lambda s: s.filter_size % INT8_DEPTH == 0,
     lambda s: f"model.filter_size={s.filter_size}: 8-bit products need a multiple of {INT8_DEPTH}"),
    (lambda s: s.tie_embeddings != "none",
     lambda s: f"model.tie_embeddings={s.tie_embeddings}: the 8-bit engines share the tables of target and softmax "
               "(all, or target)"),
    (lambda s: s.decoder_cell == "ssru",
     lambda s: f"model.decoder_cell={s.decoder_cell}: the engines of browsers decode with SSRUs "
               "(model.decoder_cell=ssru)"),
)
