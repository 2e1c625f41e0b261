"""A real S3 server: S3Proxy on loopback, its objects in a folder.

Its jars come from Maven once, by `s3proxy-pom.xml`, into the user's cache folder. With
OUTBOX_TEST_S3_URL (such as `s3://bucket?endpoint=http://…`, credentials in the environment) the
tests that need no server of their own use that one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.servers.process import free_port, kill_group, wait_until

POM = Path(__file__).with_name("s3proxy-pom.xml")
ACCESS_KEY, SECRET_KEY, BUCKET = "tester", "secret-of-the-tests", "bucket"
RESOLVE_SECONDS = 600


def jars() -> Path:
    """The folder with the server's jars; resolved now when it is not there. It appears whole or not at all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outbox-connector" / "jars"
    folder = cache / f"s3proxy-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(
            "no S3 server for the tests: apt-get install maven, which brings S3Proxy, or set OUTBOX_TEST_S3_URL to a bucket "
            "that the tests may write"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=cache) as work:
        shutil.copy(POM, Path(work) / "pom.xml")
        done = subprocess.run(
            [maven, "--batch-mode", "--quiet", "--strict-checksums", "dependency:copy-dependencies",
             "-DincludeScope=runtime", f"-DoutputDirectory={work}/jars"],
            cwd=work, capture_output=True, text=True, timeout=RESOLVE_SECONDS, check=False,
        )  # fmt: skip
        found = Path(work) / "jars"
        if done.returncode or not any(found.glob("s3proxy-*.jar")):
            raise RuntimeError(f"Maven did not bring S3Proxy:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        try:
            found.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


class S3Server:
    """A server of our own, on a free port; can be stopped, crashed, and made to refuse us."""

    def __init__(self) -> None:
        self.jars = jars()
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="outbox-s3-"))
        self.data = self.folder / "data"
        (self.data / BUCKET).mkdir(parents=True)
        self.log = self.folder / "server.log"
        self.settings = self.folder / "s3proxy.conf"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "") -> str:
        """A stream below a prefix; without one, a fresh prefix."""
        return f"s3://{BUCKET}/{prefix or uuid.uuid4().hex}?endpoint={self.endpoint}&region=us-east-1"

    def start(self, access_key: str = ACCESS_KEY) -> S3Server:
        """Started with another access key, the server refuses the tests' own."""
        self.settings.write_text(
            f"s3proxy.endpoint={self.endpoint}\n"
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={access_key}\ns3proxy.credential={SECRET_KEY}\n"
            "jclouds.provider=filesystem-nio2\njclouds.identity=x\njclouds.credential=x\n"
            f"jclouds.filesystem.basedir={self.data}\n"
        )
        # Without this it writes down every byte.
        (self.folder / "logback.xml").write_text(
            '<configuration><appender name="A" class="ch.qos.logback.core.ConsoleAppender"><encoder>'
            '<pattern>%d %p %m%n</pattern></encoder></appender><root level="ERROR"><appender-ref ref="A"/></root></configuration>'
        )
        quiet = f"-Dlogback.configurationFile={self.folder}/logback.xml"
        command = [
            "java",
            quiet,
            "-XX:TieredStopAtLevel=1",
            "-Xmx256m",
            "-cp",
            f"{self.jars}/*",
            "org.gaul.s3proxy.Main",
        ]
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                [*command, "--properties", str(self.settings)], stdout=sink, stderr=sink, start_new_session=True
            )
        wait_until(self._answer, "S3Proxy", self.process, self.log)
        return self

    def _answer(self) -> None:
        try:
            urlopen(f"{self.endpoint}/", timeout=5).close()
        except HTTPError:
            return  # it refuses us without a signature, so it is there

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            deadline = time.monotonic() + 20
            while self.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
        self.crash()

    def crash(self) -> None:
        if self.process:
            kill_group(self.process)

    def destroy(self) -> None:
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)


def credentials() -> dict[str, str]:
    """What the environment of a process needs to use the server."""
    return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
