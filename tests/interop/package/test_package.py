"""`towernmt package`: the content of the file, its reproducible bytes, and translations equal to those of the run."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from towernmt.checkpoint.checkpoint_files import checksum_of_weights
from towernmt.checkpoint.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.records import INITIAL_WEIGHTS, AverageRecord, KeptAverage
from towernmt.checkpoint.restore import initial_checkpoint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.cli import exchange_commands as command
from towernmt.cli.main import main
from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.core.tf_compat import tf
from towernmt.dataflow.preparation.alignment_model import Entries
from towernmt.dataflow.text.language_codes import Direction
from towernmt.evaluate.metrics import corpus_scores
from towernmt.interop import package_build
from towernmt.interop.ctranslate2_engine import CTranslate2Translator
from towernmt.interop.export import export_model
from towernmt.interop.model_card import CardText, card_date, card_markdown, card_text_of_package
from towernmt.interop.package_build import PackageOptions, package_run
from towernmt.interop.starting_models import open_starting_model
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.output_file import check_apart
from towernmt.predict.scorer import Scorer
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.trained_model import TrainedModel
from towernmt.predict.translator import Translator
from towernmt.run.started_run import starting_settings
from towernmt.serve.model_loading import EngineSettings, load_served_model, recorded_direction

TEXT = CardText(licence="CC0-1.0", languages="de-en")


def pack(run: Path, output: Path, *arguments: str) -> dict[str, Any]:
    """Package a run with the command, and return the card."""
    parser = argparse.ArgumentParser()
    command.add_package_arguments(parser)
    assert command.run_package(parser.parse_args(
        ["--model", str(run), "--output", str(output), "--licence", "CC0-1.0", *arguments])) == 0
    return open_run(output).card  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(scope="module")
def averaged_run(original_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with random moving averages and an optimizer slot in its checkpoint."""
    from towernmt.checkpoint.checkpoint_files import write_values
    from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
    from towernmt.optim.optimizer import AVERAGE_SUFFIX

    path = Path(shutil.copytree(original_run, tmp_path_factory.mktemp("averaged") / "run"))
    held = OpenCheckpoint(open_run(path).checkpoint())
    values = {name: held.value(name) for name in held.shapes()}
    random = np.random.default_rng(9)
    names = sorted(name for name in values if values[name].dtype == np.float32)
    others = {name: random.normal(0, 1, values[name].shape).astype(np.float32) for name in names}
    slots = {f"{name}/Adam": others[name] for name in names}
    averages = {name + AVERAGE_SUFFIX: values[name] for name in names}
    write_values({**values, **others, **slots, **averages}, path / "checkpoints", 2,
                 {"step": 2, "position": None, "callbacks": {}, "weights": names})
    return path


@pytest.mark.thorough
def test_a_training_starts_from_it_and_resumes_without_a_writable_cache(
        package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "file"))
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(f"w{number} w{number + 1}\n" for number in range(12)))
    files = [str(tmp_path / side) for side in ("source", "target")]
    assert main(["prepare", "--vocabulary-of", str(package), "--source", files[0], "--target", files[1],
                 "--output", str(tmp_path / "data")]) == 0
    for steps in (1, 2):
        with tf.Graph().as_default():
            assert main(["train", "--defaults=fixed", "--start", str(package), "--data", str(tmp_path / "data"),
                         "--logdir", str(tmp_path / "new"), "--towers", "1", "--set", f"train.steps={steps}",
                         "checkpoint.steps=1", "validation.steps=0"]) == 0
    settings = yaml.safe_load((tmp_path / "new" / "settings.yaml").read_text())
    run = open_run(package)     # removes its temporary directory when it is collected
    assert settings["made_from"][INITIAL_WEIGHTS] == checksum_of_weights(run.checkpoint())


def test_it_translates_and_scores_as_its_run(run_on_disk: Path, package: Path, lines: list[str]) -> None:
    found, wanted = (Translator(place, device="cpu", engine="graph") for place in (package, run_on_disk))
    assert found.translate_nbest(lines) == wanted.translate_nbest(lines)
    run, prefix = initial_checkpoint(package)
    assert isinstance(run, PackagedRun) and prefix == run.checkpoint()


@pytest.mark.thorough
def test_it_scores_and_joins_others_as_its_run_does(run_on_disk: Path, package: Path, lines: list[str]) -> None:
    pairs = [(line, line) for line in lines[:4]]
    assert [one.log_prob for one in Scorer(package).score(pairs)] == [
        one.log_prob for one in Scorer(run_on_disk).score(pairs)]
    both, alone = (Translator(path, device="cpu", engine="graph") for path in ([package, run_on_disk], run_on_disk))
    assert both.translate(lines[:3]) == alone.translate(lines[:3])


@pytest.mark.thorough
def test_it_holds_the_averages_alone_and_says_so(averaged_run: Path, run_on_disk: Path, tmp_path: Path) -> None:
    card = pack(averaged_run, tmp_path / "one.towernmt.zip")
    assert card["model"]["averaged"] and card["model"]["checkpoint"] == "step-2"
    with TrainedModel(tmp_path / "one.towernmt.zip") as packed, TrainedModel(run_on_disk) as run:
        found, wanted = packed.weights(), run.weights()
    assert found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)
    names = zipfile.ZipFile(tmp_path / "one.towernmt.zip").namelist()
    assert not [name for name in names if "Adam" in name or "Average" in name]
    with pytest.raises(SettingsError, match="contains only the averaged weights: remove --last-weights"):
        Translator(tmp_path / "one.towernmt.zip", averaged=False, engine="graph")


@pytest.mark.thorough
def test_the_same_run_gives_the_same_bytes(original_run: Path, package: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(original_run, tmp_path / "elsewhere"))
    os.utime(package, (0, 0))
    with TrainedModel(copy) as trained:
        package_run(trained, tmp_path / "again.towernmt.zip", TEXT)
    assert (tmp_path / "again.towernmt.zip").read_bytes() == package.read_bytes()


def test_a_missing_tokeniser_is_named_before_anything_is_translated(
        run_on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    monkeypatch.setattr(package_build, "evaluate_package", lambda *_: pytest.fail("the test set was translated"))
    (tmp_path / "test").write_text("w1 w2\n")
    tests = [(str(tmp_path / "test"), str(tmp_path / "test"))]
    with TrainedModel(run_on_disk) as trained, pytest.raises(SettingsError) as error:
        package_run(trained, tmp_path / "a.zip", CardText(licence="CC0-1.0", languages="en-ja"),
                    PackageOptions(tests=tests))
    assert str(error.value) == (
        "The tokeniser of this language needs MeCab, which is missing: pip install 'sacrebleu[ja]'. `towernmt evaluate "
        "--tokenize char` works without it and counts characters.")


def test_the_date_is_told_or_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_text("{}")
    os.utime(tmp_path / "state.json", (86400 * 366, 86400 * 366))
    assert card_date(None, tmp_path) == "1971-01-02"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert card_date(None, tmp_path) == "1970-01-02"
    assert card_date("2026-12-24", tmp_path) == "2026-12-24"
    with pytest.raises(SettingsError, match="--date soon: expected a date such as 2026-12-24"):
        card_date("soon", tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "now")
    with pytest.raises(SettingsError, match="SOURCE_DATE_EPOCH=now: expected a number of seconds"):
        card_date(None, tmp_path)


def test_a_card_is_written_by_the_program_and_completed_by_the_user(
        original_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    settings = yaml.safe_load((run / "settings.yaml").read_text())
    settings |= {"init": {"checkpoint": "/home/me/secret"}, "made_from": {"data": "abc", "data_path": "/home/me/data"},
                 "made_with": {"towernmt": "0.0.9", "python": "3.10"}}
    (run / "settings.yaml").write_text(yaml.safe_dump(settings))
    (run / "log").mkdir()
    (run / "log/stats.jsonl").write_text('{"validation_bleu": 1.0, "global_step": 0}\n'
                                         '{"validation_bleu": 29.5, "validation_chrf": 44.25, "global_step": 1}\n{"cu')
    (run / "log/log.log").write_text(
        "[x] Validation at step 1: BLEU 29.50 (the best); nrefs:1|case:mixed|version:2.6\n")
    (tmp_path / "card.yaml").write_text("name: From de to en\nlicense: MIT\ndescription: 2026-01-01\n"
                                        "authors: [Ada]\n"
                                        "data:\n- {name: Tatoeba, licence: CC-BY-2.0-FR, pairs: 12345}\n")
    card = pack(run, tmp_path / "x.zip", "--card", str(tmp_path / "card.yaml"), "--languages", "zh-Hans-en")
    text = zipfile.ZipFile(tmp_path / "x.zip").read("README.md").decode()
    assert card["licence"] == "CC0-1.0" and card["languages"] == {"source": "zh-Hans", "target": "en"}
    assert card["training_data"] == {"fingerprint": "abc", "sources": [
        {"name": "Tatoeba", "licence": "CC-BY-2.0-FR", "pairs": 12345}]}
    validation, validation_chrf = card["scores"]
    assert (validation["score"], validation["signature"]) == (29.5, "nrefs:1|case:mixed|version:2.6")
    assert "signature" not in validation_chrf and "before packing" in validation_chrf["of"]
    assert card["versions"]["trained_with"] == {"towernmt": "0.0.9", "python": "3.10"}
    for part in ("# From de to en", "| Licence | CC0-1.0 |", "Ada", "| Tatoeba | CC-BY-2.0-FR | 12,345 |", "29.50",
                 "zh-Hans to en", "hidden_size: 16"):
        assert part in text
    everything = (tmp_path / "x.zip").read_bytes()
    assert b"/home/me" not in everything and str(tmp_path).encode() not in everything
    assert "BLEU = 29.50 on validation" in capsys.readouterr().out


def record_validation(run: Path, step: int) -> None:
    """Write a log with a validation of a run at a step."""
    (run / "log").mkdir()
    (run / "log/stats.jsonl").write_text(f'{{"validation_bleu": 29.5, "global_step": {step}}}\n')


@pytest.mark.thorough
def test_a_mean_has_the_scores_of_its_own_validation_and_not_those_of_its_last_step(
        original_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    record_validation(run, 1)
    assert [score["score"] for score in pack(run, tmp_path / "plain.zip")["scores"]] == [29.5]
    assert main(["average", "--model", str(run), "--last", "1"]) == 0
    mean = run / "averages/last-1/step-1"
    assert pack(run, tmp_path / "mean.zip", "--checkpoint", str(mean))["scores"] == []
    (run / "averaged").mkdir()
    kept_mean = mean.rename(run / "averaged/step-1")
    kept = KeptAverage(1, [1], "validation_bleu", "max", {"validation_bleu": 31.0})
    (run / "averaged/record.json").write_text(json.dumps(dataclasses.asdict(AverageRecord(1, 1, kept))))
    (tmp_path / "link").symlink_to(run)
    card = pack(tmp_path / "link", tmp_path / "kept.zip", "--checkpoint", str(kept_mean))
    assert [score["score"] for score in card["scores"]] == [31.0]


def test_weights_that_were_not_validated_have_no_validation_scores(averaged_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(averaged_run, tmp_path / "run"))
    record_validation(run, 2)
    settings = yaml.safe_load((run / "settings.yaml").read_text())
    for validated_averages in (True, False):
        settings["search"]["averaged"] = validated_averages
        (run / "settings.yaml").write_text(yaml.safe_dump(settings))
        for packs_averages in (True, False):
            with TrainedModel(run, averaged=packs_averages) as trained:
                card = package_run(trained, tmp_path / f"{validated_averages}-{packs_averages}.zip", TEXT)
            expected = [29.5] if packs_averages == validated_averages else []
            assert [score["score"] for score in card["scores"]] == expected


@pytest.mark.thorough
def test_a_shortlist_is_packed_without_its_path(original_run: Path, tmp_path: Path, lines: list[str]) -> None:
    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    vocabulary = SavedRun(run).vocabularies()[0]
    frequency = np.arange(vocabulary.size, dtype=float)
    entries = Entries(np.array([6, 7]), np.array([11, 8]), np.array([0.7, 0.3]), frequency)
    Lexicon.of(entries, vocabulary, vocabulary).save(tmp_path / "lexicon")
    settings = yaml.safe_load((run / "settings.yaml").read_text())
    settings["search"] |= {"shortlist": str(tmp_path / "lexicon"), "shortlist_frequent": 5}
    (run / "settings.yaml").write_text(yaml.safe_dump(settings))
    card = pack(run, tmp_path / "x.zip", "--include", "ctranslate2")
    assert card["settings"]["search"]["shortlist"] == "shortlist.lexicon"
    assert str(tmp_path).encode() not in (tmp_path / "x.zip").read_bytes()
    moved = (tmp_path / "lexicon").rename(tmp_path / "moved")
    packed = Translator(tmp_path / "x.zip", device="cpu", engine="graph").translate(lines[:3])
    assert packed == Translator(run, device="cpu", engine="graph", shortlist=str(moved)).translate(lines[:3])
    with pytest.raises(SettingsError, match="search.shortlist=.*lexicon does not exist, and the package needs this"):
        pack(run, tmp_path / "y.zip")
    start = open_starting_model(str(tmp_path / "x.zip"), "--start")
    assert starting_settings(start).search.shortlist == str(tmp_path / "x.zip")
    settings["search"]["shortlist"] = str(tmp_path / "x.zip")
    (run / "settings.yaml").write_text(yaml.safe_dump(settings))
    pack(run, tmp_path / "z.zip")
    assert PackagedRun(tmp_path / "z.zip").manifest.members["shortlist.lexicon"] == (
        PackagedRun(tmp_path / "x.zip").manifest.members["shortlist.lexicon"])


@pytest.mark.thorough
def test_a_test_set_is_translated_with_what_is_packed(run_on_disk: Path, tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in lines if line))
    test = str(tmp_path / "test.de")
    card = pack(run_on_disk, tmp_path / "x.zip", "--precision", "int8", "--languages", "de-zh_cn",
                "--test", test, test)
    bleu, chrf, bleu_in_int8, _ = card["scores"]
    texts = [line for line in lines if line]
    translator = Translator(tmp_path / "x.zip", device="cpu", engine="graph")
    wanted = corpus_scores(translator.translate(texts), texts, target_language="zh")
    assert card["languages"]["target"] == "zh-CN" and "tok:zh" in bleu["signature"]
    assert (bleu["score"], bleu["signature"]) == (round(wanted.bleu, 4), wanted.signature)
    assert (chrf["score"], chrf["signature"]) == (round(wanted.chrf, 4), wanted.chrf_signature)
    assert bleu["of"] == "this package (int8), beam 4" and chrf["sentences"] == len(texts)
    assert bleu_in_int8["of"] == "this package, CTranslate2 in int8, beam 4"
    assert card["int8"]["bleu_loss"] == round(bleu["score"] - bleu_in_int8["score"], 4)
    assert bleu["source_sha256"] == hashlib.sha256((tmp_path / "test.de").read_bytes()).hexdigest()


@pytest.mark.thorough
def test_a_package_puts_its_source_prefix_before_each_line(
        run_on_disk: Path, tmp_path: Path, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    test = tmp_path / "test.de"
    test.write_text("".join(f"{line}\n" for line in lines if line))
    prefix = lines[0].split()[0]
    card = pack(run_on_disk, tmp_path / "x.zip", "--source-prefix", prefix, "--test", str(test), str(test))
    assert card["source_prefix"] == prefix and f"`{prefix}`" in card_markdown(card).decode()
    texts, run = [line for line in lines if line], Translator(run_on_disk, device="cpu", engine="graph")
    expected = run.translate(texts, options=[LineOptions(source_prefix=prefix)] * len(texts))
    assert expected != run.translate(texts)
    packed = Translator(tmp_path / "x.zip", device="cpu", engine="graph")
    assert packed.translate(texts) == expected
    assert card["scores"][0]["score"] == round(corpus_scores(expected, texts).bleu, 4)
    others = CTranslate2Translator(tmp_path / "x.zip", device="cpu", precision="float32")
    assert others.translate(texts) == expected
    assert main(["export", "--model", str(tmp_path / "x.zip"), "--format", "ctranslate2", "--output",
                 str(tmp_path / "exported")]) == 0
    assert f"write '{prefix}' and a space before each source sentence." in capsys.readouterr().err
    assert CTranslate2Translator(tmp_path / "exported", device="cpu").translate(texts) == expected
    chosen = Translator(tmp_path / "x.zip", device="cpu", engine="graph", options=LineOptions(source_prefix=lines[1]))
    assert chosen.translate(texts) == run.translate(texts, options=[LineOptions(source_prefix=lines[1])] * len(texts))
    with pytest.raises(SettingsError, match="the source prefix 'unknown☃' has a word"):
        pack(run_on_disk, tmp_path / "y.zip", "--source-prefix", "unknown☃")


@pytest.mark.thorough
@pytest.mark.parametrize(("search", "reason"), [
    ({"coverage_penalty": 0.2}, "coverage_penalty=0.2: its coverage penalty is computed differently"),
    pytest.param({"min_length": 2}, "min_length=2: it compares hypotheses by probabilities without the forbidden "
                 "tokens", marks=pytest.mark.slow),
    pytest.param({"max_length_factor": 5.0}, "the export has 1,024 positions", marks=pytest.mark.slow)])
def test_int8_is_not_measured_if_the_graph_translates_all_lines(
        original_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, search: dict[str, Any], reason: str
        ) -> None:
    caplog.set_level(logging.INFO, "towernmt")
    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    settings = yaml.safe_load((run / "settings.yaml").read_text())
    settings["search"] |= search
    (run / "settings.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "text").write_text("w1 w2\n")
    card = pack(run, tmp_path / "x.zip", "--test", str(tmp_path / "text"), str(tmp_path / "text"))
    assert "int8" not in card and [score["metric"] for score in card["scores"]] == ["BLEU", "chrF2"]
    [line] = [message for message in caplog.messages if "translation in int8 is not measured" in message]
    assert reason in line


def test_a_model_uses_averages_if_they_are_requested_and_exist(
        averaged_run: Path, run_on_disk: Path, tmp_path: Path) -> None:
    pack(averaged_run, tmp_path / "x.zip")
    cases = ((averaged_run, True, True), (averaged_run, False, False), (run_on_disk, True, False),
             (tmp_path / "x.zip", True, True))
    for number, (path, averaged, expected) in enumerate(cases):
        with TrainedModel(path, averaged=averaged) as trained:
            assert trained.uses_averages is expected
            export = export_model(trained, "ctranslate2", tmp_path / f"export-{number}")
        assert json.loads((export / "towernmt.json").read_text())["averaged"] is expected


def test_without_a_licence_nothing_is_packed(run_on_disk: Path, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.add_package_arguments(parser)
    with pytest.raises(SettingsError, match="pass --licence, .*`towernmt package` also reads it from its --card"):
        command.run_package(parser.parse_args(["--model", str(run_on_disk), "--output", str(tmp_path / "x.zip")]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("card", "message"), [
    ("languages: german", "expected the codes of source and target, such as de-en"),
    ("autors: [Ada]", "the field `autors` is not known; the fields of a card are licence, languages, source_"),
    ("data: [{name: 3}]", r"the field `data\[0\].name` holds 3 where a text is expected"),
    ("- a", "it holds a list where an object is expected"),
    ("a: [", "not valid YAML")])
def test_a_card_that_cannot_be_understood_is_refused(card: str, message: str, run_on_disk: Path,
                                                     tmp_path: Path) -> None:
    (tmp_path / "card.yaml").write_text(card)
    with pytest.raises(SettingsError, match=message):
        pack(run_on_disk, tmp_path / "x.zip", "--card", str(tmp_path / "card.yaml"))


@pytest.mark.parametrize("changed", [{"languages": "de-en"}, {"training_data": ["Tatoeba"]}, {"name": 3}])
def test_a_card_of_a_package_with_other_fields_is_one_sentence(changed: dict[str, Any]) -> None:
    name, = changed
    with pytest.raises(SettingsError, match=f"The model card of the package is damaged: the field `{name}` holds"):
        card_text_of_package({"licence": "MIT", **changed}, {})


def test_what_cannot_be_packed_is_refused_before_work_is_done(run_on_disk: Path, package: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="exists already: choose another --output"):
        pack(run_on_disk, package)
    with pytest.raises(SettingsError, match="is a package already: pass the run from which it was made"):
        pack(package, tmp_path / "x.zip")
    with pytest.raises(SettingsError, match="--include ctranslate2:int3: ctranslate2 has float32"):
        pack(run_on_disk, tmp_path / "x.zip", "--include", "ctranslate2:int3")
    with pytest.raises(SettingsError, match="--include argos needs the languages of the package: pass --languages"):
        pack(run_on_disk, tmp_path / "x.zip", "--include", "argos")
    for include in ([], ["--include", "marian", "ctranslate2:int8"]):
        with pytest.raises(SettingsError, match="--calibration valid.de: no export in the package reads calibration"):
            pack(run_on_disk, tmp_path / "x.zip", "--calibration", "valid.de", *include)
    with pytest.raises(DataError, match="valid.de: cannot read"):
        pack(run_on_disk, tmp_path / "x.zip", "--calibration", str(tmp_path / "valid.de"), "--include", "web")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: a pipe or a device can be read only once"):
        pack(run_on_disk, tmp_path / "x.zip", "--include", "marian:int8", "web", "--calibration",
             str(tmp_path / "pipe"))


def test_the_exports_and_the_date_are_checked_before_the_weights_are_read(
        run_on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_build, "weight_members", lambda *_: pytest.fail("the weights are read"))
    with pytest.raises(SettingsError, match="--include ctranslate2:float32 was passed twice"):
        pack(run_on_disk, tmp_path / "x.zip", "--include", "ctranslate2", "ctranslate2:float32")
    with pytest.raises(SettingsError, match="--date soon: expected a date such as"):
        pack(run_on_disk, tmp_path / "x.zip", "--date", "soon")


def test_the_files_of_a_process_that_was_killed_are_removed(
        run_on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    (temporary / "towernmt-scratch-of-a-killed-process/content").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    pack(run_on_disk, tmp_path / "x.zip")
    assert not list(temporary.glob("towernmt-scratch-*"))


@pytest.mark.thorough
def test_eight_bits_are_near_and_smaller(run_on_disk: Path, package: Path, tmp_path: Path) -> None:
    sizes = {"float32": package.stat().st_size}
    with TrainedModel(run_on_disk) as run:
        values = run.weights()
        for precision in ("bfloat16", "int8"):
            package_run(run, tmp_path / f"{precision}.zip", TEXT, PackageOptions(precision=precision))  # type: ignore[arg-type]
    for precision, most in (("bfloat16", 2 ** -8), ("int8", 1 / 254)):
        packed = dict(PackagedRun(tmp_path / f"{precision}.zip")._package.weights())
        assert packed.keys() == values.keys()
        for name, value in packed.items():
            assert np.abs(value - values[name]).max() <= most * np.abs(values[name]).max() * 1.001
        sizes[precision] = sum(entry.file_size for entry in zipfile.ZipFile(tmp_path / f"{precision}.zip").infolist()
                               if entry.filename.startswith("weights/"))
    assert sizes["int8"] < sizes["bfloat16"] < sizes["float32"]


MODEL = """
from pathlib import Path
from towernmt.models.transformer import Transformer, TransformerSettings
Path({marker!r}).write_text("executed")
class Mine(Transformer):
    settings_class = TransformerSettings
"""


@pytest.fixture
def run_of_ones_own(original_run: Path, tmp_path: Path) -> Path:
    """Write the run of a custom model whose file creates `marker` next to the run when it is executed."""
    from towernmt.models.model_location import copy_code, find_location

    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    (tmp_path / "mine.py").write_text(MODEL.format(marker=str(tmp_path / "marker")))
    copy_code(find_location(f"{tmp_path}/mine.py:Mine"), run / "code")
    settings = yaml.safe_load((run / "settings.yaml").read_text())
    (run / "settings.yaml").write_text(yaml.safe_dump({**settings, "architecture": "mine.py:Mine"}))
    return run


def test_code_of_a_model_of_ones_own_is_executed_where_that_is_allowed_and_nowhere_else(
        run_of_ones_own: Path, tmp_path: Path) -> None:
    packed, marker = tmp_path / "mine.towernmt.zip", tmp_path / "marker"
    card = pack(run_of_ones_own, packed)
    assert card["model"]["architecture"] == "mine.py:Mine" and marker.exists()
    marker.unlink()
    for use in (Translator, TrainedModel):
        with pytest.raises(SettingsError, match="if you trust it, pass --trust-code"):
            use(packed)
    assert initial_checkpoint(packed)[1] and not marker.exists()
    with TrainedModel(packed, trust_code=True) as trained:
        assert marker.exists() and type(trained.model).__name__ == "Mine"


def test_a_server_reads_the_languages_of_its_card(package: Path) -> None:
    assert recorded_direction(str(package)) == Direction("de", "en")
    opened = load_served_model(str(package), EngineSettings(device="cpu"))
    assert opened.card is not None and opened.card["licence"] == "CC0-1.0"


def test_a_package_that_is_replaced_while_a_server_loads_it_keeps_its_own_card(
        package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served, newer = tmp_path / "model.zip", tmp_path / "newer.zip"
    shutil.copy(package, served)
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(newer, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"CC0-1.0", b"CC1-1.0"))

    def replace_and_translate(*arguments: Any, **options: Any) -> Translator:
        newer.replace(served)
        return Translator(*arguments, **options)

    monkeypatch.setattr("towernmt.predict.translator.Translator", replace_and_translate)
    card = load_served_model(str(served), EngineSettings(device="cpu")).card
    assert card is not None and card["licence"] == "CC0-1.0" and not newer.exists()


def test_a_server_refuses_a_package_without_languages(tmp_path: Path) -> None:
    (tmp_path / "other.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match="not a package of towernmt"):
        recorded_direction(str(tmp_path / "other.zip"))
    with pytest.raises(SettingsError, match="does not name its languages"):
        recorded_direction(str(tmp_path))


def test_the_file_is_not_written_over_by_what_is_made_with_it(package: Path) -> None:
    with pytest.raises(DataError, match="is the same file as --model"):
        check_apart(("--output", str(package)), {"--model": [str(package)]})
