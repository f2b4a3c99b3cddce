"""ksqlDB's words as a dialect of sqlglot, which cuts the text into tokens.

sqlglot's parser is not used: it accepts more than ksqlDB has (`CASE WHEN a 1 END`, adjacent strings, a statement it
does not know as opaque text) and other precedences. The reading is in `read_*.py`, on these tokens.
"""

from __future__ import annotations

from typing import ClassVar

from sqlglot import tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokenizer_core import TokenType


class Ksql(Dialect):
    """A tokenizer with few keywords."""

    class Tokenizer(tokens.Tokenizer):
        """Words without a place in expressions stay plain words, so that `date` or `year` can name a column."""

        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ["`", '"']
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
            "->": TokenType.ARROW,
            "=>": TokenType.FARROW,
            ":=": TokenType.COLON_EQ,
        }
