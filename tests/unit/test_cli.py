"""The program's words, help, errors and exit codes, as far as they need no server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import pytest

from cli import printing
from cli.main import ALIASES, COMMANDS, program
from docs.generate_cli import PAGE, render
from outbox import errors
from tests.program import ROOT, environment, run, succeed

if TYPE_CHECKING:
    from pathlib import Path

STREAM = ["info", "check", "trim", "compact", "redact", "copy", "repair"]
ALL = [*COMMANDS, *ALIASES, *(f"stream {command}" for command in STREAM)]

# Fixed words: scripts rely on them (DESIGN.md, section 9).
WORDS = {
    "init": ["--database", "--outbox", "--source", "--print", "--grant-writer", "--grant-relay", "--json"],
    "upgrade": ["--database", "--outbox", "--print", "--json"],
    "check": ["--database", "--stream", "--outbox", "--json"],
    "doctor": ["--database", "--stream", "--outbox", "--json"],
    "relay": [
        "--database",
        "--stream",
        "--outbox",
        "--once",
        "--delete-after",
        "--on-blocker",
        "--config",
        "--log-format",
    ],
    "tap": ["--stream", "--outbox", "--from", "--to", "--follow", "--types", "--output"],
    "flux": ["--database", "--outbox", "--batch", "--skip-bad", "--json"],
    "emit": ["--database", "--outbox", "--type", "--subject", "--data", "--header", "--json"],
    "status": ["--database", "--stream", "--outbox", "--json"],
    "verify": ["--database", "--stream", "--outbox", "--json"],
    "rebase": ["--database", "--stream", "--outbox", "--dry-run", "--yes", "--json"],
    "stream info": ["--stream", "--outbox", "--json"],
    "stream check": ["--stream", "--outbox", "--json"],
    "stream trim": [
        "--stream",
        "--database",
        "--keep-days",
        "--keep-bytes",
        "--keep-count",
        "--through",
        "--dry-run",
        "--force",
        "--json",
    ],
    "stream compact": ["--stream", "--to", "--through", "--snapshot", "--keep-tombstones", "--json"],
    "stream redact": ["--stream", "--subject", "--dry-run", "--json"],
    "stream copy": ["--stream", "--to", "--follow", "--json"],
    "stream repair": ["--stream", "--from", "--database", "--dry-run", "--json"],
    "uninstall": ["--database", "--outbox", "--force", "--json"],
}


def command_of(name: str) -> click.Command:
    found: click.Command = program
    for word in name.split():
        assert isinstance(found, click.Group)
        child = found.get_command(click.Context(found), word)
        assert child is not None, name
        found = child
    return found


@pytest.mark.parametrize("name", WORDS)
def test_the_fixed_words_are_there(name: str) -> None:
    known = {word for parameter in command_of(name).params for word in parameter.opts}
    assert not set(WORDS[name]) - known


@pytest.mark.parametrize("name", ALL)
def test_each_command_has_a_help_worth_reading(name: str) -> None:
    command = command_of(name)
    assert command.help
    assert command.short_help
    if not isinstance(command, click.Group):
        assert f"outbox {ALIASES.get(name, name)}" in (command.epilog or ""), "an example"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_the_reference_in_the_docs_is_not_stale() -> None:
    assert PAGE.read_text("utf-8").split() == render().split(), "run: python docs/generate_cli.py"


def test_help_is_quick_to_load() -> None:
    code = (
        "import sys; from cli.main import run; assert run(['--help']) == 0; assert run(['tap', '--help']) == 0\n"
        "heavy = {'pyarrow', 'sqlalchemy', 'psycopg', 'pymysql', 'rich', 'structlog'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), cwd=ROOT, stdout=subprocess.DEVNULL)


def test_version() -> None:
    assert re.fullmatch(r"outbox \d+\.\d+\.\d+\S*\n", succeed("--version"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["emti"], "there is no command 'emti', did you mean 'emit'?"),
        (["tap", "--form", "1"], "No such option '--form'"),
        (["emit"], "Missing option '--type'"),
        (["status"], "error: say which database: --database URL, OUTBOX_DATABASE_URL, or database = … in outbox.toml"),
        (["status", "--database", "oracle://x"], "error: --database: 'oracle://x' is not a database URL"),
        (["tap"], "error: say which stream"),
        (["tap", "--stream", "nope"], "is not a stream URL"),
        (["tap", "--stream", "carrier-pigeon://x"], "there is no stream of kind carrier-pigeon://"),
        (["relay", "--database", "sqlite:///x.db", "--stream", "file:x", "--delete-after", "soon"], "error: --delete-after: 'soon'"),
        (["emit", "--database", "sqlite:///x.db", "--type", "t", "--header", "x"], "write NAME=VALUE"),
        (["emit", "--database", "sqlite:///x.db", "--type", "t", "--data", "@none"], "the file cannot be read"),
        (["flux", "--database", "sqlite:///x.db", "none.jsonl"], "none.jsonl cannot be read: No such file"),
        (["flux", "--batch", "0"], "0 is not in the range x>=1"),
        (["relay", "--database", "sqlite:///x.db", "--stream", "file:x", "--lease", "0s"], "--lease: '0s' is too short: the least is 500ms"),
        (["relay", "--database", "sqlite:///x.db", "--stream", "file:x", "--idle-poll", "0s"], "the least is 1ms"),
        (["relay", "--database", "sqlite:///x.db", "--stream", "file:x", "--batch-rows", "0"], "'0' is not a whole number above 0"),
        (["sink", "--stream", "file:x", "--table", "t", "--vacuum-after", "9d"], "--vacuum-after goes with --optimize-every"),
        (["demo", "--kills", "-1"], "-1 is not in the range x>=0"),
        (["demo", "--orders", "-5"], "-5 is not in the range x>=1"),
        (["demo", "--folder", "/proc/x"], "error: --folder /proc/x cannot be used: No such file"),
        (["check", "--config", "none.toml"], "there is no file none.toml"),
        (["relay", "--database", "sqlite:///x.db", "--stream", "memory://x"], "a stream in memory ends with its process"),
        (["status", "--database", f"sqlite:///{__file__}"], "is not a SQLite database: look at the path"),
    ],
)  # fmt: skip
def test_a_usage_error_exits_with_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    done = run(*arguments, cwd=tmp_path)
    assert message in done.stderr
    assert (done.returncode, done.stdout) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["emit", "--database", "sqlite:///x.db", "--type", "t", "--data", "{"], 1, "error: --data is not JSON"),
        (["emit", "--database", "sqlite:///x.db", "--type", "t", "--data", "NaN"], 1, "NaN is no JSON number"),
        (["emit", "--database", "sqlite:///x.db", "--type", "t", "--data", "123", "--max-data-bytes", "2"], 1, "raise --max-data-bytes"),
        (["emit", "--database", "sqlite:///x.db", "--type", ""], 1, "error: type has 0 characters"),
        (["emit", "--database", "sqlite:///x.db", "--type", "t"], 1, "Is outbox installed (`outbox init`)"),
        (["status", "--database", "sqlite:///x.db"], 1, "error: there is no out table outbox"),
        (["status", "--database", "sqlite:///y.db"], 1, "error: there is no database file y.db: look at the path"),
        (["tap", "--stream", "file:none"], 1, "error: there is no stream in"),
        (["init", "--database", "sqlite:////no/such/folder/x.db"], 2, "error: "),
        (["status", "--database", "postgresql://u:s3cret@127.0.0.1:1/x?connect_timeout=2"], 75, "error: "),
        (["status", "--database", "mysql://u:s3cret@127.0.0.1:1/x"], 75, "error: "),
        (["status", "--database", "postgresql://u:p@s3cret@127.0.0.1:1/x"], 2, "must be percent-encoded"),
        (["status", "--database", "u:s3cret@127.0.0.1:1/x"], 2, "'u:***@127.0.0.1:1/x' is not a database URL"),
        (["check", "--database", "postgresql:/u:s3cret@127.0.0.1:1/x"], 2, "is not a database URL"),
        (["demo", "--database", "postgres:u:s3cret@127.0.0.1:1/x"], 2, "is not a database URL"),
        (["status", "--database", "postgresql://u:s3cret s3cret@127.0.0.1:1/x"], 2, 'unexpected spaces found in "***"'),
        (["status", "--database", "postgresql://u:s3cret%zz@127.0.0.1:1/x"], 2, 'percent-encoded token: "***"'),
    ],
)  # fmt: skip
def test_an_error_is_one_message_and_an_exit_code(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "x.db").touch()
    done = run(*arguments, cwd=tmp_path)
    assert message in done.stderr
    assert (done.returncode, done.stdout) == (code, "")
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]
    assert "Traceback" not in done.stderr
    assert "s3cret" not in done.stderr


def test_debug_shows_the_traceback_but_no_password(tmp_path: Path) -> None:
    url = "postgresql://u:s3cret@127.0.0.1:1/x?connect_timeout=2"
    done = run("status", "--database", url, cwd=tmp_path, OUTBOX_DEBUG="1")
    assert "Traceback" in done.stderr
    assert "s3cret" not in done.stderr
    assert done.returncode == 75


def test_every_error_of_the_tree_has_its_exit_code() -> None:
    codes = {kind.__name__: kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)}
    assert {name: codes[name] for name in ("OutboxError", "UsageError", "CheckFailed", "Terminal", "Transient")} == {
        "OutboxError": 1,
        "UsageError": 2,
        "CheckFailed": 3,
        "Terminal": 4,
        "Transient": 75,
    }


def test_an_indented_line_of_a_driver_belongs_to_the_one_before(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_error(ValueError(), "no answer\n\tIs the server running?\nnothing was committed")
    assert capsys.readouterr().err == "error: no answer Is the server running?\nnothing was committed\n"


def test_printed_texts_cannot_steer_a_terminal() -> None:
    assert printing.printable("a\x1b[31m\x9b\r\nb é😀") == "a\\x1b[31m\\x9b\\r\\nb é😀"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("at postgresql://u:pw@h/d: no", "at postgresql://u:***@h/d: no"),
        ("postgresql://u:p@w/x@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://h/d?user=u&password=pw&x=1 failed", "postgresql://h/d?user=u&password=***&x=1 failed"),
        ("http://host:80/x and me@example.com", "http://host:80/x and me@example.com"),
        ("file:///a/b@c", "file:///a/b@c"),
    ],
)
def test_passwords_are_taken_out_of_texts(text: str, redacted: str) -> None:
    assert printing.redacted(text) == redacted


def test_json_of_dataclasses_times_and_sets() -> None:
    from stream_store import Damage, StreamCheck

    check = StreamCheck("file:///x", None, 1, 0, 1, 1, 1, 0, 0, 9, 0, (Damage("f", 3, "bad"),))
    shown = printing.plain({"check": check, "at": datetime(2026, 1, 1, tzinfo=UTC), "set": {2, 1}})
    assert json.loads(json.dumps(shown)) == shown
    assert shown["check"]["ok"] is False
    assert shown["check"]["damage"] == [{"file": "f", "offset": 3, "what": "bad"}]
    assert (shown["at"], shown["set"]) == ("2026-01-01T00:00:00+00:00", [1, 2])


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.25, "0.25 s"), (90, "90 s"), (840, "14 min"), (9000, "2.5 h"), (200_000, "2.31 d")]
)
def test_durations_for_people(seconds: float, shown: str) -> None:
    assert printing.duration(seconds) == shown


@pytest.mark.parametrize(("size_bytes", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3 TiB")])
def test_sizes_for_people(size_bytes: int, shown: str) -> None:
    assert printing.size(size_bytes) == shown
