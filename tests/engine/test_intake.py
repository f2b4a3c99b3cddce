"""A source whose log has become shorter than what was read of it: what comes next must not pass for what was read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from infra.stack import Stack
from pipelines.engine import source as source_module
from pipelines.engine.intake import Intake
from pipelines.engine.pace import Bounds, Pace
from pipelines.engine.query_driver import QueryDriver
from pipelines.engine.source import SourceTopic, without_lost
from pipelines.engine.timecut import TimeCut
from pipelines.settings import Settings
from statestore.batches import BatchesLog, Planned, Range
from statestore.clock import now_ms
from statestore.config import KafkaConfig
from statestore.errors import Unrecoverable
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from tests.support.feed import SQL, create_topic
from tests.support.own_broker import lose_end, own_broker
from tests.support.pipeline import PipelineUnderTest, settings_for
from tests.support.waiting import await_


def send(kafka: str, topic: str, count: int) -> None:
    producer = ck.Producer({"bootstrap.servers": kafka})
    for price in range(count):
        producer.produce(topic, json.dumps({"auction": 1, "price": price}), partition=0)
    assert producer.flush(60) == 0


def intake_at(kafka: str, topic: str, at: int, *, accept_loss: bool = False) -> tuple[SourceTopic, Intake]:
    """One that stands at this offset of partition 0, and at the beginning of partition 1."""
    query: Any = SimpleNamespace(name="q", stateless=False, source=SimpleNamespace(topic=topic))
    source = SourceTopic(query, KafkaConfig(kafka), accept_loss=accept_loss)
    source.look()
    intake = Intake(source, Pace(Bounds(1_000, 10**9, 1.0)))
    intake.stands(Planned(5, "h", (source.range(0, 0, at), source.range(1, 0, 0))))
    return source, intake


@pytest.fixture
def topic(kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of ten records in partition 0 of two."""
    monkeypatch.setattr(source_module, "_LOOK_AGAIN_S", 0.0)
    create_topic(kafka, unique, partitions=2)
    send(kafka, unique, 10)
    return unique


def test_a_log_that_ends_before_the_position_is_not_read_on(kafka: str, topic: str) -> None:
    source, intake = intake_at(kafka, topic, 12)
    with pytest.raises(Unrecoverable, match=r"partition 0 at 12 ends at 10.*--accept-loss"):
        intake.require_whole(source.stable_ends())
    assert {0: 12, 1: 0} == intake.ends


def test_where_that_is_accepted_the_stream_goes_on_at_the_end_and_the_next_plan_tells(kafka: str, topic: str) -> None:
    source, intake = intake_at(kafka, topic, 12, accept_loss=True)
    assert intake.require_whole(source.stable_ends())
    assert {0: 10, 1: 0} == intake.ends
    assert (source.range(0, 10, 12),) == intake.lost
    # There is nothing to take, and a plan all the same.
    assert (source.range(0, 10, 10), source.range(1, 0, 0)) == intake.next(source.stable_ends())
    send(kafka, topic, 3)
    assert (source.range(0, 10, 13), source.range(1, 0, 0)) == intake.next(source.stable_ends())
    assert not intake.require_whole(source.stable_ends())


@pytest.mark.parametrize("accept_loss", [False, True])
def test_a_topic_that_was_made_again_has_not_lost_its_end(kafka: str, topic: str, accept_loss: bool) -> None:
    source, intake = intake_at(kafka, topic, 10, accept_loss=accept_loss)
    admin = Admin(KafkaConfig(kafka))
    admin.delete([topic])
    admin.await_gone(topic)
    create_topic(kafka, topic, partitions=2)
    send(kafka, topic, 3)
    ends = {0: 3, 1: 0}
    await_("the new topic's end", lambda: source.stable_ends() == ends)
    with pytest.raises(Unrecoverable, match="deleted and created again"):
        intake.require_whole(ends)
    assert ({0: 10, 1: 0}, (), False) == (intake.ends, intake.lost, intake.is_cut)


def driver_of(source: SourceTopic, intake: Intake) -> QueryDriver:
    """One that has batch 5 behind it, and nothing to run another with."""
    driver = object.__new__(QueryDriver)
    ahead: Any = SimpleNamespace(drop=lambda: None)
    journal: Any = SimpleNamespace(hash="h")
    driver._source, driver._intake, driver._ahead, driver._journal = source, intake, ahead, journal
    driver._stand(Planned(5, "h", intake.nothing(), floor=2))
    return driver


def test_the_plan_that_tells_of_a_lost_end_is_as_far_as_one_can_go_back(kafka: str, topic: str) -> None:
    source, intake = intake_at(kafka, topic, 12, accept_loss=True)
    driver = driver_of(source, intake)
    before = driver._planned(intake.nothing())
    assert (6, 2, 0) == (before.batch, before.floor, before.cut)
    ends = driver._stable_ends()
    telling = driver._planned(intake.next(ends) or ())
    assert (6, 6, 6) == (telling.batch, telling.floor, telling.cut)
    assert (source.range(0, 10, 12),) == telling.lost
    driver._stand(telling)
    behind = driver._planned(intake.nothing())
    assert (7, 6, 6, ()) == (behind.batch, behind.floor, behind.cut, behind.lost)


def test_partitions_that_are_seen_beside_a_lost_end_are_read(kafka: str, topic: str) -> None:
    source, intake = intake_at(kafka, topic, 12, accept_loss=True)
    driver = driver_of(source, intake)
    client = AdminClient({"bootstrap.servers": kafka})
    client.create_partitions([NewPartitions(topic, 3)])[topic].result()
    await_("the new partition", lambda: Admin(KafkaConfig(kafka)).describe([topic])[topic].partitions == 3)
    assert intake.require_whole(source.stable_ends())
    assert 3 == source.topic.partitions
    driver._look_again()
    assert {0: 10, 1: 0, 2: 0} == intake.ends


def test_a_batch_by_time_ends_where_brokers_find_the_first_record_of_its_time(kafka: str, unique: str) -> None:
    create_topic(kafka, unique, partitions=2)
    producer = ck.Producer({"bootstrap.servers": kafka})
    for partition, times in enumerate(([1_000, 9_000, 2_000, 10_000], [3_000, 4_000, 12_000])):
        for time_ms in times:
            producer.produce(unique, b"{}", None, partition, None, None, time_ms)
    assert producer.flush(60) == 0
    query: Any = SimpleNamespace(name="q", stateless=False, source=SimpleNamespace(topic=unique))
    source = SourceTopic(query, KafkaConfig(kafka), accept_loss=False)
    source.look()
    # The one of 2,000 lies behind one of 9,000.
    assert [{0: 1, 1: 0}, {0: 3, 1: 2}, {0: 4, 1: 3}] == [source.at_time(at) for at in (2_000, 9_001, 12_001)]
    intake = Intake(source, Pace(Bounds(3, 10**9, 1.0)), TimeCut(source.first_at, now_ms()))
    intake.take_in(source.begins(), first=True)
    taken = []
    while (ranges := intake.next(source.stable_ends())) is not None:
        taken.append([(r.start, r.end) for r in ranges])
        intake.stands(Planned(len(taken), "h", ranges))
    assert [[(0, 1), (0, 2)], [(1, 4), (2, 2)], [(4, 4), (2, 3)]] == taken


def test_an_old_answer_and_records_that_a_transaction_hides_are_no_loss(kafka: str, topic: str) -> None:
    _, intake = intake_at(kafka, topic, 10)
    assert not intake.require_whole({0: 7, 1: 0})
    assert {0: 10, 1: 0} == intake.ends


def r(start: int, end: int) -> Range:
    return Range("t", "id", 0, start, end)


@pytest.mark.parametrize(
    ("deleted", "cut", "left"),
    [
        ((r(900, 930),), (), r(930, 1000)),
        ((r(900, 1200),), (), r(1200, 1200)),
        ((), (r(950, 1000),), r(900, 950)),
        ((), (r(20, 1000),), r(20, 20)),
        ((r(900, 930),), (r(950, 1000),), r(930, 950)),
    ],
)
def test_an_unfinished_batch_goes_on_with_what_is_left_of_it(
    deleted: tuple[Range, ...], cut: tuple[Range, ...], left: Range
) -> None:
    planned = without_lost(Planned(5, "h", (r(900, 1000),)), deleted, cut)
    assert ((left,), deleted + cut) == (planned.ranges, planned.lost)
    # Of a batch that a task may have committed whole only the next one's positions are sure.
    assert ((5, 6) if cut else (0, 0)) == (planned.floor, planned.cut)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Stack]:
    """A broker that may lose something."""
    with own_broker(tmp_path / "stack") as stack:
        yield stack


def test_a_source_that_has_lost_its_end_stops_the_pipeline_until_that_is_accepted(
    own: Stack, machine: Settings, tmp_path: Path, unique: str
) -> None:
    kafka = own.status().bootstrap_servers or ""
    create_topic(kafka, unique, partitions=1)
    send(kafka, unique, 5)
    [segment] = own.home.rglob(f"{unique}-0/*.log")
    size = segment.stat().st_size
    send(kafka, unique, 5)
    settings = settings_for(
        tmp_path / "home", kafka, java_home=machine.java_home, class_archive=machine.class_archive, tasks=1
    )
    pipeline = PipelineUnderTest(settings, unique, SQL.format(topic=unique))
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
        lose_end(own, segment, size)
        assert pipeline.run_until_end() == 4
        row = pipeline.registry.driver(unique)
        assert row is not None and "partition 0 at 10 ends at 5" in row.error and "--accept-loss" in row.error
        pipeline.settings = settings.model_copy(update={"accept_loss": True})
        assert pipeline.run_until_end() == 0, pipeline.tail()
        planned = BatchesLog(Reader(settings.kafka_config()), f"{unique}-totals-batches", tasks=1).driver_log().planned
        # Told at once, though nothing has come: what is written next lies where the lost records were, and is read.
        assert planned is not None
        assert [(5, 10)] == [(lost.start, lost.end) for lost in planned.lost]
        assert [(5, 5)] == [(each.start, each.end) for each in planned.ranges]
        assert (planned.batch, planned.batch) == (planned.floor, planned.cut)
    finally:
        pipeline.close()
