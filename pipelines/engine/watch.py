"""Notices processes that live and do nothing: a stopped or hung store server, JVM or Spark worker of one driver.

A process that dies is noticed by whoever waits for it. One that is stopped keeps its sockets open, and everybody waits
for ever. So servers and the JVM are asked, and killed when they stay silent; then those who wait get an error and the
usual recovery begins. Spark's Python workers answer to nobody: they are killed when the system shows them stopped in
several looks.

A driver that is stopped itself is noticed by its heartbeat, from outside.
"""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from typing import Any

import psutil
import structlog

from pipelines.engine.servers import StoreServers
from statestore.errors import Unavailable

log = structlog.get_logger()
# So many looks are made in the time that a process may be silent.
_LOOKS = 4


class Watch:
    """A thread that looks after the processes of one driver until `close`."""

    def __init__(self, servers: StoreServers, *, answer_timeout_s: float) -> None:
        self._servers = servers
        self._answer_timeout_s = answer_timeout_s
        self._closed = threading.Event()
        self._gateway: Any = None
        self._jvm: subprocess.Popen[bytes] | None = None
        self._stopped: dict[psutil.Process, int] = {}
        self._jvm_calls = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jvm-ping")
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")

    def start(self) -> None:
        """Begin with the servers."""
        self._thread.start()

    def also_jvm(self, gateway: Any) -> None:
        """Look after the JVM behind this gateway and its workers too."""
        self._gateway, self._jvm = gateway, gateway.proc

    def require_jvm(self) -> None:
        """Raise `Unavailable` if the JVM has died: its connections would only say that they were refused."""
        code = None if self._jvm is None else self._jvm.poll()
        if code is not None:
            raise Unavailable("the driver's jvm died", exit_code=code, hint="its last words are in the driver's log")

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._answer_timeout_s / _LOOKS):
            try:
                self._look()
            except Exception as error:
                # Nobody else would look from then on.
                log.error("watch failed", error=str(error), kind=type(error).__name__)

    def _look(self) -> None:
        self._servers.end_silent()
        # The JVM's processes are looked after as long as it is not given up.
        if self._gateway is not None and self._jvm is not None:
            self._end_stopped_workers(self._jvm)
            self._end_silent_jvm(self._gateway, self._jvm)

    def _end_silent_jvm(self, gateway: Any, jvm: subprocess.Popen[bytes]) -> None:
        # Even to look a class up is a question to the JVM, so all of it is done in the other thread.
        asked = self._jvm_calls.submit(lambda: gateway.jvm.System.nanoTime())
        try:
            asked.result(timeout=self._answer_timeout_s)
        except TimeoutError:
            if not self._closed.is_set():
                log.error("the jvm is silent and is killed", pid=jvm.pid, seconds=self._answer_timeout_s)
                jvm.kill()
                self._gateway = None
        except Exception as error:
            # A JVM that is gone is noticed by the queries.
            log.debug("jvm cannot be asked", error=str(error))

    def _end_stopped_workers(self, jvm: subprocess.Popen[bytes]) -> None:
        try:
            family = psutil.Process(jvm.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        seen: dict[psutil.Process, int] = {}
        for process in family:
            try:
                if process.status() != psutil.STATUS_STOPPED:
                    continue
                seen[process] = self._stopped.get(process, 0) + 1
                if seen[process] > _LOOKS:
                    log.error("a spark worker is stopped and is killed", pid=process.pid)
                    process.kill()
            except psutil.NoSuchProcess:
                continue
        self._stopped = seen
