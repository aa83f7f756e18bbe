"""A custom engine as a user would write it: each word is translated into its capitals."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.waiting import wait_until
from towernmt.core.errors import DataError
from towernmt.predict.lines.hypotheses import Hypothesis, TokenDetails, Translation, WordAlignment
from towernmt.predict.lines.line_options import LineOptions


class Echo:
    """Translates at once, or after ECHO_SECONDS of the environment; a line `langsam` takes ECHO_SLOW.

    A line `held` waits until the folder ECHO_GATE contains the file `open`, and first creates the file `reached` there.
    """

    alternatives = 3
    aligns = True
    constrains = True

    def __init__(self) -> None:
        self.mark = os.environ.get("ECHO_MARK", "")
        if file := os.environ.get("ECHO_FILE"):
            with open(file, encoding="utf-8") as stream:
                self.mark = stream.read().strip()
            if self.mark == "broken":
                raise DataError(f"{file}: this model is broken.")

    def __call__(self, lines: Sequence[str], options: Sequence[LineOptions] | None) -> list[Translation]:
        if "held" in lines:
            gate = Path(os.environ["ECHO_GATE"])
            (gate / "reached").touch()
            wait_until((gate / "open").exists)
        time.sleep(float(os.environ.get("ECHO_SLOW" if "langsam" in lines else "ECHO_SECONDS", "0")))
        given = options or [LineOptions()] * len(lines)
        return [self._one(line, asked) for line, asked in zip(lines, given, strict=True)]

    def _one(self, line: str, asked: LineOptions) -> Translation:
        if line == "kill me":
            raise RuntimeError(line)
        text = (self.mark + " " if self.mark else "") + line.upper()
        terms = asked.terminology.terms_in(line) if asked.terminology else []
        for term in terms:
            text = text.replace(term.source.upper(), term.target)
        if asked.prefix:
            text = f"{asked.prefix} {text}"
        hypotheses = []
        for number in range(asked.n_best or 1):
            words = [*text.split(), *(["AGAIN"] * number)]
            weights = np.eye(len(words), len(line.split()), dtype=np.float32)
            details = TokenDetails([], [], None, None, None, None, WordAlignment(line.split(), words, weights))
            hypotheses.append(Hypothesis(" ".join(words), -0.5 - number, details))
        found = Translation(hypotheses)
        found.terms = terms
        return found
