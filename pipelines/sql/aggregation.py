"""Expressions over the result of a GROUP BY: group keys, aggregates and what is computed from them."""

from __future__ import annotations

from dataclasses import replace

from pipelines.plan import Aggregate, GroupKey, Source
from pipelines.sql.error import Refusal
from pipelines.sql.expression import Expressions, RowExpressions, misplaced_bound
from pipelines.sql.functions import AGGREGATES, NESTED_STATES, ORDERED_CALLS, UNDOABLE, Value
from pipelines.sql.names import WINDOW_BOUNDS
from pipelines.sql.nodes import Binary, Call, Column, Node, Null, Number, Paren, Star, Text, Truth, walk
from pipelines.sql.ordered import plan_ordered
from pipelines.sql.printer import print_tree
from pipelines.sql.quoting import quote
from pipelines.sql.tree import Item, Select
from pipelines.sql.types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DOUBLE,
    NULL,
    PRECISION_MAX,
    SCALE_MIN_KEPT,
    STRING,
    SqlType,
    decimal,
    parse_type,
)

CONSTANTS = (Text, Number, Null, Truth)


def has_aggregate(node: Node) -> bool:
    """Whether the tree calls an aggregate function."""
    return any(isinstance(part, Call) and part.function in AGGREGATES for part in walk(node))


def require_undoable(select: Select) -> None:
    """Refuse aggregates of a table that cannot take back what a row counted for before it changed."""
    wrong = [call for call in _calls(select) if call.function not in UNDOABLE]
    if wrong:
        names = list(dict.fromkeys(call.function for call in wrong))
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        told = f"The aggregation function{'s' if len(names) > 1 else ''} {listed} cannot be applied to a table source"
        hint = f"of a table: {', '.join(UNDOABLE)}"
        raise Refusal(wrong[0].at, f"{told}, only to a stream source.", hint)


def require_plain_state(select: Select, source: Source) -> None:
    """Refuse aggregates whose state ksqlDB cannot write in the source's format: KAFKA has one column, DELIMITED nothing
    nested."""
    form = source.value_format
    if form == "kafka" and select.group_by is not None:
        told = f"Source(s) {source.name} are using the 'KAFKA' value format. This format does not yet support GROUP BY."
        raise Refusal(select.group_by.at, told, "copy the stream into one of another format")
    for call in _calls(select) if form == "delimited" else ():
        if call.function in NESTED_STATES:
            told = "One of the functions used in the statement has an intermediate type that the value format can not handle."
            raise Refusal(call.at, f"{told} Please remove the function or change the format.", "VALUE_FORMAT='JSON'")


def _calls(select: Select) -> list[Call]:
    """The calls of aggregates in SELECT and HAVING."""
    nodes = [item.expression for item in select.items if isinstance(item, Item)]
    parts = (part for node in (*nodes, select.having) if node is not None for part in walk(node))
    return [part for part in parts if isinstance(part, Call) and part.function in AGGREGATES]


class ResultExpressions(Expressions):
    """Expressions over group keys and aggregates. Equal aggregate calls share one of `aggregates`.

    `item` is the whole item of SELECT for errors, None in HAVING. `keys` maps the text of a group expression to its
    key. Aggregates have the types that Spark computes: counts and sums of integers are bigint, averages double (a
    decimal is averaged as double, as ksqlDB does). If it is `windowed` there are the window's bounds too.
    """

    def __init__(self, rows: RowExpressions, keys: dict[str, GroupKey], *, windowed: bool = False) -> None:
        super().__init__()
        self.rows = rows
        self.keys = keys
        self.item: Node | None = None
        self.bounds = frozenset(WINDOW_BOUNDS if windowed else ())
        self.entries: dict[Aggregate, Aggregate] = {}

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """The aggregates so far, in the order of their first use."""
        return tuple(self.entries.values())

    def key(self, node: Node) -> GroupKey | None:
        """The group key that the tree is, None if it is none."""
        if has_aggregate(node) or any(self.is_bound(part) for part in walk(node)):
            return None
        return self.keys.get(self.rows.value(node).text)

    def value(self, node: Node, *, lets_through: bool = False) -> Value:
        if not isinstance(node, (*CONSTANTS, Paren)) and (key := self.key(node)):
            return Value(quote(key.name), parse_type(key.type), node.at)
        return super().value(node, lets_through=lets_through)

    def is_bound(self, node: Node) -> bool:
        """Whether the node is the start or the end of the window."""
        if not isinstance(node, Column) or node.name.text not in self.bounds:
            return False
        return node.source is None or node.source.text == self.rows.alias

    def column(self, node: Column) -> Value:
        if self.is_bound(node):
            if self.place == "HAVING":
                raise misplaced_bound(node.name.text, node.at)
            return Value(quote(node.name.text), BIGINT, node.at)
        name = self.rows.named(node)
        plural = "expression(s)" if self.item is not None else "expression"
        shown = print_tree(self.item) if self.item is not None else name
        shown = f"({shown})" if isinstance(self.item, Binary) else shown
        told = f"Non-aggregate {self.rows.place} {plural} not part of GROUP BY: {shown}"
        if self.item is not None:
            told = f"{told} Either add the column(s) to the GROUP BY or remove them from the SELECT."
        raise Refusal(node.at, f"column {name} is neither grouped nor aggregated: {told}", f"add {name} to GROUP BY")

    def aggregate(self, node: Call) -> Value:
        name, at, arguments = node.function, node.at, node.arguments
        if name == "COUNT" and not arguments:
            return self._entry("count_all", None, BIGINT, BIGINT, at)
        if name in ORDERED_CALLS and arguments and not isinstance(arguments[0], Star):
            for each in arguments:
                self._require_row(each, node)
            ordered = plan_ordered(node, [self.rows.value(each) for each in arguments])
            return Value(quote(self._shared(ordered.aggregate).name), ordered.type, at)
        if name == "CORRELATION":
            return self._correlation(node)
        if len(arguments) != 1:
            raise Refusal(at, f"{name} takes 1 argument, not {len(arguments)}")
        if isinstance(arguments[0], Star):
            if name != "COUNT":
                raise Refusal(arguments[0].at, f"{name}(*) is not possible", "only COUNT takes *")
            return self._entry("count_all", None, BIGINT, BIGINT, at)
        self._require_row(arguments[0], node)
        argument = self.rows.value(arguments[0])
        if name == "SUM_LIST":
            argument = listed_sum(argument)
            return self._entry("sum", argument.text, argument.type, argument.type, at)
        type_ = aggregate_type(name, argument)
        if type_ == BYTES:  # of hex digits the order is that of the bytes
            digits = self._entry(name.lower(), f"hex({argument.text})", STRING, STRING, at)
            return Value(f"unhex({digits.text})", BYTES, at)
        text = argument.cast(DOUBLE) if name == "AVG" and argument.type.kind == "decimal" else argument.text
        accumulated = BIGINT if name == "AVG" and argument.type.is_integer else type_
        return self._entry(name.lower(), text, type_, accumulated, at)

    def _correlation(self, node: Call) -> Value:
        """Pearson's, from six sums over the rows that have both numbers; NaN while there is none."""
        if len(node.arguments) != 2:
            raise Refusal(node.at, f"CORRELATION takes 2 arguments, not {len(node.arguments)}")
        x, y = (self._number(node, index).cast(DOUBLE) for index in range(2))
        both = f"({x}) IS NOT NULL AND ({y}) IS NOT NULL"
        count = self._entry("count", f"CASE WHEN {both} THEN 1 END", BIGINT, BIGINT, node.at).text
        texts = (x, y, f"({x}) * ({x})", f"({y}) * ({y})", f"({x}) * ({y})")
        sums = (self._entry("sum", f"CASE WHEN {both} THEN {text} END", DOUBLE, DOUBLE, node.at).text for text in texts)
        x1, y1, xx, yy, xy = sums
        spread = f"({count} * {xx} - {x1} * {x1}) * ({count} * {yy} - {y1} * {y1})"
        found = f"({count} * {xy} - {x1} * {y1}) / sqrt({spread})"
        text = f"CASE WHEN {count} > 1 AND {spread} > 0 THEN {found} ELSE DOUBLE('NaN') END"
        return Value(text, DOUBLE, node.at)

    def _number(self, node: Call, index: int) -> Value:
        self._require_row(node.arguments[index], node)
        value = self.rows.value(node.arguments[index])
        if not value.type.is_number:
            raise Refusal(value.at, f"{node.function} needs a number, this is {value.type.kind}", "use CAST")
        return value

    def _entry(self, function: str, argument: str | None, type_: SqlType, accumulated: SqlType, at: int) -> Value:
        entry = self._shared(Aggregate("", function, argument, accumulated.spark))
        return Value(quote(entry.name), type_, at)

    def _shared(self, wanted: Aggregate) -> Aggregate:
        """The aggregate that is like this one apart from its name, made if there is none."""
        return self.entries.setdefault(wanted, replace(wanted, name=f"A{len(self.entries)}"))

    @staticmethod
    def _require_row(argument: Node, call: Call) -> None:
        if has_aggregate(argument):
            told = f"Aggregate functions can not be nested: {print_tree(call)}"
            raise Refusal(argument.at, f"an aggregate may not stand in another's argument: {told}")


def aggregate_type(name: str, argument: Value) -> SqlType:
    """The type of the aggregate `name` over the argument."""
    type_ = argument.type
    if name == "COUNT":
        return BIGINT
    if type_ == NULL:
        raise Refusal(argument.at, f"{name} of NULL has no type")
    unaccepted = f"Function '{name}' does not accept parameters ({type_.sql})"
    if name in ("SUM", "AVG"):
        if not type_.is_number:
            message = f"{name} needs a number, this is {type_.kind}: {unaccepted}"
            raise Refusal(argument.at, message, "use CAST, or COUNT")
        if name == "AVG":
            return DOUBLE
        if type_.kind == "decimal":
            return decimal(min(type_.precision + 10, 38), type_.scale)
        return BIGINT if type_.is_integer else type_
    if type_ == BOOLEAN or type_.is_nested:
        raise Refusal(argument.at, f"{name} needs a number or string, this is {type_.kind}: {unaccepted}")
    return type_


def listed_sum(argument: Value) -> Value:
    """The sum of an array's numbers, as SUM adds it; nulls in it are passed over."""
    inner = argument.type.inner[0] if argument.type.kind == "array" else argument.type
    if argument.type.kind != "array" or not inner.is_number:
        message = f"SUM_LIST needs an array of numbers, this is {argument.type.sql}"
        raise Refusal(argument.at, f"{message}: Function 'SUM_LIST' does not accept parameters ({argument.type.sql})")
    type_ = aggregate_type("SUM", Value(argument.text, inner, argument.at))
    known = f"filter({argument.text}, __x -> __x IS NOT NULL)"
    if type_.kind == "decimal" and type_.precision == PRECISION_MAX:
        return Value(_exact_sum(known, type_), type_, argument.at)
    start = f"CAST(0 AS {type_.ddl.upper()})"
    added = f"CAST(__s + __x AS {type_.ddl.upper()})"
    return Value(f"aggregate({known}, {start}, (__s, __x) -> {added})", type_, argument.at)


def _exact_sum(known: str, type_: SqlType) -> str:
    """The sum of an array's decimals, of 38 digits; an error where one is too large on the way.

    Spark's `+` then keeps all digits behind the point only if they are few. So the point is moved, and moved back in the
    sum's text, since a product would lose digits again.
    """
    moved = max(type_.scale - SCALE_MIN_KEPT, 0)
    sum_ddl = decimal(PRECISION_MAX, type_.scale - moved).ddl.upper()
    item = f"CAST(__x AS {type_.ddl.upper()})"
    if moved:
        item = f"{item} * CAST('1{'0' * moved}' AS DECIMAL({moved + 1},0))"
    summed = f"aggregate({known}, CAST(0 AS {sum_ddl}), (__s, __x) -> CAST(__s + {item} AS {sum_ddl}), __s -> "
    total = f"coalesce(__s, raise_error('sum does not fit into {type_.sql}'))"
    if not moved:
        return f"{summed}{total})"
    return f"{summed}CAST(concat(CAST({total} AS STRING), 'E-{moved}') AS {type_.ddl.upper()}))"
