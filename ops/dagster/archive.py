"""The archive of source topics as assets, every hour: `<topic>_archive`. Only where `archive_url` is set."""

# Annotations stay real here: Dagster reads an asset's context from them.
from collections.abc import Sequence
from datetime import timedelta

import dagster as dg

from ops.dagster.deployed import Deployed
from ops.dagster.failure import told_to_dagster
from ops.dagster.keys import result_keys, source_keys
from ops.dagster.maintenance import scheduled
from ops.environment import settings_now
from pipelines.settings import Settings

JOB = "archive_topics"
# Every hour it is due: twice missed is told, half a day without is a danger, since retention goes on.
_WARN, _FAIL = timedelta(hours=2.5), timedelta(hours=12)
_TAGS = {"rollforward/managed": "true", "dagster/max_retries": "0", "dagster/max_runtime": "7200"}


def archive_assets(
    pipelines: Sequence[Deployed], settings: Settings
) -> tuple[list[dg.AssetsDefinition], list[dg.ScheduleDefinition]]:
    """One asset for each source topic that no query writes, and the schedule of all of them."""
    results = result_keys({pipeline.name: pipeline.queries for pipeline in pipelines})
    keys = source_keys((topic for pipeline in pipelines for _, topic in pipeline.sources), results)
    taken = {*keys.values(), *results.values()}
    assets = []
    for topic in sorted(keys.keys() - results.keys()) if settings.archive_config() is not None else []:
        key = dg.AssetKey(f"{keys[topic].path[-1]}_archive")
        while key in taken:
            key = dg.AssetKey(f"{key.path[-1]}_")
        taken.add(key)
        assets.append(_asset(topic, key, keys[topic], settings))
    if not assets:
        return [], []
    job = dg.define_asset_job(JOB, [asset.key for asset in assets], executor_def=dg.in_process_executor, tags=_TAGS)
    return assets, [scheduled(job, "30 * * * *", "Archive the source topics.")]


def _asset(topic: str, key: dg.AssetKey, source: dg.AssetKey, settings: Settings) -> dg.AssetsDefinition:
    @dg.asset(
        key=key,
        deps=[source],
        group_name="archive",
        kinds={"parquet"},
        freshness_policy=dg.FreshnessPolicy.time_window(fail_window=_FAIL, warn_window=_WARN),
        description=(
            f"Records of Kafka topic `{topic}` as Parquet, for backfills and new pipelines when Kafka has deleted them."
        ),
        metadata={"topic": topic, "archive": settings.archive_url},
    )
    def archived(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        # Kafka's library is needed by this run alone, not by those who load the definitions.
        from ops.archive import archive_all

        with told_to_dagster():
            done = archive_all([topic], settings_now())
        context.log.info("\n".join(str(one.to_json()) for one in done))
        figures = {"records": sum(one.records for one in done), "files": sum(one.files for one in done)}
        ends = dg.MetadataValue.json({str(one.partition): [one.first, one.end] for one in done})
        return dg.MaterializeResult(metadata={**figures, "offsets": ends})

    return archived
