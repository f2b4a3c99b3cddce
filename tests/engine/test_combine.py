"""Rows that the worker has combined give the results, byte for byte, that the rows themselves give."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pipelines.engine.batch import BatchJob, updated
from pipelines.engine.columnar import columnar
from pipelines.engine.combine import Combine, combine_of
from pipelines.engine.decode import decoder
from pipelines.engine.exchange import ArrowFunction, Exchange, Exchanges, Tasked, result
from pipelines.engine.input import GivenPart, Input
from pipelines.engine.job import uncounted
from pipelines.engine.records import GivenRecords
from pipelines.engine.small import ATTEMPT
from pipelines.plan import Query
from pipelines.sql import parse_pipeline
from statestore.partitioner import task_of

SOURCE = """
CREATE STREAM s (k STRING, i INT, b BIGINT, t STRING, d DOUBLE, c DECIMAL(9, 2), f BOOLEAN, at TIMESTAMP)
  WITH (kafka_topic='s', value_format='json');
"""
ALL = """
  COUNT(*) AS n, COUNT(d) AS ds, COUNT(f) AS fs, SUM(i) AS si, SUM(b) AS sb, AVG(i) AS ai, AVG(b) AS ab, MIN(i) AS li,
  MAX(b) AS hb, MIN(t) AS lt, MAX(t) AS ht, MAX(at) AS newest, MAX(rowtime) AS seen,
  SUM(CASE WHEN i > 3 AND NOT b < 0 THEN b * 3 - i ELSE 1 END) AS chosen, SUM(i + 1) AS wraps, MIN(b / 7) AS seventh
"""
# Without an average.
WHOLE = """
  COUNT(*) AS n, COUNT(d) AS ds, SUM(i) AS si, SUM(b) AS sb, MIN(i) AS li, MAX(b) AS hb, MIN(t) AS lt, MAX(t) AS `h"t\\`,
  MAX(at) AS newest, SUM(i + 1) AS wraps, MIN(b / 7) AS seventh, MIN(b) % 7 AS `left`, MAX(i) % 5 - 1 AS five,
  MIN(i) > 2 AS large
"""
QUERIES = {
    "kafka": f"CREATE TABLE r AS SELECT k, {ALL} FROM s GROUP BY k EMIT CHANGES;",
    "json": f"""CREATE TABLE r WITH (key_format='json') AS SELECT k, b / 10 AS tens, i, {ALL} FROM s
      WHERE (f OR i IS NULL) AND (b <> 5 OR t IS NOT NULL) GROUP BY k, b / 10, i HAVING COUNT(*) > 1 EMIT CHANGES;""",
    "delimited": f"""CREATE TABLE r WITH (key_format='delimited') AS SELECT k, t, {ALL} FROM s
      WHERE i * 2 >= b GROUP BY k, t EMIT CHANGES;""",
    "updated": f"CREATE TABLE r AS SELECT t, {WHOLE} FROM s GROUP BY t EMIT CHANGES;",
    "updated, several": f"""CREATE TABLE r WITH (key_format='json') AS SELECT i, k, {WHOLE} FROM s WHERE t IS NOT NULL
      GROUP BY i, k EMIT CHANGES;""",
    "updated, number": f"CREATE TABLE r AS SELECT i + 1 AS next, {WHOLE} FROM s GROUP BY i + 1 EMIT CHANGES;",
    "updated, json": f"CREATE TABLE r WITH (key_format='json') AS SELECT t, {WHOLE} FROM s GROUP BY t EMIT CHANGES;",
    "updated, delimited": f"""CREATE TABLE r WITH (key_format='delimited') AS SELECT t, i, {WHOLE} FROM s GROUP BY t, i
      EMIT CHANGES;""",
    "updated, delimited by a sign": f"""CREATE TABLE r WITH (key_format='delimited', key_delimiter='-') AS
      SELECT t, i, {WHOLE} FROM s GROUP BY t, i EMIT CHANGES;""",
    "updated, having": f"""CREATE TABLE r WITH (key_format='json') AS SELECT k, b / 10 AS tens, {WHOLE} FROM s
      WHERE f OR i IS NULL GROUP BY k, b / 10 HAVING COUNT(*) > 1 AND MIN(i) < 3 EMIT CHANGES;""",
}
BYTES = 10_000_000
RESULT = "key binary, value binary, dead string, time bigint, emit tinyint, state string"
# What there is of keys, and of everything with nulls among it.
KEYED: dict[str, st.SearchStrategy[Any]] = {
    "k": st.sampled_from(["x", "y", "Ü", ""]),
    "i": st.one_of(st.integers(-3, 7), st.sampled_from([-(2**31), 2**31 - 1])),
    "b": st.one_of(st.integers(-70, 70), st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 5])),
    "t": st.sampled_from(["", "a", "b,", '"', "#c", "d ", "e \u2028", "é", "\U0001f600", "\uffee", "z\x00"]),
}
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.one_of(st.none(), values) for name, values in KEYED.items()},
    "d": st.one_of(st.none(), st.sampled_from([0.0, 1.5])),
    "c": st.just("1.25"),
    "f": st.one_of(st.none(), st.booleans()),
    "at": st.one_of(st.none(), st.integers(0, 2**40)),
}


def rows_of(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[bytes]:
    """JSON objects of these fields."""
    return st.fixed_dictionaries(fields).map(lambda row: json.dumps(row, ensure_ascii=False).encode())


ROWS = rows_of(FIELDS)
VALUES = st.one_of(ROWS, ROWS, ROWS, st.sampled_from([None, b"no json", b'{"i":"x"}', b"{}"]))


def parts_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[list[bytes | None]]]]:
    """Parts of the input, each of blocks of records."""
    return st.lists(st.lists(st.lists(values, min_size=1, max_size=25), max_size=4), min_size=1, max_size=3)


PARTS = parts_of(VALUES)


def query_of(statement: str) -> Query:
    (query,) = parse_pipeline(SOURCE + statement, pipeline="p", default_tasks=2).queries
    return query


def block(partition: int, start: int, values: Sequence[bytes | None]) -> GivenRecords:
    offsets = range(start, start + len(values))
    return GivenRecords(
        partition,
        pa.nulls(len(values), pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(offsets, pa.int64()),
        pa.array([1_000 + at * 7 % 31 for at in offsets], pa.int64()),
    )


def part(partition: int, blocks: list[list[bytes | None]]) -> GivenPart:
    starts = [sum(map(len, blocks[:number])) for number in range(len(blocks))]
    return GivenPart(tuple(block(partition, *each) for each in zip(starts, blocks, strict=True)))


def stored(seed: int | None, at: int, kind: pa.DataType) -> object:
    """What a key's state has in its column `at`: the token, the time, parts. Every third key has none, and some parts."""
    if seed is None or seed % 3 == 0 or (at > 1 and (seed >> at) % 4 == 0):
        return None
    number = (1_010, 2, -5, 2**31 - 1)[(seed + at) % 4]
    return "b,\n" if pa.types.is_string(kind) else number


def ends_of(job: BatchJob) -> tuple[ArrowFunction, ArrowFunction]:
    """READ that gives `stored` states, and WRITE that gives all that it is given."""
    names, kinds = [part.name for part in job.sql.parts], [pa.int64(), pa.int64(), *job.types]

    def states(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seeds = [None if key is None else crc32(key) for key in batch.column("__key").to_pylist()]
            added = [pa.array([stored(seed, at, kind) for seed in seeds], kind) for at, kind in enumerate(kinds)]
            known = ["__token", "__old_time", *(f"__s_{name}" for name in names)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *added], names=[*batch.schema.names, *known])

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            dead = batch.column("__dead")
            states = zip(*(batch.column(f"__m_{name}").to_pylist() for name in names), strict=True)
            state = pa.array(
                [None if lost else repr(each) for lost, each in zip(dead.to_pylist(), states, strict=True)]
            )
            columns = [batch.column(f"__{name}") for name in ("key", "value", "dead", "time", "emit")]
            # Spark breaks lines of base64.
            columns[2] = pa.compute.replace_substring(columns[2], "\\r\\n", "")
            columns = [*(column.cast(pa.binary()) for column in columns[:2]), *columns[2:], state]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "value", "dead", "time", "emit", "state"])

    return states, write


def results(spark: SparkSession, job: BatchJob, parts: list[list[list[bytes | None]]]) -> list[tuple[object, ...]]:
    """All that WRITE is given, dead letters too, in some order."""
    states, write = ends_of(job)
    read = Input(spark, tuple(part(number, blocks) for number, blocks in enumerate(parts)))
    frame = job.frame(read, count=uncounted, read=states, write=write, result_ddl=RESULT)
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def small_results(job: BatchJob, parts: list[list[list[bytes | None]]]) -> list[tuple[object, ...]]:
    """The same of the batch that is computed without Spark. Keys are at their tasks."""
    states, write = ends_of(job)
    given: list[tuple[object, ...]] = []

    def step(_exchanges: Exchanges, tasked: Tasked) -> ArrowFunction:
        def write_here(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = [tuple(row.values()) for batch in write(batches) for row in batch.to_pylist()]
            places = [row[2].encode() if row[0] is None else row[0] for row in rows]
            assert {tasked().task} == {task_of(place, job.query.tasks) for place in places}
            given.extend(rows)
            yield result(tasked().task, tasked().attempt, len(rows))

        return updated(job.update, states, write_here)  # type: ignore[arg-type]

    assert job.small is not None
    small = replace(job.small, step=step)
    staged = small.run(
        [part(number, blocks) for number, blocks in enumerate(parts)],
        Exchange("r", 0, 0, tuple("here" for _ in range(job.query.tasks))),
        attempt=ATTEMPT,
        most_bytes=BYTES,
        at=lambda _address, work: work(),
    )
    assert sum(len(block) for blocks in parts for block in blocks) == staged.records
    assert len(given) == sum(result.rows for result in staged.results)
    return sorted(given, key=repr)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", QUERIES)
def test_results_are_those_of_the_rows_themselves(spark: SparkSession, name: str) -> None:
    query = query_of(QUERIES[name])
    plain, combined = BatchJob(query, combine=False), BatchJob(query)
    assert combined.combine is not None
    assert name.startswith("updated") == (combined.update is not None) == (combined.small is not None)
    # Few rows at once, and more groups than are held.
    combined.combine = replace(combined.combine, rows_bytes=2_000, groups_bytes=1_000)

    @settings(max_examples=6, deadline=None)
    @given(PARTS)
    def same(parts: list[list[list[bytes | None]]]) -> None:
        expected = results(spark, plain, parts)
        assert expected == results(spark, combined, parts)
        if combined.small is not None:
            # Without Spark, as well.
            assert expected == small_results(combined, parts)

    same()


def test_rows_of_a_key_leave_the_worker_as_one_row(spark: SparkSession) -> None:
    combine = combine_of(query_of(QUERIES["kafka"]))
    assert combine is not None
    values = [b'{"k":"%d","b":%d}' % (number % 3, number) for number in range(90)]
    blocks = [block(0, 0, values[:50]), block(0, 50, [*values[50:], b"bad", b"{}"])]
    found = run(combine, blocks)
    groups = found.filter(pa.compute.is_valid(found["__g_K"])).select(["__g_K", "__c_A0", "__c_A4"]).to_pylist()
    expected = [{"__g_K": str(key), "__c_A0": 30, "__c_A4": sum(range(key, 90, 3))} for key in range(3)]
    assert expected == groups
    # The records that may become dead letters, each for itself with all that they were.
    letters = found.filter(pa.compute.is_null(found["__g_K"]))
    assert [b"bad", b"{}"] == [raw["value"] for raw in letters["__raw"].to_pylist()]
    assert [True, False] == letters["__error"].is_valid().to_pylist()


def test_more_groups_than_are_held_go_on_and_nothing_is_lost() -> None:
    combine = combine_of(query_of(QUERIES["kafka"]))
    assert combine is not None
    combine = replace(combine, rows_bytes=1_000, groups_bytes=4_000)
    blocks = [
        block(0, at, [b'{"k":"%d"}' % (number // 2 % 60) for number in range(at, at + 10)]) for at in range(0, 240, 10)
    ]
    found = run(combine, blocks)
    assert 60 < found.num_rows < 240
    counts = found.group_by("__g_K").aggregate([("__c_A0", "sum")])
    assert {str(key): 4 for key in range(60)} == dict(
        zip(*(column.to_pylist() for column in counts.columns), strict=True)
    )


def run(combine: Combine, blocks: list[GivenRecords]) -> pa.Table:
    query = query_of(QUERIES["kafka"])
    decode = combine.after(decoder(query.source, combine.needs_raw, uncounted))
    return pa.Table.from_batches(list(decode(blocks)))


@pytest.mark.parametrize(
    "select",
    [
        # The order of additions shows in the last bits; Arrow passes over NaN.
        "k, SUM(d) AS x FROM s GROUP BY k",
        "k, MAX(d) AS x FROM s GROUP BY k",
        "k, AVG(d) AS x FROM s GROUP BY k",
        # Digits that do not fit are null for Spark.
        "k, SUM(c) AS x FROM s GROUP BY k",
        "k, MAX(c) AS x FROM s GROUP BY k",
        # Functions, and expressions that can be null of values that are not.
        "UCASE(k) AS u, COUNT(*) AS x FROM s GROUP BY UCASE(k)",
        "k, COUNT(*) AS x FROM s WHERE t LIKE 'a%' GROUP BY k",
        "k, SUM(b / i) AS x FROM s GROUP BY k",
        "k, SUM(b / 0) AS x FROM s GROUP BY k",
        "k, SUM(CASE WHEN f THEN 1 END) AS x FROM s GROUP BY k",
        "k, COUNT(NULLIF(i, 1)) AS x FROM s GROUP BY k",
        "d, COUNT(*) AS x FROM s GROUP BY d",
    ],
)
def test_where_it_is_not_sure_spark_computes(select: str) -> None:
    assert combine_of(query_of(f"CREATE TABLE r AS SELECT {select} EMIT CHANGES;")) is None


EXPRESSIONS = [
    "`I` + 1",
    "`I` * `B` - `I`",
    "`B` * `B` + 9223372036854775807",
    "`B` div 3",
    "`B` % 3",
    "`I` % 3 - `B` % 2147483648 * 2",
    "`I` div 2147483648",
    "CAST(`I` AS BIGINT) * 4",
    "2 - 3 - `I` * 2",
    "`B` >= `I`",
    "`I` = 3 OR `B` <> 2 AND NOT `I` < `B`",
    "NOT (`I` <= 3 OR `F`)",
    "(`F` AND NOT coalesce((`B` < 0), false))",
    "(`I` + `B` IS NULL) OR `T` IS NOT NULL",
    "CASE WHEN `I` > 3 THEN `I` WHEN `F` THEN `B` ELSE 0 END",
    "case when (`F` and `I` > `B`) then 1 else 2 end",
    "`I` > (-4) AND `B` <> (-4611686018427387904L) OR `I` % (-3) = (-1)",
    "`B` + 2147483648L * 2",
    "`I` * 3L",
    "`T` = `T`",
    "`T` = 'a' OR `T` <> ''",
    "(`T` < 'b') AND `T` >= 'B' AND NOT `T` > 'é'",
    "CASE WHEN `F` THEN `T` WHEN `I` > 2 THEN 'more' ELSE '' END",
    "'a '",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_is_what_spark_makes_of_it(spark: SparkSession, text: str) -> None:
    numbers = [None, 0, 1, -1, 3, 4, -7, 2**31 - 1, -(2**31)]
    longs = [*numbers, 2**63 - 1, -(2**63), 2**62]
    rows = [(i, b, f, t) for i in numbers for b in longs for f in (None, True, False) for t in (None, "", "a", "é")]
    schema = pa.schema([("I", pa.int32()), ("B", pa.int64()), ("F", pa.bool_()), ("T", pa.string())])
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    found = columnar(text, {field.name: field.type for field in schema})
    assert found is not None
    frame = spark.createDataFrame(rows, "I int, B bigint, F boolean, T string").coalesce(1)
    expected = [row[0] for row in frame.selectExpr(text).collect()]
    column = found.column(batch)
    assert found.type == column.type
    assert expected == column.to_pylist()
    assert (
        spark.createDataFrame([], frame.schema).selectExpr(text).schema[0].dataType.simpleString()
        == ({pa.int32(): "int", pa.int64(): "bigint", pa.bool_(): "boolean", pa.string(): "string"}[found.type])
    )


@pytest.mark.parametrize(
    "text",
    [
        "`NONE`",
        "`I` +",
        "`I` `B`",
        "I",
        "upper(`T`)",
        "`T` = 1",
        "`T` = `F`",
        "`T` + 'a'",
        "'it''s'",
        "'\\'",
        "'\\n'",
        "`F` + 1",
        "`I` AND `F`",
        "`B` div `I`",
        "`B` div 0",
        "`B` % 0",
        "`B` % `I`",
        "-`I`",
        "1.5",
        "1D",
        "9223372036854775808",
        "(-2147483648)",
        "(-9223372036854775808)",
        "(-`I`)",
        "(-1 + `I`)",
        "`B` div (-1)",
        "`B` % (-1)",
        "CAST(`B` AS INT)",
        "CAST(`T` AS BIGINT)",
        "CASE WHEN `F` THEN `I` END",
        "CASE `I` WHEN 1 THEN 2 ELSE 3 END",
        "CASE WHEN `F` THEN `T` ELSE `I` END",
        "`I` = `I` = `F`",
        "(`I`",
        "NULL",
        "true",
    ],
)
def test_every_other_text_is_left_to_spark(text: str) -> None:
    types = {"I": pa.int32(), "B": pa.int64(), "F": pa.bool_(), "T": pa.string()}
    assert columnar(text, types) is None
