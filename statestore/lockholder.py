"""Who owns a task's folder. One process at a time may open, replace or delete it, whatever it is called meanwhile.

RocksDB locks a folder while it is open. An owner that has closed it, to put another in its place, would be alone with
it no longer: paused there, it would put an old version under the feet of the next. So the lock is a file beside the
folder, and the kernel's: it ends with the process, and a paused process keeps it.

The file tells process id and start. A store server that finds the folder locked reads them, makes sure that this very
process still runs and is a store server, and kills it: the newer one holds the transactional id already, so the older
cannot commit any more. The start is counted from the machine's boot: servers are paused with their machine, whose clock
is set when it goes on, and then every time of day is another.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import psutil
import structlog

from statestore.folders import OWNER
from statestore.rocks.errors import LockHeld

log = structlog.get_logger()
_MODULE = "statestore.server"
# The boot's time is known to the second. No process id comes back that fast.
_SAME_S = 1.5


def _file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{OWNER}")


class FolderLock:
    """Held from its making until `close`. Raises `LockHeld` if another process, or another lock of this one, has it."""

    def __init__(self, folder: Path) -> None:
        path = _file(folder)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.write(self._fd, json.dumps({"pid": os.getpid(), "started_s": _started_s(psutil.Process())}).encode())
        except BlockingIOError as error:
            self.close()
            raise LockHeld("store folder is locked by another process", folder=folder) from error
        except BaseException:
            # On a full disk nothing is written: the lock of one that is not there would be held until this process ends.
            self.close()
            raise

    def close(self) -> None:
        """Give the folder free. Twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def end_zombie(folder: Path) -> bool:
    """Kill the store server that owns the folder; False if there is no such process."""
    try:
        about = json.loads(_file(folder).read_text())
        process = psutil.Process(about["pid"])
        same = abs(_started_s(process) - about["started_s"]) <= _SAME_S
        if not same or _MODULE not in " ".join(process.cmdline()) or process.pid == os.getpid():
            return False
        log.warning("ending a zombie store server", pid=process.pid, folder=str(folder))
        process.kill()
        process.wait(timeout=10)
    except psutil.NoSuchProcess:
        return True
    except (FileNotFoundError, ValueError, KeyError, psutil.Error):
        return False
    return True


def _started_s(process: psutil.Process) -> float:
    started_s: float = process.create_time() - psutil.boot_time()
    return started_s
