"""The address of a client: that of the connection, unless a trusted proxy reports another address."""

from __future__ import annotations

import json
import urllib.request

import pytest

from tests.waiting import PATIENCE
from towernmt.core.errors import SettingsError
from towernmt.serve.web.callers import Proxies


def client(peer, trusted, *forwarded, **others):
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in others.items()]
    scope = {"client": (peer, 1234), "scheme": "http", "headers": headers}
    Proxies(trusted).resolve(scope)
    return scope["client"][0], scope["scheme"]


CASES = {
    "nobody is trusted": ("127.0.0.1", [], ["9.9.9.9"], "127.0.0.1"),
    "nobody is trusted on IPv6": ("::1", [], ["9.9.9.9"], "::1"),
    "another peer": ("127.0.0.1", ["192.0.2.1"], ["9.9.9.9"], "127.0.0.1"),
    "a trusted peer": ("127.0.0.1", ["127.0.0.1"], ["9.9.9.9"], "9.9.9.9"),
    "a trusted peer without the header": ("127.0.0.1", ["127.0.0.1"], [], "127.0.0.1"),
    "a spoofed first entry": ("127.0.0.1", ["127.0.0.1"], ["1.1.1.1, 9.9.9.9"], "9.9.9.9"),
    "a spoofed header before the proxy's": ("127.0.0.1", ["127.0.0.1"], ["1.1.1.1", "9.9.9.9"], "9.9.9.9"),
    "a spoofed trusted address": ("127.0.0.1", ["127.0.0.1"], ["127.0.0.1, 9.9.9.9"], "9.9.9.9"),
    "several hops": ("10.0.0.1", ["10.0.0.0/8"], ["1.1.1.1, 9.9.9.9, 10.2.3.4"], "9.9.9.9"),
    "one trusted hop of two": ("10.0.0.1", ["10.0.0.1"], ["1.1.1.1, 9.9.9.9, 10.2.3.4"], "10.2.3.4"),
    "only trusted hops": ("10.0.0.1", ["10.0.0.0/8"], ["10.9.9.9, 10.2.3.4"], "10.9.9.9"),
    "several networks": ("10.0.0.1", ["192.0.2.0/24", "10.0.0.1"], ["9.9.9.9, 192.0.2.77"], "9.9.9.9"),
    "a port": ("127.0.0.1", ["127.0.0.1"], ["9.9.9.9:4711"], "9.9.9.9"),
    "IPv6": ("::1", ["::1"], ["2001:db8::1"], "2001:db8::1"),
    "IPv6 written in full": ("::1", ["0:0:0:0:0:0:0:1"], ["2001:0DB8:0::0001"], "2001:db8::1"),
    "IPv6 with a port": ("::1", ["::1"], ["[2001:db8::1]:4711"], "2001:db8::1"),
    "a network of IPv6": ("2001:db8::5", ["2001:db8::/32"], ["2001:db9::1, 2001:db8::7"], "2001:db9::1"),
    "IPv4 on a socket of IPv6": ("::ffff:10.0.0.1", ["10.0.0.0/8"], ["::ffff:9.9.9.9"], "9.9.9.9"),
    "a mapped network": ("10.0.0.1", ["::ffff:10.0.0.0/104"], ["9.9.9.9"], "9.9.9.9"),
    "unknown": ("10.0.0.1", ["10.0.0.0/8"], ["9.9.9.9, unknown, 10.2.3.4"], "10.2.3.4"),
    "a name": ("127.0.0.1", ["127.0.0.1"], ["localhost"], "127.0.0.1"),
    "nothing": ("127.0.0.1", ["127.0.0.1"], ["", " , "], "127.0.0.1"),
    "a name of a test client": ("testclient", ["127.0.0.1"], ["9.9.9.9"], "testclient"),
    "everybody": ("9.9.9.9", ["0.0.0.0/0", "::/0"], ["1.1.1.1"], "1.1.1.1"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_client_is_the_last_address_that_a_trusted_proxy_wrote(case):
    peer, trusted, forwarded, expected = CASES[case]
    assert client(peer, trusted, *forwarded)[0] == expected


@pytest.mark.parametrize(("trusted", "told", "scheme"), [
    ([], "https", "http"), (["10.0.0.1"], "https", "http"), (["127.0.0.1"], "https", "https"),
    (["127.0.0.1"], "HTTPS", "https"), (["127.0.0.1"], "javascript", "http"), (["127.0.0.1"], "", "http")])
def test_the_scheme_is_that_of_a_trusted_proxy(trusted, told, scheme):
    assert client("127.0.0.1", trusted, x_forwarded_proto=told)[1] == scheme


@pytest.mark.parametrize("header", ["forwarded", "x_real_ip", "x_client_ip", "true_client_ip", "cf_connecting_ip"])
def test_other_headers_are_ignored(header):
    value = "for=1.1.1.1" if header == "forwarded" else "1.1.1.1"
    assert client("127.0.0.1", ["127.0.0.1"], "9.9.9.9", **{header: value})[0] == "9.9.9.9"
    assert client("127.0.0.1", ["127.0.0.1"], **{header: value})[0] == "127.0.0.1"


@pytest.mark.parametrize("name", ["proxy.example", "10.0.0.1/8", "10.0.0", "10.0.0.0/33", "", "*",
                                  "127.0.0.1,10.0.0.1"])
def test_what_is_no_address_is_refused(name):
    with pytest.raises(SettingsError, match="--trusted-proxy"):
        Proxies([name])


def ask(server, address):
    body = json.dumps({"name": "a", "source_lang": "de", "target_lang": "en", "entries": "a\tb"}).encode()
    headers = {"Content-Type": "application/json", "X-Forwarded-For": address}
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/v2/glossaries", body, headers), timeout=PATIENCE):
        pass
    listed = urllib.request.Request(f"{server.url}/v2/glossaries", headers={"X-Forwarded-For": address})
    with urllib.request.urlopen(listed, timeout=PATIENCE) as answer:
        return len(json.load(answer)["glossaries"])


@pytest.mark.processes
@pytest.mark.parametrize(("options", "counts"), [([], [1, 2, 3]), (["--trusted-proxy", "127.0.0.0/8"], [1, 1, 2])])
def test_a_server_believes_the_proxies_that_it_is_told(start, options, counts):
    server = start(*options, FORWARDED_ALLOW_IPS="*")
    assert [ask(server, address) for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1")] == counts
