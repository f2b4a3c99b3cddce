"""What a driver reports of a batch."""

from __future__ import annotations

from typing import Any

from pipelines.registry import BatchRow


def batch_row(pipeline: str, query: str, batch: int, **figures: Any) -> BatchRow:
    """The row of a finished batch; what is not given is 0, and without offsets."""
    nothing = (
        "records",
        "dead_letters",
        "changed_keys",
        "seconds",
        "commit_seconds",
        "lag",
        "state_keys",
        "state_bytes",
    )
    given = {**dict.fromkeys(nothing, 0), "offsets": {}, "finished_at": 0.0, **figures}
    return BatchRow(pipeline=pipeline, query=query, batch=batch, **given)
