"""The small model of `quality.py --shape tiny`, for OpenNMT-tf's `--model`.

Hidden 256, filter 1,024, 4 heads, 3+3 layers and one shared embedding: the sizes of towernmt's preset. Everything else
is OpenNMT-tf's Transformer.
"""

from importlib import import_module
from typing import Any


def model() -> Any:
    """Return the model that OpenNMT-tf trains."""
    models: Any = import_module("opennmt.models")
    return models.Transformer(num_layers=3, num_units=256, num_heads=4, ffn_inner_dim=1024,
                              share_embeddings=models.EmbeddingsSharingLevel.ALL)
