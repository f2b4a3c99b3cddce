"""A checkpoint: commands that carry every row of the projection, so that what is before them can be deleted.

The parts are written in one transaction, so the log has all of them or none. They follow the chain like any command,
and begin a log whose head was deleted. Of the applied commands they keep the newest, so that clients still learn about
statements of the last while.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from pipelines.metastore.command import CHECKPOINT, Command, Head, encode, hash_of
from pipelines.metastore.rows import Rows

COMMANDS_KEPT = 1_000
PART_BYTES = 512 * 1024


def checkpoint_values(rows: Rows, head: Head, key: str) -> list[bytes]:
    """The records of a checkpoint of these rows that follow `head`."""
    kept = replace(rows, commands=rows.commands[-COMMANDS_KEPT:])
    parts = list(_parts(kept))
    now = int(time.time() * 1000)
    common = Command(
        id=uuid.uuid4().hex,
        key=key,
        sequence=0,
        previous="",
        kind=CHECKPOINT,
        pipeline="",
        names=(),
        statement="CHECKPOINT;",
        changes=(),
        at_ms=now,
    )
    values: list[bytes] = []
    for number, part in enumerate(parts):
        other = {"part": number, "parts": len(parts), "rows": part}
        value = encode(replace(common.after(head), other=other))
        values.append(value)
        head = Head(head.sequence + 1, hash_of(value))
    return values


def _parts(rows: Rows) -> Iterator[list[list[Any]]]:
    """The rows in lists of about `PART_BYTES`; one empty list if there are none."""
    part: list[list[Any]] = []
    size = 0
    for row in rows.tagged():
        length = len(orjson.dumps(row))
        if part and size + length > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    yield part
