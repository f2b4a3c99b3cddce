"""One application, turn by turn: we fill its stores, Kafka Streams restores them from our changelogs and goes on, and
we restore what it wrote. Every sort of store, every entry compared with a model."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ops.environment import cache_folder
from statestore import stores
from statestore.config import KafkaConfig, StreamConfig
from statestore.context import RecordContext
from statestore.kafka.admin import Admin
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import Reader
from statestore.planning.plan import Way
from statestore.streamtask import StreamTask
from statestore.typed.serdes import STRING, ValueAndTimestamp
from statestore.windows import Windowed
from tests.java import programs

WINDOW_MS, HOUR_MS = 1_000, 3_600_000
Input = list[tuple[str, str, int]]


@pytest.fixture(scope="session")
def peer() -> list[str]:
    """The command that runs the Kafka Streams application."""
    return programs.command("StoresPeer", *programs.SHORT, cache=cache_folder())


class Ours:
    """The same application in Python."""

    def __init__(self, config: StreamConfig) -> None:
        plain = stores.persistent_transactional_key_value_store("plain")
        timed = stores.persistent_transactional_timestamped_key_value_store("timed")
        windows = stores.persistent_transactional_window_store("windows", HOUR_MS, WINDOW_MS)
        sessions = stores.persistent_transactional_session_store("sessions", HOUR_MS)
        self.plain = stores.key_value_store_builder(plain, STRING, STRING).build()
        self.timed = stores.timestamped_key_value_store_builder(timed, STRING, STRING).build()
        self.windows = stores.window_store_builder(windows, STRING, STRING).build()
        self.sessions = stores.session_store_builder(sessions, STRING, STRING).build()
        self.task = StreamTask(config, [self.plain, self.timed, self.windows, self.sessions])
        self._input = config.inputs[0]
        self._reader = Reader(config.kafka)

    def run(self) -> None:
        """Process what the input holds, and commit."""
        for chunk in self._reader.read(self._input, 0, start=self.task.next_offset(self._input)):
            for record in chunk:
                assert record.key is not None and record.value is not None
                self.task.take(RecordContext(self._input, 0, record.offset, record.timestamp_ms))
                self._put(record.key.decode(), record.value.decode(), record.timestamp_ms)
        self.task.commit()

    def _put(self, key: str, text: str, at_ms: int) -> None:
        value = None if text == "-" else text
        start = at_ms - at_ms % WINDOW_MS
        self.plain.put(key, value)
        self.timed.put(key, None if value is None else ValueAndTimestamp(value, at_ms))
        self.windows.put(key, value, start)
        self.sessions.put(Windowed(key, start, start + WINDOW_MS // 2), value)

    def listed(self, keys: set[str]) -> list[str]:
        """Every entry on a line, as the other program prints them."""
        lines = [f"plain {key} {value}" for key, value in self.plain.all()]
        lines += [f"timed {key} {at.timestamp_ms} {at.value}" for key, at in self.timed.all()]
        lines += [f"windows {window.key} {window.start_ms} {value}" for window, value in self.windows.all()]
        for key in keys:
            found = self.sessions.fetch(key)
            lines += [f"sessions {key} {session.start_ms} {session.end_ms} {value}" for session, value in found]
        return sorted(lines)


def model(records: Input) -> list[str]:
    """What the stores hold after these records."""
    plain: dict[str, tuple[str, int]] = {}
    windows: dict[tuple[str, int], str] = {}
    for key, value, at_ms in records:
        start = at_ms - at_ms % WINDOW_MS
        plain.pop(key, None)
        windows.pop((key, start), None)
        if value != "-":
            plain[key] = (value, at_ms)
            windows[key, start] = value
    lines = [f"plain {key} {value}" for key, (value, _) in plain.items()]
    lines += [f"timed {key} {at_ms} {value}" for key, (value, at_ms) in plain.items()]
    for (key, start), value in windows.items():
        lines += [f"windows {key} {start} {value}", f"sessions {key} {start} {start + WINDOW_MS // 2} {value}"]
    return sorted(lines)


def some(first: int, last: int, base_ms: int) -> Input:
    """Records with keys that come again, deletions, empty values, and letters of more than one byte."""
    found = []
    for number in range(first, last):
        value = "-" if number % 11 == 3 else "" if number % 13 == 5 else f"wert-{number}-é"
        found.append((f"schlüssel-{number * 7 % 40:02}", value, base_ms + number * 130))
    return found


def send(config: KafkaConfig, topic: str, records: Input) -> None:
    producer = TransactionalProducer(config, f"{topic}-test")
    producer.init()
    producer.begin()
    for key, value, at_ms in records:
        producer.produce(topic, key=key.encode(), value=value.encode(), timestamp_ms=at_ms, partition=0)
    producer.commit()
    producer.close()


@pytest.mark.timeout(300)
def test_kafka_streams_and_we_take_turns(kafka: str, unique: str, peer: list[str], tmp_path: Path) -> None:
    import time

    config = StreamConfig(unique, KafkaConfig(kafka), (f"{unique}-in",), 0, tmp_path / "ours")
    Admin(config.kafka).create(config.inputs[0], partitions=1, settings={})
    now_ms = time.time_ns() // 1_000_000 - 100_000
    records = some(0, 150, now_ms)
    keys = {key for key, _, _ in records}
    send(config.kafka, config.inputs[0], records)
    ours = Ours(config)
    with ours.task:
        ours.run()
        assert model(records) == ours.listed(keys)

    # Its own input is new, so all that it lists besides is restored from our changelogs.
    more = some(150, 200, now_ms)
    send(config.kafka, config.inputs[0], more)
    command = [*peer, kafka, unique, str(tmp_path / "theirs"), str(len(more))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert 0 == done.returncode, done.stderr[-3000:]
    assert model(records + more) == sorted(done.stdout.splitlines())

    # A store of ours from before, and an empty disk: both come to what it wrote, and the work goes on.
    for disk in ("kept", "empty"):
        if disk == "empty":
            shutil.rmtree(config.folder)
        ours = Ours(config)
        with ours.task:
            ways = {plan.way for plan in ours.task.plans.values()}
            assert ways == ({Way.ROLL_FORWARD} if disk == "kept" else {Way.FULL_REPLAY})
            assert model(records + more) == ours.listed(keys), disk
    last = some(200, 230, now_ms)
    send(config.kafka, config.inputs[0], last)
    ours = Ours(config)
    with ours.task:
        ours.run()
        assert model(records + more + last) == ours.listed(keys)
