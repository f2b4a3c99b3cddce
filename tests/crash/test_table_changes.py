"""An aggregation of a table across SIGKILL: groups hold what the rows of now count for, in the topic and in the store."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

from pipelines.deploy import deployed_queries
from pipelines.query import StoreReader
from pipelines.reset import EARLIEST, Target, reset
from pipelines.settings import Settings
from statestore.failpoints import arm, is_armed
from statestore.store import Isolation
from tests.crash.conftest import SMALL_BATCHES
from tests.support.feed import create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE TABLE people (id INT PRIMARY KEY, town STRING, n BIGINT) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE towns AS SELECT town, COUNT(*) AS people, SUM(n) AS total FROM people WHERE n < 90 GROUP BY town;
"""
TOWNS = ("a", "b", "c", "d", "e", "f", None)
POINTS = ("stage.closed", "commit.position-sent", "apply.before-write", "driver.some-committed")


class People:
    """Sends changes of people and remembers how they stand."""

    def __init__(self, kafka: str, pipeline: PipelineUnderTest, seed: int) -> None:
        self.kafka, self.pipeline = kafka, pipeline
        self.random = random.Random(seed)
        self.sent = 0
        self.rows: dict[int, tuple[str | None, int] | None] = {}
        self.producer = ck.Producer({"bootstrap.servers": kafka})

    def send(self, count: int) -> None:
        for _ in range(count):
            person = self.random.randrange(40)
            row = None if self.random.random() < 0.2 else (self.random.choice(TOWNS), self.random.randrange(100))
            value = None if row is None else json.dumps({"town": row[0], "n": row[1]})
            self.producer.produce(self.pipeline.name, value, person.to_bytes(4, "big"), timestamp=1_000 + self.sent)
            self.rows[person] = row
            self.sent += 1
        assert self.producer.flush(60) == 0

    def caught_up(self) -> bool:
        return self.pipeline.caught_up(self.sent)()

    def expected(self) -> dict[str, tuple[int, int]]:
        """People and total of every town where somebody lives."""
        counting = [row for row in self.rows.values() if row is not None and row[0] is not None and row[1] < 90]
        people, totals = Counter(town for town, _ in counting), Counter[str | None]()
        for town, n in counting:
            totals[town] += n
        return {str(town): (people[town], totals[town]) for town in people}

    def in_topic(self) -> dict[str, tuple[int, int]]:
        newest = {
            present(m.key()).decode(): json.loads(present(m.value()))
            for m in read_topic(self.kafka, f"{self.pipeline.name}-towns")
        }
        return {town: (row["PEOPLE"], row["TOTAL"]) for town, row in newest.items() if row["PEOPLE"]}

    def in_store(self) -> dict[str, tuple[int, int]]:
        (deployed,) = deployed_queries(self.pipeline.registry.pipeline(self.pipeline.name))
        rows = StoreReader(deployed, self.pipeline.settings, self.pipeline.registry).scan(
            None, None, Isolation.READ_COMMITTED
        )
        found = {row.key["TOWN"]: (row.value["PEOPLE"], row.value["TOTAL"]) for row in rows}
        return {town: row for town, row in found.items() if row[0]}


@pytest.fixture
def pipeline(settings: Settings, kafka: str, unique: str, points: Path) -> Iterator[PipelineUnderTest]:
    create_topic(kafka, unique, partitions=2)
    environment = {"ROLLFORWARD_FAILPOINTS": str(points)}
    deployed = PipelineUnderTest(
        settings.model_copy(update={"tasks": 3, **SMALL_BATCHES}), unique, SQL.format(topic=unique), environment
    )
    yield deployed
    deployed.close()


def again(pipeline: PipelineUnderTest, reset_at: int) -> bool:
    """Whether all input is processed after the reset: what was counted before it has counted every record, too."""
    newest = pipeline.registry.newest_batches(pipeline.name)[0]
    return newest.batch > reset_at and newest.lag == 0


@pytest.mark.timeout(600)
def test_killed_at_a_step_groups_hold_what_the_rows_of_now_count_for(
    pipeline: PipelineUnderTest, kafka: str, points: Path
) -> None:
    people = People(kafka, pipeline, seed=7)
    people.send(200)
    pipeline.start()
    pipeline.await_("first input is processed", people.caught_up)
    for point in POINTS:
        arm(points, point)
        people.send(60)
        pipeline.await_(f"{point} fires", lambda point=point: not is_armed(points, point))  # type: ignore[misc]
        # A batch whose driver died behind "done" is never reported, so there has to be another one.
        people.send(20)
        pipeline.await_("input is processed", people.caught_up)
    assert people.expected() == people.in_store()

    # What rows count for comes back from Kafka with the groups.
    assert 0 == pipeline.stop()
    shutil.rmtree(pipeline.settings.states)
    shutil.rmtree(pipeline.settings.home / "snapshots", ignore_errors=True)
    people.send(60)
    pipeline.start()
    pipeline.await_("input after the loss is processed", people.caught_up)
    assert people.expected() == people.in_store()
    assert 0 == pipeline.stop()
    assert people.expected() == people.in_topic()

    # A reset deletes what rows count for as well, without a word of it in the results, and all is counted anew.
    (deployed,) = deployed_queries(pipeline.registry.pipeline(pipeline.name))
    told = reset(deployed, pipeline.settings, pipeline.registry, Target(edge=EARLIEST), dry_run=False)
    shown = read_topic(kafka, deployed.query.output_topic)
    assert {town for town in TOWNS if town is not None} == {present(message.key()).decode() for message in shown}
    assert len(TOWNS) - 1 == told.keys_deleted
    pipeline.start()
    pipeline.await_("input is processed again", lambda: again(pipeline, told.as_batch or 0))
    assert people.expected() == people.in_store()
