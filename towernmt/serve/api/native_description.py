"""The OpenAPI 3.1 description of the native interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from towernmt import __version__
from towernmt.serve.api.native_answers import CARD_SOURCE_TEXTS, CARD_TEXTS
from towernmt.serve.api.native_fields import FIELDS, Field, translations_field
from towernmt.serve.request_limits import ServerLimits

REFUSALS = {400: "The request is invalid; the error says why.", 401: "An API key is required.",
            403: "The API key is unknown.", 408: "The request was not received in time.",
            413: "The request is too large.", 415: "The body is neither JSON nor a form.",
            429: "Too many requests by this caller.",
            500: "The translation failed.", 503: "The server is overloaded, or the translation took too long."}
_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
_WORDS = {"type": "array", "items": _TEXT}
_LINK = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_DETECTED = {"type": "object", "required": ["language", "confidence"],
             "properties": {"language": _TEXT, "confidence": _NUMBER}}


def description(limits: ServerLimits, max_translations: int) -> dict[str, Any]:
    """Return the OpenAPI description with the limits of this server.

    Args:
        limits: limits of requests.
        max_translations: the largest number of translations of a sentence that a model of the server returns.
    """
    fields = {**FIELDS, "n_best": translations_field(max_translations)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "towernmt serve", "version": __version__,
                 "description": f"At most {limits.max_characters} characters, {limits.max_texts} texts and "
                                f"{limits.max_segments} sentences a request, which is answered within "
                                f"{limits.seconds:g} seconds."},
        "components": {"schemas": _schemas(fields), "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer", "description": "Required if the server uses API keys."}}},
        "security": [{}, {"key": []}],
        "paths": {
            "/api/v1/translate": {"post": _translate(), "get": {
                "summary": "Translate texts passed in the query string.", "parameters": [
                    {"name": name, "in": "query", "description": field.help, "schema": dict(field.schema)}
                    for name, field in fields.items() if name != "glossary"], "responses": _responses("Answer")}},
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


def _schemas(fields: Mapping[str, Field]) -> dict[str, Any]:
    def array(name: str) -> dict[str, Any]:
        return {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}

    head = {"source": _TEXT, "target": _TEXT, "model": _TEXT, "detected": _DETECTED}
    sentence = {"source": _TEXT, "words": _WORDS, "translations": array("Translation"), "terms": {
        "type": "array", "items": {"type": "object", "properties": {"source": _TEXT, "target": _TEXT}}}}
    return {
        "Request": _object(["text"], {name: {**field.schema, "description": field.help}
                                      for name, field in fields.items()}),
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
