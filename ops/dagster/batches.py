"""Finished batches as observations of their table and store, so that people see figures over time.

Dagster keeps every event for ever, so batches are sampled: of each query one in `observe_every_s`.

A batch is a row of the registry; the sensor's cursor is the id of the last row taken. Dagster stores a tick's events
one after another and the cursor after them, so a daemon that is killed in between repeats the tick: then the newest
stored observation of each asset tells which of the rows are there already, and only the rest is given again. So each
batch is observed exactly once per asset. Three things end that: a cursor that is reset by hand while newer batches
are observed, observations deleted by hand, and a daemon that is down for more batches than the registry keeps (then
the oldest are never observed).

Rows are taken once they are `SETTLE_S` old: with several writers on one database an id can become visible after a
higher one, and would be jumped over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import dagster as dg

from ops.dagster.deployed import newest_batch_id, opened
from ops.dagster.keys import PipelineKeys, pipeline_keys
from ops.environment import settings_now
from pipelines.registry import BatchRow, Registry
from pipelines.settings import Settings

BATCHES_PER_TICK_MAX = 100
ROWS_PER_TICK_MAX = 5_000
SETTLE_S = 2.0
ROW = "registry row"
FINISHED = "finished at"
# Recoveries are observed on stores too; this many observations back, the newest batch is found among them.
_LOOK_BACK = 50


@dg.sensor(
    name="observe_batches",
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Shows finished batches, one in observe_every_s, on its table and store: records, lag, state, seconds.",
)
def observe_batches(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """One tick: up to `BATCHES_PER_TICK_MAX` observed batches, oldest first."""
    settings = settings_now()
    with opened(settings) as registry:
        after = _after(context.cursor, settings)
        rows = registry.batches(after=after, limit=ROWS_PER_TICK_MAX)
        settled = takewhile(lambda row: row.finished_at <= time.time() - SETTLE_S, rows)
        kept, last = _sampled(settled, registry, settings.observe_every_s)
        keys = _keys(registry, settings)
    if last is None:
        return dg.SensorResult(cursor=str(after), skip_reason=dg.SkipReason("no new batch"))
    return dg.SensorResult(asset_events=observations(kept, keys, context.instance), cursor=str(last))


def _sampled(rows: Iterable[BatchRow], registry: Registry, every_s: float) -> tuple[list[BatchRow], int | None]:
    """The rows to observe, at most `BATCHES_PER_TICK_MAX`, and the id of the last one looked at.

    A query's batch is observed if it is the first that ended in its period of `every_s`. That is a matter of the rows
    alone, so a tick that is repeated finds the same ones.
    """
    kept: list[BatchRow] = []
    last: int | None = None
    periods: dict[tuple[str, str], float] = {}
    for row in rows:
        of, period = (row.pipeline, row.query), row.finished_at // every_s if every_s else float(row.id)
        if of not in periods:
            before = registry.batch_before(row)
            periods[of] = before.finished_at // every_s if before is not None and every_s else -1.0
        if period != periods[of]:
            kept.append(row)
        periods[of], last = period, row.id
        if len(kept) == BATCHES_PER_TICK_MAX:
            break
    return kept, last


def observations(
    rows: Sequence[BatchRow], keys: Mapping[str, PipelineKeys], instance: dg.DagsterInstance
) -> list[dg.AssetObservation]:
    """Events of the rows, in their order, without those that Dagster has stored already."""
    events = [event for row in rows for event in _events(row, keys)]
    stored = {key: _newest_stored(key, rows, instance) for key in {event.asset_key for event in events}}
    return [event for event in events if _row_id(event) > stored[event.asset_key]]


def _events(row: BatchRow, keys: Mapping[str, PipelineKeys]) -> Iterable[dg.AssetObservation]:
    known = keys.get(row.pipeline) or pipeline_keys(row.pipeline, [row.query])
    if row.query not in known.tables:
        return
    identity: dict[str, Any] = {
        "batch": row.batch,
        ROW: dg.MetadataValue.text(str(row.id)),
        FINISHED: dg.MetadataValue.timestamp(row.finished_at),
    }
    rate = row.records / row.seconds if row.seconds > 0 else 0.0
    yield dg.AssetObservation(
        known.tables[row.query],
        metadata={
            **identity,
            "records": row.records,
            "dead letters": row.dead_letters,
            "late records": row.late_records,
            "changed keys": row.changed_keys,
            "seconds": round(row.seconds, 3),
            "commit seconds": round(row.commit_seconds, 3),
            "records per second": round(rate, 1),
            "lag": row.lag,
            "offsets": dg.MetadataValue.json(row.offsets),
        },
    )
    yield dg.AssetObservation(
        known.stores[row.query],
        metadata={**identity, "state keys": row.state_keys, "state bytes": row.state_bytes},
    )


def _newest_stored(key: dg.AssetKey, rows: Sequence[BatchRow], instance: dg.DagsterInstance) -> int:
    """Id of the newest of these rows that the asset was observed with; 0 if there is none."""
    ids = {_identity(str(row.id), row.finished_at): row.id for row in rows}
    for record in instance.fetch_observations(key, limit=_LOOK_BACK).records:
        observed = record.asset_observation
        if observed is not None and ROW in observed.metadata:
            finished: Any = observed.metadata[FINISHED].value
            return ids.get(_identity(str(observed.metadata[ROW].value), finished), 0)
    return 0


def _identity(row: str, finished_at: float) -> str:
    """Tells a row from one of the same id in a registry that was made anew."""
    return f"{row}@{finished_at:.3f}"


def _row_id(event: dg.AssetObservation) -> int:
    return int(str(event.metadata[ROW].value))


def _keys(registry: Registry, settings: Settings) -> dict[str, PipelineKeys]:
    """Keys of what is deployed. Only names are read, so that a broken row or plan takes nothing from the others."""
    found = {}
    for name in registry.pipeline_names():
        try:
            queries = [str(json.loads(query["plan"])["name"]) for query in registry.pipeline(name).queries]
        except (ValueError, KeyError, TypeError):
            continue
        found[name] = pipeline_keys(name, queries)
    return found


def _after(cursor: str | None, settings: Settings) -> int:
    """The id to go on after; from the beginning where the registry was made anew and counts from 1 again."""
    after = int(cursor) if cursor else 0
    return after if after <= newest_batch_id(settings) else 0
