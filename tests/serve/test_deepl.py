"""DeepL's interface, with its official clients."""

from __future__ import annotations

import io
import time
import types
import zipfile

import pytest

GLOSSARY = {"name": "ours", "source_lang": "de", "target_lang": "en", "entries": "haus\thouse", "entries_format": "tsv"}


@pytest.fixture
def client(make_client):
    return make_client()


def test_a_text_is_translated_with_what_it_costs(client):
    answer = client.post("/v2/translate", json={"text": ["guten tag"], "source_lang": "DE", "target_lang": "EN-US"})
    assert answer.json() == {"translations": [
        {"detected_source_language": "DE", "text": "GUTEN TAG", "billed_characters": 9}]}
    assert client.get("/v2/usage").json()["character_count"] == 9


def test_several_texts_come_in_a_form_by_one_name(client):
    answer = client.post("/v2/translate", data={"text": ["eins", "zwei"], "target_lang": "EN"})
    assert [one["text"] for one in answer.json()["translations"]] == ["EINS", "ZWEI"]


def test_the_terms_of_a_glossary_come(client):
    created = client.post("/v2/glossaries", json=GLOSSARY)
    assert created.status_code == 201 and created.json()["entry_count"] == 1
    request = {"text": "das haus", "source_lang": "de", "target_lang": "en",
               "glossary_id": created.json()["glossary_id"]}
    assert client.post("/v2/translate", json=request).json()["translations"][0]["text"] == "DAS house"


@pytest.mark.parametrize(("path", "values", "status", "sentence"), [
    ("/v2/translate", {"target_lang": "en"}, 400, "'text' is missing"),
    ("/v2/translate", {"text": "a"}, 400, "'target_lang' is missing"),
    ("/v2/translate", {"text": "a", "target_lang": "xx"}, 400, "Value for 'target_lang' not supported"),
    ("/v2/translate", {"text": "a", "source_lang": "xx", "target_lang": "en"}, 400,
     "Value for 'source_lang' not supported"),
    ("/v2/translate", {"text": "a", "source_lang": "en", "target_lang": "de"}, 400,
     "Value for 'target_lang' not supported"),
    ("/v2/translate", {"text": "a", "target_lang": "en", "formality": "More"}, 400, "Target language 'EN' has no"),
    ("/v2/translate", {"text": "a", "target_lang": "en", "formality": "high"}, 400, "Value for 'formality' not"),
    ("/v2/translate", {"text": "a", "target_lang": "en", "model_type": "best"}, 400, "Value for 'model_type' not"),
    ("/v2/translate", {"text": "a", "target_lang": "en", "split_sentences": "2"}, 400, "'split_sentences' not"),
    ("/v2/translate", {"text": "a", "target_lang": "en", "tag_handling": "md"}, 400, "Value for 'tag_handling' not"),
    ("/v2/translate", {"text": "a", "target_lang": "en", "style_id": "1"}, 400, "style_id"),
    ("/v2/translate", {"text": "a", "target_lang": "en", "glossary_id": "1"}, 400, "source_lang"),
    ("/v2/translate", {"text": "a", "source_lang": "de", "target_lang": "en", "glossary_id": "1"}, 404, "glossary"),
    ("/v2/glossaries", {**GLOSSARY, "entries": "haus"}, 400, "Line 1"),
    ("/v2/glossaries", {**GLOSSARY, "entries": ""}, 400, "missing"),
    ("/v2/glossaries", {**GLOSSARY, "target_lang": "fr"}, 400, "No model of this server from de to fr"),
    ("/v2/glossaries", {**GLOSSARY, "entries_format": "xls"}, 400, "tsv, csv"),
    ("/v2/document/1", {"document_key": "1"}, 404, "document does not exist"),
    ("/v2/nothing", {}, 404, "nothing at this address")])
def test_what_cannot_be_is_one_message(client, path, values, status, sentence):
    answer = client.post(path, json=values)
    assert answer.status_code == status and sentence in answer.json()["message"]


@pytest.mark.parametrize(("options", "used"), [
    ({}, None), ({"model_type": "latency_optimized"}, "latency_optimized"),
    ({"model_type": "quality_optimized"}, "quality_optimized"),
    ({"model_type": "prefer_quality_optimized"}, "quality_optimized")])
def test_the_type_of_the_model_is_named_if_the_request_names_one(client, options, used):
    answer = client.post("/v2/translate", json={"text": ["gut"], "target_lang": "en", **options})
    assert answer.json()["translations"][0].get("model_type_used") == used


@pytest.mark.parametrize(("name", "content"), [("a.invalid", b"x"), ("a.docx", b"x"), ("a.txt", b"\x00")])
def test_a_document_that_cannot_be_read_is_an_invalid_file(client, name, content):
    answer = client.post("/v2/document", data={"target_lang": "en"}, files={"file": (name, content)})
    assert answer.status_code == 400 and answer.json()["message"].startswith("Invalid file: ")


@pytest.fixture
def listening(make_client):
    """Return a client, and the list of sentences that the model of its server translates."""
    from tests.serve.echo_engine import Echo

    class Listening(Echo):
        constrains = False      # without these, the server does not warm up further searches

        def __call__(self, lines, options):
            seen.extend(lines)
            return super().__call__(lines, options)

    seen: list[str] = []
    client = make_client(models={"de-en": Listening()})
    seen.clear()
    return client, seen


SENTENCES = "eins zwei. Drei\nvier. Fünf"
"""Two line breaks of different kinds: inside a sentence, and none between sentences."""


@pytest.mark.parametrize(("tags", "text", "split", "seen"), [
    ("", SENTENCES, None, ["eins zwei.", "Drei", "vier.", "Fünf"]),
    ("", SENTENCES, "1", ["eins zwei.", "Drei", "vier.", "Fünf"]),
    ("", SENTENCES, "nonewlines", ["eins zwei.", "Drei vier.", "Fünf"]),
    ("", SENTENCES, "0", ["eins zwei. Drei vier. Fünf"]),
    ("", "eins\n\nzwei\r\n drei", "nonewlines", ["eins zwei drei"]),
    ("", "eins\n\nzwei\r\n drei", "0", ["eins zwei drei"]),
    ("", SENTENCES, 0, ["eins zwei. Drei vier. Fünf"]),
    ("", SENTENCES, False, ["eins zwei. Drei vier. Fünf"]),
    ("", SENTENCES, True, ["eins zwei.", "Drei", "vier.", "Fünf"]),
    ("html", f"<p>{SENTENCES}</p>", None, ["eins zwei.", "Drei vier.", "Fünf"]),
    ("html", f"<p>{SENTENCES}</p>", "nonewlines", ["eins zwei.", "Drei vier.", "Fünf"]),
    ("html", f"<p>{SENTENCES}</p>", "1", ["eins zwei.", "Drei", "vier.", "Fünf"]),
    ("html", f"<p>{SENTENCES}</p><p>sechs</p>", "0", ["eins zwei. Drei vier. Fünf", "sechs"]),
    ("html", "<pre>eins\nzwei</pre>", "0", ["eins zwei"]),
    ("html", "<p>eins <b>zwei\ndrei</b> vier</p>", "1", ["eins zwei", "drei vier"]),
    ("xml", f"<a>{SENTENCES}</a>", None, ["eins zwei.", "Drei", "vier.", "Fünf"]),
    ("xml", f"<a>{SENTENCES}</a>", "1", ["eins zwei.", "Drei", "vier.", "Fünf"]),
    ("xml", f"<a>{SENTENCES}</a>", "nonewlines", ["eins zwei.", "Drei vier.", "Fünf"]),
    ("xml", f"<a>{SENTENCES}</a><a>sechs</a>", "0", ["eins zwei. Drei vier. Fünf", "sechs"]),
    ("xml", "<a>eins <b>zwei\ndrei</b> vier</a>", None, ["eins zwei", "drei vier"])])
def test_sentences_end_where_split_sentences_says(listening, tags, text, split, seen):
    client, lines = listening
    request = {"text": [text], "source_lang": "de", "target_lang": "en"}
    request |= {} if split is None else {"split_sentences": split}
    request |= {"tag_handling": tags} if tags else {}
    answer = client.post("/v2/translate", json=request).json()["translations"][0]["text"]
    assert lines == seen
    assert answer.casefold() == text.casefold()     # tags and line breaks keep their positions


@pytest.mark.parametrize(("options", "seen"), [
    ({}, ["ein titel", "das ist geteilt", "über zwei spannen"]),
    ({"non_splitting_tags": ["span"]}, ["ein titel", "das ist geteilt über zwei spannen"]),
    ({"outline_detection": False}, ["ein titel das ist geteilt über zwei spannen"]),
    ({"outline_detection": False, "splitting_tags": ["title"]}, ["ein titel", "das ist geteilt über zwei spannen"]),
    ({"outline_detection": False, "splitting_tags": "title,par", "non_splitting_tags": "span"},
     ["ein titel", "das ist geteilt über zwei spannen"]),
    ({"outline_detection": False, "splitting_tags": ["title", "span"], "ignore_tags": ["title"]},
     ["das ist geteilt", "über zwei spannen"]),
    ({"non_splitting_tags": ["span"], "ignore_tags": "title"}, ["das ist geteilt über zwei spannen"]),
    ({"splitting_tags": ["span"], "non_splitting_tags": ["span"]}, ["ein titel", "das ist geteilt über zwei spannen"])])
@pytest.mark.parametrize("split", ["nonewlines", "0"])
def test_the_tags_of_xml_end_sentences_as_deepl_documents_it(listening, options, seen, split):
    client, lines = listening
    text = "<d><title>ein titel</title> <par><span>das ist geteilt</span> <span>über zwei spannen</span></par></d>"
    request = {"text": [text], "source_lang": "de", "target_lang": "en", "tag_handling": "xml",
               "split_sentences": split}
    answer = client.post("/v2/translate", json={**request, **options}).json()["translations"][0]["text"]
    assert lines == seen
    assert answer.casefold() == text.casefold()


def test_glossaries_are_their_callers_alone(make_client, tmp_path):
    from towernmt.serve.web.callers import KeysFile, add_key

    anna, bert = (add_key(tmp_path / "keys", name) for name in ("anna", "bert"))
    client = make_client(access={"keys": KeysFile(tmp_path / "keys")})
    created = client.post("/v2/glossaries", json=GLOSSARY, headers={"Authorization": f"DeepL-Auth-Key {anna}"}).json()
    path = f"/v2/glossaries/{created['glossary_id']}"
    assert client.get(path, headers={"Authorization": f"DeepL-Auth-Key {bert}"}).status_code == 404
    assert client.get(path, headers={"Authorization": f"DeepL-Auth-Key {anna}"}).status_code == 200


def test_glossaries_are_kept_in_a_file(tmp_path):
    from towernmt.serve.glossaries import Dictionary, Glossaries

    created = Glossaries(tmp_path / "glossaries.json").add("anna", "ours", [Dictionary("de", "en", {"haus": "house"})])
    assert Glossaries(tmp_path / "glossaries.json").get("anna", created.id) == created
    (tmp_path / "link").symlink_to("glossaries.json")
    other = Glossaries(tmp_path / "link").add("anna", "theirs", [Dictionary("de", "en", {"hund": "dog"})])
    assert (tmp_path / "link").is_symlink()
    assert Glossaries(tmp_path / "glossaries.json").owned_by("anna") == [created, other]


@pytest.fixture
def deepl(monkeypatch):
    """Return the module of the official client, which polls documents every 10 ms instead of every 5 s."""
    module = pytest.importorskip("deepl")
    times = types.SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(seconds / 500))
    monkeypatch.setattr(module.translator, "time", times)
    return module


@pytest.mark.processes
def test_the_client_of_python_translates_texts_and_documents(server, deepl):
    client = deepl.DeepLClient("any", server_url=server.url)
    answer = client.translate_text(["guten tag", "gute nacht"], source_lang="DE", target_lang="EN-US")
    assert [(one.text, one.detected_source_lang, one.billed_characters) for one in answer] == [
        ("GUTEN TAG", "DE", 9), ("GUTE NACHT", "DE", 10)]
    assert [one.code for one in client.get_source_languages()] == ["DE"]
    assert sorted(one.code for one in client.get_target_languages()) == ["EN-GB", "EN-US"]
    assert client.get_usage().character.count >= 19
    written = io.BytesIO()
    status = client.translate_document(b"erste\n\nzweite zeile\n", written, source_lang="DE",
                                       target_lang="EN-US", filename="brief.txt")
    assert (written.getvalue(), status.billed_characters) == (b"ERSTE\n\nZWEITE ZEILE\n", 17)
    with pytest.raises(deepl.DeepLException, match="Value for 'target_lang' not supported"):
        client.translate_text("a", target_lang="XX")


def word_document(body):
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    created = io.BytesIO()
    with zipfile.ZipFile(created, "w") as archive:
        archive.writestr("[Content_Types].xml", '<Types xmlns="urn:x"><Override PartName="/d.xml" '
                                                f'ContentType="{kind}"/></Types>')
        archive.writestr("d.xml", f'<w:document xmlns:w="urn:w"><w:p>{body}</w:p></w:document>')
    return created.getvalue()


@pytest.mark.processes
def test_the_client_of_python_translates_files_in_their_formats(server, deepl):
    client = deepl.DeepLClient("any", server_url=server.url)

    def translated(name, content, **options):
        written = io.BytesIO()
        client.translate_document(content, written, source_lang="DE", target_lang="EN-US", filename=name, **options)
        return written.getvalue()

    cue = "1\n00:00:01,000 --> 00:00:02,000\n<i>{}</i>\n"
    assert translated("a.srt", cue.format("guten tag").encode()).decode() == cue.format("GUTEN TAG")
    glossary = client.create_glossary("ours", "DE", "EN", {"haus": "house"})
    body = '<w:r><w:rPr><w:b/></w:rPr><w:t>{}</w:t></w:r><w:r><w:t xml:space="preserve"> {}</w:t></w:r>'
    document = translated("a.docx", word_document(body.format("das haus", "ist alt")), glossary=glossary)
    with zipfile.ZipFile(io.BytesIO(document)) as archive:
        assert body.format("DAS house", "IST ALT") in archive.read("d.xml").decode()
    with pytest.raises(deepl.DeepLException, match="not a valid .docx file"):
        translated("a.docx", b"hello")


@pytest.mark.processes
def test_the_client_of_python_has_its_glossaries(server, deepl):
    client = deepl.DeepLClient("any", server_url=server.url)
    glossary = client.create_glossary("ours", "DE", "EN", {"haus": "house", "hund": "dog"})
    assert client.get_glossary_entries(glossary) == {"haus": "house", "hund": "dog"}
    answer = client.translate_text("haus und hund", source_lang="DE", target_lang="EN-GB", glossary=glossary)
    assert answer.text == "house UND dog"
    assert glossary.glossary_id in [one.glossary_id for one in client.list_glossaries()]
    client.delete_glossary(glossary)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_glossary(glossary.glossary_id)

    entries = deepl.api_data.MultilingualGlossaryDictionaryEntries
    several = client.create_multilingual_glossary("several", [entries("de", "en", {"haus": "house"})])
    assert several.dictionaries[0].entry_count == 1
    client.update_multilingual_glossary_dictionary(several, entries("de", "en", {"hund": "dog"}))
    kept = client.get_multilingual_glossary_entries(several, "de", "en").dictionaries[0].entries
    assert kept == "haus\thouse\nhund\tdog"
    client.replace_multilingual_glossary_dictionary(several, entries("de", "en", {"katze": "cat"}))
    assert client.update_multilingual_glossary_name(several, "one").name == "one"
    assert client.translate_text("katze", source_lang="DE", target_lang="EN-GB", glossary=several).text == "cat"
    client.delete_multilingual_glossary_dictionary(several, source_lang="de", target_lang="en")
    assert client.get_multilingual_glossary(several.glossary_id).dictionaries == []
    client.delete_multilingual_glossary(several)
    assert several.glossary_id not in [one.glossary_id for one in client.list_multilingual_glossaries()]
    assert [(pair.source_lang, pair.target_lang) for pair in client.get_glossary_languages()] == [("de", "en")]
