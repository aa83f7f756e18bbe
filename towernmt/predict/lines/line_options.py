"""Options of a line, their registry, the request of a line, and lines as JSON objects."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from towernmt.core.errors import DataError, SettingsError, suggestion
from towernmt.dataflow.text.clean_text import clean, with_tag
from towernmt.dataflow.text.text_lines import clean_line, clean_lines
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import SEPARATOR
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.lines.terminology import Terminology
from towernmt.predict.search.search_settings import SearchSettings

T = TypeVar("T")


class LineOption(NamedTuple):
    """An entry of the registry of line options.

    Attributes:
        kind: type of the value, or several types.
        description: type of the value, for error messages.
        in_json: whether JSON lines can have the option.
        aliases: Sockeye's names of the option in JSON lines.
        help: description in the server's API; empty if requests to the server have no field of this name.
        one_sentence: whether the server accepts the option only for a text of one sentence.
        plural: name in error messages of a server whose engine does not support the option.
    """

    kind: Any
    description: str
    in_json: bool = True
    aliases: Sequence[str] = ()
    help: str = ""
    one_sentence: bool = False
    plural: str = ""


OPTIONS: dict[str, LineOption] = {
    "prefix": LineOption(str, "a text", aliases=["target_prefix"], help="How the translation begins",
                         one_sentence=True, plural="prefixes"),
    "source_prefix": LineOption(str, "a text"),
    "partial_word": LineOption(bool, "true or false",
                               help="The last word of `prefix` may be the beginning of a longer one"),
    "prefix_every_piece": LineOption(bool, "true or false", aliases=["use_target_prefix_all_chunks"]),
    "avoid": LineOption(Sequence, "a list of texts", help="Words and phrases that the translation must not contain",
                        plural="phrases to avoid"),
    "constraints": LineOption(Sequence, "a list of texts", help="Words and phrases that the translation must contain",
                              one_sentence=True, plural="constraints"),
    "terminology": LineOption((Terminology, type(None)), "a Terminology", in_json=False, plural="glossaries"),
    "protect": LineOption(Sequence, "a list of texts"),
    "n_best": LineOption((int, type(None)), "a whole number"),
    "details": LineOption(bool, "true or false", in_json=False),
    "search": LineOption(Mapping, "settings by name"),
    "inputs": LineOption(Mapping, "arrays by name", in_json=False)}
"""Registry of line options by the names of the fields of `LineOptions`."""
_LISTS = tuple(name for name, option in OPTIONS.items() if option.kind is Sequence)


@dataclass(frozen=True)
class LineOptions:
    """Options of one line. Fields that a line does not set have the values of the translator.

    Attributes:
        source_prefix: text before the line that is not translated, such as the tag of the target language (`<2de>`). If
            a long line is translated in pieces, it is before each piece.
        prefix: beginning of the translation, complete words unless `partial_word` is true.
        partial_word: whether the last word of `prefix` may be the beginning of a longer one. If `prefix` ends with a
            space, its last word is complete, and a new one follows.
        prefix_every_piece: if a long line is translated in pieces, begin each piece with `prefix`, which suits tags;
            false begins only the first piece with it.
        avoid: words and phrases that the translation must not contain, each of at most 1,000 characters. A phrase in
            lower case also excludes its capitalised form. "<s> " before a phrase excludes it at the beginning only,
            " </s>" after it at the end.
        constraints: words and phrases that the translation must contain literally; a duplicate must occur twice. They
            may overlap. "<s> " before a phrase requires it at the beginning, " </s>" after it at the end. If a long
            line is translated in pieces, the first piece contains them, and the last piece those at the end.
        terminology: for each source term in the line, its target term must occur once.
        protect: regular expressions of words that the translation must contain unchanged, as often as the line.
        n_best: number of translations. The beam is enlarged if necessary.
        details: whether the translations have the log-probabilities and the attention that the translator returns. A
            line without them may still have them; without them it can be faster.
        search: other fields of `SearchSettings` for this line. Each distinct combination needs a separate tower.
        inputs: additional inputs by name, for a custom model or processors: arrays without the batch dimension.

    Raises:
        SettingsError: a value has the wrong type.
    """

    source_prefix: str = ""
    prefix: str = ""
    partial_word: bool = False
    prefix_every_piece: bool = True
    avoid: Sequence[str] = ()
    constraints: Sequence[str] = ()
    terminology: Terminology | None = None
    protect: Sequence[str] = ()
    n_best: int | None = None
    details: bool = True
    search: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if not isinstance(value, option.kind) or isinstance(value, bool) != (option.kind is bool):
                raise SettingsError(f"{name}={value!r}: give {option.description}.")
        for name in _LISTS:
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(text, str) for text in value):
                raise SettingsError(f"{name}={value!r}: give a list of texts.")
            object.__setattr__(self, name, tuple(value))
        if self.protect:
            from towernmt.documents.shields import compiled_pattern  # compiles many patterns, which takes time

            for pattern in self.protect:
                compiled_pattern(pattern)
        if self.n_best is not None and self.n_best < 1:
            raise SettingsError(f"n_best={self.n_best}: give 1 or more.")
        for name, value in self.search.items():
            _check_setting(name, value)

    def over(self, defaults: LineOptions) -> LineOptions:
        """Return these options with unset ones taken from `defaults`, and with the phrases of both."""
        if self is PLAIN or defaults is PLAIN:
            return defaults if self is PLAIN else self
        changes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)
                   if getattr(self, field.name) != getattr(PLAIN, field.name)}
        changes |= {name: (*getattr(defaults, name), *getattr(self, name)) for name in _LISTS}
        changes |= {"search": {**defaults.search, **self.search}, "inputs": {**defaults.inputs, **self.inputs}}
        return dataclasses.replace(defaults, **changes)


def _check_setting(name: str, value: Any) -> None:
    # All lines share the weights, so no line can set `averaged`.
    defaults = {field.name: field.default for field in dataclasses.fields(SearchSettings) if field.name != "averaged"}
    if name not in defaults:
        raise SettingsError(f"search: '{name}' is not a search setting of a line: choose one of "
                            f"{', '.join(sorted(defaults))}.")
    kind = type(defaults[name])
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise SettingsError(f"search: {name}={value!r}: give a value of the kind of {defaults[name]!r}.")


PLAIN = LineOptions()
"""Options of a line that requests nothing."""
NAMES = {name: field for field, option in OPTIONS.items() if option.in_json for name in (field, *option.aliases)}
"""Fields of options by their names in JSON lines."""
ANSWER_FIELDS = ("id", "sentence_id")
"""Fields of a JSON line with any value, which its answer repeats unchanged."""


def can_write(check: Callable[[LineOptions], None], options: LineOptions) -> bool:
    """Return whether a model can write options with placeholders.

    Args:
        check: raises `SettingsError` or `DataError` if it cannot.
        options: options of a line.
    """
    try:
        check(options)
    except (DataError, SettingsError):
        return False
    return True


def translated_if_writable(check: Callable[[LineOptions], None], options: Sequence[LineOptions],
                           translate: Callable[[list[int]], Iterable[T]]) -> list[T | None]:
    """Translate the sentences whose options a model can write, and return None for each other sentence.

    Args:
        check: see `can_write`.
        options: options of each sentence.
        translate: translates the sentences of these indices.
    """
    indices = [index for index, given in enumerate(options) if can_write(check, given)]
    translations = dict(zip(indices, translate(indices), strict=True))
    return [translations.get(index) for index in range(len(options))]


@dataclass(frozen=True)
class LineRequest:
    """A line to translate, from its input to the search.

    Attributes:
        text: source text, as `word|factor` if it has factors.
        options: options of the line.
        answer_fields: fields of a JSON line that its answer repeats unchanged.
        by_sentence: whether each sentence of the line is translated on its own.
    """

    text: str
    options: LineOptions = PLAIN
    answer_fields: Mapping[str, Any] = field(default_factory=dict)
    by_sentence: bool = False

    @property
    def prefixed_text(self) -> str:
        """The source text after `LineOptions.source_prefix`."""
        return with_tag(clean(self.options.source_prefix), self.text)


class TranslateRequests(Protocol):
    """A function that translates requests with one model."""

    def __call__(self, requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        """Yield the translation of each request; `again` is true for lines that were translated before."""


_ONE_FOR_EACH_LINE = ("the list of options or inputs, or the file of --prefix or --constraints, must have an entry "
                      "for each line.")


def line_requests(lines: Iterable[str | bytes | LineRequest], name: str = "input", first: int = 1,
                  options: Iterable[LineOptions] | None = None, defaults: LineOptions = PLAIN) -> Iterator[LineRequest]:
    """Yield the request of each line, with its text cleaned as by `clean_lines`.

    Args:
        lines: a stream, texts, or requests.
        name: name of the input, for warnings and errors.
        first: number of the first line.
        options: further options of each line, which those of a request override; None for no further options.
        defaults: options of all lines, which the other options override.

    Raises:
        DataError: the number of options differs from the number of lines, or a line of a stream is longer than
            `LONGEST_LINE`.
    """
    remaining_options = None if options is None else iter(options)
    number = first - 1
    for number, line in enumerate(clean_lines(lines, name, first), start=first):
        further_options = PLAIN if remaining_options is None else next(remaining_options, None)
        if further_options is None:
            raise DataError(f"{name} line {number} has no options: {_ONE_FOR_EACH_LINE}")
        if isinstance(line, LineRequest):
            yield dataclasses.replace(line, text=clean_line(line.text, number, name),
                                      options=line.options.over(further_options).over(defaults))
        else:
            yield LineRequest(line, further_options.over(defaults))
    if remaining_options is not None and next(remaining_options, None) is not None:
        raise DataError(f"{name} has {number} lines, but there are options of more lines: {_ONE_FOR_EACH_LINE}")


def read_requests(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[LineRequest]:
    """Yield the request of each line.

    Args:
        lines: lines of JSON.
        name: name of the input, for errors.
        first: number of the first line.

    Raises:
        DataError: a line is not a JSON object, or has an unknown field or a value of a wrong type.
    """
    for number, line in enumerate(lines, start=first):
        try:
            yield _request(line)
        except (DataError, SettingsError) as error:
            raise DataError(f"{name} line {number}: {error}") from None


def json_answer(number: int, request: LineRequest, translation: Translation, vocabulary: Vocabulary, count: int = 1,
                links: Sequence[tuple[int, int]] | None = None, attention: Mapping[str, Any] | None = None,
                has_tokens: bool = False) -> str:
    """Return the answer to a JSON line as one line of JSON without its line end.

    Args:
        number: number of the line, from 1: the `sentence_id` of the answer unless the line has one.
        request: the JSON line.
        translation: its translations.
        vocabulary: target vocabulary, for the subwords of tokens.
        count: maximum number of translations to list; a single one is not listed.
        links: word alignments (source word, target word) of the best translation; None if not requested.
        attention: attention of the best translation from `WordAlignment.as_json`; None if not requested.
        has_tokens: whether tokens were requested, so that an answer without any has empty lists of them: that of a
            blank line, or of a line that is its own translation.
    """
    best_hypothesis = translation[0]
    answer: dict[str, Any] = {"sentence_id": number, **request.answer_fields, "translation": best_hypothesis.text,
                              "score": _rounded(best_hypothesis.score),
                              **({"tokens": [], "log_probs": []} if has_tokens else {}),
                              **_details(best_hypothesis, vocabulary)}
    if links is not None:
        answer["alignment"] = [list(link) for link in links]
    if attention is not None:
        answer["attention"] = attention
    if len(hypotheses := translation[:count]) > 1:
        answer["translations"] = [hypothesis.text for hypothesis in hypotheses]
        answer["scores"] = [_rounded(hypothesis.score) for hypothesis in hypotheses]
    if translation.terms:
        answer["terms"] = [{"source": term.source, "target": term.target} for term in translation.terms]
    if translation.fault is not None:
        answer["fault"] = translation.fault
    if translation.retried:
        answer["retried"] = True
    return json.dumps(answer, ensure_ascii=False)


def _request(line: bytes) -> LineRequest:
    try:
        fields_of_line = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"this is not JSON ({_reason(error)}); write one object a line, as "
                        '{"text": "Guten Morgen!"}.') from None
    if not isinstance(fields_of_line, dict) or not isinstance(fields_of_line.get("text"), str):
        raise DataError('write one JSON object a line, with a text to translate, as {"text": "Guten Morgen!"}.')
    fields: dict[str, Any] = {}
    for name, value in fields_of_line.items():
        field = NAMES[name] if name in NAMES else name
        if name not in ("text", "factors", *NAMES, *ANSWER_FIELDS):
            names = sorted({"text", "factors", *NAMES, *ANSWER_FIELDS})
            raise DataError(f"the field '{name}' is not known.{suggestion(name, names, 'fields')}")
        if field in fields:
            raise DataError(f"'{name}' repeats another field: leave one out.")
        fields[field] = value
    text = fields.pop("text")
    if (factors := fields.pop("factors", None)) is not None:
        text = _with_factors(text, factors)
    answer_fields = {name: fields.pop(name) for name in ANSWER_FIELDS if name in fields}
    return LineRequest(text, LineOptions(**fields), answer_fields)


def _reason(error: ValueError | RecursionError) -> str:
    """Return why a line could not be parsed."""
    if isinstance(error, json.JSONDecodeError):
        return f"character {error.pos + 1}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0].lower()


def _with_factors(text: str, factors: Any) -> str:
    """Return a text as `word|factor` from Sockeye's form: one text per factor with one value per word."""
    words = text.split()
    if not isinstance(factors, list) or not all(isinstance(values, str) for values in factors):
        raise DataError(f"factors={json.dumps(factors)}: give a list of texts, one for each factor.")
    split: list[Sequence[str]] = [words, *(values.split() for values in factors)]
    for index, values in enumerate(split):
        if len(values) != len(words):
            raise DataError(f"factor {index} has {len(values)} values for the {len(words)} words of the text: give one "
                            "for each word.")
    return " ".join(SEPARATOR.join(word) for word in zip(*split, strict=True))


def _details(hypothesis: Hypothesis, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the tokens of the best translation and their log-probabilities, if they were requested."""
    details = hypothesis.details
    if details is None or details.log_probs is None:
        return {}
    return {"tokens": [vocabulary.id_to_piece(id) for id in details.ids],
            "log_probs": [_rounded(value) for value in details.log_probs.tolist()]}


def _rounded(value: float) -> float:
    return round(float(value), 4)
