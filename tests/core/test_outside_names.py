"""No name from an external file leads out of its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.core.errors import DataError
from towernmt.core.files import checked_name, path_inside


@pytest.mark.parametrize("name", [
    "", "/etc/passwd", "../x", "a/../../x", "a/..", "..", ".", "./x", "a//b", "a/", "C:\\x", "C:x", "c:/x", "a\\b",
    "..\\x", "\\\\host\\share\\x", "file:///x", "a\x00b", "a\nb"])
def test_names_that_may_leave_their_directory_are_refused(name: str, tmp_path: Path) -> None:
    for check in (lambda: checked_name(name, "manifest.json"), lambda: path_inside(tmp_path, name, "manifest.json")):
        with pytest.raises(DataError, match="^manifest.json names the file .* outside its directory") as caught:
            check()
        assert "\n" not in str(caught.value)


def test_links_that_lead_out_of_the_directory_are_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "vocabulary").symlink_to(outside)
    (inside / "file").symlink_to(outside / "file")
    for name in ("vocabulary/source.model", "file"):
        with pytest.raises(DataError, match="leads out of .* by a link"):
            path_inside(inside, name, "manifest.json")


def test_names_below_the_directory_are_taken(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("shard-00000.pairs", "vocabulary/source.model", "ä ö...x", "..a"):
        assert path_inside(tmp_path / "link", name, "manifest.json") == tmp_path / "link" / name
