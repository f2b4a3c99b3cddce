"""A driver that starts: what hangs meanwhile is noticed, and a signal that comes in the middle of anything is heard."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from pipelines.pipeline_driver import PipelineDriver
from pipelines.registry import PipelineDefinition, Registry
from pipelines.settings import Settings
from tests.support.feed import SQL, create_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.waiting import await_


@pytest.mark.timeout(300)
def test_a_jvm_that_hangs_while_it_starts_ends_the_driver(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique)
    changed = settings.model_copy(update={"answer_timeout_s": 4.0, "spark_start": "at-once"})
    pipeline = PipelineUnderTest(changed, unique, SQL.format(topic=unique))
    try:
        process = pipeline.start()
        # Spark's context begins with it.
        await_("the jvm's first folder", lambda: list(settings.home.glob(f"spark/{unique}-*/tmp/blockmgr-*")), 60)
        (jvm,) = pipeline.jvms()
        jvm.suspend()
        await_("the driver's end", lambda: process.poll() is not None, 60)
        assert "the jvm is silent and is killed" in pipeline.log.read_text()
        assert "spark is up" not in pipeline.log.read_text()
        assert process.returncode == 4, pipeline.tail()
        pipeline.await_no_orphans()
    finally:
        pipeline.close()


def test_a_signal_is_heard_whatever_it_interrupts(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, bootstrap_servers=f"127.0.0.1:{_unused_port()}", metrics=False)
    registry = Registry(settings.metastore)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    definition = PipelineDefinition(name="p", sql="", sources=[], queries=[], deployed_at=0.0)
    driver = PipelineDriver(definition, settings, registry, until_end=False)
    try:
        driver.signals.listen()
        # Its lock, which is held for a moment whenever the main thread waits for the stop, is not reentrant.
        with driver._stop._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)
        await_("the stop", driver._stop.is_set, 10)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        registry.close()


def _unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
