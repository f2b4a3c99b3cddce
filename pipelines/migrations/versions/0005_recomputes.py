"""Periods of results that somebody has asked to compute again, and where a driver's Spark shows its page."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("drivers", sa.Column("spark_url", sa.String(255), nullable=True))
    op.create_table(
        "recomputes",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("pipeline", sa.String(100), nullable=False, index=True),
        sa.Column("query", sa.String(100), nullable=False),
        sa.Column("from_ms", sa.BigInteger, nullable=False),
        sa.Column("to_ms", sa.BigInteger, nullable=False),
        sa.Column("dry_run", sa.Boolean, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float, nullable=True),
        sa.Column("batch", sa.BigInteger, nullable=True),
        sa.Column("report", sa.JSON, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
