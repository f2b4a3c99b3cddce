"""What plans the statements make."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import pipelines
from pipelines.plan import Aggregate, Column, GroupKey, Output, Query, Source, plan_hash, query_from_json, query_to_json
from pipelines.sql import Pipeline, SqlError, parse_pipeline
from pipelines.sql.names import HASH_LENGTH
from statestore.spaces.base import OWN_SPACES

FLIGHTS = Path(pipelines.__file__).parent / "examples" / "flights.sql"
STRINGS = ("carrier", "tailnum", "origin", "dest", "time_hour")
FIELDS = (
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier flight tailnum origin"
    " dest air_time distance hour minute time_hour"
)
FLIGHTS_SOURCE = Source(
    "FLIGHTS",
    "flights",
    "json",
    tuple(Column(f.upper(), f, "string" if f in STRINGS else "int") for f in FIELDS.split()),
)
LATE = "CASE WHEN (`DEP_DELAY` > 15) THEN 1 ELSE 0 END"
# The share is a division of doubles, which by zero is infinite.
LATE_SHARE = (
    "transform(array(named_struct('a', CAST(`A5` AS DOUBLE), 'b', CAST(`A1` AS DOUBLE))), __d -> CASE"
    " WHEN __d.b = 0 THEN CASE WHEN isnan(__d.a) THEN __d.a WHEN __d.a > 0 THEN DOUBLE('Infinity')"
    " WHEN __d.a < 0 THEN DOUBLE('-Infinity') WHEN __d.a = 0 THEN DOUBLE('NaN') END ELSE __d.a / __d.b END)[0]"
)
STREAM = (
    "CREATE STREAM s (k VARCHAR KEY, a INT, b BIGINT, d DOUBLE, f BOOLEAN, t VARCHAR, m DECIMAL(10, 2), `Mixed` INT,"
    " `date` VARCHAR, Camel INT) WITH (kafka_topic='in', value_format='json');"
)


def one(select: str, rest: str = "FROM s GROUP BY a EMIT CHANGES;", properties: str = "", tasks: int = 4) -> Query:
    text = f"{STREAM} CREATE TABLE q {properties} AS SELECT {select} {rest}"
    return parse_pipeline(text, pipeline="p", default_tasks=tasks).queries[0]


class TestFlights:
    def test_carrier_delays(self) -> None:
        (carriers, _) = parse_pipeline(FLIGHTS.read_text(), pipeline="flights").queries
        assert (
            Query(
                name="carrier_delays",
                sql=carriers.sql,
                source=FLIGHTS_SOURCE,
                where=None,
                group_by=(GroupKey("CARRIER", "`CARRIER`", "string"),),
                aggregates=(
                    Aggregate("A0", "count_all", None, "bigint"),
                    Aggregate("A1", "count", "`DEP_DELAY`", "bigint"),
                    Aggregate("A2", "avg", "`DEP_DELAY`", "bigint"),
                    Aggregate("A3", "max", "`DEP_DELAY`", "int"),
                    Aggregate("A4", "min", "`DEP_DELAY`", "int"),
                    Aggregate("A5", "sum", LATE, "bigint"),
                    Aggregate("A6", "sum", "`DISTANCE`", "bigint"),
                ),
                having=None,
                outputs=(
                    Output("FLIGHTS", "`A0`"),
                    Output("DEPARTED", "`A1`"),
                    Output("MEAN_DELAY", "`A2`"),
                    Output("WORST_DELAY", "`A3`"),
                    Output("BEST_DELAY", "`A4`"),
                    Output("LATE", "`A5`"),
                    Output("LATE_SHARE", LATE_SHARE),
                    Output("TOTAL_DISTANCE", "`A6`"),
                ),
                key_format="kafka",
                output_topic="flights-carrier_delays",
                output_partitions=4,
                tasks=4,
            )
            == carriers
        )

    def test_route_days(self) -> None:
        pipeline = parse_pipeline(FLIGHTS.read_text(), pipeline="flights")
        assert Pipeline("flights", (FLIGHTS_SOURCE,), pipeline.queries) == pipeline
        routes = pipeline.queries[1]
        assert (
            Query(
                name="route_days",
                sql="CREATE TABLE ROUTE_DAYS WITH (KEY_FORMAT = 'json') AS SELECT ORIGIN, DEST, YEAR, MONTH, DAY, COUNT(*) AS"
                " FLIGHTS, AVG(ARR_DELAY) AS MEAN_ARR_DELAY, MAX(ARR_DELAY) AS WORST_ARR_DELAY FROM FLIGHTS GROUP BY"
                " ORIGIN, DEST, YEAR, MONTH, DAY EMIT CHANGES",
                source=FLIGHTS_SOURCE,
                where=None,
                group_by=(
                    GroupKey("ORIGIN", "`ORIGIN`", "string"),
                    GroupKey("DEST", "`DEST`", "string"),
                    GroupKey("YEAR", "`YEAR`", "int"),
                    GroupKey("MONTH", "`MONTH`", "int"),
                    GroupKey("DAY", "`DAY`", "int"),
                ),
                aggregates=(
                    Aggregate("A0", "count_all", None, "bigint"),
                    Aggregate("A1", "avg", "`ARR_DELAY`", "bigint"),
                    Aggregate("A2", "max", "`ARR_DELAY`", "int"),
                ),
                having=None,
                outputs=(
                    Output("FLIGHTS", "`A0`"),
                    Output("MEAN_ARR_DELAY", "`A1`"),
                    Output("WORST_ARR_DELAY", "`A2`"),
                ),
                key_format="json",
                output_topic="flights-route_days",
                output_partitions=4,
                tasks=4,
            )
            == routes
        )


class TestNames:
    def test_a_column_keeps_its_name_as_written_for_json(self) -> None:
        columns = {c.name: c for c in one("a, COUNT(*)").source.columns}
        assert Column("K", "k", "string", key=True) == columns["K"]
        assert Column("CAMEL", "Camel", "int") == columns["CAMEL"]
        assert Column("Mixed", "Mixed", "int") == columns["Mixed"]
        assert Column("date", "date", "string") == columns["date"]
        assert "decimal(10,2)" == columns["M"].type

    def test_words_that_are_types_elsewhere_may_name_columns(self) -> None:
        text = (
            "CREATE STREAM s (date VARCHAR, time INT, year INT, interval INT, key INT KEY) WITH (kafka_topic='x',"
            " value_format='json'); CREATE TABLE q AS SELECT date, MAX(time + interval) m, MIN(key) FROM s"
            " GROUP BY date EMIT CHANGES;"
        )
        query = parse_pipeline(text, pipeline="p").queries[0]
        assert (GroupKey("DATE", "`DATE`", "string"),) == query.group_by
        assert "(`TIME` + `INTERVAL`)" == query.aggregates[0].argument

    def test_values_without_alias_are_numbered_and_pass_over_taken_names(self) -> None:
        query = one("a, COUNT(*), SUM(b) AS ksql_col_1, MAX(d), MIN(d) + 1")
        assert ["KSQL_COL_0", "KSQL_COL_1", "KSQL_COL_2", "KSQL_COL_3"] == [o.name for o in query.outputs]

    def test_the_table_names_its_query_store_and_topic(self) -> None:
        query = one("a, COUNT(*)", properties="WITH (kafka_topic='My.Topic-1', partitions=7)", tasks=3)
        assert ("q", "q", "My.Topic-1", 7, 3) == (
            query.name,
            query.store,
            query.output_topic,
            query.output_partitions,
            query.tasks,
        )
        assert ("p-q", 3) == (one("a, COUNT(*)", tasks=3).output_topic, one("a, COUNT(*)", tasks=3).output_partitions)

    def test_a_column_may_be_qualified_by_the_source_or_its_alias(self) -> None:
        plain = one("a, SUM(b)")
        assert replace(plain, sql="") == replace(one("s.a, SUM(s.b)", "FROM s GROUP BY s.a EMIT CHANGES;"), sql="")
        assert replace(plain, sql="") == replace(one("x.a, SUM(b)", "FROM s AS x GROUP BY x.a EMIT CHANGES;"), sql="")

    @pytest.mark.parametrize("name", ["checkpoint", "`Checkpoint`", "default", "`DEFAULT`"])
    def test_a_table_may_be_called_as_no_store_may(self, name: str) -> None:
        text = f"{STREAM} CREATE TABLE {name} AS SELECT a, COUNT(*) FROM s GROUP BY a EMIT CHANGES;"
        (query,) = parse_pipeline(text, pipeline="p").queries
        word = name.strip("`").lower()
        assert re.fullmatch(rf"{word}_[0-9a-f]{{{HASH_LENGTH}}}", query.store)
        assert f"p-{query.store}" == query.output_topic

    @pytest.mark.parametrize("name", sorted(OWN_SPACES))
    def test_an_insert_may_not_be_called_so(self, name: str) -> None:
        text = f"{STREAM} CREATE STREAM o AS SELECT k, a FROM s; INSERT INTO o WITH (query_id='{name}') SELECT k, a FROM s;"
        with pytest.raises(SqlError, match=f"must not be called {name}"):
            parse_pipeline(text, pipeline="p")


class TestGrouping:
    def test_a_group_expression_is_named_by_the_item_that_equals_it(self) -> None:
        query = one("COUNT(*), (A % 10) AS bucket, UCASE(t)", "FROM s GROUP BY a % 10, UCASE(t) EMIT CHANGES;", JSON)
        assert (
            GroupKey("BUCKET", "(`A` % 10)", "int"),
            GroupKey("KSQL_COL_1", "upper(`T`)", "string"),
        ) == query.group_by
        assert (Output("KSQL_COL_0", "`A0`"),) == query.outputs

    def test_values_and_having_may_use_parts_that_equal_a_group_expression(self) -> None:
        query = one(
            "a % 10 AS bucket, (a % 10) * 2 + COUNT(*) AS x",
            "FROM s GROUP BY a % 10 HAVING a % 10 > 3 AND COUNT(*) > 1 EMIT CHANGES;",
        )
        assert (Output("X", "((`BUCKET` * 2) + `A0`)"),) == query.outputs
        assert "((`BUCKET` > 3) AND (`A0` > 1))" == query.having

    def test_literals_are_not_taken_for_an_equal_group_key(self) -> None:
        query = one("1 AS one, COUNT(*) AS n", "FROM s GROUP BY 1 HAVING COUNT(*) > 1 EMIT CHANGES;")
        assert (GroupKey("ONE", "CAST(1 AS INT)", "int"),) == query.group_by
        assert "(`A0` > 1)" == query.having

    def test_as_value_copies_a_key_into_the_value(self) -> None:
        query = one("a, AS_VALUE(a) AS copy, COUNT(*) AS n")
        assert (Output("COPY", "(`A`)"), Output("N", "`A0`")) == query.outputs

    @pytest.mark.parametrize(
        ("expression", "type_"),
        [
            ("a", "int"),
            ("b", "bigint"),
            ("t", "string"),
            ("a + b", "bigint"),
            ("a / 2", "int"),
            ("LEN(t)", "int"),
            ("ROUND(d)", "bigint"),
            ("rowtime / 60000", "bigint"),
            ("CASE WHEN f THEN a ELSE b END", "bigint"),
        ],
    )
    def test_kafka_keys_have_their_type(self, expression: str, type_: str) -> None:
        query = one(f"{expression} AS x, COUNT(*)", f"FROM s GROUP BY {expression} EMIT CHANGES;")
        assert (type_, "kafka") == (query.group_by[0].type, query.key_format)

    def test_json_keys_hold_booleans_and_decimals(self) -> None:
        query = one("f, m, COUNT(*)", "FROM s GROUP BY f, m EMIT CHANGES;", JSON)
        assert ["boolean", "decimal(10,2)"] == [key.type for key in query.group_by]


class TestAggregates:
    def test_equal_calls_share_one_entry(self) -> None:
        query = one("a, SUM(b) / COUNT(*) AS x, sum((B)) AS y", "FROM s GROUP BY a HAVING Count( * ) > 1 EMIT CHANGES;")
        assert (
            Aggregate("A0", "sum", "`B`", "bigint"),
            Aggregate("A1", "count_all", None, "bigint"),
        ) == query.aggregates
        assert (Output("X", "(`A0` div `A1`)"), Output("Y", "`A0`")) == query.outputs
        assert "(`A1` > 1)" == query.having

    def test_a_decimal_is_averaged_as_double(self) -> None:
        assert "CAST(`M` AS DOUBLE)" == one("a, AVG(m)").aggregates[0].argument

    def test_rowtime_is_the_records_time(self) -> None:
        assert Aggregate("A0", "max", "`ROWTIME`", "bigint") == one("a, MAX(rowtime) AS last").aggregates[0]


class TestComparisonWithNull:
    """ksqlDB's comparison with NULL is false; only where that differs from NULL does the text say so."""

    def test_conditions_that_let_rows_through_stay_plain(self) -> None:
        query = one("a, COUNT(*)", "FROM s WHERE (a > 1 AND t LIKE 'x%') OR b IN (1, 2) GROUP BY a EMIT CHANGES;")
        assert "(((`A` > 1) AND (`T` LIKE 'x%')) OR (`B` IN (CAST(1 AS BIGINT), CAST(2 AS BIGINT))))" == query.where

    def test_negated_and_computed_comparisons_are_false_for_null(self) -> None:
        query = one("a, MAX(CAST(a > 1 AS VARCHAR))", "FROM s WHERE NOT a = 1 GROUP BY a EMIT CHANGES;")
        assert "(NOT coalesce((`A` = 1), false))" == query.where
        assert "CAST(coalesce((`A` > 1), false) AS STRING)" == query.aggregates[0].argument


class TestHash:
    def test_space_comments_and_case_of_words_do_not_change_the_plan(self) -> None:
        first = one(
            "a, SUM(b) AS x, - -d * 2, COUNT(*)".replace("- -d", "MAX(- -d)"),
            "FROM s WHERE t = 'It''s' GROUP BY a EMIT CHANGES;",
        )
        second = one(
            "A,sum( B )as X /* ; */,max(- - D)*2 ,\n count(*) -- n\n",
            "from S where T='It''s'\n\tgroup  by A emit CHANGES;",
        )
        assert plan_hash(first) == plan_hash(second)
        assert "MAX(- -D) * 2" in first.sql

    def test_the_same_text_twice_gives_the_same_hash(self) -> None:
        texts = FLIGHTS.read_text()
        hashes = [[plan_hash(q) for q in parse_pipeline(texts, pipeline="f").queries] for _ in range(2)]
        assert hashes[0] == hashes[1]

    def test_another_expression_gives_another_hash(self) -> None:
        assert plan_hash(one("a, SUM(b)")) != plan_hash(one("a, SUM(b + 1)"))

    def test_on_error_is_in_the_plan_where_it_is_given_and_leaves_other_plans_alone(self) -> None:
        plain, stopping = one("a, SUM(b)"), one("a, SUM(b)", properties="WITH (on_error='STOP')")
        assert ("", "stop") == (plain.on_error, stopping.on_error)
        assert "on_error" not in query_to_json(plain)
        assert stopping == query_from_json(query_to_json(stopping))
        (_, inserting) = parse_pipeline(
            f"{STREAM} CREATE STREAM o WITH (on_error='stop') AS SELECT k, a FROM s;"
            " INSERT INTO o WITH (query_id='i', on_error='dead-letter') SELECT k, a FROM s WHERE a > 1;",
            pipeline="p",
        ).queries
        assert inserting.on_error == "dead-letter"

    def test_the_printed_statement_reads_back_as_the_same_plan(self) -> None:
        query = one("a, SUM(CASE WHEN NOT (b > -1 OR `Mixed` <> 3) THEN -b ELSE 0 END) - 1 AS `x y`, COUNT(*)")
        again = parse_pipeline(f"{STREAM}{query.sql};", pipeline="p").queries[0]
        assert query == again


JSON = "WITH (key_format='json')"
