"""The connection to a Ray cluster."""

from __future__ import annotations

from typing import Any

import pytest

from towernmt.core.errors import SettingsError
from towernmt.farm import ray_workers
from towernmt.farm.ray_workers import ray_connection

ray = pytest.importorskip("ray", reason="needs towernmt[ray]")


@pytest.mark.parametrize(("address", "name"), [
    ("10.0.0.1:6379", "--ray 10.0.0.1:6379"), ("", "The Ray cluster of this machine")])
def test_a_cluster_with_another_version_of_python_is_one_clear_sentence(
        address: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: Any) -> None:     # as ray.init does
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.11.9\n"
                           "This process on node 10.0.0.2 was started with:\n    Ray: 2.60.0\n    Python: 3.11.2\n")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_workers, "_check_listening", lambda address: None)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(SettingsError) as caught, ray_connection(address, 0, print):
        pass
    assert str(caught.value) == (
        f"{name}: Version mismatch: The cluster was started with: Ray: 2.60.0 Python: 3.11.9 This process on node "
        "10.0.0.2 was started with: Ray: 2.60.0 Python: 3.11.2. Install the same versions of Ray and Python on all "
        "machines, or pass --ray local to start a cluster on this machine.")


def test_a_port_that_no_socket_can_have_is_one_clear_sentence() -> None:
    with (pytest.raises(SettingsError, match=r"--ray 127\.0\.0\.1:\d{20}: no Ray cluster responds"),
          ray_connection("127.0.0.1:99999999999999999999", 0, print)):
        pass
