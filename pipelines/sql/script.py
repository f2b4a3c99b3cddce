"""A text of SQL as tokens and statements.

sqlglot's tokenizer makes the tokens. Before it, one pass over the characters refuses what this dialect does not have
(so that nothing is read as another dialect would read it), with its position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from pipelines.sql.dialect import Ksql
from pipelines.sql.error import Refusal
from pipelines.sql.names import RESERVED, Name, read_name

TEXT_LENGTH_MAX = 1_000_000
PIECE = re.compile(
    r"""(?P<space>[ \t\r\n\f]+|--[^\r\n]*|/\*.*?\*/)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>`(?:[^`]|``)*`|"(?:[^"]|"")*")
    | (?P<word>(?:(?![0-9]+[eE][+-]?[0-9]+(?![A-Za-z0-9_]))[0-9]+)?[A-Za-z_][A-Za-z0-9_]*(?!'))
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.]))
    | (?P<operator>->|=>|:=|\|\||<>|!=|<=|>=|[-+*/%=<>(),.;\[\]])""",
    re.VERBOSE | re.DOTALL,
)
NOT_IN_DIALECT: dict[str, tuple[str, str | None]] = {
    "'": ("the string does not end", "close it with a single quote; write '' for a quote inside"),
    "`": ("the name does not end", "close it with a back-quote"),
    '"': ("the name does not end", "close it with a double quote; 'text' is in single quotes"),
    "{": ("templates are not supported", "a struct is STRUCT(name := value)"),
    "/": ("the comment does not end", "close it with */"),
}


def check_characters(text: str) -> None:
    """Refuses the first character that starts nothing of this dialect."""
    if len(text) > TEXT_LENGTH_MAX:
        raise Refusal(TEXT_LENGTH_MAX, f"the text has more than {TEXT_LENGTH_MAX} characters")
    at = 0
    while at < len(text):
        rest = NOT_IN_DIALECT["/"] if text.startswith("/*", at) else None
        piece = PIECE.match(text, at)
        if piece is None or (rest and piece.lastgroup == "operator"):
            char = text[at]
            if char.isascii() and (char.isalnum() or char == "_"):
                raise Refusal(at, "a number or name runs into what follows it", "separate them with a space")
            message, hint = rest or NOT_IN_DIALECT.get(char, (f"unexpected character {char!r}", None))
            raise Refusal(at, message, hint)
        if any("\ud800" <= c <= "\udfff" or c == "\0" for c in piece.group()):
            raise Refusal(at, "a NUL or half a surrogate pair is not text")
        at = piece.end()


@dataclass
class Cursor:
    """A place in the tokens of one statement. `end` is the offset where the statement stops."""

    tokens: list[Token]
    end: int
    index: int = 0

    @property
    def token(self) -> Token | None:
        """The token at the cursor, None at the statement's end."""
        return self.tokens[self.index] if self.index < len(self.tokens) else None

    @property
    def at(self) -> int:
        """Offset of the token at the cursor."""
        return self.token.start if self.token else self.end

    @property
    def shown(self) -> str:
        """The token at the cursor as an error names it."""
        return show(self.token)

    def word(self, ahead: int = 0) -> str:
        """The word at the cursor in upper case, empty if there is something else."""
        index = self.index + ahead
        return word_of(self.tokens[index]) if index < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        """Goes past `words` if exactly they come next."""
        if any(self.word(ahead) != word for ahead, word in enumerate(words)):
            return False
        self.index += len(words)
        return True

    def expect(self, word: str) -> None:
        """Goes past `word` or refuses what is there instead."""
        if not self.accept(word):
            raise Refusal(self.at, f"expected {word}, found {self.shown}")

    def accept_type(self, kind: TokenType) -> Token | None:
        """Goes past a token of this kind if there is one."""
        token = self.token
        if token is None or token.token_type != kind:
            return None
        self.index += 1
        return token

    def expect_type(self, kind: TokenType, what: str) -> Token:
        """Goes past a token of this kind or refuses what is there instead."""
        token = self.accept_type(kind)
        if token is None:
            raise Refusal(self.at, f"expected {what}, found {self.shown}")
        return token

    def is_type(self, kind: TokenType) -> bool:
        """Whether a token of this kind comes next."""
        return self.next_is(kind, ahead=0)

    def next_is(self, kind: TokenType, *, ahead: int = 1) -> bool:
        """Whether the token `ahead` of the cursor is of this kind."""
        index = self.index + ahead
        return index < len(self.tokens) and self.tokens[index].token_type == kind

    def at_name(self) -> bool:
        """Whether a name comes next."""
        return is_name(self.token)

    def name(self, what: str) -> Name:
        """Goes past a name or refuses what is there instead."""
        token = self.token
        if token is None or (token.token_type != TokenType.IDENTIFIER and not word_of(token)):
            raise Refusal(self.at, f"expected {what}, found {self.shown}")
        self.index += 1
        return read_name(token.text, quoted=token.token_type == TokenType.IDENTIFIER, at=token.start)


def word_of(token: Token) -> str:
    """An unquoted word in upper case, empty for every other token."""
    quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER)
    return "" if quoted or not token.text[:1].replace("_", "a").isalnum() else token.text.upper()


def is_name(token: Token | None) -> bool:
    """Whether the token can be a name."""
    if token is None:
        return False
    return token.token_type == TokenType.IDENTIFIER or (bool(word_of(token)) and word_of(token) not in RESERVED)


def show(token: Token | None) -> str:
    """The token as an error names it."""
    if token is None:
        return "the end of the statement"
    if token.token_type == TokenType.STRING:
        return "'" + token.text[:50] + "'"
    return word_of(token)[:50] or token.text[:50]


def _joined(tokens: list[Token], text: str) -> list[Token]:
    """The tokens, a number that runs into a word with it as one word: `1st` is a name."""
    joined: list[Token] = []
    for token in tokens:
        before = joined[-1] if joined else None
        runs = before is not None and before.token_type == TokenType.NUMBER and before.end + 1 == token.start
        if before is not None and runs and word_of(token):
            word = text[before.start : token.end + 1]
            joined[-1] = Token(TokenType.VAR, word, before.line, before.col, before.start, token.end)
        else:
            joined.append(token)
    return joined


def read_statements(text: str) -> list[Cursor]:
    """The statements of the text, without empty ones."""
    check_characters(text)
    try:
        tokens = Ksql().tokenize(text)
    except Exception as error:  # the tokenizer is foreign: whatever it raises is about the text
        raise Refusal(0, f"the text cannot be read: {error}") from error
    tokens = _joined(tokens, text)
    statements: list[Cursor] = []
    start = 0
    for index, token in enumerate(tokens):
        if token.token_type == TokenType.SEMICOLON:
            statements.append(Cursor(tokens[start:index], token.start))
            start = index + 1
    statements.append(Cursor(tokens[start:], len(text.rstrip())))
    return [statement for statement in statements if statement.tokens]
