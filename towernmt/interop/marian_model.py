"""Marian's Transformer in NumPy, which measures the inputs of its matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

MARIAN_EOS = 0
"""Marian's id of EOS."""
_EPSILON = 1e-6


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "swish": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * _sigmoid(np.float32(1.702) * x),
}
"""Activations of feed-forward layers, by Marian's names."""


class MarianModel:
    """A model in Marian's format, computed with NumPy.

    The name of a sublayer is the prefix of its parameters, such as "encoder_l1_self".

    Args:
        parameters: the parameters by Marian's names.
        options: the options in `special:model.yml`.

    Attributes:
        largest_inputs: the largest absolute input of each matrix in each product, by matrix name.
    """

    def __init__(self, parameters: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> None:
        self._parameters, self._options = parameters, options
        self.largest_inputs: dict[str, list[float]] = {}
        self._source_table = parameters["Wemb" if "Wemb" in parameters else "encoder_Wemb"]
        self._output_name = "Wemb" if "Wemb" in parameters else "decoder_Wemb"
        self._target_table = parameters[self._output_name]
        self._output = parameters.get("decoder_ff_logit_out_Wt", self._target_table)

    def encode(self, source: list[int]) -> np.ndarray:
        """Return the encoder's output, float32 `[length, depth]`, for a source of Marian's ids with EOS."""
        x = self._embed(self._source_table[source], 0)
        for number in range(1, self._options["enc-depth"] + 1):
            x = self._attention(x, x, f"encoder_l{number}_self")
            x = self._feed_forward(x, f"encoder_l{number}_ffn")
        return x

    def greedy(self, source: list[int], max_tokens: int) -> list[int]:
        """Return the translation of greedy search, in Marian's ids with EOS.

        Args:
            source: Marian's ids with EOS.
            max_tokens: maximum number of tokens, EOS included.
        """
        memory, translation = self.encode(source), list[int]()
        state: dict[str, Any] = {}
        while len(translation) < max_tokens and (not translation or translation[-1] != MARIAN_EOS):
            translation.append(int(self._step(translation, memory, state).argmax()))
        return translation

    def logits(self, source: list[int], target: list[int]) -> np.ndarray:
        """Return the logits of each target token given the previous ones, float32 `[target length, vocabulary]`."""
        memory, state = self.encode(source), dict[str, Any]()
        return np.stack([self._step(target[:index], memory, state) for index in range(len(target))])

    def _step(self, previous: list[int], memory: np.ndarray, state: dict[str, Any]) -> np.ndarray:
        """Return the logits of the token after `previous`, float32 `[vocabulary]`."""
        depth = self._options["dim-emb"]
        word = self._target_table[previous[-1]] if previous else np.zeros(depth, np.float32)
        x = self._embed(word[None], len(previous))
        for number in range(1, self._options["dec-depth"] + 1):
            if self._options["transformer-decoder-autoreg"] == "rnn":
                x = self._ssru(x, f"decoder_l{number}_rnn", state)
            else:
                name = f"decoder_l{number}_self"
                state[name] = np.concatenate([state[name], x]) if name in state else x
                x = self._attention(x, state[name], name)
            x = self._attention(x, memory, f"decoder_l{number}_context", state)
            x = self._feed_forward(x, f"decoder_l{number}_ffn")
        return (self._multiply(x, self._output.T, self._output_name) + self._parameters["decoder_ff_logit_out_b"])[0]

    def _embed(self, embeddings: np.ndarray, first_position: int) -> np.ndarray:
        """Return scaled embeddings `[length, depth]` plus the sinusoidal positions from `first_position` on."""
        depth = embeddings.shape[1]
        rates = np.exp(-math.log(1e4) * np.arange(depth // 2) / (depth // 2 - 1))
        angles = np.arange(first_position, first_position + len(embeddings))[:, None] * rates
        return (embeddings * math.sqrt(depth) + np.concatenate([np.sin(angles), np.cos(angles)], 1)).astype(np.float32)

    def _attention(self, x: np.ndarray, attended: np.ndarray, name: str,
                   state: dict[str, Any] | None = None) -> np.ndarray:
        """Return the output of an attention sublayer from `x` to `attended`; keys and values are cached in `state`."""
        query = self._affine(x, name, "q")
        cached = None if state is None else state.get(name)
        key, value = cached or (self._affine(attended, name, "k"), self._affine(attended, name, "v"))
        if state is not None:
            state[name] = (key, value)
        heads = self._options["transformer-heads"]
        query, key, value = (y.reshape(len(y), heads, -1).transpose(1, 0, 2) for y in (query, key, value))
        weights = np.exp(_log_softmax(query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[2])))
        context = (weights @ value).transpose(1, 0, 2).reshape(x.shape)
        return self._norm(self._affine(context, name, "o") + x, f"{name}_Wo")

    def _ssru(self, x: np.ndarray, name: str, state: dict[str, Any]) -> np.ndarray:
        """Return the output of the recurrent sublayer for one step, `x` `[1, depth]`."""
        forget = 1.0 / (1.0 + np.exp(-(self._product(x, f"{name}_Wf") + self._parameters[f"{name}_bf"])))
        cell = (1.0 - forget) * self._product(x, f"{name}_W") + forget * state.get(name, np.float32(0.0))
        state[name] = cell
        return self._norm(np.maximum(cell, 0.0) + x, f"{name}_ffn")

    def _feed_forward(self, x: np.ndarray, name: str) -> np.ndarray:
        hidden = ACTIVATIONS[self._options["transformer-ffn-activation"]](self._affine(x, name, "1"))
        return self._norm(self._affine(hidden, name, "2") + x, f"{name}_ffn")

    def _affine(self, x: np.ndarray, name: str, letter: str) -> np.ndarray:
        return self._product(x, f"{name}_W{letter}") + self._parameters[f"{name}_b{letter}"]

    def _product(self, x: np.ndarray, name: str) -> np.ndarray:
        return self._multiply(x, self._parameters[name], name)

    def _multiply(self, x: np.ndarray, matrix: np.ndarray, name: str) -> np.ndarray:
        self.largest_inputs.setdefault(name, []).append(float(np.abs(x).max()))
        product: np.ndarray = x @ matrix
        return product

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred ** 2).mean(-1, keepdims=True) + _EPSILON)
        return centred / deviation * self._parameters[f"{name}_ln_scale"] + self._parameters[f"{name}_ln_bias"]


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
