"""ksqlDB's expressions as a dialect of sqlglot.

sqlglot's own parser accepts more than ksqlDB (`CASE WHEN a 1 END`, `BETWEEN 1 2`, adjacent strings) and other
precedences, so the levels of predicate and operand are written here, strictly, and the levels between them (OR, AND,
`||`, `+ -`, `* / %`) are sqlglot's. Every node carries the offset of its first token in `meta["at"]`.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from sqlglot import exp, parser, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import Token, TokenType

from pipelines.sql.error import Refusal
from pipelines.sql.names import RESERVED, read_name

DEPTH_MAX = 40
HEIGHT_MAX = 150
E = TypeVar("E", bound=exp.Expr)
COMPARISONS: dict[TokenType, type[exp.Binary]] = {
    TokenType.EQ: exp.EQ,
    TokenType.NEQ: exp.NEQ,
    TokenType.LT: exp.LT,
    TokenType.LTE: exp.LTE,
    TokenType.GT: exp.GT,
    TokenType.GTE: exp.GTE,
}


class Ksql(Dialect):
    """sqlglot's view of ksqlDB: a tokenizer with few keywords and a parser of expressions."""

    class Tokenizer(tokens.Tokenizer):
        """Words without a place in expressions stay plain words, so that `date` or `year` can name a column."""

        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ["`"]
        QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]
        COMMENTS: ClassVar[list[str | tuple[str, str]]] = ["--", ("/*", "*/")]
        NESTED_COMMENTS = False
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            "AND": TokenType.AND,
            "AS": TokenType.ALIAS,
            "BETWEEN": TokenType.BETWEEN,
            "CASE": TokenType.CASE,
            "DISTINCT": TokenType.DISTINCT,
            "ELSE": TokenType.ELSE,
            "END": TokenType.END,
            "ESCAPE": TokenType.ESCAPE,
            "FALSE": TokenType.FALSE,
            "IN": TokenType.IN,
            "IS": TokenType.IS,
            "LIKE": TokenType.LIKE,
            "NOT": TokenType.NOT,
            "NULL": TokenType.NULL,
            "OR": TokenType.OR,
            "THEN": TokenType.THEN,
            "TRUE": TokenType.TRUE,
            "WHEN": TokenType.WHEN,
            "||": TokenType.DPIPE,
            "<>": TokenType.NEQ,
            "!=": TokenType.NEQ,
            "<=": TokenType.LTE,
            ">=": TokenType.GTE,
        }

    class Parser(parser.Parser):
        """Parses one expression; what follows it is the caller's."""

        depth = 0
        end = 0

        def expression_at(self, given: list[Token], index: int, end: int) -> tuple[exp.Expr, int]:
            """The expression that starts at `given[index]`, and the index of the token behind it.

            `end` is the offset where the statement stops.
            """
            self.end = end
            self.reset()
            self._tokens, self._tokens_size, self._index = given, len(given), index
            self._advance(0)
            self.depth = 0
            node = self._parse_disjunction()
            assert node is not None
            return node, self._index

        def _parse_equality(self, parse_is: bool = True) -> exp.Expr:
            """One predicate: NOT binds weaker than comparison; comparisons do not chain."""
            start = self._curr
            if self._match(TokenType.NOT):
                self._enter(start)
                inner = self._parse_equality()
                self.depth -= 1
                return mark(exp.Not(this=inner), start)
            left = self._operand()
            if self._curr and self._curr.token_type in COMPARISONS:
                kind = COMPARISONS[self._curr.token_type]
                self._advance()
                return mark(kind(this=left, expression=self._operand()), start)
            if self._match(TokenType.IS):
                negated = bool(self._match(TokenType.NOT))
                self._need(TokenType.NULL, "NULL")
                return negate(mark(exp.Is(this=left, expression=exp.Null()), start), negated)
            negated = bool(self._match(TokenType.NOT))
            if self._match(TokenType.BETWEEN):
                low = self._operand()
                self._need(TokenType.AND, "AND")
                return negate(mark(exp.Between(this=left, low=low, high=self._operand()), start), negated)
            if self._match(TokenType.IN):
                self._need(TokenType.L_PAREN, "(")
                items = self._list()
                return negate(mark(exp.In(this=left, expressions=items), start), negated)
            if self._match(TokenType.LIKE):
                like: exp.Expr = mark(exp.Like(this=left, expression=self._operand()), start)
                if self._match(TokenType.ESCAPE):
                    like = mark(exp.Escape(this=like, expression=self._operand()), start)
                return negate(like, negated)
            if negated:
                raise Refusal(self._at(), f"expected BETWEEN, IN or LIKE behind NOT, found {self._shown()}")
            return left

        def _operand(self) -> exp.Expr:
            node = self._parse_bitwise()
            assert node is not None
            return node

        def _parse_unary(self) -> exp.Expr:
            start = self._curr
            if self._match(TokenType.DASH):
                self._enter(start)
                inner = self._parse_unary()
                self.depth -= 1
                return mark(exp.Neg(this=inner), start)
            if self._match(TokenType.PLUS):
                self._enter(start)
                inner = self._parse_unary()
                self.depth -= 1
                return mark(exp.Paren(this=inner), start)
            self._enter(start)
            node = self._primary()
            self.depth -= 1
            return mark(node, start)

        def _primary(self) -> exp.Expr:
            start = self._curr
            if self._match(TokenType.NUMBER):
                return exp.Literal.number(start.text)
            if self._match(TokenType.DOT):  # the tokenizer cuts .5 into a dot and 5
                digits = self._need(TokenType.NUMBER, "a digit")
                if digits.start != start.end + 1 or "." in digits.text:
                    raise Refusal(start.start, "expected an expression, found .")
                return exp.Literal.number("0." + digits.text)
            if self._match(TokenType.STRING):
                return exp.Literal.string(start.text)
            if self._match(TokenType.NULL):
                return exp.Null()
            if self._match(TokenType.TRUE):
                return exp.true()
            if self._match(TokenType.FALSE):
                return exp.false()
            if self._match(TokenType.CASE):
                return self._case()
            if self._match(TokenType.L_PAREN):
                inner = self._need_expression()
                if self._curr and self._curr.token_type == TokenType.COMMA:
                    raise Refusal(self._at(), "a list in parentheses is not supported here", "drop the parentheses")
                self._need(TokenType.R_PAREN, ")")
                return exp.Paren(this=inner)
            return self._named()

        def _named(self) -> exp.Expr:
            """A column, a qualified column or a call."""
            start = self._curr
            word = start.text.upper() if start and start.token_type != TokenType.IDENTIFIER else ""
            if word == "SELECT":
                raise Refusal(start.start, "subqueries are not supported")
            if word == "DISTINCT":
                raise Refusal(start.start, "DISTINCT is not supported")
            if word == "CAST" and self._next and self._next.token_type == TokenType.L_PAREN:
                self._advance(2)
                return self._cast()
            if (
                not start
                or start.token_type not in (TokenType.VAR, TokenType.IDENTIFIER)
                or word in RESERVED
                or not (word or start.token_type == TokenType.IDENTIFIER)
            ):
                raise Refusal(self._at(), f"expected an expression, found {self._shown()}")
            self._advance()
            if word and self._match(TokenType.L_PAREN):
                return exp.Anonymous(this=word, expressions=self._arguments())
            parts = [self._identifier(start)]
            while self._match(TokenType.DOT):
                part = self._curr
                if part and part.token_type == TokenType.STAR:
                    raise Refusal(start.start, "SELECT * is not supported", "name the columns")
                if not part or part.token_type not in (TokenType.VAR, TokenType.IDENTIFIER):
                    raise Refusal(self._at(), f"expected a column, found {self._shown()}")
                self._advance()
                parts.append(self._identifier(part))
            if len(parts) > 2:
                raise Refusal(start.start, "a column has at most a source before it", "struct fields are not supported")
            return exp.Column(this=parts[-1], table=parts[0] if len(parts) == 2 else None)

        def _identifier(self, token: Token) -> exp.Identifier:
            quoted = token.token_type == TokenType.IDENTIFIER
            return exp.Identifier(this=read_name(token.text, quoted=quoted, at=token.start).text, quoted=True)

        def _arguments(self) -> list[exp.Expr]:
            """Arguments of a call whose parenthesis is open; a lone `*` is `exp.Star`."""
            if self._match(TokenType.R_PAREN):
                return []
            star = self._curr
            if self._match(TokenType.STAR):
                self._need(TokenType.R_PAREN, ")")
                return [mark(exp.Star(), star)]
            return self._list()

        def _list(self) -> list[exp.Expr]:
            items = [self._need_expression()]
            while self._match(TokenType.COMMA):
                items.append(self._need_expression())
            self._need(TokenType.R_PAREN, ")")
            return items

        def _case(self) -> exp.Expr:
            if not (self._curr and self._curr.token_type == TokenType.WHEN):
                raise Refusal(self._at(), "CASE with an operand is not supported", "write CASE WHEN x = … THEN …")
            branches = []
            while self._match(TokenType.WHEN):
                condition = self._need_expression()
                self._need(TokenType.THEN, "THEN")
                branches.append(exp.If(this=condition, true=self._need_expression()))
            default = self._need_expression() if self._match(TokenType.ELSE) else None
            self._need(TokenType.END, "END")
            return exp.Case(ifs=branches, default=default)

        def _cast(self) -> exp.Expr:
            """`x AS type)`. The type stays text: `meta["type"]` is (word, arguments, offset)."""
            inner = self._need_expression()
            self._need(TokenType.ALIAS, "AS")
            word = self._need(TokenType.VAR, "a type")
            arguments: list[int] | None = None
            if self._match(TokenType.L_PAREN):
                arguments = []
                while not arguments or self._match(TokenType.COMMA):
                    number = self._need(TokenType.NUMBER, "a number")
                    arguments.append(whole_number(number.text, number.start))
                self._need(TokenType.R_PAREN, ")")
            self._need(TokenType.R_PAREN, ")")
            node = exp.Cast(this=inner, to=exp.DataType(this=exp.DType.UNKNOWN))
            node.meta["type"] = (word.text, None if arguments is None else tuple(arguments), word.start)
            return node

        def _need_expression(self) -> exp.Expr:
            node = self._parse_disjunction()
            assert node is not None
            return node

        def _need(self, kind: TokenType, what: str) -> Token:
            token = self._curr
            if not self._match(kind):
                raise Refusal(self._at(), f"expected {what}, found {self._shown()}")
            return token

        def _enter(self, start: Token) -> None:
            self.depth += 1
            if self.depth > DEPTH_MAX:
                raise Refusal(start.start if start else self._at(), "the expression is nested too deeply")

        def _at(self) -> int:
            return self._curr.start if self._curr else self.end

        def _shown(self) -> str:
            return self._curr.text.upper()[:50] if self._curr else "the end of the statement"


def mark(node: E, start: Token) -> E:
    """The node with the offset of its first token."""
    node.meta.setdefault("at", start.start if start else 0)
    return node


def negate(node: exp.Expr, negated: bool) -> exp.Expr:
    """The node, or NOT of it at the same place."""
    if not negated:
        return node
    outer = exp.Not(this=node)
    outer.meta["at"] = node.meta["at"]
    return outer


def offset(node: exp.Expr) -> int:
    """Offset of the node's first character: its own or its leftmost operand's."""
    found: exp.Expr | None = node
    while found is not None:
        if "at" in found.meta:
            return int(found.meta["at"])
        found = found.args.get("this")
    return 0


def height(node: exp.Expr) -> int:
    """Levels of the tree. A chain of one connector, which is rendered as a list, is one level."""
    highest, left = 0, [(node, 1)]
    while left:
        part, level = left.pop()
        highest = max(highest, level)
        for child in part.iter_expressions():
            chained = isinstance(part, exp.Connector) and type(child) is type(part)
            left.append((child, level if chained else level + 1))
    return highest


def whole_number(text: str, at: int) -> int:
    """The value of a literal of at most 9 digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise Refusal(at, f"expected a whole number, found {text[:50]}")
    return int(text)
