"""Tokens to trees of expressions, by precedence: OR, AND, NOT, predicates, `||`, `+ -`, `* / %`, signs, operands.

Comparisons do not chain, as in ksqlDB. What sqlglot or standard SQL would accept beyond ksqlDB is refused at its place.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokenizer_core import Token, TokenType

from pipelines.sql.error import Refusal
from pipelines.sql.names import RESERVED, Name, read_name
from pipelines.sql.nodes import (
    ArrayOf,
    Between,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Connective,
    Distinct,
    Field,
    In,
    Index,
    IsNull,
    Lambda,
    Like,
    MapOf,
    Node,
    Not,
    Null,
    Number,
    Paren,
    Sign,
    Star,
    StructOf,
    Text,
    Truth,
    When,
    height,
)
from pipelines.sql.read_type import read_type
from pipelines.sql.script import Cursor, word_of

DEPTH_MAX = 40
HEIGHT_MAX = 150
COMPARISONS = {
    TokenType.EQ: "=",
    TokenType.NEQ: "<>",
    TokenType.LT: "<",
    TokenType.LTE: "<=",
    TokenType.GT: ">",
    TokenType.GTE: ">=",
}
# Weakest first; operands of one level group from the left.
LEVELS: tuple[dict[TokenType, str], ...] = (
    {TokenType.DPIPE: "||"},
    {TokenType.PLUS: "+", TokenType.DASH: "-"},
    {TokenType.STAR: "*", TokenType.SLASH: "/", TokenType.MOD: "%"},
)
LITERALS: dict[TokenType, Node] = {TokenType.NULL: Null(), TokenType.TRUE: Truth(True), TokenType.FALSE: Truth(False)}
NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


def read_expression(cursor: Cursor, *, value: bool = False) -> Node:
    """The expression at the cursor, which goes past it; with `value` no condition, which ends before AND or `=`."""
    if cursor.token is None:
        raise Refusal(cursor.at, f"expected an expression, found {cursor.shown}")
    start = cursor.at
    try:
        node = _Reader(cursor).value() if value else _Reader(cursor).condition()
    except RecursionError:
        raise Refusal(start, "the expression is nested too deeply") from None
    if height(node) > HEIGHT_MAX:
        raise Refusal(start, "the expression is nested too deeply", f"at most {HEIGHT_MAX} operations in a row")
    return node


Reading = Callable[[], Node]


class _Reader:
    """Reads one expression; what follows it is the caller's."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.depth = 0

    def value(self) -> Node:
        """Anything but a condition, unless it stands in parentheses."""
        return self._operand(0)

    def condition(self) -> Node:
        """The weakest level: OR, then AND."""
        return self._chain("OR", TokenType.OR, lambda: self._chain("AND", TokenType.AND, self._predicate))

    def _chain(self, word: str, kind: TokenType, below: Reading) -> Node:
        at = self.cursor.at
        operands = [below()]
        while self.cursor.accept_type(kind):
            operands.append(below())
        return operands[0] if len(operands) == 1 else Connective(word, tuple(operands), at=at)

    def _predicate(self) -> Node:
        cursor, at = self.cursor, self.cursor.at
        if cursor.accept_type(TokenType.NOT):
            self._enter(at)
            inner = self._predicate()
            self.depth -= 1
            return Not(inner, at=at)
        left = self._operand(0)
        token = cursor.token
        if token is not None and token.token_type in COMPARISONS:
            cursor.index += 1
            return Binary(COMPARISONS[token.token_type], left, self._operand(0), at=at)
        if cursor.accept_type(TokenType.IS):
            negated = cursor.accept_type(TokenType.NOT) is not None
            if cursor.accept_type(TokenType.DISTINCT):
                cursor.expect("FROM")
                return Distinct(left, self._operand(0), negated, at=at)
            cursor.expect_type(TokenType.NULL, "NULL")
            return IsNull(left, negated, at=at)
        return self._range(left, at)

    def _range(self, left: Node, at: int) -> Node:
        """[NOT] BETWEEN, IN or LIKE behind `left`, or `left` alone."""
        cursor = self.cursor
        negated = cursor.accept_type(TokenType.NOT) is not None
        if cursor.accept_type(TokenType.BETWEEN):
            low = self._operand(0)
            cursor.expect_type(TokenType.AND, "AND")
            return Between(left, low, self._operand(0), negated, at=at)
        if cursor.accept_type(TokenType.IN):
            cursor.expect_type(TokenType.L_PAREN, "(")
            return In(left, self._list(), negated, at=at)
        if cursor.accept_type(TokenType.LIKE):
            pattern = self._operand(0)
            escape = self._operand(0) if cursor.accept_type(TokenType.ESCAPE) else None
            return Like(left, pattern, escape, negated, at=at)
        if negated:
            raise Refusal(cursor.at, f"expected BETWEEN, IN or LIKE behind NOT, found {cursor.shown}")
        return left

    def _operand(self, level: int) -> Node:
        if level == len(LEVELS):
            return self._signed()
        at = self.cursor.at
        left = self._operand(level + 1)
        while (token := self.cursor.token) is not None and token.token_type in LEVELS[level]:
            self.cursor.index += 1
            left = Binary(LEVELS[level][token.token_type], left, self._operand(level + 1), at=at)
        return left

    def _signed(self) -> Node:
        at = self.cursor.at
        self._enter(at)
        node: Node
        if self.cursor.accept_type(TokenType.DASH):
            node = Sign("-", self._signed(), at=at)
        elif self.cursor.accept_type(TokenType.PLUS):
            node = Sign("+", self._signed(), at=at)
        else:
            node = self._followed(self._primary(), at)
        self.depth -= 1
        return node

    def _followed(self, node: Node, at: int) -> Node:
        """The operand with the `[index]` and `->field` behind it."""
        cursor = self.cursor
        while True:
            if cursor.accept_type(TokenType.L_BRACKET):
                node = Index(node, self.condition(), at=at)
                cursor.expect_type(TokenType.R_BRACKET, "]")
            elif not cursor.next_is(TokenType.STAR) and cursor.accept_type(TokenType.ARROW):
                node = Field(node, cursor.name("a field"), at=at)
            else:
                return node

    def _primary(self) -> Node:
        cursor, at = self.cursor, self.cursor.at
        if token := cursor.accept_type(TokenType.NUMBER):
            return Number(token.text, at=at)
        if token := cursor.accept_type(TokenType.DOT):  # the tokenizer cuts .5 into a dot and 5
            digits = cursor.expect_type(TokenType.NUMBER, "a digit")
            if digits.start != token.end + 1 or "." in digits.text:
                raise Refusal(at, "expected an expression, found .")
            return Number("0." + digits.text, at=at)
        if token := cursor.accept_type(TokenType.STRING):
            return Text(token.text, at=at)
        if cursor.token is not None and (literal := LITERALS.get(cursor.token.token_type)):
            cursor.index += 1
            return Truth(literal.value, at=at) if isinstance(literal, Truth) else Null(at=at)
        if cursor.accept_type(TokenType.CASE):
            return self._case(at)
        if cursor.accept_type(TokenType.L_PAREN):
            inner = self.condition()
            if cursor.token is not None and cursor.token.token_type == TokenType.COMMA:
                raise Refusal(cursor.at, "a list in parentheses is not supported here", "drop the parentheses")
            cursor.expect_type(TokenType.R_PAREN, ")")
            return Paren(inner, at=at)
        return self._named(at)

    def _named(self, at: int) -> Node:
        """A column, a qualified column or a call."""
        cursor, start = self.cursor, self.cursor.token
        word = cursor.word()
        if word == "SELECT":
            raise Refusal(at, "subqueries are not supported")
        if word == "DISTINCT":
            raise Refusal(at, "DISTINCT is not supported")
        if word == "CAST" and cursor.next_is(TokenType.L_PAREN):
            cursor.index += 2
            return self._cast(at)
        if word == "ARRAY" and cursor.next_is(TokenType.L_BRACKET):
            cursor.index += 2
            return self._array(at)
        if word in ("MAP", "STRUCT") and cursor.next_is(TokenType.L_PAREN):
            cursor.index += 2
            return self._map(at) if word == "MAP" else self._struct(at)
        called = word in ("LEFT", "RIGHT") and cursor.next_is(TokenType.L_PAREN)
        if not called and not _is_operand_name(start):
            told = f"mismatched input '{cursor.shown}' expecting an expression"
            raise Refusal(at, f"expected an expression, found {cursor.shown}: {told}")
        cursor.index += 1
        if word and cursor.accept_type(TokenType.L_PAREN):
            return Call(word, self._arguments(), at=at)
        assert start is not None
        parts = [start]
        while cursor.accept_type(TokenType.DOT):
            part = cursor.token
            if part is not None and part.token_type == TokenType.STAR:
                raise Refusal(at, "SELECT * is not supported here", "name the columns")
            if part is None or part.token_type not in NAMES:
                raise Refusal(cursor.at, f"expected a column, found {cursor.shown}")
            cursor.index += 1
            parts.append(part)
        names = [read_name(p.text, quoted=p.token_type == TokenType.IDENTIFIER, at=p.start) for p in parts]
        if len(names) > 2:
            raise Refusal(at, "a column has at most a source before it", "struct fields are not supported")
        return Column(names[-1], names[0] if len(names) == 2 else None, at=at)

    def _array(self, at: int) -> Node:
        items: list[Node] = []
        if not self.cursor.is_type(TokenType.R_BRACKET):
            items.append(self.condition())
            while self.cursor.accept_type(TokenType.COMMA):
                items.append(self.condition())
        self.cursor.expect_type(TokenType.R_BRACKET, ", or ]")
        return ArrayOf(tuple(items), at=at)

    def _map(self, at: int) -> Node:
        keys: list[Node] = []
        values: list[Node] = []
        while not self.cursor.accept_type(TokenType.R_PAREN):
            if keys:
                self.cursor.expect_type(TokenType.COMMA, ", or )")
            keys.append(self.condition())
            self.cursor.expect_type(TokenType.COLON_EQ, ":=")
            values.append(self.condition())
        return MapOf(tuple(keys), tuple(values), at=at)

    def _struct(self, at: int) -> Node:
        names: list[Name] = []
        values: list[Node] = []
        while not self.cursor.accept_type(TokenType.R_PAREN):
            if names:
                self.cursor.expect_type(TokenType.COMMA, ", or )")
            names.append(self.cursor.name("a field"))
            self.cursor.expect_type(TokenType.COLON_EQ, ":=")
            values.append(self.condition())
        return StructOf(tuple(names), tuple(values), at=at)

    def _lambda(self) -> Node | None:
        """`x => body` or `(x, y) => body` at the cursor, None if there is something else."""
        cursor, start, at = self.cursor, self.cursor.index, self.cursor.at
        names: list[Name] = []
        if cursor.accept_type(TokenType.L_PAREN):
            while cursor.at_name() and (not names or cursor.token is not None):
                names.append(cursor.name("a name"))
                if not cursor.accept_type(TokenType.COMMA):
                    break
            closed = bool(names) and cursor.accept_type(TokenType.R_PAREN) is not None
        else:
            closed = cursor.at_name() and cursor.next_is(TokenType.FARROW)
            if closed:
                names.append(cursor.name("a name"))
        if closed and cursor.accept_type(TokenType.FARROW):
            return Lambda(tuple(names), self.condition(), at=at)
        cursor.index = start
        return None

    def _argument(self) -> Node:
        self._enter(self.cursor.at)
        found = self._lambda() or self.condition()
        self.depth -= 1
        return found

    def _arguments(self) -> tuple[Node, ...]:
        """Arguments of a call whose parenthesis is open; a lone `*` is `Star`."""
        cursor, at = self.cursor, self.cursor.at
        if cursor.accept_type(TokenType.R_PAREN):
            return ()
        if cursor.accept_type(TokenType.STAR):
            cursor.expect_type(TokenType.R_PAREN, ")")
            return (Star(at=at),)
        items = [self._argument()]
        while cursor.accept_type(TokenType.COMMA):
            items.append(self._argument())
        cursor.expect_type(TokenType.R_PAREN, ")")
        return tuple(items)

    def _list(self) -> tuple[Node, ...]:
        items = [self.condition()]
        while self.cursor.accept_type(TokenType.COMMA):
            items.append(self.condition())
        self.cursor.expect_type(TokenType.R_PAREN, ")")
        return tuple(items)

    def _case(self, at: int) -> Node:
        cursor = self.cursor
        if cursor.token is None or cursor.token.token_type != TokenType.WHEN:
            raise Refusal(cursor.at, "CASE with an operand is not supported", "write CASE WHEN x = … THEN …")
        branches = []
        while (when := cursor.accept_type(TokenType.WHEN)) is not None:
            condition = self.condition()
            cursor.expect_type(TokenType.THEN, "THEN")
            branches.append(When(condition, self.condition(), at=when.start))
        default = self.condition() if cursor.accept_type(TokenType.ELSE) else None
        cursor.expect_type(TokenType.END, "END")
        return Case(tuple(branches), default, at=at)

    def _cast(self, at: int) -> Node:
        inner = self.condition()
        self.cursor.expect_type(TokenType.ALIAS, "AS")
        type_ = read_type(self.cursor)
        self.cursor.expect_type(TokenType.R_PAREN, ")")
        return Cast(inner, type_, at=at)

    def _enter(self, at: int) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Refusal(at, "the expression is nested too deeply")


def _is_operand_name(token: Token | None) -> bool:
    if token is None or token.token_type not in NAMES:
        return False
    return token.token_type == TokenType.IDENTIFIER or (bool(word_of(token)) and word_of(token) not in RESERVED)
