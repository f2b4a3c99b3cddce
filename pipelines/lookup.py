"""Keys that are looked up: from what a person writes to the bytes under which the engine wrote the entry.

    text, literals ─► values in the types of GROUP BY ─► the engine's own key bytes ─► get
                                                      └► bytes cannot be told ───────► scan, values compared

A wrong byte is a wrong answer twice: it names no entry, and it picks another task. So nothing is written here; what
writes keys in the engine does it, or nobody.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pipelines import kafka_format
from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.keybytes import key_bytes_of
from pipelines.engine.values import exact_json, fitted
from pipelines.plan import GroupKey, Query
from pipelines.sql.types import parse_type
from statestore.errors import InvalidInput

# A value of each of the group keys, as `engine.values.fitted` gives it.
Key = tuple[Any, ...]
# Kinds whose values have one text each. A DOUBLE has as many digits as its JVM thinks it needs.
_ONE_TEXT = frozenset(("boolean", "int", "bigint", "string", "decimal", "timestamp", "date", "time"))
_UNREADABLE = (ValueError, ArithmeticError, RecursionError, csv.Error)


def typed_key(query: Query, text: str) -> Key:
    """The key that a person types: the value itself, or for several group keys a JSON list or object of them.

    In the KAFKA format the text is the value. In others a lone STRING may also be a JSON string, or stand in a list or
    object as several would; any other text is the string itself. Raises `InvalidInput` for what is no such key.
    """
    return tuple(_typed(key, part) for key, part in zip(query.group_by, _parts(query, text), strict=True))


def _parts(query: Query, text: str) -> list[Any]:
    keys = query.group_by
    if query.key_format == "kafka":
        return [text]
    try:
        given = exact_json(text.encode())
    except _UNREADABLE:
        if len(keys) == 1:
            return [text]
        names = ", ".join(key.name for key in keys)
        raise InvalidInput("key is not JSON", key=text, hint=f"give a JSON list of {names}") from None
    return [_lone(keys[0], given, text)] if len(keys) == 1 else _several(keys, given, text)


def _lone(key: GroupKey, given: Any, text: str) -> Any:
    """The one part; `given` is what the text says as JSON."""
    type_ = parse_type(key.type)
    if type_.is_nested:
        return given
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    elif isinstance(given, dict) and [name.upper() for name in given] == [key.name.upper()]:
        (given,) = given.values()
    return text if type_.kind == "string" and not isinstance(given, str) else given


def _several(keys: Sequence[GroupKey], given: Any, text: str) -> list[Any]:
    if isinstance(given, dict):
        named = {name.upper(): given[name] for name in given}
        return [named.get(key.name.upper()) for key in keys]
    if not isinstance(given, list) or len(given) != len(keys):
        raise InvalidInput("key has another number of parts", key=text, expected=len(keys))
    return given


def _typed(key: GroupKey, part: Any) -> Any:
    type_ = parse_type(key.type)
    if part is None:
        raise InvalidInput("part of the key has no value", part=key.name, hint="no group is of NULL")
    reason = "write it as a JSON string" if type_.kind == "string" and not isinstance(part, str) else ""
    if not reason:
        try:
            return fitted(part, type_)
        except _UNREADABLE as error:
            reason = str(error)
    raise InvalidInput("part of the key is not of its type", part=key.name, type=type_.sql, reason=reason)


def stored_keys(query: Query, keys: Sequence[Key]) -> list[bytes] | None:
    """The bytes under which entries of these keys may be; None if they cannot be told, and only a scan finds them.

    There may be more of them than keys: as 8 bytes, 0.0 and -0.0 are two, and one number.
    """
    if query.key_format == "kafka" and query.group_by[0].type == "double":
        return [kafka_format.encode(each, "double") for (value,) in keys for each in _bit_patterns(value)]
    if any(parse_type(key.type).kind not in _ONE_TEXT for key in query.group_by):
        return None
    if not keys:
        return []
    parts = zip(*keys, strict=True)
    columns = [pa.array(part, arrow_type(key.type)) for key, part in zip(query.group_by, parts, strict=True)]
    found: list[bytes] = key_bytes_of(query)(columns).to_pylist()
    return found


def _bit_patterns(value: float) -> tuple[float, ...]:
    # Java writes every NaN as one.
    return (0.0, -0.0) if value == 0 else (math.nan if math.isnan(value) else value,)


def same_key(one: Key, other: Key) -> bool:
    """Whether two keys are of one group. NaN is NaN."""
    return all(a == b or (a != a and b != b) for a, b in zip(one, other, strict=True))


def range_bound(query: Query, text: str) -> bytes:
    """An end of a range of key bytes, from what a person types. Raises `InvalidInput`, too where a key has no one text."""
    found = stored_keys(query, [typed_key(query, text)])
    if found is None:
        types = ", ".join(parse_type(key.type).sql for key in query.group_by)
        hint = "ask for --key, or in `rollforward sql` by WHERE over the column"
        raise InvalidInput("bytes of such a key are in no useful order", key=text, types=types, hint=hint)
    return found[0]
