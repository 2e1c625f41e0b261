"""What a command works on: flags before `OUTBOX_*` variables before outbox.toml before defaults."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cli import printing
from cli.config import EMPTY, KEYS, PROGRAM_KEYS, Config, Given, read_config
from outbox.errors import SchemaError, UsageError
from outbox.names import OutTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from connector.options import RelayOptions
    from outbox.database import DatabaseUrl

Value = TypeVar("Value")

# The flag and the variable of each key, where they are not just its name.
_FLAGS = {"name": "--outbox"}
_VARIABLES = {"name": "OUTBOX_OUTBOX", "database": "OUTBOX_DATABASE_URL"}

FENCES = ("auto", "barrier")


def flag(key: str) -> str:
    return _FLAGS.get(key, "--" + key.replace("_", "-"))


def variable(key: str) -> str:
    return _VARIABLES.get(key, "OUTBOX_" + key.upper())


@dataclass(frozen=True)
class OutboxSettings:
    """One outbox as the user described it. What is missing or wrong is an error when asked for."""

    given: Mapping[str, Given]
    # The outbox's Delta tables, as outbox.toml describes them.
    tables: tuple[Mapping[str, Given], ...] = ()

    @property
    def table(self) -> OutTable:
        return self._parsed("name", OutTable.parse, OutTable())

    @property
    def database(self) -> DatabaseUrl:
        """A database that is there: SQLite would make an empty one of any slip in the path."""
        url = self.new_database
        if url.dialect == "sqlite" and not Path(url.path).exists():
            raise SchemaError(
                f"there is no database file {url.path}: look at the path, or install an outbox with `outbox init`"
            )
        return url

    @property
    def new_database(self) -> DatabaseUrl:
        """A database that may be made now."""
        from outbox.database import DatabaseUrl

        url = self._required("database", "URL", DatabaseUrl.parse)
        keep_secret(url)
        return url

    def require_installed(self) -> None:
        """Refuse, with the command to run, where there is no out table of this version."""
        from outbox.database import Session
        from outbox.info import read_info

        with Session(self.database, self.table) as session:
            read_info(session)

    @property
    def stream(self) -> str:
        from stream_store import StreamUrl

        url = self._required("stream", "URL", lasting)
        # One that is no URL is refused where it is opened.
        with contextlib.suppress(UsageError):
            for secret in StreamUrl.parse(url).secrets:
                printing.keep_secret(secret)
        return url

    @property
    def stream_if_given(self) -> str | None:
        return self.stream if "stream" in self.given else None

    @property
    def source(self) -> str | None:
        return self.text("source")

    def text(self, key: str) -> str | None:
        return str(self.given[key].value) if key in self.given else None

    def relay_options(self) -> RelayOptions:
        from connector.options import DeleteAfter, RelayOptions, parse_on_blocker
        from stream_store.retention import Policy

        default = RelayOptions(self.database, self.table, self.stream)
        self._parsed("name", lambda _: default.table.quoted(default.database.dialect), "")
        return RelayOptions(
            database=default.database,
            table=default.table,
            stream=default.stream,
            delete_after=self._parsed("delete_after", DeleteAfter.parse, default.delete_after),
            terminate_blocker_after_seconds=self._parsed("on_blocker", parse_on_blocker, None),
            fence=self._parsed("fence", _fence, default.fence),
            batch_rows=self._parsed("batch_rows", _positive, default.batch_rows),
            idle_poll_seconds=self._parsed("idle_poll", _at_least("1ms"), default.idle_poll_seconds),
            retain=self._parsed("retain", Policy.parse, None),
            lease_seconds=self._parsed("lease", _at_least("500ms"), default.lease_seconds),
        )

    def _required(self, key: str, what: str, parse: Callable[[str], Value]) -> Value:
        if key not in self.given:
            raise UsageError(f"say which {key}: {flag(key)} {what}, {variable(key)}, or {key} = … in outbox.toml")
        return self._parse(self.given[key], parse)

    def _parsed(self, key: str, parse: Callable[[str], Value], default: Value) -> Value:
        return self._parse(self.given[key], parse) if key in self.given else default

    def _parse(self, given: Given, parse: Callable[[str], Value]) -> Value:
        try:
            return parse(str(given.value))
        except UsageError as error:
            raise UsageError(f"{given.origin}: {error}") from error


def keep_secret(url: DatabaseUrl) -> None:
    """Never print the URL's password, as it is written and as it is meant."""
    # One that is also a name hides nothing, and would take the name out of every text.
    for password in {url.password, url.parts.password or ""} - {url.username, url.database}:
        printing.keep_secret(password)


def load_all(
    flags: Mapping[str, str | int | None],
    config: str | None = None,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> list[OutboxSettings]:
    """Each outbox that the flags, the environment and the file describe: at least one."""
    file = find_config(config, environ, folder or Path())
    above = _above(flags, environ)
    name = above.get("name")
    tables = dict(zip(map(id, file.outboxes), file.tables, strict=True))
    chosen = [given for given in file.outboxes if name is None or _same_table(given.get("name"), name)]
    if file.outboxes and not chosen and name is not None and not {"database", "stream"} & set(above):
        raise UsageError(f"{name.origin}: {file.path} has no outbox {name.value}, only {_names(file.outboxes)}")
    if not chosen or (len(chosen) > 1 and (flags.get("database") or flags.get("stream"))):
        # Whoever names a database or a stream by a flag means none of the file's outboxes.
        chosen = [{key: given for key, given in file.defaults.items() if key in KEYS}]
    if len(chosen) > 1:
        _refuse_one_for_all(above, file, chosen)
    return [OutboxSettings({**given, **above}, tables.get(id(given), ())) for given in chosen]


def _refuse_one_for_all(above: Mapping[str, Given], file: Config, chosen: Sequence[Mapping[str, Given]]) -> None:
    """A variable that would put itself in the place of what each outbox of the file has of its own."""
    databases = {given["database"].value for given in chosen if "database" in given}
    for key in ("stream", *(["database"] if len(databases) > 1 else [])):
        if key in above:
            raise UsageError(
                f"{above[key].origin} names one {key}, but {file.path} has {len(chosen)} outboxes: choose one by --outbox, "
                f"or unset {above[key].origin}"
            )


def load_one(
    flags: Mapping[str, str | int | None],
    config: str | None = None,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> OutboxSettings:
    """The one outbox that a command works on."""
    found = load_all(flags, config, environ, folder)
    if len(found) > 1:
        names = [str(settings.table) for settings in found]
        way = "--outbox NAME" if len(set(names)) == len(names) else "--database URL and --stream URL"
        raise UsageError(f"outbox.toml describes {len(found)} outboxes ({', '.join(names)}): choose one by {way}")
    return found[0]


def program_setting(key: str, flag_value: str | None, config: str | None, default: str) -> str:
    """A setting of the whole program, such as log_format."""
    if flag_value is not None:
        return flag_value
    if os.environ.get(variable(key)):
        return os.environ[variable(key)]
    given = find_config(config, os.environ, Path()).defaults.get(key)
    return default if given is None else str(given.value)


def find_config(config: str | None, environ: Mapping[str, str], folder: Path) -> Config:
    """The file named by the flag or OUTBOX_CONFIG, or outbox.toml in the working folder."""
    named = config or environ.get("OUTBOX_CONFIG")
    if named:
        return read_config(Path(named), environ)
    here = folder / "outbox.toml"
    return read_config(here, environ) if here.is_file() else EMPTY


def _above(flags: Mapping[str, str | int | None], environ: Mapping[str, str]) -> dict[str, Given]:
    """What stands above the file: flags, then variables. An empty variable is none."""
    found = {}
    for key in KEYS:
        if flags.get(key) is not None:
            found[key] = Given(flags[key], flag(key))
        elif environ.get(variable(key)):
            found[key] = Given(environ[variable(key)], variable(key))
    return found


def _names(outboxes: Sequence[Mapping[str, Given]]) -> str:
    return ", ".join(str(given["name"].value) if "name" in given else "outbox" for given in outboxes)


def _same_table(one: Given | None, other: Given) -> bool:
    return OutTable.parse(str(one.value) if one else "outbox") == OutTable.parse(str(other.value))


def lasting(text: str) -> str:
    if text.lower().startswith("memory:"):
        raise UsageError(
            f"{text!r}: a stream in memory ends with its process, and rows would be deleted for it; it is for tests in "
            "Python. Write file:///path/of/a/folder"
        )
    return text


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} is not a whole number above 0")
    return int(text)


def _at_least(shortest: str) -> Callable[[str], float]:
    """A parser of durations that are not shorter than this one."""

    def parse(text: str) -> float:
        from connector.options import parse_duration_seconds

        seconds = parse_duration_seconds(text)
        if seconds < parse_duration_seconds(shortest):
            raise UsageError(f"{text!r} is too short: the least is {shortest}")
        return seconds

    return parse


def _fence(text: str) -> str:
    if text not in FENCES:
        raise UsageError(f"{text!r}: the fence is {' or '.join(FENCES)}")
    return text


__all__ = ["FENCES", "PROGRAM_KEYS", "OutboxSettings", "flag", "load_all", "load_one", "program_setting", "variable"]
