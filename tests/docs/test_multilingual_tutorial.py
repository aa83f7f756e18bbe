"""The tutorial of docs/guide/multilingual.md on tiny data: the source prefix selects the language."""

from __future__ import annotations

import io
import json
import random
import re
import shlex
import sys
from pathlib import Path

import pytest

from towernmt.cli.main import main
from towernmt.core.tf_compat import tf
from towernmt.evaluate.metrics import corpus_scores

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "multilingual.md"
SMALL = ("train.steps=150 train.precision=float32 model.hidden_size=32 model.filter_size=64 model.heads=2 "
         "model.encoder_layers=1 model.decoder_layers=1 search.beam_size=2 optimizer.learning_rate=0.01 "
         "data.batch_tokens=512 schedule.warmup_steps=20 optimizer.name=adam validation.steps=50")


def write_files() -> None:
    """Write the files of the page, in toy languages: German words are spelled backwards, Finnish ones end with -nen."""
    chance = random.Random(3)
    words = [first + second for first in "bdfgkl" for second in "aeio"]
    for language in ("de", "fi"):
        Path(language).mkdir()
        for name, count in (("train", 300), ("valid", 10), ("test", 20)):
            lines = [chance.choices(words, k=chance.randint(3, 6)) for _ in range(count)]
            targets = [[word[::-1] if language == "de" else f"{word}nen" for word in line] for line in lines]
            for side, text in (("en", lines), (language, targets)):
                Path(language, f"{name}.{side}").write_text("".join(f"{' '.join(line)}\n" for line in text))


def test_the_commands_of_the_page_translate_into_each_language(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()
    page = PAGE.read_text(encoding="utf-8")
    Path("corpora.yaml").write_text(re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)[0])
    Path("test.en").write_text(Path("fi/test.en").read_text())
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
    commands = [line for block in blocks[:2] for line in block.replace("\\\n", " ").splitlines()]
    assert [shlex.split(line)[1] for line in commands[:4]] == ["prepare", "train", "translate", "evaluate"]
    for line in commands[:4]:
        small = line.replace("train.minutes=30", SMALL).replace("--output data", "--vocab-kind word --output data")
        with tf.Graph().as_default():
            assert main(shlex.split(small)[1:]) == 0, line
    assert re.search(r"chrF", capsys.readouterr().out)
    finnish = Path("test.fi").read_text().splitlines()
    expected = Path("fi/test.fi").read_text().splitlines()
    lines = Path("test.en").read_text().splitlines()
    reversed_words = [" ".join(word[::-1] for word in line.split()) for line in lines]
    assert corpus_scores(finnish, expected).chrf > 50 > corpus_scores(finnish, reversed_words).chrf

    text, _, command = commands[4].partition(" | ")
    request = json.loads(shlex.split(text)[1])
    request["text"] = "ba de"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(request).encode() + b"\n")))
    with tf.Graph().as_default():
        assert main(shlex.split(command)[1:]) == 0
    words = json.loads(capsys.readouterr().out)["translation"].split()
    assert words and not any(word.endswith("nen") for word in words)
