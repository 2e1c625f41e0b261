"""The wheel, as users get it: built, installed into an empty environment, and used there."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_carries_the_sql_inside_outbox_and_no_top_level_sql(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    in_tree = {str(path.relative_to(ROOT / "sql")) for path in (ROOT / "sql").rglob("*.sql")}
    assert {name.removeprefix("outbox/sql/") for name in names if name.startswith("outbox/sql/")} == in_tree
    top = {name.split("/")[0] for name in names}
    assert top - {"outbox", "stream_store", "connector", "spark_sink", "pyspark_outbox", "cli"} == {
        name for name in top if name.endswith(".dist-info")
    }
    assert "outbox/py.typed" in names


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, cwd=tmp_path)
    outbox = environment / "bin" / "outbox"
    database = ["--database", f"sqlite:///{tmp_path / 'shop.db'}"]
    stream = ["--stream", f"file://{tmp_path / 'stream'}"]

    def run(*arguments: str) -> str:
        done = subprocess.run([outbox, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("init", *database)
    run("emit", *database, "--type", "order.placed", "--data", '{"total": 3}')
    run("relay", *database, *stream, "--once")
    assert '"type":"order.placed"' in run("tap", *stream)
    assert '"ok": true' in run("verify", *database, *stream, "--json")
