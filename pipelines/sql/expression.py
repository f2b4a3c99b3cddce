"""Expressions: from trees to typed Spark SQL text.

Two kinds of rows are computed over. `RowExpressions` reads the source's columns (WHERE, GROUP BY, arguments of
aggregates); the result's expressions, in `aggregation.py`, read group keys and aggregates.

A comparison with NULL is false in ksqlDB and NULL in Spark. Where a condition only lets rows through (WHERE, HAVING,
WHEN, under AND and OR) both mean the same, and the text is the plain comparison; elsewhere it is wrapped in
`coalesce(…, false)`. Parameter `lets_through` says which of the two a condition is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from pipelines.plan import Source
from pipelines.sql.casting import comparable
from pipelines.sql.coercion import coerced, fitted
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.functions import (
    AGGREGATES,
    NOT_DETERMINISTIC,
    SCALARS,
    Call,
    Value,
    call_scalar,
    concat,
    register,
)
from pipelines.sql.functions_bytes import BYTE_FUNCTIONS
from pipelines.sql.functions_collection import COLLECTIONS
from pipelines.sql.functions_json import JSON
from pipelines.sql.functions_math import MATH
from pipelines.sql.functions_table import TABLE_FUNCTIONS, TableCalls, table_calls
from pipelines.sql.functions_text import TEXT
from pipelines.sql.functions_time import TIMES, UNIT_FIRST, UNITS
from pipelines.sql.names import PSEUDO_COLUMNS, ROWTIME, WINDOW_BOUNDS
from pipelines.sql.nested import LAMBDAS, build_lambda_call, build_nested
from pipelines.sql.nodes import (
    ARITHMETIC,
    Between,
    Binary,
    Case,
    Cast,
    Column,
    Connective,
    Distinct,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Null,
    Number,
    Paren,
    Sign,
    Star,
    Text,
    Truth,
)
from pipelines.sql.nodes import (
    Call as CallNode,
)
from pipelines.sql.printer import print_tree
from pipelines.sql.pseudo_time import with_moments
from pipelines.sql.quoting import quote, string_literal
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
    parse_type,
)

for family in (TEXT, BYTE_FUNCTIONS, JSON, MATH, COLLECTIONS, TIMES):
    register(family)

# What every row of a source has besides its columns.
ROW_COLUMNS = {ROWTIME: BIGINT, "ROWPARTITION": INT, "ROWOFFSET": BIGINT}
COMPARISONS = {
    "=": "EQUAL",
    "<>": "NOT_EQUAL",
    "<": "LESS_THAN",
    "<=": "LESS_THAN_OR_EQUAL",
    ">": "GREATER_THAN",
    ">=": "GREATER_THAN_OR_EQUAL",
}
INT_MAX, BIGINT_MAX = 2**31 - 1, 2**63 - 1
NUMBER_LENGTH_MAX = 100


def number_literal(text: str, *, negative: bool, at: int) -> Value:
    """A number: int, else bigint; with a point decimal; with an exponent double."""
    sign = "-" if negative else ""
    if len(text) > NUMBER_LENGTH_MAX:
        raise Refusal(at, f"the number has more than {NUMBER_LENGTH_MAX} digits")
    if "e" in text.lower():
        double = float(sign + text)
        if math.isinf(double):
            raise Refusal(at, f"{text} is too large for a double: Number overflows DOUBLE: {text}")
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
        told = f"Invalid numeric literal: {text}"
        raise Refusal(at, f"{number} is too large for a bigint: {told}", "write it with a point or an exponent")
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


def computed_pattern(text: str, escape: str | None) -> str:
    """What stands behind LIKE for a pattern that is computed. Before other characters the escape character is nothing."""
    if escape is None:
        return f"replace({text}, '\\\\', '\\\\\\\\')"
    mark = re.escape(escape)
    meant = string_literal(f"({mark}[%_{mark}])|{mark}")
    return f"regexp_replace({text}, {meant}, '$1') ESCAPE {string_literal(escape)}"


class Expressions:
    """Renders a tree. Subclasses say what columns and aggregates are.

    `bound` are the names that lambda functions give, `depth` how many of those there were, `place` is the clause.
    """

    def __init__(self) -> None:
        self.bound: dict[str, Value] = {}
        self.depth = 0
        self.place = "SELECT"

    def column(self, node: Column) -> Value:
        """The value of a column."""
        raise NotImplementedError

    def aggregate(self, node: CallNode) -> Value:
        """The value of a call of an aggregate function."""
        raise NotImplementedError

    def table_function(self, node: CallNode) -> Value:
        """The value of a call of a table function."""
        raise Refusal(node.at, "Table functions cannot be used with aggregations.")

    def boolean(self, node: Node, what: str) -> str:
        """The text of a condition that lets rows through; `what` names it in the error."""
        value = self.value(node, lets_through=True)
        if value.type != BOOLEAN:
            told = f"Should evaluate to boolean but is {print_tree(node)} ({value.type.sql}) instead"
            message = f"{what} needs a condition, this is {value.type.kind}"
            raise Refusal(value.at, f"{message}: Type error in {what} expression: {told}", "compare it with something")
        return value.text

    def coerced(self, values: Sequence[Value], nodes: Sequence[Node]) -> tuple[list[Value], SqlType]:
        """The values with one type that holds all of them."""
        return coerced(values, nodes, lambda text: signed_literal(text, 0))

    def told(self, message: str) -> str:
        """What ksqlDB says of an expression, with the clause in which it stands."""
        return f"Error in {self.place} expression: {message}" if self.place in ("WHERE", "HAVING") else message

    def value(self, node: Node, *, lets_through: bool = False) -> Value:
        """The typed text of the tree."""
        match node:
            case Paren():
                return self.value(node.inner, lets_through=lets_through)
            case Column():
                bound = self.bound.get(node.name.text) if node.source is None else None
                return self.column(node) if bound is None else replace(bound, at=node.at)
            case Text():
                return Value(string_literal(node.value), STRING, node.at, words=node.value)
            case Number():
                return number_literal(node.text, negative=False, at=node.at)
            case Null():
                return Value("NULL", NULL, node.at)
            case Truth():
                return Value("true" if node.value else "false", BOOLEAN, node.at)
            case CallNode():
                return self._call(node)
            case Sign():
                return self._sign(node)
            case Case():
                return self._case(node)
            case Cast():
                return self._cast(node)
            case Binary(operator="||"):
                return concat(Call("||", node.at, (self.value(node.left), self.value(node.right))))
            case Binary() if node.operator in ARITHMETIC:
                return self._arithmetic(node)
            case _:
                return self._condition(node, lets_through)

    def _condition(self, node: Node, lets_through: bool) -> Value:
        match node:
            case Connective():
                return self._connective(node, lets_through)
            case Not():
                return self._not(node)
            case Binary():
                return self._comparison(node, lets_through)
            case IsNull():
                text = f"({self.value(node.operand).text} IS NULL)"
                return negated(Value(text, BOOLEAN, node.at), node.negated)
            case Between():
                return self._between(node, lets_through)
            case In():
                return self._in(node, lets_through)
            case Like():
                return self._like(node, lets_through)
            case Distinct():
                return self._distinct(node)
        if (nested := build_nested(node, self)) is not None:
            return nested
        raise Refusal(node.at, f"{type(node).__name__.lower()} is not supported here")

    def _call(self, node: CallNode) -> Value:
        name = node.function
        if name in AGGREGATES:
            return self.aggregate(node)
        if name in TABLE_FUNCTIONS:
            return self.table_function(node)
        if name in LAMBDAS:
            return build_lambda_call(node, self)
        if name not in SCALARS:
            raise self.unknown_function(name, node.at)
        for argument in node.arguments:
            if isinstance(argument, Star):
                told = Call(name, node.at, ()).unaccepted()
                raise Refusal(argument.at, f"{name}(*) is not possible: {told}.", "only COUNT takes *")
        arguments = _with_unit(node.arguments) if name in UNIT_FIRST else node.arguments
        return call_scalar(Call(name, node.at, tuple(self.value(argument) for argument in arguments)))

    @staticmethod
    def unknown_function(name: str, at: int) -> Refusal:
        """Why there is no such function."""
        if name in NOT_DETERMINISTIC:
            return Refusal(at, f"{name} gives another result each time, and a batch may run twice", "use ROWTIME")
        hint = nearest(name, [*SCALARS, *AGGREGATES, *TABLE_FUNCTIONS, "CAST"])
        return Refusal(at, f"Can't find any functions with the name '{name[:50]}'", hint)

    def _connective(self, node: Connective, lets_through: bool) -> Value:
        texts = []
        for operand in node.operands:
            value = self.value(operand, lets_through=lets_through)
            if value.type != BOOLEAN:
                raise Refusal(value.at, f"{node.word} needs conditions, this is {value.type.kind}")
            texts.append(value.text)
        return Value(f"({f' {node.word} '.join(texts)})", BOOLEAN, node.at)

    def _arithmetic(self, node: Binary) -> Value:
        operator, left, right = node.operator, self.value(node.left), self.value(node.right)
        if operator == "+" and left.type == right.type == STRING:
            return Value(f"concat({left.text}, {right.text})", STRING, node.at)
        for value in (left, right):
            if not value.type.is_number:
                hint = "join strings with ||" if operator == "+" and value.type == STRING else "use CAST"
                kinds = " ".join(each.type.sql.partition("(")[0].partition("<")[0] for each in (left, right))
                shown = f"({print_tree(node.left)} {operator} {print_tree(node.right)})"
                told = self.told(f"Error processing expression: {shown}. Unsupported arithmetic types. {kinds}")
                raise Refusal(value.at, f"{operator} needs numbers, this is {value.type.kind}: {told}", hint)
        type_ = arithmetic(operator, left.type, right.type)
        if type_.kind == "decimal":
            texts = left.cast(as_decimal(left.type)), right.cast(as_decimal(right.type))
        else:
            texts = left.text, right.text
        if type_ == DOUBLE and operator in ("/", "%") and not right.literal:
            return Value(_divided(operator, left.cast(DOUBLE), right.cast(DOUBLE)), type_, node.at)
        if operator == "/" and type_.is_integer:
            divided = f"({texts[0]} div {texts[1]})"  # div is a bigint, whatever its operands
            return Value(f"CAST({divided} AS INT)" if type_ == INT else divided, type_, node.at)
        return Value(f"({texts[0]} {operator} {texts[1]})", type_, node.at)

    def _comparison(self, node: Binary, lets_through: bool) -> Value:
        operator, left, right = node.operator, self.value(node.left), self.value(node.right)
        if self.place == "WHERE":
            left, right = with_moments((node.left, node.right), (left, right))
        try:
            left, right = self._comparable(left, right, ordered=operator not in ("=", "<>"))
        except Refusal as refusal:
            a, b = (print_tree(part) for part in (node.left, node.right))
            told = f"Cannot compare {a} ({left.type.sql}) to {b} ({right.type.sql}) with {COMPARISONS[operator]}"
            if NULL in (left.type, right.type):
                told = f"Comparison with NULL not supported: {a} {operator} {b}"
            raise Refusal(refusal.at, f"{refusal.message}: {self.told(told)}", refusal.hint) from refusal
        return condition(f"({left.text} {operator} {right.text})", node.at, lets_through)

    def _distinct(self, node: Distinct) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if NULL not in (left.type, right.type):
            left, right = self._comparable(left, right, ordered=False)
        same = Value(f"({left.text} <=> {right.text})", BOOLEAN, node.at)
        return negated(same, not node.negated)

    @staticmethod
    def _comparable(left: Value, right: Value, *, ordered: bool) -> tuple[Value, Value]:
        """The two as they can be compared: a string beside a time is read as one, a date as its midnight."""
        for value in (left, right):
            if value.type == NULL:
                raise Refusal(value.at, "a comparison with NULL is never true", "use IS NULL or IS NOT NULL")
            if ordered and value.type == BOOLEAN:
                raise Refusal(value.at, "booleans have no order", "only = and <> compare booleans")
        both = common(left.type, right.type)
        if left.type.is_nested or right.type.is_nested:
            if both is None or ordered:
                raise Refusal(left.at, f"{left.type.sql} cannot be compared", "compare what is in it")
            return _as_entries(left, both), _as_entries(right, both)
        if both is not None:
            return left, right
        for a, b in ((left, right), (right, left)):
            if a.type.is_time and (b.type == STRING or (a.type.kind, b.type.kind) == ("timestamp", "date")):
                read = Value(b.cast(a.type), a.type, b.at)
                return (left, read) if b is right else (read, right)
        raise Refusal(left.at, f"cannot compare {left.type.kind} with {right.type.kind}", "use CAST")

    def _sign(self, node: Sign) -> Value:
        inner = node.operand
        if node.operator == "+":
            return self.value(inner)
        if isinstance(inner, Number):
            return number_literal(inner.text, negative=True, at=node.at)
        value = self.value(inner)
        if not value.type.is_number:
            raise Refusal(value.at, f"- needs a number, this is {value.type.kind}", "use CAST")
        return Value(f"(- {value.text})", value.type, node.at)

    def _not(self, node: Not) -> Value:
        value = self.value(node.operand)
        if value.type != BOOLEAN:
            raise Refusal(value.at, f"NOT needs a condition, this is {value.type.kind}")
        return negated(Value(value.text, BOOLEAN, node.at), True)

    def _between(self, node: Between, lets_through: bool) -> Value:
        value, low, high = self.value(node.operand), self.value(node.low), self.value(node.high)
        if self.place == "WHERE":
            value, low, high = with_moments((node.operand, node.low, node.high), (value, low, high))
        value, low = self._comparable(value, low, ordered=True)
        value, high = self._comparable(value, high, ordered=True)
        plain = lets_through and not node.negated
        found = condition(f"({value.text} BETWEEN {low.text} AND {high.text})", node.at, plain)
        return negated(found, node.negated)

    def _in(self, node: In, lets_through: bool) -> Value:
        operand = self.value(node.operand)
        try:
            items = [fitted(item, operand.type) for item in node.items]
            listed = [(value, item) for item in items if (value := self.value(item)).type != NULL]
            if not listed:
                return Value("false", BOOLEAN, node.at)
            found, others = zip(*listed, strict=True)
            values, type_ = self.coerced((operand, *found), (node.operand, *others))
        except Refusal as refusal:
            place = "Invalid Predicate: " if self.place in ("WHERE", "HAVING") else ""
            raise Refusal(refusal.at, f"{place}{refusal.message}", refusal.hint) from refusal
        texts = [_as_entries(value, type_).text if type_.is_nested else value.cast(type_) for value in values]
        plain = lets_through and not node.negated
        return negated(condition(f"({texts[0]} IN ({', '.join(texts[1:])}))", node.at, plain), node.negated)

    def _like(self, node: Like, lets_through: bool) -> Value:
        escape: str | None = None
        if (mark := node.escape) is not None:
            if not (isinstance(mark, Text) and len(mark.value) == 1):
                raise Refusal(mark.at, "ESCAPE needs a literal of one character")
            escape = mark.value
        value, pattern = self.value(node.operand), node.pattern
        if value.type != STRING:
            raise Refusal(value.at, f"LIKE needs a string, this is {value.type.kind}", "use CAST")
        if isinstance(pattern, Text):
            text = string_literal(like_pattern(pattern.value, escape, pattern.at))
        else:
            computed = self.value(pattern)
            if computed.type != STRING:
                raise Refusal(pattern.at, f"LIKE needs a string as its pattern, this is {computed.type.kind}")
            text = computed_pattern(computed.text, escape)
        plain = lets_through and not node.negated
        return negated(condition(f"({value.text} LIKE {text})", node.at, plain), node.negated)

    def _case(self, node: Case) -> Value:
        for call in table_calls(node):
            raise Refusal(call.at, f"Table functions cannot be used in CASE: {print_tree(node)}")
        conditions = [self.boolean(branch.condition, "WHEN") for branch in node.branches]
        results = [self.value(branch.result) for branch in node.branches]
        if node.default is not None:
            results.append(self.value(node.default))
        if all(result.type == NULL for result in results):
            told = "Invalid Case expression. All case branches have NULL type"
            raise Refusal(results[0].at, f"CASE has no type: {told}", "give NULL a type: CAST(NULL AS STRING)")
        nodes = [branch.result for branch in node.branches]
        results, type_ = self.coerced(results, nodes if node.default is None else [*nodes, node.default])
        texts = [result.cast(type_) for result in results]
        whens = " ".join(f"WHEN {when} THEN {then}" for when, then in zip(conditions, texts, strict=False))
        otherwise = f" ELSE {texts[-1]}" if node.default is not None else ""
        return Value(f"CASE {whens}{otherwise} END", type_, node.at)

    def _cast(self, node: Cast) -> Value:
        target: SqlType = named_type(node.type)
        value = self.value(node.operand)
        if not castable(value.type, target):
            clause = "Select" if self.place == "SELECT" else "Predicate"
            message = f"Invalid {clause}: Cast of {value.type.sql} to {target.sql} is not supported"
            raise Refusal(node.at, f"cannot cast {value.type.kind} to {target.kind}: {message}")
        return Value(value.cast(target), target, node.at)


def _with_unit(arguments: tuple[Node, ...]) -> tuple[Node, ...]:
    """Arguments of which the first is a unit of time, a word of its own there."""
    match arguments:
        case (Column(name=name, source=None, at=at), *rest) if name.text.upper() in UNITS:
            return (Text(name.text, at=at), *rest)
    return arguments


def _as_entries(value: Value, type_: SqlType) -> Value:
    """An array, a map or a struct as it can be compared: a map as its entries, ordered by key."""
    return Value(comparable(value.cast(type_), type_), type_, value.at)


def _divided(operator: str, left: str, right: str) -> str:
    """A double by another as Java divides them: by zero it is infinite, or NaN, where Spark has NULL.

    The two are named, so that nested divisions do not repeat their operands.
    """
    if operator == "%":
        zero = "WHEN __d.b = 0 AND __d.a IS NOT NULL THEN DOUBLE('NaN')"
    else:
        infinite = "WHEN __d.a > 0 THEN DOUBLE('Infinity') WHEN __d.a < 0 THEN DOUBLE('-Infinity')"
        zero = f"WHEN __d.b = 0 THEN CASE WHEN isnan(__d.a) THEN __d.a {infinite} WHEN __d.a = 0 THEN DOUBLE('NaN') END"
    found = f"CASE {zero} ELSE __d.a {operator} __d.b END"
    return f"transform(array(named_struct('a', {left}, 'b', {right})), __d -> {found})[0]"


def signed_literal(text: str, at: int) -> Value:
    """The number that the text is."""
    return number_literal(text.lstrip("-+"), negative=text[:1] == "-", at=at)


def negated(value: Value, is_negated: bool) -> Value:
    """The condition, or NOT of it."""
    return Value(f"(NOT {value.text})", BOOLEAN, value.at) if is_negated else value


def misplaced_bound(name: str, at: int) -> Refusal:
    """Why the start or the end of a window may not stand here."""
    told = f"Window bounds column {name} can only be used in the SELECT clause of windowed aggregations"
    told = f"{told} and can not be passed to aggregate functions"
    return Refusal(at, f"window bound {name} may only stand in SELECT of a windowed aggregation: {told}")


def condition(text: str, at: int, lets_through: bool) -> Value:
    """A comparison, false instead of NULL where the difference shows."""
    return Value(text if lets_through else f"coalesce({text}, false)", BOOLEAN, at)


class RowExpressions(Expressions):
    """Expressions over the rows of a source. `alias` is the name that may stand before a column.

    `places` is whether any of them asks for a record's partition or offset. `tables` are the table functions that
    SELECT calls, where it may.
    """

    def __init__(self, source: Source, alias: str) -> None:
        super().__init__()
        self.source = source
        self.alias = alias
        self.places = False
        self.tables: TableCalls | None = None
        self.types = {column.name: parse_type(column.type) for column in source.columns}

    def named(self, node: Column) -> str:
        """The column's name, which is the source's or ROWTIME."""
        name, at = node.name.text, node.at
        if node.source is not None and node.source.text != self.alias:
            hint = f"the only source here is {self.alias}"
            told = f"'{node.source.text}' is not a valid stream/table name or alias."
            raise Refusal(at, f"{node.source.text} is not a source of this query: {told}", hint)
        if name in self.types or name in ROW_COLUMNS or (name in WINDOW_BOUNDS and self.source.window_type):
            return name
        if name in WINDOW_BOUNDS:
            raise misplaced_bound(name, at)
        if name in PSEUDO_COLUMNS:
            raise Refusal(
                at, f"{self.place} column '{name}' cannot be resolved: it is not supported here", "ROWTIME is"
            )
        if name in NOT_DETERMINISTIC:
            raise self.unknown_function(name, at)
        message = f"{self.place} column '{name}' cannot be resolved"
        if by_case := [f"`{known}`" for known in self.types if known.upper() == name.upper()]:
            raise Refusal(at, message, f"did you mean {by_case[0]}?")
        raise Refusal(at, message, nearest(name, [*self.types, ROWTIME]))

    def column(self, node: Column) -> Value:
        name = self.named(node)
        self.places = self.places or name in ("ROWPARTITION", "ROWOFFSET")
        return Value(quote(name), self.types.get(name, ROW_COLUMNS.get(name, BIGINT)), node.at)

    def aggregate(self, node: CallNode) -> Value:
        told = f"{self.place} does not support aggregate functions: {node.function} is an aggregate function"
        message = f"an aggregate may not stand in {self.place}: {told}"
        if self.place == "SELECT":
            message = f"Use of aggregate function {node.function} requires a GROUP BY clause"
        raise Refusal(node.at, message)

    def table_function(self, node: CallNode) -> Value:
        if self.tables is None:
            return super().table_function(node)
        if self.place != "SELECT":
            raise Refusal(node.at, f"Table functions cannot be used in {self.place}", "only in SELECT")
        return self.tables.value(node, tuple(self.value(argument) for argument in node.arguments))
