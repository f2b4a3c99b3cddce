"""Bringing one store to its task's last commit, from its changelog.

A few records are written as they come, by `restore_store`. Many are loaded into a database beside the task's, by
`load_store` (`load` has the steps), if what a record changes depends on none before it.

`plan_restore` decides from facts gathered before: read the changelog's end after fencing older owners, open
transactions included, or an open one hides committed records. `restore_store` goes the way. Every chunk goes into the
store in one write with its offset, so a restore that dies goes on where it was; a store without transactions has no
offset meanwhile and begins anew, and so does a load.

A deletion is kept for `delete.retention.ms`. What was read later than that since the version with which a restore begins may
lack one, and does not go into the store; until its end the store is as old as that version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from statestore.clock import Moment
from statestore.context import ChangelogRecord, StoreVersion
from statestore.errors import Unavailable, Unrecoverable
from statestore.failpoints import reach
from statestore.kafka.reader import Reader
from statestore.kinds.base import Kind
from statestore.listener import RestoreListener, Restoring, told
from statestore.load import load
from statestore.planning.hazards import Tail, why_beheaded, why_not_from
from statestore.planning.plan import Way
from statestore.planning.rates import LOAD_RECORDS_MIN
from statestore.rocks.database import Database
from statestore.version import ChangelogPosition


@dataclass(frozen=True)
class Changelog:
    """One partition of a changelog, as Kafka has it: `first` offset present, `end` after the last."""

    topic: str
    topic_id: str
    partition: int
    first: int
    end: int
    delete_retention_ms: int
    cleanup_policy: str = "compact"


@dataclass(frozen=True)
class RestorePlan:
    """What to do and why. Offsets of the changelog: `start` included, `end` not."""

    way: Way
    reason: str
    start: int
    end: int


def plan_restore(
    store: str, local: StoreVersion, committed: ChangelogPosition | None, changelog: Changelog, now_ms: int
) -> RestorePlan:
    """The cheapest correct way. Raises `Unrecoverable` if there is none.

    `committed` is what the task's last commit says; None if it says nothing of this store: then all there is counts.
    """
    end = _end(store, committed, changelog)
    refused = _why_not_local(local, changelog, end, now_ms)
    if refused:
        if beheaded := why_beheaded(changelog.first, changelog.cleanup_policy):
            raise Unrecoverable(
                f"{beheaded}, so it does not give the store",
                store=store,
                topic=changelog.topic,
                local=refused,
                hint="restore the topic from a backup, or start the application anew under another name",
            )
        return RestorePlan(Way.FULL_REPLAY, refused, changelog.first, end)
    assert local.offset is not None
    if local.offset == end:
        return RestorePlan(Way.NOTHING, "store stands at the committed offset", end, end)
    return RestorePlan(Way.ROLL_FORWARD, f"store stands at {local.offset}, {end} is committed", local.offset, end)


def _end(store: str, committed: ChangelogPosition | None, changelog: Changelog) -> int:
    if committed is None:
        return changelog.end
    if committed.topic_id != changelog.topic_id:
        raise Unrecoverable(
            "changelog topic was deleted and created again",
            store=store,
            topic=changelog.topic,
            committed_topic_id=committed.topic_id,
            topic_id=changelog.topic_id,
            hint="restore the topic from a backup, or start the application anew under another name",
        )
    if changelog.end < committed.offset:
        raise Unrecoverable(
            "changelog ends before the committed offset: kafka has lost its tail",
            store=store,
            topic=changelog.topic,
            committed=committed.offset,
            end=changelog.end,
            hint="restore the topic from a backup, or start the application anew under another name",
        )
    return committed.offset


def _why_not_local(local: StoreVersion, changelog: Changelog, end: int, now_ms: int) -> str:
    """Why what is on disk must not be used; empty if it may be."""
    if local.offset is None:
        return "no local store"
    ahead = ""
    if local.offset > end:
        ahead = f"local store is ahead: it stands at {local.offset}, {end} is committed"
    at = ChangelogPosition(local.topic_id, local.offset)
    tail = Tail(changelog.topic_id, changelog.first, changelog.delete_retention_ms, now_ms)
    return why_not_from("local store", at, local.written_at_ms, tail, ahead=ahead, level=local.offset == end)


def is_loaded(kind: Kind, plan: RestorePlan) -> bool:
    """Whether files pay for so many records, and the kind can be loaded from files."""
    return kind.loads and kind.persistent() and plan.end - plan.start >= LOAD_RECORDS_MIN


def load_store(
    kind: Kind,
    plan: RestorePlan,
    changelog: Changelog,
    database: Database,
    reader: Reader,
    listener: RestoreListener,
    *,
    asked: Moment,
    piece_bytes: int,
) -> int:
    """Go the way of `plan` in a database beside the one that the store is open on; gives the number of records.

    That database has what the store holds now. When it has taken its place, the store is opened again. For `asked` see
    `restore_store`.
    """
    age = _Age.of(kind, plan, changelog, asked)
    restoring = Restoring(kind.name, changelog.topic, changelog.partition, plan.start, plan.end)
    records = load(database, reader, restoring, kind.load, listener, piece_bytes=piece_bytes, headers=True)
    for space in kind.expired(database.spaces()):
        database.drop(space)
        reach("load.expired")
    age.require_in_time()
    database.write(kind.loaded(offset=plan.end, topic_id=changelog.topic_id), sync=True)
    return records


def restore_store(
    kind: Kind, plan: RestorePlan, changelog: Changelog, reader: Reader, listener: RestoreListener, asked: Moment
) -> int:
    """Go the way of `plan` with an open store; gives the number of records taken in.

    `asked` is before Kafka was asked how far the store is committed. Raises `Unavailable` where deletions may be gone.
    """
    records = 0
    if plan.way is not Way.NOTHING and plan.start < plan.end:
        records = _replay(kind, plan, changelog, reader, listener, asked)
    kind.restore([], offset=plan.end, topic_id=changelog.topic_id)
    return records


def _replay(
    kind: Kind, plan: RestorePlan, changelog: Changelog, reader: Reader, listener: RestoreListener, asked: Moment
) -> int:
    age = _Age.of(kind, plan, changelog, asked)
    restoring = Restoring(kind.name, changelog.topic, changelog.partition, plan.start, plan.end)
    records = 0
    with told(listener, restoring) as on_batch:
        for chunk in reader.read(changelog.topic, changelog.partition, start=plan.start, end=plan.end):
            offset = chunk[-1].offset + 1
            # A record has all that restoring reads of a changelog record: converting each would double the time.
            taken = cast(Sequence[ChangelogRecord], [record for record in chunk if record.key is not None])
            age.require_in_time()
            kind.restore(taken, offset=offset, topic_id=changelog.topic_id, at_ms=age.since_ms)
            records += len(taken)
            reach("program.in-restore")
            on_batch(offset, len(taken))
        # Behind the last record there may have been a deletion.
        age.require_in_time()
    return records


@dataclass(frozen=True)
class _Age:
    """How old the version is with which a restore begins: `since_ms` is its `written_at_ms`."""

    changelog: Changelog
    since_ms: int
    asked: Moment

    @classmethod
    def of(cls, kind: Kind, plan: RestorePlan, changelog: Changelog, asked: Moment) -> _Age:
        """That of the store as it is, or of one that begins empty."""
        local_ms = kind.committed_version.written_at_ms
        return cls(changelog, local_ms if plan.way is Way.ROLL_FORWARD else asked.at_ms, asked)

    def require_in_time(self) -> None:
        """Raise `Unavailable` if a deletion since the version may have been dropped before it was read."""
        age_s = (self.asked.at_ms - self.since_ms) / 1000 + self.asked.age_s()
        if age_s * 1000 >= self.changelog.delete_retention_ms:
            raise Unavailable(
                "restore took longer than the changelog keeps deletions",
                topic=self.changelog.topic,
                seconds=round(age_s),
                hint="open the task again; if that takes as long, raise delete.retention.ms of the changelog",
            )
