"""Topics of a test: JSON keys and values to the bytes that a topic's format asks for, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipelines import kafka_format
from pipelines.plan import Column, Source
from pipelines.testing.records import Delimited, Number, Record, Window
from statestore.errors import InvalidInput


@dataclass(frozen=True)
class Stored:
    """A record as Kafka has it. The key of a windowed result is that of its group, the window beside it."""

    key: bytes | None
    value: bytes | None
    time_ms: int
    window: Window | None = None


@dataclass
class Topic:
    """A topic's records, and the source that says how they are read."""

    source: Source
    records: list[Stored] = field(default_factory=list)

    def put(self, record: Record) -> None:
        """Append a record of the test's input. Raises `InvalidInput` for one that cannot be written so."""
        source = self.source
        keys = [column for column in source.columns if column.key]
        values = [column for column in source.columns if not column.key]
        key = _bytes(record.key, source.key_format, keys) if keys else _bytes(record.key, "kafka", [])
        value = _bytes(record.value, source.value_format, values)
        self.records.append(Stored(key, value, record.timestamp or 0, record.window))

    def read(self) -> list[Record]:
        """The records as JSON has them."""
        return [self._read(stored) for stored in self.records]

    def _read(self, stored: Stored) -> Record:
        source = self.source
        keys = [column for column in source.columns if column.key]
        values = [column for column in source.columns if not column.key]
        key = _json(stored.key, source.key_format, keys, source.key_delimiter)
        value = _json(stored.value, source.value_format, values, source.value_delimiter)
        return Record(source.topic, key, value, stored.time_ms, stored.window)


def topics_of(sources: Iterable[Source]) -> dict[str, Topic]:
    """A topic for each source; the first to name one says how it is read."""
    topics: dict[str, Topic] = {}
    for source in sources:
        topics.setdefault(source.topic, Topic(source))
    return topics


def _bytes(value: Any, form: str, columns: list[Column]) -> bytes | None:
    if value is None:
        return None
    if form == "json":
        return _dump(value).encode()
    if form == "delimited":
        return (value if isinstance(value, str) else _dump(value)).encode()
    kind = columns[0].type if columns else "string"
    plain = value if kind in ("int", "bigint", "double") or isinstance(value, str) else _dump(value)
    try:
        return kafka_format.encode(plain, kind)
    except ValueError as error:
        raise InvalidInput("key or value does not fit its column", column=columns[0].name, value=value) from error


def _dump(value: Any) -> str:
    """JSON in which numbers have their digits."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_dump(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value)


def _json(raw: bytes | None, form: str, columns: list[Column], delimiter: str) -> Any:
    if raw is None:
        return None
    if form == "json":
        return json.loads(raw, parse_float=Number)
    if form == "delimited":
        return Delimited(raw.decode(errors="replace"), delimiter)
    kind = columns[0].type if columns and form == "kafka" else "string"
    return raw.decode(errors="replace") if kind == "string" else kafka_format.decode(raw, kind)
