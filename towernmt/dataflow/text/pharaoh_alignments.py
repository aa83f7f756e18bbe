"""Word alignments in the Pharaoh format (`0-0 1-2`: source word - target word, from 0), and links between subwords.

fast_align, eflomal and awesome-align write this format. Words are separated by the white space of a line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import Chunk

Link = tuple[int, int]
"""Source word and target word, from 0."""
LONGEST = 1 << 16
"""Tokens of a sentence that links can point into: they are stored as uint16."""


def parse_links(chunk: Chunk, source_words: Sequence[int], target_words: Sequence[int]) -> list[list[Link]]:
    """Return the distinct links of each line, in order.

    Args:
        chunk: lines of the alignment file.
        source_words: number of source words of each line.
        target_words: number of target words of each line.

    Raises:
        DataError: a link is malformed or refers to a word that the line does not have, with file and line.
    """
    return [_parse(line, f"{chunk.path} line {chunk.first_line + index}", *counts) for index, (line, counts) in
            enumerate(zip(chunk.decode(), zip(source_words, target_words, strict=True), strict=True))]


def _parse(line: str, where: str, source_words: int, target_words: int) -> list[Link]:
    links = set()
    for item in line.split():
        source, _, target = item.partition("-")
        if not (source.isdecimal() and target.isdecimal() and item.isascii()):
            raise DataError(f"{where}: '{item[:40]}' is no link: expected the numbers of a source word and a target "
                            "word, from 0, as in `0-0 1-2`.")
        link = int(source), int(target)
        if link[0] >= source_words or link[1] >= target_words:
            raise DataError(f"{where}: the link {item[:40]} points behind the words of the line, of which the source "
                            f"has {source_words} and the target {target_words}, counted from 0: align the text that is "
                            "prepared, line by line.")
        links.add(link)
    return sorted(links)


def link_tokens(links: Sequence[Link], source_words: Sequence[int], target_words: Sequence[int]) -> NDArray[np.uint16]:
    """The links of pieces: all pieces of a source word with all pieces of the target word.

    Args:
        links: of the words.
        source_words, target_words: the word of each piece, from 0.
    Returns:
        uint16 `[2, links]`: source piece and target piece, from 0.
    """
    source_pieces, target_pieces = _subwords_of_words(source_words), _subwords_of_words(target_words)
    pairs = [(one, other) for source, target in links
             for one in source_pieces.get(source, ()) for other in target_pieces.get(target, ())]
    return np.array(pairs, np.uint16).reshape(-1, 2).T


def _subwords_of_words(words: Sequence[int]) -> dict[int, list[int]]:
    """Word to its pieces."""
    pieces: dict[int, list[int]] = {}
    for piece, word in enumerate(words):
        pieces.setdefault(word, []).append(piece)
    return pieces
