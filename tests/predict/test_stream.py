"""Lines to lines, by a fake predictor. No test imports TensorFlow."""

from __future__ import annotations

import io
import logging
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from towernmt.core.errors import DataError, DivergenceError, SettingsError
from towernmt.core.thread_maps import map_in_threads
from towernmt.dataflow.text.text_lines import clean_lines
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, Vocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.batch_inputs import plan_batches
from towernmt.predict.lines.hypotheses import Hypothesis, SearchOutput
from towernmt.predict.lines.line_options import LineOptions, LineRequest, line_requests
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.text_io import read_text
from towernmt.predict.lines.words_of_lines import cuts_of
from towernmt.predict.reranking import rescored
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.stream import Searches, translate_lines, translate_stream

PAD, EOS, UNK = 0, 2, 3
UNSEEN = "☃"


class Words(Vocabulary):
    """A vocabulary with a token for each word; a new word gets the next id, except a snowman, which is unknown."""

    kind = "word"
    size = 10 ** 6

    def __init__(self) -> None:
        self.words: list[str] = []

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.piece_to_id(word) for word in text.split()] for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(map(self.id_to_piece, ids))

    def piece_to_id(self, piece: str) -> int:
        if piece == UNSEEN:
            return UNK
        if piece not in self.words:
            self.words.append(piece)
        return 4 + self.words.index(piece)

    def id_to_piece(self, id: int) -> str:
        return "<unk>" if id == UNK else self.words[id - 4]

    def files(self) -> Mapping[str, bytes]:
        return {}


class Echo:
    """Translates a sentence into itself; the k-th best lacks the last k words. Records its batches."""

    def __init__(self, n_best: int = 1) -> None:
        self.n_best = n_best
        self.batches: list[list[int]] = []

    def __call__(self, source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert source.dtype == source_length.dtype == np.int32
        for row, n in zip(source, source_length, strict=True):
            assert row[n - 1] == EOS and (row[n:] == PAD).all()
        self.batches.append(source_length.tolist())
        tokens = np.repeat(source[:, None], self.n_best, axis=1)
        for row, n in zip(tokens, source_length, strict=True):
            for k in range(self.n_best):
                row[k, max(n - 1 - k, 0):] = PAD
        scores = -np.arange(self.n_best, dtype=np.float32) - source_length[:, None].astype(np.float32)
        return tokens, scores


def echo(lines: Iterable[str | bytes], predictor: Echo | None = None, **settings: int) -> list[str]:
    words = Words()
    stream = translate_stream(predictor or Echo(), words, words, line_requests(lines), StreamSettings(**settings))
    return [hypotheses[0].text for hypotheses in stream]


def test_each_line_comes_out_as_one_line_in_place() -> None:
    text = b"a b\n\n   \nc \xff d\nlast \xe2\x98\x83\r\n\x00 nul \x00\n"
    text += b"x\xe2\x80\xa8y\xc2\x85z\x0bv\x0cw\rk\nno newline"
    assert echo(io.BytesIO(text)) == [
        "a b", "", "", "c \ufffd d", "last <unk>", "nul", "x y z v w k", "no newline"]


def test_a_byte_order_mark_and_windows_line_ends_are_dropped() -> None:
    assert list(clean_lines(io.BytesIO(b"\xef\xbb\xbfone\r\ntwo\r\n\r\n"))) == ["one", "two", ""]


def test_a_stream_of_text_ends_after_its_last_line() -> None:
    assert list(islice(clean_lines(io.StringIO("one\r\n\ntwo")), 5)) == ["one", "", "two"]


def test_broken_utf8_is_warned_of_once_a_line_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert echo([b"fine\n", b"bad \xff\xfe and \xff\n", b"fine", b"\x80"]) == [
            "fine", "bad \ufffd\ufffd and \ufffd", "fine", "\ufffd"]
    places = [record.getMessage().split(":")[0] for record in caplog.records]
    assert places == ["input line 2", "input line 4"]


def test_text_of_wide_characters_is_warned_of_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(list(clean_lines(io.BytesIO("Guten Morgen\nHallo\n".encode("utf-16-le"))))) == 3
        assert list(clean_lines([b"one\0two\n", b"\0\n"])) == ["one two", " "]
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "input line 1: it looks like UTF-16", "input line 2: it looks like UTF-16"]


def test_text_with_lone_surrogates_is_translated() -> None:
    assert echo(["a \ud800 b"]) == ["a \ufffd b"]


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" ")), max_size=30),
       st.integers(1, 7), st.integers(1, 20), st.integers(1, 5), st.integers(1, 6))
def test_any_bytes_give_one_line_for_each_line_whatever_the_batching(
        lines: list[bytes], window: int, tokens: int, sentences: int, longest: int) -> None:
    expected = echo([line + b"\n" for line in lines], window=10 ** 6)
    found = echo(io.BytesIO(b"\n".join([*lines, b""])), window=window, batch_tokens=tokens,
                 batch_sentences=sentences, max_source_length=longest)
    assert found == expected
    assert all(len(line.splitlines()) <= 1 for line in found)


DIVIDES = Searches(is_undivided=lambda piece: True)
"""A search that divides each batch itself. A stream has parts of 500 lines for it."""


@pytest.mark.parametrize(("window", "searches", "taken", "expected"), [
    (5, Searches(), 7, 10), (2000, DIVIDES, 3, 2000)])
def test_the_stream_is_not_read_further_than_its_window(
        window: int, searches: Searches, taken: int, expected: int) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield f"line {read}"
    words = Words()
    stream = translate_stream(Echo(), words, words, line_requests(endless()), StreamSettings(window=window),
                              searches=searches)
    assert [next(stream)[0].text for _ in range(taken)] == [f"line {i}" for i in range(1, taken + 1)]
    assert read == expected


def test_a_window_is_sorted_by_length_batched_within_both_limits_and_translates_repeats_once() -> None:
    predictor = Echo()
    lines = ["a b c d e f", "a", "a b c", "b", "a", "a b", "c", "a", "c c"]
    assert echo(lines, predictor, batch_tokens=8, batch_sentences=3) == lines
    assert predictor.batches == [[2, 2, 2], [3, 3], [4], [7]]


def test_lines_with_many_hypotheses_share_small_batches() -> None:
    sizes: list[int] = []

    def predictor(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(source))
        return Echo()(source, source_length)

    words, options = Words(), LineOptions(n_best=8000)
    requests = line_requests([LineRequest(str(i), options) for i in range(5)])
    stream = translate_stream(predictor, words, words, requests, StreamSettings(),
                              searches=Searches(lambda settings: predictor))
    assert [found[0].text for found in stream] == list("01234") and sizes == [2, 2, 1]


class Together(Echo):
    """A predictor in which each call waits for a concurrent call."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2, timeout=PATIENCE)

    def __call__(self, **inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.meeting.wait()
        return super().__call__(**inputs)


def test_threads_translate_batches_side_by_side_and_the_lines_keep_their_order() -> None:
    lines, words = [f"{'a ' * (i % 7)}{i}" for i in range(40)], Words()
    settings = StreamSettings(batch_sentences=5, threads=2)
    stream = translate_stream(Together(), words, words, line_requests(lines), settings)
    assert [found[0].text for found in stream] == lines


def test_a_search_that_divides_batches_gets_the_next_part_before_it_ends_the_first() -> None:
    lines, words = [f"{'a ' * (i % 7)}{i}" for i in range(1000)], Words()
    stream = translate_stream(Together(), words, words, line_requests(lines), StreamSettings(), searches=DIVIDES)
    assert [found[0].text for found in stream] == lines


@pytest.mark.parametrize(("window", "sizes"), [
    (2000, [500, 500, 100]), (1000, [500, 500, 100]), (999, [999, 101]), (400, [400, 400, 300])])
def test_parts_are_not_smaller_than_a_window_of_few_lines(window: int, sizes: list[int]) -> None:
    predictor, words = Echo(), Words()
    lines = [str(i) for i in range(1100)]
    stream = translate_stream(predictor, words, words, line_requests(lines), StreamSettings(window=window),
                              searches=DIVIDES)
    assert [found[0].text for found in stream] == lines
    assert sorted(map(len, predictor.batches), reverse=True) == sizes


@pytest.mark.parametrize(("count", "is_main"), [(1, True), (64, True), (65, False), (500, False)])
def test_ctrl_c_does_not_wait_for_an_engine_that_translates_many_lines(count: int, is_main: bool) -> None:
    # Python handles Ctrl-C only after a call of the engine in the main thread.
    threads = []

    class Recording(Echo):
        def __call__(self, **inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            threads.append(threading.current_thread())
            return super().__call__(**inputs)

    for window in (500, 2000):
        words, lines = Words(), [str(i) for i in range(count)]
        stream = translate_stream(Recording(), words, words, line_requests(lines), StreamSettings(window=window),
                                  searches=DIVIDES)
        assert [found[0].text for found in stream] == lines
    assert [thread is threading.main_thread() for thread in threads] == [is_main] * 2


def test_a_closed_stream_does_not_wait_and_translates_no_further_batches() -> None:
    words, gate, begun = Words(), threading.Event(), threading.Semaphore(0)
    later_batches = []

    def wait_after_the_first_part(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if source[0, 0] >= words.piece_to_id("500"):
            later_batches.append(len(source))
            begun.release()
            assert gate.wait(PATIENCE)
        return Echo()(source, source_length)

    stream = translate_stream(wait_after_the_first_part, words, words, line_requests(map(str, range(2000))),
                              StreamSettings(batch_sentences=100), searches=Searches(is_undivided=lambda piece: False))
    assert next(stream)[0].text == "0"
    for _ in range(3):
        assert begun.acquire(timeout=PATIENCE)
    stream.close()  # type: ignore[attr-defined]
    gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("map"):
            thread.join(PATIENCE)
    assert later_batches == [100] * 3       # one of each part


def test_equal_lines_of_a_window_are_translated_once_although_it_has_parts() -> None:
    predictor, words = Echo(), Words()
    lines = [str(i % 600) for i in range(3000)]
    stream = translate_stream(predictor, words, words, line_requests(lines), StreamSettings(window=2000),
                              searches=DIVIDES)
    assert [found[0].text for found in stream] == lines
    # A part gets the translations of the earlier parts of its window: the sixth one, in the second window, those of
    # 0 to 99 and of 200 to 599.
    assert sorted(map(len, predictor.batches)) == [100, 100, 500, 500]


def test_a_stream_that_begins_with_a_later_window_has_the_same_batches() -> None:
    lines, batches = [str(i % 600) for i in range(3000)], []
    for first in (0, 2000):
        predictor, words = Echo(), Words()
        words.encode_batch(lines)       # the same ids
        list(translate_stream(predictor, words, words, line_requests(lines[first:]), StreamSettings(window=2000),
                              searches=DIVIDES))
        batches.append(sorted(map(len, predictor.batches)))
    assert batches == [[100, 100, 500, 500], [100, 500]]


def test_lines_before_an_error_are_translated_in_parts() -> None:
    def lines() -> Iterator[str]:
        yield from map(str, range(1200))
        raise DataError("line 1201 is broken")

    def fail(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if source[0, 0] == words.piece_to_id("500"):
            raise SettingsError("the search fails")
        return Echo()(source, source_length)

    words = Words()
    for predictor, error, count in ((Echo(), DataError, 1200), (fail, SettingsError, 500)):
        texts: list[str] = []
        with pytest.raises(error):
            texts.extend(found[0].text for found in translate_stream(
                predictor, words, words, line_requests(lines()), StreamSettings(), searches=DIVIDES))
        assert texts == list(map(str, range(count)))


def test_few_lines_are_shared_among_the_threads_the_longest_first_but_not_fewer_than_some() -> None:
    def batches(count: int, threads: int = 2, shares: int = 0) -> list[int]:
        predictor, words = Echo(), Words()
        settings = StreamSettings(threads=threads, shares=shares)
        list(translate_stream(predictor, words, words, line_requests(map(str, range(count))), settings))
        return sorted(map(len, predictor.batches))

    assert batches(40) == [20, 20] and batches(10) == [2, 8] and batches(7) == [7]
    assert batches(40, threads=1, shares=2) == [20, 20] and batches(40, threads=1) == [40]


def test_what_fails_beside_others_is_raised_and_later_batches_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    cancelled: list[Future[int]] = []
    most_are_cancelled = threading.Event()
    cancel = Future.cancel

    def counted(future: Future[int]) -> bool:
        cancelled.append(future)
        if len(cancelled) == 900:
            most_are_cancelled.set()
        return cancel(future)

    def fail(number: int) -> int:
        begun.append(number)
        if number > 0:      # these calls end only after the error of the first one has cancelled most others
            most_are_cancelled.wait()
        raise DataError(f"number {number}")

    monkeypatch.setattr(Future, "cancel", counted)
    with pytest.raises(DataError, match="number 0"):
        list(map_in_threads(fail, range(1000), 2))
    assert len(begun) <= 101


def test_a_sentence_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    assert [[len(p) for p in b] for b in plan_batches([(4,), (4,) * 9, (5,) * 9], 6, 10)] == [[1], [9], [9]]


def test_lines_share_one_window_in_translate_lines_and_none_gives_none() -> None:
    words = Words()
    predictor = Echo()
    assert translate_lines(predictor, words, words, ["b c", "", "a"], batch_tokens=100) == ["b c", "", "a"]
    assert predictor.batches == [[2, 3]]
    assert translate_lines(predictor, words, words, []) == []


def test_n_best_lists_come_with_scores_and_blank_lines_with_one_empty_text() -> None:
    words = Words()
    stream = translate_stream(Echo(n_best=2), words, words, line_requests(["a b", ""]), StreamSettings())
    assert list(stream) == [[Hypothesis("a b", -3.0), Hypothesis("a", -4.0)], [Hypothesis("", 0.0)]]


def test_places_without_a_hypothesis_are_left_out() -> None:
    words = Words()

    def one_of_two(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([source, source * 0], axis=1), np.array([[-1.0, -np.inf]], np.float32)
    stream = translate_stream(one_of_two, words, words, line_requests(["a"]), StreamSettings())
    assert list(stream) == [[Hypothesis("a", -1.0)]]


def test_a_diverged_model_is_an_error() -> None:
    words = Words()

    def diverged(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return source[:, None], np.full([len(source), 1], np.nan, np.float32)
    with pytest.raises(DivergenceError, match="NaN"):
        translate_lines(diverged, words, words, ["a"])


def cut(text: str, limit: int) -> list[str]:
    words = Words()
    return [words.decode(cut.ids) for cut in cuts_of(text, words.encode(text), words, limit)]


def test_long_lines_are_cut_at_sentences_then_clauses_then_spaces_and_packed() -> None:
    assert cut("One two. Three four! Five.", 4) == ["One two. Three four!", "Five."]
    assert cut('He said: "Go." She went. 3.5 km.', 4) == ['He said: "Go."', "She went. 3.5 km."]
    for quotes in ("„“", "»«", "‚‘", "«»"):
        quoted = "Er rief: {}Geh.{} Sie ging weg.".format(*quotes)
        assert cut(quoted, 4) == [quoted[:-14], "Sie ging weg."]
    assert cut("a b, c d e, f. g", 3) == ["a b,", "c d e,", "f.", "g"]
    assert cut("मैं हूँ। तुम हो।", 3) == ["मैं हूँ।", "तुम हो।"]
    assert cut("ماذا؟ نعم، هنا الآن", 2) == ["ماذا؟", "نعم،", "هنا الآن"]
    assert cut("a b c d e", 2) == ["a b", "c d", "e"]
    assert cut("fits", 1) == ["fits"] and cut("", 1) == []


def test_a_word_without_any_place_to_cut_is_cut_between_tokens() -> None:
    class Characters(Words):
        def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
            return [[ord(c) for c in text if not c.isspace()] for text in texts]
    cuts = cuts_of("x" * 10, [ord("x")] * 10, Characters(), 4)
    assert all(cut.is_divided for cut in cuts)
    assert [(len(cut.ids), cut.first_token) for cut in cuts] == [(4, 0), (4, 4), (2, 8)]
    chinese = "你好。我很好，谢谢你。"
    cuts = cuts_of(chinese, Characters().encode(chinese), Characters(), 5)
    assert ["".join(map(chr, cut.ids)) for cut in cuts] == ["你好。", "我很好，", "谢谢你。"]
    assert [cut.text for cut in cuts] == ["你好。", "我很好，", "谢谢你。"]
    quoted = "「好。」走！？来。"
    cuts = cuts_of(quoted, Characters().encode(quoted), Characters(), 5)
    assert [cut.text for cut in cuts] == ["「好。」", "走！？来。"]


def test_a_long_line_is_translated_in_pieces_rejoined_and_named_in_a_warning(
        caplog: pytest.LogCaptureFixture) -> None:
    predictor = Echo()
    with caplog.at_level(logging.WARNING):
        assert echo(["a", "b c. d e. f g h i"], predictor, max_source_length=4) == ["a", "b c. d e. f g h i"]
    assert max(max(batch) for batch in predictor.batches) == 5
    assert [r.getMessage() for r in caplog.records] == [
        "input line 2: its 8 tokens are more than 4; translated in 2 pieces."]
    assert echo(["你好。 我很好。 a b。"], max_source_length=1) == ["你好。我很好。 a b。"]


def test_hypotheses_of_pieces_are_joined_by_rank_with_their_mean_score() -> None:
    words = Words()
    stream = translate_stream(Echo(n_best=2), words, words, line_requests(["a b. c"]),
                              StreamSettings(max_source_length=2))
    assert list(stream) == [[Hypothesis("a b. c", -2.5), Hypothesis("a", -3.5)]]


def test_hypotheses_have_the_log_probability_of_their_tokens_by_the_settings_of_their_search() -> None:
    words, base = Words(), SearchSettings(word_reward=0.5)

    def predictor(settings: Mapping[str, Any], source: np.ndarray, source_length: np.ndarray
                  ) -> tuple[np.ndarray, np.ndarray]:
        search, log_prob = replace(base, **settings), -2.0 * source_length
        if search.selection == "sampling":
            return source[:, None], log_prob[:, None]
        factor = ((5 + source_length) / 6) ** search.length_penalty
        if search.length_normalization == "average":
            factor = source_length ** search.length_penalty
        return source[:, None], ((log_prob + search.word_reward * source_length) / factor)[:, None]

    options = [LineOptions(), LineOptions(search={"length_penalty": 0.0}),
               LineOptions(search={"selection": "sampling", "word_reward": 0.0}),
               LineOptions(search={"length_normalization": "average", "length_penalty": 1.0})]
    searches = Searches(lambda settings: partial(predictor, settings))
    for text, pieces in (("a b", 1), ("a b. c d e. f", 3)):
        requests = [LineRequest(text, line_options) for line_options in options]
        for translation in translate_stream(partial(predictor, {}), words, words, requests,
                                            StreamSettings(max_source_length=3),
                                            encoder=RequestEncoder(base, words, words), searches=searches):
            best = translation[0]
            assert best.tokens == len(text.split()) + pieces and best.text == text
            assert best.log_prob == pytest.approx(-2.0 * best.tokens) and best.mean_log_prob == pytest.approx(-2.0)


def test_the_source_prefix_is_before_each_piece_and_has_no_attention() -> None:
    words = WordVocabulary([*SPECIAL_PIECES, "<2de>", "<2fr>", *"abcde"])
    sources: list[str] = []

    def predictor(source: np.ndarray, source_length: np.ndarray) -> SearchOutput:
        """Translate the words after the tag into themselves; each word attends to itself, and a little to the tag."""
        attention = 0.9 * np.eye(source.shape[1])[1:]
        attention[:, 0] = 0.1
        for row, length in zip(source, source_length, strict=True):
            sources.append(words.decode(row[:length - 1].tolist()))
        shape = len(source), 1, *attention.shape
        return SearchOutput(source[:, None, 1:], np.zeros([len(source), 1]), None, np.broadcast_to(attention, shape))

    options = LineOptions(source_prefix="<2de>")
    requests = [LineRequest(text, options) for text in ("a b c d e", "a b", "", "<2fr> a")]
    translations = list(translate_stream(predictor, words, words, requests, StreamSettings(max_source_length=3)))
    assert [translation[0].text for translation in translations] == ["a b c d e", "a b", "", "<2fr> a"]
    assert sorted(sources) == ["<2de> <2fr> a", "<2de> a b", "<2de> c d", "<2de> e"]
    details = translations[0][0].details
    assert details is not None and details.alignment is not None
    assert details.source_ids == [*words.encode("a b"), EOS, *words.encode("c d"), EOS, *words.encode("e"), EOS]
    assert details.alignment.source == list("abcde")
    assert details.alignment.weights == pytest.approx(0.9 * np.eye(5), abs=1e-6)


def test_a_line_with_a_source_prefix_that_the_vocabulary_lacks_is_named() -> None:
    words = Words()
    requests = line_requests(["a", "b"], options=[LineOptions(), LineOptions(source_prefix=UNSEEN)])
    stream = translate_stream(Echo(), words, words, requests, StreamSettings(), "in")
    assert next(stream)[0].text == "a"
    with pytest.raises(DataError, match="in line 2: the source prefix '☃' has a word"):
        next(stream)


def test_a_hypothesis_keeps_its_other_attributes_when_one_changes() -> None:
    hypothesis = Hypothesis("a", -1.0, None, "loop", 3, -6.0)
    changed = hypothesis.replaced(text="b")
    assert changed == ("b", -1.0)
    assert (changed.fault, changed.tokens, changed.log_prob, changed.mean_log_prob) == ("loop", 3, -6.0, -2.0)
    assert rescored(hypothesis, -2.0).log_prob == -6.0 and Hypothesis("a", -1.0).log_prob == -1.0
    assert pickle.loads(pickle.dumps(hypothesis)).log_prob == -6.0


@pytest.mark.parametrize("name", ["batch_tokens", "batch_sentences", "window", "max_source_length"])
def test_stream_settings_below_one_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        StreamSettings(**{name: 0})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataError, match="nowhere.txt: cannot read"):
        read_text("nowhere.txt")


def test_further_inputs_of_the_lines_reach_the_predictor_by_name_padded_and_in_place() -> None:
    words, seen = Words(), []

    def prefixed(source: np.ndarray, source_length: np.ndarray, prefix: np.ndarray,
                 weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append((prefix.tolist(), weight.tolist()))
        tokens = np.concatenate([np.where(prefix == PAD, UNK, prefix), source], axis=1)[:, None]
        return tokens, weight[:, None]

    ids = words.encode_batch(["p q", "p"])
    lines, prefixes = ["a b", "a", "", "a b", "a b"], [ids[0], ids[1], [], ids[1], ids[0]]
    requests = [LineRequest(line, LineOptions(inputs={"prefix": prefix, "weight": -float(len(prefix))}))
                for line, prefix in zip(lines, prefixes, strict=True)]
    stream = translate_stream(prefixed, words, words, iter(requests), StreamSettings())
    assert [best for (best,) in stream] == [
        ("p q a b", -2.0), ("p <unk> a", -1.0), ("", 0.0), ("p <unk> a b", -1.0), ("p q a b", -2.0)]
    # Equal words with equal inputs are translated once, but not those with different inputs.
    assert [len(weights) for _, weights in seen] == [3]


def test_lines_that_ask_for_different_things_go_into_different_batches() -> None:
    words, seen = Words(), []

    def predictor(settings: Mapping[str, int], **inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append((sorted(set(inputs) - {"source", "source_length"}), dict(settings), len(inputs["source"])))
        return np.repeat(inputs["source"][:, None], 2, axis=1), np.zeros([len(inputs["source"]), 2])

    lines = ["a b", "c", "d", "e f", "c", "c", "a b"]
    options = [LineOptions(), LineOptions(inputs={"x": [1]}), LineOptions(inputs={"x": [2, 3]}),
               LineOptions(search={"beam_size": 3}), LineOptions(inputs={"x": [1]}, n_best=1),
               LineOptions(inputs={"x": [1]}, search={"beam_size": 3}), LineOptions()]
    searches = Searches(lambda settings: partial(predictor, settings))
    stream = list(translate_stream(partial(predictor, {}), words, words, map(LineRequest, lines, options),
                                   StreamSettings(), searches=searches))
    assert [best.text for best, *_ in stream] == lines and [len(found) for found in stream] == [2, 2, 2, 2, 1, 2, 2]
    assert seen == [([], {}, 1), ([], {"beam_size": 3}, 1), (["x"], {}, 2), (["x"], {"beam_size": 3}, 1)]


def test_lines_before_one_that_cannot_be_read_are_translated() -> None:
    def lines() -> Iterator[str]:
        yield from ("a", "b", "c")
        raise DataError("line 4 is broken")
    words = Words()
    for window in (1, 2, 3, 9):
        found = []
        with pytest.raises(DataError, match="line 4 is broken"):
            requests = line_requests(lines())
            for best, *_ in translate_stream(Echo(), words, words, requests, StreamSettings(window=window)):
                found.append(best.text)
        assert found == ["a", "b", "c"]


def test_lines_without_inputs_and_inputs_without_lines_are_refused() -> None:
    for inputs, match in (([LineOptions(inputs={"a": 1})], "line 2 has no options"),
                          ([LineOptions(inputs={"a": 1})] * 3, "2 lines, but there are options of more")):
        def predictor(source: np.ndarray, source_length: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return source[:, None], np.zeros([len(source), 1])
        words = Words()
        with pytest.raises(DataError, match=match):
            requests = line_requests(["x", "y"], options=inputs)
            list(translate_stream(predictor, words, words, requests, StreamSettings()))
