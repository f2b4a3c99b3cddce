"""The database of one service: the metastore's projection, and the observations of drivers, through SQLAlchemy.

SQLite by default, anything SQLAlchemy reaches by URL; tested on SQLite and PostgreSQL. Losing it loses history and
figures only: definitions are rebuilt from the command log. Tables are made and changed by the migrations in
`pipelines/migrations`, under a lock, by whichever process comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase

from statestore.errors import FormatUnsupported

# The newest migration. Compared first, because loading alembic would be most of a short command's time.
NEWEST = "0005"
_FIRST = "0001"
_WRITES = "rollforward_writes"
# Any number, the same for everybody who writes to a PostgreSQL database of ours.
_ADVISORY_LOCK = 7_305_112


class Base(DeclarativeBase):
    """Every table of ours."""


def open_database(url: str) -> Engine:
    """An engine on a database whose tables are the newest. Raises `FormatUnsupported` for tables of a later program."""
    parsed = make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(url, connect_args={"timeout": 30} if sqlite else {})
    if sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    try:
        _migrate(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads and then writes, one at a time.

    SQLite takes its write lock now, since later it could not be waited for; PostgreSQL a lock of ours, since the first
    row of a table cannot be locked before it is there.
    """
    with engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        yield connection


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver begins transactions only at the first write; `_begin_sqlite` does it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _version(connection: Connection) -> str | None:
    """The migration that the database stands at; None for an empty one."""
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        return str(connection.scalar(text("SELECT version_num FROM alembic_version")))
    # Before there were migrations the tables were made at once.
    return _FIRST if "drivers" in tables else None


def _migrate(engine: Engine) -> None:
    with engine.connect() as connection:
        found = _version(connection)
    if found == NEWEST:
        return
    if found is not None and found > NEWEST:
        raise FormatUnsupported(
            "database was made by a later program", found=found, newest=NEWEST, hint="upgrade this program"
        )
    from pipelines.migrations.upgrade import upgrade

    with writing(engine) as connection:
        found = _version(connection)
        if found != NEWEST:
            upgrade(connection, found)
