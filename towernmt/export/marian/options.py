"""Marian's own settings: `special:model.yml`, which is in the model, and the file that a decoder is started with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towernmt.models.transformer.settings import TransformerSettings
from towernmt.predict.decoding.settings import SearchSettings

VERSION = "v1.12.0"
"""Of Marian: the one that these options are of."""
FEED_FORWARDS = {"relu": "relu", "swish": "swish", "gelu_sigmoid": "gelu"}
"""By our name, what Marian calls the activation of a feed-forward layer."""


def model_options(s: TransformerSettings, sizes: Sequence[int]) -> dict[str, Any]:
    """What Marian needs to know of a model to build its graph.

    Args:
        sizes: of the vocabularies of source and target.
    """
    shown = s.guided_alignment_layer or max(1, s.decoder_layers - 1)
    return {
        "type": "transformer", "version": VERSION,
        "dim-emb": s.hidden_size, "dim-vocabs": list(sizes), "enc-depth": s.encoder_layers,
        "dec-depth": s.decoder_layers, "transformer-heads": s.heads, "transformer-dim-ffn": s.filter_size,
        "transformer-ffn-depth": 2, "transformer-ffn-activation": FEED_FORWARDS[s.feed_forward],
        "transformer-decoder-autoreg": "rnn" if s.decoder_cell == "ssru" else "self-attention",
        "dec-cell": "ssru", "transformer-preprocess": "", "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d", "transformer-postprocess-top": "", "transformer-no-projection": False,
        "transformer-train-positions": False, "transformer-tied-layers": [], "transformer-depth-scaling": False,
        "transformer-pool": False, "transformer-rnn-projection": False,
        "transformer-guided-alignment-layer": str(shown),
        "tied-embeddings": s.tie_embeddings == "target", "tied-embeddings-all": s.tie_embeddings == "all",
        "tied-embeddings-src": False,
        # Of parts that the model has not; Marian asks for their options all the same.
        "transformer-decoder-dim-ffn": 0, "transformer-decoder-ffn-depth": 0, "transformer-aan-depth": 2,
        "transformer-aan-activation": "swish", "transformer-aan-nogate": False, "transformer-dim-aan": 2048,
        "dec-cell-base-depth": 2, "dec-cell-high-depth": 1, "enc-cell": "gru", "enc-cell-depth": 1,
        "enc-type": "bidirectional", "dim-rnn": 1024, "layer-normalization": False, "skip": False,
        "right-left": False, "input-types": [], "output-omit-bias": False, "lemma-dim-emb": 0,
        "factors-combine": "sum", "factors-dim-emb": 0, "ulr": False, "ulr-dim-emb": 0,
        "ulr-trainable-transformation": False, "bert-train-type-embeddings": True, "bert-type-vocab-size": 2,
    }


def decoder_options(search: SearchSettings, model: str, vocabularies: Sequence[str]) -> dict[str, Any]:
    """What `marian-decoder -c` reads. Marian's length penalty is that of `length_normalization=average`."""
    return {"relative-paths": True, "models": [model], "vocabs": list(vocabularies), "beam-size": search.beam_size,
            "normalize": search.length_penalty, "word-penalty": -search.word_reward or 0,
            "max-length-factor": max(3.0, search.max_length_factor), "mini-batch": 32,
            "maxi-batch": 100, "maxi-batch-sort": "src"}


def browser_options(model: str, vocabularies: Sequence[str], shortlist: str) -> dict[str, Any]:
    """What Bergamot's engine reads: greedy search in 8 bits, with attention for the marks of HTML."""
    return {"relative-paths": True, "models": [model], "vocabs": list(vocabularies),
            **({"shortlist": [shortlist, False]} if shortlist else {}),
            "beam-size": 1, "normalize": 1.0, "word-penalty": 0, "max-length-break": 128, "mini-batch-words": 1024,
            "workspace": 128, "max-length-factor": 2.0, "skip-cost": True, "cpu-threads": 0, "quiet": True,
            "quiet-translation": True, "gemm-precision": "int8shiftAlphaAll", "alignment": "soft"}
