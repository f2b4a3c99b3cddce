"""Keys and values of single records as bytes, in the formats of a source. What they are read by is `engine/decode.py`.

A value is a string, a number, a boolean, None, or lists and dictionaries of them; times are numbers and bytes base64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines import kafka_format
from pipelines.jsonvalue import dump
from pipelines.plan import Column, Source

_QUOTED = re.compile(r"^[\x00-#]|[\x00-\x20]$|[\"\n\r]")


def key_bytes(source: Source, given: Mapping[str, Any]) -> bytes | None:
    """The key; None for none, and if all parts of it are null."""
    columns = [column for column in source.columns if column.key]
    if not columns or source.key_format == "none" or all(given.get(column.name) is None for column in columns):
        return None
    if source.key_format == "json" and len(columns) > 1:
        return _object(columns, given)
    return _bytes(source.key_format, source.key_delimiter, columns, given)


def value_bytes(source: Source, given: Mapping[str, Any]) -> bytes | None:
    """The value; None for a bare value that is null."""
    columns = [column for column in source.columns if not column.key]
    if source.value_format == "json" and source.wrapped:
        return _object(columns, given)
    if source.value_format != "delimited" and given.get(columns[0].name) is None:
        return None
    return _bytes(source.value_format, source.value_delimiter, columns, given)


def _bytes(form: str, delimiter: str, columns: Sequence[Column], given: Mapping[str, Any]) -> bytes:
    values: list[Any] = [given.get(column.name) for column in columns]
    if form == "json":
        return dump(values[0]).encode()
    if form == "delimited":
        return delimiter.join(_field(each, delimiter, first=at == 0) for at, each in enumerate(values)).encode()
    return kafka_format.encode(values[0], columns[0].type)


def _object(columns: Sequence[Column], given: Mapping[str, Any]) -> bytes:
    return dump({column.field: given.get(column.name) for column in columns}).encode()


def _field(value: Any, delimiter: str, *, first: bool) -> str:
    """A field as Commons CSV writes it, as the engine's own do."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else dump(value)
    special = delimiter in text or bool(_QUOTED.search(text))
    if special or (first and not re.match("[0-9A-Za-z]", text)):
        return '"' + text.replace('"', '""') + '"'
    return text
