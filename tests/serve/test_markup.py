"""Texts with tags and protected words, by each interface and the real clients."""

from __future__ import annotations

import json

import pytest

from tests.waiting import PATIENCE
from towernmt.predict.lines.hypotheses import Hypothesis, Translation

HTML = '<p title="ein hund">das <b>alte</b> haus&nbsp;<br>{name}</p>'
LOUD = '<p title="EIN HUND">DAS <b>ALTE</b> HAUS&nbsp;<br>{name}</p>'
PATH = "/api/v1/translate"


@pytest.fixture
def client(make_client):
    return make_client()


def test_html_and_xml_come_back_with_their_tags_by_each_interface(client):
    asked = {"q": HTML, "source": "de", "target": "en", "format": "html", "alternatives": 1}
    answer = client.post("/translate", json=asked).json()
    assert answer["translatedText"] == LOUD and "AGAIN" in answer["alternatives"][0]
    for tags, text, loud in (("html", HTML, LOUD), ("xml", "<a>eins <b/>zwei</a>", "<a>EINS <b/>ZWEI</a>")):
        asked = {"text": [text], "source_lang": "de", "target_lang": "en", "tag_handling": tags}
        assert client.post("/v2/translate", json=asked).json()["translations"][0]["text"] == loud
        found = client.post(PATH, json={"text": text, "format": tags}).json()
        assert found["translations"][0]["text"] == loud


def test_deepls_options_say_what_elements_are(client):
    asked = {"text": "<d>eins <c>zwei</c> drei</d>", "source_lang": "de", "target_lang": "en", "tag_handling": "xml"}
    ignored = client.post("/v2/translate", json={**asked, "ignore_tags": ["c"], "outline_detection": False}).json()
    assert ignored["translations"][0]["text"] == "<d>EINS <c>zwei</c> DREI</d>"
    split = client.post("/v2/translate", data={**asked, "splitting_tags": "c,d", "outline_detection": "0"}).json()
    assert split["translations"][0]["text"] == "<d>EINS <c>ZWEI</c> DREI</d>"


def test_terms_of_a_glossary_come_inside_tags(client):
    found = client.post(PATH, json={"text": "das <b>haus</b>", "format": "html", "glossary": {"haus": "house"}}).json()
    assert found["translations"][0]["text"] == "DAS <b>house</b>"


def test_sentences_are_told_as_plain_text_with_the_words_that_stay(client):
    asked = {"text": "das <b>ist</b> {name} hier. Und <code>x = 1</code>", "format": "html", "alignments": True,
             "confidence": True}
    [text] = client.post(PATH, json=asked).json()["translations"]
    first, second = text["sentences"]
    assert (first["source"], first["translations"][0]["text"]) == ("das ist {name} hier.", "DAS IST {name} HIER.")
    assert (second["words"], second["translations"][0]["words"]) == (["Und", "x", "=", "1"], ["UND", "x", "=", "1"])
    assert second["translations"][0]["links"] == [[word, word] for word in range(4)]
    streamed = client.post(PATH, json={**asked, "stream": True}).text.splitlines()
    assert json.loads(streamed[1])["translations"] == second["translations"]
    assert json.loads(streamed[-1])["translations"] == [text["text"]] == [
        "DAS <b>IST</b> {name} HIER. UND <code>x = 1</code>"]


class Forgetful:
    """An engine that drops placeholders unless they are lexical constraints, and returns no word alignments."""

    alternatives = 1
    constrains = True

    def __init__(self, writes: bool = True) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._writes = writes

    def __call__(self, lines, options):
        from towernmt.core.errors import SettingsError

        found = []
        for line, given in zip(lines, options or [None] * len(lines), strict=True):
            wanted = tuple(given.constraints) if given else ()
            self.asked += [wanted] if wanted else []
            if wanted and not self._writes:
                raise SettingsError("it cannot be written")
            words = [word for word in line.upper().split() if not word.startswith("X") or word in wanted]
            found.append(Translation([Hypothesis(" ".join(words), 0.0)]))
        return found


def test_a_lost_stand_in_is_forced_and_else_put_where_it_was(make_client):
    for engine in (Forgetful(), Forgetful(writes=False)):
        client = make_client(models={"de-en": engine})
        engine.asked.clear()
        answer = client.post(PATH, json={"text": "geh zu http://a.de/b und {0} hier"})
        assert answer.json()["translations"][0]["text"] == "GEH ZU http://a.de/b UND {0} HIER"
        assert engine.asked == [("X1", "X2")]


def test_a_stand_in_that_cannot_be_written_does_not_change_other_sentences(make_client):
    class Refusing(Forgetful):
        def check(self, options):
            from towernmt.core.errors import SettingsError

            if "X2" in options.constraints:
                raise SettingsError("it cannot be written")

    engine = Refusing()
    answer = make_client(models={"de-en": engine}).post(PATH, json={
        "text": "Geh zu http://a.de/b oder {0} hier. Geh zu http://a.de/c hier."})
    assert answer.json()["translations"][0]["text"] == "GEH ZU http://a.de/b ODER {0} HIER. GEH ZU http://a.de/c HIER."
    assert engine.asked[-1] == ("X1",) and ("X1", "X2") not in engine.asked[1:]


def test_markup_that_cannot_be_taken_is_one_sentence(client):
    bomb = '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;">]><a>&c;</a>'
    answer = client.post(PATH, json={"text": bomb, "format": "xml"})
    assert answer.status_code == 400 and "declares the entity c" in answer.json()["error"]


@pytest.mark.parametrize(("path", "fields"), [
    ("/translate", {"source": "auto", "target": "en", "format": "html"}),
    ("/v2/translate", {"target_lang": "en", "tag_handling": "html"}), (PATH, {"format": "html"})])
def test_a_page_of_too_many_tags_is_refused_also_if_its_language_is_detected(make_client, monkeypatch, path, fields):
    monkeypatch.setattr("towernmt.documents.formats.markup_tokens.MOST_TAGS", 10)
    text = {"q" if path == "/translate" else "text": "gut" + "<b>" * 20}
    for limit, status, sentence in ((100, 400, "more than 10 tags"), (62, 413, "63 characters of text")):
        answer = make_client(limits={"max_characters": limit}).post(path, json={**text, **fields})
        assert answer.status_code == status and sentence in answer.text


@pytest.mark.processes
def test_the_real_clients_send_markup(server):
    libre = pytest.importorskip("libretranslatepy").LibreTranslateAPI(server.url)
    # It sends no format, so the tags are protected spans of plain text.
    assert libre.translate("das <b>haus</b>", "de", "en", timeout=PATIENCE) == "DAS <b>HAUS</b>"
    deepl = pytest.importorskip("deepl").DeepLClient("any", server_url=server.url)
    html = deepl.translate_text(HTML, source_lang="DE", target_lang="EN-US", tag_handling="html")
    assert html.text == LOUD
    text = "<d>eins <c>zwei</c> drei</d>"
    xml = deepl.translate_text(text, source_lang="DE", target_lang="EN-US", tag_handling="xml", ignore_tags=["c"],
                               splitting_tags=["d"], outline_detection=False)
    assert xml.text == "<d>EINS <c>zwei</c> DREI</d>"
