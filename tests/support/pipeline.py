"""A deployed pipeline with its driver as a process of its own, for tests that kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

from ops.environment import driver_environment
from pipelines.metastore.embedded import deploy, want
from pipelines.registry import RUNNING, Registry
from pipelines.settings import Settings
from tests.support.waiting import TooLate, await_


class PipelineUnderTest:
    """Deploys on construction. `environment` is added to that of its drivers."""

    def __init__(self, settings: Settings, name: str, sql: str, environment: dict[str, str] | None = None) -> None:
        self.settings = settings
        self.name = name
        self.registry = Registry(settings.metastore)
        deploy(sql, name, settings, self.registry)
        want(name, RUNNING, settings, self.registry)
        self.environment = environment or {}
        self.log = settings.home / "driver.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, until_end: bool = False) -> subprocess.Popen[bytes]:
        """Start a driver and return at once."""
        command = [sys.executable, "-m", "pipelines.driver", self.name, *(["--until-end"] if until_end else [])]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**driver_environment(self.settings), **self.environment},
                start_new_session=True,
            )
        return self.process

    def run_until_end(self, timeout_s: float = 300) -> int:
        """Run a driver over what is present; gives its exit code."""
        return self.start(until_end=True).wait(timeout_s)

    def await_(self, what: str, condition: Callable[[], bool], timeout_s: float = 240) -> None:
        """Wait for a condition, restarting the driver whenever it has died."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TooLate(f"{what} did not happen in {timeout_s} s\n{self.tail()}")
            assert self.process is not None
            if self.process.poll() is not None:
                self.await_no_orphans()
                self.start()
            time.sleep(0.05)

    def await_running(self) -> None:
        """Wait until the driver of now is running."""
        self.await_("driver running", lambda: self._row_state() == "running")

    def _row_state(self) -> str:
        row = self.registry.driver(self.name)
        assert self.process is not None
        return row.state if row is not None and row.pid == self.process.pid else ""

    def batches(self) -> int:
        """How many batches have been reported."""
        return len(self.registry.batches(pipeline=self.name, limit=100_000))

    def caught_up(self, topic_end: int) -> Callable[[], bool]:
        """A condition: the newest batch ends where the input ends."""

        def condition() -> bool:
            newest = self.registry.newest_batches(self.name)
            return bool(newest) and sum(end for _, end in newest[0].offsets.values()) == topic_end

        return condition

    def server_pids(self) -> list[int]:
        """Process ids of the store servers of the driver of now."""
        row = self.registry.driver(self.name)
        return [] if row is None else [server["pid"] for server in row.servers]

    def jvms(self) -> list[psutil.Process]:
        """The JVM of the driver of now, if it has one."""
        assert self.process is not None
        return [child for child in psutil.Process(self.process.pid).children() if child.name() == "java"]

    def kill_driver(self) -> None:
        """SIGKILL, and wait until nothing of it is left."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.await_no_orphans()

    def await_no_orphans(self, timeout_s: float = 60) -> None:
        """Every process below the driver must end with it."""
        assert self.process is not None
        session = self.process.pid
        await_("the end of all children", lambda: not members(session), timeout_s, tail=self.tail)

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM; gives the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self.await_no_orphans()
        return code

    def close(self) -> None:
        """End whatever runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill_driver()
        self.registry.close()

    def tail(self, lines: int = 30) -> str:
        """The end of the driver's log."""
        return "\n".join(line[:400] for line in self.log.read_text(errors="replace").splitlines()[-lines:])


def members(session: int) -> list[str]:
    """The living processes of a session, which a driver leads."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            continue
    return found


def settings_for(home: Path, bootstrap: str, **overrides: object) -> Settings:
    """Settings of a test with its own home."""
    home.mkdir(parents=True, exist_ok=True)
    # One broker serves many tests, and a service has one command log.
    overrides.setdefault("service", f"t{uuid.uuid4().hex}")
    return Settings(home=home, bootstrap_servers=bootstrap, metastore_url="", **overrides)  # type: ignore[arg-type]
