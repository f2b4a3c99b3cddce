"""Sets of keys given by their ends: what a transaction has deleted by range."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[bytes | None, bytes | None]
"""Lower and upper end, both included; None is open."""


class Ranges:
    """Disjoint ranges in key order. Never changed once made, so readers may hold one while the writer goes on."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges: list[tuple[bytes, bytes | None]] = []
        for lower, upper in sorted(((lower or b"", upper) for lower, upper in ranges), key=lambda r: r[0]):
            if upper is not None and upper < lower:
                continue
            if self._ranges and _touches(self._ranges[-1][1], lower):
                self._ranges[-1] = (self._ranges[-1][0], _larger(self._ranges[-1][1], upper))
            else:
                self._ranges.append((lower, upper))
        self._lowers = [lower for lower, _ in self._ranges]

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def with_range(self, added: Range) -> Ranges:
        """These and one more."""
        return Ranges([*self._ranges, added])

    def cover(self, key: bytes) -> bool:
        """Whether `key` lies in one of them."""
        at = bisect_right(self._lowers, key) - 1
        if at < 0:
            return False
        upper = self._ranges[at][1]
        return upper is None or key <= upper


def _touches(upper: bytes | None, lower: bytes) -> bool:
    return upper is None or lower <= upper


def _larger(one: bytes | None, other: bytes | None) -> bytes | None:
    return None if one is None or other is None else max(one, other)


EVERYTHING: Range = (None, None)
