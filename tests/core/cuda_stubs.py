"""Stubs of the libraries of CUDA's driver, and empty stubs of its other libraries, made by the C compiler.

They answer TensorFlow's calls when it lists the GPUs, so that a machine without a GPU behaves like one with a GPU until
the first session.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

COMPILER = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler, on Linux")
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}
int cuInit(unsigned flags) { return number("STUB_STATUS", 0); }
int cuDriverGetVersion(int* version) { *version = number("STUB_CUDA", 12040); return 0; }
int cuDeviceGetCount(int* count) { *count = number("STUB_GPUS", 1); return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  int capability = number("STUB_CAPABILITY", 80);
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 16 ? 108 : 1024;
  return 0;
}
int cuDeviceGetName(char* name, int length, int device) { snprintf(name, length, "Stub %d", device); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
int cuDeviceGetPCIBusId(char* id, int length, int device) { snprintf(id, length, "0000:00:00.%d", device); return 0; }
int nvmlInit_v2(void) { return number("STUB_MANAGEMENT", 0); }
int cuGetErrorName(int error, const char** name) { *name = "CUDA_ERROR_STUB"; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "stub"; return 0; }
"""


def build_stub(folder: Path, name: str, code: str = "") -> None:
    """Write the shared library `name`, with the C code."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.c"
    source.write_text(code)
    subprocess.run([str(COMPILER), "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)],
                   check=True, capture_output=True)


def run_with(code: str, libraries: Path, paths: Sequence[Path] = (), **variables: str) -> str:
    """Return the output of Python code that runs with a folder of shared libraries, module paths and variables."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_VISIBLE_DEVICES",)}
    environment |= {"LD_LIBRARY_PATH": str(libraries), "TF_CPP_MIN_LOG_LEVEL": "2",
                    "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], *map(str, paths)]), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()
