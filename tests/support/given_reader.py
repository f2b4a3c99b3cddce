"""A reader of a store whose entries are given: no server, no folder, no Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from pipelines.deploy import DeployedQuery
from pipelines.plan import Query
from pipelines.query import StoreReader
from pipelines.settings import Settings
from statestore.config import TaskSpec
from statestore.store import Isolation


class GivenReader(StoreReader):
    """Reads these entries, states by key, as those of every task. `asked` is what was read, bounds in hexadecimal."""

    def __init__(self, query: Query, entries: Mapping[bytes, bytes]) -> None:
        super().__init__(DeployedQuery("p", query, "", ""), Settings(home=Path("unused")), None)
        self._given, self.asked = entries, list[dict[str, str | None]]()

    def _entries(self, spec: TaskSpec, isolation: Isolation, **bounds: str | None) -> Iterator[pa.RecordBatch]:
        self.asked.append(bounds)
        wanted = bounds.get("key")
        found = {key: state for key, state in self._given.items() if wanted is None or key.hex() == wanted}
        columns = [pa.array(list(column), pa.binary()) for column in (found, found.values())]
        yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])
