"""A real, tiny model translates the same with the server as without it, by each engine."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from functools import cache

import pytest

from tests.interop import conftest as engines
from towernmt.predict.search.search_settings import SpecialLineSettings
from towernmt.serve import served_models

original_run, run_on_disk, lines = engines.original_run, engines.run_on_disk, engines.lines     # fixtures
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def opened_run(run_on_disk):
    """Return `opened_run(**settings)`, which opens the model of the run, once for all tests with these settings."""
    from towernmt.serve.model_loading import EngineSettings, load_served_model

    return cache(lambda **settings: load_served_model(str(run_on_disk), EngineSettings(device="cpu", **settings)))


def served(make_client, opened, constrains=True):
    """Return a client of a server of an opened model.

    Without `constrains`, the server does not warm up further searches.
    """

    class Engine:
        alternatives, aligns, check = opened.alternatives, opened.aligns, staticmethod(opened.check)

        def __call__(self, lines, options):
            return opened.translate(lines, options)

    Engine.constrains = opened.constrains and constrains
    return make_client(models={"de-en": Engine()})


def test_our_graph_gives_the_n_best_lists_and_links_of_the_translator(make_client, opened_run, run_on_disk, lines):
    from towernmt.predict.translator import Translator

    client = served(make_client, opened_run(alternatives=2, retry=False), constrains=False)
    asked = {"text": [line for line in lines if line], "n_best": 2, "alignments": True, "confidence": True}
    found = client.post("/api/v1/translate", json=asked).json()["translations"]
    translator = Translator(run_on_disk, n_best=2, device="cpu", attention=True, engine="graph")
    expected = translator.translate_nbest(asked["text"])
    for text, translation in zip(found, expected, strict=True):
        [sentence] = text["sentences"]
        assert [one["text"] for one in sentence["translations"]] == [one.text for one in translation]
        assert [one["score"] for one in sentence["translations"]] == pytest.approx(
            [one.score for one in translation], abs=1e-3)
        assert [list(link) for link in translation[0].links() or []] == sentence["translations"][0]["links"]
        assert all(0 <= value <= 1 for value in sentence["translations"][0]["confidence"])


def test_a_prefix_and_a_term_are_in_the_translation(make_client, opened_run, monkeypatch):
    monkeypatch.setattr(served_models, "COMMON_KINDS", [frozenset({"prefix"}), frozenset({"constraints"})])
    client = served(make_client, opened_run(alternatives=2, retry=False))
    forced = client.post("/api/v1/translate", json={"text": "w1 w2 w3", "prefix": "w9 w4"}).json()
    assert forced["translations"][0]["text"].startswith("w9 w4")
    glossary = {"name": "ours", "source_lang": "de", "target_lang": "en", "entries": "w2\tw11 w12"}
    number = client.post("/v2/glossaries", json=glossary).json()["glossary_id"]
    asked = {"text": "w1 w2 w3", "source_lang": "de", "target_lang": "en", "glossary_id": number}
    assert "w11 w12" in client.post("/v2/translate", json=asked).json()["translations"][0]["text"]


def test_words_that_the_vocabulary_cannot_write_are_refused(make_client, opened_run, monkeypatch):
    monkeypatch.setattr(served_models, "COMMON_KINDS", [frozenset({"constraints"})])
    client = served(make_client, opened_run(alternatives=2, retry=False))
    for wrong in ({"prefix": "w9 ☃"}, {"prefix": "☃"}, {"prefix": "w9 ☃", "partial_word": True},
                  {"prefix": "☃ w", "partial_word": True}, {"constraints": ["w9", "w4 ☃"]}, {"glossary": {"w2": "☃"}}):
        answer = client.post("/api/v1/translate", json={"text": "w1 w2 w3", **wrong})
        assert answer.status_code == 400 and "☃" in answer.json()["error"], wrong
        assert "does not know" in answer.json()["error"] and "sentence line" not in answer.json()["error"]
    assert client.post("/api/v1/translate", json={"text": "w1 w4", "glossary": {"w2": "☃"}}).status_code == 200
    glossary = {"name": "ours", "source_lang": "de", "target_lang": "en", "entries": "w1\tw3\nw2\t☃"}
    answer = client.post("/v2/glossaries", json=glossary)
    assert answer.status_code == 400 and "Line 2 of the glossary" in answer.json()["message"]


@pytest.mark.parametrize("settings", [{"search": (("beam_size", 1),)}, {"retry": False}])
def test_ctranslate2_says_the_same_as_both_engines(make_client, opened_run, lines, settings):
    # The second search of --retry forbids tokens, for which a beam of CTranslate2 compares other probabilities.
    texts = [line for line in lines if line]
    ours, theirs = (served(make_client, opened_run(engine=engine, **settings), constrains=False).post(
        "/translate", json={"q": texts, "source": "de", "target": "en"}).json() for engine in ("auto", "ctranslate2"))
    assert ours == theirs


def test_a_run_is_served_in_int8_after_a_measurement_and_from_the_next_start_on(run_on_disk, lines, tmp_path, caplog):
    from tests.interop.engines.test_int8_measurement import write_validation_text
    from towernmt.dataflow.text.language_codes import Direction
    from towernmt.interop.ctranslate2_engine import CTranslate2Translator
    from towernmt.serve.model_loading import EngineSettings, load_served_model
    from towernmt.serve.served_models import ServedModel

    run = shutil.copytree(run_on_disk, tmp_path / "run")
    text = [line for line in lines if line]
    expected = CTranslate2Translator(run, device="cpu", precision="int8").translate(text)
    write_validation_text(run, text, expected)      # so BLEU is higher in int8
    CTranslate2Translator(run, device="cpu")        # exports the run
    caplog.set_level(logging.INFO, "towernmt")
    settings = EngineSettings(device="cpu", special_lines=SpecialLineSettings(protection="off"), retry=False)
    assert load_served_model(str(run), dataclasses.replace(settings, precision="float32")).choose_precision is None
    served = ServedModel(Direction("de", "en"), str(run), lambda: load_served_model(str(run), settings), 16, 100)
    served._precision_thread.join()
    assert served.model.engine().endswith(" int8")
    assert [found[0].text for found in served.model.translate(text, None)] == expected
    [line] = [message for message in caplog.messages if "BLEU of" in message]
    assert "100.00 in int8, so CTranslate2 uses int8 on processors" in line
    served.reload()
    served.close()
    assert served.model.engine().endswith(" int8") and served.model.choose_precision is None
    assert [message.rpartition("(")[2] for message in caplog.messages if "is ready after" in message][-1] == (
        f"engine: {served.model.engine()}).")
    assert load_served_model(str(run), dataclasses.replace(settings, precision="float32")).engine().endswith(" float32")
    assert not any("BLEU of" in message for message in caplog.messages[caplog.messages.index(line) + 1:])


def test_ctranslate2_refuses_what_it_lacks(make_client, opened_run):
    client = served(make_client, opened_run(engine="ctranslate2"))
    answer = client.post("/api/v1/translate", json={"text": "w1", "prefix": "w2"})
    assert answer.status_code == 400 and "does not accept prefixes" in answer.json()["error"]
