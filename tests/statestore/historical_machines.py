"""The state machines of stores whose entries have times: windows, sessions, versions of a key. Time moves on and drops."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

from statestore.kinds.session import Session
from statestore.kinds.versioned import NOT_PUT, Versioned
from statestore.kinds.window import Window
from statestore.store import Isolation
from statestore.windows import Windowed
from tests.statestore.kinds.test_windowed_model import RETENTION_MS
from tests.statestore.kinds.test_windowed_model import Model as Windows
from tests.statestore.machine import StoreMachine

INTERVAL_MS = 40
LENGTH_MS = 5
keys = st.sampled_from([b"", b"a", b"a\0"])
LAST_MS = 600
# From the stream time, so that it moves on slowly and many writes are just not, or just, too late.
delays = st.one_of(st.integers(-14, 0), st.integers(1, 4)).map(lambda number: number * 10)
values = st.one_of(st.binary(max_size=2), st.none())
Entry = tuple[tuple[bytes, int, int], bytes]


def after(stream_time_ms: int, delay_ms: int) -> int:
    """A time of an entry."""
    return min(max(stream_time_ms, 0) + max(delay_ms, -max(stream_time_ms, 0)), LAST_MS)


class WindowedMachine(StoreMachine):
    """What windows and sessions share. `expires_by` says which part of an entry's name its expiry goes by."""

    expires_by: Literal[1, 2]

    def nothing(self) -> Windows:
        return Windows()

    def expected(self, model: Windows) -> list[Entry]:
        return sorted(model.readable(self.expires_by).items())

    def _put(self, entry: tuple[bytes, int, int], value: bytes | None) -> None:
        model = deepcopy(self.models[-1])
        model.put(entry, value, entry[self.expires_by], whole_segments=self.setup.persistent)
        self.wrote([model])


class WindowMachine(WindowedMachine):
    """Windows of one length."""

    store: Window
    expires_by = 1
    operations = st.tuples(st.just("put"), keys, values, delays)

    def made(self) -> Window:
        lengths: dict[str, Any] = {
            "retention_ms": RETENTION_MS,
            "window_size_ms": LENGTH_MS,
            "segment_interval_ms": INTERVAL_MS,
        }
        return Window("s", **lengths, **self.setup.options)

    def found(self, isolation: Isolation) -> list[Entry]:
        return sorted(((*at,), value) for at, value in self.store.all(isolation))

    def put(self, key: bytes, value: bytes | None, delay_ms: int) -> None:
        self.next_input()
        start_ms = after(self.models[-1].stream_time, delay_ms)
        self.store.put(key, value, start_ms)
        self._put((key, start_ms, start_ms + LENGTH_MS), value)


class SessionMachine(WindowedMachine):
    """Sessions of any length."""

    store: Session
    expires_by = 2
    operations = st.tuples(st.just("put"), keys, values, delays, st.integers(0, 60))

    def made(self) -> Session:
        return Session("s", retention_ms=RETENTION_MS, segment_interval_ms=INTERVAL_MS, **self.setup.options)

    def found(self, isolation: Isolation) -> list[Entry]:
        return sorted(((*at,), value) for at, value in self.store.fetch_range(None, None, isolation))

    def put(self, key: bytes, value: bytes | None, delay_ms: int, length_ms: int) -> None:
        self.next_input()
        start_ms = after(self.models[-1].stream_time - length_ms, delay_ms)
        self.store.put(Windowed(key, start_ms, start_ms + length_ms), value)
        self._put((key, start_ms, start_ms + length_ms), value)


@dataclass
class Versions:
    """Per key the values by the time from which they are valid, and the stream time."""

    values: dict[bytes, dict[int, bytes | None]] = field(default_factory=dict)
    stream_time_ms: int = -1

    def at(self, key: bytes, time_ms: int) -> tuple[bytes, int] | None:
        """The value valid then, and since when; None if it is too old to be told."""
        history = self.values.get(key, {})
        since = max((known for known in history if known <= time_ms), default=None)
        if since is None:
            return None
        value, newest = history[since], since == max(history)
        expired = time_ms < self.stream_time_ms - RETENTION_MS and not newest
        return None if value is None or expired else (value, since)


class VersionedMachine(StoreMachine):
    """Versions of few keys at few times, each key asked for at many."""

    store: Versioned
    operations = st.tuples(st.just("put"), keys, values, delays)

    def made(self) -> Versioned:
        return Versioned("s", history_retention_ms=RETENTION_MS, segment_interval_ms=INTERVAL_MS, **self.setup.options)

    def nothing(self) -> Versions:
        return Versions()

    def _asked(self) -> list[tuple[bytes, int]]:
        return [(key, time_ms) for key in (b"", b"a", b"a\0") for time_ms in range(0, LAST_MS + 10, 20)]

    def expected(self, model: Versions) -> list[Any]:
        return [model.at(key, time_ms) for key, time_ms in self._asked()]

    def found(self, isolation: Isolation) -> list[Any]:
        records = [self.store.get(key, time_ms, isolation) for key, time_ms in self._asked()]
        return [None if record is None else (record.value, record.valid_from_ms) for record in records]

    def put(self, key: bytes, value: bytes | None, delay_ms: int) -> None:
        self.next_input()
        model = deepcopy(self.models[-1])
        time_ms = after(model.stream_time_ms, delay_ms)
        history = model.values.setdefault(key, {})
        if value is None and time_ms == max(history, default=None):
            # As in Kafka Streams, a tombstone that replaces the newest version may be forgotten: what comes late then
            # depends on more than the versions.
            value = b""
        late = time_ms < model.stream_time_ms - RETENTION_MS
        assert late == (self.store.put(key, value, time_ms) == NOT_PUT)
        if not late:
            history[time_ms] = value
            model.stream_time_ms = max(model.stream_time_ms, time_ms)
        self.wrote([model], taken=not late)
