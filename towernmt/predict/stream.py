"""Lines -> batches -> lines: what `Translator` and the validation callback share.

A predictor is any function of the inputs of a batch by name (`predictor(source=..., source_length=...)`,
see `batch_inputs`) that gives `Found`; nothing here knows of TensorFlow. Lines are read a window at a time, their
sentences sorted by length, batched, translated (the same sentence once), and given back in the order they came in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from towernmt.core.errors import DivergenceError
from towernmt.dataflow.text.cleaning import one_line
from towernmt.dataflow.vocabulary.base import EOS, PAD, Vocabulary
from towernmt.dataflow.vocabulary.factored import FactorError
from towernmt.predict.batch_inputs import LineInputs, Piece, batch_inputs, inputs_of_lines, piece_of
from towernmt.predict.decoding.settings import StreamSettings
from towernmt.predict.pieces import cut_line
from towernmt.predict.text_io import clean_lines

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Sized)


class Found(NamedTuple):
    """What a predictor gives for a batch.

    Attributes:
        tokens: int32 `[batch, n_best, length]`: EOS where a hypothesis ended by itself, PAD behind.
        scores: float32 `[batch, n_best]`.
        log_probs: float32 `[batch, n_best, length]`, of each token; None if not asked for.
        attention: float32 `[batch, n_best, length, source length]`; None if not asked for.
    """

    tokens: np.ndarray
    scores: np.ndarray
    log_probs: np.ndarray | None = None
    attention: np.ndarray | None = None


Predictor = Callable[..., Found | tuple[np.ndarray, ...]]
"""From the inputs of a batch by name to `Found`, or to its first two arrays."""


class TokenDetails(NamedTuple):
    """The tokens of a translation, and what the model made of each.

    Of a line translated in pieces, those of the pieces, one behind the other.

    Attributes:
        source_ids: of the source; EOS ends each piece. Of several streams, those of the words.
        ids: of the translation; EOS ends each piece, unless that was cut at the length limit.
        log_probs: float32 `[tokens]`, of each token by the model, in nats; None if not asked for.
        attention: float32 `[tokens, source tokens]`, which source tokens the model looked at when it chose each
            token; 0 between different pieces. None if not asked for.
    """

    source_ids: list[int]
    ids: list[int]
    log_probs: np.ndarray | None = None
    attention: np.ndarray | None = None


class _TextAndScore(NamedTuple):
    text: str
    score: float


class Hypothesis(_TextAndScore):
    """A translation: the pair of its text and its score, with what else is known of it.

    Attributes:
        text: detokenised, without line breaks.
        score: log-probability over the length penalty; of a line translated in pieces, their mean.
        details: of its tokens, where log-probabilities or attention were asked for.
    """

    details: TokenDetails | None = None

    def __new__(cls, text: str, score: float, details: TokenDetails | None = None) -> Hypothesis:
        """The translation."""
        made = super().__new__(cls, text, score)
        made.details = details
        return made


def translate_lines(predictor: Predictor, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                    lines: Iterable[str | bytes], batch_tokens: int = StreamSettings.batch_tokens,
                    batch_sentences: int = StreamSettings.batch_sentences,
                    max_source_length: int = StreamSettings.max_source_length) -> list[str]:
    """The best translation of every line, all lines sorted by length together.

    Args:
        batch_tokens: source tokens in a batch, padding included, at most (one line at least).
        batch_sentences: sentences in a batch, at most.
        max_source_length: longer lines (tokens) are translated in pieces.
    Raises:
        DivergenceError: the model's output is not a number.
    """
    lines = list(lines)
    settings = StreamSettings(batch_tokens=batch_tokens, batch_sentences=batch_sentences,
                              window=max(len(lines), 1), max_source_length=max_source_length)
    stream = translate_stream(predictor, source_vocabulary, target_vocabulary, lines, settings)
    return [hypotheses[0].text for hypotheses in stream]


def translate_stream(predictor: Predictor, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                     lines: Iterable[str | bytes], settings: StreamSettings, name: str = "input",
                     inputs: Iterable[LineInputs] | None = None) -> Iterator[list[Hypothesis]]:
    """The translations of every line, best first, in the order of the lines.

    At most `settings.window` lines are read ahead. A line has one translation or more (up to the
    search's n_best); a blank line has one, the empty text with score 0. Where the source has factors, the words of a
    line have them behind them (`word|factor`).

    Args:
        name: where the lines come from, for warnings and errors.
        inputs: for each line, what the predictor reads beyond `source` and `source_length`, by name. All pieces of a
            long line have those of the line.
    Raises:
        DataError: a word lacks its factors, or there are not as many inputs as lines.
        DivergenceError: the model's output is not a number.
    """
    rest = inputs_of_lines(enumerate(clean_lines(lines, name), start=1), inputs, name)
    while window := list(islice(rest, settings.window)):
        pieces = _encode(window, name, source_vocabulary, settings.max_source_length)
        unique = sorted({piece for line in pieces for piece in line},
                        key=lambda piece: (len(piece), piece.ids, piece.key))
        translated: dict[Piece, list[Hypothesis]] = {}
        for batch in plan_batches(unique, settings.batch_tokens, settings.batch_sentences):
            translated.update(zip(batch, _translate_batch(
                predictor, target_vocabulary, batch, source_vocabulary.streams), strict=True))
        for line in pieces:
            yield _join([translated[piece] for piece in line])


def plan_batches(pieces: Iterable[S], batch_tokens: int, batch_sentences: int) -> Iterator[list[S]]:
    """Cut pieces, shortest first, into batches; the tokens of a batch count EOS and padding."""
    batch: list[S] = []
    for piece in pieces:
        if batch and (len(batch) == batch_sentences or (len(batch) + 1) * (len(piece) + 1) > batch_tokens):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _encode(window: list[tuple[int, str, LineInputs]], name: str, vocabulary: Vocabulary,
            limit: int) -> list[list[Piece]]:
    """The pieces of each (line number, text, further inputs); a blank line has none, most lines have one."""
    try:
        encoded = vocabulary.encode_batch([text for _, text, _ in window])
    except FactorError as error:
        raise error.at(name, window[error.index][0]) from None
    result = []
    for (number, text, inputs), ids in zip(window, encoded, strict=True):
        pieces = cut_line(text, ids, vocabulary, limit) if text.strip() else []
        if len(pieces) > 1:
            log.warning("%s line %d: its %d tokens are more than %d; translated in %d pieces.",
                        name, number, len(ids), limit, len(pieces))
        result.append([piece_of(piece, inputs) for piece in pieces])
    return result


def _translate_batch(predictor: Predictor, vocabulary: Vocabulary, batch: Sequence[Piece],
                     streams: int) -> list[list[Hypothesis]]:
    found = Found(*predictor(**batch_inputs(batch, streams)))
    if not np.isfinite(found.scores[:, 0]).all():
        why = "training has diverged. Take an earlier checkpoint."
        if np.isneginf(found.scores[:, 0]).any():
            why += " Or a logits processor of your own forbids every token."
        raise DivergenceError(f"The model's output is not a number (NaN), so nothing can be translated: {why}")
    detailed = found.log_probs is not None or found.attention is not None
    return [[Hypothesis(_text(vocabulary, found.tokens[row, k]), float(score),
                        _details(found, row, k, piece) if detailed else None)
             for k, score in enumerate(found.scores[row]) if np.isfinite(score)]
            for row, piece in enumerate(batch)]


def _text(vocabulary: Vocabulary, ids: np.ndarray) -> str:
    ends = np.flatnonzero((ids == EOS) | (ids == PAD))
    return one_line(vocabulary.decode(ids[:ends[0]].tolist() if len(ends) else ids.tolist()))


def _details(found: Found, row: int, k: int, piece: Piece) -> TokenDetails:
    source = [token[0] if isinstance(token, tuple) else token for token in piece.ids] + [EOS]
    ids = found.tokens[row, k]
    length = np.count_nonzero(ids != PAD)
    return TokenDetails(
        source, ids[:length].tolist(), None if found.log_probs is None else found.log_probs[row, k, :length],
        None if found.attention is None else found.attention[row, k, :length, :len(source)])


def _join(pieces: list[list[Hypothesis]]) -> list[Hypothesis]:
    """The k-th best of a line is the k-th best of each of its pieces, joined."""
    if not pieces:
        return [Hypothesis("", 0.0)]
    if len(pieces) == 1:
        return pieces[0]
    return [Hypothesis(" ".join(h.text for h in parts if h.text), sum(h.score for h in parts) / len(parts),
                       _joined_details([h.details for h in parts if h.details]))
            for parts in zip(*pieces, strict=False)]


def _joined_details(pieces: list[TokenDetails]) -> TokenDetails | None:
    if not pieces:
        return None
    log_probs = [piece.log_probs for piece in pieces if piece.log_probs is not None]
    blocks = [piece.attention for piece in pieces if piece.attention is not None]
    return TokenDetails([token for piece in pieces for token in piece.source_ids],
                        [token for piece in pieces for token in piece.ids],
                        np.concatenate(log_probs) if log_probs else None, _block_diagonal(blocks) if blocks else None)


def _block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    joined = np.zeros(np.sum([block.shape for block in blocks], axis=0), np.float32)
    row = column = 0
    for block in blocks:
        joined[row:row + block.shape[0], column:column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return joined
