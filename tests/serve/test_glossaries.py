"""Glossaries: unusable entries are refused on creation, and a change that cannot be saved has no effect."""

from __future__ import annotations

import errno
import threading

import pytest

from tests.serve.echo_engine import Echo
from tests.waiting import PATIENCE
from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.terminology import WritableTerms
from towernmt.serve import glossaries
from towernmt.serve.glossaries import Dictionary, Glossaries, Glossary
from towernmt.serve.glossary_entries import read_entries
from towernmt.serve.request_limits import RequestError

HEAD = {"name": "ours", "source_lang": "de", "target_lang": "en"}


class Writer(Echo):
    """An engine that can only write terms with words of its vocabulary."""

    vocabulary = WordVocabulary([*SPECIAL_PIECES, "house", "dog", "home", "love"])

    def check(self, options):
        if options.terminology is not None:
            WritableTerms(options.terminology, self.vocabulary)


@pytest.fixture
def client(make_client):
    return make_client(models={"de-en": Writer(), "de-fr": Echo()})


def create(client, entries, kind="tsv", version=2):
    if version == 2:
        return client.post("/v2/glossaries", json={**HEAD, "entries": entries, "entries_format": kind})
    one = {"source_lang": "de", "target_lang": "en", "entries": entries, "entries_format": kind}
    return client.post("/v3/glossaries", json={"name": "ours", "dictionaries": [one]})


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("entries", "kind"), [
    ("haus\thouse\nherz\t❤\n", "tsv"), ("haus\thouse\r\nherz\t❤", "tsv"), ("\ufeffhaus\thouse\nherz\tlove ❤", "tsv"),
    ("haus,house\nherz,❤\n", "csv"), ('haus,"house"\nherz,❤,de,en\n', "csv")])
def test_an_entry_that_the_vocabulary_cannot_write_is_refused_with_its_line(client, entries, kind, version):
    answer = create(client, entries, kind, version)
    assert answer.status_code == 400 and "Line 2 of the glossary: '" in answer.json()["message"]
    assert client.get("/v2/glossaries").json()["glossaries"] == []


@pytest.mark.parametrize("version", [2, 3])
def test_another_direction_may_write_it(client, version):
    entries = {"source_lang": "de", "target_lang": "fr", "entries": "herz\t❤"}
    body = {"name": "ours", **entries} if version == 2 else {"name": "ours", "dictionaries": [entries]}
    assert client.post(f"/v{version}/glossaries", json=body).status_code == 201


@pytest.mark.parametrize("merge", [True, False])
def test_a_change_is_checked_as_a_new_glossary_is(client, merge):
    number = create(client, "haus\thouse", version=3).json()["glossary_id"]
    wrong = {"source_lang": "de", "target_lang": "en", "entries": "hund\tdog\nherz\t❤", "entries_format": "tsv"}
    path = f"/v3/glossaries/{number}"
    answer = (client.patch(path, json={"dictionaries": [wrong]}) if merge
              else client.put(f"{path}/dictionaries", json=wrong))
    assert answer.status_code == 400 and "Line 2" in answer.json()["message"]
    assert client.get(path).json()["dictionaries"][0]["entry_count"] == 1


def test_a_change_that_contradicts_what_is_there_is_refused(client):
    number = create(client, "das haus\thouse", version=3).json()["glossary_id"]
    more = {"source_lang": "de", "target_lang": "en", "entries": "das  haus\thome", "entries_format": "tsv"}
    answer = client.patch(f"/v3/glossaries/{number}", json={"dictionaries": [more]})
    assert answer.status_code == 400 and "translated as" in answer.json()["message"]


def translate(client, number, text):
    return client.post("/v2/translate", json={"text": text, "source_lang": "de", "target_lang": "en",
                                              "glossary_id": number})


def test_a_model_that_cannot_write_an_old_entry_refuses_only_texts_with_it(client):
    [model] = [one for one in client.service.models if one.direction.target == "en"]
    made = client.service.glossaries.add("testclient", "old", [Dictionary("de", "en", {"haus": "house", "herz": "❤"})])
    assert model.unwritable(client.service.glossaries.terminology("testclient", [made.id], "de", "en"))
    assert translate(client, made.id, "das haus").json()["translations"][0]["text"] == "DAS house"
    answer = translate(client, made.id, ["ein haus", "ein herz"])
    assert answer.status_code == 400 and "'❤'" in answer.json()["message"]
    fields = {"source_lang": "de", "target_lang": "en", "glossary_id": made.id}
    assert [client.post("/v2/document", data=fields, files={"file": ("a.txt", text)}).status_code
            for text in ("das haus", "das herz")] == [200, 400]


def test_terms_that_change_while_they_are_read_are_not_kept(monkeypatch):
    store = Glossaries()
    glossary = store.add("anna", "ours", [Dictionary("de", "en", {"haus": "house"})])
    find = Glossary.find

    def find_before_a_change(glossary, source, target):
        dictionary = find(glossary, source, target)
        if not store._lock.locked():        # another thread could change the glossary now
            store.change(glossary, None, [Dictionary("de", "en", {"haus": "home"})])
        return dictionary

    with monkeypatch.context() as patch:
        patch.setattr(Glossary, "find", find_before_a_change)
        store.terminology("anna", [glossary.id], "de", "en")
    terms = {term.source: term.target for term in store.terminology("anna", [glossary.id], "de", "en").terms}
    assert terms == store.get("anna", glossary.id).dictionaries[0].entries


def test_two_dictionaries_of_one_direction_are_refused(client):
    one = {"source_lang": "DE", "target_lang": "EN-US", "entries": "haus\thouse"}
    other = {"source_lang": "de", "target_lang": "en", "entries": "hund\tdog"}
    number = create(client, "haus\thome").json()["glossary_id"]
    path = f"/v3/glossaries/{number}"
    for answer in (client.post("/v3/glossaries", json={"name": "ours", "dictionaries": [one, other]}),
                   client.patch(path, json={"dictionaries": [one, other]})):
        assert answer.status_code == 400 and answer.json()["message"] == (
            "The request has 2 dictionaries from de to en: send one with all terms.")
    [left] = client.get("/v3/glossaries").json()["glossaries"]
    assert [dictionary["entry_count"] for dictionary in left["dictionaries"]] == [1]
    another = {"source_lang": "de", "target_lang": "fr", "entries": "haus\tmaison"}
    assert client.post("/v3/glossaries", json={"name": "ours", "dictionaries": [one, another]}).status_code == 201


def test_a_request_may_name_ten_glossaries_and_repeat_them(client):
    store = client.service.glossaries
    ids = [store.add("testclient", "ours", [Dictionary("de", "en", {f"wort{number}": "house"})]).id
           for number in range(11)]
    assert translate(client, ids[:10] * 100, "wort9").json()["translations"][0]["text"] == "house"
    answer = translate(client, ids, "wort9")
    assert answer.status_code == 400 and answer.json()["message"] == (
        "The request names 11 glossaries: name at most 10.")


def test_of_two_glossaries_with_different_spellings_of_a_term_the_first_counts():
    store = Glossaries()
    ids = [store.add("anna", "ours", [Dictionary("fr", "en", entries)]).id
           for entries in ({"l'eau": "water"}, {"l’eau": "the water", "la  mer": "sea"}, {"la mer": "ocean"})]
    for first, second, third in ((0, 1, 2), (2, 1, 0)):
        found = store.terminology("anna", [ids[first], ids[second], ids[third]], "fr", "en")
        assert [term.target for term in found.terms_in("l'eau de la mer")] == (
            ["water", "sea"] if first == 0 else ["the water", "ocean"])


def test_the_terms_of_a_request_are_read_outside_of_the_event_loop(client, monkeypatch):
    number = create(client, "haus\thouse").json()["glossary_id"]
    build, threads = glossaries.terminology_of, []

    def recorded(entries):
        threads.append(threading.current_thread().name)
        return build(entries)

    monkeypatch.setattr(glossaries, "terminology_of", recorded)
    assert translate(client, number, "haus").status_code == 200
    assert len(threads) == 1 and threads[0].startswith("request")


def test_terminologies_between_requests_have_a_common_limit(monkeypatch):
    monkeypatch.setattr(glossaries, "MAX_CACHED_TERMS", 25)
    store = Glossaries()
    for count in (10, 10, 10, 30):
        entries = {f"wort{number}": "x" for number in range(count)}
        made = store.add("anna", "ours", [Dictionary("de", "en", entries)])
        assert len(store.terminology("anna", [made.id], "de", "en").terms) == count
        assert store._cached_terms() <= 25


@pytest.mark.parametrize(("text", "kind", "entries"), [
    ("\ufeffhaus\thouse", "tsv", {"haus": "house"}), ("\ufeffhaus,house", "csv", {"haus": "house"}),
    ('\ufeff"haus",house', "csv", {"haus": "house"}),
    ("haus\thouse\r\n\r\nhund\tdog\r\n", "tsv", {"haus": "house", "hund": "dog"}),
    ("haus\thouse\rhund\tdog", "tsv", {"haus": "house", "hund": "dog"}),
    ("haus\u2028hof\thouse", "tsv", {"haus\u2028hof": "house"}),
    ("ha\x0bus\tho\x85use", "tsv", {"ha\x0bus": "ho\x85use"}),
    ('"haus, hof","house ""yard"""\n', "csv", {"haus, hof": 'house "yard"'}),
    ('haus,house,de,en\n', "csv", {"haus": "house"})])
def test_entries_are_read_as_they_are_written(text, kind, entries):
    assert read_entries(text, kind) == entries


@pytest.mark.parametrize(("text", "kind", "words"), [
    ("haus\thouse\nhund", "tsv", "Line 2 of the glossary is not a pair"), ("haus\thouse\thome", "tsv", "Line 1"),
    ("\ufeff\thouse", "tsv", "Line 1"), ("haus\t" + "x" * 2000, "tsv", "with 1 to 1024 characters"),
    ("haus\thouse\nhaus\thome", "tsv", "Line 2 of the glossary repeats the source term"),
    ('haus,house\n"hund,dog\n', "csv", "Line 2 of the glossary is not valid CSV"),
    ('haus,"house" x\n', "csv", "Line 1 of the glossary is not valid CSV"),
    ('haus,house\n"hund\tkatze",dog\n', "csv", "Line 2 of the glossary is not a pair of terms"),
    ('haus,"house\nhome"\n', "csv", "without tabs and line breaks"),
    ("a," + "x" * 200_000, "csv", "Line 1 of the glossary is not a pair of terms with 1 to 1024"),
    ("das haus\thouse\ndas  haus\thome", "tsv", "Line 2 of the glossary: 'das  haus' is translated as"),
    ("\ufeff", "tsv", "1 to 10000 terms")])
def test_entries_that_cannot_be_read_are_refused_with_their_line(text, kind, words):
    with pytest.raises(RequestError) as refusal:
        read_entries(text, kind)
    assert refusal.value.status == 400 and words in str(refusal.value)


@pytest.mark.parametrize(("limit", "maximum", "unit"), [("MAX_TOTAL_TERMS", 4, "terms"),
                                                          ("MAX_TOTAL_CHARACTERS", 40, "characters")])
def test_all_glossaries_together_have_a_limit(make_client, monkeypatch, tmp_path, limit, maximum, unit):
    client = make_client()
    client.service.glossaries = store = Glossaries(tmp_path / "glossaries.json")
    store.add("bert", "ours", [Dictionary("de", "en", {"haus": "house", "hund": "dog"})])     # 20 characters
    number = create(client, "haus\thouse", version=3).json()["glossary_id"]     # 13 characters
    path, one = f"/v3/glossaries/{number}", {"source_lang": "de", "target_lang": "en", "entries_format": "tsv"}
    monkeypatch.setattr(glossaries, limit, maximum)
    more = {**one, "entries": "hund\tdog\nkatze\tcat"}
    for answer in (create(client, "hund\tdog\nkatze\tcat"), client.patch(path, json={"dictionaries": [more]}),
                   client.put(f"{path}/dictionaries", json={**more, "entries": f"maus\tmouse\n{more['entries']}"})):
        assert answer.status_code == 507 and answer.json()["message"] == (
            f"All glossaries of this server may have {maximum} {unit} together, so nothing has changed: delete a "
            "glossary, or ask the server's administrator.")
    assert client.patch(path, json={"dictionaries": [{**one, "entries": "ei\tegg"}]}).status_code == 200
    monkeypatch.setattr(glossaries, limit, 1)       # as after a start with a file of an older server
    assert client.patch(path, json={"dictionaries": [{**one, "entries": "ei\tegg"}]}).status_code == 200
    assert client.put(f"{path}/dictionaries", json={**one, "entries": "ei\tegg"}).status_code == 200
    assert client.delete(path).status_code == 204


def test_glossaries_without_terms_count_towards_the_limit(monkeypatch):
    monkeypatch.setattr(glossaries, "MAX_TOTAL_TERMS", 2)
    store = Glossaries()
    for _ in range(2):
        store.remove(store.add("anna", "ours", dictionaries := [Dictionary("de", "en", {"haus": "house"})]),
                     dictionaries[0])
    with pytest.raises(RequestError) as refusal:
        store.add("anna", "ours", dictionaries)
    assert refusal.value.status == 507


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_change_that_cannot_be_saved_is_no_change(make_client, tmp_path, monkeypatch, number):
    client = make_client()
    file = tmp_path / "glossaries.json"
    client.service.glossaries = Glossaries(file)
    number_3 = create(client, "haus\thouse", version=3).json()["glossary_id"]
    before = file.read_text()

    def fails(path, text):
        raise OSError(number, "it cannot be")

    path = f"/v3/glossaries/{number_3}"
    other = {"source_lang": "de", "target_lang": "en", "entries": "hund\tdog", "entries_format": "tsv"}
    with monkeypatch.context() as patch:
        patch.setattr(glossaries, "write_text", fails)
        for answer in (create(client, "hund\tdog"), client.patch(path, json={"name": "theirs"}),
                       client.put(f"{path}/dictionaries", json=other), client.delete(path),
                       client.delete(f"{path}/dictionaries?source_lang=de&target_lang=en")):
            assert answer.status_code == 507 and "nothing has changed" in answer.json()["message"]
    [left] = client.get("/v3/glossaries").json()["glossaries"]
    assert (left["name"], left["dictionaries"][0]["entry_count"]) == ("ours", 1) and file.read_text() == before
    assert client.delete(path).status_code == 204 and Glossaries(file).owned_by("testclient") == []


@pytest.mark.parametrize("place", ["", "file/glossaries.json"])
def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="--glossaries"):
        Glossaries(tmp_path / place)


def test_saving_holds_up_no_other_request_and_no_change_is_lost(make_client, tmp_path, monkeypatch):
    client = make_client()
    client.service.glossaries = Glossaries(tmp_path / "glossaries.json")
    saving, let, write = threading.Semaphore(0), threading.Semaphore(0), glossaries.write_text

    def slowly(path, text):
        saving.release()
        assert let.acquire(timeout=PATIENCE)
        write(path, text)

    number = create(client, "haus\thouse", version=3).json()["glossary_id"]
    monkeypatch.setattr(glossaries, "write_text", slowly)
    with client:

        def add(word):
            one = {"source_lang": "de", "target_lang": "en", "entries": f"{word}\tx", "entries_format": "tsv"}
            assert client.patch(f"/v3/glossaries/{number}", json={"dictionaries": [one]}).status_code == 200

        threads = [threading.Thread(target=add, args=(word,)) for word in ("hund", "katze", "maus")]
        for thread in threads:
            thread.start()
        assert saving.acquire(timeout=PATIENCE)
        assert client.get("/health").status_code == 200
        assert client.post("/translate", json={"q": "gut", "source": "de", "target": "en"}).status_code == 200
        for _ in threads:
            let.release()
        for thread in threads:
            thread.join()
        assert client.get(f"/v3/glossaries/{number}").json()["dictionaries"][0]["entry_count"] == 4


def test_servers_that_share_a_file_lose_no_change(tmp_path):
    file = tmp_path / "glossaries.json"
    one, other = Glossaries(file), Glossaries(file)
    haus, hund = (store.add("anna", word, [Dictionary("de", "en", {word: "x"})])
                  for store, word in ((one, "haus"), (other, "hund")))
    assert one.owned_by("anna") == other.owned_by("anna") == [haus, hund]
    assert [term.target for term in one.terminology("anna", [hund.id], "de", "en").terms] == ["x"]
    other.change(hund, None, [Dictionary("de", "en", {"hund": "dog"})])
    assert [term.target for term in one.terminology("anna", [hund.id], "de", "en").terms] == ["dog"]
    one.remove(haus)
    with pytest.raises(RequestError, match="does not exist"):
        other.get("anna", haus.id)

    def add(store):
        for _ in range(10):
            store.add("bert", "ours", [Dictionary("de", "en", {"haus": "house"})])

    threads = [threading.Thread(target=add, args=(store,)) for store in (one, other, Glossaries(file))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(store.owned_by("bert")) for store in (one, other, Glossaries(file))] == [30, 30, 30]


def test_a_file_that_is_damaged_or_removed_while_the_server_runs_is_written_again(tmp_path, caplog):
    store = Glossaries(tmp_path / "glossaries.json")
    haus = store.add("anna", "ours", [Dictionary("de", "en", {"haus": "house"})])
    (tmp_path / "glossaries.json").write_text("[{")
    assert store.get("anna", haus.id) == haus and store.owned_by("anna") == [haus]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "The file of glossaries was changed, but cannot be read"]
    hund = store.add("anna", "theirs", [Dictionary("de", "en", {"hund": "dog"})])
    assert Glossaries(tmp_path / "glossaries.json").owned_by("anna") == [haus, hund]
    (tmp_path / "glossaries.json").unlink()
    maus = store.add("anna", "more", [Dictionary("de", "en", {"maus": "mouse"})])
    assert Glossaries(tmp_path / "glossaries.json").owned_by("anna") == [haus, hund, maus]
