"""INSERT INTO … VALUES: literals to the key, value and time of one record, as the source's columns say."""

from __future__ import annotations

import base64
import math
import time
from datetime import UTC, date, datetime
from datetime import time as day_time
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from pipelines.console.written import key_bytes, value_bytes
from pipelines.plan import Column
from pipelines.sql.catalogue import Catalogue, Relation, require
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.names import ROWTIME
from pipelines.sql.nodes import ArrayOf, MapOf, Node, Null, Number, Sign, StructOf, Text, Truth, unwrapped
from pipelines.sql.tree import TABLE, InsertValues
from pipelines.sql.types import PRECISION_MAX, SqlType, parse_type

_BITS = {"int": 31, "bigint": 63}
Plain = str | int | float | bool | Decimal | None


def literal(node: Node) -> Plain:
    """The value of a literal: a string, a number (whole: int, with point: Decimal, with exponent: float), …"""
    bare = unwrapped(node)
    match bare:
        case Text():
            return bare.value
        case Truth():
            return bare.value
        case Null():
            return None
        case Number():
            return _number(bare)
        case Sign() if isinstance(unwrapped(bare.operand), Number):
            number = _number(unwrapped(bare.operand))
            return -number if bare.operator == "-" else number
    raise Refusal(node.at, "only literals may stand here", "write the value itself")


def _number(node: Node) -> int | float | Decimal:
    assert isinstance(node, Number)
    if "e" in node.text.lower():
        number = float(node.text)
        if math.isinf(number):
            raise Refusal(node.at, f"{node.text[:50]} is too large for a double")
        return number
    return Decimal(node.text) if "." in node.text else int(node.text)


def insertable(statement: InsertValues, catalogue: Catalogue) -> Relation:
    """The stream or table that the record goes to. Refuses a table that a query fills."""
    relation = require(catalogue, statement.name)
    if relation.query and relation.kind == TABLE:
        raise Refusal(statement.name.at, f"{relation.name} is filled by {relation.query}")
    if relation.source.window_type:
        raise Refusal(statement.name.at, "Cannot insert values into windowed stream/table!")
    return relation


def record_of(statement: InsertValues, relation: Relation) -> tuple[bytes | None, bytes | None, int]:
    """Key, value and time in ms of the record. Refuses unknown columns and values that are not of a column's type."""
    columns = {column.name: column for column in relation.source.columns}
    names = [name.text for name in statement.columns] if statement.columns else list(columns)
    if len(names) != len(statement.values):
        raise Refusal(statement.at, f"{len(names)} columns and {len(statement.values)} values")
    given: dict[str, Any] = {}
    for position, (name, node) in enumerate(zip(names, statement.values, strict=True)):
        at = statement.columns[position].at if statement.columns else node.at
        if name in given:
            raise Refusal(at, f"column {name} is given twice")
        if name == ROWTIME:
            given[name] = coerced(node, Column(ROWTIME, ROWTIME, "bigint"))
        elif name in columns:
            given[name] = coerced(node, columns[name])
        else:
            raise Refusal(at, f"unknown column {name}", nearest(name, [*columns, ROWTIME]))
    time_ms = given.get(ROWTIME)
    missing = [column.name for column in columns.values() if column.key and given.get(column.name) is None]
    if relation.kind == TABLE and missing:
        told = f"Value for primary key column(s) {', '.join(missing)} is required for tables"
        raise Refusal(statement.at, f"the primary key has no value: {told}")
    source = relation.source
    return key_bytes(source, given), value_bytes(source, given), int(time.time() * 1000) if time_ms is None else time_ms


def coerced(node: Node, column: Column) -> Any:
    """The literal as the column's type takes it: whole numbers also as decimals and doubles, decimals as doubles, text
    as times and, in base64, as bytes. A list, a map or a struct is of such values."""
    return _value(node, parse_type(column.type), column)


def _value(node: Node, type_: SqlType, column: Column) -> Any:
    bare = unwrapped(node)
    wrong = Refusal(node.at, f"column {column.name} is {column.type}, and the value is not")
    match bare:
        case Null():
            return None
        case ArrayOf() if type_.kind == "array":
            return [_value(item, type_.inner[0], column) for item in bare.items]
        case MapOf() if type_.kind == "map":
            names = [_value(key, type_.inner[0], column) for key in bare.keys]
            values = [_value(value, type_.inner[1], column) for value in bare.values]
            return dict(zip(names, values, strict=True))
        case StructOf() if type_.kind == "struct":
            return _struct(bare, type_, column)
    if type_.is_nested:
        raise wrong
    return _scalar(literal(node), type_, column, wrong)


def _struct(node: StructOf, type_: SqlType, column: Column) -> dict[str, Any]:
    types = dict(zip(type_.names, type_.inner, strict=True))
    found: dict[str, Any] = dict.fromkeys(type_.names)
    for name, value in zip(node.names, node.values, strict=True):
        if name.text not in types:
            raise Refusal(name.at, f"column {column.name} has no field {name.text}", nearest(name.text, types))
        found[name.text] = _value(value, types[name.text], column)
    return found


def _scalar(value: Plain, type_: SqlType, column: Column, wrong: Refusal) -> Any:
    kind = type_.kind
    if isinstance(value, bool) or kind == "boolean":
        if isinstance(value, bool) and kind == "boolean":
            return value
        raise wrong
    if kind == "string" and isinstance(value, str):
        return value
    if isinstance(value, str):
        try:
            return _read(value, kind)
        except (ValueError, KeyError):
            raise wrong from None
    if kind in _BITS and isinstance(value, int) and -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind]:
        return value
    if value is None or kind not in ("double", "decimal"):
        raise wrong
    return float(value) if kind == "double" else _decimal(value, type_, wrong)


def _read(text: str, kind: str) -> int | str:
    """A time of its text, or bytes in base64. Raises ValueError, and KeyError for any other kind."""
    match kind:
        case "timestamp":
            moment = datetime.fromisoformat(text)
            known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return round(known.timestamp() * 1000)
        case "date":
            return (date.fromisoformat(text) - date(1970, 1, 1)).days
        case "time":
            at = day_time.fromisoformat(text)
            return ((at.hour * 60 + at.minute) * 60 + at.second) * 1000 + at.microsecond // 1000
        case "bytes":
            base64.b64decode(text, validate=True)
            return text
    raise KeyError(kind)


def _decimal(value: int | float | Decimal, type_: SqlType, wrong: Refusal) -> Decimal:
    try:
        fitted = Decimal(value).quantize(Decimal(1).scaleb(-type_.scale), context=Context(prec=PRECISION_MAX))
    except InvalidOperation:
        raise wrong from None
    if isinstance(value, float) or fitted != value or len(fitted.as_tuple().digits) > type_.precision:
        raise wrong
    return fitted
