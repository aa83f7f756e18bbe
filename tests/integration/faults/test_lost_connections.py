"""Training directly from servers that restart, cut connections and return errors: each pair once in each epoch."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_training_goes_on_over_restarts_of_the_database(request: pytest.FixtureRequest, name: str, numbered: Any,
                                                        train: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = request.getfixturevalue(name)
    data = server.uri(numbered.fill(server) + "&patience=120")

    def restart(how: signal.Signals | None) -> Callable[[], None]:
        return lambda: (server.stop(how), server.start())[1]

    # Within an epoch, while pages are requested from the server; the second time it is killed.
    ended = train(data, "train.epochs=2", at={10: restart(None), 55: restart(signal.SIGKILL)})
    assert ended.status == 0, ended.errors
    numbered.assert_counted_once(ended.counts, epochs=2)
    assert caplog.text.count("lost (") >= 2


def test_training_goes_on_over_connections_that_are_cut_in_mid_row(postgresql: Any, numbered: Any, train: Any) -> None:
    from tests.servers.cutting_proxy import cutting_proxy

    options = numbered.fill(postgresql) + "&patience=120"
    with cutting_proxy(postgresql.port, [10_000_000, *range(1000, 4000, 333)]) as between:
        ended = train(postgresql.uri(options, port=between.port), "train.epochs=2")
        assert between.cuts >= 5
    assert ended.status == 0, ended.errors
    numbered.assert_counted_once(ended.counts, epochs=2)


def test_training_goes_on_over_errors_and_cuts_of_s3(s3: Any, fault_proxy: Any, numbered: Any, train: Any) -> None:
    from tests.servers.fault_proxy import INTERNAL_ERROR, SLOW_DOWN, Cut

    bucket = s3.new_bucket()
    for part in range(3):
        s3.client().put_object(Bucket=bucket, Key=f"part-{part}.tsv", Body=numbered.tsv(numbered.pairs[part::3]))
    fault_proxy.applies = lambda method, path: method == "GET" and path.endswith(".tsv")
    fault_proxy.script = [None, INTERNAL_ERROR, Cut(0), Cut(400), SLOW_DOWN, SLOW_DOWN, Cut(123, reset=True), None,
                          Cut(7), INTERNAL_ERROR, Cut(500), SLOW_DOWN, None, Cut(300, reset=True)] * 2
    ended = train(f"s3://{bucket}/part-*.tsv?endpoint_url={fault_proxy.url}&chunk_bytes=600", "train.epochs=2")
    assert ended.status == 0, ended.errors
    assert fault_proxy.script == []
    numbered.assert_counted_once(ended.counts, epochs=2)
