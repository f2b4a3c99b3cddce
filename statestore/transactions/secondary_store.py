"""SECONDARY_STORE: uncommitted changes in a temporary RocksDB, copied at commit (KIP-844's own mechanism).

    <task>/<store>.uncommitted/   a family for each space; and one, `.ranges`, for what was deleted by range
    <task>/<store>.commit         see `CommitFile`

An entry's value begins with one byte: 1 for a value that follows, 0 for a deletion. The temporary store has no
write-ahead log: without a commit file it is worth nothing, and before there is one it is flushed and synced.

Commit, in steps that a crash cannot tear apart:

1. The temporary store is flushed and synced; then what the commit file will say is written there, too, and synced. A
   temporary store that has lost any of its files' ends since has lost that last.
2. The commit file appears. From here on the transaction is committed, whatever happens.
3. The changes are copied to the base in bounded writes, deleted ranges first. The metadata goes with the last one,
   which is synced together with all before it.
4. Dropped spaces go.
5. The commit file is deleted.
6. The temporary store is emptied.

Dying before 2 rolls back, dying later repeats from 3: copying the same changes again gives the same base. While the
base is between two versions, committed reads are served from a view of the older one.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from statestore.commitfile import CommitFile, Metadata
from statestore.config import RocksConfig
from statestore.errors import TaskCorrupted
from statestore.failpoints import reach
from statestore.overlay import merge
from statestore.ranges import EVERYTHING, Range, Ranges
from statestore.rocks.database import Database
from statestore.rocks.view import View
from statestore.spaces.base import ChangeColumns, Changes
from statestore.store import Entry, Isolation
from statestore.transactions.base import Transaction, noting_failure, owns

T = TypeVar("T")
COPY_BYTES_MAX = 4 * 1024 * 1024
_RANGES = ".ranges"
_COMMIT = b"commit"
_PUT = b"\x01"
_DELETE = b"\x00"
_NUMBER = struct.Struct(">q")


def _encode(value: bytes | None) -> bytes:
    return _DELETE if value is None else _PUT + value


def _decode(raw: bytes) -> bytes | None:
    return raw[1:] if raw[:1] == _PUT else None


class SecondaryStoreTransaction(Transaction):
    """Bounded memory however much is written. `copy_bytes_max` bounds one write of the copy."""

    base: Database

    def __init__(
        self, store: str, base: Database, folder: Path, config: RocksConfig, *, copy_bytes_max: int = COPY_BYTES_MAX
    ) -> None:
        super().__init__(store, base)
        self._folder = folder / f"{store}.uncommitted"
        self._commit_file = CommitFile(folder / f"{store}.commit")
        self._config = config
        self._copy_bytes_max = copy_bytes_max
        self._temporary: Database | None = None
        self._ranges: dict[str, Ranges] = {}
        self._dropped: set[str] = set()
        self._numbered = 0
        self._bytes = 0
        self._view: View | None = None
        # Counts the moments at which the parts of a read may not fit together: such a read is taken again.
        self._turn = 0

    @property
    def transactional(self) -> bool:
        return True

    @property
    def uncommitted_bytes(self) -> int:
        return self._bytes

    # Writing.

    def _opened(self) -> Database:
        if self._temporary is None:
            self._temporary = Database(self._folder, [_RANGES], self._config, write_ahead_log=False)
        return self._temporary

    @noting_failure
    def put(self, space: str, key: bytes, value: bytes | None) -> None:
        self._opened().put(space, key, _encode(value))
        self._bytes += len(key) + (0 if value is None else len(value))

    @noting_failure
    def put_all(self, space: str, changes: Changes) -> None:
        columns = ChangeColumns.of(changes)
        # In key order: RocksDB takes them in for less than in any other, the sorting included.
        last = dict(iter(columns))
        keys = sorted(last)
        self._opened().write({space: ChangeColumns(keys, [_encode(last[key]) for key in keys])})
        self._bytes += columns.size_bytes

    @noting_failure
    def delete_range(self, space: str, lower: bytes | None, upper: bytes | None) -> None:
        self._delete_range(space, (lower, upper), drop=False)
        self._bytes += len(lower or b"") + len(upper or b"")

    @noting_failure
    def drop(self, space: str) -> None:
        self._delete_range(space, EVERYTHING, drop=True)
        self._dropped = {*self._dropped, space}

    def _delete_range(self, space: str, deleted: Range, *, drop: bool) -> None:
        # Hidden before its newer values are gone: a reader must not see the base's value come through.
        self._ranges = {**self._ranges, space: self._ranges.get(space, Ranges()).with_range(deleted)}
        ends = [None if end is None else end.hex() for end in deleted]
        record = json.dumps({"space": space, "ends": ends, "drop": drop}).encode()
        self._numbered += 1
        self._opened().write({_RANGES: [(_NUMBER.pack(self._numbered), record)]}, {space: [deleted]})

    # Reading.

    def _steady(self, read: Callable[[Database | View], T]) -> T:
        """A read of a base that did not turn from one version to the next meanwhile."""
        while True:
            turn = self._turn
            result = read(self._view or self.base)
            if turn == self._turn:
                return result

    def _find(self, space: str, key: bytes, isolation: Isolation) -> tuple[bool, bytes | None]:
        if isolation is Isolation.READ_COMMITTED or self._temporary is None:
            return False, None
        # The ranges are taken first: whoever empties the temporary store forgets them first.
        ranges = self._ranges.get(space)
        raw = self._temporary.get(space, key)
        if raw is not None:
            return True, _decode(raw)
        return ranges is not None and ranges.cover(key), None

    def get(self, space: str, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        def read(base: Database | View) -> bytes | None:
            decided, value = self._find(space, key, isolation)
            return value if decided else base.get(space, key)

        return self._steady(read)

    def get_many(
        self, space: str, keys: list[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[bytes | None]:
        def read(base: Database | View) -> list[bytes | None]:
            found = [self._find(space, key, isolation) for key in keys]
            open_keys = [key for key, (decided, _) in zip(keys, found, strict=True) if not decided]
            rest = iter(base.get_many(space, open_keys))
            return [value if decided else next(rest) for decided, value in found]

        return self._steady(read)

    def spaces(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[str]:
        committed = {space for space in self._steady(lambda base: base.spaces()) if owns(self.store, space)}
        if isolation is Isolation.READ_COMMITTED or self._temporary is None:
            return sorted(committed)
        return sorted(committed - self._dropped | self._written())

    def _written(self) -> set[str]:
        """Spaces with changes of their own in the temporary store."""
        temporary = self._opened()
        spaces = (space for space in temporary.spaces() if space != _RANGES)
        return {space for space in spaces if next(temporary.scan(space), None) is not None}

    def scan(
        self,
        space: str,
        *,
        lower: bytes | None = None,
        upper: bytes | None = None,
        upper_inclusive: bool = True,
        reverse: bool = False,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[Entry]:
        if lower is not None and upper is not None and lower > upper:
            return iter(())

        def within(source: Database | View) -> Iterator[Entry]:
            return source.scan(space, lower=lower, upper=upper, upper_inclusive=upper_inclusive, reverse=reverse)

        def read(base: Database | View) -> Iterator[Entry]:
            if isolation is Isolation.READ_COMMITTED or self._temporary is None:
                return within(base)
            deleted, changed = self._ranges.get(space), within(self._temporary)
            changes = ((key, _decode(raw)) for key, raw in changed)
            return merge(within(base), changes, deleted, reverse=reverse)

        return self._steady(read)

    def few(
        self, space: str, lower: bytes, upper: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[Entry] | None:
        def read(base: Database | View) -> list[Entry] | None:
            if base is not self.base or not (isolation is Isolation.READ_COMMITTED or self._is_untouched(space)):
                return None
            return self.base.few(space, lower, upper)

        return self._steady(read)

    def _is_untouched(self, space: str) -> bool:
        """Whether nothing is uncommitted there."""
        return self._temporary is None or not (self._temporary.has(space) or space in self._ranges)

    # Committing: see the steps above.

    def commit(self, space: str, metadata: Changes) -> None:
        self._require_whole()
        if self._temporary is None:
            self.base.write({space: metadata}, sync=True)
            return
        about = Metadata(space, list(metadata))
        # 1
        self._temporary.flush()
        self._temporary.put(_RANGES, _COMMIT, about.to_bytes())
        self._temporary.flush()
        reach("secondary.synced")
        # 2
        self._commit_file.write(about)
        reach("secondary.commit-file-written")
        self._finish(about)

    def _finish(self, metadata: Metadata) -> None:
        # One that failed on its way has left its view: the base is of no version before this is through. What the older
        # version stands at is in it, too.
        view = self._view = self._view or self.base.view([*self.base_spaces(), metadata.space])
        self._turn += 1
        # 3
        self._copy(metadata)
        reach("secondary.copied")
        # 4
        for name in self._dropped - self._written():
            self.base.drop(name)
            reach("secondary.in-drop")
        reach("secondary.dropped")
        self._view = None
        self._turn += 1
        view.close()
        # 5
        self._commit_file.delete()
        reach("secondary.commit-file-deleted")
        # 6
        self._empty()
        reach("secondary.emptied")

    def _copy(self, metadata: Metadata) -> None:
        deleted = {name: ranges for name, ranges in self._ranges.items() if self.base.has(name)}
        if deleted:
            self.base.write({}, deleted)
        last: dict[str, ChangeColumns] = {}
        for name, changes in self._batches():
            if last:
                self.base.write(last)
                reach("secondary.in-copy")
            last = {name: changes}
        reach("secondary.before-last-write")
        self.base.write({**last, metadata.space: metadata.entries}, sync=True)

    def _batches(self) -> Iterator[tuple[str, ChangeColumns]]:
        """The changes, space by space, in pieces of about `copy_bytes_max`."""
        for name in sorted(self._written()):
            for keys, raws in self._opened().columns(name, self._copy_bytes_max):
                # `_decode` of each, without a call a value.
                yield name, ChangeColumns(keys, [raw[1:] if raw[0] else None for raw in raws])

    def rollback(self) -> None:
        """Forget the changes; under a commit file they are committed already, and this finishes the commit."""
        if self._commit_file.path.exists():
            self.recover()
        else:
            self._empty()

    def _empty(self) -> None:
        self._ranges, self._dropped = {}, set()
        self._bytes = self._numbered = 0
        if self._temporary is not None:
            for name in self._temporary.spaces():
                self._temporary.drop(name)
        self._failed = False
        self._turn += 1

    def recover(self) -> None:
        metadata = self._commit_file.read()
        if metadata is None:
            self._discard()
            return
        if self._temporary is None and not self._folder.exists():
            raise TaskCorrupted("commit file without its temporary store", path=self._commit_file.path)
        if self._opened().get(_RANGES, _COMMIT) != metadata.to_bytes():
            raise TaskCorrupted("temporary store is not the one its commit file is for", path=self._commit_file.path)
        reach("secondary.roll-forward")
        self._read_ranges()
        self._finish(metadata)

    def _read_ranges(self) -> None:
        self._ranges, self._dropped = {}, set()
        for number, record in self._opened().scan(_RANGES):
            if number == _COMMIT:
                continue
            fields = json.loads(record)
            lower, upper = (None if end is None else bytes.fromhex(end) for end in fields["ends"])
            name = fields["space"]
            self._ranges[name] = self._ranges.get(name, Ranges()).with_range((lower, upper))
            if fields["drop"]:
                self._dropped.add(name)

    def _discard(self) -> None:
        """Delete the temporary store's folder: nothing in it was committed."""
        temporary, self._temporary = self._temporary, None
        self._ranges, self._dropped = {}, set()
        self._bytes = self._numbered = 0
        self._failed = False
        self._turn += 1
        if temporary is not None:
            temporary.close()
        if self._folder.exists():
            shutil.rmtree(self._folder)
        reach("secondary.discarded")

    def close(self) -> None:
        """Uncommitted changes go, except under a commit file: then the next opening finishes."""
        if not self._commit_file.path.exists():
            self._discard()
        elif self._temporary is not None:
            self._temporary.close()
            self._temporary = None
