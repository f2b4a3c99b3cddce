"""Batches count the records that came too late for a window."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("batches", sa.Column("late_records", sa.BigInteger, nullable=False, server_default="0"))
