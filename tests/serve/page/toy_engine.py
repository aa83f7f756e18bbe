"""An engine with translations that can be derived by hand: word by word in reverse order, with synonyms.

`der hund schläft` is `sleeps dog the`: the words are aligned crosswise. The model copies unknown words with low
confidence, and has less confidence in words with synonyms.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.waiting import wait_until
from towernmt.core.errors import SettingsError
from towernmt.predict.lines.hypotheses import Hypothesis, TokenDetails, Translation, WordAlignment
from towernmt.predict.lines.line_options import PLAIN, LineOptions

SYNONYMS = {"der": ["the"], "das": ["the"], "hund": ["dog", "hound", "doggy"], "haus": ["house", "home", "hut"],
            "ist": ["is"], "klein": ["small", "little"], "schläft": ["sleeps"], "katze": ["cat"], "die": ["the"],
            "hör": ["<b>hear</b>"]}


class Toy:
    """An engine like `Echo`; each sentence takes TOY_SECONDS, and `Warte.` waits for the file TOY_GATE."""

    alternatives = 3
    aligns = True
    constrains = True
    card = {"name": "Toy", "licence": "CC0-1.0", "limitations": "It knows ten words.", "authors": ["Anna", "Bert"],
            "training_data": {"pairs": 7, "sources": [{"name": "Ten words", "licence": "CC-BY-4.0", "pairs": 7}]},
            "settings": {"model.depth": 3}}

    def __call__(self, lines: Sequence[str], options: Sequence[LineOptions] | None) -> list[Translation]:
        if "Warte." in lines:
            wait_until(Path(os.environ["TOY_GATE"]).exists)
        time.sleep(float(os.environ.get("TOY_SECONDS", "0")) * len(lines))
        return [Translation([self._one(line, asked, number) for number in range(asked.n_best or 1)])
                for line, asked in zip(lines, options or [PLAIN] * len(lines), strict=True)]

    def _one(self, line: str, asked: LineOptions, number: int) -> Hypothesis:
        if "\N{CJK UNIFIED IDEOGRAPH-65E5}" in asked.prefix:
            raise SettingsError("The prefix has a character that the vocabulary cannot write: use other words.")
        source = line.split()
        given = asked.prefix.split()
        begun = given.pop() if asked.partial_word and given else ""
        words, sure = list(given), [1.0] * len(given)
        for place in range(len(given), len(source)):
            word = source[len(source) - 1 - place]
            known = [one for one in SYNONYMS.get(word.strip(".").lower(), [word]) if one not in asked.avoid]
            if place == len(given):
                known = [one for one in known if one.startswith(begun)] or [begun]
            words.append(known[number % len(known)] if place == len(given) else known[0])
            sure.append(0.1 if word.strip(".").lower() not in SYNONYMS else 0.5 if len(known) > 1 else 0.95)
        weights = np.zeros((len(words), len(source)), np.float32)
        for place in range(len(words)):
            weights[place, max(len(source) - 1 - place, 0)] = 1.0
        details = TokenDetails([], [], np.array([math.log(one) for one in sure]), None, list(range(len(words))), None,
                               WordAlignment(source, words, weights))
        return Hypothesis(" ".join(words), -1.0 - number, details)


class Plain(Toy):
    """The engine without alignments and prefixes."""

    aligns = constrains = False
    card = None

    def _one(self, line: str, asked: LineOptions, number: int) -> Hypothesis:
        return Hypothesis(super()._one(line, asked, number).text, -1.0 - number)


class Back(Toy):
    """The opposite direction: copies the words in reverse order."""

    def _one(self, line: str, asked: LineOptions, number: int) -> Hypothesis:
        return super()._one(line.upper(), asked, number)
