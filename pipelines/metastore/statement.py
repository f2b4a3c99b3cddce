"""A statement as a client sends it: its text, what kind it is, and whom it concerns.

Kinds: `deploy` (a script of SQL becomes a pipeline), `start` and `stop` (RESUME and PAUSE: whether it is to run),
`drop` (DROP PIPELINE), `sql` (one statement that defines or drops a stream, a table or a query). The text is what
people see in the log; the kind and the names decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipelines.metastore.command import NAME_LENGTH_MAX
from pipelines.sql import SqlError, parse_statement
from pipelines.sql.statements import count_statements
from pipelines.sql.tree import AlterSource, Control, CreateAs, CreateSource, CreateType, Drop, DropType, InsertSelect
from statestore.errors import InvalidInput

DEPLOY, START, STOP, DROP, SQL = "deploy", "start", "stop", "drop", "sql"
KINDS = (DEPLOY, START, STOP, DROP, SQL)
_CONTROL = re.compile(r"\s*(?P<verb>RESUME|PAUSE|DROP\s+PIPELINE)\s+(?P<name>[A-Za-z0-9_]+)\s*;?\s*", re.IGNORECASE)
_VERBS = {"RESUME": START, "PAUSE": STOP}


@dataclass(frozen=True)
class Statement:
    """See above. `pipeline` is the pipeline that it makes or concerns, `names` what it defines besides.

    `origin` is the pipeline that a deployed one is a copy of, and empty for any other statement.
    """

    kind: str
    pipeline: str
    text: str
    names: tuple[str, ...] = ()
    origin: str = ""


def deploy_script(sql: str, pipeline: str, *, origin: str = "") -> Statement:
    """The script becomes the pipeline."""
    return Statement(DEPLOY, pipeline, sql, origin=origin)


def start_pipeline(pipeline: str) -> Statement:
    """The pipeline is to run."""
    return Statement(START, pipeline, f"RESUME {pipeline};")


def stop_pipeline(pipeline: str) -> Statement:
    """The pipeline is to stop."""
    return Statement(STOP, pipeline, f"PAUSE {pipeline};")


def drop_pipeline(pipeline: str) -> Statement:
    """The pipeline goes; its state goes with it, its results stay."""
    return Statement(DROP, pipeline, f"DROP PIPELINE {pipeline};")


def sql_statement(text: str, pipeline: str = "") -> Statement:
    """One statement of SQL; `pipeline` is that of the query that it makes or drops, where that is known before."""
    return Statement(SQL, pipeline, text)


def read_statement(text: str, pipeline: str = "") -> Statement:
    """What the text says. A script needs the name of its pipeline; one statement does not.

    Raises `InvalidInput`, and `SqlError` for one statement that cannot be read.
    """
    if "\0" in text:
        raise InvalidInput("statement has a NUL character", hint="send text")
    found = _CONTROL.fullmatch(text)
    if found is not None:
        kind = _VERBS.get(found["verb"].upper(), DROP)
        return Statement(kind, found["name"].lower(), text.strip())
    if not pipeline and _defines(text):
        return sql_statement(text)
    if not pipeline:
        raise InvalidInput("script has no pipeline", hint="name the pipeline that it is to become")
    return deploy_script(text, pipeline)


def _defines(text: str) -> bool:
    """Whether the text is one statement that defines or drops a stream, a table or a query. Raises `SqlError`."""
    try:
        found = parse_statement(text).statement
    except SqlError:
        if count_statements(text) == 1:
            raise
        return False
    if isinstance(found, Control):
        return found.action == "TERMINATE" and found.query is not None
    return isinstance(found, CreateSource | CreateAs | AlterSource | CreateType | DropType | InsertSelect | Drop)


def require_key(key: str) -> str:
    """The idempotency key, if it is one. Raises `InvalidInput`."""
    if not key or len(key) > NAME_LENGTH_MAX or not key.isprintable():
        raise InvalidInput(
            "idempotency key is not allowed", key=key[:40], hint=f"use 1 to {NAME_LENGTH_MAX} printable characters"
        )
    return key
