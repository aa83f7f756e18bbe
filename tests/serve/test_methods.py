"""The methods of every path, and the form of unexpected errors."""

from __future__ import annotations

import json

import pytest

METHODS = {
    "/health": "GET", "/ready": "GET", "/metrics": "GET", "/admin/reload": "POST",
    "/translate": "GET POST", "/languages": "GET", "/detect": "POST", "/translate_file": "POST",
    "/download_file/1/2": "GET", "/frontend/settings": "GET", "/suggest": "POST",
    "/v2/translate": "GET POST", "/v2/languages": "GET POST", "/v2/usage": "GET POST", "/v2/document": "POST",
    "/v2/document/1": "GET POST", "/v2/document/1/result": "GET POST",
    "/v2/glossary-language-pairs": "GET", "/v2/glossaries": "GET POST", "/v2/glossaries/1": "GET DELETE",
    "/v2/glossaries/1/entries": "GET", "/v3/glossaries": "GET POST", "/v3/glossaries/1": "GET PATCH DELETE",
    "/v3/glossaries/1/entries": "GET", "/v3/glossaries/1/dictionaries": "PUT DELETE",
    "/api/v1/translate": "GET POST", "/api/v1/models": "GET", "/api/v1/openapi.json": "GET",
    "/api/v1/documents": "POST", "/api/v1/documents/1": "GET DELETE", "/api/v1/documents/1/result": "GET",
    "/": "GET", "/page/page.js": "GET"}
"""The methods of each path, as the interfaces define them. `GET /translate` is an addition to LibreTranslate's."""


def field(path):
    """Return the field in which the interface of a path has its errors."""
    return "message" if path.startswith(("/v2/", "/v3/")) else "error"


@pytest.mark.parametrize("path", METHODS)
def test_a_path_takes_its_methods_and_no_other(make_client, path):
    client = make_client()
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        answer = client.request(method, path)
        if method in METHODS[path].split():
            assert answer.status_code != 405, method
        else:
            assert answer.status_code == 405 and set(answer.json()) == {field(path)}, method
            allowed = set(answer.headers["allow"].split(", ")) - {"HEAD"}
            assert allowed == set(METHODS[path].split())


def test_the_table_has_all_paths(make_client):
    from towernmt.serve.application import make_app

    app = make_app(make_client().service)._app
    for route in app.routes:
        if not route.path.startswith("/page/"):
            assert any(route.path_regex.match(path) for path in METHODS), route.path


@pytest.mark.parametrize(("path", "body"), [
    ("/translate", {"q": "kill me", "source": "de", "target": "en"}),
    ("/v2/translate", {"text": "kill me", "target_lang": "en"}),
    ("/api/v1/translate", {"text": "kill me"})])
def test_an_error_that_nobody_expected_is_json_in_the_form_of_its_interface(make_client, path, body):
    answer = make_client().post(path, json=body)
    assert answer.status_code == 500 and list(answer.json()) == [field(path)]
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", [path for path in METHODS if path not in ("/", "/page/page.js")])
def test_an_error_outside_of_the_translation_is_json_too(make_client, monkeypatch, path):
    """Every path reports errors, here the time limit of a request, in the same form."""
    import towernmt.serve.web.http_requests as call

    def broken(*_):
        raise MemoryError

    monkeypatch.setattr(call, "Cancellation", broken)
    client = make_client()
    for method in METHODS[path].split():
        answer = client.request(method, path)
        assert answer.status_code == 500 and list(answer.json()) == [field(path)], method


def test_a_stream_ends_with_the_error(make_client):
    lines = make_client().post("/api/v1/translate", json={"text": "gut\nkill me", "stream": True}).text.splitlines()
    assert json.loads(lines[-1])["status"] == 500 and "error" in json.loads(lines[-1])


@pytest.mark.parametrize("path", ["/translate", "/v2/translate", "/v3/glossaries"])
def test_headers_that_are_too_large_are_refused_in_the_form_of_the_interface(make_client, path):
    client = make_client(limits={"max_header": 1024})
    for answer in (client.get(path, headers={"X-A": "a" * 2000}), client.get(path, params={"q": "a" * 2000}),
                   client.get(path + "a" * 2000)):
        assert answer.status_code == 431 and list(answer.json()) == [field(path)]
