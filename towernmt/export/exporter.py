"""A trained model to a directory that another program reads: its files, the vocabularies, `towernmt.json`."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.checkpoint.provenance import versions
from towernmt.core.errors import SettingsError
from towernmt.core.files.atomic_files import flush_to_disk, write_text
from towernmt.export.formats import export_format
from towernmt.export.job import ExportJob
from towernmt.predict.decoding.settings import SearchSettings

if TYPE_CHECKING:
    from towernmt.predict.trained_model import TrainedModel

DESCRIPTION = "towernmt.json"
"""The file that tells what an export is: format, precision, where it comes from, how to search."""


def export_model(trained: TrainedModel, format_name: str, output: str | Path, *, precision: str | None = None,
                 search: SearchSettings | None = None, calibration: str | Path | None = None,
                 languages: tuple[str, str] | None = None, bergamot: str | Path | None = None) -> Path:
    """Write a model for another program.

    The directory is complete or not there: it is written beside its place and renamed.

    ```
    towernmt.json     format, precision, checkpoint, versions, search settings, and what the format tells of its files
    vocabulary/       the run's vocabularies
    ...               the files of the format
    ```

    Args:
        trained: the run and its checkpoint.
        format_name: one of `FORMATS`.
        output: a directory that is not there, or empty.
        precision: of the weights; the format's first by default.
        search: the settings of the search; by default the run's own.
        calibration: a file of source sentences, one a line, for formats that measure the model at work.
        languages: source and target language, each a code, or a code and a name as de:German, for formats that tell.
        bergamot: the folder of npm's @browsermt/bergamot-translator, for the format web; None to look for it.
    Returns:
        The directory.
    Raises:
        SettingsError: an unknown format or precision, an output that is taken, or a model that the format cannot
            express.
        OSError: it cannot be written.
    """
    kind = export_format(format_name)
    precision = precision or kind.precisions[0]
    if precision not in kind.precisions:
        raise SettingsError(f"precision '{precision}': {format_name} has {', '.join(kind.precisions)}.")
    place = Path(output)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise SettingsError(f"{place} is there already: choose another --output, or remove it.")
    search = search or trained.run.group("search", SearchSettings())
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{place.name}.tmp-", dir=place.parent))
    try:
        unfinished.chmod(0o755)
        details = kind.writer()(ExportJob(trained, search, precision, unfinished, calibration, languages,
                                          bergamot))
        shutil.copytree(trained.run.vocabulary, unfinished / "vocabulary")
        description = {"format": format_name, "precision": precision, **_origin(trained), "search": asdict(search),
                       **details}
        write_text(unfinished / DESCRIPTION, json.dumps(description, indent=1, ensure_ascii=False) + "\n")
        unfinished.replace(place)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    flush_to_disk(place.parent)
    return place


def _origin(trained: TrainedModel) -> dict[str, Any]:
    return {"architecture": trained.run.architecture(), "checkpoint": Path(trained.checkpoint).parent.name,
            "averaged": trained.averaged, "made_with": versions()}
