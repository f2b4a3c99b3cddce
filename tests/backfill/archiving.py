"""Archiving as people do it, by command, and what lies in an archive against what lies in Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ops.environment import driver_environment
from pipelines.archive import archive_topic, open_archive, read_piece
from pipelines.settings import Settings
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.objects.open import open_objects


def archive(settings: Settings, topic: str) -> list[tuple[int, int, int]]:
    """First offset, end and new records of every partition."""
    records_max = settings.archive_file_records
    done = archive_topic(topic, settings.kafka_config(), settings.archive_config(), records_max=records_max)
    return [(one.first, one.end, one.records) for one in done]


def start_cli(settings: Settings, *words: str, points: Path | None = None) -> subprocess.Popen[str]:
    """Start a command."""
    environment = {**os.environ, **driver_environment(settings), "ROLLFORWARD_CONFIG": "/dev/null"}
    if points is not None:
        environment["ROLLFORWARD_FAILPOINTS"] = str(points)
    command = [sys.executable, "-m", "ops.cli.main", *words, "--json"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def cli(settings: Settings, *words: str, points: Path | None = None) -> Any:
    """Run a command as people do; gives its JSON, or None if it was killed."""
    process = start_cli(settings, *words, points=points)
    out, errors = process.communicate()
    if process.returncode < 0:
        return None
    assert process.returncode == 0, errors + out
    return json.loads(out)


def require_kafka_s(settings: Settings, topic: str, partition: int) -> list[tuple[int, int]]:
    """Every record that Kafka has of a partition is in the archive once, in order; gives its files' starts and ends."""
    config = settings.archive_config()
    assert config is not None
    kept = open_archive(config, Admin(settings.kafka_config()).describe([topic])[topic])
    pieces, objects = kept.pieces(partition), open_objects(config)
    rows = [row for piece in pieces for row in read_piece(objects, piece).to_pylist()]
    records = [r for chunk in Reader(settings.kafka_config()).read(topic, partition, start=0) for r in chunk]
    expected = [(r.offset, r.timestamp_ms, r.key, r.value) for r in records]
    assert expected == [(row["offset"], row["timestamp_ms"], row["key"], row["value"]) for row in rows]
    return [(piece.start, piece.end) for piece in pieces]
