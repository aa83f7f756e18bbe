"""The languages of a model, for formats that tell of them: a code, or a code and a name as de:German."""

from __future__ import annotations

import re

from towernmt.core.errors import SettingsError


def code_and_name(text: str) -> tuple[str, str]:
    """Code and name; a code without a name is its own.

    Raises:
        SettingsError: it does not begin with a code.
    """
    code, _, name = text.partition(":")
    if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", code):
        raise SettingsError(f"language '{text}': expected its code and its name, as de:German.")
    return code, name or code
