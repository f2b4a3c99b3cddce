"""What the benchmark needs of a system: start it on a workload, see how far it is, read its results, end it.

One object is one run. Every run has a name of its own, which is that of its topics, groups and folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from pipelines.settings import Settings
from tests.benchmarks import cpu, outputs, topics
from tests.benchmarks.outputs import Expected
from tests.benchmarks.progress import Groups
from tests.benchmarks.workloads import Workload


@dataclass(frozen=True)
class Broker:
    """What every run shares: the broker and Java (`found`), and settings of the run.

    `batch` bounds a batch in records where a system has such a bound; `interval_s` is between commits.
    """

    found: Settings
    cache: Path
    batch: int
    interval_s: float = 1.0

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return self.found.bootstrap_servers


class NotPossible(Exception):
    """A system cannot run the workload or is not to be had on this machine; the message says why."""


class System(ABC):
    """One run of a system. `most` is how many records it is given at the most: slow ones get fewer."""

    name: ClassVar[str]
    guarantee: ClassVar[str] = "exactly-once"
    most: ClassVar[int | None] = None

    def __init__(self, broker: Broker, workload: Workload, topic: str, run: str, folder: Path) -> None:
        self.broker = broker
        self.workload = workload
        self.topic = topic
        self.run = run
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """The version of the system."""

    @abstractmethod
    def prepare(self) -> None:
        """What happens before the clock starts: compiling, installing, deploying. Raises `NotPossible`."""

    @abstractmethod
    def start(self) -> None:
        """Start its process and return at once; after `kill` it goes on where it was."""

    @property
    def log(self) -> Path:
        """What its process has printed."""
        return self.folder / "process.log"

    @property
    def pid(self) -> int:
        """Its root process."""
        assert self.process is not None
        return self.process.pid

    def committed(self) -> int:
        """Records of the source that it has committed, through all its stages.

        Topics of its own between the stages hold markers of transactions too, so it may come out larger by a few.
        """
        return self._groups.committed()

    @cached_property
    def _groups(self) -> Groups:
        pairs = [(group, self.topic) for group in self.groups()]
        return Groups(self.broker.bootstrap, [*pairs, *((self.run, topic) for topic in self.inner_topics())])

    def groups(self) -> list[str]:
        """Its consumer groups."""
        return [self.run]

    def inner_topics(self) -> list[str]:
        """Topics through which it passes every record to a second stage."""
        return []

    def cpu_meter(self) -> cpu.CpuMeter:
        """Counts its processes' CPU from now on."""
        return cpu.CpuMeter(self.pid)

    def memtables(self) -> dict[int, int]:
        """Bytes by process that are in RocksDB's memtables now; empty where the system does not tell."""
        return {}

    def output_topics(self) -> dict[str, str]:
        """The topic of every table."""
        return {table: f"{self.run}-{table}" for table in self.workload.tables}

    def key_text(self, key: bytes) -> str:
        """A result's key as the model has it."""
        return key.decode()

    def require_correct(self, expected: dict[str, Expected]) -> None:
        """Raises `WrongResult` unless every result equals the model's."""
        for table, rows in expected.items():
            topic = self.output_topics()[table]
            found: Expected = (
                outputs.stream(self.broker.bootstrap, topic)
                if isinstance(rows, pa.Table)
                else outputs.table(self.broker.bootstrap, topic, self.key_text)
            )
            outputs.require_equal(f"{self.name} {table}", rows, found)

    def require_alive(self) -> None:
        """Raises RuntimeError with the end of its log if the process has ended."""
        assert self.process is not None
        if (code := self.process.poll()) is not None:
            raise RuntimeError(f"{self.name} ended with {code}\n{self.tail()}")

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(line[:400] for line in self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL to its root process and all that it started; they are gone when this returns."""
        if self.process is None or self.process.poll() is not None:
            return
        below = list(cpu.processes(self.process.pid))
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for process in below[1:]:
            if process.is_running():
                process.kill()

    def close(self) -> None:
        """End it."""
        self.kill()
        if "_groups" in self.__dict__:
            self._groups.close()

    def remove(self) -> None:
        """Delete what the run has left: its folder, and every topic with its name in it."""
        topics.delete_all_of(self.broker.bootstrap, self.run)
        shutil.rmtree(self.folder)

    def create_outputs(self) -> None:
        """The topics of its results, for systems that expect them."""
        topics.create(self.broker.bootstrap, *self.output_topics().values())

    def spawn(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Start its process, with its output in the log."""
        interval_ms = round(1000 * self.broker.interval_s)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env={**os.environ, "COMMIT_INTERVAL_MS": str(interval_ms), **(environment or {})},
                start_new_session=True,
            )
