"""A program's own loop on a real broker: what commits together, and what opening again finds."""

from __future__ import annotations

import time

import pytest

from statestore.cache.record_cache import RecordCache
from statestore.cache.stores import CachedKeyValue
from statestore.config import StreamConfig
from statestore.context import RecordContext
from statestore.errors import InvariantBroken
from statestore.kafka.producer import ABORT_S, TransactionalProducer
from statestore.store import Isolation
from statestore.streamtask import StreamTask
from statestore.typed.serdes import ValueAndTimestamp
from tests.statestore.program.conftest import Start
from tests.support.counting import Input
from tests.support.feed import read_topic


def test_outputs_stores_and_input_offsets_commit_together(start: Start, feed: Input) -> None:
    program = start()
    feed.send(50)
    program.run()
    assert feed.expected_outputs() == feed.outputs()
    assert feed.expected(program) == program.content()
    program.task.close()
    again = start()
    assert feed.sent.total() == again.task.next_offset(again.input)
    assert feed.expected(again) == again.content()


def test_what_is_not_committed_is_gone(start: Start, feed: Input) -> None:
    program = start()
    feed.send(20)
    program.run()
    before = feed.expected(program)
    feed.send(10)
    for chunk in program.reader.read(program.input, 0, start=program.task.next_offset(program.input)):
        for record in chunk:
            program.step(record)
    assert before != program.content(Isolation.READ_UNCOMMITTED)
    program.task.close()
    again = start()
    assert before == again.content(Isolation.READ_UNCOMMITTED)
    assert 20 == again.task.next_offset(again.input)
    again.run()
    assert feed.expected_outputs() == feed.outputs()
    assert feed.expected(again) == again.content()


def test_records_are_taken_once_and_only_after_asking_where_to_begin(start: Start, feed: Input) -> None:
    program = start(of=("indexed",))
    with pytest.raises(InvariantBroken):
        program.task.take(RecordContext(program.input, 0, 0, 0))
    assert 0 == program.task.next_offset(program.input)
    program.task.take(RecordContext(program.input, 0, 0, 0), RecordContext(program.input, 0, 5, 1))
    with pytest.raises(InvariantBroken):
        program.task.take(RecordContext(program.input, 0, 5, 1))
    with pytest.raises(InvariantBroken):
        program.task.take(RecordContext("another", 0, 6, 1))


def test_a_task_that_is_closed_aborts_what_is_open_and_waits_seconds_for_a_kafka_that_is_away(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start(of=("indexed",))
    program.task.next_offset(program.input)
    program.task.take(RecordContext(program.input, 0, 0, 0))
    program.task.send(f"{program.config.application}-out", key=b"k", value=b"v", partition=0)
    program.task.session.outbox.send()
    limits, abort = list[float | None](), TransactionalProducer._abort

    def told(producer: TransactionalProducer, limit_s: float | None) -> None:
        limits.append(limit_s)
        abort(producer, limit_s)

    monkeypatch.setattr(TransactionalProducer, "_abort", told)
    program.task.close()
    assert [ABORT_S] == limits


def test_a_time_of_0_is_one_and_no_time_is_that_of_now(start: Start, kafka: str) -> None:
    """In what is sent and in changelogs: what is of 1970 by mistake, brokers delete where they delete by time."""
    program = start(of=("indexed",))
    output, now = f"{program.config.application}-out", int(time.time() * 1000)

    def step(key: str) -> None:
        program.counts["indexed"].put(key, 1)
        program.task.send(output, key=key.encode(), value=b"", partition=0)

    step("outside of a record")
    program.task.next_offset(program.input)
    program.task.take(RecordContext(program.input, 0, 0, 0))
    step("in one of time 0")
    program.cached.put("k", ValueAndTimestamp(1, 0))
    program.task.commit()
    changelogs = [f"{program.config.application}-{name}-changelog" for name in ("indexed", "cached")]
    sent, indexed, cached = (
        [message.timestamp()[1] for message in read_topic(kafka, topic)] for topic in (output, *changelogs)
    )
    for first, second in (sent, indexed):
        assert now <= first
        assert 1 == second
    assert [1] == cached


def test_what_a_flush_listener_puts_is_part_of_the_commit_whatever_the_order_of_the_stores(
    config: StreamConfig, feed: Input, kafka: str
) -> None:
    cache = RecordCache(10_000_000)
    first, last = CachedKeyValue("first", cache=cache), CachedKeyValue("last", cache=cache)
    topic = config.inputs[0]
    with StreamTask(config, [first, last]) as task:
        last.set_flush_listener(lambda key, change, _: first.put(key, change.new))
        task.next_offset(topic)
        task.take(RecordContext(topic, 0, 0, 1))
        last.put(b"k", b"v")
        task.commit()
        changelogs = [f"{config.application}-{store.name}-changelog" for store in (first, last)]
        for changelog in changelogs:
            assert [(b"k", b"v")] == [(message.key(), message.value()) for message in read_topic(kafka, changelog)]

        last.set_flush_listener(lambda key, change, _: last.put(key, change.new))
        task.take(RecordContext(topic, 0, 1, 1))
        last.put(b"k", b"w")
        with pytest.raises(InvariantBroken, match="however often"):
            task.commit()
        last.set_flush_listener(lambda *_: None)
