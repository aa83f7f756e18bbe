"""GPUs without TensorFlow: files simulate a machine, and stubs its driver and libraries."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.core.cuda_stubs import DRIVER, build_stub, needs_compiler, run_with
from towernmt.cli import translation_options
from towernmt.cli.main import run_command
from towernmt.core import gpus, session
from towernmt.core import machine as machine_module
from towernmt.core.errors import SettingsError, exhausted_resource, gpu_failure
from towernmt.core.gpus import (
    CudaDriver,
    Gpu,
    missing_without_tensorflow,
    needs_compilation,
    visible_gpus,
    why_missing,
    with_gpu_numbers,
)
from towernmt.core.graph_state import GraphSettings, configure_graph
from towernmt.core.session import session_config, use_gpus
from towernmt.core.tf_compat import tf
from towernmt.predict.search import device_batches
from towernmt.train import training_towers

BUILD = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9",
         "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]}
H100 = Gpu("NVIDIA H100", (9, 0), 80 << 30)
GOOD = CudaDriver((12, 4), (H100,))
LIBRARIES = ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusparse.so.12",
             "libcudnn.so.9")


def machine(root: Path, *, card: bool = False, driver: bool = False) -> Path:
    for name, vendor, kind in (("0", "0x8086", "0x030000"), ("1", "0x10de", "0x030200" if card else "0x040300")):
        device = root / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    (root / "dev").mkdir()
    for name in ("nvidiactl", *(["nvidia0"] if driver else [])):
        (root / "dev" / name).touch()
    return root


def reason(root: Path, report: CudaDriver = GOOD, has: object = None) -> str:
    """Return the reason on a machine with card and driver, on which all libraries load, or only those in `has`."""
    loads = (lambda name: True) if has is None else has.__contains__
    return why_missing(BUILD, machine(root, card=True, driver=True), loads, lambda: report)


@pytest.fixture(autouse=True)
def not_hidden(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_machine_without_a_card_has_that_as_its_reason(tmp_path):
    assert why_missing(BUILD, machine(tmp_path)) == "this machine shows no NVIDIA GPU"


def test_a_driver_that_does_not_run_is_the_reason(tmp_path):
    assert "its driver is not running" in why_missing(BUILD, machine(tmp_path, card=True))


def test_a_card_without_the_libraries_names_them_and_the_extra_that_brings_them(tmp_path):
    has = {"libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11"}
    assert reason(tmp_path, has=has) == (
        "the GPU is there, but CUDA's libraries are missing (libcusolver.so.11, libcusparse.so.12, libcudnn.so.9): "
        "pip install 'towernmt[gpu]' installs them")


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_the_variable_that_hides_a_card_is_named(tmp_path, monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert "CUDA_VISIBLE_DEVICES" in reason(tmp_path)


def test_without_a_known_reason_the_message_names_towernmt_devices(tmp_path):
    assert reason(tmp_path) == (
        "driver and libraries are there, but TensorFlow uses no GPU: `towernmt devices` shows its reason")


def test_a_tensorflow_that_was_built_without_cuda_is_named(tmp_path):
    assert why_missing({"is_cuda_build": False}, tmp_path) == "this TensorFlow was built without CUDA"


def test_a_driver_that_is_too_old_is_named_with_the_oldest_that_serves(tmp_path):
    assert reason(tmp_path, CudaDriver((11, 4), (H100,))) == (
        "the driver is too old: it supports CUDA 11.4, and TensorFlow needs CUDA 12. Install NVIDIA's driver 525 or "
        "newer")


def test_a_card_that_is_too_old_is_named(tmp_path):
    old = CudaDriver((12, 4), (Gpu("GeForce GTX 980", (5, 2), 4 << 30),))
    assert reason(tmp_path, old) == ("the GPU is too old: GeForce GTX 980 has compute capability 5.2, and this "
                                     "TensorFlow needs at least 6.0")


@pytest.mark.parametrize(("capability", "compiles"), [
    ((6, 1), False), ((7, 5), False), ((8, 0), False), ((8, 9), False), ((9, 0), False), ((10, 0), True),
    ((12, 0), True), ((5, 2), True)])
def test_a_card_without_machine_code_is_warned_of(capability, compiles):
    warning = needs_compilation(Gpu("RTX 5090", capability, 32 << 30), BUILD)
    assert bool(warning) is compiles
    assert not compiles or "CUDA_ERROR_INVALID_PTX" in warning and "up to 9.0" in warning
    assert needs_compilation(Gpu("any", capability, 0), {}) == ""


@pytest.mark.parametrize(("files", "shown", "names"), [
    (["nvidia3"], None, ["0"]), (["nvidia3"], "0", ["0"]), (["nvidia3"], "3", []), ([], None, []), ([], "0", []),
    (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], None, ["0", "1"]), (["nvidia0", "nvidia1"], "1,-1,0", ["1"]),
    (["nvidia0", "nvidia1"], "GPU-8f, GPU-9a", ["GPU-8f", "GPU-9a"]), (["nvidia0"], "", [])])
def test_gpus_have_the_numbers_of_cuda_and_not_of_their_device_files(tmp_path, monkeypatch, files, shown, names):
    for file in files:
        (tmp_path / file).touch()
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert visible_gpus(tmp_path) == names


def test_the_error_of_the_trainer_is_one_sentence(monkeypatch):
    monkeypatch.setattr(session, "why_missing", lambda build: "this machine shows no NVIDIA GPU")
    with pytest.raises(SettingsError, match=r"^--gpu 0,1: GPU 0 was not found \(this machine shows no NVIDIA GPU\); "
                                            r"use --towers 2"):
        training_towers.tower_devices([0, 1], None)


@pytest.mark.parametrize(("gpu_count", "text"), [(1, "TensorFlow sees GPU 0"), (4, "TensorFlow sees the GPUs 0 to 3")])
def test_a_number_that_is_too_large_is_refused_with_those_that_exist(monkeypatch, gpu_count, text):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"] * gpu_count)
    with pytest.raises(SettingsError, match=rf"^--gpu 0,{gpu_count}: GPU {gpu_count} was not found \({text}\)"):
        training_towers.tower_devices([0, gpu_count], None)


def test_sessions_see_the_chosen_gpus_alone_and_messages_keep_their_numbers(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"] * 4)
    assert session_config().gpu_options.visible_device_list == ""
    assert use_gpus([3, 1]) == ["/gpu:1", "/gpu:0"]
    assert session_config().gpu_options.visible_device_list == "1,3"
    assert use_gpus([3]) == ["/gpu:1"]
    assert use_gpus([0, 1]) == ["/gpu:2", "/gpu:0"]         # the names of earlier ones stay
    assert session_config().gpu_options.visible_device_list == "1,3,0"
    assert session_config(on_cpu=True).device_count["GPU"] == 0
    assert with_gpu_numbers("on /job:localhost/device:GPU:1 by allocator GPU_0_bfc, GPU:7") == (
        "on /job:localhost/device:GPU:3 by allocator GPU_1_bfc, GPU:7")
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor on device:GPU:1 by GPU_1_bfc")
    assert "device:GPU:3 by GPU_3_bfc" in str(exhausted_resource(error))


@pytest.mark.parametrize("text", [
    "failed to create cublas handle: the library was not initialized", "Failed to initialize BLAS support",
    "No BLAS support in stream.", "No Blas support for stream", "Failed to create cuBlas instance."])
def test_a_cublas_that_cannot_start_is_explained(text):
    said = gpu_failure(tf.errors.InternalError(None, None, text))
    assert said is not None and said.startswith("cuBLAS cannot start on the GPU") and "nvidia-smi" in said


@pytest.mark.parametrize("text", [
    "CUDA_ERROR_INVALID_PTX: a PTX JIT compilation failed", "no kernel image is available for execution on the device",
    "Failed to load in-memory CUBIN (compiled for a different GPU?).", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"])
def test_code_that_does_not_run_on_the_gpu_is_explained(text):
    said = gpu_failure(tf.errors.InternalError(None, None, text))
    assert said is not None and "no code that runs on the GPU" in said
    assert gpu_failure(RuntimeError(text)) is None and gpu_failure(tf.errors.InternalError(None, None, "other")) is None


def test_other_errors_of_cuda_are_named_with_the_number_of_the_gpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"] * 4)
    use_gpus([3])
    said = gpu_failure(tf.errors.InternalError(None, None, "cudaGetDevice() failed on GPU:0. Status: unknown.\nmore"))
    assert said is not None and "(cudaGetDevice() failed on GPU:3. Status: unknown)" in said and "nvidia-smi" in said


def test_the_cpu_hides_gpus_from_the_context_of_tensorflow_until_some_are_chosen(monkeypatch):
    shown: list[Any] = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["zero", "one"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: shown.append(devices))
    training_towers.tower_devices(None, 2)
    training_towers.tower_devices([1], None)
    training_towers.tower_devices(None, 1)
    assert shown == [[], ["one"]]


def test_a_command_prints_one_sentence(capsys):
    def fails() -> int:
        raise tf.errors.InternalError(None, None, "failed to create cublas handle: the library was not initialized")

    assert run_command(fails) == 1
    error = capsys.readouterr().err
    assert error.startswith("towernmt: cuBLAS cannot start on the GPU") and error.count("\n") == 1


def test_the_texts_are_those_of_tensorflow():
    """The messages are TensorFlow's own, so this test fails if a new version changes them."""
    texts = [b"failed to create cublas handle: ", b"Failed to initialize BLAS support", b"No BLAS support in stream.",
             b"Failed to load in-memory CUBIN", b"Failed to create cuBlas instance."]
    folder = Path(tf.sysconfig.get_lib())
    missing = set(texts)
    for library in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
        missing -= {text for text in missing if _contains(folder / library, text)}
    assert not missing


def _contains(file: Path, text: bytes) -> bool:
    import mmap

    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        build_stub(folder / "system", name, DRIVER)
    for name in LIBRARIES:
        build_stub(folder / "system", name)
    build_stub(folder / "site/nvidia/cusolver/lib", "libcusolver.so.11")
    return folder


REPORT = "from towernmt.core.gpus import cuda_driver; print(cuda_driver())"


@needs_compiler
@pytest.mark.processes
@pytest.mark.parametrize(("variables", "text"), [
    ({"STUB_GPUS": "2"}, "CudaDriver(cuda=(12, 4), gpus=(Gpu(name='Stub 0', capability=(8, 0), memory=85899345920), "
                         "Gpu(name='Stub 1', capability=(8, 0), memory=85899345920)), error='')"),
    ({"STUB_STATUS": "100"}, "finds no GPU (CUDA_ERROR_NO_DEVICE)"), ({"STUB_STATUS": "803"}, "restart the machine"),
    ({"STUB_STATUS": "7"}, "CUDA's driver cannot start (cuInit: 7)"), ({"STUB_CUDA": "11040"}, "cuda=(11, 4)"),
    ({"STUB_MANAGEMENT": "9"}, "NVIDIA_DRIVER_CAPABILITIES=compute,utility")])
def test_the_driver_reports_version_and_gpus_or_why_it_fails(stubs, variables, text):
    assert text in run_with(REPORT, stubs / "system", **variables)


@needs_compiler
@pytest.mark.processes
def test_without_a_driver_its_library_is_named(tmp_path):
    assert "libcuda.so.1 is missing" in run_with(REPORT, tmp_path)


LIST = """import towernmt.core.gpus as gpus
gpus.has_gpu_driver = lambda: {driver}
from towernmt.core.session import count_gpus
print(count_gpus())"""


@needs_compiler
@pytest.mark.processes
@pytest.mark.parametrize(("driver", "gpu_list"), [(True, "2"), pytest.param(False, "0", marks=pytest.mark.slow)])
def test_tensorflow_finds_gpus_with_the_library_that_it_does_not_look_for(stubs, driver, gpu_list):
    """Without a driver no library is loaded, so this shows the libraries that TensorFlow finds by itself."""
    site = [stubs / "site"]
    assert run_with(LIST.format(driver=driver), stubs / "system", site, STUB_GPUS="2").splitlines()[-1] == gpu_list


@needs_compiler
@pytest.mark.processes
def test_a_driver_that_fails_leaves_the_cpu(stubs):
    assert run_with(LIST.format(driver=True), stubs / "system", [stubs / "site"], STUB_STATUS="999") == "0"


def test_nothing_is_loaded_without_a_driver(monkeypatch):
    monkeypatch.setattr(gpus, "has_gpu_driver", lambda: False)
    monkeypatch.setattr(gpus, "_pip_libraries", lambda pattern: pytest.fail("looked for libraries"))
    gpus.load_cuda_libraries()


def test_a_worker_with_a_share_of_the_processors_may_have_all_towers_on_gpus(monkeypatch):
    monkeypatch.setattr(machine_module, "_share", 1)
    assert session_config(cpu_towers=0).intra_op_parallelism_threads == 1
    assert session_config(cpu_towers=3).intra_op_parallelism_threads == 1


def test_tf32_is_the_setting_of_the_run(graph):
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    configure_graph(GraphSettings(tf32=False))
    assert not enabled()
    configure_graph(GraphSettings())
    assert enabled()


@pytest.mark.parametrize(("options", "device", "override"), [
    ([], None, None), (["--cpu"], "cpu", None), (["--gpu", "2", "--no-tf32"], "gpu:2", "0")])
def test_the_options_of_the_device_act_before_tensorflow_starts(monkeypatch, options, device, override):
    monkeypatch.setattr(translation_options, "missing_without_tensorflow", lambda gpus: "")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)
    parser = argparse.ArgumentParser()
    translation_options.add_device_options(parser)
    assert translation_options.device_of(parser.parse_args(options)) == device
    assert os.environ.get("NVIDIA_TF32_OVERRIDE") == override
    assert (os.environ.get("CUDA_VISIBLE_DEVICES") == "-1") is (device == "cpu")


def test_a_missing_driver_is_reported_before_tensorflow_is_imported(monkeypatch):
    monkeypatch.setattr(gpus, "has_gpu_driver", lambda *root: False)
    assert missing_without_tensorflow([1]) == ""        # TensorFlow is installed, and reports the exact reason
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(sys, "platform", "linux")
    assert missing_without_tensorflow([1, 2]).startswith("GPU 1 was not found (")
    assert missing_without_tensorflow([]) == ""
    monkeypatch.setattr(gpus, "has_gpu_driver", lambda *root: True)
    assert missing_without_tensorflow([1]) == ""


def test_a_gpu_that_tensorflow_does_not_use_is_reported_once_unless_it_is_hidden(monkeypatch, caplog):
    assert not device_batches.uses_gpu(None) and not caplog.records         # no driver
    monkeypatch.setattr(device_batches, "has_gpu_driver", lambda: True)
    monkeypatch.setattr(device_batches, "why_missing", lambda build: "a reason")
    for hidden in ("-1", "0"):
        device_batches._report_unused_gpu.cache_clear()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not any(map(device_batches.uses_gpu, (None, None, "cpu")))
    assert [record.getMessage() for record in caplog.records] == ["The GPU is not used: a reason."]
    assert device_batches.uses_gpu("gpu:1")


@pytest.mark.parametrize(("device", "arguments", "sizes"), [
    ("cpu", (None, None), (4096, 64)), ("gpu:0", (None, None), (16_384, 512)), ("gpu", (100, 7), (100, 7)),
    ("cpu", (100, None), (100, 64)), ("gpu", (None, 64), (16_384, 64))])
def test_batches_are_larger_on_a_gpu_unless_they_are_specified(device, arguments, sizes):
    settings = device_batches.batching_for(device, *arguments)
    assert (settings.batch_tokens, settings.batch_sentences) == sizes


def test_the_smallest_gpu_counts(monkeypatch):
    driver_gpus = tuple(Gpu("any", (9, 0), gib << 30) for gib in (80, 24))
    monkeypatch.setattr(gpus, "cuda_driver", lambda: CudaDriver((12, 4), driver_gpus))
    assert [gpus.smallest_memory(numbers) for numbers in ([0], [0, 1], [2], [], None)] == [80 << 30, 24 << 30, 0, 0, 0]
