"""The tutorial of docs/guide/fine-tuning.md, run in small: a model in the format of OPUS-MT, and a few sentences."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.interop.importing import opus
from towernmt.cli.main import main
from towernmt.core.files import PLACE_VARIABLE
from towernmt.core.tf_compat import tf

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "fine-tuning.md"


def test_the_first_commands_of_the_page_adapt_a_public_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLACE_VARIABLE, str(tmp_path / "cache"))
    opus.write_opus(tmp_path / "opus-mt-de-en")
    for domain, lines in (("medical", slice(0, 4)), ("news", slice(2, 7))):
        for language, text in (("de", opus.GERMAN), ("en", opus.ENGLISH)):
            for name in (domain, f"{domain}-valid", f"{domain}-test"):
                Path(f"{name}.{language}").write_text("".join(f"{line}\n" for line in text[lines]))
    block = re.search(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert block is not None
    commands = block[1].replace("\\\n", " ").splitlines()
    assert [line.split()[1] for line in commands] == ["prepare", "prepare", "train", "translate"]
    for line in commands:
        small = line.replace("train.minutes=30", "train.steps=2 train.precision=float32")
        with tf.Graph().as_default():
            assert main(shlex.split(small)[1:]) == 0, line
    log = Path("runs/medical/log/log.log").read_text()
    assert "Validation at step 0: " in log and "Validation of general at step 0: " in log
    assert len(Path("medical-test.hyp").read_text().splitlines()) == 4
