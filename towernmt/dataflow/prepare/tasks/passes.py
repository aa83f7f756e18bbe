"""The passes of a preparation: each is many tasks, and begins when the one before it has ended.

The texts are checked; sentences are drawn and vocabularies learned; the parts of the text are encoded, filtered and
dealt to shards, after a search for duplicates where they are dropped; the shards are written. What is done lies in
files, so that a process that comes later goes on from there.
"""

from __future__ import annotations

from typing import TextIO

from towernmt.dataflow.prepare.annotations import PairTexts, pair_texts, text_files
from towernmt.dataflow.prepare.output_directory import OutputDirectory
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.prepare.running.runner import Runner, do_all
from towernmt.dataflow.prepare.statistics_counter import Statistics
from towernmt.dataflow.prepare.tasks.deal import DropDuplicates
from towernmt.dataflow.prepare.tasks.encode_part import EncodePart
from towernmt.dataflow.prepare.tasks.find_duplicates import FindDuplicates
from towernmt.dataflow.prepare.tasks.grouped_file import read_facts
from towernmt.dataflow.prepare.tasks.index_text import IndexText
from towernmt.dataflow.prepare.tasks.job import CHUNKS_OF_A_PART, Job
from towernmt.dataflow.prepare.tasks.measure_text import MEASURED_LINES, MeasureText, TextMeasure, merged
from towernmt.dataflow.prepare.tasks.sample_text import SampleText
from towernmt.dataflow.prepare.tasks.work_directory import WORK, claim
from towernmt.dataflow.prepare.tasks.write_shard import WriteShard, read_shard_info
from towernmt.dataflow.prepare.vocabulary_maker import VocabularyMaker
from towernmt.dataflow.prepared.manifest import VOCABULARIES
from towernmt.dataflow.prepared.shards import ShardInfo
from towernmt.dataflow.text.line_progress import LineProgress
from towernmt.dataflow.text.text_index import TextIndex
from towernmt.dataflow.text.text_scan import TextSummary, check_as_long, check_parallel
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies

_WORTH_KEEPING = 20_000     # lines; what is done of fewer is done again as quickly


class Passes:
    """Attributes:
        stage: directory of the new preparation.
        lines: of the text, once it was checked.

    Args:
        settings: with the names of text files.
        place: where the preparation works.
        runner: who does the tasks.
        stream: where progress is written; None: nowhere.
    """

    def __init__(self, settings: PrepareSettings, place: OutputDirectory, runner: Runner, stream: TextIO | None
                 ) -> None:
        self._settings, self._place, self._runner, self._stream = settings, place, runner, stream
        self.stage, self._work, self._key = place.stage.absolute(), place.stage.absolute() / WORK, ""
        self._indexes: dict[str, TextIndex] = {}
        self._parts: list[PairTexts] = []

    @property
    def lines(self) -> int:
        return self._indexes["source"].summary.lines

    def check_texts(self) -> None:
        """Read all texts once.

        Raises:
            DataError: one is missing, not UTF-8, or of another number of lines than the source.
        """
        self._work.mkdir(exist_ok=True)
        tasks = {name: IndexText.of(path, name, self._work) for name, path in text_files(self._settings).items()}
        left = [task for task in tasks.values() if not task.done]
        if left:
            progress = LineProgress("checking", stream=self._stream)
            for task in self._runner.run(left):
                progress.update(task.index().summary.lines)     # type: ignore[attr-defined]
            progress.done()
        self._indexes = {name: task.index() for name, task in tasks.items()}
        found = self.summaries()
        check_parallel(found["source"], found["target"])
        for other in found.values():
            check_as_long(other, found["source"])
        self._parts = pair_texts(self._indexes, CHUNKS_OF_A_PART)

    def summaries(self) -> dict[str, TextSummary]:
        """Of all texts, by the names that manifests give them."""
        return {name: index.summary for name, index in self._indexes.items()}

    def check_unchanged(self) -> None:
        """Raises:
            DataError: a text has changed since it was checked.
        """
        for index in self._indexes.values():
            index.check_unchanged()

    def measure(self) -> TextMeasure:
        """Measure the text, as far as lines are drawn for it."""
        settings, share = self._settings, min(MEASURED_LINES / max(self.lines, 1), 1.0)
        tasks = [MeasureText.of(n, texts, share, settings.source_factors, settings.seed, self._work)
                 for n, texts in enumerate(self._parts)]
        do_all(self._runner, "measuring", tasks, self._stream)
        return merged(tasks, share)

    def begin(self, key: str) -> bool:
        """Begin the preparation that the key stands for; whether an earlier process has begun it."""
        self._key = key
        known = claim(self.stage, key)
        if self.lines >= _WORTH_KEEPING:
            self._place.keep_work()
        return known

    def make_vocabularies(self, maker: VocabularyMaker) -> tuple[Vocabulary, Vocabulary, list[str]]:
        """The vocabularies, which lie in the stage then, and notes for the user; see `VocabularyMaker.make`."""
        samples: list[SampleText] = []
        draw = maker.draw(self.lines)
        if draw is not None:
            samples = [SampleText.of(n, texts, draw, self._work) for n, texts in enumerate(self._parts)]
            do_all(self._runner, "drawing sentences", samples, self._stream)
        files = [sample.output for sample in samples]
        learned = maker.learning(self.lines, files, self._work)
        if learned:
            do_all(self._runner, "learning the vocabularies", list(learned.values()), self._stream)
        source, target, notes = maker.make(learned, files)
        save_vocabularies(source, target, self.stage / VOCABULARIES)
        return source, target, notes

    def write_shards(self) -> tuple[Statistics, list[ShardInfo]]:
        """Encode and deal the text; what was counted, and the shards, empty ones included."""
        job = self._job()
        parts = range(job.parts)
        self._do("encoding", [EncodePart.of(job, n, texts) for n, texts in enumerate(self._parts)])
        if job.lookups:
            dealt = [DropDuplicates.of(job, n, texts.source.lines) for n, texts in enumerate(self._parts)]
            if not all(task.done for task in dealt):
                self._do("looking for duplicates", [FindDuplicates.of(job, n) for n in range(job.lookups)])
            self._do("dropping duplicates", dealt)
        self._do("writing shards", [WriteShard.of(job, n) for n in range(job.shards)])
        statistics = Statistics(self._settings.max_length, job.factors, job.linked)
        for part in parts:
            statistics.merge(read_facts(job.dealt(part))["statistics"])
        return statistics, [read_shard_info(job, n) for n in range(job.shards)]

    def _do(self, label: str, tasks: list[EncodePart] | list[FindDuplicates] | list[DropDuplicates] | list[WriteShard]
            ) -> None:
        do_all(self._runner, label, tasks, self._stream)

    def _job(self) -> Job:
        settings = self._settings
        return Job(self._key, self.stage, settings.pair_filter, self.lines, len(self._parts),
                   -(-self.lines // settings.shard_pairs), settings.seed, settings.factors,
                   settings.alignments is not None, VOCABULARIES)
