"""What a task knows of the version that it hands out for a snapshot."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from statestore.batches import Position
from statestore.clock import now_ms
from statestore.config import TaskSpec
from statestore.snapshots.manifest import Manifest, Step
from statestore.version import Checkpoint

# Of offsets that are remembered: at a batch a second of a source with ten partitions, five hours. Older steps are
# forgotten, and only batches with a step can be travelled to.
_NUMBERS_MAX = 200_000


class _Kept(NamedTuple):
    """A step as a manifest will have it, and of how many offsets it is."""

    batch: int
    numbers: int
    body: bytes


class Steps:
    """The batches that were applied since the snapshot before, the one that it is of first, and none left out.

    A batch a second makes thousands of them, so each is kept as a manifest will have it.
    """

    def __init__(self) -> None:
        self._steps: deque[_Kept] = deque()
        self._numbers = 0

    def begin(self, position: Position | None, checkpoint: Checkpoint | None) -> None:
        """The task was opened at this position. What was committed unseen meanwhile would be a gap: begin anew."""
        if position is not None and self._steps and self._steps[-1].batch == position.batch:
            return
        self._steps.clear()
        self._numbers = 0
        if position is not None and checkpoint is not None:
            self._append(position, checkpoint.written_at_ms)

    def add(self, position: Position) -> None:
        """A batch was applied now."""
        self._append(position, now_ms())

    def _append(self, position: Position, at_ms: int) -> None:
        offsets = {name: at.offset for name, at in position.stores.items()}
        step = Step(position.batch, offsets, at_ms, position.ends, position.order)
        numbers = 1 + len(position.ends)
        self._steps.append(_Kept(step.batch, numbers, step.encode()))
        self._numbers += numbers
        while self._numbers > _NUMBERS_MAX and len(self._steps) > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._numbers -= self._steps.popleft().numbers

    def since_last(self) -> tuple[Step, ...]:
        """All of them, oldest first."""
        return tuple(Step.decode(kept.body) for kept in self._steps)

    def forget(self, batch: int) -> None:
        """A snapshot has the steps up to `batch`, which stays: the next one's begin with it."""
        while len(self._steps) > 1 and self._steps[1].batch <= batch:
            self._drop_oldest()


def describe(
    spec: TaskSpec, batches_topic_id: str, position: Position, checkpoint: Checkpoint, steps: tuple[Step, ...]
) -> Manifest:
    """The manifest of a version that was just copied, without its files and write id."""
    return Manifest(
        pipeline=spec.pipeline,
        query=spec.query,
        task=spec.number,
        tasks=spec.tasks,
        batches_topic_id=batches_topic_id,
        store_format=checkpoint.format,
        plan=position.plan,
        epoch=position.epoch,
        batch=checkpoint.batch,
        # Not the time of the copy: an owner that was paused does not know that its version is an old one.
        version_at_ms=checkpoint.written_at_ms,
        taken_at_ms=now_ms(),
        stores=dict(checkpoint.stores),
        files=(),
        write_id="",
        steps=steps,
        digest=position.digest,
    )
