"""Results that are grouped by time as partitioned assets: materializing partitions computes them again.

    [<pipeline>, <table>_by_day]     daily partitions
    [<pipeline>, <table>_by_hour]    hourly ones, where the result's times are finer than a day

A run takes a whole range of partitions and asks the pipeline's driver for one batch; see `pipelines/engine/recomputing.py`.
A run that is killed leaves its request to the driver, and to run it again changes nothing more. The check `equals_stream`
fails where the stream's own result differed and had to be put right.
"""

# Annotations stay real here: Dagster reads an asset's configuration from them.
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from ops.dagster.deployed import Deployed, current
from ops.dagster.failure import told_to_dagster
from ops.dagster.keys import pipeline_keys
from ops.environment import settings_now
from pipelines.periods import DAY_MS, time_group
from pipelines.plan import Query

if TYPE_CHECKING:
    from ops.backfill import Backfilled

CHECK = "equals_stream"
BY_DAY, BY_HOUR = "by_day", "by_hour"
# Dagster draws every partition: hours of about two years, days since the epoch of most data.
_FIRST_DAY, _FIRST_HOUR = datetime(2010, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)


class BackfillConfig(dg.Config):
    """How partitions are computed."""

    dry_run: bool = Field(default=False, description="only compare with the stream's own result, change nothing")
    timeout_s: float = Field(default=3600.0, description="how long to wait for the driver's answer")


def backfill_assets(pipelines: Sequence[Deployed]) -> list[dg.AssetsDefinition]:
    """Assets for each result that is grouped by time; all of one size in one definition, which loads much faster."""
    results: dict[str, dict[dg.AssetKey, Result]] = {BY_DAY: {}, BY_HOUR: {}}
    for pipeline in pipelines:
        keys = pipeline_keys(pipeline.name, [query.name for query in pipeline.queries])
        taken = {*keys.tables.values(), *keys.stores.values(), keys.dead_letters}
        for query in pipeline.queries:
            table = keys.tables[query.name]
            for size in _sizes(query):
                key = dg.AssetKey([*table.path[:-1], f"{table.path[-1]}_{size}"])
                while key in taken:
                    key = dg.AssetKey([*key.path[:-1], f"{key.path[-1]}_"])
                taken.add(key)
                results[size][key] = Result(pipeline.name, query, table)
    return [_assets(size, found) for size, found in results.items() if found]


@dataclass(frozen=True)
class Result:
    """What an asset computes; `table` is the asset that the stream keeps up to date."""

    pipeline: str
    query: Query
    table: dg.AssetKey


def _sizes(query: Query) -> list[str]:
    group = time_group(query)
    if group is None:
        return []
    return [BY_DAY] if group.step_ms >= DAY_MS else [BY_DAY, BY_HOUR]


def _partitions(size: str) -> dg.TimeWindowPartitionsDefinition:
    # With an offset of one the period that is not over yet can be computed as well.
    if size == BY_DAY:
        return dg.DailyPartitionsDefinition(_FIRST_DAY, timezone="UTC", end_offset=1)
    return dg.HourlyPartitionsDefinition(_FIRST_HOUR, timezone="UTC", end_offset=1)


def _assets(size: str, results: Mapping[dg.AssetKey, Result]) -> dg.AssetsDefinition:
    description = "Whether the stream's own result was the same."

    @dg.multi_asset(
        name=f"compute_{size}",
        specs=[_spec(key, result) for key, result in results.items()],
        check_specs=[dg.AssetCheckSpec(CHECK, asset=key, description=description) for key in results],
        partitions_def=_partitions(size),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        op_tags={"rollforward/managed": "true", "dagster/max_retries": "0"},
    )
    def computed(context: dg.AssetExecutionContext, config: BackfillConfig) -> Iterable[dg.MaterializeResult[None]]:
        for key in sorted(context.selected_asset_keys):
            yield _compute(context, key, results[key], config)

    return computed


def _spec(key: dg.AssetKey, result: Result) -> dg.AssetSpec:
    query = result.query
    return dg.AssetSpec(
        key,
        deps=[result.table],
        group_name=result.pipeline,
        kinds={"spark", "kafka"},
        description=(
            f"Table `{query.name}` by time. Materializing partitions computes them again from topic "
            f"`{query.source.topic}`, while the pipeline runs, and puts right what differs from the stream's own result.\n\n"
            "A range is written as `[2026-03-01...2026-03-07]`; for older ones choose *Show all partitions* first. All of "
            "it is one run and one batch. With `dry_run` in *Config* it is only compared."
        ),
        metadata={
            "table": query.name,
            "source topic": query.source.topic,
            "result topic": query.output_topic,
            "grouped by": ", ".join(
                [*(key.name for key in query.group_by), *(["WINDOWSTART"] if query.window else [])]
            ),
            "from the command line": dg.MetadataValue.md(
                f"`rollforward backfill {result.pipeline} --query {query.name} --from … --to … --dry-run`"
            ),
        },
    )


def _compute(
    context: dg.AssetExecutionContext, key: dg.AssetKey, result: Result, config: BackfillConfig
) -> dg.MaterializeResult[None]:
    # Kafka's and RocksDB's libraries are needed by this run alone, not by those who load the definitions.
    from ops.backfill import backfill

    window = context.partition_time_window
    from_ms, to_ms = (int(at.timestamp() * 1000) for at in (window.start, window.end))
    with told_to_dagster(), current(settings_now()) as registry:
        done = backfill(
            registry,
            result.pipeline,
            result.query,
            from_ms=from_ms,
            to_ms=to_ms,
            dry_run=config.dry_run,
            timeout_s=config.timeout_s,
            tell=_Told(context),
            on_asked=lambda request: context.log.info(f"asked the driver of {result.pipeline}: request {request}"),
        )
    context.log.info(f"{done.to_json()}")
    return dg.MaterializeResult(asset_key=key, metadata=_metadata(done), check_results=[_check(key, done)])


class _Told:
    """Logs each state once."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context, self._last = context, ""

    def __call__(self, step: str, detail: str) -> None:
        if detail != self._last:
            self._last = detail
            self._context.log.info(f"{step}: {detail}")


def _metadata(done: "Backfilled") -> dict[str, Any]:
    period = {"from": done.period_from, "to (not included)": done.period_to, "dry run": done.dry_run}
    return {**period, "batch": done.batch, **done.figures, "corrected": done.corrected}


def _check(key: dg.AssetKey, done: "Backfilled") -> dg.AssetCheckResult:
    figures: dict[str, Any] = {**done.figures, "corrected": done.corrected}
    # A correction is the asset's purpose: people should see it, and nothing waits for it.
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=CHECK,
        passed=done.corrected == 0,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=figures,
    )
