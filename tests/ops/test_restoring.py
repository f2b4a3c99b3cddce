"""What whoever starts or recovers a pipeline reads while its tasks are restored."""

from __future__ import annotations

from typing import Any

from ops.control import driver_text
from pipelines.registry import DriverRow


def test_restores_are_told_by_task_with_rate_and_time_left() -> None:
    begun = {"task": "q-0", "unit": "records", "amount": 0, "percent": 0, "per_second": None, "left_s": None}
    going = {"task": "q-1", "unit": "bytes", "amount": 12000, "percent": 40, "per_second": 3000, "left_s": 6.0}

    def text(*restoring: dict[str, Any]) -> str:
        return driver_text(DriverRow(state="recovering", servers=[{"name": "a"}, {"restoring": list(restoring)}]))

    assert "recovering" == text()
    assert "recovering; q-0 0 %, 0 records; q-1 40 %, 12,000 bytes, 3,000/s, 6.0 s left" == text(begun, going)
