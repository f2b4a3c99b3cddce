"""SIGKILL of Dagster's daemon and of a run's worker: no orphan, no second driver, and the stream goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from infra import process
from infra.dagster import DAEMON, WEBSERVER
from pipelines.metastore.embedded import want
from pipelines.registry import RUNNING, STOPPED
from pipelines.settings import Settings
from tests.support.feed import Feed, create_topic
from tests.support.stores import all_differences
from tests.support.waiting import await_
from tests.support.watched import Watched


@pytest.fixture
def watched(settings: Settings, kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    create_topic(kafka, unique)
    monkeypatch.delenv("ROLLFORWARD_CONFIG", raising=False)
    watched = Watched(settings.model_copy(update={"tasks": 2, "store_servers": 1}), Feed(kafka, unique, seed=11))
    yield watched
    watched.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dagster_may_die_at_any_time(watched: Watched, record_property: Callable[[str, object], None]) -> None:
    watched.feed.send(500)
    want(watched.name, RUNNING, watched.settings, watched.registry)
    assert {DAEMON, WEBSERVER} == set(watched.start())

    # The sensor's run has started the driver and waits for it: now the worker and the daemon die.
    driver = await_("a driver", watched.driver)
    worker = await_("the run's worker", watched.worker)
    os.kill(worker, signal.SIGKILL)
    record = process.read_record(watched.dagster.record(DAEMON))
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    await_("the stream goes on", watched.caught_up)
    assert [driver] == watched.drivers()

    # Another daemon finds the driver and starts none; the dead worker's run is ended and blocks nothing.
    watched.feed.send(500)
    assert [DAEMON] == watched.start()
    await_("the stream goes on", watched.caught_up)
    await_("the dead run is ended", lambda: all(run["status"] not in ("STARTED", "STARTING") for run in watched.runs()))
    assert [driver] == watched.drivers()

    # The driver dies: one recovery run, whose worker dies in the middle too, and one driver.
    began = time.monotonic()
    os.kill(driver, signal.SIGKILL)
    second = await_("another driver", lambda: watched.driver() not in (None, driver) and watched.driver())
    await_("the driver runs", lambda: watched.state() == "running")
    watched.feed.send(500)
    await_("the stream goes on", watched.caught_up)
    record_property("kill_to_output_s", round(time.monotonic() - began, 1))
    print(f"driver killed to new committed output: {time.monotonic() - began:.1f} s")
    assert [second] == watched.drivers()

    # Paused and resumed with the buttons of the user interface.
    await_("no run at work", lambda: all(run["status"] not in ("STARTED", "STARTING") for run in watched.runs()))
    watched.click("stop_pipeline", "stop")
    await_("paused", lambda: watched.state() == "stopped" and not watched.drivers())
    assert STOPPED == watched.registry.pipeline(watched.name).desired
    watched.feed.send(500)
    watched.click("launch_pipeline", "launch")
    await_("resumed", watched.caught_up)
    assert 1 == len(watched.drivers())
    assert [] == all_differences(watched, watched.feed)  # type: ignore[arg-type]
