"""LibreTranslate's interface, as in its documentation and with its clients."""

from __future__ import annotations

import pytest

from tests.waiting import PATIENCE


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
        from towernmt.predict.lines.hypotheses import Hypothesis, Translation

        rounds.extend(lines)
        return [Translation([Hypothesis(line.upper(), 0.0)]) for line in lines]

    text = "Hier wohnt Dr. Müller.  Kommt er?\r\n\r\n\tJa, um 3.5 Uhr. "
    answer = make_client(models={"de-en": engine}).post("/translate", json={"q": text, "source": "de", "target": "en"})
    assert answer.json()["translatedText"] == text.upper()
    assert rounds[-3:] == ["Hier wohnt Dr. Müller.", "Kommt er?", "Ja, um 3.5 Uhr."]


def test_lines_end_as_programs_of_any_system_write_them(make_client):
    rounds = []

    def engine(lines, options):
        from towernmt.predict.lines.hypotheses import Hypothesis, Translation

        rounds.extend(lines)
        return [Translation([Hypothesis(line.upper(), 0.0)]) for line in lines]

    text = "Der Titel\rDie erste Zeile\r\nDie zweite\nDie dritte\r\rDie letzte"
    answer = make_client(models={"de-en": engine}).post("/translate", json={"q": text, "source": "de", "target": "en"})
    assert answer.json()["translatedText"] == text.upper()
    assert rounds[-5:] == ["Der Titel", "Die erste Zeile", "Die zweite", "Die dritte", "Die letzte"]


def test_a_file_is_translated_and_fetched(client):
    cue = "1\n00:00:01,000 --> 00:00:02,000\n<i>guten morgen,\nhaus</i>\n"
    answer = client.post("/translate_file", data={"source": "auto", "target": "en"}, files={"file": ("a.srt", cue)})
    assert answer.status_code == 200
    assert client.get(answer.json()["translatedFileUrl"]).text == (
        "1\n00:00:01,000 --> 00:00:02,000\n<i>GUTEN MORGEN,\nHAUS</i>\n")
    assert {".srt", ".docx"} < set(client.get("/frontend/settings").json()["supportedFilesFormat"])


@pytest.mark.parametrize(("name", "content", "status", "sentence"), [
    ("a.pdf", b"x", 400, "Invalid request: file format not supported: PDF files and images are not read: "),
    ("a.exe", b"x", 400, "Invalid request: file format not supported: Files of the kind '.exe' cannot be translated"),
    ("a", b"x", 400, "without a suffix"), ("", b"x", 400, "Invalid request: missing file parameter"),
    ("a.txt", b"\x00\x01", 400, "not text"), ("a.docx", b"PK\x03\x04", 400, "not a valid .docx file"),
    ("a.txt", b"a" * 2000, 413, "2000 characters")])
def test_a_file_that_cannot_be_read_is_one_sentence(make_client, name, content, status, sentence):
    client = make_client(limits={"max_document_characters": 1000})
    answer = client.post("/translate_file", data={"source": "de", "target": "en"}, files={"file": (name, content)})
    assert answer.status_code == status and sentence in answer.json()["error"]


def test_languages_are_those_that_are_served(client):
    assert client.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en"]}, {"code": "en", "name": "English", "targets": []}]


@pytest.mark.parametrize(("values", "status", "sentence"), [
    ({"source": "de", "target": "en"}, 400, "Invalid request: missing q parameter"),
    ({"q": None, "source": "de", "target": "en"}, 400, "Invalid request: missing q parameter"),
    ({"q": [], "source": "de", "target": "en"}, 400, "Invalid request: missing q parameter"),
    ({"q": "a", "target": "en"}, 400, "Invalid request: missing source parameter"),
    ({"q": "a", "source": "", "target": "en"}, 400, "Invalid request: missing source parameter"),
    ({"q": "a", "source": "de"}, 400, "Invalid request: missing target parameter"),
    ({"q": "a", "source": "de", "target": "zz"}, 400, "zz is not supported"),
    ({"q": "a", "source": "auto", "target": "ZZ"}, 400, "zz is not supported"),
    ({"q": "a", "source": "zz", "target": "en"}, 400, "zz is not supported"),
    ({"q": "a", "source": "en", "target": "de"}, 400, "de is not supported"),
    ({"q": 7, "source": "de", "target": "en"}, 400, "'q' must be a string"),
    ({"q": "a", "source": "de", "target": "en", "format": "pdf"}, 400, "pdf format is not supported"),
    ({"q": "a", "source": "de", "target": "en", "alternatives": 9}, 400,
     "Invalid request: alternatives parameter must be <= 2"),
    ({"q": "a", "source": "de", "target": "en", "alternatives": "x"}, 400,
     "Invalid request: alternatives parameter is not a number"),
    ({"q": "a", "source": "de", "target": "en", "alternatives": True}, 400,
     "Invalid request: alternatives parameter is not a number"),
    ({"q": "a" * 60_000, "source": "de", "target": "en"}, 413, "60000 characters"),
    ({"q": ["a"] * 300, "source": "de", "target": "en"}, 413, "300 texts")])
def test_what_cannot_be_is_one_sentence(client, values, status, sentence):
    answer = client.post("/translate", json=values)
    assert answer.status_code == status and sentence in answer.json()["error"]


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"target": "en"}, "Invalid request: missing source parameter"),
    ({"source": "de"}, "Invalid request: missing target parameter"),
    ({"source": "zz", "target": "en"}, "zz is not supported"),
    ({"source": "de", "target": "zz"}, "zz is not supported")])
def test_the_fields_of_a_file_are_checked_in_the_same_words(client, fields, sentence):
    answer = client.post("/translate_file", data=fields, files={"file": ("a.txt", "gut")})
    assert answer.status_code == 400 and answer.json()["error"].startswith(sentence)


def test_missing_texts_and_files_are_named(client):
    assert client.post("/detect", json={}).json() == {"error": "Invalid request: missing q parameter"}
    answer = client.post("/translate_file", data={"source": "de", "target": "en"})
    assert (answer.status_code, answer.json()) == (400, {"error": "Invalid request: missing file parameter"})


def test_codes_of_libretranslate_are_understood(make_client):
    from tests.serve.echo_engine import Echo

    client = make_client(models={"zh_hant-en": Echo(), "pt_br-en": Echo(), "nb-en": Echo(), "deu-en": Echo()})
    for code in ("zt", "zh-Hant", "zh", "pb", "pt-BR", "pt", "no", "nb", "de", "deu"):
        answer = client.post("/translate", json={"q": "gut", "source": code, "target": "en"})
        assert (answer.status_code, answer.json()) == (200, {"translatedText": "GUT"}), code


def test_a_direction_that_is_not_served_is_named_with_both_languages(make_client):
    from tests.serve.echo_engine import Echo

    client = make_client(models={"de-en": Echo(), "en-fr": Echo()})
    answer = client.post("/translate", json={"q": "gut", "source": "de", "target": "fr"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("French (fr) is not available as a target language from German (de)")


def test_an_error_of_one_request_is_not_that_of_others(client):
    assert client.post("/translate", json={"q": "kill me", "source": "de", "target": "en"}).status_code == 500
    assert client.post("/translate", json={"q": "gut", "source": "de", "target": "en"}).status_code == 200


@pytest.mark.processes
def test_libretranslatepy_speaks_with_a_server(server):
    api = pytest.importorskip("libretranslatepy").LibreTranslateAPI(server.url)
    assert api.translate("guten morgen", "de", "en", timeout=PATIENCE) == "GUTEN MORGEN"
    assert {"code": "de", "name": "German", "targets": ["en"]} in api.languages()
    assert api.detect("Das ist ein ganz gewöhnlicher Satz.")[0]["language"] == "de"
