"""DeepL's interface, as its official clients use it: texts, languages, usage and documents.

Texts follow versions 2 and 3. Documents are sent, watched, and fetched once. Errors are `{"message": "..."}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast, get_args

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from towernmt.dataflow.text.language_codes import Direction, base_code, language_name
from towernmt.documents.formats.xml import XmlSettings
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.api.native_documents import (
    accept_document,
    add_failed_document,
    file_response,
    parse_uploaded_file,
)
from towernmt.serve.document_jobs import DocumentJob
from towernmt.serve.request_limits import RequestError, UnsupportedLanguageError, bad_request
from towernmt.serve.served_models import ServedModel
from towernmt.serve.text_translation import Splitting, TextAnswer, TextRequest, detection_text, translate_texts
from towernmt.serve.web.http_requests import Call, check_texts, count_characters, endpoint

NO_LIMIT = 10 ** 12
"""Reported character limit without a limit, since clients require a number."""
VARIANTS = {"en": (("EN-US", "English (American)"), ("EN-GB", "English (British)")),
            "pt": (("PT-PT", "Portuguese (European)"), ("PT-BR", "Portuguese (Brazilian)"))}
"""Targets that clients name by their region alone."""
UNSUPPORTED_PARAMETERS = ("style_id", "translation_memory_id", "custom_instructions")
FORMATS = {"": "text", "html": "html", "xml": "xml"}
"""The formats of texts by `tag_handling`."""
SPLITTING = {"text": "1", "html": "nonewlines", "xml": "1"}
"""The defaults of `split_sentences` by the format."""
MODEL_TYPES = {"": None, "latency_optimized": "latency_optimized", "quality_optimized": "quality_optimized",
               "prefer_quality_optimized": "quality_optimized"}
"""`model_type_used` by `model_type`: a direction has one model here, which serves each type."""
FORMALITIES = ("default", "prefer_more", "prefer_less", "more", "less")


def deepl_error(error: RequestError) -> dict[str, Any]:
    """Return an error in the format of DeepL."""
    if isinstance(error, UnsupportedLanguageError):
        return {"message": f"Value for '{error.parameter}_lang' not supported: {error.hint}"}
    return {"message": str(error)}


async def model_and_glossary(call: Call, sample: str, one_of_several: bool = False
                             ) -> tuple[ServedModel, Terminology | None]:
    """Return the model and the glossary that a request names.

    Args:
        call: the request.
        sample: the beginning of the text, in which the source language is detected.
        one_of_several: whether the text is one of several, which must not all fail because of its language.

    Raises:
        RequestError: the server has no such model, or the request needs a feature that the server does not have.
    """
    parameters = call.parameters
    model, detected = call.service.models.find(parameters.text("source_lang"), parameters.required("target_lang"),
                                               sample, only_sources=one_of_several)
    for name in UNSUPPORTED_PARAMETERS:
        if parameters.values_of(name):
            raise bad_request(f"'{name}' is not supported by this server: leave it out.")
    if _choice_parameter(call, "formality", FORMALITIES, "default") in ("more", "less"):
        raise bad_request("Value for 'formality' not supported: Target language "
                          f"'{model.direction.target.upper()}' has no formality here. Leave it out, or use prefer_more "
                          "or prefer_less.")
    ids = [id for text in parameters.texts("glossary_id", "glossary_ids") for id in text.split(",")]
    if not ids:
        return model, None
    if detected is not None:
        raise bad_request("'source_lang' is required with a glossary.")
    return model, await call.run_in_thread(
        partial(call.service.glossaries.terminology, call.caller, ids, *model.direction))


async def translate(call: Call) -> Response:
    """Answer `/v2/translate`: `text` (one or several), `target_lang`, `source_lang`, `tag_handling` and others."""
    texts = call.parameters.texts("text")
    if not texts:
        raise bad_request("'text' is missing.")
    format = FORMATS[_choice_parameter(call, "tag_handling", [*FORMATS], "")]
    split = cast(Splitting, _choice_parameter(call, "split_sentences", get_args(Splitting), SPLITTING[format]))
    model_type = MODEL_TYPES[_choice_parameter(call, "model_type", [*MODEL_TYPES], "")]
    xml = _xml_settings(call)
    check_texts(call, texts)
    groups = await _group_by_model(call, texts, format)
    # All together, because a rate accepts only one request that exceeds it.
    count_characters(call, {model.direction: sum(len(texts[index]) for index in indices)
                            for model, _, indices in groups})

    def translate_groups() -> dict[int, tuple[ServedModel, TextAnswer]]:
        results: dict[int, tuple[ServedModel, TextAnswer]] = {}
        for model, glossary, indices in groups:
            answers = translate_texts(model, [texts[index] for index in indices],
                                      TextRequest(glossary, format, split=split, xml=xml),
                                      call.service.limits, call.cancellation)
            results |= {index: (model, answer) for index, answer in zip(indices, answers, strict=True)}
        return results

    results = await call.run_in_thread(translate_groups)
    model_type_used = {} if model_type is None else {"model_type_used": model_type}
    return JSONResponse({"translations": [
        {"detected_source_language": base_code(model.direction.source).upper(), "text": answer.text,
         "billed_characters": len(text), **model_type_used}
        for text, (model, answer) in zip(texts, (results[index] for index in range(len(texts))), strict=True)]})


async def _group_by_model(call: Call, texts: Sequence[str],
                          format: str) -> list[tuple[ServedModel, Terminology | None, list[int]]]:
    """Return the models that the texts need, each with its glossary and the indices of its texts.

    Without a source language, the language of each text is detected.
    """
    if call.parameters.text("source_lang") or len(texts) == 1:
        model, glossary = await model_and_glossary(call, detection_text(texts, format))
        return [(model, glossary, [*range(len(texts))])]
    groups: dict[Direction, tuple[ServedModel, Terminology | None, list[int]]] = {}
    for index, text in enumerate(texts):
        model, glossary = await model_and_glossary(call, detection_text([text], format), one_of_several=True)
        groups.setdefault(model.direction, (model, glossary, []))[2].append(index)
    return [*groups.values()]


def _choice_parameter(call: Call, name: str, choices: Sequence[str], default: str) -> str:
    """Return the value of a parameter that has one of several values. In JSON it may be a number or a boolean.

    Raises:
        RequestError: it has another value.
    """
    values = call.parameters.values_of(name) or [default]
    value = str(int(values[0]) if isinstance(values[0], bool) else values[0]).lower() or default
    if len(values) > 1 or value not in choices:
        raise bad_request(f"Value for '{name}' not supported: choose one of {', '.join(filter(None, choices))}.")
    return value


def _xml_settings(call: Call) -> XmlSettings:
    """Return the roles of elements by `ignore_tags`, `splitting_tags`, `non_splitting_tags`, `outline_detection`."""
    def names(parameter: str) -> frozenset[str]:
        return frozenset(name.strip() for text in call.parameters.texts(parameter) for name in text.split(","))

    by_structure = not call.parameters.values_of("outline_detection") or call.parameters.flag("outline_detection")
    return XmlSettings(names("ignore_tags"), names("splitting_tags"), names("non_splitting_tags"), by_structure)


async def languages(call: Call) -> Response:
    """Answer `/v2/languages` with the target languages for `type=target`, else with the source languages."""
    models = call.service.models
    if call.parameters.choice("type", ("source", "target"), "source") == "source":
        return JSONResponse([{"language": code.upper(), "name": language_name(code)} for code in models.sources])
    targets = [pair for code in models.targets for pair in VARIANTS.get(code, ((code.upper(), language_name(code)),))]
    return JSONResponse([{"language": code, "name": name, "supports_formality": False} for code, name in targets])


async def usage(call: Call) -> Response:
    """Answer `/v2/usage` with the characters of this caller since the start of the server."""
    return JSONResponse({"character_count": call.service.characters.get(call.caller, 0), "character_limit": NO_LIMIT})


def text_routes() -> list[Route]:
    """Return the routes of texts and languages."""
    return [Route("/v2/translate", endpoint(translate, deepl_error), methods=["GET", "POST"]),
            Route("/v2/languages", endpoint(languages, deepl_error), methods=["GET", "POST"]),
            Route("/v2/usage", endpoint(usage, deepl_error), methods=["GET", "POST"])]


async def send(call: Call) -> Response:
    """Answer `POST /v2/document`: `file`, `target_lang`, `source_lang`, `glossary_id`."""
    if "file" not in call.parameters.files:
        raise bad_request("'file' is missing: send a form of the kind multipart/form-data.")
    name, file = await parse_uploaded_file(call, "Invalid file")
    output_format = call.parameters.text("output_format")
    if output_format and not name.lower().endswith(f".{output_format.lower().lstrip('.')}"):
        raise bad_request("'output_format': a document keeps its format here.")
    model, glossary = await model_and_glossary(call, file.sample)
    if model.direction.source == model.direction.target:
        error = bad_request("Source and target language are equal.")
        document = add_failed_document(call, name, model, error)    # as DeepL does
    else:
        document = await accept_document(call, name, file, model, glossary)
    return JSONResponse({"document_id": document.id, "document_key": document.key})


async def status(call: Call) -> Response:
    """Answer `/v2/document/{id}` with the progress of the translation."""
    document = _requested_document(call)
    status_json = {"document_id": document.id, "status": document.status}
    if document.status == "done":
        return JSONResponse({**status_json, "billed_characters": document.characters})
    if document.error is not None:
        document.fetched = True
        return JSONResponse({**status_json, "error_message": str(document.error)})
    return JSONResponse({**status_json, "seconds_remaining": document.seconds_remaining() or 1})


async def fetch(call: Call) -> Response:
    """Answer `/v2/document/{id}/result` with the translation, which can be fetched once."""
    document = _requested_document(call)
    response = file_response(call, document, unfinished_status=503)
    if document.fetched:
        call.service.documents.remove(document)
    return response


def document_routes() -> list[Route]:
    """Return the routes of documents."""
    return [Route("/v2/document", endpoint(send, deepl_error, lambda service: service.limits.max_document),
                  methods=["POST"]),
            Route("/v2/document/{id}", endpoint(status, deepl_error, is_follow_up=True), methods=["GET", "POST"]),
            Route("/v2/document/{id}/result", endpoint(fetch, deepl_error, is_follow_up=True),
                  methods=["GET", "POST"])]


def _requested_document(call: Call) -> DocumentJob:
    return call.service.documents.get(call.request.path_params["id"], call.parameters.required("document_key"))
