"""What a task knows of the version that it hands out for a snapshot."""

from __future__ import annotations

from collections import deque

from statestore.batches import Position
from statestore.clock import now_ms
from statestore.config import TaskSpec
from statestore.snapshots.manifest import Manifest, Step
from statestore.version import Checkpoint

# At a batch a second, five hours; older steps are forgotten, and only batches with a step can be travelled to.
_STEPS_MAX = 20_000


class Steps:
    """The batches that were applied since the snapshot before."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=_STEPS_MAX)

    def add(self, position: Position) -> None:
        """A batch was applied now."""
        offsets = {name: at.offset for name, at in position.stores.items()}
        self._steps.append(Step(position.batch, offsets, now_ms()))

    def since_last(self) -> tuple[Step, ...]:
        """All of them, oldest first."""
        return tuple(self._steps)

    def forget(self, batch: int) -> None:
        """A snapshot has the steps up to `batch`."""
        while self._steps and self._steps[0].batch <= batch:
            self._steps.popleft()


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
    )
