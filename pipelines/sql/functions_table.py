"""Table functions: of one row they make none or many. They stand in SELECT of a stream, outside of aggregations.

Each gives an array, whose items become rows. Several of one SELECT are zipped: the shorter ones are filled with NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipelines.plan import Output
from pipelines.sql.error import Refusal
from pipelines.sql.functions import Call, Value, at_most
from pipelines.sql.nodes import Call as CallNode
from pipelines.sql.nodes import Node, walk
from pipelines.sql.quoting import quote
from pipelines.sql.types import array_of

PREFIX = "__t_"
# Items of a CUBE_EXPLODE: twice as many rows for each.
CUBED_MAX = 16


def _explode(call: Call) -> Value:
    """The array itself."""
    return call.want(0, "array")


def _cube_explode(call: Call) -> Value:
    """Every choice of the array's items, the others NULL; from none to all. A NULL item is not chosen."""
    array = call.want(0, "array")
    text, size = array.text, f"size({array.text})"
    bit = f"shiftright(__m, {size} - 1 - __i) & 1"
    masks = f"sequence(0, CAST(shiftleft(1, {at_most(size, CUBED_MAX, 'CUBE_EXPLODE')}) AS INT) - 1)"
    known = f"forall(sequence(0, {size} - 1), __i -> ({bit}) = 0 OR get({text}, __i) IS NOT NULL)"
    cube = f"transform(filter({masks}, __m -> {known}), __m -> transform({text}, (__x, __i) -> CASE WHEN ({bit}) = 1 THEN __x END))"
    return call.result(f"CASE WHEN {size} > 0 THEN {cube} END", array_of(array.type))


TABLE_FUNCTIONS: dict[str, Callable[[Call], Value]] = {"CUBE_EXPLODE": _cube_explode, "EXPLODE": _explode}


def table_calls(node: Node) -> Iterable[CallNode]:
    """The calls of table functions in the tree."""
    return (part for part in walk(node) if isinstance(part, CallNode) and part.function in TABLE_FUNCTIONS)


class TableCalls:
    """The table functions that one SELECT calls. Equal calls are one."""

    def __init__(self) -> None:
        self._arrays: dict[str, Output] = {}

    @property
    def arrays(self) -> tuple[Output, ...]:
        """The arrays whose items are rows, in the order of their calls."""
        return tuple(self._arrays.values())

    def value(self, node: CallNode, arguments: tuple[Value, ...]) -> Value:
        """The item of the call's array that a row has."""
        inner = next((call for argument in node.arguments for call in table_calls(argument)), None)
        if inner is not None:
            raise Refusal(inner.at, f"Table functions cannot be nested: {node.function}({inner.function}())")
        if len(arguments) != 1:
            raise Refusal(node.at, f"{node.function} takes 1 argument, not {len(arguments)}")
        array = TABLE_FUNCTIONS[node.function](Call(node.function, node.at, arguments))
        made = Output(f"{PREFIX}{len(self._arrays)}", array.text, array.type.ddl)
        found = self._arrays.setdefault(array.text, made)
        return Value(quote(found.name), array.type.inner[0], node.at)
