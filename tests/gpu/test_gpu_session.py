"""The script for the first minutes on a GPU runs all of its steps, here on a fake GPU with tiny models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import fake_gpu

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_session.sh"


def session(library: Path, output: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script on a fake GPU of 256 MiB."""
    environment = fake_gpu.environment(library, 1, FAKE_GPU_MEMORY=str(256 << 20), GPU_SESSION_SIZE="small",
                                       GPU_SESSION_PATIENCE="10",
                                       GPU_SESSION_PYTHON=f"{sys.executable} -m tests.gpu.fake_gpu 1", **more)
    return subprocess.run([str(SCRIPT), str(output)], env=environment, text=True, stdout=subprocess.PIPE,
                          cwd=Path(__file__).parents[2])


def test_each_step_prints_a_measured_beside_the_expected_figure(library: Path, tmp_path: Path) -> None:
    done = session(library, tmp_path)
    logs = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + logs
    for figure in ("1 GPU(s): fake GPU 9.0", "equal bits", "400 tokens, bfloat16:", "Muon: ", "rnnsearch: ",
                   "transformer: float32 ", "product with bias: 2 columns",
                   "gradient of an embedding: rows of words", "by cuDNN:", "8 sentences a batch:",
                   "is the largest that fits into 1 GiB", "1 batch skipped, 3 updates", " copies to the card"):
        assert figure in done.stdout
    assert done.stdout.count("expected: ") == 12
    assert (tmp_path / "summary.txt").read_text() == done.stdout and (tmp_path / "trace.json").exists()


def test_a_step_that_fails_does_not_stop_the_next(library: Path, tmp_path: Path) -> None:
    done = session(library, tmp_path, GPU_SESSION_STEPS="memory forms")
    assert done.returncode == 1
    assert "failed with status 1: FileNotFoundError: the step `resume` prepares the data" in done.stdout
    assert "product with bias: 2 columns" in done.stdout
