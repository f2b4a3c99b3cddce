"""One number for the content of a store: the sum of its entries' hashes, the same in whatever order they came.

A put takes the old entry's hash off and adds the new one's, so every committed version has its digest without anybody
reading the store; reading it once then tells whether the store is that version. The hash is xxh3 of key and value, seeded
with the key's length so that no byte can pass from one to the other. It finds errors, not forgers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import add

from xxhash import xxh3_64_intdigest

from statestore.store import Entry

EMPTY = f"{0:016x}"
_MODULUS = 1 << 64
_CHUNK = 4096


def entry_hashes(keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[int]:
    """A hash for each entry, below 2**64; 0 where the value is None, which is no entry."""
    if None not in values:
        return list(map(xxh3_64_intdigest, map(add, keys, values), map(len, keys)))
    return [
        0 if value is None else xxh3_64_intdigest(key + value, len(key))
        for key, value in zip(keys, values, strict=True)
    ]


def changed(digest: str, *, added: Iterable[int], taken: Iterable[int]) -> str:
    """The digest after entries of these hashes came and went."""
    return f"{(int(digest, 16) + sum(added) - sum(taken)) % _MODULUS:016x}"


def digest_of(entries: Iterable[Entry]) -> tuple[str, int]:
    """The digest of all entries, and how many they are."""
    digest, count = EMPTY, 0
    for keys, hashes in hashed(entries):
        digest, count = changed(digest, added=hashes, taken=()), count + len(keys)
    return digest, count


def hashed(entries: Iterable[Entry]) -> Iterator[tuple[Sequence[bytes], list[int]]]:
    """The keys and hashes of all entries, some thousand at a time."""
    rest = iter(entries)
    while chunk := list(islice(rest, _CHUNK)):
        keys, values = zip(*chunk, strict=True)
        yield keys, entry_hashes(keys, values)


class Digesting:
    """Hands entries on and has the `digest` of those that have passed."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.digest = EMPTY
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        key, value = next(self._entries)
        self.digest = changed(self.digest, added=entry_hashes([key], [value]), taken=())
        return key, value
