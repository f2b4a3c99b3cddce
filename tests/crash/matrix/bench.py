"""The test bench of the matrix: a broker of its own, the pipeline, its supervisor, its input and its auditor.

The pipeline reaches its broker through a proxy, which may be cut; the input does not. The supervisor is the production
one: the same two functions that Dagster's sensor and recovery run call, `status` and `launch` of `ops.control`. Transactions time out after `TRANSACTION_S`, a silent process after `ANSWER_S`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from infra import ports
from infra.stack import Stack
from ops import control
from ops.environment import with_spark
from pipelines.metastore.embedded import deploy, want
from pipelines.registry import RUNNING, Registry
from pipelines.settings import AT_ONCE, Settings
from statestore.errors import RollforwardError
from statestore.kafka.admin import Admin
from tests.crash.matrix import check
from tests.crash.matrix.auditor import Auditor
from tests.crash.matrix.workload import SQL, Workload
from tests.support.network import Network, ProxiedBroker
from tests.support.small_disk import SmallDisk
from tests.support.waiting import TooLate

TRANSACTION_S = 10.0
ANSWER_S = 4.0
DISK, HOME_DISK = "160m", "600m"
NAME = "matrix"
# A start takes some seconds; on a machine that others use as well it may take a minute.
START_S = 240.0


class Bench:
    """Everything that runs; `close` ends it.

    small: the driver computes small batches itself, as by default. Otherwise Spark computes them all.
    spark_start: at once, so that there is a JVM to kill, unless no fault is to meet one.
    """

    def __init__(self, home: Path, seed: int, *, small: bool = False, spark_start: str = AT_ONCE) -> None:
        self.home = home
        with ExitStack() as ends:
            self._start(ends, seed, small=small, spark_start=spark_start)
            # Whatever of it has been started is ended, last first, if the rest does not come up.
            self._ends = ends.pop_all()

    def _start(self, ends: ExitStack, seed: int, *, small: bool, spark_start: str) -> None:
        home = self.home
        # Whatever makes temporary files makes them here, where nobody else's are. Short, for paths of sockets.
        self.temporary = Path(tempfile.mkdtemp(prefix="m-"))
        ends.callback(shutil.rmtree, self.temporary)
        ends.enter_context(patch.dict(os.environ, TMPDIR=str(self.temporary)))
        ends.enter_context(patch.object(tempfile, "tempdir", str(self.temporary)))
        self.disk = SmallDisk.mounted(home / "disk", DISK)
        ends.callback(self.disk.close)
        self.home_disk = SmallDisk.mounted(home / "home", HOME_DISK)
        ends.callback(self.home_disk.close)
        self.stack, proxy, proxied = Stack(home / "stack"), ports.free_port(), ports.free_port()
        self.stack.broker = ProxiedBroker(**vars(self.stack.broker), proxy=proxy, proxied=proxied)
        ends.callback(self.stack.down, wipe=True)
        self.stack.up(components=["kafka"])
        self.network = Network(proxy=proxy, proxied=proxied)
        ends.callback(self.network.close)
        unusual: dict[str, Any] = {"spark_start": spark_start} | ({} if small else {"small_batch_records": 0})
        self.settings = with_spark(
            Settings(
                home=home / "home",
                bootstrap_servers=self.network.address,
                state_dir=self.disk.path / "state",
                service="matrix",
                batch_interval_s=0.3,
                **unusual,
                tasks=2,
                request_timeout_s=TRANSACTION_S,
                answer_timeout_s=ANSWER_S,
                # With several failures allowed Spark runs a failed task again; with one it never would.
                spark_master="local[2,4]",
                spark_conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
            )
        )
        self.points = home / "points"
        self.points.mkdir()
        ends.enter_context(patch.dict(os.environ, ROLLFORWARD_FAILPOINTS=str(self.points)))
        # The input comes from elsewhere, and the auditor is nobody's neighbour.
        direct = self.stack.status().bootstrap_servers or ""
        self._beside = self.settings.model_copy(update={"bootstrap_servers": direct})
        self.load = Workload(direct, NAME, seed)
        ends.callback(self.load.close)
        self.registry = Registry(self.settings.metastore)
        ends.callback(self.registry.close)
        deploy(SQL.format(topic=NAME), NAME, self.settings, self.registry)
        want(NAME, RUNNING, self.settings, self.registry)
        self.drivers: set[int] = set()
        self._failures = 0
        self._ended, self._watching = threading.Event(), threading.Event()
        self._turn = threading.Lock()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        ends.callback(self._end_drivers)
        self.launch()
        self._watching.set()
        self._supervisor.start()
        ends.callback(self._end_supervisor)
        self.load.resume()
        self.auditor = Auditor(NAME, self._beside, self.registry, self.load)
        ends.callback(self.auditor.close)

    def close(self) -> None:
        """End everything, and leave nothing."""
        self._ends.close()

    def _end_supervisor(self) -> None:
        self._ended.set()
        self._watching.set()
        self._supervisor.join(START_S)
        assert not self._supervisor.is_alive(), "the supervisor does not end"

    def _end_drivers(self) -> None:
        control.end_driver(self.registry, NAME, timeout_s=20)
        for process in check.processes(self.network.address):
            process.kill()

    # The supervisor.

    def launch(self, **changed: object) -> int:
        """Start a driver with settings changed from now on; gives its pid."""
        self.settings = self.settings.model_copy(update=changed)
        pid = control.launch(self.settings, self.registry, NAME, timeout_s=START_S)
        self.drivers.add(pid)
        return pid

    def start(self) -> None:
        """Make sure that a driver runs, and is to run."""
        want(NAME, RUNNING, self.settings, self.registry)
        self.launch()

    def _supervise(self) -> None:
        while not self._ended.wait(0.2):
            self._watching.wait()
            with self._turn:
                now = control.status(self.registry, NAME)
                if now.pid is not None:
                    self.drivers.add(now.pid)
                if self._watching.is_set() and now.needs_recovery and not self._ended.is_set():
                    print(f"    supervisor: {now.needs_recovery[:160]}", flush=True)
                    try:
                        self.launch()
                    except RollforwardError as error:
                        print(f"    supervisor: {str(error)[:160]}", flush=True)

    @contextmanager
    def unsupervised(self) -> Iterator[None]:
        """Nobody starts a driver within."""
        outermost = self._watching.is_set()
        self._watching.clear()
        with self._turn:
            pass
        try:
            yield
        finally:
            if outermost:
                self._watching.set()

    # Who runs.

    @property
    def driver(self) -> psutil.Process:
        """The driver of now."""
        row = self.registry.driver(NAME)
        assert row is not None
        return psutil.Process(row.pid)

    def servers(self) -> list[psutil.Process]:
        """The store servers of now, as the driver has told them last, that are still there."""
        row = self.registry.driver(NAME)
        assert row is not None
        found: list[psutil.Process] = []
        for server in row.servers:
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(server["pid"]))
        return found

    def jvm(self) -> psutil.Process:
        """The driver's JVM."""
        (found,) = [process for process in self.driver.children() if process.name() == "java"]
        return found

    def workers(self) -> list[psutil.Process]:
        """Spark's Python workers, and last the daemon that forks them."""
        return sorted(self.jvm().children(recursive=True), key=lambda process: -process.pid)

    @property
    def broker(self) -> psutil.Process:
        """The broker's process."""
        return psutil.Process(self.stack.status().component("kafka").pid)

    # What happened.

    def open_transactions(self) -> set[tuple[str, int, int]]:
        """Where transactions of the pipeline are under way: topic, partition, offset of the first one's first record."""
        admin, found = Admin(self._beside.kafka_config()), set()
        for topic, partitions in admin.topics().items():
            if topic.startswith(f"{NAME}-"):
                stable = admin.stable_ends(topic, partitions=partitions)
                ends = admin.ends(topic, partitions=partitions)
                found |= {(topic, number, stable[number]) for number, end in ends.items() if end > stable[number]}
        return found

    def await_(self, what: str, condition: Callable[[], bool], timeout_s: float = 240) -> float:
        """Wait for a condition; gives the seconds that it took."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() > started + timeout_s:
                raise TooLate(f"{what} did not happen in {timeout_s} s\n{self.tail()}")
            assert self.load.error is None, self.load.error
            time.sleep(0.2)
        return time.monotonic() - started

    def mark(self) -> int:
        """The newest batch that has been reported, for `progressed`."""
        return max((row.id for row in self.registry.newest_batches(NAME)), default=0)

    def progressed(self, mark: int) -> bool:
        """Whether every query has finished two batches since: the first may have been under way then."""
        after = [row.query for row in self.registry.batches(pipeline=NAME, after=mark)]
        return all(after.count(name) >= 2 for name in ("hot", "uniq", "cheap", "balances"))

    def await_caught_up(self) -> None:
        """Pause the input and wait until all of it has been processed."""
        self.load.pause()
        self.await_("the input is processed", self._caught_up)

    def _caught_up(self) -> bool:
        done = check.caught_up(NAME, self.settings, self.registry)
        return done and control.status(self.registry, NAME).state == "running"

    def problems(self) -> list[str]:
        """Everything that is wrong now. The input must have been processed."""
        self.auditor.settle()
        found = check.differences(NAME, self.settings, self.registry, self.load)
        found += check.stores(NAME, self.settings, self.registry)
        found += self.failures()
        found += [f"auditor: {text}" for text in self.auditor.findings]
        found += check.leftovers(NAME, self.settings, self.registry, self.drivers)
        return found + check.temporary(self.temporary, self.settings.home / "spark")

    def failures(self) -> list[str]:
        """Ends of drivers since the last call that no fault accounts for: of data, of settings, of the program itself."""
        found = check.failures(control.driver_log(self.settings, NAME))
        new, self._failures = found[self._failures :], len(found)
        return new

    def told(self, text: str) -> int:
        """How often the drivers' log says that."""
        return control.driver_log(self.settings, NAME).read_text(errors="replace").count(text)

    def tail(self, lines: int = 30) -> str:
        """The end of the driver's log."""
        text = control.driver_log(self.settings, NAME).read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(line[:300] for line in text)
