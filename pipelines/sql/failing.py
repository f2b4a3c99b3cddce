"""When ksqlDB cannot compute a lambda function's body: arithmetic with NULL, or by zero, fails there.

One failure makes the whole call NULL, and what is around it, not one item. What takes NULL by itself (functions, CASE,
comparisons) does not fail; an item of ARRAY, MAP or STRUCT that fails is NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.sql.nodes import (
    ARITHMETIC,
    ArrayOf,
    Binary,
    Call,
    Case,
    Connective,
    Lambda,
    MapOf,
    Node,
    Sign,
    StructOf,
    When,
    children,
    walk,
)

if TYPE_CHECKING:
    from pipelines.sql.expression import Expressions


def failure(node: Node, over: Expressions) -> str | None:
    """The condition under which the tree fails, True or False and never NULL; None for one that cannot."""
    match node:
        case ArrayOf() | MapOf() | StructOf() | Lambda():
            return None
        case Call() if any(isinstance(argument, Lambda) for argument in node.arguments):
            return _of_lambda_call(node, over)
        case Connective():
            return _chain(node, list(node.operands), over)
        case Case():
            return _case(list(node.branches), node.default, over)
        case Binary() if node.operator in ARITHMETIC:
            value = over.value(node)
            return _either(_parts(node, over), f"{value.text} IS NULL" if value.type.is_number else None)
        case Sign() if node.operator == "-":
            return _either(_parts(node, over), f"{over.value(node).text} IS NULL")
    return _parts(node, over)


def _parts(node: Node, over: Expressions) -> str | None:
    """One of the parts below fails. Arithmetic of arithmetic is NULL itself if its part is."""
    within = isinstance(node, Binary) and node.operator in ARITHMETIC
    found = None
    for child in children(node):
        direct = within and isinstance(child, Binary) and child.operator in ARITHMETIC
        found = _either(found, _parts(child, over) if direct else failure(child, over))
    return found


def _of_lambda_call(node: Call, over: Expressions) -> str | None:
    """It fails if it is NULL though what it is of is not."""
    operand = node.arguments[0]
    fails = any(isinstance(part, Binary | Sign) for part in walk(node))
    own = f"({over.value(operand).text} IS NOT NULL AND {over.value(node).text} IS NULL)" if fails else None
    return _either(failure(operand, over), own)


def _chain(node: Connective, operands: list[Node], over: Expressions) -> str | None:
    """Of AND what is behind a false condition is not computed, of OR what is behind a true one."""
    first, *rest = operands
    own = failure(first, over)
    behind = _chain(node, rest, over) if rest else None
    if behind is None:
        return own
    holds = f"coalesce({over.value(first).text}, false)"
    return _either(own, f"({holds if node.word == 'AND' else f'NOT {holds}'} AND {behind})")


def _case(branches: list[When], default: Node | None, over: Expressions) -> str | None:
    if not branches:
        return None if default is None else failure(default, over)
    first, *rest = branches
    then, otherwise = failure(first.result, over), _case(rest, default, over)
    own = failure(first.condition, over)
    if then is None and otherwise is None:
        return own
    condition = over.boolean(first.condition, "WHEN")
    return _either(own, f"(CASE WHEN {condition} THEN {then or 'false'} ELSE {otherwise or 'false'} END)")


def _either(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return one or other
    return f"({one} OR {other})"
