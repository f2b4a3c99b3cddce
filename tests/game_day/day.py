"""A day of faults with nobody touching it: input flows, things die, Dagster looks after them, the results are compared.

For each fault it is measured for how long nothing new was committed, from the fault until the pipeline has settled. A
fault waits until then, so that the figures are each fault's own.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from infra import tools
from infra.stack import KAFKA, MONITORING, S3, Stack
from ops.cli.stack import monitored
from ops.dagster.incidents import STEADY_S
from ops.environment import on_local_stack, with_spark
from pipelines.metastore.embedded import want
from pipelines.registry import RUNNING, BatchRow
from pipelines.settings import Settings
from tests.game_day.faults import FAULTS, Fault
from tests.support.feed import Feed, create_topic
from tests.support.small_disk import SmallDisk
from tests.support.stores import all_differences
from tests.support.waiting import await_
from tests.support.watched import Watched

RECORDS_PER_S = 200
DISK = "160m"
QUERY = "totals"
# A driver that lives for a minute is steady: the next fault is a new incident, not one more of the same.
SETTLE_S = STEADY_S + 3.0
OUTPUT_S_MAX = 240.0
GOAL_MEDIAN_S = 30.0


@dataclass(frozen=True)
class Told:
    """One fault: what was done, the longest time without new output from then on, the runs that Dagster started."""

    fault: str
    done: str
    seconds: float
    runs: list[str]


class Input(threading.Thread):
    """Records at a steady rate until `end`; waits where the broker is away."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(daemon=True, name="input")
        self._feed = feed
        self._end = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._end.wait(0.25):
                self._feed.send(RECORDS_PER_S // 4)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Send no more."""
        self._end.set()
        self.join(timeout=120)
        assert self.error is None, self.error


def print_now(line: str) -> None:
    """A line that is seen when it is said, also in a file."""
    print(line, flush=True)


def live(
    home: Path,
    *,
    seed: int,
    minutes: float,
    faults: Sequence[Fault] = FAULTS,
    settle_s: float = SETTLE_S,
    say: Callable[[str], None] = print_now,
) -> dict[str, Any]:
    """Live one day in `home`; gives the report. Raises AssertionError where the pipeline does not come back or is wrong.

    Faults come `settle_s` after the one before is over; where that is shorter than a driver takes to be steady, the
    sensor's back-off is in the figures.
    """
    dice = random.Random(seed)
    stack, disk = Stack(home), SmallDisk.mounted(home.with_name("disk"), DISK)
    world: Watched | None = None
    try:
        world = _morning(home, stack, disk, seed)
        flow = Input(world.feed)
        flow.start()
        await_("first output", lambda: world.registry.newest_batches(world.name))
        told: list[Told] = []
        ends = time.monotonic() + minutes * 60
        order: list[Fault] = []
        while time.monotonic() < ends or not told:
            order = order or dice.sample(list(faults), len(faults))
            told.append(_suffer(order.pop(), world, stack, dice))
            say(f"{told[-1].fault}: {told[-1].done}; {told[-1].seconds} s without new output; runs: {told[-1].runs}")
            time.sleep(settle_s + dice.uniform(0, 3))
        flow.end()
        return _evening(world, told, seed)
    except BaseException:
        kept = tempfile.mkdtemp(prefix="game-day-logs-")
        shutil.copytree(home / "logs", kept, dirs_exist_ok=True)
        say(f"logs are kept in {kept}")
        raise
    finally:
        if world is not None:
            world.close()
        stack.down(wipe=True)
        disk.close()


def _morning(home: Path, stack: Stack, disk: SmallDisk, seed: int) -> Watched:
    tools.fetch(stack.cache)
    settings = Settings(
        home=home,
        state_dir=disk.path / "state",
        service=f"day{seed}",
        tasks=2,
        store_servers=2,
        batch_interval_s=0.5,
        # There has to be one that can be killed.
        spark_start="at-once",
        snapshot_url="s3://rollforward/day",
        snapshot_interval_s=30.0,
        request_timeout_s=20.0,
        spark_conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
    )
    stack.up(components=[KAFKA, S3, MONITORING], monitored=monitored(settings))
    settings = with_spark(on_local_stack(settings))
    create_topic(settings.bootstrap_servers, "bids")
    world = Watched(settings, Feed(settings.bootstrap_servers, "bids", seed=seed))
    want(world.name, RUNNING, settings, world.registry)
    world.start()
    return world


def _suffer(fault: Fault, world: Watched, stack: Stack, dice: random.Random) -> Told:
    known = {run["runId"] for run in world.runs()}
    began = time.time()
    done = fault(world, stack, dice)
    over = time.time()

    def output() -> bool:
        newest = world.registry.newest_batches(world.name)
        return any(batch.finished_at > over and batch.finished_at - batch.seconds >= began for batch in newest)

    await_(f"output after {fault.__name__}", output, OUTPUT_S_MAX)
    await_("one driver", lambda: world.state() == "running" and len(world.drivers()) == 1, OUTPUT_S_MAX)
    runs = [f"{run['jobName']} {run['status'].lower()}" for run in world.runs() if run["runId"] not in known]
    silence_s = longest_silence_s(began, world.registry.last_batches(world.name, QUERY, limit=1000))
    return Told(fault.__name__, done, round(silence_s, 1), [run for run in runs if not run.startswith("check_")])


def longest_silence_s(began: float, batches: Iterable[BatchRow]) -> float:
    """The longest time from `began` on in which no batch was committed, up to the last one that was."""
    ends = sorted(batch.finished_at for batch in batches if batch.finished_at > began)
    return max(after - before for before, after in pairwise([began, *ends]))


def _evening(world: Watched, told: list[Told], seed: int) -> dict[str, Any]:
    await_("everything read", world.caught_up, OUTPUT_S_MAX)
    assert "running" == world.state()
    wrong = all_differences(world, world.feed)  # type: ignore[arg-type]
    median = statistics.median(one.seconds for one in told)
    return {
        "seed": seed,
        "records": world.feed.sent,
        "differences": wrong,
        "incidents": [asdict(one) for one in told],
        "median_s": median,
        "goal_median_s": GOAL_MEDIAN_S,
        "goal_met": median <= GOAL_MEDIAN_S,
    }
