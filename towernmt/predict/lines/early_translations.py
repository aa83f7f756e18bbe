"""Read lines, and begin their second translations before the first ones end.

A line with typos or in capitals is translated a second time whatever its first translation is. Both searches run at the
same time, so that no processor waits between them at the end of a text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from towernmt.core.errors import DataError
from towernmt.core.thread_maps import Calls
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineRequest, TranslateRequests

if TYPE_CHECKING:
    from towernmt.predict.lines.second_translations import SpecialLine


class EarlyTranslations:
    """A `TranslateRequests` that has begun the translation of some requests in another thread.

    Args:
        calls: calls in the other thread.
        translate: translates requests, also in several threads at the same time.
        requests: requests whose translation begins now, without inputs of their own.
    """

    def __init__(self, calls: Calls, translate: TranslateRequests, requests: Sequence[LineRequest]) -> None:
        self._translate, self._requests = translate, requests
        self._future = calls.submit(self._translations) if requests else None

    def __call__(self, requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        """Yield the translation of each request: the one that has begun, or a new one."""
        requests = list(requests)
        early = [self._early_translation(request) for request in requests]
        missing = [request for request, translation in zip(requests, early, strict=True) if translation is None]
        new = iter(self._translate(missing, again=again)) if missing else iter(())
        for translation in early:
            yield next(new) if translation is None else translation

    def _early_translation(self, request: LineRequest) -> Translation | None:
        early_request, translation = self._by_text.get(request.text, (None, None))
        return translation if early_request == request else None

    @cached_property
    def _by_text(self) -> dict[str, tuple[LineRequest, Translation]]:
        """Return each request and its translation by its text; none if one failed, which then fails again."""
        if self._future is None or self._future.exception() is not None:
            return {}
        pairs = zip(self._requests, self._future.result(), strict=True)
        return {request.text: (request, translation) for request, translation in pairs}

    def _translations(self) -> list[Translation]:
        return list(self._translate(self._requests, again=True))


class TranslatedPart(NamedTuple):
    """Consecutive lines with their first translations.

    Attributes:
        lines: request of each line, what is special about it or None, and its first translation.
        translate: translates requests; has begun with second translations if they begin early.
        ends_window: whether this is the last part of a window.
    """

    lines: Sequence[tuple[LineRequest, SpecialLine | None, Translation]]
    translate: TranslateRequests
    ends_window: bool

    @property
    def is_ordinary(self) -> bool:
        """Whether no line is special."""
        return all(line is None for _, line, _ in self.lines)


class LineReader:
    """Reads lines, and lets their first translations begin, and second translations that do not depend on them.

    Args:
        special_line: returns what is special about a line, or None.
        special_by_translation: returns the same about an ordinary line with its first translation.
        translate: translates requests.
        window: number of requests of a window.
        part: number of lines of a part.
        calls: calls of second translations in another thread; None if they do not begin early.

    Attributes:
        error: the error that ended the lines, or None.
    """

    def __init__(self, special_line: Callable[[LineRequest], SpecialLine | None],
                 special_by_translation: Callable[[LineRequest, Translation], SpecialLine | None],
                 translate: TranslateRequests, window: int, part: int, calls: Calls | None) -> None:
        self._special_line, self._special_by_translation = special_line, special_by_translation
        self._translate, self._window, self._part, self._calls = translate, window, part, calls
        self._lines: deque[tuple[LineRequest, SpecialLine | None]] = deque()
        self._early: dict[int, EarlyTranslations] = {}      # by the number of the window
        self._finished = 0      # number of lines in the parts that were yielded
        self.error: DataError | None = None

    def parts(self, requests: Iterable[LineRequest]) -> Iterator[TranslatedPart]:
        """Yield the lines with their first translations. After an error, the lines before it are yielded."""
        lines: list[tuple[LineRequest, SpecialLine | None, Translation]] = []
        number = 0
        try:
            for number, translation in enumerate(self._translate(self._read(requests), again=False), start=1):
                request, line = self._lines.popleft()
                lines.append((request, line or self._special_by_translation(request, translation), translation))
                if len(lines) == self._part or number % self._window == 0:
                    yield self._part_of(lines, number)
                    lines = []
        except DataError as error:
            self.error = error
        yield self._part_of(lines, number + 1)

    def _part_of(self, lines: Sequence[tuple[LineRequest, SpecialLine | None, Translation]],
                 number: int) -> TranslatedPart:
        """Return a part whose last line has this number."""
        window = (number - 1) // self._window
        self._finished += len(lines)
        self._early.pop(window - 1, None)
        return TranslatedPart(lines, self._early.get(window, self._translate), number % self._window == 0)

    def _read(self, requests: Iterable[LineRequest]) -> Iterator[LineRequest]:
        """Yield the requests of the first translations; those of copied lines are empty."""
        special_lines: dict[int, SpecialLine] = {}
        number = 0
        for number, request in enumerate(requests, start=1):
            line = self._special_line(request)
            self._lines.append((request, line))
            special_lines |= {} if line is None else {number: line}
            if number % self._window == 0:
                self._begin_early(special_lines, number)
                special_lines = {}
            yield request if line is None or not line.is_copied else replace(request, text="")
        self._begin_early(special_lines, number)

    def _begin_early(self, special_lines: Mapping[int, SpecialLine], last: int) -> None:
        """Begin the second translations of a window.

        Args:
            special_lines: special lines by their number.
            last: number of the last line of the window.
        """
        if self._calls is not None and special_lines:
            self._early[(last - 1) // self._window] = EarlyTranslations(self._calls, self._translate, [
                request for number, line in special_lines.items() if number > self._finished
                for request in line.early_requests(self._translate)])
