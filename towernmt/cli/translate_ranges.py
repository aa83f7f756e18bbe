"""`towernmt translate` of very many lines: ranges of lines are translated by several workers.

A worker creates the translator that the command line requests, and translates ranges with it. The command watches the
job, which `towernmt.predict.ranges` describes.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from towernmt.cli.request_options import files_of_each_line, files_of_lines, options_by_lines, options_of_all_lines
from towernmt.cli.translation_output import (
    APPENDED,
    AlignmentOutput,
    LinesToTranslate,
    check_alignment_options,
    json_answers,
    task_of,
    text_answers,
)
from towernmt.cli.translator_options import log_without_tensorpack, make_translator
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.gpus import visible_gpus
from towernmt.core.machine import cleanup_on_signal, limit_processors, processors
from towernmt.dataflow.storage.stored_files import split_compression
from towernmt.dataflow.text.text_lines import Chunk, check_rereadable, clean_lines
from towernmt.farm.farm import Farm, LocalWorkers, Workers
from towernmt.farm.ray_workers import connect_workers
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.lines.output_file import check_apart
from towernmt.predict.lines.resumable import ENGINE
from towernmt.predict.lines.text_io import as_utf8
from towernmt.predict.ranges.job import RangeJob, RangeResult, RangeTask, translation_farm
from towernmt.predict.ranges.outputs import (
    NAME_PLACEHOLDER,
    check_writable_output,
    is_per_text,
    is_remote,
    output_paths,
    without_options,
)
from towernmt.predict.ranges.plan import FileText, Plan, RangeReader, Text, is_plan_of, make_plan, open_texts
from towernmt.predict.ranges.work_directory import WorkDirectory
from towernmt.predict.search.search_settings import StreamSettings

_MAGIC = "*?["


def add_range_options(parser: argparse.ArgumentParser) -> None:
    """Add `--workers` and its further options."""
    group: Any = parser.add_argument_group("very many lines")
    group.add_argument("--workers", type=int, metavar="N",
                       help="divide the lines into ranges, which N processes translate; they share the processors (or "
                            "the GPUs), a lost process is restarted, and the same command resumes after a stop")
    group.add_argument("--ray", nargs="?", const="", metavar="ADDRESS",
                       help="translate the ranges by --workers workers (default: one for each processor or GPU) on "
                            "the Ray cluster at ADDRESS, or the running one, or a new one on this machine (needs "
                            "towernmt[ray])")
    group.add_argument("--work-directory", metavar="DIRECTORY",
                       help="directory of the ranges until all are translated (default: the output's name and "
                            ".ranges); processes on several machines can share it to work on one translation")


def wants_ranges(args: argparse.Namespace) -> bool:
    """Return whether the inputs are translated in ranges.

    They are by request, if they are not one plain file, if the name of an output depends on that of its input, or if an
    output is in S3.
    """
    inputs, outputs = args.input or [], {args.output, args.alignments} - {None, APPENDED}
    return (args.workers is not None or args.ray is not None or args.work_directory is not None
            or len(inputs) > 1 or not all(map(_is_plain_file, inputs))
            or any(is_per_text(output) or is_remote(output) for output in outputs))


def _is_plain_file(name: str) -> bool:
    if split_compression(name)[1] is not None or "://" in name:
        return False
    return set(name).isdisjoint(_MAGIC) or os.path.lexists(name)


@dataclass(frozen=True)
class RangeTranslatorMaker:
    """Makes the translator of a worker; it is pickled.

    Attributes:
        args: the parsed options. A small number of sentences is divided into `shares` batches.
        processors: number of processors of a worker.
        parallel_files: the files with a line for each input line, by their options; a worker does not read them.
        begun_engine: see `make_translator`.
        gpus: assigned to the workers in turn; empty for the devices of the command line.
    """

    args: argparse.Namespace
    processors: int
    parallel_files: Mapping[str, str]
    begun_engine: str | None
    gpus: Sequence[str] = ()

    def __call__(self, number: int) -> CommandRangeTranslator:
        """Return the translator of a worker."""
        limit_processors(self.processors)
        if self.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus[number % len(self.gpus)]
        if number:
            logging.disable(logging.INFO)   # only worker 0 logs
        return CommandRangeTranslator(self.args, self.parallel_files, self.begun_engine)


class CommandRangeTranslator:
    """Translate ranges of lines like `towernmt translate`.

    Attributes:
        description: options that determine the translations.
    """

    description: Mapping[str, Any]

    def __init__(self, args: argparse.Namespace, parallel_files: Mapping[str, str],
                 begun_engine: str | None) -> None:
        overrides = {name.removeprefix("--"): None for name in parallel_files}
        args = argparse.Namespace(**{**vars(args), **overrides})
        self._args, self._parallel_files = args, parallel_files
        self._translator = make_translator(args, log_probs=args.token_scores,
                                           attention=self._alignments().needs_attention,
                                           options=options_of_all_lines(args), retry=args.retry, export_first=True,
                                           begun_engine=begun_engine)
        # The plan contains the contents of these files.
        self.description = {**task_of(argparse.Namespace(**{**vars(args), "threads": 0}), self._translator),
                            **{name: "a file" for name in parallel_files}}

    def __call__(self, work: RangeTask) -> RangeResult:
        """Translate a range of lines."""
        text, links = io.BytesIO(), io.BytesIO()
        separate = self._args.alignments not in (None, APPENDED)
        faults = self._translator.faults = FaultCounts(work.name)
        inputs = LinesToTranslate(work.lines.lines, work.name, work.line_range.first_line, self._options(work),
                                 work.line_range.lines_before)
        answer_lines = json_answers if self._args.json else text_answers
        for lines in answer_lines(self._args, self._translator, inputs, self._alignments(*[links] if separate else ())):
            text.writelines(map(as_utf8, lines))
        files = [text.getvalue(), links.getvalue()] if separate else [text.getvalue()]
        return RangeResult(files, faults.tokens, faults.as_json())

    def _alignments(self, *files: io.BytesIO) -> AlignmentOutput:
        return AlignmentOutput(self._args, files, None)

    def _options(self, work: RangeTask) -> Any:
        """Return the requests of each line from the files with one line for each input line."""
        first = work.line_range.lines_before + work.line_range.first_line
        contents: dict[str, Any] = {}
        for (name, file), lines in zip(self._parallel_files.items(), work.lines.parallel, strict=True):
            contents[name] = (clean_lines(lines, file, first) if name == "--prefix"
                           else Chunk(file, first, len(lines), b"".join(lines)).decode())
        return options_by_lines(contents.get("--prefix"), contents.get("--constraints"))


def translate_ranges(args: argparse.Namespace) -> int:
    """Translate ranges of lines with several workers, and return the exit status.

    Args:
        args: parsed options.

    Raises:
        SettingsError: options that exclude each other.
        DataError: an input cannot be read, an output cannot be written, or a line cannot be translated.
    """
    _check(args)
    log_without_tensorpack()
    texts = open_texts(args.input)
    files = files_of_each_line(args)
    parallel_texts = [text for file in files.values() for text in open_texts([file])]
    outputs = _outputs(args, texts)
    directory = WorkDirectory(args.work_directory or _work_directory(args.output))
    directory.check()
    resumed = directory.task()
    args.window = StreamSettings.window if args.window is None else args.window
    args.shares = resumed["--shares"] if resumed else args.threads or processors()
    workers = _workers(args, files, resumed.get(ENGINE) if resumed else None)
    farm = translation_farm(workers, directory.path)

    def stop() -> None:
        farm.stop()
        if directory.in_progress:
            print(f"{directory.path} contains the finished ranges: the same command resumes with them.",
                  file=sys.stderr)

    is_late = False
    try:
        with cleanup_on_signal(stop):
            farm.start(1)
            plan = _plan(args, directory, texts, parallel_texts, outputs)
            task = farm.wait_for_first()
            begun_task = directory.task() if resumed is None else None
            is_late = begun_task is not None and any(begun_task.get(key) != task[key] for key in ("--shares", ENGINE))
            if not is_late:
                directory.begin({**task, "--output": args.output}, plan)
                _translate(directory, plan, texts, parallel_texts, outputs, farm, task)
    except KeyboardInterrupt:
        stop()
        raise
    finally:
        farm.stop()
    # A command on another machine was faster: its batches and its engine are those of all machines.
    return translate_ranges(args) if is_late else 0


@dataclass(frozen=True)
class _Outputs:
    """The output files.

    Attributes:
        of_texts: for each text the number of its output.
        files: for each output the file of translations, and the file of word alignments if it is separate.
    """

    of_texts: list[int]
    files: list[list[str]]


def _check(args: argparse.Namespace) -> None:
    if args.workers is not None and args.workers < 1:
        raise SettingsError(f"--workers {args.workers} must be at least 1.")
    if args.window is not None:
        StreamSettings(window=args.window)      # raises an error if it is not valid
    if not (args.input and args.output):
        raise SettingsError("To translate in ranges of lines, pass --input and --output: a pipe cannot be read or "
                            "written in ranges.")
    if args.ray is not None and args.gpu is not None:
        raise SettingsError(f"--gpu {args.gpu}: with --ray, Ray assigns a GPU to each worker: leave out --gpu.")
    if args.plot:
        raise SettingsError("--plot works in a single process: pass one plain file as --input and one as --output, and "
                            "leave out --workers.")
    for file in (args.avoid, args.terminology, args.replace_unknown):
        if isinstance(file, str):
            check_rereadable(file)      # each worker reads it
    check_alignment_options(args)


def _outputs(args: argparse.Namespace, texts: Sequence[Text]) -> _Outputs:
    """Return the outputs, after checking that each can be written.

    Raises:
        SettingsError: two texts have the same output file although each should have its own.
        DataError: an output is also an input, or cannot be written.
    """
    paths = [output_paths(args.output, texts)]
    if args.alignments not in (None, APPENDED):
        if is_per_text(args.alignments) != is_per_text(args.output):
            raise SettingsError(f"--alignments {args.alignments} and --output {args.output}: pass a file for each text "
                                "to both, or one file for all texts to both.")
        paths.append(output_paths(args.alignments, texts))
        if set(paths[0]) & set(paths[1]):
            raise SettingsError(f"--alignments {args.alignments} is also --output: pass another file.")
    files = list(dict.fromkeys(zip(*paths, strict=True)))
    input_by_file = _by_file([text.name for text in texts if isinstance(text, FileText)])
    remote = {without_options(text.name) for text in texts if is_remote(text.name)}
    for option, option_paths in zip(("--output", "--alignments"), zip(*files, strict=True), strict=False):
        for path in option_paths:
            if is_remote(path) and without_options(path) in remote:
                raise DataError(f"{option} {path} is also an --input, which would be overwritten: pass another "
                                "object.")
            if not is_remote(path):
                if args.work_directory and Path(os.path.realpath(args.work_directory)) in (
                        Path(os.path.realpath(path)).parents):
                    raise SettingsError(f"{option} {path} lies in --work-directory {args.work_directory}: pass "
                                        "another directory for the ranges.")
                input_names = [name for file in _by_file([path]) if (name := input_by_file.get(file)) is not None]
                check_apart((option, path), {"--input": input_names, **files_of_lines(args)})
                check_writable_output(path)
        for path in islice(filter(is_remote, option_paths), 1):      # all are in the same directory
            check_writable_output(path)
    numbers = {path: number for number, path in enumerate(files)}
    return _Outputs([numbers[path] for path in zip(*paths, strict=True)], [list(path) for path in files])


def _by_file(names: Iterable[str]) -> dict[tuple[int, int], str]:
    """Return the names of existing local files by device and inode."""
    name_by_file = {}
    for name in names:
        if not is_remote(name) and os.path.exists(name):
            status = os.stat(name)
            name_by_file[status.st_dev, status.st_ino] = name
    return name_by_file


def _work_directory(output: str) -> Path:
    """Return the default work directory: next to a local output, or in the current directory for one in S3."""
    name = without_options(output).rstrip("/").replace(NAME_PLACEHOLDER, "all") + ".ranges"
    return Path(name.rpartition("/")[2]) if is_remote(output) else Path(name)


def _workers(args: argparse.Namespace, parallel_files: Mapping[str, str], begun_engine: str | None) -> Workers:
    if args.ray is not None:
        return connect_workers(RangeTranslatorMaker(args, 1, parallel_files, begun_engine), args.workers, args.ray,
                               not args.cpu, logging.getLogger("towernmt").info)
    count = args.workers or 1
    gpus = [] if args.cpu or args.gpu is not None or count == 1 else visible_gpus()
    maker = RangeTranslatorMaker(args, max(1, processors() // count), parallel_files, begun_engine, gpus)
    return LocalWorkers(maker, count)


def _plan(args: argparse.Namespace, directory: WorkDirectory, texts: Sequence[Text], parallel_texts: Sequence[Text],
          outputs: _Outputs) -> Plan:
    """Return the plan of the interrupted translation if its texts are unchanged, otherwise a new plan."""
    unfinished_plan = directory.plan()
    if unfinished_plan is not None and is_plan_of(unfinished_plan, texts, parallel_texts, args.window):
        return unfinished_plan
    if unfinished_plan is not None:
        print(f"The inputs may have changed since {directory.path} was created: they are read again, and ranges with "
              "changed lines are translated again.", file=sys.stderr)
    units = None if unfinished_plan is None else unfinished_plan.units_per_range
    return make_plan(texts, parallel_texts, outputs.of_texts, args.window, units)


def _translate(directory: WorkDirectory, plan: Plan, texts: Sequence[Text], parallel_texts: Sequence[Text],
               outputs: _Outputs, farm: Farm, task: Mapping[str, Any]) -> None:
    reader = RangeReader(plan, texts, parallel_texts)
    job = RangeJob(directory, plan, reader, [text.name for text in texts], outputs.files, farm, sys.stderr)
    if job.lines_done:
        print(f"{directory.path}: resuming; {job.lines_done:,} of {plan.lines:,} lines are done.", file=sys.stderr)
    job.run(task)
