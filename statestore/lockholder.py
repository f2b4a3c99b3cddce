"""Who has a task's folder open, so that a zombie of ours can be ended instead of waited for.

A store server that owns a task writes its process id and start time beside the folder. A newer server that finds the
folder locked reads them, makes sure that this very process still runs and is a store server, and kills it: the newer
one holds the transactional id already, so the older cannot commit any more.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger()
_MODULE = "statestore.server"


def _file(folder: Path) -> Path:
    return folder.with_name(folder.name + ".owner")


def record_owner(folder: Path) -> None:
    """This process owns the folder from now on."""
    file = _file(folder)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = {"pid": os.getpid(), "started": psutil.Process().create_time()}
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(about))
    temporary.replace(file)


def end_zombie(folder: Path) -> bool:
    """Kill the store server that was last recorded as the folder's owner; False if there is no such process."""
    try:
        about = json.loads(_file(folder).read_text())
        process = psutil.Process(about["pid"])
        same = abs(process.create_time() - about["started"]) < 0.01
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
