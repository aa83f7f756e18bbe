"""A stream of translations reads window by window, however many stages and threads translate them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict import line_translator, stream
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.batch_inputs import LinePiece
from towernmt.predict.lines.hypotheses import Hypothesis, SearchOutput
from towernmt.predict.reranking import Reranker
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings

WORDS = WordVocabulary([*SPECIAL_PIECES, "the", "device", "is", "here"])


class EchoSearch:
    """Translates a sentence into itself."""

    def __call__(self, source: np.ndarray, source_length: np.ndarray) -> SearchOutput:
        return SearchOutput(source[:, None], np.full([len(source), 1], -0.1, np.float32))

    def with_settings(self, changed: Mapping[str, Any]) -> EchoSearch:
        return self


class DividingEchoSearch(EchoSearch):
    """A search that gets a window in parts."""

    def is_undivided(self, piece: LinePiece) -> bool:
        return True

    def without_details(self, changed: Mapping[str, Any]) -> EchoSearch:
        return self

    def among_others(self) -> DividingEchoSearch:
        return self


class Unchanged(Reranker):
    """Keeps the order of the hypotheses."""

    def __call__(self, sources: Sequence[str], lists: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        return [list(hypotheses) for hypotheses in lists]


@given(lines=st.lists(st.sampled_from(["the device", "THE DEVICE IS", "here", "", "12", "see https://x.de"]),
                      max_size=30),
       window=st.integers(1, 13), least_part=st.integers(1, 7), max_parts=st.integers(1, 5),
       reranked=st.sampled_from([0, 1, 3]), divides=st.booleans(), fails=st.booleans())
def test_a_window_is_translated_completely_before_the_next_one_is_read(
        lines: list[str], window: int, least_part: int, max_parts: int, reranked: int, divides: bool, fails: bool
        ) -> None:
    num_read, num_translated, has_failed = 0, 0, False

    def read() -> Iterator[str]:
        nonlocal num_read
        for line in lines:
            num_read += 1
            yield line
        if fails:
            raise DataError("the next line is broken")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_LEAST_PART", least_part)
        patch.setattr(stream, "_PARTS", max_parts)
        patch.setattr(line_translator, "WINDOW", reranked)
        translator = LineTranslator(
            DividingEchoSearch() if divides else EchoSearch(), WORDS, WORDS, checkpoint="", search=SearchSettings(),
            stream=StreamSettings(window=window), reranker=Unchanged() if reranked else None)
        try:
            for _ in translator.translate_stream(read()):
                assert num_read == min((num_translated // window + 1) * window, len(lines))
                num_translated += 1
        except DataError:
            has_failed = True
    assert num_translated == len(lines) and has_failed == fails
