"""A script as statements, each with the text it was read from.

Variables are ksqlDB's: `DEFINE name = 'value';` makes `${name}` stand for the value in every later statement, inside
of strings and outside. An offset into a text with values in it is led back to the place in the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

from pipelines.sql.error import Refusal, locate, nearest
from pipelines.sql.read_statement import read_statement
from pipelines.sql.script import PIECE, read_statements
from pipelines.sql.tree import Define, Statement

# Offset in the piece, offset in the script, and whether both move on together.
Place = tuple[int, int, bool]
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Parsed:
    """A statement, its text with variables replaced, and the line of the script it begins in.

    Offsets in the tree count from `start` characters before the text.
    """

    statement: Statement
    text: str
    line: int
    start: int = 0


def parse_script(text: str, variables: MutableMapping[str, str] | None = None) -> Iterator[Parsed]:
    """The statements one by one, so that the ones before an error can run. DEFINE changes `variables` on the way.

    Raises SqlError, and nothing else, at the statement that is wrong, with the place in `text`.
    """
    known = {} if variables is None else variables
    for start, end, _ in _pieces(text):
        piece, places = _substituted(text, start, end, known)
        try:
            cursors = read_statements(piece)
            if not cursors:
                continue
            if len(cursors) > 1:
                raise Refusal(cursors[1].at, "a variable holds more than one statement")
            first = cursors[0].at
            statement = read_statement(cursors[0])
        except Refusal as refusal:
            there = Refusal(_original(places, refusal.at, end), refusal.message, refusal.hint)
            error = locate(text, there)
        else:
            if isinstance(statement, Define):
                _define(statement, known)
            place = _original(places, first, end)
            yield Parsed(
                statement, piece[first:].rstrip().removesuffix(";").rstrip(), text.count("\n", 0, place) + 1, first
            )
            continue
        raise error


def parse_statement(text: str) -> Parsed:
    """The one statement of the text. Raises SqlError for none or more than one."""
    found = list(parse_script(text))
    if len(found) != 1:
        raise locate(text, Refusal(0, f"expected one statement, found {len(found)}"))
    return found[0]


def is_complete(text: str) -> bool:
    """Whether the text ends with a semicolon that ends a statement, or holds none: then a shell may run it."""
    return all(ended for _, _, ended in _pieces(text))


def _define(statement: Define, variables: MutableMapping[str, str]) -> None:
    if statement.value is None:
        variables.pop(statement.name, None)
    else:
        variables[statement.name] = statement.value


def _pieces(text: str) -> Iterator[tuple[int, int, bool]]:
    """Start and end of each statement, and whether its semicolon ends it, which it then includes.

    What does not lex belongs to the piece it stands in; a string, name or comment without end takes all that is left.
    """
    start = at = 0
    empty = True
    while at < len(text):
        piece = PIECE.match(text, at)
        empty = empty and piece is not None and piece.lastgroup == "space"
        endless = text[at] in "'`\"" if piece is None else text.startswith("/*", at) and piece.lastgroup != "space"
        at = len(text) if endless else piece.end() if piece is not None else at + 1
        if piece is not None and piece.group() == ";":
            yield start, at, True
            start, empty = at, True
    if not empty:
        yield start, len(text), False


def _substituted(text: str, start: int, end: int, variables: MutableMapping[str, str]) -> tuple[str, list[Place]]:
    """The piece with its variables replaced, and where its parts came from. Refuses an unknown variable."""
    out, places, at = "", [], start
    if text[start:end].lstrip()[:6].upper() != "DEFINE":
        for match in VARIABLE.finditer(text, start, end):
            name = match.group(1)
            if name not in variables:
                raise locate(text, Refusal(match.start(), f"unknown variable {name}", nearest(name, variables)))
            places.append((len(out), at, True))
            out += text[at : match.start()]
            places.append((len(out), match.start(), False))
            out += variables[name]
            at = match.end()
    places.append((len(out), at, True))
    return out + text[at:end], places


def _original(places: list[Place], at: int, end: int) -> int:
    """The offset in the script that the offset `at` of a piece stands for; within a value, where its `${` stands."""
    begins, from_, moves = max((place for place in places if place[0] <= at), default=places[0])
    return min(from_ + (at - begins if moves else 0), end)


def count_statements(text: str) -> int:
    """How many statements the text holds, whatever they say."""
    return sum(bool(text[start:end].strip(" \t\r\n;")) for start, end, _ in _pieces(text))
