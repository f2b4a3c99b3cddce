"""The past at the command line, with Spark: a store asked at a batch, a pipeline brought back, and clones, also killed."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from statestore.config import KafkaConfig
from statestore.failpoints import CLONE_POINTS, arm
from statestore.kafka.reader import Reader
from tests.ops.test_cli_broker import SQL, Cli, cli, send, source
from tests.support.waiting import await_

__all__ = ["cli", "source"]
THEN = {"x": 4, "y": 2}
STATELESS = "CREATE STREAM large AS SELECT a, n FROM s WHERE n > 1 EMIT CHANGES;\n"
NOW = {"x": 4, "y": 12, "z": 5}
LATER = {"x": 104, "y": 12, "z": 5}


def totals(cli: Cli, store: str, *words: str) -> dict[str, int]:
    done = cli("query", store, "--all", "--json", *words)
    assert 0 == done.returncode, done.stdout + done.stderr
    rows: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["key"]["A"]: row["value"]["TOTAL"] for row in rows}


def killed(cli: Cli, points: Path, point: str, *words: str) -> None:
    """The command dies at the point."""
    points.mkdir(exist_ok=True)
    arm(points, point)
    cli.environment["ROLLFORWARD_FAILPOINTS"] = str(points)
    assert -signal.SIGKILL == cli(*words).returncode
    del cli.environment["ROLLFORWARD_FAILPOINTS"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_goes_back_and_a_clone_goes_on(cli: Cli, source: str, kafka: str, tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(SQL.format(topic=source, table="t"))
    cli.json("deploy", "a.sql", "--pipeline", source, "--json")
    cli.json("run", source, "--until-end")
    send(KafkaConfig(kafka), source, [("y", 10), ("z", 5)])
    cli.json("run", source, "--until-end")
    store, name = f"{source}.t", f"{source}_clone"

    # The past is read beside everything else, and only where it is kept exactly.
    assert THEN == totals(cli, store, "--at-batch", "0")
    assert NOW == totals(cli, store, "--at-batch", "1") == totals(cli, store)
    asked = cli("query", store, "--key", "y", "--at-batch", "7", "--json")
    assert "batch is not finished" in json.loads(asked.stdout)["error"]["message"]
    assert not any((tmp_path / "past").iterdir())

    # Nobody's name is taken, which would fence whoever runs under it.
    assert "name of its own" in cli("clone", source, "--as", source).stderr

    # A clone of the first batch: killed twice, refused until it is whole, then run to the same results.
    for point in [*CLONE_POINTS, "rewrite.before-commit"]:
        killed(cli, tmp_path / "points", point, "clone", source, "--as", name, "--at-batch", "0", "--stopped")
    refused = cli("run", name, "--until-end")
    assert 0 != refused.returncode
    assert "clone is not complete" in refused.stderr
    made = cli.json("clone", source, "--as", name, "--at-batch", "0", "--stopped", "--json")
    assert ("stopped", None) == (made["state"], made["pid"])
    assert [("t", 0, 2, True)] == [tuple(query.values()) for query in made["queries"]]
    again = cli.json("clone", source, "--as", name, "--at-batch", "0", "--stopped", "--json")
    assert [False] == [query["copied_now"] for query in again["queries"]]
    assert 2 == cli.json("run", name, "--until-end")["records"], "only what came after the batch"
    assert NOW == totals(cli, f"{name}.t")

    # The original goes back, and runs forward over the same records.
    looked = cli.json("recover", source, "--to-batch", "0", "--dry-run", "--json")["queries"][0]
    assert (0, None) == (looked["batch"], looked["as_batch"])
    # Markers of transactions take offsets, too.
    assert 2 < looked["offsets_again"] <= 4
    killed(cli, tmp_path / "points", "rewrite.before-commit", "recover", source, "--to-batch", "0")
    went = cli.json("recover", source, "--to-batch", "0", "--json")["queries"][0]
    assert (0, 2, 1, 1) == (went["batch"], went["as_batch"], went["puts"], went["deletes"])
    assert "behind" in cli("query", store, "--all").stderr, "the local store waits for the next start"
    assert THEN == totals(cli, store, "--at-batch", "2")
    send(KafkaConfig(kafka), source, [("x", 100)])
    assert 3 == cli.json("run", source, "--until-end")["records"]
    assert LATER == totals(cli, store)
    assert NOW == totals(cli, f"{name}.t"), "the clone is not touched"
    cli.json("drop", name, "--json")
    assert LATER == totals(cli, store)


def values(kafka: str, topic: str) -> list[tuple[str, int]]:
    """The stateless query's results, in any order."""
    reader = Reader(KafkaConfig(kafka))
    records = [record for number in range(2) for chunk in reader.read(topic, number, start=0) for record in chunk]
    rows: list[Any] = [json.loads(record.value or b"") for record in records]
    return sorted((row["A"], row["N"]) for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_clone_is_started_and_its_stateless_queries_go_on_where_they_stood(
    cli: Cli, source: str, kafka: str, tmp_path: Path
) -> None:
    (tmp_path / "a.sql").write_text(SQL.format(topic=source, table="t") + STATELESS)
    cli.json("deploy", "a.sql", "--pipeline", source, "--json")
    cli.json("run", source, "--until-end")
    # Commits are timed in ms.
    then = datetime.fromtimestamp(time.time() + 0.002, UTC).isoformat()
    time.sleep(0.004)
    send(KafkaConfig(kafka), source, [("y", 10), ("x", 1), ("z", 5)])
    cli.json("run", source, "--until-end")
    assert [("x", 3), ("y", 2), ("y", 10), ("z", 5)] == values(kafka, f"{source}-large")

    # The newest version: nothing is left for it but what comes now. And that of then, which reads on from there.
    newest, earlier = f"{source}_newest", f"{source}_then"
    made = cli.json("clone", source, "--as", newest, "--stopped", "--json")
    assert {"t": 3, "large": 0} == {query["query"]: query["keys"] for query in made["queries"]}
    try:
        made = cli.json("clone", source, "--as", earlier, "--at", then, "--json")
        assert ("running", True) == (made["state"], psutil.pid_exists(made["pid"]))
        assert "is to run" in cli("clone", source, "--as", earlier, "--at", then).stderr
        results = f"{earlier}-large"
        await_("the clone's results", lambda: values(kafka, results) == [("y", 10), ("z", 5)])
        await_("the clone's store", lambda: totals(cli, f"{earlier}.t") == {"x": 5, "y": 12, "z": 5})
    finally:
        cli("stop", earlier)
    send(KafkaConfig(kafka), source, [("z", 7)])
    assert 2 == cli.json("run", newest, "--until-end")["records"], "one record, read by both queries"
    assert [("z", 7)] == values(kafka, f"{newest}-large")
