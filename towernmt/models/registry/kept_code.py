"""A run's copy of its model's code: the module's file and what it imports from its own folder, with their sums.

```
code/my_model.py        as it was when the run began
code/SHA256SUMS         its SHA-256, as `sha256sum -c SHA256SUMS` checks it
```
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from towernmt.core.errors import SettingsError
from towernmt.core.files.atomic_files import replacing, write_text
from towernmt.core.files.outside_names import checked_name
from towernmt.models.registry.code_files import code_of
from towernmt.models.registry.locate import Place, find_place, place_of_file

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def keep_code(place: Place, directory: Path) -> None:
    """Write the files of a model into a directory, in place of those of another one there."""
    code = code_of(place.root, place.module)
    old = _read_sums(directory)
    if old == _sums(code) and not _damaged(directory, old):
        return
    for name in old.keys() - code.keys():
        (directory / name).unlink(missing_ok=True)
    for name, content in code.items():
        with replacing(directory / name) as file:
            file.write(content)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(_sums(code).items())]
    write_text(directory / SUMS, "".join(lines))


def kept_place(directory: Path, name: str) -> Place | None:
    """Where the model of that name (`Place.name`) is in a run's copy; None if there is no copy.

    A module of a package is taken from where it is installed, if that has the same files.

    Raises:
        SettingsError: a file of the copy is missing, or is not what its sum says.
    """
    where, _, attribute = name.rpartition(":")
    path = where if where.endswith(".py") else where.replace(".", "/") + ".py"
    checked_name(path, f"{directory.parent / 'settings.yaml'}: architecture")
    file = directory / path
    if not file.is_file():
        file = file.with_suffix("") / "__init__.py"
    if not file.is_file():
        return None
    sums = _read_sums(directory)
    damaged = _damaged(directory, sums)
    if damaged:
        raise SettingsError(f"{directory / damaged[0]} is not the file that the run was made with (its SHA-256 is not "
                            f"the one in {directory / SUMS}): put that back, or, if you changed it on purpose, write "
                            "the new sums with sha256sum.")
    if not where.endswith(".py"):
        try:
            installed = find_place(name)
            if _sums(code_of(installed.root, installed.module)) == sums:
                return installed
        except SettingsError:
            pass        # not installed here: that is what the copy is for
    return place_of_file(file, attribute)


def changed_files(place: Place, directory: Path) -> list[str]:
    """The files of a model that are not those of the copy, or of which one of both has no copy."""
    new, old = _sums(code_of(place.root, place.module)), _read_sums(directory)
    return sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))


def _sums(code: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in code.items()}


def _read_sums(directory: Path) -> dict[str, str]:
    """Digest by name of the files of a copy; nothing where there is none."""
    file = directory / SUMS
    if not file.is_file():
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    matches = [_LINE.fullmatch(line) for line in lines if line]
    if None in matches:
        raise SettingsError(f"{file}: not lines of a SHA-256 and a name: write it anew with sha256sum.")
    return {checked_name(match[2], str(file)): match[1] for match in matches if match}


def _damaged(directory: Path, sums: dict[str, str]) -> list[str]:
    return [name for name, digest in sums.items() if not (directory / name).is_file()
            or hashlib.sha256((directory / name).read_bytes()).hexdigest() != digest]
