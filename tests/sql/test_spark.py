"""What the rendered text means to Spark: the values and types that ksqlDB's documentation gives."""

from __future__ import annotations

import json
import math
import os
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.decode import decoder
from pipelines.engine.encode import value_bytes
from pipelines.engine.job import uncounted
from pipelines.engine.keybytes import key_bytes_of
from pipelines.engine.merge import DROPPED, MERGED, STREAM_TIME, MergeSql, key_bytes, state_parts
from pipelines.engine.ordered import with_places
from pipelines.engine.record_order import NO_TIME, RecordOrder
from pipelines.engine.records import GivenRecords
from pipelines.engine.statecodec import StateCodec
from pipelines.jsonvalue import dump
from pipelines.lookup import stored_keys
from pipelines.plan import Aggregate, GroupKey, Query, query_to_json
from pipelines.query import decode_key
from pipelines.sql import parse_pipeline
from pipelines.sql.aggregation import listed_sum
from pipelines.sql.expression import RowExpressions
from pipelines.sql.formats import KAFKA_KEYS
from pipelines.sql.functions import AGGREGATES, Value
from pipelines.sql.read_expression import read_expression
from pipelines.sql.script import read_statements
from pipelines.sql.types import array_of, parse_type
from pipelines.testing.session import SMALL
from statestore.store import Isolation
from tests.support.given_reader import GivenReader

STREAM = (
    "CREATE STREAM s (a INT, b BIGINT, d DOUBLE, f BOOLEAN, t VARCHAR, m DECIMAL(10, 2), na INT, nb BIGINT, nd DOUBLE,"
    " nf BOOLEAN, nt VARCHAR, nm DECIMAL(10, 2)) WITH (kafka_topic='in', value_format='json');"
)
SCHEMA = (
    "A int, B bigint, D double, F boolean, T string, M decimal(10,2), NA int, NB bigint, ND double, NF boolean,"
    " NT string, NM decimal(10,2), ROWTIME bigint"
)
# The names with N in front are NULL.
ROW = (7, 10_000_000_000, 2.5, True, "Hello", Decimal("-3.25"), None, None, None, None, None, None, 1_700_000_000_000)

NUMBERS = [
    ("a / 2", 3),
    ("-7 / 2", -3),
    ("b / 3", 3_333_333_333),
    ("a / 2.0", Decimal("3.50000000000")),
    ("a / d", 2.8),
    ("m / a", Decimal("-0.4642857142857")),
    ("a / 0", None),
    ("d / 0", math.inf),
    ("a % 0", None),
    ("-7 % 3", -1),
    ("a % 2.5", Decimal("2.0")),
    ("a + na", None),
    ("2147483647 + 1", -2_147_483_648),
    ("2147483647 + b", 12_147_483_647),
    ("a - -2147483648", -2_147_483_641),
    ("-9223372036854775808", -(2**63)),
    ("2 + 3 * 4 - -1", 15),
    ("(2 + 3) * 4", 20),
    ("10 - 3 - 2", 5),
    ("- - a", 7),
    ("+a", 7),
    ("-(-m)", Decimal("-3.25")),
    ("m + a", Decimal("3.75")),
    ("m * m", Decimal("10.5625")),
    ("m - 0.005", Decimal("-3.255")),
    ("1.50", Decimal("1.50")),
    (".5", Decimal("0.5")),
    ("2.", Decimal(2)),
    ("0.05", Decimal("0.05")),
    ("1e3", 1000.0),
    ("1E-2", 0.01),
    ("ABS(m)", Decimal("3.25")),
    ("ABS(-a)", 7),
    ("CEIL(d)", 3.0),
    ("CEIL(m)", Decimal(-3)),
    ("CEIL(a)", 7),
    ("CEIL(1e300)", 1e300),
    ("CEIL(nd)", None),
    ("FLOOR(d)", 2.0),
    ("FLOOR(-2.5e0)", -3.0),
    ("FLOOR(m)", Decimal(-4)),
    ("ROUND(d)", 3),
    ("ROUND(-1.5e0)", -1),
    ("ROUND(-1.6e0)", -2),
    ("ROUND(-2.5)", Decimal(-2)),
    ("ROUND(m, 1)", Decimal("-3.20")),
    ("ROUND(2.345e0, 2)", 2.35),
    ("ROUND(a, -1)", 10),
    ("ROUND(nd)", None),
    ("SIGN(m)", -1),
    ("SIGN(d)", 1),
    ("SIGN(a - 7)", 0),
    ("SQRT(9)", 3.0),
    ("SQRT(m)", math.nan),
    ("LN(1)", 0.0),
    ("EXP(0)", 1.0),
    ("GREATEST(CAST(a AS BIGINT), b, nb)", 10_000_000_000),
    ("GREATEST(a, d)", 7.0),
    ("LEAST(CAST(a AS DECIMAL(10, 2)), m)", Decimal("-3.25")),
    ("LEAST(na, CAST(nb AS INT))", None),
    ("rowtime / 1000", 1_700_000_000),
]
STRINGS = [
    ("t || ' ' || t", "Hello Hello"),
    ("t || nt || 'x'", "Hellox"),
    ("nt || nt", ""),
    ("CONCAT(t, NULL, '!')", "Hello!"),
    ("SUBSTRING(t, 2)", "ello"),
    ("SUBSTRING(t, 2, 3)", "ell"),
    ("SUBSTRING(t, 1, 1)", "H"),
    ("SUBSTRING(t, 0, 2)", "He"),
    ("SUBSTRING(t, -3)", "llo"),
    ("SUBSTRING(t, -3, 2)", "ll"),
    ("SUBSTRING(t, -9, 2)", "He"),
    ("SUBSTRING(t, 9)", ""),
    ("SUBSTRING(t, a - 5, 2)", "el"),
    ("SUBSTRING(t, b)", ""),
    ("SUBSTRING(nt, 1)", None),
    ("SUBSTRING(t, na)", None),
    ("LEN(t)", 5),
    ("LEN(nt)", None),
    ("UCASE(t)", "HELLO"),
    ("UPPER(t)", "HELLO"),
    ("LCASE(t)", "hello"),
    ("LOWER(nt)", None),
    ("TRIM('  x ')", "x"),
    ("REPLACE(t, 'l', 'LL')", "HeLLLLo"),
    ("REPLACE(t, nt, 'x')", None),
    ("LPAD('Foo', 7, 'Bar')", "BarBFoo"),
    ("LPAD('Foo', 2, 'Bar')", "Fo"),
    ("RPAD('Foo', 7, 'Bar')", "FooBarB"),
    ("LPAD(t, 9, '')", None),
    ("LPAD(t, -1, 'x')", None),
    ("LPAD(t, 9, nt)", None),
    ("'It''s'", "It's"),
    (r"'a\nb\\c'", r"a\nb\\c"),
    ("'two\nlines'", "two\nlines"),
    ("'${user.home} $1 ${spark.app.name}'", "${user.home} $1 ${spark.app.name}"),
    ("'é😀'", "é😀"),
    ("'-- no comment'", "-- no comment"),
    ("GREATEST('a', t, nt)", "a"),
]
CONDITIONS = [
    ("a = 7", True),
    ("a <> 7", False),
    ("a != 8", True),
    ("a < b AND d <= 2.5", True),
    ("a > m", True),
    ("t >= 'Hello'", True),
    ("f = TRUE", True),
    ("na = 1", False),
    ("na <> 1", False),
    ("NOT na = 1", True),
    ("NOT (na = 1 OR a = 7)", False),
    ("na IS NULL", True),
    ("a IS NOT NULL", True),
    ("NOT a IS NULL", True),
    ("a BETWEEN 7 AND b", True),
    ("a NOT BETWEEN 1 AND 9", False),
    ("na BETWEEN 1 AND 9", False),
    ("na NOT BETWEEN 1 AND 9", True),
    ("a IN (1, 7.0, b)", True),
    ("a NOT IN (1, 7)", False),
    ("na IN (1)", False),
    ("t LIKE 'H%o'", True),
    ("t LIKE 'h%'", False),
    ("t LIKE '_ello'", True),
    ("nt LIKE '%'", False),
    ("t NOT LIKE 'x%'", True),
    ("'50%' LIKE '50!%' ESCAPE '!'", True),
    ("'500' LIKE '50!%' ESCAPE '!'", False),
    ("'5!' LIKE '5!!' ESCAPE '!'", True),
    (r"'a\b' LIKE 'a\b'", True),
    (r"'a%' LIKE 'a\%'", False),
    ("TRUE OR nf", True),
    ("nf AND FALSE", False),
    ("f OR FALSE AND FALSE", True),
    ("NOT f OR f", True),
]
OTHERS = [
    ("CASE WHEN a > 5 THEN 'big' ELSE 'small' END", "big"),
    ("CASE WHEN na > 5 THEN 'big' ELSE 'small' END", "small"),
    ("CASE WHEN na > 5 THEN 1 END", None),
    ("CASE WHEN a = 1 THEN 1 WHEN a = 7 THEN b ELSE NULL END", 10_000_000_000),
    ("CASE WHEN f THEN a ELSE d END", 7.0),
    ("CASE WHEN NOT na = 1 THEN 1 ELSE 0 END", 1),
    ("COALESCE(na, nb, a)", 7),
    ("COALESCE(NULL, t)", "Hello"),
    ("IFNULL(na, 0)", 0),
    ("IFNULL(t, '')", "Hello"),
    ("NULLIF(a, 7)", None),
    ("NULLIF(a, nb)", 7),
    ("NULLIF(t, 'x')", "Hello"),
    ("AS_VALUE(f)", True),
    ("CAST(t AS INT)", None),
    ("CAST('12' AS BIGINT)", 12),
    ("CAST(d AS INT)", 2),
    ("CAST(-2.9e0 AS BIGINT)", -2),
    ("CAST(a AS DOUBLE) / 2", 3.5),
    ("CAST(m AS VARCHAR)", "-3.25"),
    ("CAST(f AS STRING)", "true"),
    ("CAST('true' AS BOOLEAN)", True),
    ("CAST(a AS DECIMAL(5, 1))", Decimal("7.0")),
    ("CAST(b AS DECIMAL(3, 0))", None),
    ("CAST('1.2e1' AS DECIMAL(5, 1))", Decimal("12.0")),
    ("CAST('1e-0099' AS DECIMAL(5, 1))", Decimal("0.0")),
    ("CAST('1E-999999999' AS DECIMAL(5, 1))", None),
    ("CAST('1e999999999' AS DECIMAL(5, 1))", None),
    ("CAST(NULL AS VARCHAR)", None),
    # Names are text, whatever Spark would make of it.
    (r"CAST(STRUCT(`it's \ $x` := 1) AS STRING)", r"Struct{it's \ $x=1}"),
    ("CAST(STRUCT(`', version(), '` := 1) AS STRING)", "Struct{', version(), '=1}"),
    ("TO_JSON_STRING(STRUCT(`', version(), '` := CAST('2020-01-01' AS DATE)))", """{"', version(), '":"2020-01-01"}"""),
    ("CAST(STRUCT(`', version(), '` := 1) AS STRUCT<`', version(), '` BIGINT>)->`', version(), '`", 1),
    ("FORMAT_TIMESTAMP(FROM_UNIXTIME(0), 'EEE q yyyy''T''HH')", "Thu 1 1970T00"),
    # One record must not keep, or end, a process.
    ("TRIM(CONCAT('a', LPAD('', 200000, ' '), 'b')) = CONCAT('a', LPAD('', 200000, ' '), 'b')", True),
    ("TRIM(CONCAT(CHR(0), ' x y', CHR(9), CHR(32), CHR(31)))", "x y"),
    ("LEN(CHR(REPLACE(LPAD('', 20000, 'u'), 'u', '\\u0041')))", 20000),
    ("CHR('\\u0041x')", None),
    ("CHR('')", None),
    ("INSTR('abcabc', 'b', 1, 2000000000)", 0),
    ("INSTR('aaa', 'a', 1, 3)", 3),
    ("LPAD('a', 3, 'xy')", "xya"),
    ("LPAD('a', na, 'xy')", None),
    ("GENERATE_SERIES(1, 5, 2)", [1, 3, 5]),
    ('JSON_CONCAT(\'{"a":1,"b":"x"}\', \'{"b":[2],"c":null}\')', '{"a":1,"b":[2],"c":null}'),
    ("JSON_CONCAT(NULL, '{}')", None),
    # The clock's are no times.
    *(
        (f"CAST(CAST('{word}' AS {type_}) AS STRING)", None)
        for word in ("today", " now", "12:30", "T12:30")
        for type_ in ("DATE", "TIMESTAMP")
    ),
    ("CAST(CAST(CONCAT('to', 'day') AS DATE) AS STRING)", None),
    ("CAST(CAST(' 2020-01-02' AS DATE) AS STRING)", "2020-01-02"),
    ("CAST(CAST('2020-01-02T00:00:01Z' AS TIMESTAMP) AS STRING)", "2020-01-02T00:00:01.000"),
]
CASES = NUMBERS + STRINGS + CONDITIONS + OTHERS


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[1]")
        .appName("sql")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.ansi.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()


def same(expected: Any, actual: Any) -> bool:
    """Equal, with their types; NaN equals itself, doubles to 12 digits."""
    if isinstance(expected, float) and isinstance(actual, float):
        return math.isclose(expected, actual, rel_tol=1e-12) or (math.isnan(expected) and math.isnan(actual))
    return type(expected) is type(actual) and bool(expected == actual)


def rows_of_s() -> RowExpressions:
    """The expressions over stream `s`."""
    statement = "CREATE TABLE q AS SELECT a, COUNT(*) FROM s GROUP BY a EMIT CHANGES;"
    return RowExpressions(parse_pipeline(STREAM + statement, pipeline="p").sources[0], "S")


@pytest.fixture(scope="module")
def evaluated(spark: SparkSession) -> tuple[Row, dict[str, str]]:
    """Every case computed over ROW in one projection, and the Spark types."""
    frame = spark.createDataFrame([ROW], SCHEMA)
    rows = rows_of_s()
    texts = [rows.value(read_expression(read_statements(text)[0])).text for text, _ in CASES]
    result = frame.selectExpr(*[f"{text} AS c{index}" for index, text in enumerate(texts)])
    return result.collect()[0], dict(result.dtypes)


@pytest.mark.parametrize("index", range(len(CASES)), ids=[text for text, _ in CASES])
def test_an_expression_has_its_value_and_type(evaluated: tuple[Row, dict[str, str]], index: int) -> None:
    values, types = evaluated
    text, expected = CASES[index]
    assert same(expected, values[index]), f"{text}: {expected!r} != {values[index]!r}"
    inferred = rows_of_s().value(read_expression(read_statements(text)[0])).type.spark
    assert inferred == types[f"c{index}"]


@pytest.mark.parametrize(
    "text", ["LPAD(t, b, ' ')", "RPAD(t, 100000000, ' ')", "GENERATE_SERIES(1, 500000000)", "GENERATE_SERIES(b, 0, -1)"]
)
def test_what_would_take_all_memory_is_an_error_of_the_record(spark: SparkSession, text: str) -> None:
    computed = rows_of_s().value(read_expression(read_statements(text)[0])).text
    frame = spark.createDataFrame([(ROW[0], 2_000_000_000, *ROW[2:])], SCHEMA)
    with pytest.raises(SparkRuntimeException, match="is limited to"):
        frame.selectExpr(computed).collect()


def test_a_cube_of_many_items_is_an_error_of_the_record(spark: SparkSession) -> None:
    def rows(items: int) -> int:
        array = f"ARRAY[{', '.join(map(str, range(items)))}]"
        statement = f"CREATE STREAM q AS SELECT CUBE_EXPLODE({array}) AS x FROM s EMIT CHANGES;"
        (exploded,) = parse_pipeline(STREAM + statement, pipeline="p").queries[0].tables
        (row,) = spark.createDataFrame([ROW], SCHEMA).selectExpr(f"size({exploded.expression})").collect()
        return int(row[0])

    assert [2, 8, 65_536] == [rows(items) for items in (1, 3, 16)]
    with pytest.raises(SparkRuntimeException, match="CUBE_EXPLODE is limited to 16"):
        rows(32)


def plan(select: str, rest: str) -> Query:
    return parse_pipeline(
        f"{STREAM} CREATE TABLE q AS SELECT {select} FROM s {rest} EMIT CHANGES;", pipeline="p"
    ).queries[0]


def run(frame: DataFrame, query: Query) -> tuple[DataFrame, DataFrame]:
    """The plan as one batch query: groups with their aggregates, and the result."""
    calls = {"count_all": "count(1)"}
    filtered = frame.where(query.where) if query.where else frame
    keyed = filtered.selectExpr("*", *[f"{key.expression} AS `__{key.name}`" for key in query.group_by]).drop(
        *[key.name for key in query.group_by]
    )
    keyed = keyed.withColumnsRenamed({f"__{key.name}": key.name for key in query.group_by})
    keyed.createOrReplaceTempView("keyed")
    names = ", ".join(f"`{key.name}`" for key in query.group_by)
    aggregates = ", ".join(
        f"{calls.get(a.function, f'{a.function}({a.argument})')} AS {a.name}" for a in query.aggregates
    )
    groups = frame.sparkSession.sql(f"SELECT {names}, {aggregates} FROM keyed GROUP BY {names}")
    kept = groups.where(query.having) if query.having else groups
    return groups, kept.selectExpr(
        *[f"`{key.name}`" for key in query.group_by], *[f"{o.expression} AS `{o.name}`" for o in query.outputs]
    )


@pytest.fixture(scope="module")
def batch(spark: SparkSession) -> DataFrame:
    """Three rows of group 1 (one without values), one of group 2."""
    nulls = (None,) * 6
    return spark.createDataFrame(
        [
            (1, 10, 1.5, True, "x", Decimal("1.10"), *nulls, 1),
            (1, 5, 2.5, False, "y", Decimal("2.20"), *nulls, 2),
            (1, None, None, None, None, None, *nulls, 3),
            (2, 7, 0.5, True, "z", Decimal("9.99"), *nulls, 4),
        ],
        SCHEMA,
    )


class TestPlans:
    def test_aggregates_in_expressions(self, batch: DataFrame) -> None:
        query = plan(
            "a, COUNT(*) AS n, COUNT(b) AS nb, SUM(b) / COUNT(b) AS whole, AVG(b) AS mean, MIN(t) || MAX(t) AS ends,"
            " SUM(CASE WHEN NOT f THEN 1 ELSE 0 END) AS falses, SUM(m) AS m",
            "GROUP BY a HAVING COUNT(*) > 1",
        )
        _, result = run(batch, query)
        assert [Row(A=1, N=3, NB=2, WHOLE=7, MEAN=7.5, ENDS="xy", FALSES=1, M=Decimal("3.30"))] == result.collect()

    def test_where_drops_rows_whose_condition_is_null(self, batch: DataFrame) -> None:
        kept = plan("a, COUNT(*) AS n", "WHERE b > 4 GROUP BY a")
        assert [(1, 2), (2, 1)] == sorted(tuple(row) for row in run(batch, kept)[1].collect())
        negated = plan("a, COUNT(*) AS n", "WHERE NOT b > 9 GROUP BY a")
        assert [(1, 2), (2, 1)] == sorted(tuple(row) for row in run(batch, negated)[1].collect())

    def test_a_constant_key_makes_one_group(self, batch: DataFrame) -> None:
        query = plan("1 AS all_rows, COUNT(*) AS n, SUM(b) AS b", "GROUP BY 1")
        assert [Row(ALL_ROWS=1, N=4, B=22)] == run(batch, query)[1].collect()

    def test_aggregates_have_the_types_that_expressions_over_them_assume(self, batch: DataFrame) -> None:
        from pipelines.sql.aggregation import ResultExpressions

        calls = [f"{f}({c})" for f in ("SUM", "AVG", "MIN", "MAX", "COUNT") for c in ("a + 0", "b", "d", "m")]
        calls += ["COUNT(*)", "MIN(t)", "MAX(t)", "COUNT(f)"]
        groups, _ = run(batch, plan("a, " + ", ".join(calls), "GROUP BY a"))
        result = ResultExpressions(rows_of_s(), {})
        inferred = [result.value(read_expression(read_statements(call)[0])).type.spark for call in calls]
        assert inferred == [type_ for _, type_ in groups.dtypes[1:]]


SCALES = (0, 2, 7, 18, 38)


def of_digits(unscaled: int | None, scale: int) -> Decimal | None:
    return None if unscaled is None else Decimal(f"{unscaled}e-{scale}")


class TestDecimalSums:
    MOST = 10**38 - 1
    # By key the amounts, unscaled, and their sum: more than 38 digits on the way, none, the last digit, both ends.
    AMOUNTS: ClassVar[dict[str, tuple[list[int | None], int | None]]] = {
        "way": ([MOST, MOST, -MOST, -7, 6, None], MOST - 1),
        "none": ([None, None], None),
        "digit": ([4, 4, -1, 10**37 + 1], 10**37 + 8),
        "most": ([-MOST, 0], -MOST),
        "carry": ([99_999_999_999_999_999_999, 1, -(10**20) - 1], -1),
    }

    def test_a_batch_is_added_up_exactly(self, spark: SparkSession) -> None:
        scales = (0, 18, 38)
        aggregates = tuple(Aggregate(f"A{s}", "sum", f"`X{s}`", f"decimal(38,{s})") for s in scales)
        key = GroupKey("K", "`K`", "string")
        sql = MergeSql(replace(plan("a, COUNT(*) AS n", "GROUP BY a"), group_by=(key,), aggregates=aggregates))
        rows = [
            (key, *(of_digits(amount, s) for s in scales), 1)
            for key, (amounts, _) in self.AMOUNTS.items()
            for amount in amounts
        ]
        schema = f"K string, {', '.join(f'X{s} decimal(38,{s})' for s in scales)}, ROWTIME long"
        # Two parts of the input: what Spark hands on of one has to fit by itself.
        frame = spark.createDataFrame(rows[:2], schema).union(spark.createDataFrame(rows[2:], schema))
        grouped = frame.withColumn("__key", expr("K")).groupBy("__key").agg(*map(expr, sql.grouped())).toArrow()
        for s in scales:
            grouped = grouped.append_column(f"__s_A{s}", pa.nulls(len(grouped), pa.decimal128(38, s)))
        (found,) = sql.adding(iter)(grouped.combine_chunks().to_batches())
        for s in scales:
            expected = {key: of_digits(sum_, s) for key, (_, sum_) in self.AMOUNTS.items()}
            sums = found.column(f"__p_A{s}").to_pylist()
            assert expected == dict(zip(found.column("__key").to_pylist(), sums, strict=True))

    def test_a_list_is_added_up_exactly(self, spark: SparkSession) -> None:
        lists: list[list[int | None] | None]
        lists = [[4, None, 4], [self.MOST - 1, 1, -(10**20) - 1], [], None, [-self.MOST, self.MOST], [-self.MOST]]
        sums = [8, self.MOST - 10**20 - 1, 0, None, 0, -self.MOST]
        kinds = [f"decimal(38,{s})" for s in SCALES]
        rows = [
            tuple(None if items is None else [of_digits(item, s) for item in items] for s in SCALES) for items in lists
        ]
        frame = spark.createDataFrame(rows, ", ".join(f"l{s} array<decimal(38,{s})>" for s in SCALES))
        values = [
            listed_sum(Value(f"l{s}", array_of(parse_type(kind)), 0)) for s, kind in zip(SCALES, kinds, strict=True)
        ]
        found = frame.selectExpr(*(f"{value.text} AS s{s}" for s, value in zip(SCALES, values, strict=True)))
        assert kinds == [value.type.spark for value in values] == [kind for _, kind in found.dtypes]
        assert [tuple(of_digits(sum_, s) for s in SCALES) for sum_ in sums] == [tuple(row) for row in found.collect()]

    @pytest.mark.parametrize("scale", [2, 18])
    def test_a_list_whose_sum_is_too_large_fails(self, spark: SparkSession, scale: int) -> None:
        kind = f"decimal(38,{scale})"
        items = [of_digits(item, scale) for item in (self.MOST, 1, -self.MOST)]
        frame = spark.createDataFrame([(items,)], f"l array<{kind}>")
        sum_ = listed_sum(Value("`l`", array_of(parse_type(kind)), 0))
        with pytest.raises(SparkRuntimeException, match="sum does not fit into DECIMAL"):
            frame.selectExpr(f"{sum_.text} AS s").collect()


class TestStores:
    """What is read from a store is what the engine has written: keys, and values of aggregates."""

    STREAM = (
        "CREATE STREAM s (k VARCHAR KEY, i INT, b BIGINT, d DOUBLE, f BOOLEAN, t VARCHAR, m DECIMAL(22, 2),"
        " at TIMESTAMP, y BYTES, xs ARRAY<INT>, ms ARRAY<DECIMAL(22, 2)>, mp MAP<STRING, DECIMAL(22, 2)>,"
        " st STRUCT<p INT, q MAP<STRING, DOUBLE>, r BYTES>) WITH (kafka_topic='in', value_format='json');"
    )
    # After each of these rows there is a result.
    ROWS: tuple[dict[str, Any], ...] = (
        {},
        {"i": 3, "b": 2**53 - 1, "d": 2.5, "f": True, "t": 'q "ü"\n', "m": "12345678901234567890.12", "at": 1000},
        {"i": 3, "b": 2**53 - 1, "d": 2.5, "f": True, "t": 'q "ü"\n', "m": "12345678901234567890.12", "at": 1000},
        {"y": "AP8=", "xs": [1, None], "ms": ["0.10", "7"], "mp": {"a": "1.10", "b": None}},
        {"mp": {"b": "2"}, "st": {"p": 1, "q": {"x": 0.5, "y": None}, "r": "AP8="}},
        {"i": -7, "b": 3, "d": 1e100, "f": False, "t": "a", "m": "-0.01", "at": 5, "y": "", "xs": [], "ms": None},
        {"i": 0, "d": "NaN", "t": "null", "m": "0", "st": {"p": None, "q": {}, "r": None}},
        {"d": "-Infinity", "t": ""},
    )
    PLAIN = ("i", "b", "d", "t", "m", "at")
    ANY = (*PLAIN, "f", "y", "xs", "mp", "st")
    CALLS = MappingProxyType(
        {
            "COUNT": ["COUNT(*)", "COUNT(d)"],
            "SUM": ["SUM(i)", "SUM(b)", "SUM(d)", "SUM(m)"],
            "MIN": [f"MIN({column})" for column in PLAIN],
            "MAX": [f"MAX({column})" for column in PLAIN],
            "AVG": ["AVG(i)", "AVG(b)", "AVG(d)", "AVG(m)"],
            "SUM_LIST": ["SUM_LIST(xs)", "SUM_LIST(ms)"],
            "ATTR": [f"ATTR({column})" for column in ANY],
            "COLLECT_LIST": [f"COLLECT_LIST({column})" for column in ANY],
            "COLLECT_SET": [f"COLLECT_SET({column})" for column in ANY],
            "COLLECT_MAP": ["COLLECT_MAP(mp)", "COLLECT_MAP(st->q)"],
            "COUNT_DISTINCT": [f"COUNT_DISTINCT({column})" for column in ANY],
            "EARLIEST_BY_OFFSET": [
                f"EARLIEST_BY_OFFSET({column}{more})" for column in ANY for more in ("", ", 2, false")
            ],
            "LATEST_BY_OFFSET": [f"LATEST_BY_OFFSET({column}{more})" for column in ANY for more in ("", ", 2, false")],
            "HISTOGRAM": ["HISTOGRAM(t)"],
            "STDDEV_SAMP": ["STDDEV_SAMP(i)", "STDDEV_SAMP(d)"],
            "STDDEV_SAMPLE": ["STDDEV_SAMPLE(i)", "STDDEV_SAMPLE(d)"],
            "TOPK": [*(f"TOPK({column}, 2)" for column in (*PLAIN, "y")), "TOPK(i, d, m, mp, 3)"],
            "TOPKDISTINCT": [f"TOPKDISTINCT({column}, 2)" for column in (*PLAIN, "y")],
        }
    )
    # Their results are computed from several aggregates, and are not pulled.
    NOT_PULLED = ("CORRELATION",)

    def test_every_aggregate_is_compared(self) -> None:
        assert {*AGGREGATES} == {*self.CALLS, *self.NOT_PULLED}

    @pytest.mark.parametrize("name", CALLS)
    def test_a_row_has_the_values_that_the_topic_says(
        self, told_and_read: tuple[list[bytes], list[dict[str, Any]]], name: str
    ) -> None:
        told, read = told_and_read
        assert len(self.ROWS) == len(told) == len(read)
        for call in self.CALLS[name]:
            for topic, row in zip(told, read, strict=True):
                assert exact(dump(row[call])) in (exact(topic)[call], shortest(topic)[call]), call

    KEYS = (
        ("string", ["a", "_x", "ünal", "#a", " a", "a ", "a\nb", 'a"b', "a,b", "", "-1", "\x1f\x0b\x7f", "\u2028", "null"]),
        ("int", [5, -5, 0, -(2**31)]),
        ("bigint", [5, -5, -(2**63), 2**63 - 1]),
        ("boolean", [True, False]),
        ("timestamp", [1000, -1]),
        ("date", [19000, -1]),
        ("decimal(6,2)", [Decimal("1.10"), Decimal("-0.01"), Decimal("0.00"), Decimal("9999.99")]),
        ("decimal(12,10)", [Decimal("1E-10"), Decimal("0E-10"), Decimal("-0.0000001000"), Decimal("0.0000010000")]),
        ("double", [1.5, -0.0, 1e10, math.nan]),
    )  # fmt: skip

    @pytest.mark.parametrize("form", ["kafka", "json", "delimited"])
    def test_a_key_is_looked_up_under_the_bytes_that_spark_writes(self, spark: SparkSession, form: str) -> None:
        fits = [(type_, values) for type_, values in self.KEYS if form != "kafka" or type_ in KAFKA_KEYS]
        compared = set()
        for type_, values in fits:
            frame = spark.createDataFrame(pa.table({"K": pa.array(values, arrow_type(type_))}))
            for count in (1,) if form == "kafka" else (1, 2):
                keys = tuple(GroupKey(f"K{at}", "`K`", type_) for at in range(count))
                query = replace(plan("a, COUNT(*) AS n", "GROUP BY a"), key_format=form, group_by=keys)
                written = [bytes(row[0]) for row in frame.selectExpr(key_bytes(query, keys)).collect()]
                for value, stored in zip(values, written, strict=True):
                    found = stored_keys(query, [(value,) * count])
                    assert found is None or stored in found, (type_, value)
                    compared.add(type_ if found else "")
        assert {type_ for type_, _ in fits} - {"double"} <= compared
        assert ("double" in compared) == (form == "kafka")


def test_bytes_in_a_delimited_record_are_base64(spark: SparkSession) -> None:
    """As it is read, and as INSERT writes it."""
    stream = "CREATE STREAM s (b BYTES KEY, v BYTES) WITH (kafka_topic='in', format='delimited');"
    query = parse_pipeline(stream + "CREATE STREAM t AS SELECT b, v FROM s;", pipeline="p").queries[0]
    raws = [b"", b"\x00,\xff", bytes(range(256)), None]
    columns = pa.array(raws, pa.binary())
    frame = spark.createDataFrame(pa.table({"B": columns, "V": columns}))
    written = frame.selectExpr(key_bytes(query, query.group_by), value_bytes(query)).collect()
    texts = [None if raw is None else b64encode(raw) for raw in raws]
    assert [b'""', *texts[1:3], None] == [None if key is None else bytes(key) for key, _ in written]
    assert [b'""', *texts[1:3], b""] == [bytes(value) for _, value in written]
    assert [b'""', *texts[1:3], b""] == key_bytes_of(query)([columns]).to_pylist()
    assert [{"B": raw} for raw in raws[:3]] == [decode_key(query, bytes(key)) for key, _ in written[:3]]
    # A plan of before goes on under the keys that it has written.
    before = replace(query, base64_keys=False)
    plain = pa.array([b"abc", b'a"'], pa.binary())
    (stored, quoted) = (
        spark.createDataFrame(pa.table({"B": plain})).selectExpr(key_bytes(before, query.group_by)).collect()
    )
    assert [b"abc", b'"a"""'] == [bytes(stored[0]), bytes(quoted[0])] == key_bytes_of(before)([plain]).to_pylist()
    assert query_to_json(before) == query_to_json(query).replace('"base64_keys":true,', "")


@pytest.fixture(scope="module")
def told_and_read(spark: SparkSession) -> tuple[list[bytes], list[dict[str, Any]]]:
    """By call, after each row: what the result topic says, and what a reader of the store that was written then."""
    calls = [call for each in TestStores.CALLS.values() for call in each]
    selected = ", ".join(f"{call} AS `{call}`" for call in calls)
    query = parse_pipeline(
        f"{TestStores.STREAM} CREATE TABLE q WITH (emit='every-record') AS SELECT k, {selected} FROM s GROUP BY k;",
        pipeline="p",
    ).queries[0]
    with interpreted(spark):
        results = emitted(query, [json.dumps(row).encode() for row in TestStores.ROWS], spark)
    parts = [part for aggregate in query.aggregates for part in state_parts(aggregate)]
    types = [arrow_type(part.type) for part in parts]
    merged = [
        results.column(f"{MERGED}{part.name}").combine_chunks().cast(type_)
        for part, type_ in zip(parts, types, strict=True)
    ]
    states = StateCodec(types).encode(pa.array(range(1, len(results) + 1)), merged).to_pylist()
    reader = GivenReader(replace(query, tasks=1), {f"{at}".encode(): state for at, state in enumerate(states)})
    read = [row.value for row in reader.scan(None, None, Isolation.READ_COMMITTED)]
    return results.column("__value").to_pylist(), read


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Rows are computed once each: compiling code for them takes longer than that."""
    before = {name: spark.conf.get(name) or "" for name in SMALL if spark.conf.isModifiable(name)}
    for name in before:
        spark.conf.set(name, SMALL[name])
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def emitted(query: Query, values: list[bytes], spark: SparkSession) -> pa.Table:
    """What the engine gives to be written after each of these records, which have one key: results and merged parts."""
    count = len(values)
    records = GivenRecords(
        partition=0,
        keys=pa.array([b"k"] * count, pa.binary()),
        values=pa.array(values, pa.binary()),
        offsets=pa.array(range(count), pa.int64()),
        times=pa.array(range(1, count + 1), pa.int64()),
    )
    sql, order = MergeSql(query), RecordOrder(query)
    decoded = pa.Table.from_batches(with_places(decoder(query.source, None, uncounted), raw_keys=False)([records]))
    rows = sql.with_keys(spark.createDataFrame(decoded)).selectExpr(*order.inputs()).toArrow()
    assert len(rows) == rows.column("__dead").null_count, rows.column("__dead").to_pylist()
    taken = order.rows(rows, lambda keys: pa.nulls(len(keys), pa.binary()), NO_TIME).rows
    for name in ("__token", STREAM_TIME, DROPPED):
        taken = taken.append_column(name, pa.nulls(len(taken), pa.int64()))
    return sql.results(spark.createDataFrame(taken)).toArrow()


def exact(text: str | bytes) -> Any:
    """What JSON says, with every digit."""
    return json.loads(text, parse_float=Decimal)


def shortest(text: str | bytes) -> Any:
    """The same, where Java has written doubles with more digits than are needed."""
    return json.loads(text, parse_float=lambda number: Decimal(repr(float(number))))
