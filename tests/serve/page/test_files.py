"""The files of the page: types, ETags, the content security policy, and the option that disables the page."""

from __future__ import annotations

import re
from typing import Any

from towernmt.serve.application import page_files


def test_all_files_are_there_with_their_types_and_a_policy_that_lets_in_nobody_else(make_client: Any) -> None:
    client = make_client()
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html") and "<title>Translate</title>" in page.text
    for name, kind in {"page.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}.items():
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
    assert client.head("/").status_code == 200 and client.post("/").status_code == 405
    assert client.get("/page/none.js").status_code == 404 and client.get("/page/../app.py").status_code == 404


def test_a_file_that_a_browser_has_is_not_sent_again(make_client: Any) -> None:
    client = make_client()
    mark = client.get("/page/page.js").headers["etag"]
    again = client.get("/page/page.js", headers={"If-None-Match": mark})
    assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == mark
    assert client.get("/page/page.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_page_names_no_other_host_and_writes_no_html() -> None:
    for name, content in page_files().items():
        text = content.decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text), name
        assert set(re.findall(r"https?://[^\"'\s)]+", text)) <= {"http://www.w3.org/2000/svg"}, name


def test_a_server_may_have_no_page(make_client: Any) -> None:
    from towernmt.serve.application import make_app

    service = make_client().service
    service.page = False
    from starlette.testclient import TestClient

    client = TestClient(make_app(service))
    assert client.get("/").status_code == 404 and client.get("/page/page.js").status_code == 404
    assert client.get("/health").status_code == 200
