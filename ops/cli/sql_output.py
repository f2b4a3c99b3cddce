"""How results of statements are shown: tables for people, a line of JSON a statement for machines."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from ops.cli.output import answer, out, say, table
from pipelines.console.result import Result
from pipelines.console.session import Session
from pipelines.jsonvalue import dump
from pipelines.sql import Parsed

PAGE_ROWS = 1_000


def run_script(session: Session, text: str, *, as_json: bool) -> None:
    """Run the statements and show each answer as it comes. Raises what the first failing statement raises."""
    for parsed, result in session.run(text):
        if as_json:
            show_json(parsed, result)
        else:
            show(result)


def show_json(parsed: Parsed, result: Result) -> None:
    """One object on one line: the statement, its message, and its rows as objects."""
    told: dict[str, Any] = {"statement": parsed.text}
    if result.message:
        told["message"] = result.message
    if result.columns:
        told["rows"] = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    answer(told)


def show(result: Result, *, paged: bool = False) -> None:
    """The message, and the rows as tables of at most `PAGE_ROWS`; `paged` shows them in the terminal's pager."""
    if result.message:
        say(result.message)
    if not result.columns:
        return
    rows = iter(result.rows)
    console = out()
    count = 0
    while page := list(islice(rows, PAGE_ROWS)):
        count += len(page)
        if paged and len(page) >= console.height - 4:
            with console.pager(styles=True):
                table(result.columns, _plain(page), thousands=False)
        else:
            table(result.columns, _plain(page), thousands=False)
    say(f"{count} {'row' if count == 1 else 'rows'}")


def _plain(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [[_cell(cell) for cell in row] for row in rows]


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return dump(value)
    return value if isinstance(value, int | float | str) or value is None else str(value)
