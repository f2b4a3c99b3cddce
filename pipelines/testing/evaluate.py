"""A query over the records of its source topic, by the engine's own parts, in this process and without Kafka.

Decoding is the engine's function over Arrow. Filters, keys and projections are the plan's Spark SQL over a local frame
that Spark's optimiser computes in the driver. Aggregates are the engine's record-order function, with the states of one
task in a dictionary that starts empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipelines.engine.decode import decoder
from pipelines.engine.job import uncounted
from pipelines.engine.merge import MergeSql
from pipelines.engine.ordered import with_places
from pipelines.engine.projection import ProjectionJob
from pipelines.engine.record_order import NO_TIME, RecordOrder
from pipelines.engine.records import GivenRecords
from pipelines.engine.windowed_keys import join_key, split_key
from pipelines.plan import Query
from pipelines.testing.records import Window
from pipelines.testing.topics import Stored, Topic

# A window's start and sequence behind the key in a store.
_SUFFIX_BYTES, _START_BYTES = 12, 8


def evaluate(query: Query, topic: Topic, spark: SparkSession) -> list[Stored]:
    """The results of the query over all records of its source, in their order."""
    if not topic.records:
        return []
    frame = _local(_decoded(query, topic), spark)
    return list(_projected(query, frame) if query.stateless else _aggregated(query, frame, spark))


def _local(table: pa.Table, spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(table)


def _decoded(query: Query, topic: Topic) -> pa.Table:
    """The topic's records as rows, all of partition 0 and in one task."""
    stored, count = topic.records, len(topic.records)
    records = GivenRecords(
        partition=0,
        keys=pa.array([_raw_key(query, record) for record in stored], pa.binary()),
        values=pa.array([record.value for record in stored], pa.binary()),
        offsets=pa.array(range(count), pa.int64()),
        times=pa.array([record.time_ms for record in stored], pa.int64()),
    )
    decode = with_places(decoder(query.source, None, uncounted), raw_keys=query.changelog)
    return pa.Table.from_batches(decode([records]))


def _projected(query: Query, frame: DataFrame) -> Iterator[Stored]:
    for row in ProjectionJob(query).project(frame).collect():
        if row["__dead"] is None and row["__time"] is not None and row["__time"] >= 0:
            yield _projected_result(query, _plain(row["__key"]), _plain(row["__value"]), row["__time"])


def _projected_result(query: Query, key: bytes | None, value: bytes | None, time_ms: int) -> Stored:
    if key is None or not query.keeps_window:
        return Stored(key, value, time_ms)
    bare, start, end = split_key(key, query.source)
    return Stored(bare, value, time_ms, Window(start, end))


def _raw_key(query: Query, record: Stored) -> bytes | None:
    """The key as Kafka has it, with its window if the source is windowed."""
    if record.key is None or record.window is None or not query.source.window_type:
        return record.key
    return join_key(record.key, record.window.start, record.window.end, query.source.window_type)


def _aggregated(query: Query, frame: DataFrame, spark: SparkSession) -> Iterator[Stored]:
    sql, order = MergeSql(query), RecordOrder(query)
    rows = sql.with_keys(frame).where("__dead IS NULL").selectExpr(*order.inputs())
    taken = order.rows(_collected(rows), _no_states, NO_TIME).rows
    if not taken.num_rows:
        return
    for name, kind in (("__token", pa.int64()), ("__stream_time", pa.int64()), ("__dropped", pa.int64())):
        taken = taken.append_column(name, pa.nulls(taken.num_rows, kind))
    for row in sql.results(_local(taken, spark)).collect():
        if row["__emit"]:
            yield _result(query, bytes(row["__key"]), _plain(row["__value"]), row["__time"])


def _result(query: Query, key: bytes, value: bytes | None, time_ms: int) -> Stored:
    if query.window is None:
        return Stored(key, value, time_ms)
    group, suffix = key[:-_SUFFIX_BYTES], key[-_SUFFIX_BYTES:]
    start = int.from_bytes(suffix[:_START_BYTES], "big", signed=True)
    return Stored(group, value, time_ms, Window(start, start + query.window.size_ms))


def _collected(frame: DataFrame) -> pa.Table:
    """The frame's rows as Arrow, without a Spark job."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    rows = [{name: _plain(value) for name, value in row.asDict().items()} for row in frame.collect()]
    return pa.Table.from_pylist(rows, schema=schema)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _no_states(keys: pa.Array) -> pa.Array:
    """Every key is new."""
    return pa.nulls(len(keys), pa.binary())
