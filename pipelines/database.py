"""The database of one service: the metastore's projection, and the observations of drivers, through SQLAlchemy.

SQLite by default, anything SQLAlchemy reaches by URL; tested on SQLite and PostgreSQL. Losing it loses history and
figures only: definitions are rebuilt from the command log. Tables are made and changed by the migrations in
`pipelines/migrations`, under a lock, by whichever process comes first.

A process that lives long may lose its database and get it back: connections of a server that was restarted, or of a file
that was deleted, are not used again, and `prepare` makes the tables of a database that has come back empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase

from statestore.errors import FormatUnsupported, InvalidConfig, Unavailable

# The newest migration. Compared first, because loading alembic would be most of a short command's time.
NEWEST = "0005"
_FIRST = "0001"
# Alembic's, of which a database has one.
_VERSION_TABLE = "alembic_version"
_OURS = re.compile(r"\d{4}")
_WRITES = "rollforward_writes"
# Any number, the same for everybody who writes to a PostgreSQL database of ours.
_ADVISORY_LOCK = 7_305_112
# libpq's settings: a host that is gone is given up within 25 s, not within TCP's quarter of an hour.
_POSTGRES = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class Base(DeclarativeBase):
    """Every table of ours."""


def open_database(url: str) -> Engine:
    """An engine on a database whose tables are the newest. Raises `FormatUnsupported` for tables of a later program, and
    `InvalidConfig` for a database without a driver here, or of another program."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": 30})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        if parsed.database:
            _watch_file(engine, Path(parsed.database))
    else:
        engine = _engine(parsed)
    try:
        prepare(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _engine(url: URL) -> Engine:
    try:
        # A connection of a server that was restarted is replaced before it is used.
        return create_engine(url, connect_args=_patience(url), pool_pre_ping=True)
    except ModuleNotFoundError as error:
        hint = f"install {error.name}, or name an installed driver in metastore_url: postgresql+psycopg2://…"
        raise InvalidConfig("driver of the database is not installed", driver=url.drivername, hint=hint) from error


def prepare(engine: Engine) -> None:
    """Make or change the tables where that is to be done. Raises as `open_database` does."""
    url = engine.url
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _migrate(engine)


def _patience(url: URL) -> dict[str, Any]:
    return _POSTGRES if url.get_backend_name() == "postgresql" else {}


def _watch_file(engine: Engine, path: Path) -> None:
    """Give up connections to a file that was deleted or replaced: what they wrote nobody else would see."""

    def connected(_connection: Any, record: Any) -> None:
        record.info["file"] = _identity(path)

    def checked_out(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info["file"] != _identity(path):
            raise DisconnectionError(f"{path.name} is another file than before")

    event.listen(engine, "connect", connected)
    event.listen(engine, "checkout", checked_out)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


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


def unavailable(error: SQLAlchemyError) -> Unavailable:
    """The error for people: what the database said, in one line."""
    said = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    hint = "check that the database of metastore_url answers and that its disk has room"
    return Unavailable("database does not answer", error=said.splitlines()[0], hint=hint)


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
    if _VERSION_TABLE in tables:
        found = str(connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}")))
        if not _OURS.fullmatch(found):
            # Dagster's storage keeps a table of this name as well.
            hint = "give metastore_url a database of its own"
            raise InvalidConfig("database is another program's", table=_VERSION_TABLE, found=found, hint=hint)
        return found
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
