"""Definitions become the projection of the command log; the table of definitions goes."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "definitions",
        sa.Column("kind", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "commands",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False, unique=True),
        sa.Column("kind", sa.String(255), nullable=False),
        sa.Column("pipeline", sa.String(255), nullable=False),
        sa.Column("statement", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "set_aside",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("newer", sa.Boolean, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "log_position",
        sa.Column("service", sa.String(255), primary_key=True),
        sa.Column("topic_id", sa.String(255), nullable=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("head", sa.String(64), nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.drop_table("pipelines")
