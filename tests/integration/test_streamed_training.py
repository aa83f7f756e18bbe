"""Training directly from three kinds of sources: a run that is killed and resumed equals an uninterrupted run."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece

pytestmark = pytest.mark.processes

SETTINGS = ["data.subword_sampling=true", "data.window=60", "train.steps=60", "checkpoint.steps=12",
            "validation.steps=0"]


@pytest.fixture(scope="module")
def sources(corpus, tmp_path_factory) -> Path:
    """Distribute the corpus to parallel files, a TSV file and a database, and return their `corpora.yaml`."""
    pytest.importorskip("sqlalchemy")
    place = tmp_path_factory.mktemp("sources")
    sides = [corpus.file(f"train.{side}").read_text().splitlines() for side in ("source", "target")]
    pairs = list(zip(*sides, strict=True))
    for side in (0, 1):
        with gzip.open(place / f"files.{'st'[side]}.gz", "wt") as file:
            file.writelines(pair[side] + "\n" for pair in pairs[:150])
    (place / "table.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs[150:250]))
    with sqlite3.connect(place / "base.db") as database:
        database.execute("create table pairs (id integer primary key, source text, target text)")
        database.executemany("insert into pairs (source, target) values (?, ?)", pairs[250:])
    uris = [f"{place}/files.{{s,t}}.gz", f"{place}/table.tsv", f"sqlite:///{place}/base.db?table=pairs"]
    learn_sentence_piece([text for side in sides for text in side], "unigram", 60).save(place / "shared")
    (place / "corpora.yaml").write_text(yaml.safe_dump({
        "sources": [{"uri": uri, "on_end": "drop"} for uri in uris], "mix": "temperature 2",
        "vocabulary": str(place / "shared.model")}))
    return place


@pytest.fixture(scope="module")
def command(sources, arguments, tiny):
    """Return `command(logdir, ...)`: the arguments of a training on the mixture."""
    return lambda logdir, *settings: arguments(sources / "corpora.yaml", logdir, *tiny, *SETTINGS, *settings)


@pytest.fixture(scope="module")
def never_stopped(command, module_start, recording, recorded, tmp_path_factory):
    """Return the directory and the steps of an uninterrupted run."""
    place = tmp_path_factory.mktemp("whole")
    result = module_start(*command(place / "run"), program=recording(place / "steps")).wait()
    assert result.status == 0, result.text
    return place / "run", recorded(place / "steps"), result.text


def test_killed_and_resumed_it_equals_the_run_never_stopped(command, start, recording, recorded, never_stopped,
                                                            variables, tmp_path) -> None:
    logdir, expected, _ = never_stopped
    whole = command(tmp_path / "run")
    first = start(*whole, program=recording(tmp_path / "first", "--hold-at", "30"))
    first.wait_for("held at step 30")
    first.send(signal.SIGKILL)
    assert first.wait().status == -signal.SIGKILL
    # The number of feeders does not change the order.
    result = start(*whole, "data.feeders=3", program=recording(tmp_path / "second")).wait()
    assert result.status == 0, result.text
    second = recorded(tmp_path / "second")
    assert list(second) == list(range(25, 61))
    for steps in (recorded(tmp_path / "first"), second):
        assert steps == {step: expected[step] for step in steps}
    found, wanted = (variables(run / "checkpoints/step-60") for run in (tmp_path / "run", logdir))
    assert all(np.array_equal(found[name], value) for name, value in wanted.items())


def test_the_log_tells_what_came_from_each_source(never_stopped) -> None:
    text = never_stopped[2]
    assert "Epoch 1 has been read: 400 pairs read, 0 dropped." in text
    for part in ("files.{s,t}.gz: 150 in 1 round(s)", "table.tsv: 100 in 1 round(s)",
                 "base.db?table=pairs: 150 in 1 round(s)"):
        assert part in text


def test_each_epoch_is_exactly_the_corpus(sources, corpus) -> None:
    from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
    from towernmt.dataflow.batches.training_data import make_batches, open_training_data

    data = open_training_data(sources / "corpora.yaml")
    found: list[Counter[tuple[str, str]]] = [Counter(), Counter()]
    epoch = 0
    for position, batch in make_batches(data, StreamBatchSettings(window=60, batch_tokens=256), epochs=2).read():
        found[epoch].update(zip(map(data.source_vocabulary.decode, batch.source),
                                map(data.target_vocabulary.decode, batch.target), strict=True))
        epoch = position.epoch
    sides = [corpus.file(f"train.{side}").read_text().splitlines() for side in ("source", "target")]
    assert found[0] == found[1] == Counter(zip(*sides, strict=True))


def test_the_end_of_the_epochs_ends_training(command, here, tmp_path) -> None:
    result = here(*command(tmp_path / "run", "train.epochs=1", "train.steps=0"))
    assert result.status == 0, result.text
    state = json.loads(next((tmp_path / "run/checkpoints").glob("step-[1-9]*/state.json")).read_text())
    assert json.loads(state["position"])["epoch"] in (0, 1)
    assert "Trained" in (tmp_path / "run/log/log.log").read_text()


def test_other_sources_are_refused_on_resuming(sources, command, here, never_stopped, tmp_path) -> None:
    shutil.copytree(never_stopped[0], tmp_path / "run")
    other = yaml.safe_load((sources / "corpora.yaml").read_text())
    other["sources"] = other["sources"][::-1]
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    arguments = [tmp_path / "other.yaml" if part == sources / "corpora.yaml" else part
                 for part in command(tmp_path / "run", "train.steps=70")]
    result = here(*arguments)
    assert result.status == 1
    assert "was trained on other data than" in result.the_error()


def test_a_source_that_breaks_ends_training_with_its_name_and_a_checkpoint(sources, command, here, tmp_path) -> None:
    broken = tmp_path / "broken.tsv"
    broken.write_text((sources / "table.tsv").read_text() + "a line without a second column\n")
    (tmp_path / "corpora.yaml").write_text(yaml.safe_dump({
        **yaml.safe_load((sources / "corpora.yaml").read_text()), "sources": [str(broken)]}))
    arguments = [tmp_path / "corpora.yaml" if part == sources / "corpora.yaml" else part
                 for part in command(tmp_path / "run", "train.steps=0", "data.window=20")]
    result = here(*arguments)
    assert result.status == 1
    assert f"{broken} line 101" in result.the_error()
    last = max((tmp_path / "run/checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    assert json.loads(json.loads((last / "state.json").read_text())["position"])["block"] == 5
