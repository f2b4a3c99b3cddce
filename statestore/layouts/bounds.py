"""Bounds of key ranges where every key is followed by a suffix of fixed length.

Keys have any length, so one key may be a prefix of another, and the suffix of the short one may sort after the long
one: {0} with a suffix of 01 01 comes after {0, 0} with any. The bounds here hold everything they must; what they hold
too much, a reader sorts out by the key itself.
"""

from __future__ import annotations


def lower_bound(key: bytes | None) -> bytes | None:
    """A key at or before every stored key whose own part is `key` or greater; None stays an open end."""
    return key


def upper_bound(key: bytes | None, suffix: bytes) -> bytes | None:
    """The last stored key whose own part is `key` or smaller, when no suffix is greater than `suffix`."""
    if key is None:
        return None
    # Of the smaller keys only the prefixes of `key` can be stored after it.
    return max(key[:length] + suffix for length in range(len(key) + 1))


def within(key: bytes, lower: bytes | None, upper: bytes | None) -> bool:
    """Whether `key` lies between the two, both included; None is an open end."""
    return (lower is None or lower <= key) and (upper is None or key <= upper)
