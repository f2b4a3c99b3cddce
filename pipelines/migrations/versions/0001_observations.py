"""Drivers, batches and recoveries, and definitions as rows of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_big_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "pipelines",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("sql", sa.Text, nullable=False),
        sa.Column("sources", sa.JSON, nullable=False),
        sa.Column("queries", sa.JSON, nullable=False),
        sa.Column("desired", sa.String(20), nullable=False),
        sa.Column("deployed_at", sa.Float, nullable=False),
    )
    op.create_table(
        "drivers",
        sa.Column("pipeline", sa.String(100), primary_key=True),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process_started", sa.Float, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("heartbeat_at", sa.Float, nullable=False),
        sa.Column("servers", sa.JSON, nullable=False),
    )
    figures = ("batch", "records", "bad_records", "changed_keys")
    op.create_table(
        "batches",
        sa.Column("id", _big_id, primary_key=True, autoincrement=True),
        sa.Column("pipeline", sa.String(100), nullable=False, index=True),
        sa.Column("query", sa.String(100), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in figures),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("commit_seconds", sa.Float, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("lag", "state_keys", "state_bytes")),
        sa.Column("offsets", sa.JSON, nullable=False),
        sa.Column("finished_at", sa.Float, nullable=False),
    )
    op.create_table(
        "recoveries",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("pipeline", sa.String(100), nullable=False, index=True),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("plan", sa.JSON, nullable=False),
        sa.Column("finished_at", sa.Float, nullable=False),
    )
