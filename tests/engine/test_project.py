"""Rows that the worker has projected are the results, byte for byte and in their order, that the JVM makes of the rows."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pipelines.engine.exchange import ArrowFunction, Exchange, Exchanges, Tasked, result
from pipelines.engine.input import GivenPart, Input
from pipelines.engine.job import drained, uncounted
from pipelines.engine.project import project_of
from pipelines.engine.projection import ProjectionJob
from pipelines.engine.records import GivenRecords
from pipelines.engine.small import ATTEMPT
from pipelines.plan import Query
from pipelines.sql import parse_pipeline
from statestore.deadletter import dead_letter

SOURCE = """
CREATE STREAM s (id BIGINT KEY, k STRING, i INT, b BIGINT, t STRING, d DOUBLE, f BOOLEAN, at TIMESTAMP)
  WITH (kafka_topic='s', value_format='json');
"""
QUERIES = {
    "filter": "SELECT id, i * 2 AS twice, t, f, at, k = 'x' AS is_x FROM s WHERE b >= 5 OR t = 'b,'",
    "every row": "SELECT id, k, i > b AS larger, rowtime AS seen, 'new' AS state, CASE WHEN f THEN k ELSE '' END AS c FROM s",
    "keyed by text": 'SELECT k, b / 7 AS seventh, t AS `h"t\\` FROM s PARTITION BY k',
    "keyed by a number": "SELECT i + 1 AS next, k, id FROM s WHERE NOT f PARTITION BY i + 1",
    "keyed by a case": "SELECT CASE WHEN k IS NULL THEN 1 ELSE 2 END AS n, id FROM s PARTITION BY CASE WHEN k IS NULL THEN 1 ELSE 2 END",
}
FORMATS = {
    "json": "WITH (key_format='json')",
    "delimited": "WITH (key_format='delimited', key_delimiter='-')",
}
KEYLESS = """
CREATE STREAM u (k STRING, i INT, b BIGINT, t STRING) WITH (kafka_topic='s', value_format='json');
CREATE STREAM r AS SELECT t, i - b AS less, k FROM u WHERE k <> '' EMIT CHANGES;
"""
TIMED = {
    "stream": "CREATE STREAM r WITH (timestamp='b') AS SELECT id, b FROM s WHERE t = 'open' EMIT CHANGES;",
    "table": """
CREATE TABLE u (id BIGINT PRIMARY KEY, t STRING, b BIGINT) WITH (kafka_topic='s', value_format='json');
CREATE TABLE r WITH (timestamp='b') AS SELECT id, b FROM u WHERE t = 'open' EMIT CHANGES;
""",
}
SEVERAL = "SELECT t, i, k, id, b FROM s WHERE i IS NULL OR i < 6 PARTITION BY t, i"
ALL = {
    **{name: f"CREATE STREAM r AS {select} EMIT CHANGES;" for name, select in QUERIES.items()},
    **{
        f"{form}, {name}": f"CREATE STREAM r {properties} AS {select} EMIT CHANGES;"
        for form, properties in FORMATS.items()
        for name, select in {"one": QUERIES["keyed by text"], "several": SEVERAL}.items()
    },
    "without a key": KEYLESS,
}
BYTES = 10_000_000
# Tasks at the most: as many as a drawn input has parts, of a stateless query.
MANY = 64
RESULT = "key binary, value binary, dead string, time bigint, partition int"
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "k": st.sampled_from(["x", "y", "Ü", "", None]),
    "i": st.one_of(st.none(), st.integers(-3, 7), st.sampled_from([-(2**31), 2**31 - 1])),
    "b": st.one_of(st.none(), st.integers(-70, 70), st.sampled_from([-(2**63), 2**63 - 1, 5])),
    "t": st.sampled_from([None, "", "a", "b,", '"', "#c", "-d ", "é", "\U0001f600", "z\x00", 'C:\\"a"\n\t\x0b']),
    "d": st.sampled_from([None, 1.5]),
    "f": st.one_of(st.none(), st.booleans()),
    "at": st.one_of(st.none(), st.integers(0, 2**40)),
}
ROWS = st.fixed_dictionaries(FIELDS).map(lambda row: json.dumps(row, ensure_ascii=False).encode())
VALUES = st.one_of(ROWS, ROWS, ROWS, st.sampled_from([None, b"no json", b'{"i":"x"}', b"{}"]))
KEYS = st.one_of(st.integers(-3, 3).map(lambda id_: struct.pack(">q", id_)), st.sampled_from([None, b"no id"]))
Records = Sequence[tuple[bytes | None, bytes | None]]
PARTS = st.lists(
    st.lists(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=25), max_size=3), min_size=1, max_size=3
)


def query_of(statement: str) -> Query:
    (query,) = parse_pipeline(SOURCE + statement, pipeline="p", default_tasks=2).queries
    return query


def part(partition: int, blocks: list[Records]) -> GivenPart:
    starts = [sum(map(len, blocks[:number])) for number in range(len(blocks))]
    return GivenPart(tuple(block(partition, *each) for each in zip(starts, blocks, strict=True)))


def block(partition: int, start: int, records: Records) -> GivenRecords:
    offsets = range(start, start + len(records))
    keys, values = (pa.array(column, pa.binary()) for column in zip(*records, strict=True))
    times = pa.array([1_000 + at * 7 % 31 for at in offsets], pa.int64())
    return GivenRecords(partition, keys, values, pa.array(offsets, pa.int64()), times)


def shown(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """WRITE that gives what it is given."""
    for batch in batches:
        key, value, dead, time, partition = (
            batch.column(f"__{name}") for name in ("key", "value", "dead", "time", "partition")
        )
        # Spark breaks lines of base64.
        dead = pa.compute.replace_substring(dead, "\\r\\n", "")
        columns = [key.cast(pa.binary()), value.cast(pa.binary()), dead, time, partition]
        yield pa.RecordBatch.from_arrays(columns, names=["key", "value", "dead", "time", "partition"])


def by_partition(rows: Iterable[Sequence[Any]]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for *row, partition in rows:
        found[partition].append(tuple(row))
    return dict(found)


def results(spark: SparkSession, job: ProjectionJob, parts: list[list[Records]]) -> dict[int, list[tuple[Any, ...]]]:
    """All that WRITE is given of each source partition, in its order."""
    read = Input(spark, tuple(part(number, blocks) for number, blocks in enumerate(parts)))
    frame = job.frame(read, count=uncounted, read=drained, write=shown, result_ddl=RESULT)
    return by_partition(tuple(row) for row in frame.collect())


def small_results(job: ProjectionJob, parts: list[list[Records]]) -> dict[int, list[tuple[Any, ...]]]:
    """The same of the batch that is computed without Spark."""
    given: list[tuple[Any, ...]] = []

    def step(_exchanges: Exchanges, tasked: Tasked) -> ArrowFunction:
        def write_here(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = [tuple(row.values()) for batch in shown(batches) for row in batch.to_pylist()]
            assert {tasked().task} == {row[-1] for row in rows}
            given.extend(rows)
            yield result(tasked().task, tasked().attempt, len(rows))

        return write_here

    assert job.small is not None
    staged = replace(job.small, step=step).run(
        [part(number, blocks) for number, blocks in enumerate(parts)],
        Exchange("r", 0, 0, ("here",) * MANY),
        attempt=ATTEMPT,
        most_bytes=BYTES,
        at=lambda _address, work: work(),
    )
    assert sum(len(block) for blocks in parts for block in blocks) == staged.records
    return by_partition(given)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ALL)
def test_results_are_those_of_the_jvm(spark: SparkSession, name: str) -> None:
    query = query_of(ALL[name])
    by_jvm, by_worker = ProjectionJob(query, project=False), ProjectionJob(query)
    assert by_worker.projected is not None

    @settings(max_examples=5, deadline=None)
    @given(PARTS)
    def same(parts: list[list[Records]]) -> None:
        expected = results(spark, by_jvm, parts)
        assert expected == results(spark, by_worker, parts)
        assert expected == small_results(by_worker, parts)

    same()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TIMED)
def test_a_result_without_a_time_is_a_dead_letter_and_what_where_hides_needs_none(
    spark: SparkSession, name: str
) -> None:
    given = [(state, time) for state in ("open", "closed") for time in (None, -2, 5)]
    records = [(struct.pack(">q", at), json.dumps({"t": t, "b": b}).encode()) for at, (t, b) in enumerate(given)]
    rows = results(spark, ProjectionJob(query_of(TIMED[name])), [[records]])[0]
    letters = [dead_letter(dead) for _, _, dead, _ in rows if dead is not None]
    assert records[:2] == [(letter.key, letter.value) for letter in letters]
    for offset, letter in enumerate(letters):
        places = {"topic": b"s", "partition": b"0", "offset": b"%d" % offset}
        expected = {"reason": b"result has no time", **{f"source-{place}": at for place, at in places.items()}}
        assert expected == dict(letter.headers)
    shown = (records[2][0], b'{"B":5}', 5)
    times = block(0, 0, records).times.to_pylist()
    # What leaves a table is deleted, at the time of its record.
    hidden = [(key, None, time) for (key, _), time in zip(records[3:], times[3:], strict=True)]
    assert [shown, *(hidden if name == "table" else [])] == [row[:2] + row[3:] for row in rows if row[2] is None]


@pytest.mark.parametrize(
    "select",
    [
        "SELECT id, UCASE(t) AS u FROM s",
        "SELECT id, t FROM s WHERE t LIKE 'a%'",
        # Java writes doubles in its own way.
        "SELECT id, d FROM s",
        "SELECT id, t FROM s WHERE d > 1.0",
        "SELECT d, t FROM s PARTITION BY d",
        "SELECT UCASE(k) AS u, t FROM s PARTITION BY UCASE(k)",
        "SELECT id, EXPLODE(ARRAY[i, 2]) AS e FROM s",
    ],
)
def test_where_it_is_not_sure_spark_computes(select: str) -> None:
    query = query_of(f"CREATE STREAM r AS {select} EMIT CHANGES;")
    assert project_of(query) is None
    assert ProjectionJob(query).small is None


@pytest.mark.parametrize("properties", ["value_format='delimited'", "timestamp='at'"])
def test_other_results_are_left_to_spark(properties: str) -> None:
    assert project_of(query_of(f"CREATE STREAM r WITH ({properties}) AS SELECT id, t, at FROM s EMIT CHANGES;")) is None
