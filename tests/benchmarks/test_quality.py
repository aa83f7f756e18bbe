"""The benchmark of quality: its clock, its candidates, its results and its picture."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import quality
import quality_robustness
import yaml
from quality_clock import Clock, next_mark, read_marks
from quality_marian import MarianError, train_to_mark
from quality_peers import Mark, Marked, Peer, Plan, run_program
from quality_recipes import Fairseq, Marian, OpenNMTTF, PyTorch, generated
from quality_results import Result, append_result, draw, lines_of, read_results, scores
from quality_text import Texts, pieced, read_lines, shared_vocabulary, unpieced, write_pieces

from tests.waiting import has_ended, wait_until
from towernmt.core.errors import DataError, SettingsError, UnfinishedError
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.evaluate.robustness import robustness_texts


class Training:
    """A training with a clock that a test sets."""

    def __init__(self, folder: Path, minutes: float = 1.0, every: float = 0.5) -> None:
        self.time, self.updates, self.tokens, self.saving = 0.0, 0, 0, 0.0
        self.clock = Clock(folder, minutes, every, lambda: self.time)

    def update(self, seconds: float) -> bool:
        self.time += seconds
        self.updates, self.tokens = self.updates + 1, self.tokens + 100
        return self.clock.tick(self.updates, self.tokens, self.save)

    def save(self) -> str:
        self.time += self.saving
        return f"checkpoint-{self.updates}"


def test_the_first_update_and_saving_cost_a_peer_no_time(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.saving = 1000.0
    assert [training.update(seconds) for seconds in (500, 20, 20, 20)] == [False, False, False, True]
    assert read_marks(tmp_path) == [
        {"mark": 0.5, "minute": pytest.approx(40 / 60), "updates": 3, "target_tokens": 300,
         "checkpoint": "checkpoint-3"},
        {"mark": 1.0, "minute": pytest.approx(1.0), "updates": 4, "target_tokens": 400, "checkpoint": "checkpoint-4"}]


def test_the_clock_tells_the_minutes_across_resumes(tmp_path: Path) -> None:
    training = Training(tmp_path, minutes=2.0)
    minutes = [training.clock.minute()]
    for seconds in (500, 15, 30):
        training.update(seconds)
        minutes.append(training.clock.minute())
    assert minutes == pytest.approx([0, 0, 0.25, 0.75])
    assert Training(tmp_path).clock.minute() == pytest.approx(0.75)


def test_an_update_that_passes_several_marks_makes_the_last_of_them(tmp_path: Path) -> None:
    training = Training(tmp_path, minutes=10, every=1)
    assert not training.update(0) and not training.update(200) and not training.update(30) and training.update(1000)
    assert [(mark["mark"], mark["minute"]) for mark in read_marks(tmp_path)] == [
        (3.0, pytest.approx(200 / 60)), (10, pytest.approx(1230 / 60))]


def test_the_end_is_a_mark_though_no_multiple(tmp_path: Path) -> None:
    training = Training(tmp_path, minutes=10, every=6)
    assert not training.update(0) and not training.update(361) and training.update(240)
    assert [mark["mark"] for mark in read_marks(tmp_path)] == [6, 10]


def test_an_interrupted_training_keeps_a_checkpoint_and_resumes_from_it(tmp_path: Path) -> None:
    training = Training(tmp_path)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        training.clock.end_on_signals()
        training.update(0)
        signal.raise_signal(signal.SIGTERM)
        assert training.update(12)
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    again = Training(tmp_path)
    again.updates = training.updates
    assert [again.update(seconds) for seconds in (500, 19, 29)] == [False, False, True]
    assert [(mark["mark"], mark["updates"], mark["target_tokens"]) for mark in read_marks(tmp_path)] == [
        (None, 2, 200), (0.5, 4, 400), (1.0, 5, 500)]


def test_marks_are_multiples_however_they_are_written() -> None:
    assert [round(next_mark(minute, 0.1), 9) for minute in (0.0, 0.1, 0.3, 0.35)] == [0.1, 0.2, 0.4, 0.4]


def test_a_line_of_a_mark_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    complete_mark = {"mark": 1.0, "minute": 1.0, "updates": 1, "target_tokens": 2, "checkpoint": "a"}
    (tmp_path / "marks.jsonl").write_text(json.dumps(complete_mark) + '\n{"mark": 2.0, "min')
    assert read_marks(tmp_path) == [complete_mark]
    training = Training(tmp_path, minutes=2.0)
    assert not training.update(0) and training.update(60)
    assert [mark["mark"] for mark in read_marks(tmp_path)] == [1.0, 2.0]


def test_a_line_that_is_no_mark_is_named(tmp_path: Path) -> None:
    (tmp_path / "marks.jsonl").write_text('{"mark": 1.0, "min{"mark": 2.0}\n')
    with pytest.raises(ValueError, match=r"marks.jsonl, line 1: not a result; remove the line"):
        read_marks(tmp_path)


FAKE_MARIAN = """
import pathlib, signal, sys
model = pathlib.Path(sys.argv[1])
updates = int(model.read_text()) if model.exists() else 0
def save(*_):
    model.write_text(str(updates))
    sys.exit(128 + signal.SIGTERM)
signal.signal(signal.SIGTERM, save)
print("[2026-11-27 18:00:00] Training started", file=sys.stderr)
while updates < int(sys.argv[2]):
    updates += 1
    print(f"[2026-11-27 18:00:01] Ep. 1 : Up. {updates:,} : Sen. 9 : Cost 9.1 * 1,000 @ 999 after {1000 * updates:,} : "
          "Time 1.00s : 1000.00 words/s : gNorm 3.1", file=sys.stderr, flush=True)
"""


def test_marian_ends_at_each_mark_and_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    seconds = iter(range(10 ** 6))      # a second for each update
    command = [sys.executable, "-c", FAKE_MARIAN, str(tmp_path / "model.npz"), "1000000"]
    ends = [train_to_mark(tmp_path, Clock(tmp_path, 1.0, 0.5, lambda: next(seconds)), command) for _ in range(2)]
    assert ends == [False, True]
    first, second = read_marks(tmp_path)
    assert (first["mark"], first["updates"], first["target_tokens"]) == (0.5, 31, 31_000)
    saved = int(Path(first["checkpoint"]).read_text())
    assert saved >= 31 and second["mark"] == 1.0
    assert (second["updates"], second["target_tokens"]) == (saved + 31, 1000 * (saved + 31))


def test_a_marian_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FAKE_MARIAN, str(tmp_path / "model.npz"), "3"]
    with pytest.raises(MarianError, match="ended with status 0 before its time"):
        train_to_mark(tmp_path, Clock(tmp_path, 1.0, 0.5, lambda: 0.0), command)
    assert read_marks(tmp_path) == []


@pytest.fixture(scope="module")
def vocabulary() -> SentencePieceVocabulary:
    return learn_sentence_piece(["the green house is small", "a small green door", "houses and doors are green"] * 5,
                                "unigram", 40)


def test_pieces_come_back_as_text(vocabulary: SentencePieceVocabulary) -> None:
    lines = pieced(["a small  green house", ""], vocabulary)
    assert len(lines[0].split()) == len(vocabulary.encode("a small green house")) and lines[1] == ""
    assert unpieced(lines, vocabulary) == ["a small green house", ""]


def test_all_peers_get_the_same_pieces_and_dictionary(vocabulary: SentencePieceVocabulary, tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.de").write_text("a green house\nsmall\n")
        (tmp_path / f"{part}.en").write_text("a door\nthe door\n")
    write_pieces(Texts(tmp_path, ["de", "en"]), vocabulary, tmp_path / "pieces", valid=1, threads=1)
    assert (tmp_path / "pieces/train.tgt").read_text().splitlines() == pieced(["a door", "the door"], vocabulary)
    assert (tmp_path / "pieces/valid.src").read_text().splitlines() == pieced(["a green house"], vocabulary)
    fairseq = [line.split(" ") for line in (tmp_path / "pieces/fairseq.txt").read_text().splitlines()]
    opennmt = (tmp_path / "pieces/opennmt.txt").read_text().splitlines()
    assert opennmt[:3] == ["<blank>", "<s>", "</s>"]
    assert [piece for piece, count in fairseq if count == "1"] == opennmt[3:]
    assert opennmt[3:] == [vocabulary.id_to_piece(id) for id in range(4, len(vocabulary))]


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train.de is missing"):
        Texts(tmp_path, ["de", "en"])


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_text_counts_whole_though_its_last_line_has_no_end(
        vocabulary: SentencePieceVocabulary, tmp_path: Path, end: str) -> None:
    for part in ("train", "valid", "test"):
        for language in ("de", "en"):
            (tmp_path / f"{part}.{language}").write_text(f"a door\n\nsmall{end}")
    texts = Texts(tmp_path, ["de", "en"])
    write_pieces(texts, vocabulary, tmp_path / "pieces", valid=3, threads=1)
    for source in (texts.path("test", "src"), tmp_path / "pieces" / "test.src"):
        assert len(read_lines(source)) == 3
    assert read_lines(tmp_path / "pieces" / "test.src") == pieced(["a door", "", "small"], vocabulary)


def test_vocabularies_of_two_sides_are_refused() -> None:
    class Data:
        directory = "data"
        source_vocabulary = learn_sentence_piece(["a b c d e"] * 5, "unigram", 12)
        target_vocabulary = learn_sentence_piece(["f g h i j"] * 5, "unigram", 12)

    data: Any = Data()
    with pytest.raises(DataError, match="--shared-vocab"):
        shared_vocabulary(data)


def test_fairseqs_translations_come_in_the_order_of_the_text() -> None:
    text = "\n".join(["S-1\tx y", "T-1\tz", "H-1\t-0.5\t▁b c", "D-1\t-0.5\tb c", "P-1\t-0.1", "S-0\tw",
                      "H-0\t-2.25\t▁a", "H-2\t-1\t", "Generate test with beam=5: BLEU4 = 0.00"])
    assert generated(text) == ["▁a", "▁b c", ""]


@pytest.mark.parametrize(("kind", "checkpoints", "candidates"), [
    (Fairseq, ["a-1", "a-2", "a-3"], ("a-1", "a-2", "a-3")),        # the best so far
    (Marian, ["a-1", "a-2"], ("a-2",)), (PyTorch, ["a-1", "a-2"], ("a-2",)), (OpenNMTTF, ["a-1"], ("a-1",)),
    (OpenNMTTF, [f"a-{n}" for n in range(1, 11)], ("a-10", ",".join(f"a-{n}" for n in range(3, 11))))])
def test_candidates_are_those_of_the_recipe(kind: type[Marked], checkpoints: list[str], candidates: tuple[str, ...]
                                            ) -> None:
    assert kind.candidates(kind.__new__(kind), checkpoints) == candidates


def plan_in(folder: Path, shape: str = "recipe") -> Plan:
    return Plan(folder, folder / "prepared", (1.0,), 0.1, 1, shape)


def test_a_peer_whose_python_is_missing_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--fairseq-python FILE"):
        Fairseq(plan_in(tmp_path), "recipe", None)
    with pytest.raises(SettingsError, match="cannot be started"):
        OpenNMTTF(plan_in(tmp_path), "recipe", str(tmp_path / "python"))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'fairseq'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(SettingsError, match="cannot import fairseq and torch .*No module named 'fairseq'"):
        Fairseq(plan_in(tmp_path), "recipe", str(python))
    with pytest.raises(SettingsError, match="is not Marian"):
        Marian(plan_in(tmp_path), "recipe", sys.executable)


def test_the_pytorch_loop_refuses_minutes_without_a_recipe_that_it_has(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 2.14\n")
    python.chmod(0o755)
    peer = PyTorch(plan_in(tmp_path), "chosen", str(python))
    with pytest.raises(SettingsError, match="settings.yaml: run the same command with --only towernmt first"):
        peer.prepare()
    run = tmp_path / "runs" / "towernmt-chosen-1cpu" / "1"
    run.mkdir(parents=True)
    settings: dict[str, Any] = {}
    for name, value in PyTorch.NEEDED.items():
        section, _, key = name.rpartition(".")
        (settings.setdefault(section, {}) if section else settings)[key] = value
    settings["model"]["residual_dropout"] = 0.1
    (run / "settings.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(SettingsError, match="chose model.residual_dropout=0.1, but the PyTorch loop has only 0.0"):
        peer.prepare()


def test_a_program_that_fails_says_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('some'); sys.exit('no memory')"]
    with pytest.raises(UnfinishedError, match="status 1: no memory"):
        run_program(command, tmp_path / "log")


def test_processes_of_a_program_end_with_the_benchmark(tmp_path: Path) -> None:
    child = ("import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; "
             "time.sleep(600)']); open(sys.argv[1], 'w').write(f'{p.pid}\\n'); time.sleep(600)")
    pid_file = tmp_path / "pid"

    def interrupt(*_: Any) -> None:
        if pid_file.exists() and pid_file.read_text().endswith("\n"):
            signal.setitimer(signal.ITIMER_REAL, 0)     # nothing interrupts the end of the processes
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_program([sys.executable, "-c", child, str(pid_file)], tmp_path / "log")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    wait_until(lambda: has_ended(int(pid_file.read_text())))


def result(peer: str = "fairseq", mark: float = 1.0, bleu: float = 10.0, variant: str = "recipe", cpus: int = 2
           ) -> Result:
    return Result(peer, variant, cpus, mark, mark + 0.01, bleu, 30.0, None, 100, 1000, "a", "signature", "1.0")


def test_results_are_read_as_they_were_written_but_for_a_last_half_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_results(path) == []
    append_result(path, result(mark=1.0))
    with path.open("a") as file:
        file.write('{"peer": "fair')
    assert read_results(path) == [result(mark=1.0)]
    append_result(path, result(mark=2.0))
    assert read_results(path) == [result(mark=1.0), result(mark=2.0)]
    path.write_text('{"peer": "fairseq"}\n')
    with pytest.raises(DataError, match="line 1"):
        read_results(path)


def test_scores_are_those_of_sacrebleu() -> None:
    # 3 of 4 words, 2 of 3 pairs, 1 of 2 triples, and of one quadruple half a hit by exponential smoothing.
    bleu, chrf, signature = scores(["the cat sat there"], ["the cat sat here"])
    assert bleu == pytest.approx(100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)
    assert 0 < chrf < 100 and "tok:13a" in signature
    assert scores(["the cat sat here"], ["the cat sat here"])[:2] == pytest.approx((100, 100))


class Told(Peer):
    """A program with translations that a test specifies."""

    name, version = "told", "1"

    def __init__(self, folder: Path, marks: list[Mark], translations: dict[tuple[str, str], list[str]]) -> None:
        super().__init__(plan_in(folder), "recipe")
        self._marks, self._translations, self.requests = marks, translations, []  # type: ignore[var-annotated]

    def train(self) -> None: ...

    def marks(self) -> list[Mark]:
        return self._marks

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        self.requests.append((checkpoint, part))
        return self._translations[checkpoint, part]


@pytest.fixture
def texts(vocabulary: SentencePieceVocabulary, tmp_path: Path) -> Texts:
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.de").write_text("the small green house is green\n")
        (tmp_path / f"{part}.en").write_text("the small green house is small\n")
    texts = Texts(tmp_path, ["de", "en"])
    write_pieces(texts, vocabulary, tmp_path / "pieces", valid=1, threads=1)
    return texts


def test_validation_chooses_among_candidates_and_nothing_is_done_twice(
        vocabulary: SentencePieceVocabulary, texts: Texts, tmp_path: Path) -> None:
    good = pieced(["the small green house is small"], vocabulary)
    poor = pieced(["a door"], vocabulary)
    marks = [Mark(1.0, 1.01, 10, 100, ("a",)), Mark(2.0, 2.01, 20, 200, ("a", "b"))]
    peer = Told(tmp_path, marks, {("a", "valid"): good, ("b", "valid"): poor, ("a", "test"): good,
                                  ("b", "test"): poor})
    path = tmp_path / "results.jsonl"
    quality.score(peer, texts, vocabulary, path)
    results = read_results(path)
    assert [(r.mark, r.checkpoint, r.valid_bleu, r.updates) for r in results] == [
        (1.0, "a", None, 10), (2.0, "a", pytest.approx(100), 20)]
    assert [r.bleu for r in results] == pytest.approx([100, 100])
    assert peer.requests == [("a", "test"), ("a", "valid"), ("b", "valid")]
    quality.score(peer, texts, vocabulary, path)
    assert len(peer.requests) == 3 and read_results(path) == results


def test_all_forms_are_translated_as_one_text_and_scored_one_by_one(
        vocabulary: SentencePieceVocabulary, tmp_path: Path) -> None:
    source = ["the small green house is green", "houses and doors are green"]
    forms = robustness_texts(source, [source])
    lines = [line for form in forms for line in form.source]
    peer = Told(tmp_path, [], {("a", "robustness"): pieced(lines, vocabulary)})
    translations = quality_robustness.translations_of(peer, "a", forms, vocabulary)
    assert translations == [unpieced(pieced(form.source, vocabulary), vocabulary) for form in forms]
    assert translations[0] == source and [len(form) for form in translations] == [2] * 12 + [1]
    short = Told(tmp_path, [], {("a", "robustness"): pieced(lines[1:], vocabulary)})
    with pytest.raises(DataError, match=f"{len(lines) - 1} translations of the {len(lines)} lines"):
        quality_robustness.translations_of(short, "a", forms, vocabulary)


def test_lost_translations_are_an_error(vocabulary: SentencePieceVocabulary, texts: Texts, tmp_path: Path) -> None:
    peer = Told(tmp_path, [Mark(1.0, 1.0, 1, 1, ("a",))], {("a", "test"): []})
    with pytest.raises(DataError, match="0 translations of 1"):
        quality.score(peer, texts, vocabulary, tmp_path / "results.jsonl")


def test_each_training_is_a_line_and_ours_comes_first() -> None:
    lines = lines_of([result("fairseq", 2.0), result("fairseq", 1.0), result("towernmt", 1.0, variant="chosen"),
                      result("fairseq", 1.0, variant="tiny")])
    assert {name: [r.mark for r in line] for name, line in lines.items()} == {
        "towernmt": [1.0], "fairseq, recipe": [1.0, 2.0], "fairseq, tiny": [1.0]}
    assert next(iter(lines)) == "towernmt"
    assert set(lines_of([result(cpus=1), result(cpus=2)])) == {"fairseq, recipe, 1 CPU", "fairseq, recipe, 2 CPU"}


def test_the_picture_names_each_training(tmp_path: Path) -> None:
    path = tmp_path / "quality.svg"
    draw([result("fairseq", 1.0), result("fairseq", 2.0), result("towernmt", 1.0)], path)
    texts = {"".join(element.itertext()).strip() for element in ElementTree.parse(path).iter()
             if element.tag.endswith("}text")}
    assert {"towernmt", "fairseq, recipe", "minutes of training", "Test BLEU"} <= texts
    with pytest.raises(DataError, match="Nothing to draw"):
        draw([], path)


def test_a_changed_recipe_needs_a_name(tmp_path: Path) -> None:
    arguments = ["--text", str(tmp_path), "--work", str(tmp_path), "--fairseq-options", "--lr 1e-3"]
    with pytest.raises(SystemExit, match="--variant"):
        quality.main(arguments)
