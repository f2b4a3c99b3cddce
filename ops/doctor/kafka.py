"""Kafka: does it answer, may we do what we need, and does it keep what a recovery needs?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ops.doctor.finding import Finding, error, ok, told, warning
from pipelines import names
from pipelines.archive import archived_spans, holds
from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.errors import RollforwardError
from statestore.kafka.admin import Admin

HOUR_MS = 3_600_000
_READ, _WRITE = ("READ", "DESCRIBE"), ("READ", "WRITE", "DESCRIBE")


def cluster(settings: Settings, admin: Admin) -> Iterator[Finding]:
    """The brokers' settings and what this user may do on the cluster. Raises `Unavailable` if they do not answer."""
    admin.check()
    yield ok("kafka", f"answers at {settings.bootstrap_servers}")
    broker = admin.broker_configs()
    if not broker:
        fix = "grant DescribeConfigs on the cluster for the time of an examination"
        yield warning("kafka's settings", "this user may not read the brokers' settings", fix)
        return
    longest, wanted = int(broker.get("transaction.max.timeout.ms", "900000")), int(settings.request_timeout_s * 1000)
    if longest < wanted:
        fix = f"set transaction.max.timeout.ms of the brokers to {wanted}, or lower request_timeout_s"
        yield error("kafka transactions", f"transaction.max.timeout.ms is {longest}, ours may take {wanted}", fix)
    else:
        yield ok("kafka transactions", f"may take {longest // 1000} s, ours take at most {wanted // 1000}")
    if broker.get("auto.create.topics.enable") == "true":
        fix = "set auto.create.topics.enable=false: a topic that was deleted by mistake comes back empty"
        yield warning("kafka topics", "brokers create topics that somebody merely asks for", fix)
    if int(broker.get("min.insync.replicas", "1")) < 2:
        fix = "in production: three replicas and min.insync.replicas=2"
        yield warning("kafka replicas", "one broker may acknowledge alone, and lose what it acknowledged", fix)


def pipelines(settings: Settings, registry: Registry, admin: Admin, deployed: list[str]) -> Iterator[Finding]:
    """Topics, rights and retention of every deployed pipeline."""
    for name in deployed:
        try:
            for query in deployed_queries(registry.pipeline(name)):
                yield from _query(settings, registry, admin, query)
        except RollforwardError as raised:
            yield told(f"pipeline {name}", raised)


def _query(settings: Settings, registry: Registry, admin: Admin, deployed: DeployedQuery) -> Iterator[Finding]:
    query, what = deployed.query, f"{deployed.pipeline}.{deployed.query.name}"
    changelog = names.changelog_topic(deployed.pipeline, query.store)
    needs = {
        query.source.topic: _READ,
        query.output_topic: _WRITE,
        deployed.batches_topic: _WRITE,
        names.dead_letter_topic(deployed.pipeline): _WRITE,
        **({} if query.stateless else {changelog: _WRITE}),
    }
    found = admin.authorized(list(needs))
    missing = sorted(set(needs) - set(found))
    if missing:
        fix = "restore them; a topic that is made again is another one (docs/runbooks/Unrecoverable.md)"
        yield error(f"topics of {what}", f"missing, or not to be described by this user: {', '.join(missing)}", fix)
    yield _rights(what, needs, found)
    if query.source.topic in found:
        yield from _source(settings, registry, admin, deployed, what)
    if changelog in found and changelog in needs:
        yield _changelog(settings, admin.configs(changelog), changelog)


def _rights(what: str, needs: Mapping[str, tuple[str, ...]], found: Mapping[str, set[str]]) -> Finding:
    lacking = [
        f"{right} on {topic}"
        for topic, rights in needs.items()
        for right in rights
        if right not in found.get(topic, rights)
    ]
    if lacking:
        return error(
            f"rights of {what}", f"this user lacks {', '.join(lacking)}", "docs/security.md has the list to grant"
        )
    return ok(f"rights of {what}", f"enough on {len(found)} topics")


def _source(
    settings: Settings, registry: Registry, admin: Admin, deployed: DeployedQuery, what: str
) -> Iterator[Finding]:
    """Deleted unread records are an error; a retention that leaves less than an hour for a repair is a warning."""
    topic = deployed.query.source.topic
    newest = next((b for b in registry.newest_batches(deployed.pipeline) if b.query == deployed.query.name), None)
    if newest is not None:
        positions = {int(partition): at[1] for partition, at in newest.offsets.items()}
        lost = _lost(settings, admin, topic, positions)
        if lost:
            fix = "restore them, or start with --accept-loss (docs/runbooks/Unrecoverable.md)"
            yield error(f"source of {what}", f"{lost} records of {topic} were deleted unread", fix)
            return
    kept_ms = int(admin.configs(topic).get("retention.ms", "-1"))
    if 0 <= kept_ms < HOUR_MS:
        fix = f"raise retention.ms of {topic}: whoever is called at night needs more time"
        yield warning(f"source of {what}", f"records of {topic} are kept for {kept_ms // 60_000} min only", fix)
    else:
        yield ok(
            f"source of {what}", f"{topic} keeps records {'for ever' if kept_ms < 0 else f'{kept_ms / HOUR_MS:.0f} h'}"
        )


def _changelog(settings: Settings, kept: Mapping[str, str], topic: str) -> Finding:
    what = f"changelog {topic}"
    if "compact" not in kept.get("cleanup.policy", ""):
        fix = "set cleanup.policy=compact: with delete, old keys are lost for ever"
        return error(what, f"cleanup.policy is {kept.get('cleanup.policy')}", fix)
    tombstones_ms = int(kept.get("delete.retention.ms", "86400000"))
    if settings.snapshot_interval_s * 1000 * 2 > tombstones_ms:
        fix = f"raise delete.retention.ms of {topic}, or lower snapshot_interval_s: older snapshots are refused"
        return warning(
            what,
            f"deletions are kept {tombstones_ms // 60_000} min, snapshots come every {settings.snapshot_interval_s / 60:.0f} min",
            fix,
        )
    return ok(what, f"compacted, deletions kept {tombstones_ms / HOUR_MS:.0f} h")


def _lost(settings: Settings, admin: Admin, name: str, positions: Mapping[int, int]) -> int:
    """How many records from the positions on are gone, from Kafka and from the archive."""
    topic = admin.describe([name])[name]
    begins = admin.begins(name, partitions=topic.partitions)
    gone = {p: (at, begins[p]) for p, at in positions.items() if begins.get(p, 0) > at}
    held = archived_spans(settings.archive_config(), topic) if gone else {}
    return sum(end - at for p, (at, end) in gone.items() if not holds(held, p, at, end))
