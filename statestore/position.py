"""How far a store has taken in its inputs: per topic and partition the offset of the newest record (KIP-796)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from statestore.errors import FormatUnsupported

_VERSION_HEADER = "v"
_POSITION_HEADER = "c"


@dataclass(frozen=True)
class Position:
    """A vector of offsets; it only grows. As a bound: a reader is up to it when it is at least as far everywhere."""

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        frozen = {topic: MappingProxyType(dict(partitions)) for topic, partitions in self.offsets.items()}
        object.__setattr__(self, "offsets", MappingProxyType(frozen))

    def advanced(self, topic: str, partition: int, offset: int) -> Position:
        """This position with one record more; a smaller offset than the known one changes nothing."""
        partitions = self.offsets.get(topic, {})
        if partitions.get(partition, -1) >= offset:
            return self
        return Position({**self.offsets, topic: {**partitions, partition: offset}})

    def merged(self, other: Position) -> Position:
        """The larger offset of both, everywhere."""
        result = self
        for topic, partitions in other.offsets.items():
            for partition, offset in partitions.items():
                result = result.advanced(topic, partition, offset)
        return result

    def of(self, partition: int) -> Position:
        """What it says of this partition of each topic: that of a store takes in no other."""
        found = {topic: offsets[partition] for topic, offsets in self.offsets.items() if partition in offsets}
        return Position({topic: {partition: offset} for topic, offset in found.items()})

    def reaches(self, bound: Position) -> bool:
        """Whether this position is at least as far as `bound` everywhere that `bound` names."""
        return all(
            self.offsets.get(topic, {}).get(partition, -1) >= offset
            for topic, partitions in bound.offsets.items()
            for partition, offset in partitions.items()
        )

    def to_json(self) -> str:
        """Sorted, so that equal positions are equal texts."""
        plain = {topic: {str(p): o for p, o in sorted(ps.items())} for topic, ps in sorted(self.offsets.items())}
        return json.dumps(plain, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Reads what `to_json` wrote."""
        return cls({topic: {int(p): int(o) for p, o in ps.items()} for topic, ps in json.loads(text).items()})

    def to_bytes(self) -> bytes:
        """As Kafka Streams serialises it: version 0, then counts and lengths of 4 bytes, offsets of 8, big-endian.

        Its buffer is eight times too long, since it is measured in bits; the record carries all of it, zeros behind.
        """
        parts = [struct.pack(">bi", 0, len(self.offsets))]
        room = 8 + 32
        for topic, partitions in self.offsets.items():
            name = topic.encode()
            parts += [struct.pack(">i", len(name)), name, struct.pack(">i", len(partitions))]
            parts += [struct.pack(">iq", partition, offset) for partition, offset in partitions.items()]
            room += 32 + len(name) + 32 + 96 * len(partitions)
        return b"".join(parts).ljust(room, b"\0")

    @classmethod
    def from_bytes(cls, raw: bytes) -> Position:
        """Reads what Kafka Streams wrote. Raises `FormatUnsupported` for another version than 0."""
        version, topics = struct.unpack_from(">bi", raw)
        if version != 0:
            raise FormatUnsupported("position has another version", found=version, supported=0)
        at, offsets = 5, {}
        for _topic in range(topics):
            (length,) = struct.unpack_from(">i", raw, at)
            name = raw[at + 4 : at + 4 + length].decode()
            (partitions,) = struct.unpack_from(">i", raw, at + 4 + length)
            at += 8 + length
            offsets[name] = dict(struct.iter_unpack(">iq", raw[at : at + 12 * partitions]))
            at += 12 * partitions
        return cls(offsets)


def changelog_headers(position: Position) -> tuple[tuple[str, bytes], ...]:
    """The headers by which a changelog record says how far its store was after it: version 0 and the position."""
    return (_VERSION_HEADER, b"\0"), (_POSITION_HEADER, position.to_bytes())


def position_of(headers: Iterable[tuple[str, bytes | None]]) -> Position:
    """The position in a changelog record's headers; empty if it carries none, or one of a newer version."""
    found = dict(headers)
    version, position = found.get(_VERSION_HEADER), found.get(_POSITION_HEADER)
    if version is None or version[:1] != b"\0" or position is None:
        return Position()
    return Position.from_bytes(position)
