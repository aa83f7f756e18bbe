"""DeepL's interface, as its official clients use it: texts, languages, usage, documents and glossaries.

Texts follow versions 2 and 3. Documents are sent, watched, and fetched once. Glossaries of version 2 (one direction
each) and of version 3 (several) are views of the same glossaries. Errors are `{"message": "..."}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast, get_args

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from towernmt.dataflow.text.language_codes import Direction, base_code, language_name
from towernmt.documents.formats.xml import XmlSettings
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.api.native_documents import as_file, opened, taken_in, taken_in_vain
from towernmt.serve.document_jobs import DocumentJob
from towernmt.serve.glossaries import Dictionary, Glossary, read_entries, written_entries
from towernmt.serve.request_limits import Refusal, UnsupportedLanguage, bad
from towernmt.serve.served_models import ServedModel
from towernmt.serve.text_translation import Splitting, TextAnswer, TextRequest, sample_of, translate_texts
from towernmt.serve.web.http_requests import Call, Endpoint, check_texts, endpoint
from towernmt.serve.web.request_parameters import Parameters

NO_LIMIT = 10 ** 12
"""Reported character limit without a limit, since clients require a number."""
VARIANTS = {"en": (("EN-US", "English (American)"), ("EN-GB", "English (British)")),
            "pt": (("PT-PT", "Portuguese (European)"), ("PT-BR", "Portuguese (Brazilian)"))}
"""Targets that clients name by their region alone."""
NOT_HERE = ("style_id", "translation_memory_id", "custom_instructions")
FORMATS = {"": "text", "html": "html", "xml": "xml"}
"""The formats of texts by `tag_handling`."""
SPLITTING = {"text": "1", "html": "nonewlines", "xml": "1"}
"""The defaults of `split_sentences` by the format."""
MODEL_TYPES = {"": None, "latency_optimized": "latency_optimized", "quality_optimized": "quality_optimized",
               "prefer_quality_optimized": "quality_optimized"}
"""`model_type_used` by `model_type`: a direction has one model here, which serves each type."""
FORMALITIES = ("default", "prefer_more", "prefer_less", "more", "less")


def deepl_error(refusal: Refusal) -> dict[str, Any]:
    """Return the answer for a refusal."""
    if isinstance(refusal, UnsupportedLanguage):
        return {"message": f"Value for '{refusal.parameter}_lang' not supported: {refusal.hint}"}
    return {"message": str(refusal)}


def model_and_glossary(call: Call, sample: str, one_of_several: bool = False
                       ) -> tuple[ServedModel, str, Terminology | None]:
    """Return the model that a request means, the source language, and the glossary of the request.

    Args:
        call: the request.
        sample: the beginning of the text, in which the source language is detected.
        one_of_several: whether the text is one of several, which must not all fail because of its language.

    Raises:
        Refusal: the server has no such model, or the request needs a feature that the server does not have.
    """
    parameters = call.parameters
    model, detected = call.service.models.find(parameters.text("source_lang"), parameters.required("target_lang"),
                                               sample, only_sources=one_of_several)
    for name in NOT_HERE:
        if parameters.given(name):
            raise bad(f"'{name}' is not known here: leave it out.")
    if _choice(call, "formality", FORMALITIES, "default") in ("more", "less"):
        raise bad(f"Value for 'formality' not supported: Target language '{model.direction.target.upper()}' has no "
                  "formality here. Leave it out, or use prefer_more or prefer_less.")
    numbers = [number for text in parameters.texts("glossary_id", "glossary_ids") for number in text.split(",")]
    if numbers and detected is not None:
        raise bad("'source_lang' is needed where a glossary is used.")
    source, target = model.direction
    terms = call.service.glossaries.terminology(call.caller, numbers, source, target) if numbers else None
    return model, source, terms


async def translate(call: Call) -> Response:
    """Answer `/v2/translate`: `text` (one or several), `target_lang`, `source_lang`, `tag_handling` and others."""
    texts = call.parameters.texts("text")
    if not texts:
        raise bad("'text' is missing.")
    format = FORMATS[_choice(call, "tag_handling", [*FORMATS], "")]
    split = cast(Splitting, _choice(call, "split_sentences", get_args(Splitting), SPLITTING[format]))
    model_type = MODEL_TYPES[_choice(call, "model_type", [*MODEL_TYPES], "")]
    elements = _elements(call)
    check_texts(call, None, texts)
    groups = _by_model(call, texts, format)
    for model, _, numbers in groups:
        check_texts(call, model.direction, [texts[number] for number in numbers])

    def translated() -> dict[int, tuple[ServedModel, TextAnswer]]:
        found: dict[int, tuple[ServedModel, TextAnswer]] = {}
        for model, glossary, numbers in groups:
            answers = translate_texts(model, [texts[number] for number in numbers],
                                      TextRequest(glossary, format, split=split, xml=elements),
                                      call.service.limits, call.ticket)
            found |= {number: (model, answer) for number, answer in zip(numbers, answers, strict=True)}
        return found

    found = await call.in_thread(translated)
    used = {} if model_type is None else {"model_type_used": model_type}
    return JSONResponse({"translations": [
        {"detected_source_language": base_code(found[number][0].direction.source).upper(),
         "text": found[number][1].text, "billed_characters": len(text), **used} for number, text in enumerate(texts)]})


def _by_model(call: Call, texts: Sequence[str],
              format: str) -> list[tuple[ServedModel, Terminology | None, list[int]]]:
    """Return the models that the texts need, each with its glossary and the numbers of its texts.

    Without a source language, the language of each text is detected.
    """
    if call.parameters.text("source_lang") or len(texts) == 1:
        model, _, glossary = model_and_glossary(call, sample_of(texts, format))
        return [(model, glossary, [*range(len(texts))])]
    groups: dict[Direction, tuple[ServedModel, Terminology | None, list[int]]] = {}
    for number, text in enumerate(texts):
        model, _, glossary = model_and_glossary(call, sample_of([text], format), one_of_several=True)
        groups.setdefault(model.direction, (model, glossary, []))[2].append(number)
    return [*groups.values()]


def _choice(call: Call, name: str, choices: Sequence[str], default: str) -> str:
    """Return the value of a parameter that has one of several values. In JSON it may be a number or a boolean.

    Raises:
        Refusal: it has another value.
    """
    given = call.parameters.given(name) or [default]
    value = str(int(given[0]) if isinstance(given[0], bool) else given[0]).lower() or default
    if len(given) > 1 or value not in choices:
        raise bad(f"Value for '{name}' not supported: choose one of {', '.join(filter(None, choices))}.")
    return value


def _elements(call: Call) -> XmlSettings:
    """Return the meaning of elements by `ignore_tags`, `splitting_tags`, `non_splitting_tags`, `outline_detection`."""
    def names(parameter: str) -> frozenset[str]:
        return frozenset(name.strip() for text in call.parameters.texts(parameter) for name in text.split(","))

    by_structure = not call.parameters.given("outline_detection") or call.parameters.flag("outline_detection")
    return XmlSettings(names("ignore_tags"), names("splitting_tags"), names("non_splitting_tags"), by_structure)


async def languages(call: Call) -> Response:
    """Answer `/v2/languages` with the target languages for `type=target`, else with the source languages."""
    models = call.service.models
    if call.parameters.choice("type", ("source", "target"), "source") == "source":
        return JSONResponse([{"language": code.upper(), "name": language_name(code)} for code in models.sources])
    named = [pair for code in models.targets for pair in VARIANTS.get(code, ((code.upper(), language_name(code)),))]
    return JSONResponse([{"language": code, "name": name, "supports_formality": False} for code, name in named])


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
        raise bad("'file' is missing: send a form of the kind multipart/form-data.")
    name, file = await opened(call, "Invalid file")
    wanted = call.parameters.text("output_format")
    if wanted and not name.lower().endswith(f".{wanted.lower().lstrip('.')}"):
        raise bad("'output_format': a document keeps its format here.")
    model, _, glossary = model_and_glossary(call, file.sample)
    if model.direction.source == model.direction.target:
        document = taken_in_vain(call, name, model, bad("Source and target language are equal."))   # as DeepL does
    else:
        document = await taken_in(call, name, file, model, glossary)
    return JSONResponse({"document_id": document.number, "document_key": document.key})


async def status(call: Call) -> Response:
    """Answer `/v2/document/{id}` with the progress of the translation."""
    document = _document_of(call)
    told = {"document_id": document.number, "status": document.status}
    if document.status == "done":
        return JSONResponse({**told, "billed_characters": document.characters})
    if document.refusal is not None:
        document.fetched = True
        return JSONResponse({**told, "error_message": str(document.refusal)})
    return JSONResponse({**told, "seconds_remaining": document.seconds_remaining() or 1})


async def fetch(call: Call) -> Response:
    """Answer `/v2/document/{id}/result` with the translation, which can be fetched once."""
    document = _document_of(call)
    if document.refusal is not None:
        raise document.refusal
    if document.status != "done":
        raise Refusal(503, "The document has not been translated yet.", 1.0)
    call.service.documents.remove(document)
    return as_file(document)


def document_routes() -> list[Route]:
    """Return the routes of documents."""
    return [Route("/v2/document", endpoint(send, deepl_error, lambda service: service.limits.max_document),
                  methods=["POST"]),
            Route("/v2/document/{number}", endpoint(status, deepl_error, follows=True), methods=["GET", "POST"]),
            Route("/v2/document/{number}/result", endpoint(fetch, deepl_error, follows=True), methods=["GET", "POST"])]


def _document_of(call: Call) -> DocumentJob:
    return call.service.documents.get(call.request.path_params["number"], call.parameters.required("document_key"))


_FIELD = re.compile(r"dictionaries\[(\d{1,3})\]\.(\w+)")


async def pairs(call: Call) -> Response:
    """Answer `/v2/glossary-language-pairs` with the directions whose models support glossaries."""
    return JSONResponse({"supported_languages": [
        {"source_lang": base_code(model.direction.source), "target_lang": base_code(model.direction.target)}
        for model in call.service.models if model.model.constrains]})


async def create_2(call: Call) -> Response:
    """Create a glossary with one direction: `POST /v2/glossaries`."""
    name = call.parameters.required("name")
    made = await call.in_thread(
        lambda: call.service.glossaries.add(call.caller, name, [_dictionary(call, call.parameters)]))
    return JSONResponse(_as_2(made), 201)


async def list_2(call: Call) -> Response:
    """List the glossaries of the caller: `GET /v2/glossaries`."""
    return JSONResponse({"glossaries": [_as_2(one) for one in call.service.glossaries.of(call.caller)
                                        if len(one.dictionaries) == 1]})


async def get_2(call: Call) -> Response:
    """Describe a glossary: `GET /v2/glossaries/{id}`."""
    return JSONResponse(_as_2(_glossary_of(call)))


async def entries_2(call: Call) -> Response:
    """Return the terms of a glossary: `GET /v2/glossaries/{id}/entries`."""
    return PlainTextResponse(written_entries(_only(_glossary_of(call)).entries), media_type="text/tab-separated-values")


async def delete(call: Call) -> Response:
    """Delete a glossary, in both versions of the interface."""
    await call.in_thread(lambda: call.service.glossaries.remove(_glossary_of(call)))
    return Response(status_code=204)


async def create_3(call: Call) -> Response:
    """Create a glossary with any directions: `POST /v3/glossaries`."""
    name = call.parameters.required("name")

    def create() -> Glossary:
        given = _dictionaries(call)
        if not given:
            raise bad("'dictionaries' is missing.")
        return call.service.glossaries.add(call.caller, name, given)

    return JSONResponse(_as_3(await call.in_thread(create)), 201)


async def list_3(call: Call) -> Response:
    """List the glossaries of the caller: `GET /v3/glossaries`."""
    return JSONResponse({"glossaries": [_as_3(one) for one in call.service.glossaries.of(call.caller)]})


async def get_3(call: Call) -> Response:
    """Describe a glossary: `GET /v3/glossaries/{id}`."""
    return JSONResponse(_as_3(_glossary_of(call)))


async def change_3(call: Call) -> Response:
    """Rename a glossary or add terms: `PATCH /v3/glossaries/{id}`."""
    changed = await call.in_thread(lambda: call.service.glossaries.change(
        _glossary_of(call), call.parameters.text("name"), _dictionaries(call)))
    return JSONResponse(_as_3(changed))


async def entries_3(call: Call) -> Response:
    """Return the terms of a direction: `GET /v3/glossaries/{id}/entries?source_lang=&target_lang=`."""
    found = _of_direction(call)
    return JSONResponse({"dictionaries": [{**_languages(found), "entries": written_entries(found.entries),
                                           "entries_format": "tsv"}]})


async def replace_3(call: Call) -> Response:
    """Replace the terms of a direction: `PUT /v3/glossaries/{id}/dictionaries`."""
    def put() -> Dictionary:
        given = _dictionary(call, call.parameters)
        call.service.glossaries.change(_glossary_of(call), None, [given], merge=False)
        return given

    given = await call.in_thread(put)
    return JSONResponse({**_languages(given), "entry_count": len(given.entries)})


async def delete_dictionary_3(call: Call) -> Response:
    """Delete the terms of a direction: `DELETE /v3/glossaries/{id}/dictionaries?source_lang=&target_lang=`."""
    await call.in_thread(lambda: call.service.glossaries.remove(_glossary_of(call), _of_direction(call)))
    return Response(status_code=204)


def glossary_routes() -> list[Route]:
    """Return the routes of glossaries."""
    def route(path: str, methods: dict[str, Endpoint]) -> list[Route]:
        return [Route(path, endpoint(function, deepl_error), methods=[method]) for method, function in methods.items()]

    one = "/glossaries/{number}"
    return [*route("/v2/glossary-language-pairs", {"GET": pairs}),
            *route("/v2/glossaries", {"GET": list_2, "POST": create_2}),
            *route(f"/v2{one}", {"GET": get_2, "DELETE": delete}),
            *route(f"/v2{one}/entries", {"GET": entries_2}),
            *route("/v3/glossaries", {"GET": list_3, "POST": create_3}),
            *route(f"/v3{one}", {"GET": get_3, "PATCH": change_3, "DELETE": delete}),
            *route(f"/v3{one}/entries", {"GET": entries_3}),
            *route(f"/v3{one}/dictionaries", {"PUT": replace_3, "DELETE": delete_dictionary_3})]


def _glossary_of(call: Call) -> Glossary:
    return call.service.glossaries.get(call.caller, call.request.path_params["number"])


def _only(glossary: Glossary) -> Dictionary:
    if len(glossary.dictionaries) != 1:
        raise Refusal(404, "This glossary has several directions: ask for it by version 3 of the interface.")
    return glossary.dictionaries[0]


def _of_direction(call: Call) -> Dictionary:
    return _glossary_of(call).find(call.parameters.required("source_lang"), call.parameters.required("target_lang"))


def _dictionary(call: Call, parameters: Parameters) -> Dictionary:
    source, target = (base_code(parameters.required(name)) for name in ("source_lang", "target_lang"))
    models = [model.model for model in call.service.models if model.model.constrains and
              (base_code(model.direction.source), base_code(model.direction.target)) == (source, target)]
    if not models:
        raise bad(f"No model of this server from {source[:40]} to {target[:40]} supports glossaries.")

    def check(terms: Terminology) -> None:
        for model in models:
            model.check(LineOptions(terminology=terms))

    return Dictionary(source, target, read_entries(parameters.required("entries"),
                                                   parameters.text("entries_format") or "tsv", check))


def _dictionaries(call: Call) -> list[Dictionary]:
    """Read the dictionaries from a JSON list of objects or from form fields such as `dictionaries[0].entries`."""
    given: list[Any] = call.parameters.given("dictionaries")
    by_number: dict[int, dict[str, list[Any]]] = {}
    for name, values in call.parameters.values.items():
        if found := _FIELD.fullmatch(name):
            by_number.setdefault(int(found[1]), {})[found[2]] = list(values)
    forms = [by_number[number] for number in sorted(by_number)]
    for one in given:
        if not isinstance(one, dict):
            raise bad("'dictionaries' must be a list of objects.")
        forms.append({name: [value] for name, value in one.items()})
    return [_dictionary(call, Parameters(form)) for form in forms]


def _languages(dictionary: Dictionary) -> dict[str, str]:
    return {"source_lang": dictionary.source, "target_lang": dictionary.target}


def _as_2(glossary: Glossary) -> dict[str, Any]:
    only = _only(glossary)
    return {"glossary_id": glossary.number, "name": glossary.name, "ready": True, **_languages(only),
            "creation_time": glossary.created, "entry_count": len(only.entries)}


def _as_3(glossary: Glossary) -> dict[str, Any]:
    return {"glossary_id": glossary.number, "name": glossary.name, "creation_time": glossary.created,
            "dictionaries": [{**_languages(one), "entry_count": len(one.entries)} for one in glossary.dictionaries]}
