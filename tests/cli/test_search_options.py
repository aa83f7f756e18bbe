"""Options of a search: every field of `SearchSettings` has one, and options that are not specified set no field."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import pytest

from towernmt.cli.translation_options import add_search_options, check_search_options, search_options
from towernmt.core.errors import SettingsError
from towernmt.predict.search.search_settings import SearchSettings


def parse(*arguments: str, **options: Any) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_search_options(parser, **options)
    return search_options(parser.parse_args(arguments))


def test_options_that_are_not_specified_are_not_returned() -> None:
    assert parse() == {}


@pytest.mark.parametrize("field", dataclasses.fields(SearchSettings), ids=lambda field: field.name)
def test_every_field_has_an_option(field: Any) -> None:
    option = field.name.replace("_", "-")
    choices = field.metadata["choices"]
    usual = ([f"--no-{option}"], False) if isinstance(field.default, bool) else (
        [f"--{option}", str(choices[-1] if choices else field.default)], choices[-1] if choices else field.default)
    arguments, value = {"beam_size": (["--beam", "3"], 3), "averaged": (["--last-weights"], False),
                        "max_length_factor": (["--max-length", "1.5,3"], 1.5),
                        "max_length_constant": (["--max-length", "1.5,3"], 3)}.get(field.name, usual)
    parsed_value = parse(*arguments)[field.name]
    assert parsed_value == value and type(parsed_value) is type(field.default)


def test_a_command_may_have_a_special_option_for_a_field() -> None:
    with pytest.raises(SystemExit):
        parse("--n-best", "2", excluded=["n_best"])


def test_sample_means_the_selection_by_sampling() -> None:
    assert parse("--sample", "--top-p", "0.9") == {"selection": "sampling", "top_p": 0.9}


def test_options_that_the_settings_of_the_run_may_complete_are_not_refused_early() -> None:
    for options in ({"beam_groups": 4}, {"n_best": 9}, {"top_k": 3}, {"min_length_factor": 2.5}):
        check_search_options(options)
    for wrong_options in ({"beam_groups": 4, "beam_size": 6}, {"n_best": 9, "beam_size": 8}, {"epsilon": 2.0},
                          {"top_k": 3, "selection": "beam"}, {"coverage_penalty": 1.0, "selection": "sampling"}):
        with pytest.raises(SettingsError, match=next(iter(wrong_options))):
            check_search_options(wrong_options)


def test_a_length_that_is_not_two_numbers_is_refused() -> None:
    assert parse("--max-length", "3") == {"max_length_factor": 3.0, "max_length_constant": 0}
    with pytest.raises(SettingsError, match="--max-length 1,x: expected FACTOR,CONSTANT"):
        parse("--max-length", "1,x")
