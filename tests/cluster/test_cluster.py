"""The matrix's pipeline on a Spark standalone cluster with store servers over TLS: servers die, and their tasks move.

Master, workers and servers are processes of their own, as they would be on machines of their own: they share no folder
but the one that Spark's jars come from, and talk over TCP alone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pyspark
import pytest

from infra.ports import free_port
from ops.environment import driver_environment
from pipelines import names
from pipelines.deploy import deployed_queries
from pipelines.settings import Settings
from statestore.failpoints import arm
from statestore.kafka.admin import Admin
from tests.crash.matrix import check
from tests.crash.matrix.auditor import Auditor
from tests.crash.matrix.workload import SQL, Workload
from tests.support.certificates import secrets
from tests.support.pipeline import PipelineUnderTest, members
from tests.support.stores import digest_differences
from tests.support.waiting import await_

REPOSITORY = Path(__file__).parents[2]


class Processes:
    """Started here, ended here."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._environment = folder, environment
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """A process in a session of its own, with its log in the folder, and more in its environment."""
        with (self.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**self._environment, **environment},
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.running.append(process)
        return process

    def close(self) -> None:
        """Kill all of them, with their executors, which may have outlived them."""
        sessions = {process.pid for process in self.running}
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) in sessions:
                    process.kill()
        for started in self.running:
            started.wait(10)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Cluster:
    """A master, two workers and two store servers."""

    def __init__(self, processes: Processes, trust: dict[str, str]) -> None:
        self.processes, self.trust, self._folder = processes, trust, processes.folder
        self.master = free_port()
        self._spark("master", "master.Master", "--port", str(self.master))
        await_("the master listens", lambda: listens(self.master))
        for number in range(2):
            work = ["--work-dir", str(self._folder / f"work-{number}"), f"spark://127.0.0.1:{self.master}"]
            where = ["worker.Worker", "--cores", "1", "--memory", "1g", *work]
            self._spark(f"worker-{number}", *where, SPARK_LOCAL_DIRS=str(self._folder / f"local-{number}"))
        self.ports = [free_port(), free_port()]
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(2):
            self.serve(number)

    def _spark(self, name: str, what: str, *arguments: str, **environment: str) -> None:
        script = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        where = ["--host", "127.0.0.1", "--webui-port", "0"]
        command = [script, f"org.apache.spark.deploy.{what}", *where, *arguments]
        self.processes.start(name, *command, **environment)

    def worker(self, number: int) -> subprocess.Popen[bytes]:
        """One of Spark's workers."""
        workers = [p for p in self.processes.running if "worker.Worker" in str(p.args)]
        return workers[number]

    def executors(self) -> list[str]:
        """What lives, or lies in folders, beside the process of Spark's second worker itself."""
        worker = self.worker(1)
        living = [one for one in members(worker.pid) if not one.startswith(f"{worker.pid} ")]
        return living + [str(path) for path in (self._folder / "local-1").rglob("executor-*")]

    def use_in(self, settings: Settings) -> Settings:
        """Settings of a pipeline that runs here, and soon notices a server that is silent."""
        changed = {
            "spark_master": f"spark://127.0.0.1:{self.master}",
            "spark_conf": {"spark.executor.memory": "600m", "spark.executor.cores": "1"},
            "store_server_addresses": self.addresses,
            "answer_timeout_s": 5.0,
            "tasks": 2,
        }
        return settings.model_copy(update=changed)

    @property
    def addresses(self) -> list[str]:
        """Of the store servers."""
        return [f"tls://127.0.0.1:{port}" for port in self.ports]

    def serve(self, number: int) -> None:
        """Start a store server, with a folder of its own."""
        where = ["--listen", self.addresses[number], "--states", str(self._folder / f"states-{number}")]
        server = self.processes.start(f"server-{number}", sys.executable, "-m", "pipelines.store_server", *where)
        await_("the server listens", lambda: listens(self.ports[number]))
        self.servers[number] = server

    def sleeper(self) -> int | None:
        """Which store server has been stopped."""
        sleeping = (n for n, s in self.servers.items() if psutil.Process(s.pid).status() == psutil.STATUS_STOPPED)
        return next(sleeping, None)

    def replace(self, number: int) -> None:
        """Kill a store server, and start another in its place."""
        self.servers[number].kill()
        self.servers[number].wait()
        self.serve(number)


@pytest.fixture
def cluster(tmp_path: Path, points: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose secrets are in this process's environment too: the test reads the stores."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    trust = secrets(folder / "secrets")
    environment = {
        **driver_environment(settings),
        **trust,
        "PYTHONPATH": str(REPOSITORY),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(settings.java_home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "ROLLFORWARD_FAILPOINTS": str(points),
    }
    for name, value in trust.items():
        monkeypatch.setenv(name, value)
    with closing(Processes(folder, environment)) as processes:
        yield Cluster(processes, trust)


def left_over(pipeline: PipelineUnderTest) -> list[str]:
    """Sockets, folders and consumer groups of a pipeline whose driver has ended, but for the queries' own groups."""
    settings, folder = pipeline.settings, names.socket_folder()
    assert pipeline.process is not None
    found = [*folder.glob(f"{names.socket_prefix(settings.states, pipeline.name)}-*.sock")]
    found += [*folder.glob(f"{names.SPARK_SOCKETS}{pipeline.process.pid}"), *(settings.home / "spark").glob("*")]
    queries = deployed_queries(pipeline.registry.pipeline(pipeline.name))
    own = {names.group(pipeline.name, deployed.query.name) for deployed in queries}
    ours = {group for group in Admin(settings.kafka_config()).groups() if pipeline.name in group}
    return [*map(str, found), *sorted(ours - own)]


class Checked:
    """The matrix's pipeline under the matrix's load, with its auditor at work all the time."""

    def __init__(self, kafka: str, name: str, settings: Settings) -> None:
        self.load = Workload(kafka, name, seed=7)
        self.pipeline = PipelineUnderTest(settings, name, SQL.format(topic=name))
        self.auditor: Auditor | None = None

    def start(self) -> None:
        """The driver, the input and the audit."""
        self.pipeline.start()
        self.pipeline.await_running()
        self.load.resume()
        pipeline = self.pipeline
        self.auditor = Auditor(pipeline.name, pipeline.settings, pipeline.registry, self.load)

    def await_batches(self, count: int = 2) -> None:
        """Wait until each query has finished so many batches more."""
        registry, name = self.pipeline.registry, self.pipeline.name
        mark = max((row.id for row in registry.newest_batches(name)), default=0)

        def done() -> bool:
            after = [row.query for row in registry.batches(pipeline=name, after=mark)]
            return all(after.count(query) >= count for query in ("hot", "uniq", "cheap", "balances"))

        self.pipeline.await_(f"{count} batches of every query", done)

    def require_equal(self) -> None:
        """Pause the input, and compare everything with the model when it has been processed."""
        assert self.auditor is not None
        pipeline, load = self.pipeline, self.load
        load.pause()
        arguments = (pipeline.name, pipeline.settings, pipeline.registry)
        pipeline.await_("the input is processed", lambda: check.caught_up(*arguments))
        self.auditor.settle()
        assert self.auditor.findings == []
        assert check.differences(*arguments, load) == []
        assert digest_differences(pipeline) == []
        load.resume()

    def homes(self) -> set[str]:
        """The servers that have tasks."""
        row = self.pipeline.registry.driver(self.pipeline.name)
        return {server["socket"] for server in row.servers if server["tasks"]} if row is not None else set()

    def await_home(self, address: str) -> None:
        """Wait until one server has all tasks."""
        self.pipeline.await_(f"all tasks are at {address}", lambda: self.homes() == {address})

    def close(self) -> None:
        """End the audit, the input and the driver."""
        if self.auditor is not None:
            self.auditor.close()
        self.load.close()
        self.pipeline.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_tasks_of_a_lost_server_move_and_nothing_is_lost(
    kafka: str, unique: str, settings: Settings, cluster: Cluster, points: Path
) -> None:
    # Every batch is Spark's.
    checked = Checked(kafka, unique, cluster.use_in(settings).model_copy(update={"small_batch_records": 0}))
    pipeline = checked.pipeline
    try:
        checked.start()
        assert checked.homes() == set(cluster.addresses)
        driver = pipeline.process
        checked.await_batches()

        # Killed: the survivor recovers the tasks from their changelogs, since it has none of their files.
        killed_at = time.time()
        cluster.servers[0].kill()
        checked.await_home(cluster.addresses[1])
        checked.await_batches()
        checked.require_equal()
        recovered = pipeline.registry.recoveries(pipeline.name, since=killed_at)
        assert {"full replay"} == {row.plan["way"] for row in recovered if not row.plan["task"].startswith("cheap")}

        # Back again, and the other one falls asleep in front of a commit: it is noticed by a time-out, and awake again it
        # may commit nothing.
        cluster.serve(0)
        sleeper = cluster.servers[1]
        arm(points, "commit.delivered", with_signal="SIGSTOP")
        pipeline.await_("a server sleeps in its transaction", lambda: cluster.sleeper() == 1)
        checked.await_home(cluster.addresses[0])
        checked.await_batches()
        sleeper.send_signal(signal.SIGCONT)
        checked.await_batches()
        checked.require_equal()

        # A worker of Spark dies with its executor: the batch runs again on the other one.
        worker = cluster.worker(0)
        checked.await_batches()
        for process in [*psutil.Process(worker.pid).children(recursive=True), psutil.Process(worker.pid)]:
            process.kill()
        checked.await_batches()
        checked.require_equal()
        assert pipeline.process is driver, pipeline.tail()
        told = pipeline.log.read_text()
        assert '"event": "staging"' in told and "staged without spark" not in told

        # The driver dies: the next one takes over the servers' tasks.
        pipeline.kill_driver()
        checked.await_batches()
        checked.require_equal()

        # Nothing of the driver is left over, on any of the machines.
        assert pipeline.stop() == 0
        assert left_over(pipeline) == []
        await_("the end of the executors", lambda: not cluster.executors(), tail=lambda: str(cluster.executors()))
    finally:
        checked.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nobody_waits_for_a_server_that_never_answers(
    kafka: str, unique: str, settings: Settings, cluster: Cluster, points: Path
) -> None:
    """The driver's own questions, which nothing cancels: a small batch's rows, a commit, an opening."""
    checked = Checked(kafka, unique, cluster.use_in(settings))
    pipeline = checked.pipeline
    try:
        checked.start()
        checked.await_batches()
        driver = pipeline.process
        for point in ("commit.delivered", "stage.in-stream"):
            arm(points, point, with_signal="SIGSTOP")
            pipeline.await_(f"a server falls silent at {point}", lambda: cluster.sleeper() is not None)
            silent = cluster.sleeper()
            assert silent is not None
            checked.await_home(cluster.addresses[1 - silent])
            checked.await_batches()
            cluster.replace(silent)
            checked.require_equal()
        assert "staged without spark" in pipeline.log.read_text()

        # The tasks move, and the server that they move to falls silent while it opens them.
        (home,) = checked.homes()
        last = cluster.addresses.index(home)
        arm(points, "own.after-init", with_signal="SIGSTOP")
        cluster.servers[last].kill()
        pipeline.await_("the other falls silent", lambda: cluster.sleeper() == 1 - last)
        cluster.serve(last)
        checked.await_batches()
        checked.require_equal()
        assert checked.homes() == {cluster.addresses[last]}
        assert pipeline.process is driver, pipeline.tail()
        assert pipeline.stop() == 0
    finally:
        checked.close()
