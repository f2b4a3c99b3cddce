"""A broker with passwords and authorisation on: the documented rights are enough, less is told, and no secret is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from infra import jars
from infra.broker import Broker
from infra.java import find_java
from ops.access import Access, accesses
from ops.cli.main import app
from pipelines.settings import Settings
from tests.support.feed import SQL, Feed, differences

CANARY = "c4n4ry-Zq7-do-not-print"
ADMIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "admin",
    "sasl.password": "adm",
}
OURS = {**ADMIN, "sasl.username": "rollforward", "sasl.password": CANARY}
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="adm" user_admin="adm" user_rollforward="{CANARY}";'
BROKER = {
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # The controller's listener knows no users and is this machine's own.
    "super.users": "User:admin;User:ANONYMOUS",
}
TYPES = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID}
OPERATIONS = {"DescribeConfigs": AclOperation.DESCRIBE_CONFIGS, "AlterConfigs": AclOperation.ALTER_CONFIGS}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """Bootstrap servers of a broker that asks everybody for a password and allows only what is granted."""
    java = find_java(jars.default_cache())
    folder = tmp_path / "broker"
    broker = Broker(folder / "kafka", folder / "kafka.log", folder / "kafka.json", BROKER)
    broker.start(java, jars.resolve("kafka", java))
    yield broker.address or ""
    broker.stop()


def binding(access: Access, operation: str) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if access.prefixed else ResourcePatternType.LITERAL
    code = OPERATIONS.get(operation) or AclOperation[operation.upper()]
    return AclBinding(
        TYPES[access.resource], access.name, pattern, "User:rollforward", "*", code, AclPermissionType.ALLOW
    )


def grant(admin: AdminClient, granted: list[Access]) -> None:
    for future in admin.create_acls([binding(a, operation) for a in granted for operation in a.operations]).values():
        future.result()


class Commands:
    """The command line of a user whose password is the canary; keeps everything that it prints.

    What starts a driver is a process of its own; other commands run in this one, since each would import for seconds.
    """

    def __init__(self, home: Path, bootstrap: str, settings: Settings) -> None:
        self.printed: list[str] = []
        self._env = {
            **os.environ,
            "ROLLFORWARD_HOME": str(home),
            "ROLLFORWARD_CONFIG": "/dev/null",
            "ROLLFORWARD_BOOTSTRAP_SERVERS": bootstrap,
            "ROLLFORWARD_KAFKA": json.dumps(OURS),
            "ROLLFORWARD_SERVICE": "shop",
            "ROLLFORWARD_TASKS": "2",
            "ROLLFORWARD_REQUEST_TIMEOUT_S": "20",
            "ROLLFORWARD_SPARK_CONF": json.dumps(settings.spark_conf),
        }

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        if words[0] == "run":
            command = [sys.executable, "-m", "ops.cli.main", *words]
            done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=240, check=False)
        else:
            here = CliRunner().invoke(app, list(words), prog_name="rollforward", env=self._env)
            structlog.reset_defaults()
            if here.exception is not None and not isinstance(here.exception, SystemExit):
                raise here.exception
            done = subprocess.CompletedProcess(words, here.exit_code, here.stdout, here.stderr)
        self.printed += [done.stdout, done.stderr]
        return done


def with_canary(*roots: Path) -> list[Path]:
    """Files that hold the canary."""
    found = []
    for root in roots:
        found += [path for path in root.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    return found


def test_results_with_names_of_their_own_are_granted_too() -> None:
    found = {a.name: a for a in accesses("shop", ["ctas_totals"], ["clicks"], ["TOTALS", "ctas_totals-other"])}
    assert not found["TOTALS"].prefixed
    assert {"Create", "Write", "DescribeConfigs"} <= set(found["TOTALS"].operations)
    assert "ctas_totals-other" not in found


@pytest.mark.timeout(600)
def test_the_documented_rights_are_enough_and_no_secret_is_written(
    guarded: str, machine: Settings, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    admin = AdminClient({"bootstrap.servers": guarded, **ADMIN})
    admin.create_topics([NewTopic("clicks", 4, 1, config={"retention.ms": "-1"})])["clicks"].result()
    feed = Feed(guarded, "clicks", seed=5, client=ADMIN)
    feed.send(1_000)
    sql = home / "orders.sql"
    sql.write_text(SQL.format(topic="clicks"))
    run = Commands(home, guarded, machine)

    refused = run("deploy", str(sql), "--pipeline", "orders", "--json")
    assert 1 == refused.returncode
    granted = accesses("shop", ["orders"], ["clicks"])
    printed = json.loads(run("acls", "orders", "--source", "clicks", "--json").stdout)
    assert [access.name for access in granted] == [entry["name"] for entry in printed]
    grant(admin, granted)
    for words in (["deploy", str(sql), "--pipeline", "orders"], ["run", "orders", "--until-end"]):
        done = run(*words)
        assert 0 == done.returncode, done.stdout + done.stderr
    assert [] == differences(guarded, "orders", feed, client=ADMIN)
    healthy = json.loads(run("doctor", "--json").stdout)
    assert [] == [finding for finding in healthy["findings"] if finding["level"] == "error"]

    # Every command that shows plans, definitions, logs and errors; then one right is taken away.
    for words in (
        *(
            ["status", "--json"],
            ["recover", "orders", "--dry-run"],
            ["verify", "orders"],
            ["drift"],
            ["logs", "orders"],
        ),
        *(["query", "orders.totals", "--all", "--json"], ["metastore", "log"], ["snapshots", "list", "orders"]),
        *(["metastore", "backup", str(home / "backup.jsonl")], ["top", "--once"], ["sql", "-e", "SHOW QUERIES;"]),
    ):
        run(*words)
    source = next(access for access in granted if access.name == "clicks")
    gone = binding(source, "Read")
    taken = AclBindingFilter(
        gone.restype,
        gone.name,
        gone.resource_pattern_type,
        gone.principal,
        gone.host,
        gone.operation,
        gone.permission_type,
    )
    admin.delete_acls([taken])[taken].result()
    told = json.loads(run("doctor", "--json").stdout)
    [lacking] = [finding for finding in told["findings"] if finding["what"] == "rights of orders.totals"]
    assert ("error", "this user lacks READ on clicks") == (lacking["level"], lacking["text"])
    feed.send(10)
    failed = run("run", "orders", "--until-end")
    assert 0 != failed.returncode

    assert [] == with_canary(home)
    assert not [text for text in run.printed if CANARY in text]
