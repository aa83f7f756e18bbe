"""Which optimizer a run has, and how large its steps are."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.core.settings import setting
from towernmt.core.tensors import Optimizer


@dataclass(frozen=True)
class OptimizerSettings:
    """Which optimizer, and how large its steps are."""

    name: str = setting("adam", "optimizer; lazyadam is Adam that leaves rows of an embedding without a gradient alone",
                        choices=("adam", "adamw", "lazyadam", "adafactor", "lamb", "sgd"))
    learning_rate: float = setting(0.001, "peak learning rate; the schedule scales it over the steps", above=0)
    beta1: float = setting(0.9, "Adam and its kin, LAMB: decay of the mean of the gradients", at_least=0, below=1)
    beta2: float = setting(0.98, "Adam and its kin, LAMB: decay of the mean of their squares", at_least=0, below=1)
    epsilon: float = setting(1e-9, "Adam and its kin, LAMB: added to the root of the mean square", above=0)
    weight_decay: float = setting(
        0.01, "AdamW, LAMB: the share of each matrix that is taken off at a rate of 1", at_least=0)
    momentum: float = setting(0.9, "SGD: momentum", at_least=0, below=1)
    nesterov: bool = setting(False, "SGD: Nesterov's momentum")
    adafactor_relative: bool = setting(True, "Adafactor: scale a variable's step by its root mean square")
    adafactor_clip: float = setting(1.0, "Adafactor: longest root mean square of a step; 0 for no limit", at_least=0)
    adafactor_momentum: float = setting(
        0.0, "Adafactor: decay of the mean of the steps; 0 for none", at_least=0, below=1)
    ema_decay: float = setting(
        0.0, "decay of a moving average of the weights, such as 0.9999; 0 for no average", at_least=0, below=1)

    def make(self, clip_norm: float = 0.0) -> Optimizer:
        """The optimizer that these settings describe; see `towernmt.optim.optimizer.make_optimizer`."""
        from towernmt.optim.optimizer import make_optimizer  # settings are read where TensorFlow is not wanted

        return make_optimizer(self, clip_norm)
