"""The passes of a preparation: each consists of many tasks, and begins when the one before it has ended.

The texts are checked; sentences are sampled and vocabularies learned; the ranges of the text are encoded, filtered
and distributed to shards, after a search for duplicates if they are dropped; the shards are written. Results are
files, so a later process resumes an interrupted preparation, if its work directory belongs to the same text and
settings.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TextIO

from towernmt.core.line_progress import LineProgress
from towernmt.dataflow.preparation.alignment_tasks import LearnAlignments, with_learned_links
from towernmt.dataflow.preparation.corpus_statistics import Statistics
from towernmt.dataflow.preparation.encode_tasks import (
    DropDuplicates,
    EncodePart,
    FindDuplicates,
    GroupedFile,
    read_facts,
)
from towernmt.dataflow.preparation.input_texts import PairTexts, pair_texts, text_files
from towernmt.dataflow.preparation.manifest import VOCABULARIES
from towernmt.dataflow.preparation.output_directory import PLAN, WORK, OutputDirectory
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.shards import ShardInfo, read_shard, write_shard
from towernmt.dataflow.preparation.task_runners import VISIBILITY_MARK, TaskRunner, run_with_progress
from towernmt.dataflow.preparation.tasks import (
    CHUNKS_OF_A_PART,
    NumberedTask,
    PreparationJob,
    atomic_output,
)
from towernmt.dataflow.preparation.text_tasks import (
    COUNTED_LINES,
    MEASURED_LINES,
    CountSource,
    IndexText,
    MeasureText,
    SampleText,
    TextMeasure,
    merge_measures,
)
from towernmt.dataflow.preparation.vocabulary_learning import VocabularyMaker
from towernmt.dataflow.text.text_index import TextIndex, TextSummary, check_as_long, check_parallel
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_text import SourceCounts, SourceText
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies

_RESUMABLE_LINES = 20_000     # lines; the work on a smaller text is not kept after an interruption


class Passes:
    """The passes of a preparation.

    Attributes:
        stage: directory of the new preparation.
        lines: number of lines of the text, after it was checked.

    Args:
        settings: settings with the names of text files.
        output: the output directory.
        runner: runs the tasks.
        stream: destination of the progress; None for none.
    """

    def __init__(self, settings: PrepareSettings, output: OutputDirectory, runner: TaskRunner, stream: TextIO | None
                 ) -> None:
        self._settings, self._output, self._runner, self._stream = settings, output, runner, stream
        self.stage, self._work, self._key = output.stage.absolute(), output.stage.absolute() / WORK, ""
        self._indexes: dict[str, TextIndex] = {}
        self._parts: list[PairTexts] = []

    @property
    def lines(self) -> int:
        return self._indexes["source"].summary.lines

    def check_texts(self) -> None:
        """Read all texts once.

        Raises:
            DataError: a text is missing, is not UTF-8, or has a different number of lines than the source.
        """
        self._work.mkdir(exist_ok=True)
        tasks = {name: IndexText.of(path, name, self._work) for name, path in text_files(self._settings).items()}
        unfinished = [task for task in tasks.values() if not task.done]
        if unfinished:
            progress = LineProgress("checking", stream=self._stream)
            for task in self._runner.run(unfinished):
                progress.update(task.index().summary.lines)     # type: ignore[attr-defined]
            progress.done()
        self._indexes = {name: task.index() for name, task in tasks.items()}
        summaries = self.summaries()
        check_parallel(summaries["source"], summaries["target"])
        for summary in summaries.values():
            check_as_long(summary, summaries["source"])
        self._parts = pair_texts(self._indexes, CHUNKS_OF_A_PART)

    def summaries(self) -> dict[str, TextSummary]:
        """Return the summaries of all texts by their names in manifests."""
        return {name: index.summary for name, index in self._indexes.items()}

    def check_unchanged(self) -> None:
        """Check that no text has changed since `check_texts`.

        Raises:
            DataError: a text has changed.
        """
        for index in self._indexes.values():
            index.check_unchanged()

    def measure(self) -> TextMeasure:
        """Measure the text by a sample of its lines."""
        settings, share = self._settings, min(MEASURED_LINES / max(self.lines, 1), 1.0)
        tasks = [MeasureText.of(n, texts, share, settings.source_factors, settings.seed, self._work)
                 for n, texts in enumerate(self._parts)]
        run_with_progress(self._runner, "measuring", tasks, self._stream)
        return merge_measures(tasks, share)

    def begin(self, key: str) -> bool:
        """Begin the preparation of a key; return whether an earlier process has begun it."""
        self._key = key
        begun = claim_stage(self.stage, key)
        self._output.begin_work()
        if self.lines >= _RESUMABLE_LINES:
            self._output.keep_work()
        return begun

    def make_vocabularies(self, maker: VocabularyMaker) -> tuple[Vocabulary, Vocabulary, list[str]]:
        """Make the vocabularies and save them in the stage; return them and notes for the user."""
        samples: list[SampleText] = []
        draw = maker.draw(self.lines)
        if draw is not None:
            samples = [SampleText.of(n, texts, draw, self._work) for n, texts in enumerate(self._parts)]
            run_with_progress(self._runner, "drawing sentences", samples, self._stream)
        files = [sample.output for sample in samples]
        learned = maker.learning(self.lines, files, self._work)
        if learned:
            run_with_progress(self._runner, "learning the vocabularies", list(learned.values()), self._stream)
        source, target, notes = maker.make(learned, files)
        save_vocabularies(source, target, self.stage / VOCABULARIES)
        self._write_source_text(maker.source_text())
        return source, target, notes

    def _write_source_text(self, vocabulary_facts: SourceText) -> None:
        """Write the facts about the source text, merged with those about the text of an existing vocabulary."""
        settings, share = self._settings, min(COUNTED_LINES / max(self.lines, 1), 1.0)
        tasks = [CountSource.of(n, texts, share, settings.source_factors, settings.seed, self._work)
                 for n, texts in enumerate(self._parts)]
        run_with_progress(self._runner, "counting words", tasks, self._stream)
        counts = SourceCounts()
        for task in tasks:
            counts.add(task.counts())
        counts.text().merged(vocabulary_facts).save(self.stage / VOCABULARIES)

    def write_shards(self) -> tuple[Statistics, list[ShardInfo]]:
        """Encode and distribute the text; return the statistics and all shards, including empty ones."""
        job = self._job()
        parts = range(job.parts)
        self._do("encoding", [EncodePart.of(job, n, texts) for n, texts in enumerate(self._parts)])
        if job.lookups:
            drops = [DropDuplicates.of(job, n, texts.source.lines) for n, texts in enumerate(self._parts)]
            if not all(task.done for task in drops):
                self._do("looking for duplicates", FindDuplicates.of_shares(job, job.repeated_keys, job.lookups))
            self._do("dropping duplicates", drops)
        statistics = Statistics(job.factors, job.linked or job.aligns)
        for part in parts:
            statistics.merge(read_facts(job.distributed(part))["statistics"])
        if job.aligns and statistics.pairs:
            self._do("learning alignments", LearnAlignments.of_shares(job, job.alignment_model, 2))
        self._do("writing shards", WriteShard.of_shares(job, job.shard_info, job.shards))
        shards = [read_shard_info(job, n) for n in range(job.shards)]
        if job.aligns:
            for shard in shards:
                if shard.pairs:     # an interrupted process may have removed the files of the others
                    statistics.count_links(read_shard(self.stage, shard, verify=False))
        return statistics, shards

    def _do(self, label: str, tasks: Sequence[NumberedTask]) -> None:
        run_with_progress(self._runner, label, tasks, self._stream)

    def _job(self) -> PreparationJob:
        settings = self._settings
        return PreparationJob(
            self._key, self.stage, settings.pair_filter, lines=self.lines, parts=len(self._parts),
            shards=-(-self.lines // settings.shard_pairs), seed=settings.seed, factors=settings.factors,
            linked=settings.alignment_file is not None, aligns=settings.learns_alignments)


_FORMAT = 2     # format of the files that tasks leave for each other
# Prefixes of the files that are not removed: their readers check whether they are still valid.
_UNCHECKED_PREFIXES = ("corpus.", "text-", VISIBILITY_MARK)


def claim_stage(stage: Path, key: str) -> bool:
    """Assign the directory to a preparation, and remove the files of a different preparation.

    Args:
        stage: directory of the new preparation.
        key: identifies the text and the settings.

    Returns:
        whether the same preparation was begun there.
    """
    work = stage / WORK
    work.mkdir(exist_ok=True)
    plan = {"format": _FORMAT, "key": key}
    try:
        if json.loads((work / PLAN).read_text()) == plan:
            return True
    except (OSError, ValueError):
        pass    # no preparation was begun
    for path in [*stage.iterdir(), *work.iterdir()]:
        if path != work and not path.name.startswith(_UNCHECKED_PREFIXES):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    with atomic_output(work / PLAN) as unfinished:
        unfinished.write_text(json.dumps(plan))
    return False


@dataclass(frozen=True)
class WriteShard(NumberedTask):
    """Writes a shard from its pairs in all parts of the text."""

    @property
    def title(self) -> str:
        return f"writing shard {self.number + 1} of {self.job.shards}"

    def run(self) -> None:
        job = self.job
        path = job.shard(self.number)
        parts = [GroupedFile(job.distributed(part), self.number) for part in range(job.parts)]
        info = _info(job, path.name, parts)
        arrays: Iterable[bytes] = (part.read(column) for column in range(len(info.columns())) for part in parts)
        if job.aligns:
            info, arrays = with_learned_links(job, self.number, info)
        with atomic_output(path) as unfinished, open(unfinished, "wb") as file:
            info = write_shard(file, info, arrays)
        with atomic_output(self.output) as unfinished:
            unfinished.write_text(json.dumps(asdict(info)))


def _info(job: PreparationJob, file: str, parts: list[GroupedFile]) -> ShardInfo:
    id_bytes: Literal[2, 4] = 2 if job.id_dtype().itemsize == 2 else 4
    empty = ShardInfo(file, 0, 0, 0, id_bytes, 0, job.factors, 0 if job.linked else None)
    types = [dtype for dtype, _ in empty.columns()]
    counts = [sum(part.size(column) for part in parts) // dtype.itemsize for column, dtype in enumerate(types)]
    ids = 3 if job.linked else 2
    return replace(empty, pairs=counts[0], source_tokens=counts[ids], target_tokens=counts[ids + 1],
                   links=counts[-1] if job.linked else None)


def read_shard_info(job: PreparationJob, number: int) -> ShardInfo:
    """Return the entry of a shard that `WriteShard` wrote."""
    return ShardInfo(**json.loads(job.shard_info(number).read_text()))
