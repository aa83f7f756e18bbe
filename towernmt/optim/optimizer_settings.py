"""The settings of the optimizer: its name, learning rate, decays and moving average. TensorFlow is not imported."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.core.settings import setting


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer, its step size, and a moving average of the weights."""

    name: str = setting("adam", "optimizer; lazyadam is Adam that skips rows of embeddings without a gradient",
                        choices=("adam", "adamw", "lazyadam", "adafactor", "lamb", "muon", "sgd"))
    learning_rate: float = setting(
        0.001, "peak learning rate, which the schedule scales over the steps; schedule.name=noam: a factor, usually 1 "
        "or 2", above=0)
    beta1: float = setting(0.9, "Adam and its variants: decay of the mean of the gradients", at_least=0, below=1)
    beta2: float = setting(0.98, "Adam and its variants: decay of the mean of their squares", at_least=0, below=1)
    epsilon: float = setting(1e-9, "Adam and its variants: added to the root of the mean square", above=0)
    weight_decay: float = setting(
        0.01, "AdamW, Muon: subtract learning rate * this * the matrix in each update; LAMB: add this * the matrix to "
        "its direction; biases and scales do not decay", at_least=0)
    muon_momentum: float = setting(0.95, "Muon: decay of the momentum of hidden matrices", at_least=0, below=1)
    muon_scale: float = setting(
        0.2, "Muon: factor of the steps of hidden matrices; 0.2 makes them as long as Adam's", above=0)
    muon_iterations: int = setting(
        3, "Muon: steps that make a direction orthogonal; fewer are faster and less exact", at_least=1, at_most=100)
    muon_interval: int = setting(
        2, "Muon: number of updates from one direction to the next; the updates between them repeat it", at_least=1)
    momentum: float = setting(0.9, "SGD: momentum", at_least=0, below=1)
    nesterov: bool = setting(False, "SGD: Nesterov's momentum")
    adafactor_relative: bool = setting(True, "Adafactor: scale a variable's step by its root mean square")
    adafactor_clip: float = setting(1.0, "Adafactor: largest root mean square of a step; 0 for no limit", at_least=0)
    adafactor_momentum: float = setting(
        0.0, "Adafactor: decay of the mean of the steps; 0 for none", at_least=0, below=1)
    ema_decay: float = setting(
        0.0, "decay of a moving average of the weights, such as 0.9999; 0 for no average", at_least=0, below=1)
