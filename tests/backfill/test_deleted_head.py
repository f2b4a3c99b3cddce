"""A period whose records may have been deleted at their log's head is computed where retention or the archive has them all."""

from __future__ import annotations

import re
from datetime import datetime

import confluent_kafka as ck
import pytest

from pipelines.engine.recomputing import planned_recompute
from pipelines.engine.source import SourceTopic
from pipelines.periods import DAY_MS, HOUR_MS
from pipelines.plan import Query
from pipelines.recomputes import RecomputeRow
from pipelines.settings import Settings
from pipelines.sql import parse_pipeline
from statestore.clock import now_ms
from statestore.errors import InvalidInput
from statestore.kafka.admin import Admin
from tests.backfill.archiving import archive
from tests.backfill.visits import Visits

WINDOW, BY_DAY = "WINDOW TUMBLING (SIZE 1 HOUR)", "TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd')"
RETENTION_MS = 7 * DAY_MS
DELETED = 10


class Head:
    """A topic whose first records, of one day, are deleted, behind which a late one stands at the head of partition 0."""

    def __init__(self, visits: Visits, settings: Settings, *, archived: bool) -> None:
        self.topic, self._settings, self.admin = visits.topic, settings, Admin(settings.kafka_config())
        self.day_ms = now_ms() // DAY_MS * DAY_MS - 3 * DAY_MS
        times = [self.day_ms + n * HOUR_MS for n in range(DELETED)]
        times += [self.day_ms - 16 * HOUR_MS, self.day_ms + 20 * HOUR_MS]
        producer = ck.Producer({"bootstrap.servers": visits.bootstrap})
        for at in times:
            producer.produce(self.topic, b'{"city": "c", "n": 1}', None, 0, None, None, at)
        assert 0 == producer.flush(60)
        self.ends = {0: len(times), 1: 0}
        if archived:
            archive(settings, self.topic)
        self.admin.trim(self.topic, 0, before=DELETED)

    def start(self, group: str, *, days: int = 0) -> int:
        """Where reading of partition 0 begins for the period of the day, or of so many days later."""
        query = self._query(group)
        kafka, archive_config = self._settings.kafka_config(), self._settings.archive_config()
        source = SourceTopic(query, kafka, accept_loss=False, archive=archive_config)
        source.look()
        from_ms = self.day_ms + days * DAY_MS
        row = RecomputeRow(id="r", pipeline="p", query="q", from_ms=from_ms, to_ms=from_ms + DAY_MS, dry_run=True)
        return planned_recompute(query, row, source, self.ends).ranges[0].start

    def _query(self, group: str) -> Query:
        select, by = ("", "city") if group == WINDOW else (f"{group} AS day, ", f"city, {group}")
        [query] = parse_pipeline(
            f"CREATE STREAM s (city VARCHAR, n INT) WITH (kafka_topic='{self.topic}', value_format='json');"
            f"CREATE TABLE q WITH (key_format='json') AS SELECT city, {select}COUNT(*) AS c FROM s"
            f" {WINDOW if group == WINDOW else ''} GROUP BY {by} EMIT CHANGES;",
            pipeline="p",
        ).queries
        return query


GROUPS = pytest.mark.parametrize("group", [WINDOW, BY_DAY])


@GROUPS
def test_a_late_record_at_the_head_does_not_pass_for_what_was_deleted_before_it(
    visits: Visits, settings: Settings, group: str
) -> None:
    head = Head(visits, settings, archived=False)
    for configured in ({"retention.ms": "-1"}, {"retention.ms": str(RETENTION_MS), "retention.bytes": str(1 << 40)}):
        head.admin.configure(head.topic, configured)
        with pytest.raises(InvalidInput, match=r"may have been deleted.*partition=.0. first=.10.*rollforward archive"):
            head.start(group)


@GROUPS
def test_what_retention_by_time_keeps_needs_no_archive(visits: Visits, settings: Settings, group: str) -> None:
    head = Head(visits, settings, archived=False)
    head.admin.configure(head.topic, {"retention.ms": str(RETENTION_MS)})
    assert 11 == head.start(group)
    before = now_ms()
    with pytest.raises(InvalidInput, match=r"leaves periods from .* on whole") as refused:
        head.start(group, days=-5)
    [told] = re.findall(r"from (\S+) on whole", str(refused.value))
    least = before - RETENTION_MS + (0 if group == WINDOW else 14 * HOUR_MS)
    assert least < datetime.fromisoformat(told).timestamp() * 1000 < least + HOUR_MS


@GROUPS
def test_what_the_archive_has_is_read_from_the_beginning(visits: Visits, archiving: Settings, group: str) -> None:
    head = Head(visits, archiving, archived=True)
    assert 0 == head.start(group)
    head.admin.configure(head.topic, {"retention.ms": str(RETENTION_MS)})
    assert 11 == head.start(group)
