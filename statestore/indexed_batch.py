"""A persistent key-value store with the INDEXED_BATCH mechanism of KIP-844.

Uncommitted writes live in an `Overlay` in memory; `commit` turns them into one RocksDB write together with the
changelog offset. A crash therefore leaves the last committed version and nothing else: rolling back is forgetting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from statestore.errors import InvalidStateStore
from statestore.overlay import Change, Overlay, merge
from statestore.store import Entry, Isolation, KeyValueStore
from statestore.version import ChangelogPosition, Checkpoint, TaskDatabase


class IndexedBatchStore(KeyValueStore):
    """One column family of a task's database behind an overlay."""

    def __init__(self, name: str, database: TaskDatabase, *, topic_id: str = "") -> None:
        self._name = name
        self._database = database
        self._topic_id = topic_id
        self._overlay = Overlay()
        self._open = False

    @property
    def name(self) -> str:
        return self._name

    def init(self) -> None:
        self._open = True

    def transactional(self) -> bool:
        return True

    def persistent(self) -> bool:
        return True

    def is_open(self) -> bool:
        return self._open and self._database.database.is_open

    def _require_open(self) -> None:
        if not self.is_open():
            raise InvalidStateStore("store is not open", store=self._name)

    def get(self, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        self._require_open()
        _require_key(key)
        if isolation is Isolation.READ_UNCOMMITTED:
            decided, value = self._overlay.find(key)
            if decided:
                return value
        return self._database.database.get(self._name, key)

    def get_committed(self, keys: list[bytes]) -> list[bytes | None]:
        """Committed values of many keys, in their order."""
        self._require_open()
        return self._database.database.get_many(self._name, keys)

    def put(self, key: bytes, value: bytes | None) -> None:
        self._require_open()
        _require_key(key)
        self._overlay.put(key, value)

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._require_open()
        self._overlay.put_all(entries)

    def scan(
        self,
        *,
        lower: bytes | None,
        upper: bytes | None,
        upper_inclusive: bool = True,
        reverse: bool = False,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[Entry]:
        self._require_open()
        if lower is not None and upper is not None and lower > upper:
            return iter(())
        # The overlay is copied before the base is opened: a commit between the two shows a change twice, which the
        # merge folds, and never zero times.
        changes: list[Change] = []
        if isolation is Isolation.READ_UNCOMMITTED:
            changes = self._overlay.slice(lower, upper, upper_inclusive=upper_inclusive, reverse=reverse)
        base = self._database.database.scan(
            self._name, lower=lower, upper=upper, upper_inclusive=upper_inclusive, reverse=reverse
        )
        return merge(base, changes, reverse=reverse)

    def approximate_num_entries(self) -> int:
        self._require_open()
        return self._database.database.property(self._name, "estimate-num-keys")

    def uncommitted(self) -> Iterable[Change]:
        """The open transaction's changes, last value per key."""
        return self._overlay.items()

    def rollback(self) -> None:
        """Drop the open transaction's changes and begin anew."""
        self._overlay.clear()

    def commit(self, offset: int) -> None:
        self._require_open()
        before = self._database.checkpoint() or Checkpoint(batch=-1)
        stores = {**before.stores, self._name: ChangelogPosition(self._topic_id, offset)}
        self._database.apply({self._name: self._overlay.items()}, Checkpoint(before.batch, stores))
        self._overlay.clear()

    def recover(self, offset: int | None) -> int | None:
        # Nothing uncommitted reaches the disk, so the version found there is a committed one, whatever the caller knows.
        self._require_open()
        self._overlay.clear()
        checkpoint = self._database.checkpoint()
        position = None if checkpoint is None else checkpoint.stores.get(self._name)
        return None if position is None else position.offset

    def flush(self) -> None:
        self._require_open()
        self._database.database.flush()

    def close(self) -> None:
        self._overlay.clear()
        self._open = False


def _require_key(key: bytes) -> None:
    if not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}")
