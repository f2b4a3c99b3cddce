"""Backups of the metastore in files of the home, the oldest going as new ones come."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pipelines.home import in_home
from pipelines.metastore.degraded import MetastoreDegraded
from pipelines.metastore.embedded import metastore
from pipelines.settings import Settings

DAMAGED = "-damaged.jsonl"


def back_up(settings: Settings, *, keep: int) -> Path:
    """Write the whole command log to `<home>/backups/<time>.jsonl` and leave the newest `keep`; gives the new file.

    A damaged log is written to `…-damaged.jsonl`, which no count has and nothing deletes, and no good backup goes for
    it. Raises `MetastoreDegraded` then.
    """
    folder = in_home(settings.home, "backups")
    path = folder / f"{settings.service}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}.jsonl"
    # It gets the name of a backup when it is known to be one.
    unproven = path.with_name(f"{path.stem}{DAMAGED}")
    with metastore(settings) as opened:
        saved = opened.backup(unproven)
        # The file alone does not tell that the log has lost its end, or was made again.
        fault = saved.fault or opened.refresh()
        topic = opened.log.topic_name
    if fault is not None:
        text = f"metastore is degraded: {fault.text}"
        raise MetastoreDegraded(text, topic=topic, saved_as=unproven, hint=fault.hint)
    unproven.replace(path)
    good = sorted(one for one in folder.glob(f"{settings.service}-*.jsonl") if not one.name.endswith(DAMAGED))
    for old in good[:-keep]:
        old.unlink(missing_ok=True)
    return path
