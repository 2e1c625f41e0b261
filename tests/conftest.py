"""Fixtures that start real servers, once per run, and hand out fresh databases."""

from __future__ import annotations

import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.servers import kafka, mariadb, postgresql, redis, s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shell that starts us in the background has SIGINT ignored, and what is ignored stays so in
# the programs that the tests start: those that interrupt one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine, not about the code.
hypothesis.settings.register_profile("outbox", deadline=None)
hypothesis.settings.load_profile("outbox")

DATABASES = ["postgresql", "mariadb", "mysql", "sqlite"]


# Spark takes about as long as everything else together, and a session of it more than one core only at times.
SPARK_LANES = 2
# What one test of these files takes, beside the others; of the rest it is a few seconds.
SECONDS = {
    "test_dlq.py": 25,
    "test_redrive_properties.py": 190,
    "test_replay.py": 18,
    "test_sink_guards.py": 13,
    "test_sink_killed.py": 28,
    "test_sink_properties.py": 250,
    "test_two_sinks.py": 38,
}


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 4`: each file stays in one process, and those that share a Spark session in the same, which begin first."""
    lanes = _spark_lanes(Counter(item.path.name for item in items if _on_spark(item)))
    for item in items:
        if _on_spark(item):
            item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.xdist_group(lanes[item.path.name] if _on_spark(item) else item.path.name))
    items.sort(key=lambda item: not _on_spark(item))


def _spark_lanes(tests: Counter[str]) -> dict[str, str]:
    """The lane of each file, so that all lanes take about as long."""
    lanes: dict[str, str] = {}
    load = dict.fromkeys((f"spark {number}" for number in range(SPARK_LANES)), 0)
    seconds = {name: count * SECONDS.get(name, 6) for name, count in tests.items()}
    for name in sorted(seconds, key=lambda each: (-seconds[each], each)):
        lanes[name] = min(load, key=lambda lane: load[lane])
        load[lanes[name]] += seconds[name]
    return lanes


def _on_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def postgresql_admin_url() -> Iterator[str]:
    url, server = postgresql.admin_url()
    yield url
    if server:
        server.destroy()


@pytest.fixture(scope="session")
def mariadb_admin_url() -> Iterator[str]:
    url, server = mariadb.admin_url()
    yield url
    if server:
        server.destroy()


@pytest.fixture(scope="session")
def mysql_admin_url() -> str:
    try:
        return mariadb.mysql_admin_url()
    except Exception as error:
        pytest.skip(f"MySQL itself needs Docker or OUTBOX_TEST_MYSQL_URL, and neither is here: {error}")


@pytest.fixture(scope="session")
def redis_server_url() -> Iterator[str]:
    url, server = redis.server_url()
    yield url
    if server:
        server.destroy()


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[str]:
    """The run's broker: host:port."""
    servers, server = kafka.broker()
    yield servers
    if server:
        server.destroy()


@pytest.fixture
def redis_stream_url(redis_server_url: str) -> str:
    """The URL of a Redis stream that is not there yet."""
    return f"{redis_server_url}/{redis.fresh_name()}"


@pytest.fixture
def kafka_url(kafka_servers: str) -> str:
    return kafka.fresh_topic(kafka_servers)


@pytest.fixture
def postgresql_url(postgresql_admin_url: str) -> str:
    return postgresql.fresh_database(postgresql_admin_url)


@pytest.fixture
def mariadb_url(mariadb_admin_url: str) -> str:
    return mariadb.fresh_database(mariadb_admin_url)


@pytest.fixture
def mysql_url(mysql_admin_url: str) -> str:
    return mariadb.fresh_database(mysql_admin_url)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.S3Server]:
    """A server of the run's own, also for tests that stop it: each starts it again."""
    server = s3.S3Server().start()
    yield server
    server.destroy()


@pytest.fixture
def s3_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix on a real S3 server, for one stream."""
    given = os.environ.get("OUTBOX_TEST_S3_URL")
    if given:
        place, _, options = given.partition("?")
        return f"{place.rstrip('/')}/{uuid.uuid4().hex}?{options}"
    server: s3.S3Server = request.getfixturevalue("s3_server")
    for name, value in s3.credentials().items():
        monkeypatch.setenv(name, value)
    return server.url()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh, empty database of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def stream_url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'stream'}"


@pytest.fixture
def make_stream(tmp_path: Path) -> Callable[..., str]:
    """Call it with events (see `tests.streams.write_stream`) to write or extend a stream; it answers its URL."""

    def make(*events: dict[str, object], name: str = "stream", **options: object) -> str:
        from tests.streams import write_stream

        url = f"file://{tmp_path / name}"
        write_stream(url, events, **options)
        return url

    return make


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the run, started by the first test that needs it."""
    from spark_sink.session import open_session
    from tests.spark import MASTER, SETTINGS

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = open_session(master=MASTER, conf={**SETTINGS, "spark.sql.warehouse.dir": warehouse}, app="outbox tests")
    yield session
    session.stop()
