"""The demo's relay, as other users of the machine see it."""

from __future__ import annotations

from pathlib import Path

from connector.demo import Demo
from outbox.database import DatabaseUrl
from outbox.names import OutTable
from tests.integration.relays import until


def test_password_is_not_on_the_command_line_of_the_demos_relay(mariadb_url: str, tmp_path: Path) -> None:
    url = DatabaseUrl.parse(mariadb_url)
    assert url.password
    demo = Demo(url, OutTable("demo_outbox"), tmp_path / "stream", orders=1, kills=0)
    demo.prepare()
    relay = demo._start_relay()
    try:
        until(lambda: "leading" in (tmp_path / "relay.log").read_text(), "the relay leads")
        assert url.password.encode() not in Path(f"/proc/{relay.pid}/cmdline").read_bytes()
    finally:
        relay.terminate()
        assert relay.wait() == 0
    demo._drain()
