"""One open folder of RocksDB.

Every space is a column family, made and dropped while the database is open, and one `write` is atomic over all of them.
The write-ahead log is on and not synced: after the death of the process every write is there; after power loss a
consistent, older state is, unless a later write asked for `sync`. What RocksDB would open though it has holes
(`files.py`) is told, and so is a space that is gone: their names are kept in the family `default`.

A write to a dropped column family would leave the database refusing every later one, so writing, making and dropping
exclude each other. Reading needs no lock: whoever holds a family or an iterator keeps its files alive.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import le
from pathlib import Path
from threading import Lock, RLock
from typing import TypeVar, cast
from weakref import WeakSet

import rocksdict as rd

from statestore.columns import Entries
from statestore.config import RocksConfig
from statestore.errors import InvalidStateStore, RollforwardError, TaskCorrupted, Unavailable
from statestore.failpoints import reach
from statestore.iterator import Flat
from statestore.ranges import Range
from statestore.rocks import files
from statestore.rocks.errors import LockHeld, translated
from statestore.rocks.options import rocks_options
from statestore.rocks.scan import CHUNK, Scan, cut
from statestore.rocks.view import Pinned, Present, View
from statestore.sortedrows import last_in_order
from statestore.spaces.base import DEFAULT, Base, ChangeColumns, Changes
from statestore.store import Entry

_SPACES = b"spaces"
# RocksDB leaves files alone whose names are none of its own.
_LOADING = "loading"
Held = TypeVar("Held", Scan, Pinned)


class Database(Base):
    """One open RocksDB folder. `families` exist from the beginning on, beside those that the folder has."""

    def __init__(
        self,
        folder: Path,
        families: Sequence[str],
        config: RocksConfig,
        *,
        read_only: bool = False,
        write_ahead_log: bool = True,
    ) -> None:
        self.folder = folder
        self._config = config
        self._cache = rd.Cache(config.block_cache_bytes)
        self._changing = RLock()
        # Held by who flushes beside writers, and by who takes away what is flushed; the second of the two locks.
        self._flushing = Lock()
        # What has iterators, to be released before the database closes. Readers add to it without waiting for writers.
        self._held: WeakSet[Scan | Pinned] = WeakSet()
        self._holding = Lock()
        self._present = Present()
        self._write_options, self._sync_options = rd.WriteOptions(), rd.WriteOptions()
        self._write_options.disable_wal = not write_ahead_log  # type: ignore[method-assign,assignment]
        self._sync_options.sync = True
        self._open = False
        self._lists_spaces = write_ahead_log and not read_only
        access = rd.AccessType.read_only() if read_only else rd.AccessType.read_write()
        try:
            if not read_only:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found: set[str] = set()
            if (folder / "CURRENT").exists():
                if self._lists_spaces:
                    self._require_whole()
                found = set(rd.Rdict.list_cf(str(folder), self._options())) - {DEFAULT}
            known = found | set(families)
            self._db = rd.Rdict(
                str(folder),
                self._options(),
                column_families={name: self._options() for name in sorted(known)},
                access_type=access,
            )
            self._families = {name: self._db.get_column_family(name) for name in known}
            self._handles = {name: self._db.get_column_family_handle(name) for name in known}
            if self._lists_spaces:
                self._settle_spaces(found)
        except RollforwardError:
            self._give_up()
            raise
        except Exception as error:
            self._give_up()
            raise translated(error, folder) from error
        self._open = True

    def _give_up(self) -> None:
        """Close what is open by now: it would stay so, and locked, as long as anybody keeps the error."""
        if hasattr(self, "_db"):
            # Each of them keeps it open.
            for kept in ("_families", "_handles"):
                getattr(self, kept, {}).clear()
            with suppress(Exception):
                self._db.close()

    def _require_whole(self) -> None:
        """Raises `TaskCorrupted` for a folder with holes; `LockHeld` if it is being written, so that nothing fits."""
        problem = files.problem(self.folder)
        if not problem:
            return
        try:
            # RocksDB takes the lock first, and refuses this for what exists, before it changes anything.
            probe = self._options()
            probe.set_error_if_exists(True)
            rd.Rdict(str(self.folder), probe).close()
        except Exception as error:
            told = translated(error, self.folder)
            if isinstance(told, LockHeld):
                raise told from error
        if problem := files.problem(self.folder):
            raise TaskCorrupted("rocksdb's files do not fit together", folder=self.folder, problem=problem)

    # The list of spaces.

    def _settle_spaces(self, found: set[str]) -> None:
        """Compare what was found with the list: a space is on it before it has data, and off it before it goes."""
        raw = self._db.get(_SPACES)
        listed = found if raw is None else set(json.loads(raw))
        if missing := listed - found:
            raise TaskCorrupted("spaces are missing", folder=self.folder, spaces=", ".join(sorted(missing)))
        for space in found - listed:
            del self._families[space], self._handles[space]
            self._db.drop_column_family(space)
        if raw is None or listed != set(self._families):
            self._list_spaces()

    def _list_spaces(self, *, sync: bool = False) -> None:
        if self._lists_spaces:
            listed = json.dumps(sorted(self._families)).encode()
            self._db.put(_SPACES, listed, self._sync_options if sync else self._write_options)

    def _options(self) -> rd.Options:
        return rocks_options(self._config, self._cache)

    @property
    def persistent(self) -> bool:
        return True

    @property
    def is_open(self) -> bool:
        return self._open

    def _require_open(self) -> None:
        if not self._open:
            raise InvalidStateStore("store is closed", folder=self.folder)

    # Spaces.

    def spaces(self) -> list[str]:
        self._require_open()
        return sorted(self._families)

    def create(self, space: str) -> None:
        with self._changing:
            self._require_open()
            if space in self._families:
                return
            try:
                self._families[space] = self._db.create_column_family(space, self._options())
                self._handles[space] = self._db.get_column_family_handle(space)
                self._list_spaces()
            except Exception as error:
                raise translated(error, self.folder) from error

    def drop(self, space: str) -> None:
        with self._changing, self._flushing:
            self._require_open()
            if space not in self._families:
                return
            family = self._families.pop(space)
            del self._handles[space]
            try:
                if self._lists_spaces:
                    # A family that is gone stays gone after power loss, so the list must, too.
                    self._list_spaces(sync=True)
                    reach("drop.unlisted")
                    # Else its last change, which no file would have, could be the last one of a log that goes.
                    family.flush(True)
                    reach("drop.flushed")
                with self._present:
                    self._db.drop_column_family(space)
                reach("drop.dropped")
            except Exception as error:
                raise translated(error, self.folder) from error

    def _family(self, space: str) -> rd.Rdict | None:
        self._require_open()
        return self._families.get(space)

    # Reading.

    def get(self, space: str, key: bytes) -> bytes | None:
        family = self._families.get(space)
        if family is None:
            self._require_open()
            return None
        try:
            value: bytes | None = family.get(key)
        except Exception as error:
            raise translated(error, self.folder) from error
        return value

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        """Values of the keys, in their order. Keys are looked up sorted, which RocksDB answers two to three times faster."""
        found: list[bytes | None] = [None] * len(keys)
        family = self._family(space)
        if family is None:
            return found
        try:
            if all(map(le, keys, islice(keys, 1, None))):
                for start in range(0, len(keys), CHUNK):
                    found[start : start + CHUNK] = family.get(keys[start : start + CHUNK])  # type: ignore[arg-type, assignment]
                return found
            order = sorted(range(len(keys)), key=keys.__getitem__)
            for start in range(0, len(order), CHUNK):
                rows = order[start : start + CHUNK]
                values: list[bytes | None] = family.get([keys[row] for row in rows])  # type: ignore[assignment]
                for row, value in zip(rows, values, strict=True):
                    found[row] = value
        except Exception as error:
            raise translated(error, self.folder) from error
        return found

    def scan(
        self,
        space: str,
        *,
        lower: bytes | None = None,
        upper: bytes | None = None,
        upper_inclusive: bool = True,
        reverse: bool = False,
    ) -> Iterator[Entry]:
        family = self._family(space)
        if family is None:
            return iter(())
        pieces = self._opened(family, lower, upper, reverse=reverse).pieces()
        return Flat.of(cut(pieces, lower, upper, upper_inclusive=upper_inclusive, reverse=reverse))

    def few(self, space: str, lower: bytes, upper: bytes) -> list[Entry] | None:
        """By an iterator that is kept until the next write, and the files of its version with it.

        Opening one costs as much as reading ten entries.
        """
        present = self._present.pinned
        pinned = present.get(space) if present else None
        if pinned is None:
            family = self._family(space)
            if family is None:
                return []
            pinned = self._hold(Pinned(family, self.folder))
            if present is not None:
                present[space] = pinned
        return pinned.few(lower, upper)

    def _opened(self, source: rd.Rdict, lower: bytes | None, upper: bytes | None, *, reverse: bool) -> Scan:
        return self._hold(Scan(source, upper if reverse else lower, self.folder, reverse=reverse))

    def _hold(self, one: Held) -> Held:
        with self._holding:
            if self._open:
                self._held.add(one)
                return one
        one.release()
        raise InvalidStateStore("store is closed", folder=self.folder)

    def columns(self, space: str, bytes_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """All keys and values, ascending, in pieces of about so many bytes: a fraction of what `scan` costs.

        For spaces that nobody writes meanwhile.
        """
        family = self._family(space)
        if family is None:
            return
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        scan = self._opened(family, None, None, reverse=False)
        while entries := scan.read(CHUNK):
            for key, value in entries:
                keys.append(key)
                values.append(value)
                size += len(key) + len(value)
                if size >= bytes_max:
                    yield keys, values
                    keys, values, size = [], [], 0
        if keys:
            yield keys, values

    def view(self, spaces: Iterable[str]) -> View:
        """These spaces as they are now, whatever is written later. Close it: it holds on to old data."""
        with self._changing:
            self._require_open()
            known = [name for name in spaces if name in self._families]
            return View({name: self._hold(Pinned(self._families[name], self.folder)) for name in known})

    def estimate(self, space: str) -> int:
        return self.property(space, "estimate-num-keys")

    def property(self, space: str, name: str) -> int:
        """An integer property of RocksDB, `live-sst-files-size` for example; 0 where there is none."""
        family = self._family(space)
        return 0 if family is None else int(family.property_int_value(f"rocksdb.{name}") or 0)

    def memory(self) -> dict[str, int]:
        """Bytes that RocksDB holds in memory, by part: memtables and those that are being flushed, blocks, indexes.

        Kafka Streams tells the same as `size-all-mem-tables`, `block-cache-usage` and `estimate-table-readers-mem`.
        """
        families = list(self._families)
        return {
            "memtables": sum(self.property(name, "size-all-mem-tables") for name in families),
            "block_cache": self._cache.get_usage(),
            "table_readers": sum(self.property(name, "estimate-table-readers-mem") for name in families),
        }

    def has(self, space: str) -> bool:
        """Whether the space exists."""
        return space in self._families

    # Writing.

    def put(self, space: str, key: bytes, value: bytes) -> None:
        """Set one key, faster than `write`."""
        with self._changing:
            self._require_open()
            if space not in self._families:
                self.create(space)
            try:
                with self._present:
                    self._families[space].put(key, value, self._write_options)
            except Exception as error:
                raise translated(error, self.folder) from error

    def write(
        self,
        changes: Mapping[str, Changes],
        deleted: Mapping[str, Iterable[Range]] | None = None,
        *,
        sync: bool = False,
    ) -> None:
        batch = rd.WriteBatch(raw_mode=True)
        with self._changing:
            self._require_open()
            for space, ranges in (deleted or {}).items():
                self._delete_ranges(batch, space, ranges)
            for space, entries in changes.items():
                _add(batch, self._handle(space), entries)
            try:
                with self._present:
                    self._db.write(batch, self._sync_options if sync else self._write_options)
            except Exception as error:
                raise translated(error, self.folder) from error

    def load(self, space: str, entries: Entries) -> None:
        """Apply changes in the order given as one sorted file, past memtable and log: a fraction of `write`'s CPU.

        Null deletes. The file is on the disk when this returns, but what `write` wrote before it may not be: it is
        for folders that nobody uses before they are complete and flushed.
        """
        rows = last_in_order(entries.keys)
        if not len(rows):
            return
        path = self.folder / _LOADING
        with self._changing:
            self._require_open()
            self.create(space)
            try:
                self._write_sorted(path, entries.taken(rows))
                options = rd.IngestExternalFileOptions()
                options.set_move_files(True)
                with self._present:
                    self._families[space].ingest_external_file([str(path)], options)
            except Exception as error:
                raise translated(error, self.folder) from error

    def _write_sorted(self, path: Path, entries: Entries) -> None:
        writer = rd.SstFileWriter(self._options())
        writer.open(str(path))
        for keys, values in entries.slices():
            if None not in values:
                # Nothing but the calls themselves: the loop's own steps would cost as much as they do.
                deque(map(writer.__setitem__, keys, cast(list[bytes], values)), maxlen=0)
                continue
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    del writer[key]
                else:
                    writer[key] = value
        writer.finish()

    def _handle(self, space: str) -> rd.ColumnFamily:
        if space not in self._handles:
            self.create(space)
        return self._handles[space]

    def _delete_ranges(self, batch: rd.WriteBatch, space: str, ranges: Iterable[Range]) -> None:
        """RocksDB leaves the upper end out; the smallest key after a key is that key and a zero byte."""
        if space not in self._handles:
            return
        for lower, upper in ranges:
            if upper is None:
                last = next(self.scan(space, reverse=True), None)
                if last is None:
                    continue
                upper = last[0]
            if (lower or b"") <= upper:
                batch.delete_range(lower or b"", upper + b"\0", self._handles[space])

    def flush(self) -> None:
        """Write the memtables to files, and the files to disk."""
        with self._changing:
            self._require_open()
            self._flush()

    def flush_ahead(self) -> None:
        """`flush` while writes go on: what they write is flushed or not. Does nothing if the database is closed."""
        with self._flushing:
            if self._open:
                self._flush()

    def _flush(self) -> None:
        try:
            for family in (*self._families.values(), self._db):
                family.flush(True)
        except Exception as error:
            raise translated(error, self.folder) from error

    def copy_to(self, folder: Path) -> None:
        """Flush, and make `folder`, which must not exist and lies on the same disk, a copy by hard links.

        Every space is in it as of one moment between two writes.
        """
        with self._changing:
            self._require_open()
            # A copy flushes, too, but the binding keeps the interpreter to itself until it is made.
            self._flush()
            try:
                rd.Checkpoint(self._db).create_checkpoint(str(folder))
                for options in folder.glob("OPTIONS-*"):
                    # Whoever opens the copy gives his own, and RocksDB writes them down anew.
                    options.unlink()
            except Exception as error:
                raise translated(error, self.folder) from error

    def close(self) -> None:
        """Close and give the folder free. Scans fail where they would read on; what they have read, they still give.

        Raises `Unavailable` where the disk does not take what was in memory; the folder is free all the same.
        """
        with self._changing, self._flushing:
            if not self._open:
                return
            with self._holding:
                self._open = False
                held = list(self._held)
            self._present.pinned = None
            for one in held:
                one.release()
            self._families.clear()
            self._handles.clear()
            try:
                self._db.close()
            except Exception as error:
                raise Unavailable(
                    "store was closed without what was in memory", folder=self.folder, error=error
                ) from error


def _add(batch: rd.WriteBatch, handle: rd.ColumnFamily, changes: Changes) -> None:
    batch.set_default_column_family(handle)
    if isinstance(changes, ChangeColumns) and None not in changes.values:
        # Nothing but the calls themselves: a loop's own steps would cost a quarter of it.
        deque(map(batch.__setitem__, changes.keys, cast(list[bytes], changes.values)), maxlen=0)
        return
    for key, value in changes:
        if value is None:
            batch.delete(key)
        else:
            batch[key] = value
