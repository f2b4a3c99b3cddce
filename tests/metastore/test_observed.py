"""What is observed of pipelines does not grow for ever: the newest rows are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import registry
from pipelines.registry import Registry
from tests.support.batches import batch_row


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """One that keeps five rows, and looks at every second."""
    monkeypatch.setattr(registry, "ROWS_KEPT", 5)
    monkeypatch.setattr(registry, "_ROWS_GO", 2)
    return Registry(f"sqlite:///{tmp_path / 'registry.db'}")


def test_the_newest_batches_and_recoveries_are_kept(observed: Registry) -> None:
    for number in range(12):
        observed.add_batch(batch_row("p", "q", number, finished_at=float(number)))
        observed.add_recovery("p", "start", {"task": f"q-{number}"})
    assert [row.batch for row in observed.batches(pipeline="p")] == [7, 8, 9, 10, 11]
    assert [row.plan["task"] for row in observed.recoveries("p")] == [f"q-{number}" for number in range(7, 12)]
    observed.close()
