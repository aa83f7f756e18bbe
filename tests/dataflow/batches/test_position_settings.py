"""A setting of the data is listed in the settings of a position, or does not change the data after a position."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from towernmt.checkpoint.checkpoint_files import CheckpointState
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.training_data import make_batches, open_training_data
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.sources.corpora import SourceEntry, read_corpora
from towernmt.dataflow.text.pair_filters import TextFilters
from towernmt.run.run_settings import DataSettings

CHANCE = random.Random(11)
WORDS = ["".join(CHANCE.choices("abcdefgh", k=CHANCE.randint(2, 9))) for _ in range(60)]
TEXTS = [" ".join(CHANCE.choices(WORDS, k=CHANCE.randint(1, 12))) for _ in range(240)]
SMALL = {"batch_tokens": 90, "window": 30, "max_length": 60}
CHANGED: dict[str, Any] = {
    "batch_tokens": 120, "batch_type": "sentences", "bucket_width": 5, "max_length": 10, "sort_by_length": False,
    "shuffle": False, "seed": 2, "window": 45, "subword_sampling": True, "subword_alpha": 0.6, "subword_nbest": 4,
    "modifiers": ["upper=0.4"], "modifier_languages": "tr-en", "general_share": 0.7,
    "memory_gb": 9.0, "feeders": 3, "queue_capacity": 7}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with two texts, `prepared` data of several shards, and a `corpora.yaml` of both texts."""
    directory = tmp_path_factory.mktemp("positions")
    for name, texts in (("a", TEXTS[:160]), ("b", TEXTS[160:]), ("all", TEXTS)):
        (directory / f"{name}.s").write_text("".join(f"{text}\n" for text in texts))
        (directory / f"{name}.t").write_text("".join(f"{text.upper()}\n" for text in texts))
    common = {"source": str(directory / "all.s"), "target": str(directory / "all.t"), "vocab_size": 90,
              "vocab_kind": "unigram", "vocab_symbols": "<b>,<c>"}
    prepare(PrepareSettings(**common, output=str(directory / "prepared"), shard_pairs=80))
    prepare(PrepareSettings(**common, output=str(directory / "resharded"), shard_pairs=40))
    write_corpora(directory / "corpora.yaml", directory)
    return directory


def write_corpora(file: Path, directory: Path, entry: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write a `corpora.yaml`; `entry` changes the second source, `changes` the file."""
    second = {"uri": f"{directory}/b.{{s,t}}", "weight": 1.0, "tag": "<b>", "on_end": "restart", **(entry or {})}
    file.write_text(yaml.safe_dump({"sources": [{"uri": f"{directory}/a.{{s,t}}"}, second], "mix": "weight",
                                    "vocabulary": str(directory / "prepared"), **changes}))
    return file


def settings(kind: str, **changes: Any) -> DataSettings:
    values = {**SMALL, **changes}
    if kind == "sampled":
        values["subword_sampling"] = not changes.get("subword_sampling", False)
    return DataSettings(**values)


def opened(location: Path, data_settings: DataSettings) -> Any:
    return make_batches(open_training_data(location), data_settings, 2)


def contents(batches: Any, position: Position, limit: int | None = None) -> list[tuple[Any, ...]]:
    """Return the content that is read from a position on."""
    def arrays(batch: Batch) -> tuple[bytes, ...]:
        return tuple(array.tobytes() for array in batch.arrays())

    return [(read_position, *arrays(batch)) for read_position, batch in itertools.islice(batches.read(position), limit)]


def a_position_in(batches: Any) -> Position:
    """Return a position in the middle of a block or window that is not the first."""
    return next(position for position, _ in batches.read() if position.block and position.batch)


def changes(old: Any, new: Any, position: Position) -> str:
    """Return the changed settings for which the checkpoint at a position is refused."""
    state = CheckpointState(5, position.to_json(), {}, position_settings=old.position_settings)
    return state.changes(new.position_settings) if state.in_epoch else ""


@pytest.mark.parametrize("kind", ["prepared", "sampled", "stream"])
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(DataSettings)])
def test_a_setting_of_the_data_is_compared_or_changes_nothing(directory: Path, kind: str, name: str) -> None:
    if name == "subword_nbest" and kind != "stream":
        pytest.skip("refused for prepared data")
    location = directory / ("corpora.yaml" if kind == "stream" else "prepared")
    on = {"modifiers": ["upper=0.4"]} if name == "modifier_languages" else {}
    old = opened(location, settings(kind, **on, subword_sampling=kind == "stream" and name.startswith("subword_")))
    if kind == "stream" and name == "subword_sampling":
        new = opened(location, settings(kind))
    else:
        unchanged = {"subword_sampling": True} if kind == "stream" and name.startswith("subword_") else {}
        new = opened(location, settings(kind, **{**on, **unchanged, name: CHANGED[name]}))
    begin = a_position_in(old)
    refused = changes(old, new, begin)
    if refused:
        assert refused.startswith(f"data.{name} changed from ") and ", " not in refused
    else:
        assert contents(old, begin) == contents(new, begin)
    # Mixed data alone have a share of general data; tests/dataflow/batches/test_mixed_data.py changes it.
    assert bool(refused) == (name not in ("memory_gb", "feeders", "queue_capacity", "general_share") and not (
        kind == "prepared" and name in ("window", "subword_alpha")))
    assert not changes(old, new, Position(1)), "at the beginning of an epoch all may change"


ENTRIES: dict[str, Any] = {"weight": 5.0, "tag": "<c>", "on_end": "drop", "uri": "{directory}/a.{{s,t}}"}
FILE: dict[str, Any] = {
    "mix": "temperature 3", "max_length": 20, "max_length_ratio": 1.5, "drop_identical": True, "match_digits": True,
    "match_punctuation": True, "source_script": "Latin", "target_script": "Latin", "script_share": 0.9,
    "source_language": None, "target_language": None, "language_confidence": 0.7}


@pytest.mark.parametrize("name", [*ENTRIES, *FILE])
def test_an_edit_of_corpora_yaml_is_compared_or_changes_nothing(directory: Path, tmp_path: Path, name: str) -> None:
    if name in ENTRIES:
        value = ENTRIES[name].format(directory=directory) if name == "uri" else ENTRIES[name]
        edited = write_corpora(tmp_path / "edited.yaml", directory, {name: value})
    elif name in ("source_language", "target_language"):
        pytest.importorskip("py3langid")
        edited = write_corpora(tmp_path / "edited.yaml", directory, **{name: "de"})
    else:
        edited = write_corpora(tmp_path / "edited.yaml", directory, **{name: FILE[name]})
    old, new = opened(directory / "corpora.yaml", settings("stream")), opened(edited, settings("stream"))
    begin = a_position_in(old)
    if name == "weight":    # those of an epoch are in its cursors; `temperature` changes no more than these
        assert not changes(old, new, begin)
        remaining = contents(old, begin)
        epoch = next(number for number, (position, *_) in enumerate(remaining) if position.epoch > begin.epoch)
        assert remaining[:epoch] == contents(new, begin, epoch) and epoch
    else:
        assert f"{'sources' if name == 'uri' else name}" in changes(old, new, begin)
        assert "in corpora.yaml changed from" in changes(old, new, begin)


def test_each_name_of_a_corpora_yaml_is_decided_on() -> None:
    of_file = {"mix", "max_length", "max_length_ratio", *TextFilters.__dataclass_fields__}
    assert set(FILE) == of_file and set(ENTRIES) == set(SourceEntry.__dataclass_fields__)


def test_a_temperature_may_change_within_an_epoch(directory: Path, tmp_path: Path) -> None:
    old, new = (opened(write_corpora(tmp_path / f"{t}.yaml", directory, mix=f"temperature {t}"), settings("stream"))
                for t in (2, 7))
    begin = a_position_in(old)
    assert not changes(old, new, begin) and contents(old, begin, 10) == contents(new, begin, 10)


def test_a_different_number_of_shards_is_named(directory: Path) -> None:
    old, new = (opened(directory / name, settings("prepared")) for name in ("prepared", "resharded"))
    assert changes(old, new, a_position_in(old)) == "number of shards changed from 3 to 6"


def test_a_corpus_of_ones_own_is_compared_by_its_blocks(directory: Path) -> None:
    class Blocks:
        length_ratio = 1.0

        def __init__(self, num_blocks: int) -> None:
            self.num_blocks = num_blocks
            self._data = open_training_data(directory / "resharded")

        def read_block(self, index: int) -> Any:
            return self._data.read_block(index)      # type: ignore[attr-defined]

    old, new = (Batches(Blocks(count), settings("prepared")) for count in (4, 5))
    assert changes(old, new, a_position_in(old)) == "number of blocks changed from 4 to 5"


def test_the_corpus_and_its_batches_have_the_same_settings(directory: Path) -> None:
    corpora = read_corpora(directory / "corpora.yaml")
    data = open_training_data(directory / "corpora.yaml")
    batches = make_batches(data, settings("stream"), 1)
    data_settings = data.position_settings       # type: ignore[attr-defined]
    assert data_settings.items() <= batches.position_settings.items() and len(corpora.sources) == 2
