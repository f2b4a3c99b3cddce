"""Resetting a query: its stores are emptied and its input begins at given offsets or a time.

    1 look     the offsets that are meant, all of them present; refused where results would reach a reader twice
    2 own      the query's ids: older drivers and servers can commit nothing more
    3 write    one transaction: deletions of every key in the changelogs, tombstones of the keys in the result topic, the
               tasks' positions at a new batch before any stream time, that batch as planned and done, the input's offsets

Killed before the transaction has committed nothing has changed, and the same reset can be run again; after it everything
has. Batch numbers only grow, and nothing in Kafka is unmade.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipelines import names
from pipelines.archive import archived_spans
from pipelines.deploy import DeployedQuery, require_unchanged
from pipelines.plan import plan_hash
from pipelines.registry import Registry
from pipelines.rewind import require_no_reader, rewrite_of
from pipelines.settings import Settings
from statestore.batches import BatchesLog, Planned, Range
from statestore.config import ObjectsConfig
from statestore.errors import InvalidConfig, InvalidInput, Unavailable, Unrecoverable
from statestore.kafka.admin import Admin, Topic
from statestore.kafka.reader import Reader

Progress = Callable[[str, str], None]
EARLIEST, LATEST, HISTORY = "earliest", "latest", "history"


@dataclass(frozen=True)
class Target:
    """Where the input shall begin: `earliest` or `latest` in Kafka, `history` for the first record of the archive, a time
    in ms, or offsets by partition; partitions that are not named at the earliest."""

    edge: str | None = None
    at_ms: int | None = None
    offsets: Mapping[int, int] | None = None


@dataclass(frozen=True)
class WasReset:
    """A query's reset. `offsets` are where its input begins by partition; `as_batch` is None for a dry run.

    `again` counts the offsets that it reads a second time, `skipped` those that it does not read at all.
    """

    query: str
    as_batch: int | None
    offsets: dict[str, int]
    again: int
    skipped: int
    keys_deleted: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def reset(
    deployed: DeployedQuery,
    settings: Settings,
    registry: Registry,
    target: Target,
    *,
    dry_run: bool,
    only_new: bool = False,
    tell: Progress = lambda _step, _detail: None,
) -> WasReset:
    """Reset a stopped pipeline's query, or only look; `only_new` refuses one that has taken records.

    Raises `InvalidInput` where that is not possible.
    """
    query, kafka = deployed.query, settings.kafka_config()
    if not settings.transactions:
        raise InvalidInput("a query without transactions cannot be reset", query=query.name)
    admin = Admin(kafka)
    require_unchanged(deployed, admin)
    require_no_reader(deployed, registry, hint="stop and drop the readers, and deploy them again afterwards")
    topic = _source(query.source.topic, admin)
    offsets = target_offsets(topic, target, admin, settings.archive_config())
    log = BatchesLog(Reader(kafka), deployed.batches_topic, tasks=query.tasks)
    if dry_run:
        before = log.driver_log(uncommitted=True).planned
        _require_possible(deployed, before, topic, only_new=only_new)
        return _result(query.name, None, before, topic, offsets, None)
    rewrite = rewrite_of(deployed, settings)
    try:
        rewrite.take()
        before = log.driver_log().planned
        _require_possible(deployed, before, topic, only_new=only_new)
        tell(query.name, "owning its tasks")
        if rewrite.own({}).planned != before:
            raise Unavailable("pipeline went on meanwhile", query=query.name, hint="stop it and try again")
        ranges = tuple(Range(topic.name, topic.topic_id, p, at, at) for p, at in sorted(offsets.items()))
        batch = 0 if before is None else before.batch + 1
        planned = Planned(batch, plan_hash(query), ranges, floor=batch, cut=0 if before is None else before.cut)
        tell(query.name, "emptying its stores")
        group = names.group(deployed.pipeline, query.name)
        written = rewrite.empty(planned, group, results=not query.stateless, in_record_order=query.in_record_order)
    finally:
        rewrite.close()
    return _result(query.name, planned.batch, before, topic, offsets, sum(one.deletes for one in written))


def _require_possible(deployed: DeployedQuery, before: Planned | None, topic: Topic, *, only_new: bool) -> None:
    """Refuses what a dry run shall refuse as well. A query that was reset or bootstrapped and never ran since is new, too."""
    if before is not None and {r.topic_id for r in before.ranges} - {topic.topic_id}:
        raise Unrecoverable("source topic was created again: its offsets mean other records", topic=topic.name)
    if only_new and before is not None and (before.batch > 0 or any(r.end > r.start for r in before.ranges)):
        raise InvalidInput(
            "query has computed something already",
            pipeline=deployed.pipeline,
            query=deployed.query.name,
            batch=before.batch,
            hint=f"to begin anew with all history: `rollforward reset {deployed.pipeline} --to {HISTORY}`",
        )


def _source(name: str, admin: Admin) -> Topic:
    found = admin.describe([name]).get(name)
    if found is None:
        raise InvalidConfig("source topic does not exist", topic=name)
    return found


def target_offsets(topic: Topic, target: Target, admin: Admin, archive: ObjectsConfig | None) -> dict[int, int]:
    """The offsets that are meant, by partition. Raises `InvalidInput` for those that neither topic nor archive have."""
    begins = admin.begins(topic.name, partitions=topic.partitions)
    ends = admin.stable_ends(topic.name, partitions=topic.partitions)
    if target.at_ms is not None:
        at = admin.at_time(topic.name, target.at_ms, partitions=topic.partitions)
        return {p: min(at[p], ends[p]) for p in begins}
    if target.edge == LATEST:
        return ends
    firsts = begins | _first_archived(topic, begins, archive)
    if target.edge == HISTORY:
        return firsts
    wanted = begins | dict(target.offsets or {})
    for partition, offset in wanted.items():
        if partition not in begins or not firsts[partition] <= offset <= ends[partition]:
            raise InvalidInput(
                "offset is not in the topic",
                topic=topic.name,
                partition=partition,
                offset=offset,
                first=firsts.get(partition),
                end=ends.get(partition),
            )
    return wanted


def _first_archived(topic: Topic, begins: dict[int, int], archive: ObjectsConfig | None) -> dict[int, int]:
    """The archive's first offsets, of the partitions where it reaches to what Kafka has."""
    spans = archived_spans(archive, topic)
    return {p: min(first, begins[p]) for p, (first, end) in spans.items() if end >= begins[p]}


def _result(
    query: str, batch: int | None, before: Planned | None, topic: Topic, offsets: dict[int, int], deleted: int | None
) -> WasReset:
    stood = {} if before is None else {r.partition: r.end for r in before.ranges if r.topic_id == topic.topic_id}
    moved = [offset - stood.get(partition, 0) for partition, offset in offsets.items()]
    again, skipped = -sum(m for m in moved if m < 0), sum(m for m in moved if m > 0)
    return WasReset(query, batch, {str(p): at for p, at in sorted(offsets.items())}, again, skipped, deleted)
