"""A table's changes: groups equal the model after every row, however rows are cut into batches and shared by tasks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.keybytes import key_bytes_of
from pipelines.engine.merge import ROW_STATE
from pipelines.engine.record_order import NO_TIME, RecordOrder
from pipelines.engine.statecodec import StateCodec
from pipelines.engine.windowing import store_keys
from pipelines.plan import EVERY_RECORD, Aggregate, GroupKey, Query, Source
from pipelines.sql import SqlError, parse_pipeline
from statestore.layouts.local import PREFIX, are_local
from statestore.partitioner import tasks_of

AGGREGATES = {
    "rows": Aggregate("A0", "count_all", None, "bigint"),
    "known": Aggregate("A1", "count", "`X`", "bigint"),
    "total": Aggregate("A2", "sum", "`X`", "bigint"),
    "all": Aggregate("A3", "collect_list", "`X`", "bigint"),
}
QUERY = Query(
    name="q",
    sql="",
    source=Source("S", "s", "json", ()),
    where=None,
    group_by=(GroupKey("G", "`G`", "string"),),
    aggregates=tuple(AGGREGATES.values()),
    having=None,
    outputs=(),
    key_format="kafka",
    output_topic="q",
    output_partitions=1,
    tasks=1,
    emission=EVERY_RECORD,
    changelog=True,
)

BY_BYTES = """
CREATE TABLE s (k INT PRIMARY KEY, g BYTES) WITH (kafka_topic='s', value_format='json');
CREATE TABLE q AS SELECT g, COUNT(*) AS n FROM s GROUP BY g EMIT CHANGES;
"""


@dataclass(frozen=True)
class Row:
    """Row `id` is in `group` with `x`; in none if it is deleted or not let through."""

    id: int
    group: str | None
    x: int | None


class Task:
    """The operator with a dict for a store; a batch's rows are those of the whole batch, as each task gets them."""

    def __init__(self, number: int, tasks: int, query: Query) -> None:
        self.number, self.tasks, self.order = number, tasks, RecordOrder(query)
        self.store: dict[bytes, bytes] = {}

    def batch(self, rows: list[Row], first: int) -> list[tuple[int, str, dict[str, Any]]]:
        found = self.order.rows(self._table(rows, first), self._states, NO_TIME).rows
        parts = [found.column(f"__m_{a.name}").combine_chunks() for a in QUERY.aggregates]
        states = StateCodec(self.order.types).encode(found.column("__time").combine_chunks(), parts).to_pylist()
        results = []
        for row, state in zip(found.to_pylist(), states, strict=True):
            if row["__last"]:
                self._put(row["__key"], state if row["__row_state"] is None else row["__row_state"])
            if row["__row_state"] is None:
                values = {name: row[f"__m_{a.name}"] for name, a in AGGREGATES.items()}
                assert row["G"].encode() == row["__key"]
                results.append((row["__time"], row["G"], values))
        return results

    def _put(self, key: bytes, state: bytes) -> None:
        self.store[key] = state
        if not state:
            del self.store[key]

    def _states(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        return pa.array([self.store.get(key) for key in keys.to_pylist()], pa.binary())

    def _table(self, rows: list[Row], first: int) -> pa.Table:
        keys = pa.array([row.group and row.group.encode() for row in rows], pa.binary())
        owners = tasks_of(keys.fill_null(b""), self.tasks)
        mine = [row.group is not None and owner == self.number for row, owner in zip(rows, owners, strict=True)]
        texts = ["{}" if row.x is None else f'{{"v":{row.x}}}' for row in rows]
        xs = pa.array([row.x for row in rows], pa.int64())
        columns = {"G": pa.array([row.group for row in rows], pa.string()), "__key": keys, "__a_A2": xs}
        columns |= {"__a_A1": xs.is_valid(), "__a_A3": pa.array(texts, pa.string())}
        hidden = pa.array([not one for one in mine], pa.bool_())
        places = pa.array(range(first, first + len(rows)), pa.int64())
        return pa.table(
            {name: pa.compute.if_else(hidden, pa.scalar(None, c.type), c) for name, c in columns.items()}
            | {
                "__dead": pa.nulls(len(rows), pa.string()),
                "__time": places,
                "__partition": pa.array([0] * len(rows), pa.int32()),
                "__offset": places,
                "__row": pa.array([str(row.id).encode() for row in rows], pa.binary()),
            }
        )


def modelled(rows: list[Row]) -> list[tuple[int, str, dict[str, Any]]]:
    """The results of every row, one after the other."""
    old: dict[int, Row] = {}
    groups: dict[str, list[int | None]] = defaultdict(list)
    results = []
    for time, row in enumerate(rows):
        before = old.get(row.id)
        changed = []
        if before is not None and before.group is not None:
            values = groups[before.group]
            del values[len(values) - 1 - values[::-1].index(before.x)]
            changed += [before.group] if before.group != row.group else []
            results += [(time, group, aggregated(groups[group])) for group in changed]
        if row.group is not None:
            groups[row.group].append(row.x)
            results.append((time, row.group, aggregated(groups[row.group])))
        old[row.id] = row
    return results


def aggregated(values: list[int | None]) -> dict[str, Any]:
    known = [x for x in values if x is not None]
    listed = [str(x) if x is not None else "null" for x in values]
    texts = "[" + ",".join(f'"{text}"' for text in listed) + "]"
    return {"rows": len(values), "known": len(known), "total": sum(known), "all": texts}


def plain(results: list[tuple[int, str, dict[str, Any]]]) -> list[tuple[int, str, dict[str, Any]]]:
    """A sum of no value that was ever known is null in the state, and 0 where it is shown."""
    return [(time, group, {**values, "total": values["total"] or 0}) for time, group, values in results]


ROWS = st.builds(Row, st.integers(0, 4), st.none() | st.sampled_from("abc"), st.none() | st.integers(-5, 5))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(ROWS, max_size=8), min_size=1, max_size=4), st.integers(1, 3))
def test_every_result_is_the_models_however_rows_are_cut_and_shared(batches: list[list[Row]], tasks: int) -> None:
    workers = [Task(number, tasks, QUERY) for number in range(tasks)]
    found, first = [], 0
    for batch in batches:
        found += [result for worker in workers for result in worker.batch(batch, first)]
        first += len(batch)
    expected = modelled([row for batch in batches for row in batch])
    if tasks == 1:
        assert expected == plain(found)
    for group in "abc":
        assert [r for r in expected if r[1] == group] == [r for r in plain(found) if r[1] == group]


def test_only_rows_that_count_have_an_entry_and_a_batch_shows_a_group_once() -> None:
    task = Task(0, 1, replace(QUERY, emission="commit"))
    rows = [Row(1, "a", 1), Row(2, "a", 2), Row(1, "b", 3), Row(2, None, None)]
    assert [("a", 0), ("b", 1)] == sorted((group, values["rows"]) for _, group, values in task.batch(rows, 0))
    assert [PREFIX + b"1", b"a", b"b"] == sorted(task.store, key=lambda key: key.lstrip(b"\xff"))


def test_no_group_has_the_key_of_an_entry_of_the_tasks_own() -> None:
    of_bytes = replace(QUERY, group_by=(GroupKey("G", "`G`", "bytes"),), key_format="delimited", base64_keys=True)
    assert [False] == are_local(key_bytes_of(of_bytes)([pa.array([PREFIX + b"1"])])).to_pylist()
    number = key_bytes_of(replace(QUERY, group_by=(GroupKey("G", "`G`", "bigint"),)))([pa.array([-1])])
    assert [False] == are_local(store_keys(number, np.array([0]))).to_pylist()
    with pytest.raises(SqlError, match="does not support type 'BYTES'"):
        parse_pipeline(BY_BYTES, pipeline="p")


@pytest.mark.parametrize("kind", ["decimal(20,2)", "decimal(38,2)"])
def test_only_a_whole_change_can_make_a_sum_too_large(kind: str) -> None:
    order = RecordOrder(replace(QUERY, aggregates=(Aggregate("A0", "sum", "`M`", kind),)))
    most = int(kind[8:10]) - 2

    def after(*amounts: tuple[int, int]) -> list[int]:
        """The sum after each change, of a row and tenths of the most."""
        places = pa.array(range(len(amounts)), pa.int64())
        values = [Decimal(f"{amount}e{most - 1}") for _, amount in amounts]
        rows = {
            "G": pa.array(["g"] * len(amounts)),
            "__key": pa.array([b"g"] * len(amounts)),
            "__a_A0": pa.array(values, arrow_type(kind)),
            "__dead": pa.nulls(len(amounts), pa.string()),
            "__time": places,
            "__partition": pa.array([0] * len(amounts), pa.int32()),
            "__offset": places,
            "__row": pa.array([str(row).encode() for row, _ in amounts], pa.binary()),
        }
        found = order.rows(pa.table(rows), lambda keys: pa.nulls(len(keys), pa.binary()), NO_TIME).rows
        shown = found.filter(found.column(ROW_STATE).is_null())
        return [int(sum_.scaleb(1 - most)) for sum_ in shown.column("__m_A0").to_pylist()]

    # Without the -5 of row 1 the sum would be 14.
    assert [-5, 4, 9, 8] == after((1, -5), (2, 9), (3, 5), (1, -6))
    with pytest.raises(OverflowError, match="sum does not fit"):
        after((1, -5), (2, 9), (3, 5), (1, -4))
