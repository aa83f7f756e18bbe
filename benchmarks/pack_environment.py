"""Pack the Python environment for a machine that has a GPU, but no network and no TensorFlow.

    python benchmarks/pack_environment.py --keep 90 --output parts --with ctranslate2 pytest
    eval "$(sh parts/unpack.sh)"    # on the other machine, after the folder `parts` is copied there

The archive contains the interpreter that runs this script, towernmt's requirements, the system libraries of the
interpreter, and the small libraries of CUDA 12. Libraries keep the GPU code of one architecture (see `slim_cuda.py`).
A library without machine code of that architecture is packed complete. cuFFT, cuSOLVER and cuSPARSE are empty, because
towernmt does not call them. The archive does not contain the checkout: copy it, and set PYTHONPATH to the copy.

`unpack.sh` unpacks the parts of its folder to the same absolute paths, and prints the variables to set. TensorFlow
loads the cuBLAS and cuDNN of the other machine. A cuBLAS of CUDA 13 is linked under the name of CUDA 12. To pack both
libraries, install them here and add `--with nvidia-cublas-cu12 nvidia-cudnn-cu12`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from importlib.metadata import Distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from slim_cuda import make_stub, pack, slim

UNUSED_DISTRIBUTIONS = {"libclang", "tensorboard-data-server", "tensorflow-io-gcs-filesystem"}
"""Requirements that towernmt does not import."""
PROFILER = "tensorflow/python/profiler/internal/_pywrap_profiler_plugin"
"""A module of 90 MB for TensorBoard, replaced by an empty module."""
UNUSED_FILES = ("*.pyc", "*.a", "*.dist-info/RECORD", "*/site-packages/*/tests/*", "*/lib-dynload/_tkinter.*",
                "*/lib-dynload/nis.*", "*/nvidia/*/include/*", "*/tensorflow/include/*", "*/tensorflow/*.h",
                "*/tensorflow/compiler/mlir/stablehlo/*", f"*/{PROFILER}.so")
UNUSED_FOLDERS = ("test", "idlelib", "ensurepip", "tkinter", "lib2to3", "config-*", "site-packages")
"""Folders of the standard library that are left out. The requirements of towernmt are found separately."""
EVERY_MACHINE = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+|python.*))\.so.*")
"""System libraries that every machine has, and Python's own library, which `files_of` yields."""
SYSTEM = "lib/system"   # folder of the packed system libraries in the environment
SMALL = {"nvidia-cuda-runtime-cu12": ["nvidia/cuda_runtime/lib/libcudart.so.12"],
         "nvidia-cuda-cupti-cu12": ["nvidia/cuda_cupti/lib/libcupti.so.12"],
         "nvidia-cuda-nvcc-cu12": ["nvidia/cuda_nvcc/bin/ptxas", "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc"]}
"""Files of CUDA that are packed, by distribution."""
STUBS = ("nvidia/cufft/lib/libcufft.so.11", "nvidia/cusolver/lib/libcusolver.so.11",
         "nvidia/cusparse/lib/libcusparse.so.12")
UNPACK = r"""
# SEARCH='/usr /opt' limits the folders that are searched for cuBLAS and cuDNN.
here=$(cd "$(dirname "$0")" && pwd)
cat "$here"/part-* | xz --decompress --threads=0 |
    tar --extract --no-same-owner --no-overwrite-dir --keep-directory-symlink --directory "${root:-/}"
found=$(find ${SEARCH:-/} \( -path /proc -o -path /sys -o -path "$site/nvidia" \) -prune -o \
    \( -name 'libcublas.so.1[23]' -o -name libcudnn.so.9 \) -print 2>/dev/null || true)
first() { printf '%s\n' "$found" | grep "/$1\$" | head -n 1; }
link() {    # PACKAGE SOURCE NAME: link a library of this machine into the environment
    [ -n "$2" ] || { echo "$1 was not found on this machine. Pack it: --with nvidia-$1-cu12" >&2; return 0; }
    mkdir -p "$site/nvidia/$1/lib"
    ln -sf "$2" "$site/nvidia/$1/lib/$3"
}
cublas=$site/nvidia/cublas/lib/libcublas.so.12
if [ ! -e "$cublas" ]; then
    source=$(first libcublas.so.12)
    source=${source:-$(first libcublas.so.13)}
    link cublas "$source" libcublas.so.12
    [ -z "$source" ] || link cublas "$(dirname "$source")/libcublasLt.so.${source##*.}" libcublasLt.so.12
fi
cudnn=$site/nvidia/cudnn/lib/libcudnn.so.9
[ -e "$cudnn" ] || link cudnn "$(first libcudnn.so.9)" libcudnn.so.9
for library in "$cublas" "$cudnn"; do
    if [ -e "$library" ]; then system=$system:$(dirname "$(readlink -f "$library")"); fi
done
system=$system:/usr/local/nvidia/lib64
echo "export LD_LIBRARY_PATH=\"$system\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\" PATH=\"$prefix/bin:\$PATH\""
"""


class Environment(NamedTuple):
    """Folders of a Python environment: `sys.prefix`, `sys.base_prefix`, the standard library and site-packages."""

    prefix: Path
    base: Path
    standard: Path
    site: Path


def closure(names: Sequence[str], site: Path) -> list[Distribution]:
    """Return distributions with all their requirements that are installed in site-packages."""
    distributions: dict[str, Distribution] = {}
    pending, visited = list(map(Requirement, names)), set()
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in visited or name in UNUSED_DISTRIBUTIONS:
            continue
        visited.add((name, extras))
        distribution = next(iter(Distribution.discover(name=name, path=[str(site)])), None)
        if distribution is None:
            print(f"{name} is not installed and is left out")
            continue
        distributions[name] = distribution
        pending += [further for further in map(Requirement, distribution.requires or [])
                    if not further.marker or any(further.marker.evaluate({"extra": extra}) for extra in {"", *extras})]
    return [distributions[name] for name in sorted(distributions)]


def is_unused(path: Path) -> bool:
    """Return whether a file is left out."""
    return any(fnmatch(str(path), unused) for unused in UNUSED_FILES)


def files_of(environment: Environment, distributions: Sequence[Distribution]) -> Iterator[Path]:
    """Yield the files of the interpreter, its standard library, and the distributions."""
    prefix, base = environment.prefix, environment.base
    for folder, pattern in (prefix, "pyvenv.cfg"), (prefix, "bin/python*"), (base, "bin/python*"), (base, "lib/libpy*"):
        yield from folder.glob(pattern)
    for path in environment.standard.iterdir():
        if not any(fnmatch(path.name, unused) for unused in UNUSED_FOLDERS):
            yield from path.rglob("*") if path.is_dir() else [path]
    for distribution in distributions:
        for file in distribution.files or []:
            yield Path(os.path.normpath(str(distribution.locate_file(file))))


def system_libraries(environment: Environment) -> dict[str, Path]:
    """Return the path of each system library that the interpreter's extension modules load, by name."""
    modules = [path for path in sorted((environment.standard / "lib-dynload").glob("*.so")) if not is_unused(path)]
    output = subprocess.run(["ldd", *map(str, modules)], capture_output=True, text=True).stdout if modules else ""
    return {name: Path(path) for name, path in re.findall(r"^\s*(\S+) => (/\S+)", output, re.MULTILINE)
            if not EVERY_MACHINE.fullmatch(name)}


def copy_file(source: Path, copy: Path, keep: int) -> None:
    """Copy a file. A program or library keeps the GPU code of one architecture, and loses its symbols."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        compiled = file.read(5) == b"\x7fELF\x02"
    if compiled:
        try:    # auditwheel's libraries do not load after `strip`
            slim(source, keep, copy, strip=not source.parent.name.endswith(".libs"))
        except ValueError as error:
            print(f"{source.name}: {error}. It is packed complete.")
    else:
        shutil.copyfile(source, copy)
    shutil.copymode(source, copy)


def copy_environment(environment: Environment, distributions: Sequence[Distribution], stage: Path, keep: int) -> None:
    """Copy an environment to the same paths below a folder, and add its system libraries."""
    roots = [root.resolve() for root in (environment.prefix, environment.base)]
    for path in files_of(environment, distributions):
        copy = stage / path.relative_to("/")
        if not path.is_file() or is_unused(path) or os.path.lexists(copy):
            continue
        if path.is_symlink() and any(path.resolve().is_relative_to(root) for root in roots):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(os.readlink(path))
        else:
            copy_file(path, copy, keep)
    if (environment.site / f"{PROFILER}.so").exists():
        profiler = stage / (environment.site / f"{PROFILER}.py").relative_to("/")
        profiler.parent.mkdir(parents=True, exist_ok=True)
        profiler.touch()
    for name, path in system_libraries(environment).items():
        copy_file(path, stage / (environment.prefix / SYSTEM / name).relative_to("/"), keep)


def cuda_files(tree: Path) -> list[Path]:
    """Return the small libraries of CUDA 12 in a folder, or exit if one is missing."""
    files = [tree / name for names in SMALL.values() for name in names]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise SystemExit(f"CUDA files are missing: {', '.join(missing)}. Run `pip install --no-deps --target cuda "
                         f"{' '.join(SMALL)}`, and pass --cuda cuda.")
    return files


def copy_cuda(tree: Path, site: Path, keep: int) -> None:
    """Copy the small libraries of CUDA 12 to site-packages, and add empty libraries for those that are not called."""
    for file in cuda_files(tree):
        copy_file(file, site / file.relative_to(tree), keep)
    for stub in map(site.joinpath, STUBS):
        stub.parent.mkdir(parents=True, exist_ok=True)
        if not stub.exists():
            make_stub(stub.name, stub.parent)


def write_unpack(environment: Environment, folder: Path) -> None:
    """Write the script that unpacks the parts. Its argument is the folder to unpack to, / by default."""
    paths = {"site": environment.site, "system": environment.prefix / SYSTEM, "prefix": environment.prefix}
    assignments = "\n".join(f'{name}="$root"{shlex.quote(str(path))}' for name, path in paths.items())
    (folder / "unpack.sh").write_text(f"#!/bin/sh\nset -eu\nroot=${{1:-}}\n{assignments}{UNPACK}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Pack the environment of this interpreter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=int, default=90, metavar="N", help="architecture: compute capability times ten")
    parser.add_argument("--output", type=Path, default=Path("parts"), help="folder of the parts and of unpack.sh")
    parser.add_argument("--part-mib", type=int, default=51)
    parser.add_argument("--with", dest="names", nargs="+", default=[], metavar="NAME", help="further distributions")
    parser.add_argument("--cuda", type=Path, metavar="DIRECTORY", help="folder with nvidia/cuda_runtime/lib and others")
    options = parser.parse_args(arguments)
    environment = Environment(Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_path("stdlib")),
                              Path(sysconfig.get_path("purelib")))
    cuda = options.cuda or environment.site
    cuda_files(cuda)
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch)
        copy_environment(environment, closure(["towernmt", *options.names], environment.site), stage, options.keep)
        copy_cuda(cuda, stage / environment.site.relative_to("/"), options.keep)
        parts = pack(sorted(stage.iterdir()), options.output, options.part_mib << 20)
    write_unpack(environment, options.output)
    total = sum(part.stat().st_size for part in parts)
    print(f"{len(parts)} part(s), {total / 1e6:.1f} MB, and unpack.sh in {options.output}")


if __name__ == "__main__":
    main()
