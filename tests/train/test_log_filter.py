"""The messages of tensorpack's logger that are dropped, and those that the terminal does not show."""

from __future__ import annotations

import inspect
import io
import logging
import os
import sys
from pathlib import Path

import pytest
from tensorpack.callbacks import EstimatedTimeLeft
from tensorpack.utils import logger

from towernmt.core.errors import SettingsError, mask_uri
from towernmt.core.terminal_log import DETAIL, configure_terminal_log, install_record_filter
from towernmt.run.run_log import begin_log, end_log, hold_log

URIS = [
    "postgresql://me:s3cret@host/db?table=pairs", "mysql+pymysql://me:s3/cr@t-s3cret@host/db",
    "postgresql://host/db?user=me&password=s3cret&table=t", "s3://b/x.tsv?secret_access_key=s3cret",
    "postgresql://me:a s3cret with blanks@host/db?table=pairs", "s3://KEY:s3cret@bucket/train.tsv",
    "postgresql://me:q?s3cret#@host/db", "mysql://host/db?password=a s3cret & more&table=t",
    "mysql://host/db?table=t&sslpassword=s3cret", "mysql://me:s3cret\nline@host/db"]


@pytest.fixture(autouse=True)
def handlers_as_before():
    handlers = logger._logger.handlers[:]
    yield
    end_log()
    logger._logger.handlers[:] = handlers


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("begin", [begin_log, lambda directory: logger.set_logger_dir(str(directory), action="k")],
                         ids=["ours", "tensorpack's"])
def test_the_command_line_is_logged_without_passwords(uri: str, begin, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["towernmt", "train", "--data", uri, "--logdir", "runs/x"])
    install_record_filter()
    begin(tmp_path)
    text = (tmp_path / "log.log").read_text()
    assert "Argv: towernmt train --data" in text and "--logdir runs/x" in text
    assert "s3cret" not in text and "cr@t" not in text and "blanks" not in text and "more" not in text


@pytest.mark.parametrize("argument", [
    "data.batch_tokens=4096", "data/de-en", "crawl.{de,en}.gz", "sqlite:///crawl.db?table=pairs&key=id",
    "s3://bucket/part-*.tsv.gz?region=x", "model.tie_embeddings=all"])
def test_text_without_secrets_is_logged_unchanged(argument: str) -> None:
    assert mask_uri(argument) == argument


def test_the_log_is_one_file_over_resumes_with_what_came_before_it(tmp_path: Path) -> None:
    for resume in range(3):
        with hold_log():
            logger.info(f"before {resume}")
            begin_log(tmp_path)
            logger.info(f"after {resume}", extra=DETAIL)
        end_log()
    lines = [line.split("] ")[1].split()[0] for line in (tmp_path / "log.log").read_text().splitlines()]
    assert lines == ["before", "Argv:", "after"] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["log.log"]


def test_what_a_refused_run_logged_is_in_no_later_log(tmp_path: Path) -> None:
    with pytest.raises(SettingsError), hold_log():
        logger.info("of the refused run")
        raise SettingsError("refused before the log begins")
    begin_log(tmp_path)
    assert "refused" not in (tmp_path / "log.log").read_text()


def test_no_colour_gets_into_the_log_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")      # as on a terminal
    begin_log(tmp_path)
    logger.warning("careful")
    assert "\x1b" not in (tmp_path / "log.log").read_text() and "WRN careful" in (tmp_path / "log.log").read_text()


def tensorpack_says(text: str, file: str = logger.__file__) -> None:
    logger._logger.handle(logger._logger.makeRecord("tensorpack", logging.INFO, file, 1, text, (), None))


@pytest.mark.parametrize("verbose", [False, True])
def test_the_terminal_has_what_towernmt_tells_and_the_file_everything(tmp_path: Path, verbose: bool) -> None:
    stream = io.StringIO()
    logger._logger.handlers[:] = [logging.StreamHandler(stream)]
    configure_terminal_log(verbose)
    begin_log(tmp_path)
    for text in ("Graph Finalized.", "Training was stopped by exception the limit of 250 updates is reached."):
        tensorpack_says(text)
    tensorpack_says("Estimated Time Left: 1 hour", inspect.getfile(EstimatedTimeLeft))
    logger.info("Building training tower 1", extra=DETAIL)
    logger.info("Validation at step 1")
    logger.warning("'target_tokens:0' may refer to both the Tensor and the input")
    terminal_text, file_text = stream.getvalue(), (tmp_path / "log.log").read_text()
    for text in ("Graph Finalized", "Building", "may refer to both", "Argv"):
        assert text in file_text and (text in terminal_text) == verbose
    for text in ("Validation at step 1", "Estimated Time Left", "Training ends: the limit of 250 updates is reached."):
        assert text in file_text and text in terminal_text
    assert "exception" not in terminal_text


def test_a_disk_without_room_costs_the_log_and_no_stack(tmp_path: Path, capsys) -> None:
    begin_log(tmp_path)
    logger._FILE_HANDLER.setStream(open("/dev/full", "w"))
    logger.info("no room")
    assert "Traceback" not in capsys.readouterr().err


def test_a_log_whose_reader_has_ended_continues_in_the_file(tmp_path: Path, capsys) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        logger._logger.handlers[:] = [logging.StreamHandler(stream)]
        begin_log(tmp_path)
        for _ in range(3):
            logger.info("nobody reads this")
    assert (tmp_path / "log.log").read_text().count("nobody reads this") == 3
    assert capsys.readouterr().err == ""


def test_warnings_of_sources_are_in_the_log(tmp_path: Path) -> None:
    with hold_log():
        logging.getLogger("towernmt.dataflow.sources").warning("lost before")
        begin_log(tmp_path)
    logging.getLogger("towernmt.dataflow.sources").warning("lost after")
    lines = (tmp_path / "log.log").read_text().splitlines()
    assert [line.split("WRN ")[-1] for line in lines if "lost" in line] == ["lost before", "lost after"]
