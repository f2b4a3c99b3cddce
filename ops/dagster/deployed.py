"""The deployed pipelines as Dagster shows them, read so that one bad row spoils only itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, create_engine, func, select

from pipelines.metastore.embedded import refresh
from pipelines.plan import Query, query_from_json
from pipelines.registry import BatchRow, PipelineDefinition, Registry
from pipelines.settings import Settings


@dataclass(frozen=True)
class Deployed:
    """A pipeline whose definition reads. `sources` are (stream, topic), also those that no query reads."""

    name: str
    sql: str
    deployed_at: float
    sources: tuple[tuple[str, str], ...]
    queries: tuple[Query, ...]


@dataclass(frozen=True)
class Broken:
    """A pipeline whose definition does not read, and why."""

    name: str
    error: str


@contextmanager
def opened(settings: Settings) -> Iterator[Registry]:
    """The registry, for one short use: a home that was wiped meanwhile is not held by an old connection."""
    with closing(Registry(settings.metastore)) as registry:
        yield registry


@contextmanager
def current(settings: Settings) -> Iterator[Registry]:
    """The registry with what the log says now, or said when Kafka was last there."""
    refresh(settings)
    with opened(settings) as registry:
        yield registry


def read_deployed(settings: Settings) -> tuple[list[Deployed], list[Broken]]:
    """All pipelines, by name. An empty or missing metastore has none. Raises SQLAlchemyError if it cannot be opened."""
    good: list[Deployed] = []
    bad: list[Broken] = []
    with current(settings) as registry:
        for name in registry.pipeline_names():
            try:
                row = registry.pipeline(name)
                good.append(deployed(row))
            except Exception as error:  # Whatever a damaged row makes of itself is shown, never raised.
                bad.append(Broken(name, f"{type(error).__name__}: {error}"))
    return good, bad


def newest_batch_id(settings: Settings) -> int:
    """The highest id of a finished batch; 0 if there is none."""
    with _connected(settings) as connection:
        return connection.scalar(select(func.max(BatchRow.id))) or 0


@contextmanager
def _connected(settings: Settings) -> Iterator[Connection]:
    engine = create_engine(settings.metastore)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def deployed(row: PipelineDefinition) -> Deployed:
    """A row's definition. Raises whatever is wrong with it."""
    return Deployed(
        name=row.name,
        sql=str(row.sql),
        deployed_at=float(row.deployed_at),
        sources=tuple((str(source["name"]), str(source["topic"])) for source in row.sources),
        queries=tuple(query_from_json(query["plan"]) for query in row.queries),
    )
