"""Every rule of the dialect, as a text that breaks it.

`▼` marks the place that the error must name; it is taken out before the text is read.
"""

from __future__ import annotations

import pickle

import pytest

from pipelines.sql import SqlError, parse_pipeline

STREAM = (
    "CREATE STREAM s (k VARCHAR KEY, a INT, b BIGINT, d DOUBLE, f BOOLEAN, t VARCHAR, m DECIMAL(10, 2), `Mixed` INT)\n"
    "WITH (kafka_topic='in', value_format='json');\n"
)
TABLE = STREAM + "CREATE TABLE q AS SELECT "


def stream(columns: str, properties: str = "kafka_topic='in', value_format='json'") -> str:
    return f"CREATE STREAM s ({columns}) WITH ({properties});"


def query(select: str, rest: str = "FROM s GROUP BY a EMIT CHANGES;", properties: str = "") -> str:
    return f"{STREAM}CREATE TABLE q {properties} AS SELECT {select} {rest}"


def projected(select: str, rest: str = "FROM s EMIT CHANGES;", properties: str = "") -> str:
    return f"{STREAM}CREATE STREAM q {properties} AS SELECT {select} {rest}"


def where(condition: str) -> str:
    return query("a, COUNT(*) AS n", f"FROM s WHERE {condition} GROUP BY a EMIT CHANGES;")


def value(expression: str) -> str:
    """The expression over a row, as the argument of an aggregate."""
    return query(f"a, MAX({expression}) AS v")


INSERTS = STREAM + "CREATE STREAM o (k VARCHAR KEY, a INT) WITH (kafka_topic='o', value_format='json');"

STATEMENTS = [
    ("▼ASSERT VALUES s (a) VALUES (1);", "expected CREATE, found ASSERT"),
    ("▼", "no query"),
    ("▼" + stream("a INT"), "no query"),
    (stream("▼__a INT"), "the engine's own"),
    (stream("▼`__a` INT"), "the engine's own"),
    ("▼CRATE TABLE x;", "expected CREATE, found CRATE"),
    ("INSERT INTO ▼s SELECT * FROM t EMIT CHANGES;", "unknown stream: Source S does not exist"),
    ("▼INSERT INTO s VALUES (1);", "INSERT INTO … VALUES is not supported in a pipeline"),
    ("▼SELECT a FROM s EMIT CHANGES;", "CREATE TABLE … AS"),
    ("▼DROP TABLE q;", "DROP is not supported"),
    ("▼SET 'a'='b';", "SET is not supported"),
    ("CREATE ▼OR REPLACE TABLE q AS SELECT 1;", "OR REPLACE is not supported"),
    ("CREATE ▼SOURCE STREAM s (a INT);", "SOURCE is not supported"),
    ("CREATE ▼VIEW q;", "expected STREAM or TABLE, found VIEW"),
    ("CREATE ▼TABEL q;", "expected STREAM or TABLE"),
    ("CREATE STREAM ▼IF NOT EXISTS s (a INT);", "IF NOT EXISTS is not supported"),
    ("CREATE STREAM▼ ", "expected a name"),
    (STREAM + "CREATE STREAM ▼s (a INT) WITH (kafka_topic='x', value_format='json');", "defined twice"),
    (STREAM + "CREATE TABLE ▼s AS SELECT a, COUNT(*) FROM s GROUP BY a EMIT CHANGES;", "defined twice"),
    (query("a, COUNT(*)") + "CREATE TABLE ▼Q AS SELECT a FROM s EMIT CHANGES;", "defined twice"),
    (query("a, COUNT(*)") + "CREATE TABLE ▼`q` AS SELECT a FROM s EMIT CHANGES;", "defined twice"),
    (STREAM + f"CREATE TABLE ▼{'x' * 240} AS SELECT a FROM s;", "the name is too long"),
]

CHARACTERS = [
    ("SELECT ▼'abc", "the string does not end"),
    ("SELECT ▼`abc", "the name does not end"),
    ("SELECT 1 ▼/* abc", "the comment does not end"),
    ('SELECT ▼"abc', "the name does not end"),
    ("SELECT ▼${x}", "unexpected character '$'"),
    ("SELECT ▼é", "unexpected character"),
    ("SELECT ▼12.5ab", "runs into what follows"),
    ("SELECT ▼1.2.3", "runs into what follows"),
    ("SELECT ▼{x}", "templates"),
    ("SELECT ▼'a\0'", "NUL"),
    ("SELECT 'ok', ▼'\ud800'", "surrogate"),
]

STREAMS = [
    (stream("a ▼ARRAY"), "ARRAY needs its types"),
    (stream("a ▼MAP<INT>"), "MAP needs its types"),
    (stream("a ▼STRUCT<x INT, x INT>"), "Duplicate field names"),
    (stream("a ARRAY<▼FOO>"), "unknown type FOO"),
    (stream("a ▼BIGNIT"), "did you mean BIGINT?"),
    (stream("a ▼DECIMAL"), "DECIMAL needs precision and scale"),
    (stream("a ▼DECIMAL(3, 4)"), "DECIMAL(3, 4) is not possible"),
    (stream("a ▼DECIMAL(39, 0)"), "is not possible"),
    (stream("a DECIMAL(▼x)"), "expected a number"),
    (stream("a DECIMAL(▼12345678901, 0)"), "expected a whole number"),
    (stream("a ▼INT(3)"), "INT takes no arguments"),
    (stream("a ▼'INT'"), "expected a type"),
    (stream("a INT ▼PRIMARY KEY"), "a stream has no PRIMARY KEY"),
    (stream("a DATE KEY").replace("WITH", "▼WITH"), "does not support type 'DATE'"),
    (stream("a MAP<INT, INT>").replace("WITH", "▼WITH"), "MAP types with STRING keys"),
    (stream("a BOOLEAN KEY").replace("WITH", "▼WITH"), "does not support type 'BOOLEAN'"),
    (stream("a INT KEY, b INT KEY").replace("WITH", "▼WITH"), "only supports a single field"),
    (stream("a INT, ▼A BIGINT"), "defined twice"),
    (stream("a INT, ▼`a` BIGINT"), "differ only in case"),
    (stream("▼rowtime BIGINT"), "reserved column name"),
    (stream("▼`windowstart` BIGINT"), "reserved column name"),
    (stream("▼from INT"), "write `from`"),
    (stream("▼`` INT"), "1 to 255 characters"),
    (stream("▼`a${b}` INT"), "may not contain"),
    (stream("▼`a``b` INT"), "may not contain"),
    (stream("a INT ▼NOT NULL"), "NOT NULL is not supported"),
    (stream("a INT ▼b INT"), "expected ) or ,"),
    (stream("▼"), "expected a column"),
    ("CREATE STREAM s (a INT)▼;", "expected WITH"),
    ("CREATE STREAM s ▼WITH (kafka_topic='x', value_format='json');", "a stream needs its columns"),
    ("CREATE STREAM s (a INT) ▼WITH (value_format='json');", "needs KAFKA_TOPIC"),
    ("CREATE STREAM s (a INT) ▼WITH (kafka_topic='x');", "needs VALUE_FORMAT"),
    (stream("a INT", "▼topic='x'"), "did you mean KAFKA_TOPIC?"),
    (stream("a INT", "▼zzz='x'"), "unknown property ZZZ"),
    (stream("a INT", "▼replicas=1"), "REPLICAS is not supported here"),
    (stream("a INT", "kafka_topic='x', ▼kafka_topic='y'"), "given twice"),
    (stream("a INT", "kafka_topic=▼7, value_format='json'"), "KAFKA_TOPIC needs a string"),
    (stream("a INT", "kafka_topic=▼'a b', value_format='json'"), "is not a topic name"),
    (stream("a INT", "kafka_topic=▼'..', value_format='json'"), "is not a topic name"),
    (stream("a INT", f"kafka_topic=▼'{'x' * 250}', value_format='json'"), "is not a topic name"),
    (stream("a INT", "kafka_topic='x', value_format=▼'avro'"), "'avro' is not supported here"),
    (stream("a INT", "kafka_topic='x', value_format=▼'jsno'"), "did you mean json?"),
    (stream("a INT", "kafka_topic='x', format='json', ▼value_format='json'"), "both 'VALUE_FORMAT' and 'FORMAT'"),
    (stream("a INT", "kafka_topic='x', value_format='delimited', value_delimiter=▼'ab'"), "a single character"),
    (stream("a INT", "kafka_topic='x', value_format='json', ▼value_delimiter='|'"), "JSON does not support"),
    (stream("a INT, b INT", "kafka_topic='x', value_format='json', ▼wrap_single_value=false"), "single-field"),
    (stream("a INT", "kafka_topic='x', value_format='json', timestamp=▼'b'"), "does not exist in the schema: 'B'"),
    (stream("a INT", "kafka_topic='x', value_format='json', timestamp=▼'a'"), "should be LONG"),
    (stream("a STRING", "kafka_topic='x', value_format='json', timestamp=▼'a'"), "needs a TIMESTAMP_FORMAT"),
    *(
        (
            stream("a STRING", f"kafka_topic='x', value_format='json', timestamp='a', timestamp_format=▼'{pattern}'"),
            fragment,
        )
        for pattern, fragment in (
            ("yyyy-MM-dd HH:mm z", "a zone is written as an offset"),
            ("yyyy-MM-dd HH:mm VV", "a zone is written as an offset"),
            ("yyyy-MM-dd HH:mm:ss.SSSSSSS", "at most 6 digits"),
            ("yyyy-QQ", "pattern letter Q is not supported"),
        )
    ),
    (stream("a ▼STRUCT<`b` INT, B STRING>"), "Duplicate field names"),
    ("CREATE STREAM s WITH (kafka_topic='x') AS SELECT a FROM ▼t EMIT CHANGES;", "T does not exist"),
    (stream("a INT").replace("(a", "▼(a")[:-1] + " AS SELECT a FROM t;", "a query gives the columns itself"),
    (stream("a INT")[:-1] + " ▼x;", "expected ; found X"),
]

CLAUSES = [
    ("CREATE TABLE t ▼(a INT) WITH (kafka_topic='x', value_format='json');", "Tables require a PRIMARY KEY"),
    ("CREATE TABLE t ▼;", "expected AS SELECT"),
    ("CREATE TABLE t AS ▼VALUES;", "expected SELECT"),
    (query("▼*, COUNT(*)"), "column K is neither grouped nor aggregated"),
    (query("▼s.*, COUNT(*)"), "column K is neither grouped nor aggregated"),
    (query("a, COUNT(*)", "FROM s GROUP BY a ▼= 1 EMIT CHANGES;"), "mismatched input '=' expecting ';'"),
    (query("a, COUNT(*)", "FROM s GROUP BY a ▼OR f EMIT CHANGES;"), "mismatched input 'OR' expecting ';'"),
    (query("▼DISTINCT a, COUNT(*)"), "DISTINCT is not supported"),
    (query("a, COUNT(▼DISTINCT b)"), "DISTINCT is not supported"),
    (query("a, SUM(b) ▼OVER (PARTITION BY a)"), "window functions are not supported"),
    (query("a, (▼SELECT 1)"), "subqueries are not supported"),
    (query("a COUNT▼(*)"), "expected , or FROM, found ("),
    (query("a, COUNT(*)", "FROM ▼(SELECT a FROM s) GROUP BY a EMIT CHANGES;"), "subqueries are not supported"),
    (query("a, COUNT(*)", "FROM ▼ss GROUP BY a EMIT CHANGES;"), "did you mean S?"),
    (query("a, COUNT(*)", "FROM s▼, s GROUP BY a EMIT CHANGES;"), "a query has one source"),
    (
        query("a, COUNT(*)") + "CREATE TABLE q2 AS SELECT a, ▼MAX(a) FROM q GROUP BY a EMIT CHANGES;",
        "The aggregation function MAX cannot be applied to a table source, only to a stream source",
    ),
    (query("a, COUNT(*)", "FROM s ▼JOIN s ON 1 GROUP BY a EMIT CHANGES;"), "joins are not supported"),
    (query("a, COUNT(*)", "FROM s x ▼LEFT JOIN s GROUP BY a EMIT CHANGES;"), "joins are not supported"),
    (query("a, ▼COUNT(*)", "FROM s PARTITION BY a EMIT CHANGES;"), "COUNT requires a GROUP BY clause"),
    (query("a, b", "FROM s ▼PARTITION BY a EMIT CHANGES;"), "query produces a STREAM"),
    (query("a, COUNT(*)", "FROM s GROUP BY a ▼PARTITION BY a EMIT CHANGES;"), "PARTITION BY is not supported"),
    (query("a, COUNT(*)", "FROM s GROUP BY a ▼ORDER BY a EMIT CHANGES;"), "ORDER BY is not supported"),
    (query("a, COUNT(*)", "FROM s GROUP BY a ▼UNION SELECT a EMIT CHANGES;"), "UNION is not supported"),
    (query("a, COUNT(*)", "FROM s GROUP BY a EMIT CHANGES ▼LIMIT 3;"), "LIMIT is not supported"),
    (query("a, COUNT(*)", "FROM s GROUP BY a EMIT ▼FINAL;"), "EMIT FINAL is only supported for windowed aggregations"),
    (query("a, COUNT(*)", "FROM s GROUP BY a EMIT ▼CHANGE;"), "expected CHANGES"),
    (query("a, COUNT(*)", "FROM s GROUP BY a EMIT CHANGES ▼x;"), "expected ;"),
    (query("a, ▼COUNT(*)", "FROM s EMIT CHANGES;"), "COUNT requires a GROUP BY clause"),
    (query("a, b", "FROM s ▼EMIT CHANGES;"), "a table needs GROUP BY"),
    (query("a, b", "FROM s ▼HAVING COUNT(*) > 1 EMIT CHANGES;"), "a table needs GROUP BY"),
    (query("a, COUNT(*)", "FROM s ▼GROUP a EMIT CHANGES;"), "expected WHERE or GROUP BY"),
    (query("a, COUNT(*)", "FROM s GROUP BY (a, ▼b) EMIT CHANGES;"), "Key missing from projection"),
    (query("a, MAX(b) AS b", properties="WITH (▼timestamp='b')"), "TIMESTAMP of an aggregation"),
    (query("a, COUNT(*)", properties="WITH (partitions=▼0)"), "whole number from 1"),
    (query("a, COUNT(*)", properties="WITH (partitions=▼1.5)"), "whole number"),
    (query("a, COUNT(*)", properties="WITH (partitions=▼'4')"), "whole number from 1"),
    (query("a, COUNT(*)", properties="WITH (key_format=▼'avro')"), "'avro' is not supported here"),
    (query("a, COUNT(*)", properties="WITH (value_format=▼'avro')"), "'avro' is not supported here"),
    (query("a, COUNT(*)", properties="WITH (kafka_topic=▼'a/b')"), "is not a topic name"),
    (query("a, COUNT(*)").replace("TABLE q ", "TABLE ▼q WITH (kafka_topic='in')"), "is a stream of this pipeline"),
    (
        query("a, COUNT(*)").replace("TABLE q ", "TABLE ▼q WITH (kafka_topic='p-q-changelog')"),
        "holds state or dead letters",
    ),
    (query("a, COUNT(*)").replace("TABLE q ", "TABLE ▼q WITH (kafka_topic='p-dead-letters')"), "holds state or dead"),
    (
        query("a, COUNT(*)").replace("TABLE q ", "TABLE ▼q WITH (kafka_topic='p-r-batches')")
        + query("a, COUNT(*)").removeprefix(STREAM).replace("TABLE q ", "TABLE r "),
        "holds state or dead letters of p",
    ),
    (
        STREAM
        + "CREATE STREAM o (k VARCHAR KEY, a INT) WITH (kafka_topic='p-insert_0-changelog', value_format='json');"
        + "INSERT INTO ▼o SELECT k, a FROM s EMIT CHANGES;",
        "holds state or dead letters of p",
    ),
    (query("a, COUNT(*)").replace("TABLE q ", "TABLE ▼q WITH (kafka_topic='__x')"), "is reserved"),
    (
        query("a, COUNT(*)", properties="WITH (kafka_topic='o')")
        + query("a, COUNT(*)", properties="WITH (kafka_topic='o')").removeprefix(STREAM).replace("q", "▼r", 1),
        "already the result of q",
    ),
]

KEYS = [
    (query("COUNT(*)", "FROM s GROUP BY ▼a EMIT CHANGES;"), "key missing from projection"),
    (query("a, COUNT(*)", "FROM s GROUP BY a, ▼b EMIT CHANGES;"), "key missing from projection"),
    (query("a, b, COUNT(*)", "FROM s GROUP BY a, ▼b EMIT CHANGES;"), "key_format='json'"),
    (query("f, COUNT(*)", "FROM s GROUP BY ▼f EMIT CHANGES;"), "does not support type 'BOOLEAN'"),
    (query("m, COUNT(*)", "FROM s GROUP BY ▼m EMIT CHANGES;"), "does not support type 'DECIMAL'"),
    (query("a, COUNT(*)", "FROM s GROUP BY a, ▼a EMIT CHANGES;"), "given twice"),
    (query("NULL AS x, COUNT(*)", "FROM s GROUP BY ▼NULL EMIT CHANGES;"), "NULL cannot be a group key"),
    (query("a, a AS ▼x, COUNT(*)"), "selected twice"),
    (query("a AS ▼a0, COUNT(*)"), "cannot be called A0"),
    (query("▼rowtime, COUNT(*)", "FROM s GROUP BY rowtime EMIT CHANGES;"), "reserved column name"),
    (query("a, COUNT(*) AS n, SUM(b) AS ▼n"), "in the result twice"),
    (query("a, COUNT(*) AS ▼`A`"), "in the result twice"),
    (query("a, COUNT(*) AS ▼from"), "FROM is a reserved word"),
    (query("a, ▼b, COUNT(*)"), "neither grouped nor aggregated"),
    (query("a, ▼b + 1, COUNT(*)"), "neither grouped nor aggregated"),
    (query("a, COUNT(*)", "FROM s GROUP BY a HAVING ▼b > 1 EMIT CHANGES;"), "add B to GROUP BY"),
    (STREAM + "CREATE TABLE q AS ▼SELECT a, 1 AS one FROM s GROUP BY a EMIT CHANGES;", "no aggregate"),
    (STREAM + "CREATE TABLE q AS ▼SELECT a FROM s GROUP BY a HAVING COUNT(*) > 1 EMIT CHANGES;", "no value column"),
    (query("a, COUNT(*), ▼NULL AS x"), "NULL has no type"),
]

AGGREGATES = [
    (query("a, SUM(▼COUNT(*))"), "may not stand in another's argument"),
    (query("a, SUM(▼1 + COUNT(b))"), "may not stand in another's argument"),
    (where("▼COUNT(*) > 1"), "may not stand in WHERE"),
    (query("COUNT(b) AS c, COUNT(*)", "FROM s GROUP BY ▼COUNT(b) EMIT CHANGES;"), "may not stand in GROUP BY"),
    (query("a, SUM(▼t)"), "SUM needs a number, this is string"),
    (query("a, AVG(▼f)"), "AVG needs a number, this is boolean"),
    (query("a, MAX(▼f)"), "MAX needs a number or string"),
    (query("a, MIN(▼NULL)"), "MIN of NULL has no type"),
    (query("a, SUM(▼*)"), "SUM(*) is not possible"),
    (query("a, ▼SUM(a, b)"), "SUM takes 1 argument, not 2"),
    (query("a, SUM_LIST(▼b)"), "SUM_LIST needs an array of numbers"),
    (query("a, COLLECT_MAP(▼b)"), "COLLECT_MAP needs a map"),
    (query("a, CORRELATION(a, ▼t)"), "CORRELATION needs a number"),
    (query("a, ▼CORRELATION(a)"), "CORRELATION takes"),
    (query("a, ▼TOPK(b)"), "TOPK takes 2 arguments, not 1"),
    (query("a, TOPK(b, ▼0)"), "how many values are kept"),
    (query("a, TOPKDISTINCT(▼f, 2)"), "this is BOOLEAN"),
    (query("a, COLLECT_LIST(▼*)"), "COLLECT_LIST(*) is not possible"),
    (query("a, COLLECT_SET(▼COUNT(*))"), "may not stand in another's argument"),
    (query("a, HISTOGRAM(▼b)"), "HISTOGRAM needs a string"),
    (query("a, STDDEV_SAMP(▼t)"), "STDDEV_SAMP needs a number"),
    (query("a, LATEST_BY_OFFSET(b, ▼'x')"), "then true or false"),
    (query("a, EARLIEST_BY_OFFSET(b, 2, false, ▼3)"), "at most 3 arguments"),
    (query("a, LATEST_BY_OFFSET(▼NULL)"), "LATEST_BY_OFFSET of NULL has no type"),
    (query("a, COUNT(*)", "FROM s GROUP BY a HAVING ▼COUNT(*) + 1 EMIT CHANGES;"), "HAVING needs a condition"),
    (
        query("a, COUNT(*)", "FROM s GROUP BY a HAVING ▼COUNT(*) > 'x' EMIT CHANGES;"),
        "cannot compare bigint with string",
    ),
]

EXPRESSIONS = [
    (value("▼9223372036854775808"), "Invalid numeric literal: 9223372036854775808"),
    (value("▼2E308"), "Number overflows DOUBLE: 2E308"),
    (value("CAST(t AS ▼NULL)"), "mismatched input 'NULL'"),
    (value("▼aa"), "did you mean A?"),
    (value("▼mixed"), "did you mean `Mixed`?"),
    (value("▼zzz"), "SELECT column 'ZZZ' cannot be resolved"),
    (value("▼other.a"), "OTHER is not a source of this query"),
    (query("a, MAX(▼s.b)", "FROM s x GROUP BY a EMIT CHANGES;"), "S is not a source"),
    (value("▼s.a.b"), "at most a source before it"),
    (value("▼FOO(a)"), "any functions with the name 'FOO'"),
    (value("▼SUBSTR(t, 1)"), "did you mean SUBSTRING?"),
    (value("▼RANDOM()"), "a batch may run twice"),
    (value("▼UUID()"), "a batch may run twice"),
    (value("▼UNIX_TIMESTAMP()"), "a batch may run twice"),
    (value("▼NOW()"), "a batch may run twice"),
    (value("▼current_timestamp"), "a batch may run twice"),
    (value("▼ABS()"), "ABS takes 1 arguments, not 0"),
    (value("▼SUBSTRING(t)"), "SUBSTRING takes 2 to 3 arguments"),
    (value("▼CONCAT(t)"), "CONCAT takes 2 or more arguments"),
    (value("ABS(▼t)"), "ABS needs a number as argument 1"),
    (value("LEN(▼a)"), "LEN needs a string as argument 1"),
    (value("SUBSTRING(t, ▼d)"), "SUBSTRING needs an integer as argument 2"),
    (value("ROUND(d, ▼a)"), "ROUND needs a literal"),
    (value("LEN(▼*)"), "LEN(*) is not possible"),
    (value("t || ▼a"), "needs a string as argument 2"),
    (value("COALESCE(a, ▼t)"), "COALESCE mixes int with string"),
    (value("COALESCE(▼NULL, NULL)"), "COALESCE has no type"),
    (value("GREATEST(▼f, f)"), "needs numbers or strings"),
    (value("a + ▼t"), "+ needs numbers, this is string"),
    (value("▼t + 1"), "join strings with ||"),
    (value("ARRAY[a, ▼t]"), "operator does not exist: INTEGER = STRING (T)"),
    (value("▼t[1]"), "needs an array or a map"),
    (value("▼t->x"), "-> needs a struct"),
    (value("PARSE_TIMESTAMP(t, ▼'EEE dd MMM yyyy')"), "pattern letter E is not supported where text is read"),
    (value("PARSE_DATE(t, ▼'yyyy-ww')"), "pattern letter w is not supported"),
    (value("PARSE_DATE(t, ▼'yyyy#MM')"), "pattern letter # is not supported"),
    (value("FORMAT_TIMESTAMP(FROM_UNIXTIME(a), ▼'yyyyTHH')"), "pattern letter T is not supported"),
    (value("▼STRUCT(`b` := 1, b := 2)"), "Duplicate field names"),
    (value("CASE WHEN f THEN STRUCT(`b` := 1) ELSE ▼STRUCT(b := 2) END"), "operator does not exist"),
    (value("▼ARRAY[]"), "cannot be empty"),
    (value("TRANSFORM(ARRAY[a], ▼(x, y) => x)"), "takes 1 values, not 2"),
    (value("- ▼t"), "- needs a number"),
    (value("▼CAST(f AS INT)"), "cannot cast boolean to int"),
    (value("CAST(a AS ▼FLOT)"), "unknown type FLOT"),
    (value("▼CAST(a AS DATE)"), "Cast of INTEGER to DATE is not supported"),
    (value("CAST(a ▼, INT)"), "expected AS"),
    (value("CASE ▼a WHEN 1 THEN 2 END"), "CASE with an operand"),
    (value("CASE WHEN f ▼1 END"), "expected THEN"),
    (value("CASE WHEN f THEN 1 ▼)"), "expected END"),
    (value("CASE WHEN ▼a THEN 1 END"), "WHEN needs a condition"),
    (value("CASE WHEN f THEN 1 ELSE ▼'x' END"), 'invalid input syntax for type INTEGER: "x"'),
    (value("'a' ▼'b'"), "expected )"),
    (value("▼9223372036854775808"), "too large for a bigint"),
    (value("▼1e999"), "too large for a double"),
    (value("▼" + "1" * 101), "more than 100 digits"),
    (value("▼0." + "1" * 39), "more than 38 digits"),
    (value("(" * 38 + "▼(a" + ")" * 39), "nested too deeply"),
    (query("a, ▼MAX(" + "+".join(["a"] * 2000) + ")"), "nested too deeply"),
    (value("CEIL(" * 12 + "▼CEIL(" + "CEIL(" * 5 + "d" + ")" * 18), "the expression is too large"),
    (where("▼a"), "WHERE needs a condition, this is int"),
    (where("▼NULL"), "WHERE needs a condition, this is null"),
    (where("f AND ▼a"), "AND needs conditions, this is int"),
    (where("NOT ▼a"), "NOT needs a condition"),
    (where("▼t < 1"), "cannot compare string with int"),
    (where("▼a = f"), "cannot compare int with boolean"),
    (where("a = ▼NULL"), "use IS NULL"),
    (where("a <> ▼NULL"), "use IS NULL"),
    (where("▼f < f"), "booleans have no order"),
    (where("a < b ▼< 3"), "expected GROUP BY, found <"),
    (where("▼a BETWEEN 1 AND 'x'"), "cannot compare int with string"),
    (where("a BETWEEN 1 ▼2"), "expected AND"),
    (where("a IN (1, ▼'x')"), 'Invalid Predicate: invalid input syntax for type INTEGER: "x"'),
    (where("a IN ▼b"), "expected ("),
    (where("a IN (▼)"), "expected an expression"),
    (where("▼a LIKE 'x'"), "LIKE needs a string"),
    (where("t LIKE ▼a ESCAPE '!'"), "LIKE needs a string as its pattern, this is int"),
    (where("t LIKE 'x' ESCAPE ▼'ab'"), "a literal of one character"),
    (where("t LIKE ▼'x!' ESCAPE '!'"), "ends with its escape character"),
    (where("a IS ▼1"), "expected NULL"),
    (where("a NOT ▼5"), "expected BETWEEN, IN or LIKE"),
    (where("a = ▼AND f"), "expected an expression"),
    (where("(a = 1 ▼GROUP"), "expected )"),
    (where("a = 1 ▼)"), "expected GROUP BY, found )"),
    (where("a = ▼;"), "expected an expression"),
]

PROJECTIONS = [
    (projected("k, a", "FROM s ▼GROUP BY a EMIT CHANGES;"), "query produces a TABLE"),
    (projected("k, a", "FROM s ▼HAVING a > 1 EMIT CHANGES;"), "HAVING needs GROUP BY"),
    (
        projected("k, t", properties="WITH (timestamp='t', ▼timestamp_format='EEE dd MMM yyyy')"),
        "pattern letter E is not supported where text is read",
    ),
    (
        projected("k, a", "FROM s ▼WINDOW TUMBLING (SIZE 1 HOUR) EMIT CHANGES;"),
        "WINDOW clause requires a GROUP BY clause",
    ),
    (projected("k, ▼COUNT(*)"), "COUNT requires a GROUP BY"),
    (projected("a").replace("SELECT", "▼SELECT"), "key missing from projection"),
    (projected("k, a", "FROM s PARTITION BY ▼b EMIT CHANGES;"), "key missing from projection"),
    (projected("k, a, b", "FROM s PARTITION BY a, ▼k EMIT CHANGES;"), "only supports a single field"),
    (projected("k, ▼k AS again, a"), "key K is selected twice"),
    (projected("k").replace("SELECT", "▼SELECT"), "no value column"),
    (projected("k, ▼x.*"), "X is not a source of this query"),
    (projected("k, a, ▼a"), "column A is in the result twice"),
    (projected("k, ▼NULL AS x"), "NULL has no type"),
    (projected("k, a", "FROM s EMIT ▼FINAL;"), "EMIT FINAL is only supported for windowed aggregations"),
    (projected("k, a", "FROM s EMIT CHANGES ▼LIMIT 3;"), "LIMIT is not supported"),
    (projected("k, a", "FROM s WHERE a = 1 ▼b;"), "expected EMIT CHANGES, found B"),
    (projected("k, a", properties="WITH (emit=▼'sometimes')"), "EMIT is 'commit' or 'every-record'"),
    (projected("k, a", properties="WITH (on_error=▼'fail')"), "ON_ERROR is 'dead-letter' or 'stop'"),
    (projected("k, a", properties="WITH (on_error=▼'stopp')"), "ON_ERROR is"),
    (projected("k, a", properties="WITH (on_error=▼1)"), "ON_ERROR needs a string"),
    (INSERTS + "INSERT INTO o WITH (on_error=▼'fail') SELECT k, a FROM s EMIT CHANGES;", "ON_ERROR is 'dead-letter'"),
    (
        STREAM + "CREATE STREAM p (k VARCHAR KEY) WITH (kafka_topic='in', value_format='json', ▼on_error='stop');",
        "unknown property ON_ERROR",
    ),
    (INSERTS + "INSERT INTO o ▼SELECT k, b FROM s EMIT CHANGES;", "column A of O is not selected"),
    (INSERTS + "INSERT INTO o ▼SELECT k, a, b FROM s EMIT CHANGES;", "O has no column B"),
    (INSERTS + "INSERT INTO o ▼SELECT k, b AS a FROM s EMIT CHANGES;", "column A is bigint, in O it is int"),
    (INSERTS + "INSERT INTO ▼oo SELECT k, a FROM s EMIT CHANGES;", "did you mean O?"),
    (INSERTS + "INSERT INTO ▼s SELECT * FROM s EMIT CHANGES;", "the query's own source"),
    (INSERTS + "INSERT INTO o WITH (query_id=▼'a b') SELECT k, a FROM s EMIT CHANGES;", "letters, digits and _"),
]
WINDOWS = [
    (query("a, COUNT(*)", f"FROM s {window} GROUP BY a EMIT CHANGES;"), fragment)
    for window, fragment in [
        ("WINDOW ▼TUBMLING (SIZE 1 DAY)", "did you mean TUMBLING?"),
        ("WINDOW TUMBLING (▼1 DAY)", "expected SIZE"),
        ("WINDOW TUMBLING (SIZE 1 ▼WEEK)", "expected a unit of time"),
        ("WINDOW TUMBLING (SIZE ▼0 DAYS)", "at least 1 millisecond"),
        ("WINDOW HOPPING (SIZE 1 HOUR▼)", "expected ,"),
        ("WINDOW HOPPING (SIZE 1 HOUR, ADVANCE BY ▼2 HOURS)", "at most its size"),
        ("WINDOW TUMBLING (SIZE 1 HOUR, RETENTION ▼1 HOUR, GRACE PERIOD 1 SECOND)", "RETENTION is shorter"),
        ("WINDOW TUMBLING (SIZE 1 HOUR, GRACE ▼1 SECOND)", "expected PERIOD"),
        ("▼WINDOW SESSION (1 HOUR)", "SESSION windows are not supported yet"),
        ("WINDOW TUMBLING (SIZE 1 HOUR ▼FOO 1 DAY)", "expected , or )"),
    ]
] + [
    (query("a, COUNT(*), ▼WINDOWSTART AS ws"), "only stand in SELECT of a windowed aggregation"),
    (query("a, COUNT(*), ▼WINDOWEND", "FROM s WINDOW TUMBLING (SIZE 1 DAY) GROUP BY a EMIT CHANGES;"), "reserved"),
    *(
        (query("a, COUNT(*)", f"FROM s WINDOW TUMBLING (SIZE 1 DAY) {rest} EMIT CHANGES;"), "a windowed aggregation")
        for rest in (
            "WHERE ▼windowstart > 3 GROUP BY a",
            "GROUP BY a, ▼WINDOWEND",
            "GROUP BY a HAVING MAX(▼WINDOWEND) > 1",
            "GROUP BY a HAVING ▼WINDOWSTART > 1",
        )
    ),
]

ALL = [
    pytest.param(marked, fragment, id=f"{group}-{index}")
    for group, cases in (
        ("statement", STATEMENTS),
        ("characters", CHARACTERS),
        ("stream", STREAMS),
        ("clause", CLAUSES),
        ("key", KEYS),
        ("aggregate", AGGREGATES),
        ("expression", EXPRESSIONS),
        ("projection", PROJECTIONS),
        ("window", WINDOWS),
    )
    for index, (marked, fragment) in enumerate(cases)
]


@pytest.mark.parametrize(("marked", "fragment"), ALL)
def test_a_broken_rule_is_named_with_its_place(marked: str, fragment: str) -> None:
    before, _, after = marked.partition("▼")
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    with pytest.raises(SqlError) as raised:
        parse_pipeline(before + after, pipeline="p")
    error = raised.value
    assert fragment in str(error)
    assert (line, column) == (error.line, error.column), str(error)
    assert (before + after).split("\n")[line - 1] == error.source_line


def test_the_error_shows_the_line_with_a_caret_and_the_nearest_name() -> None:
    text = "-- counts\n" + query("a, SUM(bb) AS total")
    with pytest.raises(SqlError) as raised:
        parse_pipeline(text, pipeline="p")
    assert (
        "line 4, column 34: SELECT column 'BB' cannot be resolved\n"
        "  4 | CREATE TABLE q  AS SELECT a, SUM(bb) AS total FROM s GROUP BY a EMIT CHANGES;\n"
        "    |                                  ^\n"
        "  hint: did you mean B?"
    ) == str(raised.value)


def test_a_long_line_is_shown_around_the_place() -> None:
    with pytest.raises(SqlError) as raised:
        parse_pipeline(" " * 500 + "CRATE" + "x" * 500, pipeline="p")
    _, shown, caret = str(raised.value).split("\n")[:3]
    assert shown[caret.index("^")] == "C"
    assert len(shown) < 140


def test_the_error_survives_pickling() -> None:
    with pytest.raises(SqlError) as raised:
        parse_pipeline("CRATE", pipeline="p")
    assert str(raised.value) == str(pickle.loads(pickle.dumps(raised.value)))


@pytest.mark.parametrize(("name", "tasks"), [("My-Pipe", 4), ("", 4), ("p", 0)])
def test_a_wrong_pipeline_name_or_task_count_is_the_callers_error(name: str, tasks: int) -> None:
    with pytest.raises(ValueError):
        parse_pipeline(query("a, COUNT(*)"), pipeline=name, default_tasks=tasks)
