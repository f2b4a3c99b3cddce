"""The check `drift` on every table: is the world of its pipeline as the metastore says? Run on a schedule and by hand.

It changes nothing; `rollforward drift --repair` does.
"""

# Annotations stay real here: Dagster reads a check's parameters from them.
from collections.abc import Iterable, Sequence

import dagster as dg

from ops.dagster.deployed import Deployed
from ops.dagster.failure import told_to_dagster
from ops.dagster.keys import pipeline_keys
from ops.dagster.maintenance import scheduled
from ops.environment import settings_now

CHECK = "drift"
JOB = "compare_with_the_world"
EVERY_10_MINUTES = "*/10 * * * *"


def drift_checks(
    pipelines: Sequence[Deployed],
) -> tuple[list[dg.AssetChecksDefinition], list[dg.ScheduleDefinition]]:
    """The checks of what is deployed, with the schedule that runs them; none without a pipeline."""
    tables = {
        key: pipeline.name
        for pipeline in pipelines
        for key in pipeline_keys(pipeline.name, [query.name for query in pipeline.queries]).tables.values()
    }
    if not tables:
        return [], []
    description = "Topics, groups, driver and stores of the pipeline are as the metastore says."
    specs = [dg.AssetCheckSpec(CHECK, asset=key, description=description) for key in tables]

    @dg.multi_asset_check(name="compare_metastore_with_the_world", specs=specs, can_subset=True)
    def compare(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        with told_to_dagster():
            # Kafka's library is needed by this run alone, not by those who load the definitions.
            from ops.drift import find

            findings = find(settings_now())
        for selected in sorted(context.selected_asset_check_keys):
            # What concerns the log concerns every pipeline.
            mine = [f for f in findings if f.pipeline in ("", tables[selected.asset_key])]
            lines = [f"- {f.what}: {f.text}; {f'`--repair` would {f.repair}' if f.repair else f.hint}" for f in mine]
            yield dg.AssetCheckResult(
                passed=not mine,
                asset_key=selected.asset_key,
                check_name=CHECK,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"differences": dg.MetadataValue.md("\n".join(lines) or "none")},
            )

    selection = dg.AssetSelection.checks(compare)
    job = dg.define_asset_job(JOB, selection=selection, executor_def=dg.in_process_executor)
    return [compare], [scheduled(job, EVERY_10_MINUTES, "Compares the metastore with the world.")]
