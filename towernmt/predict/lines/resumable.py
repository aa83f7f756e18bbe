"""An output that is written line by line, and that another process can go on with after a stop."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from towernmt.core.errors import DataError
from towernmt.predict.lines.journal import InputLines, Journal, Mark, read_journal, unfinished_output
from towernmt.predict.output_file import output_file

log = logging.getLogger(__name__)


class LineOutput:
    """Lines that are written for the lines of an input.

    Attributes:
        start: what was done before, and is not to be done again.
    """

    def __init__(self, stream: BinaryIO, window: int = 1, journal: Journal | None = None, start: Mark = Mark()  # noqa: B008
                 ) -> None:
        """
        Args:
            stream: what is written to.
            window: of the translation: at its end everything before is done.
            journal: where that is noted; None: nowhere.
            start: immutable.
        """
        self.start, self._stream, self._window, self._journal = start, stream, window, journal
        self._input: InputLines | None = None

    def lines_of(self, stream: BinaryIO, name: str) -> Iterable[bytes]:
        """The lines of an input that are to be done.

        Args:
            stream: from its beginning.
            name: of the input, for errors.
        Raises:
            DataError: it does not begin as the one that was begun with.
        """
        if self._journal is None:
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
        if self._journal is not None and self._input is not None and number % self._window == 0:
            self._journal.add(self._input.done(number, self._stream.tell()))


@contextmanager
def resumable_output(path: str, window: int, task: Mapping[str, Any], resume: bool) -> Iterator[LineOutput]:
    """A file to write lines to, as `output_file` has it, with a journal beside it until it is done.

    Args:
        path: where the lines go.
        window: see `LineOutput`.
        task: what is done, as JSON has it: what must be the same to go on.
        resume: go on with what was begun; from the beginning, if there is nothing.
    Raises:
        DataError: it cannot be written, or what was begun was another task, or is being written to.
    """
    begun: list[tuple[Journal, Mark]] = []

    def begin(unfinished: Path) -> BinaryIO:
        target = unfinished.with_name(unfinished.name.rpartition(".unfinished-")[0])
        earlier = unfinished_output(target) if resume else None
        start = Mark() if earlier is None else read_journal(earlier, task)
        # Until the output has its new name, the old journal goes with it; from then on the new one does.
        journal = Journal(unfinished, task, start)
        begun.append((journal, start))
        if earlier is None:
            return open(unfinished, "wb")
        if earlier != unfinished:
            earlier.replace(unfinished)
            Path(f"{earlier}{journal.path.suffix}").unlink()
        stream = open(unfinished, "r+b")
        stream.truncate(start.output_bytes)
        stream.seek(start.output_bytes)
        return stream

    try:
        with output_file(path, begin) as stream:
            yield LineOutput(stream, window, *(begun[0] if begun else ()))
    except BaseException:
        for journal, _ in begun:
            journal.close()
            if journal.path.with_suffix("").exists():
                log.warning("%s: the same command with --resume goes on with it.", path)
            else:
                journal.remove()
        raise
    if resume and not begun:
        raise DataError(f"{path} is no regular file, so there is nothing to go on with: leave out --resume.")
    for journal, _ in begun:
        journal.remove()
