"""LibreTranslate's interface, as its clients use it (version 1.9).

Errors are `{"error": "..."}`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from towernmt.dataflow.text.language_codes import language_name
from towernmt.documents.formats.document_formats import SUFFIXES
from towernmt.serve.api.native_documents import accept_document, file_response, parse_uploaded_file
from towernmt.serve.language_detection import detect_languages
from towernmt.serve.request_limits import RequestError, bad_request
from towernmt.serve.text_translation import TextRequest, detection_text, translate_texts
from towernmt.serve.web.http_requests import Call, check_texts, count_characters, endpoint, error_json

FORMATS = ("text", "html")


async def translate(call: Call) -> Response:
    """Answer `/translate`: `q` (one or more texts), `source` (a code or `auto`), `target`, `format`, `alternatives`.

    The error messages have the wording of LibreTranslate, which clients compare.
    """
    texts = _texts(call)
    source, target = _required_text(call, "source"), _required_text(call, "target")
    format = call.parameters.text("format") or "text"
    if format not in FORMATS:
        raise bad_request(f"{format[:40]} format is not supported: there are {', '.join(FORMATS)}.")
    check_texts(call, texts)
    model, detected = call.service.models.find(source, target, detection_text(texts, format))
    alternatives = _alternatives(call, model.model.alternatives - 1)
    count_characters(call, {model.direction: sum(map(len, texts))})
    request = TextRequest(format=format, alternatives=alternatives)
    answers = await call.run_in_thread(
        partial(translate_texts, model, texts, request, call.service.limits, call.cancellation))
    answer: dict[str, Any] = {"translatedText": [translation.text for translation in answers]}
    if detected is not None:
        language = {"confidence": round(100 * detected.confidence), "language": detected.language}
        answer["detectedLanguage"] = [language] * len(texts)
    if alternatives:
        answer["alternatives"] = [translation.alternatives for translation in answers]
    return JSONResponse(answer if call.parameters.is_list("q") else {name: value[0] for name, value in answer.items()})


async def languages(call: Call) -> Response:
    """Answer `/languages` with the source languages and their target languages."""
    models = call.service.models
    codes = sorted({*models.sources, *models.targets})
    return JSONResponse([{"code": code, "name": language_name(code), "targets": models.targets_of(code)}
                         for code in codes])


async def detect_language(call: Call) -> Response:
    """Answer `/detect` with the source languages, most probable first."""
    texts = _texts(call)
    check_texts(call, texts)
    return JSONResponse([{"confidence": round(100 * detected.confidence), "language": detected.language}
                         for detected in detect_languages(" ".join(texts), call.service.models.languages)])


async def translate_file(call: Call) -> Response:
    """Answer `/translate_file` (`file`, `source`, `target`) with the URL of the translation once it is finished."""
    if "file" not in call.parameters.files:
        raise bad_request("Invalid request: missing file parameter")
    source, target = _required_text(call, "source"), _required_text(call, "target")
    if not call.parameters.files["file"].name:
        raise bad_request("Invalid request: empty file")
    name, file = await parse_uploaded_file(call, "Invalid request: file format not supported")
    model, _ = call.service.models.find(source, target, file.sample)
    document = await accept_document(call, name, file, model)
    try:
        await call.wait_until(lambda: document.is_finished)
    finally:
        if document.status != "done":       # it has failed, or its client has disconnected
            call.service.documents.remove(document)
    document.raise_if_failed()
    url = call.request.url_for("download_file", id=document.id, key=document.key)
    return JSONResponse({"translatedFileUrl": str(url)})


async def download_file(call: Call) -> Response:
    """Answer `/download_file/...` with a translated file."""
    path = call.request.path_params
    return file_response(call, call.service.documents.get(path["id"], path["key"]))


async def suggest(call: Call) -> Response:
    """Answer `/suggest`: `q` (source text), `s` (a better translation), `source`, `target`.

    `translation`, which LibreTranslate does not have, is the translation that the suggestion improves.
    """
    if not call.service.suggestions.enabled:
        raise RequestError(403, "Suggestions are disabled on this server.")
    q, suggestion, source, target = (_required_text(call, name) for name in ("q", "s", "source", "target"))
    translation = call.parameters.text("translation") or ""
    for text in (q, suggestion, translation):       # each may be as long as a text that can be translated
        check_texts(call, [text])
    model, _ = call.service.models.find(source, target, q)
    if model.direction.source == model.direction.target:
        raise bad_request(f"Invalid request: q is {language_name(model.direction.target)} already, so no model has "
                          "translated it")
    store = partial(call.service.suggestions.add, f"{model.direction}={model.location}", q, translation, suggestion)
    await call.run_in_thread(store)
    return JSONResponse({"success": True})


async def settings(call: Call) -> Response:
    """Answer `/frontend/settings`, which LibreTranslate's own page requests first."""
    models, limits = call.service.models, call.service.limits
    source = models.sources[0]
    target = models.targets_of(source)[0]
    return JSONResponse({
        "apiKeys": call.service.access.keys is not None, "charLimit": limits.max_characters, "frontendTimeout": 500,
        "keyRequired": call.service.access.keys is not None, "suggestions": call.service.suggestions.enabled,
        "filesTranslation": True,
        "supportedFilesFormat": list(SUFFIXES),
        "language": {"source": {"code": source, "name": language_name(source)},
                     "target": {"code": target, "name": language_name(target)}}})


def routes() -> list[Route]:
    """Return the routes of LibreTranslate's interface."""
    return [
        Route("/translate", endpoint(translate, error_json), methods=["GET", "POST"]),
        Route("/languages", endpoint(languages, error_json, public=True), methods=["GET"]),
        Route("/detect", endpoint(detect_language, error_json), methods=["POST"]),
        Route("/translate_file",
              endpoint(translate_file, error_json, lambda service: service.limits.max_document),
              methods=["POST"]),
        Route("/download_file/{id}/{key}", endpoint(download_file, error_json, public=True),
              methods=["GET"], name="download_file"),
        Route("/suggest", endpoint(suggest, error_json), methods=["POST"]),
        Route("/frontend/settings", endpoint(settings, error_json, public=True), methods=["GET"])]


def _required_text(call: Call, name: str) -> str:
    """Return the text of a parameter.

    Raises:
        RequestError: it is missing; the message has LibreTranslate's wording, which clients compare.
    """
    text = call.parameters.text(name)
    if text is None:
        raise bad_request(f"Invalid request: missing {name} parameter")
    return text


def _texts(call: Call) -> list[str]:
    """Return the texts of the parameter `q`.

    Raises:
        RequestError: it is missing, or not a text.
    """
    if texts := call.parameters.texts("q"):
        return texts
    raise bad_request("Invalid request: missing q parameter")


def _alternatives(call: Call, maximum: int) -> int:
    """Return the requested number of alternatives.

    Raises:
        RequestError: it is not a number, or larger than `maximum`.
    """
    value = (call.parameters.values_of("alternatives") or [0])[0]
    try:
        number = int(value) if type(value) in (str, int) and len(str(value)) < 20 else None
    except ValueError:
        number = None
    if number is None:
        raise bad_request("Invalid request: alternatives parameter is not a number")
    if number > maximum:
        raise bad_request(f"Invalid request: alternatives parameter must be <= {maximum}: this server returns at most "
                          f"{maximum + 1} translations of a sentence (its option --alternatives).")
    return max(0, number)
