"""What may happen to a pipeline in a day: each fault is done to a running world and says in words what it did."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil

from infra import process
from infra.dagster import DAEMON
from infra.stack import KAFKA, S3, Stack
from ops.environment import driver_environment
from tests.support.watched import Watched

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


def restart_s3(_world: Watched, stack: Stack, _dice: random.Random) -> str:
    """The storage of the snapshots is killed and started again."""
    _kill(stack, S3)
    stack.up(components=[S3])
    return "S3 server killed and started again"


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
    restart_s3,
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
