"""The next batch's job, begun ahead: taken once, by its own batch, or given up."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from pipelines.engine.ahead import Ahead
from pipelines.engine.job import StagedBatch
from statestore.batches import Planned, Range
from statestore.errors import Unavailable

ONE = Planned(1, "plan", (Range("s", "id", 0, 0, 10),))
STAGED = StagedBatch(10, 0, ())


class Spark:
    """A job that lasts until it is allowed to end, or cancelled for the second time: the first comes too early."""

    def __init__(self) -> None:
        self.may_end = Event()
        self.cancelled = 0

    def stage(self) -> StagedBatch:
        assert self.may_end.wait(30)
        if self.cancelled:
            raise Unavailable("job was cancelled")
        return STAGED

    def cancel(self) -> None:
        self.cancelled += 1
        if self.cancelled == 2:
            self.may_end.set()


@pytest.fixture
def spark() -> Spark:
    return Spark()


@pytest.fixture
def ahead(spark: Spark) -> Iterator[Ahead]:
    ahead = Ahead("q", spark.cancel)
    yield ahead
    spark.may_end.set()
    ahead.close()


def test_the_batch_takes_what_was_staged_for_it_once(ahead: Ahead, spark: Spark) -> None:
    ahead.begin(ONE, spark.stage)
    planned = ahead.planned
    assert ONE == planned
    spark.may_end.set()
    assert STAGED == ahead.take(ONE)
    assert None is ahead.planned
    assert None is ahead.take(ONE)


def test_another_plan_of_the_batch_takes_nothing(ahead: Ahead, spark: Spark) -> None:
    ahead.begin(ONE, spark.stage)
    assert None is ahead.take(Planned(1, "plan", (Range("s", "id", 0, 0, 11),)))
    assert ONE == ahead.planned


def test_a_job_that_fails_fails_its_batch(ahead: Ahead, spark: Spark) -> None:
    def fails() -> StagedBatch:
        raise Unavailable("server is gone")

    ahead.begin(ONE, fails)
    with pytest.raises(Unavailable, match="server is gone"):
        ahead.take(ONE)
    ahead.begin(ONE, spark.stage)


def test_a_job_that_is_dropped_is_over_when_drop_returns(ahead: Ahead, spark: Spark) -> None:
    ahead.drop()
    assert 0 == spark.cancelled
    ahead.begin(ONE, spark.stage)
    ahead.drop()
    assert 2 == spark.cancelled
    assert None is ahead.take(ONE)
