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
_LONGEST_LINK = 40      # characters; Python refuses to read numbers of thousands of digits
LONGEST = 1 << 16
"""Maximum length of an aligned sentence in tokens, since links are stored as uint16."""


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


def _parse(line: str, location: str, source_words: int, target_words: int) -> list[Link]:
    links = set()
    for item in line.split():
        source, _, target = item.partition("-")
        if not (source.isdecimal() and target.isdecimal() and item.isascii()) or len(item) > _LONGEST_LINK:
            raise DataError(f"{location}: '{item[:40]}' is not a word alignment: expected the indices of a source word "
                            "and a target word, from 0, as in `0-0 1-2`.")
        link = int(source), int(target)
        if link[0] >= source_words or link[1] >= target_words:
            raise DataError(f"{location}: the word alignment {item[:40]} (counted from 0) refers to a missing word: "
                            f"the line has {source_words} source and {target_words} target words. Align the same text "
                            "that is prepared, line by line.")
        links.add(link)
    return sorted(links)


def link_tokens(links: Sequence[Link], source_words: Sequence[int], target_words: Sequence[int]) -> NDArray[np.uint16]:
    """Return the links of subwords: all subwords of a source word with all subwords of the linked target word.

    Args:
        links: links of words.
        source_words: index of the word of each source subword, from 0.
        target_words: index of the word of each target subword, from 0.

    Returns:
        uint16 `[2, links]`: indices of source subword and target subword, from 0.
    """
    source_subwords, target_subwords = _subwords_by_word(source_words), _subwords_by_word(target_words)
    pairs = [(one, other) for source, target in links
             for one in source_subwords.get(source, ()) for other in target_subwords.get(target, ())]
    return np.array(pairs, np.uint16).reshape(-1, 2).T


def _subwords_by_word(words: Sequence[int]) -> dict[int, list[int]]:
    """Return the indices of the subwords of each word."""
    subwords: dict[int, list[int]] = {}
    for subword, word in enumerate(words):
        subwords.setdefault(word, []).append(subword)
    return subwords
