"""The files of a small environment are chosen, packed, unpacked elsewhere, and linked to the libraries of a machine."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.gpu.test_slim_cuda import code, group

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pack_environment.py"


@pytest.fixture(scope="module")
def packer() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec = importlib.util.spec_from_file_location("pack_environment", SCRIPT)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def write(path: Path, content: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def distribution(site: Path, name: str, requires: list[str], files: list[str]) -> None:
    """Install a distribution with empty files."""
    folder = site / f"{name}-1.dist-info"
    write(folder / "METADATA", f"Name: {name}\nVersion: 1\n" + "".join(f"Requires-Dist: {line}\n" for line in requires))
    write(folder / "RECORD", "".join(f"{file},,\n" for file in [*files, f"{folder.name}/METADATA"]))
    for file in files:
        write(Path(os.path.normpath(site / file)))


@pytest.fixture
def environment(packer: ModuleType, tmp_path: Path) -> Any:
    """Return an environment with its interpreter in another folder."""
    prefix, base = tmp_path / "here/venv", tmp_path / "here/python"
    standard, site = base / "lib/python3.11", prefix / "lib/python3.11/site-packages"
    for path in ("bin/python3.11", "bin/idle3.11", "lib/libpython3.11.so.1.0", "lib/python3.11/os.py",
                 "lib/python3.11/json/__init__.py", "lib/python3.11/json/__pycache__/__init__.pyc",
                 "lib/python3.11/test/test_os.py", "lib/python3.11/config-3.11/Makefile",
                 "lib/python3.11/site-packages/other.py"):
        write(base / path)
    write(prefix / "pyvenv.cfg", "home")
    (prefix / "bin").mkdir()
    (prefix / "bin/python").symlink_to(base / "bin/python3.11")
    distribution(site, "towernmt", ["tensorflow>=2", "lxml; extra == 'xml'", "nothing", "other; python_version < '3'"],
                 ["../../../bin/towernmt", "towernmt.pth"])
    distribution(site, "tensorflow", ["libclang", "towernmt"], [
        "tensorflow/__init__.py", "tensorflow/include/a.inc", "tensorflow/python/b.h", "tensorflow/tests/d.py",
        "tensorflow/compiler/mlir/stablehlo/c.py", f"{packer.PROFILER}.so"])
    distribution(site, "libclang", [], ["clang.py"])
    distribution(site, "lxml", [], ["lxml/__init__.py"])
    return packer.Environment(prefix, base, standard, site)


def library(path: Path, *codes: bytes) -> None:
    """Build a library with GPU code and a function `answer`."""
    if shutil.which("cc") is None:
        pytest.skip("the library needs a C compiler")
    values = ",".join(map(str, group(*codes)))
    source = (f'__attribute__((section(".nv_fatbin"), used)) static unsigned char codes[] = {{{values}}};\n'
              "static int hidden(void) { return codes[0]; }\nint answer(void) { return hidden() ? 42 : 0; }\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source.encode(), check=True)


def listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_requirements_are_followed_with_the_requested_extras(
        packer: ModuleType, environment: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def names(*requested: str) -> list[str]:
        return [found.metadata["Name"] for found in packer.closure(requested, environment.site)]

    assert names("towernmt") == ["tensorflow", "towernmt"]
    assert "nothing is not installed and is left out" in capsys.readouterr().out
    assert names("towernmt[xml]") == names("towernmt", "LXML") == ["lxml", "tensorflow", "towernmt"]


def test_the_environment_is_copied_without_the_unused_files(
        packer: ModuleType, environment: Any, tmp_path: Path) -> None:
    packer.copy_environment(environment, packer.closure(["towernmt"], environment.site), tmp_path / "stage", 90)
    copy = tmp_path / "stage" / str(tmp_path / "here")[1:]
    site = "venv/lib/python3.11/site-packages"
    assert listed(copy) == {
        "python/bin/python3.11", "python/lib/libpython3.11.so.1.0", "python/lib/python3.11/os.py",
        "python/lib/python3.11/json/__init__.py", "venv/pyvenv.cfg", "venv/bin/python", "venv/bin/towernmt",
        f"{site}/towernmt.pth", f"{site}/towernmt-1.dist-info/METADATA", f"{site}/tensorflow/__init__.py",
        f"{site}/tensorflow-1.dist-info/METADATA", f"{site}/{packer.PROFILER}.py"}
    assert os.readlink(copy / "venv/bin/python") == str(environment.base / "bin/python3.11")


def test_libraries_keep_the_code_of_one_architecture(
        packer: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = code(2, 80, b"old code"), code(2, 90, b"new code")
    for name, expected in (("plain/lib.so", False), ("numpy.libs/lib.so", True)):
        library(tmp_path / name, *codes)
        packer.copy_file(tmp_path / name, tmp_path / "copy" / name, 90)
        content = (tmp_path / "copy" / name).read_bytes()
        assert b"new code" in content and b"old code" not in content
        assert (b"hidden" in content) is (expected or shutil.which("strip") is None), name
        assert ctypes.CDLL(str(tmp_path / "copy" / name)).answer() == 42
    library(tmp_path / "old.so", codes[0])
    packer.copy_file(tmp_path / "old.so", tmp_path / "copy/old.so", 90)
    assert (tmp_path / "copy/old.so").read_bytes() == (tmp_path / "old.so").read_bytes()
    assert "old.so: the library has no machine code for sm_90, only elf sm_80. It is packed complete." in (
        capsys.readouterr().out)


def test_system_libraries_of_the_interpreter_are_found(packer: ModuleType, environment: Any) -> None:
    library(environment.standard / "lib-dynload/plain.so")
    assert packer.system_libraries(environment) == {}
    extra, module = packer.make_stub("libextra.so.1", environment.base), environment.standard / "lib-dynload/extra.so"
    link = ["cc", "-shared", "-Wl,--no-as-needed", str(extra), f"-Wl,-rpath,{extra.parent}", "-o"]
    subprocess.run([*link, str(module.with_name("_tkinter.so"))], check=True)
    assert packer.system_libraries(environment) == {}       # the module is left out
    subprocess.run([*link, str(module)], check=True)
    assert packer.system_libraries(environment) == {"libextra.so.1": extra}


def test_missing_files_of_cuda_are_named(packer: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"libcudart.so.12, .*Run `pip install --no-deps --target cuda nvidia-cuda-r"):
        packer.cuda_files(tmp_path)


def unpack(parts: Path, root: Path, machine: Path) -> subprocess.CompletedProcess[str]:
    root.mkdir(exist_ok=True)
    return subprocess.run(["sh", str(parts / "unpack.sh"), str(root)], env={**os.environ, "SEARCH": str(machine)},
                          capture_output=True, text=True, check=True)


@pytest.mark.parametrize("version", [12, 13])
def test_an_unpacked_environment_uses_the_libraries_of_the_machine(
        packer: ModuleType, environment: Any, tmp_path: Path, version: int) -> None:
    machine, stage, parts, root = (tmp_path / name for name in ("machine", "stage", "parts", "root"))
    for name in (f"lib/libcublas.so.{version}", f"lib/libcublasLt.so.{version}", "other/libcudnn.so.9",
                 "old/libcublas.so.13"):
        write(machine / name)
    if version == 13:
        shutil.rmtree(machine / "old")
    packer.copy_environment(environment, packer.closure(["towernmt"], environment.site), stage, 90)
    packer.pack(sorted(stage.iterdir()), parts, 500)
    assert len(list(parts.glob("part-*"))) > 1
    packer.write_unpack(environment, parts)
    for _ in range(2):      # the second time, the links are there
        result = unpack(parts, root, machine)
        copy = Path(f"{root}{environment.site}")
        assert listed(stage) <= listed(root) and result.stderr == ""
        assert os.readlink(copy / "nvidia/cublas/lib/libcublas.so.12") == str(machine / f"lib/libcublas.so.{version}")
        assert os.readlink(copy / "nvidia/cublas/lib/libcublasLt.so.12") == str(
            machine / f"lib/libcublasLt.so.{version}")
        assert os.readlink(copy / "nvidia/cudnn/lib/libcudnn.so.9") == str(machine / "other/libcudnn.so.9")
        lines = subprocess.run(["sh", "-c", f'{result.stdout}\necho "$LD_LIBRARY_PATH $PATH"'], capture_output=True,
                               text=True, check=True, env={"LD_LIBRARY_PATH": "/before", "PATH": "/bin"}).stdout
        assert lines == (f"{root}{environment.prefix}/{packer.SYSTEM}:{machine}/lib:{machine}/other:"
                         f"/usr/local/nvidia/lib64:/before {root}{environment.prefix}/bin:/bin\n")


def test_packed_libraries_of_cuda_are_not_replaced(packer: ModuleType, environment: Any, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("empty libraries need a C compiler")
    cuda, stage, parts, root = (tmp_path / name for name in ("cuda", "stage", "parts", "root"))
    for names in packer.SMALL.values():
        for name in names:
            write(cuda / name, "small")
    site = stage / str(environment.site)[1:]
    write(site / packer.STUBS[0], "real")
    write(site / "nvidia/cublas/lib/libcublas.so.12", "real")
    packer.copy_cuda(cuda, site, 90)
    packer.pack(sorted(stage.iterdir()), parts, 1 << 20)
    packer.write_unpack(environment, parts)
    write(tmp_path / "machine/libcublas.so.13")
    result = unpack(parts, root, tmp_path / "machine")
    assert result.stderr == "cudnn was not found on this machine. Pack it: --with nvidia-cudnn-cu12\n"
    copy = Path(f"{root}{environment.site}")
    assert (copy / "nvidia/cublas/lib/libcublas.so.12").read_text() == "real"
    assert (copy / packer.STUBS[0]).read_text() == "real" and ctypes.CDLL(str(copy / packer.STUBS[1]))
    assert (copy / "nvidia/cuda_nvcc/bin/ptxas").read_text() == "small"
    assert f"{copy}/nvidia/cublas/lib" in result.stdout


def test_the_program_checks_cuda_first(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--cuda", str(tmp_path), "--output", str(tmp_path / "parts")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.startswith("CUDA files are missing: ")
    assert not (tmp_path / "parts").exists()
