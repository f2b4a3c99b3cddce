"""The scalar functions a statement may call, each with its types and its Spark SQL text.

All are deterministic, since a batch may run twice. Where Spark's function of the same name means something else, the
text is built so that the result is ksqlDB's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelines.sql.casting import cast_text
from pipelines.sql.error import Refusal
from pipelines.sql.types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIME,
    TIMESTAMP,
    SqlType,
    common,
    decimal,
)

# Aggregates that see their rows one after the other: they need the records' order or more than one value of state.
ORDERED_CALLS = (
    "ATTR",
    "COLLECT_LIST",
    "COLLECT_MAP",
    "COLLECT_SET",
    "COUNT_DISTINCT",
    "EARLIEST_BY_OFFSET",
    "HISTOGRAM",
    "LATEST_BY_OFFSET",
    "STDDEV_SAMP",
    "STDDEV_SAMPLE",
    "TOPK",
    "TOPKDISTINCT",
)
# Those that are computed from sums of their own.
SUMMED_CALLS = ("CORRELATION", "SUM_LIST")
AGGREGATES = ("COUNT", "SUM", "MIN", "MAX", "AVG", *SUMMED_CALLS, *ORDERED_CALLS)
# Those that can take a value back, as the aggregation of a table needs it.
UNDOABLE = ("ATTR", "AVG", "COLLECT_LIST", "COUNT", "HISTOGRAM", "STDDEV_SAMP", "STDDEV_SAMPLE", "SUM", *SUMMED_CALLS)
# Those whose state is no single plain value in ksqlDB.
NESTED_STATES = frozenset(("AVG", "CORRELATION", *ORDERED_CALLS))
NOT_DETERMINISTIC = frozenset(
    [
        "CURRENT_DATE",
        "CURRENT_TIME",
        "CURRENT_TIMESTAMP",
        "LOCALTIME",
        "LOCALTIMESTAMP",
        "NOW",
        "RAND",
        "RANDOM",
        "UUID",
    ]
)
# Below this, a double's whole part is exact as a bigint; above, a double has no digits after the point.
DOUBLE_WHOLE = "9.0E15D"
TEXT_LENGTH_MAX = 20_000
# What Java's `trim` takes off: control characters as well.
_BLANKS = "".join(f"\\u{code:04x}" for code in range(33))


def at_most(value: str, limit: int, what: str, *, count: str = "") -> str:
    """The value, an error of the record where it, or the `count` that comes of it, is larger: all memory ends all records.

    As an argument: Spark computes what is constant in branches, too, that are never taken.
    """
    return f"CASE WHEN {count or value} > {limit} THEN raise_error('{what} is limited to {limit}') ELSE {value} END"


@dataclass(frozen=True)
class Value:
    """An expression in Spark SQL with its type. `literal` is the number if it is a literal whole number, `words` the
    text if it is a literal string."""

    text: str
    type: SqlType
    at: int
    literal: int | None = None
    words: str | None = None

    def cast(self, to: SqlType) -> str:
        """The text with type `to`."""
        return cast_text(self.text, self.type, to)


KINDS: dict[str, Callable[[SqlType], bool]] = {
    "number": lambda type_: type_.is_number,
    "integer": lambda type_: type_.is_integer,
    "string": lambda type_: type_ == STRING,
    "boolean": lambda type_: type_ == BOOLEAN,
    "array": lambda type_: type_.kind == "array",
    "map": lambda type_: type_.kind == "map",
    "timestamp": lambda type_: type_ == TIMESTAMP,
    "date": lambda type_: type_ == DATE,
    "time": lambda type_: type_ == TIME,
    "bytes": lambda type_: type_ == BYTES,
    "value": lambda _: True,
}
NULLS = {"number": INT, "integer": INT, "string": STRING, "boolean": BOOLEAN, "timestamp": TIMESTAMP, "date": DATE}
NULLS |= {"time": TIME, "bytes": BYTES}


REGISTERED_UPPER = ("AS_MAP", "AS_VALUE", "COALESCE", "ELT", "FIELD")


@dataclass(frozen=True)
class Call:
    """A call of the function `name` at offset `at`."""

    name: str
    at: int
    arguments: tuple[Value, ...]

    def want(self, index: int, kind: str) -> Value:
        """Argument `index` (from 0) of a `kind` of KINDS. A literal NULL is one of any kind."""
        value = self.arguments[index]
        if value.type.kind == "null" and kind in NULLS:
            return Value(value.cast(NULLS[kind]), NULLS[kind], value.at)
        if value.type == STRING and kind in ("timestamp", "date", "time"):  # ksqlDB reads a string as one here
            return Value(value.cast(NULLS[kind]), NULLS[kind], value.at)
        if not KINDS[kind](value.type):
            wanted = f"an {kind}" if kind[0] in "aei" else f"a {kind}"
            message = f"{self.name} needs {wanted} as argument {index + 1}, not {value.type.kind}"
            raise Refusal(value.at, f"{message}: {self.unaccepted()}", "use CAST")
        return value

    def unaccepted(self) -> str:
        """What ksqlDB says of arguments that a function does not take."""
        return f"{self.shown()} does not accept parameters ({self._types()})"

    def ambiguous(self) -> str:
        """What ksqlDB says of arguments that do not tell the function's type."""
        return f"{self.shown()} cannot be resolved due to ambiguous method parameters ({self._types()})"

    def shown(self) -> str:
        """The function as ksqlDB's messages name it: by the name it was registered with."""
        return f"Function '{self.name if self.name in REGISTERED_UPPER else self.name.lower()}'"

    def _types(self) -> str:
        return ", ".join("null" if a.type.kind == "null" else a.type.sql for a in self.arguments)

    def result(self, text: str, type_: SqlType) -> Value:
        return Value(text, type_, self.at)


def common_type(values: tuple[Value, ...], what: str) -> SqlType:
    """The type that holds all values; `what` names the construct in the error."""
    type_ = values[0].type
    for value in values[1:]:
        found = common(type_, value.type)
        if found is None:
            raise Refusal(value.at, f"{what} mixes {type_.kind} with {value.type.kind}", "use CAST")
        type_ = found
    if type_.kind == "null":
        raise Refusal(values[0].at, f"{what} has no type", "give NULL a type: CAST(NULL AS STRING)")
    return type_


def _whole(function: str) -> Callable[[Call], Value]:
    """CEIL and FLOOR keep the type of integers and doubles; Spark turns a double into a bigint."""

    def build(call: Call) -> Value:
        x = call.want(0, "number")
        if x.type.is_integer:
            return call.result(f"({x.text})", x.type)
        if x.type == DOUBLE:
            small = f"abs({x.text}) < {DOUBLE_WHOLE}"
            return call.result(f"CASE WHEN {small} THEN CAST({function}({x.text}) AS DOUBLE) ELSE {x.text} END", DOUBLE)
        type_ = decimal(x.type.precision - x.type.scale + 1, 0)
        return call.result(f"CAST({function}({x.text}) AS {type_.spark.upper()})", type_)

    return build


def _round(call: Call) -> Value:
    """Ties go up (-1.5 → -1), with a scale as well."""
    x = call.want(0, "number")
    if len(call.arguments) == 1:
        if x.type.is_integer:
            return call.result(f"({x.text})", x.type)
        if x.type == DOUBLE:
            return call.result(f"floor({x.text} + 0.5D)", BIGINT)
        type_ = decimal(x.type.precision - x.type.scale + 1, 0)
        return call.result(f"CAST(floor({x.text} + 0.5BD) AS {type_.spark.upper()})", type_)
    scale = call.want(1, "integer").literal
    if scale is None or abs(scale) > 30:
        raise Refusal(call.arguments[1].at, "ROUND needs a literal from -30 to 30 as its number of places")
    rounded = _rounded(x, scale)
    if x.type.kind != "decimal":
        return call.result(rounded, x.type)
    type_ = decimal(x.type.precision + 1, x.type.scale)
    return call.result(f"CAST({rounded} AS {type_.spark.upper()})", type_)


def _rounded(x: Value, scale: int) -> str:
    """Half a place goes up: 1.5 to 2, and -1.5 to -1. Negative numbers are rounded as decimals, so that ties are ties."""
    if x.type.is_integer or scale > 15:
        return f"round({x.text}, {scale})"
    half = f"0.{'0' * scale}5" if scale >= 0 else f"5{'0' * (-scale - 1)}"
    positive = f"CAST(- {x.text} AS DECIMAL(38,16))" if x.type == DOUBLE else f"(- {x.text})"
    down = f"(- ceil({positive} - {half}BD, {scale}))"
    down = f"CAST({down} AS DOUBLE)" if x.type == DOUBLE else down
    return f"CASE WHEN {x.text} < 0 THEN {down} ELSE round({x.text}, {scale}) END"


def _same(function: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        x = call.want(0, "number")
        return call.result(f"{function}({x.text})", x.type)

    return build


def _double(function: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        return call.result(f"{function}({call.want(0, 'number').cast(DOUBLE)})", DOUBLE)

    return build


def logarithm(text: str) -> str:
    """The natural logarithm, which Spark leaves out where there is none."""
    infinite = f"WHEN {text} = 0 THEN DOUBLE('-Infinity') WHEN {text} < 0 THEN DOUBLE('NaN')"
    return f"CASE {infinite} ELSE ln({text}) END"


def _string(function: str, type_: SqlType = STRING) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        texts = [call.want(index, "string").text for index in range(len(call.arguments))]
        return call.result(f"{function}({', '.join(texts)})", type_)

    return build


def _sign(call: Call) -> Value:
    return call.result(f"CAST(sign({call.want(0, 'number').text}) AS INT)", INT)


def concat(call: Call) -> Value:
    """CONCAT and `||`: NULL counts as empty, where Spark's `concat` would be NULL."""
    if any(value.type == BYTES for value in call.arguments):
        parts = [f"coalesce({call.want(index, 'bytes').text}, X'')" for index in range(len(call.arguments))]
        return call.result(f"concat({', '.join(parts)})", BYTES)
    texts = [call.want(index, "string").text for index in range(len(call.arguments))]
    return call.result(f"concat_ws('', {', '.join(texts)})", STRING)


def _first_of(function: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        type_ = common_type(call.arguments, call.name)
        return call.result(f"{function}({', '.join(value.cast(type_) for value in call.arguments)})", type_)

    return build


def _extreme(function: str) -> Callable[[Call], Value]:
    """NULLs are passed over; only all NULLs give NULL."""

    def build(call: Call) -> Value:
        times = [value.type for value in call.arguments if value.type.is_time]
        if times:
            call = replace(call, arguments=tuple(call.want(i, times[0].kind) for i in range(len(call.arguments))))
        try:
            type_ = common_type(call.arguments, call.name)
        except Refusal as refusal:
            told = call.ambiguous() if all(v.type.kind == "null" for v in call.arguments) else call.unaccepted()
            raise Refusal(refusal.at, f"{refusal.message}: {told}.", refusal.hint) from refusal
        exact = {value.type.kind for value in call.arguments if value.type.is_number and value.literal is None}
        if len(exact) > 1 and "double" not in exact:  # one of them could be any of the others
            raise Refusal(call.at, f"{call.name} mixes numbers: {call.ambiguous()}.", "use CAST")
        if type_.kind == "boolean":
            raise Refusal(call.arguments[0].at, f"{call.name} needs numbers or strings, not boolean")
        return call.result(f"{function}({', '.join(value.cast(type_) for value in call.arguments)})", type_)

    return build


def _nullif(call: Call) -> Value:
    left, right = call.arguments
    type_ = common_type(call.arguments, call.name)
    if left.type.kind == "null":
        raise Refusal(left.at, "NULLIF needs a value as argument 1, not NULL")
    return call.result(f"CASE WHEN {left.cast(type_)} = {right.cast(type_)} THEN NULL ELSE {left.text} END", left.type)


def _as_value(call: Call) -> Value:
    """AS_VALUE copies a key column into the value. The parentheses keep it from being taken for the key itself."""
    return call.result(f"({call.arguments[0].text})", call.arguments[0].type)


def shaped(template: str, type_: SqlType | None, *kinds: str) -> Scalar:
    """A function whose text is the template with its arguments at `{0}`, `{1}`, …, and whose result has the type.

    Without a type it is that of the first argument. A kind of `double` is any number, computed with as a double.
    """

    def build(call: Call) -> Value:
        values = [call.want(n, "number" if kind == "double" else kind) for n, kind in enumerate(kinds)]
        pairs = zip(values, kinds, strict=True)
        texts = [value.cast(DOUBLE) if kind == "double" else value.text for value, kind in pairs]
        return call.result(template.format(*texts), type_ or values[0].type)

    return Scalar(len(kinds), len(kinds), build)


@dataclass(frozen=True)
class Scalar:
    """How a function is called and written; `most` is None for any number of arguments."""

    least: int
    most: int | None
    build: Callable[[Call], Value]


SCALARS: dict[str, Scalar] = {
    "ABS": Scalar(1, 1, _same("abs")),
    "AS_VALUE": Scalar(1, 1, _as_value),
    "CEIL": Scalar(1, 1, _whole("ceil")),
    "COALESCE": Scalar(1, None, _first_of("coalesce")),
    "CONCAT": Scalar(2, None, concat),
    "EXP": Scalar(1, 1, _double("exp")),
    "FLOOR": Scalar(1, 1, _whole("floor")),
    "GREATEST": Scalar(2, None, _extreme("greatest")),
    "IFNULL": Scalar(2, 2, _first_of("coalesce")),
    "LCASE": Scalar(1, 1, _string("lower")),
    "LEAST": Scalar(2, None, _extreme("least")),
    "LN": Scalar(1, 1, lambda call: call.result(logarithm(call.want(0, "number").cast(DOUBLE)), DOUBLE)),
    "LOWER": Scalar(1, 1, _string("lower")),
    "NULLIF": Scalar(2, 2, _nullif),
    "REPLACE": Scalar(3, 3, _string("replace")),
    "ROUND": Scalar(1, 2, _round),
    "SIGN": Scalar(1, 1, _sign),
    "SQRT": Scalar(1, 1, _double("sqrt")),
    "TRIM": shaped(f"trim(BOTH '{_BLANKS}' FROM {{0}})", STRING, "string"),
    "UCASE": Scalar(1, 1, _string("upper")),
    "UPPER": Scalar(1, 1, _string("upper")),
}


def register(functions: dict[str, Scalar]) -> None:
    """Add the functions of another file."""
    SCALARS.update(functions)


def call_scalar(call: Call) -> Value:
    """The call as a value. The function is one of SCALARS; its number of arguments is checked here."""
    scalar = SCALARS[call.name]
    count = len(call.arguments)
    if count < scalar.least or (scalar.most is not None and count > scalar.most):
        wanted = str(scalar.least)
        if scalar.most is None:
            wanted += " or more"
        elif scalar.most != scalar.least:
            wanted += f" to {scalar.most}"
        raise Refusal(call.at, f"{call.name} takes {wanted} arguments, not {count}: {call.unaccepted()}.")
    value = scalar.build(call)
    if len(value.text) > TEXT_LENGTH_MAX:  # some texts repeat their argument, so nesting multiplies
        raise Refusal(call.at, "the expression is too large", "compute it in steps, or nest fewer functions")
    return value
