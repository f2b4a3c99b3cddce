"""Expressions: from sqlglot's tree to typed Spark SQL text.

Two kinds of rows are computed over. `RowExpressions` reads the source's columns (WHERE, GROUP BY, arguments of
aggregates); the result's expressions, in `aggregation.py`, read group keys and aggregates.

A comparison with NULL is false in ksqlDB and NULL in Spark. Where a condition only lets rows through (WHERE, HAVING,
WHEN, under AND and OR) both mean the same, and the text is the plain comparison; elsewhere it is wrapped in
`coalesce(…, false)`. Parameter `lets_through` says which of the two a condition is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

from sqlglot import exp

from pipelines.plan import Source
from pipelines.sql.dialect import offset
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.functions import (
    AGGREGATES,
    AGGREGATES_NOT_YET,
    NOT_DETERMINISTIC,
    SCALARS,
    Call,
    Value,
    call_scalar,
    common_type,
    concat,
)
from pipelines.sql.names import PSEUDO_COLUMNS, ROWTIME, quote
from pipelines.sql.types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    NULL,
    PRECISION_MAX,
    STRING,
    SqlType,
    arithmetic,
    as_decimal,
    castable,
    common,
    decimal,
    named_type,
)

COMPARISONS = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
ARITHMETIC = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
CONNECTORS = {exp.And: "AND", exp.Or: "OR"}
INT_MAX, BIGINT_MAX = 2**31 - 1, 2**63 - 1
NUMBER_LENGTH_MAX = 100
ESCAPES = {"\\": "\\\\", "'": "\\'", "$": "\\u0024", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def string_literal(text: str) -> str:
    """The text as a Spark SQL literal. `$` is escaped, since Spark would replace `${…}` by settings."""
    return "'" + "".join(ESCAPES.get(c, c) for c in text) + "'"


def number_literal(text: str, *, negative: bool, at: int) -> Value:
    """A number: int, else bigint; with a point decimal; with an exponent double."""
    sign = "-" if negative else ""
    if len(text) > NUMBER_LENGTH_MAX:
        raise Refusal(at, f"the number has more than {NUMBER_LENGTH_MAX} digits")
    if "e" in text.lower():
        double = float(sign + text)
        if math.isinf(double):
            raise Refusal(at, f"{text} is too large for a double")
        return Value(f"({double!r}D)" if negative else f"{double!r}D", DOUBLE, at)
    if "." in text:
        digits = Decimal(text).as_tuple()
        scale = -int(digits.exponent)
        precision = max(len(digits.digits), scale, 1)
        if precision > PRECISION_MAX:
            raise Refusal(at, f"the number has more than {PRECISION_MAX} digits", "write it with an exponent: 1E0")
        plain = f"{sign}{Decimal(text):f}" + ("" if scale else ".")
        return Value(f"({plain}BD)" if negative else f"{plain}BD", decimal(precision, scale), at)
    number = -int(text) if negative else int(text)
    if not -BIGINT_MAX - 1 <= number <= BIGINT_MAX:
        raise Refusal(at, f"{number} is too large for a bigint", "write it with a point or an exponent")
    small = -INT_MAX - 1 <= number <= INT_MAX
    plain = str(number) if small else f"{number}L"
    return Value(f"({plain})" if negative else plain, INT if small else BIGINT, at, literal=number)


def like_pattern(pattern: str, escape: str | None, at: int) -> str:
    """The pattern with Spark's escape character, the backslash. ksqlDB has none unless ESCAPE names it."""
    out, index = "", 0
    while index < len(pattern):
        char = pattern[index]
        if char == escape:
            index += 1
            if index == len(pattern):
                raise Refusal(at, "the pattern ends with its escape character")
            out += "\\" + pattern[index] if pattern[index] in "%_\\" else pattern[index]
        else:
            out += "\\\\" if char == "\\" else char
        index += 1
    return out


class Expressions:
    """Renders a tree. Subclasses say what columns and aggregates are."""

    def column(self, node: exp.Column) -> Value:
        """The value of a column."""
        raise NotImplementedError

    def aggregate(self, node: exp.Anonymous) -> Value:
        """The value of a call of an aggregate function."""
        raise NotImplementedError

    def boolean(self, node: exp.Expr, what: str) -> str:
        """The text of a condition that lets rows through; `what` names it in the error."""
        value = self.value(node, lets_through=True)
        if value.type != BOOLEAN:
            raise Refusal(value.at, f"{what} needs a condition, this is {value.type.kind}", "compare it with something")
        return value.text

    def value(self, node: exp.Expr, *, lets_through: bool = False) -> Value:
        """The typed text of the tree."""
        at = offset(node)
        kind = type(node)
        if isinstance(node, exp.Paren):
            return self.value(node.this, lets_through=lets_through)
        if isinstance(node, exp.Column):
            return self.column(node)
        if isinstance(node, exp.Literal):
            if node.is_string:
                return Value(string_literal(node.this), STRING, at)
            return number_literal(node.this, negative=False, at=at)
        if isinstance(node, exp.Null):
            return Value("NULL", NULL, at)
        if isinstance(node, exp.Boolean):
            return Value("true" if node.this else "false", BOOLEAN, at)
        if isinstance(node, exp.Anonymous):
            return self._call(node, at)
        if kind in CONNECTORS:
            return self._connector(node, CONNECTORS[kind], lets_through)
        if kind in ARITHMETIC:
            return self._arithmetic(node, ARITHMETIC[kind], at)
        if kind in COMPARISONS:
            return self._comparison(node, COMPARISONS[kind], at, lets_through)
        method = self._methods().get(kind)
        if method is None:
            raise Refusal(at, f"{kind.__name__.lower()} is not supported")
        return method(node, at, lets_through)

    def _methods(self) -> dict[type[exp.Expr], Callable[[exp.Expr, int, bool], Value]]:
        return {
            exp.Neg: self._negative,
            exp.Not: self._not,
            exp.Is: self._is_null,
            exp.Between: self._between,
            exp.In: self._in,
            exp.Like: self._like,
            exp.Escape: self._like,
            exp.Case: self._case,
            exp.Cast: self._cast,
            exp.DPipe: self._concat,
        }

    def _call(self, node: exp.Anonymous, at: int) -> Value:
        name = str(node.this)
        if name in AGGREGATES:
            return self.aggregate(node)
        if name not in SCALARS:
            raise self.unknown_function(name, at)
        for argument in node.expressions:
            if isinstance(argument, exp.Star):
                raise Refusal(offset(argument), f"{name}(*) is not possible", "only COUNT takes *")
        return call_scalar(Call(name, at, tuple(self.value(argument) for argument in node.expressions)))

    @staticmethod
    def unknown_function(name: str, at: int) -> Refusal:
        """Why there is no such function."""
        if name in NOT_DETERMINISTIC:
            return Refusal(at, f"{name} gives another result each time, and a batch may run twice", "use ROWTIME")
        if name in AGGREGATES_NOT_YET:
            return Refusal(at, f"aggregate {name} is not supported yet", f"supported: {', '.join(AGGREGATES)}")
        return Refusal(at, f"unknown function {name[:50]}", nearest(name, [*SCALARS, *AGGREGATES, "CAST"]))

    def _connector(self, node: exp.Expr, word: str, lets_through: bool) -> Value:
        operands: list[exp.Expr] = []
        left: exp.Expr = node
        while type(left) is type(node):  # a chain of ANDs is one list, however long
            operands.append(left.args["expression"])
            left = left.this
        operands.append(left)
        texts = []
        for operand in reversed(operands):
            value = self.value(operand, lets_through=lets_through)
            if value.type != BOOLEAN:
                raise Refusal(value.at, f"{word} needs conditions, this is {value.type.kind}")
            texts.append(value.text)
        return Value(f"({f' {word} '.join(texts)})", BOOLEAN, offset(node))

    def _arithmetic(self, node: exp.Expr, operator: str, at: int) -> Value:
        left, right = self.value(node.this), self.value(node.args["expression"])
        for value in (left, right):
            if not value.type.is_number:
                hint = "join strings with ||" if operator == "+" and value.type == STRING else "use CAST"
                raise Refusal(value.at, f"{operator} needs numbers, this is {value.type.kind}", hint)
        type_ = arithmetic(operator, left.type, right.type)
        if type_.kind == "decimal":
            texts = left.cast(as_decimal(left.type)), right.cast(as_decimal(right.type))
        else:
            texts = left.text, right.text
        if operator == "/" and type_.is_integer:
            divided = f"({texts[0]} div {texts[1]})"  # div is a bigint, whatever its operands
            return Value(f"CAST({divided} AS INT)" if type_ == INT else divided, type_, at)
        return Value(f"({texts[0]} {operator} {texts[1]})", type_, at)

    def _comparison(self, node: exp.Expr, operator: str, at: int, lets_through: bool) -> Value:
        left, right = self.value(node.this), self.value(node.args["expression"])
        self._comparable(left, right, ordered=operator not in ("=", "<>"))
        return condition(f"({left.text} {operator} {right.text})", at, lets_through)

    @staticmethod
    def _comparable(left: Value, right: Value, *, ordered: bool) -> None:
        for value in (left, right):
            if value.type == NULL:
                raise Refusal(value.at, "a comparison with NULL is never true", "use IS NULL or IS NOT NULL")
            if ordered and value.type == BOOLEAN:
                raise Refusal(value.at, "booleans have no order", "only = and <> compare booleans")
        if common(left.type, right.type) is None:
            raise Refusal(left.at, f"cannot compare {left.type.kind} with {right.type.kind}", "use CAST")

    def _negative(self, node: exp.Expr, at: int, _: bool) -> Value:
        inner = node.this
        if isinstance(inner, exp.Literal) and not inner.is_string:
            return number_literal(inner.this, negative=True, at=at)
        value = self.value(inner)
        if not value.type.is_number:
            raise Refusal(value.at, f"- needs a number, this is {value.type.kind}", "use CAST")
        return Value(f"(- {value.text})", value.type, at)

    def _not(self, node: exp.Expr, at: int, _: bool) -> Value:
        value = self.value(node.this)
        if value.type != BOOLEAN:
            raise Refusal(value.at, f"NOT needs a condition, this is {value.type.kind}")
        return Value(f"(NOT {value.text})", BOOLEAN, at)

    def _is_null(self, node: exp.Expr, at: int, _: bool) -> Value:
        return Value(f"({self.value(node.this).text} IS NULL)", BOOLEAN, at)

    def _between(self, node: exp.Expr, at: int, lets_through: bool) -> Value:
        value, low, high = (self.value(node.args[part]) for part in ("this", "low", "high"))
        self._comparable(value, low, ordered=True)
        self._comparable(value, high, ordered=True)
        return condition(f"({value.text} BETWEEN {low.text} AND {high.text})", at, lets_through)

    def _in(self, node: exp.Expr, at: int, lets_through: bool) -> Value:
        values = (self.value(node.this), *(self.value(item) for item in node.expressions))
        for item in values[1:]:
            self._comparable(values[0], item, ordered=False)
        type_ = common_type(values, "IN")
        texts = [value.cast(type_) for value in values]
        return condition(f"({texts[0]} IN ({', '.join(texts[1:])}))", at, lets_through)

    def _like(self, node: exp.Expr, at: int, lets_through: bool) -> Value:
        escape: str | None = None
        if isinstance(node, exp.Escape):
            mark = node.args["expression"]
            if not (isinstance(mark, exp.Literal) and mark.is_string and len(mark.this) == 1):
                raise Refusal(offset(mark), "ESCAPE needs a literal of one character")
            escape, node = str(mark.this), node.this
        value, pattern = self.value(node.this), node.args["expression"]
        if value.type != STRING:
            raise Refusal(value.at, f"LIKE needs a string, this is {value.type.kind}", "use CAST")
        if not (isinstance(pattern, exp.Literal) and pattern.is_string):
            raise Refusal(offset(pattern), "LIKE needs a literal pattern")
        text = string_literal(like_pattern(str(pattern.this), escape, offset(pattern)))
        return condition(f"({value.text} LIKE {text})", at, lets_through)

    def _case(self, node: exp.Expr, at: int, _: bool) -> Value:
        branches = node.args["ifs"]
        conditions = [self.boolean(branch.this, "WHEN") for branch in branches]
        results = [self.value(branch.args["true"]) for branch in branches]
        default = node.args.get("default")
        if default is not None:
            results.append(self.value(default))
        type_ = common_type(tuple(results), "CASE")
        texts = [result.cast(type_) for result in results]
        whens = " ".join(f"WHEN {when} THEN {then}" for when, then in zip(conditions, texts, strict=False))
        otherwise = f" ELSE {texts[-1]}" if default is not None else ""
        return Value(f"CASE {whens}{otherwise} END", type_, at)

    def _cast(self, node: exp.Expr, at: int, _: bool) -> Value:
        target: SqlType = named_type(*node.meta["type"])
        value = self.value(node.this)
        if not castable(value.type, target):
            raise Refusal(at, f"cannot cast {value.type.kind} to {target.kind}")
        return Value(f"CAST({value.text} AS {target.spark.upper()})", target, at)

    def _concat(self, node: exp.Expr, at: int, _: bool) -> Value:
        return concat(Call("||", at, (self.value(node.this), self.value(node.args["expression"]))))


def condition(text: str, at: int, lets_through: bool) -> Value:
    """A comparison, false instead of NULL where the difference shows."""
    return Value(text if lets_through else f"coalesce({text}, false)", BOOLEAN, at)


class RowExpressions(Expressions):
    """Expressions over the rows of a source. `alias` is the name that may stand before a column."""

    def __init__(self, source: Source, alias: str) -> None:
        self.source = source
        self.alias = alias
        self.place = "WHERE"
        self.types = {column.name: spark_type(column.type) for column in source.columns}

    def named(self, node: exp.Column) -> str:
        """The column's name, which is the source's or ROWTIME."""
        name, at = str(node.this.this), offset(node)
        if node.table and node.table != self.alias:
            hint = f"the only source here is {self.alias}"
            raise Refusal(at, f"{node.table} is not a source of this query", hint)
        if name in self.types or name == ROWTIME:
            return name
        if name in PSEUDO_COLUMNS:
            raise Refusal(at, f"column {name} is not supported yet", "only ROWTIME is")
        if name in NOT_DETERMINISTIC:
            raise self.unknown_function(name, at)
        if by_case := [f"`{known}`" for known in self.types if known.upper() == name.upper()]:
            raise Refusal(at, f"unknown column {name}", f"did you mean {by_case[0]}?")
        raise Refusal(at, f"unknown column {name}", nearest(name, [*self.types, ROWTIME]))

    def column(self, node: exp.Column) -> Value:
        name = self.named(node)
        return Value(quote(name), self.types.get(name, BIGINT), offset(node))

    def aggregate(self, node: exp.Anonymous) -> Value:
        raise Refusal(offset(node), f"an aggregate may not stand in {self.place}")


def spark_type(text: str) -> SqlType:
    """The type that a Spark type name from a plan stands for."""
    word, _, arguments = text.rstrip(")").partition("(")
    if not arguments:
        return SqlType(word)
    precision, scale = arguments.split(",")
    return SqlType(word, int(precision), int(scale))
