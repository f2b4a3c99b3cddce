"""An S3 server of one node: S3Proxy over a local folder, on loopback.

Owns `<home>/s3`, which is ours alone to read: `s3proxy.conf` and `logback.xml`, written anew at each start;
`credentials`, made once, in the format of AWS's own credentials file, so that every AWS client can be pointed at it;
`ports.json`, which keeps the address; `data/`, a folder per bucket, with the bucket `rollforward` in it from the
beginning. Objects survive kill -9 of the server; a put that it cuts off leaves a key of its own with a random end,
never the object's, so readers must not believe a listing.
"""

from __future__ import annotations

import configparser
import http.client
import io
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infra import ports, process
from infra.files import new_folder, write_atomic
from infra.java import JavaHome
from infra.process import ProcessRecord, ProcessSpec

BUCKET = "rollforward"
START_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 1.0
STOP_GRACE_S = 5.0
# A signed put of one piece is held in memory as a whole; clients send large objects in parts of 8 to 16 MB.
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:TieredStopAtLevel=1")

# Without this it logs at DEBUG, which takes nine tenths of its speed.
LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %p %logger{0} %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass(frozen=True)
class S3Server:
    """The S3 server of one folder; `record` and `log` are where its process is remembered and writes."""

    home: Path
    log: Path
    record: Path

    def start(
        self, java: JavaHome, jars: list[Path], *, port: int | None = None, on_step: Callable[[str], None] | None = None
    ) -> ProcessRecord:
        """Starts the server and returns when it answers.

        `port` is the one to listen on; by default the folder's own of last time if it is free, else a free one. Raises
        PortInUse for a given port that is taken, StartFailed with the log's end when the server ends or does not answer
        within two minutes.
        """
        process.stop(self.record, grace_s=STOP_GRACE_S)
        chosen = ports.choose(port, self.port, component="s3")
        self._write_config(chosen)
        if on_step:
            on_step(f"starting on port {chosen}")
        spec = ProcessSpec(
            name="s3",
            command=(
                str(java.java),
                *JVM_OPTIONS,
                f"-Dlogback.configurationFile={self.home / 'logback.xml'}",
                f"-Djava.io.tmpdir={new_folder(self.home / 'tmp')}",
                "-cp",
                os.pathsep.join(map(str, jars)),
                "org.gaul.s3proxy.Main",
                "--properties",
                str(self.home / "s3proxy.conf"),
            ),
            env={"JAVA_HOME": str(java.home), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            cwd=self.home,
            log=self.log,
            record=self.record,
        )
        return process.start_and_await(spec, lambda: answers(chosen), timeout_s=START_TIMEOUT_S, grace_s=STOP_GRACE_S)

    def stop(self) -> bool:
        """Stops the server; tells whether it was running."""
        return process.stop(self.record, grace_s=STOP_GRACE_S)

    @property
    def port(self) -> int | None:
        """The port of last time; None for a folder that was never started."""
        return ports.kept(self.home, "s3")

    @property
    def endpoint(self) -> str | None:
        """What clients take as endpoint URL; None for a folder that was never started."""
        return f"http://{ports.HOST}:{self.port}" if self.port else None

    @property
    def credentials_file(self) -> Path:
        """Key and secret as AWS clients read them."""
        return self.home / "credentials"

    def _write_config(self, port: int) -> None:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home.chmod(0o700)
        (self.home / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
        key, secret = self._credentials()
        settings = {
            "s3proxy.endpoint": f"http://{ports.HOST}:{port}",
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": key,
            "s3proxy.credential": secret,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": "local",
            "jclouds.credential": "local",
            "jclouds.filesystem.basedir": str(self.home / "data"),
        }
        write_atomic(self.home / "s3proxy.conf", "".join(f"{name}={value}\n" for name, value in settings.items()))
        write_atomic(self.home / "logback.xml", LOGBACK)
        ports.keep(self.home, {"s3": port})

    def _credentials(self) -> tuple[str, str]:
        """The server's only key and its secret, made the first time."""
        parser = configparser.ConfigParser()
        parser.read(self.credentials_file, encoding="utf-8")
        if not parser.has_option("default", "aws_secret_access_key"):
            parser["default"] = {
                "aws_access_key_id": f"local{secrets.token_hex(8)}",
                "aws_secret_access_key": secrets.token_hex(20),
            }
            text = io.StringIO()
            parser.write(text)
            write_atomic(self.credentials_file, text.getvalue())
        return parser["default"]["aws_access_key_id"], parser["default"]["aws_secret_access_key"]


def answers(port: int) -> bool:
    """Whether an HTTP server on loopback answers anything to a request without a signature."""
    connection = http.client.HTTPConnection(ports.HOST, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
