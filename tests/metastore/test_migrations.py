"""The database's tables: made from nothing, brought up from the first form, the same in the end, never downgraded."""

from __future__ import annotations

import threading

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text

import ops.alerts.incidents
import pipelines.metastore.tables
import pipelines.recomputes
import pipelines.registry
from pipelines.database import Base, open_database
from pipelines.migrations.upgrade import upgrade
from statestore.errors import FormatUnsupported, InvalidConfig

assert ops.alerts.incidents and pipelines.metastore.tables and pipelines.recomputes and pipelines.registry


def test_the_migrations_make_the_tables_that_the_program_uses(url: str) -> None:
    with open_database(url).connect() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection), Base.metadata)


def test_tables_from_before_there_were_migrations_are_brought_up(url: str) -> None:
    engine = open_database(url)
    with engine.begin() as connection:
        # What the first form made: the same tables of observations, and no version.
        for table in (
            "alembic_version",
            "definitions",
            "commands",
            "set_aside",
            "log_position",
            "incidents",
            "recomputes",
        ):
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text("ALTER TABLE drivers DROP COLUMN metrics_port"))
        connection.execute(text("ALTER TABLE drivers DROP COLUMN spark_url"))
        connection.execute(text("ALTER TABLE batches DROP COLUMN late_records"))
        connection.execute(text("CREATE TABLE pipelines (name VARCHAR(100) PRIMARY KEY)"))
        connection.execute(
            text("INSERT INTO recoveries (pipeline, cause, plan, finished_at) VALUES ('p', 'c', '{}', 1)")
        )
    engine.dispose()
    with open_database(url).connect() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection), Base.metadata)
        assert 1 == connection.scalar(text("SELECT count(*) FROM recoveries"))
        assert "pipelines" not in inspect(connection).get_table_names()


def test_many_processes_may_open_a_new_database_at_once(url: str) -> None:
    failed: list[Exception] = []

    def open_one() -> None:
        try:
            open_database(url).dispose()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failed


def test_tables_of_a_later_program_are_refused(url: str) -> None:
    with open_database(url).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(FormatUnsupported, match="upgrade this program"):
        open_database(url)


def test_the_database_of_another_program_is_refused(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        # As Dagster's storage has it.
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('29b539ebc72a')"))
    with pytest.raises(InvalidConfig, match="a database of its own"):
        open_database(url)
    assert ["alembic_version"] == inspect(engine).get_table_names()
    engine.dispose()


def test_an_upgrade_that_fails_changes_nothing(url: str) -> None:
    def upgrade_and_fail(connection: Connection, found: str | None) -> None:
        upgrade(connection, found)
        raise RuntimeError("killed before the end")

    with pytest.MonkeyPatch.context() as failing:
        failing.setattr("pipelines.migrations.upgrade.upgrade", upgrade_and_fail)
        with pytest.raises(RuntimeError, match="killed"):
            open_database(url)
    engine = create_engine(url)
    assert [] == inspect(engine).get_table_names()
    engine.dispose()
    with open_database(url).connect() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection), Base.metadata)
