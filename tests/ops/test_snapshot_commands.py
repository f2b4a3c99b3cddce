"""Snapshots, verification and recovery at the command line, as people run it, against one real pipeline of two tasks.

It ran with a snapshot asked for behind its first batch, was given more, and was stopped. Tests leave it as they found it.
What starts a driver is a process of its own; other commands run in this one, since each would import for seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from ops.cli.main import app
from ops.health import Finding, table_findings
from pipelines.deploy import deployed_queries
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.config import KafkaConfig, RocksConfig, TaskSpec
from statestore.kafka.admin import Admin
from statestore.version import TaskDatabase
from tests.ops.test_cli_broker import SQL, Cli, send
from tests.support.waiting import await_

FIRST = [(f"k{number:02}", number) for number in range(40)]
MORE = [(f"k{number:02}", 100) for number in range(30, 50)]
THEN = dict(FIRST)
NOW = THEN | {key: THEN.get(key, 0) + n for key, n in MORE}
# So slow that a snapshot is always the cheaper way.
SLOW = '{"replay_records_per_s": 0.1, "rebuild_records_per_s": 0.1}'


@dataclass
class Ran:
    """The pipeline, what its snapshot and metrics said, and when between its two batches was."""

    cli: Cli
    name: str
    settings: Settings
    told: dict[str, Any] = field(default_factory=dict)
    between: str = ""

    def __post_init__(self) -> None:
        self.registry = Registry(self.settings.metastore)

    def specs(self) -> list[TaskSpec]:
        [deployed] = deployed_queries(self.registry.pipeline(self.name))
        return deployed.task_specs(self.settings.states)

    def await_records(self, count: int) -> None:
        await_("all batches", lambda: self.registry.records(self.name) == count)

    def snapshot_age(self) -> Finding:
        """Dagster's check of the table, where a snapshot may lack nothing that is committed."""
        strict = self.settings.model_copy(update={"check_snapshot_age_s_max": 0.0})
        [deployed] = deployed_queries(self.registry.pipeline(self.name))
        found = table_findings(strict, self.registry, Admin(strict.kafka_config()), self.name, deployed.query)
        return next(finding for finding in found if finding.check == "snapshot_age")

    def figures(self) -> dict[str, dict[str, float]]:
        """What the driver gives Prometheus of snapshots, by name and task."""
        port = self.registry.driver(self.name).metrics_port  # type: ignore[union-attr]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {
            family.name.removeprefix("rollforward_"): {s.labels.get("task", ""): s.value for s in family.samples}
            for family in families
            if "snapshot" in family.name
        }

    def __call__(self, *words: str) -> Result:
        """Run a command in this process."""
        return CliRunner().invoke(app, list(words), prog_name="rollforward", env=self.cli.environment)

    def json(self, *words: str) -> Any:
        """The one line of a command that must succeed."""
        done = self(*words, "--json")
        assert 0 == done.exit_code, done.output
        assert 1 == done.stdout.count("\n"), done.stdout
        return json.loads(done.stdout)

    def list(self) -> dict[str, list[int]]:
        """Batches that have a snapshot, by task."""
        found: dict[str, list[int]] = {}
        for one in self.json("snapshots", "list", self.name)["snapshots"]:
            found.setdefault(one["task"], []).append(one["batch"])
        return found

    def totals(self, *words: str) -> dict[str, int]:
        done = self("query", f"{self.name}.t", "--all", "--json", *words)
        assert 0 == done.exit_code, done.output
        rows: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
        return {row["key"]["A"]: row["value"]["TOTAL"] for row in rows}


@pytest.fixture(scope="module")
def ran(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    home, name = tmp_path_factory.mktemp("home"), f"t{uuid.uuid4().hex[:8]}"
    cli = Cli(home, kafka)
    cli.environment |= {
        "ROLLFORWARD_TASKS": "2",
        "ROLLFORWARD_STORE_SERVERS": "2",
        "ROLLFORWARD_BATCH_INTERVAL_S": "0.2",
    }
    config = KafkaConfig(kafka)
    Admin(config).create(name, partitions=1, settings={})
    send(config, name, FIRST)
    (home / "a.sql").write_text(SQL.format(topic=name, table="t"))
    ran = Ran(cli, name, Settings(home=home, bootstrap_servers=kafka, tasks=2))
    ran.json("deploy", str(home / "a.sql"), "--pipeline", name)
    cli.json("start", name, "--json")
    try:
        ran.await_records(len(FIRST))
        ran.told["snapshot"] = ran.json("snapshot", name)
        ran.told["again"] = ran("snapshot", name).stdout
        ran.told["age of all"] = ran.snapshot_age()
        ran.told["metrics"] = await_("figures of both", lambda: _of_both(ran.figures()))
        ran.between = datetime.now(UTC).isoformat()
        time.sleep(0.01)
        send(config, name, MORE)
        ran.await_records(len(FIRST) + len(MORE))
        ran.told["batches"] = {task["task"]: task["batch"] for task in _tasks(ran)}
        ran.told["age of a part"] = ran.snapshot_age()
        ran.json("stop", name)
        yield ran
    finally:
        ran("stop", name)
        ran.registry.close()
        structlog.reset_defaults()


def _of_both(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return figures if len(figures["snapshot_copy_seconds"]) == 2 else {}


def _tasks(ran: Ran) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = ran.json("recover", ran.name, "--dry-run")["tasks"]
    return tasks


@contextmanager
def changed(ran: Ran, key: str) -> Iterator[bytes]:
    """One bit of a key's state is another; gives the stored key."""
    for spec in ran.specs():
        database = TaskDatabase(spec.folder, [spec.store.name], RocksConfig())
        found = [(k, v) for k, v in database.database.scan(spec.store.name) if key.encode() in k]
        for stored, value in found:
            database.database.write({spec.store.name: [(stored, value[:-1] + bytes([value[-1] ^ 1]))]})
        database.close()
        if found:
            yield found[0][0]
            database = TaskDatabase(spec.folder, [spec.store.name], RocksConfig())
            database.database.write({spec.store.name: found})
            database.close()
            return
    raise AssertionError(key)


def lose_stores(ran: Ran) -> None:
    folders = {spec.folder.parent for spec in ran.specs()}
    for folder in folders:
        shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / "rates.json").write_text(SLOW)


# Taken by hand, by a stop; listed.


def test_a_snapshot_is_taken_when_asked_for_and_told(ran: Ran) -> None:
    taken = ran.told["snapshot"]["tasks"]
    assert ["t-0", "t-1"] == [task["task"] for task in taken]
    assert all(task["written"] and task["uploaded_bytes"] == task["referenced_bytes"] > 0 for task in taken)
    # The second time there was nothing new.
    for task in taken:
        [line] = [line for line in ran.told["again"].splitlines() if line.startswith(task["task"])]
        assert [str(task["batch"]), "no"] == line.split()[1:3]


def test_a_real_snapshot_is_in_the_metrics(ran: Ran) -> None:
    figures, taken = ran.told["metrics"], {task["task"]: task for task in ran.told["snapshot"]["tasks"]}
    for name, expected in {
        "snapshot_bytes": {task: one["referenced_bytes"] for task, one in taken.items()},
        "snapshot_uploaded_bytes": {task: one["uploaded_bytes"] for task, one in taken.items()},
        "snapshot_seconds": {task: one["seconds"] for task, one in taken.items()},
        "snapshot_age_seconds": dict.fromkeys(taken, 0.0),
    }.items():
        assert expected == figures[name], name
    assert all(0 < seconds < 60 for seconds in figures["snapshot_copy_seconds"].values())


def test_a_snapshot_ages_from_when_it_lacks_something(ran: Ran) -> None:
    """A quiet table's is as old as the table is quiet, and of one that rests none is taken."""
    whole, part = ran.told["age of all"], ran.told["age of a part"]
    assert (True, 0.0) == (whole.passed, whole.figure)
    assert not part.passed and part.figure > 0
    assert ran.snapshot_age().passed


def test_a_planned_stop_takes_one_of_what_is_committed(ran: Ran) -> None:
    first = {task["task"]: task["batch"] for task in ran.told["snapshot"]["tasks"]}
    listed = ran.list()
    assert {task: [first[task], batch] for task, batch in ran.told["batches"].items()} == listed
    shown = ran("snapshots", "list", ran.name).stdout
    assert 4 == sum(line.startswith("t-") for line in shown.splitlines())


# The past and the present.


def test_a_store_is_read_as_it_was_at_a_time(ran: Ran) -> None:
    assert THEN == ran.totals("--at", ran.between)
    assert NOW == ran.totals()
    assert {} == ran.totals("--at", "2001-01-01T00:00:00"), "nothing was committed by then"
    assert 2 == ran("query", f"{ran.name}.t", "--all", "--at", "yesterday").exit_code


# Verifying.


@pytest.mark.parametrize(
    "words", [(), ("--full",), ("--sample", "50"), ("--snapshot",), ("--changelog",)], ids=" ".join
)
def test_stores_that_are_what_was_committed_are_told_equal(ran: Ran, words: tuple[str, ...]) -> None:
    told = ran.json("verify", ran.name, *words)
    assert told["equal"]
    assert ["t-0", "t-1"] == [task["task"] for task in told["tasks"]]
    compared = sum(task["keys"] for task in told["tasks"])
    assert 0 < compared < len(NOW) if "--sample" in words else len(NOW) == compared


@pytest.mark.parametrize("words", [("--full",), ("--sample", "100"), ("--snapshot",)], ids=" ".join)
def test_a_key_that_differs_is_named(ran: Ran, words: tuple[str, ...]) -> None:
    with changed(ran, "k35") as key:
        done = ran("verify", ran.name, *words, "--json")
    assert 1 == done.exit_code, done.output
    told = json.loads(done.stdout)
    assert not told["equal"]
    assert [key.hex()] == [m["key"] for task in told["tasks"] for m in task["mismatches"]]


def test_a_key_that_differs_is_named_for_people(ran: Ran) -> None:
    with changed(ran, "k35") as key:
        done = ran("verify", ran.name)
    assert 1 == done.exit_code
    assert key.hex() in done.stdout
    assert "the digest of batch" in done.stdout


# Recovering.


def test_plans_are_shown_with_every_way(ran: Ran) -> None:
    planned = ran.json("recover", ran.name, "--dry-run")
    assert (True, False) == (planned["dry_run"], planned["running"])
    assert ran.told["batches"] == {task["task"]: task["local_batch"] for task in planned["tasks"]}
    for task in planned["tasks"]:
        assert "nothing" == task["way"]
        assert ["nothing", "roll back", "roll forward", "snapshot", "full replay"] == [w["way"] for w in task["ways"]]
        assert [True, False, False, False, False] == [way["chosen"] for way in task["ways"]]


def test_a_store_of_another_format_is_planned_around(ran: Ran) -> None:
    spec = ran.specs()[0]
    database = TaskDatabase(spec.folder, [spec.store.name], RocksConfig())
    said = database.database.get("checkpoint", b"checkpoint")
    assert said is not None
    database.database.write({"checkpoint": [(b"checkpoint", said.replace(b'"format":1', b'"format":2'))]})
    database.close()
    task = _tasks(ran)[0]
    assert (spec.name, None) == (task["task"], task["local_batch"])
    assert task["way"] in ("snapshot", "full replay")
    assert "local store has format 2, this program reads 1" == task["ways"][0]["refused"]
    database = TaskDatabase(spec.folder, [spec.store.name], RocksConfig())
    database.database.write({"checkpoint": [(b"checkpoint", said)]})
    database.close()


def test_lost_stores_come_back_from_the_snapshots_of_the_stop(ran: Ran) -> None:
    lose_stores(ran)
    assert {"snapshot"} == {task["way"] for task in _tasks(ran)}
    since = time.time()
    done = ran.cli("recover", ran.name)
    try:
        assert 0 == done.returncode, done.stderr
        opened = {row.plan["task"]: row.plan for row in ran.registry.recoveries(ran.name, since=since)}
        assert {"t-0": "snapshot", "t-1": "snapshot"} == {task: plan["way"] for task, plan in opened.items()}
        assert {0} == {plan["records"] for plan in opened.values()}, "it was taken of the newest batch"
        assert NOW == ran.totals()
        # The ways were told before anything started.
        ways, runs = done.stdout.index("Every way"), done.stdout.index("runs again")
        assert ways < runs
        assert "chosen: snapshot of batch" in done.stdout[ways:runs]
        assert "Nothing to recover" in ran("recover", ran.name).stdout
        # Its age is known, though this driver has taken none.
        figures = await_("figures", lambda: len((f := ran.figures()).get("snapshot_bytes", {})) == 2 and f)
        assert {"t-0": 0.0, "t-1": 0.0} == figures["snapshot_age_seconds"]
    finally:
        ran.json("stop", ran.name)
    assert ran.json("verify", ran.name, "--snapshot")["equal"]


# Collecting; the last ones, since they take away.


def test_collecting_is_tried_and_done(ran: Ran) -> None:
    before = ran.list()
    kept = ran.json("snapshots", "gc", ran.name)
    assert ([], 0) == (
        [key for task in kept["tasks"] for key in task["snapshots_deleted"]],
        sum(task["bytes_freed"] for task in kept["tasks"]),
    ), "three are kept by default"
    ran.cli.environment |= {
        "ROLLFORWARD_SNAPSHOT_KEEP": "1",
        "ROLLFORWARD_SNAPSHOT_RETENTION_S": "0",
        "ROLLFORWARD_SNAPSHOT_MINIMUM_AGE_S": "600",
        "ROLLFORWARD_SNAPSHOT_PIN_LIFE_S": "300",
    }
    an_hour_ago = time.time() - 3_600
    for file in (ran.settings.home / "snapshots").rglob("files/*"):
        os.utime(file, (an_hour_ago, an_hour_ago))
    tried = ran.json("snapshots", "gc", ran.name, "--dry-run")
    assert tried["dry_run"]
    assert before == ran.list()
    done = ran("snapshots", "gc", ran.name)
    assert 0 == done.exit_code, done.output
    assert {task: batches[-1:] for task, batches in before.items()} == ran.list()
    freed = sum(task["bytes_freed"] for task in tried["tasks"])
    assert freed > 0
    assert f"Freed {freed:,} bytes." in done.stdout
    assert ran.json("verify", ran.name, "--snapshot")["equal"], "what is left can be restored"


def test_without_a_way_all_refusals_are_shown_and_nothing_is_started(ran: Ran) -> None:
    spec = ran.specs()[0]
    admin = Admin(ran.settings.kafka_config())
    admin.delete([spec.store.changelog_topic])
    admin.await_gone(spec.store.changelog_topic)
    done = ran("recover", ran.name)
    assert 1 == done.exit_code
    ways = done.stdout.partition("Every way")[2]
    assert 10 == ways.count("changelog topic is missing"), done.stdout
    assert "Nothing was started: no way leads to the committed version of t-0, t-1." in done.stdout
    told = json.loads(ran("recover", ran.name, "--json").stdout)
    assert (None, False, []) == (told["pid"], told["relaunched"], told["tasks"])
    assert {"unrecoverable"} == {task["way"] for task in told["plans"]}
    assert {"changelog topic is missing"} == {way["refused"] for task in told["plans"] for way in task["ways"]}
    assert 1 == ran("recover", ran.name, "--dry-run").exit_code
