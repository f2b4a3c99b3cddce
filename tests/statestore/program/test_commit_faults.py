"""Commits that fail, are answered late or not at all, or come too late: every record still counts once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, repeat
from typing import Any

import confluent_kafka as ck
import pytest

from statestore.budget import UncommittedBudget
from statestore.context import RecordContext
from statestore.errors import Fenced, InvariantBroken, Unavailable
from statestore.tasksession import Committed
from statestore.transactions.base import noting_failure
from statestore.transactions.secondary_store import SecondaryStoreTransaction
from tests.statestore.program.conftest import Start
from tests.support.counting import Counting, Input
from tests.support.faulty_producer import ABORTABLE, ANSWER_LOST, FATAL, RETRIABLE, TIMED_OUT, Fault, FaultyProducers

OPENED: list[Fault | None] = [None]
"""The claim of the first opening."""


def exact(program: Counting, feed: Input) -> None:
    assert feed.expected_outputs() == feed.outputs()
    assert feed.expected(program) == program.content()


def failing(*faults: Fault | None) -> FaultyProducers:
    return FaultyProducers(chain(OPENED, faults))


@pytest.mark.case("TX-18")
def test_a_retriable_error_is_not_noticed(start: Start, feed: Input) -> None:
    program = start(make_producer=failing(RETRIABLE))
    feed.send(2, keys=1)
    program.run()
    assert {"k0": 2} == program.content()["indexed"]
    assert (0, True) == (program.unavailable, program.task.is_open)
    exact(program, feed)


@pytest.mark.case("TX-19")
@pytest.mark.parametrize("seed", [1, 2])
def test_commits_of_which_a_third_fails_count_each_record_once(start: Start, feed: Input, seed: int) -> None:
    seeded = random.Random(seed)

    def faults() -> Iterator[Fault | None]:
        for _ in range(40):
            yield seeded.choice([RETRIABLE, ABORTABLE, TIMED_OUT, ANSWER_LOST]) if seeded.random() < 0.3 else None

    program = start(make_producer=FaultyProducers(chain(OPENED, faults())))
    program.commit_every = 2
    feed.send(25)
    program.run()
    assert 25 == sum(program.content()["indexed"].values())
    exact(program, feed)


@pytest.mark.case("TX-20")
def test_five_errors_in_a_row_are_survived(start: Start, feed: Input) -> None:
    # Every failed commit is followed by an opening, whose claim succeeds.
    five = chain.from_iterable(zip(repeat(ABORTABLE, 5), repeat(None)))
    program = start(make_producer=failing(*five))
    feed.send(200, keys=10)
    program.run()
    assert 5 == program.unavailable
    assert dict.fromkeys((f"k{number}" for number in range(10)), 20) == program.content()["indexed"]
    exact(program, feed)


@pytest.mark.case("TX-21")
@pytest.mark.parametrize(("fault", "repeated"), [(TIMED_OUT, 1), (ANSWER_LOST, 0), (FATAL, 1)])
def test_an_unknown_outcome_is_found_out(start: Start, feed: Input, fault: Fault, repeated: int) -> None:
    program = start(make_producer=failing(None, fault))
    program.commit_every = 1_000
    feed.send(100, keys=10)
    program.run()
    feed.send(100, keys=10)
    program.run()
    assert repeated == program.unavailable
    assert set(program.content()["indexed"].values()) == {20}
    assert program.task.is_open
    exact(program, feed)


@pytest.mark.case("TX-22")
def test_a_fenced_task_stops_and_its_new_owner_goes_on(start: Start, feed: Input) -> None:
    older = start()
    feed.send(100, keys=10)
    older.run()
    feed.send(50, keys=10)
    older.commit_every = 1_000
    newer = start(folder="elsewhere")
    with pytest.raises(Fenced):
        older.process()
    assert not older.task.is_open
    feed.send(50, keys=10)
    newer.run()
    assert set(newer.content()["indexed"].values()) == {20}
    exact(newer, feed)


def test_a_zombie_that_does_not_know_its_outcome_does_not_evict_the_new_owner(start: Start, feed: Input) -> None:
    newer: list[Counting] = []

    def faults() -> Iterator[Fault | None]:
        yield None
        newer.append(start(folder="elsewhere"))
        yield TIMED_OUT

    older = start(make_producer=FaultyProducers(faults()))
    feed.send(10)
    with pytest.raises(Fenced, match="claimed"):
        older.process()
    newer[0].process()
    exact(newer[0], feed)


def test_a_task_whose_group_gave_it_away_is_fenced(start: Start, feed: Input, kafka: str) -> None:
    settings = {"bootstrap.servers": kafka, "group.id": feed.application, "auto.offset.reset": "earliest"}
    consumer = ck.Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([f"{feed.application}-in"])
    feed.send(10)
    while not consumer.assignment():
        consumer.poll(0.1)
    metadata = consumer.consumer_group_metadata()
    program = start(member=lambda: metadata)
    program.run()
    consumer.close()
    feed.send(10)
    with pytest.raises(Fenced):
        program.process()
    again = start()
    again.run()
    exact(again, feed)


def test_going_on_without_asking_where_is_refused_after_a_failed_commit(start: Start, feed: Input) -> None:
    program = start(make_producer=failing(ABORTABLE))
    feed.send(10)
    with pytest.raises(Unavailable):
        program.process()
    assert 0 == program.task.next_offset(program.input)


@pytest.mark.case("TX-15")
def test_more_than_the_share_of_the_budget_is_committed_early(start: Start, feed: Input) -> None:
    program = start(of=("indexed",), budget=UncommittedBudget(10_000))
    program.commit_every = 1_000
    feed.send(100)
    largest = 0
    for chunk in program.reader.read(program.input, 0, start=program.task.next_offset(program.input)):
        for record in chunk:
            program.step(record)
            largest = max(largest, program.task.uncommitted_bytes)
    totals = program.task.context.metrics.totals()
    assert totals["early-commit-total", program.config.transactional_id] > 2
    # What one record adds comes on top. Its keys and values alone would be a fifth of the budget by the end.
    assert 5_000 < largest < 12_000
    program.task.commit()
    exact(program, feed)


@pytest.mark.case("TX-16")
def test_tasks_share_the_budget_while_they_are_open() -> None:
    budget, one, other = UncommittedBudget(1_000), object(), object()
    budget.join(one)
    assert 1_000 == budget.share_bytes
    budget.join(other)
    assert 500 == budget.share_bytes
    budget.leave(one)
    assert 1_000 == budget.share_bytes
    with pytest.raises(ValueError, match="positive"):
        UncommittedBudget(0)


@pytest.mark.case("TX-16")
def test_a_closed_task_leaves_its_share_to_the_others(start: Start, feed: Input) -> None:
    budget = UncommittedBudget(1_000)
    program = start(of=("indexed",), budget=budget)
    budget.join("another")
    assert 500 == budget.share_bytes
    program.task.close()
    assert 1_000 == budget.share_bytes
    program.task.open()
    assert 500 == budget.share_bytes


def test_the_interval_commits_and_an_idle_loop_has_nothing_to_commit(start: Start, feed: Input) -> None:
    now = [0.0]
    program = start(of=("indexed",), clock=lambda: now[0])
    program.commit_every = 1_000
    feed.send(3)
    (first, second, third), *_ = program.reader.read(program.input, 0, start=program.task.next_offset(program.input))
    program.step(first)
    now[0] = 59.9
    program.step(second)
    assert {} == program.content()["indexed"]
    now[0] = 60.0
    program.step(third)
    assert {"k0": 1, "k1": 1} == program.content()["indexed"]
    now[0] = 120.0
    program.task.commit_if_due()
    changelog = f"{feed.application}-indexed-changelog"
    # The broker ends a transaction after it has answered: its end is there when its records can be read.
    written = [record.offset for chunk in program.reader.read(changelog, 0, start=0) for record in chunk]
    end = program.reader.begin_and_end(changelog, 0)
    now[0] = 180.0
    program.task.commit_if_due()
    assert end == program.reader.begin_and_end(changelog, 0)
    assert 3 == len(written)
    exact(program, feed)


def test_an_idle_task_commits_the_same_again_before_kafka_forgets_it(start: Start, feed: Input) -> None:
    now = [0.0]
    program = start(of=("indexed",), clock=lambda: now[0])
    feed.send(3)
    program.run()
    numbers = []
    for now[0] in (3_599.0, 3_660.0, 7_259.0, 7_320.0):
        program.task.commit_if_due()
        committed = Committed.read(program.config)
        assert {(program.input, 0): 3} == committed.offsets
        assert committed.note is not None
        numbers.append(committed.note.number)
    # The claim is the first, the three records are the second.
    assert [2, 3, 3, 4] == numbers
    exact(program, feed)


def test_an_idle_task_s_commit_does_not_stand_for_asking_for_the_next_offset(start: Start, feed: Input) -> None:
    now = [0.0]
    program = start(of=("indexed",), clock=lambda: now[0])
    feed.send(3)
    now[0] = 3_660.0
    program.task.commit_if_due()
    assert program.task._sent_at_s == now[0]
    with pytest.raises(InvariantBroken, match="nobody has asked"):
        program.task.take(RecordContext(program.input, 0, 1, 0))
    program.run()
    # Who had asked need not ask again.
    now[0] = 7_320.0
    program.task.commit_if_due()
    program.task.take(RecordContext(program.input, 0, 3, 0))


class TestAFailedWrite:
    """A disk that is full while a record is processed: one store has its effect, another has not."""

    @pytest.fixture
    def program(self, start: Start, feed: Input, monkeypatch: pytest.MonkeyPatch) -> Counting:
        """The 13th record fails, which is the third after a commit."""
        left = [12]
        put = SecondaryStoreTransaction.put

        def full(*args: Any) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise Unavailable("disk is full")
            put(*args)

        program = start(of=("indexed", "secondary", "memory"))
        program.commit_every = 10
        monkeypatch.setattr(SecondaryStoreTransaction, "put", noting_failure(full))
        feed.send(25)
        return program

    def test_the_record_is_processed_again_from_where_the_task_says(self, program: Counting, feed: Input) -> None:
        program.run()
        assert 1 == program.unavailable
        exact(program, feed)

    def test_it_is_not_committed_by_a_program_that_goes_on(self, program: Counting, feed: Input) -> None:
        program.commit_every = 1_000
        for chunk in program.reader.read(program.input, 0, start=program.task.next_offset(program.input)):
            for record in chunk:
                with suppress(Unavailable):
                    program.step(record)
        with pytest.raises(Unavailable, match="nothing was committed"):
            program.task.commit()
        assert (True, 0) == (program.task.is_open, program.task.next_offset(program.input))
        program.run()
        exact(program, feed)
