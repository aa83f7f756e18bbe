"""Access to the server: keys, rates, and origins of pages."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from towernmt.cli.main import main
from towernmt.core.errors import DataError, SettingsError
from towernmt.serve import service
from towernmt.serve.request_limits import RequestError
from towernmt.serve.web.callers import KeysFile, Rates, add_key
from towernmt.serve.web.http_requests import error_json, error_response

ASKED = {"q": "gut", "source": "de", "target": "en"}


@pytest.fixture
def keys(tmp_path):
    return tmp_path / "keys.jsonl"


def test_the_file_holds_no_key_and_is_its_owners_alone(keys):
    key = add_key(keys, "anna")
    secret = key.split("_", 2)[2]
    assert secret not in keys.read_text() and stat.S_IMODE(keys.stat().st_mode) == 0o600
    keys.chmod(0o640)       # for the group of a server that runs as another user
    assert add_key(keys, "bert") != key and stat.S_IMODE(keys.stat().st_mode) == 0o640
    hashes = [json.loads(line)["hash"] for line in keys.read_text().splitlines()]
    assert len(set(hashes)) == 2


def test_a_link_to_a_file_of_keys_stays(keys, tmp_path):
    link = tmp_path / "folder" / "link"
    link.parent.mkdir()
    link.symlink_to("../keys.jsonl")
    add_key(link, "anna")
    files = [KeysFile(keys), KeysFile(link)]
    key = add_key(link, "bert")
    assert link.is_symlink() and [file.find(key).name for file in files] == ["bert"] * 2  # type: ignore[union-attr]


def test_keys_that_are_added_at_the_same_time_are_all_stored(keys):
    names = [f"caller {number}" for number in range(12)]
    with ThreadPoolExecutor(4) as threads:
        added = list(threads.map(lambda name: add_key(keys, name), names))
    file = KeysFile(keys)
    assert [file.find(key).name for key in added] == names  # type: ignore[union-attr]
    assert [path.name for path in keys.parent.iterdir()] == [keys.name]


def test_a_key_comes_as_each_client_sends_it(make_client, keys):
    key = add_key(keys, "anna")
    client = make_client(access={"keys": KeysFile(keys)})
    for headers in ({"Authorization": f"Bearer {key}"}, {"Authorization": f"DeepL-Auth-Key {key}:fx"},
                    {"X-API-Key": key}):
        assert client.post("/translate", json=ASKED, headers=headers).status_code == 200
    for name in ("api_key", "apiKey", "auth_key"):
        assert client.post("/translate", json={**ASKED, name: key}).status_code == 200
        assert client.post("/translate", data={**ASKED, name: key}).status_code == 200
        assert client.get("/translate", params={**ASKED, name: key}).status_code == 200


def test_no_key_and_a_wrong_one_are_refused(make_client, keys):
    key = add_key(keys, "anna")
    client = make_client(access={"keys": KeysFile(keys)})
    assert client.post("/translate", json=ASKED).status_code == 401
    for wrong in ("x", key[:-1], key + "x", "tnmt__", f"tnmt_{'0' * 12}_{key.split('_', 2)[2]}"):
        answer = client.post("/translate", json={**ASKED, "api_key": wrong})
        assert answer.status_code == 403 and "Invalid API key" in answer.json()["error"]
    for path in ("/health", "/ready", "/metrics", "/languages"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize(("content", "message"), [
    (b"damaged\n", "line 1"), (b"\xff\n", "not UTF-8 text"), (None, "No such file"),
    (b'{"name": "anna", "id": "1", "salt": "zz", "hash": "00"}\n', "line 1")])
def test_a_changed_file_counts_at_once_and_an_unreadable_one_is_logged_and_changes_nothing(
        make_client, keys, caplog, content, message):
    add_key(keys, "anna")
    client = make_client(access={"keys": KeysFile(keys)})
    key = add_key(keys, "bert")
    assert client.post("/translate", json={**ASKED, "api_key": key}).status_code == 200
    keys.unlink() if content is None else keys.write_bytes(content)
    for _ in range(2):
        assert client.post("/translate", json={**ASKED, "api_key": key}).status_code == 200
    assert caplog.text.count("cannot be read") == 1 and message in caplog.text and key not in caplog.text
    if content is not None:
        with pytest.raises(DataError, match=message):
            KeysFile(keys)


def test_the_command_makes_lists_and_removes_keys(keys, capsys):
    assert main(["serve-keys", "add", "anna", "--keys", str(keys), "--rate", "60", "--admin"]) == 0
    key = capsys.readouterr().out.strip()
    assert KeysFile(keys).find(key).name == "anna"  # type: ignore[union-attr]
    assert main(["serve-keys", "add", "anna", "--keys", str(keys)]) == 1
    for rate in ("-1", "inf"):      # a file with an infinite number could not be read again
        assert main(["serve-keys", "add", "bert", "--keys", str(keys), "--rate", rate]) == 1
    assert main(["serve-keys", "list", "--keys", str(keys)]) == 0
    assert capsys.readouterr().out == "anna  60 requests a minute  admin\n"
    for arguments in (["list", "anna"], ["remove", "anna", "--rate", "5"], ["list", "--admin"]):
        assert main(["serve-keys", *arguments, "--keys", str(keys)]) == 1
        assert "leave" in capsys.readouterr().err
    assert main(["serve-keys", "remove", "anna", "--keys", str(keys)]) == 0
    assert KeysFile(keys).find(key) is None
    assert main(["serve-keys", "remove", "anna", "--keys", str(keys)]) == 1
    with pytest.raises(SettingsError, match="serve-keys add"):
        KeysFile(keys.with_name("others"))


def test_rates_are_of_each_caller_and_fill_again():
    now = [0.0]
    rates = Rates(lambda: now[0])
    for _ in range(2):
        rates.take("anna", "requests", 1, 2)
    with pytest.raises(RequestError) as refusal:
        rates.take("anna", "requests", 1, 2)
    assert refusal.value.status == 429 and refusal.value.retry_after == 30
    rates.take("bert", "requests", 1, 2)
    now[0] = 30.0
    rates.take("anna", "requests", 1, 2)
    with pytest.raises(RequestError):
        rates.take("anna", "requests", 1, 2)


def test_a_rate_below_one_accepts_one_request_at_a_time():
    now = [0.0]
    rates = Rates(lambda: now[0])
    rates.take("anna", "requests", 1, 0.5)
    with pytest.raises(RequestError) as refusal:
        rates.take("anna", "requests", 1, 0.5)
    assert refusal.value.retry_after == 120
    now[0] = 120.0
    rates.take("anna", "requests", 1, 0.5)


def test_the_seconds_to_wait_are_rounded_up():
    for seconds, header in ((8.4, "9"), (30.00000001, "30"), (0.2, "1")):
        assert error_response(RequestError(429, "Wait.", seconds), error_json).headers["Retry-After"] == header


def test_a_rate_is_refused_with_the_seconds_to_wait(make_client, keys):
    key = add_key(keys, "anna", rate=2)
    client, wide = make_client(access={"keys": KeysFile(keys)}), make_client(access={"characters": 5})
    for one in (client, wide):
        one.service.rates = Rates(lambda: 0.0)      # on a busy machine, the requests take seconds
    answers = [client.post("/translate", json={**ASKED, "api_key": key}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["retry-after"] == "30"
    answers = [wide.post("/translate", json=ASKED) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_only_the_latest_callers_are_remembered(make_client, monkeypatch):
    monkeypatch.setattr(service, "MAX_CALLERS", 2)
    one = make_client().service
    for caller in ("anna", "bert", "anna", "carl"):
        one.count_characters(caller, "de-en", 3)
    assert dict(one.characters) == {"anna": 6, "carl": 3}


def test_pages_of_allowed_sites_may_ask(make_client):
    client = make_client(access={"origins": ["https://example.org"]})
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert client.options("/translate", headers=asked).headers["access-control-allow-origin"] == "https://example.org"
    for method in ("GET", "PUT", "PATCH", "DELETE"):        # those of glossaries and documents
        assert client.options("/v3/glossaries/a", headers={**asked, "Access-Control-Request-Method": method}
                              ).status_code == 200
    answer = client.post("/translate", json=ASKED, headers=asked)
    assert answer.headers["access-control-expose-headers"] == "retry-after"
    other = client.options("/translate", headers={**asked, "Origin": "https://example.net"})
    assert "access-control-allow-origin" not in other.headers
    assert "access-control-allow-origin" not in make_client().post("/translate", json=ASKED, headers=asked).headers


def test_only_an_admin_may_reload_models(make_client, keys):
    anna, root = add_key(keys, "anna"), add_key(keys, "root", admin=True)
    client = make_client(access={"keys": KeysFile(keys)})
    assert client.post("/admin/reload", json={"api_key": anna}).status_code == 403
    answer = client.post("/admin/reload", json={"api_key": root})
    assert (answer.status_code, answer.json()) == (200, {"reloaded": ["de-en"], "failed": {}})
    assert make_client().post("/admin/reload").status_code == 403


def test_metrics_are_as_prometheus_reads_them(make_client):
    client = make_client()
    client.post("/translate", json=ASKED)
    lines = client.get("/metrics").text.splitlines()
    assert 'towernmt_requests_total{route="/translate",status="200"} 1' in lines
    assert 'towernmt_characters_total{direction="de-en"} 3' in lines
    assert 'towernmt_request_seconds_bucket{route="/translate",le="+Inf"} 1' in lines
    assert 'towernmt_queue_sentences{direction="de-en"} 0' in lines
