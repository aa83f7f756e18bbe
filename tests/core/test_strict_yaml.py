"""YAML without silently ignored content."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.structured_files import load_strict

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def problem(text: str) -> tuple[str, int | None]:
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        load_strict(text)
    error = caught.value
    return str(error.problem), None if error.problem_mark is None else error.problem_mark.line + 1


def test_a_duplicate_key_is_refused_with_its_line() -> None:
    assert problem("a: 1\nb: 2\na: 3\n") == ("the key 'a' is there twice", 3)
    assert problem("b:\n  - {a: 1, a: 1}\n") == ("the key 'a' is there twice", 2)


def test_a_nul_in_a_text_is_refused_with_its_line() -> None:
    assert problem('a: 1\nb: ["x\\0y"]\n') == (r"a text has the character NUL (\0)", 2)


def test_a_merged_key_may_be_replaced() -> None:
    assert load_strict("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n")["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "&a [*a]", "a: &a\n  b: *a\n"])
def test_unbounded_nesting_is_refused(text: str) -> None:
    assert problem(text)[0] == "it is nested too deeply"


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "more than" in problem("\n".join(lines))[0]


@pytest.mark.parametrize("text", [
    "a: \x01", "a: 2020-13-45", "a: " + "9" * 5000, "--- a\n--- b", "? [1]\n: 2", "!!python/name:os a"])
def test_an_invalid_document_is_a_yaml_error(text: str) -> None:
    assert problem(text)[0]


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
                    max_leaves=10))
def test_the_output_of_pyyaml_is_read_unchanged(content: object) -> None:
    assert load_strict(yaml.safe_dump(content)) == content
