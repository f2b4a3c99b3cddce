"""The checks of every table, by the clock and by hand: output, lag, driver, snapshots, dead letters, and a verified sample.

A check that fails carries the name of its page in docs/runbooks. They look and change nothing. One that cannot be made
keeps no other from being made; it fails the run when all have had their turn.
"""

# Annotations stay real here: Dagster reads a check's parameters from them.
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import dagster as dg

from ops.dagster.deployed import Deployed, opened
from ops.dagster.failure import told_to_dagster
from ops.dagster.keys import pipeline_keys
from ops.dagster.maintenance import VERIFY_PERCENT, scheduled
from ops.environment import settings_now
from pipelines.plan import Query

if TYPE_CHECKING:
    from ops.health import Finding

CHECKS = {
    "fresh": ("Records that wait are put into batches in time.", "RollforwardCommitStalled"),
    "lag": ("No more records wait than are allowed.", "RollforwardLagHigh"),
    "driver": ("A pipeline that is to run has a driver that was heard of lately.", "RollforwardDriverDown"),
    "snapshot_age": ("Every task has a snapshot that is young enough.", "RollforwardSnapshotOld"),
    "dead_letters": ("No more records than allowed could not be used.", "RollforwardDeadLetters"),
}
VERIFICATION = "verification"
LOOK_JOB, VERIFY_JOB = "check_health", "verify_sample"
# Tables are asked for one after the other: a Kafka that is away must not take each one's full patience.
ANSWER_S = 10.0
_Tables = Mapping[dg.AssetKey, tuple[str, Query]]


def health_checks(
    pipelines: Sequence[Deployed],
) -> tuple[list[dg.AssetChecksDefinition], list[dg.ScheduleDefinition]]:
    """The checks of what is deployed, with the schedules that run them; none without a pipeline."""
    tables: _Tables = {
        pipeline_keys(pipeline.name, [q.name for q in pipeline.queries]).tables[query.name]: (pipeline.name, query)
        for pipeline in pipelines
        for query in pipeline.queries
    }
    if not tables:
        return [], []
    looks, verifies = _look(tables), _verify(tables)
    looking = dg.define_asset_job(
        LOOK_JOB, selection=dg.AssetSelection.checks(looks), executor_def=dg.in_process_executor
    )
    verifying = dg.define_asset_job(
        VERIFY_JOB, selection=dg.AssetSelection.checks(verifies), executor_def=dg.in_process_executor
    )
    schedules = [
        scheduled(looking, "*/5 * * * *", "Looks after every table."),
        scheduled(verifying, "40 4 * * *", "Compares a sample of every store with its changelog."),
    ]
    return [looks, verifies], schedules


def _look(tables: _Tables) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(name, asset=key, description=text) for key in tables for name, (text, _) in CHECKS.items()
    ]

    @dg.multi_asset_check(name="look_after_tables", specs=specs, can_subset=True)
    def look(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        wanted = {(key.asset_key, key.name) for key in context.selected_asset_check_keys}
        with told_to_dagster():
            # Kafka's library is needed by this run alone, not by those who load the definitions.
            from ops.health import table_findings
            from statestore.kafka.admin import Admin

            settings = settings_now()
            settings = settings.model_copy(update={"request_timeout_s": min(ANSWER_S, settings.request_timeout_s)})
            admin = Admin(settings.kafka_config())
            failed: list[Exception] = []
            with opened(settings) as registry:
                for asset, (pipeline, query) in tables.items():
                    if not any(asset == key for key, _ in wanted):
                        continue
                    try:
                        found = table_findings(settings, registry, admin, pipeline, query)
                    except Exception as error:  # Whatever is wrong with one pipeline, the next are looked at.
                        context.log.error(f"{pipeline}: {error}")
                        failed.append(error)
                        continue
                    wanted_here = [finding for finding in found if (asset, finding.check) in wanted]
                    failed += [finding.error for finding in wanted_here if finding.error]
                    yield from (_told(asset, finding) for finding in wanted_here)
            if failed:
                raise failed[0]

    return look


def _told(asset: dg.AssetKey, finding: "Finding") -> dg.AssetCheckResult:
    """A finding as Dagster shows it."""
    figure = {} if finding.figure is None else {"figure": finding.figure}
    return dg.AssetCheckResult(
        passed=finding.passed,
        asset_key=asset,
        check_name=finding.check,
        severity=dg.AssetCheckSeverity.WARN,
        description=finding.text,
        metadata={**figure, "runbook": f"docs/runbooks/{CHECKS[finding.check][1]}.md"},
    )


def _verify(tables: _Tables) -> dg.AssetChecksDefinition:
    description = f"{VERIFY_PERCENT:g} % of the keys of every local store are what the changelog says."
    specs = [dg.AssetCheckSpec(VERIFICATION, asset=key, description=description) for key in tables]

    @dg.multi_asset_check(name="verify_stores", specs=specs, can_subset=True)
    def verify(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        selected = {key.asset_key for key in context.selected_asset_check_keys}
        with told_to_dagster():
            from ops.verification import verify_all
            from pipelines.registry import Registry

            settings = settings_now()
            failed: list[Exception] = []
            with closing(Registry(settings.metastore)) as registry:
                for pipeline in sorted({name for key, (name, _) in tables.items() if key in selected}):
                    try:
                        row = registry.pipeline(pipeline)
                        found = verify_all(row, settings, lambda _task, _detail: None, percent=VERIFY_PERCENT)
                    except Exception as error:  # Whatever is wrong with one pipeline, the next are compared.
                        context.log.error(f"{pipeline}: {error}")
                        failed.append(error)
                        continue
                    for key, (name, query) in tables.items():
                        if name != pipeline or key not in selected:
                            continue
                        mine = [one for one in found if one.task.rpartition("-")[0] == query.name]
                        wrong = sum(one.mismatch_count for one in mine)
                        yield dg.AssetCheckResult(
                            passed=wrong == 0,
                            asset_key=key,
                            check_name=VERIFICATION,
                            severity=dg.AssetCheckSeverity.ERROR,
                            description=f"{sum(one.keys for one in mine)} keys compared, {wrong} differ"
                            if mine
                            else "nothing was compared: no store of the table is on this machine",
                            metadata={
                                "figure": wrong,
                                "tasks": dg.MetadataValue.json([one.to_json() for one in mine]),
                                "runbook": "docs/runbooks/DataCorrupted.md",
                            },
                        )
            if failed:
                raise failed[0]

    return verify
