"""Damaged and malicious packages are refused with one sentence, and leave no files."""

from __future__ import annotations

import json
import re
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from towernmt.checkpoint.package_manifest import MANIFEST
from towernmt.checkpoint.packaged_run import PackagedRun, is_package, open_run
from towernmt.core.errors import CheckpointError, SettingsError, TowerNMTError

KERNEL = "weights/model/kernel.npy"


def packed_again(package: Path, change: Callable[[dict[str, bytes]], Any], compression: int = 0) -> None:
    """Write the package again with changed members."""
    with zipfile.ZipFile(package) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(package, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def with_manifest(package: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    def changed(members: dict[str, bytes]) -> None:
        manifest = json.loads(members[MANIFEST])
        change(manifest)
        members[MANIFEST] = json.dumps(manifest).encode()
    packed_again(package, changed)


def with_member(name: str, content: bytes) -> Callable[[Path], None]:
    """Change the content of a member, with the correct checksum in the manifest."""
    import hashlib

    def change(package: Path) -> None:
        packed_again(package, lambda members: members.update({name: content}))
        with_manifest(package, lambda manifest: manifest["members"].update(
            {name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}))
    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda package: packed_again(package, lambda members: members.pop(name))


def telling(**fields: Any) -> Callable[[Path], None]:
    return lambda package: with_manifest(package, lambda manifest: manifest.update(fields))


def flipped(package: Path) -> None:
    """Change one byte of a weight, as in a corrupted copy."""
    content = bytearray(package.read_bytes())
    content[content.index(b"\x93NUMPY") + 140] ^= 1
    package.write_bytes(content)


def tampered(package: Path) -> None:
    """Replace a weight by one of the same size, with correct checksums of the zip file."""
    def change(members: dict[str, bytes]) -> None:
        members[KERNEL] = members[KERNEL][:-1] + bytes([members[KERNEL][-1] ^ 1])
    packed_again(package, change)


def twice(package: Path) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(package, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("settings.yaml", "architecture: transformer\n")


def overlapping(package: Path) -> None:
    """Let many entries of the zip directory point to one large member."""
    big = "weights/big"
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr(big, bytes(4_000_000))
        first = archive.infolist()[-1]
        for number in range(3):
            copy = zipfile.ZipInfo(f"{big}{number}")
            copy.file_size, copy.compress_size, copy.CRC = first.file_size, first.compress_size, first.CRC
            copy.header_offset = first.header_offset
            archive.filelist.append(copy)
        archive._didModify = True  # type: ignore[attr-defined]


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no zip file": (lambda path: path.write_text("hello"), "not a package of towernmt, or damaged"),
    "empty": (lambda path: path.write_bytes(b""), "not a package of towernmt, or damaged"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-400]), "not a package of towernmt, or damaged"),
    "beginning lost": (lambda path: path.write_bytes(path.read_bytes()[900:]), "download it again"),
    "another program's zip": (lambda path: packed_again(path, dict.clear), "is not a package of towernmt"),
    "one byte is another": (flipped, "is damaged (Bad CRC-32"),
    "a weight is exchanged": (tampered, f"{KERNEL} is damaged (its SHA-256 differs from the manifest)"),
    "a file is longer": (lambda path: packed_again(path, lambda members: members.update(
        {"settings.yaml": b"architecture: transformer\n"})), "settings.yaml has another size"),
    "a file is missing": (without("settings.yaml"), "settings.yaml is missing"),
    "a weight is missing": (without(KERNEL), f"{KERNEL} is missing"),
    "a file too many": (lambda path: packed_again(path, lambda members: members.update({"vocabulary/more": b""})),
                        "vocabulary/more, which towernmt-package.json does not list"),
    "a file twice": (twice, "contains settings.yaml twice"),
    "up and away": (with_member("../../evil", b"x"), "may lie outside its directory"),
    "to the root": (with_member("/tmp/evil", b"x"), "may lie outside its directory"),
    "with a drive": (with_member("C:\\evil", b"x"), "may lie outside its directory"),
    "a kept graph smuggled in": (with_member("graphs/search-0.graph", b"x"), "does not belong into a package"),
    "a checkpoint smuggled in": (with_member("checkpoints/step-7/model.index", b"x"), "does not belong into a package"),
    "compressed anew": (lambda path: packed_again(path, lambda members: None, zipfile.ZIP_DEFLATED), "is compressed"),
    "entries that overlap": (overlapping, "its files are larger than the package itself"),
    "a newer version": (telling(version=2, more=True), "of version 2, but this towernmt reads version 1"),
    "another format": (telling(format="other"), 'the field `format` holds "other"'),
    "an unknown field": (telling(more=1), "the field `more` is not known"),
    "a manifest that is no JSON": (lambda path: packed_again(path, lambda members: members.update(
        {MANIFEST: b"{"})), "towernmt-package.json: cannot be read"),
    "a weight without a file": (telling(members={}), "does not list"),
    "a weight that is pickled": (with_member(KERNEL, b"\x80\x04."), "not the int8 values of 'model/kernel'"),
    "a weight of another shape": (lambda path: with_manifest(path, lambda manifest: manifest["weights"][
        "model/kernel"].update(shape=[6, 8])), "its shape is [8, 6]"),
    "scales that are not there": (lambda path: with_manifest(path, lambda manifest: manifest["weights"][
        "model/kernel"].pop("scales")), "int8 needs scales"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_the_error_of_a_broken_file_is_one_sentence(kind: str, package: Path, tmp_path: Path, own_cache: Path) -> None:
    broken, (spoil, message) = tmp_path / "model.towernmt.zip", BROKEN[kind]
    shutil.copy(package, broken)
    spoil(broken)
    with pytest.raises(TowerNMTError, match=re.escape(message)) as caught:
        list(PackagedRun(broken)._package.weights())
    assert str(broken) in str(caught.value) and "\n" not in str(caught.value)
    assert not [path for path in own_cache.glob("*") if "." in path.name]       # nothing half done
    assert not list(tmp_path.rglob("evil"))


def test_an_encrypted_file_is_refused(package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model.towernmt.zip"
    content = bytearray(package.read_bytes())
    offset = content.index(b"PK\x01\x02")
    content[offset + 8:offset + 10] = struct.pack("<H", 1)
    broken.write_bytes(content)
    with pytest.raises(TowerNMTError, match="is compressed or encrypted"):
        PackagedRun(broken)


def test_code_is_not_executed_and_a_shortlist_is_the_packages_own(package: Path) -> None:
    run = open_run(package)
    with pytest.raises(SettingsError, match="which would be executed: if you trust it, pass --trust-code"):
        run.architecture_to_load()
    assert run.saved_settings()["search.shortlist"] == str(run.path / "shortlist.lexicon")


def test_a_package_refuses_the_name_of_another_checkpoint(package: Path) -> None:
    for which in ("best", "last", "step-8", "/etc"):
        with pytest.raises(TowerNMTError, match="contains only the checkpoint step-7"):
            open_run(package).checkpoint(which)


def test_a_package_that_cannot_be_read_is_refused_with_the_reason() -> None:
    unreadable = "/proc/self/mem"       # a file whose first bytes are an error, for root as well
    assert not is_package(unreadable)
    with pytest.raises(CheckpointError, match=r"/proc/self/mem"):
        open_run(unreadable)
