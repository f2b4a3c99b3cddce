"""One command: a statement that was accepted, with the changes it makes to the definitions. One record of the log.

    {"version": 1, "reads": 1, "id": "…", "key": "…", "sequence": 7, "previous": "<sha-256>", "kind": "deploy",
     "pipeline": "flights", "names": ["FLIGHTS"], "statement": "CREATE …", "changes": [["put", kind, name, body], …],
     "at_ms": 1700000000000}

`sequence` counts the records of the log from 0 and `previous` is the hash of the record before, so a gap or an edit is
found at replay. `changes` hold all that was decided (plans, topic ids): replay looks at nothing outside of the log.
`version` says who wrote it, `reads` the oldest version that may read it; fields that this program does not know are
kept. Everything else in the log (not JSON, no command) takes a sequence number and has a hash like the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

VERSION = 1
CHECKPOINT = "checkpoint"
# What a database column holds: a longer one would be a command that some servers can apply and others cannot.
NAME_LENGTH_MAX = 255
_FIELDS = ("id", "key", "sequence", "previous", "kind", "pipeline", "names", "statement", "changes", "at_ms")


class Unreadable(Exception):
    """A record that is no command; its text says why."""


class Newer(Unreadable):
    """A command that says that a program of this version must not read it."""


@dataclass(frozen=True)
class Change:
    """One change of one definition. `body` is None for a drop."""

    op: Literal["put", "drop"]
    kind: str
    name: str
    body: Any = None

    def to_json(self) -> list[Any]:
        """As it stands in the log."""
        return [self.op, self.kind, self.name] if self.op == "drop" else [self.op, self.kind, self.name, self.body]


def put(kind: str, name: str, body: Any) -> Change:
    """Add or replace a definition."""
    return Change("put", kind, name, body)


def drop(kind: str, name: str) -> Change:
    """Remove a definition that exists."""
    return Change("drop", kind, name)


@dataclass(frozen=True)
class Head:
    """Where the chain stands: `sequence` is the next one's, `hash` the newest record's (empty before the first)."""

    sequence: int = 0
    hash: str = ""


@dataclass(frozen=True)
class Command:
    """See above. `key` is the client's idempotency key, `other` the fields that this version does not know."""

    id: str
    key: str
    sequence: int
    previous: str
    kind: str
    pipeline: str
    names: tuple[str, ...]
    statement: str
    changes: tuple[Change, ...]
    at_ms: int
    other: dict[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> Head:
        """Where the chain has to stand for this command to be next."""
        return Head(self.sequence, self.previous)

    def after(self, head: Head) -> Command:
        """The same command as the next of another chain."""
        return replace(self, sequence=head.sequence, previous=head.hash)


def encode(command: Command) -> bytes:
    """The record's value."""
    fields = {name: getattr(command, name) for name in _FIELDS} | {
        "names": list(command.names),
        "changes": [change.to_json() for change in command.changes],
    }
    # Fields of a later version stand beside ours and never over them.
    return orjson.dumps({**command.other, "version": VERSION, "reads": VERSION, **fields})


def hash_of(value: bytes | None) -> str:
    """The hash that the next command carries."""
    return hashlib.sha256(value or b"").hexdigest()


def decode(value: bytes | None) -> Command:
    """The command. Raises `Unreadable`, for a command of a version that is too new `Newer`."""
    try:
        fields = orjson.loads(value or b"")
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Unreadable("not a JSON object")
    _require_readable(fields)
    try:
        return _command(fields)
    except KeyError as error:
        raise Unreadable(f"field {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise Unreadable(str(error)) from None


def _require_readable(fields: dict[str, Any]) -> None:
    reads = fields.get("reads")
    if not isinstance(reads, int):
        raise Unreadable("field 'reads' is missing")
    if reads > VERSION:
        raise Newer(f"needs a program that reads version {reads}, this one reads {VERSION}")


def _command(fields: dict[str, Any]) -> Command:
    known = {name: fields[name] for name in _FIELDS}
    for name, kind in (("sequence", int), ("at_ms", int), ("changes", list), ("names", list)):
        if not isinstance(known[name], kind):
            raise ValueError(f"field '{name}' is no {kind.__name__}")  # noqa: TRY004
    for name in ("id", "key", "previous", "kind", "pipeline", "statement"):
        if not isinstance(known[name], str) or "\0" in known[name]:
            raise ValueError(f"field '{name}' is not text")
        if name != "statement" and len(known[name]) > NAME_LENGTH_MAX:
            raise ValueError(f"field '{name}' is longer than {NAME_LENGTH_MAX} characters")
    other = {name: value for name, value in fields.items() if name not in (*_FIELDS, "version", "reads")}
    changes = tuple(change_of(change) for change in known["changes"])
    return Command(**{**known, "names": tuple(map(str, known["names"])), "changes": changes}, other=other)


def change_of(fields: Any) -> Change:
    """A change as it stands in the log. Raises ValueError."""
    match fields:
        case ["put", str(kind), str(name), body] if _fits(kind) and _fits(name):
            return put(kind, name, body)
        case ["drop", str(kind), str(name)]:
            return drop(kind, name)
    raise ValueError(f"no such change: {str(fields)[:80]}")


def _fits(name: str) -> bool:
    return "\0" not in name and len(name) <= NAME_LENGTH_MAX
