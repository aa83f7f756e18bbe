"""The fields of a translation request: one table that reads requests and describes them in OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from towernmt.predict.lines.line_options import OPTIONS
from towernmt.serve.glossaries import MAX_ENTRIES, MAX_TERM_CHARACTERS, check_entry_count
from towernmt.serve.request_limits import bad_request
from towernmt.serve.web.request_parameters import Parameters

MAX_OPTION_CHARACTERS = 2_000
"""Maximum number of characters of a prefix, and of all phrases of a field."""
MAX_PHRASES = 100
"""Maximum number of phrases of a field."""
MAX_TRANSLATIONS = 100
"""Maximum number of translations of a sentence."""


@dataclass(frozen=True)
class Field:
    """A field of a request.

    Attributes:
        schema: its JSON Schema.
        help: description.
        read: reads its value from the parameters of a request.
    """

    schema: Mapping[str, Any]
    help: str
    read: Callable[[Parameters, str], Any]


def string_field(help: str) -> Field:
    """Return an optional string field."""
    return Field({"type": "string"}, help, lambda parameters, name: parameters.text(name))


def strings_field(help: str, **more: Any) -> Field:
    """Return a field of one string or a list of strings."""
    return Field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, **more}]}, help,
                 lambda parameters, name: parameters.texts(name))


def prefix_field(help: str) -> Field:
    """Return a string field for a beginning of a translation."""
    def read(parameters: Parameters, name: str) -> str | None:
        prefix = parameters.text(name)
        _check_characters(name, [prefix or ""])
        return prefix

    return Field({"type": "string", "maxLength": MAX_OPTION_CHARACTERS}, help, read)


def phrases_field(help: str) -> Field:
    """Return a field for a phrase or a list of phrases."""
    def read(parameters: Parameters, name: str) -> list[str]:
        phrases = parameters.texts(name)
        if len(phrases) > MAX_PHRASES:
            raise bad_request(f"'{name}' has {len(phrases)} phrases: send at most {MAX_PHRASES}.")
        _check_characters(name, phrases)
        return phrases

    phrase = {"type": "string", "maxLength": MAX_OPTION_CHARACTERS}
    return Field({"oneOf": [phrase, {"type": "array", "items": phrase, "maxItems": MAX_PHRASES}]},
                 f"{help} At most {MAX_OPTION_CHARACTERS} characters in all.", read)


def _check_characters(name: str, texts: Sequence[str]) -> None:
    characters = sum(map(len, texts))
    if characters > MAX_OPTION_CHARACTERS:
        raise bad_request(f"'{name}' has {characters} characters: send at most {MAX_OPTION_CHARACTERS}.")


def flag_field(help: str) -> Field:
    """Return a boolean field, false by default."""
    return Field({"type": "boolean", "default": False}, help, lambda parameters, name: parameters.flag(name))


def integer_field(help: str, default: int, minimum: int, maximum: int) -> Field:
    """Return an integer field with a default and a range."""
    return Field({"type": "integer", "default": default, "minimum": minimum, "maximum": maximum}, help,
                 lambda parameters, name: parameters.integer(name, default, minimum, maximum))


def choice_field(help: str, *choices: str) -> Field:
    """Return a field with one of several values; the first one is the default."""
    return Field({"type": "string", "enum": list(choices), "default": choices[0]}, help,
                 lambda parameters, name: parameters.choice(name, choices, choices[0]))


def _terms(parameters: Parameters, name: str) -> dict[str, str]:
    values = parameters.values_of(name)
    if not values:
        return {}
    value = values[0]
    if len(values) > 1 or not isinstance(value, dict) or not all(isinstance(term, str) for term in value.values()):
        raise bad_request(f"'{name}' must be an object of source terms and target terms.")
    if value:
        check_entry_count(len(value))
    if any(len(term) > MAX_TERM_CHARACTERS for terms in value.items() for term in terms):
        raise bad_request(f"'{name}' has a term of more than {MAX_TERM_CHARACTERS} characters: send shorter terms.")
    return dict(value)


def terms_field(help: str) -> Field:
    """Return a field for an object of source terms and target terms."""
    term = {"type": "string", "maxLength": MAX_TERM_CHARACTERS}
    return Field({"type": "object", "propertyNames": term, "additionalProperties": term, "maxProperties": MAX_ENTRIES},
                 help, _terms)


_READERS: dict[Any, Callable[[str], Field]] = {str: prefix_field, bool: flag_field, Sequence: phrases_field}
FIELDS: dict[str, Field] = {
    "text": strings_field("One or more texts to translate. A text may have several lines.", minItems=1),
    "source": string_field("Language code of the text; `auto` or no value detects it among the source languages."),
    "target": string_field("Language code of the translation; optional if there is only one target language."),
    "format": choice_field("Format of the texts.", "text", "html", "xml"),
    "n_best": integer_field("Number of translations of each sentence, best first.", 1, 1, MAX_TRANSLATIONS),
    "alignments": flag_field("Return the words of each sentence and of its translations, and the word alignments."),
    "confidence": flag_field("Return the model's confidence in each word of a translation, 0 to 1."),
    **{name: _READERS[option.kind](option.help + ("; for a text of one sentence." if option.one_sentence else "."))
       for name, option in OPTIONS.items() if option.help},
    "glossary": terms_field("Source terms and their required target terms."),
    "stream": flag_field("Respond with one line of JSON per translated sentence, as soon as possible; as server-sent "
                         "events if `Accept` is `text/event-stream`."),
}


def read_fields(parameters: Parameters, other_names: tuple[str, ...]) -> dict[str, Any]:
    """Read the values of all fields.

    Args:
        parameters: parameters of the request.
        other_names: further parameter names to accept.

    Raises:
        RequestError: a field is unknown or has an invalid value.
    """
    for name in parameters.values:
        if name not in FIELDS and name not in other_names:
            raise bad_request(f"'{name[:40]}' is not a field of a request. The fields are {', '.join(FIELDS)}.")
    return {name: field.read(parameters, name) for name, field in FIELDS.items()}


def option_texts(fields: Mapping[str, Any]) -> list[str]:
    """Return all strings of a request that reach the model in addition to its texts: prefix, phrases and terms."""
    options = [(option, fields[name]) for name, option in OPTIONS.items() if option.help]
    strings = [value for option, value in options if option.kind is str and value]
    phrases = [phrase for option, value in options if option.kind is Sequence for phrase in value]
    return [*strings, *phrases, *chain.from_iterable(fields["glossary"].items())]
