"""`towernmt lexicon` from its arguments to the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from towernmt.cli.main import main
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.predict.search.lexical_table import Lexicon

NUMBERS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "zehn": "ten"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Prepare numbers in German, and in English in another order."""
    directory, draw = tmp_path_factory.mktemp("data"), random.Random(1)
    lines = [draw.sample(list(NUMBERS), draw.randint(2, 4)) for _ in range(200)]
    (directory / "a").write_text("".join(" ".join(line) + "\n" for line in lines))
    (directory / "b").write_text("".join(" ".join(NUMBERS[word] for word in sorted(line)) + "\n" for line in lines))
    return prepare(PrepareSettings(source=str(directory / "a"), target=str(directory / "b"),
                                   output=str(directory / "prepared"), vocab_kind="word", vocab_size=20))


def translations(path: Path, data: PreparedData) -> dict[str, str]:
    """Return the most probable translation of each source word."""
    lexicon = Lexicon.load(path)
    lexicon.check_vocabularies(data.source_vocabulary, data.target_vocabulary, str(path))
    return {word: data.target_vocabulary.id_to_piece(
        lexicon.translations(data.source_vocabulary.piece_to_id(word))[0][0]) for word in NUMBERS}


@pytest.mark.parametrize("of", ["prepared data", "text", "a table"])
def test_a_table_is_made_of(of: str, data: PreparedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(data.directory).parent
    (tmp_path / "table").write_text("".join(f"{source} {target} 0.9\n" for source, target in NUMBERS.items()))
    arguments = {"prepared data": [], "text": ["--source", str(directory / "a"), "--target", str(directory / "b")],
                 "a table": ["--table", str(tmp_path / "table")]}[of]
    output = tmp_path / "out"
    assert main(["lexicon", "--data", str(data.directory), "--output", str(output), *arguments]) == 0
    assert translations(output, data) == NUMBERS
    messages = capsys.readouterr().err
    assert "translations of 5 source tokens" in messages
    assert ("iteration 5: perplexity" in messages) == (of != "a table")


@pytest.mark.parametrize(("wrong", "message"), [
    (["--source", "a"], "--source and --target must be specified together"),
    (["--alignments", "a"], "--alignments needs two text files"),
    (["--table", "a", "--source", "b", "--target", "c"], "leave out --source and --target"),
    (["--alignments", "a", "--source", "b", "--target", "c", "--pairs", "9", "--iterations", "2"],
     "--pairs, --iterations: these options are about learning, but --alignments replaces it: leave them out"),
    (["--table", "a", "--iterations", "2"], "--iterations: these options are about learning, but --table replaces it"),
    (["--pieces"], "--pieces needs --table"), (["--pairs", "0"], "each must be at least 1")])
def test_options_that_do_not_go_together_are_refused(
        wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lexicon", "--data", "nowhere", "--output", "out", *wrong]) == 1
    assert message in capsys.readouterr().err
