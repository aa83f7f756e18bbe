"""Custom engines: a broken engine is refused when it is loaded, in one sentence with the reason."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette")

from tests.waiting import PATIENCE
from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.language_codes import Direction
from towernmt.documents.shields import Protection
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.predict.search.search_settings import SpecialLineSettings
from towernmt.serve.batcher import Cancellation
from towernmt.serve.model_loading import (
    COMMON_KINDS,
    EngineSettings,
    LoadedModel,
    load_served_model,
    parse_model_spec,
    search_kind,
    warm_up,
)
from towernmt.serve.request_limits import RequestError
from towernmt.serve.served_models import Models, ServedModel
from towernmt.serve.text_translation import translate_sentences

HEAD = """
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
class Engine:
"""
GOOD = "    def __call__(self, lines, options): return [Translation([Hypothesis(line, 0.0)]) for line in lines]\n"
BROKEN = {
    "a syntax error": ("    def", "cannot be loaded: SyntaxError"),
    "a missing module": ("    import nowhere", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
    "an error of the constructor": ("    def __init__(self): self.model = open('/nowhere')", "FileNotFoundError"),
    "a constructor with arguments": ("    def __init__(self, file): pass", "missing 1 required positional argument"),
    "sys.exit": ("    def __init__(self): raise SystemExit(3)", "SystemExit: 3"),
    "no call": ("    pass", "must be a class, or a function"),
    "alternatives that are a text": (f"    alternatives = '3'\n{GOOD}", "alternatives is '3'"),
    "no alternative": (f"    alternatives = 0\n{GOOD}", "alternatives is 0: it must be a whole number from 1"),
    "aligns that is not a flag": (f"    aligns = 'no'\n{GOOD}", "aligns is 'no': it must be True or False"),
    "one argument": ("    def __call__(self, lines): return []", "takes 2 positional arguments but 3 were given"),
    "an error": ("    def __call__(self, lines, options): return 1 / 0", "ZeroDivisionError: division by zero"),
    "a text": ("    def __call__(self, lines, options): return 'abc'", "a value of the type str"),
    "texts": ("    def __call__(self, lines, options): return list(lines)", "returned a str for a sentence"),
    "too few": ("    def __call__(self, lines, options): return []", "0 translations of 2 sentences"),
    "options that it cannot read": ("    def __call__(self, lines, options):\n"
                                    "        return [Translation([Hypothesis(line, 0.0)]) for line in lines"
                                    " if not options or options['n']]", "not str"),
}


def engine(tmp_path, body):
    file = tmp_path / "engine.py"
    file.write_text(f"{HEAD}{body}\n")
    return f"{file}:Engine"


@pytest.mark.parametrize("case", BROKEN)
def test_an_engine_that_cannot_work_is_refused_with_its_place(tmp_path, case):
    body, words = BROKEN[case]
    location = engine(tmp_path, body)
    with pytest.raises(SettingsError) as error:
        warm_up(load_served_model(location, EngineSettings()), location)
    assert words in str(error.value) and f"--model {location}: " in str(error.value) and "\n" not in str(error.value)


def test_an_engine_that_works_is_accepted(tmp_path):
    location = engine(tmp_path, f"    aligns = False\n{GOOD}")
    warm_up(load_served_model(location, EngineSettings()), location)


def test_an_engine_may_contain_a_dataclass_with_postponed_annotations(tmp_path):
    file = tmp_path / "engine.py"
    file.write_text("from __future__ import annotations\nfrom dataclasses import dataclass\n" + HEAD.replace(
        "class Engine:", "@dataclass\nclass Engine:") + f"    mark: str = 'a'\n{GOOD}")
    location = f"{file}:Engine"
    for _ in range(2):      # the second time as for a reload
        warm_up(load_served_model(location, EngineSettings()), location)
    file.write_text("broken")
    with pytest.raises(SettingsError):
        load_served_model(location, EngineSettings())
    assert [name for name in sys.modules if name.endswith(f"@{location}")] == [f"engine@{location}"]


def test_the_path_of_a_model_may_contain_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1").mkdir()
    for text, spec in {"lr=1": (None, "lr=1"), "./lr=2": (None, "./lr=2"),
                       "de-en=lr=1": (Direction("de", "en"), "lr=1")}.items():
        assert parse_model_spec(text) == spec


def test_the_options_of_special_lines_reach_the_translator(monkeypatch):
    class Recording:
        checkpoint, retry, check = "runs/x/best/step-1/model", {}, None

        def __init__(self, location, beam, **arguments):
            self.arguments = arguments
            translators.append(self)

    translators = []
    monkeypatch.setattr("towernmt.predict.translator.Translator", Recording)
    loaded = load_served_model("runs/x", EngineSettings(), Direction("de", "en"))
    assert translators[-1].arguments["retry"] is True and translators[-1].arguments["languages"] == ("de", "en")
    assert translators[-1].arguments["special_lines"] == SpecialLineSettings() and loaded.protection == Protection()
    off = SpecialLineSettings(protection="off")
    loaded = load_served_model("runs/x", EngineSettings(retry=False, special_lines=off, protect=("a+",)))
    assert translators[-1].arguments["retry"] is False and translators[-1].arguments["special_lines"] == off
    assert translators[-1].arguments["options"].protect == ("a+",)
    assert loaded.protection == Protection(False, ("a+",))
    load_served_model("runs/x", EngineSettings(source_prefix="<2de>"), Direction("en", "de"))
    assert translators[-1].arguments["options"].source_prefix == "<2de>"


@pytest.mark.parametrize(("attention", "aligns"), [("none", False), ("general", True)])
def test_a_model_without_attention_is_served_without_word_alignments(monkeypatch, tmp_path, attention, aligns):
    (tmp_path / "settings.yaml").write_text(
        f"architecture: seq2seq\nmodel: {{attention: {attention}, source_vocab_size: 9, target_vocab_size: 9}}\n")
    requested = {}

    def translator(run, beam_size, **arguments):
        requested.update(arguments)
        return SimpleNamespace(checkpoint="", retry={}, check=None)

    monkeypatch.setattr("towernmt.predict.translator.Translator", translator)
    loaded = load_served_model(str(tmp_path), EngineSettings(engine="graph"))
    assert (requested["attention"], requested["log_probs"], loaded.aligns) == (aligns, aligns, aligns)


def test_a_custom_engine_adds_a_source_prefix_itself(tmp_path):
    location = engine(tmp_path, GOOD)
    with pytest.raises(SettingsError, match="--source-prefix en-de=<2de>: a custom engine receives the sentences"):
        load_served_model(location, EngineSettings(source_prefix="<2de>"), Direction("en", "de"))


@pytest.mark.parametrize(("protection", "expected"), [
    (Protection(), "SIEHE https://x.de ODER ACME"), (Protection(True, (r"Ac\w+",)), "SIEHE https://x.de ODER Acme"),
    (Protection(False), "SIEHE HTTPS://X.DE ODER ACME")])
def test_texts_keep_the_protected_words_of_the_model(make_client, protection, expected):
    client = make_client()
    [model] = client.service.models
    model.model = model.model._replace(protection=protection)
    answer = client.post("/translate", json={"q": "siehe https://x.de oder Acme", "source": "de", "target": "en"})
    assert answer.json()["translatedText"] == expected


def test_ready_is_refused_while_a_model_does_not_answer(make_client, monkeypatch):
    client = make_client()
    assert client.get("/ready").status_code == 200
    [model] = client.service.models
    monkeypatch.setattr(model.batcher, "_round_start", float("-inf"))
    hangs = client.get("/ready")
    assert hangs.status_code == 503 and "de-en does not answer" in hangs.json()["error"]
    monkeypatch.undo()
    model.batcher.close()
    ended = client.get("/ready")
    assert ended.status_code == 503 and "restart the server" in ended.json()["error"]
    assert client.get("/health").status_code == 200


class Building:
    """An engine that builds each kind of search at its first use, like the graph, when the test allows it."""

    alternatives, aligns, constrains = 3, False, True

    def __init__(self):
        self.built, self.builders, self.let = set(), [], threading.Semaphore(0)
        self.changed = threading.Condition()

    def __call__(self, lines, options):
        for one in options or []:
            if (kind := search_kind(one)) and kind not in self.built:
                with self.changed:
                    self.builders.append((kind, threading.current_thread().name))
                    self.changed.notify_all()
                assert self.let.acquire(timeout=PATIENCE)
                self.built.add(kind)
        return [Translation([Hypothesis(line.upper(), 0.0)]) for line in lines]

    def wait_until_begun(self, *kinds):
        """Wait until the engine has begun to build these kinds of search, and no other ones."""
        with self.changed:
            assert self.changed.wait_for(lambda: [kind for kind, _ in self.builders] == [*kinds], PATIENCE)

    def build_all(self):
        for _ in range(100):
            self.let.release()


@pytest.fixture
def building():
    engine = Building()
    served = ServedModel(Direction("de", "en"), "place", lambda: LoadedModel(engine, "a", 3, False, True), 16, 100)
    yield engine, served
    for _ in range(100):
        engine.let.release()
    served.close()


def translated(served, *options):
    return translate_sentences(served, ["gut"] * len(options), options, Cancellation(30))


KINDS = {
    "a constraint": LineOptions(constraints=["a"]),
    "a glossary": LineOptions(terminology=Terminology([Term("a", "b")])),
    "a prefix": LineOptions(prefix="a"), "a partial word": LineOptions(prefix="a", partial_word=True),
    "avoided words": LineOptions(avoid=["a"]), "the page's other words": LineOptions(prefix="a", avoid=["b"]),
    "all": LineOptions(prefix="a", partial_word=True, avoid=["b"], constraints=["c"])}


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_that_is_not_built_holds_up_its_requests_alone(building, kind):
    engine, served = building
    results = []
    waits = threading.Thread(target=lambda: results.append(translated(served, KINDS[kind])))
    waits.start()
    assert translated(served, LineOptions(), LineOptions(n_best=3)) and not results and not served.is_warm
    for _ in range(100):
        engine.let.release()
    waits.join(PATIENCE)
    assert len(results) == 1 and {thread for _, thread in engine.builders} == {"warm up"}


def test_the_common_searches_are_built_without_a_request_and_others_with_one(building):
    engine, served = building
    for _ in range(100):
        engine.let.release()
    assert translated(served, *KINDS.values()) and served.is_warm
    assert [kind for kind, _ in engine.builders][:len(COMMON_KINDS)] == COMMON_KINDS
    assert {kind for kind, _ in engine.builders} == {*COMMON_KINDS, search_kind(KINDS["all"])}


def test_a_reloaded_model_has_all_searches_that_the_old_one_had(building):
    engine, served = building
    for _ in range(100):
        engine.let.release()
    assert translated(served, *KINDS.values())
    engine.built.clear()
    served.reload()
    engine.builders.clear()
    assert translated(served, *KINDS.values()) and not engine.builders


class Reloaded:
    """A model that gets the next one of these engines at each reload."""

    def __init__(self):
        self.engines = [Building() for _ in range(3)]
        remaining = iter(self.engines)
        self.served = ServedModel(Direction("de", "en"), "place",
                                  lambda: LoadedModel(next(remaining), "a", 3, False, True), 16, 100)

    def reload_in_thread(self):
        thread = threading.Thread(target=self.served.reload)
        thread.start()
        return thread


@pytest.fixture
def reloaded():
    reloaded = Reloaded()
    yield reloaded
    for engine in reloaded.engines:
        engine.build_all()
    reloaded.served.close()


def test_a_search_that_is_built_while_the_model_is_replaced_is_built_again(reloaded):
    (first, second, _), served = reloaded.engines, reloaded.served
    first.wait_until_begun(COMMON_KINDS[0])
    served.reload()
    first.let.release()         # the first engine has the search now, which the second one lacks
    second.wait_until_begun(COMMON_KINDS[0])
    assert not served.is_warm
    second.build_all()
    assert translated(served, *KINDS.values())
    assert first.built == {COMMON_KINDS[0]} and second.built == {*COMMON_KINDS, search_kind(KINDS["all"])}
    assert {thread for _, thread in second.builders} == {"warm up"}


def test_a_search_that_becomes_built_during_a_reload_is_built_with_the_new_model_too(reloaded):
    (first, second, _), served = reloaded.engines, reloaded.served
    first.let.release()
    first.wait_until_begun(*COMMON_KINDS[:2])
    reload = reloaded.reload_in_thread()
    second.wait_until_begun(COMMON_KINDS[0])
    first.let.release()
    assert search_kind(KINDS["a prefix"]) == COMMON_KINDS[1]
    served.wait_until_warm([KINDS["a prefix"]], Cancellation(PATIENCE))
    for _ in range(2):
        second.let.release()
    reload.join(PATIENCE)
    assert second.built == set(COMMON_KINDS[:2])


@pytest.mark.parametrize("has_glossary", [False, True])
def test_a_replaced_model_is_not_kept_in_memory(reloaded, has_glossary):
    served = reloaded.served
    reloaded.engines[0].build_all()
    assert translated(served, *KINDS.values())
    terminology = Terminology([Term("a", "b")])
    if has_glossary:
        assert served.unwritable(terminology) == {}
    reloaded.engines[1].build_all()
    served.reload()
    replaced = weakref.ref(reloaded.engines.pop(0))
    gc.collect()
    assert replaced() is None
    assert served.unwritable(terminology) == {}


def test_requests_are_answered_while_the_new_model_is_loaded():
    begun, meanwhile = [], []

    def load():
        mark = f"model {len(begun)}"
        meanwhile.extend(translated(served, LineOptions())[0][0].text for served in begun)
        return LoadedModel(lambda lines, _: [Translation([Hypothesis(mark, 0.0)]) for _ in lines], "a")

    begun.append(ServedModel(Direction("de", "en"), "place", load, 16, 100))
    try:
        begun[0].reload()
        assert meanwhile == ["model 0"] and translated(begun[0], LineOptions())[0][0].text == "model 1"
    finally:
        begun[0].close()


def test_a_model_chooses_its_precision_while_it_answers_until_it_is_replaced(caplog):
    begun, ended, failed = threading.Semaphore(0), [], threading.Event()

    def load():
        number = len(models)
        models.append(number)

        def choose_precision(stopped):
            begun.release()
            if number == 1:
                failed.set()
                raise RuntimeError("no memory")
            while not stopped():
                failed.wait(0.001)
            ended.append(number)

        return LoadedModel(lambda lines, _: [Translation([Hypothesis(f"{number}", 0.0)]) for _ in lines], "a",
                           choose_precision=choose_precision)

    models = []
    served = ServedModel(Direction("de", "en"), "place", load, 16, 100)
    try:
        assert begun.acquire(timeout=PATIENCE) and translated(served, LineOptions())[0][0].text == "0" and not ended
        served.reload()
        assert ended == [0] and begun.acquire(timeout=PATIENCE) and failed.wait(PATIENCE)
        served.reload()
        assert "choosing the precision failed" in caplog.text
        assert begun.acquire(timeout=PATIENCE) and translated(served, LineOptions())[0][0].text == "2"
    finally:
        served.close()
    assert ended == [0, 2]


def test_a_client_that_goes_does_not_wait_for_a_search(building):
    _, served = building
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(RequestError, match="closed the connection"):
        translate_sentences(served, ["gut"], [KINDS["a prefix"]], cancellation)


def test_a_server_is_ready_when_the_common_searches_are(make_client, building):
    engine, served = building
    client = make_client()
    client.service.models = Models([served])
    assert client.get("/ready").status_code == 503 and "preparing" in client.get("/ready").json()["error"]
    for _ in range(100):
        engine.let.release()
    assert translated(served, *KINDS.values()) and client.get("/ready").status_code == 200
