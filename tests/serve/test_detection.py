"""The source language "auto": the model for a text, and undetectable languages."""

from __future__ import annotations

import pytest

from towernmt.core.errors import SettingsError
from towernmt.serve import language_detection
from towernmt.serve.language_detection import detect_languages, detect_source_language
from towernmt.serve.request_limits import RequestError

GERMAN = "Das ist ein ganz gewöhnlicher deutscher Satz über das Wetter."
FRENCH = "Ceci est une phrase tout à fait ordinaire sur le temps qu'il fait."
ENGLISH = "This is a perfectly ordinary English sentence about the weather."


@pytest.fixture
def client(make_client):
    """Return a client of a server with several directions, each of which marks its translations."""
    from towernmt.predict.lines.hypotheses import Hypothesis, Translation

    def engine(mark):
        return lambda lines, options: [Translation([Hypothesis(f"{mark} {line}", 0.0)]) for line in lines]

    return make_client(models={direction: engine(direction) for direction in (
        "de-en", "fr-en", "en-de", "en-fr", "hsb-en")})


def _libretranslate(client, text, target):
    answer = client.post("/translate", json={"q": text, "source": "auto", "target": target}).json()
    return answer["translatedText"], answer["detectedLanguage"]["language"]


def _deepl(client, text, target):
    [answer] = client.post("/v2/translate", json={"text": [text], "target_lang": target}).json()["translations"]
    return answer["text"], answer["detected_source_language"].lower()


def _own(client, text, target):
    answer = client.post("/api/v1/translate", json={"text": text, "target": target}).json()
    return answer["translations"][0]["text"], answer["detected"]["language"]


INTERFACES = {"LibreTranslate": _libretranslate, "DeepL": _deepl, "own": _own}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(("text", "target", "translation", "detected"), [
    (GERMAN, "en", f"de-en {GERMAN}", "de"), (FRENCH, "en", f"fr-en {FRENCH}", "fr"),
    (ENGLISH, "de", f"en-de {ENGLISH}", "en"), (ENGLISH, "fr", f"en-fr {ENGLISH}", "en"),
    (ENGLISH, "en", ENGLISH, "en"), (GERMAN, "de", GERMAN, "de")])
def test_a_text_is_translated_from_its_own_language(client, interface, text, target, translation, detected):
    assert INTERFACES[interface](client, text, target) == (translation, detected)


def test_a_text_in_a_language_without_this_direction_is_refused(client):
    answer = client.post("/translate", json={"q": GERMAN, "source": "auto", "target": "fr"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("French (fr) is not available as a target language from German (de)")


STYLES = "".join(f".item{number} {{display: inline-block; margin: 0 auto; padding: 10px {number}px}}\n"
                 for number in range(40))
PAGE = (f"<html>\n<head>\n<STYLE type='text/css'>{STYLES}</STYLE><script>if (a < b) {{document.write('of the')}}"
        f"</script></head>\n<body><p>{FRENCH}</p></body></html>")


@pytest.mark.parametrize(("path", "fields", "language_and_text"), [
    ("/translate", {"q": PAGE, "source": "auto", "target": "en", "format": "html"},
     lambda answer: (answer["detectedLanguage"]["language"], answer["translatedText"])),
    ("/v2/translate", {"text": [PAGE], "target_lang": "EN", "tag_handling": "html"},
     lambda answer: (answer["translations"][0]["detected_source_language"].lower(), answer["translations"][0]["text"])),
    ("/api/v1/translate", {"text": PAGE, "target": "en", "format": "html"},
     lambda answer: (answer["detected"]["language"], answer["translations"][0]["text"]))])
def test_the_language_of_a_page_is_not_that_of_its_styles_and_scripts(client, path, fields, language_and_text):
    assert language_and_text(client.post(path, json=fields).json()) == (
        "fr", PAGE.replace(FRENCH, f"fr-en {FRENCH}"))


def test_deepls_texts_are_detected_one_by_one_and_none_refuses_the_others(client):
    found = client.post("/v2/translate", json={"text": [GERMAN, ENGLISH, FRENCH, "12"], "target_lang": "DE"}).json()
    assert [one["detected_source_language"] for one in found["translations"]][:2] == ["DE", "EN"]
    assert [one["text"] for one in found["translations"]] == [GERMAN, f"en-de {ENGLISH}", f"en-de {FRENCH}", "en-de 12"]


def test_a_request_in_several_languages_counts_once_against_the_rate(make_client, caplog):
    from tests.serve.echo_engine import Echo

    client = make_client(access={"characters": 60}, models={direction: Echo() for direction in ("de-en", "fr-en")})
    asked = {"text": [GERMAN, FRENCH], "target_lang": "EN"}
    with caplog.at_level("INFO", "towernmt.serve.requests"):
        answers = [client.post("/v2/translate", json=asked).status_code for _ in range(2)]
    assert answers == [200, 429]
    count = len(GERMAN) + len(FRENCH)
    assert client.get("/v2/usage").json()["character_count"] == count
    logged = next(record.fields for record in caplog.records if hasattr(record, "fields"))
    assert (logged["direction"], logged["characters"]) == ("de-en fr-en", count)


def test_the_language_of_a_document_is_detected(client):
    answer = client.post("/translate_file", data={"source": "auto", "target": "en"}, files={"file": ("a.txt", FRENCH)})
    assert client.get(answer.json()["translatedFileUrl"]).text == f"fr-en {FRENCH}"


def test_a_document_that_is_in_the_target_language_already_is_an_error_as_of_deepl(client):
    made = client.post("/v2/document", data={"target_lang": "DE"}, files={"file": ("a.txt", GERMAN)}).json()
    state = {"status": "queued"}
    while state["status"] in ("queued", "translating"):
        state = client.post(f"/v2/document/{made['document_id']}", json={"document_key": made["document_key"]}).json()
    assert (state["status"], state["error_message"]) == ("error", "Source and target language are equal.")


def test_detect_names_all_languages_that_are_served_and_known(client):
    found = client.post("/detect", json={"q": ENGLISH}).json()
    assert [one["language"] for one in found][0] == "en" and {one["language"] for one in found} == {"de", "en", "fr"}


def test_a_single_direction_translates_whatever_it_gets(make_client):
    client = make_client()
    answer = client.post("/translate", json={"q": ENGLISH, "source": "AUTO", "target": "en"}).json()
    assert (answer["translatedText"], answer["detectedLanguage"]["language"]) == (ENGLISH.upper(), "de")


@pytest.mark.parametrize(("source", "text", "translation"), [("en", "gut", "gut"), ("en-GB", "a  b", "a  b")])
def test_a_text_whose_source_is_the_target_stays(client, source, text, translation):
    answer = client.post("/v2/translate", json={"text": text, "source_lang": source, "target_lang": "EN-US"}).json()
    assert answer["translations"][0]["text"] == translation


def test_a_language_that_cannot_be_detected_does_not_refuse_the_others():
    assert detect_languages(GERMAN, ["hsb", "de", "nds"])[0].language == "de"
    assert [one.language for one in detect_languages(FRENCH, ["hsb", "fr", "de"])][0] == "fr"
    assert detect_languages(GERMAN, ["hsb"]) == [("hsb", 0.0)]
    assert detect_source_language(GERMAN, ["hsb"], "de", ["fr"]) == ("hsb", 0.0)
    with pytest.raises(RequestError, match="none of hsb, nds can be detected"):
        detect_languages(GERMAN, ["hsb", "nds"])


@pytest.mark.parametrize(("code", "text"), [
    ("nb", "Dette er en helt vanlig norsk setning om været i dag, og den er ikke lang."),
    ("deu_latn", GERMAN), ("fra", FRENCH), ("pt-br", "Esta é uma frase bastante comum sobre o tempo que faz hoje."),
    ("iw", "זהו משפט רגיל לחלוטין על מזג האוויר.")])
def test_languages_are_detected_whatever_their_code(code, text):
    assert detect_languages(text, ["en", code.replace("_", "-"), "ru"])[0].language == code.replace("_", "-")


@pytest.mark.parametrize("text", ["hallo", "der hund", "das", "Hotel", "Haus", "gut", "Test"])
def test_a_short_text_is_not_taken_for_the_target_without_evidence(text):
    assert detect_source_language(text, ["de"], "en", []).language == "de"


RUSSIAN = (
    "Сегодня утром правительство объявило о новых мерах поддержки малого бизнеса. По словам министра, программа "
    "начнёт работать уже в следующем году, и на неё выделят значительные средства. Предприниматели, однако, "
    "сомневаются, что деньги дойдут до регионов вовремя. Многие вспоминают прошлую программу, которая закончилась "
    "раньше срока из-за нехватки финансирования. Эксперты советуют внимательно изучить условия договора.")


@pytest.mark.parametrize(("target", "others", "language"), [("ru", [], "ru"), ("en", ["ru"], "ru"), ("en", [], "de")])
def test_a_text_whose_source_language_has_the_probability_0_is_in_another_language(target, others, language):
    assert dict(detect_languages(RUSSIAN, ["de", "en", "ru"])) | {"ru": 1} == {"ru": 1, "de": 0, "en": 0}
    assert detect_source_language(RUSSIAN, ["de"], target, others).language == language


def test_without_the_detector_only_requests_that_need_it_are_refused(make_client, monkeypatch):
    def missing(text):
        raise SettingsError("py3langid is missing")

    monkeypatch.setattr(language_detection, "language_probabilities", missing)
    from tests.serve.echo_engine import Echo

    client = make_client(models={"de-en": Echo(), "fr-en": Echo(), "en-de": Echo()})
    refused = client.post("/translate", json={"q": "gut", "source": "auto", "target": "en"})
    assert refused.status_code == 400 and "towernmt[serve]" in refused.json()["error"]
    for asked in ({"source": "de", "target": "en"}, {"source": "auto", "target": "de"}):
        assert client.post("/translate", json={"q": "gut", **asked}).json()["translatedText"] == "GUT"


def test_the_extra_of_the_server_brings_the_detector():
    from configparser import ConfigParser
    from pathlib import Path

    settings = ConfigParser()
    settings.read(Path(__file__).parents[2] / "setup.cfg", encoding="utf-8")
    assert "py3langid" in settings["options.extras_require"]["serve"]
