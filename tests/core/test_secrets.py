"""The parts of a URI that messages show."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import mask_text, mask_uri


@pytest.mark.parametrize(("uri", "shown"), [
    ("s3://KEY:SE/C+RET@bucket/x.tsv", "s3://***@bucket/x.tsv"),
    ("postgresql://me:my pass@host/db?table=x&sslpassword=a b&key=id",
     "postgresql://***@host/db?table=x&sslpassword=***&key=id"),
    ("--source=mysql://u:p?w@h/db?table=t", "--source=mysql://***@h/db?table=t"),
    ("s3://b/k.tsv?endpoint_url=http://u:p@h:1/", "s3://b/k.tsv?endpoint_url=http://***@h:1/"),
    ("s3://b/k.tsv?endpoint_url=http%3A%2F%2Fu%3Ap%40h", "s3://b/k.tsv?endpoint_url=http%3A%2F%2F***%40h"),
    ("https://h/x.csv?X-Amz-Signature=ab&X-Amz-Date=1&part=2", "https://h/x.csv?X-Amz-Signature=***&X-Amz-Date=***&part=2"),
    ("mysql://u:p?x=y@h/db?table=t", "mysql://***@h/db?table=t"),
    ("https://h/x.csv?sig=ab%3D&sv=2", "https://h/x.csv?sig=***&sv=2"),
])
def test_user_and_password_and_secret_options_are_hidden(uri: str, shown: str) -> None:
    assert mask_uri(uri) == shown


@pytest.mark.parametrize("uri", ["s3://bucket/a@b.tsv", "/data/b@c.de", "http://host:8080/@scope/x.csv", "x.{de,en}",
                                 "sqlite:///c.db?table=pairs&key=id&where=score>0.7", "me@example.org",
                                 "https://USER:PASSWORD@HOST/PATH", "DIALECT://USER@HOST:PORT/DATABASE"])
def test_text_without_secrets_is_unchanged(uri: str) -> None:
    assert mask_uri(uri) == mask_text(uri) == uri


def test_every_uri_of_a_message_is_masked_and_the_words_are_unchanged() -> None:
    message = "s3://KEY:S@bucket/a: no such file, 'http://h/x?token=abc', http://h:80/x (see a@b)."
    assert mask_text(message) == "s3://***@bucket/a: no such file, 'http://h/x?token=***', http://h:80/x (see a@b)."


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=8, max_size=20).filter(lambda text: "://" not in text and not text.isdigit()))
def test_no_password_is_left_however_it_is_written(password: str) -> None:
    password = f"<{password}>"
    assert password not in mask_uri(f"postgresql://me:{password}@host/db?table=pairs")
