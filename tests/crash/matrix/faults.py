"""The faults. Each is a function of the bench and a seeded chooser; when it returns, the fault is over.

What a fault has to show by itself (a fenced driver, a clear error) it asserts; that nothing was lost is asked after it.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import confluent_kafka as ck
import psutil
from confluent_kafka.admin import AdminClient

from ops import control
from pipelines import names
from pipelines.metastore.embedded import want
from pipelines.registry import RUNNING, Registry
from statestore.errors import Unavailable
from statestore.failpoints import arm, is_armed
from tests.crash.matrix import check
from tests.crash.matrix.attempts import Duplicates
from tests.crash.matrix.bench import ANSWER_S, NAME, START_S, TRANSACTION_S, Bench
from tests.support.present import present
from tests.support.waiting import await_, require_within

Fault = Callable[[Bench, random.Random], None]
FAULTS: dict[str, Fault] = {}
# Longer than a transaction may last, and than the broker takes to look for those that have; shorter than the 20 s in which a new
# connection to a process that sleeps is given up, so that it is not found out, where nobody shall.
ZOMBIE_S = TRANSACTION_S + 4.0
# Ways of recovery that need nothing of the local disk.
FROM_NOTHING = {"full replay", "snapshot"}


def fault(function: Fault) -> Fault:
    """Register under the function's name."""
    FAULTS[function.__name__.replace("_", "-")] = function
    return function


def one(found: list[psutil.Process], choose: random.Random) -> psutil.Process:
    return choose.choice(sorted(found, key=lambda process: process.pid))


# SIGKILL.


@fault
def kill_driver(bench: Bench, choose: random.Random) -> None:
    bench.driver.kill()


@fault
def kill_jvm(bench: Bench, choose: random.Random) -> None:
    bench.jvm().kill()


@fault
def kill_worker(bench: Bench, choose: random.Random) -> None:
    one(bench.workers(), choose).kill()


@fault
def kill_server(bench: Bench, choose: random.Random) -> None:
    one(bench.servers(), choose).kill()


@fault
def kill_broker(bench: Bench, choose: random.Random) -> None:
    bench.broker.kill()
    bench.stack.up(components=["kafka"])


# SIGSTOP: those that are noticed and killed, and zombies that wake up.


@fault
def stop_server(bench: Bench, choose: random.Random) -> None:
    _stopped_is_killed(bench, one(bench.servers(), choose))


@fault
def stop_jvm(bench: Bench, choose: random.Random) -> None:
    _stopped_is_killed(bench, bench.jvm())


@fault
def stop_worker(bench: Bench, choose: random.Random) -> None:
    # The daemon that forks the workers is among them: stopped, it must be noticed as well.
    _stopped_is_killed(bench, one(bench.workers(), choose))


def _stopped_is_killed(bench: Bench, process: psutil.Process) -> None:
    process.send_signal(signal.SIGSTOP)
    bench.await_(f"{process.pid} is noticed", lambda: not _lives(process), ANSWER_S * 8)


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@fault
def stop_driver(bench: Bench, choose: random.Random) -> None:
    """Its heart stands still, and the supervisor replaces it."""
    stopped = bench.driver
    stopped.send_signal(signal.SIGSTOP)
    bench.await_("the stopped driver is replaced", lambda: not _lives(stopped), 90)


@fault
def sleep_of_everything(bench: Bench, choose: random.Random) -> None:
    """The whole machine sleeps, as it were, in a transaction that has expired when it wakes."""
    with bench.unsupervised():
        _in_its_transaction(bench, choose)
        begun = bench.open_transactions()
        family = [bench.driver, *bench.driver.children(recursive=True)]
        try:
            for process in family:
                process.suspend()
            bench.await_("the transaction expires", lambda: not begun & bench.open_transactions(), 2 * ZOMBIE_S)
        finally:
            for process in reversed(family):
                process.resume()


def _zombie(which: Callable[[Bench, random.Random], psutil.Process]) -> Fault:
    """One process alone sleeps, for longer than a transaction may last, and nobody notices before it wakes up."""

    def zombie(bench: Bench, choose: random.Random) -> None:
        with _patient(bench):
            process = which(bench, choose)
            process.suspend()
            begun = bench.open_transactions()
            time.sleep(ZOMBIE_S)
            assert not begun & bench.open_transactions(), "a transaction has not expired"
            process.resume()
            mark = bench.mark()
            bench.await_("work goes on", lambda: _goes_on(bench, mark))

    return zombie


def _goes_on(bench: Bench, mark: int) -> bool:
    """Whether work goes on. A driver that has slept through the time limit of a question ends, and is started again."""
    if control.status(bench.registry, NAME).pid is None:
        print("    the driver ended of a question that it slept through", flush=True)
        bench.launch()
    return bench.progressed(mark)


@contextmanager
def _patient(bench: Bench) -> Iterator[None]:
    """A driver that takes a longer silence for none, watched by nobody."""
    with bench.unsupervised():
        _stop(bench)
        bench.launch(answer_timeout_s=2 * ZOMBIE_S)
        mark = bench.mark()
        try:
            bench.await_("the patient driver is at work", lambda: bench.progressed(mark))
            yield
        finally:
            _stop(bench)
            bench.launch(answer_timeout_s=ANSWER_S)


def _in_its_transaction(bench: Bench, choose: random.Random) -> psutil.Process:
    """A server that has stopped itself where the broker has all of its transaction, and nothing is committed."""
    arm(bench.points, "commit.delivered", with_signal="SIGSTOP")
    server = _stopped_at(bench, "commit.delivered", bench.servers)
    assert bench.open_transactions(), "the broker knows of no transaction of the server that has stopped in it"
    return server


def _stopped_at(bench: Bench, point: str, among: Callable[[], list[psutil.Process]]) -> psutil.Process:
    """The process that has stopped itself at the armed point."""
    bench.await_(f"a process stops at {point}", lambda: not is_armed(bench.points, point))
    found: list[psutil.Process] = []
    bench.await_(
        "the process stands still", lambda: bool(found.extend(one for one in among() if _is_stopped(one)) or found)
    )
    return found[0]


FAULTS["zombie-driver-alone"] = _zombie(lambda bench, _: bench.driver)
FAULTS["zombie-jvm"] = _zombie(lambda bench, _: bench.jvm())
FAULTS["zombie-worker"] = _zombie(lambda bench, choose: one(bench.workers(), choose))
FAULTS["zombie-server"] = _zombie(_in_its_transaction)


@fault
def zombie_driver(bench: Bench, choose: random.Random) -> None:
    """A driver sleeps while another machine starts one; awake again it is fenced."""
    with bench.unsupervised():
        older = bench.driver
        family = [older, *older.children(recursive=True)]
        for process in family:
            process.suspend()
        with _rival(bench):
            for process in reversed(family):
                process.resume()
            _await_fenced(bench, older)
    bench.launch()


@fault
def second_driver(bench: Bench, choose: random.Random) -> None:
    """Another machine starts the same pipeline: the older driver is fenced and stops."""
    with bench.unsupervised():
        older = bench.driver
        with _rival(bench):
            _await_fenced(bench, older)
    bench.launch()


def _await_fenced(bench: Bench, older: psutil.Process) -> None:
    bench.await_("the older driver is fenced", lambda: not _lives(older), 120)
    row = bench.registry.driver(NAME)
    assert row is not None and (row.pid, row.state) == (older.pid, "fenced"), bench.tail()


@contextmanager
def _rival(bench: Bench) -> Iterator[None]:
    """A driver of the same pipeline with a home of its own, killed at the end."""
    home = bench.home / f"rival-{time.monotonic_ns()}"
    home.mkdir()
    settings = bench.settings.model_copy(update={"metastore_url": "", "state_dir": home / "state", "home": home})
    registry = Registry(settings.metastore)
    try:
        # Its definitions come from the command log, as on any other machine.
        want(NAME, RUNNING, settings, registry)
        control.launch(settings, registry, NAME, timeout_s=START_S)
        yield
    finally:
        control.end_driver(registry, NAME, timeout_s=0)
        registry.close()
        prefix = names.socket_prefix(settings.states, NAME)
        for path in names.socket_folder().glob(f"{prefix}-*.sock"):
            path.unlink()
        shutil.rmtree(home)


# The broker is away. A stopped process keeps its connections, as a network that swallows packets does.


def _broker_away(seconds: float) -> Fault:
    def away(bench: Bench, choose: random.Random) -> None:
        broker = bench.broker
        broker.suspend()
        try:
            _sleep_without_work(bench, seconds)
        finally:
            broker.resume()

    return away


def _network_away(seconds: float) -> Fault:
    def away(bench: Bench, choose: random.Random) -> None:
        with bench.network.cut():
            _sleep_without_work(bench, seconds)

    return away


def _sleep_without_work(bench: Bench, seconds: float) -> None:
    mark = bench.mark()
    time.sleep(seconds)
    assert not bench.progressed(mark), "batches were finished without a broker"


for _seconds in (1, 10, 60):
    FAULTS[f"broker-away-{_seconds}s"] = _broker_away(_seconds)
    FAULTS[f"network-away-{_seconds}s"] = _network_away(_seconds)


# The network between the pipeline and a broker that goes on, and ends transactions that have expired.


def _commit_into(bench: Bench, choose: random.Random, away: AbstractContextManager[None]) -> None:
    """The network goes away behind all that a transaction has produced, and its commit is sent into that."""
    server = _in_its_transaction(bench, choose)
    begun = bench.open_transactions()
    with away:
        server.resume()
        _sleep_without_work(bench, ZOMBIE_S)
        assert not begun & bench.open_transactions(), "the transaction has not expired"


@fault
def network_cut(bench: Bench, choose: random.Random) -> None:
    _commit_into(bench, choose, bench.network.cut())


@fault
def network_silent(bench: Bench, choose: random.Random) -> None:
    """The commit arrives when its transaction has expired, and others have come behind it."""
    _commit_into(bench, choose, bench.network.silent())


# Disk.


@fault
def disk_full(bench: Bench, choose: random.Random) -> None:
    def felt() -> int:
        logs = (bench.settings.home / "logs").glob("*.log")
        return sum(log.read_text(errors="replace").count("No space left on device") for log in logs)

    before = felt()
    with bench.disk.full():
        time.sleep(15)
    assert felt() > before, "nobody has felt the full disk"


@fault
def home_full(bench: Bench, choose: random.Random) -> None:
    """No room for the registry, the logs, Spark's shuffles and snapshots. What cannot be told is not told."""
    with bench.home_disk.full() as fill:
        for _ in range(60):
            time.sleep(0.25)
            fill()


def _delete(*which: str) -> Fault:
    def delete(bench: Bench, choose: random.Random) -> None:
        with bench.unsupervised():
            driver = bench.driver
            driver.kill()
            bench.await_("the driver is gone", lambda: not _lives(driver))
            _await_alone(bench, driver.pid)
            folders = {"spark": bench.settings.home / "spark", "stores": bench.settings.states}
            for name in which:
                shutil.rmtree(folders[name])
            started = time.time()
            bench.launch()
        ways = _ways(bench, started)
        # What is not deleted is not fetched again, and what is deleted comes whole: planned stops take snapshots.
        assert ways <= FROM_NOTHING if "stores" in which else not ways & FROM_NOTHING, ways

    return delete


def _ways(bench: Bench, since: float) -> set[str]:
    """How the stores were opened since then; a stateless query has nothing to open."""
    plans = [row.plan for row in bench.registry.recoveries(NAME, since=since)]
    return {plan["way"] for plan in plans if not plan["task"].startswith("cheap")}


def _await_alone(bench: Bench, session: int) -> None:
    from tests.support.pipeline import members

    bench.await_("the driver's children are gone", lambda: not members(session), 30)


FAULTS["delete-spark-folder"] = _delete("spark")
FAULTS["delete-stores"] = _delete("stores")
FAULTS["delete-both"] = _delete("spark", "stores")


# Attempts, cores, retention, a planned stop.


@fault
def retried_attempts(bench: Bench, choose: random.Random) -> None:
    """Workers die one after the other: Spark runs their tasks again, and each may have staged a part before."""
    killed = 0
    for _ in range(5):
        for worker in bench.workers()[:-1]:
            worker.kill()
            killed += 1
        time.sleep(choose.uniform(0.1, 0.6))
    assert killed, "there was no worker to kill"


@fault
def duplicated_attempts(bench: Bench, choose: random.Random) -> None:
    """Workers die behind a complete attempt, so Spark stages it again; then others stage what must never count.

    Some of those come between a true attempt and its commit, which has to be refused then. Where the driver computes
    small batches itself, it is what dies or stops.
    """
    for _ in range(3):
        arm(bench.points, "worker.staged")
        bench.await_("a worker dies behind its attempt", lambda: not is_armed(bench.points, "worker.staged"))
    duplicates = Duplicates(bench, choose)
    refused = bench.told("attempt is not staged")
    bench.await_("a true attempt is displaced", lambda: _displaces(bench, duplicates, refused))
    bench.await_("attempts are staged that nobody asked for", lambda: duplicates.stage() >= 20)


def _displaces(bench: Bench, duplicates: Duplicates, refused: int) -> bool:
    """Try to put attempts in the place of those that a worker has just staged; whether a commit was refused since."""
    arm(bench.points, "worker.staged", with_signal="SIGSTOP")
    worker = _stopped_at(bench, "worker.staged", lambda: [bench.driver, *bench.workers()])
    try:
        duplicates.stage_all()
    finally:
        worker.resume()
    mark = bench.mark()
    bench.await_("work goes on", lambda: bench.progressed(mark))
    return bench.told("attempt is not staged") > refused


@fault
def server_dies_behind_a_staged_attempt(bench: Bench, choose: random.Random) -> None:
    """The batch runs again as another attempt, and the task that has committed gets its rows twice."""
    arm(bench.points, choose.choice(["stage.closed", "commit.delivered", "commit.committed"]))
    bench.await_("the server dies", lambda: not list(bench.points.iterdir()))


@fault
def other_cores(bench: Bench, choose: random.Random) -> None:
    _stop(bench)
    bench.launch(spark_master=choose.choice(["local[1,4]", "local[3,4]"]))


@fault
def graceful_stop(bench: Bench, choose: random.Random) -> None:
    """A planned stop leaves nothing to recover."""
    _stop(bench)
    started = time.time()
    bench.launch()
    assert _ways(bench, started) == {"nothing"}, _ways(bench, started)


def _stop(bench: Bench) -> None:
    with bench.unsupervised():
        started = time.monotonic()
        assert control.stop(bench.settings, bench.registry, NAME, timeout_s=60)
        require_within(60, started)
        assert control.status(bench.registry, NAME).state == "stopped"
        # What is killed at the end takes a moment to go.
        await_("nothing is left", lambda: not _left(bench), 10, tail=lambda: "\n".join(_left(bench)))
        want(NAME, RUNNING, bench.settings, bench.registry)


def _left(bench: Bench) -> list[str]:
    return check.at_rest(NAME, bench.settings)


@fault
def deleted_records(bench: Bench, choose: random.Random) -> None:
    """Retention takes records that were never read: refused with the range, until the loss is accepted."""
    bench.await_caught_up()
    _stop(bench)
    with bench.unsupervised():
        for _ in range(200):
            bench.load.send_event(counts=False)
        bench.load.pause()
        everything = [ck.TopicPartition(bench.load.topic, number, ck.OFFSET_END) for number in range(4)]
        admin = AdminClient({"bootstrap.servers": bench.settings.bootstrap_servers})
        ends = {at.partition: done.result().low_watermark for at, done in admin.delete_records(everything).items()}
        try:
            bench.launch()
        except Unavailable as error:
            assert "deleted before they were read" in str(error), error
            named = re.findall(r"partition (\d+) from \d+ to (\d+)", str(error))
            assert {int(number): int(last) + 1 for number, last in named} == ends, (error, ends)
        else:
            raise AssertionError("a driver went on without deleted records")
        # It had to fail.
        assert len(bench.failures()) == 1
        bench.drivers.add(present(bench.registry.driver(NAME)).pid)
        try:
            bench.launch(accept_loss=True)
        finally:
            bench.settings = bench.settings.model_copy(update={"accept_loss": False})
    bench.load.resume()


def tidy(folder: Path) -> None:
    """Disarm what a fault has left armed."""
    for point in folder.iterdir():
        point.unlink()
