"""Real S3 servers for tests: S3Proxy as the local stack starts it, and ministack, which is another implementation.

And what stands between a client and them: `SlowDowns` answers in the server's place that there are too many requests.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from infra import jars, ports
from infra.java import find_java
from infra.process import read_record
from infra.s3 import BUCKET, S3Server, answers
from statestore.config import ObjectsConfig
from statestore.objects.s3 import S3Objects
from tests.support.waiting import await_

START_S = 30.0


@dataclass
class RunningServer(ABC):
    """A server that can be killed and started again on the same address and data."""

    config: ObjectsConfig

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL."""

    @abstractmethod
    def start(self) -> None:
        """Start; returns when it answers."""

    def under(self, prefix: str, **changed: object) -> ObjectsConfig:
        """The configuration of a store of its own in this server's bucket."""
        return replace(self.config, url=f"s3://{BUCKET}/{prefix}", **changed)  # type: ignore[arg-type]


class S3ProxyServer(RunningServer):
    """S3Proxy in a folder. It checks signatures, so a wrong secret is refused.

    Objects are files of their keys' names below `bucket_folder`, and an object's time is its file's.
    """

    def __init__(self, home: Path) -> None:
        self._server = S3Server(home / "s3", home / "s3.log", home / "s3.json")
        self.bucket_folder = home / "s3" / "data" / BUCKET
        self.start()
        super().__init__(
            ObjectsConfig(
                "",
                endpoint_url=self._server.endpoint or "",
                region="us-east-1",
                addressing="path",
                credentials_file=str(self._server.credentials_file),
            )
        )

    def start(self) -> None:
        java = find_java(jars.default_cache())
        self._server.start(java, jars.resolve("s3proxy", java))

    def kill(self) -> None:
        record = read_record(self._server.record)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        os.waitpid(record.pid, 0)

    def stop(self) -> None:
        """End in order."""
        self._server.stop()


class MinistackServer(RunningServer):
    """ministack, persistent. It takes any secret."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._port = ports.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        credentials = home / "credentials"
        credentials.write_text("[default]\naws_access_key_id = test\naws_secret_access_key = test\n")
        self.start()
        super().__init__(
            ObjectsConfig(
                "",
                endpoint_url=f"http://127.0.0.1:{self._port}",
                region="us-east-1",
                addressing="path",
                credentials_file=str(credentials),
            )
        )
        self._make_bucket()

    def _make_bucket(self) -> None:
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.config.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket=BUCKET)
        # A bucket without an object does not outlive a kill.
        client.put_object(Bucket=BUCKET, Key="made", Body=b"")
        client.close()

    def start(self) -> None:
        settings = {
            "GATEWAY_PORT": str(self._port),
            "BIND_HOST": "127.0.0.1",
            "SERVICES": "s3",
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self._home / "data"),
            "PERSIST_STATE": "1",
            "STATE_DIR": str(self._home / "state"),
            "LOG_LEVEL": "WARNING",
        }
        with (self._home / "ministack.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("ministack"))],
                env={**os.environ, **settings},
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = self._process
        await_(
            "an answer or the end", lambda: answers(self._port) or process.poll() is not None, START_S, tail=self._tail
        )
        assert process.poll() is None, self._tail()

    def _tail(self) -> str:
        return (self._home / "ministack.log").read_text()[-2000:]

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


_SLOW_DOWN = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class Body:
    """A response's body as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self._body


class SlowDowns:
    """503 SlowDown to what a store's client sends, as a bucket under load answers; the client itself is the real one.

    for_s: to every request until so long after the first. chance: to any request, drawn from the seed.
    `refused` counts by operation.
    """

    def __init__(self, store: S3Objects, *, for_s: float = 0.0, chance: float = 0.0, seed: int = 0) -> None:
        self.refused: Counter[str] = Counter()
        self._for_s, self._chance = for_s, chance
        self._random = random.Random(seed)
        self._ends_at: float | None = None
        self._lock = Lock()
        store._client.meta.events.register("before-send.s3", self._answer)

    def _answer(self, request: Any, event_name: str, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        with self._lock:
            self._ends_at = self._ends_at or time.monotonic() + self._for_s
            if time.monotonic() >= self._ends_at and self._random.random() >= self._chance:
                return None
            self.refused[event_name.rpartition(".")[2]] += 1
        # The answer to HEAD has no body.
        body = b"" if request.method == "HEAD" else _SLOW_DOWN
        return AWSResponse(request.url, 503, {"Content-Type": "application/xml"}, Body(body))
