"""The types of columns and expressions, and how they combine.

The names are Spark's, except for times: a TIMESTAMP is computed as its milliseconds since 1970, a DATE as its days and
a TIME as its milliseconds since midnight, which is also how JSON has them. `spark` is the type as a plan keeps it,
`ddl` the type in which Spark computes. Rules for decimals are those of Spark, which are ksqlDB's as long as 38 digits
suffice.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from pipelines.sql.error import Refusal, nearest
from pipelines.sql.nodes import TypeName

PRECISION_MAX = 38
SCALE_MIN_KEPT = 6


@dataclass(frozen=True)
class SqlType:
    """`kind` is boolean, int, bigint, double, string, decimal, timestamp, date, time, bytes, array, map, struct or null
    (the type of the literal NULL alone). `inner` are the types of elements, of key and value, or of fields."""

    kind: str
    precision: int = 0
    scale: int = 0
    inner: tuple[SqlType, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def spark(self) -> str:
        """The type as a plan has it; `parse_type` reads it."""
        return self._written({})

    @property
    def ddl(self) -> str:
        """The type in which Spark computes."""
        return self._written(PHYSICAL)

    def _written(self, words: dict[str, str]) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        parts = [inner._written(words) for inner in self.inner]
        if self.kind == "struct":
            parts = [f"`{name}`:{part}" for name, part in zip(self.names, parts, strict=True)]
        return f"{self.kind}<{','.join(parts)}>" if parts else words.get(self.kind, self.kind)

    @property
    def sql(self) -> str:
        """The type as ksqlDB's messages name it."""
        if self.kind == "decimal":
            return f"DECIMAL({self.precision}, {self.scale})"
        parts = [inner.sql for inner in self.inner]
        if self.kind == "struct":
            parts = [f"`{name}` {part}" for name, part in zip(self.names, parts, strict=True)]
        return f"{self.kind.upper()}<{', '.join(parts)}>" if parts else SHOWN.get(self.kind, self.kind.upper())

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "bigint")

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "bigint", "double", "decimal")

    @property
    def is_time(self) -> bool:
        return self.kind in ("timestamp", "date", "time")

    @property
    def is_nested(self) -> bool:
        return self.kind in ("array", "map", "struct")


PHYSICAL = {"timestamp": "bigint", "date": "int", "time": "int", "bytes": "binary"}
SHOWN = {"int": "INTEGER"}
BOOLEAN, INT, BIGINT, DOUBLE, STRING, NULL, TIMESTAMP, DATE, TIME, BYTES = (
    SqlType(kind)
    for kind in ("boolean", "int", "bigint", "double", "string", "null", "timestamp", "date", "time", "bytes")
)
BY_NAME = {
    "BOOLEAN": BOOLEAN,
    "INT": INT,
    "INTEGER": INT,
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "VARCHAR": STRING,
    "STRING": STRING,
    "TIMESTAMP": TIMESTAMP,
    "DATE": DATE,
    "TIME": TIME,
    "BYTES": BYTES,
}
NESTED = ("ARRAY", "MAP", "STRUCT")
_TOKEN = re.compile(r"`(?P<quoted>[^`]*)`|(?P<word>[a-z]+)|(?P<number>[0-9]+)|(?P<sign>[<>(),:])")


def array_of(inner: SqlType) -> SqlType:
    """An array."""
    return SqlType("array", inner=(inner,))


def map_of(key: SqlType, value: SqlType) -> SqlType:
    """A map."""
    return SqlType("map", inner=(key, value))


def parse_type(text: str) -> SqlType:
    """Inverse of `SqlType.spark`."""
    tokens = [match.group(match.lastgroup or 0) for match in _TOKEN.finditer(text)]
    return _parse(tokens)


def _parse(tokens: list[str]) -> SqlType:
    kind = tokens.pop(0)
    if kind == "decimal" and tokens:
        _, precision, _, scale, _ = (tokens.pop(0) for _ in range(5))
        return SqlType(kind, int(precision), int(scale))
    names: list[str] = []
    inner: list[SqlType] = []
    if kind.upper() in NESTED:
        sign = tokens.pop(0)
        while sign != ">":
            if kind == "struct":
                names.append(tokens.pop(0))
                tokens.pop(0)
            inner.append(_parse(tokens))
            sign = tokens.pop(0)
    return SqlType(kind, inner=tuple(inner), names=tuple(names))


def decimal(precision: int, scale: int) -> SqlType:
    """A decimal; one of more than 38 digits gives up digits after the point, but not below 6, as Spark does."""
    if precision > PRECISION_MAX:
        kept = min(scale, SCALE_MIN_KEPT)
        return SqlType("decimal", PRECISION_MAX, max(PRECISION_MAX - (precision - scale), kept))
    return SqlType("decimal", precision, scale)


def named_type(written: TypeName) -> SqlType:
    """The type that a statement calls so."""
    name, arguments, at = written.word, written.numbers, written.at
    if name in NESTED:
        return _named_nested(written)
    if name == "DECIMAL":
        if arguments is None or len(arguments) != 2:
            raise Refusal(at, "DECIMAL needs precision and scale", "for example DECIMAL(10, 2)")
        precision, scale = arguments
        if not 1 <= precision <= PRECISION_MAX or not 0 <= scale <= precision:
            raise Refusal(at, f"DECIMAL({precision}, {scale}) is not possible", "1 <= precision <= 38, 0 <= scale <= p")
        return SqlType("decimal", precision, scale)
    if name not in BY_NAME:
        told = f"unknown type {name[:50]}: Cannot resolve unknown type: {name[:50]}"
        raise Refusal(at, told, nearest(name, [*BY_NAME, "DECIMAL", *NESTED]))
    if arguments is not None and name not in ("VARCHAR", "STRING"):
        raise Refusal(at, f"type {name} takes no arguments")
    return BY_NAME[name]


def _named_nested(written: TypeName) -> SqlType:
    wanted = {"ARRAY": 1, "MAP": 2}.get(written.word, len(written.inner) or 1)
    if len(written.inner) != wanted:
        hint = {"ARRAY": "ARRAY<INT>", "MAP": "MAP<STRING, INT>"}.get(written.word, "STRUCT<a INT, b STRING>")
        raise Refusal(written.at, f"{written.word} needs its types", f"for example {hint}")
    inner = tuple(named_type(part) for part in written.inner)
    names = tuple(name.text for name in written.names)
    if alike(names):
        raise Refusal(written.at, "Duplicate field names found in STRUCT")
    return SqlType(written.word.lower(), inner=inner, names=names)


def alike(names: Collection[str]) -> bool:
    """Whether two of them differ in case alone, or not at all: to Spark those are one name."""
    return len({name.upper() for name in names}) < len(names)


def as_decimal(type_: SqlType) -> SqlType:
    """The decimal that holds every value of a decimal or integer type."""
    return {"int": SqlType("decimal", 10, 0), "bigint": SqlType("decimal", 19, 0)}.get(type_.kind, type_)


def common(a: SqlType, b: SqlType) -> SqlType | None:
    """The type that holds values of both, None if there is none."""
    if a == b or b.kind == "null":
        return a
    if a.kind == "null":
        return b
    if a.kind == b.kind and a.is_nested:
        return _common_nested(a, b)
    if not (a.is_number and b.is_number):
        return None
    if "double" in (a.kind, b.kind):
        return DOUBLE
    if a.is_integer and b.is_integer:
        return BIGINT
    left, right = as_decimal(a), as_decimal(b)
    scale = max(left.scale, right.scale)
    return decimal(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def _common_nested(a: SqlType, b: SqlType) -> SqlType | None:
    if a.kind == "struct":
        fields = dict(zip(a.names, a.inner, strict=True))
        for name, type_ in zip(b.names, b.inner, strict=True):
            both = common(fields.get(name, type_), type_)
            if both is None:
                return None
            fields[name] = both
        if alike(fields):
            return None
        return SqlType("struct", inner=tuple(fields.values()), names=tuple(fields))
    inner = [common(x, y) for x, y in zip(a.inner, b.inner, strict=True)]
    return None if None in inner else SqlType(a.kind, inner=tuple(x for x in inner if x is not None))


def arithmetic(operator: str, a: SqlType, b: SqlType) -> SqlType:
    """The type of `a operator b` for two numbers. Two integers stay integers, division included."""
    if "double" in (a.kind, b.kind):
        return DOUBLE
    if a.is_integer and b.is_integer:
        return BIGINT if "bigint" in (a.kind, b.kind) else INT
    left, right = as_decimal(a), as_decimal(b)
    whole_left, whole_right = left.precision - left.scale, right.precision - right.scale
    scale = max(left.scale, right.scale)
    if operator in "+-":
        return decimal(max(whole_left, whole_right) + scale + 1, scale)
    if operator == "*":
        return decimal(left.precision + right.precision + 1, left.scale + right.scale)
    if operator == "/":
        scale = max(SCALE_MIN_KEPT, left.scale + right.precision + 1)
        return decimal(whole_left + right.scale + scale, scale)
    return decimal(min(whole_left, whole_right) + scale, scale)


def castable(source: SqlType, target: SqlType) -> bool:
    """Whether ksqlDB has this CAST: anything to and from strings, numbers among themselves, booleans to themselves."""
    if source.kind == "null" or source == target:
        return True
    if source.is_nested or target.is_nested:
        return (source.kind == target.kind and _castable_nested(source, target)) or target == STRING
    if "bytes" in (source.kind, target.kind):
        return False
    if STRING in (source, target):
        return True
    if source == TIMESTAMP:
        return target in (DATE, TIME)
    if source == DATE:
        return target == TIMESTAMP
    return source.is_number and target.is_number


def _castable_nested(source: SqlType, target: SqlType) -> bool:
    if source.kind != "struct":
        return all(castable(x, y) for x, y in zip(source.inner, target.inner, strict=True))
    fields = dict(zip(source.names, source.inner, strict=True))
    return all(castable(fields.get(n, t), t) for n, t in zip(target.names, target.inner, strict=True))
