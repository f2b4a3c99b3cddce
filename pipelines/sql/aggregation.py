"""Expressions over the result of a GROUP BY: group keys, aggregates and what is computed from them."""

from __future__ import annotations

from dataclasses import replace

from pipelines.plan import Aggregate, GroupKey
from pipelines.sql.error import Refusal
from pipelines.sql.expression import Expressions, RowExpressions
from pipelines.sql.functions import AGGREGATES, ORDERED_CALLS, UNDOABLE, Value
from pipelines.sql.names import WINDOW_BOUNDS, quote
from pipelines.sql.nodes import Call, Column, Node, Null, Number, Paren, Star, Text, Truth, walk
from pipelines.sql.ordered import plan_ordered
from pipelines.sql.printer import print_tree
from pipelines.sql.tree import Item, Select
from pipelines.sql.types import BIGINT, BOOLEAN, DOUBLE, NULL, SqlType, decimal, parse_type

CONSTANTS = (Text, Number, Null, Truth)


def has_aggregate(node: Node) -> bool:
    """Whether the tree calls an aggregate function."""
    return any(isinstance(part, Call) and part.function in AGGREGATES for part in walk(node))


def require_undoable(select: Select) -> None:
    """Refuse aggregates of a table that cannot take back what a row counted for before it changed."""
    nodes = [item.expression for item in select.items if isinstance(item, Item)]
    calls = [part for node in (*nodes, select.having) if node is not None for part in walk(node)]
    wrong = [part for part in calls if isinstance(part, Call) and part.function in AGGREGATES]
    wrong = [call for call in wrong if call.function not in UNDOABLE]
    if wrong:
        names = list(dict.fromkeys(call.function for call in wrong))
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        told = f"The aggregation function{'s' if len(names) > 1 else ''} {listed} cannot be applied to a table source"
        hint = f"of a table: {', '.join(UNDOABLE)}"
        raise Refusal(wrong[0].at, f"{told}, only to a stream source.", hint)


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
        return isinstance(node, Column) and node.source is None and node.name.text in self.bounds

    def column(self, node: Column) -> Value:
        if self.is_bound(node):
            return Value(quote(node.name.text), BIGINT, node.at)
        name = self.rows.named(node)
        plural = "expression(s)" if self.item is not None else "expression"
        shown = print_tree(self.item) if self.item is not None else name
        told = f"Non-aggregate {self.rows.place} {plural} not part of GROUP BY: {shown}"
        raise Refusal(node.at, f"column {name} is neither grouped nor aggregated: {told}", f"add {name} to GROUP BY")

    def aggregate(self, node: Call) -> Value:
        name, at, arguments = node.function, node.at, node.arguments
        if name == "COUNT" and not arguments:
            return self._entry("count_all", None, BIGINT, BIGINT, at)
        if name in ORDERED_CALLS and arguments and not isinstance(arguments[0], Star):
            self._require_row(arguments[0])
            ordered = plan_ordered(node, self.rows.value(arguments[0]))
            return Value(quote(self._shared(ordered.aggregate).name), ordered.type, at)
        if len(arguments) != 1:
            raise Refusal(at, f"{name} takes 1 argument, not {len(arguments)}")
        if isinstance(arguments[0], Star):
            if name != "COUNT":
                raise Refusal(arguments[0].at, f"{name}(*) is not possible", "only COUNT takes *")
            return self._entry("count_all", None, BIGINT, BIGINT, at)
        self._require_row(arguments[0])
        argument = self.rows.value(arguments[0])
        type_ = aggregate_type(name, argument)
        text = argument.cast(DOUBLE) if name == "AVG" and argument.type.kind == "decimal" else argument.text
        accumulated = BIGINT if name == "AVG" and argument.type.is_integer else type_
        return self._entry(name.lower(), text, type_, accumulated, at)

    def _entry(self, function: str, argument: str | None, type_: SqlType, accumulated: SqlType, at: int) -> Value:
        entry = self._shared(Aggregate("", function, argument, accumulated.spark))
        return Value(quote(entry.name), type_, at)

    def _shared(self, wanted: Aggregate) -> Aggregate:
        """The aggregate that is like this one apart from its name, made if there is none."""
        return self.entries.setdefault(wanted, replace(wanted, name=f"A{len(self.entries)}"))

    @staticmethod
    def _require_row(argument: Node) -> None:
        if has_aggregate(argument):
            raise Refusal(argument.at, "an aggregate may not stand in another's argument")


def aggregate_type(name: str, argument: Value) -> SqlType:
    """The type of the aggregate `name` over the argument."""
    type_ = argument.type
    if type_ == NULL:
        raise Refusal(argument.at, f"{name} of NULL has no type")
    if name == "COUNT":
        return BIGINT
    if name in ("SUM", "AVG"):
        if not type_.is_number:
            raise Refusal(argument.at, f"{name} needs a number, this is {type_.kind}", "use CAST, or COUNT")
        if name == "AVG":
            return DOUBLE
        if type_.kind == "decimal":
            return decimal(min(type_.precision + 10, 38), type_.scale)
        return BIGINT if type_.is_integer else type_
    if type_ == BOOLEAN:
        raise Refusal(argument.at, f"{name} needs a number or string, this is boolean")
    return type_
