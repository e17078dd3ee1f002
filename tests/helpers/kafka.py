"""A real Kafka broker for tests: jars from Maven, one process, its own ports."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from helpers.ports import free_port
from mirrorlake.storage import paths

VERSION = "3.9.1"  # the last version that also runs on Java 11
POM = f"""
<project><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>broker</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
</dependency></dependencies></project>
"""
CONF = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=0
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
DEADLINE = 60
_FETCH_SECONDS = 600


def jars() -> Path:
    """Return the folder of the broker's jars; skip the test if they can't be downloaded."""
    target = paths.cache() / "servers" / f"kafka-{VERSION}"
    if not (target.is_dir() or (shutil.which("mvn") and shutil.which("java"))):
        pytest.skip("needs a Kafka broker, whose jars Maven brings: there is no mvn or no java")
    try:
        paths.make_once(target, target.is_dir, _fetch)
    except subprocess.SubprocessError as error:
        pytest.skip(f"needs a Kafka broker; its jars of {VERSION} could not be had: {error}")
    return target


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        subprocess.run(command, cwd=place, check=True, timeout=_FETCH_SECONDS)


class KafkaBroker:
    """A broker that can be killed and restarted."""

    def __init__(self) -> None:
        self._java = ["java", "-Xmx400m", "-cp", f"{jars()}/*"]
        self.folder = Path(tempfile.mkdtemp(prefix="mlkafka-"))
        self.servers = f"127.0.0.1:{free_port()}"
        port = self.servers.rpartition(":")[2]
        conf = CONF.format(port=port, controller=free_port(), folder=self.folder)
        self._conf = self.folder / "server.properties"
        self._conf.write_text(conf)
        form = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._conf)]
        subprocess.run([*self._java, *form], check=True, capture_output=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._conf)],
                stdout=log,
                stderr=log,
                env={**os.environ, "LOG_DIR": str(self.folder)},
            )
        end = time.monotonic() + DEADLINE
        while True:
            try:
                self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
                self.admin.list_topics(timeout=2)
                return
            except KafkaException:
                assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
                assert time.monotonic() < end

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self, topic: str, partitions: int = 1, **settings: str) -> None:
        new = NewTopic(topic, partitions, 1, config=settings)
        for done in self.admin.create_topics([new]).values():
            done.result(DEADLINE)

    def send(self, topic: str, *events: tuple[bytes | None, bytes | None]) -> None:
        """Send keys and values, and wait for each acknowledgement."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5})
        for key, value in events:
            producer.produce(topic, value, key)
        assert producer.flush(DEADLINE) == 0
