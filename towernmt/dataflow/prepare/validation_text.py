"""The validation text of a preparation: checked first, then written as raw text next to the shards.

The first set is `valid.source` and `valid.target`; further references of it are `valid.target-2` and
so on, and the second set is `valid-2.source` and `valid-2.target`. The manifest has the names of the sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.core.files.atomic_files import write_text
from towernmt.dataflow.prepare.annotations import check_factored_text
from towernmt.dataflow.prepared.manifest import ValidationInfo
from towernmt.dataflow.text.chunks import read_lines
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.text.text_scan import TextSummary, scan_pair
from towernmt.dataflow.text.validation_set import ValidationFiles, files_of_set


class ValidationText:
    """The validation sets of a preparation, scanned.

    Args:
        sets: where they are.
        factors: source factors of each word.
    Raises:
        DataError: missing text, wrong encoding, sides of unequal length, or a word lacks a factor.
    """

    def __init__(self, sets: Sequence[ValidationFiles], factors: int) -> None:
        self._names = [one.name for one in sets]
        self._texts: list[list[TextSummary]] = []       # of each set the source and its references
        for one in sets:
            pairs = [scan_pair(one.source, target) for target in one.targets]
            self._texts.append([pairs[0][0], *(target for _, target in pairs)])
            if factors:
                check_factored_text(one.source, factors)

    @property
    def pairs(self) -> int:
        """Sentences of the first set; 0 without any."""
        return self._texts[0][0].lines if self._texts else 0

    def infos(self) -> list[ValidationInfo] | None:
        """The sets for the manifest; None for one without a name and with one reference, which needs no list."""
        if self._names in ([], [""]) and all(len(texts) == 2 for texts in self._texts):
            return None
        return [ValidationInfo(name, texts[0].lines, len(texts) - 1)
                for name, texts in zip(self._names, self._texts, strict=True)]

    def inputs(self) -> dict[str, TextSummary]:
        """The texts by the names that the manifest's `inputs` give them."""
        found = {}
        for number, (source, *targets) in enumerate(self._texts, 1):
            stem = "valid" if number == 1 else f"valid_{number}"
            found[f"{stem}_source"] = source
            for place, target in enumerate(targets, 1):
                found[f"{stem}_target" if place == 1 else f"{stem}_target_{place}"] = target
        return found

    def write(self, directory: Path) -> list[str]:
        """Write the text; returns the names of the files. The source is cleaned as training text is."""
        names = []
        for number, texts in enumerate(self._texts, 1):
            source, targets = files_of_set(number, len(texts) - 1)
            for name, text in zip((source, *targets), texts, strict=True):
                lines = [clean(line) if name == source else line for line in read_lines(text.path)]
                if len(lines) != text.lines:
                    raise DataError(f"{text.path} had {text.lines:,} lines at first, and {len(lines):,} when it was "
                                    "read again. Prepare again, while nothing writes to it.")
                write_text(directory / name, "".join(f"{line}\n" for line in lines))
                names.append(name)
        return names
