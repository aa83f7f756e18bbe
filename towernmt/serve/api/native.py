"""The native HTTP interface: n-best lists, scores, alignments, prefixes and streaming.

One table of fields defines how requests are read and the OpenAPI 3.1 description. Responses are JSON with texts,
scores, words, word alignments and the model's confidence. Operators can check health, read metrics and replace models.
Errors are `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from towernmt import __version__
from towernmt.predict.lines.hypotheses import Hypothesis
from towernmt.predict.lines.line_options import OPTIONS, LineOptions
from towernmt.serve.glossaries import terminology_of
from towernmt.serve.request_limits import RequestError, ServerLimits, bad_request
from towernmt.serve.served_models import ServedModel
from towernmt.serve.text_translation import Sentence, TextRequest, check_model, detection_text, translate_texts
from towernmt.serve.web.http_requests import (
    FAILED,
    KEY_NAMES,
    Call,
    ClientDisconnected,
    check_texts,
    endpoint,
    error_json,
)
from towernmt.serve.web.observability import CONTENT_TYPE
from towernmt.serve.web.request_parameters import Parameters


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
    return dict(value)


def terms_field(help: str) -> Field:
    """Return a field for an object of source terms and target terms."""
    return Field({"type": "object", "additionalProperties": {"type": "string"}}, help, _terms)


_READERS: dict[Any, Callable[[str], Field]] = {str: string_field, bool: flag_field, Sequence: strings_field}
FIELDS: dict[str, Field] = {
    "text": strings_field("One or more texts to translate. A text may have several lines.", minItems=1),
    "source": string_field("Language code of the text; `auto` or no value detects it among the source languages."),
    "target": string_field("Language code of the translation; optional if there is only one target language."),
    "format": choice_field("Format of the texts.", "text", "html", "xml"),
    "n_best": integer_field("Number of translations of each sentence, best first.", 1, 1, 100),
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


REFUSALS = {400: "The request is invalid; the error says why.", 401: "An API key is required.",
            403: "The API key is unknown.", 408: "The request was not received in time.",
            413: "The request is too large.", 415: "The body is neither JSON nor a form.",
            429: "Too many requests by this caller.",
            500: "The translation failed.", 503: "The server is overloaded, or the translation took too long."}
CARD_TEXTS = ("name", "description", "licence", "date", "intended_use", "limitations", "citation", "homepage",
              "contact")
CARD_SOURCE_TEXTS = ("name", "licence", "url", "note")
"""Text fields of a model card and of its training texts."""
_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
_WORDS = {"type": "array", "items": _TEXT}
_LINK = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_DETECTED = {"type": "object", "required": ["language", "confidence"],
             "properties": {"language": _TEXT, "confidence": _NUMBER}}


def description(limits: ServerLimits) -> dict[str, Any]:
    """Return the OpenAPI description with the limits of this server."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "towernmt serve", "version": __version__,
                 "description": f"At most {limits.max_characters} characters, {limits.max_texts} texts and "
                                f"{limits.max_segments} sentences a request, which is answered within "
                                f"{limits.seconds:g} seconds."},
        "components": {"schemas": _schemas(), "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer", "description": "Required if the server uses API keys."}}},
        "security": [{}, {"key": []}],
        "paths": {
            "/api/v1/translate": {"post": _translate(), "get": {
                "summary": "Translate texts passed in the query string.", "parameters": [
                    {"name": name, "in": "query", "description": field.help, "schema": dict(field.schema)}
                    for name, field in FIELDS.items() if name != "glossary"], "responses": _responses("Answer")}},
            **_documents(),
            "/api/v1/models": {"get": {"summary": "List the models.", "responses": {"200": _json("Models")}}},
            "/api/v1/openapi.json": {"get": {"summary": "This description.", "responses": {
                "200": {"description": "OpenAPI.", "content": {"application/json": {"schema": {"type": "object"}}}}}}},
        }}


def _translate() -> dict[str, Any]:
    body = {"schema": {"$ref": "#/components/schemas/Request"}}
    return {"summary": "Translate texts.", "responses": _responses("Answer"), "requestBody": {
        "required": True, "content": {kind: body for kind in (
            "application/json", "application/x-www-form-urlencoded", "multipart/form-data")}}}


def _documents() -> dict[str, Any]:
    id = {"name": "id", "in": "path", "required": True, "schema": _TEXT, "description": "The document's id."}
    key = {"name": "X-Document-Key", "in": "header", "schema": _TEXT, "description": "The document's key."}
    state = {"200": _json("DocumentState"), "404": {**_json("Error"), "description": "The document does not exist."}}
    file = {"type": "string", "format": "binary"}
    form = _object(["file"], {"file": file, "source": _TEXT, "target": _TEXT})
    content = {"description": "The file.", "content": {"application/octet-stream": {"schema": file}}}
    unfinished = {**_json("Error"), "description": "The document has not been translated yet."}
    parameters = {"parameters": [id, key]}
    return {
        "/api/v1/documents": {"post": {
            "summary": "Translate a file in the background.",
            "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}},
            "responses": {"202": _json("DocumentState"), "429": {**_json("Error"), "description": REFUSALS[429]}}}},
        "/api/v1/documents/{id}": {
            "get": {"summary": "Report how far the translation is.", **parameters, "responses": state},
            "delete": {"summary": "Cancel the translation and forget the document.", **parameters,
                       "responses": {"204": {"description": "Done."}, "404": state["404"]}}},
        "/api/v1/documents/{id}/result": {"get": {
            "summary": "Return the translated file.", **parameters, "responses": {
                "200": content, "404": state["404"], "409": unfinished}}}}


def _responses(schema: str) -> dict[str, Any]:
    answer = _json(schema)
    for kind in ("application/x-ndjson", "text/event-stream"):
        answer["content"][kind] = {"schema": {"$ref": "#/components/schemas/Line"}}
    refusals = {str(status): {**_json("Error"), "description": why} for status, why in REFUSALS.items()}
    for status in ("429", "503"):
        refusals[status]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return {"200": answer, **refusals}


def _json(schema: str) -> dict[str, Any]:
    return {"description": schema, "content": {"application/json": {"schema": {
        "$ref": f"#/components/schemas/{schema}"}}}}


def _schemas() -> dict[str, Any]:
    def array(name: str) -> dict[str, Any]:
        return {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}

    head = {"source": _TEXT, "target": _TEXT, "model": _TEXT, "detected": _DETECTED}
    sentence = {"source": _TEXT, "words": _WORDS, "translations": array("Translation"), "terms": {
        "type": "array", "items": {"type": "object", "properties": {"source": _TEXT, "target": _TEXT}}}}
    return {
        "Request": _object(["text"], {name: {**field.schema, "description": field.help}
                                      for name, field in FIELDS.items()}),
        "Answer": _object(["source", "target", "model", "translations"], {**head, "translations": array("Text")}),
        "Text": _object(["text", "sentences"], {"text": _TEXT, "sentences": array("Sentence")}),
        "Sentence": _object(["source", "translations"], sentence),
        "Translation": _object(["text", "score"], {
            "text": _TEXT, "score": _NUMBER, "words": _WORDS, "links": {"type": "array", "items": _LINK},
            "confidence": {"type": "array", "items": _NUMBER}}),
        "Line": {"oneOf": [
            _object(["text", "sentence", "source", "translations"], {
                "text": {"type": "integer"}, "sentence": {"type": "integer"}, **sentence}),
            _object(["done", "source", "target", "model", "translations"], {
                "done": {"const": True}, **head, "translations": _WORDS}),
            _object(["error", "status"], {"error": _TEXT, "status": {"type": "integer"}})]},
        "Models": _object(["models", "limits"], {"models": {"type": "array", "items": _object(
            ["source", "target", "model", "engine", "alternatives", "alignments", "constraints"],
            {"source": _TEXT, "target": _TEXT, "model": _TEXT, "engine": {
                "type": "string", "description": "Engine of sentences without options, with its version and precision; "
                                                 "empty for a custom engine."}, "alternatives": {"type": "integer"},
             "alignments": {"type": "boolean"}, "constraints": {"type": "boolean"}, "card": {
                 "$ref": "#/components/schemas/Card"}})}, "limits": _object(
            ["characters", "texts", "sentences"],
            {name: {"type": "integer", "description": f"{name.capitalize()} that a request may have."}
             for name in ("characters", "texts", "sentences")})}),
        "Card": _object([], {**dict.fromkeys(CARD_TEXTS, _TEXT), "authors": _WORDS, "training_data": _object(
            ["sources"], {"pairs": {"type": "integer"}, "sources": {"type": "array", "items": _object(
                [], {**dict.fromkeys(CARD_SOURCE_TEXTS, _TEXT), "pairs": {"type": "integer"}})}})}),
        "DocumentState": _object(
            ["id", "name", "source", "target", "status", "sentences", "translated", "characters",
             "seconds_remaining"],
            {"id": _TEXT, "name": _TEXT, "source": _TEXT, "target": _TEXT, "key": _TEXT, "error": _TEXT,
             "status": {"type": "string", "enum": ["queued", "translating", "done", "error"]},
             "sentences": {"type": "integer"}, "translated": {"type": "integer"}, "characters": {"type": "integer"},
             "seconds_remaining": {"type": ["integer", "null"]}}),
        "Error": _object(["error"], {"error": _TEXT})}


def _object(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def sentence_json(sentence: Sentence, alignments: bool, confidence: bool) -> dict[str, Any]:
    """Return a sentence and its translations, best first, as JSON.

    Args:
        sentence: translated sentence.
        alignments: include words and alignments: pairs (source word, target word), counted from 0.
        confidence: include the probability of each word of a translation.
    """
    translations = [_translation(hypothesis, alignments, confidence) for hypothesis in sentence.translation]
    result: dict[str, Any] = {"source": sentence.source, "translations": translations}
    if alignments or confidence:
        aligned = sentence.translation[0].alignment
        result["words"] = aligned.source if aligned else sentence.source.split()
    if sentence.translation.terms:
        result["terms"] = [{"source": term.source, "target": term.target} for term in sentence.translation.terms]
    return result


def word_confidences(hypothesis: Hypothesis) -> list[float] | None:
    """Return the probability of each word (geometric mean over its tokens), or None if the engine has none."""
    details = hypothesis.details
    if details is None or details.log_probs is None or details.words is None:
        return None
    log_probs_by_word: dict[int, list[float]] = {}
    for word, log_prob in zip(details.words, details.log_probs.tolist(), strict=True):
        log_probs_by_word.setdefault(word, []).append(log_prob)
    return [round(math.exp(sum(log_probs) / len(log_probs)), 4) if (log_probs := log_probs_by_word.get(word)) else 1.0
            for word in range(len(_words(hypothesis)))]


def _words(hypothesis: Hypothesis) -> list[str]:
    """Return the words of a translation; a protected word may contain spaces."""
    return hypothesis.alignment.target if hypothesis.alignment else hypothesis.text.split()


def _translation(hypothesis: Hypothesis, alignments: bool, confidence: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"text": hypothesis.text, "score": round(float(hypothesis.score), 4)}
    if alignments or confidence:
        result["words"] = _words(hypothesis)
    if alignments:
        result["links"] = [list(link) for link in hypothesis.links() or []]
    if confidence and (confidences := word_confidences(hypothesis)) is not None:
        result["confidence"] = confidences
    return result


async def health(call: Call) -> Response:
    """Answer `/health`: the process is running."""
    return JSONResponse({"status": "ok", "version": __version__})


async def ready(call: Call) -> Response:
    """Answer `/ready`: the models are loaded and respond, and the server is not shutting down."""
    if (error := call.service.readiness_error()) is not None:
        raise error
    return JSONResponse({"status": "ready", "models": [
        {"source": model.direction.source, "target": model.direction.target} for model in call.service.models]})


async def metrics(call: Call) -> Response:
    """Answer `/metrics` with figures for Prometheus."""
    return PlainTextResponse(call.service.metrics.text(), media_type=CONTENT_TYPE)


async def reload(call: Call) -> Response:
    """Answer `/admin/reload`: reload the models. The caller needs a key that was made with --admin."""
    if not call.admin:
        raise RequestError(403, "Only a key that was created with --admin may reload models: use such a key, or send "
                                "SIGHUP to the process.")
    errors = await asyncio.to_thread(call.service.reload)
    failed = {direction: error for direction, error in errors.items() if error}
    return JSONResponse({"reloaded": sorted(set(errors) - set(failed)), "failed": failed}, 500 if failed else 200)


def operation_routes() -> list[Route]:
    """Return the routes for operators."""
    return [Route("/health", endpoint(health, error_json, public=True), methods=["GET"]),
            Route("/ready", endpoint(ready, error_json, public=True), methods=["GET"]),
            Route("/metrics", endpoint(metrics, error_json, public=True), methods=["GET"]),
            Route("/admin/reload", endpoint(reload, error_json), methods=["POST"])]


log = logging.getLogger(__name__)
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
_UNSUPPORTED = ("This server does not return {what}: its engine does not support it, or the server was started without "
                "--alignments.")


async def translate(call: Call) -> Response:
    """Answer `/api/v1/translate`; `FIELDS` describes the request."""
    fields = read_fields(call.parameters, KEY_NAMES)
    texts = fields["text"]
    if not texts:
        raise bad_request("'text' is missing.")
    model, detected = call.service.models.find(fields["source"], fields["target"],
                                               detection_text(texts, fields["format"]))
    request = _text_request(fields, model)
    check_texts(call, model.direction, texts)
    header: dict[str, Any] = {**model.direction._asdict(), "model": model.model.name}
    if detected is not None:
        header["detected"] = {"language": detected.language, "confidence": round(detected.confidence, 4)}
    if fields["stream"]:
        events = EVENTS in call.request.headers.get("accept", "")
        return StreamingResponse(_stream_sentences(call, model, fields, request, header, events),
                                 media_type=EVENTS if events else LINES, headers={"Cache-Control": "no-store"})
    answers = await call.run_in_thread(
        partial(translate_texts, model, texts, request, call.service.limits, call.cancellation))
    return JSONResponse({**header, "translations": [
        {"text": answer.text, "sentences": [sentence_json(sentence, fields["alignments"], fields["confidence"])
                                            for sentence in answer.sentences]} for answer in answers]})


async def describe(call: Call) -> Response:
    """Answer `/api/v1/openapi.json`."""
    return JSONResponse(description(call.service.limits))


async def models(call: Call) -> Response:
    """Answer `/api/v1/models` with the models, their features and cards, and the limits of a request."""
    limits = call.service.limits
    return JSONResponse({"models": [
        {"source": model.direction.source, "target": model.direction.target, "model": model.model.name,
         "engine": model.model.engine(), "alternatives": model.model.alternatives, "alignments": model.model.aligns,
         "constraints": model.model.constrains,
         **({} if model.model.card is None else {"card": _public_card(model.model.card)})}
        for model in call.service.models], "limits": {"characters": limits.max_characters, "texts": limits.max_texts,
                                                      "sentences": limits.max_segments}})


def routes() -> list[Route]:
    """Return the routes of the native interface."""
    return [Route("/api/v1/translate", endpoint(translate, error_json), methods=["GET", "POST"]),
            Route("/api/v1/models", endpoint(models, error_json, public=True), methods=["GET"]),
            Route("/api/v1/openapi.json", endpoint(describe, error_json, public=True), methods=["GET"])]


def _public_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model card that its users need, if they have the right types."""
    def strings(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        values = {name: content.get(name) for name in names}
        return {name: value.strip() for name, value in values.items() if isinstance(value, str) and value.strip()}

    def numbers(content: Mapping[str, Any]) -> dict[str, Any]:
        return {"pairs": content["pairs"]} if type(content.get("pairs")) is int else {}

    public = strings(card, CARD_TEXTS)
    if isinstance(authors := card.get("authors"), list) and authors:
        public["authors"] = [str(author) for author in authors]
    if isinstance(data := card.get("training_data"), Mapping):
        sources = data.get("sources") if isinstance(data.get("sources"), list) else []
        public["training_data"] = {"sources": [
            {**strings(source, CARD_SOURCE_TEXTS), **numbers(source)} for source in sources or ()
            if isinstance(source, Mapping)], **numbers(data)}
    return public


def _text_request(fields: dict[str, Any], model: ServedModel) -> TextRequest:
    """Return the translation request of the fields.

    Raises:
        RequestError: the model does not support it.
    """
    options = LineOptions(**{name: fields[name] for name, option in OPTIONS.items() if option.help and fields[name]})
    one_sentence_option = next(
        (name for name, option in OPTIONS.items() if option.one_sentence and getattr(options, name)), None)
    if one_sentence_option and (len(fields["text"]) > 1 or len(fields["text"][0].strip().splitlines()) > 1):
        raise bad_request(f"'{one_sentence_option}' is for a text of one sentence: send one.")
    for feature in ("alignments", "confidence"):
        if fields[feature] and not model.model.aligns:
            raise bad_request(_UNSUPPORTED.format(what=feature))
    glossary = terminology_of(fields["glossary"]) if fields["glossary"] else None
    request = TextRequest(glossary, fields["format"], options, fields["n_best"] - 1,
                          fields["alignments"] or fields["confidence"], split="0" if one_sentence_option else None)
    check_model(model, request)
    return request


async def _stream_sentences(call: Call, model: ServedModel, fields: dict[str, Any], request: TextRequest,
                            header: dict[str, Any], events: bool) -> AsyncIterator[bytes]:
    """Yield sentences as they finish and finally the complete texts, or an error."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

    def send(value: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, value)

    def translate_all() -> None:
        def on_sentence(text: int, index: int, sentence: Sentence) -> None:
            content = sentence_json(sentence, fields["alignments"], fields["confidence"])
            send({"text": text, "sentence": index, **content})

        answers = translate_texts(model, fields["text"], request, call.service.limits, call.cancellation, on_sentence)
        send({"done": True, **header, "translations": [answer.text for answer in answers]})

    async def run() -> None:
        try:
            await call.run_in_thread(translate_all)
        except RequestError as error:
            send({**error_json(error), "status": error.status})
        except ClientDisconnected:
            return
        except Exception as error:  # noqa: BLE001 -- the client gets an error as the last line
            log.error("A stream failed.", exc_info=error)
            send({**error_json(RequestError(500, FAILED)), "status": 500})
        finally:
            send(None)

    task = asyncio.create_task(run())
    try:
        while (value := await queue.get()) is not None:
            line = json.dumps(value, ensure_ascii=False)
            yield (f"data: {line}\n\n" if events else f"{line}\n").encode()
    finally:
        call.cancellation.cancel()
        await asyncio.gather(task, return_exceptions=True)
