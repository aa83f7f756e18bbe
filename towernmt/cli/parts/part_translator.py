"""What a worker does: it makes the translator that the command line asks for, and translates parts with it."""

from __future__ import annotations

import argparse
import io
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from towernmt.cli.translation.alignment_output import BEHIND, AlignmentOutput
from towernmt.cli.translation.answers import InputLines, json_answers, task_of, text_answers
from towernmt.cli.translation.line_options import options_by_lines, options_of_all_lines
from towernmt.cli.translation.translate import make_translator
from towernmt.core.machine.processor import take_share
from towernmt.dataflow.text.chunks import Chunk
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.parts.workers import PartResult, PartWork
from towernmt.predict.text_io import clean_lines


@dataclass(frozen=True)
class PartTranslatorMaker:
    """Makes the translator of a worker; it is pickled.

    Attributes:
        args: of the command line. `shares` says into how many batches few sentences are divided.
        processors: of a worker.
        beside: the files with a line for each line, by their options; a worker does not read them.
        gpus: that workers take in turn; empty: as the command line has it.
    """

    args: argparse.Namespace
    processors: int
    beside: Mapping[str, str]
    gpus: Sequence[str] = ()

    def __call__(self, number: int) -> CommandPartTranslator:
        """The translator of a worker."""
        take_share(self.processors)
        if self.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus[number % len(self.gpus)]
        if number:
            logging.disable(logging.INFO)   # worker 0 says it
        return CommandPartTranslator(self.args, self.beside)


class CommandPartTranslator:
    """Translates parts as `towernmt translate` translates a text.

    Attributes:
        task: what makes the translations what they are.
    """

    task: Mapping[str, Any]

    def __init__(self, args: argparse.Namespace, beside: Mapping[str, str]) -> None:
        without = {name.removeprefix("--"): None for name in beside}
        args = argparse.Namespace(**{**vars(args), **without})
        self._args, self._beside = args, beside
        self._translator = make_translator(args, log_probs=args.token_scores, attention=self._alignments().wanted,
                                           options=options_of_all_lines(args), retry=args.retry)
        # What stands in the files beside is in the plan.
        self.task = {**task_of(argparse.Namespace(**{**vars(args), "threads": 0}), self._translator),
                     **{name: "a file" for name in beside}}

    def __call__(self, work: PartWork) -> PartResult:
        """Translate a part."""
        text, links = io.BytesIO(), io.BytesIO()
        separate = self._args.alignments not in (None, BEHIND)
        faults = self._translator.faults = FaultCounts(work.name)
        given = InputLines(work.lines.lines, work.name, work.part.first, self._options(work), work.part.before)
        answers = json_answers if self._args.json else text_answers
        for lines in answers(self._args, self._translator, given, self._alignments(*[links] if separate else ())):
            text.writelines(line.encode("utf-8") + b"\n" for line in lines)
        files = [text.getvalue(), links.getvalue()] if separate else [text.getvalue()]
        return PartResult(files, faults.tokens, faults.as_json())

    def _alignments(self, *files: io.BytesIO) -> AlignmentOutput:
        return AlignmentOutput(self._args, files, None)

    def _options(self, work: PartWork) -> Any:
        """What each line asks for, by the files beside."""
        first = work.part.before + work.part.first
        found: dict[str, Any] = {}
        for (name, file), lines in zip(self._beside.items(), work.lines.beside, strict=True):
            found[name] = (clean_lines(lines, file, first) if name == "--prefix"
                           else Chunk(file, first, len(lines), b"".join(lines)).decode())
        return options_by_lines(found.get("--prefix"), found.get("--constraints"))
