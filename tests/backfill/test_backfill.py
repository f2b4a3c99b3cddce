"""Periods computed again beside the running stream: by command, by Dagster's partitions, across SIGKILL at every step."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from ops.backfill import Backfilled, backfill
from ops.dagster.backfill import CHECK, backfill_assets
from ops.dagster.deployed import read_deployed
from ops.environment import driver_environment
from pipelines import names
from pipelines.deploy import deployed_queries
from pipelines.past import past_version
from pipelines.plan import plan_hash
from pipelines.rewind import rewrite_of
from pipelines.settings import Settings
from statestore.batches import BatchesLog, Planned
from statestore.client import StoreClient
from statestore.errors import InvalidInput, RollforwardError
from statestore.failpoints import arm, is_armed
from statestore.kafka.reader import Reader
from statestore.store import Entry, Isolation
from tests.backfill.visits import DAY_MS, DAYS, FIRST_MS, HOUR_MS, SQL, Visits, await_shown, stored
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

COMMITTED = Isolation.READ_COMMITTED.value
ALL = (FIRST_MS, FIRST_MS + DAYS * DAY_MS)
# What a killed driver can leave: nothing, a plan, a part that is committed, all of it without its end.
POINTS = ("driver.before-plan", "driver.recomputed", "driver.some-committed", "driver.before-done-commit")
# Four starts of Spark on a busy machine.
ANSWER_S = 900
# Every one costs a start of Spark.
SHORT = ("driver.recomputed", "driver.some-committed")


@pytest.fixture
def pipeline(settings: Settings, visits: Visits, unique: str, points: Path) -> Iterator[PipelineUnderTest]:
    environment = {"ROLLFORWARD_FAILPOINTS": str(points)}
    two = settings.model_copy(update={"tasks": 2})
    deployed = PipelineUnderTest(two, unique, SQL.format(topic=unique), environment)
    yield deployed
    deployed.close()


def caught_up(pipeline: PipelineUnderTest, visits: Visits) -> None:
    def condition() -> bool:
        newest = pipeline.registry.newest_batches(pipeline.name)
        done = [sum(end for _, end in row.offsets.values()) for row in newest]
        return done == [visits.records] * 2

    pipeline.await_("input is processed", condition)


def compute(
    pipeline: PipelineUnderTest, table: str, period: tuple[int, int] = ALL, *, dry_run: bool = False
) -> Backfilled:
    """Ask and wait, restarting a driver that dies meanwhile as Dagster would."""
    (deployed,) = [d for d in deployed_queries(pipeline.registry.pipeline(pipeline.name)) if d.query.name == table]
    answers: list[Backfilled | BaseException] = []

    def ask() -> None:
        try:
            answers.append(
                backfill(
                    pipeline.registry,
                    pipeline.name,
                    deployed.query,
                    from_ms=period[0],
                    to_ms=period[1],
                    dry_run=dry_run,
                    timeout_s=ANSWER_S,
                )
            )
        except BaseException as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    pipeline.await_("answer", lambda: not asking.is_alive(), timeout_s=ANSWER_S + 20)
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]


def spoil(pipeline: PipelineUnderTest, table: str) -> int:
    """Make a stopped query's store wrong, as a defect would: a key changed, one lost, one that no record has made."""
    (deployed,) = [d for d in deployed_queries(pipeline.registry.pipeline(pipeline.name)) if d.query.name == table]
    rewrite = rewrite_of(deployed, pipeline.settings)
    rewrite.take()
    with past_version(deployed, pipeline.settings) as version:
        entries = {past.spec.number: list(version.task(past.spec).database.scan(table)) for past in version.cut.tasks}
        now = version.cut.driver.planned
        assert now is not None
    wrong: dict[int, list[Entry]] = {}
    for task, found in entries.items():
        (first, _), (lost, state), *rest = found
        wrong[task] = sorted([(first, state), *rest, (lost.replace(b"c", b"x", 1), state)])
    rewrite.own({})
    ranges = tuple(replace(r, start=r.end) for r in now.ranges)
    planned = Planned(now.batch + 1, plan_hash(deployed.query), ranges)
    versions = {task: iter(found) for task, found in wrong.items()}
    rewrite.commit(versions, planned, {}, names.group(deployed.pipeline, table))
    rewrite.close()
    return len(wrong)


def look(pipeline: PipelineUnderTest, table: str) -> Iterator[tuple[str, dict[bytes, bytes]]]:
    """The committed content of every task of a table, of the store servers that answer."""
    row = pipeline.registry.driver(pipeline.name)
    for server in [] if row is None else row.servers:
        for task in server["tasks"]:
            with suppress(RollforwardError):
                if task.startswith(f"{table}-"):
                    with StoreClient(server["socket"], timeout_s=10) as client:
                        chunks = [chunk.to_pydict() for chunk in client.entries(task, isolation=COMMITTED)]
                    columns = [[*chunk.values()] for chunk in chunks]
                    yield (
                        task,
                        {key: state for keys, states in columns for key, state in zip(keys, states, strict=True)},
                    )


@contextmanager
def watching(pipeline: PipelineUnderTest, table: str) -> Iterator[dict[str, list[dict[bytes, bytes]]]]:
    """The versions that each task shows one after the other, from before the block to its end."""
    seen: dict[str, list[dict[bytes, bytes]]] = defaultdict(list)
    ended, errors = threading.Event(), []

    def note() -> None:
        for task, version in look(pipeline, table):
            if seen[task][-1:] != [version]:
                seen[task].append(version)

    def watch() -> None:
        try:
            while not ended.wait(0.05):
                note()
        except BaseException as error:
            errors.append(error)

    note()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()
    assert [] == errors
    # After the end nobody dies any more: what stands now is seen as well.
    pipeline.await_running()
    note()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("killed_at", [SHORT, pytest.param(POINTS, marks=pytest.mark.slow)])
def test_a_period_is_computed_again_between_live_batches(
    pipeline: PipelineUnderTest,
    visits: Visits,
    kafka: str,
    points: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed_at: tuple[str, ...],
) -> None:
    visits.send(600)
    pipeline.start()
    caught_up(pipeline, visits)
    visits.send(100, late=True)
    caught_up(pipeline, visits)

    # What the stream has counted once, Spark counts the same: a dry run finds nothing, and changes nothing.
    right = visits.daily()
    found = compute(pipeline, "daily", dry_run=True)
    assert (len(right), len(right), 0, None) == (
        found.figures["keys"],
        found.figures["equal"],
        found.corrected,
        found.batch,
    )

    # Windows have dropped late records: the second day gets them, the others stay as they were.
    second = (FIRST_MS + DAY_MS, FIRST_MS + 2 * DAY_MS)
    before, wanted = stored(pipeline, "hourly"), visits.hourly()
    mixed = {cell: wanted[cell] if second[0] <= int(cell[1]) < second[1] else before.get(cell) for cell in wanted}
    mixed = {cell: value for cell, value in mixed.items() if value is not None}
    assert before != mixed
    found = compute(pipeline, "hourly", second)
    differing = sum(before.get(cell) != value for cell, value in mixed.items())
    assert differing == found.corrected > 0
    assert mixed == stored(pipeline, "hourly")
    await_shown(kafka, pipeline.name, "hourly", mixed)
    # What was before it cannot be gone back to: no record behind that would write these results again.
    (deployed,) = (d for d in deployed_queries(pipeline.registry.pipeline(pipeline.name)) if d.query.name == "hourly")
    log = BatchesLog(Reader(pipeline.settings.kafka_config()), deployed.batches_topic, tasks=deployed.query.tasks)
    assert found.batch == present(log.driver_log().planned).floor_behind
    assert 0 == compute(pipeline, "hourly", second).corrected

    # Dagster's partitions: a range of hours in one run, on the same driver, with the check that says what it found.
    for name, value in driver_environment(pipeline.settings).items():
        if name.startswith("ROLLFORWARD_"):
            monkeypatch.setenv(name, value)
    pipelines, broken = read_deployed(pipeline.settings)
    assert [] == broken
    assets = backfill_assets(pipelines)
    keys = {key.path[-1]: key for asset in assets for key in asset.keys}
    assert {"hourly_by_day", "hourly_by_hour", "daily_by_day"} == set(keys)
    tags = {
        "dagster/asset_partition_range_start": "2026-03-01-00:00",
        "dagster/asset_partition_range_end": "2026-03-01-05:00",
    }
    with dg.instance_for_test() as instance:
        key = keys["hourly_by_hour"]
        done = dg.materialize(assets, selection=[key], instance=instance, tags=tags)
        assert done.success
        assert 6 == len(instance.get_materialized_partitions(key))
        (check,) = done.get_asset_check_evaluations()
        assert (CHECK, False) == (check.check_name, check.passed)
        again = dg.materialize(assets, selection=[key], instance=instance, tags=tags)
        assert again.get_asset_check_evaluations()[0].passed
    for cell, row in wanted.items():
        if FIRST_MS <= int(cell[1]) < FIRST_MS + 6 * HOUR_MS:
            assert row == stored(pipeline, "hourly")[cell]

    # A period of half an hour, and days of a time before the first record of all and behind the newest.
    with pytest.raises(InvalidInput, match="whole days"):
        compute(pipeline, "daily", (FIRST_MS, FIRST_MS + HOUR_MS))
    for day in (-2, 1_000):
        nothing = (FIRST_MS + day * DAY_MS, FIRST_MS + (day + 1) * DAY_MS)
        assert 0 == compute(pipeline, "daily", nothing).figures["keys"]

    # A store that is wrong is put right, whatever is killed meanwhile, and the stream goes on.
    assert 0 == pipeline.stop()
    tasks = spoil(pipeline, "daily")
    pipeline.start()
    pipeline.await_running()
    assert right != stored(pipeline, "daily")
    dry = compute(pipeline, "daily", dry_run=True)
    assert (tasks, tasks, tasks) == tuple(dry.figures[name] for name in ("changed", "added", "removed"))
    for point in killed_at:
        arm(points, point)
    with watching(pipeline, "daily") as seen:
        compute(pipeline, "daily")
    assert [] == [point for point in killed_at if is_armed(points, point)]
    pipeline.await_running()
    assert right == stored(pipeline, "daily")
    # Whoever looked at a task, at whatever moment, saw all of the old or all of the new, and never the old again.
    assert {f"daily-{task}": 2 for task in range(tasks)} == {task: len(versions) for task, versions in seen.items()}
    visits.send(60, late=True)
    caught_up(pipeline, visits)
    right = visits.daily()
    assert right == stored(pipeline, "daily")
    await_shown(kafka, pipeline.name, "daily", {cell: value for cell, value in right.items() if value[0] > 1})
