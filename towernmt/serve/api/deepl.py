"""DeepL's interface, as its official clients use it: texts, languages, usage, documents and glossaries.

Texts follow versions 2 and 3. Documents are sent, watched, and fetched once. Glossaries of version 2 (one direction
each) and of version 3 (several) are views of the same glossaries. Errors are `{"message": "..."}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, cast, get_args

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from towernmt.dataflow.text.language_codes import Direction, base_code, language_name
from towernmt.documents.formats.xml import XmlSettings
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.api.native_documents import (
    accept_document,
    add_failed_document,
    file_response,
    parse_uploaded_file,
)
from towernmt.serve.document_jobs import DocumentJob
from towernmt.serve.glossaries import Dictionary, Glossary
from towernmt.serve.glossary_entries import format_entries, read_entries
from towernmt.serve.request_limits import RequestError, UnsupportedLanguageError, bad_request
from towernmt.serve.served_models import ServedModel
from towernmt.serve.text_translation import Splitting, TextAnswer, TextRequest, detection_text, translate_texts
from towernmt.serve.web.http_requests import Call, Endpoint, check_texts, count_characters, endpoint
from towernmt.serve.web.request_parameters import Parameters

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


_FIELD = re.compile(r"dictionaries\[(\d{1,3})\]\.(\w+)")


async def pairs(call: Call) -> Response:
    """Answer `/v2/glossary-language-pairs` with the directions whose models support glossaries."""
    return JSONResponse({"supported_languages": [
        {"source_lang": base_code(model.direction.source), "target_lang": base_code(model.direction.target)}
        for model in call.service.models if model.model.constrains]})


async def create_v2(call: Call) -> Response:
    """Create a glossary with one direction: `POST /v2/glossaries`."""
    name = call.parameters.required("name")
    glossary = await call.run_in_thread(
        lambda: call.service.glossaries.add(call.caller, name, [_read_dictionary(call, call.parameters)]))
    return JSONResponse(_json_v2(glossary), 201)


async def list_v2(call: Call) -> Response:
    """List the glossaries of the caller: `GET /v2/glossaries`."""
    return JSONResponse({"glossaries": [_json_v2(glossary) for glossary in call.service.glossaries.owned_by(call.caller)
                                        if len(glossary.dictionaries) == 1]})


async def get_v2(call: Call) -> Response:
    """Describe a glossary: `GET /v2/glossaries/{id}`."""
    return JSONResponse(_json_v2(_requested_glossary(call)))


async def entries_v2(call: Call) -> Response:
    """Return the terms of a glossary: `GET /v2/glossaries/{id}/entries`."""
    dictionary = _only_dictionary(_requested_glossary(call))
    return PlainTextResponse(format_entries(dictionary.entries), media_type="text/tab-separated-values")


async def delete(call: Call) -> Response:
    """Delete a glossary, in both versions of the interface."""
    await call.run_in_thread(lambda: call.service.glossaries.remove(_requested_glossary(call)))
    return Response(status_code=204)


async def create_v3(call: Call) -> Response:
    """Create a glossary with any directions: `POST /v3/glossaries`."""
    name = call.parameters.required("name")

    def create() -> Glossary:
        dictionaries = _read_dictionaries(call)
        if not dictionaries:
            raise bad_request("'dictionaries' is missing.")
        return call.service.glossaries.add(call.caller, name, dictionaries)

    return JSONResponse(_json_v3(await call.run_in_thread(create)), 201)


async def list_v3(call: Call) -> Response:
    """List the glossaries of the caller: `GET /v3/glossaries`."""
    glossaries = call.service.glossaries.owned_by(call.caller)
    return JSONResponse({"glossaries": [_json_v3(glossary) for glossary in glossaries]})


async def get_v3(call: Call) -> Response:
    """Describe a glossary: `GET /v3/glossaries/{id}`."""
    return JSONResponse(_json_v3(_requested_glossary(call)))


async def change_v3(call: Call) -> Response:
    """Rename a glossary or add terms: `PATCH /v3/glossaries/{id}`."""
    changed = await call.run_in_thread(lambda: call.service.glossaries.change(
        _requested_glossary(call), call.parameters.text("name"), _read_dictionaries(call)))
    return JSONResponse(_json_v3(changed))


async def entries_v3(call: Call) -> Response:
    """Return the terms of a direction: `GET /v3/glossaries/{id}/entries?source_lang=&target_lang=`."""
    dictionary = _requested_dictionary(call)
    return JSONResponse({"dictionaries": [{**_languages(dictionary), "entries": format_entries(dictionary.entries),
                                           "entries_format": "tsv"}]})


async def replace_v3(call: Call) -> Response:
    """Replace the terms of a direction: `PUT /v3/glossaries/{id}/dictionaries`."""
    def replace() -> Dictionary:
        dictionary = _read_dictionary(call, call.parameters)
        call.service.glossaries.change(_requested_glossary(call), None, [dictionary], merge=False)
        return dictionary

    dictionary = await call.run_in_thread(replace)
    return JSONResponse({**_languages(dictionary), "entry_count": len(dictionary.entries)})


async def delete_dictionary_v3(call: Call) -> Response:
    """Delete the terms of a direction: `DELETE /v3/glossaries/{id}/dictionaries?source_lang=&target_lang=`."""
    await call.run_in_thread(
        lambda: call.service.glossaries.remove(_requested_glossary(call), _requested_dictionary(call)))
    return Response(status_code=204)


def glossary_routes() -> list[Route]:
    """Return the routes of glossaries."""
    def route(path: str, methods: dict[str, Endpoint]) -> list[Route]:
        return [Route(path, endpoint(function, deepl_error), methods=[method]) for method, function in methods.items()]

    path = "/glossaries/{id}"
    return [*route("/v2/glossary-language-pairs", {"GET": pairs}),
            *route("/v2/glossaries", {"GET": list_v2, "POST": create_v2}),
            *route(f"/v2{path}", {"GET": get_v2, "DELETE": delete}),
            *route(f"/v2{path}/entries", {"GET": entries_v2}),
            *route("/v3/glossaries", {"GET": list_v3, "POST": create_v3}),
            *route(f"/v3{path}", {"GET": get_v3, "PATCH": change_v3, "DELETE": delete}),
            *route(f"/v3{path}/entries", {"GET": entries_v3}),
            *route(f"/v3{path}/dictionaries", {"PUT": replace_v3, "DELETE": delete_dictionary_v3})]


def _requested_glossary(call: Call) -> Glossary:
    return call.service.glossaries.get(call.caller, call.request.path_params["id"])


def _only_dictionary(glossary: Glossary) -> Dictionary:
    if len(glossary.dictionaries) != 1:
        raise RequestError(404, "This glossary has several directions: request it by version 3 of the interface "
                                "(/v3/glossaries).")
    return glossary.dictionaries[0]


def _requested_dictionary(call: Call) -> Dictionary:
    parameters = call.parameters
    return _requested_glossary(call).find(parameters.required("source_lang"), parameters.required("target_lang"))


def _read_dictionary(call: Call, parameters: Parameters) -> Dictionary:
    """Read the terms of one direction, and check that its models can write them.

    Raises:
        RequestError: no model of the direction supports glossaries, or an entry is invalid.
    """
    source, target = (base_code(parameters.required(name)) for name in ("source_lang", "target_lang"))
    models = [model.model for model in call.service.models if model.model.constrains and
              (base_code(model.direction.source), base_code(model.direction.target)) == (source, target)]
    if not models:
        raise bad_request(f"No model of this server from {source[:40]} to {target[:40]} supports glossaries.")

    def check(terms: Terminology) -> None:
        for model in models:
            model.check(LineOptions(terminology=terms))

    return Dictionary(source, target, read_entries(parameters.required("entries"),
                                                   parameters.text("entries_format") or "tsv", check))


def _read_dictionaries(call: Call) -> list[Dictionary]:
    """Read the dictionaries from a JSON list of objects or from form fields such as `dictionaries[0].entries`."""
    objects: list[Any] = call.parameters.values_of("dictionaries")
    fields_by_index: dict[int, dict[str, list[Any]]] = {}
    for name, values in call.parameters.values.items():
        if match := _FIELD.fullmatch(name):
            fields_by_index.setdefault(int(match[1]), {})[match[2]] = list(values)
    forms = [fields_by_index[index] for index in sorted(fields_by_index)]
    for item in objects:
        if not isinstance(item, dict):
            raise bad_request("'dictionaries' must be a list of objects.")
        forms.append({name: [value] for name, value in item.items()})
    return [_read_dictionary(call, Parameters(form)) for form in forms]


def _languages(dictionary: Dictionary) -> dict[str, str]:
    return {"source_lang": dictionary.source, "target_lang": dictionary.target}


def _json_v2(glossary: Glossary) -> dict[str, Any]:
    dictionary = _only_dictionary(glossary)
    return {"glossary_id": glossary.id, "name": glossary.name, "ready": True, **_languages(dictionary),
            "creation_time": glossary.created, "entry_count": len(dictionary.entries)}


def _json_v3(glossary: Glossary) -> dict[str, Any]:
    return {"glossary_id": glossary.id, "name": glossary.name, "creation_time": glossary.created,
            "dictionaries": [{**_languages(dictionary), "entry_count": len(dictionary.entries)}
                             for dictionary in glossary.dictionaries]}
