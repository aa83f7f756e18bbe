"""Where towers are placed: the device of each, and which device an operation of a tower is made on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from towernmt.core.errors import SettingsError
from towernmt.core.machine.gpus import why_missing
from towernmt.core.machine.processor import processors
from towernmt.core.tensors import Operation
from towernmt.core.tf_compat import tf

CPU = "/cpu:0"
LEAST_MOST_TOWERS = 64
"""So many towers may be built on any machine's CPU."""
_VARIABLE_OPS = ("VarHandleOp", "VariableV2")


def tower_devices(gpus: Sequence[int] | None, towers: int | None) -> list[str]:
    """The device of each tower.

    Raises:
        SettingsError: both or neither are given, a GPU is not there, or there are no towers, or very many.
    """
    if gpus is not None and towers is not None:
        raise SettingsError("--gpu and --towers exclude each other: --gpu runs a tower a GPU, "
                            "--towers N runs N towers on the CPU.")
    if gpus is None:
        if towers is None or towers < 1:
            raise SettingsError("a trainer needs at least one tower: pass gpus=[0, 1, ...] or towers=N.")
        most = max(LEAST_MOST_TOWERS, 4 * processors())
        if towers > most:
            raise SettingsError(f"--towers {towers}: {most} towers are the most on this machine's {processors()} "
                                "processors; as many towers as processors use them all.")
        return [CPU] * towers
    if not gpus:
        raise SettingsError("--gpu needs at least one GPU number, for example --gpu 0,1.")
    present = len(tf.config.list_physical_devices("GPU"))
    missing = [gpu for gpu in gpus if gpu < 0 or gpu >= present]
    if missing:
        found = f"TensorFlow sees {present}, numbered from 0" if present else why_missing()
        raise SettingsError(f"--gpu {','.join(map(str, gpus))}: GPU {missing[0]} was not found ({found}); use --towers "
                            f"{len(gpus)} to run the same towers on the CPU.")
    return [f"/gpu:{gpu}" for gpu in gpus]


def device_of_operations(device: str, variable_device: str) -> Callable[[Operation], str]:
    """For `tf1.device`: a tower's operations on its own device, the variables that all towers share on another.

    What has a device by a `tf.device` inside the tower (the input's shares, the clock: the CPU) keeps it.
    """
    return lambda operation: operation.device or (variable_device if operation.type in _VARIABLE_OPS else device)
