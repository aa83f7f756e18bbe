"""Train and translate with a compiled PyTorch loop, with the recipe that towernmt chose for the same minutes.

`quality.py` starts it with a Python that has PyTorch:

    python quality_pytorch.py train FOLDER MINUTES EVERY PIECES [CHECKPOINT]
    python quality_pytorch.py translate FOLDER CHECKPOINT PIECES SOURCE BEAM LONGEST

FOLDER contains `settings.json`, the settings of a towernmt run, and `vectors.npy`, its initial embeddings. PIECES
contains the subword files. `torch.compile` compiles the loss with its gradient, and the steps of Muon. Compilation does
not count as training.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality_clock import Clock
from quality_pytorch_model import EOS, Batch, Transformer, padded, translate
from torch import nn

COEFFICIENTS = ((8.28721201814563, -23.595886519098837, 17.300387312530933),
                (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
                (3.9486908534822946, -2.908902115962949, 0.5518191394370137))
"""The first three steps of Polar Express (Amsel et al. 2025)."""
MARGIN = 1.01
TRIALS = 8
"""Batches whose loss is computed before the clock starts, so that all shapes are compiled."""


class Optimizer:
    """towernmt's Muon (`towernmt.optim.muon`) for the hidden matrices, and AdamW for the other parameters.

    Args:
        model: the model, whose parameters have gradients.
        settings: the section `optimizer` of the run's settings.
    """

    def __init__(self, model: Transformer, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._matrices = [parameter for name, parameter in model.named_parameters()
                          if parameter.ndim == 2 and not name.endswith("_table")]
        self._momenta = [torch.zeros_like(matrix) for matrix in self._matrices]
        self._steps = [torch.zeros_like(matrix) for matrix in self._matrices]
        self._updates = 0
        self._adam = torch.optim.AdamW(
            [{"params": [model.source_table, model.target_table, model.softmax_table],
              "weight_decay": settings["weight_decay"]},
             {"params": [parameter for parameter in model.parameters() if parameter.ndim == 1], "weight_decay": 0.0}],
            betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"], fused=True)
        self._compiled = torch.compile(self._directions)

    def compile(self) -> None:
        """Compile the steps of Muon."""
        self._compiled(self._momenta)

    @torch.no_grad()
    def update(self, rate: float) -> None:
        """Update the parameters by their gradients."""
        s, gradients = self._settings, [matrix.grad for matrix in self._matrices]
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        torch._foreach_lerp_(self._momenta, gradients, 1 - s["muon_momentum"])
        if self._updates % s["muon_interval"] == 0:
            self._steps = self._compiled(torch._foreach_lerp(gradients, self._momenta, s["muon_momentum"]))
        self._updates += 1
        torch._foreach_mul_(self._matrices, 1 - rate * s["weight_decay"])
        torch._foreach_add_(self._matrices, self._steps, alpha=-rate)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, from which `load_state_dict` resumes."""
        return {"adam": self._adam.state_dict(), "momenta": self._momenta, "steps": self._steps,
                "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a state."""
        self._adam.load_state_dict(state["adam"])
        self._momenta, self._steps, self._updates = state["momenta"], state["steps"], state["updates"]

    def _directions(self, directions: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the steps at a rate of 1; the maps of one shape are made orthogonal in one product."""
        iterations, scale = int(self._settings["muon_iterations"]), float(self._settings["muon_scale"])
        maps = [maps_of(direction) for direction in directions]
        steps: dict[tuple[int, ...], Iterator[torch.Tensor]] = {}
        for shape in {tuple(parts[0].shape): None for parts in maps}:
            group = torch.stack([part for parts in maps if tuple(parts[0].shape) == shape for part in parts])
            steps[shape] = iter(scale * math.sqrt(max(shape)) * orthogonal(group, iterations))
        return [torch.cat([next(steps[tuple(part.shape)]) for part in parts], 1) for parts in maps]


def maps_of(kernel: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the maps of a kernel: keys and values, or queries, keys and values, are in one product."""
    rows, columns = kernel.shape
    return kernel.split(rows, 1) if columns in (2 * rows, 3 * rows) else (kernel,)


def orthogonal(x: torch.Tensor, iterations: int) -> torch.Tensor:
    """Return nearly orthogonal matrices with the singular vectors of `x`, float32 `[matrices, rows, columns]`."""
    if x.shape[1] > x.shape[2]:
        return orthogonal(x.mT, iterations).mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-30)
    square, product = x @ x.mT, torch.eye(x.shape[1])
    for step, (a, b, c) in enumerate(COEFFICIENTS[:iterations]):
        a, b, c = a / MARGIN, b / MARGIN ** 3, c / MARGIN ** 5
        polynomial = a * torch.eye(x.shape[1]) + b * square + c * (square @ square)
        product = polynomial @ product if step else polynomial
        if step + 1 < iterations:
            square = polynomial @ (polynomial @ square)
    return product @ x


class Batches:
    """Endless random batches of pairs with similar lengths.

    Args:
        pairs: ids of source and target, each with EOS.
        settings: settings of the run.
        vocabulary: number of tokens of the vocabulary.
        updates: number of updates so far; a resumed training has another random order.
    """

    def __init__(self, pairs: list[tuple[list[int], list[int]]], settings: dict[str, Any], vocabulary: int,
                 updates: int) -> None:
        self._pairs, self._vocabulary = pairs, vocabulary
        self._limit, self._share = settings["data"]["batch_tokens"], float(settings["model"]["softmax_sample"]) or 1.0
        self._random = np.random.default_rng([settings["data"]["seed"], updates])

    def __iter__(self) -> Iterator[Batch]:
        lengths = np.array([(len(source), len(target)) for source, target in self._pairs])
        while True:
            order = self._random.permutation(len(lengths))
            order = order[np.lexsort((lengths[order, 0] - lengths[order, 1], lengths[order].max(1)))]
            batch_of_pair = np.cumsum(lengths[order, 1]) // self._limit
            parts = np.split(order, np.flatnonzero(np.diff(batch_of_pair)) + 1)
            for part in self._random.permutation(len(parts)):
                yield self._batch([self._pairs[number] for number in parts[part]])

    def _batch(self, pairs: list[tuple[list[int], list[int]]]) -> Batch:
        target = padded([target for _, target in pairs])
        tokens = np.flatnonzero(target)
        labels = target.reshape(-1)[tokens]
        is_label = np.zeros(self._vocabulary, bool)
        is_label[labels] = True
        members = np.flatnonzero(is_label | (self._random.random(self._vocabulary) < self._share))
        offsets = np.where(is_label[members], 0.0, -math.log(self._share)).astype(np.float32)
        arrays = (padded([source for source, _ in pairs]), target, tokens, members, offsets,
                  np.searchsorted(members, labels))
        return Batch(*map(torch.from_numpy, arrays))


def train(folder: Path, minutes: float, every: float, pieces: Path, checkpoint: str | None) -> None:
    """Train for `minutes`, from the beginning or from a checkpoint, and keep a checkpoint at each mark."""
    settings, vectors = read_recipe(folder)
    clock = Clock(folder, minutes, every)
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True) if checkpoint else {"updates": 0}
    clock.end_on_signals()
    torch.manual_seed(settings["data"]["seed"])
    model = Transformer(settings["model"], vectors)
    batches = iter(Batches(read_pairs(pieces), settings, len(vectors), state["updates"]))
    compiled = torch.compile(model, dynamic=True)
    for _ in range(TRIALS):
        compiled(next(batches)).backward()
    optimizer = Optimizer(model, settings["optimizer"])
    optimizer.compile()
    if checkpoint:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    updates, tokens = state["updates"], 0
    for batch in batches:
        model.zero_grad()
        compiled(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings["train"]["clip_norm"], foreach=True)
        updates, tokens = updates + 1, tokens + len(batch.tokens)
        optimizer.update(settings["optimizer"]["learning_rate"] * max(0.0, 1 - clock.minute() / minutes)
                         * min(1.0, updates / settings["schedule"]["warmup_steps"]))
        if clock.tick(updates, tokens, partial(save, folder, updates, model, optimizer)):
            return


def save(folder: Path, updates: int, model: Transformer, optimizer: Optimizer) -> str:
    """Save a checkpoint and return its path."""
    path = str(folder / f"checkpoint-{updates}.pt")
    torch.save({"updates": updates, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def translate_file(folder: Path, checkpoint: str, pieces: Path, source: Path, beam: int, longest: int) -> None:
    """Print the translations of a subword file."""
    settings, vectors = read_recipe(folder)
    model, ids = Transformer(settings["model"], vectors), read_ids(pieces)
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    names = {number: piece for piece, number in ids.items()}
    for translation in translate(model, encoded(source, ids), beam, longest):
        print(" ".join(names.get(number, "<unk>") for number in translation))


def read_recipe(folder: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Return the settings of the towernmt run and the initial vectors of the vocabulary."""
    return json.loads((folder / "settings.json").read_text(encoding="utf-8")), np.load(folder / "vectors.npy")


def read_pairs(pieces: Path) -> list[tuple[list[int], list[int]]]:
    """Return the ids of the training pairs, with EOS."""
    ids = read_ids(pieces)
    sides = [encoded(pieces / f"train.{side}", ids) for side in ("src", "tgt")]
    return [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= 200]


def read_ids(pieces: Path) -> dict[str, int]:
    """Return the id of each subword, which is its id in the towernmt vocabulary, after four special ones."""
    lines = (pieces / "opennmt.txt").read_text(encoding="utf-8").split("\n")[3:-1]
    return {piece: number for number, piece in enumerate(lines, start=4)}


def encoded(path: Path, ids: dict[str, int]) -> list[list[int]]:
    """Return the ids of the lines of a subword file, with EOS."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [[*(ids.get(piece, 3) for piece in line.split(" ") if piece), EOS] for line in lines]


if __name__ == "__main__":
    task, directory, *words = sys.argv[1:]
    if task == "train":
        train(Path(directory), float(words[0]), float(words[1]), Path(words[2]), words[3] if words[3:] else None)
    else:
        translate_file(Path(directory), words[0], Path(words[1]), Path(words[2]), int(words[3]), int(words[4]))
