"""Pins and marks: who needs which files now, so that a collection does not take them away.

Two rules make collecting safe beside taking and restoring, with nothing but strongly consistent puts and lists:

    taking      puts a pin that names all files of the coming manifest, then looks for marks; while a collection is
                under way its reading of pins may be over, so this attempt is given up before anything is reused
    restoring   puts a pin that names the manifest's files, then reads the manifest again; if it is still there, no
                collection that deletes it has read the pins yet, since manifests are deleted before pins are read
    collecting  puts its mark before it lists anything, deletes manifests, then reads pins, then deletes files

Several collections at once are harmless: each follows the rule by itself. A lease says how many seconds it lives,
counted from its object's time by the storage's clock. Whoever holds one stops what it does at nine tenths of that, which it
counts from before its put: its last request may be on its way for the rest.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from statestore.clock import Moment
from statestore.errors import RollforwardError, Unavailable
from statestore.objects.base import ObjectMissing, ObjectStore

log = structlog.get_logger()
_HOLDERS_PART = 0.9


@dataclass(frozen=True)
class Lease:
    """A pin or mark of ours; `began` is before it was put."""

    key: str
    kind: str
    life_s: float
    began: Moment

    def require_alive(self) -> None:
        """Raise `Unavailable` when the lease may not protect its holder any more."""
        if self.began.age_s() >= _HOLDERS_PART * self.life_s:
            raise Unavailable(
                f"{self.kind} took longer than it may",
                lease=self.key,
                hint="raise snapshot_pin_life_s, or look why the transfer is so slow",
            )


@dataclass(frozen=True)
class DatedLease(Lease):
    """One with the time of its put by the storage's clock."""

    now_s: float


def put_lease(objects: ObjectStore, prefix: str, kind: str, files: Iterable[str], life_s: float) -> Lease:
    """Put a pin or a mark, below the prefix of its sort, that lives for `life_s` seconds."""
    lease = _new(prefix, kind, life_s)
    _put(objects, lease, files)
    return lease


def put_dated_lease(objects: ObjectStore, prefix: str, kind: str, files: Iterable[str], life_s: float) -> DatedLease:
    """`put_lease` for those who compare times of the storage. After an error nothing of it stays, if storage lets us."""
    lease = _new(prefix, kind, life_s)
    try:
        _put(objects, lease, files)
        about = objects.head(lease.key)
        if about is None:
            raise Unavailable("object storage does not show what was just written", key=lease.key, url=objects.url)
    except BaseException:
        drop_lease(objects, lease)
        raise
    return DatedLease(**vars(lease), now_s=about.modified_at_s)


def _new(prefix: str, kind: str, life_s: float) -> Lease:
    return Lease(f"{prefix}{secrets.token_hex(8)}.json", kind, life_s, Moment())


def _put(objects: ObjectStore, lease: Lease, files: Iterable[str]) -> None:
    body = {"kind": lease.kind, "life_s": lease.life_s, "files": sorted(set(files))}
    objects.put(lease.key, json.dumps(body).encode())


def drop_lease(objects: ObjectStore, lease: Lease) -> None:
    """Take the lease away. One that stays because the storage is away ends by itself."""
    try:
        objects.delete([lease.key])
    except RollforwardError as error:
        log.warning("lease stays until it ends", lease=lease.key, error=str(error))


@dataclass(frozen=True)
class Leases:
    """What living leases name, how many live, and the keys of those that have ended."""

    files: frozenset[str]
    living: int
    ended: tuple[str, ...]


def read_leases(objects: ObjectStore, prefix: str, now_s: float) -> Leases:
    """All leases below a prefix. `now_s` is the storage's clock."""
    files: set[str] = set()
    ended: list[str] = []
    living = 0
    for info in objects.list(prefix):
        try:
            fields = json.loads(objects.get(info.key))
            life_s, named = float(fields["life_s"]), list(fields["files"])
        except ObjectMissing:
            continue
        except (ValueError, KeyError, TypeError):
            # A cut-off put that a server lists under a name of its own; whose pin it was puts it again or gives up.
            continue
        if info.modified_at_s + life_s < now_s:
            ended.append(info.key)
        else:
            living += 1
            files.update(named)
    return Leases(frozenset(files), living, tuple(ended))
