"""Write a Marian model with random weights into a folder with the layout of OPUS-MT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml

from tests.interop.marian_npz import save_npz

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


def learned_pieces(lines: list[str], path: Path, kind: str = "unigram", normalization: str = "nmt_nfkc") -> list[str]:
    """Learn a SentencePiece model with its default ids, and return the pieces without the special ones."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 5), model_prefix=str(path.with_suffix("")), vocab_size=48, model_type=kind,
        normalization_rule_name=normalization, hard_vocab_limit=False, minloglevel=2)
    path.with_suffix(".model").rename(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(id) for id in range(3, processor.get_piece_size())]


def random_parameters(options: dict[str, Any], sizes: tuple[int, int], tie: str = "all") -> dict[str, np.ndarray]:
    """Return parameters by Marian's names, with large variance, so that no two scores are close."""
    depth, inner, shapes = options["dim-emb"], options["transformer-dim-ffn"], dict[str, tuple[int, ...]]()

    def norm(name: str) -> None:
        shapes.update({f"{name}_ln_scale": (1, depth), f"{name}_ln_bias": (1, depth)})

    for stack, layers, kinds in (("encoder", options["enc-depth"], ("self",)),
                                 ("decoder", options["dec-depth"], ("self", "context"))):
        for layer in range(1, layers + 1):
            if stack == "decoder" and options["transformer-decoder-autoreg"] == "rnn":
                scope, kinds = f"decoder_l{layer}_rnn", ("context",)
                shapes |= {f"{scope}_W": (depth, depth), f"{scope}_Wf": (depth, depth), f"{scope}_bf": (1, depth)}
                norm(f"{scope}_ffn")
            for kind in kinds:
                scope = f"{stack}_l{layer}_{kind}"
                for letter in "qkvo":
                    shapes |= {f"{scope}_W{letter}": (depth, depth), f"{scope}_b{letter}": (1, depth)}
                norm(f"{scope}_Wo")
            scope = f"{stack}_l{layer}_ffn"
            shapes |= {f"{scope}_W1": (depth, inner), f"{scope}_b1": (1, inner), f"{scope}_W2": (inner, depth),
                       f"{scope}_b2": (1, depth)}
            norm(f"{scope}_ffn")
    tables = {"Wemb": sizes[1]} if tie == "all" else {"encoder_Wemb": sizes[0], "decoder_Wemb": sizes[1]}
    shapes |= {name: (rows, depth) for name, rows in tables.items()}
    if tie == "none":
        shapes["decoder_ff_logit_out_Wt"] = (sizes[1], depth)
    shapes["decoder_ff_logit_out_b"] = (1, sizes[1])
    random = np.random.default_rng(5)
    return {name: random.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def write_opus(path: Path, *, options: dict[str, Any] | None = None, kind: str = "unigram",
               further: tuple[str, ...] = (), missing: int = 2, tie: str = "all",
               normalizations: tuple[str, str] = ("nmt_nfkc", "nmt_nfkc")) -> Path:
    """Write a folder with the layout of OPUS-MT.

    Args:
        further: pieces of the vocabulary that no SentencePiece model has.
        missing: number of pieces of the source's model that are not in the vocabulary: they are unknown to the model.
        normalizations: the normalization rules of the SentencePiece models of source and target.
    """
    path.mkdir()
    german, english = (learned_pieces(lines, path / f"{side}.spm", kind, normalization) for side, lines, normalization
                       in zip(("source", "target"), (GERMAN, ENGLISH), normalizations, strict=True))
    pieces = ["</s>", "<unk>", *dict.fromkeys([*german[missing:], *english, *further]), "<pad>"]
    written = [json.dumps(piece, ensure_ascii=False) if number % 2 else piece for number, piece in enumerate(pieces)]
    (path / "opus.vocab.yml").write_text("".join(f"{piece}: {number}\n" for number, piece in enumerate(written)))
    chosen = {**OPTIONS, "dim-vocabs": [len(pieces)] * 2, **(options or {})}
    save_npz(path / "opus.model1.npz", random_parameters(chosen, (len(pieces), len(pieces)), tie), chosen)
    (path / "decoder.yml").write_text(yaml.safe_dump({
        "relative-paths": True, "models": ["opus.model1.npz"], "vocabs": ["opus.vocab.yml"] * 2, "beam-size": 6,
        "normalize": 1, "word-penalty": 0}))
    (path / "README.md").write_text("# opus-de-en\n\n* dataset: opus\n")
    (path / "LICENSE").write_text("CC-BY 4.0\n")
    return path


def read_numbers(file: Path) -> dict[str, int]:
    """Return the id of each piece of a vocabulary whose pieces have JSON's quotes or none."""
    pairs = (line.rsplit(": ", 1) for line in file.read_text().split("\n") if line)
    return {json.loads(piece) if piece.startswith('"') else piece: int(number) for piece, number in pairs}
