"""What the log says, record by record, without a database: which rows come, which go, and where the chain breaks.

The same records give the same rows on every server and at every time: nothing outside of the log is looked at. A
record that cannot be applied is set aside and the next one is looked at. A record that does not follow the one before
it ends the replay with a `Fault`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import orjson

from pipelines.metastore.command import CHECKPOINT, Change, Command, Head, Newer, Unreadable, decode, hash_of
from pipelines.metastore.degraded import Fault, Reason
from pipelines.metastore.rows import Applied, Aside, Definition, Rows, untagged
from statestore.errors import DataCorrupted

if TYPE_CHECKING:
    from statestore.kafka.reader import Record

Known = Callable[[str, str], bool]


class Replay:
    """Feed it records in order, then take what it collected.

    `head` is where the chain stands, None at the beginning of a log: there the first command or a checkpoint follows.
    `has_definition(kind, name)` and `has_key(key)` tell of the rows that are already there. `wiped` becomes True when
    those are to go; then the collected rows are all there are.
    """

    def __init__(
        self, head: Head | None, has_definition: Known = lambda *_: False, has_key: Callable[[str], bool] | None = None
    ) -> None:
        self.head = head or Head()
        self.wiped = head is None
        self.definitions: dict[tuple[str, str], Definition | None] = {}
        self.commands: dict[int, Applied] = {}
        self.set_aside: dict[int, Aside] = {}
        self.fault: Fault | None = None
        self.next_offset = -1
        self.hashes: dict[int, str] = {}
        self._begins = head is None
        self._has_definition = has_definition
        self._has_key = has_key or (lambda _: False)
        self._keys: set[str] = set()
        self._parts: list[Command] = []
        self._first_part_at = -1

    def feed(self, records: Iterable[Record]) -> None:
        """Take these, up to the first that does not follow."""
        for record in records:
            if self.fault is None:
                self._record(record)

    def finish(self, end: int) -> None:
        """No more records are to come before `end`: half a checkpoint is a fault."""
        if self.fault is None and self._parts:
            at = self._first_part_at
            self.fault, self.next_offset = Fault(Reason.BROKEN, f"half a checkpoint at offset {at}"), at
        elif self.fault is None:
            self.next_offset = end

    def _record(self, record: Record) -> None:
        try:
            command = decode(record.value)
        except Unreadable as error:
            problem = self._misplaced(None)
            if problem is None:
                self._aside(record, str(error), newer=isinstance(error, Newer))
        else:
            problem = self._misplaced(command)
            if problem is None:
                problem = self._command(command, record)
        if problem is not None:
            self.fault = Fault(Reason.TRUNCATED if self._begins else problem, f"offset {record.offset}")
            self.next_offset = record.offset if not self._parts else self._first_part_at
            return
        self._begins = False
        self.head = Head(self.head.sequence + 1, hash_of(record.value))
        self.hashes[self.head.sequence] = self.head.hash

    def _misplaced(self, command: Command | None) -> Reason | None:
        """Why this is not the next record, if it is not."""
        if self._parts and (command is None or command.kind != CHECKPOINT):
            return Reason.BROKEN
        if command is None or command.head == self.head:
            return None
        if self._begins and command.kind == CHECKPOINT and command.other.get("part") == 0:
            self.head = command.head
            return None
        return Reason.BROKEN

    def _command(self, command: Command, record: Record) -> Reason | None:
        if command.kind == CHECKPOINT:
            return self._part(command, record)
        if command.key in self._keys or (not self.wiped and self._has_key(command.key)):
            self._aside(record, "a command with this idempotency key is applied already")
        elif (error := self._change(command)) is not None:
            self._aside(record, error)
        else:
            self._applied(command)
        return None

    def _applied(self, command: Command) -> None:
        self._keys.add(command.key)
        fields = (command.id, command.key, command.kind, command.pipeline, command.statement, command.at_ms)
        self.commands[self.head.sequence] = Applied(self.head.sequence, *fields)

    def _change(self, command: Command) -> str | None:
        """Make all of the command's changes, or none and say why."""
        made: dict[tuple[str, str], Definition | None] = {}
        for change in command.changes:
            where = (change.kind, change.name)
            if change.op == "drop" and not (made[where] if where in made else self._exists(change)):
                return f"{change.kind} {change.name} does not exist, so it cannot be dropped"
            body = None if change.op == "drop" else orjson.dumps(change.body).decode()
            made[where] = None if body is None else Definition(*where, body, self.head.sequence)
        self.definitions.update(made)
        return None

    def _exists(self, change: Change) -> bool:
        where = (change.kind, change.name)
        if where in self.definitions:
            return self.definitions[where] is not None
        return not self.wiped and self._has_definition(*where)

    def _aside(self, record: Record, error: str, *, newer: bool = False) -> None:
        self.set_aside[self.head.sequence] = Aside(
            self.head.sequence, record.offset, error, newer, _text(record.value or b"")
        )

    def _part(self, command: Command, record: Record) -> Reason | None:
        """Collect a part of a checkpoint; the last one replaces all rows."""
        if command.other.get("part") != len(self._parts):
            return Reason.BROKEN
        if not self._parts:
            self._first_part_at = record.offset
        self._parts.append(command)
        if command.other.get("parts") != len(self._parts):
            return None
        try:
            rows = untagged([row for part in self._parts for row in part.other["rows"]])
        except (DataCorrupted, KeyError, TypeError):
            return Reason.BROKEN
        self._load(rows)
        self._parts = []
        self._applied(command)
        return None

    def _load(self, rows: Rows) -> None:
        self.wiped = True
        self.definitions = {(row.kind, row.name): row for row in rows.definitions}
        self.commands = {row.sequence: row for row in rows.commands}
        self.set_aside = {row.sequence: row for row in rows.set_aside}
        self._keys = {row.key for row in rows.commands}


def _text(value: bytes) -> str:
    """The value as text that any database holds, else in base64."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
    return text if "\0" not in text else base64.b64encode(value).decode()
