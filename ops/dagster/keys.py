"""Asset keys: one place, so that definitions, observations and recoveries name the same asset.

    [<topic>]                        a source topic, once for all pipelines that read it
    [<pipeline>, <table>]            a result topic; also where another pipeline reads it as its source
    [<pipeline>, <store>_store]      a query's store
    [<pipeline>, dead_letters]       records that could not be used

Parts are of `[A-Za-z0-9_]`. Two different things never get one key: a part that is taken is told apart by a suffix.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dagster import AssetKey

from pipelines.plan import Query

_OTHER = re.compile(r"[^A-Za-z0-9_]")


def key_part(text: str) -> str:
    """`text` with every character that a key cannot hold replaced by `_`."""
    return _OTHER.sub("_", text) or "_"


@dataclass(frozen=True)
class PipelineKeys:
    """Keys of one pipeline's assets; `tables` and `stores` by query name."""

    tables: Mapping[str, AssetKey]
    stores: Mapping[str, AssetKey]
    dead_letters: AssetKey


def pipeline_keys(pipeline: str, queries: Iterable[str]) -> PipelineKeys:
    """Keys from a pipeline's name and its queries' names, in any order; tables keep their names whatever else there is."""
    names = sorted(queries)
    taken = set(names)

    def free(part: str) -> AssetKey:
        while part in taken:
            part += "_"
        taken.add(part)
        return AssetKey([key_part(pipeline), part])

    tables = {name: AssetKey([key_part(pipeline), key_part(name)]) for name in names}
    stores = {name: free(f"{key_part(name)}_store") for name in names}
    return PipelineKeys(tables, stores, free("dead_letters"))


def result_keys(pipelines: Mapping[str, Iterable[Query]]) -> dict[str, AssetKey]:
    """The key of every result topic, by topic."""
    return {
        query.output_topic: pipeline_keys(name, [q.name for q in queries]).tables[query.name]
        for name, queries in ((name, list(queries)) for name, queries in pipelines.items())
        for query in queries
    }


def source_keys(topics: Iterable[str], results: Mapping[str, AssetKey]) -> dict[str, AssetKey]:
    """The key of every source topic, by topic; a topic that is some query's result has the result's key.

    Topics may hold `.` and `-`. Of two that become the same text (`a.b`, `a_b`), the one that needs no change keeps
    it, and the others carry a piece of their hash.
    """
    names = sorted(set(topics))
    keys: dict[str, AssetKey] = {}
    for topic in names:
        part = key_part(topic)
        rivals = [other for other in names if key_part(other) == part]
        if len(rivals) > 1 and topic != part:
            part = f"{part}_{hashlib.sha256(topic.encode()).hexdigest()[:6]}"
        keys[topic] = results.get(topic) or AssetKey([part])
    return keys
