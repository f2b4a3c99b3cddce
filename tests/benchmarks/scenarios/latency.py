"""End-to-end latency: from a record's time to the moment when a `read_committed` consumer has its effect.

Records come at a steady rate on 10,000 keys. A result's count says which of its key's records are in it, so every
record is measured, also where one result stands for many. Those of the first half are warm-up.
"""

from __future__ import annotations

import time

import numpy as np
import pandas as pd

from tests.benchmarks.paced import Paced
from tests.benchmarks.rounds import Figures
from tests.benchmarks.scenarios.base import Options, Tail, await_committed, expected_totals
from tests.benchmarks.systems import System

KEYS = 10_000
# Our default. A system that commits once a second has no median below half of one.
INTERVAL_S = 0.5
UNITS = {"p50_ms": "ms", "p99_ms": "ms", "max_ms": "ms", "rate_per_s": "records/s"}
LATE_S = 120.0


def measure(system: System, options: Options) -> Figures:
    """One run."""
    rate = options.rate_for(type(system))
    system.start()
    await_committed(system, KEYS)
    tail = Tail(system)
    seconds = 2 * options.seconds
    paced = Paced(
        system.broker.bootstrap, system.topic, rate=rate, seconds=seconds, keys=KEYS, file=system.folder / "sent.npy"
    )
    try:
        seen = _results(system, tail, paced)
        sent = paced.sent()
    finally:
        paced.kill()
        tail.close()
    await_committed(system, KEYS + len(sent))
    system.require_correct({"totals": expected_totals(KEYS, sent)})
    latencies = latencies_ms(sent, seen)
    late = latencies[len(latencies) // 2 :]
    p50, p99 = np.percentile(late, [50, 99])
    return {
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "max_ms": float(late.max()),
        "rate_per_s": len(sent) / seconds,
    }


def _results(system: System, tail: Tail, paced: Paced) -> pd.DataFrame:
    """Every result with the time at which it was read, until all that was sent is in them."""
    chunks: list[pd.DataFrame] = []
    counts: dict[int, int] = {}
    ended_at = None
    total = None
    while total is None or sum(counts.values()) - KEYS < total:
        system.require_alive()
        results = tail.read(0.2)
        if results:
            chunks.append(pd.DataFrame(results, columns=["auction", "count"]).assign(ms=time.time() * 1000))
            counts.update(results)
        if total is None and not paced.running:
            total, ended_at = len(paced.sent()), time.monotonic()
            # Keys that got nothing have no result here.
            counts = {**dict.fromkeys(range(KEYS), 1), **counts}
        if ended_at is not None and time.monotonic() - ended_at > LATE_S:
            raise TimeoutError(f"{system.name}: results are still missing {LATE_S} s after the last record")
    return pd.concat(chunks)


def latencies_ms(sent: pd.DataFrame, seen: pd.DataFrame) -> np.ndarray:
    """For each record in the order of sending, how long until a result counted it. `seen` is in the order of reading.

    A key's first record is the one that was there before: the n-th sent one is in the first result whose count is
    n + 1 or more.
    """
    found = np.full(len(sent), np.nan)
    results = dict(iter(seen.groupby("auction")))
    for auction, records in sent.reset_index(drop=True).groupby("auction"):
        frame = results[auction]
        which = np.searchsorted(frame["count"].to_numpy(), np.arange(2, len(records) + 2))
        found[records.index] = frame["ms"].to_numpy()[which] - records["ms"].to_numpy()
    return found
