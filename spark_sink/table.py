"""A Delta table that carries its own bookmark: made, looked at, guarded, appended to, merged into."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog
from pyspark.sql.types import StructType

from outbox.errors import TableChanged, TableConflict, UsageError, WrongPartner
from spark_sink import delta, durability
from spark_sink.columns import missing, require_types, spelled
from spark_sink.guard import bookmark_at, judge, operation_of, restored_version, same_files_as, undone_since
from spark_sink.keys import quoted
from spark_sink.lock import commits_collide, table_lock
from spark_sink.note import GENERATION, Note, app_id_of
from spark_sink.public import PublicLog, PublicSnapshot
from spark_sink.session import session_beside
from spark_sink.spec import EVENT_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from delta import DeltaTable
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

    from spark_sink.delta import Commit
    from spark_sink.guard import Verdict
    from spark_sink.names import TableName

log: Any = structlog.get_logger()

PROPERTY = "outbox."
# The name that the table was made with: its dead letters are under it, wherever the table has been moved since.
NAME = PROPERTY + "name"
_TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
RETENTION = "delta.setTransactionRetentionDuration"
# Whatever a user's session has: equal events make equal rows.
SESSION = {
    # A projection that meets a bad value gives NULL, and the row its own verdict.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # A table that is replaced is replaced with all of its partitions.
    "spark.sql.sources.partitionOverwriteMode": "static",
}
# Other readers refuse these two; checkpoints at every tenth commit cost seconds.
DEFAULT_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "100",
}


@dataclass(frozen=True)
class State:
    """One look at a table."""

    snapshot: delta.Snapshot | PublicSnapshot
    version: int
    app_id: str
    bookmark: int
    properties: Mapping[str, str]
    # A table that was only just made has none, and its bookmark is 0.
    has_bookmark: bool = True


class Table:
    """One table and one outbox. `role` tells several bookmarks in one table apart."""

    def __init__(
        self,
        spark: SparkSession,
        name: TableName,
        outbox_id: str,
        *,
        role: str = "main",
        row_key: tuple[str, ...] = (),
        internals: bool | None = None,
        lock: bool = True,
        mend: str | None = None,
    ) -> None:
        self.name = name
        # What to do when it is gone.
        self._mend = mend or f"make it anew with `outbox replay --rebuild --table {name}`"
        # What tells rows apart beside the event's ID.
        self._row_key = row_key
        # A session of its own: the settings around a MERGE must not reach anyone else's writes, nor theirs ours.
        self.spark = session_beside(spark)
        for key, value in SESSION.items():
            self.spark.conf.set(key, value)
        for key in (_TXN_APP_ID, _TXN_VERSION, _USER_METADATA):
            self.spark.conf.unset(key)
        if not name.is_path and len(name.parts) == 1:
            # A view of the user's would come before the table.
            self.spark.catalog.dropTempView(name.parts[0])
        self._outbox_id = outbox_id
        self._role = role
        self._lock = lock
        self._is_inside = False
        self._internals = delta.is_reachable(spark) if internals is None else internals
        self._open_log: delta.Log | PublicLog | None = None
        # The version through which everything is known to be harmless, of which table, and which is durable.
        self._known_version = -1
        self._known_app_id = ""
        self._synced_version = -1
        self._warned = False

    @property
    def uses_internals(self) -> bool:
        return self._internals

    def exists(self) -> bool:
        from delta import DeltaTable

        if self.name.is_path:
            return bool(DeltaTable.isDeltaTable(self.spark, self.name.text))
        return bool(self.spark.catalog.tableExists(self.name.sql))

    def locked(self) -> AbstractContextManager[None]:
        """Nobody else of us writes the table inside; whoever is inside may come in again."""
        folder = self.name.folder or self._local_location()
        if folder is not None:
            return self._inside(folder) if self._lock and not self._is_inside else nullcontext()
        self._warn_of_collisions()
        return nullcontext()

    @contextmanager
    def _inside(self, folder: Path) -> Iterator[None]:
        with table_lock(folder, self._java_file):
            self._is_inside = True
            try:
                yield
            finally:
                self._is_inside = False

    def _warn_of_collisions(self) -> None:
        if self._warned or self._role != "main" or not self.exists():
            return
        self._warned = True
        if commits_collide(self._location(), lambda name: self.spark.conf.get(name, None)):
            log.warning(
                "two processes that write this table at once can lose a commit: Delta keeps them apart on S3 only by a log "
                "store of yours, and there is none. Run one sink, and no replay, dlq or optimize beside it; see docs/spark.md",
                table=str(self.name),
            )

    @cached_property
    def _java_file(self) -> Any:
        return delta.java_file(self.spark)

    def create(
        self,
        columns: StructType,
        properties: Mapping[str, str],
        partition_by: tuple[str, ...] = (),
        cluster_by: tuple[str, ...] = (),
    ) -> None:
        """Make the empty table; nothing when somebody else has made it meanwhile."""
        from delta import DeltaTable

        builder = DeltaTable.createIfNotExists(self.spark)
        builder = builder.location(self.name.text) if self.name.is_path else builder.tableName(self.name.sql)
        builder = builder.addColumns(columns)
        if partition_by:
            builder = builder.partitionedBy(*partition_by)
        if cluster_by:
            builder = builder.clusterBy(*cluster_by)
        own = {PROPERTY + "outbox_id": self._outbox_id, PROPERTY + "format": "1"}
        for key, value in {**DEFAULT_PROPERTIES, **properties, **own}.items():
            builder = builder.property(key, value)
        try:
            builder.execute()
        except Exception as error:
            if not delta.is_conflict(error) and not self.exists():
                raise

    def look(self) -> State:
        """The table's bookmark, believed only after everything since our last commit was looked at."""
        state = self._state()
        self._require_ours(state)
        if state.version > self._known_version:
            self._judge(state)
            self._known_version = state.version
        return state

    def peek(self, *, need_bookmark: bool = True) -> State:
        """The table's bookmark as it says, whatever has happened to it.

        `need_bookmark`: not having one is an error in a table that holds rows; else it is 0.
        """
        return self._state(need_bookmark=need_bookmark)

    def verdict(self, state: State) -> Verdict:
        """What others have done to a table of ours since our last commit."""
        self._require_ours(state)
        return judge(self._log.commits(state.version), state.app_id, newest=state.version)

    def append(self, rows: DataFrame | None, state: State, note: Note) -> State:
        """Append rows and move the bookmark, if it still is where `state` saw it.

        `TableConflict` when somebody else has moved it: nothing was written.
        """
        assert note.bookmark >= state.bookmark or note.role == "reset", (note, state.bookmark)
        with self.conflicting():
            version = self._append(rows, state, replace(note, seen=state.version))
        self._known_version = version if version == state.version + 1 else self._known_version
        return self._state()

    def replace(
        self,
        rows: DataFrame,
        state: State,
        note: Note,
        properties: Mapping[str, str],
        partition_by: tuple[str, ...] = (),
    ) -> State:
        """Put rows, with their columns, in the place of everything that the table holds.

        `TableConflict` when anybody has committed since `state` was read: nothing was written.
        """
        assert note.bookmark >= state.bookmark, (note, state.bookmark)
        note = replace(note, seen=state.version)
        properties = {**properties, PROPERTY + "outbox_id": self._outbox_id, PROPERTY + "format": "1"}
        if GENERATION in state.properties:  # a part of the bookmark's name
            properties[GENERATION] = state.properties[GENERATION]
        if isinstance(self._log, delta.Log):
            assert isinstance(state.snapshot, delta.Snapshot)
            with self.conflicting():
                transaction = self._log.begin(state.snapshot)
                transaction.depend_on(state.app_id)
                transaction.replace(rows, rows.schema.json(), partition_by, properties)
                transaction.mark(state.app_id, note.bookmark, int(time.time() * 1000))
                self._known_version = transaction.commit(note.encode())
            return self._state()
        if self._state(need_bookmark=False).version != state.version:
            raise TableConflict(f"{self.name}: somebody else has committed since {state.bookmark} was read")
        self._overwrite(rows.write.option("overwriteSchema", "true").partitionBy(*partition_by), state, note)
        # Two commits here: a crash between them leaves a table that is described as before, and to be replaced again.
        self.set_properties(properties, replace(note, role="schema"))
        self.unset_properties([name for name in state.properties if name not in properties])
        return self._state()

    def replace_where(self, rows: DataFrame, state: State, note: Note, condition: str) -> None:
        """Put rows in the place of those that meet a condition. `rows` must be of this table's session."""
        self._overwrite(rows.write.option("replaceWhere", condition), state, note)

    def _overwrite(self, writer: DataFrameWriter, state: State, note: Note) -> None:
        writer = writer.format("delta").mode("overwrite")
        with self.merging(state, note):
            if self.name.is_path:
                writer.save(self.name.text)
            else:
                writer.saveAsTable(self.name.sql)

    @contextmanager
    def conflicting(self) -> Iterator[None]:
        """Raise `TableConflict` where Delta refuses a commit because of somebody else's."""
        try:
            yield
        except Exception as error:
            if delta.is_conflict(error):
                raise TableConflict(f"{self.name}: somebody else has committed meanwhile") from error
            raise

    def _append(self, rows: DataFrame | None, state: State, note: Note) -> int:
        if isinstance(self._log, delta.Log):
            assert isinstance(state.snapshot, delta.Snapshot)
            transaction = self._log.begin(state.snapshot)
            transaction.depend_on(state.app_id)
            if rows is not None:
                require_types(self.name, self.schema(state), rows.schema)
                transaction.write(rows)
            transaction.mark(state.app_id, note.bookmark, int(time.time() * 1000))
            return transaction.commit(note.encode())
        if rows is None and note.bookmark <= state.bookmark:
            self._put_back(state, note)
        else:
            self._insert(rows, state, note)
        return int(self._log.snapshot().version)

    def _insert(self, rows: DataFrame | None, state: State, note: Note) -> None:
        """Insert what is not there yet. Without rows, only the bookmark moves."""
        if rows is None:
            rows, same = self.spark.createDataFrame([], self.schema(state)), "false"
        else:
            id_column = "_event_id" if "_event_id" in rows.columns else "id"
            named = dict.fromkeys((id_column, *self._row_key))
            # Bounded: only rows behind the batch's beginning can be there already.
            same = " AND ".join([f"t.`{id_column}` > {note.after}", *(f"t.`{name}` = s.`{name}`" for name in named)])
        with self.merging(state, note) as target:
            # By name: somebody may have added a column, which our rows do not have.
            values: dict[str, str | Column] = {quoted(name): f"s.{quoted(name)}" for name in rows.columns}
            target.alias("t").merge(rows.alias("s"), same).whenNotMatchedInsert(values=values).execute()

    def _put_back(self, state: State, note: Note) -> None:
        """Move the bookmark back, or leave it and say so, by public means.

        Delta takes a bookmark that is not above the last one for a batch that was done before. So
        the bookmark gets another name, and the note alone says where it is until the next batch.
        """
        named = {GENERATION: uuid4().hex}
        app_id = app_id_of(self._outbox_id, state.snapshot.table_id, named, self._role)
        self.set_properties(named, replace(note, app_id=app_id))

    @contextmanager
    def merging(self, state: State, note: Note) -> Iterator[DeltaTable]:
        """The table for one MERGE that carries the bookmark; checked after it."""
        note = replace(note, seen=state.version)
        settings = {
            _TXN_APP_ID: state.app_id,
            _TXN_VERSION: str(note.bookmark),
            _USER_METADATA: note.encode(),
        }
        if note.bookmark <= state.bookmark:
            # Delta would skip it as done: the bookmark stays where it is.
            settings = {_USER_METADATA: note.encode()}
        with self.session_settings(settings), self.conflicting():
            yield self.delta_table()

    @contextmanager
    def session_settings(self, settings: Mapping[str, str]) -> Iterator[None]:
        for key, value in settings.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key in settings:
                self.spark.conf.unset(key)

    def delta_table(self) -> DeltaTable:
        from delta import DeltaTable

        if self.name.is_path:
            return DeltaTable.forPath(self.spark, self.name.text)
        return DeltaTable.forName(self.spark, self.name.sql)

    def rows(self) -> DataFrame:
        return self.delta_table().toDF()

    def schema(self, state: State) -> StructType:
        return StructType.fromJson(json.loads(state.snapshot.schema_json))

    def set_properties(self, properties: Mapping[str, str], note: Note) -> None:
        pairs = ", ".join(f"'{key}' = '{_escaped(value)}'" for key, value in properties.items())
        with self.session_settings({_USER_METADATA: note.encode()}), self.conflicting():
            self.spark.sql(f"ALTER TABLE {self.name.sql} SET TBLPROPERTIES ({pairs})")

    def cluster_by(self, columns: Sequence[str], note: Note) -> None:
        """Lay out what is written from now on by these columns; by none."""
        how = f"({', '.join(f'`{name}`' for name in columns)})" if columns else "NONE"
        with self.session_settings({_USER_METADATA: note.encode()}), self.conflicting():
            self.spark.sql(f"ALTER TABLE {self.name.sql} CLUSTER BY {how}")

    def unset_properties(self, names: Sequence[str]) -> None:
        if names:
            quoted = ", ".join(f"'{_escaped(name)}'" for name in names)
            with self.conflicting():
                self.spark.sql(f"ALTER TABLE {self.name.sql} UNSET TBLPROPERTIES IF EXISTS ({quoted})")

    def drop(self) -> None:
        """Remove the table and its files."""
        folder = self.name.folder
        if not self.name.is_path:
            self.spark.sql(f"DROP TABLE IF EXISTS {self.name.sql}")
        elif folder is not None:
            # Out of the way at once: a crash must not leave half of a table under its name.
            aside = folder.with_name(f".{folder.name}.removed-{uuid4().hex}")
            folder.rename(aside)
            for each in folder.parent.glob(f".{folder.name}.removed-*"):  # of an earlier crash, too
                shutil.rmtree(each, ignore_errors=True)
            if isinstance(self._log, delta.Log):
                self._log.forget()
        elif isinstance(self._log, delta.Log):
            self._log.remove()
        else:
            log.warning(
                "this session cannot remove the files of a table that is no longer needed", table=str(self.name)
            )
        self._open_log = None

    def add_columns(self, wanted: StructType, state: State, note: Note) -> list[str]:
        """Add what the table lacks of columns and of members of structs, at the end; their paths."""
        added = []
        for path, kind in missing(self.schema(state), wanted):
            place = ".".join(quoted(name) for name in path)
            with self.session_settings({_USER_METADATA: note.encode()}), self.conflicting():
                try:
                    self.spark.sql(f"ALTER TABLE {self.name.sql} ADD COLUMNS ({place} {spelled(kind)})")
                except Exception:
                    # One that is there by now was added by another sink.
                    if path in dict(missing(self.rows().schema, wanted)):
                        raise
            added.append(".".join(path))
        return added

    def make_durable(self, state: State) -> None:
        """Return when the version is on the disk; object stores do that by themselves."""
        folder = self.name.folder or self._local_location()
        if folder is not None and state.version > self._synced_version:
            # Versions before our time were made durable by those who made them, or by us now.
            first = max(self._synced_version + 1, state.version - 100, 0)
            durability.sync_versions(folder, first, state.version)
            self._synced_version = state.version

    def true_bookmark(self, state: State) -> int | None:
        """What the rows stand for after RESTOREs, by the notes in the history."""
        commits = list(self._log.commits(state.version))
        return bookmark_at(commits, state.version, state.app_id, self._restored)

    def undone(self, state: State) -> tuple[tuple[int, Note], ...]:
        """Our commits that RESTOREs have undone, by their versions."""
        commits = list(self._log.commits(state.version))
        return undone_since(commits, state.version, state.app_id, self._restored)

    def _restored(self, commit: Commit) -> int | None:
        """The version that a RESTORE went back to, by its number or by the files that it left."""
        found = restored_version(commit)
        if found is None and isinstance(self._log, delta.Log):
            return same_files_as(self._log.file_changes(commit.version))
        return found

    def commits(self, state: State) -> Iterator[Commit]:
        return self._log.commits(state.version)

    @property
    def _log(self) -> delta.Log | PublicLog:
        if self._open_log is None:
            self._open_log = (
                delta.Log(self.spark, self._location()) if self._internals else PublicLog(self.spark, self.name)
            )
        return self._open_log

    def _location(self) -> str:
        if self.name.is_path:
            return self.name.text
        return str(self.spark.sql(f"DESCRIBE DETAIL {self.name.sql}").collect()[0]["location"])

    def _local_location(self) -> Any:
        from spark_sink.names import TableName

        if self.name.is_path or not self.exists():
            return None
        return TableName(self._location()).folder

    def _state(self, *, need_bookmark: bool = True) -> State:
        snapshot = self._log.snapshot()
        if not snapshot.exists:
            self._open_log = None
            raise TableChanged(f"{self.name} is gone: it was dropped or moved. Put it back, or {self._mend}")
        properties = snapshot.properties
        app_id = app_id_of(self._outbox_id, snapshot.table_id, properties, self._role)
        bookmark = snapshot.marker(app_id)
        if bookmark is None and GENERATION in properties:
            bookmark = bookmark_at(list(self._log.commits(snapshot.version)), snapshot.version, app_id)
        state = State(snapshot, snapshot.version, app_id, bookmark or 0, properties, bookmark is not None)
        if app_id != self._known_app_id or state.version < max(self._known_version, self._synced_version):
            # Another table under the name, or an older copy of it: nothing is known of its versions.
            self._known_version = self._synced_version = -1
            self._known_app_id = app_id
        if bookmark is None and need_bookmark and not self._is_fresh(state):
            if self._log.snapshot().version > snapshot.version:
                # By public means a look takes several queries, and a batch has come between them.
                return self._state()
            self.require_owner(state)
            raise TableChanged(
                f"{self.name} holds rows and no bookmark of this outbox: it was not made by this sink, or it is a CLONE, "
                f"or it was replaced. Name another table, or make this one anew with `outbox replay --rebuild --table {self.name}`"
            )
        return state

    def _is_fresh(self, state: State) -> bool:
        """No bookmark is 0 in a table that we made and nobody has written to, and an error in any other."""
        is_made_by_us = PROPERTY + "outbox_id" in state.properties
        return self._role != "main" or (is_made_by_us and not state.snapshot.files)

    def require_owner(self, state: State) -> None:
        """Refuse a table of another outbox."""
        owner = state.properties.get(PROPERTY + "outbox_id")
        if owner is not None and owner != self._outbox_id:
            raise WrongPartner(
                f"{self.name} belongs to outbox {owner}, the stream to outbox {self._outbox_id}: name the right stream, or "
                "another table"
            )

    def _require_ours(self, state: State) -> None:
        self.require_owner(state)
        if RETENTION in state.properties:
            raise TableChanged(
                f"{self.name} has {RETENTION} = {state.properties[RETENTION]}: Delta would forget the bookmark. "
                f"ALTER TABLE {self.name.sql} UNSET TBLPROPERTIES ('{RETENTION}')"
            )

    def _judge(self, state: State) -> None:
        commits = self._log.commits(state.version, self._known_version + 1)
        verdict = judge(commits, state.app_id, self._known_version, state.version)
        if verdict.rewound is not None:
            where = restored_version(verdict.rewound)
            to = f" to version {where}" if where is not None else ""
            way = (
                f"`outbox sink --after-restore replay --table {self.name}` writes what is missing again"
                if verdict.rewound.operation == "RESTORE"
                else f"`outbox replay --rebuild --table {self.name}` makes the table anew from the stream"
            )
            raise TableChanged(
                f"{self.name}: version {verdict.rewound.version} is a {operation_of(verdict.rewound)}{to}, so its bookmark "
                f"{state.bookmark} says more than its rows hold. {way}"
            )
        if verdict.foreign:
            first = verdict.foreign[-1]
            raise TableChanged(
                f"{self.name}: version {first.version} is a {operation_of(first)} that is not ours"
                f"{f' (and {len(verdict.foreign) - 1} more)' if len(verdict.foreign) > 1 else ''}: rows may be doubled or "
                f"missing. Look at it (DESCRIBE HISTORY, `outbox verify --table {self.name}`), then either "
                f"`outbox table accept --table {self.name}` or `outbox replay --rebuild --table {self.name}`"
            )
        if not verdict.whole:
            raise TableChanged(
                f"{self.name}: its history no longer reaches back to our last commit, so nobody can say what others have done "
                f"since. Look at it (`outbox verify --table {self.name}`), then either `outbox table accept --table {self.name}` "
                f"or `outbox replay --rebuild --table {self.name}`"
            )
        if verdict.note is not None and verdict.note.bookmark != state.bookmark:
            raise TableChanged(
                f"{self.name}: its bookmark is {state.bookmark}, our last commit (version {verdict.version}) says "
                f"{verdict.note.bookmark}: `outbox replay --rebuild --table {self.name}`"
            )
        if verdict.note is not None and self._known_version >= 0:
            mine = Note(state.app_id, 0, 0, 0).writer
            if verdict.note.writer != mine:
                log.warning("another sink works on this table too", table=str(self.name), writer=verdict.note.writer)


def require_same(table: TableName, properties: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse to write in another mode, by another key or under another ID than the table was made with."""
    for name, value in wanted.items():
        found = properties.get(PROPERTY + name)
        if found is not None and found != value:
            why = {
                EVENT_ID: " because it had a schema or a projection, and now has neither",
                "id": " because it had neither schema nor projection, and now has one",
            }.get(found if name == "id_column" else "", "")
            raise UsageError(
                f"{table} was made with {name} = {found}, now it is to be {value}{why}: put it back, or make the table anew "
                f"with `outbox replay --rebuild --table {table}`"
            )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
