"""The choice: every way with its cost or with why it is refused, and the cheapest one that is correct."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from statestore.config import TaskSpec
from statestore.errors import Unrecoverable
from statestore.planning import hazards
from statestore.planning.facts import Found, SnapshotFound
from statestore.version import ChangelogPosition

# A local store that catches up within this is not compared with snapshots.
_NEAR_S = 2.0
# How long it waits for them where they could only tell of a loss.
_LOOK_S = 5.0


class Way(Enum):
    """How a task gets to its committed version. Of equal costs the earlier one is taken."""

    NOTHING = "nothing"
    ROLL_BACK = "roll back"
    ROLL_FORWARD = "roll forward"
    SNAPSHOT = "snapshot"
    FULL_REPLAY = "full replay"


@dataclass(frozen=True)
class Option:
    """One way. `refused` says why not, and is empty if it could be gone; `seconds` and what it moves are estimates.

    `start` is the changelog's first offset to read. `snapshot` is the key of the manifest it begins with.
    """

    way: Way
    refused: str
    detail: str = ""
    seconds: float = 0.0
    bytes: int = 0
    records: int = 0
    start: int = 0
    snapshot: str = ""
    chosen: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "way": self.way.value, "seconds": round(self.seconds, 3)}

    def text(self) -> str:
        """For a log: what it costs where it could be gone, and the verdict."""
        verdict = "chosen" if self.chosen else self.refused or "possible"
        if self.refused and not self.detail:
            return f"{self.way.value}: {verdict}"
        return f"{self.way.value}: {self.seconds:.1f} s, {self.bytes} bytes, {self.records} offsets: {verdict}"


@dataclass(frozen=True)
class RecoveryPlan:
    """What to do for one task and why. Offsets of the changelog: `start` included, `end` not.

    `seconds` and `bytes` are the estimate; `snapshot` is the key of the manifest to restore; `ways` has every way.
    """

    task: str
    way: Way
    reason: str
    batch: int
    start: int
    end: int
    discard_local: bool
    seconds: float = 0.0
    bytes: int = 0
    snapshot: str = ""
    ways: tuple[Option, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for people and machines. `estimated_seconds` is the plan's, `offsets` what it replays at most."""
        fields = {name: value for name, value in vars(self).items() if name != "seconds"}
        return {
            **fields,
            "way": self.way.value,
            "offsets": self.end - self.start,
            "estimated_seconds": round(self.seconds, 3),
            "ways": [option.to_json() for option in self.ways],
        }


def plan_recovery(spec: TaskSpec, found: Found) -> RecoveryPlan:
    """The cheapest correct way. Raises `Unrecoverable`, with every refusal, if there is none."""
    if found.position is None:
        discard = found.checkpoint is not None or bool(found.problem)
        reason = "store belongs to no committed batch" if discard else "no batch was committed yet"
        return RecoveryPlan(spec.name, Way.NOTHING, reason, -1, 0, 0, discard)
    committed = found.position.stores[spec.store.name]
    hazards.require_changelog(spec, found, committed)
    options = _options(spec, found, committed)
    possible = [option for option in options if not option.refused]
    if not possible:
        refusals = "; ".join(f"{option.way.value}: {option.refused}" for option in options)
        raise Unrecoverable(
            "no way leads to the committed version",
            task=spec.name,
            batch=found.position.batch,
            ways=refusals,
            hint="restore the changelog topic or a snapshot from a backup, or start the query anew under another name",
        )
    order = list(Way)
    best = min(possible, key=lambda option: (option.seconds, order.index(option.way)))
    return _plan(spec, found, committed, best, options)


def every_way(spec: TaskSpec, found: Found) -> tuple[Option, ...]:
    """Every way with its cost or its refusal, for who is told that there is none; empty before the first commit."""
    if found.position is None:
        return ()
    committed = found.position.stores[spec.store.name]
    try:
        hazards.require_changelog(spec, found, committed)
    except Unrecoverable as error:
        return none_because(error)
    return tuple(_options(spec, found, committed))


def none_because(error: Unrecoverable) -> tuple[Option, ...]:
    """Every way, refused for what makes all of them impossible."""
    return tuple(Option(way, error.message) for way in Way)


def _options(spec: TaskSpec, found: Found, committed: ChangelogPosition) -> list[Option]:
    return [*_local(spec, found, committed), *_snapshots(spec, found, committed), _full(found, committed)]


def patience_with_snapshots_s(spec: TaskSpec, found: Found) -> float:
    """How long object storage may take to say what it has.

    0 where nobody asks, since that costs more than a short tail. Without end where a snapshot could be the cheapest way. In
    between where one would only tell that Kafka has lost something: a storage that is silent must not hold up what needs it not.
    """
    if _may_need_snapshots(spec, found):
        return math.inf
    return _LOOK_S if found.may_lack_positions else 0.0


def _may_need_snapshots(spec: TaskSpec, found: Found) -> bool:
    if found.position is None:
        return False
    committed = found.position.stores[spec.store.name]
    if found.checkpoint is None or hazards.why_not_local(spec, found, committed):
        return True
    return found.rates.replay_s(committed.offset - found.checkpoint.stores[spec.store.name].offset) > _NEAR_S


def _plan(
    spec: TaskSpec, found: Found, committed: ChangelogPosition, best: Option, options: list[Option]
) -> RecoveryPlan:
    assert found.position is not None
    local_refused = hazards.why_not_local(spec, found, committed)
    keeps_local = best.way in (Way.NOTHING, Way.ROLL_BACK, Way.ROLL_FORWARD)
    reason = best.detail
    if not keeps_local:
        reason = f"{local_refused or 'local store is further away'}: {best.detail}"
    return RecoveryPlan(
        spec.name,
        best.way,
        reason,
        found.position.batch,
        best.start,
        committed.offset,
        not keeps_local,
        seconds=best.seconds,
        bytes=best.bytes,
        snapshot=best.snapshot,
        ways=tuple(_shown(option, best) for option in options),
    )


def _shown(option: Option, best: Option) -> Option:
    """The option as the table has it: what is possible and not chosen says so."""
    if option is best:
        return Option(**{**vars(option), "chosen": True})
    if option.refused:
        return option
    return Option(**{**vars(option), "refused": f"takes longer than {best.way.value}"})


def _local(spec: TaskSpec, found: Found, committed: ChangelogPosition) -> list[Option]:
    """Nothing, roll back and roll forward: the ways that keep the local store."""
    assert found.position is not None
    refused = hazards.why_not_local(spec, found, committed)
    if refused:
        return [Option(way, refused) for way in (Way.NOTHING, Way.ROLL_BACK, Way.ROLL_FORWARD)]
    assert found.checkpoint is not None
    local, batch = found.checkpoint.stores[spec.store.name], found.checkpoint.batch
    end = committed.offset
    if batch < found.position.batch:
        behind = f"store stands at batch {batch}, batch {found.position.batch} is committed"
        records = end - local.offset
        forward = Option(
            Way.ROLL_FORWARD, "", behind, found.rates.replay_s(records), records=records, start=local.offset
        )
        return [Option(Way.NOTHING, behind), Option(Way.ROLL_BACK, behind), forward]
    stands = "store stands at the committed batch"
    back = Option(Way.ROLL_BACK, "" if found.leftovers else "there is nothing to roll back", start=end)
    back = Option(**{**vars(back), "detail": f"{stands}, with unfinished work beside it: {', '.join(found.leftovers)}"})
    nothing = Option(Way.NOTHING, "unfinished work lies beside the store" if found.leftovers else "", stands, start=end)
    return [nothing, back, Option(Way.ROLL_FORWARD, f"{stands}: there is nothing to apply")]


def _snapshots(spec: TaskSpec, found: Found, committed: ChangelogPosition) -> list[Option]:
    """From the newest snapshot on, up to the first that could be used; older ones only have longer tails."""
    if not found.snapshots:
        return [Option(Way.SNAPSHOT, found.snapshots_problem or "snapshots were not looked for")]
    options: list[Option] = []
    for offered in found.snapshots:
        options.append(_snapshot(spec, offered, found, committed))
        if not options[-1].refused:
            break
    return options


def _snapshot(spec: TaskSpec, offered: SnapshotFound, found: Found, committed: ChangelogPosition) -> Option:
    manifest = offered.manifest
    if manifest is None or offered.refused:
        return Option(Way.SNAPSHOT, offered.refused, snapshot=offered.key)
    refused = hazards.why_not_snapshot(spec, manifest, found, committed)
    if refused:
        return Option(Way.SNAPSHOT, refused, snapshot=offered.key, bytes=manifest.total_bytes)
    start = manifest.stores[spec.store.name].offset
    records = committed.offset - start
    return Option(
        Way.SNAPSHOT,
        "",
        f"snapshot of batch {manifest.batch}" + (f" and {records} offsets after it" if records else ""),
        found.rates.restore_s(manifest.total_bytes, offered.scheme) + found.rates.replay_s(records),
        bytes=manifest.total_bytes,
        records=records,
        start=start,
        snapshot=offered.key,
    )


def _full(found: Found, committed: ChangelogPosition) -> Option:
    records = max(0, committed.offset - found.changelog_first)
    return Option(
        Way.FULL_REPLAY,
        hazards.why_not_full(found),
        "the whole changelog",
        found.rates.full_replay_s(records),
        records=records,
        start=found.changelog_first,
    )
