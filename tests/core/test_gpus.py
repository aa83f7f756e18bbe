"""What is missing where TensorFlow sees no GPU: a machine is made of files, and libraries of names."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.session import why_missing
from towernmt.train import training_towers

BUILD = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"}


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


@pytest.fixture(autouse=True)
def not_hidden(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_no_card(tmp_path):
    assert why_missing(BUILD, machine(tmp_path)) == "the card is missing: this machine shows no NVIDIA card"


def test_a_card_without_its_driver(tmp_path):
    assert "its driver is not running" in why_missing(BUILD, machine(tmp_path, card=True))


def test_a_card_without_the_libraries_names_them_and_the_extra_that_brings_them(tmp_path):
    has = {"libcuda.so.1", "libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11"}
    said = why_missing(BUILD, machine(tmp_path, card=True, driver=True), has.__contains__)
    assert said == ("the card is there, but not CUDA's libraries (libcusolver.so.11, libcusparse.so.12, libcudnn.so.9):"
                    " pip install 'towernmt[gpu]' brings them")


def test_a_card_without_the_drivers_library(tmp_path):
    root = machine(tmp_path, card=True, driver=True)
    assert "libcuda.so.1" in why_missing(BUILD, root, lambda name: False)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_card_that_is_hidden(tmp_path, monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    root = machine(tmp_path, card=True, driver=True)
    assert "CUDA_VISIBLE_DEVICES" in why_missing(BUILD, root, lambda name: True)


def test_everything_there_and_still_no_gpu(tmp_path):
    root = machine(tmp_path, card=True, driver=True)
    assert "TOWERNMT_DEBUG=1" in why_missing(BUILD, root, lambda name: True)


def test_a_tensorflow_without_cuda(tmp_path):
    assert why_missing({"is_cuda_build": False}, tmp_path) == "this TensorFlow was built without CUDA"


def test_the_trainer_says_it_in_one_sentence(monkeypatch):
    monkeypatch.setattr(training_towers, "why_missing", lambda: "the card is missing")
    with pytest.raises(SettingsError, match=r"^--gpu 0,1: GPU 0 was not found \(the card is missing\); use --towers 2"):
        training_towers.tower_devices([0, 1], None)
