"""Kept graphs: what is translated by them is what is translated without, and nothing that is wrong with one matters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import DataError
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.models import architecture, make_model
from towernmt.predict import cached_search
from towernmt.predict.cached_graph import KEPT_GRAPHS, GraphNames, KeptGraph, read_graph, write_graph
from towernmt.predict.line_translator import SearchArguments
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.translator import Translator

LINES = ["w1 w2 w3", "", "w4", "w5 w6 w7 w8 w9", "w1 w2 w3"]
NAMES = GraphNames({"source": "source:0"}, {"source": "int32"}, {"tokens": "tokens:0"}, "prefix:0", "restore")


def save_checkpoint(run: Path, step: int) -> None:
    """Random weights, others at each step."""
    settings = yaml.safe_load((run / "settings.yaml").read_text())
    (run / "checkpoints" / f"step-{step}").mkdir(parents=True)
    with tf1.Graph().as_default(), PredictTowerContext(""):
        tower = make_model("transformer", architecture("transformer").settings(**settings["model"]))
        tower.build_graph(*[tf1.placeholder(spec.dtype, spec.shape) for spec in tower.inputs()])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            random = np.random.default_rng(step)
            for variable in tf1.trainable_variables():      # far from uniform, so that no two scores are close
                variable.load(random.normal(0, 0.5, variable.shape.as_list()), session)
            tf1.train.Saver().save(session, str(run / f"checkpoints/step-{step}/model"), write_meta_graph=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A run whose graph is kept, and what was found when it was."""
    run = tmp_path_factory.mktemp("run")
    vocabulary = WordVocabulary([*SPECIAL_PIECES, *(f"w{i}" for i in range(16))])
    save_vocabularies(vocabulary, vocabulary, run / "vocabulary")
    model = {"hidden_size": 16, "filter_size": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1,
             "source_vocab_size": vocabulary.size, "target_vocab_size": vocabulary.size}
    (run / "settings.yaml").write_text(yaml.safe_dump({"architecture": "transformer", "model": model}))
    save_checkpoint(run, 1)
    return run, found(opened(run))


def opened(run: Path, step: int = 1) -> Translator:
    """The run's translator, with a kept graph if there is one."""
    return Translator(run, 2, checkpoint=f"step-{step}", keep_graph=True)


def found(translator: Translator) -> list[Any]:
    """Text and score of each line."""
    return [(hypotheses[0].text, hypotheses[0].score) for hypotheses in translator.translate_nbest(LINES)]


def same(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """The same texts, and scores but for how sums are rounded."""
    return [text for text, _ in one] == [text for text, _ in two] and np.allclose(
        [score for _, score in one], [score for _, score in two], rtol=1e-5)


def is_kept(translator: Translator) -> bool:
    """Whether it searches by a kept graph."""
    return isinstance(translator._searches, cached_search.CachedTowers) and translator._searches._session is not None


def test_a_kept_graph_gives_the_same_texts_and_scores(first: tuple[Path, list[Any]]) -> None:
    run, before = first
    translator = opened(run)
    assert is_kept(translator) and same(found(translator), before)


def test_what_the_kept_graph_cannot_do_is_built_and_takes_its_place(first: tuple[Path, list[Any]]) -> None:
    run, before = first
    translator = opened(run)
    assert translator.translate("w1 w2", options=LineOptions(prefix="w7")).startswith("w7")
    assert not is_kept(translator) and same(found(translator), before)


@pytest.mark.parametrize("damage", [b"", b"{}\n", b'{"sha256": 1}\nabc'])
def test_a_damaged_file_is_built_anew_and_replaced(first: tuple[Path, list[Any]], tmp_path: Path, damage: bytes,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(first[0], tmp_path / "run")
    (file,) = (run / "graphs").iterdir()
    file.write_bytes(damage)
    built: list[Path | None] = []
    monkeypatch.setattr(cached_search, "_built", lambda asked, at=None: built.append(at) or "built")
    monkeypatch.setattr(cached_search, "key_of", lambda *_: file.stem.removeprefix("search-"))
    search = SearchArguments([SavedRun(run)], ["step-1"], [None], None, None, SearchSettings(beam_size=2), (), False,
                             False)
    assert cached_search.open_towers(search, True) == "built" and built == [file]


def test_each_changed_byte_of_a_cached_graph_is_found(tmp_path: Path) -> None:
    names = GraphNames({"a": "a:0"}, {"a": "int32"}, {"b": "b:0"}, "p:0", "restore")
    file = tmp_path / "search-1.graph"
    write_graph(file, KeptGraph(names, b"config", b"graph"))
    content = file.read_bytes()
    assert read_graph(file).names == names
    for index, byte in enumerate(content):
        file.write_bytes(content[:index] + bytes([byte ^ 1]) + content[index + 1:])
        with pytest.raises(DataError, match="damaged"):
            read_graph(file)


def test_a_run_that_went_on_training_gets_a_graph_of_its_new_checkpoint(
        first: tuple[Path, list[Any]], tmp_path: Path) -> None:
    run = shutil.copytree(first[0], tmp_path / "run")
    save_checkpoint(run, 2)
    new = opened(run, 2)
    assert not is_kept(new) and len(list((run / "graphs").iterdir())) == 2
    assert same(found(opened(run, 2)), found(new))
    assert not same(found(new), first[1])


def test_a_directory_that_cannot_be_written_to_is_translated_from(
        first: tuple[Path, list[Any]], tmp_path: Path) -> None:
    run = shutil.copytree(first[0], tmp_path / "run")
    shutil.rmtree(run / "graphs")
    (run / "graphs").touch()        # holds for the superuser, too, whom permissions do not
    assert same(found(opened(run)), first[1])


def test_a_file_is_whole_whoever_else_writes_it(tmp_path: Path) -> None:
    program = ("import sys; from pathlib import Path; from towernmt.predict.cached_graph import *\n"
               "names = GraphNames({'source': 'source:0'}, {'source': 'int32'}, {'tokens': 'tokens:0'}, 'p:0', 'r')\n"
               "kept = KeptGraph(names, b'c', sys.argv[2].encode() * 9999)\n"
               "for _ in range(50): write_graph(Path(sys.argv[1]), kept)")
    file = tmp_path / "graphs" / "search-0.graph"
    write_graph(file, KeptGraph(NAMES, b"c", b"x"))
    writers = [subprocess.Popen([sys.executable, "-c", program, str(file), letter]) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        assert len(set(read_graph(file).graph)) == 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_the_oldest_files_give_way(tmp_path: Path) -> None:
    for number in range(KEPT_GRAPHS + 3):
        file = tmp_path / f"search-{number}.graph"
        write_graph(file, KeptGraph(NAMES, b"", b""))
        os.utime(file, (number, number))
    write_graph(tmp_path / "search-new.graph", KeptGraph(NAMES, b"", b""))
    kept = {path.name for path in tmp_path.iterdir()}
    assert len(kept) == KEPT_GRAPHS and "search-new.graph" in kept and "search-0.graph" not in kept


@pytest.mark.processes
def test_the_start_by_a_kept_graph_imports_no_tensorflow(first: tuple[Path, list[Any]]) -> None:
    program = ("import sys; from towernmt.predict.translator import Translator\n"
               "print(Translator(sys.argv[1], 2, checkpoint='step-1', keep_graph=True).translate('w1 w2 w3'))\n"
               "assert not {'tensorflow', 'tensorpack'} & set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", program, str(first[0])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == first[1][0][0] + "\n" and not done.stderr
