"""Every statement of the dialect as a tree: what it holds, that its print reads back as the same, what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.sql import SqlError, parse_script, parse_statement, print_tree
from pipelines.sql import tree as t
from pipelines.sql.names import Name
from pipelines.sql.nodes import Number, Text, TypeName
from tests.sql.test_any_text import PIECES

# As written, and as printed: words in upper case, one space, names as they are meant.
PRINTED = [
    ("create  stream s", None),
    (
        "create or replace stream if not exists s (id int key, `Mixed` string, Camel double) with (kafka_topic='x')",
        "CREATE OR REPLACE STREAM IF NOT EXISTS S (id INT KEY, `Mixed` STRING, Camel DOUBLE) WITH (KAFKA_TOPIC = 'x')",
    ),
    (
        "CREATE TABLE t (k VARCHAR PRIMARY KEY, h BYTES HEADER('trace'), a ARRAY<MAP<STRING, STRUCT<x INT, y DECIMAL(4, 2)>>>);",
        "CREATE TABLE T (k VARCHAR PRIMARY KEY, h BYTES HEADER('trace'),"
        " a ARRAY<MAP<STRING, STRUCT<X INT, Y DECIMAL(4, 2)>>>)",
    ),
    ("CREATE STREAM s (h ARRAY<STRUCT<k STRING, v BYTES>> HEADERS)", None),
    (
        "create stream o with (partitions=3, emit='every-record') as select *, s.a + 1 b from s x where a is not null"
        " partition by a emit changes;",
        "CREATE STREAM O WITH (PARTITIONS = 3, EMIT = 'every-record') AS SELECT *, S.A + 1 AS B FROM S X"
        " WHERE A IS NOT NULL PARTITION BY A EMIT CHANGES",
    ),
    (
        "CREATE TABLE q AS SELECT a, COUNT(*) FROM s WINDOW HOPPING (SIZE 1 HOUR, ADVANCE BY 10 minutes, RETENTION 7 DAYS,"
        " GRACE PERIOD 30 SECONDS) GROUP BY a EMIT FINAL LIMIT 3",
        "CREATE TABLE Q AS SELECT A, COUNT(*) FROM S WINDOW HOPPING (SIZE 1 HOURS, ADVANCE BY 10 MINUTES,"
        " RETENTION 7 DAYS, GRACE PERIOD 30 SECONDS) GROUP BY A EMIT FINAL LIMIT 3",
    ),
    ("SELECT a FROM s WINDOW SESSION (5 SECONDS) GROUP BY a", "SELECT A FROM S WINDOW SESSION (5 SECONDS) GROUP BY A"),
    (
        "insert into o with (query_id='x') select x.* from s x emit changes",
        "INSERT INTO O WITH (QUERY_ID = 'x') SELECT X.* FROM S X EMIT CHANGES",
    ),
    (
        "INSERT INTO s (a, `b`) VALUES (-1, 'it''s', NULL, CAST('1.5' AS DECIMAL(3, 1)))",
        "INSERT INTO S (A, `b`) VALUES (-1, 'it''s', NULL, CAST('1.5' AS DECIMAL(3, 1)))",
    ),
    ("insert into s values (TRUE, .5)", "INSERT INTO S VALUES (TRUE, 0.5)"),
    ("drop stream if exists s delete topic", "DROP STREAM IF EXISTS S DELETE TOPIC"),
    ("drop table t", "DROP TABLE T"),
    (
        "alter stream s add a int, add column `b` array<string>",
        "ALTER STREAM S ADD COLUMN a INT, ADD COLUMN `b` ARRAY<STRING>",
    ),
    ("terminate csas_o_3", "TERMINATE CSAS_O_3"),
    ("terminate all", "TERMINATE ALL"),
    ("pause `csas_o`", "PAUSE CSAS_O"),
    ("resume all", "RESUME ALL"),
    ("list streams extended", "SHOW STREAMS EXTENDED"),
    ("show all topics", "SHOW TOPICS"),
    ("show queries", "SHOW QUERIES"),
    ("show properties", "SHOW PROPERTIES"),
    ("show functions", "SHOW FUNCTIONS"),
    ("list tables", "SHOW TABLES"),
    ("show variables", "SHOW VARIABLES"),
    ("describe s", "DESCRIBE S"),
    ("describe s extended", "DESCRIBE S EXTENDED"),
    ("describe function len", "DESCRIBE FUNCTION LEN"),
    ("describe streams extended", "SHOW STREAMS EXTENDED"),
    ("explain csas_o", "EXPLAIN CSAS_O"),
    ("explain select a from s where not (a = 1 or b) and c != 2", "EXPLAIN SELECT A FROM S WHERE NOT (A = 1 OR B) AND C <> 2"),
    ("set 'a.b' = 'c'", "SET 'a.b' = 'c'"),
    ("unset 'a.b'", "UNSET 'a.b'"),
    ("define Name = 'x''y'", "DEFINE Name = 'x''y'"),
    ("undefine Name", "UNDEFINE Name"),
    (
        "select case when a > - -1 then t like 'a!%' escape '!' else b not in (1, 2) end, cast(a as varchar) from t"
        " where k not between 'a' and 'b' or k = 'c' and +a < 1e3",
        "SELECT CASE WHEN A > - -1 THEN T LIKE 'a!%' ESCAPE '!' ELSE B NOT IN (1, 2) END, CAST(A AS VARCHAR) FROM T"
        " WHERE K NOT BETWEEN 'a' AND 'b' OR K = 'c' AND +A < 1e3",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "printed"), [case for case in PRINTED if case[1]])
def test_a_statement_prints_as_it_is_meant_and_reads_back(text: str, printed: str) -> None:
    statement = parse_statement(text).statement
    assert printed == print_tree(statement)
    assert statement == parse_statement(printed).statement


def test_a_tree_holds_what_the_statement_says() -> None:
    text = "CREATE TABLE t (k INT PRIMARY KEY, Total DECIMAL(4, 2)) WITH (kafka_topic='x', partitions=-1);"
    expected = t.CreateSource(
        "TABLE",
        Name("T", "t", 13),
        (
            t.ColumnDef(Name("K", "k", 16), "k", TypeName("INT"), "PRIMARY KEY"),
            t.ColumnDef(Name("TOTAL", "Total", 35), "Total", TypeName("DECIMAL", (4, 2))),
        ),
        t.Properties((t.Property("KAFKA_TOPIC", Text("x")), t.Property("PARTITIONS", Number("-1")))),
    )
    found = parse_statement(text).statement
    assert expected == found
    assert isinstance(found, t.CreateSource)
    assert found.columns is not None
    assert ["k", "Total"] == [text[column.at :].split(" ")[0] for column in found.columns]


REFUSED = [
    ("ALTER ▼STREM s ADD COLUMN a INT;", "did you mean STREAM?"),
    ("ALTER STREAM s ▼DROP COLUMN a;", "expected ADD"),
    ("ALTER STREAM s ADD a INT ▼KEY;", "expected ; found KEY"),
    ("▼DORP STREAM s;", "did you mean DROP?"),
    ("▼x;", "expected a statement, found X"),
    ("DROP ▼STREM s;", "did you mean STREAM?"),
    ("DROP STREAM s ▼DELETE;", "expected ; found DELETE"),
    ("DROP STREAM ▼;", "expected a stream"),
    ("SHOW ▼STREAM;", "did you mean STREAMS?"),
    ("SET ▼a = 'b';", "a property in 'quotes'"),
    ("SET 'a' = ▼1;", "a value in 'quotes'"),
    ("INSERT INTO s (▼SELECT a FROM s);", "SELECT is a reserved word"),
    ("INSERT INTO s (a) ▼SELECT a FROM s;", "expected VALUES, found SELECT"),
    ("INSERT INTO s ▼;", "expected VALUES or SELECT"),
    ("TERMINATE ▼;", "expected a query's id, or ALL"),
    ("EXPLAIN ▼;", "expected a statement or a query's id"),
    ("CREATE STREAM s (a ARRAY<▼);", "expected a type"),
    ("CREATE STREAM s (a INT PRIMARY ▼x);", "expected KEY"),
    ("CREATE STREAM s (a BYTES HEADER▼);", "expected ("),
    ("CREATE STREAM s ▼(a INT) WITH (x=1) AS SELECT a FROM s EMIT CHANGES;", "a query gives the columns itself"),
    ("EXPLAIN ▼EXPLAIN SHOW STREAMS;", "EXPLAIN explains another statement"),
    ("SELECT a FROM s LIMIT ▼x;", "expected a number"),
    ("SHOW STREAMS;\n  -- second\n  DROP ▼x;", "expected STREAM or TABLE"),
    ("DEFINE a = 'STREAMS'; SHOW ${a}; SHOW ▼${b};", "unknown variable b"),
    ("DEFINE long = 'SHOW'; ${long} ▼x;", "expected one of"),
    ("DEFINE bad = 'nope'; SHOW ▼${bad} ;", "expected one of"),
]


@pytest.mark.parametrize(("marked", "fragment"), REFUSED)
def test_a_wrong_statement_is_named_with_its_place(marked: str, fragment: str) -> None:
    before, _, after = marked.partition("▼")
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    with pytest.raises(SqlError) as raised:
        list(parse_script(before + after))
    assert fragment in str(raised.value)
    assert (line, column) == (raised.value.line, raised.value.column), str(raised.value)


class TestScripts:
    def test_a_script_is_its_statements_with_comments_and_empty_ones_left_out(self) -> None:
        script = "-- one; not two\nSHOW STREAMS; ;\n/* ; */ DROP TABLE t -- ;\n;;\n  SHOW TABLES"
        assert [("SHOW STREAMS", 2), ("DROP TABLE T", 3), ("SHOW TABLES", 5)] == [
            (print_tree(parsed.statement), parsed.line) for parsed in parse_script(script)
        ]

    def test_a_semicolon_in_a_string_ends_nothing(self) -> None:
        (parsed,) = parse_script("INSERT INTO s VALUES ('a;b');")
        assert "INSERT INTO s VALUES ('a;b')" == parsed.text

    def test_variables_stand_for_their_values_until_undefined(self) -> None:
        variables = {"n": "3"}
        script = "DEFINE t='x''y'; INSERT INTO s VALUES ('${t}', ${n}); UNDEFINE t;"
        with pytest.raises(SqlError, match="runs into what follows"):
            list(parse_script(script, variables))  # the quote in the value ends the string, as in ksqlDB
        script = "DEFINE t='x'; INSERT INTO s VALUES ('${t}', ${n}); UNDEFINE t; SHOW TABLES;"
        texts = [parsed.text for parsed in parse_script(script, variables)]
        assert "INSERT INTO s VALUES ('x', 3)" == texts[1]
        assert {"n": "3"} == variables

    def test_statements_before_an_error_are_given_first(self) -> None:
        reading = parse_script("SHOW STREAMS; NOPE;")
        assert t.Show("STREAMS") == next(reading).statement
        with pytest.raises(SqlError):
            next(reading)


WORDS = [
    *PIECES,
    *[
        "DROP",
        "SHOW",
        "LIST",
        "STREAMS",
        "TABLES",
        "INSERT",
        "INTO",
        "VALUES",
        "IF",
        "EXISTS",
        "REPLACE",
        "DELETE",
        "TOPIC",
        "TERMINATE",
        "PAUSE",
        "ALL",
        "SET",
        "UNSET",
    ],
    *[
        "DEFINE",
        "EXPLAIN",
        "DESCRIBE",
        "EXTENDED",
        "FUNCTION",
        "WINDOW",
        "TUMBLING",
        "SIZE",
        "DAYS",
        "PARTITION",
        "PRIMARY",
        "HEADERS",
        "ARRAY",
        "MAP",
    ],
    "${",
    "${a}",
    "emit='every-record'",
]


def read(text: str) -> Iterator[t.Statement]:
    """The statements of the text; a SqlError whose place is in the text ends them. Anything else fails the test."""
    try:
        for parsed in parse_script(text, {"a": "b"}):
            yield parsed.statement
    except SqlError as error:
        lines = text.split("\n")
        assert lines[error.line - 1].rstrip("\r") == error.source_line
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1


@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join) | st.text())
@example("EXPLAIN " * 5_000)
@example("CREATE STREAM s (a " + "ARRAY<" * 5_000)
@example(";" * 10_000)
@example("\ud800; ${a")
@settings(deadline=None, max_examples=400)
def test_junk_is_a_sql_error_or_statements_that_print_and_read_back(text: str) -> None:
    for statement in read(text):
        assert statement == parse_statement(print_tree(statement)).statement


@given(st.data())
@settings(deadline=None, max_examples=600)
def test_a_mutated_statement_is_a_sql_error_or_prints_and_reads_back(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([text for text, printed in PRINTED if printed]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(st.sampled_from(WORDS) | st.text(max_size=2))
        text = f"{text[:at]} {piece} {text[at + data.draw(st.integers(0, 8)) :]}"
    for statement in read(text):
        assert statement == parse_statement(print_tree(statement)).statement
