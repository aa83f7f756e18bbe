"""Compare translations by CTranslate2 with those of the built-in search, for random weights."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.interop.conftest import WORDS, write_run
from tests.interop.export.conftest import LINES, random_run
from towernmt.cli.main import main
from towernmt.core.errors import DataError, SettingsError
from towernmt.interop.ctranslate2_engine import CTranslate2Scorer, CTranslate2Translator
from towernmt.interop.ctranslate2_loader import Description
from towernmt.interop.ctranslate2_sentences import EXACT_PATIENCE, NO_END, patience_of
from towernmt.interop.export import export_model
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.scorer import Scorer
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator

SEARCHES: dict[str, dict[str, Any]] = {
    "the run's": {"n_best": 4},
    "greedy, at least some words": {"beam_size": 1, "min_length": 3, "max_tokens": 9},
    "mean of tokens, at least half the source": {
        "beam_size": 3, "n_best": 2, "length_normalization": "average", "length_penalty": 1.0,
        "min_length_factor": 0.5},
    "the first that finish": {"stopping": "first", "patience": 1.0, "length_penalty": 0.0, "beam_size": 3},
}
BEAMS: dict[str, dict[str, Any]] = {"beam": {"n_best": 4}, "greedy": {"beam_size": 1}}
STREAM = StreamSettings(batch_tokens=20, batch_sentences=2)


def assert_same(found: list[Translation], expected: list[Translation]) -> None:
    """Compare texts, scores, tokens, log-probabilities and attention of all hypotheses."""
    for theirs, ours in zip(found, expected, strict=True):
        assert [one.text for one in theirs] == [one.text for one in ours]
        assert [one.score for one in theirs] == pytest.approx([one.score for one in ours], abs=1e-4)
        assert theirs.fault == ours.fault
        for one, other in zip(theirs, ours, strict=True):
            assert (one.details is None) == (other.details is None)
            if one.details is None or other.details is None:
                continue
            assert one.details.ids == other.details.ids
            for name in ("log_probs", "attention"):
                values, other_values = getattr(one.details, name), getattr(other.details, name)
                assert (values is None) == (other_values is None)
                if values is not None:
                    np.testing.assert_allclose(values, other_values, atol=1e-5)
            assert one.links() == other.links()


@pytest.fixture(scope="module")
def run(original_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for this module only, in which exports are cached."""
    return Path(shutil.copytree(original_run, tmp_path_factory.mktemp("copy") / "run"))


@pytest.mark.parametrize("search", [
    pytest.param(search, id=name, marks=[] if number < 2 else [pytest.mark.thorough])
    for number, (name, search) in enumerate(SEARCHES.items())])
def test_hypotheses_and_scores_are_those_of_the_search_here(run: Path, lines: list[str], search: dict[str, Any]
                                                            ) -> None:
    expected = Translator(run, device="cpu", log_probs=True, **search, engine="graph").translate_nbest(lines)
    stream = StreamSettings(batch_tokens=20, batch_sentences=2)
    plain = CTranslate2Translator(run, device="cpu", stream=stream, **search).translate_nbest(lines)
    found = CTranslate2Translator(run, device="cpu", stream=stream, log_probs=True, **search).translate_nbest(lines)
    assert [[one.text for one in line] for line in plain] == [[one.text for one in line] for line in found]
    assert_same(found, expected)
    assert any(one.details is not None and one.details.log_probs is not None for line in found for one in line)


def test_a_high_length_penalty_searches_up_to_the_length_limit() -> None:
    """Hypotheses that end long after the first ones may be the best (docs/notes/translation-speed.md)."""
    assert patience_of(SearchSettings()) == patience_of(SearchSettings(length_penalty=1.0)) == EXACT_PATIENCE
    for prefix_length in (0, 2):
        assert patience_of(SearchSettings(length_penalty=1.5), prefix_length) == NO_END


def test_no_bigram_comes_twice_and_the_scores_are_the_models(run: Path, lines: list[str]) -> None:
    """The beams may differ, because CTranslate2 compares probabilities without the forbidden tokens."""
    found = CTranslate2Translator(run, 3, device="cpu", n_best=2, no_repeat_ngram=2, length_penalty=0.0,
                                  max_length_constant=2).translate_nbest(lines)
    pairs = [(line, one.text) for line, hypotheses in zip(lines, found, strict=True) for one in hypotheses]
    for _, text in pairs:
        bigrams = [*pairwise(text.split())]
        assert len(set(bigrams)) == len(bigrams)
    assert sum(len(text.split()) > 3 for _, text in pairs) > 5
    scores = [one.score for hypotheses in found for one in hypotheses]
    ended = Scorer(run, device="cpu").score(pairs, per_token=True)
    for (line, text), score, whole in zip(pairs, scores, ended, strict=True):
        at_limit = score != pytest.approx(whole.log_prob, abs=1e-4)
        assert not at_limit or score == pytest.approx(sum((whole.log_probs or ())[:-1]), abs=1e-4), (line, text)


def test_an_export_translates_as_its_run_does_and_is_of_one_precision(run: Path, lines: list[str], tmp_path: Path
                                                                       ) -> None:
    with TrainedModel(run) as trained:
        path = export_model(trained, "ctranslate2", tmp_path / "export", precision="int8",
                             search=SearchSettings(beam_size=2, max_length_constant=4))
    translator = CTranslate2Translator(path, device="cpu")
    assert (translator.search.beam_size, translator.checkpoint) == (2, str(path))
    other = CTranslate2Translator(run, 2, precision="int8", device="cpu")
    assert translator.translate(lines) == other.translate(lines)
    assert CTranslate2Translator(path, device="cpu", averaged=False).translate(lines[0])    # the run has no averages
    description = json.loads((path / "towernmt.json").read_text())
    (path / "towernmt.json").write_text(json.dumps({**description, "averaged": True}))
    for wrong, text in (({"precision": "float32"}, "is an export in int8"),
                        ({"checkpoint": "step-1"}, "has one checkpoint"),
                        ({"averaged": False}, "--last-weights"),
                        ({"device": "gpu:x"}, "device 'gpu:x': choose cpu, gpu or gpu:N")):
        with pytest.raises(SettingsError, match=text):
            CTranslate2Translator(path, **{"device": "cpu", **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("changed", "text"), [
    ({"search": None}, "the field `search` holds null where an object is expected. Export the model again"),
    ({"search": {"beam_size": "wide"}}, '`search.beam_size` holds "wide" where a whole number is expected'),
    ({"positions": "many"}, "`positions` holds \"many\""), ({"format": "litert"}, "an export in the format litert")])
def test_a_damaged_description_of_an_export_is_one_sentence(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    content = {"format": "ctranslate2", "precision": "int8", "averaged": False, "search": {}, "positions": None}
    (tmp_path / "towernmt.json").write_text(json.dumps({**content, **changed}))
    with pytest.raises(SettingsError, match=text):
        CTranslate2Translator(tmp_path, device="cpu")


def test_an_export_with_a_setting_of_another_version_is_read(tmp_path: Path) -> None:
    content = {"format": "ctranslate2", "precision": "int8", "averaged": False, "positions": 9,
               "search": {"beam_size": 3, "of_another_version": 1}}
    (tmp_path / "towernmt.json").write_text(json.dumps(content))
    assert Description.read(tmp_path) == Description("int8", False, SearchSettings(beam_size=3), 9)


@pytest.mark.parametrize("search", BEAMS.values(), ids=BEAMS)
def test_attention_and_links_are_those_of_the_graph(run: Path, lines: list[str], search: dict[str, Any]) -> None:
    lines = [*lines, "w1 unseen w2"]
    details: dict[str, Any] = {"log_probs": True, "attention": True, "replace_unknown": True, "device": "cpu"}
    expected = Translator(run, engine="graph", **details, **search).translate_nbest(lines)
    found = CTranslate2Translator(run, stream=STREAM, **details, **search).translate_nbest(lines)
    assert_same(found, expected)
    assert any(one.links() for translation in found for one in translation)


@pytest.fixture(scope="module")
def ending_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with translations of several lengths, in which the end is one of the likely tokens."""
    return write_run(tmp_path_factory.mktemp("ending") / "run", end=1.5)


@pytest.mark.parametrize("search", [
    pytest.param(BEAMS["beam"], id="beam"), pytest.param(BEAMS["greedy"], id="greedy", marks=pytest.mark.slow)])
def test_translations_begin_with_a_prefix_as_those_of_the_graph(ending_run: Path, lines: list[str],
                                                                search: dict[str, Any]) -> None:
    """Some of them end with it, and some prefixes are longer than the limit of their line."""
    prefixes = ["w3 w4", "", "w5 w5 w5 w5 w5 w5 w5 w5 w5 w5 w5", "w1", "w0 w9 w6"]
    many, options = zip(*((line, LineOptions(prefix=prefix)) for line in lines for prefix in prefixes), strict=True)
    details: dict[str, Any] = {"log_probs": True, "attention": True, "device": "cpu"}
    expected = Translator(ending_run, engine="graph", **details, **search).translate_nbest(many, options=options)
    found = CTranslate2Translator(ending_run, stream=STREAM, **details, **search).translate_nbest(many, options=options)
    assert_same(found, expected)
    ends = [[one.text == option.prefix for one in translation]
            for translation, option in zip(expected, options, strict=True) if option.prefix]
    assert search == BEAMS["greedy"] or (any(map(any, ends)) and not all(map(any, ends)))


AVOIDED = {"words": [["w9"], ["w1 w6", "W3"], ["w6 w6"], ["w0 </s>", "w4 w4"], ["nothing"]],
           "pieces": [["h"], ["der", "e e"], ["hund </s>"], ["d i", "am"], ["e"]]}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [pytest.param("words", marks=pytest.mark.slow), "pieces"])
def test_greedy_translations_avoid_phrases_as_those_of_the_graph(kind: str, ending_run: Path, lines: list[str],
                                                                 tmp_path: Path) -> None:
    run = ending_run if kind == "words" else random_run(tmp_path / "run")
    prefixes = ["", "w9", "", "", "w0"] if kind == "words" else ["", "der", "", "", "e"]
    many, options = zip(*((line, LineOptions(avoid=phrases, prefix=prefix))
                          for line in (lines if kind == "words" else LINES)
                          for phrases, prefix in zip(AVOIDED[kind], prefixes, strict=True)), strict=True)
    arguments: dict[str, Any] = {"checkpoint": "step-1", "device": "cpu", "log_probs": True, "attention": True}
    expected = Translator(run, 1, engine="graph", **arguments).translate_nbest(many, options=options)
    found = CTranslate2Translator(run, 1, stream=STREAM, **arguments)
    assert_same(found.translate_nbest(many, options=options), expected)


def test_a_beam_avoids_phrases_and_has_the_scores_of_the_model(ending_run: Path, lines: list[str]) -> None:
    """The beams may differ, because CTranslate2 compares probabilities without the forbidden tokens."""
    found = CTranslate2Translator(ending_run, device="cpu", n_best=3, length_penalty=0.0).translate_nbest(
        lines, options=[LineOptions(avoid=["w9", "w6 w6"], prefix="w3")] * len(lines))
    pairs = [(line, one) for line, hypotheses in zip(lines, found, strict=True) for one in hypotheses if line]
    assert all("w9" not in one.text.split() and "w6 w6" not in one.text for _, one in pairs)
    ended = Scorer(ending_run, device="cpu").score([(line, one.text) for line, one in pairs], per_token=True)
    for (line, one), whole in zip(pairs, ended, strict=True):
        at_limit = one.score != pytest.approx(whole.log_prob, abs=1e-4)
        assert not at_limit or one.score == pytest.approx(sum((whole.log_probs or ())[:-1]), abs=1e-4), (line, one)


@pytest.mark.parametrize(("search", "kept", "power"), [({}, 20, 1.0), ({"top_k": 3, "temperature": 0.5}, 3, 2.0)],
                         ids=["all tokens", "three tokens, temperature"])
def test_samples_have_the_probabilities_of_the_model(ending_run: Path, search: dict[str, Any], kept: int, power: float
                                                     ) -> None:
    import ctranslate2

    ctranslate2.set_random_seed(1)
    count, line = 2000, "w8 w12"
    found, = CTranslate2Translator(ending_run, device="cpu", selection="sampling", n_best=count, max_tokens=1,
                                   **search).translate_nbest([line])
    assert len(found) == count
    texts = {**{word: word for word in WORDS}, "": "", "<unk>": "unseen"}      # the text of each token
    scored = Scorer(ending_run, device="cpu").score([(line, text) for text in texts.values()], per_token=True)
    log_probs = {token: (score.log_probs or ())[0] for token, score in zip(texts, scored, strict=True)}
    assert [one.score for one in found] == pytest.approx([log_probs[one.text] for one in found], abs=1e-4)
    weights = {token: np.exp(power * log_prob) for token, log_prob in log_probs.items()
               if log_prob in sorted(log_probs.values())[-kept:]}
    sampled = Counter(one.text for one in found)
    for token in log_probs:
        expected = count * weights.get(token, 0.0) / sum(weights.values())
        assert abs(sampled[token] - expected) <= 4 * np.sqrt(expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_is_refused_and_does_not_hang(run: Path) -> None:
    translator = CTranslate2Translator(run, device="cpu")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            answer = translator.translate("w1")
        except SettingsError as error:
            answer = str(error)
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read().startswith("CTranslate2 was used before this process was forked")
    assert os.waitpid(child, 0)[1] == 0


def test_the_page_of_an_evaluation_has_the_attention(run: Path, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    pages = []
    for engine in ("graph", "ctranslate2"):
        command = ["evaluate", "--model", str(run), "--engine", engine, "--cpu", "--source", str(tmp_path / "text"),
                   "--reference", str(tmp_path / "text"), "--html", str(tmp_path / engine), "--bootstrap-samples", "2"]
        assert main(command) == 0
        pages.append((tmp_path / engine).read_text())
    attention = [re.findall(r'"attention": ?\[(.*?)\]\}', page) for page in pages]
    assert any(one != "null" for one in attention[0]) and attention[0] == attention[1]


@pytest.mark.thorough
def test_what_goes_wrong_is_searched_for_again(run: Path, lines: list[str]) -> None:
    expected = Translator(run, 1, device="cpu", retry=True, engine="graph").translate_nbest(lines)
    found = CTranslate2Translator(run, 1, device="cpu", retry=True).translate_nbest(lines)
    assert [(one.fault, one.retried) for one in found] == [(one.fault, one.retried) for one in expected]
    assert any(one.retried for one in found)


@pytest.mark.parametrize(("search", "text"), [
    ({"selection": "sampling", "seed": 2}, "seed=2 cannot be combined with --engine ctranslate2"),
    ({"selection": "sampling", "epsilon": 0.1}, "epsilon=0.1"),
    ({"beam_groups": 2}, "beam_groups=2"), ({"coverage_penalty": 0.2}, "coverage_penalty=0.2"),
    ({"temperature": 0.5}, "temperature=0.5"), ({"repetition_penalty": 1.5}, "repetition_penalty=1.5"),
    ({"shortlist": "lexicon"}, "shortlist=lexicon"),
    ({"max_tokens": 2000, "max_length_factor": 9.0}, "1,024 positions")])
def test_a_search_that_ctranslate2_does_not_have_is_refused_by_name(run: Path, search: dict[str, Any], text: str
                                                                     ) -> None:
    with pytest.raises(SettingsError, match=text):
        CTranslate2Translator(run, 4, device="cpu", **search)


def test_a_pair_that_is_too_long_is_refused_with_the_engine_that_scores_it(run: Path) -> None:
    with pytest.raises(SettingsError, match="1,101 tokens are too long .* 1,024 positions. Leave out --engine to"):
        CTranslate2Scorer(run, device="cpu").score([("w1 w2", "w3 " * 1100)])


def test_what_is_refused_is_refused_before_the_run_is_exported(run_on_disk: Path) -> None:
    with pytest.raises(SettingsError, match="temperature=2.0 cannot be combined with"):
        CTranslate2Translator(run_on_disk, temperature=2.0)
    with pytest.raises(SettingsError, match="'partial_word' cannot be combined with"):
        CTranslate2Translator(run_on_disk, options=LineOptions(prefix="w1", partial_word=True))
    assert not (run_on_disk / "exports").exists()


def test_what_a_line_asks_for_in_vain_is_refused_with_its_number(run: Path) -> None:
    translator = CTranslate2Translator(run, device="cpu")
    more = LineOptions(n_best=2)
    assert [len(one) for one in translator.translate_nbest(["w1", "w2 w3"], options=[LineOptions(), more])] == [1, 2]
    for wrong, text in ((LineOptions(avoid=["<s> w1"]), "'<s>' in 'avoid' cannot be"),
                        (LineOptions(search={"temperature": 2.0}), "temperature=2.0")):
        with pytest.raises(DataError, match=f"input line 2: {text}"):
            translator.translate_nbest(["w1", "w2"], options=[LineOptions(), wrong])
    with pytest.raises(SettingsError, match="'constraints' cannot be combined"):
        CTranslate2Translator(run, device="cpu", options=LineOptions(constraints=["w1"]))
    with pytest.raises(SettingsError, match="'constraints' cannot be combined"):
        translator.check(LineOptions(constraints=["w1"]))       # as a document does for a missing placeholder
