"""Statements against a broker, as one person's session: definitions, queries, rows, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ops import control
from ops.environment import driver_environment
from pipelines.console.executor import MetastoreExecutor
from pipelines.console.result import Result
from pipelines.console.session import Session
from pipelines.engine.spark import start_session
from pipelines.metastore.drift import find_drift, repair
from pipelines.metastore.embedded import execute, metastore
from pipelines.metastore.service import Metastore
from pipelines.metastore.statement import deploy_script, start_pipeline
from pipelines.registry import Registry
from pipelines.settings import Settings
from pipelines.sql import SqlError
from statestore.errors import InvalidConfig, InvalidInput
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import Reader
from tests.support.feed import read_topic
from tests.support.pipeline import settings_for
from tests.support.present import present
from tests.support.waiting import await_


class Shell:
    """A session that gives the last answer's rows as dicts."""

    def __init__(self, session: Session, unique: str) -> None:
        self.session, self.unique = session, unique

    def __call__(self, text: str) -> list[dict[str, Any]]:
        answer = self.result(text)
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

    def result(self, text: str) -> Result:
        return list(self.session.run(text.replace("@", self.unique)))[-1][1]


@pytest.fixture
def spark(settings: Settings) -> Iterator[SparkSession]:
    session = start_session(settings, "console", settings.home / "spark")
    yield session
    session.stop()


@pytest.fixture
def sql(settings: Settings, unique: str, spark: SparkSession) -> Iterator[Shell]:
    registry = Registry(settings.metastore)

    def end(pipeline: str) -> None:
        control.end_driver(registry, pipeline)

    yield Shell(Session(MetastoreExecutor(settings, registry, end=end, spark=lambda: spark)), unique)
    registry.close()


@dataclass
class Bare:
    """A session without Spark and drivers; `ended` are the pipelines whose driver was to end."""

    sql: Shell
    settings: Settings
    ended: list[str]


@pytest.fixture
def bare(tmp_path: Path, kafka: str, unique: str) -> Iterator[Bare]:
    settings = settings_for(tmp_path / "home", kafka, tasks=1)
    registry, ended = Registry(settings.metastore), list[str]()
    executor = MetastoreExecutor(settings, registry, end=ended.append, spark=lambda: pytest.fail("no Spark is needed"))
    yield Bare(Shell(Session(executor), unique), settings, ended)
    registry.close()


def run_until_end(pipeline: str, settings: Settings) -> int:
    """Run the pipeline's driver over what is there; gives the number of records it read."""
    command = [sys.executable, "-m", "pipelines.driver", pipeline, "--until-end"]
    done = subprocess.run(command, env=driver_environment(settings), capture_output=True, text=True, timeout=200)
    assert 0 == done.returncode, done.stderr[-2000:]
    return int(json.loads(done.stdout)["records"])


SETUP = """
CREATE STREAM @in (shop VARCHAR KEY, item VARCHAR, price DECIMAL(6, 2), n INT)
  WITH (kafka_topic='@in', value_format='json', partitions=2);
CREATE STREAM @large AS SELECT shop, item, n FROM @in WHERE n > 1 EMIT CHANGES;
CREATE TABLE @totals AS SELECT shop, COUNT(*) AS orders, SUM(n) AS pieces, SUM(n) * 2 AS twice FROM @in
  GROUP BY shop EMIT CHANGES;
"""


@pytest.mark.timeout(300)
def test_a_session_from_definitions_to_rows(sql: Shell, settings: Settings, kafka: str, unique: str) -> None:
    with pytest.raises(InvalidConfig, match="topic does not exist"):
        sql("CREATE STREAM @x (a INT) WITH (kafka_topic='@nowhere', value_format='json');")
    sql.result(SETUP)
    name = unique.upper()
    assert [{"name": f"{name}IN", "query": ""}, {"name": f"{name}LARGE", "query": f"CSAS_{name}LARGE"}] == [
        {"name": row["name"], "query": row["query"]} for row in sql("SHOW STREAMS;")
    ]

    # Definitions that exist.
    with pytest.raises(SqlError, match="exists already"):
        sql("CREATE STREAM @in (a INT) WITH (kafka_topic='@in', value_format='json');")
    told = sql.result("CREATE STREAM IF NOT EXISTS @in (a INT) WITH (kafka_topic='@in', value_format='json');")
    assert "exists already" in told.message
    plain = "CREATE STREAM @plain (shop VARCHAR KEY, n INT) WITH (kafka_topic='@in');"
    with pytest.raises(SqlError, match=r"default\.format\.value"):
        sql(plain)
    sql(f"SET 'ksql.persistence.default.format.value' = 'JSON'; {plain}")
    sql("ALTER STREAM @plain ADD COLUMN extra STRING;")
    assert "EXTRA" in str(sql("DESCRIBE @plain;"))
    sql("DROP STREAM @plain;")
    with pytest.raises(SqlError, match="changed, missing or reordered"):
        sql("CREATE OR REPLACE STREAM @in (a INT) WITH (kafka_topic='@in', value_format='json');")

    # Rows, with a variable, and as a driver that runs to the end makes results of them.
    for shop, n in (("s1", 1), ("s2", 5), ("s1", 7)):
        sql(f"DEFINE n = '{n}'; INSERT INTO @in (shop, item, price, n) VALUES ('{shop}', 'tea', 1.5, ${{n}});")
    assert {b"s1", b"s2"} == {message.key() for message in read_topic(kafka, f"{unique}in")}
    assert {"item": "tea", "price": 1.5, "n": 5} in [
        json.loads(present(m.value())) for m in read_topic(kafka, f"{unique}in")
    ]
    with pytest.raises(SqlError, match="column N is int"):
        sql("INSERT INTO @in (shop, n) VALUES ('x', 1.5);")
    control_ids = [row["query"] for row in sql("SHOW QUERIES;")]
    assert [f"CSAS_{name}LARGE", f"CTAS_{name}TOTALS"] == control_ids
    assert 3 == run_until_end(f"csas_{unique}large", settings)
    large = read_topic(kafka, f"{name}LARGE")
    assert [(b"s1", {"ITEM": "tea", "N": 7}), (b"s2", {"ITEM": "tea", "N": 5})] == sorted(
        (m.key(), json.loads(present(m.value()))) for m in large
    )


@pytest.mark.timeout(300)
def test_pulling_explaining_and_dropping(sql: Shell, settings: Settings, unique: str) -> None:
    sql.result(SETUP)
    sql.result("".join(f"INSERT INTO @in VALUES ('s{i % 3}', 'tea', 1, {i});" for i in range(6)))
    assert 6 == run_until_end(f"ctas_{unique}totals", settings)

    assert [{"ORDERS": 2, "PIECES": 5}] == sql("SELECT orders, pieces FROM @totals WHERE shop = 's1';")
    assert [] == sql("SELECT * FROM @totals WHERE shop = 'other';")
    found = sql("SET 'isolation.level' = 'read_uncommitted'; SELECT * FROM @totals WHERE shop >= 's1';")
    assert [("s1", 5), ("s2", 7)] == sorted((row["SHOP"], row["PIECES"]) for row in found)
    with pytest.raises(SqlError, match="computed from aggregates"):
        sql("SELECT twice FROM @totals;")
    with pytest.raises(SqlError, match="push queries"):
        sql("SELECT * FROM @totals EMIT CHANGES;")
    with pytest.raises(SqlError, match="cannot be pulled from"):
        sql("SELECT * FROM @in;")

    plan = {row["property"]: row["value"] for row in sql("EXPLAIN ctas_@totals;")}
    assert f"ctas_{unique}totals-{unique}totals-changelog" == plan["changelog"]
    assert "MapInArrow" in plan["spark plan"]
    plan = {row["property"]: row["value"] for row in sql("EXPLAIN SELECT shop, n FROM @in WHERE n > 1 EMIT CHANGES;")}
    assert "(`N` > 1)" == plan["where"]
    assert "Exchange" not in plan["spark plan"], "a stateless query shuffles nothing"
    described = sql("DESCRIBE @totals EXTENDED;")
    assert {"property": "column", "value": "SHOP STRING PRIMARY KEY"} in described

    # Two writers of one topic: the second is a query of its own, and goes without taking the topic's owner with it.
    with pytest.raises(SqlError, match="column N is bigint"):
        sql("INSERT INTO @large SELECT shop, item, CAST(n AS BIGINT) AS n FROM @in EMIT CHANGES;")
    sql("INSERT INTO @large SELECT shop, item, n FROM @in WHERE n = 1 EMIT CHANGES;")
    assert "INSERTQUERY_0" in [row["query"] for row in sql("SHOW QUERIES;")]
    with pytest.raises(InvalidInput, match="INSERTQUERY_0"):
        sql("DROP STREAM @large;")
    with metastore(settings) as opened:
        assert [] == find_drift(opened, settings)
    sql("TERMINATE insertquery_0;")
    with pytest.raises(SqlError, match="another stream's or table's"):
        sql("CREATE STREAM @other WITH (kafka_topic='@in') AS SELECT shop, n FROM @large EMIT CHANGES;")

    # What is used is not dropped; a paused query keeps its place, a terminated one is gone.
    with pytest.raises(InvalidInput, match="queries use it"):
        sql("DROP STREAM @in;")
    sql("PAUSE ctas_@totals;")
    assert ["running", "stopped"] == [row["desired"] for row in sql("SHOW QUERIES;")]
    sql("RESUME ctas_@totals; TERMINATE ctas_@totals;")
    assert [f"CSAS_{unique.upper()}LARGE"] == [row["query"] for row in sql("SHOW QUERIES;")]
    sql(
        "DROP TABLE @totals; DROP STREAM @large DELETE TOPIC; DROP STREAM @in DELETE TOPIC; DROP TABLE IF EXISTS @totals;"
    )
    assert [] == sql("SHOW STREAMS;")
    assert not [row for row in sql("SHOW TOPICS;") if row["topic"] in (f"{unique}in", f"{unique.upper()}LARGE")]


STREAM = """CREATE STREAM @in (shop VARCHAR KEY, item VARCHAR, price DECIMAL(6, 2), n INT)
  WITH (kafka_topic='@in', value_format='json', partitions=1);"""
COUNTED = "CREATE TABLE {} AS SELECT shop, COUNT(*) AS n FROM @in GROUP BY shop EMIT CHANGES;"


def deploy(bare: Bare, pipeline: str, *tables: str) -> None:
    """As from a file, and wanted to run."""
    text = STREAM.replace(", partitions=1", "") + "".join(COUNTED.format(table) for table in tables)
    execute(deploy_script(text.replace("@", bare.sql.unique), pipeline), bare.settings)
    execute(start_pipeline(pipeline), bare.settings)


def desired(bare: Bare) -> dict[str, str]:
    return {row["query"]: row["desired"] for row in bare.sql("SHOW QUERIES;")}


def test_one_query_of_several_is_neither_paused_nor_ended_and_nothing_stops_for_it(bare: Bare, unique: str) -> None:
    bare.sql(STREAM)
    deploy(bare, unique, "one", "two")
    before = desired(bare)
    assert {f"{unique.upper()}.{query}": "running" for query in ("ONE", "TWO")} == before
    for action in ("TERMINATE", "PAUSE", "RESUME"):
        with pytest.raises(InvalidInput, match=f"one of a pipeline of several.*drop {unique}"):
            bare.sql(f"{action} `{unique.upper()}.ONE`;")
    assert (before, []) == (desired(bare), bare.ended)
    bare.sql("PAUSE ALL;")
    assert {"stopped"} == set(desired(bare).values())
    bare.sql(COUNTED.format("@alone"))
    assert f"terminated: CTAS_{unique.upper()}ALONE, {unique.upper()}" == bare.sql.result("TERMINATE ALL;").message
    assert {} == desired(bare)


def test_what_may_not_be_dropped_goes_on(bare: Bare, unique: str) -> None:
    bare.sql(STREAM)
    bare.sql(
        f"{COUNTED.format('@totals')} CREATE TABLE @again (shop VARCHAR PRIMARY KEY, n BIGINT)"
        f" WITH (kafka_topic='{unique.upper()}TOTALS', value_format='json');"
    )
    with pytest.raises(InvalidInput, match="Refusing to delete topic"):
        bare.sql("DROP TABLE @totals DELETE TOPIC;")
    assert ({f"CTAS_{unique.upper()}TOTALS": "running"}, []) == (desired(bare), bare.ended)


def test_a_topic_whose_deletion_was_killed_is_deleted_by_a_repair(bare: Bare, unique: str) -> None:
    bare.sql(STREAM)
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(Metastore, "clean", lambda *_: None)
        bare.sql("DROP STREAM @in DELETE TOPIC;")
    with metastore(bare.settings) as opened:
        [finding] = find_drift(opened, bare.settings)
        assert ("leftover", f"it is dropped, but there still are {unique}in") == (finding.what, finding.text)
        repair([finding])
        assert ([], {}) == (find_drift(opened, bare.settings), opened.log.admin.describe([f"{unique}in"]))


def test_no_record_is_inserted_among_state(bare: Bare, unique: str) -> None:
    bare.sql(STREAM)
    deploy(bare, unique, "totals")
    bare.sql(
        f"CREATE STREAM @kept (shop VARCHAR KEY, n INT) WITH (kafka_topic='{unique}-totals-changelog', value_format='json');"
    )
    with pytest.raises(InvalidInput, match="only their owner writes"):
        bare.sql("INSERT INTO @kept VALUES ('a', 1);")


def test_an_insert_that_is_interrupted_leaves_no_transaction_open(
    bare: Bare, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare.sql(STREAM)
    reader, where = Reader(bare.settings.kafka_config()), (f"{unique}in", 0)

    def is_open() -> bool:
        return reader.stable_end(*where) < reader.begin_and_end(*where)[1]

    def interrupted(producer: TransactionalProducer) -> None:
        producer._producer.flush(10)
        assert is_open()
        raise KeyboardInterrupt

    monkeypatch.setattr(TransactionalProducer, "flush", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bare.sql("INSERT INTO @in VALUES ('a', 'tea', 1, 1);")
    await_("no transaction is open", lambda: not is_open(), timeout_s=2)


def test_a_record_of_time_0_is_not_of_now(bare: Bare, kafka: str, unique: str) -> None:
    bare.sql(STREAM)
    for time_ms in (0, 1, 5):
        bare.sql(f"INSERT INTO @in (ROWTIME, shop, n) VALUES ({time_ms}, 'a', 1);")
    assert [1, 1, 5] == [message.timestamp()[1] for message in read_topic(kafka, f"{unique}in")]
