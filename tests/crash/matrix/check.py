"""After a fault: outputs, dead letters and stores against the model, and nothing left over."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from pipelines import names
from pipelines.deploy import deployed_queries
from pipelines.query import StoreReader
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.errors import RollforwardError
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.store import Isolation
from tests.crash.matrix.workload import EVENT_QUERIES, PARTITIONS, Workload
from tests.support.feed import compare, read_topic
from tests.support.pipeline import members
from tests.support.present import present
from tests.support.stores import differences_from

Table = dict[int, dict[str, int]]
# What Spark makes in its folder for temporary files, once.
_OF_ONE_JVM = ("artifacts-", "blockmgr-")
# Errors that say: stop, somebody has to look. And those of a program that is wrong.
_NEVER = {
    *("DataCorrupted", "Unrecoverable", "InvariantBroken", "FormatUnsupported", "InvalidInput", "InvalidConfig"),
    *("InvalidStateStore", "AssertionError", "AttributeError", "IndexError", "KeyError", "TypeError", "ValueError"),
}


def caught_up(pipeline: str, settings: Settings, registry: Registry) -> bool:
    """Whether every query has finished a batch that ends where its source ends; not, where Kafka does not answer."""
    kafka = settings.kafka_config()
    try:
        for deployed in deployed_queries(registry.pipeline(pipeline)):
            log = BatchesLog(Reader(kafka), deployed.batches_topic, tasks=deployed.query.tasks).driver_log()
            ends = Admin(kafka).ends(deployed.query.source.topic, partitions=PARTITIONS)
            if log.planned is None or log.done < log.planned.batch:
                return False
            if {r.partition: r.end for r in log.planned.ranges} != ends:
                return False
    except RollforwardError:
        return False
    return True


def expected(load: Workload) -> dict[str, Table]:
    """The tables that the queries must have."""
    return {
        "hot": {key: {"N": n, "TOTAL": total, "TOP": top} for key, (n, total, top) in load.hot.items()},
        "uniq": {key: {"N": 1, "TOTAL": price} for key, price in load.uniq.items()},
        "balances": {key: {"N": n, "BALANCE": balance} for key, (n, balance) in load.balances.items()},
    }


def differences(pipeline: str, settings: Settings, registry: Registry, load: Workload) -> list[str]:
    """What is wrong, the first few of each kind; empty if all equals the model exactly."""
    bootstrap, problems = settings.bootstrap_servers, []
    tables = expected(load)
    for name, table in tables.items():
        problems += _output(bootstrap, f"{pipeline}-{name}", table)[:5]
    for deployed in deployed_queries(registry.pipeline(pipeline)):
        if deployed.query.name in tables:
            rows = StoreReader(deployed, settings, registry).scan(None, None, Isolation.READ_COMMITTED)
            key = deployed.query.group_by[0].name
            found = Counter(row.key[key] for row in rows)
            problems += [f"store {deployed.query.name} key {k}: in {n} tasks" for k, n in found.items() if n > 1][:5]
            rows = StoreReader(deployed, settings, registry).scan(None, None, Isolation.READ_COMMITTED)
            stored = {row.key[key]: row.value for row in rows}
            problems += compare(stored, tables[deployed.query.name], f"store {deployed.query.name}")[:5]
    problems += _once(
        [
            (v := json.loads(present(m.value())))["ID"] * 10_000 + v["PRICE"]
            for m in read_topic(bootstrap, f"{pipeline}-cheap")
        ],
        [number * 10_000 + price for number, price in load.cheap.items()],
        "cheap",
    )
    letters = [m.value() for m in read_topic(bootstrap, f"{pipeline}-dead-letters")]
    return problems + _once(letters, load.bad * len(EVENT_QUERIES), "dead letters")


def _output(bootstrap: str, topic: str, table: Table) -> list[str]:
    """The count of a key grows with every result: one that is doubled or lost shows in it, not only in the last."""
    problems: list[str] = []
    found: Table = {}
    for message in read_topic(bootstrap, topic):
        key, value = int.from_bytes(present(message.key()), "big", signed=True), json.loads(present(message.value()))
        if key in found and value["N"] <= found[key]["N"]:
            problems.append(f"{topic} key {key}: count went from {found[key]['N']} to {value['N']}")
        found[key] = value
    return problems + compare(found, table, topic)


def _once(found: list, wanted: list, where: str) -> list[str]:
    missing, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    return [f"{where}: {len(missing)} missing, {len(more)} too many"] if missing or more else []


def stores(pipeline: str, settings: Settings, registry: Registry) -> list[str]:
    """Stores that are not what was committed with their batch, or whose changelog does not lead to them."""
    row = registry.pipeline(pipeline)
    return differences_from("digest", row, settings) + differences_from("changelog", row, settings)


def failures(log: Path) -> list[str]:
    """The ends in a log of drivers that have to stop a pipeline or that are bugs, whatever has been killed or cut off."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{") and '"driver failed"' in line:
            # A full disk cuts lines short.
            with suppress(json.JSONDecodeError):
                told = json.loads(line)
                if told["kind"] in _NEVER:
                    found.append(f"driver failed: {told['kind']}: {told.get('error') or told.get('exception')}")
    return found


def processes(bootstrap: str) -> list[psutil.Process]:
    """All drivers that work with this Kafka, and whatever they have started, wherever it belongs now."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("ROLLFORWARD_BOOTSTRAP_SERVERS") == bootstrap:
                found.append(process)
    return found


def at_rest(pipeline: str, settings: Settings) -> list[str]:
    """What a driver has left that has been stopped as planned."""
    problems = [f"process: {one.pid} {one.cmdline()}" for one in processes(settings.bootstrap_servers)]
    problems += [f"socket: {path}" for path in sorted(_sockets(pipeline, settings))]
    problems += [f"folder: {path}" for path in (settings.home / "spark").glob("*")]
    return problems + [f"spark: {path}" for path in names.socket_folder().glob(f"{names.SPARK_SOCKETS}*")]


def _sockets(pipeline: str, settings: Settings) -> set[str]:
    prefix = names.socket_prefix(settings.states, pipeline)
    return {str(path) for path in names.socket_folder().glob(f"{prefix}-*.sock")}


def leftovers(pipeline: str, settings: Settings, registry: Registry, former: set[int]) -> list[str]:
    """Orphans, sockets, folders and consumer groups that should not be there beside the driver of now."""
    driver = registry.driver(pipeline)
    assert driver is not None
    problems = []
    for process in processes(settings.bootstrap_servers):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) != driver.pid and process.status() != psutil.STATUS_ZOMBIE:
                problems.append(f"orphan: {process.pid} {process.cmdline()}")
    # A driver that lived on may have replaced what it started. One server more is the spare.
    own = members(driver.pid)
    for what, most in (("statestore.server", len(driver.servers) + 1), ("java", 1)):
        found = [each for each in own if what in each.split(" ", 2)[1] or f"-m {what}" in each]
        problems += [f"more than {most} of {what}: {found}"] if len(found) > most else []
    known = {server["socket"] for server in driver.servers}
    problems += [f"socket: {path}" for path in sorted(_sockets(pipeline, settings) - known)]
    folders = {path.name for path in (settings.home / "spark").glob("*")}
    problems += [f"folder: {name}" for name in sorted(folders - {f"{pipeline}-{driver.pid}"})]
    spark = {int(path.name.partition("-")[2]) for path in names.socket_folder().glob(f"{names.SPARK_SOCKETS}*")}
    problems += [f"sockets of spark: {pid}" for pid in sorted(spark & former - {driver.pid})]
    groups = Admin(settings.kafka_config()).groups()
    queries = deployed_queries(registry.pipeline(pipeline))
    wanted = {names.group(pipeline, deployed.query.name) for deployed in queries}
    return problems + [f"group: {group}" for group in sorted(groups - wanted)]


def temporary(folder: Path, spark: Path) -> list[str]:
    """Temporary files that somebody has left in `folder`, or more of them in Spark's own folders than one JVM has."""
    known = {names.socket_folder().name}
    problems = [f"temporary: {path}" for path in sorted(folder.iterdir()) if path.name not in known]
    # There is none before a driver has needed Spark.
    for work in spark.glob("*"):
        found = sorted(path.name for path in (work / "tmp").iterdir())
        more = [kind for kind in _OF_ONE_JVM if sum(name.startswith(kind) for name in found) > 1]
        problems += [f"temporary: several {kind}* in {work}: {found}" for kind in more]
    return problems
