"""Marian's file formats: the binary format with intgemm's 8-bit matrices, `special:model.yml`, and vocabularies."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES, UNK, Vocabulary
from towernmt.models.model_settings import TransformerSettings
from towernmt.predict.search.search_settings import SearchSettings

DECODER, INT8_DECODER = "decoder.yml", "config.bergamot.yml"
"""Files with the options of the search: for Marian, and for Bergamot."""
BINARY_VERSION = 1
ALIGNMENT = 256
INT8, FLOAT32, INTGEMM8 = 0x0101, 0x0404, 0x4101
"""Marian's type numbers; the last means 8-bit values for intgemm that are not yet in the order of a processor."""
MODEL_OPTIONS = "special:model.yml"
INT8_RANGE = 127
INPUT_SCALE_SUFFIX = "_QuantMultA"
SHORTLISTED_OUTPUT = "none"
"""Marian's name for an output matrix of the columns that a shortlist selects."""


class MarianItem(NamedTuple):
    """An item of Marian's binary file."""

    name: str
    type: int
    shape: tuple[int, ...]
    data: bytes


def binary_file(items: Sequence[MarianItem]) -> bytes:
    """Return the content of a binary file."""
    data = [item.data + bytes(-len(item.data) % ALIGNMENT) for item in items]
    names = [item.name.encode() + b"\0" for item in items]
    headers = np.array([[len(name), item.type, len(item.shape), len(content)]
                        for item, name, content in zip(items, names, data, strict=True)], "<u8")
    shapes = np.array([size for item in items for size in item.shape], "<i4")
    begin = np.array([BINARY_VERSION, len(items)], "<u8").tobytes()
    front = b"".join([begin, headers.tobytes(), *names, shapes.tobytes()])
    gap = -(len(front) + 8) % ALIGNMENT
    return b"".join([front, np.array([gap], "<u8").tobytes(), bytes(gap), *data])


def int8_items(parameters: Mapping[str, np.ndarray], largest: Mapping[str, float], options: str) -> list[MarianItem]:
    """Return the items of an 8-bit model: quantised matrices, and other parameters in float32.

    Args:
        parameters: the parameters by Marian's names, float32.
        largest: the largest absolute input of each matrix, by name.
        options: the text of `special:model.yml`.
    """
    items = [quantised(name, value) if _is_matrix(name) else _float_item(name, value)
             for name, value in parameters.items()]
    output = "Wemb" if "Wemb" in parameters else "decoder_Wemb"
    for name, value in largest.items():
        scale = np.full([1, 1], _int8_scale(value))
        for item_name in ((output, SHORTLISTED_OUTPUT) if name == output else (name,)):
            items.append(_float_item(f"{item_name}{INPUT_SCALE_SUFFIX}", scale))
    text = options.encode() + b"\0"
    return [*sorted(items), MarianItem(MODEL_OPTIONS, INT8, (len(text),), text)]


def quantised(name: str, matrix: np.ndarray) -> MarianItem:
    """Return an 8-bit matrix; its shape in the file is the one before the transposition."""
    scale = _int8_scale(np.abs(matrix).max())
    stored = matrix if name.endswith("Wemb") else matrix.T
    values = np.clip(np.rint(stored * scale), -INT8_RANGE, INT8_RANGE).astype(np.int8)
    return MarianItem(name, INTGEMM8, matrix.shape, values.tobytes() + np.array([scale], "<f4").tobytes())


def _int8_scale(largest: float) -> np.float32:
    """Return the factor that maps the largest absolute value to `INT8_RANGE`; 1 if all values are 0."""
    return np.float32(INT8_RANGE) / np.float32(largest) if largest else np.float32(1.0)


FLOAT16 = 0x0402
MAX_ROUNDING_ERROR = 0.1
"""Maximum rounding error of an 8-bit matrix that is read back to float32, relative to the standard deviation of its
values. Uniform rounding has an error of 1 / sqrt(12) steps, so a standard deviation of 2.9 steps is the limit. Matrices
whose largest value is up to 44 standard deviations are below it."""


def is_binary_file(file: Path) -> bool:
    """Return whether a file begins like Marian's binary format; a shortlist, which is also named `.bin`, does not."""
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return content.read(8) == np.array([BINARY_VERSION], "<u8").tobytes()


def read_binary_file(content: bytes) -> list[MarianItem]:
    """Return the items of a binary file.

    Raises:
        ValueError: the content is not complete, or is not a binary file of this version.
    """
    if len(content) < 16 or int(np.frombuffer(content, "<u8", 1)[0]) != BINARY_VERSION:
        raise ValueError("not Marian's binary format, version 1")
    count = int(np.frombuffer(content, "<u8", 1, 8)[0])
    headers = np.frombuffer(content, "<u8", 4 * count, 16).reshape(count, 4).astype(np.int64)
    position, names = 16 + 32 * count, []
    for length in headers[:, 0].tolist():
        names.append(content[position:position + length].rstrip(b"\0").decode("utf-8"))
        position += length
    shapes = []
    for dimensions in headers[:, 2].tolist():
        shapes.append(tuple(np.frombuffer(content, "<i4", dimensions, position).tolist()))
        position += 4 * dimensions
    position += 8 + int(np.frombuffer(content, "<u8", 1, position)[0])
    items = []
    for name, shape, kind, size in zip(names, shapes, headers[:, 1].tolist(), headers[:, 3].tolist(), strict=True):
        data = content[position:position + size]
        if len(data) != size:
            raise ValueError(f"the file ends within {name}")
        items.append(MarianItem(name, kind, shape, data))
        position += size
    return items


def float_value(item: MarianItem) -> np.ndarray:
    """Return the value of a parameter as float32; an 8-bit matrix becomes the one with which engines multiply.

    Raises:
        ValueError: the type of the item is not supported, or rounding to 8 bits has lost too much.
    """
    elements = math.prod(item.shape)
    if item.type in (FLOAT32, FLOAT16):
        kind = "<f4" if item.type == FLOAT32 else "<f2"
        return np.frombuffer(item.data, kind, elements).reshape(item.shape).astype(np.float32)
    if item.type != INTGEMM8:
        raise ValueError(f"{item.name} has Marian's type {item.type:#06x}, whose values are in the order of one "
                         "processor")
    values = np.frombuffer(item.data, np.int8, elements).astype(np.float32)
    scale = np.frombuffer(item.data, "<f4", 1, elements)[0]
    rounding_error = math.sqrt(1 / 12) / max(float(values.std()), 1e-9)
    if values.any() and rounding_error > MAX_ROUNDING_ERROR:
        raise ValueError(f"the 8 bits of {item.name} have a rounding error of {rounding_error:.0%} of its standard "
                         f"deviation, more than {MAX_ROUNDING_ERROR:.0%}")
    values /= scale
    return values.reshape(item.shape) if item.name.endswith("Wemb") else values.reshape(item.shape[::-1]).T


def _is_matrix(name: str) -> bool:
    return name.endswith("Wemb") or name.rsplit("_", 1)[-1].startswith("W")


def _float_item(name: str, value: np.ndarray) -> MarianItem:
    return MarianItem(name, FLOAT32, value.shape, value.astype("<f4").tobytes())


VERSION = "v1.12.0"
"""The version of Marian that these options belong to."""
FEED_FORWARDS = {"relu": "relu", "swish": "swish", "gelu_sigmoid": "gelu"}
"""Marian's names of the activations of feed-forward layers, by towernmt's names."""


def model_options(s: TransformerSettings, sizes: Sequence[int]) -> dict[str, Any]:
    """Return the options that Marian needs to build the graph of a model.

    Args:
        s: the settings of the model.
        sizes: sizes of the source and target vocabulary.
    """
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
        "transformer-guided-alignment-layer": str(s.aligning_layer + 1),
        "tied-embeddings": s.tie_embeddings == "target", "tied-embeddings-all": s.tie_embeddings == "all",
        "tied-embeddings-src": False,
        # Options of components that the model does not have; Marian requires them nevertheless.
        "transformer-decoder-dim-ffn": 0, "transformer-decoder-ffn-depth": 0, "transformer-aan-depth": 2,
        "transformer-aan-activation": "swish", "transformer-aan-nogate": False, "transformer-dim-aan": 2048,
        "dec-cell-base-depth": 2, "dec-cell-high-depth": 1, "enc-cell": "gru", "enc-cell-depth": 1,
        "enc-type": "bidirectional", "dim-rnn": 1024, "layer-normalization": False, "skip": False,
        "right-left": False, "input-types": [], "output-omit-bias": False, "lemma-dim-emb": 0,
        "factors-combine": "sum", "factors-dim-emb": 0, "ulr": False, "ulr-dim-emb": 0,
        "ulr-trainable-transformation": False, "bert-train-type-embeddings": True, "bert-type-vocab-size": 2,
    }


LENGTH_FACTOR_WITHOUT_CONSTANT = 3.0
"""Minimum of Marian's maximum length per source token, if the search has a constant, which Marian lacks."""


def decoder_options(search: SearchSettings, model: str, vocabularies: Sequence[str]) -> dict[str, Any]:
    """Return the options for `marian-decoder -c`.

    Marian's length penalty is that of `length_normalization=average`. Its maximum length has no constant: with
    `max_length_constant=0`, the factor is that of the search, otherwise at least `LENGTH_FACTOR_WITHOUT_CONSTANT`.
    """
    length_factor = search.max_length_factor
    if search.max_length_constant:
        length_factor = max(LENGTH_FACTOR_WITHOUT_CONSTANT, length_factor)
    return {"relative-paths": True, "models": [model], "vocabs": list(vocabularies), "beam-size": search.beam_size,
            "normalize": search.length_penalty, "word-penalty": -search.word_reward or 0,
            "max-length-factor": length_factor, "mini-batch": 32, "maxi-batch": 100, "maxi-batch-sort": "src"}


def browser_options(model: str, vocabularies: Sequence[str], shortlist: str) -> dict[str, Any]:
    """Return the options for the Bergamot engine: greedy 8-bit search, with attention to place HTML tags."""
    return {"relative-paths": True, "models": [model], "vocabs": list(vocabularies),
            **({"shortlist": [shortlist, False]} if shortlist else {}),
            "beam-size": 1, "normalize": 1.0, "word-penalty": 0, "max-length-break": 128, "mini-batch-words": 1024,
            "workspace": 128, "max-length-factor": 2.0, "skip-cost": True, "cpu-threads": 0, "quiet": True,
            "quiet-translation": True, "gemm-precision": "int8shiftAlphaAll", "alignment": "soft"}


VOCABULARY_MULTIPLE = 8
NO_PIECE = -1
"""In `MarianVocabulary.towernmt_ids`: a piece that fills the vocabulary up."""
_UNKNOWN, _CONTROL = 2, 3       # SentencePiece.Type


@dataclass(frozen=True)
class MarianVocabulary:
    """A vocabulary in Marian's order.

    Attributes:
        pieces: pieces by Marian's ids.
        towernmt_ids: int64 `[pieces]`, towernmt's id of each piece; NO_PIECE for pieces that occur in no text.
    """

    pieces: list[str]
    towernmt_ids: NDArray[np.int64]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> MarianVocabulary:
        """Convert a vocabulary of towernmt."""
        word_ids = list(range(len(SPECIAL_PIECES), vocabulary.size))
        pieces = [SPECIAL_PIECES[EOS], SPECIAL_PIECES[UNK], *map(vocabulary.id_to_piece, word_ids)]
        filler_count = -len(pieces) % VOCABULARY_MULTIPLE
        return cls([*pieces, *(f"<unused_{number}>" for number in range(filler_count))],
                   np.array([EOS, UNK, *word_ids, *[NO_PIECE] * filler_count], np.int64))

    @property
    def marian_ids(self) -> NDArray[np.int64]:
        """Marian's ids by towernmt's ids, int64 `[towernmt's vocabulary]`; NO_PIECE for PAD and BOS."""
        known_rows = np.flatnonzero(self.towernmt_ids != NO_PIECE)
        ids = np.full(int(self.towernmt_ids.max()) + 1, NO_PIECE, np.int64)
        ids[self.towernmt_ids[known_rows]] = known_rows
        return ids

    def rows(self, table: np.ndarray, filler: float = 0.0) -> np.ndarray:
        """Return the rows of a table or vector in Marian's order; `filler` for pieces that occur in no text."""
        rows = table[np.maximum(self.towernmt_ids, 0)].astype(np.float32)
        rows[self.towernmt_ids == NO_PIECE] = filler
        return rows

    def yaml(self) -> str:
        """Return the text of `vocab.yml`: a piece and its id on each line."""
        return "".join(f"{json.dumps(piece, ensure_ascii=False)}: {id}\n" for id, piece in enumerate(self.pieces))


def sentence_piece_model(vocabulary: Vocabulary) -> bytes:
    """Return the SentencePiece model of a vocabulary of kind "sentencepiece", with the pieces in Marian's order."""
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    content = vocabulary.files()[".model"]
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    processor = SentencePieceProcessor(model_proto=content)
    special = {processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()}
    words = [piece for id, piece in enumerate(model.pieces) if id not in special]
    marian_vocabulary = MarianVocabulary.of(vocabulary)
    piece_type = type(model).SentencePiece
    first = [piece_type(piece=SPECIAL_PIECES[EOS], type=_CONTROL), piece_type(piece=SPECIAL_PIECES[UNK], type=_UNKNOWN)]
    last = [piece_type(piece=piece, type=_CONTROL) for piece in marian_vocabulary.pieces[len(first) + len(words):]]
    ordered_pieces = [*first, *words, *last]
    del model.pieces[:]
    model.pieces.extend(ordered_pieces)
    trainer = model.trainer_spec
    trainer.eos_id, trainer.unk_id, trainer.bos_id, trainer.pad_id = 0, 1, -1, -1
    trainer.eos_piece, trainer.unk_piece = SPECIAL_PIECES[EOS], SPECIAL_PIECES[UNK]
    trainer.vocab_size = len(ordered_pieces)
    written: bytes = model.SerializeToString()
    return written
