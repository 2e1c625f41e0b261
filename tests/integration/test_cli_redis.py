"""The program on a Redis stream, end to end, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.program import report, run, succeed
from tests.servers.redis import RedisServer, fresh_name

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    found = RedisServer().start()
    with found.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">topsecret", "~*", "&*", "+@all")
    yield found
    found.destroy()


def test_events_go_through_redis_by_the_commands_alone(server: RedisServer, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'shop.db'}"
    name = fresh_name()
    stream = f"redis://app:topsecret@127.0.0.1:{server.port}/0/{name}"
    both = ("--database", database, "--stream", stream)
    succeed("init", "--database", database, "--source", "/shop")
    lines = "".join(
        json.dumps({"type": "order.paid", "subject": f"o-{n}", "data": {"n": n}}) + "\n" for n in range(1, 51)
    )
    succeed("flux", "--database", database, stdin=lines)

    findings = {finding["name"]: finding["level"] for finding in report("check", *both)["findings"]}
    assert (findings["redis-durability"], findings["redis-eviction"]) == ("ok", "ok")
    assert findings["one-copy"] == "warning"

    done = run("relay", *both, "--once")
    assert done.returncode == 0, done.stderr
    assert "topsecret" not in done.stdout + done.stderr
    events = [json.loads(line) for line in succeed("tap", "--stream", stream).splitlines()]
    assert [(event["id"], event["previd"], event["data"]) for event in events] == [
        (str(n), str(n - 1), {"n": n}) for n in range(1, 51)
    ]
    assert events[0]["source"] == "/shop"
    assert report("verify", *both)["ok"]
    assert report("stream", "check", "--stream", stream)["ok"]
    info = run("stream", "info", "--stream", stream)
    assert "topsecret" not in info.stdout
    assert report("status", *both)

    # Any client of the server reads the same.
    with server.client() as client:
        (entry_id, fields), *_ = client.xrange(f"outbox:{{{name}}}:events", count=1)
    assert (entry_id, fields[b"type"], fields[b"data"], fields[b"previd"]) == (b"1-0", b"order.paid", b'{"n": 1}', b"0")

    missing = run("tap", "--stream", stream.replace(name, "nothing"))
    assert missing.returncode == 1
    assert "there is no stream" in missing.stderr
    wrong = run("tap", "--stream", stream.replace("topsecret", "t0psecret"))
    assert wrong.returncode == 2
    assert "t0psecret" not in wrong.stderr
    away = run("tap", "--stream", "redis://127.0.0.1:1/0/x")
    assert away.returncode == 75
