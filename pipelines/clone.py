"""A copy of a pipeline at a batch of its past, with topics, ids and groups of its own. The original is only read.

    0 look     the version of every query can be had: one that is refused leaves no half copy
    1 deploy   the same statements under the new name: its topics are made. The definition says whose copy it is, and no
               query of such a one starts before its log says that it is whole
    2 own      its driver's and tasks' ids; the log says what is being copied
    3 copy     the version is built from the original's snapshots, and one transaction makes it the clone's: stores,
               positions, the batch as done, the input's offsets, and the mark that it is whole

A stateless query has no store: its input's offsets are all that is copied.

Killed before a query's transaction commits, nothing of it is there: `clone` again goes on, `drop` takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from pipelines import names
from pipelines.deploy import DeployedQuery, deployed_queries, require_unchanged
from pipelines.metastore.embedded import deploy
from pipelines.past import PastVersion, past_version, require_travel
from pipelines.plan import Query, plan_hash, query_to_json
from pipelines.registry import PipelineDefinition, Registry
from pipelines.rewind import chosen, one_by_one, ranges_of, rewrite_of
from pipelines.settings import Settings
from statestore.batches import (
    COPIED,
    COPYING,
    ORIGIN,
    PLAN_PREFIX,
    BatchesLog,
    Order,
    Planned,
    Range,
    encode_fields,
)
from statestore.errors import InvalidInput
from statestore.failpoints import reach
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.layouts.local import is_local
from statestore.store import Entry
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
        require_travel(original, settings, store=False)
        require_unchanged(original, Admin(settings.kafka_config()))
    if registry.find(name) is None:
        # What an earlier run has copied needs no version any more.
        for original in originals:
            _look(original, settings, batch, at_ms, tell)
    # A stateless query has a task for each partition of its source, whatever the settings say.
    tasks = min((each.query.tasks for each in originals if not each.query.stateless), default=settings.tasks)
    made, _ = deploy(row.sql, name, settings.model_copy(update={"tasks": tasks}), registry, origin=row.name)
    reach("clone.deployed")
    copies = deployed_queries(made)
    for original, copy in zip(originals, copies, strict=True):
        _require_alike(original.query, copy.query)
    copy_of = dict(zip((original.query.name for original in originals), copies, strict=True))

    def copied(original: DeployedQuery) -> Cloned:
        return _Copying(original, copy_of[original.query.name], settings, batch, at_ms, tell).run()

    return one_by_one(originals, copied)


def _look(original: DeployedQuery, settings: Settings, batch: int | None, at_ms: int | None, tell: Progress) -> None:
    """0. Raises what would refuse the query's copy; builds and changes nothing."""
    with past_version(original, settings, batch=batch, at_ms=at_ms, store=False, tell=tell) as version:
        _going_on(version, settings)
        if not original.query.stateless:
            version.check()


def _going_on(version: PastVersion, settings: Settings) -> tuple[tuple[Range, ...], dict[int, Order] | None]:
    """Where the copy's input goes on, and where each task's stream time stands. Raises where that cannot be told."""
    query, now = version.deployed.query, version.cut.driver.planned
    if now is None or version.cut.batch < 0:
        raise InvalidInput("nothing was committed then", query=query.name)
    if query.stateless:
        # No store is built that would be refused.
        version.cut.require_known()
    ranges = ranges_of(version, now, Admin(settings.kafka_config()))
    return ranges, version.cut.orders() if query.in_record_order else None


@dataclass(frozen=True)
class _Copying:
    """One query of the original on its way to the clone's `copy`."""

    original: DeployedQuery
    copy: DeployedQuery
    settings: Settings
    batch: int | None
    at_ms: int | None
    tell: Progress

    def run(self) -> Cloned:
        """Make the copy, or find it made."""
        log = BatchesLog(Reader(self.settings.kafka_config()), self.copy.batches_topic, tasks=self.copy.query.tasks)
        # A copy that somebody has tried to start has a log without a mark as well.
        is_ours = self.copy.origin == self.original.pipeline
        if log.is_marked(ORIGIN) is False and not is_ours:
            # Before its id is taken: whoever runs under it would be fenced.
            raise self._taken()
        with closing(rewrite_of(self.copy, self.settings)) as rewrite:
            rewrite.take()
            before = log.driver_log()
            if before.origin.get("state") == COPIED and before.origin["pipeline"] == self.original.pipeline:
                return Cloned(self.copy.query.name, before.origin["batch"], before.origin["keys"], copied_now=False)
            if before.planned is not None:
                raise self._taken()
            with past_version(
                self.original, self.settings, batch=self.batch, at_ms=self.at_ms, store=False, tell=self.tell
            ) as version:
                return self._write(rewrite, version)

    def _taken(self) -> InvalidInput:
        hint = "choose another name"
        return InvalidInput("there is another pipeline of this name", pipeline=self.copy.pipeline, hint=hint)

    def _write(self, rewrite: Rewrite, version: PastVersion) -> Cloned:
        query, batch = self.copy.query, version.cut.batch
        ranges, orders = _going_on(version, self.settings)
        keys = sum(not is_local(key) for content in self._content(version).values() for key, _ in content)
        origin = {"pipeline": self.original.pipeline, "batch": batch, "keys": keys}
        self.tell(query.name, "owning its tasks")
        if rewrite.own({ORIGIN: encode_fields(state=COPYING, **origin)}).planned is not None:
            raise InvalidInput("the clone was started meanwhile", pipeline=self.copy.pipeline, hint="drop it")
        reach("clone.marked")
        self.tell(query.name, f"copying {keys:,} keys")
        plan = plan_hash(query)
        records = {
            ORIGIN: encode_fields(state=COPIED, **origin),
            PLAN_PREFIX + plan.encode(): query_to_json(query).encode(),
        }
        group = names.group(self.copy.pipeline, query.name)
        rewrite.commit(self._content(version), Planned(batch, plan, ranges), records, group, orders=orders)
        return Cloned(query.name, batch, keys, copied_now=True)

    def _content(self, version: PastVersion) -> dict[int, Iterator[Entry]]:
        """Each task's entries, by its number. A stateless query has none, and nothing is built of it."""
        specs = [past.spec for past in version.cut.tasks]
        stateless = self.copy.query.stateless
        return {spec.number: iter(()) if stateless else version.entries(spec) for spec in specs}


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
    fields = (
        "name",
        "tasks",
        "source",
        "where",
        "group_by",
        "aggregates",
        "key_format",
        "window",
        "emission",
        "changelog",
    )
    different = [name for name in fields if getattr(original, name) != getattr(copy, name)]
    if different:
        raise InvalidInput(
            "the clone's plan is another one", query=original.name, differs=", ".join(different), hint="drop the clone"
        )
