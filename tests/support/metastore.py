"""Definitions in a database without a broker: commands go straight to the projection, as if a log had delivered them."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
from sqlalchemy import Engine, text

from pipelines.metastore.command import Change, Command, Head, encode, put
from pipelines.metastore.projection import Projection
from pipelines.metastore.validate import DESIRED, PIPELINE
from pipelines.registry import STOPPED
from statestore.kafka.reader import Record


def command(head: Head, *changes: Change, key: str = "", kind: str = "deploy", statement: str = "") -> bytes:
    """A record's value that follows `head`."""
    name = uuid.uuid4().hex
    return encode(
        Command(name, key or name, head.sequence, head.hash, kind, "p", (), statement, changes, 1_700_000_000_000)
    )


class LocalLog:
    """A log in memory in front of a database's projection."""

    def __init__(self, engine: Engine, service: str = "default") -> None:
        self.projection = Projection(engine, service)

    def change(self, *changes: Change) -> None:
        """One command with these changes, applied."""
        position = self.projection.position()
        record = Record(None, command(position.head, *changes), position.next_offset, 0)
        fault = self.projection.apply([record], topic_id="in memory", start=0, end=position.next_offset + 1)
        assert fault is None

    def define(self, name: str, *, sql: str = "", sources: Any = (), queries: Any = (), desired: str = STOPPED) -> None:
        """What a deploy leaves."""
        body = {"sql": sql, "sources": list(sources), "queries": list(queries), "deployed_at": 1_700_000_000.0}
        self.change(put(PIPELINE, name, body), put(DESIRED, name, {"state": desired}))

    def desire(self, name: str, state: str) -> None:
        """What a start or stop leaves."""
        self.change(put(DESIRED, name, {"state": state}))


def spoil(engine: Engine, name: str, queries: str) -> None:
    """Overwrite a pipeline's queries in the database with other text, as nothing of ours does."""
    body = '{"sql": "", "sources": [], "deployed_at": 0, "queries": ' + queries + "}"
    with engine.begin() as connection:
        change = text("UPDATE definitions SET body = :body WHERE kind = 'pipeline' AND name = :name")
        assert connection.execute(change, {"body": body, "name": name}).rowcount == 1


def replace_plan(engine: Engine, name: str, queries: list[dict[str, Any]]) -> None:
    """Overwrite a pipeline's queries in the database with others."""
    spoil(engine, name, orjson.dumps(queries).decode())
