"""The native interface, and its description, which must match it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import pytest

from tests.serve.echo_engine import Echo
from towernmt.predict.lines.line_options import OPTIONS, LineOption
from towernmt.serve.api.native_fields import option_texts
from towernmt.serve.web.callers import Rates

jsonschema = pytest.importorskip("jsonschema")
PATH = "/api/v1/translate"
REQUESTS = [
    {"text": "guten tag"}, {"text": ["eins zwei", "drei\n\nvier"], "source": "de", "target": "en"},
    {"text": "guten tag", "n_best": 3, "alignments": True, "confidence": True, "source": "auto"},
    {"text": "das haus", "glossary": {"haus": "house"}}, {"text": "das haus", "prefix": "Well,", "partial_word": False},
    {"text": "das haus", "avoid": ["x"], "constraints": ["y"], "format": "text", "stream": False},
    {"text": ["eins", "zwei\ndrei"], "stream": True}]
WRONG = [{}, {"text": 3}, {"text": "a", "n_best": 0}, {"text": "a", "n_best": "b"}, {"text": "a", "stream": "perhaps"},
         {"text": "a", "format": "pdf"}, {"text": "a", "glossary": ["b"]}, {"text": "a", "glossary": {"b": 1}},
         {"text": "a", "sauce": "de"}, {"text": ["a", 1]}, {"text": "a", "prefix": "b" * 2001},
         {"text": "a", "avoid": "b" * 2001}, {"text": "a", "avoid": ["b"] * 101},
         {"text": "a", "constraints": ["b"] * 101}, {"text": "a", "glossary": {"b": "c" * 1025}},
         {"text": "a", "glossary": {"b" * 1025: "c"}},
         {"text": "a", "glossary": {f"b{number}": "c" for number in range(10_001)}}]


def test_the_strings_of_each_option_of_a_line_count(monkeypatch):
    monkeypatch.setitem(OPTIONS, "ending", LineOption(str, "a text", help="How the translation ends"))
    monkeypatch.setitem(OPTIONS, "topics", LineOption(Sequence, "a list of texts", help="Topics of the text"))
    fields = {"prefix": "a", "partial_word": True, "avoid": ["b", "c"], "constraints": ["d"], "glossary": {"e": "f"},
              "ending": "g", "topics": ["h", "i"]}
    assert sorted(option_texts(fields)) == list("abcdefghi")


@pytest.fixture
def client(make_client):
    return make_client()


def validator(client, schema):
    description = client.get("/api/v1/openapi.json").json()
    return jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": description["components"]})


@pytest.mark.parametrize("values", REQUESTS)
def test_requests_and_answers_are_as_the_description_says(client, values):
    validator(client, "Request").validate(values)
    answer = client.post(PATH, json=values)
    assert answer.status_code == 200, answer.text
    if values.get("stream"):
        for line in answer.text.splitlines():
            validator(client, "Line").validate(json.loads(line))
    else:
        validator(client, "Answer").validate(answer.json())


@pytest.mark.parametrize("values", WRONG)
def test_what_the_description_forbids_is_refused(client, values):
    assert not validator(client, "Request").is_valid(values)
    answer = client.post(PATH, json=values)
    assert answer.status_code == 400
    validator(client, "Error").validate(answer.json())


def test_every_described_path_and_method_is_there_and_no_other(client):
    description = client.get("/api/v1/openapi.json").json()["paths"]
    described = {(path, method.upper()) for path, methods in description.items() for method in methods}
    there = {(route.path, method) for route in client.app._app.routes for method in route.methods - {"HEAD"}
             if route.path.startswith("/api/")}
    assert described == there
    validator(client, "Models").validate(client.get("/api/v1/models").json())


@pytest.mark.parametrize(("card", "public"), [
    (None, None), ({}, {}),
    ({"name": " Ours ", "licence": "CC0-1.0", "limitations": "Many.", "authors": ["Anna"], "settings": {"a": 1},
      "training_data": {"pairs": 7, "fingerprint": "f", "sources": [{"name": "Tatoeba", "pairs": 7, "sha": "x"}]}},
     {"name": "Ours", "licence": "CC0-1.0", "limitations": "Many.", "authors": ["Anna"],
      "training_data": {"pairs": 7, "sources": [{"name": "Tatoeba", "pairs": 7}]}}),
    ({"name": 7, "licence": "", "authors": "Anna", "training_data": {"sources": [None, {"pairs": "7"}]}},
     {"training_data": {"sources": [{}]}}),
    ({"training_data": []}, {}), ({"training_data": {"sources": "Tatoeba"}}, {"training_data": {"sources": []}})])
def test_the_card_of_a_model_is_public_as_far_as_users_need_it(make_client, card, public):
    from tests.serve.echo_engine import Echo

    class Engine(Echo):
        pass

    Engine.card = card
    client = make_client(limits={"max_characters": 70}, models={"de-en": Engine()})
    description = client.get("/api/v1/models").json()
    validator(client, "Models").validate(description)
    assert description["models"][0].get("card") == public
    assert description["limits"] == {"characters": 70, "texts": 200, "sentences": 2000}


def test_n_best_scores_links_and_terms_are_those_of_the_search(client):
    answer = client.post(PATH, json={"text": "das haus", "n_best": 2, "alignments": True, "glossary": {
        "haus": "house"}}).json()
    [text] = answer["translations"]
    [sentence] = text["sentences"]
    assert text["text"] == "DAS house" and sentence["words"] == ["das", "haus"]
    assert sentence["terms"] == [{"source": "haus", "target": "house"}]
    first, second = sentence["translations"]
    assert (first["score"], second["score"], second["text"]) == (-0.5, -1.5, "DAS house AGAIN")
    assert first["links"] == [[0, 0], [1, 1]]


def test_the_phrases_of_a_field_have_a_common_limit_of_characters(client):
    for field in ("avoid", "constraints"):
        answer = client.post(PATH, json={"text": "a", field: ["b" * 101] * 20})
        assert answer.status_code == 400 and answer.json()["error"] == (
            f"'{field}' has 2020 characters: send at most 2000.")


@pytest.mark.parametrize("options", [
    {"prefix": "b" * 50}, {"avoid": ["b" * 25] * 2}, {"constraints": ["b" * 25] * 2},
    {"glossary": {"b" * 25: "c" * 25}}])
def test_every_string_that_reaches_the_model_counts_towards_limits_and_rates(make_client, options):
    client = make_client(limits={"max_characters": 59})
    assert client.post(PATH, json={"text": "a" * 9, **options}).status_code == 200
    answer = client.post(PATH, json={"text": "a" * 10, **options})
    assert answer.status_code == 413 and "60 characters of text, prefix, phrases and terms" in answer.json()["error"]
    client = make_client(access={"characters": 55})
    client.service.rates = Rates(lambda: 0.0)       # of a clock that stands still
    assert [client.post(PATH, json={"text": "a" * 9, **options}).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("stream", [False, True])
def test_the_terminology_of_a_glossary_is_built_outside_of_the_event_loop(client, monkeypatch, stream):
    from towernmt.serve.api import native

    build, threads = native.terminology_of, []

    def recorded(entries):
        threads.append(threading.current_thread().name)
        return build(entries)

    monkeypatch.setattr(native, "terminology_of", recorded)
    assert client.post(PATH, json={"text": "das haus", "glossary": {"haus": "house"}, "stream": stream}).is_success
    assert len(threads) == 1 and threads[0].startswith("request")


def test_a_term_that_cannot_be_used_is_refused_before_a_stream_begins(client):
    answer = client.post(PATH, json={"text": "a", "glossary": {" ": "b"}, "stream": True})
    assert answer.status_code == 400 and "the source term is empty" in answer.json()["error"]


def test_sentences_are_streamed_as_lines_or_as_events(client):
    body = {"text": ["eins\nzwei", "drei"], "stream": True}
    lines = [json.loads(line) for line in client.post(PATH, json=body).text.splitlines()]
    assert [(line.get("text"), line.get("sentence")) for line in lines[:-1]] == [(0, 0), (0, 1), (1, 0)]
    assert lines[-1]["done"] and lines[-1]["translations"] == ["EINS\nZWEI", "DREI"]
    events = client.post(PATH, json=body, headers={"Accept": "text/event-stream"})
    assert events.headers["content-type"].startswith("text/event-stream")
    assert [json.loads(event.removeprefix("data: ")) for event in events.text.strip().split("\n\n")] == lines


def test_what_an_engine_cannot_do_is_refused_by_name(make_client):
    from towernmt.predict.lines.hypotheses import Hypothesis, Translation

    def plain(lines, options):
        return [Translation([Hypothesis(line, 0.0)]) for line in lines]

    client = make_client(models={"de-en": plain})
    for field, value, word in (("prefix", "a", "prefixes"), ("glossary", {"a": "b"}, "glossaries"),
                               ("alignments", True, "alignments"), ("n_best", 2, "at most 1")):
        answer = client.post(PATH, json={"text": "a", field: value})
        assert answer.status_code == 400 and word in answer.json()["error"]


@pytest.mark.parametrize("alternatives", [3, 100, 150])
def test_a_request_may_have_as_many_translations_as_the_models_announce(make_client, alternatives):
    class Generous(Echo):
        pass

    Generous.alternatives = alternatives
    client = make_client(models={"de-en": Generous()})
    [model] = client.get("/api/v1/models").json()["models"]
    answer = client.post(PATH, json={"text": "gut", "n_best": model["alternatives"]})
    [sentence] = answer.json()["translations"][0]["sentences"]
    assert len(sentence["translations"]) == model["alternatives"] == min(alternatives, 100)


@pytest.mark.parametrize(("body", "needed"), [
    ({"text": "a b."}, [False]), ({"text": "Das ist gut. Das <b>Haus</b> steht.", "format": "html"}, [False, True]),
    ({"text": "a b.", "alignments": True}, [True]), ({"text": "a b.", "confidence": True}, [True]),
    ({"text": "a https://x.de b."}, [True])])
def test_only_sentences_that_need_alignments_or_probabilities_are_translated_with_them(make_client, body, needed):
    class Recording(Echo):
        def __call__(self, lines, options):
            details.extend(one.details for one in options or ())
            return super().__call__(lines, options)

    details: list[bool] = []
    client = make_client(models={"de-en": Recording()})
    details.clear()       # the sentences of the warm-up
    assert client.post(PATH, json=body).status_code == 200
    assert details == needed
