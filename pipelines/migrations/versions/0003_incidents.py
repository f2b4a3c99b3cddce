"""Incidents as rows, and where a driver serves its figures."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_big_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("drivers", sa.Column("metrics_port", sa.Integer, nullable=True))
    op.create_table(
        "incidents",
        sa.Column("id", _big_id, primary_key=True, autoincrement=True),
        sa.Column("fingerprint", sa.String(255), nullable=False, index=True),
        sa.Column("open_fingerprint", sa.String(255), nullable=True, unique=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("pipeline", sa.String(100), nullable=False, index=True),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("annotations", sa.JSON, nullable=False),
        sa.Column("job", sa.String(100), nullable=False),
        sa.Column("starts_at", sa.Float, nullable=False),
        sa.Column("opened_at", sa.Float, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
        sa.Column("closed_at", sa.Float, nullable=True),
        sa.Column("run_id", sa.String(100), nullable=False),
        sa.Column("run_url", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
    )
