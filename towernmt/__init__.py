"""towernmt: neural machine translation with tower functions, on tensorpack and TensorFlow graph mode.

The names in `__all__` are the public interface, with what the packages export. Names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from towernmt.core.startup import lazy_exports, set_default_optimizer, set_environment
from towernmt.core.tensors import Optimizer

if TYPE_CHECKING:
    from towernmt.core.errors import DataError, FeederError, SettingsError, TowerNMTError
    from towernmt.core.settings import apply_overrides, load_yaml, parse_assignments, setting
    from towernmt.core.tf_compat import tf, tf1
    from towernmt.dataflow.preparation.preparation import prepare
    from towernmt.dataflow.preparation.prepared_data import PreparedData
    from towernmt.evaluate.metrics import corpus_scores as evaluate
    from towernmt.predict.scorer import Scorer
    from towernmt.predict.trained_model import TrainedModel
    from towernmt.predict.translator import Translator, translation_config
    from towernmt.run.launch import train
    from towernmt.run.run_settings import Settings, default_settings

__all__ = ["DataError", "FeederError", "PreparedData", "Scorer", "Settings", "SettingsError", "TowerNMTError",
           "TrainedModel", "Translator", "__version__", "apply_overrides", "default_settings", "evaluate",
           "load_yaml", "parse_assignments", "prepare", "setting", "tf", "tf1", "train", "translation_config"]

__version__ = "0.1.0"

set_environment()   # here, since any module of the package may be the first to import tensorpack or TensorFlow


def _default_optimizer() -> Optimizer:
    """Return Adam with its default settings; imports TensorFlow when it is called."""
    from towernmt.optim.optimizer import make_optimizer
    from towernmt.optim.optimizer_settings import OptimizerSettings

    return make_optimizer(OptimizerSettings())


set_default_optimizer(_default_optimizer)

_lazy = lazy_exports(__name__, {
    "core.errors": ["DataError", "FeederError", "SettingsError", "TowerNMTError"],
    "core.settings": ["apply_overrides", "load_yaml", "parse_assignments", "setting"],
    "core.tf_compat": ["tf", "tf1"],
    "dataflow.preparation.preparation": ["prepare"],
    "dataflow.preparation.prepared_data": ["PreparedData"],
    "predict.scorer": ["Scorer"],
    "predict.trained_model": ["TrainedModel"],
    "predict.translator": ["Translator", "translation_config"],
    "run.run_settings": ["Settings", "default_settings"],
})[0]


def __getattr__(name: str) -> object:
    if name in ("evaluate", "train"):       # packages that can be called
        return import_module(f"{__name__}.{name}")
    return _lazy(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
