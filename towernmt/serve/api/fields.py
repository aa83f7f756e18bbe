"""The fields of our own interface: one table, by which requests are read and from which the description is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from towernmt.serve.refusal import bad
from towernmt.serve.web.parameters import Parameters


@dataclass(frozen=True)
class Field:
    """A field of a request.

    Attributes:
        schema: of JSON Schema.
        help: what it means.
        read: from a request's parameters, under its name.
    """

    schema: Mapping[str, Any]
    help: str
    read: Callable[[Parameters, str], Any]


def text(help: str) -> Field:
    """A text, or nothing."""
    return Field({"type": "string"}, help, lambda parameters, name: parameters.text(name))


def texts(help: str, **more: Any) -> Field:
    """A text or a list of texts."""
    return Field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, **more}]}, help,
                 lambda parameters, name: parameters.texts(name))


def flag(help: str) -> Field:
    """True or false; false if it is not given."""
    return Field({"type": "boolean", "default": False}, help, lambda parameters, name: parameters.flag(name))


def number(help: str, default: int, least: int, most: int) -> Field:
    """A whole number."""
    return Field({"type": "integer", "default": default, "minimum": least, "maximum": most}, help,
                 lambda parameters, name: parameters.number(name, default, least, most))


def choice(help: str, *choices: str) -> Field:
    """One of several words; the first if it is not given."""
    return Field({"type": "string", "enum": list(choices), "default": choices[0]}, help,
                 lambda parameters, name: parameters.choice(name, choices, choices[0]))


def _terms(parameters: Parameters, name: str) -> dict[str, str]:
    found = parameters.given(name)
    if not found:
        return {}
    given = found[0]
    if len(found) > 1 or not isinstance(given, dict) or not all(isinstance(term, str) for term in given.values()):
        raise bad(f"'{name}' must be an object of source terms and target terms.")
    return dict(given)


def terms(help: str) -> Field:
    """An object of source terms and target terms."""
    return Field({"type": "object", "additionalProperties": {"type": "string"}}, help, _terms)


FIELDS: dict[str, Field] = {
    "text": texts("What is to be translated: a text, or several. A text may have several lines.", minItems=1),
    "source": text("The code of its language; without it, or as `auto`, it is detected among those that are served."),
    "target": text("The code of the language into which it is translated; may be left out where there is only one."),
    "format": choice("What the texts are.", "text", "html", "xml"),
    "n_best": number("So many translations of each sentence, the best first.", 1, 1, 100),
    "alignments": flag("Give the words of each sentence and of its translations, and which stands for which."),
    "confidence": flag("Give how sure the model is of each word of a translation, 0 to 1."),
    "prefix": text("How the translation begins; for a text of one sentence."),
    "partial_word": flag("The last word of `prefix` may be the beginning of a longer one."),
    "avoid": texts("Words and phrases that shall not come."),
    "constraints": texts("Words and phrases that must come; for a text of one sentence."),
    "glossary": terms("Source terms, and the target terms that must come where they occur."),
    "stream": flag("Answer with lines of JSON, a sentence each as soon as it is translated; with server-sent events "
                   "where `Accept` is `text/event-stream`."),
}


def read_fields(parameters: Parameters, passed: tuple[str, ...]) -> dict[str, Any]:
    """The values of all fields.

    Args:
        passed: names that are not fields, and allowed.
    Raises:
        Refusal: a field is unknown, or has a value that it cannot have.
    """
    for name in parameters.values:
        if name not in FIELDS and name not in passed:
            raise bad(f"'{name[:40]}' is no field of a request: there are {', '.join(FIELDS)}.")
    return {name: field.read(parameters, name) for name, field in FIELDS.items()}
