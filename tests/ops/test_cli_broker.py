"""The command line against a broker: deploy, run to the end, query, recover."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from pipelines.metastore.embedded import execute
from pipelines.metastore.statement import start_pipeline
from pipelines.settings import Settings
from statestore.config import KafkaConfig
from statestore.kafka.admin import Admin
from statestore.kafka.producer import TransactionalProducer

SQL = """CREATE STREAM s (a VARCHAR, n INT) WITH (kafka_topic = '{topic}', value_format = 'json');
CREATE TABLE {table} AS SELECT a, COUNT(*) AS records, SUM(n) AS total FROM s GROUP BY a EMIT CHANGES;
"""
RECORDS = [("x", 1), ("y", 2), ("x", 3)]


class Cli:
    """The command as people run it: a process with its own stdout and stderr."""

    def __init__(self, home: Path, bootstrap_servers: str) -> None:
        self._cwd = home
        self.environment = {
            **os.environ,
            "ROLLFORWARD_HOME": str(home),
            "ROLLFORWARD_BOOTSTRAP_SERVERS": bootstrap_servers,
            "ROLLFORWARD_SERVICE": f"t{uuid.uuid4().hex}",
        }

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ops.cli.main", *words]
        return subprocess.run(command, cwd=self._cwd, env=self.environment, capture_output=True, text=True, timeout=200)

    def json(self, *words: str) -> Any:
        """The one line of a command that must succeed."""
        done = self(*words)
        assert 0 == done.returncode, done.stderr
        assert 1 == done.stdout.count("\n"), done.stdout
        return json.loads(done.stdout)


@pytest.fixture
def cli(tmp_path: Path, kafka: str) -> Cli:
    return Cli(tmp_path, kafka)


@pytest.fixture
def source(kafka: str, unique: str) -> str:
    """A topic with three records."""
    config = KafkaConfig(kafka)
    Admin(config).create(unique, partitions=2, settings={})
    send(config, unique, RECORDS)
    return unique


def send(config: KafkaConfig, topic: str, records: list[tuple[str, int]]) -> None:
    producer = TransactionalProducer(config, f"{topic}-test")
    producer.init()
    producer.begin()
    for a, n in records:
        producer.produce(topic, key=a.encode(), value=json.dumps({"a": a, "n": n}).encode(), timestamp_ms=1_000)
    producer.commit()
    producer.close()


def test_deploying_an_unknown_topic_names_it(cli: Cli, unique: str, tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(SQL.format(topic=unique, table="t"))
    done = cli("deploy", "a.sql", "--pipeline", unique, "--json")
    assert 1 == done.returncode
    told = json.loads(done.stdout)["error"]
    assert "InvalidConfig" == told["kind"]
    assert unique in told["message"]


def test_a_pipeline_from_file_to_query(cli: Cli, source: str, kafka: str, tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(SQL.format(topic=source, table="t"))

    deployed = cli.json("deploy", "a.sql", "--pipeline", source, "--json")
    assert (source, True) == (deployed["pipeline"], deployed["changed"])
    assert [f"{source}-t"] == [query["output_topic"] for query in deployed["queries"]]
    assert not cli.json("deploy", "a.sql", "--pipeline", source, "--json")["changed"]

    planned = cli.json("recover", source, "--dry-run", "--json")
    assert {"nothing"} == {task["way"] for task in planned["tasks"]}
    assert [] == list(tmp_path.glob("state/*")), "a dry run makes nothing"

    figures = cli.json("run", source, "--until-end")
    assert len(RECORDS) == figures["records"]
    assert {"seconds", "records_per_s", "batches", "cpu_seconds"} <= set(figures)

    x = cli.json("query", "t", "--key", "x", "--json")
    assert ({"A": "x"}, {"RECORDS": 2, "TOTAL": 4}) == (x["key"], x["value"])
    assert "" == cli("query", "t", "--key", "absent", "--json").stdout
    everything = [json.loads(line) for line in cli("query", "t", "--all", "--json").stdout.splitlines()]
    assert {"x": 4, "y": 2} == {row["key"]["A"]: row["value"]["TOTAL"] for row in everything}
    assert 1 == len(cli("query", "t", "--all", "--limit", "1", "--json").stdout.splitlines())

    planned = cli.json("recover", source, "--dry-run", "--json")
    assert all(task["local_batch"] == task["batch"] for task in planned["tasks"] if task["batch"] >= 0)
    assert {"nothing"} == {task["way"] for task in planned["tasks"]}


def test_a_lost_store_is_planned_as_a_full_replay(cli: Cli, source: str, tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(SQL.format(topic=source, table="t"))
    cli.json("deploy", "a.sql", "--pipeline", source, "--json")
    cli.json("run", source, "--until-end")
    shutil.rmtree(tmp_path / "state")
    tasks = cli.json("recover", source, "--dry-run", "--json")["tasks"]
    committed = [task for task in tasks if task["batch"] >= 0]
    assert committed
    assert {"full replay"} == {task["way"] for task in committed}
    assert all(task["offsets"] > 0 and task["local_batch"] is None for task in committed)
    assert "full replay" in cli("recover", source, "--dry-run").stdout


def test_a_restore_names_what_ends_by_it_before_it_asks(cli: Cli, source: str, kafka: str, tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(SQL.format(topic=source, table="t"))
    cli.json("deploy", "a.sql", "--pipeline", source, "--json")
    cli.json("metastore", "backup", "saved", "--json")
    service = cli.environment["ROLLFORWARD_SERVICE"]
    execute(start_pipeline(source), Settings(bootstrap_servers=kafka, home=tmp_path, service=service))
    asked = cli("metastore", "restore", "saved")
    assert (1, True) == (asked.returncode, f"{source} will end: it is stopped in the backup" in asked.stderr)
    assert 2 == cli.json("metastore", "log", "--json")["sequence"]
    done = cli.json("metastore", "restore", "saved", "--yes", "--json")
    assert {"sequence": 1, "ended": {source: "it is stopped in the backup"}, "to_run_again": []} == done
    assert {"sequence": 1} == cli.json("metastore", "rebuild", "--accept-loss", "--json")


def test_the_commands_seen_last_are_shown_without_kafka(cli: Cli, source: str, tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(SQL.format(topic=source, table="t"))
    cli.json("deploy", "a.sql", "--pipeline", source, "--json")
    cli.environment |= {"ROLLFORWARD_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    shown = cli("metastore", "log")
    assert (0, True) == (shown.returncode, "AS IT WAS SEEN LAST: kafka does not answer" in shown.stdout), shown.stderr
    told = cli.json("metastore", "log", "--json")
    assert [source] == [command["pipeline"] for command in told["commands"]]
    assert told["unavailable"].startswith("kafka does not answer")
