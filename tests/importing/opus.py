"""A Marian model of random weights, in a folder as OPUS-MT packs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml

GERMAN = ["der hund schläft im haus", "die katze sieht den hund", "ein kleiner vogel singt am morgen",
          "am morgen schläft die katze", "der vogel sieht ein kleines haus", "das haus ist klein", "wo ist der hund"]
ENGLISH = ["the dog sleeps in the house", "the cat sees the dog", "a little bird sings in the morning",
           "in the morning the cat sleeps", "the bird sees a little house", "the house is little", "where is the dog"]
OPTIONS: dict[str, Any] = {
    "type": "transformer", "version": "v1.7.0", "dim-emb": 16, "enc-depth": 2, "dec-depth": 1, "transformer-heads": 2,
    "transformer-dim-ffn": 24, "transformer-ffn-depth": 2, "transformer-ffn-activation": "swish",
    "transformer-decoder-autoreg": "self-attention", "dec-cell": "gru", "transformer-preprocess": "",
    "transformer-postprocess": "dan", "transformer-postprocess-emb": "d", "transformer-no-projection": False,
    "transformer-train-positions": False, "transformer-tied-layers": [], "transformer-guided-alignment-layer": "last",
    "tied-embeddings-all": True, "input-types": [], "ulr": False}


def learned_pieces(lines: list[str], place: Path, kind: str = "unigram") -> list[str]:
    """Learn a SentencePiece model with the ids of its own default; the pieces without the special ones."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 5), model_prefix=str(place.with_suffix("")), vocab_size=48, model_type=kind,
        hard_vocab_limit=False, minloglevel=2)
    place.with_suffix(".model").rename(place)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(place))
    return [processor.id_to_piece(id) for id in range(3, processor.get_piece_size())]


def random_parameters(options: dict[str, Any], sizes: tuple[int, int], tie: str = "all") -> dict[str, np.ndarray]:
    """Parameters by Marian's names, far from uniform, so that no two scores are close."""
    depth, inner, shapes = options["dim-emb"], options["transformer-dim-ffn"], dict[str, tuple[int, ...]]()

    def norm(name: str) -> None:
        shapes.update({f"{name}_ln_scale": (1, depth), f"{name}_ln_bias": (1, depth)})

    for stack, layers, kinds in (("encoder", options["enc-depth"], ("self",)),
                                 ("decoder", options["dec-depth"], ("self", "context"))):
        for layer in range(1, layers + 1):
            if stack == "decoder" and options["transformer-decoder-autoreg"] == "rnn":
                place, kinds = f"decoder_l{layer}_rnn", ("context",)
                shapes |= {f"{place}_W": (depth, depth), f"{place}_Wf": (depth, depth), f"{place}_bf": (1, depth)}
                norm(f"{place}_ffn")
            for kind in kinds:
                place = f"{stack}_l{layer}_{kind}"
                for letter in "qkvo":
                    shapes |= {f"{place}_W{letter}": (depth, depth), f"{place}_b{letter}": (1, depth)}
                norm(f"{place}_Wo")
            place = f"{stack}_l{layer}_ffn"
            shapes |= {f"{place}_W1": (depth, inner), f"{place}_b1": (1, inner), f"{place}_W2": (inner, depth),
                       f"{place}_b2": (1, depth)}
            norm(f"{place}_ffn")
    tables = {"Wemb": sizes[1]} if tie == "all" else {"encoder_Wemb": sizes[0], "decoder_Wemb": sizes[1]}
    shapes |= {name: (rows, depth) for name, rows in tables.items()}
    if tie == "none":
        shapes["decoder_ff_logit_out_Wt"] = (sizes[1], depth)
    shapes["decoder_ff_logit_out_b"] = (1, sizes[1])
    random = np.random.default_rng(5)
    return {name: random.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def save_npz(file: Path, parameters: dict[str, np.ndarray], options: dict[str, Any]) -> None:
    """Write a model."""
    text = yaml.safe_dump(options).encode() + b"\0"
    np.savez(file, **parameters, **{"special:model.yml": np.frombuffer(text, np.int8)})


def write_opus(place: Path, *, options: dict[str, Any] | None = None, kind: str = "unigram",
               further: tuple[str, ...] = (), missing: int = 2, tie: str = "all") -> Path:
    """A folder as OPUS-MT packs it.

    Args:
        further: pieces of the vocabulary that no SentencePiece model has.
        missing: so many pieces of the source's model are not in the vocabulary: they are unknown to the model.
    """
    place.mkdir()
    german, english = (learned_pieces(lines, place / f"{side}.spm", kind)
                       for side, lines in (("source", GERMAN), ("target", ENGLISH)))
    pieces = ["</s>", "<unk>", *dict.fromkeys([*german[missing:], *english, *further]), "<pad>"]
    written = [json.dumps(piece, ensure_ascii=False) if number % 2 else piece for number, piece in enumerate(pieces)]
    (place / "opus.vocab.yml").write_text("".join(f"{piece}: {number}\n" for number, piece in enumerate(written)))
    chosen = {**OPTIONS, "dim-vocabs": [len(pieces)] * 2, **(options or {})}
    save_npz(place / "opus.model1.npz", random_parameters(chosen, (len(pieces), len(pieces)), tie), chosen)
    (place / "decoder.yml").write_text(yaml.safe_dump({
        "relative-paths": True, "models": ["opus.model1.npz"], "vocabs": ["opus.vocab.yml"] * 2, "beam-size": 6,
        "normalize": 1, "word-penalty": 0}))
    (place / "README.md").write_text("# opus-de-en\n\n* dataset: opus\n")
    (place / "LICENSE").write_text("CC-BY 4.0\n")
    return place


def read_npz(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Parameters and options."""
    arrays = dict(np.load(file))
    return arrays, yaml.safe_load(arrays.pop("special:model.yml").tobytes()[:-1])


def read_numbers(file: Path) -> dict[str, int]:
    """The number of each piece of a vocabulary in which pieces are quoted as in JSON, or not at all."""
    pairs = (line.rsplit(": ", 1) for line in file.read_text().split("\n") if line)
    return {json.loads(piece) if piece.startswith('"') else piece: int(number) for piece, number in pairs}
