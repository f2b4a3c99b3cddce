"""Tokens to the tree of a query: SELECT … FROM … [WINDOW] [WHERE] [GROUP BY] [PARTITION BY] [HAVING] [EMIT] [LIMIT]."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from pipelines.sql.error import Refusal, nearest
from pipelines.sql.names import Name
from pipelines.sql.nodes import Node
from pipelines.sql.read_expression import read_expression
from pipelines.sql.read_type import whole_number
from pipelines.sql.script import Cursor
from pipelines.sql.tree import CHANGES, FINAL, UNITS_MS, AllColumns, Clause, Duration, From, Item, Select, Window

# Words that end a clause and say what is not here.
UNSUPPORTED = {
    "CROSS": "joins are not supported",
    "EXCEPT": "EXCEPT is not supported",
    "FULL": "joins are not supported",
    "INNER": "joins are not supported",
    "INTERSECT": "INTERSECT is not supported",
    "JOIN": "joins are not supported",
    "LEFT": "joins are not supported",
    "LIMIT": "LIMIT is not supported: a table is never complete",
    "ORDER": "ORDER BY is not supported: a table is never complete",
    "OUTER": "joins are not supported",
    "OVER": "window functions are not supported",
    "PARTITION": "PARTITION BY is not supported here",
    "RIGHT": "joins are not supported",
    "UNION": "UNION is not supported",
    "WINDOW": "WINDOW stands before WHERE",
    "WITHIN": "joins are not supported",
}
WINDOWS = ("TUMBLING", "HOPPING", "SESSION")


def unexpected(cursor: Cursor, expected: str) -> Refusal:
    """Why the token at the cursor is not what may come here."""
    message = UNSUPPORTED.get(cursor.word())
    told = f"mismatched input '{cursor.shown}' expecting ';'"
    return Refusal(cursor.at, message or f"expected {expected}, found {cursor.shown}: {told}")


def read_select(cursor: Cursor, *, wanted: str = ";") -> Select:
    """The query at the cursor, up to the statement's end. `wanted` names the clause that must follow WHERE."""
    at = cursor.at
    cursor.expect("SELECT")
    if cursor.word() == "DISTINCT":
        raise Refusal(cursor.at, "DISTINCT is not supported", "GROUP BY makes rows distinct")
    items = [_item(cursor)]
    while cursor.accept_type(TokenType.COMMA):
        items.append(_item(cursor))
    if not cursor.accept("FROM"):
        raise unexpected(cursor, ", or FROM")
    source = _from(cursor)
    window = _window(cursor) if cursor.word() == "WINDOW" else None
    where = read_expression(cursor) if cursor.accept("WHERE") else None
    tail_at = cursor.at
    group_by = _clause(cursor, "GROUP") if cursor.word(1) == "BY" else None
    partition_by = _clause(cursor, "PARTITION") if cursor.word(1) == "BY" and group_by is None else None
    having = read_expression(cursor) if cursor.accept("HAVING") else None
    if cursor.token is not None and cursor.word() not in ("EMIT", "LIMIT"):
        grouped = group_by is not None or having is not None
        expected = "EMIT CHANGES" if grouped else wanted if where is not None else f"WHERE or {wanted}"
        raise unexpected(cursor, expected)
    emit, emit_at = _emit(cursor)
    limit_at = cursor.at
    limit = _limit(cursor)
    if cursor.token is not None:
        raise unexpected(cursor, ";")
    return Select(
        tuple(items),
        source,
        window,
        where,
        group_by,
        partition_by,
        having,
        emit,
        limit,
        tail_at=tail_at,
        emit_at=emit_at,
        limit_at=limit_at,
        at=at,
    )


def _item(cursor: Cursor) -> Item | AllColumns:
    at = cursor.at
    if cursor.accept_type(TokenType.STAR):
        return AllColumns(None, at=at)
    if cursor.at_name() and cursor.next_is(TokenType.DOT) and cursor.next_is(TokenType.STAR, ahead=2):
        source = cursor.name("a source")
        cursor.index += 2
        return AllColumns(source, at=at)
    expression = read_expression(cursor)
    if cursor.accept_type(TokenType.ARROW):
        cursor.expect_type(TokenType.STAR, "a field or *")
        return AllColumns(None, expression, at=at)
    return Item(expression, _alias(cursor), at=at)


def _alias(cursor: Cursor, *following: str) -> Name | None:
    """A name behind AS or alone, but not one of the words `following` that begin the next clause."""
    if cursor.accept("AS") or (cursor.at_name() and cursor.word() not in following):
        return cursor.name("an alias")
    return None


def _from(cursor: Cursor) -> From:
    at = cursor.at
    if cursor.is_type(TokenType.L_PAREN):
        raise Refusal(at, "subqueries are not supported", "FROM takes the name of a stream")
    name = cursor.name("a stream")
    alias = _alias(cursor, "GROUP", "EMIT")
    if cursor.is_type(TokenType.COMMA):
        raise Refusal(cursor.at, "a query has one source", "joins are not supported")
    return From(name, alias, at=at)


def _clause(cursor: Cursor, word: str) -> Clause | None:
    at = cursor.at
    if not cursor.accept(word, "BY"):
        return None
    listed = _is_list(cursor) and cursor.accept_type(TokenType.L_PAREN) is not None
    expressions: list[Node] = []
    while not expressions or cursor.accept_type(TokenType.COMMA):
        if listed and expressions and cursor.is_type(TokenType.R_PAREN):
            break
        expressions.append(read_expression(cursor, value=True))
    if listed:
        cursor.expect_type(TokenType.R_PAREN, ", or )")
    return Clause(tuple(expressions), at=at)


def _is_list(cursor: Cursor) -> bool:
    """Whether a parenthesis opens here and its own comma stands in it: `(a, b)`, and not `(a + b) * c`."""
    depth = 0
    for ahead in range(len(cursor.tokens) - cursor.index):
        depth += cursor.next_is(TokenType.L_PAREN, ahead=ahead) - cursor.next_is(TokenType.R_PAREN, ahead=ahead)
        if depth == 0:
            return False
        if depth == 1 and cursor.next_is(TokenType.COMMA, ahead=ahead):
            return True
    return False


def _emit(cursor: Cursor) -> tuple[str | None, int]:
    """What stands behind EMIT, and the offset where it stands or would stand."""
    if not cursor.accept("EMIT"):
        return None, cursor.at
    at = cursor.at
    if cursor.accept("FINAL"):
        return FINAL, at
    cursor.expect("CHANGES")
    return CHANGES, at


def _limit(cursor: Cursor) -> int | None:
    if not cursor.accept("LIMIT"):
        return None
    at = cursor.at
    return whole_number(cursor.expect_type(TokenType.NUMBER, "a number").text, at)


def _window(cursor: Cursor) -> Window:
    """WINDOW TUMBLING (SIZE 1 HOUR, RETENTION 7 DAYS, GRACE PERIOD 10 MINUTES) and its two relatives."""
    at = cursor.at
    cursor.expect("WINDOW")
    kind_at, kind = cursor.at, cursor.word()
    if kind not in WINDOWS:
        raise Refusal(kind_at, f"expected {', '.join(WINDOWS)}, found {cursor.shown}", nearest(kind, WINDOWS))
    cursor.index += 1
    cursor.expect_type(TokenType.L_PAREN, "(")
    if kind != "SESSION":
        cursor.expect("SIZE")
    size = _duration(cursor)
    advance = None
    if kind == "HOPPING":
        cursor.expect_type(TokenType.COMMA, ",")
        cursor.expect("ADVANCE")
        cursor.expect("BY")
        advance = _duration(cursor)
    retention = _option(cursor, "RETENTION")
    grace = _option(cursor, "GRACE", "PERIOD")
    cursor.expect_type(TokenType.R_PAREN, ", or )")
    return Window(kind, size, advance, retention, grace, at=at)


def _option(cursor: Cursor, *words: str) -> Duration | None:
    if not (cursor.is_type(TokenType.COMMA) and cursor.word(1) == words[0]):
        return None
    cursor.index += 1
    for word in words:
        cursor.expect(word)
    return _duration(cursor)


def _duration(cursor: Cursor) -> Duration:
    at = cursor.at
    count = whole_number(cursor.expect_type(TokenType.NUMBER, "a number").text, at)
    unit_at, word = cursor.at, cursor.word()
    unit = word.removesuffix("S")
    if unit not in UNITS_MS:
        raise Refusal(unit_at, f"expected a unit of time, found {cursor.shown}", nearest(unit, UNITS_MS))
    cursor.index += 1
    return Duration(count, unit, at=at)
