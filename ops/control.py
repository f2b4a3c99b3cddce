"""Starting, stopping and watching the detached drivers. The command line and Dagster both go through here.

A driver lives in a session of its own: it outlives the run or the terminal that started it. At most one is started at
a time (a file lock and the registry's row see to that); should two ever run, the newer fences the older in Kafka.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import Any

import psutil

from infra.process import MARK
from ops.environment import Progress, driver_environment, with_spark
from pipelines.home import in_home
from pipelines.metastore.embedded import want
from pipelines.processes import runs
from pipelines.registry import RUNNING, STOPPED, BatchRow, DriverRow, Registry
from pipelines.settings import Settings
from statestore.errors import Unavailable

HEARTBEAT_STALE_S = 15.0
_GIVE_UP_S = 10.0
_LOOK_S = 0.2
_CLOCKS_S = 60.0
_UP = ("starting", "recovering", "running")
STOPPING = "stopping"
_LIVING = (*_UP, STOPPING)
# How long `start` waits for a driver that is stopping. Whoever stops it has a time limit of his own.
_STOPPING_S = 60.0
# How long whoever ends a driver that is being started waits for its row, and then for who has started it to see its end.
_LAUNCH_S = 60.0
_LOCKS, _LOGS = "locks", "logs"


@dataclass(frozen=True)
class PipelineStatus:
    """Desired against observed. `needs_recovery` says why a recovery run is due; empty when none is."""

    pipeline: str
    desired: str
    state: str
    pid: int | None
    alive: bool
    heartbeat_age_s: float | None
    error: str
    needs_recovery: str
    records: int
    lag: int
    newest_batches: dict[str, int]
    metrics_url: str | None = None
    spark_url: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def is_alive(driver: DriverRow) -> bool:
    """Whether the very process that wrote the row still runs; of one on another machine only its heartbeat tells."""
    if is_elsewhere(driver):
        return driver.state in _LIVING and time.time() - driver.heartbeat_at <= HEARTBEAT_STALE_S
    return runs(driver.pid, driver.process_started)


def is_elsewhere(driver: DriverRow) -> bool:
    """Whether the driver is another machine's: its pid means nothing here. A machine's name may have changed."""
    return driver.host != socket.gethostname() and not runs(driver.pid, driver.process_started)


def is_running(settings: Settings, registry: Registry, name: str) -> bool:
    """Whether a driver of the pipeline lives, or is being started, which has no row yet."""
    # In this order: who has started one has seen its row before he lets go of the lock.
    if is_launching(settings, name):
        return True
    driver = registry.driver(name)
    return driver is not None and is_alive(driver)


def is_of(driver: DriverRow, deployed_at: float) -> bool:
    """Whether the driver may be one of the deployment, and not of an earlier pipeline of its name. Clocks differ."""
    return driver.started_at >= deployed_at - _CLOCKS_S


def status(registry: Registry, name: str) -> PipelineStatus:
    """Desired and observed state of one pipeline."""
    row = registry.pipeline(name)
    driver = counting(registry.driver(name), row.deployed_at)
    return _status(name, row.desired, driver, registry.newest_batches(name), registry.records(name))


def statuses(
    registry: Registry, deployed_at: Mapping[str, float]
) -> dict[str, tuple[PipelineStatus, DriverRow | None]]:
    """Every deployed pipeline's state, with its newest driver, in a few questions to the database.

    `deployed_at` says when those that are asked for were deployed, in seconds since the epoch.
    """
    drivers, records = registry.drivers(), registry.all_records()
    newest: dict[str, list[BatchRow]] = defaultdict(list)
    for batch in registry.newest_batches():
        newest[batch.pipeline].append(batch)
    found: dict[str, tuple[PipelineStatus, DriverRow | None]] = {}
    for name, desired in registry.desires().items():
        if name in deployed_at:
            driver = counting(drivers.get(name), deployed_at[name])
            found[name] = _status(name, desired, driver, newest[name], records.get(name, 0)), driver
    return found


def counting(driver: DriverRow | None, deployed_at: float) -> DriverRow | None:
    """The driver, unless it is a dead one of an earlier pipeline of the name: what that ended of says nothing of this one."""
    if driver is None or is_of(driver, deployed_at) or is_alive(driver):
        return driver
    return None


def _status(
    name: str, desired: str, driver: DriverRow | None, newest: Sequence[BatchRow], records: int
) -> PipelineStatus:
    alive = driver is not None and is_alive(driver)
    age = None if driver is None else max(0.0, time.time() - driver.heartbeat_at)
    return PipelineStatus(
        pipeline=name,
        desired=desired,
        state="never started" if driver is None else _state(driver, alive),
        pid=driver.pid if driver is not None and alive else None,
        alive=alive,
        heartbeat_age_s=None if age is None else round(age, 1),
        error="" if driver is None else driver.error,
        needs_recovery=_why_recover(desired, driver, alive, age),
        records=records,
        lag=sum(batch.lag for batch in newest),
        newest_batches={batch.query: batch.batch for batch in newest},
        metrics_url=None if driver is None or not alive else _metrics_url(driver),
        spark_url=None if driver is None or not alive else driver.spark_url,
    )


def _metrics_url(driver: DriverRow) -> str | None:
    here = driver.metrics_port and not is_elsewhere(driver)
    return f"http://127.0.0.1:{driver.metrics_port}/metrics" if here else None


def _state(driver: DriverRow, alive: bool) -> str:
    return "dead" if driver.state in _LIVING and not alive else driver.state


def is_up(status: PipelineStatus) -> bool:
    """Whether there is nothing to recover: a driver lives, works and is heard of."""
    return status.alive and status.state in _UP and not status.needs_recovery


def _why_recover(desired: str, driver: DriverRow | None, alive: bool, age: float | None) -> str:
    if desired != RUNNING or driver is None:
        return ""
    elsewhere = is_elsewhere(driver)
    if driver.state in _LIVING and not alive and not elsewhere:
        return f"driver {driver.pid} died"
    if driver.state == "failed":
        return f"driver {driver.pid} failed: {driver.error}"
    if driver.state in _LIVING and age is not None and age > HEARTBEAT_STALE_S:
        where = f" on {driver.host}" if elsewhere else ""
        return f"driver {driver.pid}{where} has not been heard of for {age:.0f} s"
    return ""


def driver_log(settings: Settings, name: str) -> Path:
    """The detached driver's log."""
    return settings.home / _LOGS / f"{name}-driver.log"


@contextmanager
def _launching(settings: Settings, name: str) -> Iterator[None]:
    in_home(settings.home, _LOCKS)
    with _launch_lock(settings, name).open("w") as file:
        flock(file, LOCK_EX)
        yield


def _launch_lock(settings: Settings, name: str) -> Path:
    return settings.home / _LOCKS / f"{name}.launch"


def is_launching(settings: Settings, name: str) -> bool:
    """Whether somebody is starting the pipeline's driver at this moment."""
    try:
        with _launch_lock(settings, name).open() as file:
            # Shared: two that look are no launch to each other.
            flock(file, LOCK_SH | LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def launch(
    settings: Settings,
    registry: Registry,
    name: str,
    *,
    timeout_s: float = 900.0,
    accept_loss: bool = False,
    on_progress: Progress = lambda _step, _detail: None,
) -> int:
    """Start the pipeline's driver, detached, unless it runs; gives its pid once it is running.

    A process of an earlier driver whose heartbeat is stale, or of an earlier deployment, is ended first; one that is
    stopping may end by itself, and is killed after a minute. Raises
    `Unavailable` with the end of the log if the driver does not come up, and while one lives on another machine.
    """
    registry.pipeline(name)
    with _launching(settings, name):
        running = _running(registry, name, on_progress)
        if running is not None:
            return running
        on_progress("driver", "resolving Java and jars")
        settings = settings.model_copy(update={"accept_loss": accept_loss or settings.accept_loss})
        environment = driver_environment(with_spark(settings, on_progress))
        # Whoever ends the local stack's processes, as Dagster's, must not take a driver that one of them started.
        environment.pop(MARK, None)
        in_home(settings.home, _LOGS)
        log = driver_log(settings, name)
        earlier = registry.driver(name)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.driver", name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        return _await_running(registry, name, process, earlier, log, timeout_s, on_progress)


def _running(registry: Registry, name: str, on_progress: Progress) -> int | None:
    """The pid of a driver that is as it should be; one that lives and is not is ended, one that ends is waited for."""
    row, driver = registry.pipeline(name), registry.driver(name)
    if driver is None or not is_alive(driver):
        return None
    if is_elsewhere(driver):
        raise Unavailable(
            "driver runs on another machine",
            pipeline=name,
            host=driver.host,
            pid=driver.pid,
            hint=f"`rollforward stop {name}` ends it there; one that is dead counts for {HEARTBEAT_STALE_S:.0f} s",
        )
    seen = status(registry, name)
    # A deployment never changes: it is dropped and made anew, and a driver of before may not have noticed.
    if is_up(seen) and is_of(driver, row.deployed_at):
        return driver.pid
    if driver.state == STOPPING and not seen.needs_recovery:
        on_progress("driver", f"waiting for driver {driver.pid} to stop")
        _await_gone(driver.pid, _STOPPING_S)
    _end(driver.pid, timeout_s=0)
    return None


def _await_gone(pid: int, timeout_s: float) -> None:
    try:
        psutil.wait_procs([psutil.Process(pid)], timeout=timeout_s)
    except psutil.NoSuchProcess:
        return


def _await_running(
    registry: Registry,
    name: str,
    process: subprocess.Popen[bytes],
    earlier: DriverRow | None,
    log: Path,
    timeout_s: float,
    on_progress: Progress,
) -> int:
    """The pid once the driver runs. In a container the `earlier` one may have had the same, whose row says nothing of it."""
    before = None if earlier is None else earlier.started_at
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        driver = registry.driver(name)
        if driver is not None and (driver.pid != process.pid or driver.started_at == before or is_elsewhere(driver)):
            driver = None
        if driver is not None:
            on_progress("driver", driver_text(driver))
            if driver.state == "running":
                return process.pid
        code = process.poll()
        if code is not None:
            reason = "" if driver is None else driver.error
            raise Unavailable(
                "driver did not start", pipeline=name, exit_code=code, error=reason or _tail(log), log=log
            )
        time.sleep(0.1)
    raise Unavailable("driver is not running yet", pipeline=name, seconds=timeout_s, log=log)


def driver_text(driver: DriverRow) -> str:
    """The driver's state, and how far, how fast and for how long each task is restored meanwhile."""
    restoring = [restoring_text(one) for server in driver.servers for one in server.get("restoring", [])]
    return "; ".join([driver.state, *restoring])


def restoring_text(figures: dict[str, Any]) -> str:
    """One task's restore, from `RestoreMeter`'s figures: `counts-0 40 %, 12,000 records, 3,000/s, 6.0 s left`."""
    text = f"{figures['task']} {figures['percent']} %, {figures['amount']:,} {figures['unit']}"
    if figures["left_s"] is None:
        return text
    return f"{text}, {figures['per_second']:,}/s, {figures['left_s']} s left"


def _tail(log: Path, lines: int = 5) -> str:
    try:
        return " | ".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def start(
    settings: Settings,
    registry: Registry,
    name: str,
    *,
    accept_loss: bool = False,
    on_progress: Progress = lambda _step, _detail: None,
) -> int:
    """Make `running` the desired state and launch the driver; gives its pid once it runs. Raises as `launch` does."""
    want(name, RUNNING, settings, registry)
    return launch(settings, registry, name, accept_loss=accept_loss, on_progress=on_progress)


def stop(settings: Settings, registry: Registry, name: str, *, timeout_s: float = 60.0) -> bool:
    """Make `stopped` the desired state and wait for the driver to finish its batch; False if none was running.

    Shortly before `timeout_s` it is told to give the batch up, and after it it is killed. Neither loses anything: the
    batch rolls back and runs again at the next start. One on another machine ends by itself; raises as `end_driver` does.
    """
    want(name, STOPPED, settings, registry)
    return end_running(settings, registry, name, timeout_s=timeout_s)


def end_running(
    settings: Settings,
    registry: Registry,
    name: str,
    *,
    timeout_s: float = 60.0,
    whatever_desired: bool = False,
    on_progress: Progress = lambda _step, _detail: None,
) -> bool:
    """As `end_driver`, and so for a driver that is being started: before it has a row nobody could end it.

    Somebody else may have begun to start it, as Dagster in a loop of crashes. A pipeline that is to run is not waited for,
    unless `whatever_desired`: another one may want it by now. Raises `Unavailable` also if it has neither come up nor
    ended after a minute.
    """
    ended, deadline = False, time.monotonic() + _LAUNCH_S
    while True:
        # In this order: who has started one has seen its row before he lets go of the lock.
        launching = is_launching(settings, name)
        if end_driver(registry, name, timeout_s=timeout_s):
            # That may have taken longer than a launch.
            ended, deadline = True, time.monotonic() + _LAUNCH_S
        if not launching or (not whatever_desired and _is_desired(registry, name)):
            return ended
        on_progress(name, "its driver is being started, waiting for it")
        if time.monotonic() >= deadline:
            hint = "it ends when it comes up and finds that it is not to run; ask again"
            raise Unavailable("driver is still being started", pipeline=name, seconds=_LAUNCH_S, hint=hint)
        time.sleep(_LOOK_S)


def end_driver(registry: Registry, name: str, *, timeout_s: float = 60.0) -> bool:
    """Let the driver finish its batch, whatever is desired; False if none was running.

    One on another machine is only waited for: that `stopped` is desired is how it learns. Raises `Unavailable` if it is
    to run, or has not ended after `timeout_s`.
    """
    driver = registry.driver(name)
    if driver is None or not is_alive(driver):
        return False
    if is_elsewhere(driver):
        _await_end(registry, driver, timeout_s)
    else:
        _end(driver.pid, timeout_s=timeout_s)
    return True


def end_drivers_of(home: Path, *, timeout_s: float = 60.0) -> list[str]:
    """As `end_driver`, for every detached driver of this home on this machine, where no registry tells of them.

    They are known by their command and environment. `rollforward run` in a terminal is not: its home may be its folder's
    alone. Gives the names of their pipelines.
    """
    ended = set()
    for process in psutil.process_iter():
        try:
            words, its_home = process.cmdline(), process.environ().get("ROLLFORWARD_HOME")
        except (psutil.Error, OSError):
            continue
        if words[1:3] == ["-m", "pipelines.driver"] and its_home == str(home):
            _end(process.pid, timeout_s=timeout_s)
            ended.update(words[3:4])
    return sorted(ended)


def _await_end(registry: Registry, driver: DriverRow, timeout_s: float) -> None:
    where = {"pipeline": driver.pipeline, "host": driver.host, "pid": driver.pid}
    if _is_desired(registry, driver.pipeline):
        hint = f"run `rollforward stop {driver.pipeline}`, or end it on that machine"
        raise Unavailable("driver runs on another machine and is to run", **where, hint=hint)
    deadline = time.monotonic() + timeout_s
    while True:
        now = registry.driver(driver.pipeline)
        if now is None or now.started_at != driver.started_at or not is_alive(now):
            return
        if time.monotonic() >= deadline:
            hint = "it ends behind its batch; ask again, or end it on that machine"
            raise Unavailable("driver on another machine has not ended", **where, seconds=timeout_s, hint=hint)
        time.sleep(_LOOK_S)


def _is_desired(registry: Registry, name: str) -> bool:
    row = registry.find(name)
    return row is not None and row.desired == RUNNING


def _end(pid: int, *, timeout_s: float) -> None:
    """Ask with SIGTERM, wait, then kill the process and everything below it."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        if timeout_s > 0:
            # Asked once it finishes its batch, asked again it gives the batch up, asked once more it waits for nothing
            # that is still under way, as a commit, and in the end it is killed.
            give_up_s = min(_GIVE_UP_S, timeout_s / 2)
            for patience_s in (timeout_s - give_up_s, give_up_s / 2, give_up_s / 2):
                process.send_signal(signal.SIGTERM)
                if not psutil.wait_procs([process], timeout=patience_s)[1]:
                    return
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=10)
    except psutil.NoSuchProcess:
        return
    finally:
        _reap(pid)


def _reap(pid: int) -> None:
    """Take the exit status of a driver that this very process started."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
