"""Database URLs: taken apart, handed to the drivers, and never shown with a password."""

from __future__ import annotations

import pytest

from outbox.database import DatabaseUrl, redact
from outbox.errors import UsageError


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("postgresql://u@h/db", "postgresql"),
        ("postgres://u@h/db", "postgresql"),
        ("postgresql+psycopg://u@h/db", "postgresql"),
        ("mysql://u@h/db", "mysql"),
        ("mysql+pymysql://u@h/db", "mysql"),
        ("mariadb://u@h/db", "mysql"),
        ("mariadb+pymysql://u@h/db", "mysql"),
        ("sqlite:///app.db", "sqlite"),
    ],
)
def test_the_scheme_names_the_dialect(url: str, dialect: str) -> None:
    assert DatabaseUrl.parse(url).dialect == dialect


@pytest.mark.parametrize(
    "url",
    [
        "",
        "outbox",
        "oracle://u@h/db",
        "file:///x",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/x",
        "sqlite:///:memory:",
        "postgresql://u@h:port/db",
        "postgresql://u@h:99999999/db",
        "postgresql://[::1/db",
    ],
)
def test_what_is_no_database_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError):
        DatabaseUrl.parse(url)


@pytest.mark.parametrize(
    ("url", "libpq"),
    [
        ("postgresql+psycopg://u:p%40@h:1/db?sslmode=require", "postgresql://u:p%40@h:1/db?sslmode=require"),
        ("postgres://h/db", "postgresql://h/db"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db?host=/run/postgresql"),
    ],
)
def test_libpq_gets_its_own_scheme_and_all_the_rest(url: str, libpq: str) -> None:
    assert DatabaseUrl.parse(url).libpq == libpq


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///relative/app.db", "relative/app.db"),
        ("sqlite:////absolute/app.db", "/absolute/app.db"),
        ("sqlite:////with%20space/a.db", "/with space/a.db"),
        ("sqlite:////tmp/odd#name.db", "/tmp/odd#name.db"),
    ],
)
def test_sqlite_paths_are_relative_by_three_slashes_and_absolute_by_four(url: str, path: str) -> None:
    assert DatabaseUrl.parse(url).path == path


def test_user_password_and_database_are_decoded() -> None:
    url = DatabaseUrl.parse("mysql://us%40er:p%2Fw%3A@host:3307/my%20db?unix_socket=/s.sock")
    assert (url.username, url.password, url.database) == ("us@er", "p/w:", "my db")
    assert url.options == {"unix_socket": "/s.sock"}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hidden@h/db",
        "postgresql://:hidden@h/db",
        "postgresql://u:hid:hidden@h/db?x=a@b",
        "postgresql://h/db?password=hidden",
        "postgresql://h/db?user=u&sslpassword=hidden&x=1",
        "mysql://u:hidden@h:3306/db",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    parsed = DatabaseUrl.parse(url)
    for shown in (redact(url), str(parsed), repr(parsed)):
        assert "hid" not in shown
        assert "***" in shown or "DatabaseUrl" in shown


@pytest.mark.parametrize("url", ["postgresql://u@h/db", "sqlite:////tmp/a:b@c.db", "mysql://h:3306/db?x=a"])
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert redact(url) == url


def test_usage_errors_do_not_show_the_password_either() -> None:
    with pytest.raises(UsageError) as caught:
        DatabaseUrl.parse("oracle://u:hidden@h/db")
    assert "hidden" not in str(caught.value)
    with pytest.raises(UsageError, match="percent-encoded") as caught:
        DatabaseUrl.parse("postgresql://u:hidden#hidden@h/db")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hid@hidden@h/db",
        "postgresql://u:hid/hidden@h/db",
        "postgresql://u:hid/a@hidden@h/db",
        "postgresql://u:hid@a/hidden@h/db",
        "postgresql://me@corp:hidden@h/db",
        "postgresql://u:12/hidden@h/db",
        "postgresql://u:12?hidden@h/db",
        "postgresql://u:12#hidden@h/db",
        "postgresql://u:hid@b/c?hidden@h/db",
        "postgresql://u:hid@b?hidden@h/db",
        "mysql://u:hid@b/c?hidden@h/db",
        "mysql://u:hid@hidden@h/db",
    ],
)
def test_a_password_that_is_not_percent_encoded_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match="percent-encoded") as caught:
        DatabaseUrl.parse(url)
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "u:hidden@h/db",
        "postgres:hidden@h/db",
        "postgresql//u:hidden@h/db",
        "postgresql:/u:hidden@h/db",
        "postgresql:u:hidden@h/db",
        "postgres:u:hid@hidden@h/db",
        "mysql:u:hidden@h/db",
        "sqlite:app.db",
        "sqlite:/app.db",
    ],
)
def test_a_slip_in_the_scheme_is_refused_and_shows_no_password(url: str) -> None:
    with pytest.raises(UsageError, match="is not a database URL") as caught:
        DatabaseUrl.parse(url)
    assert "hid" not in str(caught.value)


def test_an_at_sign_in_an_option_is_no_password() -> None:
    assert DatabaseUrl.parse("postgresql://h:5432/db?user=me@corp").options == {"user": "me@corp"}
