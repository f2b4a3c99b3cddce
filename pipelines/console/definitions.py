"""Definitions that statements made one by one: a table in the database of the registry.

Nothing here decides over correctness: a query that runs has its own complete plan, in Kafka and in its pipeline's row.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import JSON, String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from pipelines.plan import source_from_fields
from pipelines.sql.catalogue import Relation


class Base(DeclarativeBase):
    """Our table."""


class DefinitionRow(Base):
    """A stream or table by name. `body` is its `Relation`."""

    __tablename__ = "definitions"
    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)


class Definitions:
    """A catalogue over the table, read anew at each question: other sessions write it too."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        Base.metadata.create_all(self._engine)

    def find(self, name: str) -> Relation | None:
        """The relation of this name, if there is one."""
        with Session(self._engine) as session:
            row = session.get(DefinitionRow, name)
            return None if row is None else _relation(row.body)

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(relation.name for relation in self.all())

    def all(self) -> list[Relation]:
        """All relations, by name."""
        with Session(self._engine) as session:
            rows = session.scalars(select(DefinitionRow).order_by(DefinitionRow.name))
            return [_relation(row.body) for row in rows]

    def put(self, relation: Relation) -> None:
        """Add, or replace the one of its name."""
        with Session(self._engine) as session, session.begin():
            session.merge(DefinitionRow(name=relation.name, body=asdict(relation)))

    def drop(self, name: str) -> None:
        """Remove it."""
        with Session(self._engine) as session, session.begin():
            row = session.get(DefinitionRow, name)
            if row is not None:
                session.delete(row)

    def close(self) -> None:
        """Release the connections."""
        self._engine.dispose()


def _relation(body: dict[str, Any]) -> Relation:
    return Relation(**{**body, "source": source_from_fields(body["source"])})
