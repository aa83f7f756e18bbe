"""Lines as JSON objects: what a line asks for, and what is found for it, in the words that Sockeye's users know.

In: `{"text": "Guten Morgen!", "prefix": "Good", "avoid": ["day"]}`. Out: `{"sentence_id": 1, "translation": "Good
morning!", "score": -0.31}`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import SEPARATOR
from towernmt.predict.hypotheses import Hypothesis, Translation
from towernmt.predict.lines.options import FIELDS, LineOptions

ALIASES = {"target_prefix": "prefix", "use_target_prefix_all_chunks": "prefix_every_piece"}
"""Other names of fields: Sockeye's."""
PASSED = ("id", "sentence_id")
"""Fields of any kind, which come back as they are."""


class Request(NamedTuple):
    """A line of JSON.

    Attributes:
        text: what is to be translated, with its factors behind each word where there are some.
        options: what is asked of the translation.
        passed: what comes back as it was given.
    """

    text: str
    options: LineOptions
    passed: Mapping[str, Any]


def read_requests(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[Request]:
    """A request a line.

    Args:
        name: where the lines come from, for errors.
        first: the number of the first line.
    Raises:
        DataError: a line is no JSON object, has a field that is not known or a value of a wrong type.
    """
    for number, line in enumerate(lines, start=first):
        try:
            yield _request(line)
        except (DataError, SettingsError) as error:
            raise DataError(f"{name} line {number}: {error}") from None


def written(number: int, request: Request, translation: Translation, vocabulary: Vocabulary, count: int = 1,
            links: Sequence[tuple[int, int]] | None = None, attention: Mapping[str, Any] | None = None) -> str:
    """The answer to a request, as a line of JSON without its end.

    Args:
        number: of the line, from 1: its `sentence_id`, if it does not bring one.
        vocabulary: of the target, for the pieces of tokens.
        count: how many of the translations are listed; one is not.
        links: of the words of the best one, (source word, target word); None: not asked for.
        attention: of the best one, as `WordAlignment.as_json` has it; None: not asked for.
    """
    best = translation[0]
    answer: dict[str, Any] = {"sentence_id": number, **request.passed, "translation": best.text,
                              "score": _rounded(best.score), **_details(best, vocabulary)}
    if links is not None:
        answer["alignment"] = [list(link) for link in links]
    if attention is not None:
        answer["attention"] = attention
    if len(listed := translation[:count]) > 1:
        answer["translations"] = [hypothesis.text for hypothesis in listed]
        answer["scores"] = [_rounded(hypothesis.score) for hypothesis in listed]
    if translation.terms:
        answer["terms"] = [{"source": term.source, "target": term.target} for term in translation.terms]
    if translation.fault is not None:
        answer["fault"] = translation.fault
    if translation.retried:
        answer["retried"] = True
    return json.dumps(answer, ensure_ascii=False)


def _request(line: bytes) -> Request:
    try:
        found = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        place = f"character {error.pos + 1}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "not UTF-8"
        raise DataError(f"this is no JSON ({place}); write one object a line, as "
                        '{"text": "Guten Morgen!"}.') from None
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise DataError('write one JSON object a line, with a text to translate, as {"text": "Guten Morgen!"}.')
    fields: dict[str, Any] = {}
    for name, value in found.items():
        field = ALIASES.get(name, name)
        if field not in ("text", "factors", *FIELDS, *PASSED):
            raise DataError(f"the field '{name}' is not known{_near(name)}")
        if field in fields:
            raise DataError(f"'{name}' says again what another field says: leave one out.")
        fields[field] = value
    text = fields.pop("text")
    if (factors := fields.pop("factors", None)) is not None:
        text = _with_factors(text, factors)
    passed = {name: fields.pop(name) for name in PASSED if name in fields}
    return Request(text, LineOptions(**fields), passed)


def _with_factors(text: str, factors: Any) -> str:
    """Sockeye's form, a text for each factor with a value for each word, as `word|factor`."""
    words = text.split()
    if not isinstance(factors, list) or not all(isinstance(values, str) for values in factors):
        raise DataError(f"factors={json.dumps(factors)}: give a list of texts, one for each factor.")
    split: list[Sequence[str]] = [words, *(values.split() for values in factors)]
    for place, values in enumerate(split):
        if len(values) != len(words):
            raise DataError(f"factor {place} has {len(values)} values for the {len(words)} words of the text: give one "
                            "for each word.")
    return " ".join(SEPARATOR.join(word) for word in zip(*split, strict=True))


def _near(name: str) -> str:
    known = sorted({"text", "factors", *FIELDS, *PASSED, *ALIASES})
    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else f": there are {', '.join(known)}."


def _details(hypothesis: Hypothesis, vocabulary: Vocabulary) -> dict[str, Any]:
    """Of the tokens of the best translation, where that was asked for."""
    details = hypothesis.details
    if details is None or details.log_probs is None:
        return {}
    return {"tokens": [vocabulary.id_to_piece(id) for id in details.ids],
            "log_probs": [_rounded(value) for value in details.log_probs.tolist()]}


def _rounded(value: float) -> float:
    return round(float(value), 4)
