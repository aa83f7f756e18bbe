"""What the writer of a format gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towernmt.predict.decoding.settings import SearchSettings
    from towernmt.predict.trained_model import TrainedModel


@dataclass(frozen=True)
class ExportJob:
    """One model to be written in one format.

    Attributes:
        trained: the run and its checkpoint; `trained.weights()` gives the averages, where there are some.
        search: how translations are searched for; a format that holds the search writes it, the others' users read it
            in `towernmt.json`.
        precision: one of the format's `precisions`.
        directory: where the files go: an empty directory, which gets its real name when all are written.
        calibration: a file of source sentences, one a line, for formats that measure the model at work; None for none.
        languages: source and target language, each a code, or a code and a name as de:German; None where not told.
        bergamot: the folder of the npm package with the engine of browsers, for formats that hold it; None to look for
            it.
    """

    trained: TrainedModel
    search: SearchSettings
    precision: str
    directory: Path
    calibration: str | Path | None = None
    languages: tuple[str, str] | None = None
    bergamot: str | Path | None = None
