"""A Kafka broker of one node: broker and KRaft controller in one JVM, on loopback.

Owns `<home>/kafka`: `server.properties` and `log4j2.properties`, written anew at each start; `ports.json`, which keeps
the advertised address the same for the life of the data; `data/`, formatted once. A folder is formatted when
`data/meta.properties` is there, which the tool writes last, so a kill in mid-format is made good by the next start.
Acknowledged records survive kill -9 of the broker, not power loss (no sync per record). A restart after kill -9 waits
for the dead broker's session, 3 s.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra import ports, process
from infra.errors import StartFailed, log_tail
from infra.files import new_folder, write_atomic
from infra.java import JavaHome
from infra.process import ProcessRecord, ProcessSpec

START_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 1.0
FORMAT_TIMEOUT_S = 60
STOP_GRACE_S = 20.0
# Any 16 bytes in base64; one node never meets another cluster.
CLUSTER_ID = "cm9sbGZvcndhcmRsb2NhbA"
# Serial starts fastest of the collectors and needs the least memory beside the heap; two cores gain nothing from a
# concurrent one.
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "CLIENTS",
    "controller.listener.names": "CONTROLLER",
    # A misspelt topic must fail, not appear.
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # Internal topics: one copy, and few partitions, since each costs files, memory and time at start.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # Retention goes by the records' own time: replayed input of another year would be deleted at once. `down --wipe`
    # frees the disk.
    "log.retention.ms": "-1",
    "offsets.retention.minutes": "525600",
    "log.segment.bytes": str(64 * 1024 * 1024),
    "log.cleaner.threads": "1",
    # Taken from the heap when the broker starts; the default of 128 MiB would be a quarter of it.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    # A restarted broker is let in when its dead predecessor's session ends: the default of 9 s would be the time of
    # every restart after a kill.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
}

LOG4J = """\
status=warn
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""


@dataclass(frozen=True)
class Broker:
    """The broker of one folder; `record` and `log` are where its process is remembered and writes.

    `settings` are laid over SETTINGS; what they hold stands in `server.properties`.
    """

    home: Path
    log: Path
    record: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    def start(
        self, java: JavaHome, jars: list[Path], *, port: int | None = None, on_step: Callable[[str], None] | None = None
    ) -> ProcessRecord:
        """Starts the broker and returns when it answers; formats its folder the first time.

        `port` is the one to listen on; by default the folder's own of last time if it is free, else a free one. Raises
        PortInUse for a given port that is taken, StartFailed with the log's end when the broker ends or does not answer
        within two minutes.
        """
        process.stop(self.record, grace_s=STOP_GRACE_S)
        client = ports.choose(port, self.port, component="kafka")
        controller = ports.free_port(avoid={client})
        self._write_config(client=client, controller=controller)
        classpath = os.pathsep.join(map(str, jars))
        if not (self.home / "data" / "meta.properties").exists():
            if on_step:
                on_step("formatting a new data folder")
            self._format(java, classpath)
        if on_step:
            on_step(f"starting on port {client}")
        spec = ProcessSpec(
            name="kafka",
            command=(
                str(java.java),
                *JVM_OPTIONS,
                *self._own_options(),
                "-cp",
                classpath,
                "kafka.Kafka",
                str(self._config),
            ),
            env={"JAVA_HOME": str(java.home), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            cwd=self.home,
            log=self.log,
            record=self.record,
        )
        return process.start_and_await(spec, lambda: answers(client), timeout_s=START_TIMEOUT_S, grace_s=STOP_GRACE_S)

    def stop(self) -> bool:
        """Stops the broker; tells whether it was running."""
        return process.stop(self.record, grace_s=STOP_GRACE_S)

    @property
    def port(self) -> int | None:
        """The port that was advertised last; None for a folder that was never started."""
        return ports.kept(self.home, "clients")

    @property
    def address(self) -> str | None:
        """What clients take as `bootstrap.servers`; None for a folder that was never started."""
        return f"{ports.HOST}:{self.port}" if self.port else None

    @property
    def _config(self) -> Path:
        return self.home / "server.properties"

    def _write_config(self, *, client: int, controller: int) -> None:
        settings = {
            **SETTINGS,
            **self.settings,
            "listeners": f"CLIENTS://{ports.HOST}:{client},CONTROLLER://{ports.HOST}:{controller}",
            "advertised.listeners": f"CLIENTS://{ports.HOST}:{client}",
            "controller.quorum.voters": f"1@{ports.HOST}:{controller}",
            "log.dirs": str(self.home / "data"),
        }
        write_atomic(self._config, "".join(f"{key}={value}\n" for key, value in settings.items()))
        write_atomic(self.home / "log4j2.properties", LOG4J)
        ports.keep(self.home, {"clients": client})

    def _own_options(self) -> tuple[str, ...]:
        # A library that it unpacks there stays when it is killed.
        temporary = new_folder(self.home / "tmp")
        return (f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}", f"-Djava.io.tmpdir={temporary}")

    def _format(self, java: JavaHome, classpath: str) -> None:
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Short-lived: the quick compiler alone saves a tenth of a second.
        flags = (*JVM_OPTIONS, "-XX:TieredStopAtLevel=1", *self._own_options())
        command = [
            str(java.java),
            *flags,
            "-cp",
            classpath,
            "kafka.tools.StorageTool",
            "format",
            "-c",
            str(self._config),
            "-t",
            CLUSTER_ID,
        ]
        with self.log.open("ab") as output:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=FORMAT_TIMEOUT_S, check=False
            ).returncode
        if code != 0:
            raise StartFailed(
                f"the broker's folder could not be formatted:{log_tail(self.log)}",
                folder=self.home,
                code=code,
                hint="free the disk or choose another home, then run the same again",
            )


def answers(port: int) -> bool:
    """Whether a Kafka broker on loopback answers an ApiVersions request (key 18, version 0) without an error.

    A broker opens this door last, when it is registered and has loaded its logs.
    """
    client, correlation = b"infra", 7
    request = struct.pack(">hhih", 18, 0, correlation, len(client)) + client
    try:
        with socket.create_connection((ports.HOST, port), PROBE_TIMEOUT_S) as connection:
            connection.settimeout(PROBE_TIMEOUT_S)
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as stream:
                _, answered, error = struct.unpack(">iih", stream.read(10))
    except (OSError, struct.error):
        return False
    return bool(answered == correlation and error == 0)
