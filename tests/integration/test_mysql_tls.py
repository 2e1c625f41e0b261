"""TLS to a real MariaDB whose certificate comes from an authority of our own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outbox.database import DatabaseUrl, Session
from outbox.errors import UsageError
from outbox.names import OutTable
from tests.servers import mariadb
from tests.servers.mariadb import MariaDbServer
from tests.servers.process import server_folder, unprivileged_user

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = OutTable()


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> Path:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-subj", f"/CN={name}"
    )
    return certificate


def make_certificate(folder: Path, name: str) -> None:
    """Signed by the authority `ours`, for the name alone."""
    key, request, names = folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.ext"
    names.write_text(f"subjectAltName=DNS:{name}\n")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    signer = ["-CA", folder / "ours.pem", "-CAkey", folder / "ours.key", "-CAcreateserial"]
    openssl("x509", "-req", "-in", request, *signer, "-extfile", names, "-out", folder / f"{name}.pem")


@pytest.fixture(scope="module")
def certificates() -> Iterator[Path]:
    folder = server_folder("tls")
    make_authority(folder, "ours")
    make_authority(folder, "other")
    make_certificate(folder, "localhost")
    make_certificate(folder, "relay")
    user = unprivileged_user()
    if user is not None:
        shutil.chown(folder / "localhost.key", user)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(certificates: Path) -> Iterator[MariaDbServer]:
    files = {"ca": "ours.pem", "cert": "localhost.pem", "key": "localhost.key"}
    server = MariaDbServer(settings=tuple(f"--ssl-{name}={certificates / file}" for name, file in files.items()))
    yield server.start()
    server.destroy()


@pytest.fixture
def url(server: MariaDbServer) -> str:
    """By the name that the certificate is for."""
    return mariadb.fresh_database(server.url()).replace("127.0.0.1", "localhost")


def cipher(url: str) -> str:
    with Session(DatabaseUrl.parse(url), TABLE) as session:
        ((_, cipher),) = session.run("SHOW STATUS LIKE 'Ssl_cipher'")
    return str(cipher)


def test_each_mode_is_encrypted_but_disabled(url: str, certificates: Path):
    authority = f"ssl_ca={certificates / 'ours.pem'}"
    for options in (
        "ssl_mode=REQUIRED",
        authority,
        f"{authority}&ssl_mode=VERIFY_CA",
        f"{authority}&ssl_mode=VERIFY_IDENTITY",
    ):
        assert cipher(f"{url}?{options}"), options
    assert not cipher(f"{url}?ssl_mode=DISABLED")


def test_a_certificate_of_another_authority_is_refused(url: str, certificates: Path):
    for options in (
        f"ssl_ca={certificates / 'other.pem'}",
        f"ssl_ca={certificates / 'other.pem'}&ssl_mode=VERIFY_IDENTITY",
        # The system's own authorities know nothing of ours.
        "ssl_mode=VERIFY_IDENTITY",
    ):
        with pytest.raises(UsageError, match="not trusted"):
            cipher(f"{url}?{options}")


def test_the_host_has_to_be_the_one_of_the_certificate_when_its_identity_is_verified(url: str, certificates: Path):
    address = url.replace("localhost", "127.0.0.1")
    authority = f"ssl_ca={certificates / 'ours.pem'}"
    assert cipher(f"{address}?{authority}&ssl_mode=VERIFY_CA")
    with pytest.raises(UsageError, match=r"not trusted: .*127\.0\.0\.1"):
        cipher(f"{address}?{authority}&ssl_mode=VERIFY_IDENTITY")


def test_a_client_shows_its_certificate(url: str, certificates: Path):
    with mariadb.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER certified@'%' REQUIRE SUBJECT '/CN=relay'")
    server = "mysql://certified@" + url.split("@")[1].split("/", maxsplit=1)[0]
    with pytest.raises(UsageError, match="refuses the connection"):
        cipher(f"{server}/?ssl_mode=REQUIRED")
    client = f"ssl_cert={certificates / 'relay.pem'}&ssl_key={certificates / 'relay.key'}"
    assert cipher(f"{server}/?{client}")
    assert cipher(f"{server}/?{client}&ssl_mode=VERIFY_IDENTITY&ssl_ca={certificates / 'ours.pem'}")


def test_a_server_without_tls_is_refused_when_it_is_required():
    server = MariaDbServer(settings=("--skip-ssl",))
    try:
        server.start()
        assert not cipher(server.url() + "?ssl_mode=PREFERRED")
        with pytest.raises(UsageError, match="offers no TLS"):
            cipher(server.url() + "?ssl_mode=REQUIRED")
    finally:
        server.destroy()
