"""No command prints, logs or saves the secrets of a URI, in any argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.cli.main import main

SECRET = "tops3cret"
URIS = [f"s3://KEY:{SECRET}@bucket/x.tsv", f"s3://KEY:a/{SECRET}@bucket/prepared",
        f"s3://b/x.tsv?endpoint_url=http://u:{SECRET}@127.0.0.1:9&retries=0",
        f"postgresql://me:{SECRET} x@127.0.0.1:9/db?table=t&patience=0.01",
        f"mysql://me:{SECRET}@127.0.0.1:9/db?table=t&patience=0.01&ssl_key_password={SECRET}",
        f"http://u:{SECRET}@127.0.0.1:9/x.tsv?token={SECRET}&patience=0.01",
        f"http://127.0.0.1:9/x.tsv?X-Amz-Signature={SECRET}&patience=0.01", f"ftp://u:{SECRET}@h/x.tsv"]


@pytest.mark.parametrize("uri", URIS)
def test_no_command_shows_a_secret(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Path("corpora.yaml").write_text(f"sources:\n  - {{uri: '{uri}'}}\n")
    Path("x.de").write_text("a\nb\n")
    Path("x.en").write_text("c\nd\n")
    for command in (["inspect", uri], ["inspect", "corpora.yaml"], ["prepare", "--source", uri, "--output", "out"],
                    ["prepare", "--source", "corpora.yaml", "--output", "out"],
                    ["prepare", "--source", uri, "--target", uri, "--output", "out"],
                    ["prepare", "--source", "x.de", "--target", "x.en", "--vocab-kind", "word", "--output", uri],
                    ["load", "--source", uri, "--output", "sqlite:///l.db?table=t"],
                    ["load", "--source", "x.{de,en}", "--output", uri], ["evaluate", "--hypothesis-file", uri,
                                                                         "--reference", "x.en"]):
        assert main(command) == 1, command
        shown = capsys.readouterr()
        assert SECRET not in shown.out + shown.err + caplog.text, command
        assert shown.out + shown.err
    assert {path.name for path in tmp_path.iterdir()} <= {"corpora.yaml", "x.de", "x.en", "l.db"}
