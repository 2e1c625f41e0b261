"""A real Kafka broker: KRaft, one node, from Maven's jars.

It listens twice: anybody on the plain port is an administrator, and on the SASL port a user may do what
`grant` has allowed.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from spark_sink.jars import root
from tests.servers.process import free_port, kill_group, wait_until
from tests.servers.wire import Wire

POM = Path(__file__).parent / "kafka_broker" / "pom.xml"
MAVEN_SECONDS = 900
HOST = "127.0.0.1"
# Small and quick to start. A broker of a benchmark leaves the compiler alone.
JAVA = ("-Xmx384m", "-Xms96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def version() -> str:
    found = re.search(r"<artifactId>kafka_[\d.]+</artifactId>\s*<version>(.+?)</version>", POM.read_text())
    assert found
    return found[1]


def jars() -> Path:
    """The broker's jars in the user's cache, resolved once. The folder appears complete or not at all."""
    folder = root() / f"kafka-{version()}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(
            "Maven is not installed, which brings the Kafka broker: apt-get install maven, "
            "or set OUTBOX_TEST_KAFKA to host:port of a broker where the tests may create topics"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder.parent) as name:
        place = Path(name) / "jars"
        command = [maven, "--batch-mode", "--quiet", "--strict-checksums", "--file", str(POM)]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={place}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_SECONDS, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not bring Kafka {version()}:\n{done.stdout[-2000:]}{done.stderr[-1000:]}")
        if not folder.is_dir():  # unless somebody else was quicker
            place.rename(folder)
    return folder


class KafkaServer:
    """A broker of our own, on free ports; can be stopped and crashed."""

    def __init__(self, java: tuple[str, ...] = JAVA, *, wire: Wire | None = None) -> None:
        """Users come over the wire, when there is one; the administrator and the broker itself do not."""
        program = shutil.which("java") or f"{os.environ.get('JAVA_HOME', '')}/bin/java"
        if not Path(program).exists():
            raise RuntimeError(
                "Java is not installed, which runs the Kafka broker: apt-get install openjdk-17-jre-headless"
            )
        self._java = [program, *java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars()}/*"]
        self.folder = Path(tempfile.mkdtemp(prefix="outbox-kafka-"))
        self.log = self.folder / "server.log"
        self.port, self.sasl_port, controller = free_port(), free_port(), free_port()
        self.users_port = wire.port if wire else self.sasl_port
        if wire:
            wire.lead_to(self.sasl_port)
        self.process: subprocess.Popen[bytes] | None = None
        self._config = self.folder / "server.properties"
        self._config.write_text("".join(f"{name}={value}\n" for name, value in self._settings(controller).items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
        formatting = self._run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._config))
        if formatting.wait(60) != 0:
            raise RuntimeError(f"Kafka's folder could not be formatted:\n{self.log.read_text()[-2000:]}")

    def _settings(self, controller: int) -> dict[str, str]:
        listeners = f"PLAINTEXT://{HOST}:{self.port},SASL_PLAINTEXT://{HOST}:{self.sasl_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": listeners.replace(str(self.sasl_port), str(self.users_port)),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": "1",
            "min.insync.replicas": "1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(4 * 2**20),
            # A broker that was killed may come back before the controller has given it up: that is not for 9 s.
            "broker.session.timeout.ms": "1500",
            "broker.heartbeat.interval.ms": "300",
            "num.network.threads": "2",
            "num.io.threads": "2",
        }

    @property
    def servers(self) -> str:
        return f"{HOST}:{self.port}"

    def sasl_url(self, topic: str, user: str, password: str) -> str:
        options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        return f"kafka://{user}:{password}@{HOST}:{self.users_port}/{topic}?{urlencode(options)}"

    def start(self) -> KafkaServer:
        self.process = self._run("kafka.Kafka", str(self._config))
        wait_until(lambda: self.admin().list_topics(timeout=1), "Kafka", self.process, self.log)
        return self

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as sink:
            return subprocess.Popen(
                [*self._java, *arguments], stdout=sink, stderr=sink, cwd="/", start_new_session=True
            )

    def admin(self) -> AdminClient:
        return admin(self.servers)

    def ask(self, method: str, *arguments: Any, **named: Any) -> None:
        """Have something done by the administrator, and wait until it is."""
        administrator = self.admin()  # kept until it has answered
        for future in getattr(administrator, method)(*arguments, **named).values():
            future.result(30)

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def crash(self) -> None:
        assert self.process
        kill_group(self.process)

    def destroy(self) -> None:
        if self.process:
            kill_group(self.process)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- users

    def add_user(self, name: str, password: str) -> None:
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        self.ask("alter_user_scram_credentials", [UserScramCredentialUpsertion(name, credential, password.encode())])

    def remove_user(self, name: str) -> None:
        deletion = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256)
        self.ask("alter_user_scram_credentials", [deletion])

    def grant(self, user: str, topic: str) -> None:
        """Everything that a relay needs on this stream, as docs/stream-kafka.md lists it."""
        wanted = [
            (ResourceType.TOPIC, topic, ResourcePatternType.PREFIXED),
            (ResourceType.TRANSACTIONAL_ID, f"outbox.{topic}", ResourcePatternType.LITERAL),
        ]
        bindings = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
            for kind, name, pattern in wanted
        ]
        self.ask("create_acls", bindings)

    def revoke(self, user: str) -> None:
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        self.ask("delete_acls", [everything])


def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def broker() -> tuple[str, KafkaServer | None]:
    """Where the tests may create topics: environment, jars by Maven, Docker, or fail."""
    given = os.environ.get("OUTBOX_TEST_KAFKA")
    if given:
        return given, None
    try:
        server = KafkaServer().start()
    except RuntimeError as failure:
        try:
            from testcontainers.kafka import KafkaContainer

            container = KafkaContainer("confluentinc/cp-kafka:7.9.0").with_kraft().start()
        except Exception as error:
            raise RuntimeError(f"no Kafka for the tests: {failure}; nor by Docker ({error})") from error
        return container.get_bootstrap_server(), None
    return server.servers, server


def fresh_topic(servers: str) -> str:
    """The URL of a stream on a topic of its own, which does not exist yet."""
    return f"kafka://{servers}/t{uuid.uuid4().hex[:12]}"
