"""Check whether CTranslate2 can answer a request, and whether its answer equals that of TensorFlow's graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.predict.lines.line_options import PLAIN, LineOptions, LineRequest
from towernmt.predict.lines.terminology import AnchoredPhrase
from towernmt.predict.search.search_settings import SearchSettings

ENGINE = "--engine ctranslate2"
SEED = "its samples do not have a seed for each sentence"
BEGINNING_ONLY = "it does not forbid a phrase at the beginning only"
EXPRESSED_SETTINGS = frozenset((
    "averaged", "beam_size", "diversity", "epsilon", "length_normalization", "length_penalty", "max_length_constant",
    "max_length_factor", "max_tokens", "min_length", "min_length_factor", "n_best", "no_repeat_ngram", "patience",
    "seed", "selection", "shortlist_frequent", "shortlist_size", "stopping", "temperature", "top_k", "top_p",
    "word_reward"))
"""Search settings that may have any value, except in the combinations of `_settings` and `difference`. A setting that
is neither here nor in `SUPPORTED_VALUES` must have its default, so that CTranslate2 never ignores a new setting."""
SUPPORTED_VALUES: dict[str, tuple[Any, str]] = {
    "beam_groups": (1, "it has no groups of beams"),
    "coverage_penalty": (0.0, "its coverage penalty is computed differently"),
    "repetition_penalty": (1.0, "its repetition penalty changes logits, not log-probabilities"),
    "shortlist": ("", "it does not support shortlists of this kind"),
}
"""Search settings with the only value that CTranslate2 supports, and the reason."""
NEUTRAL_VALUES: dict[str, Any] = {"no_repeat_ngram": 0, "min_length": 0, "min_length_factor": 0.0}
"""Search settings that forbid tokens, with the value that forbids none. CTranslate2 distributes the probability of
forbidden tokens over the others, which can change the hypotheses of a beam."""
INPUTS: dict[str, str] = {
    "continuation": "its prefixes end at the end of a token",
    "constraints": "it does not support lexical constraints",
}
"""Inputs of the graph's search that CTranslate2 does not support, and the reason."""
OPTIONS: dict[str, str] = {
    "ensemble_weights": "it does not support ensembles",
    "ensemble_mean": "it does not support ensembles",
    "partial_word": INPUTS["continuation"],
    "constraints": INPUTS["constraints"],
    "terminology": INPUTS["constraints"],
}
"""Command-line options that are not supported, by argument name, and the reason."""
_LINE_OPTIONS = {"partial_word": "continuation", "constraints": "constraints", "terminology": "constraints"}
"""Fields of `LineOptions` that are not supported, and their input of the graph's search."""
SUPPORTED_INPUTS = frozenset({"source", "source_length", "prefix", "avoid"})


class UnsupportedSetting(NamedTuple):
    """A search setting that CTranslate2 does not support.

    Attributes:
        name: name of the setting.
        value: its value.
        supported: the value that CTranslate2 supports.
        reason: a clause.
    """

    name: str
    value: Any
    supported: Any
    reason: str


def difference(search: SearchSettings, inputs: Collection[str] = ()) -> str:
    """Return why the result of CTranslate2 would differ from that of the graph; "" if it is the same.

    Results are the same except near-ties: sums of float32 in another order can exchange hypotheses with equal scores.
    `CTranslate2Search.difference` also considers the content of the inputs.

    Args:
        search: settings of the search.
        inputs: names of the inputs of the graph's search.
    """
    if problem := _unsupported_input(inputs):
        return ": ".join(problem)
    if unsupported := unsupported_setting(search, inputs):
        return f"{unsupported.name}={unsupported.value}: {unsupported.reason}"
    if search.selection == "sampling":
        return f"selection=sampling: {SEED}"
    if search.beam_size == 1:
        return ""
    forbidding = [f"{name}={getattr(search, name)}" for name, value in NEUTRAL_VALUES.items()
                  if getattr(search, name) != value]
    forbidding += ["avoid"] if "avoid" in inputs else []
    if forbidding:
        return f"{forbidding[0]}: it compares hypotheses by probabilities without the forbidden tokens"
    if search.stopping == "first" and (search.length_penalty or search.word_reward):
        return "stopping=first: it drops finished hypotheses before their lengths are compared"
    return ""


def unsupported_setting(search: SearchSettings, inputs: Collection[str] = ()) -> UnsupportedSetting | None:
    """Return the first setting of a search that CTranslate2 does not support; None if it supports all.

    Args:
        search: settings of the search.
        inputs: names of the inputs of the graph's search.
    """
    for name, (supported, reason) in _settings(search, inputs).items():
        value = getattr(search, name)
        if value != supported:
            return UnsupportedSetting(name, value, supported, reason)
    return None


def _unsupported_input(inputs: Collection[str]) -> tuple[str, str] | None:
    """Return the first input that CTranslate2 does not support, and the reason; None if it supports all."""
    name = next((name for name in inputs if name not in SUPPORTED_INPUTS), None)
    return None if name is None else (name, INPUTS.get(name, "it reads only the source text"))


def _settings(search: SearchSettings, inputs: Collection[str]) -> Mapping[str, tuple[Any, str]]:
    """Return the settings with only one supported value: in general, and in combination with other options."""
    in_general = _single_values(search)
    if search.selection == "sampling":
        supported = {**in_general, "seed": (SearchSettings.seed, SEED),
                     "epsilon": (0.0, "it has no minimum probability of sampled tokens")}
        return supported if search.n_best == 1 or search.top_k != 1 else {
            **supported, "top_k": (0, "it returns one hypothesis of the most probable tokens")}
    supported = {**in_general, "temperature": (1.0, "it applies a temperature only to sampling")}
    if "prefix" in inputs and search.beam_size > 1 and search.stopping == "first":
        supported["stopping"] = ("exact", "it does not count a translation that ends with the prefix")
    return supported


def _single_values(search: SearchSettings) -> Mapping[str, tuple[Any, str]]:
    """Return `SUPPORTED_VALUES`, and the defaults of the settings that CTranslate2 does not have."""
    missing = {field.name: (field.default, "it does not have this setting") for field in dataclasses.fields(search)
               if field.name not in EXPRESSED_SETTINGS}
    return {**missing, **SUPPORTED_VALUES}


def check_options(arguments: Mapping[str, Any]) -> None:
    """Check that CTranslate2 supports the options of a command line.

    Raises:
        SettingsError: an option is not supported.
    """
    for name, reason in OPTIONS.items():
        if arguments.get(name):
            raise SettingsError(f"--{name.replace('_', '-')} cannot be combined with {ENGINE}: {reason}. Leave out one "
                                "of them.")
    for name in ("model", "checkpoint"):
        if isinstance(arguments.get(name), list) and len(arguments[name]) > 1:
            raise SettingsError(f"Several --{name} cannot be combined with {ENGINE}: it does not support ensembles. "
                                f"Pass one --{name}.")


def check_search(search: SearchSettings, inputs: Collection[str] = ()) -> None:
    """Check that CTranslate2 supports the settings and the inputs of a search.

    Raises:
        SettingsError: a setting or an input is not supported.
    """
    if problem := _unsupported_input(inputs):
        raise SettingsError(f"'{problem[0]}' cannot be combined with {ENGINE}: {problem[1]}. Leave out one of them.")
    if unsupported := unsupported_setting(search, inputs):
        supported = unsupported.supported or repr(unsupported.supported)
        raise SettingsError(f"{unsupported.name}={unsupported.value} cannot be combined with {ENGINE}: "
                            f"{unsupported.reason}. Set {unsupported.name}={supported}, or leave out --engine.")


def check_line(options: LineOptions, search: SearchSettings) -> None:
    """Check that CTranslate2 supports the options of a line, with the search settings that all lines share.

    Raises:
        SettingsError: an option is not supported.
    """
    for name, input_name in _LINE_OPTIONS.items():
        if getattr(options, name) != getattr(PLAIN, name):
            raise SettingsError(f"'{name}' cannot be combined with {ENGINE}: {INPUTS[input_name]}. Leave out one of "
                                "them.")
    if any(AnchoredPhrase.of(phrase).at_beginning for phrase in options.avoid):
        raise SettingsError(f"'<s>' in 'avoid' cannot be combined with {ENGINE}: {BEGINNING_ONLY}. Leave out one of "
                            "them.")
    if options.search or options.prefix or options.inputs:
        names = [*options.inputs, *(["prefix"] if clean(options.prefix) else [])]
        check_search(dataclasses.replace(search, **options.search), names)


def check_requests(requests: Iterable[LineRequest], search: SearchSettings, name: str,
                   first: int) -> Iterator[LineRequest]:
    """Yield each request after a check with `check_line`.

    Args:
        requests: requests of lines.
        search: search settings that all lines share.
        name: name of the text, for messages.
        first: number of the first line.

    Raises:
        DataError: an option of a line is not supported.
    """
    for number, request in enumerate(requests, start=first):
        try:
            check_line(request.options, search)
        except SettingsError as error:
            raise DataError(f"{name} line {number}: {error}") from None
        yield request
