"""DeepL's glossaries: version 2 (one direction each) and version 3 (several), on the same glossaries."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from towernmt.serve.api.deepl_text import written
from towernmt.serve.glossaries import Dictionary, Glossary, read_entries, written_entries
from towernmt.serve.languages import base_code
from towernmt.serve.refusal import Refusal, bad
from towernmt.serve.web.call import Call, Endpoint, endpoint
from towernmt.serve.web.parameters import Parameters

_FIELD = re.compile(r"dictionaries\[(\d{1,3})\]\.(\w+)")


async def pairs(call: Call) -> Response:
    """`/v2/glossary-language-pairs`: directions whose model takes glossaries."""
    return JSONResponse({"supported_languages": [
        {"source_lang": base_code(model.direction.source), "target_lang": base_code(model.direction.target)}
        for model in call.service.models if model.model.constrains]})


async def create_2(call: Call) -> Response:
    """`POST /v2/glossaries`."""
    name = call.parameters.required("name")
    made = call.service.glossaries.add(call.caller, name, [_dictionary(call, call.parameters)])
    return JSONResponse(_as_2(made), 201)


async def list_2(call: Call) -> Response:
    """`GET /v2/glossaries`."""
    return JSONResponse({"glossaries": [_as_2(one) for one in call.service.glossaries.of(call.caller)
                                        if len(one.dictionaries) == 1]})


async def get_2(call: Call) -> Response:
    """`GET /v2/glossaries/{id}`."""
    return JSONResponse(_as_2(_asked(call)))


async def entries_2(call: Call) -> Response:
    """`GET /v2/glossaries/{id}/entries`."""
    return PlainTextResponse(written_entries(_only(_asked(call)).entries), media_type="text/tab-separated-values")


async def delete(call: Call) -> Response:
    """`DELETE` of a glossary, in both versions."""
    call.service.glossaries.remove(_asked(call))
    return Response(status_code=204)


async def create_3(call: Call) -> Response:
    """`POST /v3/glossaries`."""
    name, given = call.parameters.required("name"), _dictionaries(call)
    if not given:
        raise bad("'dictionaries' is missing.")
    return JSONResponse(_as_3(call.service.glossaries.add(call.caller, name, given)), 201)


async def list_3(call: Call) -> Response:
    """`GET /v3/glossaries`."""
    return JSONResponse({"glossaries": [_as_3(one) for one in call.service.glossaries.of(call.caller)]})


async def get_3(call: Call) -> Response:
    """`GET /v3/glossaries/{id}`."""
    return JSONResponse(_as_3(_asked(call)))


async def change_3(call: Call) -> Response:
    """`PATCH /v3/glossaries/{id}`: another name, further terms."""
    changed = call.service.glossaries.change(_asked(call), call.parameters.text("name"), _dictionaries(call))
    return JSONResponse(_as_3(changed))


async def entries_3(call: Call) -> Response:
    """`GET /v3/glossaries/{id}/entries?source_lang=&target_lang=`."""
    found = _of_direction(call)
    return JSONResponse({"dictionaries": [{**_languages(found), "entries": written_entries(found.entries),
                                           "entries_format": "tsv"}]})


async def replace_3(call: Call) -> Response:
    """`PUT /v3/glossaries/{id}/dictionaries`: the terms of a direction in place of those that are there."""
    given = _dictionary(call, call.parameters)
    call.service.glossaries.change(_asked(call), None, [given], merge=False)
    return JSONResponse({**_languages(given), "entry_count": len(given.entries)})


async def delete_dictionary_3(call: Call) -> Response:
    """`DELETE /v3/glossaries/{id}/dictionaries?source_lang=&target_lang=`."""
    call.service.glossaries.remove(_asked(call), _of_direction(call))
    return Response(status_code=204)


def routes() -> list[Route]:
    """The routes."""
    def route(path: str, methods: dict[str, Endpoint]) -> list[Route]:
        return [Route(path, endpoint(function, written), methods=[method]) for method, function in methods.items()]

    one = "/glossaries/{number}"
    return [*route("/v2/glossary-language-pairs", {"GET": pairs}),
            *route("/v2/glossaries", {"GET": list_2, "POST": create_2}),
            *route(f"/v2{one}", {"GET": get_2, "DELETE": delete}),
            *route(f"/v2{one}/entries", {"GET": entries_2}),
            *route("/v3/glossaries", {"GET": list_3, "POST": create_3}),
            *route(f"/v3{one}", {"GET": get_3, "PATCH": change_3, "DELETE": delete}),
            *route(f"/v3{one}/entries", {"GET": entries_3}),
            *route(f"/v3{one}/dictionaries", {"PUT": replace_3, "DELETE": delete_dictionary_3})]


def _asked(call: Call) -> Glossary:
    return call.service.glossaries.get(call.caller, call.request.path_params["number"])


def _only(glossary: Glossary) -> Dictionary:
    if len(glossary.dictionaries) != 1:
        raise Refusal(404, "This glossary has several directions: ask for it by version 3 of the interface.")
    return glossary.dictionaries[0]


def _of_direction(call: Call) -> Dictionary:
    return _asked(call).find(call.parameters.required("source_lang"), call.parameters.required("target_lang"))


def _dictionary(call: Call, parameters: Parameters) -> Dictionary:
    source, target = (base_code(parameters.required(name)) for name in ("source_lang", "target_lang"))
    if not any((base_code(model.direction.source), base_code(model.direction.target)) == (source, target)
               and model.model.constrains for model in call.service.models):
        raise bad(f"There is no model from {source[:40]} to {target[:40]} here that takes a glossary.")
    return Dictionary(source, target, read_entries(parameters.required("entries"),
                                                   parameters.text("entries_format") or "tsv"))


def _dictionaries(call: Call) -> list[Dictionary]:
    """As JSON has them, a list of objects, or as a form has them, `dictionaries[0].entries`."""
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
