"""Learn SentencePiece models from sentences."""

from __future__ import annotations

import io
import os
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import sentencepiece

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, UNK
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary

_TRAINER_THREADS = 16  # fixed, because the learned model depends on it
_learned: set[int] = set()      # processes whose SentencePiece has started the threads of its trainer

LONGEST_SENTENCE = 4192
"""Maximum length in bytes of the sentences that SentencePiece learns from (its `max_sentence_length`)."""
_RESERVED = "\u2585"
"""A character that SentencePiece reserves (a block of bar charts). Its trainer silently ignores sentences with it."""

_OTHER_DIGIT = re.compile(r"(?![0-9])\d")


def learn_sentence_piece(sentences: Iterable[str], kind: str, size: int, character_coverage: float = 1.0,
                         byte_fallback: bool = False, symbols: Sequence[str] = (),
                         split_digits: bool = False) -> SentencePieceVocabulary:
    """Learn a SentencePiece model, which has fewer than `size` pieces if the text is too small.

    The result depends only on the sentences and their order.

    Args:
        sentences: cleaned sentences of any length, all of which SentencePiece keeps in memory.
        kind: "unigram" or "bpe".
        size: number of ids, including the four special ids.
        character_coverage: share of the text's characters that are covered by pieces, in (0, 1].
        byte_fallback: encode characters without a piece as bytes (256 of the pieces) rather than UNK.
        symbols: user-defined symbols, which are pieces in any case; empty ones are ignored.
        split_digits: make each digit a separate piece. The digits 0 to 9 are pieces even if the text has none.

    Raises:
        DataError: `size` is too small for the text's characters, or the text is empty.
    """
    model = io.BytesIO()
    # The model records each option that is passed, also with its default.
    options: dict[str, Any] = {"split_digits": True, "required_chars": string.digits} if split_digits else {}
    _learned.add(os.getpid())
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chain.from_iterable(map(_learnable, _apart(sentences) if split_digits else sentences)),
            model_writer=model, model_type=kind, vocab_size=size, max_sentence_length=LONGEST_SENTENCE,
            pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK, character_coverage=character_coverage,
            byte_fallback=byte_fallback, user_defined_symbols=[symbol for symbol in symbols if symbol],
            normalization_rule_name="identity", hard_vocab_limit=False, num_threads=_TRAINER_THREADS, minloglevel=2,
            **options)
    except RuntimeError as error:
        raise DataError(_training_message(str(error), kind, size)) from error
    return SentencePieceVocabulary(model.getvalue())


def _apart(sentences: Iterable[str]) -> Iterator[str]:
    """Yield sentences with spaces around the digits of other scripts, since SentencePiece splits only 0 to 9."""
    for sentence in sentences:
        yield sentence if sentence.isascii() else _OTHER_DIGIT.sub(r" \g<0> ", sentence)


def _learnable(sentence: str) -> Iterator[str]:
    """Yield a sentence in sections that SentencePiece learns from.

    It silently ignores sentences that are longer than `LONGEST_SENTENCE` or contain `_RESERVED`, which is replaced by a
    space. A section ends at the last space within the limit. In a longer word it ends between two characters, but not
    before a combining mark.
    """
    sentence = sentence.replace(_RESERVED, " ")
    if 4 * len(sentence) <= LONGEST_SENTENCE:
        yield sentence
        return
    text, start = sentence.encode("utf-8"), 0
    while len(text) - start > LONGEST_SENTENCE:
        section = text[start:start + LONGEST_SENTENCE].decode("utf-8", "ignore")
        end = section.rfind(" ")
        if end <= 0:
            end = len(section) - 1     # the last character begins the next section: it must not be a combining mark
            while end > 1 and unicodedata.combining(section[end]):
                end -= 1
            end = end if end > 1 else len(section)
        yield section[:end]
        start += len(section[:end].encode("utf-8"))
    yield text[start:].decode("utf-8")


def has_learned() -> bool:
    """Return whether this process has learned a model. If so, a forked process that learns a model would crash.

    SentencePiece keeps the threads of its trainer, which do not exist in the forked process.
    """
    return os.getpid() in _learned


def _training_message(message: str, kind: str, size: int) -> str:
    needed = re.search(r"smaller than required_chars[^0-9]*(\d+) vs (\d+)", message)
    if needed:
        return (f"a {kind} vocabulary of {size} is too small: the text needs {max(map(int, needed.groups()))} for its "
                "single characters and the special pieces. Increase --vocab-size.")
    if any(sign in message for sign in ("!sentences_.empty()", "all_chars_count")) or "no sentences" in message.lower():
        return ("the text to learn a vocabulary from is empty: every line is blank, or has only characters that "
                "SentencePiece ignores (control characters, \u2581). Check the text, or choose another --vocab-kind.")
    return (f"SentencePiece cannot learn a {kind} vocabulary of {size} from this text: "
            f"{' '.join(message.split())}.")
