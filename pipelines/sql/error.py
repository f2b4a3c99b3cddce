"""What is wrong with a text of SQL, and where.

Inside this package a rule raises `Refusal` with an offset into the text. `parse_pipeline` alone turns it into
`SqlError`, which knows line and column. Nothing else leaves the package.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LINE_LENGTH_MAX = 120


class Refusal(Exception):
    """A rule that the text breaks. `at` is the offset of the first character that is to blame."""

    def __init__(self, at: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.at = at
        self.message = message
        self.hint = hint


class SqlError(ValueError):
    """The text is not a pipeline. `line` and `column` count from 1; `source_line` is that line of the text."""

    def __init__(self, message: str, line: int, column: int, source_line: str, hint: str | None = None) -> None:
        super().__init__(message, line, column, source_line, hint)
        self.message = message
        self.line = line
        self.column = column
        self.source_line = source_line
        self.hint = hint

    def __str__(self) -> str:
        """Position and reason, the line, a caret under the place, and the hint if there is one."""
        first = max(0, self.column - 1 - LINE_LENGTH_MAX * 2 // 3)
        shown = "".join(c if c.isprintable() else " " for c in self.source_line[first : first + LINE_LENGTH_MAX])
        gutter = " " * len(str(self.line))
        lines = [
            f"line {self.line}, column {self.column}: {self.message}",
            f"  {self.line} | {shown}",
            f"  {gutter} | {' ' * (self.column - 1 - first)}^",
        ]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def locate(text: str, refusal: Refusal) -> SqlError:
    """`refusal` with its offset turned into line, column and line text. Lines end at a newline."""
    at = min(max(refusal.at, 0), len(text))
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    source_line = text[start : len(text) if end < 0 else end].rstrip("\r")
    return SqlError(refusal.message, text.count("\n", 0, at) + 1, at - start + 1, source_line, refusal.hint)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint that names the known name most like `name`, if one is near enough."""
    by_upper = {k.upper(): k for k in known}
    found = difflib.get_close_matches(name.upper()[:300], by_upper, n=1, cutoff=0.6)
    return f"did you mean {by_upper[found[0]]}?" if found else None
