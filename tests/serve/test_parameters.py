"""The charsets of forms, queries and JSON: text arrives unchanged, or is refused with the correct reason."""

from __future__ import annotations

import json

import pytest

TEXT = "Das Café – größer als 5 €? „Ja“ 中文 😊"
PLAIN = "Das Café ist größer."
FORM, JSON, PARTS = "application/x-www-form-urlencoded", "application/json", "multipart/form-data; boundary=b"


def form(text, charset="utf-8"):
    return f"q={text}&source=de&target=en".encode(charset)


def as_json(text, charset="utf-8"):
    return json.dumps({"q": text, "source": "de", "target": "en"}, ensure_ascii=False).encode(charset)


def parts(text, charset="utf-8"):
    fields = {"q": text, "source": "de", "target": "en"}
    return ("".join(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
                    for name, value in fields.items()) + "--b--\r\n").encode(charset)


def post(client, kind, body):
    return client.post("/translate", content=body, headers={"Content-Type": kind} if kind else {})


@pytest.mark.parametrize(("kind", "body", "text"), [
    (FORM, form("The café is open."), "The café is open."),
    (FORM, form(TEXT), TEXT),
    (FORM, form("a %C3%A9 é+b"), "a é é b"),
    (FORM, b"\xef\xbb\xbf" + form(TEXT), TEXT),
    (f"{FORM}; charset=UTF-8", form(TEXT), TEXT),
    (f'{FORM}; charset="utf8"', form(TEXT), TEXT),
    (f"{FORM};charset=ISO-8859-1", form(PLAIN, "latin-1"), PLAIN),
    (f"{FORM}; charset=latin1", b"q=Caf%E9&source=de&target=en", "Café"),
    (f"{FORM}; charset=windows-1252", form("„5 €“", "cp1252"), "„5 €“"),
    (f"{FORM}; charset=utf-16", form(TEXT, "utf-16"), TEXT),
    (f"{FORM}; charset=Shift_JIS", form("日本語", "shift-jis"), "日本語"),
    (FORM.upper(), form(TEXT), TEXT),
    ("", form(TEXT), TEXT),
    ("", as_json(TEXT), TEXT),
    (FORM, as_json(TEXT), TEXT),
    (JSON, as_json(TEXT), TEXT),
    (JSON, b"\xef\xbb\xbf" + as_json(TEXT), TEXT),
    (f"{JSON}; charset=iso-8859-1", as_json(PLAIN, "latin-1"), PLAIN),
    (f"{JSON}; charset=utf-16", as_json(TEXT, "utf-16"), TEXT),
    (PARTS, parts(TEXT), TEXT),
    (f"{PARTS}; charset=utf-8", parts(TEXT), TEXT),
    ("multipart/form-data; charset=ISO-8859-1; boundary=b", parts(PLAIN, "latin-1"), PLAIN),
])
def test_text_comes_as_it_was_sent(make_client, kind, body, text):
    answer = post(make_client(), kind, body)
    assert (answer.status_code, answer.json()) == (200, {"translatedText": text.upper()})


@pytest.mark.parametrize(("kind", "body", "status", "words"), [
    (FORM, form(PLAIN, "latin-1"), 400, "The form is not encoded as UTF-8 (byte 10 is 0xE9): send UTF-8, or name"),
    (FORM, b"q=Caf%E9&source=de&target=en", 400, "The form is not encoded as UTF-8 (it has a wrong %E9)"),
    (FORM, form("%ED%A0%80"), 400, "The form is not encoded as UTF-8"),
    ("", form(PLAIN, "latin-1"), 400, "The form is not encoded as UTF-8"),
    (JSON, as_json(PLAIN, "latin-1"), 400, "The JSON is not encoded as UTF-8"),
    (JSON, b'{"q": "\\ud83d", "source": "de", "target": "en"}', 400, "an unpaired surrogate"),
    (f"{JSON}; charset=ascii", as_json(PLAIN), 400, "The JSON is not encoded as ASCII"),
    (f"{JSON}; charset=utf-16", b'{"q"', 400, "not valid JSON"),
    (PARTS, parts(PLAIN, "latin-1"), 400, "The form is not encoded as UTF-8"),
    (f"{FORM}; charset=utf-9", form(PLAIN), 415, "The charset utf-9 is not supported"),
    (f"{FORM}; charset=zlib", form(PLAIN), 415, "The charset zlib is not supported"),
    (f"{FORM}; charset=unicode_escape", form(PLAIN), 415, "The charset unicode_escape is not supported"),
    (f"{FORM}; charset=utf-7", form("+2AA-"), 415, "The charset utf-7 is not supported"),
    (f"{FORM}; charset={'x' * 5000}", form(PLAIN), 415, "The charset xxx"),
    (FORM, b'{"q": ', 400, "not valid JSON"),
])
def test_text_that_cannot_be_read_is_refused_for_the_true_reason(make_client, kind, body, status, words):
    answer = post(make_client(), kind, body)
    assert answer.status_code == status and words in answer.json()["error"]


def test_a_file_keeps_its_name_in_any_charset(make_client):
    for name, charset in (("größe.txt", "utf-8"), ("größe.txt", "latin-1")):
        body = ('--b\r\nContent-Disposition: form-data; name="target"\r\n\r\nen\r\n--b\r\n'
                f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\ngut\r\n--b--\r\n'
                ).encode(charset)
        answer = make_client().post("/api/v1/documents", content=body, headers={"Content-Type": PARTS})
        assert answer.status_code == 202 and answer.json()["name"].endswith(".txt")
        assert charset == "latin-1" or answer.json()["name"] == name
