"""The description of our own interface, as OpenAPI 3.1 has it: from the table of its fields."""

from __future__ import annotations

from typing import Any

from towernmt import __version__
from towernmt.serve.api.fields import FIELDS
from towernmt.serve.limits import Limits

REFUSALS = {400: "The request is wrong; the sentence says how.", 401: "A key is needed.", 403: "The key is not known.",
            408: "The request did not come in time.", 413: "The request is too large.",
            415: "The body is neither JSON nor a form.", 429: "The caller has asked for too much lately.",
            500: "The translation failed.", 503: "There is too much to do, or the translation took too long."}
_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
_WORDS = {"type": "array", "items": _TEXT}
_LINK = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_DETECTED = {"type": "object", "required": ["language", "confidence"],
             "properties": {"language": _TEXT, "confidence": _NUMBER}}


def description(limits: Limits) -> dict[str, Any]:
    """The description, with the limits of this server."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "towernmt serve", "version": __version__,
                 "description": f"At most {limits.max_characters} characters, {limits.max_texts} texts and "
                                f"{limits.max_segments} sentences a request, which is answered within "
                                f"{limits.seconds:g} seconds."},
        "components": {"schemas": _schemas(), "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer", "description": "Where the server has keys."}}},
        "security": [{}, {"key": []}],
        "paths": {
            "/api/v1/translate": {"post": _translate(), "get": {
                "summary": "The same, by a query.", "parameters": [
                    {"name": name, "in": "query", "description": field.help, "schema": dict(field.schema)}
                    for name, field in FIELDS.items() if name != "glossary"], "responses": _responses("Answer")}},
            "/api/v1/models": {"get": {"summary": "What is served.", "responses": {"200": _json("Models")}}},
            "/api/v1/openapi.json": {"get": {"summary": "This description.", "responses": {
                "200": {"description": "OpenAPI.", "content": {"application/json": {"schema": {"type": "object"}}}}}}},
        }}


def _translate() -> dict[str, Any]:
    body = {"schema": {"$ref": "#/components/schemas/Request"}}
    return {"summary": "Translate texts.", "responses": _responses("Answer"), "requestBody": {
        "required": True, "content": {kind: body for kind in (
            "application/json", "application/x-www-form-urlencoded", "multipart/form-data")}}}


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
        "Models": _object(["models"], {"models": {"type": "array", "items": _object(
            ["source", "target", "model", "alternatives", "alignments", "constraints"],
            {"source": _TEXT, "target": _TEXT, "model": _TEXT, "alternatives": {"type": "integer"},
             "alignments": {"type": "boolean"}, "constraints": {"type": "boolean"}})}}),
        "Error": _object(["error"], {"error": _TEXT})}


def _object(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
