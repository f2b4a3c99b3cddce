"""The local stack as one thing: up, status, down.

Owns the layout of a home and which processes belong to it:

    <home>/stack.json     what the last `up` made: java, addresses (atomic; a convenience for people, `down` works without it)
    <home>/stack.lock     held by `up` and `down`; the kernel frees it with its process
    <home>/run/<name>.json      one record per process (infra.process)
    <home>/logs/<name>.log      one log per process
    <home>/kafka/  <home>/s3/  <home>/dagster/  <home>/monitoring/      the components' own folders

Invariants: two commands never change one home at the same time; `up` starts what is missing or dead and touches nothing
that runs; when a component fails, what this call started is stopped again; after `down` no process of the stack is
left, whatever the files say. Survives kill -9 of any process, of the command itself, and files cut short.
`down(wipe=True)` deletes a home that was empty at the first `up`; otherwise only the entries above and the metastore's
database, which would miss its log, so that a home given by mistake loses nothing else. What is left is named.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from infra import jars, process
from infra.broker import Broker
from infra.dagster import DAEMON, STORAGE, WEBSERVER, Dagster
from infra.errors import InfraError
from infra.files import FileLock, read_json, write_json
from infra.java import JavaHome, find_java
from infra.monitoring import ALERTMANAGER, PROMETHEUS, Monitored, Monitoring
from infra.s3 import S3Server

KAFKA = "kafka"
S3 = "s3"
DAGSTER = "dagster"
MONITORING = "monitoring"
COMPONENTS = (KAFKA, S3, DAGSTER)
# Started where its programs are installed and only when it is asked for.
OPTIONAL = (MONITORING,)
PROCESSES = (KAFKA, S3, DAEMON, WEBSERVER)
MONITORS = (PROMETHEUS, ALERTMANAGER)
LOCK_TIMEOUT_S = 300.0
# Present in homes that `up` found empty, which `down(wipe=True)` may delete as a whole.
MADE_BY_UP = ".made-by-up"
# A database without the topics that it speaks of would refuse every statement.
DATABASE = "metastore.db"
ENTRIES = (
    *("stack.json", "run", "logs", "kafka", "s3", "dagster", "monitoring", "stack.lock"),
    *(DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"),
)
# Of what a wipe leaves, so many are named.
LEFT_NAMED = 10

Progress = Callable[[str, str], None]
State = Literal["running", "stopped", "dead"]


@dataclass(frozen=True)
class ComponentStatus:
    """One process: `dead` was started and ended without `down`; `stopped` was not started or was stopped in order."""

    name: str
    state: State
    pid: int | None
    address: str | None
    uptime_s: float | None
    log: str


@dataclass(frozen=True)
class StackStatus:
    """The stack at one moment; addresses are None while their server does not run.

    `started` names what the `up` that returned this has started.
    """

    home: str
    components: tuple[ComponentStatus, ...]
    bootstrap_servers: str | None
    dagster_url: str | None
    java_home: str | None
    started: tuple[str, ...] = ()
    s3_endpoint: str | None = None
    prometheus_url: str | None = None
    alertmanager_url: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain dicts, lists, strings and numbers."""
        return {
            **asdict(self),
            "components": [asdict(component) for component in self.components],
            "started": list(self.started),
        }

    def component(self, name: str) -> ComponentStatus:
        """One component's status by name."""
        return next(component for component in self.components if component.name == name)


class Stack:
    """The local stack of one home folder. `cache` holds what is shared between homes: jars, and Java's folder of links."""

    def __init__(self, home: Path, *, cache: Path | None = None) -> None:
        self.home = home.absolute()
        self.cache = cache or jars.default_cache()
        self.broker = Broker(home=self.home / "kafka", log=self._log(KAFKA), record=self._record(KAFKA))
        self.s3 = S3Server(home=self.home / "s3", log=self._log(S3), record=self._record(S3))
        self._dagster = Dagster(home=self.home / "dagster", logs=self.home / "logs", records=self.home / "run")
        self.monitoring = Monitoring(
            home=self.home / "monitoring", logs=self.home / "logs", records=self.home / "run", cache=self.cache
        )

    def up(
        self,
        *,
        components: Iterable[str] = COMPONENTS,
        dagster_module: str | None = None,
        dagster_yaml: Path | None = None,
        env: Mapping[str, str] | None = None,
        on_progress: Progress | None = None,
        kafka_port: int | None = None,
        s3_port: int | None = None,
        dagster_port: int | None = None,
        monitored: Monitored | None = None,
    ) -> StackStatus:
        """Starts what is missing or dead of the named components and returns when they answer.

        They are `kafka`, `s3`, `dagster`, and `monitoring`, which is not among the default ones and needs `monitored`.
        `dagster` needs `dagster_module` and `dagster_yaml`. `env` is added to the environment of the Dagster processes,
        which also holds JAVA_HOME, PYSPARK_PYTHON, ROLLFORWARD_HOME and, with a broker, ROLLFORWARD_BOOTSTRAP_SERVERS.
        A port given for a component that already runs is not looked at. Waits up to five minutes for another `up` or
        `down` of this home. Raises InfraError.
        """
        wanted = _checked(components, dagster_module, dagster_yaml)
        tell = on_progress or (lambda step, detail: None)
        with self._lock():
            self.require_own()
            if self._is_ours():
                (self.home / MADE_BY_UP).touch()
                _close(self.home)
            started: list[str] = []
            try:
                java = find_java(self.cache)
                tell("java", f"{java.version} from {java.origin} in {java.home}")
                if KAFKA in wanted:
                    started += self._up_kafka(java, kafka_port, tell)
                if S3 in wanted:
                    started += self._up_s3(java, s3_port, tell)
                if MONITORING in wanted and monitored is not None:
                    started += self._up_monitoring(monitored, tell)
                if DAGSTER in wanted and dagster_module and dagster_yaml:
                    full_env = {**self._env(java), **(env or {})}
                    started += self._up_dagster(dagster_module, dagster_yaml, full_env, dagster_port, tell)
            except BaseException:
                for name in reversed(started):
                    tell(name, "stopping again, as another component failed")
                    process.stop(self._record(name))
                raise
            status = self._status(java_home=str(java.home), started=tuple(started))
            write_json(self.home / "stack.json", status.to_json())
            return status

    def status(self) -> StackStatus:
        """What runs now; takes no lock and starts nothing."""
        saved = read_json(self.home / "stack.json") or {}
        java_home = saved.get("java_home")
        return self._status(java_home=java_home if isinstance(java_home, str) else None)

    def down(self, *, wipe: bool = False, on_progress: Progress | None = None) -> StackStatus:
        """Stops every process of the stack; with `wipe` deletes its data too, not the cache. Harmless when nothing runs.

        What a Dagster run started as a plain child ends with it; what was started through infra.process is its
        starter's to stop.
        """
        tell = on_progress or (lambda step, detail: None)
        if not self.home.exists():
            return self._status(java_home=None)
        with self._lock():
            self.require_own()
            process.stop(self._record(STORAGE))
            # Readers of the log go first, the log last.
            for name in (DAEMON, WEBSERVER, *MONITORS, S3, KAFKA):
                tell(name, "stopped" if process.stop(self._record(name)) else "was not running")
            (self.home / "stack.json").unlink(missing_ok=True)
            if wipe:
                self._wipe()
                left = what_is_left(self.home)
                tell("data", f"of {self.home} is left: {left}" if left else f"deleted {self.home}")
        return self._status(java_home=None)

    def require_own(self) -> None:
        """Raises CopiedHome while processes run of a home of which this one is a copy: neither may be used in its place."""
        for name in (*PROCESSES, STORAGE, *MONITORS):
            process.require_own(self._record(name))

    def _up_kafka(self, java: JavaHome, port: int | None, tell: Progress) -> list[str]:
        record = process.read_record(self._record(KAFKA))
        if record is not None and process.is_alive(record):
            tell(KAFKA, f"already running on {self.broker.address}, pid {record.pid}")
            return []
        before = self.broker.port
        files = jars.resolve("kafka", java, tell, cache=self.cache)
        self.broker.start(java, files, port=port, on_step=lambda detail: tell(KAFKA, detail))
        tell(KAFKA, f"answers on {self.broker.address}")
        if before not in (None, self.broker.port) and self._dagster.stop():
            tell(DAGSTER, "stopped, as the broker's address has changed")
        return [KAFKA]

    def _up_s3(self, java: JavaHome, port: int | None, tell: Progress) -> list[str]:
        record = process.read_record(self._record(S3))
        if record is not None and process.is_alive(record):
            tell(S3, f"already running on {self.s3.endpoint}, pid {record.pid}")
            return []
        files = jars.resolve("s3proxy", java, tell, cache=self.cache)
        self.s3.start(java, files, port=port, on_step=lambda detail: tell(S3, detail))
        tell(S3, f"answers on {self.s3.endpoint}")
        return [S3]

    def _up_monitoring(self, monitored: Monitored, tell: Progress) -> list[str]:
        started = self.monitoring.start(monitored, on_step=lambda detail: tell(MONITORING, detail))
        urls = f"{self.monitoring.url(PROMETHEUS)} and {self.monitoring.url(ALERTMANAGER)}"
        tell(MONITORING, f"{'answers' if started else 'already running'} on {urls}")
        return started

    def _up_dagster(
        self, module: str, config: Path, env: Mapping[str, str], port: int | None, tell: Progress
    ) -> list[str]:
        started = self._dagster.start(
            module=module, config=config, env=env, port=port, on_step=lambda detail: tell(DAGSTER, detail)
        )
        tell(DAGSTER, f"answers on {self._dagster.url}" if started else f"already running on {self._dagster.url}")
        return started

    def _env(self, java: JavaHome) -> dict[str, str]:
        env = {
            "JAVA_HOME": str(java.home),
            # Spark's workers would start whatever python3 is first on PATH.
            "PYSPARK_PYTHON": sys.executable,
            "ROLLFORWARD_HOME": str(self.home),
        }
        if self.broker.address:
            env["ROLLFORWARD_BOOTSTRAP_SERVERS"] = self.broker.address
        return env

    def _status(self, *, java_home: str | None, started: tuple[str, ...] = ()) -> StackStatus:
        addresses = {KAFKA: self.broker.address, S3: self.s3.endpoint, WEBSERVER: self._dagster.url, DAEMON: None}
        addresses |= {name: self.monitoring.url(name) for name in MONITORS}
        # What this machine has never run is not missing.
        monitors = tuple(name for name in MONITORS if self._record(name).exists())
        components = tuple(self._component(name, addresses[name]) for name in (*PROCESSES, *monitors))
        running = {component.name: component.address for component in components if component.state == "running"}
        return StackStatus(
            home=str(self.home),
            components=components,
            bootstrap_servers=running.get(KAFKA),
            dagster_url=running.get(WEBSERVER),
            java_home=java_home,
            started=started,
            s3_endpoint=running.get(S3),
            prometheus_url=running.get(PROMETHEUS),
            alertmanager_url=running.get(ALERTMANAGER),
        )

    def _component(self, name: str, address: str | None) -> ComponentStatus:
        path = self._record(name)
        record = process.read_record(path)
        if record is not None and process.is_alive(record):
            return ComponentStatus(
                name, "running", record.pid, address, round(record.uptime_s, 1), str(self._log(name))
            )
        return ComponentStatus(name, "dead" if path.exists() else "stopped", None, None, None, str(self._log(name)))

    def _is_ours(self) -> bool:
        """Whether the home may be deleted as a whole: `up` found it empty, or would now.

        No other name tells: what commands make in a home before `up`, as `state` or `backups`, others make as well.
        """
        names = set(os.listdir(self.home))
        return MADE_BY_UP in names or names <= {"stack.lock"}

    def _wipe(self) -> None:
        entries = os.listdir(self.home) if self._is_ours() else ENTRIES
        for name in sorted(entries, key=_turn):
            path = self.home / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if not any(self.home.iterdir()):
            self.home.rmdir()

    def _lock(self) -> FileLock:
        return FileLock(self.home / "stack.lock", timeout_s=LOCK_TIMEOUT_S)

    def _record(self, name: str) -> Path:
        return self.home / "run" / f"{name}.json"

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"


def _close(home: Path) -> None:
    """Nobody else may look into a home of ours: earlier builds let all read it."""
    if home.stat().st_uid == os.getuid():
        home.chmod(0o700)


def what_is_left(home: Path) -> str:
    """What a wipe has left in the home, by name; empty if the home is gone."""
    names = sorted(os.listdir(home)) if home.exists() else []
    more = [f"{len(names) - LEFT_NAMED} more"] if len(names) > LEFT_NAMED else []
    return ", ".join([*names[:LEFT_NAMED], *more])


def _turn(name: str) -> tuple[bool, bool, bool, str]:
    """When a wipe deletes this entry, so that one that is killed half-way leaves a home that works or is wiped again.

    First the database, before the log that it speaks of, and in it the file before its WAL. Then the rest, then what says
    that the rest may be deleted. The lock goes last: until then nobody else may begin.
    """
    return not name.startswith(DATABASE), name == "stack.lock", name == MADE_BY_UP, name


def _checked(components: Iterable[str], module: str | None, config: Path | None) -> frozenset[str]:
    wanted = frozenset(components)
    if unknown := wanted - set(COMPONENTS) - set(OPTIONAL):
        raise InfraError(
            "no such component",
            unknown=", ".join(sorted(unknown)),
            known=", ".join((*COMPONENTS, *OPTIONAL)),
            hint="name one of the known ones",
        )
    if DAGSTER in wanted and (module is None or config is None):
        raise InfraError(
            "dagster needs its definitions and its configuration",
            module=module,
            config=config,
            hint="pass dagster_module and dagster_yaml",
        )
    return wanted
