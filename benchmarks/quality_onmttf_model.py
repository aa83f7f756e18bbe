"""The small model of `quality.py --shape tiny`, as OpenNMT-tf's `--model` takes one: hidden 256, filter 1,024, 4 heads,
3+3 layers, one embedding for all, as towernmt's preset. All else is as OpenNMT-tf's Transformer has it."""

from importlib import import_module
from typing import Any


def model() -> Any:
    """The model."""
    models: Any = import_module("opennmt.models")
    return models.Transformer(num_layers=3, num_units=256, num_heads=4, ffn_inner_dim=1024,
                              share_embeddings=models.EmbeddingsSharingLevel.ALL)
