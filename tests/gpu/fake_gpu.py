"""Fake GPUs for TensorFlow: build them, load them before TensorFlow makes a session, and read their counts.

    python -m tests.gpu.fake_gpu 2 -m towernmt train ... --gpu 0,1      # a program on a machine with two fake GPUs

`fake_gpu.cc` explains what they show and what they do not.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "fake_gpu.cc"
LIBRARY = "FAKE_GPU_LIBRARY"
"""Environment variable with the path of the built library."""
HOST = "host"
"""Memory of the machine, as opposed to that of a card."""


@dataclass(frozen=True)
class Copy:
    """Equal copies between the host and the cards.

    Attributes:
        source: number of the card, or `HOST`.
        target: number of the card, or `HOST`.
        dtype: name of the type, such as "float".
        shape: shape of the tensor, such as "[2,3]".
        name: name of the tensor if it is copied to the host, else "".
        times: number of copies.
        size: bytes of all of them.
    """

    source: str
    target: str
    dtype: str
    shape: str
    name: str
    times: int
    size: int


@dataclass(frozen=True)
class KernelRun:
    """Equal executions of one operation.

    Attributes:
        card: number of the card.
        type: type of the operation.
        dtype: type of its first output, or of its first input if it has no output.
        on_host: whether all of its outputs are in the memory of the host.
        name: name of the operation.
        times: number of executions.
    """

    card: str
    type: str
    dtype: str
    on_host: bool
    name: str
    times: int


@dataclass(frozen=True)
class Counts:
    """Copies and kernels since the last `reset`.

    Attributes:
        copies: copies between the host and the cards.
        kernels: executed operations.
        missing: operations that failed because the CPU has no kernel for them.
    """

    copies: tuple[Copy, ...]
    kernels: tuple[KernelRun, ...]
    missing: tuple[str, ...]

    def cards(self) -> set[str]:
        """Return the numbers of the cards on which anything has happened."""
        ends = {end for copy in self.copies for end in (copy.source, copy.target)}
        return (ends | {kernel.card for kernel in self.kernels}) - {HOST}


FREE = frozenset((
    "Bitcast", "Const", "ControlTrigger", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "LoopCond", "Merge",
    "NextIteration", "NoOp", "Rank", "ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "Stage",
    "StopGradient", "Switch", "Unstage", "VarHandleOp", "VariableV2", "_Arg", "_HostRecv", "_HostSend", "_Recv",
    "_Retval", "_Send"))
"""Types of operations that start no kernel on a GPU."""


def launched(counts: Counts) -> Iterator[KernelRun]:
    """Yield the executions that start a kernel on a GPU: not those in host memory or without work."""
    return (kernel for kernel in counts.kernels if not kernel.on_host and kernel.type not in FREE)


def write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays for `read_arrays`; their names may contain slashes, as those of variables do."""
    np.savez(file, allow_pickle=False, **{name.replace("/", "|"): array for name, array in arrays.items()})


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return what a program wrote by `write_arrays`; if it left an error instead, a test fails with that."""
    error = file.with_suffix(".error")
    assert not error.exists(), error.read_text(encoding="utf-8")
    with np.load(file) as arrays:
        return {name.replace("|", "/"): arrays[name] for name in arrays.files}


def compiler() -> str | None:
    """Return the path of a C++ compiler; None if the machine has none."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


def build(folder: Path) -> Path:
    """Return the library in `folder`, built unless its sources and TensorFlow are those of an earlier call.

    Raises:
        RuntimeError: the machine has no C++ compiler, or the compiler fails.
    """
    program = compiler()
    if program is None:
        raise RuntimeError("the machine has no C++ compiler")
    from importlib.metadata import version

    content = hashlib.sha256(SOURCE.read_bytes() + version("tensorflow").encode())
    library = folder / f"libfake_gpu-{content.hexdigest()[:16]}.so"
    if not library.exists():
        import tensorflow as tf

        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / library.name
            command = [program, "-w", "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(built),
                       *tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
            built.replace(library)
    return library


def environment(library: Path, cards: int, **more: str) -> dict[str, str]:
    """Return the environment of a program that sees `cards` fake GPUs after it has called `load`.

    Args:
        library: the result of `build`.
        cards: number of cards; 0 for a machine without the library, whose program must not call `load`.
        more: further variables, such as FAKE_GPU_MEMORY.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if not cards:
        return {**inherited, "CUDA_VISIBLE_DEVICES": "", **more}
    return {**inherited, LIBRARY: str(library), "FAKE_GPU_CARDS": str(cards), "TF_CPP_MIN_LOG_LEVEL": "2", **more}


def load() -> None:
    """Load the library of the environment; call it before TensorFlow makes a session."""
    from tensorflow.python.eager import context  # the library uses TensorFlow's

    global _library
    _library = ctypes.CDLL(os.environ[LIBRARY], mode=ctypes.RTLD_GLOBAL)
    context.context().reinitialize_physical_devices()   # listed when towernmt was imported, in a fork
    _library.fake_gpu_counts.restype = ctypes.c_int64
    _library.fake_gpu_counts.argtypes = [ctypes.c_char_p, ctypes.c_int64]


_library: ctypes.CDLL | None = None


def loaded() -> ctypes.CDLL:
    """Return the library that `load` loaded.

    Raises:
        RuntimeError: `load` was not called.
    """
    if _library is None:
        raise RuntimeError("call load() first")
    return _library


def reset() -> None:
    """Set all counts to zero."""
    loaded().fake_gpu_reset()


def snapshot() -> str:
    """Return the counts since the last `reset` as text for `parse`."""
    size = 0
    while True:
        buffer = ctypes.create_string_buffer(size + 1)
        needed = loaded().fake_gpu_counts(buffer, size)
        if needed <= size:
            return buffer.raw[:needed].decode()
        size = needed + 4096


def parse(text: str) -> Counts:
    """Return the counts of a `snapshot`."""
    copies, kernels, missing = [], [], []
    for line in text.splitlines():
        kind, *fields, times, size = line.split("\t")
        if kind == "copy":
            copies.append(Copy(*fields, times=int(times), size=int(size)))
        elif kind == "kernel":
            card, kernel_type, dtype, memory, name = fields
            kernels.append(KernelRun(card, kernel_type, dtype, memory == HOST, name, int(times)))
        else:
            missing.append(" ".join(fields))
    return Counts(tuple(copies), tuple(kernels), tuple(missing))


def _interpreter(cards: str) -> str:
    """Return a program that runs modules and files on fake GPUs, for the processes that a program starts."""
    path = Path(os.environ[LIBRARY]).parent / f"python-{os.getpid()}"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.gpu.fake_gpu {cards} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    atexit.register(path.unlink, missing_ok=True)
    return str(path)


def main(arguments: Sequence[str]) -> None:
    """Run a module or a file on fake GPUs: `CARDS -m MODULE ARGUMENTS` or `CARDS FILE ARGUMENTS`."""
    cards, *rest = arguments
    if LIBRARY not in os.environ:
        os.environ.update(environment(build(Path(tempfile.gettempdir()) / "fake_gpu"), int(cards)))
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["FAKE_GPU_CARDS"] = cards
    load()
    sys.executable = _interpreter(cards)
    if rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        sys.path.insert(0, str(Path(rest[0]).parent))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    from tests.gpu import fake_gpu  # one module, not a second one named __main__

    fake_gpu.main(sys.argv[1:])
