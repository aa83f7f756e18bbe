"""Which embedding tables a model has: one for all, one for each language, or three."""

from __future__ import annotations

from typing import Any

from towernmt.errors import SettingsError
from towernmt.models.layers import embedding_table
from towernmt.tf_compat import tf1

TIES = ("all", "target", "none")


def shared_table(role: str, tie: str, vocabulary: int, depth: int) -> Any:
    """The table of `role` (source, target, softmax) float32 `[vocabulary, depth]` in the enclosing variable scope.

    Args:
        tie: `all` for one table (Press & Wolf 2017: softmax and embeddings), `target` for target and softmax in
            one, or `none`.
    """
    name = {"all": "embedding", "target": "source_embedding" if role == "source" else "target_embedding",
            "none": f"{role}_embedding"}[tie]
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return embedding_table(vocabulary, depth, name)


def check_vocabularies(source: int, target: int, tie: str) -> None:
    """Check the sizes of both vocabularies.

    Raises:
        SettingsError: they are not set, or differ where one table is to serve both.
    """
    if source < 5 or target < 5:
        raise SettingsError("model.source_vocab_size and model.target_vocab_size are not set: take them from the "
                            "vocabularies (4 special tokens and at least one word).")
    if tie == "all" and source != target:
        raise SettingsError("model.tie_embeddings=all needs one shared vocabulary: prepare the data with "
                            "--shared-vocab, or set model.tie_embeddings=target.")
