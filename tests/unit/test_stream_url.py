"""What is shown of a stream URL, and what never is."""

from __future__ import annotations

import pytest

from outbox.errors import UsageError
from stream_store import StreamUrl
from stream_store.secrecy import is_secret
from stream_store.url import without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("file:///var/lib/a@b?segment_bytes=9", "file:///var/lib/a@b?segment_bytes=9"),
        ("redis://h:1/0/n?acks=write&replicas=2", "redis://h:1/0/n?acks=write&replicas=2"),
        ("redis://u:pa%2fhide@h/0/n", "redis://***@h/0/n"),
        ("redis://u:hide@me%21hide@h/0/n", "redis://***@h/0/n"),
        ("redis://u:hide%40h/0/n", "redis://***@h/0/n"),
        ("rediss://u:hide?hide@h/0/n", "rediss://***"),
        ("kafka://h/t?sasl.password=hide@hide", "kafka://***"),
        ("kafka://h/t?ssl.key.pem=hide&sasl.oauthbearer.config=a%3Dhide", "kafka://h/t?ssl.key.pem=***&sasl.oauthbearer.config=***"),
        ("kafka://h/t?sasl.mechanism=PLAIN&some.new=hide", "kafka://h/t?sasl.mechanism=PLAIN&some.new=***"),
        ("s3://b/p?secret_access_key=hide&endpoint=http://u:hide%40x", "s3://b/p?secret_access_key=***&endpoint=***"),
    ],
)  # fmt: skip
def test_url_is_shown_without_what_may_be_a_secret(url, shown):
    assert without_secrets(url) == shown
    assert "hide" not in repr(StreamUrl.parse(url))


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("redis://u:pa%2fss@h/0/n", {"pa%2fss", "pa/ss"}),
        ("redis://u:p@ss%21w@h/0/n", {"p@ss%21w", "p@ss!w"}),
        ("redis://u:pw?x@h/0/n", {"pw?x"}),
        ("kafka://h/t?ssl.key.pem=a%2b", {"a%2b", "a+"}),
        ("redis://h/0/n?acks=all", set()),
    ],
)
def test_secrets_are_known_as_they_are_and_as_they_are_spelled(url, secrets):
    assert StreamUrl.parse(url).secrets == secrets


@pytest.mark.parametrize("bad", ["//u:hide@h/0/n", "u/hide", "redis:", "redis://?password=hide"])
def test_url_that_cannot_be_parsed_is_not_repeated(bad):
    with pytest.raises(UsageError) as refused:
        StreamUrl.parse(bad)
    assert "hide" not in str(refused.value)


def test_options_that_are_secrets_are_the_same_everywhere():
    secret = (
        "sasl.password",
        "ssl.key.pem",
        "sasl.oauthbearer.config",
        "secret_access_key",
        "account_key",
        "sasl.jaas.config",
    )
    assert all(is_secret(name) for name in secret)
    assert not any(is_secret(name) for name in ("acks", "skip_signature", "sasl.username", "ssl.ca.location"))
