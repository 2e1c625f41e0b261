"""The Spark session that the sink works in: one that is there, or a new one with fit settings.

Nothing here assumes local mode. On one machine the settings make small commits fast; a
cluster gets only what Delta needs, and the packages that its executors import.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox.errors import OutboxError, UsageError
from spark_sink.jars import INSTALL, local_jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

JAVA_VERSION = 17
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# What executors import: the reader of streams, and what it stands on. Beside these they need pyarrow.
SHIPPED = ("outbox", "stream_store", "spark_sink", "pyspark_outbox")
ARCHIVE = "outbox_packages.zip"
# It needs sessions beside the given one, and the number of its tasks; Connect gives neither.
CONNECT = (
    "the sink does not work through Spark Connect: run it where the driver is, by spark-submit or by --master "
    'with the cluster\'s own URL; format("outbox") can be read through Connect'
)
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOOPBACK = "127.0.0.1"
LOGGING = Path(__file__).absolute().with_name("log4j2.properties")


def open_session(
    *, master: str | None = None, conf: Mapping[str, str] | None = None, app: str = "outbox sink"
) -> SparkSession:
    """The session of this process if there is one (notebooks, managed platforms), else a new one.

    `master` is a local one unless given: `local[4]`, `spark://host:7077`, `yarn`, `k8s://…`. Under
    `spark-submit` it is what was submitted to. `conf` comes before every setting of ours.
    """
    if find_spec("pyspark") is None:
        raise UsageError(f"pyspark is not installed, and the Spark sink needs it: {INSTALL}")
    given = dict(conf or {})
    running = _running()
    if running is not None:
        _require_settings(running, master, given)
        return running
    if master is not None and master.startswith("sc://"):
        raise UsageError(CONNECT)
    session = _submitted(master, given, app) if _is_submitted() else _start(master, {**_defaults(), **given}, app)
    _require_delta(session)
    return session


def session_beside(spark: SparkSession) -> SparkSession:
    """Another session with the settings, functions and views that the given one has by now.

    What is set in it reaches nobody else. A new session would know nothing that was set or
    registered since the start: no credentials, no functions of the user's.
    """
    try:
        # Spark's own way for its streaming queries; not part of its public interface.
        cloned = spark._jsparkSession.cloneSession()
    except Exception:
        found = spark.newSession()
        for key, value in spark.conf.getAll.items():
            if found.conf.isModifiable(key):
                found.conf.set(key, value)
        return found
    return type(spark)(spark.sparkContext, cloned)


def is_local(master: str) -> bool:
    """Whether driver and executors are one process."""
    return master == "local" or master.startswith("local[")


def settings(master: str) -> dict[str, str]:
    """Our settings for a master, without the jars."""
    needed = {
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
        "spark.sql.session.timeZone": "UTC",
    }
    return {**needed, **_local_settings(master)} if is_local(master) else needed


def _local_settings(master: str) -> dict[str, str]:
    cores = master.removeprefix("local").strip("[]").split(",")[0]
    partitions = (os.cpu_count() or 1) if cores == "*" else int(cores or 1)
    return {
        # The default of 50 partitions for the table's own log makes an append 5 s instead of 1.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": str(max(2, partitions)),
        "spark.driver.memory": "2g",
        # A laptop's host name may lead nowhere, or to a network that is gone tomorrow.
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        JAVA_OPTIONS: f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
    }


def _running() -> SparkSession | None:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        # Also the default session, which is not the active one in a thread of its own.
        session = SparkSession.active()
        # A session whose context was stopped by someone stays the default one.
        session.conf.get("spark.app.name", "")
    except (PySparkRuntimeError, AttributeError):
        return None
    return session


def _require_settings(session: SparkSession, master: str | None, given: Mapping[str, str]) -> None:
    """Apply `given` to a session that was there before; what cannot be applied is an error."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise UsageError(CONNECT)
    wanted = dict(given) if master is None else {**given, "spark.master": master}
    for key, value in wanted.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
        elif (found := session.conf.get(key, None)) != value:
            raise UsageError(
                f"{key}={value} is asked for, but the Spark session that is already running in this process "
                f"has {found!r}, and it cannot be changed any more: set it where that session is started"
            )
    _require_delta(session)


def _require_delta(session: SparkSession) -> None:
    """Spark starts without Delta, with only a warning; the first table would fail in riddles."""
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return  # Delta is built in there, under names of its own
    if EXTENSION not in (session.conf.get("spark.sql.extensions", None) or ""):
        raise UsageError(
            f"this Spark session knows no Delta tables: start it with spark.sql.extensions={EXTENSION} "
            f"and spark.sql.catalog.spark_catalog={CATALOG}"
        )
    jvm: Any = session._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(EXTENSION):
        raise UsageError(
            "this Spark session has no jars of Delta: add "
            '--jars "$(python -m spark_sink.jars --list)" to spark-submit, or --packages with Delta\'s coordinates'
        )


def _is_submitted() -> bool:
    """Whether spark-submit has started us: then the JVM is there, and has its class path."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted(master: str | None, given: Mapping[str, str], app: str) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()  # the settings of spark-submit are in the JVM
    submitted = dict(SparkConf().getAll())
    found = submitted.get("spark.master", "local[*]")
    if master not in (None, found):
        raise UsageError(f"spark-submit has the master {found}, and outbox is given {master}: leave one out")
    ours = {**settings(found), "spark.app.name": app}
    wanted = {key: value for key, value in ours.items() if key not in submitted} | dict(given)
    if not is_local(found):
        wanted |= _shipped({**submitted, **given})
    return _configured(SparkSession.builder, wanted)


def _defaults() -> dict[str, str]:
    """The settings of spark-defaults.conf. Spark reads them too, but ours would come before them."""
    from pyspark.find_spark_home import _find_spark_home

    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    place = Path(folder) / "spark-defaults.conf"
    lines = place.read_text("utf-8").splitlines() if place.is_file() else []
    pairs = [re.split(r"\s*[=:\s]\s*", line.strip(), maxsplit=1) for line in lines]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0].startswith("spark.")}


def _start(master: str | None, given: Mapping[str, str], app: str) -> SparkSession:
    """A new session with a JVM of its own, from local jars."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    _require_java()
    master = master or given.get("spark.master", "local[*]")
    jars = local_jars(say=lambda line: print(line, file=sys.stderr))
    ours = settings(master)
    wanted = {**ours, "spark.app.name": app, **given, "spark.master": master}
    wanted["spark.jars"] = _joined([str(path) for path in jars], given.get("spark.jars"))
    if JAVA_OPTIONS in ours:
        wanted[JAVA_OPTIONS] = _joined([ours[JAVA_OPTIONS]], given.get(JAVA_OPTIONS), " ")
    if not is_local(master):
        wanted |= _shipped(given)
    # The workers must run the driver's Python: `python3` may be another one, without our packages.
    os.environ["PYSPARK_PYTHON"] = (
        given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    )
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    try:
        with _stdout_to_stderr():
            return _configured(SparkSession.builder, wanted)
    except PySparkRuntimeError as error:
        raise OutboxError(f"Spark does not start: {error}; {_java_found()}") from error
    except Py4JJavaError as error:
        first = str(error.java_exception.toString()).partition("\n")[0]
        raise OutboxError(
            f"Spark does not start on {master}: {first} Does the master answer? Spark's log above says more"
        ) from error


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What is started inside prints to stderr: what Delta says to the console is not part of our answers."""
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _configured(builder: Any, wanted: Mapping[str, str]) -> SparkSession:
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _shipped(given: Mapping[str, str]) -> dict[str, str]:
    """Settings by which executors on other machines import the same code as the driver.

    Each executor fetches the archive into its working folder before its first task, and its
    Python workers find it there. `addPyFile` would not do: data sources that Spark finds by
    itself are run without the files that were added by it.
    """
    folder = Path(tempfile.mkdtemp(prefix="outbox-packages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {
        "spark.files": _joined([str(pack(folder))], given.get("spark.files")),
        "spark.executorEnv.PYTHONPATH": _joined([ARCHIVE], given.get("spark.executorEnv.PYTHONPATH"), os.pathsep),
    }


def pack(folder: Path) -> Path:
    """Our packages as one archive that Python imports from."""
    place = folder / ARCHIVE
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in SHIPPED:
            spec = find_spec(name)
            if spec is None or spec.origin is None:
                continue
            module = Path(spec.origin)
            home = module.parent.parent if spec.submodule_search_locations else module.parent
            sources = sorted(module.parent.rglob("*.py")) if spec.submodule_search_locations else [module]
            for source in sources:
                archive.write(source, source.relative_to(home))
    return place


def _joined(ours: Sequence[str], theirs: str | None, separator: str = ",") -> str:
    return separator.join([*ours, *([theirs] if theirs else [])])


def _require_java() -> None:
    if _java() is None:
        raise UsageError(
            f"Spark needs Java {JAVA_VERSION} or newer, and there is none: install one "
            f"(on Debian: apt-get install openjdk-{JAVA_VERSION}-jre-headless), or set JAVA_HOME"
        )


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def _java_found() -> str:
    """Asked only when Spark has not started: the answer takes a JVM's start."""
    java = _java()
    if java is None:
        return f"it needs Java {JAVA_VERSION} or newer"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    first = (done.stderr or done.stdout).partition("\n")[0]
    return f"it needs Java {JAVA_VERSION} or newer, and {java} is {first or 'not one that answers'}"
