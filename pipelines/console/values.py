"""INSERT INTO … VALUES: literals to the key, value and time of one record, as the source's columns say."""

from __future__ import annotations

import json
import math
import time
from decimal import Decimal, InvalidOperation
from typing import Any

from pipelines import kafka_format
from pipelines.plan import Column
from pipelines.sql.catalogue import Catalogue, Relation, require
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.names import ROWTIME
from pipelines.sql.nodes import Node, Null, Number, Sign, Text, Truth, unwrapped
from pipelines.sql.tree import TABLE, InsertValues
from pipelines.sql.types import parse_type

SIMPLE = ("boolean", "int", "bigint", "double", "string", "decimal")
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
    return relation


def record_of(statement: InsertValues, relation: Relation) -> tuple[bytes | None, bytes, int]:
    """Key, value and time in ms of the record. Refuses unknown columns and values that are not of a column's type."""
    _require_writable(relation, statement)
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
    key = next((column for column in columns.values() if column.key), None)
    if key is not None and relation.kind == "TABLE" and given.get(key.name) is None:
        raise Refusal(statement.at, f"the primary key {key.name} has no value")
    value = {column.field: given.get(column.name) for column in columns.values() if not column.key}
    return _key(key, given), _json(value), int(time.time() * 1000) if time_ms is None else time_ms


def _require_writable(relation: Relation, statement: InsertValues) -> None:
    """Values are written as JSON objects with one KAFKA key, of simple types."""
    source = relation.source
    keys = [column for column in source.columns if column.key]
    if (
        source.value_format != "json"
        or not source.wrapped
        or (keys and (len(keys) > 1 or source.key_format != "kafka"))
    ):
        hint = "INSERT INTO … SELECT writes every format"
        raise Refusal(statement.at, "INSERT INTO … VALUES writes JSON values with a KAFKA key only", hint)
    for column in source.columns:
        if parse_type(column.type).kind not in SIMPLE:
            raise Refusal(statement.at, f"INSERT INTO … VALUES cannot write {column.name} of type {column.type} yet")


def coerced(node: Node, column: Column) -> Plain:
    """The literal as the column's type takes it: whole numbers also as decimals and doubles, decimals as doubles."""
    value = literal(node)
    if value is None:
        return None
    kind = column.type.partition("(")[0]
    wrong = Refusal(node.at, f"column {column.name} is {column.type}, and the value is not")
    if isinstance(value, bool) or kind == "boolean":
        if isinstance(value, bool) and kind == "boolean":
            return value
        raise wrong
    if kind == "string":
        if isinstance(value, str):
            return value
        raise wrong
    if isinstance(value, str):
        raise wrong
    if kind in _BITS:
        if isinstance(value, int) and -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind]:
            return value
        raise wrong
    return float(value) if kind == "double" else _decimal(value, column, wrong)


def _decimal(value: int | float | Decimal, column: Column, wrong: Refusal) -> Decimal:
    precision, scale = (int(number) for number in column.type[len("decimal(") : -1].split(","))
    try:
        fitted = Decimal(value).quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation:
        raise wrong from None
    if isinstance(value, float) or fitted != value or len(fitted.as_tuple().digits) > precision:
        raise wrong
    return fitted


def _key(column: Column | None, given: dict[str, Any]) -> bytes | None:
    value = None if column is None else given.get(column.name)
    return None if column is None or value is None else kafka_format.encode(value, column.type)


def _json(fields: dict[str, Plain]) -> bytes:
    """An object; a decimal keeps its digits, which a float of Python's would not."""
    parts = [
        f"{json.dumps(name)}:{value if isinstance(value, Decimal) else json.dumps(value)}"
        for name, value in fields.items()
    ]
    return ("{" + ",".join(parts) + "}").encode()
