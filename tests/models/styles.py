"""Small models of all architectures in all their styles: the settings of a style, and its model."""

from __future__ import annotations

from typing import Any

from towernmt.models import architecture

_WORDS = {"source_vocab_size": 19, "target_vocab_size": 19}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {"hidden_size": 16, "filter_size": 24, "heads": 4, "encoder_layers": 1, "decoder_layers": 2,
                    **_WORDS},
    "seq2seq": {"embedding_size": 6, "hidden_size": 8, **_WORDS},
    "rnnsearch": {"embedding_size": 6, "encoder_size": 4, "decoder_size": 8, "attention_size": 5, "read_out_size": 6,
                  **_WORDS},
    "convs2s": {"embedding_size": 12, "encoder": "2x16/3,1x20/5", "decoder": "1x16/3,1x10/2,1x10/1", "output_size": 12,
                **_WORDS},
}
STYLES: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {
        "pre-norm": {},
        "post-norm": {"preprocess": "", "postprocess": "drn"},
        "learned positions": {"positions": "learned", "max_positions": 12},
        "tied target": {"tie_embeddings": "target", "source_vocab_size": 23},
        "untied": {"tie_embeddings": "none", "source_vocab_size": 23},
    },
    "seq2seq": {
        "sutskever": {"attention": "none", "layers": 3},
        "sutskever, one size": {"attention": "none", "hidden_size": 6},
        "luong": {},
        "luong, fed": {"input_feeding": True, "layers": 3},
        "dot, gru, fed": {"attention": "dot", "cell": "gru", "input_feeding": True},
        "dot, gru, forwards": {"attention": "dot", "cell": "gru", "reverse_source": False},
        "untied": {"tie_embeddings": "none", "source_vocab_size": 23},
        "layer norm": {"layer_norm": True, "tie_embeddings": "target"},
        "layer norm, gru, fed": {"layer_norm": True, "cell": "gru", "input_feeding": True},
        "adapted": {"lhuc": True},
        "adapted, fed": {"lhuc": True, "input_feeding": True, "layer_norm": True},
    },
    "rnnsearch": {
        "paper": {},
        "lstm": {"cell": "lstm"},
        "dot": {"attention": "dot", "read_out": "tanh"},
        "general, untied": {"attention": "general", "read_out": "linear", "tie_embeddings": "none",
                            "source_vocab_size": 23, "read_out_size": 7},
        "coverage": {"coverage": "linguistic", "tie_embeddings": "target"},
        "deep": {"encoder_layers": 2, "decoder_layers": 2},
        "deep lstm": {"encoder_layers": 2, "decoder_layers": 2, "cell": "lstm"},
        "layer norm": {"layer_norm": True},
        "lstm, layer norm": {"layer_norm": True, "cell": "lstm", "decoder_layers": 2},
        "adapted": {"lhuc": True, "encoder_layers": 2, "decoder_layers": 2},
    },
    "convs2s": {
        "tied": {},
        "tied target": {"tie_embeddings": "target", "source_vocab_size": 23},
        "untied": {"tie_embeddings": "none", "source_vocab_size": 23, "output_size": 9},
        "few positions": {"max_positions": 3},
        "adapted": {"lhuc": True},
    },
}


def make(name: str, style: str | None = None, **more: Any) -> Any:
    """Return a model of an architecture in a style.

    Args:
        name: name of the architecture.
        style: one of its `STYLES`; None for its defaults.
        more: further settings.
    """
    kind = architecture(name)
    return kind.model(kind.settings(**{**SIZES[name], **(STYLES[name][style] if style else {}), **more}))
