"""A search on a fake GPU finds what the CPU finds, and copies little to and from the host in each step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu import fake_gpu
from tests.gpu.conftest import wait_for_all
from tests.gpu.searching import LENGTHS, Search, write_searches

pytestmark = pytest.mark.thorough

SLOW = [Search("seq2seq"), Search(precision="float16"), Search(), Search(model={"decoder_cell": "ssru"})]
"""Searches that copy like those of RNNSearch, in bfloat16 (both), and of a Transformer with details."""
SEARCHES = [
    *(Search(architecture) for architecture in ("rnnsearch", "convs2s")),
    Search(precision="bfloat16"),
    Search(settings={"beam_size": 1}),
    Search(details=True),
    *SLOW,
]
PARAMETERS = [pytest.param(search, id=search.name, marks=[pytest.mark.slow] * (search in SLOW)) for search in SEARCHES]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results of the searches of the selected tests."""
    folder = tmp_path_factory.mktemp("found")
    selected = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    write_searches(folder / "searches.json", [search for search in SEARCHES if any(
        test is not None and test.params["search"] == search for test in selected)])
    wait_for_all([start(1, ["-m", "tests.gpu.searching", folder / "searches.json", folder])])
    return folder


def copies_of_a_step(folder: Path, search: Search) -> Counter[str]:
    """Return the copies that the longer sentences need more than the shorter, divided by the additional steps."""
    steps = json.loads((folder / f"{search.name}.json").read_text(encoding="utf-8"))
    totals = {}
    for length in LENGTHS:
        counts = fake_gpu.parse((folder / f"{search.name}-{length}.tsv").read_text(encoding="utf-8"))
        assert not counts.missing
        total: Counter[str] = Counter()
        for copy in counts.copies:
            total["to the host" if copy.target == fake_gpu.HOST else "to the card"] += copy.times
        totals[length] = total
    more = steps["long"] - steps["short"]
    assert more >= 5
    return Counter({way: round((totals["long"][way] - totals["short"][way]) / more, 1) for way in totals["long"]})


@pytest.mark.parametrize("search", PARAMETERS)
def test_the_result_is_that_of_the_cpu(found: Path, search: Search) -> None:
    results = fake_gpu.read_arrays(found / f"{search.name}.npz")
    for name, value in results.items():
        if name.startswith("gpu/"):
            tolerance = 1e-5 if search.precision == "float32" else 0.05
            np.testing.assert_allclose(value, results[name.replace("gpu/", "cpu/", 1)], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("search", PARAMETERS)
def test_a_step_has_few_round_trips(found: Path, search: Search) -> None:
    """The host waits for the condition of the loop, and for sizes between rounds. It sends numbers without waiting."""
    copies = copies_of_a_step(found, search)
    assert copies["to the host"] <= 3 and copies["to the card"] <= 12, copies
