"""Marian's `special:model.yml` as our settings; what our Transformer does not have is refused by the option's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.export.marian.options import FEED_FORWARDS
from towernmt.models.transformer.settings import TransformerSettings
from towernmt.predict.decoding.settings import SearchSettings

_ACTIVATIONS = {theirs: ours for ours, theirs in FEED_FORWARDS.items()}


def transformer_settings(options: Mapping[str, Any], origin: str, **tables: Any) -> TransformerSettings:
    """The settings of a model.

    Args:
        options: of `special:model.yml`.
        origin: the file, for messages.
        tables: `tie_embeddings` and the sizes of the vocabularies.
    Raises:
        SettingsError: the model has a part that ours does not have, or an option is missing.
    """
    if problem := refusal(options):
        raise SettingsError(f"{origin}: {problem}; this model cannot be imported.")
    heads, depth = _number(options, "transformer-heads", origin), _number(options, "dim-emb", origin)
    layers = _number(options, "dec-depth", origin)
    shown = str(options.get("transformer-guided-alignment-layer", "last"))
    return TransformerSettings(
        hidden_size=depth, filter_size=_number(options, "transformer-dim-ffn", origin), heads=heads,
        encoder_layers=_number(options, "enc-depth", origin), decoder_layers=layers, preprocess="", postprocess="drn",
        feed_forward=_ACTIVATIONS[options.get("transformer-ffn-activation", "relu")],
        decoder_cell="ssru" if options.get("transformer-decoder-autoreg") == "rnn" else "attention",
        guided_alignment_layer=int(shown) if shown.isdecimal() and 0 < int(shown) <= layers else layers,
        attention_biases=True, start="zero", **tables)


def search_settings(decoder: Mapping[str, Any]) -> SearchSettings:
    """How `decoder.yml` searches; without it, and for what it does not tell, our own defaults.

    Marian divides a log-probability by its length to the power of `normalize`.
    """
    found: dict[str, Any] = {}
    beam, alpha, penalty, longest = (decoder.get(name) for name in (
        "beam-size", "normalize", "word-penalty", "max-length-factor"))
    if isinstance(beam, int) and beam >= 1:
        found["beam_size"] = beam
    if isinstance(alpha, (int, float)) and alpha >= 0:
        found |= {"length_normalization": "average", "length_penalty": float(alpha)}
    if isinstance(penalty, (int, float)) and penalty <= 0:
        found["word_reward"] = -float(penalty) or 0.0
    if isinstance(longest, (int, float)) and longest > 0:
        found |= {"max_length_factor": float(longest), "max_length_constant": 0}
    return SearchSettings(**found)


def refusal(options: Mapping[str, Any]) -> str:
    """What our Transformer does not have of a model, in one clause; "" for nothing."""
    return next((text(options) for fits, text in _RULES if not fits(options)), "")


def _off(name: str, what: str) -> tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], str]]:
    """A rule: the option must be off."""
    return lambda o: not o.get(name), lambda o: f"{name} is {o.get(name)}: {what}"


def _order(options: Mapping[str, Any], name: str) -> str:
    """What a sequence does where nothing is dropped."""
    return str(options.get(name) or "").replace("d", "")


_RULES: Sequence[tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], str]]] = (
    (lambda o: o.get("type") == "transformer",
     lambda o: f"it is of the type {o.get('type')}, and of Marian's types only transformer has its like here"),
    (lambda o: o.get("transformer-decoder-autoreg", "self-attention") in ("self-attention", "rnn"),
     lambda o: f"transformer-decoder-autoreg is {o.get('transformer-decoder-autoreg')}: the decoder here has "
               "self-attention or an SSRU, and no average attention (AAN)"),
    (lambda o: o.get("transformer-decoder-autoreg") != "rnn" or o.get("dec-cell") == "ssru",
     lambda o: f"dec-cell is {o.get('dec-cell')}: the decoder here has self-attention or an SSRU (ssru)"),
    (lambda o: not _order(o, "transformer-preprocess") and _order(o, "transformer-postprocess") == "an",
     lambda o: f"transformer-preprocess is '{o.get('transformer-preprocess')}' and transformer-postprocess "
               f"'{o.get('transformer-postprocess')}': only post-norm ('' and 'dan') is the same in both (Marian's "
               "pre-norm leaves keys and values as they are)"),
    (lambda o: not _order(o, "transformer-postprocess-emb"),
     lambda o: f"transformer-postprocess-emb is '{o.get('transformer-postprocess-emb')}': embeddings are not "
               "normalised here"),
    (lambda o: not _order(o, "transformer-postprocess-top"),
     lambda o: f"transformer-postprocess-top is '{o.get('transformer-postprocess-top')}': a post-norm stack has "
               "nothing behind it here"),
    (lambda o: o.get("transformer-ffn-activation", "relu") in list(_ACTIVATIONS),
     lambda o: f"transformer-ffn-activation is {o.get('transformer-ffn-activation')}: here there are "
               f"{', '.join(_ACTIVATIONS)}"),
    (lambda o: o.get("transformer-ffn-depth", 2) == 2,
     lambda o: f"transformer-ffn-depth is {o.get('transformer-ffn-depth')}: feed-forward layers have two maps here"),
    (lambda o: o.get("transformer-decoder-ffn-depth", 0) in (0, 2),
     lambda o: f"transformer-decoder-ffn-depth is {o.get('transformer-decoder-ffn-depth')}: feed-forward layers have "
               "two maps here"),
    (lambda o: o.get("transformer-decoder-dim-ffn", 0) in (0, o.get("transformer-dim-ffn")),
     lambda o: f"transformer-decoder-dim-ffn is {o.get('transformer-decoder-dim-ffn')}: both stacks have one filter "
               "size here"),
    _off("transformer-no-projection", "attention always has its output map here"),
    _off("transformer-train-positions", "Marian does not scale embeddings then, as all models here do"),
    _off("transformer-tied-layers", "layers do not share weights here"),
    _off("transformer-rnn-projection", "an SSRU has no output map here"),
    _off("transformer-pool", "the source is not pooled here"),
    _off("lemma-dim-emb", "it has Marian's factors"),
    _off("factors-dim-emb", "it has Marian's factors"),
    _off("lemma-dependency", "it has Marian's factors"),
    _off("input-types", "it has other inputs than one sentence"),
    _off("ulr", "it has universal language representations"),
    _off("right-left", "it writes from right to left"),
    (lambda o: len(o.get("dim-vocabs") or []) == 2,
     lambda o: f"dim-vocabs is {o.get('dim-vocabs')}: a model here has one source and one target"),
)
"""Whether the options fit, and what to say if they do not."""


def _number(options: Mapping[str, Any], name: str, origin: str) -> int:
    value = options.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"{origin}: {name} is {value!r} in special:model.yml, where a number is needed: the file "
                            "is damaged, or no Marian model.")
    return value
