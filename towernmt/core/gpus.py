"""NVIDIA GPUs without TensorFlow: driver, visible GPUs, CUDA's libraries, and the reason why TensorFlow sees no GPU.

CUDA's driver library answers within milliseconds and creates nothing on a GPU. So a GPU that is missing can be reported
before TensorFlow is imported.

A process chooses its GPUs by the numbers that CUDA gives them. Its sessions see the chosen GPUs alone, which TensorFlow
numbers from 0 in the order of the choice. `with_gpu_numbers` turns TensorFlow's numbers in a message into CUDA's.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NVIDIA = "0x10de"
"""The vendor's number on the PCI bus."""
LIBRARIES = {"12": ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11",
                    "libcusparse.so.12")}
"""Libraries that TensorFlow loads when it lists the GPUs, by CUDA's main version. Without one of them it uses no
GPU."""
OLDEST_DRIVER = {12: "525", 13: "580"}
"""First driver for each main version of CUDA."""


def has_gpu_driver(root: Path = Path("/")) -> bool:
    """Return whether this machine has the device files of a GPU driver: NVIDIA's, WSL's or AMD's."""
    devices = root / "dev"
    return _nvidia_devices(devices) > 0 or any((devices / name).exists() for name in ("dxg", "kfd", "nvhost-gpu"))


def _nvidia_devices(devices: Path) -> int:
    return sum(path.name[6:].isdecimal() for path in devices.glob("nvidia*"))


def visible_gpus(devices: Path = Path("/dev")) -> list[str]:
    """Return the names of the GPUs that CUDA shows to this process, in the form of `CUDA_VISIBLE_DEVICES`.

    CUDA numbers them from 0. The names of the device files have other numbers in a container: its only GPU may be
    `/dev/nvidia3`.

    Args:
        devices: directory of the driver's device files.
    """
    count = _nvidia_devices(devices)
    if not count and (devices / "dxg").exists():        # Windows lends its GPUs to Linux (WSL 2) without such files
        return [str(number) for number in range(len(cuda_driver().gpus))]
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not count or variable is None:
        return [str(number) for number in range(count)]
    names = [name.strip() for name in variable.split(",")]
    hidden = (index for index, name in enumerate(names)     # CUDA ignores what follows an invalid name
              if name in ("", "-1") or name.isdecimal() and int(name) >= count)
    return names[:next(hidden, len(names))]


@dataclass(frozen=True)
class Gpu:
    """A GPU that CUDA shows to this process.

    Attributes:
        name: name of the product.
        capability: compute capability, such as (9, 0).
        memory: its memory in bytes.
    """

    name: str
    capability: tuple[int, int]
    memory: int


@dataclass(frozen=True)
class CudaDriver:
    """What CUDA's driver library reports.

    Attributes:
        cuda: newest version of CUDA that the driver supports, such as (12, 4); (0, 0) if unknown.
        gpus: the GPUs, in the order of their numbers.
        error: why TensorFlow cannot use them, as the end of a sentence; "" without an error.
    """

    cuda: tuple[int, int] = (0, 0)
    gpus: tuple[Gpu, ...] = ()
    error: str = ""


_CAPABILITY = (75, 76)
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_INIT_ERRORS = {
    34: "libcuda.so.1 is the stub library of CUDA's toolkit: remove its directory from LD_LIBRARY_PATH",
    100: "CUDA's driver finds no GPU (CUDA_ERROR_NO_DEVICE): `nvidia-smi` must show the GPU",
    802: "the GPUs are not ready (CUDA_ERROR_SYSTEM_NOT_READY): start the service nvidia-fabricmanager",
    803: "the driver's kernel module and libcuda.so.1 have different versions (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH): "
         "restart the machine",
    804: "libcuda.so.1 is of a compatibility package that does not support this GPU "
         "(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE): install a newer driver",
    999: "CUDA's driver fails for an unknown reason (CUDA_ERROR_UNKNOWN): restart the machine",
}


@functools.cache
def cuda_driver() -> CudaDriver:
    """Return the report of CUDA's driver library, which respects `CUDA_VISIBLE_DEVICES`; the answer is cached."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return CudaDriver(error="the driver's library libcuda.so.1 is missing: install all of NVIDIA's driver")
    number, text, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    version = number.value // 1000, number.value % 1000 // 10
    status = cuda.cuInit(0)
    if status:
        return CudaDriver(version, error=_INIT_ERRORS.get(status, f"CUDA's driver cannot start (cuInit: {status})"))
    cuda.cuDeviceGetCount(ctypes.byref(number))
    gpus = []
    for device in range(number.value):
        cuda.cuDeviceGetName(text, len(text), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        capability = []
        for attribute in _CAPABILITY:
            cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
            capability.append(number.value)
        gpus.append(Gpu(text.value.decode(errors="replace"), (capability[0], capability[1]), memory.value))
    return CudaDriver(version, tuple(gpus), "" if _has_management_library() else (
        "TensorFlow needs NVIDIA's management library libnvidia-ml.so.1, which is missing or fails. In a container, set"
        " NVIDIA_DRIVER_CAPABILITIES=compute,utility"))


def _has_management_library() -> bool:
    try:
        return int(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2()) == 0
    except (OSError, AttributeError):
        return False


def smallest_memory(gpus: Sequence[int] | None) -> int:
    """Return the memory of the smallest of these GPUs in bytes; 0 without GPUs, or if it is unknown.

    Args:
        gpus: CUDA's numbers of the GPUs.
    """
    visible = cuda_driver().gpus if gpus else ()
    return min((visible[gpu].memory for gpu in gpus or () if gpu < len(visible)), default=0)


def driver_version() -> str:
    """Return the version of NVIDIA's kernel module, such as "550.54.15"; "" if it does not run or is unknown."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    match = re.search(r"\b\d{3,}(\.\d+)+", text)
    return match[0] if match else ""


def why_missing(build: Mapping[str, Any], root: Path = Path("/"), loads: Callable[[str], bool] | None = None,
                driver: Callable[[], CudaDriver] = cuda_driver) -> str:
    """Return why TensorFlow cannot use a GPU, as the end of a sentence.

    Args:
        build: `tf.sysconfig.get_build_info()`; {} for what holds without TensorFlow.
        root: directory that contains `/dev`, `/proc` and `/sys`.
        loads: returns whether a shared library can be loaded.
        driver: returns the report of CUDA's driver library.
    """
    if build and not build.get("is_cuda_build"):
        return "this TensorFlow was built without CUDA"
    if not has_gpu_driver(root):
        if _has_gpu(root):
            return "there is an NVIDIA GPU, but its driver is not running: `nvidia-smi` must show the GPU"
        return "this machine shows no NVIDIA GPU"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.split(",")[0].strip() in ("", "-1"):
        return f"the GPU is there, but CUDA_VISIBLE_DEVICES={hidden or chr(39) * 2} hides it"
    report = driver()
    return (_why_driver_fails(report, build) or _why_libraries_fail(build, _loads if loads is None else loads)
            or _why_gpus_fail(report, build)
            or "driver and libraries are there, but TensorFlow uses no GPU: `towernmt devices` shows its reason")


def _why_driver_fails(driver: CudaDriver, build: Mapping[str, Any]) -> str:
    main = int(_main_version(build, "cuda_version") or 0)
    if (0, 0) < driver.cuda < (main, 0):
        since = f" {OLDEST_DRIVER[main]} or newer" if main in OLDEST_DRIVER else ""
        return (f"the driver is too old: it supports CUDA {driver.cuda[0]}.{driver.cuda[1]}, and TensorFlow needs CUDA "
                f"{main}. Install NVIDIA's driver{since}")
    return driver.error


def _why_libraries_fail(build: Mapping[str, Any], loads: Callable[[str], bool]) -> str:
    missing = [name for name in cuda_libraries(build) if not loads(name)]
    return ("the GPU is there, but CUDA's libraries are missing (" + ", ".join(missing) + "): "
            "pip install 'towernmt[gpu]' installs them") if missing else ""


def _why_gpus_fail(driver: CudaDriver, build: Mapping[str, Any]) -> str:
    versions = _compiled_for(build)
    if versions and driver.gpus and all(gpu.capability < min(versions) for gpu in driver.gpus):
        least, gpu = min(versions), driver.gpus[0]
        return (f"the GPU is too old: {gpu.name} has compute capability {_dotted(gpu.capability)}, and this TensorFlow "
                f"needs at least {_dotted(least)}")
    return ""


def needs_compilation(gpu: Gpu, build: Mapping[str, Any]) -> str:
    """Return a warning if this TensorFlow has no machine code for a GPU; "" if it has, or if that is unknown.

    The driver then compiles each kernel from PTX. Machine code runs on the same main version of the compute capability
    only, from its own minor version on.

    Args:
        gpu: the GPU.
        build: `tf.sysconfig.get_build_info()`.
    """
    versions = _compiled_for(build)
    if not versions or any(v[0] == gpu.capability[0] and v[1] <= gpu.capability[1] for v in versions):
        return ""
    return (f"{gpu.name} has compute capability {_dotted(gpu.capability)}, and this TensorFlow has machine code up to "
            f"{_dotted(max(versions))}: the driver compiles each kernel at its first use, which takes up to 30 minutes "
            "the first time, or fails with CUDA_ERROR_INVALID_PTX. A newer TensorFlow may support the GPU.")


def _compiled_for(build: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the compute capabilities for which TensorFlow has machine code: "sm_89" is (8, 9)."""
    digits = [name.rpartition("_")[2] for name in build.get("cuda_compute_capabilities", ())]
    return [(int(text[:-1]), int(text[-1])) for text in digits if text.isdecimal() and len(text) > 1]


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _main_version(build: Mapping[str, Any], name: str) -> str:
    return str(build.get(name, "")).split(".")[0]


def cuda_libraries(build: Mapping[str, Any]) -> list[str]:
    """Return the names of the shared libraries that TensorFlow needs to use a GPU."""
    cudnn = _main_version(build, "cudnn_version")
    return [*LIBRARIES.get(_main_version(build, "cuda_version"), ()), *([f"libcudnn.so.{cudnn}"] if cudnn else [])]


def _has_gpu(root: Path) -> bool:
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == NVIDIA and kind.startswith("0x03"):      # a display controller, not a bridge or a sound card
            return True
    return False


def _loads(name: str) -> bool:
    """Return whether a library is where the system looks, or where pip puts NVIDIA's packages."""
    for file in [name, *map(str, _pip_libraries(name))]:
        with suppress(OSError):
            ctypes.CDLL(file)
            return True
    return False


def has_nccl() -> bool:
    """Load NVIDIA's library of collectives between GPUs for TensorFlow, and return whether it exists."""
    return _loads("libnccl.so.2")


def _pip_libraries(pattern: str) -> Iterable[Path]:
    """Yield the libraries in pip's NVIDIA packages (nvidia-cublas-cu12 and so on) that match a pattern of names."""
    spec = importlib.util.find_spec("nvidia")
    for directory in (spec.submodule_search_locations or []) if spec else []:
        yield from sorted(Path(directory).glob(f"*/lib/{pattern}"))


def load_cuda_libraries() -> None:
    """Load the one library of pip's NVIDIA packages that TensorFlow cannot find, before TensorFlow lists the GPUs.

    TensorFlow 2.21 looks for CUDA's libraries in the folders of these packages, but its list of folders lacks
    `nvidia/cusolver/lib` (tensorflow/tensorflow#112973). It then uses no GPU. A library that is already loaded needs no
    folder, and `libcusolver` finds the libraries that it needs by itself. Without a driver nothing is loaded.
    """
    if not has_gpu_driver():
        return
    for file in _pip_libraries("libcusolver.so.[0-9]*"):
        with suppress(OSError):         # `why_missing` names it
            ctypes.CDLL(str(file))


_chosen: list[int] = []
"""Numbers of the GPUs that this process uses, in the order in which TensorFlow numbers them."""


def choose_gpus(gpus: Sequence[int]) -> list[int]:
    """Add GPUs to those that this process uses, and return the numbers that TensorFlow gives them.

    TensorFlow's numbers of GPUs that are already chosen stay, as it refuses to change them within a process.

    Args:
        gpus: CUDA's numbers of the GPUs.
    """
    _chosen.extend(sorted(set(gpus) - set(_chosen)))
    return [_chosen.index(gpu) for gpu in gpus]


def chosen_gpus() -> list[int]:
    """Return CUDA's numbers of the GPUs that this process uses, in TensorFlow's order; [] before the first choice."""
    return list(_chosen)


_TENSORFLOWS_NUMBER = re.compile(r"(\bgpu[:_])(\d+)", re.IGNORECASE)


def with_gpu_numbers(text: str) -> str:
    """Return a message of TensorFlow with CUDA's numbers of the chosen GPUs: `GPU:0` is `GPU:3` after `--gpu 3`."""
    def number(match: re.Match[str]) -> str:
        index = int(match[2])
        return f"{match[1]}{_chosen[index] if index < len(_chosen) else index}"

    return _TENSORFLOWS_NUMBER.sub(number, text)


def missing_without_tensorflow(gpus: Sequence[int]) -> str:
    """Return which of these GPUs is missing and why, or "" if only TensorFlow can tell.

    Args:
        gpus: CUDA's numbers of the GPUs.
    """
    if not gpus or "tensorflow" in sys.modules or not sys.platform.startswith("linux") or has_gpu_driver():
        return ""
    return f"GPU {gpus[0]} was not found ({why_missing({})})"
