"""The demo's relay, as other users of the machine see it."""

from __future__ import annotations

from pathlib import Path

from connector.demo import Demo, _Victim
from outbox.database import DatabaseUrl
from outbox.names import OutTable
from tests.integration.relays import until


def test_password_is_not_on_the_command_line_of_the_demos_relay(mariadb_url: str, tmp_path: Path) -> None:
    url = DatabaseUrl.parse(mariadb_url)
    assert url.password
    demo = Demo(url, OutTable("demo_outbox"), tmp_path / "stream", orders=1, kills=0)
    demo.prepare()
    relay = _Victim("relay", demo._relay_command(), demo._environment(), tmp_path / "relay.log")
    try:
        until(lambda: "leading" in (tmp_path / "relay.log").read_text(), "the relay leads")
        assert url.password.encode() not in Path(f"/proc/{relay._process.pid}/cmdline").read_bytes()
    finally:
        relay.stop()
        assert relay._process.returncode == 0
    demo._drain()
