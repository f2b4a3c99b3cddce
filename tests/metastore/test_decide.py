"""What may be dropped and written, over definitions in memory: whose topic a statement touches decides."""

from __future__ import annotations

import pytest

from pipelines.metastore.decide import decide
from pipelines.metastore.relations import RELATION
from pipelines.metastore.statement import Statement, deploy_script, drop_pipeline, sql_statement, stop_pipeline
from pipelines.metastore.validate import DROPPED, PIPELINE, validate
from pipelines.sql import SqlError
from pipelines.testing.definitions import EveryTopic, Memory
from statestore.errors import InvalidInput


class Log:
    """Statements one after the other, each on the definitions that those before it made."""

    def __init__(self) -> None:
        self.definitions = Memory()

    def __call__(self, statement: Statement | str) -> None:
        wanted = sql_statement(statement) if isinstance(statement, str) else statement
        self.definitions.apply(decide(wanted, self.definitions, EveryTopic()).changes)

    def stream(self, name: str, topic: str) -> None:
        self(f"CREATE STREAM {name} (k VARCHAR KEY, a INT) WITH (kafka_topic='{topic}', value_format='json')")


COUNTED = "CREATE TABLE totals AS SELECT k, COUNT(*) AS n FROM orders GROUP BY k EMIT CHANGES"
FILE = """CREATE STREAM visits (k VARCHAR KEY, a INT) WITH (kafka_topic='orders', value_format='json');
CREATE TABLE totals AS SELECT k, COUNT(*) AS n FROM visits GROUP BY k EMIT CHANGES;"""


@pytest.fixture
def log() -> Log:
    log = Log()
    log.stream("orders", "orders")
    return log


def test_a_topic_of_two_streams_is_not_deleted_with_one(log: Log) -> None:
    log.stream("orders2", "orders")
    log(COUNTED)
    with pytest.raises(InvalidInput, match=r"Refusing to delete topic.*ORDERS, CTAS_TOTALS.*using topic orders"):
        log("DROP STREAM orders2 DELETE TOPIC")
    log("DROP STREAM orders2")
    assert {} == log.definitions.all(DROPPED)


def test_a_topic_that_a_pipeline_of_a_file_reads_is_not_deleted(log: Log) -> None:
    log(deploy_script(FILE, "flights"))
    with pytest.raises(InvalidInput, match=r"Refusing to delete topic.*\(FLIGHTS\)"):
        log("DROP STREAM orders DELETE TOPIC")


def test_a_topic_that_another_pipeline_writes_is_not_deleted(log: Log) -> None:
    log(deploy_script(FILE, "flights"))
    log.stream("results", "flights-totals")
    with pytest.raises(InvalidInput, match=r"read from this source or write to it: \[FLIGHTS\]"):
        log("DROP STREAM results DELETE TOPIC")


@pytest.mark.parametrize(
    "topic",
    [
        "flights-totals-changelog",
        "flights-totals-batches",
        "flights-dead-letters",
        "_rollforward_default_commands",
    ],
)
def test_what_a_pipeline_or_the_metastore_keeps_is_read_and_neither_written_nor_deleted(log: Log, topic: str) -> None:
    log(deploy_script(FILE, "flights"))
    with pytest.raises((InvalidInput, SqlError), match=r"only their owner writes|is reserved"):
        log(COUNTED.replace(" AS", f" WITH (kafka_topic='{topic}') AS", 1))
    log.stream("kept", topic)
    with pytest.raises(InvalidInput, match="only their owner writes"):
        log("INSERT INTO kept SELECT * FROM orders EMIT CHANGES")
    log("CREATE STREAM copy AS SELECT * FROM kept EMIT CHANGES")
    log(stop_pipeline("csas_copy"))
    log("DROP STREAM copy")
    with pytest.raises(InvalidInput, match="Refusing to delete topic"):
        log("DROP STREAM kept DELETE TOPIC")
    log("DROP STREAM kept")


def test_a_deleted_topic_is_noted_until_it_is_used_again(log: Log) -> None:
    noted = {"topic orders": {"topics": {"orders": "orders"}, "groups": []}}
    log("DROP STREAM orders DELETE TOPIC")
    assert noted == log.definitions.all(DROPPED)
    log.stream("orders", "orders")
    assert {} == log.definitions.all(DROPPED)
    log("DROP STREAM orders DELETE TOPIC")
    log(deploy_script(FILE, "flights"))
    assert {} == log.definitions.all(DROPPED)


def test_the_table_of_a_dropped_pipeline_stays_and_nothing_fills_it(log: Log) -> None:
    log(COUNTED)
    log(stop_pipeline("ctas_totals"))
    log(drop_pipeline("ctas_totals"))
    assert "" == log.definitions.get(RELATION, "TOTALS")["query"]
    log("DROP TABLE totals")
    log(COUNTED)
    assert ["ctas_totals"] == log.definitions.names(PIPELINE)


def test_a_table_goes_without_another_pipeline_of_its_querys_name(log: Log) -> None:
    log(COUNTED)
    log(stop_pipeline("ctas_totals"))
    # As earlier builds dropped a pipeline: the table still names it.
    log.definitions.apply(validate(drop_pipeline("ctas_totals"), log.definitions, EveryTopic()).changes)
    assert "CTAS_TOTALS" == log.definitions.get(RELATION, "TOTALS")["query"]
    log(deploy_script(FILE, "ctas_totals"))
    log("DROP TABLE totals")
    assert ["ctas_totals"] == log.definitions.names(PIPELINE)
    assert ["ORDERS"] == log.definitions.names(RELATION)


def test_a_pipeline_does_not_write_what_an_insert_of_another_writes(log: Log) -> None:
    log.stream("kept", "kept")
    log("INSERT INTO kept SELECT * FROM orders EMIT CHANGES")
    # As `clone` deploys it: each new record would be there twice.
    script = log.definitions.get(PIPELINE, "insertquery_0")["sql"]
    with pytest.raises(InvalidInput, match=r"result topic belongs to another pipeline.*insertquery_0"):
        log(deploy_script(script, "copy"))
    log("INSERT INTO kept SELECT * FROM orders EMIT CHANGES")
    assert ["insertquery_0", "insertquery_1"] == log.definitions.names(PIPELINE)


def test_a_topic_whose_first_writer_ended_is_still_written_by_an_insert(log: Log) -> None:
    log("CREATE STREAM copy AS SELECT * FROM orders EMIT CHANGES")
    log("INSERT INTO copy SELECT * FROM orders EMIT CHANGES")
    for statement in (stop_pipeline("csas_copy"), drop_pipeline("csas_copy")):
        log(statement)
    with pytest.raises(InvalidInput, match=r"result topic belongs to another pipeline.*insertquery_0"):
        log(deploy_script(FILE.replace("TABLE totals", "TABLE totals WITH (kafka_topic='COPY')"), "flights"))


def test_alter_adds_columns_to_what_was_created_if_it_did_not_exist(log: Log) -> None:
    log("CREATE STREAM IF NOT EXISTS s (a INT) WITH (kafka_topic='s', value_format='json')")
    log("ALTER STREAM s ADD COLUMN b INT")
    assert ["A", "B"] == [column["name"] for column in log.definitions.get(RELATION, "S")["source"]["columns"]]


@pytest.mark.parametrize("changed", ["key_format='json'", "value_delimiter='|'"])
def test_the_format_of_a_stream_in_use_stays(log: Log, changed: str) -> None:
    given = {"key_format": "'kafka'", "value_format": "'delimited'", "value_delimiter": "','"}

    def create(properties: dict[str, str]) -> None:
        listed = ", ".join(f"{name}={value}" for name, value in properties.items())
        log(f"CREATE OR REPLACE STREAM s (k VARCHAR KEY, a INT) WITH (kafka_topic='s', {listed})")

    create(given)
    log("INSERT INTO s SELECT * FROM orders EMIT CHANGES")
    create(given)
    name, _, value = changed.partition("=")
    with pytest.raises(SqlError, match="Its topic, format or window would be another"):
        create({**given, name: value})
