"""CTranslate2 never ignores a search setting: it expresses it, or the graph searches."""

from __future__ import annotations

import dataclasses

import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.settings import setting
from towernmt.interop.ctranslate2_requests import EXPRESSED_SETTINGS, SUPPORTED_VALUES, check_search, difference
from towernmt.predict.search.search_settings import SearchSettings


@dataclasses.dataclass(frozen=True)
class MoreSettings(SearchSettings):
    """Search settings with one that CTranslate2 does not have."""

    bonus: float = setting(0.0, "a new setting", at_least=0)


def test_a_setting_that_ctranslate2_does_not_have_must_have_its_default() -> None:
    check_search(MoreSettings())
    assert not difference(MoreSettings())
    assert difference(MoreSettings(bonus=0.5)) == "bonus=0.5: it does not have this setting"
    with pytest.raises(SettingsError, match=r"bonus=0.5 cannot be combined with .* Set bonus=0\.0, or leave out"):
        check_search(MoreSettings(bonus=0.5))
    with pytest.raises(SettingsError, match=r"bonus=0.5 cannot be combined"):
        check_search(MoreSettings(bonus=0.5, selection="sampling"))


def test_each_setting_is_either_expressed_or_has_one_supported_value() -> None:
    assert not EXPRESSED_SETTINGS & set(SUPPORTED_VALUES)
    assert EXPRESSED_SETTINGS | set(SUPPORTED_VALUES) <= {field.name for field in dataclasses.fields(SearchSettings)}
