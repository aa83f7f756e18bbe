"""Outputs that are written line by line, and that another process can go on with after a stop."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from towernmt.core.errors import DataError
from towernmt.predict.lines.journal import InputLines, Journal, Mark, read_journal, unfinished_output
from towernmt.predict.output_file import output_file, told

log = logging.getLogger(__name__)


class Journalled(NamedTuple):
    """A file that is written, and the journal that says how far it has come."""

    stream: BinaryIO
    journal: Journal


class LineOutput:
    """Lines that are written for the lines of an input.

    Attributes:
        start: what was done before, and is not to be done again.
        further: what else is written in step with the lines; who writes to these has flushed what belongs to a line
            before `write` is called for it.
    """

    def __init__(self, stream: BinaryIO, window: int = 1, start: Mark = Mark(),  # noqa: B008 -- immutable
                 journalled: Sequence[Journalled] = (), further: Sequence[BinaryIO] = ()) -> None:
        """
        Args:
            stream: what is written to.
            window: of the translation: at its end everything before is done.
            start: see above.
            journalled: the files whose journals are told of that.
            further: see above.
        """
        self.start, self.further = start, list(further)
        self._stream, self._window, self._journalled = stream, window, list(journalled)
        self._input: InputLines | None = None

    def lines_of(self, stream: BinaryIO, name: str) -> Iterable[bytes]:
        """The lines of an input that are to be done.

        Args:
            stream: from its beginning.
            name: of the input, for errors.
        Raises:
            DataError: it does not begin as the one that was begun with.
        """
        if not self._journalled:
            return stream
        self._input = InputLines(stream, name, self.start)
        return self._input

    def write(self, number: int, lines: Iterable[str]) -> None:
        """Write what belongs to a line of the input, as UTF-8, and flush it.

        Args:
            number: of the input's line, from 1.
        """
        for line in lines:
            self._stream.write(line.encode("utf-8") + b"\n")
        self._stream.flush()
        if self._input is not None and number % self._window == 0:
            mark = self._input.done(number, self._stream.tell())
            for stream, journal in self._journalled:
                journal.add(mark._replace(output_bytes=stream.tell()))


@contextmanager
def resumable_output(path: str, window: int, task: Mapping[str, Any], resume: bool,
                     further: Sequence[str] = ()) -> Iterator[LineOutput]:
    """A file to write lines to, as `output_file` has it, with a journal beside it until it is done.

    Args:
        path: where the lines go.
        window: see `LineOutput`.
        task: what is done, as JSON has it: what must be the same to go on.
        resume: go on with what was begun; from the beginning, if there is nothing.
        further: files that are written in step with it, each with a journal of its own. They are gone on with from the
            last place that all of them have reached.
    Raises:
        DataError: it cannot be written, or what was begun was another task, or is being written to.
    """
    paths = [path, *further]
    begun = [_begun(one, task, resume) for one in paths]
    start = _reached_by_all(begun)
    try:
        with ExitStack() as files:
            streams = [files.enter_context(output_file(one, file.begin))
                       for one, file in zip(paths, begun, strict=True)]
            journalled = [Journalled(stream, file.journal) for stream, file in zip(streams, begun, strict=True)
                          if file.journal is not None]
            yield LineOutput(streams[0], window, start, journalled, streams[1:])
    except BaseException:
        for one, file in zip(paths, begun, strict=True):
            file.stop(one)
        raise
    for one, file in zip(paths, begun, strict=True):
        if file.journal is not None:
            file.journal.remove()
        elif resume:
            raise DataError(f"{one} is no regular file, so there is nothing to go on with: leave out --resume.")


class _Begun:
    """An output that an earlier process may have begun.

    Attributes:
        marks: the places that it has reached, the beginning first.
        start: where it is gone on with.
        journal: None until it is opened, and of what is no regular file.
    """

    def __init__(self, target: Path, task: Mapping[str, Any], resume: bool) -> None:
        self._task = task
        self._earlier = unfinished_output(target) if resume else None
        self.marks = [Mark()] if self._earlier is None else [Mark(), *read_journal(self._earlier, task)]
        self.start = self.marks[0]
        self.journal: Journal | None = None

    def begin(self, unfinished: Path) -> BinaryIO:
        """Open the unfinished file behind the start."""
        # Until the output has its new name, the old journal goes with it; from then on the new one does.
        self.journal = Journal(unfinished, self._task, self.start)
        if self._earlier is None:
            return open(unfinished, "wb")
        if self._earlier != unfinished:
            self._earlier.replace(unfinished)
            Path(f"{self._earlier}{self.journal.path.suffix}").unlink()
        stream = open(unfinished, "r+b")
        stream.truncate(self.start.output_bytes)
        stream.seek(self.start.output_bytes)
        return stream

    def stop(self, path: str) -> None:
        """Keep what was written, and say so; keep nothing of nothing."""
        if self.journal is None:
            return
        self.journal.close()
        if self.journal.path.with_suffix("").exists():
            log.warning("%s: the same command with --resume goes on with it.", path)
        else:
            self.journal.remove()


def _begun(path: str, task: Mapping[str, Any], resume: bool) -> _Begun:
    with told(path):
        return _Begun(Path(os.path.realpath(path)), task, resume)


def _reached_by_all(begun: Sequence[_Begun]) -> Mark:
    """Let all outputs go on behind the last line that each has a mark behind; gives the first output's mark."""
    lines = max(set.intersection(*({mark.lines for mark in file.marks} for file in begun)))
    for file in begun:
        file.start = next(mark for mark in reversed(file.marks) if mark.lines == lines)
    return begun[0].start
