"""A backlog that only the archive has in part is cut by time as one that brokers have whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.archive import Archive, open_archive
from pipelines.engine.source import SourceTopic
from statestore.config import KafkaConfig, ObjectsConfig
from statestore.kafka.admin import Topic
from statestore.kafka.reader import Record
from tests.engine.test_timecut import Log, batches, dropped, in_order, inputs, uneven

TOPIC = Topic("t", "id", 2)


class Shortened(Log):
    """A topic whose beginnings were archived in files of so many offsets, and deleted."""

    def __init__(self, whole: Log, begins: dict[int, int], config: ObjectsConfig, file_records: int) -> None:
        super().__init__(*whole.partitions)
        self.kept = begins
        self.archive = open_archive(config, TOPIC)
        for partition in begins:
            for start in range(0, begins[partition], file_records):
                self.put(partition, start, min(start + file_records, begins[partition]))
        query: Any = SimpleNamespace(name="q", stateless=False, source=SimpleNamespace(topic="t"))
        self.source = SourceTopic(query, KafkaConfig("nowhere:1"), accept_loss=False, archive=config)
        # Answers of brokers that have the rest.
        admin: Any = SimpleNamespace(
            describe=lambda names: {"t": TOPIC},
            begins=lambda name, partitions: dict(self.kept),
            at_time=lambda name, time_ms, partitions: self.left(time_ms),
        )
        self.source._admin = admin
        self.source.look()

    def put(self, partition: int, start: int, end: int) -> None:
        """Archive these offsets."""
        times = enumerate(self.partitions[partition][start:end], start)
        records = [Record(None, b"", n, time) for n, time in times if time is not None]
        assert self.archive.put(partition, start, end, records)

    def left(self, time_ms: int) -> dict[int, int]:
        """What brokers answer."""
        return {
            number: next((n for n in range(begin, len(times)) if (times[n] or -1) >= time_ms), len(times))
            for number, begin in self.kept.items()
            for times in [self.partitions[number]]
        }

    def first_at(self, time_ms: int, starts: Any, most: int) -> dict[int, int]:
        self.asked += 1
        return self.source.first_at(time_ms, starts, most)


@pytest.fixture
def config(tmp_path: Path) -> ObjectsConfig:
    return ObjectsConfig(f"file://{tmp_path}/archive")


@pytest.mark.parametrize("begins", [{0: 1_000, 1: 100}, {0: 617, 1: 0}, {0: 0, 1: 33}])
@pytest.mark.parametrize("most", [15, 110, 700])
def test_the_order_is_that_of_a_log_that_is_whole(config: ObjectsConfig, begins: dict[int, int], most: int) -> None:
    whole = uneven()
    times = list(whole.partitions[0])
    # Some jump back, some are gone: all of a file, too.
    times[300:303], times[400:520] = [times[200], None, times[310]], [None] * 120
    whole = Log(times, whole.partitions[1])
    one = [record for ranges in batches(whole, most) for record in in_order(inputs(whole, ranges))]
    short = Shortened(whole, begins, config, 60)
    assert one == [record for ranges in batches(short, most) for record in in_order(inputs(whole, ranges))]
    assert 0 == dropped(whole, batches(short, most))


def test_files_that_lie_behind_are_forgotten_and_those_ahead_are_not_read(
    config: ObjectsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Shortened(uneven(), {0: 1_000, 1: 100}, config, 50)
    listed = []
    pieces = Archive.pieces
    monkeypatch.setattr(Archive, "pieces", lambda self, n: listed.append(n) or pieces(self, n))
    batches(log, 110)
    times = log.source._archived_times()
    assert [0, 1] == sorted(listed), "the archive is listed once"
    assert all(piece.end > 1_000 - 2 * 110 for piece in times._read if piece.partition == 0)
    fresh = Shortened(uneven(), {0: 1_000, 1: 100}, ObjectsConfig(f"{config.url}/again"), 50)
    fresh.first_at(10**18, {0: 0, 1: 0}, 110)
    assert {0, 50, 100} == {piece.start for piece in fresh.source._archived_times()._read if piece.partition == 0}


def test_what_is_archived_later_is_found(config: ObjectsConfig) -> None:
    log = Shortened(uneven(), {0: 100, 1: 0}, config, 50)
    middle = log.partitions[0][150] or 0
    assert 100 == log.first_at(0, {0: 100, 1: 0}, 500)[0]
    assert 150 == log.first_at(middle, {0: 0, 1: 0}, 500)[0]
    log.put(0, 100, 200)
    log.kept[0] = 200
    assert 150 == log.first_at(middle, {0: 0, 1: 0}, 500)[0]
