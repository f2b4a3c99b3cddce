"""Aggregation in record order equals the model, however the input is cut into batches."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from statistics import variance
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine.record_order import NO_TIME, Ordered, RecordOrder
from pipelines.engine.statecodec import StateCodec
from pipelines.plan import EVERY_RECORD, ON_COMMIT, Aggregate, GroupKey, Query, Source, Window
from statestore.layouts.window import unpack
from tests.engine.ordered_model import Input, Model

AGGREGATES = {
    "count_all": Aggregate("A0", "count_all", None, "bigint"),
    "count": Aggregate("A1", "count", "`X`", "bigint"),
    "sum": Aggregate("A2", "sum", "`X`", "bigint"),
    "sum_d": Aggregate("A3", "sum", "`D`", "double"),
    "sum_m": Aggregate("A4", "sum", "`M`", "decimal(20,2)"),
    "min": Aggregate("A5", "min", "`T`", "string"),
    "max": Aggregate("A6", "max", "`T`", "string"),
    "max_m": Aggregate("A7", "max", "`M`", "decimal(20,2)"),
    "min_x": Aggregate("A8", "min", "`X`", "int"),
    "latest": Aggregate("A9", "latest_by_offset", "`T`", "string"),
    "latest_or_null": Aggregate("A10", "latest_by_offset", "`T`", "string", nulls=True),
    "earliest": Aggregate("A11", "earliest_by_offset", "`T`", "string"),
    "topk": Aggregate("A12", "topk", "`X`", "bigint", most=2),
}
SOURCE = Source("S", "s", "json", ())
QUERY = Query(
    name="q",
    sql="",
    source=SOURCE,
    where=None,
    group_by=(GroupKey("K", "`K`", "string"),),
    aggregates=tuple(AGGREGATES.values()),
    having=None,
    outputs=(),
    key_format="kafka",
    output_topic="q",
    output_partitions=1,
    tasks=1,
)
MODELLED = replace(QUERY, aggregates=tuple(replace(a, function=name) for name, a in AGGREGATES.items()))
WINDOWS = [None, Window("tumbling", 10, 10, 0, 60), Window("hopping", 10, 4, 7, 60), Window("tumbling", 5, 5, 20, 60)]
TYPES = {"x": pa.int64(), "d": pa.float64(), "t": pa.string(), "m": pa.decimal128(20, 2)}


class Task:
    """The operator with a dict for a store."""

    def __init__(self, query: Query, **bounds: int) -> None:
        self.order = RecordOrder(query, **bounds)
        self.stream_time = NO_TIME
        self.dropped = 0
        self.store: dict[bytes, bytes] = {}
        self.asked = 0

    def batch(self, records: list[Input]) -> pa.Table:
        found = self.order.rows(table(records), self._states, self.stream_time)
        assert isinstance(found, Ordered)
        self.stream_time, self.dropped = found.stream_time_ms, self.dropped + found.dropped
        self._keep(found.rows.filter(found.rows.column("__last")))
        return found.rows

    def _states(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        assert len(keys) == len(keys.unique())
        self.asked += 1
        return pa.array([self.store.get(key) for key in keys.to_pylist()], pa.binary())

    def _keep(self, rows: pa.Table) -> None:
        parts = [rows.column(f"__m_{a.name}").combine_chunks() for a in QUERY.aggregates]
        states = StateCodec(self.order.types).encode(rows.column("__time").combine_chunks(), parts)
        self.store.update(zip(rows.column("__key").to_pylist(), states.to_pylist(), strict=True))


def table(records: list[Input]) -> pa.Table:
    columns: dict[str, Any] = {
        "__key": pa.array([r.key and r.key.encode() for r in records], pa.binary()),
        "__dead": pa.array([None if r.key is not None else f"bad {r.offset}" for r in records], pa.string()),
        "__time": pa.array([r.time for r in records], pa.int64()),
        "__partition": pa.array([r.partition for r in records], pa.int32()),
        "__offset": pa.array([r.offset for r in records], pa.int64()),
        "K": pa.array([r.key for r in records], pa.string()),
    }
    for name, aggregate in AGGREGATES.items():
        if aggregate.argument is not None:
            field = aggregate.argument.strip("`").lower()
            plain = [getattr(r, field) for r in records]
            if name == "topk":
                plain, field = ["{}" if value is None else f'{{"v":{value}}}' for value in plain], "t"
            values = pa.array(plain, TYPES[field])
            kind = pa.int32() if aggregate.type == "int" else values.type
            columns[f"__a_{aggregate.name}"] = values.is_valid() if name == "count" else values.cast(kind)
    return pa.table(columns)


def plain(rows: pa.Table, windowed: bool) -> list[tuple[Any, ...]]:
    """Rows that are not dead, as the model has them."""
    results = []
    for row in rows.to_pylist():
        if row["__dead"] is not None:
            continue
        key, start = row["K"], row.get("WINDOWSTART")
        assert row["__key"] == key.encode() if not windowed else unpack(row["__key"]) == (key.encode(), start, 0)
        now, before = ({a.name: row[f"{prefix}{a.name}"] for a in QUERY.aggregates} for prefix in ("__m_", "__s_"))
        old = row["__old_time"]
        results.append((key, start, row["__time"], now, old, {} if old is None else before, row["__last"]))
    return results


@st.composite
def inputs(draw: st.DrawFn) -> list[list[Input]]:
    """Batches: times drift forward and jump back; partitions have offsets of their own; some records are bad."""
    batches, offsets, base = [], [0, 100], 0
    for _ in range(draw(st.integers(1, 4))):
        batch = []
        for _ in range(draw(st.integers(0, 12))):
            partition = draw(st.integers(0, 1))
            base += draw(st.integers(0, 6))
            time = max(0, base - draw(st.sampled_from([0, 0, 0, 3, 11, 40])))
            x, d = draw(st.none() | st.integers(-99, 99)), draw(st.none() | st.floats(-1e9, 1e9))
            m = draw(st.none() | st.integers(-(10**17), 10**17).map(lambda n: Decimal(n) / 100))
            key, text = draw(st.sampled_from(["a", "b", "", None])), draw(st.none() | st.text(max_size=2))
            batch.append(Input(partition, offsets[partition], time, key, x, d, text, m))
            offsets[partition] += 1
        batches.append(draw(st.permutations(batch)))
    return batches


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("emission", [ON_COMMIT, EVERY_RECORD])
@settings(max_examples=18, deadline=None)
@given(batches=inputs())
def test_every_batch_gives_what_the_model_gives(window: Window | None, emission: str, batches: list) -> None:
    task = Task(replace(QUERY, window=window, emission=emission))
    model = Model(replace(MODELLED, window=window, emission=emission))
    for batch in batches:
        assert model.batch(batch) == plain(task.batch(batch), window is not None)
        assert (model.stream_time, model.dropped) == (task.stream_time, task.dropped)
    assert len(model.states) == len(task.store)


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=15, deadline=None)
@given(batches=inputs(), cuts=st.lists(st.integers(0, 50), max_size=5))
def test_where_a_batch_ends_changes_no_result(window: Window | None, batches: list, cuts: list[int]) -> None:
    query = replace(QUERY, window=window, emission=EVERY_RECORD)
    records = sorted(
        (replace(r, partition=0) for batch in batches for r in batch), key=lambda r: r.time + 17 * r.offset
    )
    records = [replace(record, offset=offset) for offset, record in enumerate(records)]
    whole, cut = Task(query), Task(query)
    expected = [row[:-1] for row in plain(whole.batch(records), window is not None)]
    places = [0, *sorted(min(at, len(records)) for at in cuts), len(records)]
    found = []
    for begin, end in pairwise(places):
        found += [row[:-1] for row in plain(cut.batch(records[begin:end]), window is not None)]
    assert expected == found
    assert (whole.store, whole.stream_time, whole.dropped) == (cut.store, cut.stream_time, cut.dropped)


@pytest.mark.parametrize("window", [*WINDOWS[1:], Window("hopping", 60, 1, 10, 120)])
@pytest.mark.parametrize("emission", [ON_COMMIT, EVERY_RECORD])
@pytest.mark.parametrize("pairs", [1, 7, 130])
@settings(max_examples=12, deadline=None)
@given(batches=inputs())
def test_slices_of_a_batch_give_what_one_piece_gives(window: Window, emission: str, pairs: int, batches: list) -> None:
    query = replace(QUERY, window=window, emission=emission)
    whole, sliced = Task(query), Task(query, pairs_max=pairs)
    for batch in batches:
        expected, found = whole.batch(batch), sliced.batch(batch)
        assert (expected.schema, plain(expected, True)) == (found.schema, plain(found, True))
        assert expected.column("__dead").to_pylist() == found.column("__dead").to_pylist()
        assert (whole.store, whole.stream_time, whole.dropped) == (sliced.store, sliced.stream_time, sliced.dropped)


def test_a_slice_holds_so_many_rows_and_a_batch_that_fits_is_one() -> None:
    """Twelve records in sixty windows each."""
    query = replace(QUERY, window=Window("hopping", 60, 1, 10, 120))
    records = [Input(0, n, 100 + n, "k", 1, None, None, None) for n in range(12)]
    for pairs, slices in ((720, 1), (719, 2), (120, 6), (59, 12)):
        task = Task(query, pairs_max=pairs)
        task.batch(records)
        # Each asks once for states.
        assert (slices, 71) == (task.asked, len(task.store))


def test_seven_late_records_of_kafka_streams_own_case() -> None:
    """Size 10, advance 5, grace 90: after one at 100, 0 to 6 are late for the window from 0, 5 and 6 not for that from 5."""
    task = Task(replace(QUERY, window=Window("hopping", 10, 5, 90, 100), emission=EVERY_RECORD))
    times = [100, 0, 1, 2, 3, 4, 5, 6, 105, 106]
    rows = task.batch([Input(0, n, time, "k", 1, None, None, None) for n, time in enumerate(times)])
    assert 7 == task.dropped
    found = [(row[1], row[3]["A0"]) for row in plain(rows, True)]
    assert [(95, 1), (100, 1), (5, 1), (5, 2), (100, 2), (105, 1), (100, 3), (105, 2)] == found


@pytest.mark.parametrize("emission", [ON_COMMIT, EVERY_RECORD])
@pytest.mark.parametrize("cuts", [[0, 4], [0, 1, 4], [0, 2, 4], [0, 3, 4], [0, 1, 2, 3, 4]])
def test_the_record_that_makes_a_sum_too_large_fails_wherever_a_batch_ends(emission: str, cuts: list[int]) -> None:
    much = Decimal("6" * 18)
    amounts = [Decimal(7), much, much, -much]
    records = [Input(0, n, n, "k", None, None, None, amount) for n, amount in enumerate(amounts)]
    task, failed = Task(replace(QUERY, emission=emission)), []
    for begin, end in pairwise(cuts):
        batch = records[begin:end]
        if records[2] in batch:
            with pytest.raises(OverflowError, match=r"sum does not fit into DECIMAL\(20, 2\)"):
                task.batch(batch)
            failed.append(records[2])
            batch.remove(records[2])
        sums = task.batch(batch).column("__m_A4").to_pylist()
    assert ([records[2]], Decimal(7)) == (failed, sums[-1])


@pytest.mark.parametrize("kind", ["bigint", "double"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_the_deviation_is_that_of_all_values_so_far(kind: str, data: st.DataObject) -> None:
    number = st.integers(-1000, 1000) if kind == "bigint" else st.floats(-1e6, 1e6)
    values = data.draw(st.lists(st.none() | number, min_size=1, max_size=30))
    order = RecordOrder(
        replace(QUERY, aggregates=(Aggregate("A0", "stddev_samp", "`X`", kind),), emission=EVERY_RECORD)
    )
    rows = table([Input(0, n, n, "k", None, None, None, None) for n in range(len(values))])
    rows = rows.drop_columns([name for name in rows.column_names if name.startswith("__a_")]).append_column(
        "__a_A0", pa.array(values, pa.int64() if kind == "bigint" else pa.float64())
    )
    found = order.rows(rows, lambda keys: pa.nulls(len(keys), pa.binary()), NO_TIME).rows.to_pylist()
    for number_of, row in enumerate(found, start=1):
        seen = [value for value in values[:number_of] if value is not None]
        assert len(seen) == row["__m_A0_count"]
        if len(seen) > 1:
            assert variance(seen) * (len(seen) - 1) == pytest.approx(row["__m_A0_squares"], rel=1e-6, abs=1e-3)


def test_what_lists_keep() -> None:
    kept = {
        ("collect_list", None): '["1","null","2","1"]',
        ("collect_list", 2): '["1","null"]',
        ("collect_set", None): '["1","null","2"]',
        ("collect_set", 2): '["1","null"]',
        ("count_distinct", None): '["1","2"]',
        ("earliest_n", 2): '["1","2"]',
        ("latest_n", 2): '["2","1"]',
        ("topk", 2): '["2","1"]',
        ("topkdistinct", 2): '["2","1"]',
    }
    aggregates = tuple(Aggregate(f"A{n}", name, "`X`", "bigint", most=most) for n, (name, most) in enumerate(kept))
    order = RecordOrder(replace(QUERY, aggregates=aggregates, emission=ON_COMMIT))
    rows = table([Input(0, n, n, "k", None, None, None, None) for n in range(4)])
    rows = rows.drop_columns([name for name in rows.column_names if name.startswith("__a_")])
    for aggregate in aggregates:
        texts = ['{"v":1}', "{}", '{"v":2}', '{"v":1}']
        rows = rows.append_column(f"__a_{aggregate.name}", pa.array(texts))
    (found,) = order.rows(rows, lambda keys: pa.nulls(len(keys), pa.binary()), NO_TIME).rows.to_pylist()
    assert list(kept.values()) == [found[f"__m_{aggregate.name}"] for aggregate in aggregates]


@pytest.mark.parametrize(
    ("function", "kind", "written", "around"),
    [
        ("histogram", "string", '{"v":"%s"}', 0),
        ("attr", "string", '{"v":"%s"}', 2),
        ("collect_map", "map<string,int>", '{"v":{"%s":1}}', 0),
        ("collect_list", "map<string,int>", '{"v":{"%s":1}}', 0),
    ],
)
def test_a_name_longer_than_spark_reads_is_an_error_of_its_record(
    function: str, kind: str, written: str, around: int
) -> None:
    query = replace(QUERY, aggregates=(Aggregate("A0", function, "`T`", kind),), emission=ON_COMMIT)

    def take(name: str) -> None:
        rows = table([Input(0, 0, 0, "k", None, None, None, None)])
        rows = rows.drop_columns([each for each in rows.column_names if each.startswith("__a_")])
        rows = rows.append_column("__a_A0", pa.array([written % name]))
        RecordOrder(query).rows(rows, lambda keys: pa.nulls(len(keys), pa.binary()), NO_TIME)

    longest = 50_000 - around
    take("x" * longest)
    for name in ("x" * (longest + 1), "\N{GRINNING FACE}" * (longest // 2 + 1)):
        with pytest.raises(ValueError, match="at most 50000"):
            take(name)
    # A value alone may be of any length.
    query = replace(QUERY, aggregates=(Aggregate("A0", "collect_list", "`T`", "string"),), emission=ON_COMMIT)
    written = '{"v":"%s"}'
    take("x" * 60_000)


@pytest.mark.parametrize(
    ("kind", "written"), [("double", '{"v":%s}'), ("struct<`sort_col`:double,`col0`:int>", '{"v":{"sort_col":%s}}')]
)
def test_of_doubles_nan_is_the_largest_then_what_is_infinite(kind: str, written: str) -> None:
    order = RecordOrder(replace(QUERY, aggregates=(Aggregate("A0", "topk", "`D`", kind, most=3),), emission=ON_COMMIT))
    states: list[bytes | None] = [None]
    # Spark writes what is no number of JSON as a string.
    for batch in (['"NaN"', "1.5"], ['"Infinity"', "-2.0", '"-Infinity"'], ["10.0"]):
        rows = table([Input(0, n, n, "k", None, None, None, None) for n in range(len(batch))])
        rows = rows.drop_columns([name for name in rows.column_names if name.startswith("__a_")])
        rows = rows.append_column("__a_A0", pa.array([written % value for value in batch]))
        (found,) = order.rows(rows, lambda _: pa.array(states[-1:], pa.binary()), NO_TIME).rows.to_pylist()
        kept = pa.array([found["__m_A0"]])
        states.extend(StateCodec(order.types).encode(pa.array([0]), [kept]).to_pylist())
    expected = [(written % value)[len('{"v":') : -1] for value in ('"NaN"', '"Infinity"', "10.0")]
    assert expected == json.loads(found["__m_A0"])


def test_dead_letters_come_along_and_a_batch_of_nothing_else_asks_nothing_twice() -> None:
    task = Task(replace(QUERY, window=WINDOWS[1], emission=EVERY_RECORD))
    rows = task.batch([Input(0, n, 50, None, None, None, None, None) for n in range(3)])
    assert ["bad 0", "bad 1", "bad 2"] == rows.column("__dead").to_pylist()
    assert (NO_TIME, 0, 1) == (task.stream_time, task.dropped, task.asked)
    assert {} == task.store
