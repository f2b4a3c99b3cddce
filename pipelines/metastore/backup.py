"""A backup of the command log in one file, and putting a log back.

    {"format": 1, "service": "default", "topic_id": "…", "records": 12, "at_ms": …}    first line
    {"offset": 7, "timestamp_ms": …, "key": "…", "value": "…"}                          one line a record
    {"sha256": "…"}                                                                     of all lines before it

Bytes are base64, so that also a record that is no command comes back as it was. The file is written beside, synced and
renamed: it is there whole or not at all. Restoring deletes the topic, makes it again and writes everything in one
transaction; killed in between it leaves no topic or an empty one, which every server that knows better refuses, and is
run again.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pipelines.metastore.checkpoint import checkpoint_values
from pipelines.metastore.degraded import Fault, Reason
from pipelines.metastore.follower import Follower
from pipelines.metastore.log import CommandLog
from pipelines.metastore.projection import Projection
from pipelines.metastore.replay import Replay
from pipelines.metastore.validate import DESIRED, PIPELINE, RUNNING, Definitions
from statestore.errors import DataCorrupted, FormatUnsupported, InvalidInput
from statestore.failpoints import reach
from statestore.kafka.reader import Record

FORMAT = 1
Pairs = Sequence[tuple[bytes | None, bytes | None]]


@dataclass(frozen=True)
class Backup:
    """What a file holds. `at_ms` is when it was taken."""

    service: str
    topic_id: str
    at_ms: int
    records: tuple[Record, ...]

    def replayed(self) -> Replay:
        """What the log that was saved says, and what is wrong with it."""
        replay = Replay(None)
        replay.feed(self.records)
        replay.finish(0)
        return replay

    @property
    def fault(self) -> Fault | None:
        """What is wrong with the log that was saved."""
        return self.replayed().fault


@dataclass(frozen=True)
class Turned:
    """What a restored log does to pipelines: why each of those ends that are to run now, and which are to run that are not."""

    ends: dict[str, str]
    begins: tuple[str, ...]


def turned(backup: Backup, now: Definitions) -> Turned:
    """Compare what is to run `now` with what is to run by the backup."""
    rows = [row for row in backup.replayed().definitions.values() if row is not None]
    then = {(row.kind, row.name): orjson.loads(row.body) for row in rows if row.kind in (PIPELINE, DESIRED)}
    before = {(kind, name): body for kind in (PIPELINE, DESIRED) for name, body in now.all(kind).items()}
    wanted_then, wanted_now = _to_run(then), _to_run(before)
    found = {name: _why_it_ends((PIPELINE, name), before, then, wanted=name in wanted_then) for name in wanted_now}
    ends = {name: why for name, why in found.items() if why}
    return Turned(ends, tuple(sorted(name for name in wanted_then if name not in wanted_now or name in ends)))


def _to_run(bodies: dict[tuple[str, str], Any]) -> list[str]:
    wanted = {name for kind, name in bodies if kind == DESIRED and bodies[kind, name].get("state") == RUNNING}
    return sorted(name for kind, name in bodies if kind == PIPELINE and name in wanted)


def _why_it_ends(
    key: tuple[str, str], now: dict[tuple[str, str], Any], then: dict[tuple[str, str], Any], *, wanted: bool
) -> str:
    """As drivers see it, which look for their own deployment; empty if it goes on."""
    if key not in then:
        return "it is not in the backup"
    if then[key].get("deployed_at") != now[key].get("deployed_at"):
        return "the backup has an earlier deployment of it"
    return "" if wanted else "it is stopped in the backup"


def save(log: CommandLog, service: str, path: Path) -> Backup:
    """Write every committed record to the file. Raises `MetastoreDegraded` without a log, OSError."""
    topic = log.topic()
    if topic is None:
        raise Fault(Reason.MISSING).error(log.topic_name)
    backup = Backup(service, topic.topic_id, int(time.time() * 1000), tuple(log.read(*log.settled())))
    lines = [_header(backup), *(_line(record) for record in backup.records)]
    _write(path, [*lines, orjson.dumps({"sha256": _digest(lines)})])
    return backup


def load(path: Path) -> Backup:
    """Read a file. Raises `DataCorrupted`, `FormatUnsupported`, OSError."""
    lines = path.read_bytes().splitlines()
    try:
        header, digest = orjson.loads(lines[0]), orjson.loads(lines[-1])["sha256"]
        if _digest(lines[:-1]) != digest:
            raise ValueError("its checksum is another one")
        if header["format"] != FORMAT:
            raise FormatUnsupported("backup has another format", file=path, found=header["format"], supported=FORMAT)
        records = tuple(_record(orjson.loads(line)) for line in lines[1:-1])
        return Backup(header["service"], header["topic_id"], header["at_ms"], records)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DataCorrupted("file is no whole backup", file=path, error=error, hint="take another backup") from error


def restore_file(log: CommandLog, follower: Follower, backup: Backup, service: str) -> None:
    """Make the log what the backup holds. Raises as `require_restorable` does."""
    require_restorable(log, backup, service)
    _replace(log, follower, [(record.key, record.value) for record in backup.records])


def require_restorable(log: CommandLog, backup: Backup, service: str) -> None:
    """Raises `InvalidInput` for another service's backup, `MetastoreDegraded` for one of a bad log."""
    if backup.service != service:
        raise InvalidInput(
            "backup is of another service", found=backup.service, service=service, hint="set service, or take another"
        )
    if backup.fault is not None:
        raise backup.fault.error(log.topic_name)


def restore_projection(log: CommandLog, follower: Follower, projection: Projection) -> None:
    """Make the log a checkpoint of what is applied here. Raises `InvalidInput` if nothing ever was."""
    position = projection.position()
    if not position.topic_id:
        raise InvalidInput("nothing is known here", hint="name a backup file")
    values = checkpoint_values(projection.rows(), position.head, uuid.uuid4().hex)
    _replace(log, follower, [(b"checkpoint", value) for value in values])


def _replace(log: CommandLog, follower: Follower, records: Pairs) -> None:
    producer = log.producer()
    try:
        # Whoever was writing to the old topic is fenced, and must not write to the new one.
        producer.init()
        log.admin.delete([log.topic_name])
        log.admin.await_gone(log.topic_name)
        reach("restore.deleted")
        topic = log.create()
        reach("restore.created")
        producer.begin()
        for key, value in records:
            producer.produce(log.topic_name, partition=0, key=key, value=value)
        producer.flush()
        reach("restore.sent")
        producer.commit()
        reach("restore.committed")
    finally:
        producer.close()
    fault = follower.rebuild(topic, *log.bounds(), accept_loss=True)
    if fault is not None:
        raise fault.error(log.topic_name)


def _header(backup: Backup) -> bytes:
    fields = {"service": backup.service, "topic_id": backup.topic_id, "at_ms": backup.at_ms}
    return orjson.dumps({"format": FORMAT, **fields, "records": len(backup.records)})


def _digest(lines: list[bytes]) -> str:
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def _line(record: Record) -> bytes:
    key, value = (None if raw is None else base64.b64encode(raw).decode() for raw in (record.key, record.value))
    return orjson.dumps({"offset": record.offset, "timestamp_ms": record.timestamp_ms, "key": key, "value": value})


def _record(fields: dict[str, Any]) -> Record:
    key, value = (None if fields[name] is None else base64.b64decode(fields[name]) for name in ("key", "value"))
    return Record(key, value, fields["offset"], fields["timestamp_ms"])


def _write(path: Path, lines: list[bytes]) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        # Statements may hold what is not for everybody.
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
