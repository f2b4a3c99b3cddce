"""docs/settings.md is made from the settings themselves."""

from __future__ import annotations

from pathlib import Path

from pipelines.settings import Settings
from pipelines.settings_table import PARTS, document

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_made_from_the_code() -> None:
    assert PAGE.read_text() == document() + "\n"


def test_every_setting_is_described_and_every_part_begins_with_one() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
    assert set(PARTS.values()) <= set(Settings.model_fields)
