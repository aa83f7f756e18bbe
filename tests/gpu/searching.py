"""A program that translates with small random models on a fake GPU and on the CPU, and writes results and counts.

    python -m tests.gpu.searching CASES.json OUTPUT

`OUTPUT/NAME.npz` gets the tokens and scores of both devices. `OUTPUT/NAME-SHORT.tsv` and `NAME-LONG.tsv` get what the
fake GPU counted while it translated sentences of two lengths, and `OUTPUT/NAME.json` the steps of each.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu import fake_gpu
from tests.gpu.training import SIZES, VOCABULARY

SENTENCES = 6
LENGTHS = {"short": 6, "long": 12}
"""Source lengths; a random model translates until the limit on the length, which grows with it."""


@dataclass(frozen=True)
class Search:
    """A search to run on a fake GPU and on the CPU.

    Attributes:
        architecture: name of the model's architecture.
        precision: dtype of matrix products.
        settings: fields of `SearchSettings`.
        details: whether attention and log-probabilities are returned.
        model: further settings of the model.
    """

    architecture: str = "transformer"
    precision: str = "float32"
    settings: dict[str, Any] = field(default_factory=dict)
    details: bool = False
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the files of the search, unique among searches."""
        more = [f"{name}-{value}" for group in (self.settings, self.model) for name, value in group.items()]
        return "_".join([self.architecture, self.precision, *more, *(["details"] if self.details else [])])


def read_searches(path: Path) -> list[Search]:
    """Return the searches of a file."""
    return [Search(**search) for search in json.loads(path.read_text(encoding="utf-8"))]


def write_searches(path: Path, searches: list[Search]) -> None:
    """Write searches for this program."""
    path.write_text(json.dumps([dataclasses.asdict(search) for search in searches]), encoding="utf-8")


def translate(search: Search, output: Path) -> None:
    """Translate random sentences on both devices, and write what the program describes."""
    from tensorpack.tfutils.tower import PredictTowerContext

    from towernmt.core.graph_state import GraphSettings, configure_graph
    from towernmt.core.session import session_config, use_gpus
    from towernmt.core.tf_compat import tf, tf1
    from towernmt.models import architecture
    from towernmt.predict.search.decoding_tower import (
        decoding_for,
        decoding_signature,
        decoding_tower,
        output_names,
    )
    from towernmt.predict.search.search_settings import SearchSettings

    decoding = decoding_for(SearchSettings(**search.settings), attention=search.details, log_probs=search.details)
    kind = architecture(search.architecture)
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, **SIZES[search.architecture]}
    results, steps = {}, {}
    use_gpus([0])
    with tf.Graph().as_default():
        configure_graph(GraphSettings(seed=1, precision=search.precision))
        model = kind.model(kind.settings(**{**sizes, **search.model}))
        calls = {}
        for place in ("gpu", "cpu"):
            scope = tf1.variable_scope(tf1.get_variable_scope(), reuse=place == "cpu")
            with tf1.device(f"/{place}:0"), scope, PredictTowerContext("" if place == "gpu" else "other"):
                inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name)
                          for spec in decoding_signature(model, decoding)]
                found = decoding_tower(model, decoding, f"/{place}:0")(*inputs)
            calls[place] = inputs, [getattr(found, name) for name in output_names(decoding)]
        with tf1.Session(config=session_config(1, runs_in_caller=True)) as session:
            session.run(tf1.global_variables_initializer())
            for length_name, length in LENGTHS.items():
                source = np.random.default_rng(length).integers(4, VOCABULARY, (SENTENCES, length)).astype(np.int32)
                source[:, -1] = 2
                values = {"source": source, "source_length": np.full([SENTENCES], length, np.int32)}
                for place, (inputs, outputs) in calls.items():
                    call = session.make_callable(outputs, feed_list=inputs)
                    feeds = [values[tensor.op.name.split("/")[-1]] for tensor in inputs]
                    call(*feeds)
                    fake_gpu.reset()
                    tensors = call(*feeds)
                    if place == "gpu":
                        (output / f"{search.name}-{length_name}.tsv").write_text(fake_gpu.snapshot(), encoding="utf-8")
                        steps[length_name] = tensors[0].shape[2]
                    results.update({f"{place}/{length_name}/{name}": tensor
                                    for name, tensor in zip(output_names(decoding), tensors, strict=True)})
    (output / f"{search.name}.json").write_text(json.dumps(steps), encoding="utf-8")
    fake_gpu.write_arrays(output / f"{search.name}.npz", results)


def main(searches: str, output: str) -> None:
    """Run the searches of a file; one that fails leaves its error in `OUTPUT/NAME.error`."""
    fake_gpu.load()
    for search in read_searches(Path(searches)):
        try:
            translate(search, Path(output))
        except Exception:
            (Path(output) / f"{search.name}.error").write_text(traceback.format_exc(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
