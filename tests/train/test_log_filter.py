"""What tensorpack's logger must not write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorpack.utils import logger

from towernmt.train.log_filter import mend_logger


@pytest.mark.parametrize("uri", [
    "postgresql://me:s3cret@host/db?table=pairs", "mysql+pymysql://me:s3/cr@t-s3cret@host/db",
    "postgresql://host/db?user=me&password=s3cret&table=t", "s3://b/x.tsv?secret_access_key=s3cret"])
def test_the_command_line_is_logged_without_passwords(uri: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["towernmt", "train", "--data", uri, "--logdir", "runs/x"])
    mend_logger()
    logger.set_logger_dir(str(tmp_path), action="k")
    text = (tmp_path / "log.log").read_text()
    assert "Argv: towernmt train --data" in text and "--logdir runs/x" in text
    assert "s3cret" not in text and "cr@t" not in text
