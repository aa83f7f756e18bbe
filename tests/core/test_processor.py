"""The processor's flags as Linux reports them."""

from __future__ import annotations

import pytest

from towernmt.core import machine


@pytest.mark.parametrize(("text", "flags", "fast"), [
    ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\nflags\t\t: other\n", {"fpu", "avx512f", "avx512_bf16"}, True),
    ("flags\t: fpu amx_bf16\n", {"fpu", "amx_bf16"}, True),
    ("flags\t: fpu avx512f\n", {"fpu", "avx512f"}, False),
    ("Features\t: asimd\n", set(), False),
    (None, set(), False),
], ids=["avx512", "amx", "without", "arm", "no file"])
def test_flags_are_those_of_the_first_processor(tmp_path, monkeypatch, text, flags, fast):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text, encoding="ascii")
    monkeypatch.setattr(machine, "Path", lambda _: path)
    monkeypatch.setattr(machine, "processor_flags", machine.processor_flags.__wrapped__)    # without its cache
    assert machine.processor_flags() == flags
    assert machine.has_fast_bfloat16() is fast
