"""Brings a database to the newest tables with alembic, inside the caller's transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection, found: str | None) -> None:
    """From migration `found` to the newest; from None: from nothing. The caller holds the lock and commits."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    if found is not None:
        # Tables that were made before there were migrations stand where the first one ends.
        command.stamp(config, found)
    command.upgrade(config, "head")
