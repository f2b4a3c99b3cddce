"""Backups of the metastore in files of the home, the oldest going as new ones come."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pipelines.metastore.embedded import metastore
from pipelines.settings import Settings


def back_up(settings: Settings, *, keep: int) -> Path:
    """Write the whole command log to `<home>/backups/<time>.jsonl` and leave the newest `keep`; gives the new file."""
    folder = settings.home / "backups"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{settings.service}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}.jsonl"
    with metastore(settings) as opened:
        opened.backup(path)
    mine = sorted(folder.glob(f"{settings.service}-*.jsonl"))
    for old in mine[:-keep]:
        old.unlink(missing_ok=True)
    return path
