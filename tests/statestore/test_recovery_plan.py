"""Which way a task takes to its committed version, and which ways are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statestore.batches import Position
from statestore.config import StoreSpec, TaskSpec
from statestore.errors import Unrecoverable
from statestore.recovery import Found, Way, plan_recovery
from statestore.version import ChangelogPosition, Checkpoint

SPEC = TaskSpec("p", "q", 1, 4, "b", "o", "d", StoreSpec("s", "c", "id"), Path("folder"))
NOW = 1_000_000_000
DAY = 86_400_000


def at(batch: int, offset: int, topic_id: str = "id") -> Checkpoint:
    return Checkpoint(batch, {"s": ChangelogPosition(topic_id, offset)}, written_at_ms=NOW)


def position(batch: int, offset: int) -> Position:
    return Position(batch, 1, "plan", {"s": ChangelogPosition("id", offset)})


FOUND = Found(at(5, 50), "", position(5, 50), "id", 0, 51, DAY, NOW)


def plan(**changed: object) -> tuple[Way, int, int, bool]:
    found = plan_recovery(SPEC, replace(FOUND, **changed))  # type: ignore[arg-type]
    return found.way, found.start, found.end, found.discard_local


def test_a_store_at_the_committed_batch_needs_nothing() -> None:
    assert (Way.NOTHING, 50, 50, False) == plan()


def test_a_store_behind_rolls_forward_over_the_tail() -> None:
    assert (Way.ROLL_FORWARD, 40, 50, False) == plan(checkpoint=at(4, 40))


@pytest.mark.parametrize(
    ("case", "changed"),
    [
        ("missing", {"checkpoint": None}),
        ("unusable", {"checkpoint": None, "problem": "local store is unusable"}),
        ("of another topic", {"checkpoint": at(5, 50, "other")}),
        ("ahead by batch", {"checkpoint": at(6, 50)}),
        ("ahead by offset", {"checkpoint": at(4, 60)}),
        ("before the log's beginning", {"checkpoint": at(4, 40), "changelog_first": 41}),
        ("older than deletions are kept", {"checkpoint": replace(at(4, 40), written_at_ms=NOW - DAY)}),
    ],
)
def test_a_local_store_is_discarded_when_it_is(case: str, changed: dict[str, object]) -> None:
    first = int(changed.get("changelog_first", 0))  # type: ignore[call-overload]
    assert (Way.FULL_REPLAY, first, 50, True) == plan(**changed)


def test_an_old_store_with_nothing_to_replay_is_used() -> None:
    assert (Way.NOTHING, 50, 50, False) == plan(checkpoint=replace(at(5, 50), written_at_ms=0))


def test_before_the_first_commit_there_is_nothing_to_do() -> None:
    assert (Way.NOTHING, 0, 0, False) == plan(position=None, checkpoint=None)


def test_a_store_without_committed_batch_is_discarded() -> None:
    assert (Way.NOTHING, 0, 0, True) == plan(position=None)


def test_a_changelog_created_again_is_unrecoverable() -> None:
    with pytest.raises(Unrecoverable, match="deleted and created again"):
        plan(changelog_topic_id="new")


def test_a_changelog_that_lost_its_tail_is_unrecoverable() -> None:
    with pytest.raises(Unrecoverable, match="lost its tail"):
        plan(changelog_end=49)
