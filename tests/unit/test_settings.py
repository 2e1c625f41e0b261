"""Flags before variables before outbox.toml before defaults, and errors that say where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.config import read_config
from cli.settings import load_all, load_one
from connector.options import DeleteAfter
from outbox.errors import UsageError
from outbox.names import OutTable

DATABASE = "mysql://relay@db/a"
STREAM = "file:///s"

TWO = """\
delete_after = "24h"

[[outbox]]
name = "shop.outbox"
database = "postgresql://relay@db/shop"
stream = "file:///streams/shop"

[[outbox]]
name = "billing"
database = "mysql://relay@db/billing"
stream = "file:///streams/billing"
delete_after = "never"
on_blocker = "terminate after 5m"
batch_rows = 100
"""


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "outbox.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_flag_comes_before_a_variable_before_the_file_before_the_default(toml, tmp_path: Path) -> None:
    path = toml('delete_after = "1h"\ndatabase = "sqlite:///file.db"\nstream = "file:///file"\n')
    variables = {"OUTBOX_DELETE_AFTER": "2h", "OUTBOX_DATABASE_URL": "sqlite:///variable.db"}
    flags = {"delete_after": "3h"}

    def hours(flags: dict[str, str], config: str | None, environ: dict[str, str]) -> DeleteAfter:
        given = {"database": DATABASE, "stream": STREAM, **flags}
        return load_one(given, config, environ, tmp_path / "none").relay_options().delete_after

    assert hours(flags, path, variables) == DeleteAfter("age", 3 * 3600)
    assert hours({}, path, variables) == DeleteAfter("age", 2 * 3600)
    assert hours({}, path, {}) == DeleteAfter("age", 3600)
    assert hours({}, None, {}) == DeleteAfter("durable")
    assert load_one({}, path, variables).new_database.url == "sqlite:///variable.db"
    assert load_one({}, path, variables).stream == "file:///file"


def test_an_empty_variable_is_none(toml) -> None:
    path = toml('database = "sqlite:///file.db"')
    assert load_one({}, path, {"OUTBOX_DATABASE_URL": "", "OUTBOX_OUTBOX": ""}).new_database.url == "sqlite:///file.db"


def test_without_anything_the_table_is_outbox_and_the_rest_is_missing(tmp_path: Path) -> None:
    settings = load_one({}, None, {}, tmp_path)
    assert settings.table == OutTable("outbox")
    assert settings.stream_if_given is None
    with pytest.raises(UsageError, match=r"--database URL, OUTBOX_DATABASE_URL, or database = … in outbox\.toml"):
        _ = settings.database
    with pytest.raises(UsageError, match="--stream URL, OUTBOX_STREAM"):
        _ = settings.stream


def test_the_file_is_found_by_the_variable_and_in_the_working_folder(toml, tmp_path: Path) -> None:
    path = toml(f'database = "{DATABASE}"')
    assert load_one({}, None, {}, tmp_path).new_database.url == DATABASE
    assert load_one({}, None, {"OUTBOX_CONFIG": path}, tmp_path / "elsewhere").new_database.url == DATABASE


def test_a_file_describes_many_outboxes_each_over_the_defaults(toml) -> None:
    shop, billing = (settings.relay_options() for settings in load_all({}, toml(TWO), {}))
    assert (shop.table, shop.stream) == (OutTable("outbox", "shop"), "file:///streams/shop")
    assert shop.delete_after == DeleteAfter("age", 86400)
    assert shop.terminate_blocker_after_seconds is None
    assert billing.database.dialect == "mysql"
    assert billing.delete_after == DeleteAfter("never")
    assert billing.terminate_blocker_after_seconds == 300
    assert billing.batch_rows == 100


def test_one_of_many_is_chosen_by_its_name(toml) -> None:
    assert load_one({"name": "billing"}, toml(TWO), {}).stream == "file:///streams/billing"
    assert load_one({}, toml(TWO), {"OUTBOX_OUTBOX": "shop.outbox"}).stream == "file:///streams/shop"


def test_a_name_that_the_file_does_not_have_gets_its_defaults(toml) -> None:
    settings = load_one({"name": "new", "database": DATABASE, "stream": STREAM}, toml(TWO), {})
    assert settings.relay_options().table == OutTable("new")
    assert settings.relay_options().delete_after == DeleteAfter("age", 86400)


def test_a_command_for_one_outbox_does_not_guess_which(toml) -> None:
    with pytest.raises(UsageError, match=r"2 outboxes \(shop\.outbox, billing\): choose one by --outbox"):
        load_one({}, toml(TWO), {})


def test_one_stream_for_many_outboxes_is_refused(toml) -> None:
    with pytest.raises(UsageError, match=r"OUTBOX_STREAM names one stream, but .* has 2 outboxes"):
        load_all({}, toml(TWO), {"OUTBOX_STREAM": STREAM})


def test_one_database_for_outboxes_that_have_their_own_is_refused(toml) -> None:
    """A variable that a quick start had exported would relay one database's rows into another's stream."""
    with pytest.raises(UsageError, match=r"OUTBOX_DATABASE_URL names one database, but .* has 2 outboxes"):
        load_all({}, toml(TWO), {"OUTBOX_DATABASE_URL": DATABASE})
    one_database = toml(TWO.replace("postgresql://relay@db/shop", "mysql://relay@db/billing"))
    assert {each.new_database.url for each in load_all({}, one_database, {"OUTBOX_DATABASE_URL": DATABASE})} == {
        DATABASE
    }


def test_whoever_names_a_place_by_a_flag_means_none_of_the_files_outboxes(toml) -> None:
    assert load_one({"stream": STREAM}, toml(TWO), {}).stream == STREAM
    settings = load_one({"database": DATABASE}, toml(TWO), {})
    assert (settings.new_database.url, settings.stream_if_given, settings.table) == (DATABASE, None, OutTable())
    assert settings.text("delete_after") == "24h"


def test_a_name_alone_that_the_file_does_not_have_is_refused(toml) -> None:
    with pytest.raises(UsageError, match=r"--outbox: .* has no outbox nope, only shop\.outbox, billing"):
        load_one({"name": "nope"}, toml(TWO), {})


def test_outboxes_of_one_name_are_chosen_by_their_place(toml) -> None:
    with pytest.raises(UsageError, match=r"choose one by --database URL and --stream URL"):
        load_one({}, toml(TWO.replace('"shop.outbox"', '"billing"')), {})


def test_a_stream_in_memory_is_refused(toml) -> None:
    """The relay would delete rows for a stream that ends with it."""
    settings = load_one({"database": DATABASE, "stream": "memory://x"}, None, {})
    with pytest.raises(UsageError, match="--stream: 'memory://x': a stream in memory ends with its process"):
        settings.relay_options()


def test_a_table_that_the_database_cannot_have_is_refused_before_any_relay_runs(toml, tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    text = f'[[outbox]]\nname = "main.led"\ndatabase = "sqlite:///{tmp_path}/a.db"\nstream = "{STREAM}"\n'
    (settings,) = load_all({}, toml(text), {})
    with pytest.raises(UsageError, match=r"outbox\.toml:2: name: SQLite has no schemas"):
        settings.relay_options()


def test_all_options_of_a_relay() -> None:
    flags = {
        "database": DATABASE,
        "stream": STREAM,
        "name": 'a."b.c"',
        "delete_after": "materialized",
        "on_blocker": "wait",
        "fence": "barrier",
        "batch_rows": "7",
        "idle_poll": "10ms",
        "lease": "2s",
    }
    options = load_one(flags, None, {}, Path("/nowhere")).relay_options()
    assert options.table == OutTable("b.c", "a")
    assert (options.delete_after.kind, options.terminate_blocker_after_seconds, options.fence) == (
        "materialized",
        None,
        "barrier",
    )
    assert (options.batch_rows, options.idle_poll_seconds, options.lease_seconds) == (7, 0.01, 2.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delete_after", "soon"),
        ("on_blocker", "kill"),
        ("fence", "none"),
        ("batch_rows", "0"),
        ("lease", "5"),
        ("name", "a.b.c"),
    ],
)
def test_a_wrong_value_names_who_gave_it(toml, key: str, value: str) -> None:
    given = {"database": DATABASE, "stream": STREAM}
    flag = {"name": "--outbox"}.get(key, "--" + key.replace("_", "-"))
    with pytest.raises(UsageError, match=f"^{flag}: "):
        load_one({**given, key: value}, None, {}, Path("/nowhere")).relay_options()
    variable = {"name": "OUTBOX_OUTBOX"}.get(key, "OUTBOX_" + key.upper())
    with pytest.raises(UsageError, match=f"^{variable}: "):
        load_one(given, None, {variable: value}, Path("/nowhere")).relay_options()
    if key != "name":
        spelled = value if key == "batch_rows" else f'"{value}"'
        path = toml(f"# a comment\n{key} = {spelled}\n")
        with pytest.raises(UsageError, match=f"^{re.escape(path)}:2: {key}: "):
            load_one(given, path, {}).relay_options()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('databse = "x"', 1, "there is no key 'databse', did you mean 'database'?"),
        ('stream = "a"\n\n[[outbox]]\nname = "a"\nstraem = "b"\n', 5, "no key 'straem', did you mean 'stream'?"),
        ('[[outbox]]\nname = "a"\n[[outbox]]\nname = "b"\n"delete-after" = "1h"', 5, "did you mean 'delete_after'?"),
        ("zzz = 1", 1, "known are database, stream"),
        ('\nname = "x"', 2, "there is no key 'name'"),
        ("delete_after = 24", 1, "delete_after has to be text in quotes"),
        ('[[outbox]]\nbatch_rows = "7"', 2, "batch_rows has to be a whole number"),
        ("batch_rows = true", 1, "batch_rows has to be a whole number"),
        ('[outbox]\nname = "a"', 1, "write [[outbox]], in double brackets"),
        ("[relay]\nx = 1", 1, "there is no key 'relay'"),
        ('[[outbox]]\nlog_format = "json"', 2, "there is no key 'log_format'"),
        ('[[outbox]]\n\ndatabase = "${NOPE}"', 3, "database names ${NOPE}, which the environment does not have"),
        (
            '[[outbox]]\ndatabase="d"\nstream="s"\n[[outbox]]\ndatabase="d"\nstream="t"',
            4,
            "toml:1 has the same out table",
        ),
        ('[[outbox]]\nstream="s"\n\n[[outbox]]\nname="b"\nstream="s"', 4, "toml:1 has the same stream"),
    ],
)
def test_a_mistake_in_the_file_names_file_line_and_key(toml, text: str, line: int, message: str) -> None:
    path = toml(text)
    with pytest.raises(UsageError) as raised:
        read_config(Path(path), {})
    assert str(raised.value).startswith(f"{path}:{line}: "), raised.value
    assert message in str(raised.value)


def test_what_is_not_toml_is_reported_with_its_place(toml) -> None:
    path = toml('database = "x\n')
    with pytest.raises(UsageError, match=f"{re.escape(path)}: this is not TOML: .*line 1"):
        read_config(Path(path), {})


def test_a_file_that_is_not_there_is_an_error_only_when_it_was_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        load_one({}, str(tmp_path / "none.toml"), {})
    assert load_one({}, None, {}, tmp_path).given == {}


def test_urls_take_their_parts_from_the_environment(toml) -> None:
    path = toml('[[outbox]]\ndatabase = "postgresql://relay:${PASSWORD}@db/shop"\nstream = "${PLACE}"\n')
    settings = load_one({}, path, {"PASSWORD": "s3cret", "PLACE": "file:///x"})
    assert settings.database.password == "s3cret"
    assert settings.stream == "file:///x"
    assert "s3cret" not in str(settings.database)
