"""A dead letter: a record that could not be used, with where it came from and why, in its headers."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass, replace

from statestore.errors import InvalidInput
from statestore.kafka.producer import Headers

# An error may quote the value.
_REASON_MAX = 500
_ORIGIN = ("topic", "partition", "offset", "timestamp_ms")
# Of what a record's own fields and headers take.
_ROOM = 4096


@dataclass(frozen=True)
class DeadLetter:
    """The record's key, value and time as they were."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers

    @property
    def size(self) -> int:
        """In bytes, without the headers."""
        return len(self.key or b"") + len(self.value or b"")

    def cut(self, most: int) -> DeadLetter:
        """The letter in a record of no more than `most` bytes; if something is cut off a header has the size it had.

        The whole record is in the source: headers say where.
        """
        room = most - _ROOM
        if self.size <= room:
            return self
        key = None if self.key is None else self.key[: room // 2]
        value = None if self.value is None else self.value[: room - len(key or b"")]
        return replace(self, key=key, value=value, headers=[*self.headers, ("cut-from-bytes", b"%d" % self.size)])


def dead_letter(text: str) -> DeadLetter:
    """From its JSON, as rows have it. Raises `InvalidInput` for one that does not say where the record came from."""
    fields = json.loads(text)
    if any(fields.get(name) is None for name in _ORIGIN):
        raise InvalidInput("dead letter has no origin", reason=fields.get("reason"))
    headers = [
        ("reason", str(fields["reason"])[:_REASON_MAX].encode()),
        ("source-topic", str(fields["topic"]).encode()),
        ("source-partition", str(fields["partition"]).encode()),
        ("source-offset", str(fields["offset"]).encode()),
    ]
    key, value = fields.get("key"), fields.get("value")
    return DeadLetter(
        None if key is None else b64decode(key),
        None if value is None else b64decode(value),
        int(fields["timestamp_ms"]),
        headers,
    )
