"""How fast this machine replays and restores, measured by doing it and kept in a small file beside the stores.

    {"replay_records_per_s": 140000.0, "rebuild_records_per_s": 310000.0, "restore_bytes_per_s": {"file": 4.1e8, "s3": 9.0e7}}

The first guesses are low, from two cores shared with a broker. The file is a cache: unreadable, it is made anew.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

FILE = "rates.json"
# Fewer records of a changelog are written as single keys: they are in sooner without a second database to open.
LOAD_RECORDS_MIN = 10_000
# Below these a measurement says more about waiting than about speed.
_RECORDS_MIN = 20_000
_BYTES_MIN = 4 * 1024 * 1024
# Weight of the newest measurement; the first takes the place of the guess.
_NEW = 0.7
_REPLAY_GUESS = 200_000.0
_REBUILD_GUESS = 400_000.0
_RESTORE_GUESS = {"file": 200e6, "s3": 60e6}


@dataclass(frozen=True)
class Rates:
    """Speeds of one task's recovery while its neighbours recover too, and the fixed costs in seconds.

    A tail is replayed into the store (`replay`), a whole changelog builds a new one (`rebuild`).
    """

    replay_records_per_s: float = _REPLAY_GUESS
    restore_bytes_per_s: Mapping[str, float] = field(default_factory=lambda: dict(_RESTORE_GUESS))
    begin_replay_s: float = 0.2
    begin_restore_s: float = 0.2
    rebuild_records_per_s: float = _REBUILD_GUESS

    def replay_s(self, records: int) -> float:
        """Time to read and apply so many records; 0 for none."""
        return self.begin_replay_s + records / self.replay_records_per_s if records else 0.0

    def full_replay_s(self, records: int) -> float:
        """Time to build a store from a whole changelog of so many records; even an empty one is a folder made anew."""
        if records < LOAD_RECORDS_MIN:
            return self.begin_replay_s + self.replay_s(records)
        return 2 * self.begin_replay_s + records / self.rebuild_records_per_s

    def restore_s(self, size: int, scheme: str) -> float:
        """Time to download and verify so many bytes from `file` or `s3`."""
        return self.begin_restore_s + size / self.restore_bytes_per_s.get(scheme, 60e6)

    def with_replay(self, records: int, seconds: float) -> Rates:
        """After a replay that took so long."""
        if records < _RECORDS_MIN or seconds <= 0:
            return self
        return replace(self, replay_records_per_s=_mixed(self.replay_records_per_s, _REPLAY_GUESS, records / seconds))

    def with_rebuild(self, records: int, seconds: float) -> Rates:
        """After a full replay into a new folder that took so long."""
        if records < _RECORDS_MIN or seconds <= 0:
            return self
        now = _mixed(self.rebuild_records_per_s, _REBUILD_GUESS, records / seconds)
        return replace(self, rebuild_records_per_s=now)

    def with_restore(self, size: int, seconds: float, scheme: str) -> Rates:
        """After a restore that took so long."""
        if size < _BYTES_MIN or seconds <= 0:
            return self
        guess = _RESTORE_GUESS.get(scheme, 0.0)
        before = self.restore_bytes_per_s.get(scheme, guess)
        return replace(
            self, restore_bytes_per_s={**self.restore_bytes_per_s, scheme: _mixed(before, guess, size / seconds)}
        )


def _mixed(before: float, guess: float, now: float) -> float:
    return now if before == guess else (1 - _NEW) * before + _NEW * now


def load_rates(folder: Path) -> Rates:
    """The rates of a query's folder, or the first guesses."""
    try:
        fields = json.loads((folder / FILE).read_text())
        restore = {str(k): float(v) for k, v in fields["restore_bytes_per_s"].items()}
        rebuild = float(fields.get("rebuild_records_per_s", _REBUILD_GUESS))
        return Rates(float(fields["replay_records_per_s"]), restore, rebuild_records_per_s=rebuild)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Rates()


def save_rates(folder: Path, rates: Rates) -> None:
    """Replace the file as a whole; tasks that finish together overwrite each other, which is harmless."""
    fields = asdict(rates)
    kept = {name: fields[name] for name in ("replay_records_per_s", "rebuild_records_per_s", "restore_bytes_per_s")}
    # Tasks of one server finish in threads of it.
    temporary = folder / f".{FILE}.{os.getpid()}-{threading.get_ident()}"
    temporary.write_text(json.dumps(kept))
    temporary.replace(folder / FILE)
