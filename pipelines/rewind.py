"""Bringing a query back to a batch of the past, so that it runs forward from there again.

Nothing in Kafka is unmade. A new batch is committed whose version is the old one: the changelog gets the difference,
the positions the new batch, the consumer group the offsets at which the input stood then. So a store never stands
behind Kafka's truth, and batch numbers only grow.

The result topic is left as it is. Every key that differs was changed by records behind those offsets, which the query
reads again, so its newest result there is written again as well. Until it has, the topic is ahead of the store.
Therefore a query is not brought back when another one reads its results, when records to be read again are gone,
when they could come to the store in another way than before (`require_rewritable`), or when results came since that
no record behind the batch writes again (`_require_results_again`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pipelines import names
from pipelines.deploy import DeployedQuery, deployed_queries, require_unchanged
from pipelines.past import PastVersion, past_version, require_travel
from pipelines.plan import ON_COMMIT, Query, plan_hash
from pipelines.registry import PipelineDefinition, Registry
from pipelines.settings import Settings
from statestore.batches import Planned, Range
from statestore.errors import InvalidInput, RollforwardError, Unavailable, Unrecoverable
from statestore.kafka.admin import Admin
from statestore.snapshots.service import Snapshots
from statestore.travel.rewrite import Rewrite

Progress = Callable[[str, str], None]
Done = TypeVar("Done")


@dataclass(frozen=True)
class Rewound:
    """`batch` is the one whose version the query has now, under the number `as_batch`; None where it was only looked at.

    `offsets_again` are the source's offsets between then and what was read since. `puts` and `deletes` are keys.
    """

    query: str
    batch: int
    as_batch: int | None
    offsets_again: int
    puts: int = 0
    deletes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def chosen(row: PipelineDefinition, query: str | None, batch: int | None) -> list[DeployedQuery]:
    """The queries meant: one by its name, or all; a batch number means one query's. Raises `InvalidInput`."""
    queries = deployed_queries(row)
    found = [deployed for deployed in queries if query in (None, deployed.query.name)]
    known = ", ".join(deployed.query.name for deployed in queries)
    if not found:
        raise InvalidInput("pipeline has no such query", query=query, queries=known)
    if batch is not None and len(found) > 1:
        raise InvalidInput("every query numbers its own batches", queries=known, hint="name one with --query")
    return found


def one_by_one(queries: Sequence[DeployedQuery], work: Callable[[DeployedQuery], Done]) -> list[Done]:
    """What the work gives for each query. Its error for a later one names in `queries_done` those that it is done for."""
    done: list[Done] = []
    for query in queries:
        try:
            done.append(work(query))
        except RollforwardError as error:
            if not done:
                raise
            names_done = ", ".join(each.query.name for each in queries[: len(done)])
            fields = {**error.fields, "queries_done": names_done}
            raise type(error)(error.message, hint=error.hint, **fields) from error
    return done


def rewind(
    deployed: DeployedQuery,
    settings: Settings,
    registry: Registry,
    *,
    batch: int | None,
    at_ms: int | None,
    dry_run: bool = False,
    tell: Progress = lambda _step, _detail: None,
) -> Rewound:
    """Bring a stopped pipeline's query back. Raises `InvalidInput` or `OutOfReach` where that is not possible."""
    require_travel(deployed, settings)
    admin = Admin(settings.kafka_config())
    require_unchanged(deployed, admin)
    require_rewritable(deployed.query, source_partitions=_partitions(deployed.query.source.topic, admin))
    require_no_reader(deployed, registry, hint="clone the pipeline at that batch instead")
    with ExitStack() as stack:
        rewrite = None
        if not dry_run:
            rewrite = rewrite_of(deployed, settings)
            stack.callback(rewrite.close)
            rewrite.take()
        version = stack.enter_context(past_version(deployed, settings, batch=batch, at_ms=at_ms, tell=tell))
        now = version.cut.driver.planned
        if now is None:
            raise InvalidInput("nothing is committed yet", query=deployed.query.name)
        ranges = ranges_of(version, now, admin)
        _require_results_again(version, now, ranges)
        ends = {r.partition: r.end for r in ranges}
        again = sum(r.end - ends.get(r.partition, 0) for r in now.ranges)
        orders = version.cut.orders() if deployed.query.in_record_order else None
        if rewrite is None:
            version.check()
            return Rewound(deployed.query.name, version.cut.batch, None, again)
        # All of it is built before the tasks are owned: what cannot be had changes nothing.
        entries = {past.spec.number: version.entries(past.spec) for past in version.cut.tasks}
        planned = Planned(now.batch + 1, plan_hash(deployed.query), ranges, floor=now.floor_behind, cut=now.cut)
        tell(deployed.query.name, "owning its tasks")
        if rewrite.own({}).planned != now:
            raise Unavailable("pipeline went on meanwhile", query=deployed.query.name, hint="stop it and try again")
        tell(deployed.query.name, "writing the difference")
        group = names.group(deployed.pipeline, deployed.query.name)
        written = rewrite.commit(entries, planned, {}, group, orders=orders)
        puts, deletes = sum(w.puts for w in written), sum(w.deletes for w in written)
        return Rewound(deployed.query.name, version.cut.batch, planned.batch, again, puts, deletes)


def require_rewritable(query: Query, *, source_partitions: int) -> None:
    """Raises `InvalidInput` unless every result that differs is sure to be written again by the records read again.

    What was one batch may be parts of several the next time. Records of one partition come in the same order all the
    same; which of two partitions' comes first can depend on the batch.
    """
    why = ""
    if query.changelog:
        why = "rows that its table's topic has compacted away are not read again, nor are their groups put right"
    elif query.having is not None and query.emission == ON_COMMIT:
        why = "a result that HAVING showed only between two batches is not taken back when one batch has both"
    elif source_partitions > 1 and query.window is not None:
        why = "records of several partitions may come in another order again, and then others are too late"
    elif source_partitions > 1 and query.having is not None:
        why = "records of several partitions may come in another order again, and then HAVING shows other results"
    if why:
        raise InvalidInput(
            "query cannot be brought back to a version of the past",
            query=query.name,
            reason=why,
            hint="clone the pipeline at that batch instead",
        )


def _require_results_again(version: PastVersion, now: Planned, ranges: tuple[Range, ...]) -> None:
    """Raises `InvalidInput` where the result topic has results that no record behind the batch writes again."""
    why, stands = "", {r.partition: r.end for r in now.ranges}
    if version.cut.batch < now.floor_behind:
        why = (
            f"batch {now.floor_behind}, a reset or a period that was computed again, wrote results of records before it"
        )
    elif any(r.end > stands.get(r.partition, 0) for r in ranges):
        why = "the query was brought back since, and has not read again all that the batch has"
    if why:
        raise InvalidInput(
            "query cannot be brought back to this batch",
            query=version.deployed.query.name,
            batch=version.cut.batch,
            reason=why,
            hint="clone the pipeline at that batch instead",
        )


def _partitions(topic: str, admin: Admin) -> int:
    """How many there are; a topic that is gone has none, and is told when its offsets are looked at."""
    found = admin.describe([topic]).get(topic)
    return 0 if found is None else found.partitions


def rewrite_of(deployed: DeployedQuery, settings: Settings) -> Rewrite:
    """What makes another version of the query the committed one."""
    snapshots = settings.snapshot_config()
    return Rewrite(
        settings.kafka_config(),
        names.driver_id(deployed.pipeline, deployed.query.name),
        deployed.task_specs(settings.states),
        plan=plan_hash(deployed.query),
        snapshots=None if snapshots is None else Snapshots(snapshots),
    )


def require_no_reader(deployed: DeployedQuery, registry: Registry, *, hint: str) -> None:
    """Raises `InvalidInput` if another query reads this one's results, which would come to it a second time."""
    readers = [
        f"{row.name}.{other.query.name}"
        for row in registry.pipelines()
        for other in deployed_queries(row)
        if other.query.source.topic == deployed.query.output_topic
    ]
    if readers:
        raise InvalidInput(
            "results would reach their readers a second time",
            query=deployed.query.name,
            readers=", ".join(readers),
            hint=hint,
        )


def ranges_of(version: PastVersion, now: Planned, admin: Admin) -> tuple[Range, ...]:
    """Where the input goes on: all of it must still be there, and be what it was. Raises `InvalidInput` or `Unrecoverable`."""
    source = version.deployed.query.source.topic
    found = admin.describe([source]).get(source)
    recorded = {r.topic_id for r in now.ranges}
    if found is None or recorded != {found.topic_id}:
        raise Unrecoverable(
            "source topic is missing or was created again: its offsets mean other records", topic=source
        )
    ends = {int(partition): end for partition, end in version.cut.ends().items()}
    if version.cut.recorded() < now.cut:
        raise InvalidInput(
            "source topic has lost records that were read: where the input stood at the batch means other records now",
            topic=source,
            batch=version.cut.batch,
            first=now.cut,
            hint="take a batch from `first` on that has changed something, or deploy the pipeline under another name",
        )
    begins = admin.begins(source, partitions=found.partitions)
    gone = {p: begins[p] for p in begins if begins[p] > ends.get(p, 0)}
    if gone:
        partition, begin = next(iter(gone.items()))
        raise InvalidInput(
            "source records behind the batch were deleted, so the query could not run forward from it",
            topic=source,
            partition=partition,
            wanted=ends.get(partition, 0),
            first=begin,
        )
    # A partition that came later begins at 0, as it did.
    return tuple(Range(source, found.topic_id, p, ends.get(p, 0), ends.get(p, 0)) for p in sorted(begins))
