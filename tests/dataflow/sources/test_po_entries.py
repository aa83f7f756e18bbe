"""The entries of `.po` files: their texts, flags and lines."""

from __future__ import annotations

import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.po_entries import PoEntry, po_entries

LINES = r'''# a comment
#, fuzzy, c-format
#| msgid "old"
msgctxt "menu"
msgid "one" " file"

  # a comment inside
msgid_plural ""
"%d files\n"
msgstr[0] ""
msgstr[1] "Dateien"
# the next entry
#, fuzzy
#~ msgid "obsolete"
#~ msgstr "veraltet"

msgid "done"
msgstr "fertig"
msgid "template"
'''.splitlines(keepends=True)


def test_entries_have_their_texts_flags_and_lines() -> None:
    assert list(po_entries(LINES, "utf-8")) == [
        PoEntry({"msgctxt": "menu", "msgid": "one file", "msgid_plural": "%d files\n"}, {0: "", 1: "Dateien"},
                ["fuzzy", "c-format"], [1], begin=2, translation=9, after=11),
        PoEntry({"msgid": "done"}, {0: "fertig"}, begin=16, translation=16 + 1, after=18),
        PoEntry({"msgid": "template"}, begin=18, after=19)]


def test_the_ends_of_lines_do_not_matter() -> None:
    assert list(po_entries([line.rstrip("\n") for line in LINES], "utf-8")) == list(po_entries(LINES, "utf-8"))
    assert list(po_entries([line.replace("\n", "\r\n") for line in LINES], "utf-8")) == list(po_entries(LINES, "utf-8"))


@pytest.mark.parametrize(("name", "location"), [("x.po", "x.po line 2: msgid"), ("", "Line 2: msgid")])
def test_the_name_of_the_file_is_part_of_the_message_if_it_is_known(name: str, location: str) -> None:
    with pytest.raises(DataError, match=f"^{location} is not expected here"):
        list(po_entries(['msgid "a"', 'msgid "b"'], "utf-8", name))
