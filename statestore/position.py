"""How far a store has taken in its inputs: per topic and partition the offset of the newest record (KIP-796)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


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
