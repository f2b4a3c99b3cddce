"""The types of columns and expressions, and how they combine.

The names are Spark's. Rules for decimals are those of Spark, which are ksqlDB's as long as 38 digits suffice.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.sql.error import Refusal, nearest
from pipelines.sql.nodes import TypeName

PRECISION_MAX = 38
SCALE_MIN_KEPT = 6


@dataclass(frozen=True)
class SqlType:
    """`kind` is boolean, int, bigint, double, string, decimal or null (the type of the literal NULL alone)."""

    kind: str
    precision: int = 0
    scale: int = 0

    @property
    def spark(self) -> str:
        """The type's name in Spark SQL."""
        return f"decimal({self.precision},{self.scale})" if self.kind == "decimal" else self.kind

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "bigint")

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "bigint", "double", "decimal")


BOOLEAN, INT, BIGINT, DOUBLE, STRING, NULL = (
    SqlType(kind) for kind in ("boolean", "int", "bigint", "double", "string", "null")
)
BY_NAME = {
    "BOOLEAN": BOOLEAN,
    "INT": INT,
    "INTEGER": INT,
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "VARCHAR": STRING,
    "STRING": STRING,
}
NOT_YET = ("ARRAY", "MAP", "STRUCT", "TIMESTAMP", "DATE", "TIME", "BYTES")


def decimal(precision: int, scale: int) -> SqlType:
    """A decimal; one of more than 38 digits gives up digits after the point, but not below 6, as Spark does."""
    if precision > PRECISION_MAX:
        kept = min(scale, SCALE_MIN_KEPT)
        return SqlType("decimal", PRECISION_MAX, max(PRECISION_MAX - (precision - scale), kept))
    return SqlType("decimal", precision, scale)


def named_type(written: TypeName) -> SqlType:
    """The type that a statement calls so."""
    name, arguments, at = written.word, written.numbers, written.at
    if name in NOT_YET:
        raise Refusal(at, f"type {name} is not supported yet", f"supported: {', '.join(BY_NAME)}, DECIMAL(p, s)")
    if name == "DECIMAL":
        if arguments is None or len(arguments) != 2:
            raise Refusal(at, "DECIMAL needs precision and scale", "for example DECIMAL(10, 2)")
        precision, scale = arguments
        if not 1 <= precision <= PRECISION_MAX or not 0 <= scale <= precision:
            raise Refusal(at, f"DECIMAL({precision}, {scale}) is not possible", "1 <= precision <= 38, 0 <= scale <= p")
        return SqlType("decimal", precision, scale)
    if name not in BY_NAME:
        raise Refusal(at, f"unknown type {name[:50]}", nearest(name, [*BY_NAME, "DECIMAL", *NOT_YET]))
    if arguments is not None:
        raise Refusal(at, f"type {name} takes no arguments")
    return BY_NAME[name]


def as_decimal(type_: SqlType) -> SqlType:
    """The decimal that holds every value of a decimal or integer type."""
    return {"int": SqlType("decimal", 10, 0), "bigint": SqlType("decimal", 19, 0)}.get(type_.kind, type_)


def common(a: SqlType, b: SqlType) -> SqlType | None:
    """The type that holds values of both, None if there is none."""
    if a == b or b.kind == "null":
        return a
    if a.kind == "null":
        return b
    if not (a.is_number and b.is_number):
        return None
    if "double" in (a.kind, b.kind):
        return DOUBLE
    if a.is_integer and b.is_integer:
        return BIGINT
    left, right = as_decimal(a), as_decimal(b)
    scale = max(left.scale, right.scale)
    return decimal(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


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
    if source.kind in ("null", "string") or target.kind == "string" or source == target:
        return True
    return source.is_number and target.is_number
