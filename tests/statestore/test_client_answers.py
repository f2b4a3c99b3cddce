"""The client answers wrongly when a broker was away: what it says without an error is not always what a broker said."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka as ck
import pytest

from statestore.config import KafkaConfig
from statestore.errors import Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.groups import GroupOffsets
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import OffsetsGone, Reader
from tests.support.waiting import await_


class Once:
    """The client, but the first answer of one method goes through `change`."""

    def __init__(self, client: Any, method: str, change: Any) -> None:
        self._client, self._method, self._change = client, method, change
        self.changed = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return self._changed if name == self._method else found

    def _changed(self, *arguments: Any, **options: Any) -> Any:
        answer = getattr(self._client, self._method)(*arguments, **options)
        self.changed += 1
        return self._change(answer) if self.changed == 1 else answer


class NoOffset:
    """A result as the client gives it when its time is over: no error, and no offset."""

    offset = ck.OFFSET_INVALID

    def result(self) -> NoOffset:
        return self


@pytest.fixture
def config(kafka: str) -> KafkaConfig:
    return KafkaConfig(kafka, request_timeout_s=20)


@pytest.fixture
def topic(config: KafkaConfig, unique: str) -> str:
    """Ten records, each of a transaction of its own."""
    Admin(config).create(unique, partitions=1, settings={})
    producer = TransactionalProducer(config, unique)
    producer.init()
    for number in range(10):
        producer.begin()
        producer.produce(unique, key=b"k", value=b"%d" % number, partition=0)
        producer.flush()
        producer.commit()
    producer.close()
    reader = Reader(config)
    # The broker writes the mark of a transaction's end after it has answered the commit.
    await_("the last transaction has ended", lambda: reader.stable_end(unique, 0) == 2 * 10)
    return unique


def values(reader: Reader, topic: str, start: int = 0) -> list[bytes | None]:
    return [record.value for chunk in reader.read(topic, 0, start=start) for record in chunk]


def test_an_end_that_no_broker_said_does_not_empty_the_log(config: KafkaConfig, topic: str) -> None:
    reader = Reader(config)
    lying = Once(reader._admin, "list_offsets", lambda futures: dict.fromkeys(futures, NoOffset()))
    reader._admin = lying  # type: ignore[assignment]
    assert values(reader, topic) == [b"%d" % number for number in range(10)]
    assert lying.changed > 1


def test_a_log_that_ends_too_early_is_not_read_as_if_it_were_whole(config: KafkaConfig, topic: str) -> None:
    reader = Reader(config)
    _, end = reader.begin_and_end(topic, 0)
    assert [] != list(reader.read(topic, 0, start=0, end=end))
    with pytest.raises(Unavailable, match="log ends too early"):
        list(reader.read(topic, 0, start=0, end=end + 1))


def test_an_offset_that_no_broker_says_is_an_error_in_the_end(config: KafkaConfig, topic: str) -> None:
    reader = Reader(KafkaConfig(config.bootstrap_servers, request_timeout_s=0.2))
    real = reader._admin

    class Never:
        def list_offsets(self, wanted: Any, **_: object) -> Any:
            return dict.fromkeys(wanted, NoOffset())

        def list_topics(self, *topic: str, timeout: float) -> Any:
            return real.list_topics(*topic, timeout=timeout)

    reader._admin = Never()  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="no broker has said the offset"):
        reader.begin_and_end(topic, 0)


def test_a_time_behind_the_newest_record_is_the_end_of_the_log(config: KafkaConfig, topic: str, unique: str) -> None:
    admin = Admin(config)
    (end,) = admin.ends(topic, partitions=1).values()
    behind_ms = int((time.time() + 3600) * 1000)
    assert {0: end} == admin.at_time(topic, behind_ms, partitions=1)
    assert {0: 0} == admin.at_time(topic, 0, partitions=1)
    empty = admin.create(f"{unique}-empty", partitions=2, settings={})
    assert {0: 0, 1: 0} == admin.at_time(empty.name, 0, partitions=2)
    # That no broker has answered is still no answer.
    admin._admin = lying = Once(admin._admin, "list_offsets", lambda futures: dict.fromkeys(futures, NoOffset()))  # type: ignore[assignment]
    assert {0: end} == admin.at_time(topic, behind_ms, partitions=1)
    assert lying.changed > 2


def test_a_reader_whose_place_the_client_gave_up_reads_on(
    config: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = ck.Consumer, []

    class LosesItsPlace:
        """An event instead of the third record, as after an outage; whatever was fetched is gone."""

        def __init__(self, settings: Any) -> None:
            self._consumer = make(settings)
            made.append(self)
            self.assigned: list[int] = []

        def assign(self, where: list[ck.TopicPartition]) -> None:
            self.assigned.append(where[0].offset)
            self._consumer.assign(where)

        def consume(self, count: int, timeout: float) -> list[Any]:
            messages = self._consumer.consume(1, timeout=timeout)
            if len(self.assigned) == 1 and messages and messages[0].value() == b"2":
                return [Event()]
            return messages

        def close(self) -> None:
            self._consumer.close()

    class Event:
        def error(self) -> ck.KafkaError:
            return ck.KafkaError(ck.KafkaError._AUTO_OFFSET_RESET)

        def offset(self) -> int:
            return ck.OFFSET_INVALID

    monkeypatch.setattr(ck, "Consumer", LosesItsPlace)
    reader = Reader(config)
    assert values(reader, topic) == [b"%d" % number for number in range(10)]
    assert len(made[0].assigned) == 2
    # Where they really are gone it is told.
    Admin(config).trim(topic, 0, before=8)
    with pytest.raises(OffsetsGone, match="records are gone"):
        values(reader, topic)


def test_an_offset_with_an_error_is_not_taken_for_none(
    config: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = GroupOffsets(config, topic)
    group.commit([ck.TopicPartition(topic, 0, 7)])
    make, made = ck.Consumer, []

    class WithError:
        offset, error = ck.OFFSET_INVALID, ck.KafkaError(ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS)

    def consumer(settings: Any) -> Any:
        made.append(Once(make(settings), "committed", lambda _: [WithError()]))
        return made[-1]

    monkeypatch.setattr(ck, "Consumer", consumer)
    assert group.committed([(topic, 0)]) == {(topic, 0): (7, "")}
    assert made[0].changed == 2


class Said:
    """A record, or with `ended` the event that a partition has been read to its end."""

    def __init__(self, partition: int, offset: int, *, ended: bool = False) -> None:
        self._partition, self._offset, self._ended = partition, offset, ended

    def error(self) -> ck.KafkaError | None:
        return ck.KafkaError(ck.KafkaError._PARTITION_EOF) if self._ended else None

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"%d" % self._offset

    def timestamp(self) -> tuple[int, int]:
        return ck.TIMESTAMP_CREATE_TIME, 0

    def headers(self) -> None:
        return None


@pytest.mark.parametrize("behind", [Said(0, 3, ended=True), Said(0, 3)], ids=["its end", "a record"])
def test_what_comes_of_a_partition_that_has_been_read_ends_no_other(
    config: KafkaConfig, unique: str, monkeypatch: pytest.MonkeyPatch, behind: Said
) -> None:
    said = [[Said(0, 1)], [behind], [Said(1, 0)], [behind], [Said(1, 1)]]

    class Scripted:
        def __init__(self, _settings: Any) -> None:
            pass

        def assign(self, _where: list[ck.TopicPartition]) -> None:
            pass

        def consume(self, count: int, timeout: float) -> list[Any]:
            return said.pop(0) if count == 1 else []

        def close(self) -> None:
            pass

    monkeypatch.setattr(ck, "Consumer", Scripted)
    monkeypatch.setattr(Reader, "begins_and_ends", lambda *_: {0: (0, 2), 1: (0, 2)})
    newest = Reader(config).newest(unique, [0, 1])
    assert {0: 1, 1: 1} == {partition: found[b"k"].offset for partition, found in newest.items()}
    assert not said
