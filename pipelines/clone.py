"""A copy of a pipeline at a batch of its past, with topics, ids and groups of its own. The original is only read.

    1 deploy   the same statements under the new name: its topics are made
    2 mark     each query's log says that it is being copied; such a query does not start
    3 copy     the version is built from the original's snapshots, and one transaction makes it the clone's: stores,
               positions, the batch as done, the input's offsets, and the mark that it is whole

Killed before a query's transaction commits, nothing of it is there: `clone` again goes on, `drop` takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from pipelines import names
from pipelines.deploy import DeployedQuery, deployed_queries, require_unchanged
from pipelines.metastore.embedded import deploy
from pipelines.past import past_version, require_rewritable
from pipelines.plan import Query, plan_hash, query_to_json
from pipelines.registry import PipelineDefinition, Registry
from pipelines.rewind import chosen, ranges_of, rewrite_of
from pipelines.settings import Settings
from statestore.batches import COPYING, ORIGIN, PLAN_PREFIX, BatchesLog, Planned, encode_fields
from statestore.errors import InvalidInput
from statestore.failpoints import reach
from statestore.kafka import Admin, Reader
from statestore.travel.rewrite import Rewrite

Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class Cloned:
    """A query of the clone: whose version it has, and how many keys. `copied_now` is False if an earlier run did it."""

    query: str
    batch: int
    keys: int
    copied_now: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def clone(
    row: PipelineDefinition,
    name: str,
    settings: Settings,
    registry: Registry,
    *,
    batch: int | None,
    at_ms: int | None,
    tell: Progress = lambda _step, _detail: None,
) -> list[Cloned]:
    """Make or finish the clone `name`, stopped. Raises `InvalidInput` or `OutOfReach` where that is not possible."""
    originals = chosen(row, None, batch)
    if name == row.name:
        raise InvalidInput("a clone needs a name of its own", pipeline=name)
    _require_apart(originals)
    for original in originals:
        require_rewritable(original, settings)
        require_unchanged(original, Admin(settings.kafka_config()))
    tasks = {original.query.tasks for original in originals}
    made, _ = deploy(row.sql, name, settings.model_copy(update={"tasks": min(tasks)}), registry)
    reach("clone.deployed")
    copies = deployed_queries(made)
    for original, copy in zip(originals, copies, strict=True):
        _require_alike(original.query, copy.query)
    return [
        _copy(original, copy, settings, batch, at_ms, tell) for original, copy in zip(originals, copies, strict=True)
    ]


def _copy(
    original: DeployedQuery,
    copy: DeployedQuery,
    settings: Settings,
    batch: int | None,
    at_ms: int | None,
    tell: Progress,
) -> Cloned:
    kafka = settings.kafka_config()
    marked = BatchesLog(Reader(kafka), copy.batches_topic, tasks=copy.query.tasks).is_marked(ORIGIN)
    if marked is False:
        # Before its id is taken: whoever runs under it would be fenced.
        raise InvalidInput("there is another pipeline of this name", pipeline=copy.pipeline, hint="choose another name")
    with ExitStack() as stack:
        rewrite = rewrite_of(copy, settings)
        stack.callback(rewrite.close)
        rewrite.take()
        return _copy_with(rewrite, original, copy, settings, batch, at_ms, tell)


def _copy_with(
    rewrite: Rewrite,
    original: DeployedQuery,
    copy: DeployedQuery,
    settings: Settings,
    batch: int | None,
    at_ms: int | None,
    tell: Progress,
) -> Cloned:
    kafka = settings.kafka_config()
    before = BatchesLog(Reader(kafka), copy.batches_topic, tasks=copy.query.tasks).driver_log()
    if before.origin.get("state") == _COPIED and before.origin["pipeline"] == original.pipeline:
        return Cloned(copy.query.name, before.origin["batch"], before.origin["keys"], copied_now=False)
    if before.planned is not None:
        raise InvalidInput("there is another pipeline of this name", pipeline=copy.pipeline, hint="choose another name")
    with past_version(original, settings, batch=batch, at_ms=at_ms, tell=tell) as version:
        now = version.cut.driver.planned
        if now is None or version.cut.batch < 0:
            raise InvalidInput("nothing was committed then", query=original.query.name)
        ranges = ranges_of(version, now, Admin(kafka))
        stores = {past.spec.number: version.task(past.spec) for past in version.cut.tasks}
        store, plan = copy.query.store, plan_hash(copy.query)
        keys = sum(1 for each in stores.values() for _ in each.database.scan(store))
        origin = {"pipeline": original.pipeline, "batch": version.cut.batch, "keys": keys}
        tell(copy.query.name, "owning its tasks")
        if rewrite.own({ORIGIN: encode_fields(state=COPYING, **origin)}).planned is not None:
            raise InvalidInput("the clone was started meanwhile", pipeline=copy.pipeline, hint="drop it")
        reach("clone.marked")
        tell(copy.query.name, f"copying {keys:,} keys")
        entries = {number: each.database.scan(store) for number, each in stores.items()}
        records = {
            ORIGIN: encode_fields(state=_COPIED, **origin),
            PLAN_PREFIX + plan.encode(): query_to_json(copy.query).encode(),
        }
        planned = Planned(version.cut.batch, plan, ranges)
        rewrite.commit(entries, planned, records, names.group(copy.pipeline, copy.query.name))
    return Cloned(copy.query.name, version.cut.batch, keys, copied_now=True)


_COPIED = "copied"


def _require_apart(queries: Sequence[DeployedQuery]) -> None:
    """A clone's result topics begin empty: a query that reads one would miss what came before."""
    results = {deployed.query.output_topic for deployed in queries}
    readers = [deployed.query.name for deployed in queries if deployed.query.source.topic in results]
    if readers:
        raise InvalidInput(
            "queries that read each other's results cannot be cloned",
            queries=", ".join(readers),
            hint="the clone's result topics begin empty; deploy the statements under another name instead",
        )


def _require_alike(original: Query, copy: Query) -> None:
    """The statements of a pipeline are kept, but what they were resolved with may have changed since."""
    fields = ("name", "tasks", "source", "where", "group_by", "aggregates", "key_format")
    different = [name for name in fields if getattr(original, name) != getattr(copy, name)]
    if different:
        raise InvalidInput(
            "the clone's plan is another one", query=original.name, differs=", ".join(different), hint="drop the clone"
        )
