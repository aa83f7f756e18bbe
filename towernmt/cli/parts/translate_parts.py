"""`towernmt translate` in parts: from its options to the job, which it watches."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from towernmt.cli.parts.part_translator import PartTranslatorMaker
from towernmt.cli.translation.alignment_output import BEHIND, check_alignment_options
from towernmt.cli.translation.line_options import files_of_each_line, files_of_lines
from towernmt.cli.translation.translate import log_without_tensorpack
from towernmt.core.errors import SettingsError
from towernmt.core.machine.processor import processors
from towernmt.core.machine.visible_gpus import visible_gpus
from towernmt.core.terminal.ending_signals import cleaned_up
from towernmt.predict.decoding.settings import StreamSettings
from towernmt.predict.output_file import check_apart
from towernmt.predict.parts.job import PartJob, first_task
from towernmt.predict.parts.outputs import NAME, check_place, is_of_each, is_remote, output_paths, without_options
from towernmt.predict.parts.plan import PartReader, Plan, is_plan_of, make_plan
from towernmt.predict.parts.texts import FileText, Text, open_texts
from towernmt.predict.parts.work_directory import WorkDirectory
from towernmt.predict.parts.workers import LocalWorkers, Workers


def translate_parts(args: argparse.Namespace) -> int:
    """Translate; returns the exit status.

    Raises:
        SettingsError: options that do not go with it.
        DataError: an input cannot be read, an output cannot be written, or a line cannot be translated.
    """
    _check(args)
    log_without_tensorpack()
    texts = open_texts(args.input)
    files = files_of_each_line(args)
    beside = [text for file in files.values() for text in open_texts([file])]
    outputs = _outputs(args, texts)
    directory = WorkDirectory(args.work_directory or _work_directory(args.output))
    begun = directory.task()
    args.window = args.window or StreamSettings.window
    args.shares = begun["--shares"] if begun else args.threads or processors()
    workers = _workers(args, files)

    def stop() -> None:
        workers.stop()
        if directory.is_there:
            print(f"{directory.path} keeps the parts that are done: the same command goes on with them.",
                  file=sys.stderr)

    try:
        with cleaned_up(stop):
            workers.start(0)
            plan = _plan(args, directory, texts, beside, outputs)
            task = first_task(workers)
            directory.begin({**task, "--output": args.output}, plan)
            _translate(directory, plan, texts, beside, outputs, workers, task)
    except KeyboardInterrupt:
        stop()
        raise
    finally:
        workers.stop()
    return 0


@dataclasses.dataclass(frozen=True)
class _Outputs:
    """Where translations go.

    Attributes:
        of_texts: for each text the number of its output.
        files: of each output: of the translations, and of the links if they have a file of their own.
    """

    of_texts: list[int]
    files: list[list[str]]


def _check(args: argparse.Namespace) -> None:
    if args.workers is not None and args.workers < 1:
        raise SettingsError(f"--workers {args.workers}: at least 1 is needed.")
    if not (args.input and args.output):
        raise SettingsError("To translate in parts, pass --input and --output: what goes through a pipe cannot be "
                            "read or written in parts.")
    if args.plot:
        raise SettingsError("--plot draws pictures of a few lines: translate these by one process, without --workers.")
    check_alignment_options(args)


def _outputs(args: argparse.Namespace, texts: Sequence[Text]) -> _Outputs:
    """The outputs, of which each can be written.

    Raises:
        SettingsError: two texts would be written to one file, though each should have its own.
        DataError: a file is read, or cannot be written.
    """
    paths = [output_paths(args.output, texts)]
    if args.alignments not in (None, BEHIND):
        if is_of_each(args.alignments) != is_of_each(args.output):
            raise SettingsError(f"--alignments {args.alignments} and --output {args.output}: give a file for each text "
                                "to both, or one for all.")
        paths.append(output_paths(args.alignments, texts))
        if set(paths[0]) & set(paths[1]):
            raise SettingsError(f"--alignments {args.alignments} is --output, too: choose another file.")
    files = list(dict.fromkeys(zip(*paths, strict=True)))
    read = _by_file([text.name for text in texts if isinstance(text, FileText)])
    for option, places in zip(("--output", "--alignments"), zip(*files, strict=True), strict=False):
        for place in places:
            if not is_remote(place):
                same = [name for file in _by_file([place]) if (name := read.get(file)) is not None]
                check_apart((option, place), {"--input": same, **files_of_lines(args)}, args.model)
                check_place(place)
        for place in islice(filter(is_remote, places), 1):      # all are in one folder
            check_place(place)
    numbers = {place: number for number, place in enumerate(files)}
    return _Outputs([numbers[place] for place in zip(*paths, strict=True)], [list(place) for place in files])


def _by_file(names: Iterable[str]) -> dict[tuple[int, int], str]:
    """The names of the local files that are there, each by what it is on its disk."""
    found = {}
    for name in names:
        if not is_remote(name) and os.path.exists(name):
            status = os.stat(name)
            found[status.st_dev, status.st_ino] = name
    return found


def _work_directory(output: str) -> Path:
    """The directory beside an output; of one in S3, here."""
    name = without_options(output).rstrip("/").replace(NAME, "all") + ".parts"
    return Path(name.rpartition("/")[2]) if is_remote(output) else Path(name)


def _workers(args: argparse.Namespace, beside: Mapping[str, str]) -> Workers:
    if args.ray is not None:
        from towernmt.predict.parts.ray_workers import RayWorkers

        return RayWorkers(PartTranslatorMaker(args, 1, beside), args.workers, args.ray, not args.cpu)
    count = args.workers or 1
    gpus = [] if args.cpu or args.gpu is not None or count == 1 else visible_gpus()
    return LocalWorkers(PartTranslatorMaker(args, max(1, processors() // count), beside, gpus), count)


def _plan(args: argparse.Namespace, directory: WorkDirectory, texts: Sequence[Text], beside: Sequence[Text],
          outputs: _Outputs) -> Plan:
    """That of the translation that was begun, if the texts are as they were, or a new one."""
    former = directory.plan()
    if former is not None and is_plan_of(former, texts, beside, args.window):
        return former
    if former is not None:
        print(f"The inputs are not as they were when {directory.path} was begun: they are read again, and parts whose "
              "lines are others now are translated again.", file=sys.stderr)
    return make_plan(texts, beside, outputs.of_texts, args.window, former.units if former else None)


def _translate(directory: WorkDirectory, plan: Plan, texts: Sequence[Text], beside: Sequence[Text], outputs: _Outputs,
               workers: Workers, task: Mapping[str, Any]) -> None:
    job = PartJob(directory, plan, PartReader(plan, texts, beside), [text.name for text in texts], outputs.files,
                  workers, sys.stderr)
    if job.lines_done:
        print(f"{directory.path}: going on; {job.lines_done:,} of {plan.lines:,} lines are done.", file=sys.stderr)
    job.run(task)
