"""Attempts of the batch under way that are not Spark's: each says another result for a key, and none may ever count.

Such a one is left by a Spark task that was given up and goes on, on a machine that was cut off. It takes the place of
the true attempt on the server, so the true one's commit has to be refused, and its batch staged again.
"""

from __future__ import annotations

import json
import random
from itertools import islice
from typing import Any

import pyarrow as pa

from pipelines.deploy import deployed_queries
from statestore.client import StoreClient
from statestore.errors import RollforwardError
from statestore.staging import EMIT_VALUE, SCHEMA
from statestore.store import Isolation
from tests.crash.matrix.bench import NAME, Bench
from tests.support.present import present

# The count that they say; no key had less before.
_WRONG = json.dumps({"N": 0}).encode()
_ATTEMPT = 1 << 40


class Duplicates:
    """Stages one such attempt a call, on a task of any query that has a store."""

    def __init__(self, bench: Bench, choose: random.Random) -> None:
        self._bench, self._choose = bench, choose
        self._staged = 0
        queries = [deployed.query for deployed in deployed_queries(bench.registry.pipeline(NAME))]
        self._with_store = {query.name for query in queries if not query.stateless}

    def stage(self) -> int:
        """Try once; gives how many have been staged so far. A server may be away, or the task may go on meanwhile."""
        servers = present(self._bench.registry.driver(NAME)).servers
        if not servers:
            # A driver that starts again has none yet.
            return self._staged
        server = self._choose.choice(servers)
        self._try(server, self._choose.choice(self._tasks(server)))
        return self._staged

    def stage_all(self) -> None:
        """Try on every task that has a store."""
        for server in present(self._bench.registry.driver(NAME)).servers:
            for task in self._tasks(server):
                self._try(server, task)

    def _try(self, server: dict[str, Any], task: str) -> None:
        try:
            with StoreClient(server["socket"], timeout_s=5) as client:
                self._staged += self._stage(client, task)
        except RollforwardError as error:
            print(f"    duplicate: {str(error)[:120]}", flush=True)

    def _tasks(self, server: dict[str, Any]) -> list[str]:
        """Those with a store."""
        return sorted(name for name in server["tasks"] if name.rpartition("-")[0] in self._with_store)

    def _stage(self, client: StoreClient, task: str) -> int:
        """How many attempts were staged: one, or none where the task has nothing yet or has gone on."""
        figures = next(one for one in client.act("figures")["tasks"] if one["task"] == task)
        epoch, batch = figures["epoch"], figures["batch"] + 1
        entries = client.entries(task, isolation=Isolation.READ_COMMITTED.value)
        found = [pair for chunk in islice(entries, 1) for pair in zip(*chunk.to_pydict().values(), strict=True)]
        if not found:
            return 0
        key, state = self._choose.choice(found)
        reading = client.read(task, epoch=epoch, batch=batch)
        if reading.already:
            reading.close()
            return 0
        _, token = reading.states(pa.array([key], pa.binary()))
        reading.close()
        attempt = _ATTEMPT + self._choose.randrange(_ATTEMPT)
        writing = client.write(task, epoch=epoch, batch=batch, attempt=attempt, token=token)
        columns = [[key], [state], [0], [EMIT_VALUE], [_WRONG], [None]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        writing.add(pa.record_batch(arrays, schema=SCHEMA))
        return writing.close()
