"""Deployed queries as statements see them: one pipeline a query, named by the query's id."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import create_engine, delete

from pipelines import names
from pipelines.deploy import DeployedQuery, deploy, deployed_queries
from pipelines.registry import RUNNING, STOPPED, PipelineRow, Registry
from pipelines.settings import Settings
from statestore.errors import InvalidInput
from statestore.kafka import Admin


class Deployments:
    """Queries in the registry. `stop` makes a pipeline's driver end and waits for it; only ops knows processes."""

    def __init__(self, settings: Settings, registry: Registry, stop: Callable[[str], object]) -> None:
        self._settings = settings
        self._registry = registry
        self._stop = stop

    def all(self) -> list[PipelineRow]:
        """Every pipeline, those that were deployed from files as well."""
        return self._registry.pipelines()

    def queries(self) -> dict[str, DeployedQuery]:
        """Every query by id: the pipeline's name, and for a pipeline of several `pipeline.query`; in upper case."""
        found = {}
        for row in self.all():
            for query in deployed_queries(row):
                alone = len(row.queries) == 1
                found[(row.name if alone else f"{row.name}.{query.query.name}").upper()] = query
        return found

    def deploy(self, script: str, pipeline: str) -> None:
        """Deploy the script as the pipeline and want it to run."""
        deploy(script, pipeline, self._settings, self._registry)
        self._registry.set_desired(pipeline, RUNNING)

    def want(self, pipeline: str, *, running: bool) -> None:
        """Want it to run or to stop. Raises `InvalidInput` for an unknown one."""
        self._registry.set_desired(pipeline, RUNNING if running else STOPPED)

    def drop(self, pipeline: str) -> None:
        """Stop it and forget it, with the topics of its state. Its results stay."""
        row = self._registry.pipeline(pipeline)
        self._registry.set_desired(pipeline, STOPPED)
        self._stop(pipeline)
        topics = [names.batches_topic(pipeline, deployed.query.name) for deployed in deployed_queries(row)]
        topics += [names.changelog_topic(pipeline, deployed.query.store) for deployed in deployed_queries(row)]
        engine = create_engine(self._settings.metastore)
        with engine.begin() as connection:
            connection.execute(delete(PipelineRow).where(PipelineRow.name == pipeline))
        engine.dispose()
        Admin(self._settings.kafka_config()).delete(topics)

    def query(self, query_id: str) -> DeployedQuery:
        """The query of an id. Raises `InvalidInput` with those that exist."""
        queries = self.queries()
        if query_id.upper() not in queries:
            known = ", ".join(queries) or "none is deployed"
            raise InvalidInput("query does not exist", query=query_id, queries=known, hint="SHOW QUERIES lists them")
        return queries[query_id.upper()]
