"""Names and text as Spark SQL has them. Whatever a person wrote gets into an expression through these alone."""

from __future__ import annotations

_ESCAPES = {"\\": "\\\\", "'": "\\'", "$": "\\u0024", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quote(name: str) -> str:
    """The name of a column or field."""
    return "`" + name.replace("`", "``") + "`"


def string_literal(text: str) -> str:
    """The text as a literal. `$` is escaped, since Spark would replace `${…}` by settings."""
    return "'" + "".join(_ESCAPES.get(c, c) for c in text) + "'"
