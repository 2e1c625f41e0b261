"""What an application pays for `import outbox`, seen in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {
    "pyarrow",
    "pyspark",
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "adbc_driver_sqlite",
    "connectorx",
    "sqlalchemy",
    "psycopg",
    "pymysql",
    "sqlite3",
    "asyncpg",
    "django",
    "numpy",
    "pandas",
    "tenacity",
    "structlog",
    "click",
    "rich",
    "connector",
    "cli",
    "stream_store",
    "spark_sink",
}


def loaded_by(code: str) -> set[str]:
    """The top-level packages that are loaded after running `code`."""
    program = f"{code}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_import_outbox_loads_nothing_heavy():
    assert not loaded_by("import outbox") & HEAVY


def test_emit_on_sqlite_loads_no_arrow_and_no_sqlalchemy():
    code = """
import sqlite3, outbox
from outbox.queries import block
connection = sqlite3.connect(":memory:")
connection.execute("CREATE TABLE outbox (id integer PRIMARY KEY, type, subject, data, data_bytes, datacontenttype, headers)")
outbox.Outbox().emit(connection, type="order.paid", data={"total": 1})
assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
"""
    assert loaded_by(code) & HEAVY == {"sqlite3"}


def test_memory_outbox_loads_nothing_heavy():
    assert not loaded_by("import outbox; outbox.MemoryOutbox().emit(None, type='t')") & HEAVY


@pytest.mark.parametrize(("name", "brings"), [("EventBatch", "pyarrow"), ("table", "sqlalchemy")])
def test_heavy_names_are_loaded_when_used(name, brings):
    assert brings in loaded_by(f"import outbox; outbox.{name}")
    assert brings in loaded_by(f"from outbox import {name}")


def test_every_public_name_is_there():
    import outbox

    assert all(getattr(outbox, name) is not None for name in outbox.__all__)
    assert set(outbox.__all__) <= set(dir(outbox))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = outbox.nothing
