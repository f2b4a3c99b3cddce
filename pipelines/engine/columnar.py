"""Expressions of a plan computed over Arrow columns: those few of which every value is surely Spark's.

    columns                                         whole numbers, text
    + - *   (they wrap around as Java's do)         div and % by a number that is not 0
    = <> < <= > >=   of whole numbers, of texts     AND OR NOT, IS NULL, CASE WHEN … THEN … ELSE … END
    CAST of whole numbers to BIGINT                 coalesce(…, false) of conditions

The text is what the SQL front end writes into plans. Anything else has no function here, and Spark computes it. A value
is null only where a column is null that the expression names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_TOKEN = re.compile(
    r"\s*(?:`(?P<column>[^`]+)`|(?P<number>[0-9]+L?)|'(?P<text>[^'\\]*)'(?!')|(?P<word>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<sign><>|<=|>=|[-+*%(),=<>]))"
)
_COMPARED = {
    "=": "equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_COMPUTED = {"+": "add", "-": "subtract", "*": "multiply"}
_INT, _BIGINT, _BOOLEAN, _STRING = pa.int32(), pa.int64(), pa.bool_(), pa.string()
_INT_MAX, _BIGINT_MAX = 2**31 - 1, 2**63 - 1
Compute = Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True)
class Columnar:
    """An expression, its type and the columns that it names. `literal` is the value of a number that stands in the text."""

    type: pa.DataType
    compute: Compute
    names: frozenset[str] = frozenset()
    literal: int | None = None

    def column(self, rows: pa.RecordBatch) -> pa.Array:
        """The value of every row."""
        found = self.compute(rows)
        if isinstance(found, pa.Scalar):
            return pa.repeat(found, rows.num_rows)
        return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


class _Unknown(Exception):
    """The text has something that only Spark knows."""


def columnar(text: str, types: Mapping[str, pa.DataType]) -> Columnar | None:
    """The expression over columns of these types; None where it is not sure to be what Spark makes of it."""
    try:
        parser = _Parser(text, types)
        found = parser.disjunction()
        parser.end()
    except _Unknown:
        return None
    return found


def condition(text: str, types: Mapping[str, pa.DataType]) -> Columnar | None:
    """The expression if it is a condition."""
    found = columnar(text, types)
    return found if found is not None and found.type == _BOOLEAN else None


class _Parser:
    """Recursive descent. A word or sign is taken by `accept` and `require`; every other method gives an expression."""

    def __init__(self, text: str, types: Mapping[str, pa.DataType]) -> None:
        self._types = types
        self._tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise _Unknown
            kind = str(match.lastgroup)
            self._tokens.append((kind, match.group(kind)))
            at = match.end()
        self._tokens.append(("end", ""))

    def accept(self, *wanted: str) -> str:
        kind, text = self._tokens[0]
        if kind in ("word", "sign") and text.lower() in wanted:
            self._tokens.pop(0)
            return text.lower()
        return ""

    def require(self, *wanted: str) -> None:
        for word in wanted:
            if not self.accept(word):
                raise _Unknown

    def end(self) -> None:
        if self._tokens[0][0] != "end":
            raise _Unknown

    def disjunction(self) -> Columnar:
        found = self._conjunction()
        while self.accept("or"):
            found = _call("or_kleene", _BOOLEAN, _boolean(found), _boolean(self._conjunction()))
        return found

    def _conjunction(self) -> Columnar:
        found = self._negation()
        while self.accept("and"):
            found = _call("and_kleene", _BOOLEAN, _boolean(found), _boolean(self._negation()))
        return found

    def _negation(self) -> Columnar:
        if self.accept("not"):
            return _call("invert", _BOOLEAN, _boolean(self._negation()))
        return self._comparison()

    def _comparison(self) -> Columnar:
        left = self._sum()
        if self.accept("is"):
            function = "is_valid" if self.accept("not") else "is_null"
            self.require("null")
            return _call(function, _BOOLEAN, left)
        sign = self.accept(*_COMPARED)
        if not sign:
            return left
        left, right, _ = _alike(left, self._sum())
        return _call(_COMPARED[sign], _BOOLEAN, left, right)

    def _sum(self) -> Columnar:
        found = self._product()
        while sign := self.accept("+", "-"):
            left, right, kind = _widened(found, self._product())
            found = _call(_COMPUTED[sign], kind, left, right)
        return found

    def _product(self) -> Columnar:
        found = self._operand()
        while sign := self.accept("*", "div", "%"):
            right = self._operand()
            # Null of a division by zero and the one quotient that wraps are left to Spark.
            if sign != "*" and right.literal in (None, 0, -1):
                raise _Unknown
            if sign == "div":
                found = _call("divide", _BIGINT, _cast(found, _BIGINT), _cast(right, _BIGINT))
                continue
            left, right, kind = _widened(found, right)
            if sign == "%":
                # Both languages cut a quotient off towards zero: what is left has the sign of what was divided.
                right = _call("multiply", kind, _call("divide", kind, left, right), right)
            found = _call("subtract" if sign == "%" else "multiply", kind, left, right)
        return found

    def _operand(self) -> Columnar:
        kind, text = self._tokens[0]
        if kind in ("sign", "word"):
            return self._composed()
        self._tokens.pop(0)
        if kind == "number":
            return _number(text)
        if kind == "text":
            return Columnar(_STRING, lambda _: pa.scalar(text, _STRING))
        if kind != "column" or text not in self._types:
            raise _Unknown
        return Columnar(self._types[text], lambda rows: rows.column(text), frozenset([text]))

    def _composed(self) -> Columnar:
        if self.accept("("):
            found = self._negative() or self.disjunction()
            self.require(")")
            return found
        if self.accept("case"):
            return self._case()
        if self.accept("cast"):
            self.require("(")
            found = self.disjunction()
            self.require("as", "bigint", ")")
            return _cast(found, _BIGINT)
        if self.accept("coalesce"):
            self.require("(")
            found = _boolean(self.disjunction())
            self.require(",", "false", ")")
            return _true(found)
        raise _Unknown

    def _negative(self) -> Columnar | None:
        """A number below zero, which stands in parentheses of its own."""
        if [kind for kind, _ in self._tokens[:2]] != ["sign", "number"] or not self.accept("-"):
            return None
        return _number(f"-{self._tokens.pop(0)[1]}")

    def _case(self) -> Columnar:
        """CASE with WHENs that are conditions and an ELSE."""
        branches: list[tuple[Columnar, Columnar]] = []
        while self.accept("when"):
            condition = _boolean(self.disjunction())
            self.require("then")
            branches.append((condition, self.disjunction()))
        self.require("else")
        found = self.disjunction()
        self.require("end")
        for condition, value in reversed(branches):
            value, found, kind = _alike(value, found)
            # A condition that is null is not true, for Spark; for Arrow it makes null.
            found = _call("if_else", kind, _true(condition), value, found)
        return found


def _call(function: str, kind: pa.DataType, *inputs: Columnar) -> Columnar:
    def compute(rows: pa.RecordBatch) -> Any:
        return pc.call_function(function, [each.compute(rows) for each in inputs])

    return Columnar(kind, compute, frozenset().union(*(each.names for each in inputs)))


def _number(text: str) -> Columnar:
    value = int(text.removesuffix("L"))
    # The smallest of each type are left to Spark: there the sign decides what the digits are.
    if abs(value) > _BIGINT_MAX or value == -_INT_MAX - 1:
        raise _Unknown
    kind = _BIGINT if text.endswith("L") or abs(value) > _INT_MAX else _INT
    return Columnar(kind, lambda _: pa.scalar(value, kind), literal=value)


def _boolean(found: Columnar) -> Columnar:
    if found.type != _BOOLEAN:
        raise _Unknown
    return found


def _true(condition: Columnar) -> Columnar:
    """Whether it is true: false where it is null."""
    return _call("coalesce", _BOOLEAN, condition, Columnar(_BOOLEAN, lambda _: pa.scalar(False)))


def _alike(left: Columnar, right: Columnar) -> tuple[Columnar, Columnar, pa.DataType]:
    """Two values in one type: texts, or whole numbers."""
    return (left, right, _STRING) if left.type == right.type == _STRING else _widened(left, right)


def _widened(left: Columnar, right: Columnar) -> tuple[Columnar, Columnar, pa.DataType]:
    """Two whole numbers in the type that Spark gives to both."""
    kind = _INT if left.type == right.type == _INT else _BIGINT
    return _cast(left, kind), _cast(right, kind), kind


def _cast(found: Columnar, kind: pa.DataType) -> Columnar:
    """A whole number in this or a wider type."""
    if found.type not in (_INT, _BIGINT):
        raise _Unknown
    if found.type == kind:
        return found
    return replace(found, type=kind, compute=lambda rows: found.compute(rows).cast(kind))
