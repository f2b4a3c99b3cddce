"""An object store that fails as real ones do, wrapped around a real one, with a clock of its own.

    before      the request never arrives
    after       it takes effect and its answer is lost
    late        it is lost now and takes effect when `land` is called: what a paused or dead writer had sent
    truncated   a body comes back short
    stale       a listing is the one of a moment ago

Which call fails is drawn from a seed, so that a run can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from statestore.errors import Unavailable
from statestore.objects.base import ObjectInfo, ObjectMissing, ObjectStore

KINDS = ("before", "after", "late", "truncated", "stale")


class FaultyObjects(ObjectStore):
    """`faults` has the kinds that may happen now, each with `chance` per call; `advance` moves the clock."""

    parallel = 1

    def __init__(self, inner: ObjectStore, seed: int = 0, chance: float = 0.2) -> None:
        self.inner = inner
        self.faults: frozenset[str] = frozenset()
        self.now_s = 1_000_000.0
        self.happened: list[str] = []
        self._chance = chance
        self._random = random.Random(seed)
        self._times: dict[str, float] = {}
        self._late: list[Callable[[], None]] = []
        self._listed: dict[str, list[ObjectInfo]] = {}

    @property
    def url(self) -> str:
        return self.inner.url

    def advance(self, seconds: float) -> None:
        """Time passes. What was sent before is there or lost by now: connections do not live that long."""
        self.land()
        self.now_s += seconds

    def land(self) -> None:
        """Let what was late take effect."""
        late, self._late = self._late, []
        for write in late:
            write()

    def _draw(self, kind: str, call: str) -> bool:
        if kind not in self.faults or self._random.random() >= self._chance:
            return False
        self.happened.append(f"{kind} {call}")
        return True

    def _write(self, call: str, key: str, write: Callable[[], bool]) -> bool:
        """A write with its faults. The time of an object is that of the write which took effect."""

        def effect() -> bool:
            written = write()
            if written:
                self._times[key] = self.now_s
            return written

        if self._draw("before", call):
            raise Unavailable("request was lost", call=call, key=key)
        if self._draw("late", call):
            self._late.append(lambda: _ignore(effect))
            raise Unavailable("request takes for ever", call=call, key=key)
        written = effect()
        if self._draw("after", call):
            raise Unavailable("answer was lost", call=call, key=key)
        return written

    def put(self, key: str, body: bytes) -> None:
        self._write("put", key, lambda: _done(self.inner.put(key, body)))

    def put_if_absent(self, key: str, body: bytes) -> bool:
        return self._write("put_if_absent", key, lambda: self.inner.put_if_absent(key, body))

    def refresh(self, key: str) -> bool:
        return self._write("refresh", key, lambda: self.inner.refresh(key))

    def upload(self, path: Path, key: str) -> None:
        # Read now: the file may be gone when a late upload lands.
        body = path.read_bytes()
        self._write("upload", key, lambda: _done(self.inner.put(key, body)))

    def delete(self, keys: Iterable[str]) -> None:
        # In two requests, so that a deletion may be half done.
        listed = list(keys)
        for part in (listed[::2], listed[1::2]):
            if part:
                self._write("delete", "", lambda part=part: _done(self.inner.delete(part)))  # type: ignore[misc]

    def _read(self, call: str, key: str) -> None:
        if self._draw("before", call):
            raise Unavailable("request was lost", call=call, key=key)

    def get(self, key: str) -> bytes:
        self._read("get", key)
        body = self.inner.get(key)
        return body[: len(body) // 2] if self._draw("truncated", "get") else body

    def download(self, key: str, path: Path, size: int | None = None) -> None:
        self._read("download", key)
        self.inner.download(key, path, size)
        if self._draw("truncated", "download"):
            path.write_bytes(path.read_bytes()[:-1])

    def head(self, key: str) -> ObjectInfo | None:
        self._read("head", key)
        found = self.inner.head(key)
        return None if found is None else self._timed(found)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._read("list", prefix)
        before = self._listed.get(prefix)
        self._listed[prefix] = [self._timed(info) for info in self.inner.list(prefix)]
        if before is not None and self._draw("stale", "list"):
            return iter(before)
        return iter(self._listed[prefix])

    def _timed(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key, info.bytes, self._times.get(info.key, self.now_s))


def _done(_nothing: None) -> bool:
    return True


def _ignore(effect: Callable[[], bool]) -> None:
    try:
        effect()
    except ObjectMissing:
        return
