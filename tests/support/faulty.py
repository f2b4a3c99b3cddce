"""An object store that fails as real ones do, wrapped around a real one, with a clock of its own.

    before      the request never arrives
    after       it takes effect and its answer is lost
    late        it is lost now and takes effect when `land` is called: what a paused or dead writer had sent
    truncated   a body comes back short
    stale       a listing is the one of a moment ago
    delayed     the request or its answer takes up to `DELAY_MAX_S`, and `meanwhile` somebody else does something
    throttled   this request and the next few are refused, whosever they are

Which call fails is drawn from a seed, so that a run can be repeated. With `parallel` above 1 transfers run at once, as
they do for real: the draws are the same then, and the threads decide whose they are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import SimpleNamespace

from statestore.errors import Unavailable
from statestore.objects.base import ObjectInfo, ObjectMissing, ObjectStore, UnfinishedUpload

KINDS = ("before", "after", "late", "truncated", "stale", "delayed", "throttled")
DELAY_MAX_S = 25.0
_DELAYS_S = (1.0, 10.0, DELAY_MAX_S)
_REFUSALS_MAX = 4


class FaultyObjects(ObjectStore):
    """`faults` has the kinds that may happen now, each with `chance` per call; `advance` moves the clock.

    `meanwhile` is called once, without faults, in the first delay.
    """

    def __init__(self, inner: ObjectStore, seed: int = 0, chance: float = 0.2, *, parallel: int = 1) -> None:
        self.inner = inner
        self.parallel = parallel
        self.meanwhile: Callable[[], None] | None = None
        self.faults: frozenset[str] = frozenset()
        self.now_s = 1_000_000.0
        self.happened: list[str] = []
        self._chance = chance
        self._random = random.Random(seed)
        self._times: dict[str, float] = {}
        self._late: list[Callable[[], None]] = []
        self._listed: dict[str, list[ObjectInfo]] = {}
        self._refusals = 0
        self._lock = RLock()

    @property
    def url(self) -> str:
        return self.inner.url

    def advance(self, seconds: float) -> None:
        """Time passes. What was sent before is there or lost by now: connections do not live that long."""
        self.land()
        self.now_s += seconds

    def moment(self) -> SimpleNamespace:
        """A `Moment` by this clock."""
        began_s = self.now_s
        return SimpleNamespace(age_s=lambda: self.now_s - began_s)

    def land(self) -> None:
        """Let what was late take effect."""
        late, self._late = self._late, []
        for write in late:
            write()

    def begin(self, faults: Iterable[str], seed: int) -> None:
        """From now on these happen; none for an empty set."""
        self.faults, self._random = frozenset(faults), random.Random(seed)
        self._refusals = 0

    def _draw(self, kind: str, call: str) -> bool:
        with self._lock:
            if kind not in self.faults or self._random.random() >= self._chance:
                return False
            self.happened.append(f"{kind} {call}")
            return True

    def _arrive(self, call: str, key: str) -> None:
        """What may happen to a request on its way."""
        self._pass_time(call)
        with self._lock:
            if self._refusals == 0 and self._draw("throttled", call):
                self._refusals = self._random.randint(1, _REFUSALS_MAX)
            if self._refusals:
                self._refusals -= 1
                raise Unavailable("too many requests", call=call, key=key)
        if self._draw("before", call):
            raise Unavailable("request was lost", call=call, key=key)

    def _pass_time(self, call: str) -> None:
        if not self._draw("delayed", call):
            return
        with self._lock:
            self.now_s += self._random.choice(_DELAYS_S)
            meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            self._undisturbed(meanwhile)
        elif self.parallel > 1:
            # Lets the others overtake.
            time.sleep(0.003)

    def _undisturbed(self, work: Callable[[], None]) -> None:
        faults, self.faults = self.faults, frozenset()
        try:
            work()
        finally:
            self.faults = faults

    def _write(
        self, call: str, key: str, write: Callable[[], bool], *, later: Callable[[], bool] | None = None
    ) -> bool:
        """A write with its faults. The time of an object is that of the write which took effect.

        `later` writes when the request is late, if that has to be done in another way.
        """

        def effect(write: Callable[[], bool]) -> bool:
            written = write()
            if written:
                with self._lock:
                    self._times[key] = self.now_s
            return written

        self._arrive(call, key)
        if self._draw("late", call):
            with self._lock:
                self._late.append(lambda: _ignore(lambda: effect(later or write)))
            raise Unavailable("request takes for ever", call=call, key=key)
        written = effect(write)
        self._pass_time(call)
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
        now, later = (lambda: _done(self.inner.upload(path, key))), (lambda: _done(self.inner.put(key, body)))
        self._write("upload", key, now, later=later)

    def delete(self, keys: Iterable[str]) -> None:
        # In two requests, so that a deletion may be half done.
        listed = list(keys)
        for part in (listed[::2], listed[1::2]):
            if part:
                self._write("delete", "", lambda part=part: _done(self.inner.delete(part)))  # type: ignore[misc]

    def get(self, key: str) -> bytes:
        self._arrive("get", key)
        body = self.inner.get(key)
        return body[: len(body) // 2] if self._draw("truncated", "get") else body

    def download(self, key: str, path: Path, size: int | None = None) -> None:
        self._arrive("download", key)
        self.inner.download(key, path, size)
        if self._draw("truncated", "download"):
            path.write_bytes(path.read_bytes()[:-1])

    def head(self, key: str) -> ObjectInfo | None:
        self._arrive("head", key)
        found = self.inner.head(key)
        return None if found is None else self._timed(found)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._arrive("list", prefix)
        before = self._listed.get(prefix)
        now = self._listed[prefix] = [self._timed(info) for info in self.inner.list(prefix)]
        self._pass_time("list")
        return iter(before if before is not None and self._draw("stale", "list") else now)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        self._arrive("unfinished", prefix)
        # One is as old as it is known here.
        found = list(self.inner.unfinished(prefix))
        return iter([replace(u, begun_at_s=self._times.setdefault(u.id, self.now_s)) for u in found])

    def abort(self, upload: UnfinishedUpload) -> None:
        self._arrive("abort", upload.key)
        self.inner.abort(upload)

    def _timed(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key, info.bytes, self._times.get(info.key, self.now_s))


def _done(_nothing: None) -> bool:
    return True


def _ignore(effect: Callable[[], bool]) -> None:
    try:
        effect()
    except ObjectMissing:
        return
