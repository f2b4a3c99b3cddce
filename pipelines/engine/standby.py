"""Store server processes that wait for their configuration: to import what one needs takes longer than to open tasks."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from pathlib import Path


class Standby:
    """Processes that have been launched and serve nothing yet. Each ends when its standard input is closed.

    `modules` are those that the configuration will call for beside the server's own.
    """

    def __init__(self, log_file: Path, modules: tuple[str, ...] = ()) -> None:
        self._log_file = log_file
        self._modules = modules
        self._waiting: deque[subprocess.Popen[bytes]] = deque()

    def keep(self, count: int) -> None:
        """Launch as many as are missing to `count`."""
        living = [process for process in self._waiting if process.poll() is None]
        self._waiting = deque([*living, *(self._launch() for _ in range(count - len(living)))])

    def take(self, config: bytes) -> subprocess.Popen[bytes]:
        """The one that has waited longest, or a new one where none waits; it serves what `config` says."""
        while self._waiting:
            process = self._waiting.popleft()
            if process.poll() is None and _told(process, config):
                return process
            process.wait()
        process = self._launch()
        _told(process, config)
        return process

    def close(self) -> None:
        """End those that wait."""
        for process in self._waiting:
            # It has nothing that could be lost.
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._waiting.clear()

    def _launch(self) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "statestore.server", *self._modules],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # Ctrl-C goes to the driver alone, which then ends the servers in order.
                process_group=0,
            )


def _told(process: subprocess.Popen[bytes], config: bytes) -> bool:
    """Write the configuration; False where the process has just died."""
    assert process.stdin is not None
    try:
        process.stdin.write(config + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        process.kill()
        return False
    return True
