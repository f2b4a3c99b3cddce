"""The Arrow types of columns."""

from __future__ import annotations

import pyarrow as pa

from pipelines.sql.types import PHYSICAL, parse_type
from statestore.errors import InvalidConfig

_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a Spark SQL type name."""
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name.startswith("decimal("):
        precision, scale = name[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    type_ = parse_type(name)
    inner = [arrow_type(part.spark) for part in type_.inner]
    match type_.kind:
        case "array":
            return pa.list_(*inner)
        case "map":
            return pa.map_(*inner)
        case "struct":
            return pa.struct(list(zip(type_.names, inner, strict=True)))
        case "bytes" | "binary":
            return pa.binary()
        case kind if kind in PHYSICAL:
            return _SIMPLE[PHYSICAL[kind]]
    raise InvalidConfig("column type has no decoder", type=name)
