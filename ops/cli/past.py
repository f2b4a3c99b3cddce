"""Options that name a version of the past."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

AtBatch = Annotated[int | None, typer.Option("--at-batch", min=0, help="As it was after this batch.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="As it was at this time: 2026-03-01T12:00:00 (UTC), or seconds ago: -90."
    ),
]


def time_ms(text: str | None) -> int | None:
    """A time as people give it, in ms since the epoch. Raises `typer.BadParameter`."""
    if text is None:
        return None
    try:
        if text.startswith("-"):
            return int(datetime.now(UTC).timestamp() * 1000 + float(text) * 1000)
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"not a time: {text}; give 2026-03-01T12:00:00 or -90") from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def require_one(batch: int | None, at: str | None) -> None:
    """Raises `typer.BadParameter` if both are given."""
    if batch is not None and at is not None:
        raise typer.BadParameter("give a batch or a time, not both")
