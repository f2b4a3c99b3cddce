"""This machine: Java, memory, open files, disks, clock, monitoring."""

from __future__ import annotations

import os
import re
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from infra.errors import InfraError
from infra.java import find_java
from infra.stack import Stack
from ops.doctor.finding import Finding, error, ok, told, warning
from ops.environment import cache_folder
from pipelines.registry import Registry
from pipelines.settings import Settings

OPEN_FILES_MIN = 4096
FREE_WARNING, FREE_ERROR = 0.2, 0.05
CLOCK_S_MAX = 5.0
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def machine(settings: Settings) -> Iterator[Finding]:
    """Everything that is of this machine alone."""
    yield from _java()
    yield _memory(settings)
    yield _open_files()
    for what, folder in {"disk of the stores": settings.states, "disk of the home": settings.home}.items():
        yield _disk(what, folder)
    yield _monitoring(settings)


def _java() -> Iterator[Finding]:
    try:
        java = find_java(cache_folder())
    except InfraError as raised:
        yield told("java", raised)
    else:
        yield ok("java", f"{java.version} from {java.origin}")


def _memory(settings: Settings) -> Finding:
    wanted = _bytes(settings.spark_driver_memory)
    total = psutil.virtual_memory().total
    text = f"{total >> 20} MiB, of which one driver's JVM may take {wanted >> 20}"
    if wanted * 2 > total:
        return warning("memory", text, "lower spark_driver_memory: Python workers and stores need as much again")
    return ok("memory", text)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    return int(found[1]) * _UNITS.get(found[2], 1) if found else 0


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} may be open at once"
    if soft < OPEN_FILES_MIN:
        return warning(
            "open files", text, f"ulimit -n {min(hard, 65_536)} before the driver starts: RocksDB keeps files open"
        )
    return ok("open files", text)


def _disk(what: str, folder: Path) -> Finding:
    at = folder
    while not at.exists():
        at = at.parent
    if not os.access(at, os.W_OK):
        return error(what, f"{at} cannot be written by this user", f"chown it, or set another folder: {folder}")
    usage = shutil.disk_usage(at)
    share = usage.free / usage.total
    text = f"{usage.free >> 20} MiB free of {usage.total >> 20} ({share:.0%}) at {at}"
    fix = "make room, or set state_dir on another disk (docs/runbooks/RollforwardStateDiskFull.md)"
    if share < FREE_ERROR:
        return error(what, text, fix)
    return warning(what, text, fix) if share < FREE_WARNING else ok(what, text)


def _monitoring(settings: Settings) -> Finding:
    if settings.alertmanager_url:
        return ok("alerts", f"Alertmanager at {settings.alertmanager_url}")
    if Stack(settings.home).monitoring.installed():
        return warning("alerts", "Prometheus and Alertmanager are here and do not run", "rollforward up")
    return warning(
        "alerts", "no Alertmanager: nobody is called at night", "rollforward up --fetch-monitoring, or alertmanager_url"
    )


def clock(registry: Registry, names: list[str]) -> Iterator[Finding]:
    """Drivers on other machines write their heartbeats by their own clocks."""
    now = time.time()
    for name in names:
        driver = registry.driver(name)
        if driver is not None and driver.heartbeat_at > now + CLOCK_S_MAX:
            ahead = driver.heartbeat_at - now
            text = f"heartbeat of {name} on {driver.host} is {ahead:.0f} s in the future"
            yield error("clock", text, "let NTP set the clocks of both machines: a dead driver would look alive")
            return
    yield ok("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))
