"""Drift: where the world is not as the metastore says it is, and what can be put right without guessing.

Looked at: the command topic, every definition, its topics and their settings, its consumer groups, the local stores,
and what dropped pipelines left. A repair never touches what holds state or input of a pipeline that is deployed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipelines import names
from pipelines.deploy import (
    BATCHES_SETTINGS,
    CHANGELOG_SETTINGS,
    DEAD_LETTER_SETTINGS,
    DeployedQuery,
    deployed_queries,
)
from pipelines.metastore.service import Metastore
from pipelines.metastore.validate import DESIRED, DROPPED, PIPELINE
from pipelines.plan import plan_hash
from pipelines.registry import PipelineDefinition
from pipelines.resolve import resolved_as, result_settings
from pipelines.settings import Settings
from pipelines.sql import SqlError, parse_pipeline
from statestore.kafka.admin import Admin, Topic

# A setting that differs here loses state or results, or stops a pipeline at a record; others are the operator's.
_CHECKED = ("cleanup.policy", "message.timestamp.after.max.ms")


@dataclass(frozen=True)
class Finding:
    """One difference. `repair` says what `--repair` would do, empty if only a person can; `hint` is for that person."""

    pipeline: str
    what: str
    text: str
    repair: str = ""
    hint: str = ""
    act: Callable[[], object] | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, str]:
        """Plain values."""
        return {
            "pipeline": self.pipeline,
            "what": self.what,
            "text": self.text,
            "repair": self.repair,
            "hint": self.hint,
        }


def find_drift(metastore: Metastore, settings: Settings) -> list[Finding]:
    """Every difference that can be seen now. Changes nothing. Raises `Unavailable` without Kafka."""
    fault = metastore.refresh()
    if fault is not None:
        # Against a metastore that is not whole, everything would look left over.
        return [Finding("", "log", fault.text, hint=fault.hint)]
    findings = list(_log(metastore))
    with metastore.projection.snapshot() as snapshot:
        bodies, desired, dropped = (snapshot.all(kind) for kind in (PIPELINE, DESIRED, DROPPED))
    look = _Look(metastore.log.admin, settings)
    for name, body in bodies.items():
        findings += look.pipeline(name, body, desired.get(name))
    for name, left in dropped.items():
        findings += look.dropped(metastore, name, left)
    if metastore.projection.position().topic_id:
        findings += _stores(settings, set(bodies))
    return findings


def repair(findings: list[Finding]) -> list[Finding]:
    """Do what can be done; gives what was repaired. Running it twice is harmless."""
    done = []
    for finding in findings:
        if finding.act is not None:
            finding.act()
            done.append(finding)
    return done


def _log(metastore: Metastore) -> Iterator[Finding]:
    log = metastore.log
    if log.topic() is not None and (wrong := log.wrong_settings()):
        text = f"command topic has other settings than it needs: {', '.join(sorted(wrong))}"
        yield Finding("", "log", text, "set them", act=lambda: log.admin.configure(log.topic_name, wrong))
    for aside in metastore.projection.set_aside():
        text = f"command {aside.sequence} at offset {aside.offset} was set aside: {aside.error}"
        yield Finding("", "command", text, hint="see `rollforward metastore log --set-aside`; the others are applied")


def _stores(settings: Settings, deployed: set[str]) -> Iterator[Finding]:
    """Local state of pipelines that are no more."""
    if not settings.states.is_dir():
        return
    for folder in sorted(settings.states.iterdir()):
        # It may not be ours alone, whatever the documents say.
        if folder.name not in deployed and names.is_state_folder(folder):
            act = _remover(folder)
            yield Finding(folder.name, "store", f"folder {folder} is of no deployed pipeline", "delete it", act=act)


def _remover(folder: Any) -> Callable[[], object]:
    return lambda: shutil.rmtree(folder)


class _Look:
    """One look at Kafka for all pipelines."""

    def __init__(self, admin: Admin, settings: Settings) -> None:
        self._admin = admin
        self._settings = settings
        self._groups = admin.groups()

    def pipeline(self, name: str, body: dict[str, Any], desired: dict[str, Any] | None) -> Iterator[Finding]:
        """One deployed pipeline."""
        try:
            fields = {key: body[key] for key in ("sql", "sources", "queries", "deployed_at")}
            row = PipelineDefinition(name=name, **fields, desired=str((desired or {}).get("state")))
            queries = deployed_queries(row)
        except (KeyError, TypeError, ValueError) as error:
            yield Finding(name, "definition", f"cannot be read: {error}", hint="restore a backup of the metastore")
            return
        yield from self._text(row, queries)
        yield from self._sources(row)
        for query in queries:
            yield from self._query(name, query)
        yield from self._plain(name, names.dead_letter_topic(name), 1, DEAD_LETTER_SETTINGS)

    def _text(self, row: PipelineDefinition, queries: list[DeployedQuery]) -> Iterator[Finding]:
        """Whether this program reads the statements as the one did that deployed them."""
        tasks = next((deployed.query.tasks for deployed in queries if not deployed.query.stateless), 1)
        try:
            parsed = parse_pipeline(row.sql, pipeline=row.name, default_tasks=tasks)
        except SqlError as error:
            text = f"its statements do not read any more: {str(error).splitlines()[0]}"
            yield Finding(
                row.name, "definition", text, hint="it goes on as deployed; deploy it anew under another name"
            )
            return
        now = {query.name: query for query in parsed.queries}
        for deployed in queries:
            found, old = now.get(deployed.query.name), deployed.query
            if found is None or plan_hash(resolved_as(found, old)) != plan_hash(old):
                text = f"query {deployed.query.name} would be planned otherwise by this program"
                yield Finding(row.name, "definition", text, hint="it goes on as deployed")

    def _sources(self, row: PipelineDefinition) -> Iterator[Finding]:
        topics = sorted({str(source["topic"]) for source in row.sources})
        for missing in sorted(set(topics) - set(self._admin.describe(topics))):
            hint = f"make it again and fill it, or stop and drop {row.name}"
            yield Finding(row.name, "topic", f"source topic {missing} does not exist", hint=hint)

    def _query(self, pipeline: str, query: DeployedQuery) -> Iterator[Finding]:
        plan = query.query
        changelog = names.changelog_topic(pipeline, plan.store)
        yield from self._state(pipeline, changelog, query.changelog_topic_id, plan.tasks, CHANGELOG_SETTINGS)
        yield from self._state(pipeline, query.batches_topic, query.batches_topic_id, plan.tasks + 1, BATCHES_SETTINGS)
        # A stream's result is kept as long as its source, which may be gone: that is told above.
        gone = plan.source.topic not in self._admin.describe([plan.source.topic])
        settings = {} if gone else result_settings(plan, self._admin)
        yield from self._plain(pipeline, plan.output_topic, plan.output_partitions, settings)
        yield from self._group(pipeline, query)

    def _state(
        self, pipeline: str, name: str, topic_id: str, partitions: int, settings: dict[str, str]
    ) -> Iterator[Finding]:
        """A topic that holds a query's truth."""
        topic = self._admin.describe([name]).get(name)
        hint = f"its state is gone: drop {pipeline} and deploy it again to compute everything anew"
        if topic is None:
            yield Finding(pipeline, "topic", f"topic {name} does not exist", hint=hint)
        elif topic.topic_id != topic_id:
            yield Finding(pipeline, "topic", f"topic {name} was deleted and made again", hint=hint)
        else:
            yield from self._shape(pipeline, topic, partitions, settings)

    def _plain(self, pipeline: str, name: str, partitions: int, settings: dict[str, str]) -> Iterator[Finding]:
        """A topic that is only written: made again it lacks older results and nothing else."""
        topic = self._admin.describe([name]).get(name)
        if topic is not None:
            yield from self._shape(pipeline, topic, partitions, settings)
            return
        replication = self._settings.replication_factor

        def act() -> object:
            return self._admin.create(name, partitions=partitions, settings=settings, replication=replication)

        text = f"topic {name} does not exist; what it held is lost"
        yield Finding(pipeline, "topic", text, "make it again, empty", act=act)

    def _shape(self, pipeline: str, topic: Topic, partitions: int, settings: dict[str, str]) -> Iterator[Finding]:
        if topic.partitions != partitions:
            text = f"topic {topic.name} has {topic.partitions} partitions instead of {partitions}"
            yield Finding(pipeline, "topic", text, hint="partitions cannot be taken away: drop and deploy again")
        found = self._admin.configs(topic.name)
        wrong = {key: settings[key] for key in _CHECKED if key in settings and found.get(key) != settings[key]}
        if wrong:
            text = f"topic {topic.name} has {', '.join(f'{key}={found.get(key)}' for key in wrong)}"
            act = self._configure(topic.name, wrong)
            yield Finding(pipeline, "topic", text, f"set {', '.join(f'{k}={v}' for k, v in wrong.items())}", act=act)

    def _configure(self, topic: str, wrong: dict[str, str]) -> Callable[[], object]:
        return lambda: self._admin.configure(topic, wrong)

    def _group(self, pipeline: str, query: DeployedQuery) -> Iterator[Finding]:
        group = names.group(pipeline, query.query.name)
        if group in self._groups:
            return
        topic = self._admin.describe([query.batches_topic]).get(query.batches_topic)
        if topic is None:
            return
        ends = self._admin.ends(topic.name, partitions=topic.partitions)
        if any(ends[number] for number in range(topic.partitions - 1)):
            text = f"consumer group {group} is gone: lag tools see nothing of it"
            yield Finding(pipeline, "group", text, hint="the next batch makes it again; nothing else needs it")

    def dropped(self, metastore: Metastore, pipeline: str, left: dict[str, Any]) -> Iterator[Finding]:
        """What a dropped pipeline left: a drop that was killed, or could not reach Kafka, behind its commit."""
        present = self._admin.describe(sorted(left["topics"]))
        ours = [name for name, topic in present.items() if topic.topic_id == left["topics"][name]]
        ours += sorted(set(left["groups"]) & self._groups)
        if ours:
            text = f"it is dropped, but there still are {', '.join(ours)}"
            yield Finding(pipeline, "leftover", text, "delete them", act=lambda: metastore.clean(pipeline))
