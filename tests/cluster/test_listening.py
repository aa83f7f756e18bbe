"""A port that is open at only one address of the machine, tested by connections to several addresses."""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
from collections.abc import Iterator

import pytest

from towernmt.cluster import port_filter
from towernmt.cluster.cluster_description import Cluster
from towernmt.cluster.port_filter import attach_filter, restrict_listening


def has_ipv6() -> bool:
    """Return whether this machine has the loopback address of IPv6, which containers may lack."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


linux = pytest.mark.skipif(not sys.platform.startswith("linux") or not has_ipv6(),
                           reason="only Linux has such a filter, which is tested with IPv6")
LOOPBACK = ["127.0.0.1", "127.0.0.2", "::1"]
"""Addresses that each Linux machine with IPv6 has."""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A socket that listens on all addresses, as TensorFlow's servers do."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        yield listener


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def reached(server: socket.socket) -> list[str]:
    """Return the addresses at which a client and the server can exchange a byte."""
    found = []
    for address in LOOPBACK:
        try:
            client = socket.create_connection((address, port_of(server)), timeout=0.2)
        except TimeoutError:
            continue
        with client, server.accept()[0] as accepted:
            client.sendall(b"?")
            accepted.sendall(accepted.recv(1).replace(b"?", b"!"))
            client.settimeout(30.0)
            if client.recv(1) == b"!":
                found.append(address)
    return found


@linux
@pytest.mark.parametrize("taken", [["127.0.0.1"], ["127.0.0.2"], ["::1"], ["127.0.0.2", "::1"]])
def test_a_port_takes_connections_at_the_named_addresses_only(server: socket.socket, taken: list[str]) -> None:
    assert reached(server) == LOOPBACK
    attach_filter(port_of(server), [ipaddress.ip_address(address) for address in taken])
    assert reached(server) == sorted(taken)


@linux
def test_another_socket_of_the_process_stays_as_it_is(server: socket.socket) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as other:
        attach_filter(port_of(other), [ipaddress.ip_address("127.0.0.2")])
        assert reached(server) == LOOPBACK


@linux
@pytest.mark.parametrize("other", ["127.0.0.2:1", "host:1"])
def test_a_worker_listens_at_the_address_that_the_cluster_names(server: socket.socket, other: str) -> None:
    sentence = restrict_listening(Cluster((f"127.0.0.2:{port_of(server)}", other), 0))
    assert sentence == f"Port {port_of(server)} accepts connections at 127.0.0.2, and at no other address."
    assert reached(server) == ["127.0.0.2"]


@linux
@pytest.mark.parametrize("host, resolved, reason", [
    ("host", "127.0.1.1", "host is a loopback address here"),
    ("host", "198.51.100.7", "198.51.100.7 in the cluster is an address of another machine")])
def test_a_name_by_which_others_may_see_another_address_narrows_nothing_and_the_log_says_so(
        server: socket.socket, monkeypatch: pytest.MonkeyPatch, host: str, resolved: str, reason: str) -> None:
    monkeypatch.setattr(port_filter, "_resolve_addresses", lambda _: [ipaddress.ip_address(resolved)])
    sentence = restrict_listening(Cluster(("other:1", f"{host}:{port_of(server)}"), 1))
    assert re.match(rf"Port \d+ is open at all addresses of this machine \({re.escape(reason)}", sentence)
    assert reached(server) == LOOPBACK


def test_a_system_without_filters_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "open at all addresses of this machine (only Linux" in restrict_listening(Cluster(("localhost:9", "b:1"), 0))


@linux
def test_an_address_of_the_name_that_the_machine_lacks_is_left_out(
        server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [ipaddress.ip_address(address) for address in ("127.0.0.2", "2001:db8::7")]
    monkeypatch.setattr(port_filter, "_resolve_addresses", lambda _: both)
    assert "connections at 127.0.0.2, and" in restrict_listening(Cluster((f"host:{port_of(server)}", "host:1"), 0))
    assert reached(server) == ["127.0.0.2"]


@linux
def test_a_port_without_a_listener_is_logged() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        sentence = restrict_listening(Cluster((f"127.0.0.1:{port}", "127.0.0.1:1"), 0))
    assert f"(no socket of this process listens on port {port})" in sentence
