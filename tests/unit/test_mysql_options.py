"""The options of a MySQL URL: understood, or refused by name."""

from __future__ import annotations

import ssl

import pytest

from outbox.database import DatabaseUrl
from outbox.errors import UsageError
from outbox.mysql_connection import tls_arguments
from outbox.mysql_options import KNOWN, MysqlOptions


@pytest.mark.parametrize("query", ["ssl=true", "sslmode=require", "ssl_verify_cert=1", "x=a", "ssl_mod"])
@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+pymysql"])
def test_an_unknown_option_is_refused_and_the_known_ones_are_named(scheme: str, query: str):
    with pytest.raises(UsageError, match=f"unknown option {query.split('=', maxsplit=1)[0]}: known are ") as caught:
        DatabaseUrl.parse(f"{scheme}://u:hidden@h/db?{query}")
    assert all(name in str(caught.value) for name in KNOWN)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("ssl_mode=", "has no value"),
        ("ssl_mode", "has no value"),
        ("ssl_mode=REQUIRED&ssl-mode=DISABLED", "twice"),
        ("ssl_mode=VERIFY_FULL", "VERIFY_IDENTITY"),
        ("ssl_mode=DISABLED&ssl_ca=ca.pem", "no use of ssl_ca"),
        ("ssl_mode=PREFERRED&ssl_cert=c.pem", "no use of ssl_cert"),
        ("ssl_mode=REQUIRED&ssl_ca=ca.pem", "verifies nothing"),
        ("ssl_mode=VERIFY_CA", "needs ssl_ca"),
        ("ssl_key=k.pem", "without ssl_cert"),
        ("charset=latin1", "utf8mb4"),
        ("connect_timeout=0", "above 0"),
        ("connect_timeout=soon", "above 0"),
        ("read_timeout=-1", "above 0"),
        ("read_timeout=nan", "above 0"),
        ("read_timeout=inf", "above 0"),
    ],
)
def test_an_option_that_would_not_do_what_it_says_is_refused(query: str, says: str):
    with pytest.raises(UsageError, match=says):
        DatabaseUrl.parse(f"mysql://u@h/db?{query}")


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("", "PREFERRED"),
        ("ssl_mode=verify_identity", "VERIFY_IDENTITY"),
        # As hosts hand it out.
        ("ssl-mode=REQUIRED", "REQUIRED"),
        ("ssl_ca=ca.pem", "VERIFY_CA"),
        ("ssl_ca=ca.pem&ssl_mode=VERIFY_IDENTITY", "VERIFY_IDENTITY"),
        ("ssl_cert=c.pem&ssl_key=k.pem", "REQUIRED"),
    ],
)
def test_the_tls_mode_is_named_or_follows_from_the_files(query: str, mode: str):
    assert MysqlOptions.parse(query).ssl_mode == mode


def test_every_option_is_understood():
    query = "charset=utf8mb4&connect_timeout=3&read_timeout=60&unix_socket=/run/my%20sql.sock"
    query += "&ssl_mode=VERIFY_CA&ssl_ca=/ca.pem&ssl_cert=/c.pem&ssl_key=/k.pem"
    assert MysqlOptions.parse(query) == MysqlOptions(
        "/run/my sql.sock", 3.0, 60.0, "VERIFY_CA", "/ca.pem", "/c.pem", "/k.pem"
    )


def test_pymysql_is_told_each_mode():
    assert tls_arguments(MysqlOptions()) == {}
    assert tls_arguments(MysqlOptions.parse("ssl_mode=DISABLED")) == {"ssl_disabled": True}
    required = tls_arguments(MysqlOptions.parse("ssl_mode=REQUIRED"))["ssl"]
    assert (required.verify_mode, required.check_hostname) == (ssl.CERT_NONE, False)
    # By the system's own authorities.
    identity = tls_arguments(MysqlOptions.parse("ssl_mode=VERIFY_IDENTITY"))["ssl"]
    assert (identity.verify_mode, identity.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("query", ["ssl_ca=/missing.pem", "ssl_cert=/missing.pem"])
def test_a_certificate_that_cannot_be_read_is_named(query: str):
    with pytest.raises(UsageError, match=f"{query} cannot be read"):
        tls_arguments(MysqlOptions.parse(query))


@pytest.mark.parametrize(
    ("query", "plain"),
    [
        ("", True),
        ("charset=utf8mb4&connect_timeout=3&ssl_mode=DISABLED", True),
        ("ssl_mode=REQUIRED", False),
        ("unix_socket=/s.sock", False),
        ("read_timeout=9", False),
    ],
)
def test_what_only_one_of_the_two_drivers_understands_is_known(query: str, plain: bool):
    assert MysqlOptions.parse(query).is_plain is plain
