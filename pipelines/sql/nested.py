"""Arrays, maps, structs and lambda functions: from trees to typed Spark SQL text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pipelines.sql.error import Refusal, nearest
from pipelines.sql.failing import failure
from pipelines.sql.functions import Value
from pipelines.sql.nodes import ArrayOf, Call, Field, Index, Lambda, MapOf, Node, StructOf
from pipelines.sql.quoting import quote, string_literal
from pipelines.sql.types import BOOLEAN, INT, STRING, SqlType, alike, array_of, map_of

if TYPE_CHECKING:
    from pipelines.sql.expression import Expressions

# ksqlDB says so too.
SEE = "(see https://github.com/confluentinc/ksql/issues/4239)."
CASTED = "As a workaround, you may cast a NULL value to the desired type."
_Made = TypeVar("_Made")
LAMBDAS = ("TRANSFORM", "FILTER", "REDUCE")


def build_nested(node: Node, over: Expressions) -> Value | None:
    """The value of a node of this file's, None for any other."""
    match node:
        case Index():
            return _index(node, over)
        case Field():
            return _field(node, over)
        case ArrayOf():
            return _array(node, over)
        case MapOf():
            return _map(node, over)
        case StructOf():
            return _struct(node, over)
    return None


def _index(node: Index, over: Expressions) -> Value:
    operand, index = over.value(node.operand), over.value(node.index)
    if operand.type.kind == "map":
        key, value = operand.type.inner
        return Value(f"element_at({operand.text}, {index.cast(key)})", value, node.at)
    if operand.type.kind != "array":
        raise Refusal(node.at, f"[ ] needs an array or a map, this is {operand.type.sql}")
    if not index.type.is_integer:
        raise Refusal(node.index.at, f"an array's index is a whole number, this is {index.type.sql}")
    place = index.cast(INT)
    found = f"element_at({operand.text}, {place})"
    if index.literal == 0:
        found = f"CAST(NULL AS {operand.type.inner[0].ddl})"
    elif index.literal is None:
        found = f"CASE WHEN {place} <> 0 THEN {found} END"
    return Value(found, operand.type.inner[0], node.at)


def _field(node: Field, over: Expressions) -> Value:
    operand = over.value(node.operand)
    if operand.type.kind != "struct":
        raise Refusal(node.at, f"-> needs a struct, this is {operand.type.sql}")
    fields = dict(zip(operand.type.names, operand.type.inner, strict=True))
    if node.name.text not in fields:
        hint = nearest(node.name.text, fields)
        raise Refusal(node.name.at, f"Could not find field '{node.name.text}' in a struct", hint)
    return Value(f"{operand.text}.{quote(node.name.text)}", fields[node.name.text], node.at)


def _array(node: ArrayOf, over: Expressions) -> Value:
    if not node.items:
        raise Refusal(node.at, f"Array constructor cannot be empty. Please supply at least one element {SEE}")
    values = [over.value(item) for item in node.items]
    values, type_ = over.coerced(values, node.items)
    if type_.kind == "null":
        told = f"Cannot construct an array with all NULL elements {SEE} {CASTED}"
        raise Refusal(values[0].at, told, "give NULL a type: CAST(NULL AS STRING)")
    return Value(f"array({', '.join(value.cast(type_) for value in values)})", array_of(type_), node.at)


def _map(node: MapOf, over: Expressions) -> Value:
    if not node.keys:
        told = f"Map constructor cannot be empty. Please supply at least one key value pair {SEE}"
        raise Refusal(node.at, told)
    keys, values = (tuple(over.value(part) for part in parts) for parts in (node.keys, node.values))
    for each in keys:
        if each.type != STRING:
            raise Refusal(
                each.at, f"Only STRING keys are supported in maps but got: [{', '.join(k.type.sql for k in keys)}]"
            )
    items, value = over.coerced(values, node.values)
    if value.kind == "null":
        hint = "give NULL a type: CAST(NULL AS STRING)"
        raise Refusal(items[0].at, f"Cannot construct a map with all NULL values {SEE} {CASTED}", hint)
    # A key that is null is the text `null`, as JSON writes it.
    names = (k.text if k.words is not None else f"coalesce({k.text}, 'null')" for k in keys)
    pairs = (f"{name}, {v.cast(value)}" for name, v in zip(names, items, strict=True))
    return Value(f"map({', '.join(pairs)})", map_of(STRING, value), node.at)


def _struct(node: StructOf, over: Expressions) -> Value:
    values = [over.value(part) for part in node.values]
    names = tuple(name.text for name in node.names)
    if alike(names):
        raise Refusal(node.at, "Duplicate field names found in STRUCT")
    for value in values:
        if value.type.kind == "null":
            raise Refusal(value.at, "NULL has no type", "give it one: CAST(NULL AS STRING)")
    if not names:
        raise Refusal(node.at, "STRUCT needs a field", "STRUCT(name := value)")
    pairs = (f"{string_literal(name)}, {value.text}" for name, value in zip(names, values, strict=True))
    type_ = SqlType("struct", inner=tuple(value.type for value in values), names=names)
    return Value(f"named_struct({', '.join(pairs)})", type_, node.at)


def build_lambda_call(node: Call, over: Expressions) -> Value:
    """TRANSFORM, FILTER or REDUCE of an array or a map."""
    if len(node.arguments) < 2 or isinstance(node.arguments[0], Lambda):
        raise Refusal(node.at, f"{node.function} takes an array or a map, and lambda functions")
    operand = over.value(node.arguments[0])
    if operand.type.kind not in ("array", "map"):
        raise Refusal(operand.at, f"{node.function} needs an array or a map, this is {operand.type.sql}")
    rest = node.arguments[1:]
    if node.function == "REDUCE":
        return _reduce(node, operand, rest, over)
    lambdas = [argument for argument in rest if isinstance(argument, Lambda)]
    wanted = 2 if node.function == "TRANSFORM" and operand.type.kind == "map" else 1
    if len(lambdas) != len(rest) or len(rest) != wanted:
        raise Refusal(node.at, f"{node.function} of {operand.type.sql} takes {wanted} lambda functions")
    if wanted == 2:
        return _transformed_map(node, operand, lambdas, over)
    bodies = [_body(each, operand.type.inner, over) for each in lambdas]
    texts = [f"{_listed(names)} -> {body.text}" for names, body in bodies]
    if node.function == "FILTER" and bodies[0][1].type != BOOLEAN:
        raise Refusal(lambdas[0].at, "FILTER needs a condition")
    if node.function == "TRANSFORM":
        name, type_ = "transform", array_of(bodies[0][1].type)
    else:
        name, type_ = "filter" if operand.type.kind == "array" else "map_filter", operand.type
    return Value(_unless_failed(f"{name}({operand.text}, {texts[0]})", operand, lambdas, over), type_, node.at)


def _unless_failed(text: str, operand: Value, lambdas: list[Lambda], over: Expressions) -> str:
    """The text, or NULL where a lambda function fails for one of the items or entries."""
    over.depth += 1
    item = f"__v{over.depth}_0"
    names, items = [item], operand.text
    if operand.type.kind == "map":
        names, items = [f"{item}.key", f"{item}.value"], f"map_entries({operand.text})"
    found = [_bound(each, names, operand.type.inner, over, failure) for each in lambdas]
    failures = " OR ".join(each for each in found if each is not None)
    return f"CASE WHEN NOT exists({items}, {item} -> {failures}) THEN {text} END" if failures else text


def _transformed_map(node: Call, operand: Value, lambdas: list[Lambda], over: Expressions) -> Value:
    """TRANSFORM of a map: both functions take an entry as it was. NULL where two new keys are the same or one is NULL."""
    over.depth += 1
    entry = f"__v{over.depth}_0"
    bodies = [_bound_body(each, [f"{entry}.key", f"{entry}.value"], operand.type.inner, over) for each in lambdas]
    type_ = map_of(bodies[0].type, bodies[1].type)
    made = (
        f"transform(map_entries({operand.text}), {entry} -> struct({bodies[0].text} AS key, {bodies[1].text} AS value))"
    )
    entries = f"__t{over.depth}"
    keys = f"array_compact(transform({entries}, {entry} -> {entry}.key))"
    proper = f"CASE WHEN size(array_distinct({keys})) = size({entries}) THEN map_from_entries({entries}) END"
    text = _unless_failed(f"transform(array({made}), {entries} -> {proper})[0]", operand, lambdas, over)
    return Value(text, type_, node.at)


def _listed(names: list[str]) -> str:
    """The names as Spark has them: one stands alone."""
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _reduce(node: Call, operand: Value, rest: tuple[Node, ...], over: Expressions) -> Value:
    if len(rest) != 2 or not isinstance(rest[1], Lambda) or isinstance(rest[0], Lambda):
        raise Refusal(node.at, "REDUCE takes an array or a map, a first value and a lambda function")
    state = over.value(rest[0])
    inner, lambda_ = operand.type.inner, rest[1]
    over.depth += 1
    so_far, entry = f"__v{over.depth}_0", f"__v{over.depth}_1"
    items, texts = operand.text, [so_far, entry]
    if operand.type.kind == "map":
        items, texts = f"map_entries({items})", [so_far, f"{entry}.key", f"{entry}.value"]
    body = _bound_body(lambda_, texts, (state.type, *inner), over)
    text = body.cast(state.type)
    folded = f"aggregate({items}, {state.text}, ({so_far}, {entry}) -> {text})"
    return Value(f"CASE WHEN {operand.text} IS NULL THEN {state.text} ELSE {folded} END", state.type, node.at)


def _body(node: Lambda, types: tuple[SqlType, ...], over: Expressions) -> tuple[list[str], Value]:
    """The names that the lambda function's own stand for in Spark's, and its body."""
    over.depth += 1
    names = [f"__v{over.depth}_{number}" for number in range(len(types))]
    return names, _bound_body(node, names, types, over)


def _bound_body(node: Lambda, texts: list[str], types: tuple[SqlType, ...], over: Expressions) -> Value:
    """The body with the function's names standing for `texts`."""
    return _bound(node, texts, types, over, lambda body, expressions: expressions.value(body))


def _bound(
    node: Lambda,
    texts: list[str],
    types: tuple[SqlType, ...],
    over: Expressions,
    made: Callable[[Node, Expressions], _Made],
) -> _Made:
    """What is made of the body while the function's names stand for `texts`."""
    if len(node.names) != len(types):
        raise Refusal(node.at, f"the lambda function takes {len(types)} values, not {len(node.names)}")
    outer = dict(over.bound)
    over.bound |= {
        name.text: Value(text, type_, node.at) for name, text, type_ in zip(node.names, texts, types, strict=True)
    }
    try:
        return made(node.body, over)
    finally:
        over.bound = outer
