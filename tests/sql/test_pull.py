"""Pull queries: what is read from the store, and that rows are those whose conditions hold, against a dict."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.console.pull import Pull, plan_pull
from pipelines.query import Row, decode_key
from pipelines.sql import SqlError, parse_statement
from pipelines.sql.catalogue import Relation, Relations
from pipelines.sql.define import define
from pipelines.sql.error import Refusal, locate
from pipelines.sql.planner import plan_create
from pipelines.sql.tree import CreateAs, CreateSource, Query
from statestore.layouts.window import pack
from statestore.store import Isolation

STREAM = (
    "CREATE STREAM s (a INT, b BIGINT, k VARCHAR, d DOUBLE, m DECIMAL(4,2), y BYTES, f BOOLEAN, at TIMESTAMP)"
    " WITH (kafka_topic='in', value_format='json')"
)


COUNTS = "COUNT(*) AS n, AVG(d) AS mean, COUNT(*) * 2 AS twice"


def table(
    key: str, more: str = "", properties: str = "", window: str = "", select: str = COUNTS
) -> tuple[Relation, Any]:
    stream = parse_statement(STREAM).statement
    assert isinstance(stream, CreateSource)
    text = f"CREATE TABLE t {properties} AS SELECT {key}, {select} FROM s {window} GROUP BY {key} {more} EMIT CHANGES"
    created = parse_statement(text).statement
    assert isinstance(created, CreateAs)
    planned = plan_create(created, Relations([define(stream)]), topic="T", tasks=2)
    return planned.relation, planned.query


class DictStore:
    """Entries by key bytes, and what was asked of them."""

    def __init__(self, query: Any, entries: dict[bytes, int]) -> None:
        self.query, self.entries = query, entries
        self.asked: list[str] = []

    def _row(self, key: bytes) -> Row:
        return Row(decode_key(self.query, key), {"N": self.entries[key], "MEAN": None}, 0)

    def get(self, key: bytes, isolation: Isolation) -> Iterator[Row]:
        self.asked.append("get")
        if key in self.entries:
            yield self._row(key)

    def scan(self, lower: bytes | None, upper: bytes | None, isolation: Isolation) -> Iterator[Row]:
        self.asked.append("all" if lower is None and upper is None else "range")
        for key in sorted(self.entries):
            if (lower is None or lower <= key) and (upper is None or key <= upper):
                yield self._row(key)


def plan(text: str, made: tuple[Relation, Any]) -> Pull:
    parsed = parse_statement(text)
    assert isinstance(parsed.statement, Query)
    try:
        return plan_pull(parsed.statement.select, *made)
    except Refusal as refusal:
        error = locate(text, refusal)
    raise error


def pack_double(number: float) -> bytes:
    return struct.pack(">d", number)


INTS = table("a")
STRINGS = table("k")
numbers = st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3)
CHECKS = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<>": lambda a, b: a != b,
}


@given(st.sets(numbers, max_size=12), st.lists(st.tuples(st.sampled_from(sorted(CHECKS)), numbers), max_size=3))
@settings(deadline=None)
def test_conditions_on_a_number_give_exactly_the_rows_that_pass(keys: set[int], tests: list[tuple[str, int]]) -> None:
    where = " AND ".join(f"a {sign} {value}" for sign, value in tests)
    pull = plan(f"SELECT a, n FROM t {'WHERE ' + where if where else ''}", INTS)
    store = DictStore(pull.query, {key.to_bytes(4, "big", signed=True): key for key in keys})
    expected = {key for key in keys if all(CHECKS[sign](key, value) for sign, value in tests)}
    assert sorted(expected) == sorted(row[0] for row in pull.rows(store, Isolation.READ_COMMITTED))


@given(
    st.sets(st.text("aé\U0001f600b", max_size=3), max_size=8), st.text("aéb", max_size=2), st.text("aéb", max_size=2)
)
@settings(deadline=None)
def test_a_range_of_strings_is_in_the_order_of_their_bytes(keys: set[str], low: str, high: str) -> None:
    pull = plan(f"SELECT k FROM t WHERE k BETWEEN '{low}' AND '{high}' AND k <> 'a'", STRINGS)
    store = DictStore(pull.query, {key.encode(): 1 for key in keys})
    expected = sorted(key for key in keys if low <= key <= high and key != "a")
    assert expected == [row[0] for row in pull.rows(store, Isolation.READ_COMMITTED)]
    assert ["range"] == store.asked


class OneRow(DictStore):
    """A store of the key `k` alone, with these values."""

    def __init__(self, query: Any, **values: Any) -> None:
        super().__init__(query, {b"k": 0})
        self.values = values

    def _row(self, key: bytes) -> Row:
        return Row(decode_key(self.query, key), self.values, 0)


@pytest.mark.parametrize(
    ("where", "passes"),
    [
        ("x = 0.1", True),
        ("0.1 = x", True),
        ("x <> 0.1", False),
        ("x <= 0.1", True),
        ("x > 0.1", False),
        ("x >= 0.1 AND x < 0.2", True),
        ("x IN (7, 0.1)", True),
        ("x BETWEEN 0.1 AND 0.1", True),
        ("x = 1e-1", True),
        ("x = 0.10000000000000000000000001", True),
        ("mean = 0.1", True),
        ("total = 1.1", True),
        ("total = 11e-1", True),
        ("total = 1.10000000000000000000000001", False),
        ("total BETWEEN 1.1 AND 1.1", True),
        ("n = 9007199254740993", True),
        ("n > 9007199254740992.5", True),
    ],
)
def test_a_double_is_compared_as_a_double_and_everything_else_exactly(where: str, passes: bool) -> None:
    made = table("k", select="MAX(d) AS x, AVG(a) AS mean, SUM(m) AS total, COUNT(*) AS n")
    store = OneRow(made[1], X=0.1, MEAN=0.1, TOTAL=Decimal("1.10"), N=2**53 + 1)
    rows = list(plan(f"SELECT k FROM t WHERE {where}", made).rows(store, Isolation.READ_COMMITTED))
    assert ([("k",)] if passes else []) == rows


STORED_WINDOWS = {pack(key, start): n for n, (key, start) in enumerate(product((b"x", b"xy"), (0, 5, 10)))}


class TestWindows:
    @pytest.fixture
    def made(self) -> tuple[Relation, Any]:
        return table("k", window="WINDOW TUMBLING (SIZE 5 MILLISECONDS)")

    def test_bounds_are_columns_behind_the_key(self, made: tuple[Relation, Any]) -> None:
        pull = plan("SELECT * FROM t WHERE k >= 'x' AND WINDOWSTART = 5", made)
        assert ("K", "WINDOWSTART", "WINDOWEND", "N", "MEAN") == pull.names
        rows = list(pull.rows(DictStore(pull.query, STORED_WINDOWS), Isolation.READ_COMMITTED))
        assert [("x", 5, 10, 1, None), ("xy", 5, 10, 4, None)] == rows

    def test_conditions_on_them(self, made: tuple[Relation, Any]) -> None:
        pull = plan("SELECT k, windowend AS until FROM t WHERE windowstart > 0 AND windowend BETWEEN 3 AND 10", made)
        rows = list(pull.rows(DictStore(pull.query, STORED_WINDOWS), Isolation.READ_COMMITTED))
        assert [("x", 10), ("xy", 10)] == rows

    @pytest.mark.parametrize(
        "time", ["1970-01-01T00:00:00.005", "1970-01-01T01:00:00.005+01:00", "1970-01-01 00:00:00.005Z"]
    )
    def test_a_bound_may_be_written_as_a_time(self, made: tuple[Relation, Any], time: str) -> None:
        pull = plan(f"SELECT k FROM t WHERE windowstart = '{time}'", made)
        assert [("x",), ("xy",)] == list(pull.rows(DictStore(pull.query, STORED_WINDOWS), Isolation.READ_COMMITTED))

    def test_what_is_no_time_is_refused(self, made: tuple[Relation, Any]) -> None:
        with pytest.raises(SqlError, match="'noon' is no time"):
            plan("SELECT k FROM t WHERE windowstart > 'noon'", made)

    def test_without_windows_there_are_none(self) -> None:
        with pytest.raises(SqlError, match="unknown column WINDOWSTART"):
            plan("SELECT k FROM t WHERE windowstart > 0", STRINGS)


class TestWhatIsRead:
    @pytest.mark.parametrize(
        ("where", "asked"),
        [
            ("k = 'x'", ["get"]),
            ("'x' = k AND n > 1", ["get"]),
            ("k IN ('x', 'y', 'x')", ["get", "get"]),
            ("k >= 'x'", ["range"]),
            ("n = 1", ["all"]),
            ("k IS NOT NULL", ["all"]),
        ],
    )
    def test_conditions_narrow_it(self, where: str, asked: list[str]) -> None:
        pull = plan(f"SELECT * FROM t WHERE {where}", STRINGS)
        store = DictStore(pull.query, {b"x": 2, b"y": 1})
        list(pull.rows(store, Isolation.READ_COMMITTED))
        assert asked == store.asked

    def test_all_of_several_keys_are_looked_up_and_one_of_them_is_searched(self) -> None:
        made = table("a, k", properties="WITH (key_format='json')")
        store = DictStore(made[1], {b'{"A":1,"K":"true"}': 5, b'{"A":2,"K":"y"}': 6})
        assert [(1, "true", 5)] == list(
            plan("SELECT a, k, n FROM t WHERE k = 'true' AND a = 1", made).rows(store, Isolation.READ_COMMITTED)
        )
        assert [(6,)] == list(plan("SELECT n FROM t WHERE a = 2", made).rows(store, Isolation.READ_COMMITTED))
        assert ["get", "all"] == store.asked

    @pytest.mark.parametrize(
        ("form", "key", "literal", "stored", "asked"),
        [
            ("delimited", "a", "-5", b'"-5"', ["get"]),
            ("delimited", "k", "'_x'", b'"_x"', ["get"]),
            ("delimited", "k", "'ünal'", '"ünal"'.encode(), ["get"]),
            ("delimited", "k", "'#a'", b'"#a"', ["get"]),
            ("delimited", "k", "' a'", b'" a"', ["get"]),
            ("delimited", "k", "'a\nb'", b'"a\nb"', ["get"]),
            ("delimited", "k", "''", b'""', ["get"]),
            ("delimited", "f", "true", b"true", ["get"]),
            ("delimited", "m", "-1.1", b'"-1.10"', ["get"]),
            ("json", "k", "'a\x1f\x0bb'", b'"a\\u001F\\u000Bb"', ["get"]),
            ("json", "f", "false", b"false", ["get"]),
            ("json", "at", "1000.0", b"1000", ["get"]),
            ("json", "b", "1e3", b"1000", ["get"]),
            ("json", "m", "1.1", b"1.10", ["get"]),
            ("json", "m", "11e-1", b"1.10", ["get"]),
            ("json", "d", "1", b"1.0", ["all"]),
            ("json", "d", "1.5", b"1.5", ["all"]),
            ("json", "d", "10000000000", b"1.0E10", ["all"]),
            ("delimited", "d", "10000000000", b"1.0E10", ["all"]),
            ("kafka", "d", "0", pack_double(-0.0), ["get", "get"]),
            ("kafka", "d", "0.1", pack_double(0.1), ["get"]),
            ("kafka", "a", "-5", b"\xff\xff\xff\xfb", ["get"]),
        ],
    )
    def test_a_key_is_found_under_the_bytes_that_the_engine_writes(
        self, form: str, key: str, literal: str, stored: bytes, asked: list[str]
    ) -> None:
        made = table(key, properties=f"WITH (key_format='{form}')")
        for where in (f"{key} = {literal}", f"{key} IN ({literal})"):
            store = DictStore(made[1], {stored: 7})
            pull = plan(f"SELECT n FROM t WHERE {where}", made)
            assert [(7,)] == list(pull.rows(store, Isolation.READ_COMMITTED))
            assert asked == store.asked

    @pytest.mark.parametrize("where", ["a = 1.5", "a = 2147483648", "m = 1.001", "m = 100", "b = 1e300"])
    def test_what_no_key_can_equal_is_not_looked_for(self, where: str) -> None:
        made = table(where[0], properties="WITH (key_format='json')")
        store = DictStore(made[1], {b"1": 1})
        assert [] == list(plan(f"SELECT n FROM t WHERE {where}", made).rows(store, Isolation.READ_COMMITTED))
        assert [] == store.asked

    def test_more_keys_than_a_scan_takes_are_scanned(self) -> None:
        made = table("a, b", properties="WITH (key_format='json')")
        store = DictStore(made[1], {b'{"A":5,"B":7}': 1})
        many = ", ".join(map(str, range(50)))
        pull = plan(f"SELECT n FROM t WHERE a IN ({many}) AND b IN ({many})", made)
        assert [(1,)] == list(pull.rows(store, Isolation.READ_COMMITTED))
        assert ["all"] == store.asked

    def test_limit_and_aliases(self) -> None:
        pull = plan("SELECT x.k AS shop, n FROM t x LIMIT 1", STRINGS)
        assert ("SHOP", "N") == pull.names
        store = DictStore(pull.query, {b"x": 2, b"y": 1})
        assert [("x", 2)] == list(pull.rows(store, Isolation.READ_COMMITTED))

    def test_star_is_every_column_that_needs_no_computing(self) -> None:
        assert ("K", "N", "MEAN") == plan("SELECT * FROM t", STRINGS).names


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("SELECT x FROM t", "unknown column X"),
        ("SELECT nn FROM t", "did you mean N?"),
        ("SELECT n + 1 FROM t", "only columns can be pulled yet"),
        ("SELECT twice FROM t", "is computed from aggregates"),
        ("SELECT n FROM t WHERE twice = 2", "is computed from aggregates"),
        ("SELECT n FROM t WHERE k = 'x' OR k = 'y'", "the condition cannot be pulled by yet"),
        ("SELECT n FROM t WHERE k = NULL", "use IS NOT NULL"),
        ("SELECT n FROM t WHERE k = 1", "cannot compare string with int"),
        ("SELECT n FROM t WHERE n = '1'", "cannot compare bigint with str"),
        ("SELECT n FROM t WHERE n > 1e999", "too large for a double"),
        (f"SELECT n FROM t WHERE mean > 1{'0' * 400}", "too large for a double"),
        ("SELECT n FROM t WHERE mean = true", "cannot compare double with bool"),
        ("SELECT n FROM t GROUP BY k", "a pull query has no GROUP BY"),
        ("SELECT y.n FROM t", "Y is not a source"),
    ],
)
def test_what_cannot_be_pulled_is_refused(text: str, fragment: str) -> None:
    with pytest.raises(SqlError) as raised:
        plan(text, STRINGS)
    assert fragment in str(raised.value)


@pytest.mark.parametrize("where", ["xs > 1", "xs <> 1", "xs IN (1)", "bb < 1", "bb BETWEEN 1 AND 2", "1 = bb"])
def test_what_has_no_order_with_a_literal_is_refused_and_may_be_looked_for(where: str) -> None:
    made = table("k", select="COLLECT_LIST(a) AS xs, LATEST_BY_OFFSET(y) AS bb")
    with pytest.raises(SqlError, match=r"cannot compare (ARRAY<INTEGER>|BYTES) by a pull query"):
        plan(f"SELECT * FROM t WHERE {where}", made)
    plan("SELECT * FROM t WHERE xs IS NOT NULL AND bb IS NOT NULL", made)


def test_a_table_with_having_is_refused() -> None:
    with pytest.raises(SqlError, match="HAVING"):
        plan("SELECT n FROM t", table("k", "HAVING COUNT(*) > 1"))
