"""The inside of Delta: a transaction that begins at a known snapshot and carries our bookmark.

The only file that touches classes of Delta which are not its public interface. Tested with
Delta 4.0 on Spark 4.0 and Delta 4.4 on Spark 4.2. Where they cannot be reached (Spark
Connect, managed platforms) `is_reachable` says so, and public.py does the same by MERGE.

Why it is needed: Delta's own options for idempotent writes (`txnAppId`, `txnVersion`) skip a
batch whose number is not above the last one. That is no compare-and-set: a batch 2..5 that
was held up lands after another sink has committed 2..3, and doubles two rows. A transaction
that has read the marker from its snapshot is refused when the marker has moved since.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

# The marker has been moved by somebody else since the snapshot, or the files it depends on.
CONFLICTS = (
    "ConcurrentTransactionException",
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentWriteException",
    "MetadataChangedException",
    "ProtocolChangedException",
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
)


def is_reachable(spark: SparkSession) -> bool:
    """Whether this session lets us at Delta's own classes."""
    try:
        return callable(_gateway(spark).org.apache.spark.sql.delta.DeltaLog.forTable)
    except Exception:
        return False


def _gateway(spark: SparkSession) -> Any:
    """The way into the driver's Java, which pyspark keeps to itself."""
    return spark._jvm


def java_file(spark: SparkSession) -> Any:
    """Java's class of files, to be held open and locked by the process that commits."""
    return _gateway(spark).java.io.RandomAccessFile


def is_conflict(error: BaseException) -> bool:
    """Whether a commit was refused because somebody else committed first."""
    text = str(error)
    return any(name in text for name in CONFLICTS)


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table: what was done, and what we wrote beside it."""

    version: int
    operation: str
    parameters: Mapping[str, Any]
    metadata: str | None


@dataclass(frozen=True, slots=True)
class FileChange:
    """The data files that came and went with one version."""

    version: int
    added: frozenset[str]
    removed: frozenset[str]


class Log:
    """The log of one Delta table at a place."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._jvm: Any = _gateway(spark)
        self._none: Any = self._jvm.scala.Option.empty()
        self._log: Any = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._log.update(False, self._none, self._none), self._jvm)

    def forget(self) -> None:
        """Do not remember the table: its files are gone."""
        self._jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(self._spark._jsparkSession, self._log.dataPath())

    def remove(self) -> None:
        """Remove the table's files, wherever they are."""
        place = self._log.dataPath()
        place.getFileSystem(self._log.newDeltaHadoopConf()).delete(place, True)
        self.forget()

    def begin(self, snapshot: Snapshot) -> Transaction:
        """A transaction on what the snapshot shows, and nothing later."""
        transaction = self._log.startTransaction(self._none, self._jvm.scala.Option.apply(snapshot.java))
        return Transaction(transaction, self._jvm)

    def commits(self, newest: int, oldest: int = 0) -> Iterator[Commit]:
        """The versions from `newest` down, as far as Delta keeps their files."""
        for version, lines in self._versions(newest, oldest):
            yield _commit_of(version, lines)

    def file_changes(self, newest: int) -> Iterator[FileChange]:
        """What the versions from `newest` down did to the table's files."""
        for version, lines in self._versions(newest, 0):
            paths: dict[str, set[str]] = {"add": set(), "remove": set()}
            for line in lines:
                for kind, action in json.loads(str(line)).items():
                    if kind in paths:
                        paths[kind].add(action["path"])
            yield FileChange(version, frozenset(paths["add"]), frozenset(paths["remove"]))

    def _versions(self, newest: int, oldest: int) -> Iterator[tuple[int, Iterator[Any]]]:
        names = self._jvm.org.apache.spark.sql.delta.util.FileNames
        hadoop = self._log.newDeltaHadoopConf()
        for version in range(newest, oldest - 1, -1):
            path = names.unsafeDeltaFile(self._log.logPath(), version)
            try:
                lines = self._log.store().read(path, hadoop)
            except Exception as error:
                if "FileNotFound" in str(error) or "NoSuchFile" in str(error):
                    return
                raise
            yield version, map(lines.apply, range(lines.size()))


class Snapshot:
    """One version of a table."""

    def __init__(self, java: Any, jvm: Any) -> None:
        self.java = java
        self._jvm = jvm
        self.version = int(java.version())

    def marker(self, app_id: str) -> int | None:
        """What the table says that an application has reached."""
        checksum = self.java.checksumOpt()
        if checksum.isDefined() and checksum.get().setTransactions().isDefined():
            # Kept from commit to commit beside the log. Without it Delta goes through the table's
            # whole state for this, by a job that takes longer than a small append.
            known = checksum.get().setTransactions().get()
            each = (known.apply(at) for at in range(known.size()))
            return next((int(found.version()) for found in each if found.appId() == app_id), None)
        found = self.java.transactions().get(app_id)
        return None if found.isEmpty() else int(found.get())

    @property
    def exists(self) -> bool:
        return self.version >= 0

    @property
    def table_id(self) -> str:
        return str(self.java.metadata().id())

    @property
    def schema_json(self) -> str:
        return str(self.java.metadata().schemaString())

    @property
    def partition_by(self) -> tuple[str, ...]:
        columns = self.java.metadata().partitionColumns()
        return tuple(str(columns.apply(at)) for at in range(columns.size()))

    @property
    def properties(self) -> dict[str, str]:
        entries = self.java.metadata().configuration().toSeq()
        pairs = (entries.apply(at) for at in range(entries.size()))
        return {str(pair._1()): str(pair._2()) for pair in pairs}

    @property
    def files(self) -> int:
        checksum = self.java.checksumOpt()
        return int(checksum.get().numFiles() if checksum.isDefined() else self.java.numOfFiles())

    @property
    def size_bytes(self) -> int:
        return int(self.java.sizeInBytes())


class Transaction:
    """Rows and the marker in one commit, or nothing."""

    def __init__(self, java: Any, jvm: Any) -> None:
        self._java = java
        self._jvm = jvm
        self._none = jvm.scala.Option.empty()
        self._mode = "Append"
        self._actions = getattr(getattr(jvm, "scala.collection.immutable.Nil$"), "MODULE$")

    def depend_on(self, app_id: str) -> None:
        """Have the commit refused when the marker has moved since the snapshot.

        What Delta's `txnVersion` does, without its going through the table's whole state.
        """
        self._java.readTxn().append(app_id)

    def write(self, rows: DataFrame) -> None:
        """Write the data files; nobody sees them before the commit."""
        self._actions = self._java.writeFiles(rows._jdf).toList()

    def replace(
        self, rows: DataFrame, schema_json: str, partition_by: Sequence[str], properties: Mapping[str, str]
    ) -> None:
        """Other rows, and a table that is described by other metadata under the same ID."""
        scala = self._jvm.PythonUtils
        old = self._java.metadata()
        columns, configuration = scala.toSeq(list(partition_by)), scala.toScalaMap(dict(properties))
        new = old.copy(
            old.id(),
            old.name(),
            old.description(),
            old.format(),
            schema_json,
            columns,
            configuration,
            old.createdTime(),
        )
        self._java.updateMetadata(new, False)
        # All of them: whatever anybody adds before our commit is a conflict.
        there = self._java.filterFiles()
        self.write(rows)
        for at in range(there.size()):
            self._actions = self._actions.prepended(there.apply(at).remove())
        self._mode = "Overwrite"

    def mark(self, app_id: str, through: int, now_ms: int) -> None:
        moment = self._jvm.scala.Option.apply(now_ms)
        marker = self._jvm.org.apache.spark.sql.delta.actions.SetTransaction(app_id, through, moment)
        self._actions = self._actions.prepended(marker)

    def commit(self, metadata: str) -> int:
        """The new version. Refused (`is_conflict`) when the marker has moved since the snapshot."""
        return int(self._java.commit(self._actions, self._operation(metadata)))

    def _operation(self, metadata: str) -> Any:
        """Delta's `Write`, whose number of arguments grows from version to version; ours come first."""
        write = self._jvm.org.apache.spark.sql.delta.DeltaOperations.Write
        mode = getattr(self._jvm.org.apache.spark.sql.SaveMode, self._mode)
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        shape = loader.loadClass("org.apache.spark.sql.delta.DeltaOperations$Write")
        count = int(shape.getConstructors()[0].getParameterCount())
        rest = [self._none] * (count - 4)
        return write(mode, self._none, self._none, self._jvm.scala.Option.apply(metadata), *rest)


def _commit_of(version: int, lines: Iterator[Any]) -> Commit:
    """The `commitInfo` of a version, which Delta writes first."""
    for line in lines:
        if '"commitInfo"' in str(line):
            found = json.loads(str(line)).get("commitInfo")
            if found is not None:
                return Commit(
                    version,
                    str(found.get("operation")),
                    found.get("operationParameters") or {},
                    found.get("userMetadata"),
                )
    return Commit(version, "unknown", {}, None)
