"""Every setting as a table. `docs/settings.md` is made from here: `python -m pipelines.settings_table > docs/settings.md`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic.fields import FieldInfo

from pipelines.settings import Settings

# Parts of the page, each with the first of its settings.
PARTS = {
    "Where things are": "home",
    "Spark and store servers": "spark_master",
    "Batches": "batch_interval_s",
    "Faults": "batch_attempts",
    "Figures, alerts and checks": "metrics",
    "Snapshots": "snapshot_url",
    "Archive": "archive_url",
    "S3": "s3_endpoint_url",
}

_HEAD = """# Settings

They stand in `rollforward.toml` of the working directory, or in the file that `ROLLFORWARD_CONFIG` names. A variable
`ROLLFORWARD_…`, the setting in capitals, goes before the file, and takes lists and tables as JSON. A setting of the file that
does not exist is refused by its name. Commands read them each time. Dagster, and the drivers that it starts, keep those of the
`rollforward up` that started it: after a change `rollforward down`, `up`, and `start` each pipeline.
"""


def document() -> str:
    """`docs/settings.md`."""
    titles = {first: title for title, first in PARTS.items()}
    lines = [_HEAD]
    for name, field in Settings.model_fields.items():
        if name in titles:
            lines += [] if name == next(iter(titles)) else [""]
            lines += [f"## {titles[name]}", "", "| setting | default | what it says |", "|---|---|---|"]
        lines.append(f"| `{name}` | {_default(field)} | {_text(field)} |")
    return "\n".join(lines)


def _text(field: FieldInfo) -> str:
    """The description, of which Markdown takes nothing for its own."""
    return (field.description or "").replace("<", "\\<").replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    """As the file has it; none where it is empty or depends on the machine."""
    value = field.get_default()
    if value is None or value in ("", [], {}):
        return "–"
    return f"`{json.dumps(str(value) if isinstance(value, Path) else value)}`"


if __name__ == "__main__":
    print(document())
