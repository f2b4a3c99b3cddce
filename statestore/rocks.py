"""RocksDB, as this project uses it. The only file that imports rocksdict.

A `Database` is one folder; every space is a column family, made and dropped while the database is open, and one
`write` is atomic over all of them. The write-ahead log is on and not synced: after the death of the process every
write is there; after power loss a consistent, older state is, unless a later write asked for `sync`. What RocksDB would
open though it has holes (`rocksfiles`) is told, and so is a space that is gone: their names are kept in the family
`default`.

A write to a dropped column family would leave the database refusing every later one, so writing, making and dropping
exclude each other. Reading needs no lock: whoever holds a family or an iterator keeps its files alive.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import le
from pathlib import Path
from threading import Lock, RLock
from typing import TypeVar, cast
from weakref import WeakSet

import rocksdict as rd

from statestore import rocksfiles
from statestore.columns import Entries
from statestore.config import RocksConfig
from statestore.errors import InvalidStateStore, RollforwardError, TaskCorrupted, Unavailable
from statestore.failpoints import reach
from statestore.iterator import Flat, piece_sizes
from statestore.ranges import Range
from statestore.sortedrows import last_in_order
from statestore.spaces.base import Base, ChangeColumns, Changes
from statestore.store import Entry

_CHUNK = 1000
# So many entries are read at once, by an iterator that others use, too.
_FEW = 64
_SPACES = b"spaces"
# RocksDB leaves files alone whose names are none of its own.
_LOADING = "loading"


class LockHeld(RollforwardError):
    """Another process has this folder open."""


Held = TypeVar("Held", "_Scan", "_Pinned")


def _translated(error: Exception, folder: Path) -> RollforwardError:
    text = str(error)
    lowered = text.lower()
    if isinstance(error, rd.DbClosedError):
        return InvalidStateStore("store is closed", folder=folder)
    if "lock" in lowered and ("hold by" in lowered or "temporarily unavailable" in lowered):
        return LockHeld("store folder is locked by another process", folder=folder)
    if "no space left" in lowered:
        return Unavailable("disk is full", folder=folder, hint="free space on the disk of the state folder")
    return TaskCorrupted("rocksdb failed", folder=folder, error=text)


def rocks_options(config: RocksConfig, cache: rd.Cache) -> rd.Options:
    """How every database and family of ours is opened."""
    options = rd.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(config.write_buffer_bytes)
    # A windowed store has many families: together they take as much as two large ones.
    options.set_db_write_buffer_size(4 * config.write_buffer_bytes)
    # A log that ends torn, as power loss leaves it, is used up to there; whatever else is damaged is an error.
    options.set_wal_recovery_mode(rd.DBRecoveryMode.point_in_time())
    options.set_paranoid_checks(True)
    options.set_max_total_wal_size(config.log_bytes_max)
    # Files come at the log's size, which is small: with more of them at a time a level is rewritten less often.
    options.set_level_zero_file_num_compaction_trigger(8)
    # All families go to files together, so files are of one moment even if the log is off.
    options.set_atomic_flush(True)
    # It is read whole at every opening.
    options.set_max_manifest_file_size(512 * 1024)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_is_fd_close_on_exec(True)
    table = rd.BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(cache)
    options.set_block_based_table_factory(table)
    return options


def _cut(
    pieces: Iterable[list[Entry]], lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool, reverse: bool
) -> Iterator[list[Entry]]:
    """End an iteration that began at its first bound at the other one.

    Bounds are kept here: the binding's lower bound sets the upper one, and it does not keep either alive.
    """
    beyond = _beyond(lower, upper, upper_inclusive=upper_inclusive, reverse=reverse)
    for entries in pieces:
        if reverse and not upper_inclusive and entries[0][0] == upper:
            del entries[0]
        if beyond is not None and entries and beyond(entries[-1]):
            yield entries[: bisect_left(entries, True, key=beyond)]
            return
        yield entries


def _beyond(
    lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool, reverse: bool
) -> Callable[[Entry], bool] | None:
    """Whether an entry lies past the bound at which an iteration ends."""
    if reverse:
        return None if lower is None else lambda entry: entry[0] < lower
    if upper is None:
        return None
    return (lambda entry: entry[0] > upper) if upper_inclusive else (lambda entry: entry[0] >= upper)


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


class _Scan:
    """An open RocksDB iterator. It keeps the folder locked, so the database lets go of it when it closes.

    The binding ends an iteration at a damaged block as it does at the last entry. Therefore an end is believed only
    after another iterator has gone past the last key without an error.

    A thread that reads has hold of the iterator, and whoever closes the database waits for it: RocksDB must not be
    asked, nor an iterator of it be let go of, when its family is gone.
    """

    __slots__ = ("__weakref__", "_first", "_items", "_last", "_lock", "_reverse", "_source", "folder")

    def __init__(self, source: rd.Rdict, first: bytes | None, folder: Path, *, reverse: bool) -> None:
        self.folder = folder
        self._first = first
        self._last: Entry | None = None
        self._reverse = reverse
        self._lock = Lock()
        self._source: rd.Rdict | None = source
        try:
            self._items: Iterator[Entry] | None = iter(source.items(backwards=reverse, from_key=first))  # type: ignore[assignment]
        except Exception as error:
            raise _translated(error, folder) from error

    def pieces(self) -> Iterator[list[Entry]]:
        """What is left, in lists: small ones first, since most scans look for a few entries."""
        for most in piece_sizes(_CHUNK):
            entries = self.read(most)
            if not entries:
                return
            yield entries

    def read(self, most: int) -> list[Entry]:
        """The next entries, at most so many; none at the end."""
        with self._lock:
            if self._items is None or self._source is None:
                raise InvalidStateStore("store was closed under an iterator", folder=self.folder)
            try:
                entries = list(islice(self._items, most))
                if entries:
                    self._last = entries[-1]
                if len(entries) < most:
                    self._check_end(self._source.iter())
            except Exception as error:
                raise _translated(error, self.folder) from error
            return entries

    def _check_end(self, beyond: rd.RdictIter) -> None:
        at = self._last[0] if self._last else self._first
        try:
            if at is None:
                beyond.seek_to_last() if self._reverse else beyond.seek_to_first()
            else:
                beyond.seek_for_prev(at) if self._reverse else beyond.seek(at)
            if beyond.valid() and self._last:
                beyond.prev() if self._reverse else beyond.next()
            beyond.status()
        finally:
            # An error keeps this frame, and must not keep the iterator.
            del beyond

    def release(self) -> None:
        """Let go of RocksDB; every further step fails."""
        with self._lock:
            self._items = self._source = None


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
        self._held: WeakSet[_Scan | _Pinned] = WeakSet()
        self._holding = Lock()
        self._present = _Present()
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
                found = set(rd.Rdict.list_cf(str(folder), self._options())) - {"default"}
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
            raise
        except Exception as error:
            raise _translated(error, folder) from error
        self._open = True

    def _require_whole(self) -> None:
        """Raises `TaskCorrupted` for a folder with holes; `LockHeld` if it is being written, so that nothing fits."""
        problem = rocksfiles.problem(self.folder)
        if not problem:
            return
        try:
            # RocksDB takes the lock first, and refuses this for what exists, before it changes anything.
            probe = self._options()
            probe.set_error_if_exists(True)
            rd.Rdict(str(self.folder), probe).close()
        except Exception as error:
            translated = _translated(error, self.folder)
            if isinstance(translated, LockHeld):
                raise translated from error
        if problem := rocksfiles.problem(self.folder):
            raise TaskCorrupted("rocksdb's files do not fit together", folder=self.folder, problem=problem)

    # The list of spaces.

    def _settle_spaces(self, found: set[str]) -> None:
        """Compare what was found with the list: a space is on it before it has data, and off it before it goes."""
        raw = self._db.get(_SPACES)
        listed = found if raw is None else set(json.loads(raw))
        if missing := listed - found:
            self._db.close()
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
                raise _translated(error, self.folder) from error

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
                raise _translated(error, self.folder) from error

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
            raise _translated(error, self.folder) from error
        return value

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        """Values of the keys, in their order. Keys are looked up sorted, which RocksDB answers two to three times faster."""
        found: list[bytes | None] = [None] * len(keys)
        family = self._family(space)
        if family is None:
            return found
        try:
            if all(map(le, keys, islice(keys, 1, None))):
                for start in range(0, len(keys), _CHUNK):
                    found[start : start + _CHUNK] = family.get(keys[start : start + _CHUNK])  # type: ignore[arg-type, assignment]
                return found
            order = sorted(range(len(keys)), key=keys.__getitem__)
            for start in range(0, len(order), _CHUNK):
                rows = order[start : start + _CHUNK]
                values: list[bytes | None] = family.get([keys[row] for row in rows])  # type: ignore[assignment]
                for row, value in zip(rows, values, strict=True):
                    found[row] = value
        except Exception as error:
            raise _translated(error, self.folder) from error
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
        return Flat.of(_cut(pieces, lower, upper, upper_inclusive=upper_inclusive, reverse=reverse))

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
            pinned = self._hold(_Pinned(family, self.folder))
            if present is not None:
                present[space] = pinned
        return pinned.few(lower, upper)

    def _opened(self, source: rd.Rdict, lower: bytes | None, upper: bytes | None, *, reverse: bool) -> _Scan:
        return self._hold(_Scan(source, upper if reverse else lower, self.folder, reverse=reverse))

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
        while entries := scan.read(_CHUNK):
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
            return View({name: self._hold(_Pinned(self._families[name], self.folder)) for name in known})

    def estimate(self, space: str) -> int:
        return self.property(space, "estimate-num-keys")

    def property(self, space: str, name: str) -> int:
        """An integer property of RocksDB, `live-sst-files-size` for example; 0 where there is none."""
        family = self._family(space)
        return 0 if family is None else int(family.property_int_value(f"rocksdb.{name}") or 0)

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
                raise _translated(error, self.folder) from error

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
                raise _translated(error, self.folder) from error

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
                raise _translated(error, self.folder) from error

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
            raise _translated(error, self.folder) from error

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
                raise _translated(error, self.folder) from error

    def close(self) -> None:
        """Close and give the folder free. Scans fail where they would read on; what they have read, they still give."""
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
            self._db.close()


class _Pinned:
    """One RocksDB iterator, which sees its family as it was when it was made, shared by all reads of a view."""

    def __init__(self, family: rd.Rdict, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        try:
            self._iterator: rd.RdictIter | None = family.iter()
        except Exception as error:
            raise _translated(error, folder) from error
        # The binding's iterator does not keep its family alive, which may be dropped meanwhile. It is let go of first.
        self._family: rd.Rdict | None = family
        # Where `few` has left the iterator: at `_here`, the first key after `_passed`.
        self._passed = self._here = b""

    def get(self, key: bytes) -> bytes | None:
        found = self.read(key, reverse=False, most=1)
        return found[0][1] if found and found[0][0] == key else None

    def read(self, first: bytes | None, *, reverse: bool, most: int) -> list[Entry]:
        """At most so many entries from `first` on, which is included; None begins at the end."""
        with self._lock:
            if self._iterator is None:
                raise InvalidStateStore("store was closed under an iterator", folder=self._folder)
            self._passed = self._here = b""
            try:
                return self._read(self._iterator, first, reverse, most)
            except Exception as error:
                raise _translated(error, self._folder) from error

    def _read(self, at: rd.RdictIter, first: bytes | None, reverse: bool, most: int) -> list[Entry]:
        entries: list[Entry] = []
        try:
            if first is None:
                at.seek_to_last() if reverse else at.seek_to_first()
            else:
                at.seek_for_prev(first) if reverse else at.seek(first)
            while at.valid() and len(entries) < most:
                entries.append((at.key(), at.value()))
                at.prev() if reverse else at.next()
            at.status()
        finally:
            # An error keeps this frame, and must not keep the iterator.
            del at
        return entries

    def few(self, lower: bytes, upper: bytes) -> list[Entry] | None:
        """All entries between two keys, both included; None if they are `_FEW` or more."""
        with self._lock:
            if self._iterator is None:
                raise InvalidStateStore("store is closed", folder=self._folder)
            try:
                return self._few(self._iterator, lower, upper)
            except Exception as error:
                raise _translated(error, self._folder) from error

    def _few(self, at: rd.RdictIter, lower: bytes, upper: bytes) -> list[Entry] | None:
        entries: list[Entry] = []
        key_here, value_here, go_on, add = at.key, at.value, at.next, entries.append
        try:
            # Keys are often asked for in their order: then the iterator is where it has to be.
            if not self._passed < lower <= self._here:
                at.seek(lower)
            self._passed = self._here = b""
            for key in islice(iter(key_here, None), _FEW):
                if key > upper:
                    self._passed, self._here = max(lower, upper), key
                    return entries
                add((key, value_here()))
                go_on()
            if len(entries) == _FEW:
                return None
            at.status()
            return entries
        finally:
            del at, key_here, value_here, go_on

    def pieces(self, first: bytes | None, *, reverse: bool) -> Iterator[list[Entry]]:
        """Everything from `first` on, in pieces, so that scans do not disturb each other."""
        entries = self.read(first, reverse=reverse, most=_CHUNK)
        while entries:
            last = entries[-1][0]
            yield entries
            entries = self.read(last, reverse=reverse, most=_CHUNK + 1)[1:]

    def release(self) -> None:
        """Let go of RocksDB; every further read fails."""
        with self._lock:
            self._iterator = self._family = None


class _Present:
    """By space, an iterator of the present version, made when it is asked for; None while a write is under way.

    It stands around every write, which replaces the dict: what a late reader puts into the old one others do not find.
    """

    __slots__ = ("pinned",)

    def __init__(self) -> None:
        self.pinned: dict[str, _Pinned] | None = {}

    def __enter__(self) -> None:
        self.pinned = None

    def __exit__(self, *_: object) -> None:
        self.pinned = {}


class View:
    """Some spaces of a database as they were at one moment.

    Made of iterators, since the binding's snapshots answer single keys only: their iterators see later writes.
    """

    def __init__(self, pinned: dict[str, _Pinned]) -> None:
        self._pinned = pinned

    def get(self, space: str, key: bytes) -> bytes | None:
        """The value of one key then."""
        pinned = self._pinned.get(space)
        return None if pinned is None else pinned.get(key)

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        """Values of the keys then, in their order."""
        return [self.get(space, key) for key in keys]

    def spaces(self) -> list[str]:
        """Names of the spaces that existed then, sorted."""
        return sorted(self._pinned)

    def scan(
        self,
        space: str,
        *,
        lower: bytes | None = None,
        upper: bytes | None = None,
        upper_inclusive: bool = True,
        reverse: bool = False,
    ) -> Iterator[Entry]:
        """Entries between two keys then."""
        pinned = self._pinned.get(space)
        if pinned is None:
            return iter(())
        pieces = pinned.pieces(upper if reverse else lower, reverse=reverse)
        return Flat.of(_cut(pieces, lower, upper, upper_inclusive=upper_inclusive, reverse=reverse))

    def close(self) -> None:
        """Let go. Scans opened from it go on."""
        self._pinned = {}
