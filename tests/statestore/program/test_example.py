"""The example of docs/ runs as it stands: killed, started again, and every click counts once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import confluent_kafka as ck

from statestore.config import KafkaConfig
from statestore.kafka.admin import Admin
from tests.support.feed import read_topic

ROOT = Path(__file__).parents[3]
MINUTE_MS = 60_000


def test_clicks_are_counted_once_though_the_program_is_killed(kafka: str, unique: str, tmp_path: Path) -> None:
    source, target = f"{unique}-clicks", f"{unique}-counts"
    for topic in (source, target):
        Admin(KafkaConfig(kafka)).create(topic, partitions=1, settings={"retention.ms": "-1"})
    producer = ck.Producer({"bootstrap.servers": kafka})
    # Of now: the broker deletes from a windowed changelog by its own clock. A whole minute, so that windows are known.
    first_ms = int(time.time()) // 60 * MINUTE_MS
    expected: list[tuple[bytes, bytes]] = []
    for minute, clicks in ((1, 5), (2, 3)):
        for count in range(1, clicks + 1):
            producer.produce(source, b"", b"ann", 0, timestamp=first_ms + minute * MINUTE_MS + count)
            expected.append((b"ann", str(count).encode()))
        assert producer.flush(30) == 0
        run_until(kafka, source, target, tmp_path, len(expected))
        assert expected == [(m.key(), m.value()) for m in read_topic(kafka, target)]


def run_until(kafka: str, source: str, target: str, folder: Path, outputs: int) -> None:
    """Run the example until there are so many outputs, then kill it."""
    program = subprocess.Popen(
        [sys.executable, str(ROOT / "docs" / "examples" / "clicks.py"), kafka, source, target],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
    )
    try:
        deadline = time.monotonic() + 60
        while len(read_topic(kafka, target)) < outputs:
            assert program.poll() is None, "the example ended"
            assert time.monotonic() < deadline, "the example does not get there"
    finally:
        program.kill()
        program.wait()
