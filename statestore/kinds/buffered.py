"""One change held back by a suppression buffer, and its bytes in the changelog.

Written is format 3, named by the record header `v` (one byte):

    context · prior · old · new · buffer time (8)

`context` is the input record the change comes from: time (8), offset (8), topic, partition (4), number of headers (4),
per header name and value. Integers are big-endian; a text or value is its length (4) and its bytes; length -1 is none,
and as the length of `old` -2 says that it equals `prior`.

Older formats are read:

    none  buffer time · [old · new]                       the context is the changelog record's own
    1     buffer time · context · length · [old · new]
    2     context · length · [old · new] · prior · buffer time

Format 2 of Kafka Streams 2.4.0, 2.4.1 and 2.5.0 is format 3 under the wrong number; it is told apart by trying.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from statestore.context import Headers, RecordContext
from statestore.errors import DataCorrupted, FormatUnsupported

FORMAT_HEADERS: Final[Headers] = (("v", b"\x03"),)

_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_NONE = -1
_SAME_AS_PRIOR = -2


@dataclass(frozen=True)
class Change:
    """A key's new and old value upstream; None is no value."""

    new: bytes | None
    old: bytes | None = None


@dataclass(frozen=True)
class Buffered:
    """The newest change of a key. `prior` is the value downstream still has: the one before the key was buffered."""

    change: Change
    prior: bytes | None
    context: RecordContext

    @property
    def size_bytes(self) -> int:
        """What it counts for in a buffer limited by bytes; `old` counts once if it equals `prior`."""
        values = [self.change.new, self.prior, None if self.change.old == self.prior else self.change.old]
        return sum(len(value) for value in values if value is not None) + _context_size(self.context)

    def to_bytes(self, buffer_time_ms: int) -> bytes:
        """The changelog value in format 3."""
        same = self.change.old is not None and self.change.old == self.prior
        return b"".join(
            (
                _context_bytes(self.context),
                _sized(self.prior),
                _INT.pack(_SAME_AS_PRIOR) if same else _sized(self.change.old),
                _sized(self.change.new),
                _LONG.pack(buffer_time_ms),
            )
        )


def _context_size(context: RecordContext) -> int:
    headers = sum(len(name) + len(value) for name, value in context.headers)
    return 8 + 8 + len(context.topic) + 4 + headers


def _context_bytes(context: RecordContext) -> bytes:
    parts = [
        _LONG.pack(context.timestamp_ms),
        _LONG.pack(context.offset),
        _sized(context.topic.encode()),
        _INT.pack(context.partition),
        _INT.pack(len(context.headers)),
    ]
    for name, value in context.headers:
        parts += [_sized(name.encode()), _sized(value)]
    return b"".join(parts)


def _sized(value: bytes | None) -> bytes:
    return _INT.pack(_NONE) if value is None else _INT.pack(len(value)) + value


class _Reader:
    """Takes fields off bytes from the front. Raises `DataCorrupted` where a field does not fit."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._raw) - self._at:
            raise DataCorrupted("a buffered change is cut off", bytes=len(self._raw), at=self._at, wanted=size)
        self._at += size
        return self._raw[self._at - size : self._at]

    def integer(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def long_integer(self) -> int:
        return int(_LONG.unpack(self.take(8))[0])

    def sized(self) -> bytes | None:
        size = self.integer()
        return None if size == _NONE else self.take(size)

    def required(self) -> bytes:
        value = self.sized()
        if value is None:
            raise DataCorrupted("a buffered change lacks a field", bytes=len(self._raw), at=self._at)
        return value

    def text(self) -> str:
        try:
            return self.required().decode()
        except UnicodeDecodeError as error:
            raise DataCorrupted("a buffered change has a text that is none", error=error) from error

    def end(self) -> None:
        if self._at != len(self._raw):
            raise DataCorrupted("a buffered change has bytes left over", bytes=len(self._raw), at=self._at)

    def context(self) -> RecordContext:
        time, offset, topic, partition = self.long_integer(), self.long_integer(), self.text(), self.integer()
        # Kafka Streams before 2.2 wrote -1 for "no headers".
        headers = tuple((self.text(), self.sized() or b"") for _ in range(max(self.integer(), 0)))
        return RecordContext(topic, partition, offset, time, headers)

    def change(self) -> Change:
        old = self.sized()
        return Change(self.sized(), old)


def restored(
    value: bytes, headers: Headers, *, own_context: RecordContext, buffered: Buffered | None
) -> tuple[int, Buffered]:
    """Buffer time and change of a changelog record in any format.

    `own_context` is the changelog record itself and `buffered` what the buffer holds for the key: the formats that
    lack a context or a prior value take them from there. Raises `FormatUnsupported` for an unknown format.
    """
    version = next((value for name, value in reversed(headers) if name == "v"), None)
    reader = _Reader(value)
    if version is None:
        time, change, context = reader.long_integer(), reader.change(), own_context
        reader.end()
        return time, Buffered(change, _prior(change, buffered), context)
    if version == b"\x01":
        time, context, change = reader.long_integer(), reader.context(), _nested(reader)
        reader.end()
        return time, Buffered(change, _prior(change, buffered), context)
    if version == b"\x02":
        try:
            return _format_2(reader)
        except DataCorrupted:
            return _format_3(_Reader(value))
    if version == b"\x03":
        return _format_3(reader)
    raise FormatUnsupported("a buffered change has an unknown format", found=version, supported="none, 1, 2, 3")


def _prior(change: Change, buffered: Buffered | None) -> bytes | None:
    return change.old if buffered is None or buffered.prior is None else buffered.prior


def _nested(reader: _Reader) -> Change:
    inner = _Reader(reader.required())
    change = inner.change()
    inner.end()
    return change


def _format_2(reader: _Reader) -> tuple[int, Buffered]:
    context, change, prior, time = reader.context(), _nested(reader), reader.sized(), reader.long_integer()
    reader.end()
    return time, Buffered(change, prior, context)


def _format_3(reader: _Reader) -> tuple[int, Buffered]:
    context, prior, size = reader.context(), reader.sized(), reader.integer()
    old = prior if size == _SAME_AS_PRIOR else None if size == _NONE else reader.take(size)
    new, time = reader.sized(), reader.long_integer()
    reader.end()
    return time, Buffered(Change(new, old), prior, context)
