"""The demo from beginning to end. Each step does the real thing; the only parts made for the demo are the replay of the
input, the two kills, and the comparison at the end.

    stack up → topic and input → deploy → Dagster starts the driver → kill a store server in a batch
    → kill the driver in a batch → Dagster recovers → all input read → compare with pandas → stack down
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.stack import MADE_BY_UP, StackStatus
from ops.cli.context import registry_of
from ops.cli.output import table
from ops.cli.stack import start_stack, stop_everything
from ops.dagster.reload import reload_definitions
from ops.demo import compare, expected, flights
from ops.demo.show import Show, Step
from ops.demo.watch import Memory, MemoryWatch, Watch, wait_for
from pipelines.deploy import deployed_queries
from pipelines.metastore.embedded import deploy, want
from pipelines.query import StoreReader
from pipelines.registry import RUNNING, RecoveryRow, Registry
from pipelines.settings import Settings, load_settings
from statestore.errors import InvalidInput, Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader

if TYPE_CHECKING:
    import pandas as pd

    from pipelines.deploy import DeployedQuery
    from pipelines.registry import DriverRow

PIPELINE = "flights"
SQL = Path(__file__).resolve().parents[2] / "pipelines" / "examples" / "flights.sql"
# The query whose batches the kills wait for: it has thousands of keys.
VICTIM = "route_days"
BATCHES_BEFORE_KILL = 3
# Far longer than any step takes: a demo that hangs has to say so.
WAIT_S = 180.0
# A driver lives for a minute here: compiling for a long life costs a quarter of all its CPU time.
SHORT_LIVED_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC"}
MEMORY_BOUND_BYTES = 3 * 1024**3
_GIB = 1024**3


def tell_story(home: Path, *, keep: bool, replay_s: float) -> bool:
    """Run the demo in `home`; True if every result is right. With `keep` everything runs on at the end."""
    show = Show()
    settings = _settings(home)
    show.say(f"Rollforward demo in {home}\n")
    with ExitStack() as ending:
        with show.step("Clear what an earlier demo has left") as step:
            _clear(settings, step)
        ending.enter_context(_down_at_the_end(settings, show, keep=keep))
        with show.step("Start a Kafka broker and Dagster") as step:
            stack = start_stack(settings, step.progress)
            step.result = f"Kafka {stack.bootstrap_servers}, Dagster {stack.dagster_url}"
        settings = settings.model_copy(update={"bootstrap_servers": stack.bootstrap_servers})
        registry = ending.enter_context(registry_of(settings))
        right = _Story(show, settings, registry, stack).run(replay_s=replay_s)
        show.say(
            f"Dagster: {stack.dagster_url}" + ("" if keep else " (until now; `rollforward demo --keep` leaves it up)")
        )
    return right


def _settings(home: Path) -> Settings:
    """The demo's settings: those of this machine, but a home, a broker and a registry of its own."""
    return load_settings(
        home=home, bootstrap_servers="", kafka={}, state_dir=None, metastore_url="", spark_conf=SHORT_LIVED_JVM
    )


def _clear(settings: Settings, step: Step) -> None:
    home = settings.home
    if home.exists() and any(home.iterdir()) and not (home / MADE_BY_UP).exists():
        raise InvalidInput(
            "folder is not a demo's: it would be deleted", home=home, hint="name another one with --home"
        )
    stop_everything(settings, step.progress, wipe=True)


@contextmanager
def _down_at_the_end(settings: Settings, show: Show, *, keep: bool) -> Iterator[None]:
    """Leaves no process behind, whatever happens; the data stays until the next demo."""
    try:
        yield
    finally:
        if keep:
            show.say(f"It runs on. Stop it: ROLLFORWARD_HOME={settings.home} rollforward down --wipe")
        else:
            with show.step("Stop everything") as step:
                stop_everything(settings, step.progress)


class _Story:
    """The steps between up and down."""

    def __init__(self, show: Show, settings: Settings, registry: Registry, stack: StackStatus) -> None:
        self._show = show
        self._settings = settings
        self._registry = registry
        self._stack = stack
        self._config = settings.kafka_config()

    def run(self, *, replay_s: float) -> bool:
        """All steps; True if every result is right."""
        queries = self._deploy()
        watch = Watch(PIPELINE, queries, self._settings, self._registry)
        with self._show.step("Ask for the pipeline to run, and read the flights meanwhile") as step:
            want(PIPELINE, RUNNING, self._settings, self._registry)
            data = flights.load_flights()
            replay = flights.Replay(self._config, flights.records(data), seconds=replay_s)
            step.result = f"{len(data):,} flights that left New York City in 2013"
        memory = MemoryWatch(watch)
        memory.start()
        try:
            self._start(watch, replay)
            self._kill_server(watch, replay)
            self._kill_driver(watch, replay)
            self._read_all(watch, replay)
        finally:
            replay.cancel()
            peak = memory.stop()
        differing = self._compare(queries, data)
        self._figures(watch, peak)
        return self._verdict(differing, len(data), peak)

    def _deploy(self) -> list[DeployedQuery]:
        with self._show.step(f"Create topic {flights.TOPIC}, deploy {SQL.name}") as step:
            admin = Admin(self._config)
            admin.create(flights.TOPIC, partitions=flights.PARTITIONS, settings=flights.TOPIC_SETTINGS)
            row, _ = deploy(SQL.read_text(encoding="utf-8"), PIPELINE, self._settings, self._registry)
            queries = deployed_queries(row)
            shown = self._stack.dagster_url is not None and reload_definitions(self._stack.dagster_url)
            tables = ", ".join(deployed.query.name for deployed in queries)
            step.result = f"{flights.PARTITIONS} partitions, tables {tables}" + (
                "; Dagster shows them" if shown else ""
            )
        return queries

    def _start(self, watch: Watch, replay: flights.Replay) -> None:
        with self._show.step("Dagster's sensor sees that it does not run, a Dagster job starts the driver") as step:
            driver = self._await(watch.running, "start of the driver", step, watch, replay)
            step.result = f"driver {driver.pid}, {len(driver.servers)} store servers"
        # Input is kept back for the batches that are to be hit, should this machine be slower than the replay.
        replay.slow_from = 0.4
        replay.start()
        with self._show.step(f"Replay the year over {replay.seconds:.0f} s; let it count a few batches") as step:
            self._await_batches(watch, replay, step, BATCHES_BEFORE_KILL)

    def _kill_server(self, watch: Watch, replay: flights.Replay) -> None:
        since = time.time()
        with self._show.step("kill -9 a store server in the middle of a batch") as step:
            driver = self._require_driver(watch)
            batch = watch.await_batch_begin(VICTIM)
            victim = driver.servers[0]["pid"]
            os.kill(victim, signal.SIGKILL)
            step.result = f"server {victim}, batch {batch} of {VICTIM}"
        with self._show.step(
            "The driver starts another server, which recovers the tasks; the batch runs again"
        ) as step:
            before = watch.done()
            self._await(lambda: self._recoveries(since), "recovery of the tasks", step, watch, replay)
            self._await_batches(watch, replay, step, 2, before=before)
        replay.slow_from = 0.85
        self._show_recoveries(since)

    def _kill_driver(self, watch: Watch, replay: flights.Replay) -> None:
        with self._show.step("kill -9 the driver, its JVM dies with it, in the middle of a batch") as step:
            old = self._require_driver(watch)
            batch = watch.await_batch_begin(VICTIM)
            os.kill(old.pid, signal.SIGKILL)
            killed = time.time()
            unfinished = watch.in_batch(VICTIM)
            step.result = f"driver {old.pid}, batch {batch} of {VICTIM}: planned, " + (
                "not done" if unfinished == batch else "and just done"
            )
        with self._show.step("Dagster's sensor notices and starts a recovery run, which starts another driver") as step:
            before = watch.done()
            new = self._await(lambda: watch.running(newer_than=old.pid), "recovery", step, watch, replay)
            running = time.time()
            self._await_batches(watch, replay, step, 1, before=before)
            step.result = (
                f"noticed and driver {new.pid} started {new.started_at - killed:.1f} s after the kill, "
                f"running after {running - killed:.1f} s"
            )
        replay.slow_from = 1.0
        self._show_recoveries(killed)

    def _read_all(self, watch: Watch, replay: flights.Replay) -> None:
        with self._show.step("Wait until everything is read and counted") as step:
            self._await(
                lambda: replay.sent == replay.total and watch.has_read_all(), "end of the input", step, watch, replay
            )
            batches = watch.batches()
            step.result = ", ".join(f"{number} batches of {name}" for name, number in batches.items())

    # Waiting, with news.

    def _await(self, look: Any, what: str, step: Step, watch: Watch, replay: flights.Replay) -> Any:
        def with_news() -> Any:
            if replay.error is not None:
                raise replay.error
            step.note(_news(watch, replay))
            return look()

        return wait_for(what, with_news, timeout_s=WAIT_S)

    def _await_batches(
        self, watch: Watch, replay: flights.Replay, step: Step, number: int, *, before: dict[str, int] | None = None
    ) -> None:
        """Until every query has finished `number` more batches than `before`."""
        wanted = {q.query.name: (before or {}).get(q.query.name, -1) + number for q in watch.queries}
        self._await(
            lambda: all(watch.done().get(name, -1) >= batch for name, batch in wanted.items()),
            "end of the next batches",
            step,
            watch,
            replay,
        )

    def _require_driver(self, watch: Watch) -> DriverRow:
        driver = watch.running()
        if driver is None:
            raise Unavailable("driver does not run", pipeline=PIPELINE, hint="look at `rollforward logs flights`")
        return driver

    def _recoveries(self, since: float) -> list[RecoveryRow]:
        return self._registry.recoveries(PIPELINE, since=since)

    def _show_recoveries(self, since: float) -> None:
        rows = self._recoveries(since)
        table(
            ("     task", "found", "way", "offsets", "records", "seconds"),
            [
                (
                    f"     {r.plan['task']}",
                    r.plan["reason"],
                    r.plan["way"],
                    r.plan["offsets"],
                    r.plan["records"],
                    r.plan["seconds"],
                )
                for r in sorted(rows, key=lambda row: (row.plan["task"], row.id))
            ],
        )

    # The end.

    def _compare(self, queries: list[DeployedQuery], data: pd.DataFrame) -> list[str]:
        reader = Reader(self._config)
        differing: list[str] = []
        with self._show.step("Compare every key of both tables, from topics and stores, with pandas") as step:
            keys = 0
            for deployed in queries:
                name = deployed.query.name
                step.note(name)
                wanted = expected.TABLES[name](data)
                topic = compare.from_topic(deployed, reader)
                store = compare.from_store(StoreReader(deployed, self._settings, self._registry))
                differing += compare.differences(f"topic {deployed.query.output_topic}", topic, wanted, stored=False)
                differing += compare.differences(f"store {name}", store, wanted, stored=True)
                differing += self._count(f"topic {deployed.query.output_topic}", topic, len(data))
                keys += len(wanted)
            differing += self._dead_letters(reader)
            step.result = f"{keys:,} keys twice, " + (f"{len(differing):,} differences" if differing else "all equal")
        return differing

    def _count(self, where: str, rows: expected.Rows, total: int) -> list[str]:
        counted = sum(row["FLIGHTS"] for row in rows.values())
        return [] if counted == total else [f"{where}: counts {counted:,} flights of {total:,}"]

    def _dead_letters(self, reader: Reader) -> list[str]:
        topic = f"{PIPELINE}-dead-letters"
        start, _ = reader.begin_and_end(topic, 0)
        letters = sum(len(chunk) for chunk in reader.read(topic, 0, start=start))
        return [f"topic {topic}: {letters:,} records could not be used"] if letters else []

    def _figures(self, watch: Watch, peak: Memory) -> None:
        batches = sum(watch.batches().values())
        self._show.say(
            f"\n{batches} batches in {self._show.seconds:.0f} s. Memory at most {peak.total / _GIB:.2f} GiB: "
            f"JVM {peak.jvm / _GIB:.2f}, driver {peak.driver / _GIB:.2f}, store servers {peak.servers / _GIB:.2f}, "
            f"Spark's Python workers {peak.workers / _GIB:.2f}"
        )

    def _verdict(self, differing: list[str], total: int, peak: Memory) -> bool:
        if peak.total - peak.workers >= MEMORY_BOUND_BYTES:
            differing.append(f"memory: {peak.total / _GIB:.2f} GiB, the bound is 3 GiB")
        if differing:
            for line in compare.shortened(differing):
                self._show.say(f"wrong: {line}")
            return False
        self._show.say(f"{total:,} of {total:,} flights counted exactly once")
        return True


def _news(watch: Watch, replay: flights.Replay) -> str:
    done = watch.done()
    batches = ", ".join(f"{name} batch {number}" for name, number in done.items()) or "no batch yet"
    return f"{replay.sent:,} flights sent, {watch.counted():,} counted; {batches}"
