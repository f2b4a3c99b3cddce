"""How long a batch takes that changes nothing: single records that the query's WHERE drops."""

from __future__ import annotations

import dataclasses
import statistics

from tests.benchmarks.paced import Paced
from tests.benchmarks.rounds import Figures
from tests.benchmarks.scenarios.base import TOTALS, Options, await_
from tests.benchmarks.systems import System
from tests.benchmarks.systems.rollforward import Rollforward

WARM_UP = 30
BATCHES = 30
UNITS = {"batch_ms": "ms", "commit_ms": "ms"}
WORKLOAD = dataclasses.replace(TOTALS, sql=TOTALS.sql.replace("FROM bids", "FROM bids WHERE price < 0"))


def measure(system: System, options: Options) -> Figures:
    """One run; the driver's own figures of the batches behind the warm-up, medians."""
    assert isinstance(system, Rollforward)
    system.start()
    await_("first batch", lambda: system.pipeline.batches() > 0, system)
    paced = Paced(
        system.broker.bootstrap, system.topic, rate=2, seconds=3600, keys=100, file=system.folder / "sent.npy"
    )
    try:
        await_("batches", lambda: system.pipeline.batches() > WARM_UP + BATCHES, system)
    finally:
        paced.kill()
    batches = sorted(system.pipeline.registry.batches(pipeline=system.run), key=lambda b: b.batch)[-BATCHES:]
    assert all(batch.changed_keys == 0 and batch.records <= 10 for batch in batches), (
        "these batches had something to do"
    )
    return {
        "batch_ms": 1000 * statistics.median(batch.seconds for batch in batches),
        "commit_ms": 1000 * statistics.median(batch.commit_seconds for batch in batches),
    }
