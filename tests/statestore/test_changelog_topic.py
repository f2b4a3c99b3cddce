"""Names and configuration of changelog topics."""

from __future__ import annotations

import pytest

from statestore import changelog_topic as topics
from statestore.windows import MAX_TIME_MS

CREATE_TIME = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(MAX_TIME_MS)}


def test_the_name_joins_application_and_store() -> None:
    assert "shop-orders-changelog" == topics.changelog_topic("shop", "orders")


def test_key_value_stores_are_compacted() -> None:
    assert {**CREATE_TIME, "cleanup.policy": "compact"} == topics.compacted()


def test_windowed_stores_are_compacted_and_deleted_a_day_after_their_retention() -> None:
    expected = {**CREATE_TIME, "cleanup.policy": "compact,delete", "retention.ms": "86400500"}
    assert expected == topics.windowed(500)


def test_the_retention_never_passes_the_largest_number() -> None:
    assert str(MAX_TIME_MS) == topics.windowed(MAX_TIME_MS - 1)["retention.ms"]


@pytest.mark.case("W-36b")
def test_duplicates_are_deleted_by_age_alone() -> None:
    assert "delete" == topics.windowed(500, retain_duplicates=True)["cleanup.policy"]


def test_versioned_stores_are_compacted_after_their_history() -> None:
    expected = {**CREATE_TIME, "cleanup.policy": "compact", "min.compaction.lag.ms": "86400500"}
    assert expected == topics.versioned(500)


def test_a_topic_s_own_setting_goes_over_the_global_one_and_that_over_the_library_s() -> None:
    library = {"cleanup.policy": "compact", "a": "library", "b": "library"}
    expected = {"cleanup.policy": "compact", "a": "global", "b": "topic"}
    assert expected == topics.configured(library, everywhere={"a": "global", "b": "global"}, topic={"b": "topic"})
