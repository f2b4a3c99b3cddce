"""Snapshots' storage and the metastore's database: written to and read back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from ops.doctor.finding import Finding, error, ok, told, warning
from pipelines.settings import Settings
from statestore.errors import RollforwardError
from statestore.objects.open import open_objects


def storage(settings: Settings) -> Iterator[Finding]:
    """One object, written, read, refused a second time, deleted."""
    try:
        config = settings.snapshot_config()
    except RollforwardError as raised:
        yield told("snapshots", raised)
        return
    if config is None:
        yield warning("snapshots", "turned off: an empty disk means a full replay", 'remove snapshot_url = "off"')
        return
    key, body = f"doctor/{secrets.token_hex(8)}", b"a probe of rollforward doctor"
    url = config.objects.url
    try:
        objects = open_objects(config.objects)
        try:
            first, second = objects.put_if_absent(key, body), objects.put_if_absent(key, b"other")
            same = objects.get(key) == body
            objects.delete([key])
        finally:
            objects.close()
    except (RollforwardError, OSError) as raised:
        yield told(f"snapshots at {url}", raised)
        return
    if not (first and same) or second:
        fix = "use storage with conditional writes (If-None-Match): without them two writers may overwrite each other"
        yield error("snapshots", f"{url} does not keep what was written first", fix)
    else:
        yield ok("snapshots", f"{url} can be written, read and deleted from")
