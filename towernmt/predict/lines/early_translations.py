"""Second translations that begin before the first ones end.

A line with typos or in capitals is translated a second time whatever its first translation is. Both searches run at the
same time, so that no processor waits between them at the end of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import cached_property

from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineRequest, TranslateRequests


class EarlyTranslations:
    """A `TranslateRequests` that has begun the translation of some requests in another thread.

    Args:
        pool: pool of the thread.
        translate: translates requests, also in several threads at the same time.
        requests: requests whose translation begins now, without inputs of their own.
    """

    def __init__(self, pool: Executor, translate: TranslateRequests, requests: Sequence[LineRequest]) -> None:
        self._translate, self._requests = translate, requests
        self._future = pool.submit(self._translations) if requests else None

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
