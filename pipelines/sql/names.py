"""Names in SQL: which words are reserved, how a name is read, how it is written for Spark."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from pipelines.sql.error import Refusal
from statestore.spaces.base import OWN_SPACES

HASH_LENGTH = 8
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that need no quotes either; what reads as a number is none.
DIGIT_NAME = re.compile(r"(?![0-9]+[eE][0-9]+$)[0-9]+[A-Za-z_][A-Za-z0-9_]*")
PLAN_NAME = re.compile(r"[a-z0-9_]+")
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
AGGREGATE_NAME = re.compile(r"[Aa][0-9]+")
NAME_LENGTH_MAX = 255

# Words with a place in the grammar. A column of such a name is written in back-quotes.
RESERVED = frozenset(
    [
        "AND",
        "AS",
        "BETWEEN",
        "BY",
        "CASE",
        "CAST",
        "CREATE",
        "CROSS",
        "DISTINCT",
        "ELSE",
        "EMIT",
        "END",
        "ESCAPE",
        "EXCEPT",
        "FALSE",
        "FROM",
        "FULL",
        "GROUP",
        "HAVING",
        "IN",
        "INNER",
        "INSERT",
        "INTERSECT",
        "INTO",
        "IS",
        "JOIN",
        "LEFT",
        "LIKE",
        "LIMIT",
        "NOT",
        "NULL",
        "ON",
        "OR",
        "ORDER",
        "OUTER",
        "OVER",
        "PARTITION",
        "RIGHT",
        "SELECT",
        "STREAM",
        "TABLE",
        "THEN",
        "TRUE",
        "UNION",
        "VALUES",
        "WHEN",
        "WHERE",
        "WINDOW",
        "WITH",
        "WITHIN",
    ]
)

# ksqlDB gives every row these columns; a column of one's own may not be called so.
ROWTIME = "ROWTIME"
WINDOW_BOUNDS = ("WINDOWSTART", "WINDOWEND")
PSEUDO_COLUMNS = frozenset({ROWTIME, "ROWPARTITION", "ROWOFFSET", *WINDOW_BOUNDS})


@dataclass(frozen=True)
class Name:
    """A name at offset `at`: `text` is upper case unless it was back-quoted, `written` is as the statement has it."""

    text: str
    written: str = field(compare=False)
    at: int = field(compare=False)


def read_name(written: str, *, quoted: bool, at: int) -> Name:
    """The name that the characters `written` stand for. Refuses what no name may be."""
    if written.startswith("__"):
        raise Refusal(at, "names that begin with __ are the engine's own", "choose another name")
    if quoted:
        if not written or len(written) > NAME_LENGTH_MAX:
            raise Refusal(at, f"a name has 1 to {NAME_LENGTH_MAX} characters")
        if "`" in written or "${" in written or not written.isprintable():
            raise Refusal(at, "a name may not contain a back-quote, ${ or a control character")
        return Name(written, written, at)
    plain = NAME.fullmatch(written) or DIGIT_NAME.fullmatch(written)
    if plain is None or len(written) > NAME_LENGTH_MAX:
        raise Refusal(at, f"{written[:50]} is not a name", "write other characters in `back-quotes`")
    if written.upper() in RESERVED:
        raise Refusal(at, f"{written.upper()} is a reserved word", f"as a name, write `{written}`")
    return Name(written.upper(), written, at)


def column_name(name: Name) -> str:
    """The name as a column's, which must not be one of ksqlDB's own columns."""
    if name.text.upper() in PSEUDO_COLUMNS:
        raise Refusal(name.at, f"'{name.text}' is a reserved column name.", "choose another name")
    return name.text


def written_name(text: str) -> str:
    """The name as a statement has it: in back-quotes unless it reads the same without."""
    plain = NAME.fullmatch(text) and text == text.upper() and text not in RESERVED
    return text if plain else f"`{text}`"


def plan_word(text: str) -> str:
    """A word of `PLAN_NAME` for a stream's or table's name: other characters give way to `_` and a hash of them all.

    So does a word that no store may be called.
    """
    word = text.lower()
    if PLAN_NAME.fullmatch(word) and word not in OWN_SPACES:
        return word
    known = hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
    return f"{re.sub('[^a-z0-9_]', '_', word)}_{known}"


def topic_name(topic: str, at: int) -> str:
    """The topic, if Kafka accepts it as a name."""
    if not TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
        raise Refusal(
            at, f"'{topic[:50]}' is not a topic name", "1 to 249 of letters, digits, '.', '_' and '-', not '.' or '..'"
        )
    return topic
