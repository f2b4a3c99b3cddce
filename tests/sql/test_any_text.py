"""Any text whatsoever is a pipeline or a SqlError, and every pipeline's plans survive their JSON."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

import pipelines
from pipelines.plan import plan_hash, query_from_json, query_to_json
from pipelines.sql import Pipeline, SqlError, parse_pipeline

FLIGHTS = (Path(pipelines.__file__).parent / "examples" / "flights.sql").read_text()
STREAM = (
    "CREATE STREAM s (k VARCHAR KEY, a INT, b BIGINT, d DOUBLE, f BOOLEAN, m DECIMAL(10, 2))"
    " WITH (kafka_topic='in', value_format='json');\n"
)
VALID = (
    STREAM + "CREATE TABLE q WITH (kafka_topic='out', partitions=3, key_format='json', value_format='json') AS"
    " SELECT a, k || 'x' AS kx, COUNT(*), SUM(CASE WHEN d > 1.5 AND NOT f THEN b ELSE -1 END) / 2 AS s"
    " FROM s x WHERE x.a BETWEEN 1 AND 3 OR k LIKE 'a!%%' ESCAPE '!' GROUP BY a, k || 'x'"
    " HAVING MAX(CAST(m AS DOUBLE)) IS NOT NULL EMIT CHANGES; -- done\n"
)
PIECES = [
    "CREATE",
    "TABLE",
    "STREAM",
    "AS",
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "HAVING",
    "EMIT",
    "CHANGES",
    "WITH",
    "(",
    ")",
    ",",
    ";",
    ".",
    "*",
    "+",
    "-",
    "/",
    "%",
    "=",
    "<",
    ">",
    "<>",
    "||",
    "''",
    "'x'",
    "`",
    "`a`",
    "/*",
    "*/",
    "--",
    "1",
    "2.5",
    "1e9",
    "9223372036854775808",
    "a",
    "b",
    "k",
    "d",
    "f",
    "m",
    "s",
    "q",
    "NULL",
    "TRUE",
    "NOT",
    "AND",
    "OR",
    "IN",
    "IS",
    "LIKE",
    "BETWEEN",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "CAST",
    "SUM",
    "COUNT",
    "MAX",
    "AVG",
    "LEN",
    "SUBSTRING",
    "ROUND",
    "CEIL",
    "NULLIF",
    "DISTINCT",
    "ROWTIME",
    "A0",
    "kafka_topic",
    "key_format",
    "ARRAY",
    "MAP",
    "STRUCT",
    "TRANSFORM",
    "->",
    "=>",
    ":=",
    "KEY",
    "INT",
    "DECIMAL",
    '"',
    "[",
    "]",
    "{",
    "}",
    "$",
    "\\",
    "é",
    "\x00",
    "\n",
]


def read(text: str) -> Pipeline | None:
    """The pipeline, None for a SqlError whose place is in the text. Anything else fails the test."""
    try:
        pipeline = parse_pipeline(text, pipeline="p")
    except SqlError as error:
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        assert lines[error.line - 1].rstrip("\r") == error.source_line
        assert str(error).startswith(f"line {error.line}, column {error.column}: ")
        return None
    for query in pipeline.queries:
        assert query == query_from_json(query_to_json(query))
    return pipeline


def test_the_texts_to_mutate_are_valid() -> None:
    assert read(VALID) is not None
    assert read(FLIGHTS) is not None


@given(st.text())
@example("\ud800")
@example("'" * 3)
@example("/*/")
@example("(" * 100_000)
@example("CREATE TABLE t AS SELECT " + "(" * 100_000)
@example("CREATE TABLE t AS SELECT " + "NOT " * 100_000)
@example("CREATE TABLE t AS SELECT " + "- " * 100_000)
@example("CREATE TABLE t AS SELECT " + "CASE WHEN " * 10_000)
@example("CREATE TABLE t AS SELECT a" + " AND a" * 10_000)
@example("CREATE TABLE t AS SELECT 0x1F, N'x', 1., .5, 1.e5 FROM t")
@example("CREATE STREAM s (a DECIMAL(" + "9" * 5000 + ", 2))")
@settings(deadline=None)
def test_junk_is_a_sql_error(text: str) -> None:
    assert read(text) is None


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join))
@settings(deadline=None, max_examples=300)
def test_junk_of_our_words_is_a_sql_error_or_a_pipeline(text: str) -> None:
    read(text)
    read(STREAM + "CREATE TABLE q AS SELECT " + text)
    read(STREAM + "CREATE TABLE q AS SELECT a, COUNT(*) FROM s WHERE " + text + " GROUP BY a EMIT CHANGES;")


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_a_mutated_statement_is_a_sql_error_or_a_pipeline(data: st.DataObject) -> None:
    text = VALID
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.sampled_from(PIECES) | st.text(max_size=3)) + text[at + length :]
    read(text)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    """A number over the stream `s`."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["a", "b", "d", "m", "1", "-2", "2.50", "1e3", "rowtime", "LEN(k)"]))
    inner = expressions(depth=depth - 1)
    left, right = draw(inner), draw(inner)
    return draw(
        st.sampled_from(
            [
                f"({left} + {right})",
                f"{left} * {right} - {left}",
                f"- ({left})",
                f"{left} / {right}",
                f"COALESCE({left}, {right})",
                f"CASE WHEN {left} < {right} OR k IS NULL THEN {left} ELSE {right} END",
                f"CEIL({left})",
                f"ABS({left} % {right})",
                f"ARRAY[{left}, {right}][1]",
                f"MAP('k' := {left}, 'l' := {right})['k']",
                f"STRUCT(x := {left}, `y` := {right})->x",
                f"FILTER(ARRAY[{left}], x => x IS DISTINCT FROM {right})[-1]",
                f"REDUCE(ARRAY[{left}], {right}, (s, x) => s)",
            ]
        )
    )


@given(expressions(), st.sampled_from(["SUM", "AVG", "MIN", "MAX", "COUNT"]))
@settings(deadline=None)
def test_the_printed_statement_reads_back_as_the_same_plan(expression: str, function: str) -> None:
    statement = f"CREATE TABLE q AS SELECT a, {function}({expression}) FROM s GROUP BY a EMIT CHANGES;"
    query = parse_pipeline(STREAM + statement, pipeline="p").queries[0]
    again = parse_pipeline(STREAM + query.sql + ";", pipeline="p").queries[0]
    assert query == again
    assert plan_hash(query) == plan_hash(again)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@settings(deadline=None)
def test_any_string_literal_is_kept_in_the_printed_statement(text: str) -> None:
    literal = "'" + text.replace("'", "''") + "'"
    statement = f"CREATE TABLE q AS SELECT a, MAX({literal}) FROM s GROUP BY a EMIT CHANGES;"
    query = parse_pipeline(STREAM + statement, pipeline="p").queries[0]
    assert literal in query.sql
    assert query == parse_pipeline(STREAM + query.sql, pipeline="p").queries[0]
