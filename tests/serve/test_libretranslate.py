"""LibreTranslate's interface, as its documentation and its clients have it."""

from __future__ import annotations

import pytest


@pytest.fixture
def client(make_client):
    return make_client()


@pytest.mark.parametrize("send", [
    lambda client, values: client.post("/translate", json=values),
    lambda client, values: client.post("/translate", data=values),
    lambda client, values: client.post("/translate", files={name: (None, value) for name, value in values.items()}),
    lambda client, values: client.post("/translate", params=values),
    lambda client, values: client.get("/translate", params=values)], ids=["JSON", "form", "multipart", "query", "GET"])
def test_a_text_is_translated_however_it_is_sent(client, send):
    answer = send(client, {"q": "guten morgen", "source": "de", "target": "en"})
    assert (answer.status_code, answer.json()) == (200, {"translatedText": "GUTEN MORGEN"})


def test_a_list_is_answered_by_a_list_and_auto_by_what_was_detected(client):
    answer = client.post("/translate", json={"q": ["guten morgen", "das ist gut"], "source": "auto", "target": "en"})
    assert answer.json()["translatedText"] == ["GUTEN MORGEN", "DAS IST GUT"]
    assert [one["language"] for one in answer.json()["detectedLanguage"]] == ["de", "de"]
    one = client.post("/translate", json={"q": ["guten morgen"], "source": "de", "target": "en"})
    assert one.json() == {"translatedText": ["GUTEN MORGEN"]}


def test_alternatives_come_when_they_are_asked_for(client):
    answer = client.post("/translate", json={"q": "gut", "source": "de", "target": "en", "alternatives": 2}).json()
    assert answer == {"translatedText": "GUT", "alternatives": ["GUT AGAIN", "GUT AGAIN AGAIN"]}


def test_lines_and_blank_lines_stay_where_they_are(client):
    answer = client.post("/translate", json={"q": "eins\n\n zwei\n", "source": "de", "target": "en"}).json()
    assert answer["translatedText"].split("\n")[:2] == ["EINS", ""] and answer["translatedText"].endswith("ZWEI\n")


def test_sentences_are_translated_one_by_one_and_the_space_between_them_stays(client, make_client):
    rounds = []

    def engine(lines, options):
        from towernmt.predict.hypotheses import Hypothesis, Translation

        rounds.extend(lines)
        return [Translation([Hypothesis(line.upper(), 0.0)]) for line in lines]

    text = "Hier wohnt Dr. Müller.  Kommt er?\r\n\r\n\tJa, um 3.5 Uhr. "
    answer = make_client(models={"de-en": engine}).post("/translate", json={"q": text, "source": "de", "target": "en"})
    assert answer.json()["translatedText"] == text.upper()
    assert rounds[-3:] == ["Hier wohnt Dr. Müller.", "Kommt er?", "Ja, um 3.5 Uhr."]


def test_a_file_is_translated_and_fetched(client):
    cue = "1\n00:00:01,000 --> 00:00:02,000\n<i>guten morgen,\nhaus</i>\n"
    answer = client.post("/translate_file", data={"source": "auto", "target": "en"}, files={"file": ("a.srt", cue)})
    assert answer.status_code == 200
    assert client.get(answer.json()["translatedFileUrl"]).text == (
        "1\n00:00:01,000 --> 00:00:02,000\n<i>GUTEN MORGEN,\nHAUS</i>\n")
    assert {".srt", ".docx"} < set(client.get("/frontend/settings").json()["supportedFilesFormat"])


@pytest.mark.parametrize(("name", "content", "status", "sentence"), [
    ("a.pdf", b"x", 400, "'.pdf' are not translated"), ("a", b"x", 400, "without a suffix"),
    ("a.txt", b"\x00\x01", 400, "no text"), ("a.docx", b"PK\x03\x04", 400, "no .docx, or a damaged one"),
    ("a.txt", b"a" * 2000, 413, "2000 characters")])
def test_a_file_that_cannot_be_read_is_one_sentence(make_client, name, content, status, sentence):
    client = make_client(limits={"max_document_characters": 1000})
    answer = client.post("/translate_file", data={"source": "de", "target": "en"}, files={"file": (name, content)})
    assert answer.status_code == status and sentence in answer.json()["error"]


def test_languages_are_those_that_are_served(client):
    assert client.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en"]}, {"code": "en", "name": "English", "targets": []}]


@pytest.mark.parametrize(("values", "status", "sentence"), [
    ({"source": "de", "target": "en"}, 400, "missing q"),
    ({"q": "a", "target": "en"}, 400, "'source' is missing"),
    ({"q": "a", "source": "de", "target": "xx"}, 400, "'xx' is no language"),
    ({"q": "a", "source": "fr", "target": "en"}, 400, "'fr' is no language"),
    ({"q": 7, "source": "de", "target": "en"}, 400, "'q' must be a text"),
    ({"q": "a", "source": "de", "target": "en", "format": "pdf"}, 400, "text, html"),
    ({"q": "a", "source": "de", "target": "en", "alternatives": 9}, 400, "at most 3"),
    ({"q": "a" * 60_000, "source": "de", "target": "en"}, 413, "60000 characters"),
    ({"q": ["a"] * 300, "source": "de", "target": "en"}, 413, "300 texts")])
def test_what_cannot_be_is_one_sentence(client, values, status, sentence):
    answer = client.post("/translate", json=values)
    assert answer.status_code == status and sentence in answer.json()["error"]


def test_an_error_of_one_request_is_not_that_of_others(client):
    assert client.post("/translate", json={"q": "kill me", "source": "de", "target": "en"}).status_code == 500
    assert client.post("/translate", json={"q": "gut", "source": "de", "target": "en"}).status_code == 200


@pytest.mark.processes
def test_libretranslatepy_speaks_with_a_server(server):
    api = pytest.importorskip("libretranslatepy").LibreTranslateAPI(server.url)
    assert api.translate("guten morgen", "de", "en", timeout=30) == "GUTEN MORGEN"
    assert {"code": "de", "name": "German", "targets": ["en"]} in api.languages()
    assert api.detect("Das ist ein ganz gewöhnlicher Satz.")[0]["language"] == "de"
