"""The program's commands in the order of a first use, on every database."""

from __future__ import annotations

import json
import urllib.parse
from typing import TYPE_CHECKING

import pytest

from tests.program import report, run, succeed

if TYPE_CHECKING:
    from pathlib import Path


def tapped(stream_url: str, *more: str) -> list[dict]:
    return [json.loads(line) for line in succeed("tap", "--stream", stream_url, *more).splitlines()]


def test_from_init_to_uninstall(database_url: str, stream_url: str, tmp_path: Path) -> None:
    at = {"OUTBOX_DATABASE_URL": database_url, "OUTBOX_STREAM": stream_url, "cwd": tmp_path}

    installed = report("init", "--source", "/shop", **at)
    assert (installed["created"], installed["source"], installed["outbox"]) == (True, "/shop", "outbox")
    assert report("init", **at) == {**installed, "created": False}
    assert report("upgrade", **at) == {"outbox": "outbox", "applied": []}
    checked = report("check", **at)
    assert checked["ok"] is True, checked
    assert {"level", "name", "message", "fix"} == set(checked["findings"][0])

    data = '{ "total": 1.50, "note": "é 😀 \\u001b" }'
    more = ["--data", data, "--header", "traceparent=00-1", "--header", "tenant=a"]
    assert report("emit", "--type", "order.paid", "--subject", "o-1", *more, **at) == {"outbox": "outbox", "events": 1}
    succeed("emit", "--type", "photo.taken", "--content-type", "image/png", "--data", "-", stdin=b"\x00\xff", **at)
    succeed("emit", "--type", "order.gone", "--subject", "o-1", **at)

    status = report("status", **at)
    assert (status["rows_waiting"], status["leader_alive"], status["source"]) == (3, False, "/shop")

    refused = run("uninstall", **at)
    assert (refused.returncode, "rows are left in outbox (3)" in refused.stderr) == (1, True)

    succeed("relay", "--once", **at)
    paid, photo, gone = tapped(stream_url)
    assert (paid["type"], paid["subject"], paid["source"], paid["previd"]) == ("order.paid", "o-1", "/shop", "0")
    assert (paid["traceparent"], paid["tenant"]) == ("00-1", "a")
    assert f'"data":{data}}}\n' in succeed("tap", "--stream", stream_url)
    assert (photo["data_base64"], photo["datacontenttype"], photo["previd"]) == ("AP8=", "image/png", paid["id"])
    assert not {"data", "data_base64"} & set(gone)

    status = report("status", **at)
    assert (status["rows_waiting"], status["stream_tail"], status["problems"]) == (0, int(gone["id"]), [])

    lines = succeed("tap", "--stream", stream_url)
    assert report("flux", stdin=lines, **at) == {"outbox": "outbox", "events": 3, "bad": 0}
    succeed("relay", "--once", **at)
    both = tapped(stream_url)
    assert len(both) == 6
    for first, second in zip(both[:3], both[3:], strict=True):
        own = ("id", "previd")
        assert {k: v for k, v in first.items() if k not in own} == {k: v for k, v in second.items() if k not in own}

    verified = report("verify", **at)
    assert (verified["ok"], verified["lost"], verified["duplicated"], verified["events"]) == (True, 0, 0, 6)
    assert report("rebase", "--dry-run", **at) == {"applied": False, "steps": []}
    info = report("stream", "info", **at)
    assert (info["outbox_id"], info["source"], info["tail"]) == (installed["outbox_id"], "/shop", int(both[-1]["id"]))
    assert report("stream", "check", **at)["ok"] is True

    assert report("uninstall", **at) == {"outbox": "outbox", "uninstalled": True}
    assert run("status", **at).returncode == 1


def test_check_exits_with_3_and_says_how_to_mend_it(sqlite_url: str, stream_url: str, tmp_path: Path) -> None:
    at = {"OUTBOX_DATABASE_URL": sqlite_url, "OUTBOX_STREAM": stream_url, "cwd": tmp_path}
    missing = report("check", code=3, **at)
    assert missing["ok"] is False
    assert [finding["name"] for finding in missing["findings"] if finding["level"] == "error"] == ["database"]
    succeed("init", **at)
    assert "✓ database: sqlite:///" in succeed("doctor", **at)
    succeed("emit", "--type", "a", **at)
    succeed("relay", "--once", **at)
    other = {**at, "OUTBOX_STREAM": f"file://{tmp_path}/other"}
    succeed("init", "--outbox", "other", **other)
    succeed("emit", "--outbox", "other", "--type", "a", **other)
    succeed("relay", "--outbox", "other", "--once", **other)
    done = run("check", **other)
    assert (done.returncode, done.stderr) == (3, "")
    assert "✗ bond: " in done.stdout
    assert not list(tmp_path.glob("none*"))


def test_people_read_tables(sqlite_url: str, stream_url: str, tmp_path: Path) -> None:
    at = {"OUTBOX_DATABASE_URL": sqlite_url, "OUTBOX_STREAM": stream_url, "cwd": tmp_path}
    assert "out table       outbox installed in sqlite" in succeed("init", **at)
    assert run("emit", "--type", "a", **at).stderr == "1 event of type a written to outbox\n"
    assert "waiting rows     1, the oldest for" in succeed("status", **at)
    succeed("relay", "--once", **at)
    assert "verdict               ok: nothing lost, nothing doubled\n" in succeed("verify", **at)
    assert run("rebase", **at).stderr == "nothing to do: outbox and stream agree\n"
    assert "tail              1\n" in succeed("stream", "info", **at)
    assert "verdict    ok: every frame can be read\n" in succeed("stream", "check", **at)


def test_the_out_table_may_have_any_name(database_url: str, stream_url: str, tmp_path: Path) -> None:
    name = '"odd ""na.me"" `x"'
    at = {"OUTBOX_DATABASE_URL": database_url, "OUTBOX_STREAM": stream_url, "OUTBOX_OUTBOX": name, "cwd": tmp_path}
    succeed("init", **at)
    succeed("emit", "--type", "a", **at)
    succeed("relay", "--once", **at)
    assert len(tapped(stream_url)) == 1
    assert report("verify", **at)["ok"] is True


def test_print_shows_the_script_and_changes_nothing(sqlite_url: str, tmp_path: Path) -> None:
    script = succeed("init", "--print", "--database", sqlite_url, cwd=tmp_path)
    assert "CREATE TABLE" in script
    assert not list(tmp_path.glob("*.db"))


def test_roles_are_granted_by_init(postgresql_url: str, tmp_path: Path) -> None:
    import psycopg

    role = f"writer_{tmp_path.name.replace('-', '_')}"[:60]
    with psycopg.connect(postgresql_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{role}"')  # type: ignore[arg-type]
    granted = report("init", "--database", postgresql_url, "--grant-writer", role, "--grant-relay", role, cwd=tmp_path)
    assert (granted["writers"], granted["relays"]) == ([role], [role])
    script = succeed("init", "--print", "--database", postgresql_url, "--grant-writer", role, cwd=tmp_path)
    assert "GRANT INSERT" in script
    assert role in script


def test_verify_exits_with_3_when_a_row_is_not_in_the_stream(sqlite_url: str, stream_url: str, tmp_path: Path) -> None:
    import sqlite3

    at = {"OUTBOX_DATABASE_URL": sqlite_url, "OUTBOX_STREAM": stream_url, "cwd": tmp_path}
    succeed("init", **at)
    for _ in range(3):
        succeed("emit", "--type", "a", **at)
    succeed("relay", "--once", "--delete-after", "never", **at)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("DELETE FROM outbox WHERE id = 2")
        connection.execute("INSERT INTO outbox (id, type) VALUES (2, 'another')")
    found = report("verify", code=3, **at)
    assert (found["ok"], found["conflicting"], found["conflicting_ids"]) == (False, 1, [2])
    done = run("verify", **at)
    assert done.returncode == 3
    assert "NOT OK" in done.stdout
    assert "error" not in done.stderr


def test_stream_check_exits_with_3_and_names_the_damage(sqlite_url: str, stream_url: str, tmp_path: Path) -> None:
    at = {"OUTBOX_DATABASE_URL": sqlite_url, "OUTBOX_STREAM": stream_url, "cwd": tmp_path}
    succeed("init", **at)
    succeed("emit", "--type", "a", **at)
    succeed("relay", "--once", **at)
    (segment,) = (tmp_path / "stream").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[-100] ^= 0xFF
    segment.write_bytes(content)
    found = report("stream", "check", code=3, **at)
    assert found["ok"] is False
    assert found["damage"][0]["file"] == str(segment)
    assert f"{segment} at offset" in run("stream", "check", **at).stdout
    assert run("tap", **at).returncode == 4


def test_another_ones_stream_is_terminal(sqlite_url: str, stream_url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    for url in (sqlite_url, other):
        succeed("init", "--database", url, cwd=tmp_path)
        succeed("emit", "--type", "a", "--database", url, cwd=tmp_path)
    succeed("relay", "--once", "--database", sqlite_url, "--stream", stream_url, cwd=tmp_path)
    done = run("relay", "--once", "--database", other, "--stream", stream_url, cwd=tmp_path)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


def test_rebase_shows_its_plan_and_wants_a_yes(sqlite_url: str, stream_url: str, tmp_path: Path) -> None:
    import shutil

    at = {"OUTBOX_DATABASE_URL": sqlite_url, "OUTBOX_STREAM": stream_url, "cwd": tmp_path}
    succeed("init", **at)
    succeed("emit", "--type", "a", **at)
    succeed("relay", "--once", **at)
    shutil.copytree(tmp_path / "stream", tmp_path / "older")
    succeed("emit", "--type", "b", **at)
    succeed("relay", "--once", **at)
    shutil.rmtree(tmp_path / "stream")
    (tmp_path / "older").rename(tmp_path / "stream")
    assert run("relay", "--once", **at).returncode == 4

    plan = report("rebase", "--dry-run", **at)
    assert (plan["applied"], [step["kind"] for step in plan["steps"]]) == (False, ["record-loss"])
    refused = run("rebase", **at)
    assert (refused.returncode, "look at the plan with --dry-run, then say --yes" in refused.stderr) == (2, True)
    assert report("rebase", "--dry-run", **at) == plan
    assert report("rebase", "--yes", **at) == {**plan, "applied": True}
    succeed("relay", "--once", **at)
    assert report("verify", **at)["recorded_lost"] == 1


def test_one_process_relays_every_outbox_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "outbox.toml").write_text(
        "".join(
            f'[[outbox]]\nname = "{name}"\ndatabase = "sqlite:///{tmp_path}/{name}.db"\nstream = "file://{tmp_path}/{name}"\n'
            for name in ("a", "b")
        )
    )
    for name in ("a", "b"):
        succeed("init", "--outbox", name, cwd=tmp_path)
        succeed("emit", "--outbox", name, "--type", name, cwd=tmp_path)
    succeed("relay", "--once", "--config", "outbox.toml", cwd=tmp_path)
    for name in ("a", "b"):
        assert [event["type"] for event in tapped(f"file://{tmp_path}/{name}")] == [name]
        assert report("verify", "--outbox", name, cwd=tmp_path)["ok"] is True
    ambiguous = run("status", cwd=tmp_path)
    assert (ambiguous.returncode, "2 outboxes (a, b): choose one by --outbox" in ambiguous.stderr) == (2, True)


@pytest.mark.parametrize("command", ["verify", "rebase", "status", "relay"])
def test_a_missing_out_table_is_answered_with_the_command_to_run(
    command: str, database_url: str, stream_url: str, tmp_path: Path
) -> None:
    succeed("init", "--database", database_url, cwd=tmp_path)
    done = run(command, "--database", database_url, "--stream", stream_url, "--outbox", "nobox", cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no out table nobox" in done.stderr
    assert "run `outbox init" in done.stderr


@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_a_wrong_name_of_the_database_is_a_usage_error_not_a_restart(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    before, _, rest = url.rpartition("/")
    query = rest[rest.index("?") :] if "?" in rest else ""
    done = run("status", "--database", f"{before}/nowhere{query}", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "look at the user, the password and the database's name" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_user_is_a_usage_error_on_postgresql(postgresql_url: str, tmp_path: Path) -> None:
    parts = urllib.parse.urlsplit(postgresql_url)
    url = parts._replace(netloc="nobody:s3cret@" + parts.netloc.rpartition("@")[2]).geturl()
    done = run("status", "--database", url, cwd=tmp_path)
    assert (done.returncode, "refuses the connection" in done.stderr) == (2, True), done.stderr
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize("command", ["status", "verify", "rebase", "relay"])
def test_a_missing_privilege_is_answered_with_the_next_step(
    command: str, postgresql_url: str, stream_url: str, tmp_path: Path
) -> None:
    import psycopg

    role = f"poor_{tmp_path.name.replace('-', '_')}"[:60]
    with psycopg.connect(postgresql_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{role}" LOGIN')  # type: ignore[arg-type]
    succeed("init", "--database", postgresql_url, cwd=tmp_path)
    parts = urllib.parse.urlsplit(postgresql_url)
    url = parts._replace(netloc=f"{role}@" + parts.netloc.rpartition("@")[2]).geturl()
    done = run(command, "--database", url, "--stream", stream_url, cwd=tmp_path)
    assert done.returncode in (1, 4), done.stderr
    assert "`outbox check`" in done.stderr
    assert "`outbox init --grant-relay ROLE`" in done.stderr
    assert "Traceback" not in done.stderr


def test_upgrade_and_uninstall_print_their_scripts_and_change_nothing(database_url: str, tmp_path: Path) -> None:
    at = {"OUTBOX_DATABASE_URL": database_url, "cwd": tmp_path}
    succeed("init", **at)
    done = run("upgrade", "--print", **at)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "outbox is up to date\n")
    assert "DROP TABLE" in succeed("uninstall", "--print", **at)
    assert report("status", **at)["outbox"] == "outbox"
    missing = run("upgrade", "--print", "--outbox", "nobox", **at)
    assert (missing.returncode, "run `outbox init`" in missing.stderr) == (1, True)


def test_a_segment_that_cannot_be_read_is_named_in_one_line(sqlite_url: str, stream_url: str, tmp_path: Path) -> None:
    at = {"OUTBOX_DATABASE_URL": sqlite_url, "OUTBOX_STREAM": stream_url, "cwd": tmp_path}
    succeed("init", **at)
    succeed("emit", "--type", "a", **at)
    succeed("relay", "--once", **at)
    (segment,) = (tmp_path / "stream").glob("*.log")
    segment.unlink()
    # Nobody can read a folder as a file, not even root.
    segment.mkdir()
    done = run("stream", "check", **at)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: a file of {stream_url} cannot be read: Is a directory")
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_password_is_a_usage_error_on_postgresql(tmp_path: Path) -> None:
    import psycopg

    from tests.servers.postgresql import PostgresServer

    # A server of its own: the shared one trusts everybody.
    server = PostgresServer()
    rules = server.data / "pg_hba.conf"
    rules.write_text("host all careful 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    try:
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE ROLE careful LOGIN PASSWORD 'right1'")
        for user in ("careful", "careful:s3cret"):
            done = run("status", "--database", server.url(user=user), cwd=tmp_path)
            assert (done.returncode, "refuses the connection" in done.stderr) == (2, True), done.stderr
            assert "s3cret" not in done.stderr
        assert run("status", "--database", server.url(user="careful:right1"), cwd=tmp_path).returncode == 1
    finally:
        server.destroy()


@pytest.mark.parametrize("command", ["status", "verify", "rebase", "relay"])
def test_a_missing_privilege_is_answered_with_the_next_step_on_mariadb(
    command: str, mariadb_url: str, stream_url: str, tmp_path: Path
) -> None:
    from outbox.database import DatabaseUrl, Session
    from outbox.names import OutTable

    succeed("init", "--database", mariadb_url, cwd=tmp_path)
    admin = DatabaseUrl.parse(mariadb_url)
    user = f"poor_{command}"
    with Session(admin, OutTable()) as session:
        session.run(f"CREATE OR REPLACE USER {user}")
        session.run(f"GRANT INSERT ON `{admin.database}`.outbox TO {user}")
        session.run(f"GRANT INSERT ON `{admin.database}`.outbox_info TO {user}")
    url = admin.parts._replace(netloc=f"{user}@" + admin.parts.netloc.rpartition("@")[2]).geturl()
    done = run(command, "--database", url, "--stream", stream_url, cwd=tmp_path)
    assert done.returncode == (4 if command == "relay" else 1), done.stderr
    assert "`outbox check`" in done.stderr
    assert "`outbox init --grant-relay ROLE`" in done.stderr
    assert len(done.stderr.splitlines()) == 1
