"""Bergamot's engine for browsers: two files of an npm package, of one version, whose checksums are known.

It is Marian in WebAssembly, and no part of towernmt: a folder that npm made is named, or npm is asked for one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from towernmt.core.errors import SettingsError

PACKAGE, VERSION, LICENCE = "@browsermt/bergamot-translator", "0.4.9", "MPL-2.0"
SOURCE = "https://github.com/browsermt/bergamot-translator"
VARIABLE = "TOWERNMT_BERGAMOT"
"""The environment variable that names the package's folder."""
GLUE, WASM = "bergamot-translator-worker.js", "bergamot-translator-worker.wasm"
CHECKSUMS = {GLUE: "748b2418418a2ffc6e70721aeb10098d8e6fb589ea156b91f4ae8bc3490d8f7a",
             WASM: "95a2b58dd6773bf1b3f345d71f9149928b9f75f4ec9c9064c0b3e42c298671b2"}
"""SHA-256 of the files of the version, which are in its folder `worker`."""
MINUTES = 10
"""How long npm may take."""
_BY_HAND = (f"Where npm is, run `npm install {PACKAGE}@{VERSION}`, and name node_modules/{PACKAGE} with --bergamot or "
            f"{VARIABLE}.")


def bergamot_files(place: str | Path | None = None) -> dict[str, bytes]:
    """The engine's files by name, from the folder that is named, or else from npm.

    Args:
        place: the folder of the npm package; None takes that of the environment variable, and without one runs npm.
    Raises:
        SettingsError: it is neither there nor to be had, or it is another version, or damaged.
    """
    named = place or os.environ.get(VARIABLE)
    if named:
        return _checked(Path(named))
    with tempfile.TemporaryDirectory() as directory:
        _install(directory)
        return _checked(Path(directory) / "node_modules" / PACKAGE)


def _install(directory: str) -> None:
    """Have npm put the package into `directory/node_modules`, without running any program of it."""
    npm = shutil.which("npm")
    if npm is None:
        raise SettingsError(f"The engine for browsers, {PACKAGE} {VERSION}, is not here, and npm is not installed to "
                            f"fetch it: install Node.js with npm. {_BY_HAND}")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefer-offline",
               "--prefix", directory, f"{PACKAGE}@{VERSION}"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace",
                              timeout=MINUTES * 60)
    except subprocess.TimeoutExpired as error:
        raise SettingsError(f"npm did not fetch {PACKAGE} {VERSION} within {MINUTES} minutes. {_BY_HAND}") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["(it said nothing)"]
        raise SettingsError(f"npm could not fetch {PACKAGE} {VERSION}: {said[0]} {_BY_HAND}")


def _checked(folder: Path) -> dict[str, bytes]:
    """The files, which are those that are known."""
    found = {}
    for name, checksum in CHECKSUMS.items():
        file = folder / "worker" / name
        try:
            found[name] = file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{file} cannot be read ({error.strerror}): {folder} should be the folder of npm's "
                                f"{PACKAGE} {VERSION}.") from error
        if hashlib.sha256(found[name]).hexdigest() != checksum:
            raise SettingsError(f"{file} is not that of {PACKAGE} {VERSION}: its checksum is another. Install this "
                                "version anew.")
    return found
