"""A batch's input is read in the workers, and every row reaches the task that its key names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.engine.exchange import ArrowFunction, task_context
from pipelines.engine.input import GivenPart, Input, Part, PartsInTurn, dealt
from pipelines.engine.job import collected, uncounted
from pipelines.engine.jobs import job_of
from pipelines.engine.records import GivenRecords, Records
from pipelines.sql import parse_pipeline
from statestore.partitioner import murmur3

TASKS = 3
SQL = """
CREATE STREAM s (k STRING, n BIGINT) WITH (kafka_topic='s', value_format='json');
CREATE TABLE t {options} AS SELECT k, COUNT(*) AS c FROM s GROUP BY k EMIT CHANGES;
"""
RESULT = "task int, key binary, value binary"


def part(keys: range, *, start: int = 0) -> GivenPart:
    values = [b'{"k":"%d","n":1}' % key for key in keys]
    offsets = pa.array(range(start, start + len(values)), pa.int64())
    times = pa.array([5] * len(values), pa.int64())
    return GivenPart((GivenRecords(0, pa.nulls(len(values), pa.binary()), pa.array(values), offsets, times),))


def placed() -> ArrowFunction:
    """WRITE that tells where each row has come to."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            task = pa.repeat(pa.scalar(task_context().partitionId(), pa.int32()), batch.num_rows)
            columns = [task, *(batch.column(name).cast(pa.binary()) for name in ("__key", "__value"))]
            yield pa.RecordBatch.from_arrays(columns, names=["task", "key", "value"])

    return write


def results(spark: SparkSession, options: str, *parts: Part) -> list[tuple[int, bytes, bytes]]:
    job = job_of(parse_pipeline(SQL.format(options=options), pipeline="p", default_tasks=TASKS).queries[0])
    read = Input(spark, parts)
    frame = job.frame(read, count=uncounted, read=job.without_states(), write=placed(), result_ddl=RESULT)
    return [(row.task, bytes(row.key), bytes(row.value)) for row in frame.collect()]


@pytest.mark.parametrize("options", ["", "WITH (emit='every-record')"])
def test_rows_of_a_single_partition_reach_the_tasks_of_their_keys(spark: SparkSession, options: str) -> None:
    found = results(spark, options, part(range(50)))
    assert 50 == len(found)
    hashes = murmur3(pa.array([key for _, key, _ in found]))
    assert [int(hashed) % TASKS for hashed in hashes] == [task for task, _, _ in found]
    assert {0, 1, 2} == {task for task, _, _ in found}


def test_parts_count_together_and_one_after_the_other(spark: SparkSession) -> None:
    in_turn = PartsInTurn((part(range(10)), part(range(5), start=10)))
    found = results(spark, "", in_turn, part(range(3)))
    expected = {b"%d" % key: b'{"C":%d}' % (1 + (key < 5) + (key < 3)) for key in range(10)}
    assert expected == {key: value for _, key, value in found}


def test_parts_are_dealt_evenly_and_each_once() -> None:
    parts = [part(range(size)) for size in (1, 5, 2, 0, 9, 3, 4)]
    for most in range(1, 9):
        hands = dealt(parts, most)
        assert min(most, len(parts)) == len(hands)
        assert sorted(map(id, parts)) == sorted(id(each) for hand in hands for each in hand)
    sizes = [sum(each.size for each in hand) for hand in dealt(parts, 3)]
    assert [9, 8, 7] == sorted(sizes, reverse=True)
    assert [] == dealt([], 4)


def test_a_task_reads_several_parts_where_they_are_shared(spark: SparkSession) -> None:
    def decode(blocks: Iterable[Records]) -> Iterator[pa.RecordBatch]:
        task = task_context().partitionId()
        for block in blocks:
            yield pa.RecordBatch.from_arrays(
                [pa.array([task], pa.int32()), pa.array([len(block)])], names=["task", "n"]
            )

    read = Input(spark, tuple(part(range(size)) for size in (1, 2, 3, 4, 5)))
    assert 2 == spark.sparkContext.defaultParallelism
    tasks = {shared: read.decoded(decode, "task int, n bigint", shared=shared).collect() for shared in (False, True)}
    assert [(task, task + 1) for task in range(5)] == sorted((row.task, row.n) for row in tasks[False])
    assert {1, 2, 3, 4, 5} == {row.n for row in tasks[True]}
    assert {0, 1} == {row.task for row in tasks[True]}


def test_arrow_batches_of_large_rows_are_bounded(spark: SparkSession) -> None:
    def decode(blocks: Iterable[Records]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            yield pa.RecordBatch.from_arrays([pa.array([b"x" * 2**20] * len(block))], names=["row"])

    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows for batch in batches])], names=["n"])

    read = Input(spark, (part(range(50)),))
    frame = read.decoded(decode, "row binary").repartition(1).mapInArrow(sizes, "n bigint")
    found = {large: [row.n for row in collected(frame.select("*"), large=large)] for large in (True, False)}
    assert [50] == found[False]
    assert 50 == sum(found[True])
    assert 10 > max(found[True])


def test_an_input_without_parts_is_empty(spark: SparkSession) -> None:
    assert [] == results(spark, "")


def test_arrow_works_without_pandas_and_pandas_can_be_imported_all_the_same() -> None:
    program = (
        "import sys; from statestore.no_pandas import keep_pandas_out; keep_pandas_out()\n"
        "import pyarrow as pa; assert [1] == pa.array([1]).to_pylist(); assert 'pandas' not in sys.modules\n"
        "import pandas; print(pandas.DataFrame({'a': [1]}).shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert "(1, 1)\n" == done.stdout
