"""Statements through the log: accepted or refused against everything before them, once, and seen by everybody."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from pipelines.metastore.command import Change, decode, drop
from pipelines.metastore.service import Metastore, Outcome
from pipelines.metastore.statement import deploy_script, drop_pipeline, read_statement, start_pipeline, stop_pipeline
from pipelines.metastore.validate import DESIRED, PIPELINE, RESULT, Accepted
from statestore.errors import InvalidConfig, InvalidInput, InvariantBroken
from statestore.kafka.producer import TransactionalProducer
from tests.metastore.conftest import Open, script


def test_a_statement_is_seen_by_a_server_that_starts_later(opened: Open, url: str, unique: str) -> None:
    here = opened()
    assert 0 == here.execute(script(unique)).sequence
    assert 1 == here.execute(start_pipeline(unique)).sequence
    later = opened(url)
    assert later.restore() is None
    with later.projection.snapshot() as snapshot:
        assert [unique] == snapshot.names(PIPELINE)
        assert {"state": "running"} == snapshot.get(DESIRED, unique)
    assert here.projection.rows() == later.projection.rows()


def test_a_statement_is_validated_against_what_other_servers_wrote(opened: Open, url: str, unique: str) -> None:
    here, there = opened(), opened(url)
    here.execute(script(unique))
    there.execute(start_pipeline(unique))
    with pytest.raises(InvalidInput, match="pipeline is to run"):
        here.execute(drop_pipeline(unique))
    there.execute(stop_pipeline(unique))
    here.execute(drop_pipeline(unique))
    with pytest.raises(InvalidInput, match="pipeline is not deployed"):
        there.execute(start_pipeline(unique))


def test_of_two_conflicting_definitions_at_once_one_is_refused(opened: Open, tmp_path: Path, unique: str) -> None:
    servers = [opened(), opened(f"sqlite:///{tmp_path / 'other.db'}")]
    aggregates = ("COUNT(*)", "SUM(price)")
    answers: dict[str, Outcome | Exception] = {}

    def run(number: int) -> None:
        try:
            answers[aggregates[number]] = servers[number].execute(script(unique, aggregates[number]))
        except Exception as error:
            answers[aggregates[number]] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accepted = [aggregate for aggregate, answer in answers.items() if isinstance(answer, Outcome)]
    refused = [answer for answer in answers.values() if isinstance(answer, InvalidInput)]
    assert (1, 1) == (len(accepted), len(refused)), answers
    assert "pipeline is deployed with other statements" in str(refused[0])
    for server in servers:
        server.refresh()
        with server.projection.snapshot() as snapshot:
            assert accepted[0] in snapshot.get(PIPELINE, unique)["sql"]


def test_many_writers_all_get_through(opened: Open, tmp_path: Path, unique: str) -> None:
    opened().execute(script(unique))
    servers = [opened(f"sqlite:///{tmp_path / f'{number}.db'}") for number in range(3)]
    failed: list[Exception] = []

    def run(number: int) -> None:
        try:
            for round_ in range(4):
                servers[number].execute((stop_pipeline if round_ % 2 else start_pipeline)(unique))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failed
    states = [change.body["state"] for change in _desires(opened())]
    assert all(first != second for first, second in itertools.pairwise(states)), states


def _desires(metastore: Metastore) -> list[Change]:
    log = metastore.log
    commands = [decode(record.value) for record in log.read(*log.bounds())]
    return [change for command in commands for change in command.changes if change.kind == DESIRED]


def test_the_same_key_again_changes_nothing_and_tells_what_the_first_did(opened: Open, unique: str) -> None:
    metastore = opened()
    first = metastore.execute(script(unique), key="k1")
    assert Outcome("k1", 0, changed=True, repeated=True) == metastore.execute(script(unique), key="k1")
    assert first.sequence == 0
    with pytest.raises(InvalidInput, match="key was used for another statement"):
        metastore.execute(start_pipeline(unique), key="k1")
    found = metastore.outcome("k1")
    assert found is not None and 0 == found.sequence
    assert metastore.outcome("k2") is None


def test_a_statement_without_effect_is_not_written(opened: Open, unique: str) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    end = metastore.log.bounds()
    for statement in (script(unique), stop_pipeline(unique)):
        assert (None, False) == (
            metastore.execute(statement).sequence,
            metastore.execute(statement).changed,
        )
    assert end == metastore.log.bounds()


def test_a_refused_statement_leaves_no_open_transaction(opened: Open, unique: str) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    with pytest.raises(InvalidInput, match="other statements"):
        metastore.execute(script(unique, "SUM(price)"))
    start, end = metastore.log.bounds()
    assert 1 == len(metastore.log.read(start, end))


def test_a_missing_source_topic_is_refused(opened: Open, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOPIC", f"{unique}_missing")
    with pytest.raises(InvalidConfig, match=f"source topic does not exist.*{unique}_missing"):
        opened().execute(script(unique))


def test_a_result_topic_has_one_owner(opened: Open, unique: str) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    taken = script(f"{unique}_b")
    text = taken.text.replace("CREATE TABLE totals AS", f"CREATE TABLE totals WITH (kafka_topic='{unique}-totals') AS")
    with pytest.raises(InvalidInput, match=f"result topic belongs to another pipeline.*{unique}`"):
        metastore.execute(type(taken)(taken.kind, taken.pipeline, text))


def topic_ids(metastore: Metastore, pipeline: str) -> dict[str, str]:
    """Ids of the pipeline's own topics that exist."""
    names = [f"{pipeline}-totals-batches", f"{pipeline}-totals-changelog"]
    return {name: topic.topic_id for name, topic in metastore.log.admin.describe(names).items()}


def test_a_dropped_pipeline_loses_its_state_and_keeps_its_results(opened: Open, unique: str) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    metastore.execute(drop_pipeline(unique))
    assert {} == topic_ids(metastore, unique)
    assert [f"{unique}-totals"] == list(metastore.log.admin.describe([f"{unique}-totals"]))


def test_a_pipeline_deployed_after_a_drop_begins_with_empty_state(opened: Open, unique: str) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    before = topic_ids(metastore, unique)
    write_state(metastore, unique)
    with pytest.MonkeyPatch.context() as killed:
        # Killed behind its commit: nothing was cleaned.
        killed.setattr(metastore, "clean", lambda _: None)
        metastore.execute(drop_pipeline(unique))
    assert before == topic_ids(metastore, unique)
    metastore.execute(script(unique, "SUM(price)"))
    after = topic_ids(metastore, unique)
    assert set(before) == set(after)
    assert not set(before.values()) & set(after.values())


@pytest.mark.parametrize("over_http", [False, True])
def test_a_drop_that_is_sent_again_cleans_what_the_first_sending_left(
    opened: Open, unique: str, over_http: bool
) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    # What is sent to the server names no pipeline beside the statement.
    statement = read_statement(f"TERMINATE {unique};") if over_http else drop_pipeline(unique)
    assert ("" if over_http else unique) == statement.pipeline
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(metastore, "clean", lambda _: None)
        assert not metastore.execute(statement, "k").repeated
    assert 2 == len(topic_ids(metastore, unique))
    assert metastore.execute(statement, "k").repeated
    assert {} == topic_ids(metastore, unique)
    assert metastore.execute(statement, "k").repeated
    metastore.execute(script(unique))
    # The same name has been deployed anew: that is not what was dropped.
    assert metastore.execute(statement, "k").repeated
    assert 2 == len(topic_ids(metastore, unique))


def test_a_new_pipeline_does_not_take_the_state_of_an_unknown_one(opened: Open, unique: str) -> None:
    metastore = opened()
    for name, partitions in ((f"{unique}-totals-batches", 2), (f"{unique}-totals-changelog", 1)):
        metastore.log.admin.create(name, partitions=partitions, settings={"cleanup.policy": "compact"})
    write_state(metastore, unique)
    with pytest.raises(InvalidInput, match="holds the state of an earlier pipeline"):
        metastore.execute(script(unique))


def write_state(metastore: Metastore, pipeline: str) -> None:
    """A record as a driver of the pipeline writes."""
    producer = TransactionalProducer(metastore.log.config, f"{pipeline}-test")
    producer.init()
    producer.begin()
    producer.produce(f"{pipeline}-totals-batches", partition=1, key=b"driver", value=b"{}")
    producer.commit()


def test_a_topic_that_several_queries_write_is_given_back_once(opened: Open, topic: str, unique: str) -> None:
    text = f"""CREATE STREAM bids (auction BIGINT) WITH (kafka_topic='{topic}', value_format='json');
CREATE STREAM some AS SELECT auction FROM bids WHERE auction > 5 EMIT CHANGES;
INSERT INTO some SELECT auction FROM bids WHERE auction < 0 EMIT CHANGES;"""
    metastore = opened()
    metastore.execute(deploy_script(text, unique))
    metastore.execute(drop_pipeline(unique))
    assert [] == metastore.projection.set_aside()
    with metastore.projection.snapshot() as snapshot:
        assert ([], {}) == (snapshot.names(PIPELINE), snapshot.all(RESULT))
    metastore.execute(deploy_script(text, unique))


def test_a_command_that_could_not_be_applied_is_not_written(
    opened: Open, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    wrong = Accepted((drop("no", "such"),))
    monkeypatch.setattr("pipelines.metastore.service.decide", lambda *_: wrong)
    with pytest.raises(InvariantBroken, match="no such does not exist"):
        metastore.execute(start_pipeline(unique))
    assert 1 == len(metastore.log.read(*metastore.log.bounds()))


def test_the_newest_command_is_found_behind_any_number_of_transactions_that_failed(
    opened: Open, tmp_path: Path, unique: str
) -> None:
    here, there = opened(), opened(f"sqlite:///{tmp_path / 'other.db'}")
    here.execute(script(unique))
    for _ in range(3):
        producer = here.log.producer()
        producer.init()
        producer.begin()
        here.log.produce(producer, b"never committed", "k", lambda _: None)
        producer.flush()
        producer.abort()
    # Fences, so all of them have ended; nothing is read but their ends.
    assert here.outcome("none") is None
    assert 1 == there.execute(start_pipeline(unique)).sequence
    # One new command, and the newest applied one far before it.
    assert 2 == here.execute(stop_pipeline(unique)).sequence
    assert 3 == here.execute(start_pipeline(unique)).sequence
    assert 4 == there.execute(stop_pipeline(unique)).sequence
