"""A pipeline that has nothing to do writes nothing, and hardly works. The goal of 2 % of a core is `make bench`'s."""

from __future__ import annotations

import json
import time

import pytest

from pipelines.settings import Settings
from statestore.kafka.admin import Admin
from tests.benchmarks.cpu import CpuMeter
from tests.support.feed import SQL, Feed, create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

# A start's compilers and its spare server are at work for some seconds behind it.
SETTLE_S, IDLE_S = 20.0, 10.0
# On a machine at a third of its speed, and no more: polling without pauses costs twenty times that, in every window.
MOST_OF_A_CORE = 0.06
WINDOWS = 4


def share_of_a_core(root: int) -> float:
    """What the processes below `root` use of one core during `IDLE_S` seconds, as a fraction."""
    meter, began = CpuMeter(root), time.monotonic()
    time.sleep(IDLE_S)
    return meter.seconds() / (time.monotonic() - began)


def calm(window: tuple[float, bool]) -> bool:
    """Whether little CPU was used, and nothing written, in a window of (share, wrote)."""
    share, wrote = window
    return share <= MOST_OF_A_CORE and not wrote


@pytest.mark.timeout(300)
def test_an_idle_pipeline_commits_nothing_and_hardly_works(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique)
    feed = Feed(kafka, unique, seed=3)
    feed.send(500)
    # At the default interval, as in production.
    usual = settings.model_copy(update={"batch_interval_s": Settings.model_fields["batch_interval_s"].default})
    pipeline = PipelineUnderTest(usual, unique, SQL.format(topic=unique))
    admin = Admin(settings.kafka_config())

    def ends(prefix: str) -> dict[str, dict[int, int]]:
        topics = {name: count for name, count in admin.topics().items() if name.startswith(prefix)}
        return {name: admin.ends(name, partitions=count) for name, count in topics.items()}

    try:
        pipeline.start()
        pipeline.await_("the input is processed", pipeline.caught_up(feed.sent))
        assert pipeline.process is not None
        root = pipeline.process.pid
        time.sleep(SETTLE_S)
        before = ends(f"{unique}-")
        windows: list[tuple[float, bool]] = []
        # Other tests take turns with it, which costs it CPU of its own, and what they have left open expires: its calmest
        # window counts. A transaction or an offset of its own would be in the broker's topics in each of them.
        while len(windows) < WINDOWS and not any(map(calm, windows)):
            noted = ends("__")
            windows.append((share_of_a_core(root), ends("__") != noted))
        assert {"__consumer_offsets", "__transaction_state"} <= noted.keys()
        assert ends(f"{unique}-") == before
        assert any(map(calm, windows)), windows
        # And it is awake: what comes now is in a result soon.
        feed.send(100)
        pipeline.await_("more is processed", pipeline.caught_up(feed.sent), 30)
        assert pipeline.process.pid == root
    finally:
        pipeline.close()
    newest = {m.key(): json.loads(present(m.value())) for m in read_topic(kafka, f"{unique}-totals")}
    assert sum(row["N"] for row in newest.values()) == feed.sent - len(feed.bad)
