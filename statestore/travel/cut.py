"""One query's past: the batches in which all of its tasks can be had, and the one that a time names.

A batch names the version of every task after it, also of tasks without rows in it. A time names the newest batch that
no task committed later than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import structlog

from statestore.batches import BatchesLog, DriverLog, Order
from statestore.clock import Moment
from statestore.config import TaskSpec
from statestore.errors import InvalidInput, RollforwardError
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.planning.facts import Found, SnapshotFound, gather
from statestore.planning.hazards import why_of_another_timeline
from statestore.snapshots.manifest import Manifest, Step
from statestore.snapshots.repository import Repository, Unreadable
from statestore.snapshots.service import Snapshots
from statestore.travel.known import BEGIN, known_of
from statestore.travel.past import OutOfReach, PastTask

log = structlog.get_logger()
# Of each task: snapshots that a version is built from, the nearest ones; and the next one, which knows the steps to it.
_BEFORE = 3
_AFTER = 2


class Cut:
    """The past of one query's tasks. `batch` is the wanted one, found from `at_ms` where a time was given."""

    def __init__(self, tasks: Sequence[PastTask], driver: DriverLog, *, batch: int | None, at_ms: int | None) -> None:
        self.tasks = tasks
        self.driver = driver
        self.batch = self._batch_at(at_ms) if batch is None else batch
        if self.batch > driver.done:
            raise InvalidInput("batch is not finished", batch=self.batch, newest=driver.done)

    def _batch_at(self, at_ms: int | None) -> int:
        """The newest batch at a time; without one, of all."""
        if at_ms is None:
            return self.driver.done
        steps = [step for task in self.tasks for step in task.known.steps.values() if step.batch != BEGIN]
        later = [step.batch for step in steps if step.at_ms > at_ms]
        if not later:
            return self.driver.done
        if len(later) == len(steps) and any(BEGIN not in task.known.steps for task in self.tasks):
            oldest = min(steps, key=lambda step: step.at_ms)
            raise OutOfReach(
                "time lies before the batches that are known", at_ms=at_ms, oldest_ms=oldest.at_ms, oldest=oldest.batch
            )
        return min(later) - 1

    def ends(self) -> dict[str, int]:
        """Where the input stood after the batch, by source partition. Raises `OutOfReach` where nobody recorded it."""
        return self._newest().ends

    def recorded(self) -> int:
        """The batch that recorded `ends`: an older one, where no task had rows of those since. Raises as that."""
        return self._newest().batch

    def _newest(self) -> Step:
        steps = [step for task in self.tasks if (step := task.known.at(self.batch)) is not None]
        newest = max(steps, key=lambda step: step.batch, default=None)
        if newest is None or not newest.ends:
            raise OutOfReach("where the input stood at the batch is not known", batch=self.batch)
        return newest

    def require_known(self) -> None:
        """Raises `OutOfReach` unless it is certain which of each task's batches was its newest one then."""
        unknown = [task.spec.number for task in self.tasks if task.known.at(self.batch) is None]
        if unknown:
            raise self.out_of_reach(
                OutOfReach("which of the tasks' batches came before is not known", batch=self.batch, tasks=unknown)
            )

    def order(self, task: int) -> Order | None:
        """The task's stream time and late records after the batch; None where nobody recorded them."""
        step = self.tasks[task].known.at(self.batch)
        return None if step is None else step.order

    def orders(self) -> dict[int, Order]:
        """`order` of every task, by number. Raises `OutOfReach` where nobody recorded one."""
        found = {past.spec.number: self.order(past.spec.number) for past in self.tasks}
        orders = {number: order for number, order in found.items() if order is not None}
        if unknown := found.keys() - orders.keys():
            raise OutOfReach(
                "how far the records' time had come at the batch is not known", batch=self.batch, tasks=sorted(unknown)
            )
        return orders

    def out_of_reach(self, error: OutOfReach) -> OutOfReach:
        """The error with the nearest batches of all tasks, before and after."""
        ranges = [task.reachable(self.batch) for task in self.tasks]
        bounds = {min(bound, self.driver.done) for found in ranges for one in found for bound in one}
        common = [b for b in bounds if b >= 0 and all(any(low <= b <= high for low, high in f) for f in ranges)]
        before = max((b for b in common if b <= self.batch), default=None)
        after = min((b for b in common if b > self.batch), default=None)
        names = [str(b) for b in (before, after) if b is not None]
        hint = f"batches that can be had: {' and '.join(names)}" if names else "no batch of the past can be had"
        fields = {**error.fields, "nearest_before": before, "nearest_after": after}
        return OutOfReach(error.message, hint=hint, **fields)


def look_back(
    specs: Sequence[TaskSpec],
    reader: Reader,
    admin: Admin,
    snapshots: Snapshots | None,
    *,
    batch: int | None = None,
    at_ms: int | None = None,
    any_timeline: bool = False,
) -> Cut:
    """Gather what is known of the past of a query near a batch or a time, else of its newest batch. Changes nothing.

    `any_timeline` takes snapshots of batches, too, that Kafka has lost: for whoever wants to know whether one differs.
    """
    batches = BatchesLog(reader, specs[0].batches_topic, tasks=specs[0].tasks)
    driver = batches.driver_log()
    wanted = driver.done if batch is None and at_ms is None else batch
    tasks = [_look_at(spec, reader, admin, batches, snapshots, wanted, at_ms, any_timeline) for spec in specs]
    return Cut(tasks, driver, batch=batch, at_ms=at_ms)


def _look_at(
    spec: TaskSpec,
    reader: Reader,
    admin: Admin,
    batches: BatchesLog,
    snapshots: Snapshots | None,
    batch: int | None,
    at_ms: int | None,
    any_timeline: bool,
) -> PastTask:
    asked = Moment()
    recorded = batches.positions(spec.number)
    found = gather(spec, reader, admin, recorded[-1].position if recorded else None, None, "", asked)
    repository = None if snapshots is None else snapshots.repository(spec, found.batches_topic_id)
    manifests: list[Manifest] = []
    if repository is not None:
        try:
            manifests = list(_near(repository, batch, at_ms))
        except RollforwardError as error:
            log.warning("snapshots cannot be read", task=spec.name, error=str(error))
    scheme = "" if repository is None else repository.objects.url.partition(":")[0]
    offered = tuple(SnapshotFound("", scheme, manifest) for manifest in manifests)
    positions = () if any_timeline else tuple(one.position for one in recorded)
    found = replace(found, snapshots=offered, positions=positions)
    chains = [manifest.steps for manifest in manifests if not _is_lost(spec, manifest, found)]
    return PastTask(spec, reader, repository, found, known_of(recorded, spec.store.name, chains))


def _is_lost(spec: TaskSpec, manifest: Manifest, found: Found) -> bool:
    """Whether the snapshot is of a timeline that Kafka has lost, and so what it says of batches."""
    reason = why_of_another_timeline(spec, manifest, found)
    if reason:
        log.error("snapshot is not of this timeline", task=spec.name, batch=manifest.batch, error=reason)
    return bool(reason)


def _near(repository: Repository, batch: int | None, at_ms: int | None) -> Iterator[Manifest]:
    """The manifests around a batch or a time, newest first."""
    after: list[Manifest] = []
    before = 0
    at_most = None
    if batch is not None:
        later = [b for b in repository.batches() if b > batch]
        at_most = later[:_AFTER][-1] if later else None
    for manifest in repository.newest_first(at_most=at_most):
        if isinstance(manifest, Unreadable):
            continue
        is_after = manifest.batch > batch if batch is not None else manifest.taken_at_ms > (at_ms or 0)
        if is_after:
            after = [*after, manifest][-_AFTER:]
            continue
        if before == 0:
            yield from after
            after = []
        before += 1
        yield manifest
        if before == _BEFORE:
            return
    yield from after
