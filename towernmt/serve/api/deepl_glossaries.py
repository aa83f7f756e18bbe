"""DeepL's interface for glossaries.

Glossaries of version 2 (one direction each) and of version 3 (several) are views of the same glossaries.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from towernmt.dataflow.text.language_codes import base_code
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.api.deepl import deepl_error
from towernmt.serve.glossaries import Dictionary, Glossary
from towernmt.serve.glossary_entries import format_entries, read_entries
from towernmt.serve.request_limits import RequestError, bad_request
from towernmt.serve.web.http_requests import Call, Endpoint, endpoint
from towernmt.serve.web.request_parameters import Parameters

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
