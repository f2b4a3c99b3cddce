"""Which way a task takes to its committed version, what each costs, and which are refused and why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statestore.batches import Position
from statestore.clock import Moment
from statestore.config import StoreSpec, TaskSpec
from statestore.errors import Unrecoverable
from statestore.planning.facts import Found, SnapshotFound, gather
from statestore.planning.hazards import CLOCKS_DIFFER_MS
from statestore.planning.plan import Option, RecoveryPlan, Way, every_way, plan_recovery
from statestore.planning.rates import Rates, load_rates, save_rates
from statestore.snapshots.manifest import Manifest, SnapshotFile
from statestore.version import ChangelogPosition, Checkpoint
from tests.support.memory_log import MemoryLogs

SPEC = TaskSpec("p", "q", 1, 4, "b", "o", "d", StoreSpec("s", "c", "id"), Path("folder"))
NOW = 1_000_000_000
DAY = 86_400_000
RATES = Rates(replay_records_per_s=10, restore_bytes_per_s={"file": 1000, "s3": 100}, begin_replay_s=1)


def at(batch: int, offset: int, topic_id: str = "id") -> Checkpoint:
    return Checkpoint(batch, {"s": ChangelogPosition(topic_id, offset)}, written_at_ms=NOW)


def position(batch: int, offset: int) -> Position:
    return Position(batch, 1, "plan", {"s": ChangelogPosition("id", offset)})


def snapshot(batch: int, offset: int, size: int = 100, **changed: object) -> SnapshotFound:
    manifest = Manifest(
        "p", "q", 1, 4, "batches id", 1, "plan", 1, batch, NOW, NOW, {"s": ChangelogPosition("id", offset)},
        (SnapshotFile("f", "0" * 64, size),), "write id",
    )  # fmt: skip
    return SnapshotFound(f"key {batch}", "file", replace(manifest, **changed))  # type: ignore[arg-type]


FOUND = Found(
    at(5, 50), "", position(5, 50), "id", 0, 51, DAY, NOW, batches_topic_id="batches id", rates=RATES,
    snapshots_problem="there is no snapshot",
)  # fmt: skip


def made(**changed: object) -> RecoveryPlan:
    return plan_recovery(SPEC, replace(FOUND, **changed))  # type: ignore[arg-type]


def plan(**changed: object) -> tuple[Way, int, int, bool]:
    found = made(**changed)
    return found.way, found.start, found.end, found.discard_local


def option(found: RecoveryPlan, way: Way, number: int = 0) -> Option:
    return [option for option in found.ways if option.way is way][number]


def test_a_store_at_the_committed_batch_needs_nothing() -> None:
    assert (Way.NOTHING, 50, 50, False) == plan()


def test_unfinished_work_beside_a_store_at_the_committed_batch_is_rolled_back() -> None:
    assert (Way.ROLL_BACK, 50, 50, False) == plan(leftovers=("folder.recovering",))


def test_a_store_behind_rolls_forward_over_the_tail() -> None:
    assert (Way.ROLL_FORWARD, 40, 50, False) == plan(checkpoint=at(4, 40))


@pytest.mark.parametrize(
    ("reason", "changed"),
    [
        ("no local store", {"checkpoint": None}),
        ("unusable", {"checkpoint": None, "problem": "local store is unusable"}),
        ("local store belongs to another changelog topic", {"checkpoint": at(5, 50, "other")}),
        ("local store is ahead: it stands at batch 6, batch 5 is committed", {"checkpoint": at(6, 50)}),
        ("local store is ahead", {"checkpoint": at(4, 60)}),
        ("older than the changelog keeps deletions", {"checkpoint": replace(at(4, 40), written_at_ms=NOW - DAY)}),
        (
            "local store's age is not known",
            {"checkpoint": replace(at(4, 40), written_at_ms=NOW + CLOCKS_DIFFER_MS + 1)},
        ),
        (
            "local store was written with 8 state partitions, the query has 4",
            {"checkpoint": replace(at(4, 40), tasks=8)},
        ),
        ("local store was written under another plan", {"checkpoint": replace(at(4, 40), plan="old")}),
        # Nothing is to be replayed, and its content is of no use all the same.
        ("local store was written under another plan", {"checkpoint": replace(at(5, 50), plan="old")}),
        ("local store is of a lost timeline: another batch 5 was committed", {"checkpoint": at(5, 40)}),
        (
            "local store is of a lost timeline: another batch 5 was committed",
            {"checkpoint": replace(at(5, 50), digest="a"), "position": replace(position(5, 50), digest="b")},
        ),
        (
            "local store is of a lost timeline: another batch 4 was committed",
            {"checkpoint": at(4, 40), "positions": (position(3, 30), position(4, 39), position(5, 50))},
        ),
        (
            "local store is of a lost timeline: batch 3 was committed up to offset 41",
            {"checkpoint": at(4, 40), "positions": (position(3, 41), position(5, 50))},
        ),
    ],
)
def test_a_local_store_is_discarded_when(reason: str, changed: dict[str, object]) -> None:
    assert (Way.FULL_REPLAY, 0, 50, True) == plan(**changed)
    found = made(**changed)
    assert reason in found.reason
    assert all(reason in option(found, way).refused for way in (Way.NOTHING, Way.ROLL_BACK, Way.ROLL_FORWARD))


def test_a_local_store_whose_tail_was_cut_is_discarded() -> None:
    found = made(checkpoint=at(4, 40), changelog_first=41, snapshots=(snapshot(5, 50),))
    assert (Way.SNAPSHOT, 50, 50) == (found.way, found.start, found.end)
    assert "changelog begins after the local store's offset" == option(found, Way.ROLL_FORWARD).refused


def test_a_local_store_of_this_plan_and_count_or_of_before_they_were_written_down_is_used() -> None:
    assert (Way.ROLL_FORWARD, 40, 50, False) == plan(checkpoint=replace(at(4, 40), plan="plan", tasks=4))
    assert (Way.ROLL_FORWARD, 40, 50, False) == plan(checkpoint=at(4, 40))


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


# Snapshots.

EMPTY_DISK = {"checkpoint": None}


def test_an_empty_disk_takes_the_newest_snapshot_and_the_tail() -> None:
    found = made(**EMPTY_DISK, snapshots=(snapshot(4, 40), snapshot(3, 30)))
    assert (Way.SNAPSHOT, "key 4", 40, 50, True) == (
        found.way,
        found.snapshot,
        found.start,
        found.end,
        found.discard_local,
    )
    assert "no local store: snapshot of batch 4 and 10 offsets after it" == found.reason


def test_a_far_tail_gives_way_to_a_snapshot_and_a_near_one_does_not() -> None:
    offered = (snapshot(5, 50),)
    assert Way.SNAPSHOT is made(checkpoint=at(1, 10), snapshots=offered).way
    assert Way.ROLL_FORWARD is made(checkpoint=at(4, 49), snapshots=(snapshot(4, 49, size=10_000),)).way


def test_a_huge_snapshot_gives_way_to_a_short_changelog() -> None:
    found = made(**EMPTY_DISK, snapshots=(snapshot(4, 40, size=10_000_000),))
    assert Way.FULL_REPLAY is found.way
    assert "takes longer than full replay" == option(found, Way.SNAPSHOT).refused


def test_costs_are_bytes_and_records_by_measured_rates() -> None:
    found = made(**EMPTY_DISK, snapshots=(snapshot(4, 40, size=100),))
    assert pytest.approx(RATES.begin_restore_s + 100 / 1000 + 1 + 10 / 10) == option(found, Way.SNAPSHOT).seconds
    assert pytest.approx(1 + 1 + 50 / 10) == option(found, Way.FULL_REPLAY).seconds
    assert found.seconds == option(found, Way.SNAPSHOT).seconds
    assert [False, False, False, True, False] == [option.chosen for option in found.ways]


def of(manifest_change: dict[str, Any]) -> SnapshotFound:
    return snapshot(4, 40, **manifest_change)


@pytest.mark.parametrize(
    ("reason", "offered", "changed"),
    [
        ("snapshot's store has format 2", of({"store_format": 2}), {}),
        ("snapshot is of task q-2 of p", of({"task": 2}), {}),
        ("snapshot is of task q-1 of other", of({"pipeline": "other"}), {}),
        ("taken with 8 state partitions, the query has 4", of({"tasks": 8}), {}),
        ("belongs to another batches topic", of({"batches_topic_id": "old"}), {}),
        ("states may have another schema", of({"plan": "old"}), {}),
        ("snapshot has no store s", of({"stores": {}}), {}),
        ("snapshot belongs to another changelog topic", of({"stores": {"s": ChangelogPosition("old", 40)}}), {}),
        ("snapshot is ahead: it stands at batch 6, batch 5 is committed", snapshot(6, 60), {}),
        ("snapshot is ahead", snapshot(4, 51), {}),
        ("snapshot is older than the changelog keeps deletions", of({"version_at_ms": NOW - DAY}), {}),
        ("snapshot's age is not known", of({"version_at_ms": NOW + 2 * DAY}), {}),
        ("manifest is unreadable", SnapshotFound("key", "file", None, "manifest is unreadable"), {}),
    ],
)  # fmt: skip
def test_a_snapshot_is_refused_when(reason: str, offered: SnapshotFound, changed: dict[str, object]) -> None:
    found = made(**EMPTY_DISK, snapshots=(offered,), **changed)
    assert Way.FULL_REPLAY is found.way
    assert reason in option(found, Way.SNAPSHOT).refused


def test_a_snapshot_whose_tail_was_cut_is_refused() -> None:
    found = made(**EMPTY_DISK, changelog_first=41, snapshots=(snapshot(4, 40), snapshot(3, 41)))
    assert "key 3" == found.snapshot
    assert "changelog begins after the snapshot's offset" == option(found, Way.SNAPSHOT).refused


@pytest.mark.parametrize(
    ("reason", "positions"),
    [
        ("another batch 4 was committed", [replace(position(4, 40), digest="b")]),
        ("another batch 4 was committed", [position(4, 41)]),
        ("batch 3 was committed up to offset 41", [position(3, 41)]),
        ("batch 5 was committed up to offset 39", [position(5, 39)]),
        ("", []),
        ("", [position(4, 40)]),
        ("", [position(3, 40), replace(position(4, 40), digest="a"), position(5, 40)]),
        # A batch that was committed twice, as without transactions.
        ("", [replace(position(4, 40), digest="b"), replace(position(4, 40), digest="a")]),
        # Of before there was this changelog.
        ("", [replace(position(4, 41), stores={"other": ChangelogPosition("id", 41)})]),
        ("", [replace(position(4, 41), stores={"s": ChangelogPosition("old", 41)})]),
    ],
)
def test_a_snapshot_is_of_a_lost_timeline_where_the_positions_say_so(reason: str, positions: list[Position]) -> None:
    found = made(**EMPTY_DISK, snapshots=(snapshot(4, 40, digest="a"),), positions=tuple(positions))
    assert (Way.FULL_REPLAY if reason else Way.SNAPSHOT) is found.way
    assert (f"snapshot is of a lost timeline: {reason}" if reason else "") == option(found, Way.SNAPSHOT).refused


def test_a_snapshot_of_a_batch_gone_back_to_is_not_compared_with_the_newest_one_s_digest() -> None:
    """The batch that is asked for stands in the place of the newest, and its own position may be compacted away."""
    asked = replace(position(5, 50), digest="of the newest")
    found = made(
        checkpoint=None, position=asked, snapshots=(snapshot(5, 50, digest="of 5"),), positions=(position(7, 70),)
    )
    assert "" == option(found, Way.SNAPSHOT).refused


def test_after_a_refused_snapshot_the_next_older_one_is_taken() -> None:
    broken = SnapshotFound("key 5", "file", None, "manifest is unreadable")
    found = made(**EMPTY_DISK, snapshots=(broken, snapshot(4, 40, plan="old"), snapshot(3, 30)))
    assert (Way.SNAPSHOT, "key 3", 30) == (found.way, found.snapshot, found.start)
    assert 3 == len([o for o in found.ways if o.way is Way.SNAPSHOT])


def test_an_old_snapshot_of_the_committed_batch_is_used() -> None:
    found = made(**EMPTY_DISK, snapshots=(snapshot(5, 50, version_at_ms=0),))
    assert (Way.SNAPSHOT, 50, 50) == (found.way, found.start, found.end)


def test_a_changelog_whose_beginning_was_deleted_is_not_replayed() -> None:
    found = made(**EMPTY_DISK, changelog_first=5, snapshots=(snapshot(4, 40, size=10_000_000),))
    assert Way.SNAPSHOT is found.way
    assert "changelog's records before offset 5 were deleted" == option(found, Way.FULL_REPLAY).refused


def test_a_changelog_whose_beginning_was_deleted_is_not_replayed_whatever_its_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = MemoryLogs({"b": "batches id", "c": "id"}, lambda: NOW / 1000, retention_s=DAY / 1000)
    logs.transaction({("c", 1): [(b"k", b"v")] * 60})
    monkeypatch.setattr(logs, "begin_and_end", lambda *_: (5, 61))
    monkeypatch.setattr(logs, "configs", lambda _: {"cleanup.policy": "compact,delete"})
    found = gather(SPEC, logs, logs, position(5, 50), None, "", Moment())  # type: ignore[arg-type]
    with pytest.raises(Unrecoverable, match="changelog's records before offset 5 were deleted"):
        plan_recovery(SPEC, found)


def test_a_changelog_that_begins_after_the_committed_position_is_not_replayed() -> None:
    lost = {**EMPTY_DISK, "changelog_first": 51, "changelog_end": 60}
    with pytest.raises(Unrecoverable, match="full replay: changelog's records before offset 51 were deleted"):
        made(**lost)
    found = made(**lost, snapshots=(snapshot(5, 50),))
    assert Way.SNAPSHOT is found.way
    assert "changelog's records before offset 51 were deleted" == option(found, Way.FULL_REPLAY).refused


def test_without_any_way_all_refusals_are_told() -> None:
    with pytest.raises(Unrecoverable, match="no way leads to the committed version") as raised:
        made(**EMPTY_DISK, changelog_first=5)
    for part in ("no local store", "there is no snapshot", "records before offset 5 were deleted"):
        assert part in str(raised.value)


def test_where_there_is_no_way_each_one_still_says_why() -> None:
    found = replace(FOUND, **EMPTY_DISK, changelog_first=5)  # type: ignore[arg-type]
    assert [
        "nothing: no local store",
        "roll back: no local store",
        "roll forward: no local store",
        "snapshot: there is no snapshot",
        "full replay: 6.5 s, 0 bytes, 45 offsets: changelog's records before offset 5 were deleted",
    ] == [way.text() for way in every_way(SPEC, found)]
    again = every_way(SPEC, replace(FOUND, changelog_topic_id="new"))
    assert list(Way) == [way.way for way in again]
    assert {"changelog topic was deleted and created again"} == {way.refused for way in again}
    assert () == every_way(SPEC, replace(FOUND, position=None))


def test_a_plan_s_ways_are_told_with_their_costs() -> None:
    found = made(**EMPTY_DISK, snapshots=(snapshot(4, 40, size=100),))
    assert [
        "snapshot: 2.3 s, 100 bytes, 10 offsets: chosen",
        "full replay: 7.0 s, 0 bytes, 50 offsets: takes longer than snapshot",
    ] == [way.text() for way in found.ways[3:]]


def test_a_snapshot_that_failed_is_not_tried_again() -> None:
    found = replace(FOUND, **EMPTY_DISK, snapshots=(snapshot(4, 40), snapshot(3, 30)))  # type: ignore[arg-type]
    again = plan_recovery(SPEC, found.without("key 4", "it could not be restored: gone"))
    assert "key 3" == again.snapshot
    assert "it could not be restored: gone" == option(again, Way.SNAPSHOT).refused


# Rates.


def test_measured_rates_are_kept_and_small_measurements_are_not(tmp_path: Path) -> None:
    rates = Rates().with_replay(1_000_000, 2.0).with_restore(100_000_000, 1.0, "s3")
    assert (500_000, 100e6) == (rates.replay_records_per_s, rates.restore_bytes_per_s["s3"])
    assert pytest.approx(0.3 * 500_000 + 0.7 * 100_000) == rates.with_replay(100_000, 1.0).replay_records_per_s
    assert rates == rates.with_replay(10, 5.0).with_rebuild(10, 5.0).with_restore(10, 5.0, "s3")
    rebuilt = rates.with_rebuild(1_000_000, 1.0)
    assert (500_000, 1_000_000) == (rebuilt.replay_records_per_s, rebuilt.rebuild_records_per_s)
    # Small ones go the way of tails.
    assert pytest.approx(0.4 + 5_000 / 500_000) == rebuilt.full_replay_s(5_000)
    assert pytest.approx(0.4 + 50_000 / 1_000_000) == rebuilt.full_replay_s(50_000)
    save_rates(tmp_path, rebuilt)
    assert rebuilt == load_rates(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"replay_records_per_s": "x"}'])
def test_an_unreadable_file_of_rates_is_a_first_start(content: str, tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(content)
    assert Rates() == load_rates(tmp_path)


def test_tasks_of_one_process_may_finish_at_once(tmp_path: Path) -> None:
    rates = Rates().with_replay(1_000_000, 2.0).with_rebuild(1_000_000, 1.0)
    with ThreadPoolExecutor(max_workers=8) as threads:
        list(threads.map(lambda _: save_rates(tmp_path, rates), range(400)))
    assert rates == load_rates(tmp_path)
    assert ["rates.json"] == [path.name for path in tmp_path.iterdir()]
