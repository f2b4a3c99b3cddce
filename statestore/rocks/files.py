"""Whether a RocksDB folder's MANIFEST and write-ahead logs fit together: RocksDB itself does not notice some gaps.

RocksDB numbers every change. A MANIFEST says which changes its files hold, and a log which it holds itself; the logs
must go on where the files end. A MANIFEST that lost its end forgets files whose logs are deleted by then, and a log cut
between two records ends early though a later one goes on: RocksDB opens both and gives a mixture of versions. After
mere power loss neither happens, since RocksDB syncs a MANIFEST, and each log before files that are newer than it.

Three rules, each of a MANIFEST with the number `n` that says that logs from `keep` on are needed:

1. While `keep` < `n` no memtable was flushed since the folder was opened. Opening has brought every family to `keep`,
   so one that is behind has lost its files.
2. The first needed log begins where the files of all families end, or before, and each further one likewise where the
   one before it ends.
3. The logs reach at least as far as the newest file of any family.

Formats: RocksDB's `log_format.h` (records of at most a block; checksum, length, type) and `version_edit.h` (tags).
Checksums are left to RocksDB, which looks at every one as it opens.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = 32 * 1024
_RECORD = struct.Struct("<HB")
_BATCH = struct.Struct("<QI")
_HEADER = 7
_FULL, _FIRST, _LAST = 1, 2, 4

_LOG_NUMBER, _LAST_SEQUENCE, _KEEP, _FAMILY, _ADD, _DROP = 2, 4, 10, 200, 201, 202
_END_OF_FILE_FIELDS = 1
_SAFE_TO_IGNORE = 1 << 13


def problem(folder: Path) -> str:
    """What does not fit together in a closed database's folder; empty if everything does, or there is none.

    Damage that RocksDB tells by itself when it opens the folder may go unnoticed here.
    """
    try:
        manifest = read_manifest(folder)
        logs = sorted((int(path.stem), path) for path in folder.glob("*.log"))
        needed = [path.read_bytes() for number, path in logs if number >= manifest.keep]
    except (OSError, ValueError, IndexError):
        return ""
    return _behind(manifest) or _gap(manifest, needed)


def read_manifest(folder: Path) -> Manifest:
    """The MANIFEST that is in use, up to a record that is torn."""
    name = (folder / "CURRENT").read_text().strip()
    manifest = Manifest(int(name.rpartition("-")[2]))
    for record in records((folder / name).read_bytes(), whole=True):
        manifest.apply(record)
    return manifest


def _behind(manifest: Manifest) -> str:
    if manifest.keep < manifest.number and any(log < manifest.keep for log in manifest.families.values()):
        return "the manifest has lost its end: a family has no files"
    return ""


def _gap(manifest: Manifest, logs: list[bytes]) -> str:
    covered = manifest.flushed
    for log in logs:
        ends = _sequences(log)
        if ends is None:
            continue
        if ends[0] > covered + 1:
            return f"changes {covered + 1} to {ends[0] - 1} are neither in a file nor in a log"
        covered = max(covered, ends[1])
    if covered < manifest.newest:
        return f"changes {covered + 1} to {manifest.newest} are in files of some families only"
    return ""


@dataclass
class Manifest:
    """What the records of a MANIFEST add up to.

    keep: the first log that is needed; 0 if all are.
    families: per live family the first log that it needs.
    newest: the newest change in any file.
    """

    number: int
    keep: int = 0
    families: dict[int, int] = field(default_factory=lambda: {0: 0})
    newest: int = 0
    _until: dict[int, int] = field(default_factory=dict)

    @property
    def flushed(self) -> int:
        """The change up to which every family is in files."""
        return max((sequence for log, sequence in self._until.items() if log <= self.keep), default=0)

    def apply(self, record: bytes) -> None:
        """One edit. Raises `ValueError` for one that this RocksDB does not write."""
        tags = _tags(record)
        family, log = tags.get(_FAMILY, 0), tags.get(_LOG_NUMBER)
        self.keep = max(self.keep, tags.get(_KEEP, 0))
        self.newest = max(self.newest, tags.get(_LAST_SEQUENCE, 0))
        if log is not None:
            self._until[log] = max(self._until.get(log, 0), tags.get(_LAST_SEQUENCE, 0))
        if _DROP in tags:
            self.families.pop(family, None)
        elif log is not None or _ADD in tags:
            self.families[family] = max(self.families.get(family, 0), log or 0)


def records(raw: bytes, *, whole: bool) -> Iterator[bytes]:
    """The complete records of a MANIFEST or log, up to one that is torn; only the beginning of each unless `whole`."""
    at, begun = 0, b""
    while at + _HEADER <= len(raw):
        length, kind = _RECORD.unpack_from(raw, at + 4)
        if kind == 0 or _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        end = at + _HEADER + length
        if kind > _LAST or end > len(raw):
            return
        if kind in (_FULL, _FIRST):
            begun = b""
        if whole or len(begun) < _BATCH.size:
            begun += raw[at + _HEADER : end if whole else min(end, at + _HEADER + _BATCH.size)]
        if kind in (_FULL, _LAST):
            yield begun
        at = end


def _sequences(log: bytes) -> tuple[int, int] | None:
    """The first and the last change of a log; None if it has none."""
    first = last = None
    for record in records(log, whole=False):
        if len(record) < _BATCH.size:
            break
        sequence, count = _BATCH.unpack_from(record)
        first = sequence if first is None else first
        last = sequence + max(count, 1) - 1
    return None if first is None or last is None else (first, last)


def _tags(record: bytes) -> dict[int, int]:
    """The numbers of an edit by their tags, the last of each; other fields are passed over."""
    at, found = 0, {}
    while at < len(record):
        tag, at = _varint(record, at)
        value, at = _FIELDS[tag](record, at) if tag in _FIELDS else _ignored(record, at, tag)
        found[tag] = value
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _text(raw: bytes, at: int) -> tuple[int, int]:
    length, at = _varint(raw, at)
    return 0, at + length


def _nothing(raw: bytes, at: int) -> tuple[int, int]:
    return 0, at


def _in_turn(*fields: Callable[[bytes, int], tuple[int, int]]) -> Callable[[bytes, int], tuple[int, int]]:
    def skip(raw: bytes, at: int) -> tuple[int, int]:
        for one in fields:
            _, at = one(raw, at)
        return 0, at

    return skip


def _file(raw: bytes, at: int) -> tuple[int, int]:
    """Level, number, size, smallest and largest key, smallest and largest sequence, then tagged fields."""
    _, at = _in_turn(_varint, _varint, _varint, _text, _text, _varint, _varint)(raw, at)
    while True:
        tag, at = _varint(raw, at)
        if tag == _END_OF_FILE_FIELDS:
            return 0, at
        _, at = _text(raw, at)


def _ignored(raw: bytes, at: int, tag: int) -> tuple[int, int]:
    if not tag & _SAFE_TO_IGNORE:
        raise ValueError(f"unknown tag {tag}")
    return _text(raw, at)


_FIELDS = {
    1: _text,
    _LOG_NUMBER: _varint,
    3: _varint,
    _LAST_SEQUENCE: _varint,
    5: _in_turn(_varint, _text),
    6: _in_turn(_varint, _varint),
    9: _varint,
    _KEEP: _varint,
    103: _file,
    _FAMILY: _varint,
    _ADD: _text,
    _DROP: _nothing,
    203: _varint,
    300: _varint,
}
