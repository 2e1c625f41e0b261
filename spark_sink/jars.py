"""The jars of Delta Lake: resolved once, then every session starts from local files.

    python -m spark_sink.jars           resolve them unless they are there
    python -m spark_sink.jars --list    print their paths as `spark-submit --jars` takes them

They are kept below OUTBOX_JARS, or below the user's cache folder, in a folder per pair of
versions. Spark itself resolves them, with whatever repositories, mirrors and proxies it is
configured for; Maven is asked when Spark fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from outbox.errors import OutboxError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

INSTALL = "pip install 'outbox-connector[spark]'"
SCALA = "2.13"
# From this version on, Delta has one jar per version of Spark, which is in the jar's name.
JAR_PER_SPARK = (4, 1)
RESOLVE_SECONDS = 900
PARTIAL = ".partial-"
ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class Versions:
    """What is installed: the jars must fit both."""

    pyspark: str
    delta: str

    @classmethod
    def installed(cls) -> Versions:
        try:
            return cls(version("pyspark"), version("delta-spark"))
        except PackageNotFoundError as error:
            raise UsageError(f"{error.name} is not installed, and the Spark sink needs it: {INSTALL}") from error

    @property
    def name(self) -> str:
        return f"spark-{self.pyspark}-delta-{self.delta}"

    def coordinates(self) -> list[str]:
        """Where Maven has Delta for this Spark, best first.

        A patch release can be on PyPI before its jar is published (4.4.1 was); the jar of an
        earlier patch of the same minor version does the same work.
        """
        major, minor, patch = _numbers(self.delta)
        spark = ".".join(str(number) for number in _numbers(self.pyspark)[:2])
        artifact = f"delta-spark_{spark}_{SCALA}" if (major, minor) >= JAR_PER_SPARK else f"delta-spark_{SCALA}"
        return [f"io.delta:{artifact}:{major}.{minor}.{number}" for number in range(patch, -1, -1)]


def _numbers(text: str) -> tuple[int, int, int]:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise UsageError(f"{text!r} is not a version of Spark or Delta that can be read; {INSTALL}")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def root() -> Path:
    """Where the folders of jars are kept."""
    given = os.environ.get("OUTBOX_JARS")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outbox-connector" / "jars"


def local_jars(say: Callable[[str], object] | None = None) -> list[Path]:
    """The jars for what is installed; resolved now, which `say` is told, when they are missing."""
    versions = Versions.installed()
    folder = root() / versions.name
    if not folder.is_dir():
        if say:
            say(f"resolving the jars of Delta {versions.delta} for Spark {versions.pyspark}, once, into {folder}")
        resolve(versions, folder)
    # Absolute: Spark reads a relative path against the folder of whoever reads it.
    found = sorted(path.absolute() for path in folder.glob("*.jar"))
    if not found:
        raise OutboxError(f"{folder} holds no jars: remove it, and run `python -m spark_sink.jars`")
    return found


def resolve(versions: Versions, folder: Path) -> None:
    """Make `folder` with the jars in it. It appears complete or not at all, whoever is killed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=folder.parent) as name:
        complete = _resolve_any(versions, Path(name))
        for path in complete.iterdir():
            # A jar that a power cut has emptied would be taken for a good one for ever.
            _sync(path)
        _sync(complete)
        try:
            complete.rename(folder)
        except OSError:
            # Another process has been faster; its folder is as good as ours.
            if not folder.is_dir():
                raise
    _sync(folder.parent)


def _resolve_any(versions: Versions, work: Path) -> Path:
    """A folder below `work` with Delta's jar and all that it needs."""
    failures: list[str] = []
    for number, coordinates in enumerate(versions.coordinates()):
        for how in (_by_spark, _by_maven):
            place = work / f"{number}{how.__name__}"
            place.mkdir()
            jars, failure = how(coordinates, place)
            if any(jars.glob("*delta-spark*.jar")):
                _remove_known(jars)
                return jars
            failures.append(f"{coordinates}: {failure}")
    raise OutboxError(
        f"the jars of Delta {versions.delta} for Spark {versions.pyspark} could not be resolved; "
        f"with a network, run `python -m spark_sink.jars` again; without one, copy {root() / versions.name} "
        "from a machine that has it, or set OUTBOX_JARS. Tried:\n" + "\n".join(failures)
    )


def _by_spark(coordinates: str, place: Path) -> tuple[Path, str]:
    """By the Ivy inside Spark: a program that does nothing, submitted with Delta as a package."""
    home = _spark_home()
    program = place / "nothing.py"
    program.touch()
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", coordinates]
    # A cache of its own: what it holds at the end is what is needed, and nothing else.
    command += ["--conf", f"spark.jars.ivy={place}", str(program)]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    return place / "jars", _run(command, environment)


def _by_maven(coordinates: str, place: Path) -> tuple[Path, str]:
    """By Maven, for those who have it configured and not Spark's Ivy."""
    jars = place / "jars"
    maven = shutil.which("mvn")
    if maven is None:
        return jars, "Maven is not installed"
    group, artifact, number = coordinates.split(":")
    (place / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>jars</artifactId>"
        "<version>1</version><dependencies><dependency>"
        f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{number}</version>"
        "</dependency></dependencies></project>"
    )
    command = [maven, "--batch-mode", "--quiet", "--strict-checksums", "--file", str(place / "pom.xml")]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    return jars, _run(command, dict(os.environ))


def _remove_known(jars: Path) -> None:
    """Remove what Spark has itself, which it would load first anyway: five sixths of the bytes.

    Every session copies its jars, and every executor of a cluster fetches them.
    """
    known = {_artifact(path) for path in (_spark_home() / "jars").glob("*.jar")}
    for path in jars.glob("*.jar"):
        # Ivy puts the group before the name: org.slf4j_slf4j-api-2.0.13.jar
        if {_artifact(path), _artifact(path).partition("_")[2]} & known:
            path.unlink()


def _artifact(jar: Path) -> str:
    return re.sub(r"-\d.*", "", jar.stem)


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def _run(command: list[str], environment: dict[str, str]) -> str:
    """Run it; in one line, how it failed, if it did."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RESOLVE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"unresolved|not found|error|exception|java", line, re.IGNORECASE)]
    return " · ".join((told or lines)[:3]) if done.returncode else "it brought no jar of Delta"


def _remove_abandoned(folder: Path) -> None:
    """What a killed resolution has left, once nobody can still be at it."""
    for path in folder.glob(f"{PARTIAL}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--list"]):
        print("usage: python -m spark_sink.jars [--list]", file=sys.stderr)
        return UsageError.exit_code
    try:
        versions = Versions.installed()
        there = (root() / versions.name).is_dir()
        found = local_jars()
    except OutboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if arguments:
        print(",".join(str(path) for path in found))
    else:
        done = "are already" if there else "were resolved, and are now"
        print(f"{len(found)} jars of Delta {versions.delta} for Spark {versions.pyspark} {done} in {found[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
