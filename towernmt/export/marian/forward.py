"""Marian's Transformer in NumPy, sentence by sentence, from its parameters alone.

It follows Marian's formulas (Junczys-Dowmunt et al. 2018; the SSRU of Kim et al. 2019) for post-norm models. An export
measures with it how large the inputs of each product get, which the 8-bit engines have to know beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from towernmt.export.marian.vocabulary import MarianVocabulary

EOS = 0
"""Marian's id of the end of a sentence."""
_EPSILON = 1e-6


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "swish": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * _sigmoid(np.float32(1.702) * x),
}
"""By Marian's name: of feed-forward layers."""


class MarianModel:
    """A model that was written for Marian.

    Args:
        parameters: by Marian's names.
        options: of `special:model.yml`.
    Attributes:
        largest: by the name of a matrix, the largest absolute value of each of its inputs, one a product.
    """

    def __init__(self, parameters: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> None:
        self._p, self._options = parameters, options
        self.largest: dict[str, list[float]] = {}
        self._source_table = parameters["Wemb" if "Wemb" in parameters else "encoder_Wemb"]
        self._output_name = "Wemb" if "Wemb" in parameters else "decoder_Wemb"
        self._target_table = parameters[self._output_name]
        self._output = parameters.get("decoder_ff_logit_out_Wt", self._target_table)

    def encode(self, source: list[int]) -> np.ndarray:
        """float32 `[length, depth]`.

        Args:
            source: Marian's ids, with EOS.
        """
        x = self._embed(self._source_table[source], 0)
        for number in range(1, self._options["enc-depth"] + 1):
            x = self._attention(x, x, f"encoder_l{number}_self")
            x = self._feed_forward(x, f"encoder_l{number}_ffn")
        return x

    def greedy(self, source: list[int], most: int) -> list[int]:
        """The likeliest token at each step, until EOS, which is the last, or until there are so many.

        Args:
            source: Marian's ids, with EOS.
            most: tokens, EOS counted.
        """
        memory, found = self.encode(source), list[int]()
        state: dict[str, Any] = {}
        while len(found) < most and (not found or found[-1] != EOS):
            found.append(int(self._step(found, memory, state).argmax()))
        return found

    def logits(self, source: list[int], target: list[int]) -> np.ndarray:
        """float32 `[target length, vocabulary]`: what is likely at each place of a target, given those before it."""
        memory, state = self.encode(source), dict[str, Any]()
        return np.stack([self._step(target[:place], memory, state) for place in range(len(target))])

    def _step(self, before: list[int], memory: np.ndarray, state: dict[str, Any]) -> np.ndarray:
        """Logits float32 `[vocabulary]` behind the tokens `before`."""
        depth = self._options["dim-emb"]
        word = self._target_table[before[-1]] if before else np.zeros(depth, np.float32)
        x = self._embed(word[None], len(before))
        for number in range(1, self._options["dec-depth"] + 1):
            if self._options["transformer-decoder-autoreg"] == "rnn":
                x = self._ssru(x, f"decoder_l{number}_rnn", state)
            else:
                name = f"decoder_l{number}_self"
                state[name] = np.concatenate([state[name], x]) if name in state else x
                x = self._attention(x, state[name], name)
            x = self._attention(x, memory, f"decoder_l{number}_context", state)
            x = self._feed_forward(x, f"decoder_l{number}_ffn")
        return (self._multiply(x, self._output.T, self._output_name) + self._p["decoder_ff_logit_out_b"])[0]

    def _embed(self, words: np.ndarray, first: int) -> np.ndarray:
        """Scaled embeddings `[length, depth]` plus sines and cosines of the positions from `first` on."""
        depth = words.shape[1]
        rates = np.exp(-math.log(1e4) * np.arange(depth // 2) / (depth // 2 - 1))
        angles = np.arange(first, first + len(words))[:, None] * rates
        return (words * math.sqrt(depth) + np.concatenate([np.sin(angles), np.cos(angles)], 1)).astype(np.float32)

    def _attention(self, x: np.ndarray, seen: np.ndarray, name: str, state: dict[str, Any] | None = None) -> np.ndarray:
        """The sublayer of attention from `x` to `seen`; with a `state`, what that gives is made once."""
        query = self._affine(x, name, "q")
        kept = None if state is None else state.get(name)
        key, value = kept or (self._affine(seen, name, "k"), self._affine(seen, name, "v"))
        if state is not None:
            state[name] = (key, value)
        heads = self._options["transformer-heads"]
        query, key, value = (y.reshape(len(y), heads, -1).transpose(1, 0, 2) for y in (query, key, value))
        weights = np.exp(_log_softmax(query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[2])))
        context = (weights @ value).transpose(1, 0, 2).reshape(x.shape)
        return self._norm(self._affine(context, name, "o") + x, f"{name}_Wo")

    def _ssru(self, x: np.ndarray, name: str, state: dict[str, Any]) -> np.ndarray:
        """A step of the recurrent sublayer, `x` `[1, depth]`."""
        forget = 1.0 / (1.0 + np.exp(-(self._product(x, f"{name}_Wf") + self._p[f"{name}_bf"])))
        cell = (1.0 - forget) * self._product(x, f"{name}_W") + forget * state.get(name, np.float32(0.0))
        state[name] = cell
        return self._norm(np.maximum(cell, 0.0) + x, f"{name}_ffn")

    def _feed_forward(self, x: np.ndarray, name: str) -> np.ndarray:
        hidden = ACTIVATIONS[self._options["transformer-ffn-activation"]](self._affine(x, name, "1"))
        return self._norm(self._affine(hidden, name, "2") + x, f"{name}_ffn")

    def _affine(self, x: np.ndarray, name: str, letter: str) -> np.ndarray:
        return self._product(x, f"{name}_W{letter}") + self._p[f"{name}_b{letter}"]

    def _product(self, x: np.ndarray, name: str) -> np.ndarray:
        return self._multiply(x, self._p[name], name)

    def _multiply(self, x: np.ndarray, matrix: np.ndarray, name: str) -> np.ndarray:
        self.largest.setdefault(name, []).append(float(np.abs(x).max()))
        product: np.ndarray = x @ matrix
        return product

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred ** 2).mean(-1, keepdims=True) + _EPSILON)
        return centred / deviation * self._p[f"{name}_ln_scale"] + self._p[f"{name}_ln_bias"]


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def to_marian(ids: list[int], vocabulary: MarianVocabulary) -> list[int]:
    """Our ids of a sentence as Marian's, with EOS behind."""
    return [*vocabulary.theirs[ids].tolist(), EOS]
