"""The search with the ids of a GPU (int64), compared with that of a CPU, in graphs that a CPU executes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

import tests.models.tiny_models as tiny
from tests.predict.search.test_line_inputs import Pieces
from towernmt.core.tf_compat import tf, tf1
from towernmt.predict.search.decoding_loop import Decoding
from towernmt.predict.search.decoding_tower import decoding_for, decoding_signature, decoding_tower, output_names
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.shortlist import Shortlist
from towernmt.predict.search_towers import PlainSearch, decoding_with

RULES: dict[str, Any] = {"no_repeat_ngram": 2, "repetition_penalty": 1.2, "min_length": 1, "min_length_factor": 0.7,
                         "max_length_constant": 3}
LISTED = Shortlist(np.arange(19 * 4).reshape(19, 4).astype(np.int32) % 19, np.array([5], np.int32), 19)
LINE_INPUTS = {"prefix": [[5, 0], [7, 4]], "continuation": [[[6, 8], [9, 0]]] * 2, "avoid": [[[8, 0], [-1, 9]]] * 2,
               "constraints": [[[8, 9], [4, 0]], [[11, 0], [0, 0]]]}
SEARCHES = {
    "greedy": SearchSettings(beam_size=1), "beam": SearchSettings(beam_size=4, n_best=2, stopping="first"),
    "rules": SearchSettings(beam_size=4, coverage_penalty=0.2, **RULES),
    "diverse": SearchSettings(beam_size=4, beam_groups=2, n_best=3, **RULES),
    "sampling": SearchSettings(selection="sampling", n_best=3, top_k=15, top_p=0.9, **RULES)}


def outputs_on(device: str, name: str, decoding: Decoding) -> list[np.ndarray]:
    """Return the outputs of a search that is built for a device."""
    with tf.Graph().as_default(), PredictTowerContext(""):
        model = tiny.make(name, quiet=True)
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in decoding_signature(model, decoding)]
        found = decoding_tower(model, decoding, device)(*inputs)
        session = tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True))
        session.run(tf1.global_variables_initializer())
        tiny.scramble(session, 0.8)
        values = {"source": tiny.SOURCE, "source_length": tiny.SOURCE_LENGTH, **LINE_INPUTS}
        return session.run([getattr(found, output) for output in output_names(decoding)],
                           {tensor: values[tensor.op.name] for tensor in inputs})


def assert_equal(name: str, decoding: Decoding) -> None:
    for expected, found in zip(*(outputs_on(device, name, decoding) for device in ("/cpu:0", "/gpu:0")), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_in_int64_finds_the_translations_of_int32(search: str) -> None:
    assert_equal("transformer", decoding_for(SEARCHES[search], log_probs=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.MODELS)
def test_every_model_decodes_int64_ids(name: str) -> None:
    assert_equal(name, decoding_for(SEARCHES["beam"]))


@pytest.mark.thorough
def test_a_shortlist_is_the_same_in_int64() -> None:
    assert_equal("transformer", dataclasses.replace(decoding_for(SEARCHES["rules"]), shortlist=LISTED))


@pytest.mark.parametrize("inputs", [
    pytest.param(["constraints", "avoid", "prefix"], marks=pytest.mark.thorough),
    *(pytest.param(names, marks=pytest.mark.slow) for names in (["constraints"], ["avoid", "prefix", "continuation"]))])
def test_inputs_of_lines_are_the_same_in_int64(inputs: list[str]) -> None:
    vocabulary = Pieces(*(f"▁w{number}" for number in range(15)))
    settings = SEARCHES["beam"]
    assert_equal("transformer", decoding_with(inputs, PlainSearch(decoding_for(settings), settings, vocabulary)))
