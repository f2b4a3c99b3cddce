"""What may happen to a pipeline in a day: each fault is done to a running world and says in words what it did."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import requests

from infra import process
from infra.dagster import DAEMON
from infra.stack import KAFKA, S3, Stack
from ops.environment import driver_environment
from tests.support.small_disk import SmallDisk
from tests.support.watched import Watched

S3_AWAY_S = 35.0
DISK_FULL_S = 15.0
# A driver that began behind the alert does not end another one of it.
ALERT_S = 30.0
Fault = Callable[[Watched, Stack, random.Random], str]


def kill_driver(world: Watched, _stack: Stack, _dice: random.Random) -> str:
    """The driver's process dies."""
    pid = world.driver()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return f"driver {pid} killed"


def kill_jvm(world: Watched, _stack: Stack, _dice: random.Random) -> str:
    """The driver's JVM dies under it."""
    pid = world.driver()
    assert pid is not None
    [java] = [child for child in psutil.Process(pid).children(recursive=True) if child.name() == "java"][:1]
    java.kill()
    return f"JVM {java.pid} killed"


def kill_store_server(world: Watched, _stack: Stack, dice: random.Random) -> str:
    """A store server dies with its tasks."""
    row = world.registry.driver(world.name)
    assert row is not None
    server = dice.choice(row.servers)
    os.kill(int(server["pid"]), signal.SIGKILL)
    return f"store server {server['pid']} killed"


def hang_driver(world: Watched, _stack: Stack, _dice: random.Random) -> str:
    """The driver hangs: it lives and does nothing."""
    pid = world.driver()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return f"driver {pid} stopped as by a debugger"


def rival_driver(world: Watched, _stack: Stack, _dice: random.Random) -> str:
    """Somebody starts a second driver by hand: it fences the first."""
    environment = driver_environment(world.settings)
    command = [sys.executable, "-m", "pipelines.driver", world.name]
    rival = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    return f"rival {rival.pid} started by hand"


def restart_broker(_world: Watched, stack: Stack, _dice: random.Random) -> str:
    """The broker is killed and started again."""
    _kill(stack, KAFKA)
    stack.up(components=[KAFKA])
    return "broker killed and started again"


def s3_outage(_world: Watched, stack: Stack, _dice: random.Random) -> str:
    """The storage of the snapshots is away for longer than one of their intervals, then it is back."""
    _kill(stack, S3)
    time.sleep(S3_AWAY_S)
    stack.up(components=[S3])
    return f"S3 server away for {S3_AWAY_S:.0f} s"


def disk_full(world: Watched, _stack: Stack, _dice: random.Random) -> str:
    """The disk of the stores takes no byte, then it does again."""
    with SmallDisk(world.settings.states.parent).full():
        time.sleep(DISK_FULL_S)
    return f"disk of the stores full for {DISK_FULL_S:.0f} s"


def alert(world: Watched, stack: Stack, dice: random.Random) -> str:
    """The driver hangs, and Alertmanager tells of it before its heartbeat is missed."""
    text = hang_driver(world, stack, dice)
    now = datetime.now(UTC)
    told: dict[str, Any] = {
        "labels": {"alertname": "RollforwardCommitStalled", "pipeline": world.name},
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(seconds=ALERT_S)).isoformat(),
    }
    requests.post(f"{world.settings.alertmanager_url}/api/v2/alerts", json=[told], timeout=30).raise_for_status()
    return f"{text}, and an alert tells of it"


def kill_daemon(world: Watched, _stack: Stack, _dice: random.Random) -> str:
    """Dagster's daemon is killed together with the driver, and started again as a service manager would."""
    record = process.read_record(world.dagster.record(DAEMON))
    assert record is not None
    _kill_and_await(record.pid)
    text = kill_driver(world, _stack, _dice)
    assert [DAEMON] == world.start()
    return f"Dagster's daemon killed and started again, {text}"


FAULTS: tuple[Fault, ...] = (
    kill_driver,
    kill_store_server,
    kill_jvm,
    restart_broker,
    hang_driver,
    s3_outage,
    disk_full,
    alert,
    kill_daemon,
    rival_driver,
)


def _kill(stack: Stack, name: str) -> None:
    pid = stack.status().component(name).pid
    assert pid is not None
    _kill_and_await(pid)


def _kill_and_await(pid: int) -> None:
    """Kill what is started again: while it still dies, it would be found running."""
    victim = psutil.Process(pid)
    victim.kill()
    victim.wait(timeout=30)
