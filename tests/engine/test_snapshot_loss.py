"""Throughput lost beside snapshots, from batches and spans that are written down."""

from __future__ import annotations

import pytest

from pipelines.metrics.snapshot_loss import SnapshotLoss


def test_batches_beside_snapshots_are_compared_with_those_between() -> None:
    loss = SnapshotLoss()
    for number in range(8):
        # One a second. Those that begin at 2, 3, 4 s are beside the snapshot and twice as slow.
        records = 50 if number in (2, 3, 4) else 100
        loss.batch(records, began_ms=number * 1_000, ended_ms=(number + 1) * 1_000)
    assert loss.ratio() is None, "no snapshot was taken"
    for _ in range(2):
        loss.snapshot(began_ms=2_500, ended_ms=4_100)
    assert pytest.approx(0.5) == loss.ratio()


def test_too_few_batches_and_batches_of_nothing_say_nothing() -> None:
    loss = SnapshotLoss()
    loss.snapshot(began_ms=0, ended_ms=2_000)
    for number in range(4):
        loss.batch(10, began_ms=number * 1_000, ended_ms=(number + 1) * 1_000)
    loss.batch(0, began_ms=0, ended_ms=1_000)
    assert loss.ratio() is None, "two beside it"
    loss.batch(10, began_ms=1_999, ended_ms=2_999)
    loss.batch(10, began_ms=5_000, ended_ms=6_000)
    assert pytest.approx(0) == loss.ratio()
