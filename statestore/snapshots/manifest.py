"""What a snapshot is: a manifest that names every file of one committed version of a task's stores.

    {"format": 2, "write_id": "…", "pipeline": …, "query": …, "task": 0, "tasks": 4, "batches_topic_id": "…",
     "store_format": 1, "plan": "…", "epoch": 7, "batch": 12, "version_at_ms": …, "taken_at_ms": …,
     "digest": "<16 hex digits>", "stores": {"<store>": {"topic_id": "…", "offset": 99}}, "files": [{"name": …, "sha256": …, "bytes": …}],
     "steps": [{"batch": 12, "offsets": {"<store>": 99}, "at_ms": …, "ends": {"<source partition>": 7},
                "order": {"stream_time_ms": …, "dropped": 0}}]}

`version_at_ms` is when the version became this store's: deletions in the changelog are safe for their retention from
then. `steps` are the task's batches since the snapshot before, one after another and none left out, so that a batch
between two snapshots can be found in the changelog. `digest` is the one that was committed with the batch
(`statestore.digest`), null where there is none; format 1 had no such field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from statestore.batches import Order
from statestore.errors import DataCorrupted, FormatUnsupported
from statestore.version import ChangelogPosition

FORMAT = 2
_READABLE = (1, FORMAT)


@dataclass(frozen=True)
class SnapshotFile:
    """One file of the store's folder."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Step:
    """One committed batch: the changelogs' next offsets after it, by store, and when it was applied, in ms.

    `ends` are the input's next offsets after it, by source partition; empty where they were not recorded. `order` is None
    for tasks that do not take their records one after the other, and where it was not recorded.
    """

    batch: int
    offsets: dict[str, int]
    at_ms: int
    ends: dict[str, int] = field(default_factory=dict)
    order: Order | None = None

    def encode(self) -> bytes:
        """As a manifest has it: a seventh of what the object and its dicts take."""
        return _json(self)

    @classmethod
    def decode(cls, body: bytes) -> Step:
        """Inverse of `encode`."""
        return _step(json.loads(body))


@dataclass(frozen=True)
class Manifest:
    """See the head of this file. `stores` gives each changelog's topic id and next offset at `batch`."""

    pipeline: str
    query: str
    task: int
    tasks: int
    batches_topic_id: str
    store_format: int
    plan: str
    epoch: int
    batch: int
    version_at_ms: int
    taken_at_ms: int
    stores: dict[str, ChangelogPosition]
    files: tuple[SnapshotFile, ...]
    write_id: str
    steps: tuple[Step, ...] = field(default=())
    digest: str | None = None
    format: int = FORMAT

    @property
    def total_bytes(self) -> int:
        """Size of all files, shared ones included."""
        return sum(file.bytes for file in self.files)

    def encode(self) -> bytes:
        """As an object's body."""
        return _json(self)


def is_same(one: str | None, other: str | None) -> bool:
    """Whether two digests may be of the same version; one that is not known says nothing."""
    return one is None or other is None or one == other


def parse(body: bytes, key: str) -> Manifest:
    """Inverse of `encode`. Raises `FormatUnsupported` for another version and `DataCorrupted` for anything else."""
    try:
        fields: dict[str, Any] = json.loads(body)
        if fields["format"] not in _READABLE:
            raise FormatUnsupported(
                "snapshot has another format", key=key, found=fields["format"], supported=list(_READABLE)
            )
        fields["stores"] = {name: ChangelogPosition(**at) for name, at in fields["stores"].items()}
        fields["files"] = tuple(SnapshotFile(**file) for file in fields["files"])
        fields["steps"] = tuple(_step(step) for step in fields["steps"])
        manifest = Manifest(**fields)
        _require_safe(manifest.files)
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataCorrupted("snapshot's manifest is unreadable", key=key, error=error) from error


def _json(found: Step | Manifest) -> bytes:
    return json.dumps(asdict(found), separators=(",", ":")).encode()


def _step(fields: dict[str, Any]) -> Step:
    order = fields.pop("order", None)
    return Step(**fields, order=None if order is None else Order(**order))


def _require_safe(files: Iterable[SnapshotFile]) -> None:
    """A name is one of a folder's own: a manifest must not write elsewhere."""
    names = [file.name for file in files]
    if len(set(names)) != len(names) or any("/" in name or name in ("", ".", "..") for name in names):
        raise ValueError("file names")
