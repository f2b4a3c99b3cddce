"""Archives of topics, and pipelines that begin elsewhere: reset, and bootstrap with records that Kafka has deleted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import dagster as dg
import pytest

from ops import control
from ops.archive import archive_all
from ops.dagster.archive import archive_assets
from ops.dagster.deployed import read_deployed
from ops.dagster.resetting import reset_pipeline
from ops.environment import driver_environment
from pipelines import archive as archive_module
from pipelines.archive import open_archive
from pipelines.engine.input import PartsInTurn
from pipelines.engine.source import SourceTopic
from pipelines.metastore.embedded import want
from pipelines.registry import RUNNING, STOPPED
from pipelines.settings import Settings
from statestore.errors import InvalidConfig, Unrecoverable
from statestore.failpoints import arm, is_armed
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader, Record
from tests.backfill.archiving import archive, cli, require_kafka_s
from tests.backfill.visits import DAY_MS, FIRST_MS, SQL, Cell, Visits, await_shown, stored
from tests.support.feed import create_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.transactions import await_ended
from tests.support.waiting import await_


@pytest.fixture
def pipeline(in_s3: Settings, visits: Visits, unique: str, points: Path) -> Iterator[PipelineUnderTest]:
    """Deployed and not started, with the archive in S3."""
    deployed = PipelineUnderTest(in_s3, unique, SQL.format(topic=unique))
    want(unique, STOPPED, in_s3, deployed.registry)
    yield deployed
    # A driver that a command has started is nobody's child here.
    control.end_driver(deployed.registry, unique, timeout_s=0)
    deployed.close()


def counted(settings: Settings, topic: str, begins: dict[str, int]) -> dict[Cell, tuple[int, ...]]:
    """What table `daily` makes of a topic's records from these offsets on."""
    found: dict[Cell, list[int]] = defaultdict(list)
    for partition, begin in begins.items():
        for chunk in Reader(settings.kafka_config()).read(topic, int(partition), start=begin):
            for record in chunk:
                if record.value != b"nonsense":
                    row = json.loads(record.value or b"")
                    day = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d")
                    found[row["city"], day].append(row["n"])
    return {cell: (len(ns), sum(ns), max(ns)) for cell, ns in found.items()}


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what a driver of the command line does."""
    await_("what the driver does", condition, 400)


def test_every_record_is_archived_once_whatever_kills_the_archiver(
    archiving: Settings, visits: Visits, points: Path, kafka: str
) -> None:
    visits.send(500)
    pipeline = PipelineUnderTest(archiving, visits.topic, SQL.format(topic=visits.topic))
    for point in ("archive.before-put", "archive.put"):
        arm(points, point, passes=1)
        assert cli(archiving, "archive", visits.topic, points=points) is None
        assert not is_armed(points, point)
    done = cli(archiving, "archive", visits.topic)["partitions"]
    assert [(0, 250), (0, 250)] == [(one["first"], one["end"]) for one in done]
    assert [(0, 250, 0), (0, 250, 0)] == archive(archiving, visits.topic)

    # What lies in the files is what lies in Kafka, offset by offset.
    for partition in (0, 1):
        assert [(0, 100), (100, 200), (200, 250)] == require_kafka_s(archiving, visits.topic, partition)

    # Dagster's asset does the same; what was deleted in between is told.
    pipelines, _ = read_deployed(archiving)
    assets, schedules = archive_assets(pipelines, archiving)
    assert (1, ["archive_topics_by_the_clock"]) == (len(assets), [schedule.name for schedule in schedules])
    assert ([], []) == archive_assets(pipelines, archiving.model_copy(update={"archive_url": "off"}))
    visits.send(100)
    Admin(archiving.kafka_config()).trim(visits.topic, 0, before=260)
    with pytest.raises(Unrecoverable, match="before they were archived"):
        archive(archiving, visits.topic)
    pipeline.close()


def test_what_one_partition_or_topic_fails_of_stops_no_other(
    archiving: Settings, visits: Visits, unique: str, kafka: str
) -> None:
    visits.send(100)
    other = Visits(kafka, f"{unique}-other")
    create_topic(kafka, other.topic, partitions=2)
    archive(archiving, visits.topic)
    visits.send(100)
    other.send(100)
    # Of partition 0 records were deleted before they were archived, and there is no such topic as the first.
    Admin(archiving.kafka_config()).trim(visits.topic, 0, before=60)
    with pytest.raises(InvalidConfig, match="does not exist"):
        archive_all([f"{unique}-none", visits.topic, other.topic], archiving)
    with pytest.raises(Unrecoverable, match=r"before they were archived.*partition=.0"):
        archive_all([visits.topic, f"{unique}-none"], archiving)

    def spans(topic: str) -> dict[int, tuple[int, int]]:
        described = Admin(archiving.kafka_config()).describe([topic])[topic]
        return open_archive(archiving.archive_config(), described).spans()

    assert ({0: (0, 50), 1: (0, 100)}, {0: (0, 50), 1: (0, 50)}) == (spans(visits.topic), spans(other.topic))


def transaction(kafka: str, topic: str, count: int, *, commit: bool) -> None:
    """So many records in partition 0, and behind them the marker of their transaction's end."""
    producer = ck.Producer({"bootstrap.servers": kafka, "transactional.id": f"{topic}-archive"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(topic, b"{}", partition=0)
    producer.flush(60)
    (producer.commit_transaction if commit else producer.abort_transaction)()
    await_ended(kafka, topic, partitions=2)


def test_what_only_aborted_transactions_have_written_is_archived_as_nothing(
    archiving: Settings, visits: Visits, kafka: str
) -> None:
    topic, admin = visits.topic, Admin(archiving.kafka_config())
    transaction(kafka, topic, 100, commit=True)
    assert [(0, 101, 100), (0, 0, 0)] == archive(archiving, topic)
    transaction(kafka, topic, 100, commit=False)
    assert (0, 202, 0) == archive(archiving, topic)[0]
    # Retention takes them, and nothing is missing.
    admin.trim(topic, 0, before=202)
    transaction(kafka, topic, 1, commit=True)
    assert (0, 204, 1) == archive(archiving, topic)[0]
    query: Any = SimpleNamespace(name="q", stateless=False, source=SimpleNamespace(topic=topic))
    source = SourceTopic(query, archiving.kafka_config(), accept_loss=False, archive=archiving.archive_config())
    source.look()
    assert () == source.deleted({0: 50, 1: 0}, source.begins())
    # What Kafka has no more comes first in time, too.
    assert (202, 50) == (source.at_time(0)[0], source.first_at(0, {0: 50, 1: 0}, 1_000)[0])
    [part] = source.parts((source.range(0, 50, 204),))
    # The first file's rest, none of the second, and of the third what Kafka has as well.
    assert isinstance(part, PartsInTurn)
    assert 50 == sum(len(block) for block in part.parts[0].records())


def test_an_archive_does_not_go_on_behind_what_its_topic_has_lost(
    archiving: Settings, visits: Visits, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, admin = visits.topic, Admin(archiving.kafka_config())
    transaction(kafka, topic, 10, commit=True)
    assert [(0, 11, 10), (0, 0, 0)] == archive(archiving, topic)
    # As if five more had been archived that the log has lost since.
    kept = open_archive(archiving.archive_config(), admin.describe([topic])[topic])
    assert kept.put(0, 11, 16, [])
    monkeypatch.setattr(archive_module, "_LOOK_AGAIN_S", 0.0)
    with pytest.raises(Unrecoverable, match=r"lost records that were archived.*archived_to=.16.*end=.11"):
        archive(archiving, topic)

    # An old answer, or one before what a transaction hides, is none of a loss.
    with monkeypatch.context() as patch:
        patch.setattr(Admin, "ends", lambda *_, **__: {0: 16, 1: 0})
        assert [(0, 16, 0), (0, 0, 0)] == archive(archiving, topic)


@pytest.mark.parametrize("changed", ["offset", "timestamp_ms", "key", "value"])
def test_an_archive_does_not_go_on_behind_what_others_have_the_offsets_of_now(
    archiving: Settings, visits: Visits, kafka: str, changed: str
) -> None:
    topic, admin = visits.topic, Admin(archiving.kafka_config())
    transaction(kafka, topic, 3, commit=True)
    kept = open_archive(archiving.archive_config(), admin.describe([topic])[topic])
    records = [r for chunk in Reader(archiving.kafka_config()).read(topic, 0, start=0) for r in chunk]
    # As if the last record had been another: at offset 3 is the end of a transaction now, and at 2 what was written behind it.
    other: dict[str, Any] = {
        "offset": 3,
        "timestamp_ms": records[-1].timestamp_ms + 1,
        "key": b"other",
        "value": b"other",
    }
    assert kept.put(0, 0, 4, [*records[:-1], records[-1]._replace(**{changed: other[changed]})])
    # Nothing was read behind it but what an aborted transaction has left.
    transaction(kafka, topic, 3, commit=False)
    assert kept.put(0, 4, 8, [])
    assert (0, 8, 0) == archive(archiving, topic)[0]
    transaction(kafka, topic, 3, commit=True)
    with pytest.raises(
        Unrecoverable, match=r"others have their offsets now.*partition=.0. offset=.[23]. archived_to=.8"
    ):
        archive(archiving, topic)

    # Of what retention, or compaction, has taken nobody can tell.
    admin.configure(topic, {"cleanup.policy": "compact,delete"})
    assert (0, 12, 3) == archive(archiving, topic)[0]
    admin.configure(topic, {"cleanup.policy": "delete"})
    admin.trim(topic, 0, before=12)
    transaction(kafka, topic, 1, commit=True)
    assert (0, 14, 1) == archive(archiving, topic)[0]


def test_a_file_of_large_values_has_fewer_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "_FILE_BYTES", 1_000)
    chunks = [[Record(b"k", b"x" * size, at, 0) for at, size in enumerate((400, 400, 400, 10, 2_000, 10))]]
    cut = [(end, [len(r.value or b"") for r in records]) for end, records in archive_module._cut(chunks, 9, 100)]
    assert [(3, [400, 400, 400]), (5, [10, 2_000]), (9, [10])] == cut
    counted = [(end, len(records)) for end, records in archive_module._cut(chunks, 9, 2)]
    assert [(2, 2), (4, 2), (5, 1), (9, 1)] == counted


@pytest.mark.timeout(900)
def test_a_pipeline_begins_with_history_and_can_begin_again(
    pipeline: PipelineUnderTest, visits: Visits, points: Path, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, settings = pipeline.name, pipeline.settings
    visits.send(500)
    archive(settings, visits.topic)
    admin = Admin(settings.kafka_config())
    # Half of the history is in the archive alone, and what comes now in Kafka alone.
    for partition in (0, 1):
        admin.trim(visits.topic, partition, before=120)
    visits.send(100)

    looked = cli(settings, "bootstrap", name, "--dry-run")
    assert [{"0": 0, "1": 0}] * 2 == [one["offsets"] for one in looked["queries"]]
    arm(points, "rewrite.before-commit")
    assert cli(settings, "reset", name, "--to", "history", "--yes", points=points) is None
    began = cli(settings, "bootstrap", name, "--yes")
    assert began["pid"] > 0

    def caught_up() -> bool:
        newest = pipeline.registry.newest_batches(name)
        return [sum(end for _, end in row.offsets.values()) for row in newest] == [visits.records] * 2

    def newest_batch(query: str) -> int:
        return max(row.batch for row in pipeline.registry.newest_batches(name) if row.query == query)

    wait_until(caught_up)
    right = visits.daily()
    assert right == stored(pipeline, "daily")

    # A day whose records are in the archive alone is computed again from there.
    bounds = ["--from", "2026-03-01", "--to", "2026-03-02"]
    found = cli(settings, "backfill", name, "--query", "daily", *bounds, "--dry-run")["queries"][0]
    first = [cell for cell in right if cell[1] == "2026-03-01"]
    assert (len(first), len(first), 0) == (found["keys"], found["equal"], found["corrected"])

    # Reset by Dagster to a time: what lies before is gone, from the store and from the results.
    assert cli(settings, "stop", name)
    for key, value in driver_environment(settings).items():
        if key.startswith("ROLLFORWARD_"):
            monkeypatch.setenv(key, value)
    config = {"pipeline": name, "to": "time", "at_ms": FIRST_MS + 2 * DAY_MS, "query": "daily"}
    with dg.instance_for_test() as instance:
        for confirm, deleted in (("", None), (name, len(right))):
            run_config = {"ops": {"reset": {"config": {**config, "confirm": confirm}}}}
            done = reset_pipeline.execute_in_process(run_config=run_config, instance=instance)
            (told,) = done.output_for_node("reset")
            assert deleted == told["keys_deleted"]
    await_shown(kafka, name, "daily", {})
    # What is to be stopped would stop by itself.
    want(name, RUNNING, settings, pipeline.registry)
    pipeline.start()
    # The batches before the reset have ended where the topic ends as well.
    pipeline.await_("the rest is processed", lambda: newest_batch("daily") > told["as_batch"] and caught_up())
    pipeline.await_running()
    # The store is what the records from there on make, whatever their days are, and so are the results.
    again = counted(settings, visits.topic, told["offsets"])
    assert again == stored(pipeline, "daily")
    await_shown(kafka, name, "daily", {cell: value for cell, value in again.items() if value[0] > 1})
    assert 0 == pipeline.stop()
