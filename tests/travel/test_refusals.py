"""What the past cannot be used for, each with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.past import require_stopped
from pipelines import clone as clone_module
from pipelines.clone import clone
from pipelines.deploy import DeployedQuery
from pipelines.metastore.embedded import want
from pipelines.past import require_travel
from pipelines.plan import EVERY_RECORD, Query, Window, query_to_json
from pipelines.registry import RUNNING, STOPPED
from pipelines.rewind import chosen, one_by_one, require_rewritable, rewind
from pipelines.settings import Settings
from pipelines.sql import parse_statement
from pipelines.sql.catalogue import Relations
from pipelines.sql.define import define
from pipelines.sql.planner import plan_create
from pipelines.sql.tree import CreateAs, CreateSource
from statestore.errors import InvalidInput
from statestore.travel.past import OutOfReach
from tests.travel.test_pipelines import Written

STREAM = "CREATE STREAM s (a VARCHAR, n INT) WITH (kafka_topic='{topic}', value_format='json')"
TABLE = "CREATE TABLE s (k VARCHAR PRIMARY KEY, a VARCHAR, n INT) WITH (kafka_topic='{topic}', value_format='json')"
AGGREGATE = "CREATE TABLE q {made} AS SELECT a, COUNT(*) AS records FROM s {window} GROUP BY a {having} EMIT CHANGES"
COLLECTING = "CREATE TABLE q AS SELECT a, COLLECT_LIST(n) AS all_of_them FROM s GROUP BY a EMIT CHANGES"
EVERY = "WITH (emit='every-record')"
WINDOW = "WINDOW TUMBLING (SIZE 1 MINUTE)"
HAVING = "HAVING COUNT(*) < 3"
TWO = f"""{STREAM};
CREATE TABLE q AS SELECT a, COUNT(*) AS records FROM s GROUP BY a EMIT CHANGES;
CREATE STREAM large AS SELECT a, n FROM s WHERE n > 5 EMIT CHANGES;
CREATE TABLE r AS SELECT a, COUNT(*) AS records FROM large GROUP BY a EMIT CHANGES;
"""


def planned(statement: str, source: str = STREAM) -> Query:
    created, about = parse_statement(statement).statement, parse_statement(source.format(topic="in")).statement
    assert isinstance(created, CreateAs)
    assert isinstance(about, CreateSource)
    query = plan_create(created, Relations([define(about)]), topic="T", tasks=2).query
    assert query is not None
    return query


def aggregate(made: str = "", window: str = "", having: str = "", source: str = STREAM) -> Query:
    return planned(AGGREGATE.format(made=made, window=window, having=having), source)


def why_no_travel(query: Query, settings: Settings) -> str:
    with pytest.raises(InvalidInput, match="query has no versions of the past") as refused:
        require_travel(DeployedQuery("p", query, "", ""), settings)
    return str(refused.value.fields["reason"])


def test_a_past_needs_a_store_and_transactions_and_may_have_windows() -> None:
    settings = Settings(bootstrap_servers="unused:1")
    stateless = planned("CREATE STREAM q AS SELECT a, n FROM s EMIT CHANGES")
    assert "a stateless query has no store" == why_no_travel(stateless, settings)
    without = settings.model_copy(update={"transactions": False})
    assert "without transactions no batch has an exact version" == why_no_travel(aggregate(), without)
    for query in (aggregate(), aggregate(window=WINDOW), aggregate(EVERY), aggregate(source=TABLE)):
        require_travel(DeployedQuery("p", query, "", ""), settings)


@pytest.mark.parametrize(
    ("query", "partitions", "why"),
    [
        (aggregate(source=TABLE), 1, "rows that its table's topic has compacted away are not read again"),
        (aggregate(having=HAVING), 1, "a result that HAVING showed only between two batches"),
        (aggregate(window=WINDOW, having=HAVING), 1, "a result that HAVING showed only between two batches"),
        (aggregate(window=WINDOW), 2, "in another order again, and then others are too late"),
        (aggregate(EVERY, WINDOW), 2, "in another order again, and then others are too late"),
        (aggregate(EVERY, having=HAVING), 2, "in another order again, and then HAVING shows other results"),
    ],
)
def test_a_query_whose_results_might_not_come_again_is_not_brought_back(
    query: Query, partitions: int, why: str
) -> None:
    with pytest.raises(InvalidInput, match="cannot be brought back") as refused:
        require_rewritable(query, source_partitions=partitions)
    assert why in str(refused.value.fields["reason"])
    assert "clone the pipeline" in refused.value.hint


@pytest.mark.parametrize(
    ("query", "partitions"),
    [
        (aggregate(), 2),
        (aggregate(window=WINDOW), 1),
        (aggregate(EVERY, WINDOW, HAVING), 1),
        (aggregate(EVERY, having=HAVING), 1),
        (aggregate(EVERY), 2),
        (planned(COLLECTING), 2),
    ],
)
def test_a_query_whose_results_are_sure_to_come_again_is_brought_back(query: Query, partitions: int) -> None:
    require_rewritable(query, source_partitions=partitions)


@pytest.fixture
def two(kafka: str, unique: str, tmp_path: Path) -> Iterator[Written]:
    """Three queries, one of which reads another one's results."""
    written = Written(kafka, unique, tmp_path / "home", TWO)
    yield written
    written.registry.close()


def test_queries_are_chosen_by_name_and_a_batch_is_one_query_s(two: Written) -> None:
    assert ["q", "large", "r"] == [deployed.query.name for deployed in chosen(two.row, None, None)]
    assert ["r"] == [deployed.query.name for deployed in chosen(two.row, "r", 7)]
    with pytest.raises(InvalidInput, match="pipeline has no such query") as refused:
        chosen(two.row, "other", None)
    assert "q, large, r" == refused.value.fields["queries"]
    with pytest.raises(InvalidInput, match="every query numbers its own batches"):
        chosen(two.row, None, 7)


def test_queries_that_read_each_other_s_results_are_not_cloned(two: Written, unique: str) -> None:
    with pytest.raises(InvalidInput, match="queries that read each other's results cannot be cloned") as refused:
        two.clone(f"{unique}_copy")
    assert "r" == refused.value.fields["queries"]
    assert two.registry.find(f"{unique}_copy") is None


def test_only_a_pipeline_that_nobody_runs_or_will_start_is_brought_back(two: Written) -> None:
    name = two.deployed.pipeline
    require_stopped(two.settings, two.registry, name)
    want(name, RUNNING, two.settings, two.registry)
    with pytest.raises(InvalidInput, match="pipeline is to run") as refused:
        require_stopped(two.settings, two.registry, name)
    assert f"run `rollforward stop {name}` first" == refused.value.hint
    want(name, STOPPED, two.settings, two.registry)
    # It is to stop, and its driver has not ended yet: any living process is good enough for one.
    two.registry.driver_started(name, pid=os.getpid(), process_started=psutil.Process().create_time(), host="here")
    with pytest.raises(InvalidInput, match="pipeline is to run"):
        require_stopped(two.settings, two.registry, name)


@pytest.mark.parametrize("field", ["window", "emission", "changelog"])
def test_a_clone_whose_plan_came_out_otherwise_is_refused(
    kafka: str, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    written = Written(kafka, unique, tmp_path / "home")
    others: dict[str, Any] = {"window": Window("tumbling", 1, 1, 0, 1), "emission": EVERY_RECORD, "changelog": True}
    other = replace(written.deployed.query, **{field: others[field]})
    written.row.queries[0]["plan"] = query_to_json(other)
    # Nothing is committed that could be copied, and that is looked at first.
    monkeypatch.setattr(clone_module, "_look", lambda *_: None)
    with pytest.raises(InvalidInput, match="the clone's plan is another one") as refused:
        clone(written.row, f"{unique}_copy", written.settings, written.registry, batch=None, at_ms=None)
    assert field == refused.value.fields["differs"]
    written.registry.close()


def test_an_error_of_a_later_query_names_those_that_are_done(two: Written) -> None:
    queries = chosen(two.row, None, None)

    def work(deployed: DeployedQuery) -> str:
        if deployed.query.name == "r":
            raise OutOfReach("gone", hint="take another", nearest_before=3)
        return deployed.query.name

    assert ["q", "large"] == one_by_one(queries[:2], work)
    with pytest.raises(OutOfReach, match="gone") as later:
        one_by_one(queries, work)
    assert {"nearest_before": 3, "queries_done": "q, large"} == later.value.fields
    assert "take another" == later.value.hint
    with pytest.raises(OutOfReach) as first:
        one_by_one(queries[2:], work)
    assert {"nearest_before": 3} == first.value.fields


def test_the_refusals_come_before_anything_is_done(two: Written) -> None:
    """A stateless query is refused while it is only looked at, and a dry run refuses what the run would."""
    stateless = chosen(two.row, "large", None)[0]
    with pytest.raises(InvalidInput, match="query has no versions of the past"):
        rewind(stateless, two.settings, two.registry, batch=0, at_ms=None, dry_run=True)
