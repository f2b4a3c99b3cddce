"""Ours, as users run it: a deployed pipeline and a driver process."""

from __future__ import annotations

import json
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from pipelines import names
from pipelines.deploy import deployed_queries
from pipelines.sql import SqlError
from statestore.client import StoreClient
from tests.benchmarks.systems.base import NotPossible, System
from tests.support.pipeline import PipelineUnderTest, settings_for
from tests.support.present import present


class Rollforward(System):
    """Exactly-once, with the settings that users get, but for the batch's bound and interval."""

    name = "rollforward"
    transactions: ClassVar[bool] = True

    @classmethod
    def without_transactions(cls) -> type[Rollforward]:
        """The same without a guarantee."""
        return type(
            "WithoutTransactions",
            (cls,),
            {"name": "rollforward-no-transactions", "guarantee": "none", "transactions": False},
        )

    @classmethod
    def version(cls) -> str:
        return version("rollforward")

    @cached_property
    def pipeline(self) -> PipelineUnderTest:
        """The deployed pipeline."""
        found = self.broker.found
        settings = settings_for(
            self.folder,
            self.broker.bootstrap,
            java_home=found.java_home,
            class_archive=found.class_archive,
            max_records_per_batch=self.broker.batch,
            batch_interval_s=self.broker.interval_s,
            transactions=self.transactions,
        )
        return PipelineUnderTest(settings, self.run, self.workload.sql.format(topic=self.topic))

    def prepare(self) -> None:
        try:
            assert self.pipeline
        except SqlError as error:
            raise NotPossible(f"the statements are refused: {str(error).splitlines()[0]}") from error

    def start(self) -> None:
        self.process = self.pipeline.start()

    @property
    def log(self) -> Path:
        return self.pipeline.log

    def groups(self) -> list[str]:
        queries = deployed_queries(self.pipeline.registry.pipeline(self.run))
        return [names.group(self.run, deployed.query.name) for deployed in queries]

    def memtables(self) -> dict[int, int]:
        found = {}
        for server in present(self.pipeline.registry.driver(self.run)).servers:
            with StoreClient(server["socket"], timeout_s=10) as client:
                figures = client.act("figures")
            found[figures["pid"]] = sum(task["memory"]["memtables"] for task in figures["tasks"])
        return found

    def output_topics(self) -> dict[str, str]:
        queries = deployed_queries(self.pipeline.registry.pipeline(self.run))
        return {deployed.query.name: deployed.query.output_topic for deployed in queries}

    def key_text(self, key: bytes) -> str:
        if key.startswith(b"{"):
            return ":".join(str(value) for value in json.loads(key).values())
        # A single key column is plain: eight bytes of a bigint, or text.
        return str(int.from_bytes(key, "big", signed=True)) if len(key) == 8 else key.decode()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.pipeline.kill_driver()

    def close(self) -> None:
        super().close()
        if "pipeline" in self.__dict__:
            self.pipeline.close()
