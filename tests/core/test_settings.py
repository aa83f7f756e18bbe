"""Typed settings: their layers, their types, and the messages for wrong values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.core.errors import SettingsError
from towernmt.core.setting_values import assigned
from towernmt.core.settings import (
    all_keys,
    apply_overrides,
    check_types,
    describe,
    flatten,
    load_yaml,
    parse_assignments,
    save_yaml,
    setting,
)


@dataclass
class Inner:
    size: int = setting(4, "how large")
    rate: float = setting(0.5, "how fast.")
    name: str = setting("adam", "which", choices=("adam", "sgd"))
    on: bool = setting(True, "whether")
    limit: int | None = setting(None, "at most")
    steps: list[int] = setting([], "where")


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    seed: int = setting(1, "the seed")


@pytest.mark.parametrize(("key", "text", "value"), [
    ("inner.size", "12", 12), ("inner.size", 12.0, 12),
    ("inner.rate", "1e-3", 1e-3), ("inner.rate", 2, 2.0),
    ("inner.name", "sgd", "sgd"), ("inner.on", "false", False), ("inner.on", "1", True),
    ("inner.limit", "3", 3), ("inner.limit", "none", None), ("inner.steps", "1, 2,3", [1, 2, 3]),
    ("seed", "7", 7)])
def test_a_value_is_read_as_the_type_of_its_field(key: str, text: Any, value: Any) -> None:
    changed = flatten(apply_overrides(Outer(), {key: text}))
    assert changed == {**flatten(Outer()), key: value}
    assert type(changed[key]) is type(value)


@pytest.mark.parametrize(("key", "text", "message"), [
    ("inner.size", "twelve", "inner.size=twelve is not a whole number (default: 4)"),
    ("inner.size", "1.5", "is not a whole number"), ("inner.size", True, "is not a whole number"),
    ("inner.rate", "fast", "is not a number"), ("inner.on", "maybe", "is not true or false"),
    ("inner.name", "adamw", "inner.name=adamw is not one of adam, sgd"),
    ("inner.steps", "1,x", "is not a list such as `[a, b]` or `a,b` (a whole number each)"),
    ("inner.siez", "3", "there is no setting 'inner.siez'. Did you mean 'inner.size'?"),
    ("sizes", "3", "Did you mean 'inner.size'?"), ("inner", "3", "there is no setting 'inner'"),
    ("seed.x", "3", "there is no setting 'seed.x'"),
    ("zzzzz", "3", "`towernmt train --help-settings` lists them all")])
def test_the_error_of_a_wrong_name_suggests_the_nearest_right_name(key: str, text: Any, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        apply_overrides(Outer(), {key: text})
    assert message in str(raised.value)
    assert str(raised.value).startswith("--set: ")


def test_overriding_does_not_change_the_original_settings() -> None:
    settings = Outer()
    apply_overrides(settings, {"inner.size": 9, "inner.steps": "1"})
    assert settings == Outer()


INTEGERS = st.integers(1 - 2**63, 2**63 - 1)
INNER = st.builds(Inner, INTEGERS, st.floats(-1e38, 1e38), st.sampled_from(["adam", "sgd"]),
                  st.booleans(), st.none() | INTEGERS, st.lists(INTEGERS))


@given(settings=st.builds(Outer, INNER, INTEGERS))
def test_saved_settings_come_back(tmp_path_factory: pytest.TempPathFactory, settings: Outer) -> None:
    path = tmp_path_factory.mktemp("settings") / "settings.yaml"
    save_yaml(settings, path)
    assert apply_overrides(Outer(), load_yaml(path)) == settings


@dataclass
class Kinds:
    mode: Literal["soft", "hard", 3] = "soft"
    sizes: tuple[int, ...] = (1, 2)
    window: tuple[int, float] = (1, 0.5)
    loose: list = field(default_factory=lambda: [1, "a"])
    note: Literal["x"] | None = None


def test_literals_and_tuples_come_back_and_are_set(tmp_path: Path) -> None:
    check_types(Kinds())
    changed = apply_overrides(Kinds(), parse_assignments(["mode=3", "sizes=3,4,5", "window=[2, 1]", "note=x"]))
    assert changed == Kinds(3, (3, 4, 5), (2, 1.0), note="x")
    save_yaml(changed, tmp_path / "kinds.yaml")
    assert apply_overrides(Kinds(), load_yaml(tmp_path / "kinds.yaml")) == changed
    for assignment, message in (("mode=firm", "mode=firm is not one of soft, hard, 3"), ("window=1", "is not a list"),
                                ("loose=ab", "loose=ab is not a list in a settings file")):
        with pytest.raises(SettingsError, match=message):
            apply_overrides(Kinds(), parse_assignments([assignment]))


@pytest.mark.parametrize(("kind", "value"), [
    (dict[str, int], {"a": 1}), (Any, None), (int, None), (str, 5), (int, 0.5), (Path, Path("x")),
    (float, np.float32(1)), (tuple[int, int], (1, 2, 3)), (Literal["a"], "b")])
def test_a_setting_that_could_not_be_read_again_is_refused(kind: Any, value: Any) -> None:
    settings = dataclasses.make_dataclass("Own", [("x", kind, field(default_factory=lambda: value))])()
    with pytest.raises(SettingsError, match="Own.x: .* cannot be read from a settings.yaml"):
        check_types(settings)


def test_a_computed_field_is_refused() -> None:
    with pytest.raises(SettingsError, match="Own.x has init=False"):
        check_types(dataclasses.make_dataclass("Own", [("x", int, field(default=1, init=False))])())


def test_a_type_that_is_imported_only_for_type_checkers_is_refused() -> None:
    with pytest.raises(SettingsError, match="Own: the type of a setting cannot be read .*'Nowhere'"):
        check_types(dataclasses.make_dataclass("Own", [("x", "Nowhere", 1)])())


def test_yaml_may_be_nested_or_dotted(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("inner:\n  size: 5\ninner.rate: 0.1\nseed: 3\n")
    assert load_yaml(path) == {"inner.size": 5, "inner.rate": 0.1, "seed": 3}


@pytest.mark.parametrize(("text", "message"), [
    (None, "cannot read"), ("inner: [", "not valid YAML"), ("- 1\n", "expected `group: {name: value}`")])
def test_a_broken_settings_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=message) as raised:
        load_yaml(path)
    assert str(path) in str(raised.value)


def test_assignments_are_split_at_the_first_equals_sign() -> None:
    assert parse_assignments(["a.b = x=y", "c="]) == {"a.b": "x=y", "c": ""}
    with pytest.raises(SettingsError, match="expected key=value"):
        parse_assignments(["train.steps"])


@pytest.mark.parametrize(("text", "value"), [
    ("[1, 2]", [1, 2]), ("[]", []), ("", []), ("none", []), ("1", [1]), ("(1, 2)", [1, 2]), ("- 1\n- 2", [1, 2]),
    ("[1e3]", [1000]), ("'1'", [1])])
def test_a_list_may_be_written_as_yaml(text: str, value: list[int]) -> None:
    assert apply_overrides(Outer(), parse_assignments([f"inner.steps={text}"])).inner.steps == value


@dataclass
class Texts:
    only: list[str] = setting([], "regular expressions")
    text: str = setting("", "any text")
    maybe: str | None = setting(None, "a text or none")
    number: float = setting(0.0, "a number")


@pytest.mark.parametrize(("text", "value"), [
    ('["encoder"]', ["encoder"]), ("['a, b', c]", ["a, b", "c"]),
    ("[encoder, 1, true, 1e-3]", ["encoder", "1", "true", "1e-3"]), ("encoder,decoder", ["encoder", "decoder"]),
    ('"a, b"', ["a, b"]), ("(encoder|decoder)/.*", ["(encoder|decoder)/.*"]),
    ("[a-z]+/kernel", ["[a-z]+/kernel"]), ("x/[a-z]+", ["x/[a-z]+"]), ("none", []), ('["none"]', ["none"])])
def test_a_list_of_texts_may_be_yaml_or_have_commas(text: str, value: list[str]) -> None:
    assert apply_overrides(Texts(), parse_assignments([f"only={text}"])).only == value
    assert apply_overrides(Texts(), {"only": text}).only == value


@pytest.mark.parametrize("text", ['["a" "b"]', '["a"', "[a, b: {c: 1}]", "[[a]]", "[a: 1]"])
def test_a_list_that_is_begun_as_yaml_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a list such as"):
        apply_overrides(Texts(), parse_assignments([f"only={text}"]))


@pytest.mark.parametrize(("assignment", "changed"), [
    ("text=a: b, c", {"text": "a: b, c"}), ('text="none"', {"text": "none"}), ("text='it''s'", {"text": "it's"}),
    ("text=[a]", {"text": "[a]"}), ("text={name}.x", {"text": "{name}.x"}), ("maybe=none", {"maybe": None}),
    ("maybe=null", {"maybe": None}), ("maybe=~", {"maybe": None}), ('maybe="none"', {"maybe": "none"}),
    ("number=1e-3", {"number": 1e-3}), ("number='2'", {"number": 2.0}), ("number=.5", {"number": 0.5})])
def test_a_value_of_set_is_yaml(assignment: str, changed: dict[str, Any]) -> None:
    assert flatten(apply_overrides(Texts(), parse_assignments([assignment]))) == {**flatten(Texts()), **changed}


def test_a_mapping_sets_the_keys_of_its_group() -> None:
    changed = apply_overrides(Outer(), parse_assignments(["inner={size: 7, steps: [1, 2], name: 'sgd', limit: null}"]))
    assert changed == Outer(Inner(size=7, steps=[1, 2], name="sgd"))


@given(text=st.text("ab'\"[]{},:# -\\nN~1", max_size=8))
def test_the_printed_form_of_any_text_is_accepted_as_a_value(text: str) -> None:
    for value in (text, text or "x"):
        shown = assigned(value)
        assert apply_overrides(Texts(), parse_assignments([f"text={shown}"])).text == value
    assert apply_overrides(Texts(), parse_assignments([f"only={assigned([text, 'x'])}"])).only == [text, "x"]


@pytest.mark.parametrize("architecture", ["transformer", "seq2seq", "rnnsearch", "convs2s"])
def test_every_default_that_help_settings_prints_is_accepted(architecture: str) -> None:
    from towernmt.cli.run_options import settings_text
    from towernmt.run import default_settings

    settings = default_settings(architecture)
    lines = [line for line in settings_text(settings).splitlines() if line[:1].strip() and "=" in line]
    assert len(lines) > 100
    tiny_settings = default_settings(architecture, "tiny")
    assert flatten(apply_overrides(tiny_settings, parse_assignments(lines))) == flatten(settings)


def test_every_key_is_described_with_its_choices() -> None:
    described = {key: text for key, _, text in describe(Outer())}
    assert list(described) == all_keys(Outer())
    assert described["inner.name"] == "which. One of: adam, sgd."


def test_defaults_of_lists_are_not_shared() -> None:
    assert Inner().steps is not Inner().steps


def test_every_setting_of_a_run_has_a_help_text() -> None:
    from towernmt.run import default_settings

    for key, _, text in describe(default_settings()):
        assert len(text) > 3, key
    assert dataclasses.is_dataclass(default_settings().model)


def test_not_a_number_is_no_number() -> None:
    with pytest.raises(SettingsError, match="inner.rate=nan is not a number"):
        apply_overrides(Outer(), {"inner.rate": "nan"})


def test_a_settings_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"label: \xe4\n")
    with pytest.raises(SettingsError, match=r"latin\.yaml: not UTF-8"):
        load_yaml(tmp_path / "latin.yaml")


@pytest.mark.parametrize(("text", "message"), [
    ("seed: 1\nseed: 2\n", "the key 'seed' is there twice"),
    ("inner: {size: 1}\ninner: {rate: 2}\n", "the key 'inner' is there twice"),
    ("inner: {size: 1}\ninner.size: 2\n", "inner.size occurs twice, as a dotted key and in its group"),
    ("a: " + "[" * 700, "nested too deeply"), ("a: &a {b: *a}", "nested too deeply")])
def test_yaml_that_means_two_things_or_has_no_end_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=f"mine.yaml: .*{message}"):
        load_yaml(path)
