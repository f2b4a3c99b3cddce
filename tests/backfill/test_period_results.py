"""A period whose results their topic does not take is not staged, and the records that it fails of are found."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines.engine import recompute
from pipelines.engine.input import GivenPart, Input
from pipelines.engine.isolate import data_error
from pipelines.engine.recompute import Period, RecomputeJob
from pipelines.engine.records import GivenRecords
from pipelines.engine.resultlimit import ANY, ResultLimit, ResultTooLarge
from pipelines.periods import DAY_MS
from pipelines.plan import Query
from pipelines.sql import parse_pipeline
from statestore.batches import Order
from tests.support.present import present

KIB = 1024
LIMIT = ResultLimit("t", compressed=4 * KIB)
NOISE = random.Random(1).randbytes(8 * KIB).hex()
DAY = 20_513
SQL = """
CREATE STREAM s (city VARCHAR, n INT) WITH (kafka_topic='x', value_format='json');
CREATE TABLE q WITH (key_format='json') AS
  SELECT TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd') AS d, MAX(city) AS last FROM s
  GROUP BY TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd') EMIT CHANGES;
"""


def query_of() -> Query:
    [query] = parse_pipeline(SQL, pipeline="p", default_tasks=2).queries
    return query


def period(day: int) -> Period:
    return Period(day * DAY_MS, (day + 1) * DAY_MS)


class Server:
    """What a task of Spark's sees of its store server; whatever is written is a failure."""

    results = LIMIT

    def task_name(self, task: int) -> str:
        return f"q-{task}"

    def client(self, _task: int) -> Any:
        return nullcontext(None)

    def read(self, _client: object, _task: int) -> Any:
        nothing = (pa.array([], pa.binary()), 7)
        return SimpleNamespace(already=False, states=lambda _keys: nothing, stream_time_ms=-1, close=lambda: None)

    def write(self, _client: object, _task: int, *, attempt: int, token: int, order: Order | None) -> Any:
        pytest.fail(f"a result that is too large is staged: {attempt, token, order}")


def test_a_result_that_is_too_large_is_not_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {b"small": (b"1", 5, b"v"), b"large": (b"1", 5, NOISE.encode())}
    place = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 1)
    for name, fake in {"task_context": lambda: place, "_computed": lambda *_: wanted, "_stored": lambda *_: {}}.items():
        monkeypatch.setattr(recompute, name, fake)
    server: Any = Server()
    with pytest.raises(ResultTooLarge, match=r"max\.message\.bytes"):
        list(recompute._writer(server, query_of(), period(DAY))([]))


def test_a_trial_fails_of_a_result_of_the_period_that_is_too_large(spark: SparkSession) -> None:
    values = pa.array([json.dumps({"city": city, "n": 1}).encode() for city in ("small", NOISE, "a")], pa.binary())
    times = pa.array([DAY * DAY_MS, (DAY + 1) * DAY_MS, (DAY + 1) * DAY_MS], pa.int64())
    block = GivenRecords(0, pa.nulls(3, pa.binary()), values, pa.array(range(3), pa.int64()), times)
    read = Input(spark, (GivenPart((block,)),))

    def reason(day: int, results: ResultLimit, refused: dict[tuple[int, int], str]) -> str | None:
        try:
            RecomputeJob(query_of(), period(day)).try_out(read, results, refused)
        except PySparkException as error:
            return present(data_error(error))
        return None

    assert "result is larger than its topic takes" in present(reason(DAY + 1, LIMIT, {}))
    # The other day's is small, without the limit all are, and without the record so is its day's.
    assert [None] * 3 == [reason(DAY, LIMIT, {}), reason(DAY + 1, ANY, {}), reason(DAY + 1, LIMIT, {(0, 1): "large"})]
