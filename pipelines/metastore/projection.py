"""The log's content as rows in the database: applied exactly once, in order, by whichever process sees a record first.

Many processes may share one database. Each apply is one transaction that holds the position's row, skips what another
process has applied meanwhile, and moves the position with the rows; so rows and position never differ, and a killed
process leaves the state before or after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Connection, Engine, delete, insert, select, update

from pipelines.database import writing
from pipelines.metastore.command import VERSION, Head
from pipelines.metastore.degraded import Fault, Reason
from pipelines.metastore.replay import Replay
from pipelines.metastore.rows import Applied, Aside, Definition, Rows
from pipelines.metastore.tables import CommandRow, DefinitionRow, PositionRow, SetAsideRow
from statestore.errors import InvalidConfig
from statestore.failpoints import reach

if TYPE_CHECKING:
    from statestore.kafka.reader import Record


@dataclass(frozen=True)
class Position:
    """How far the log is applied; see `PositionRow`. `topic_id` is empty before the first look at a log."""

    topic_id: str = ""
    next_offset: int = 0
    head: Head = field(default_factory=Head)
    start: int = 0
    version: int = VERSION


class Snapshot:
    """The definitions at one moment, read as they are asked for."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def get(self, kind: str, name: str) -> Any:
        """A definition's body, None if there is none."""
        wanted = select(DefinitionRow.body).where(DefinitionRow.kind == kind, DefinitionRow.name == name)
        body = self.connection.scalar(wanted)
        return None if body is None else orjson.loads(body)

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such a definition; its body may be null."""
        wanted = select(DefinitionRow.sequence).where(DefinitionRow.kind == kind, DefinitionRow.name == name)
        return self.connection.scalar(wanted) is not None

    def all(self, kind: str) -> dict[str, Any]:
        """Every definition of a kind, by name."""
        wanted = select(DefinitionRow.name, DefinitionRow.body).where(DefinitionRow.kind == kind)
        return {name: orjson.loads(body) for name, body in self.connection.execute(wanted.order_by(DefinitionRow.name))}

    def names(self, kind: str) -> list[str]:
        """Their names."""
        wanted = select(DefinitionRow.name).where(DefinitionRow.kind == kind)
        return list(self.connection.scalars(wanted.order_by(DefinitionRow.name)))


class Projection:
    """The rows of one service's log."""

    def __init__(self, engine: Engine, service: str) -> None:
        self._engine = engine
        self._service = service

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """The definitions as they are; the log does not move for whoever holds the writer's transaction."""
        with self._engine.connect() as connection:
            yield Snapshot(connection)

    def position(self) -> Position:
        """Raises `InvalidConfig` if the database is another service's."""
        with self._engine.connect() as connection:
            return self._position(connection)

    def _position(self, connection: Connection, *, lock: bool = False) -> Position:
        wanted = select(PositionRow)
        found = {row.service: row for row in connection.execute(wanted.with_for_update() if lock else wanted)}
        if found and self._service not in found:
            raise InvalidConfig(
                "database belongs to another service",
                service=self._service,
                found=", ".join(found),
                hint="give each service a metastore_url of its own",
            )
        if not found:
            return Position()
        row = found[self._service]
        return Position(row.topic_id, row.next_offset, Head(row.sequence, row.head), row.start, row.version)

    def command(self, key: str) -> Applied | None:
        """The applied command with this idempotency key."""
        with self._engine.connect() as connection:
            row = connection.execute(select(CommandRow.__table__).where(CommandRow.key == key)).one_or_none()
        return None if row is None else Applied(*row)

    def commands(self, *, newest: int) -> list[Applied]:
        """The newest applied commands, oldest first."""
        wanted = select(CommandRow.__table__).order_by(CommandRow.sequence.desc()).limit(newest)
        with self._engine.connect() as connection:
            return [Applied(*row) for row in reversed(connection.execute(wanted).all())]

    def set_aside(self) -> list[Aside]:
        """What could not be applied, oldest first."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(SetAsideRow.__table__).order_by(SetAsideRow.sequence))
            return [Aside(*row) for row in rows]

    def has_newer(self) -> bool:
        """Whether a record was set aside because it needs a later program."""
        with self._engine.connect() as connection:
            return connection.scalar(select(SetAsideRow.sequence).where(SetAsideRow.newer).limit(1)) is not None

    def rows(self) -> Rows:
        """Everything, for a checkpoint and for comparing."""
        with self._engine.connect() as connection:
            order = (DefinitionRow.kind, DefinitionRow.name)
            definitions = connection.execute(select(DefinitionRow.__table__).order_by(*order)).all()
            commands = connection.execute(select(CommandRow.__table__).order_by(CommandRow.sequence)).all()
            aside = connection.execute(select(SetAsideRow.__table__).order_by(SetAsideRow.sequence)).all()
        return Rows(
            sorted(Definition(*row) for row in definitions),
            [Applied(*row) for row in commands],
            [Aside(*row) for row in aside],
        )

    def apply(self, records: Sequence[Record], *, topic_id: str, start: int, end: int) -> Fault | None:
        """Apply the committed records before offset `end` of the log that begins at `start`; gives what is wrong.

        What is before the fault is applied. Records that are applied already are skipped.
        """
        reach("projection.before-write")
        with writing(self._engine) as connection:
            position = self._position(connection, lock=True)
            if position.topic_id not in ("", topic_id):
                return Fault(Reason.REPLACED)
            # A log that was seen while it was empty may begin with the checkpoint of a restore.
            fresh = not position.head.hash
            replay = Replay(
                None if fresh else position.head,
                Snapshot(connection).has,
                lambda key: connection.scalar(select(CommandRow.key).where(CommandRow.key == key)) is not None,
            )
            replay.feed(record for record in records if record.offset >= position.next_offset)
            replay.finish(max(end, position.next_offset))
            if fresh and replay.fault is not None and replay.fault.reason == Reason.TRUNCATED:
                # Nothing can be said of such a log, so the database stays as if it had never been looked at.
                return replay.fault
            self._write(connection, replay)
            self._move(connection, Position(topic_id, replay.next_offset, replay.head, start))
        reach("projection.written")
        return replay.fault

    def rebuild(
        self,
        records: Sequence[Record],
        *,
        topic_id: str,
        start: int,
        end: int,
        accept_loss: bool = False,
        known: Position | None = None,
    ) -> Fault | None:
        """Replace all rows by those of the whole log, unless the log is behind what is applied here.

        `known` is how far that was, where the database has lost it. `accept_loss` takes the log as it is. On a fault
        nothing changes.
        """
        replay = Replay(None)
        replay.feed(records)
        replay.finish(end)
        if replay.fault is not None:
            return replay.fault
        reach("projection.before-write")
        with writing(self._engine) as connection:
            applied = self._position(connection, lock=True)
            behind = None if accept_loss else _behind(replay, known or applied)
            if behind is not None:
                return behind
            self._write(connection, replay)
            self._move(connection, Position(topic_id, replay.next_offset, replay.head, start))
        reach("projection.written")
        return None

    def _write(self, connection: Connection, replay: Replay) -> None:
        if replay.wiped:
            for table in (DefinitionRow, CommandRow, SetAsideRow):
                connection.execute(delete(table))
        else:
            for kind, name in replay.definitions:
                connection.execute(delete(DefinitionRow).where(DefinitionRow.kind == kind, DefinitionRow.name == name))
        for table, rows in (
            (DefinitionRow, [row for row in replay.definitions.values() if row is not None]),
            (CommandRow, list(replay.commands.values())),
            (SetAsideRow, list(replay.set_aside.values())),
        ):
            if rows:
                connection.execute(insert(table), [row._asdict() for row in rows])

    def _move(self, connection: Connection, position: Position) -> None:
        fields = {
            "topic_id": position.topic_id,
            "next_offset": position.next_offset,
            "sequence": position.head.sequence,
            "head": position.head.hash,
            "start": position.start,
            "version": position.version,
        }
        moved = connection.execute(update(PositionRow).where(PositionRow.service == self._service).values(**fields))
        if moved.rowcount == 0:
            connection.execute(insert(PositionRow).values(service=self._service, **fields))

    def found_whole(self, start: int) -> None:
        """Remember that the log is whole from its first offset `start`."""
        with writing(self._engine) as connection:
            self._move(connection, replace(self._position(connection, lock=True), start=start))


def _behind(replay: Replay, known: Position) -> Fault | None:
    """Whether the log lacks what is applied here."""
    if replay.head.sequence < known.head.sequence:
        lost = known.head.sequence - replay.head.sequence
        return Fault(Reason.SHORTER, f"it has {lost} commands less than are applied here")
    there = replay.hashes.get(known.head.sequence)
    if known.head.sequence and there is not None and there != known.head.hash:
        return Fault(Reason.REPLACED, f"command {known.head.sequence - 1} is another one than was applied here")
    return None
