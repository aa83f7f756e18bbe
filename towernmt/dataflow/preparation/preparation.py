"""`prepare`: turn text into a directory of vocabularies, shards and statistics, in constant memory.

The text is two parallel files; pairs from other sources are first written to two such files (see `input_texts`). The
text is read in passes (see `passes`), whose tasks are shared by processes of this machine or of a cluster. The output
is a pure function of the text and the settings: the number of processes and interruptions change nothing. It is
written next to the old preparation, and replaces it at the end (see `output_directory`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from towernmt.core.errors import DataError
from towernmt.core.files import write_text
from towernmt.core.machine import cleanup_on_signal
from towernmt.dataflow.preparation.corpus_statistics import (
    LENGTHS,
    Statistics,
    dropped_in_words,
    statistics_table,
)
from towernmt.dataflow.preparation.input_texts import ValidationText, open_sources, write_text_files
from towernmt.dataflow.preparation.manifest import (
    MANIFEST,
    VERSION,
    VOCABULARIES,
    Manifest,
    VocabularyInfo,
    VocabularyInfos,
    describe_files,
    prepared_fingerprint,
    read_manifest,
    vocabulary_files,
)
from towernmt.dataflow.preparation.output_directory import OutputDirectory
from towernmt.dataflow.preparation.passes import Passes
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.preparation.shards import ShardInfo
from towernmt.dataflow.preparation.task_runners import task_runner
from towernmt.dataflow.preparation.vocabulary_learning import (
    VocabularyMaker,
    check_known_tags,
    check_vocabularies,
    load_factor_lists,
)
from towernmt.dataflow.preparation.vocabulary_plan import files_by_side, plan_vocabularies
from towernmt.dataflow.text.text_lines import check_rereadable
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import factors_of
from towernmt.dataflow.vocabulary.source_text import SOURCE_TEXT


class NoPairLeftError(DataError):
    """The filters have dropped all pairs of a corpus.

    Attributes:
        dropped: for each reason, the number of dropped pairs and their first lines.
    """

    def __init__(self, corpus: str, dropped: Mapping[str, dict[str, Any]]) -> None:
        super().__init__(f"{corpus}: no pair is left; dropped: {dropped_in_words(dropped)}. Check the text, and the "
                         "settings of its filters (--max-length, --max-length-ratio and the others that are set).")
        self.dropped = dropped


def prepare(settings: PrepareSettings, stream: TextIO | None = None, name: str | None = None) -> PreparedData:
    """Prepare a corpus, unless it was prepared with the same settings before.

    Args:
        settings: the settings.
        stream: destination of progress and messages; None for none.
        name: name of the output in messages; None for its path.

    Returns:
        the prepared data, opened.

    Raises:
        SettingsError: a setting is invalid.
        DataError: missing, unequal or badly encoded text; a vocabulary that cannot be made; no pair left;
            or the output directory contains a different preparation or other files.
        DirectoryInUseError: another process prepares into the same directory.
    """
    settings.check()
    for path in settings.text_files():
        check_rereadable(path)
    check_vocabularies(settings)
    output = OutputDirectory(settings.output, settings.overwrite, partial(_report, stream))
    with cleanup_on_signal(output.abandon), output:
        text_settings, mixture = open_sources(settings, stream)
        # All checks that do not need the text come before it is read, which may take hours.
        _check_known_settings(text_settings, name or settings.output)
        load_factor_lists(text_settings)
        validation = ValidationText(text_settings.validation_files(), text_settings.factors)
        corpus = f"{settings.source} and {settings.target}"
        if mixture is not None:
            corpus = mixture.name
            check_known_tags(text_settings, [*(ingredient.tag for ingredient in mixture.ingredients),
                                             *(files.tag for files in text_settings.validation_files())])
            text_settings = write_text_files(text_settings, mixture, output.stage, stream,
                                             partial(output.keep_work, after_errors=True))
        with task_runner(text_settings, output.stage.absolute(), partial(_report, stream)) as runner:
            passes = Passes(text_settings, output, runner, stream)
            job = _Preparation(text_settings, passes, validation, stream, name, corpus)
            if not job.is_done():
                job.run()
                output.exchange()
    return PreparedData(settings.output)


def _report(stream: TextIO | None, text: str) -> None:
    if stream is not None:
        stream.write(text + "\n")
        stream.flush()


def _old_manifest(settings: PrepareSettings) -> Manifest | None:
    """Return the manifest of the preparation in the output directory, if it must not be overwritten."""
    if settings.overwrite or not (Path(settings.output) / MANIFEST).exists():
        return None
    try:
        return read_manifest(settings.output)
    except DataError as error:
        raise DataError(f"{error} Pass --overwrite to replace it.") from error


def _check_known_settings(settings: PrepareSettings, name: str) -> None:
    """Check that an old preparation in the output directory has the same settings, except those that are automatic.

    Raises:
        DataError: it has different settings, and must not be overwritten.
    """
    manifest = _old_manifest(settings)
    if manifest is not None:
        _refuse(_different_settings(manifest, settings), name)


def _different_settings(manifest: Manifest, settings: PrepareSettings) -> list[str]:
    new, old = settings.identity(), {**PrepareSettings().identity(), **manifest.settings}
    unknown = [name for name in ("vocab_size", "shared_vocab") if new[name] is None]     # the text will decide
    return [f"{name} {old.get(name)} there, {new.get(name)} now" for name in {**new, **old}
            if old.get(name) != new.get(name) and name not in unknown]


def _refuse(differences: list[str], name: str) -> None:
    if differences:
        raise DataError(f"{name} contains another preparation ({'; '.join(differences)}). Pass --overwrite to replace "
                        "it, or another --output.")


class _Preparation:
    def __init__(self, settings: PrepareSettings, passes: Passes, validation: ValidationText, stream: TextIO | None,
                 name: str | None, corpus: str) -> None:
        self._stage, self._passes = passes.stage, passes
        self._report, self._corpus, self._name = partial(_report, stream), corpus, name or settings.output
        passes.check_texts()
        summaries = passes.summaries()
        source, target = summaries["source"], summaries["target"]
        if not source.lines:
            raise DataError(f"{corpus} are empty: there is nothing to prepare.")
        if source.sha256 == target.sha256:
            self._report(f"Warning: {corpus} are the same text, so a model would learn to copy its input: pass the "
                         "translation of the source as the target.")
        plan = plan_vocabularies(settings, passes.measure)
        for setting in plan.automatic:
            self._report(f"Automatic setting: {setting}.")
        self._notes = [f"automatic setting: {setting}" for setting in plan.automatic]
        self._settings = dataclasses.replace(settings, vocab_size=plan.size, shared_vocab=plan.shared)
        self._maker = VocabularyMaker(self._settings, plan)
        self._validation = validation
        self._inputs = self._describe_inputs()

    def is_done(self) -> bool:
        """Return whether the output is a finished preparation of the same text with the same settings.

        Raises:
            DataError: it is a different preparation, which must not be overwritten.
        """
        manifest = _old_manifest(self._settings)
        if manifest is None:
            return False
        inputs = manifest.inputs
        _refuse(_different_settings(manifest, self._settings) + [
            f"another {name} file" for name in sorted({*inputs, *self._inputs})
            if inputs.get(name) != self._inputs.get(name)], self._name)
        self._report(f"{self._name} was already prepared from the same text with the same settings, and is kept.")
        return True

    def run(self) -> None:
        key = [self._settings.identity(), self._inputs]
        if self._passes.begin(hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()):
            self._report("resuming an interrupted preparation of the same text")
        source, target, notes = self._passes.make_vocabularies(self._maker)
        statistics, shards = self._passes.write_shards()
        self._passes.check_unchanged()
        if not statistics.pairs:
            raise NoPairLeftError(self._corpus, statistics.dropped)
        self._finish(source, target, self._notes + notes, statistics, shards)

    def _finish(self, source: Vocabulary, target: Vocabulary, notes: list[str], statistics: Statistics,
                shards: list[ShardInfo]) -> None:
        settings = self._settings
        shards = self._without_empty(shards)
        report = statistics.to_json()
        files = files_by_side(settings, bool(settings.shared_vocab))
        vocabularies = VocabularyInfos(
            VocabularyInfo(source.kind if files["source"] else settings.vocab_kind, source.size),
            VocabularyInfo(target.kind if files["target"] else settings.vocab_kind, target.size),
            [VocabularyInfo(vocabulary.kind, vocabulary.size) for vocabulary in factors_of(source)])
        small = [*vocabulary_files(source, target), f"{VOCABULARIES}/{SOURCE_TEXT}"]
        small += self._validation.write(self._stage)
        write_text(self._stage / "statistics.json", json.dumps(report, indent=1) + "\n")
        write_text(self._stage / "statistics.txt", statistics_table(report, dataclasses.asdict(vocabularies), notes))
        write_text(self._stage / LENGTHS, statistics.pair_lengths.to_text())
        small += ["statistics.json", "statistics.txt", LENGTHS]
        manifest = Manifest(
            format="towernmt-prepared", version=VERSION,
            settings=settings.identity(), inputs=self._inputs, vocabularies=vocabularies, pairs=statistics.pairs,
            length_ratio=statistics.length_ratio, validation_sets=self._validation.infos(), notes=notes,
            shards=shards, files=describe_files(self._stage, small),
            fingerprint=prepared_fingerprint(shards, source, target))
        write_text(self._stage / MANIFEST, manifest.to_text())

    def _without_empty(self, shards: list[ShardInfo]) -> list[ShardInfo]:
        for shard in shards:
            if not shard.pairs:
                (self._stage / shard.file).unlink(missing_ok=True)
        return [shard for shard in shards if shard.pairs]

    def _describe_inputs(self) -> dict[str, Any]:
        sides = ("source", "target")
        summaries = self._passes.summaries()
        texts = {**{side: summaries.pop(side) for side in sides}, **self._validation.inputs(), **summaries}
        described: dict[str, Any] = {name: {"lines": text.lines, "bytes": text.bytes, "sha256": text.sha256}
                                     for name, text in texts.items()}
        return described | self._maker.file_checksums()
