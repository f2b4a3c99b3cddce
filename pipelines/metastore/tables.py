"""The projection's tables. Only `projection` writes them, only from the log."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from pipelines.database import Base


class DefinitionRow(Base):
    """One definition: `body` is JSON text, `sequence` that of the command that put it."""

    __tablename__ = "definitions"
    kind: Mapped[str] = mapped_column(String(255), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    body: Mapped[str] = mapped_column(Text)
    sequence: Mapped[int] = mapped_column(BigInteger)


class CommandRow(Base):
    """One applied command, by which a client learns that its statement is in. A checkpoint keeps the newest."""

    __tablename__ = "commands"
    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(String(255))
    key: Mapped[str] = mapped_column(String(255), unique=True)
    kind: Mapped[str] = mapped_column(String(255))
    pipeline: Mapped[str] = mapped_column(String(255))
    statement: Mapped[str] = mapped_column(Text)
    at_ms: Mapped[int] = mapped_column(BigInteger)


class SetAsideRow(Base):
    """A record that could not be applied. `newer`: because it needs a later program. `value` is its text or base64."""

    __tablename__ = "set_aside"
    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    offset: Mapped[int] = mapped_column(BigInteger)
    error: Mapped[str] = mapped_column(Text)
    newer: Mapped[bool] = mapped_column(Boolean)
    value: Mapped[str] = mapped_column(Text)


class PositionRow(Base):
    """How far the log is applied.

    `next_offset` is the next to read, `sequence` and `head` the chain there, `start` the log's first offset when it was
    last found whole, `version` that of the commands that the program could read.
    """

    __tablename__ = "log_position"
    service: Mapped[str] = mapped_column(String(255), primary_key=True)
    topic_id: Mapped[str] = mapped_column(String(255))
    next_offset: Mapped[int] = mapped_column(BigInteger)
    sequence: Mapped[int] = mapped_column(BigInteger)
    head: Mapped[str] = mapped_column(String(64))
    start: Mapped[int] = mapped_column(BigInteger)
    version: Mapped[int] = mapped_column(Integer)
