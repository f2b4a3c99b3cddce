"""End-to-end latency: from a record's time to the moment when a `read_committed` consumer has its effect.

Records come at a steady rate on 10,000 keys. A result's count says which of its key's records are in it, so every
record is measured, also where one result stands for many.

First as much is produced as the system can take from a topic that is full already. That is more than it can take here,
since broker and producer are on the same cores now: what it does meanwhile is its peak with live input. Then, when all of
that is committed, records come at half of this peak, and those of the second half of the time count.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pandas as pd

from tests.benchmarks.paced import Paced
from tests.benchmarks.progress import POLL_S
from tests.benchmarks.rounds import Figures
from tests.benchmarks.scenarios.base import Options, Tail, await_committed, expected_totals
from tests.benchmarks.systems import System

KEYS = 10_000
# A system that commits once a second has no median below half of one.
INTERVAL_S = 0.25
# How long the peak is looked for, and from when on it is measured.
PEAK_S, PEAK_FROM_S = 25.0, 10.0
UNITS = {"p50_ms": "ms", "p99_ms": "ms", "max_ms": "ms", "rate_per_s": "records/s", "live_peak_per_s": "records/s"}
LATE_S = 120.0
Counts = npt.NDArray[np.int64]


def measure(system: System, options: Options) -> Figures:
    """One run."""
    system.start()
    await_committed(system, KEYS)
    before, peak = live_peak(system, options)
    rate = options.rate or peak / 2
    tail = Tail(system)
    seconds = 2 * options.seconds
    paced = _paced(system, "sent", rate=rate, seconds=seconds)
    known = np.bincount(before["auction"], minlength=KEYS) + 1
    try:
        seen = _results(system, tail, paced, known)
        sent = paced.sent()
    finally:
        paced.kill()
        tail.close()
    await_committed(system, KEYS + len(before) + len(sent))
    system.require_correct({"totals": expected_totals(KEYS, before, sent)})
    latencies = latencies_ms(sent, seen, known)
    late = latencies[len(latencies) // 2 :]
    p50, p99 = np.percentile(late, [50, 99])
    return {
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "max_ms": float(late.max()),
        "rate_per_s": len(sent) / seconds,
        "live_peak_per_s": peak,
    }


def live_peak(system: System, options: Options) -> tuple[pd.DataFrame, float]:
    """What was sent, all of which is committed now, and the records a second that were committed while it was sent."""
    paced = _paced(system, "before", rate=options.peak_of(type(system)), seconds=PEAK_S)
    try:
        began = time.monotonic()
        commits = [(began, system.committed())]
        while paced.running:
            system.require_alive()
            now, committed = time.monotonic(), system.committed()
            if committed > commits[-1][1]:
                commits.append((now, committed))
            time.sleep(POLL_S)
        sent = paced.sent()
    finally:
        paced.kill()
    commits = [commit for commit in commits if commit[0] - began >= PEAK_FROM_S]
    if len(commits) < 2:
        raise RuntimeError(f"{system.name}: {len(commits)} commits in {PEAK_S - PEAK_FROM_S} s show no peak")
    (start, first), (end, last) = commits[0], commits[-1]
    await_committed(system, KEYS + len(sent))
    return sent, (last - first) / (end - start)


def _paced(system: System, name: str, *, rate: float, seconds: float) -> Paced:
    file = system.folder / f"{name}.npy"
    return Paced(system.broker.bootstrap, system.topic, rate=rate, seconds=seconds, keys=KEYS, file=file)


def _results(system: System, tail: Tail, paced: Paced, known: Counts) -> pd.DataFrame:
    """Every result with the time at which it was read, until all that was sent is in them; `known` are the counts before."""
    chunks: list[pd.DataFrame] = []
    counts = known.copy()
    ended_at = None
    total = None
    while total is None or counts.sum() - known.sum() < total:
        system.require_alive()
        results = tail.read(0.2)
        if results:
            chunks.append(pd.DataFrame(results, columns=["auction", "count"]).assign(ms=time.time() * 1000))
            # Of a key that comes twice the last counts, as numpy assigns.
            counts[chunks[-1]["auction"]] = chunks[-1]["count"]
        if total is None and not paced.running:
            total, ended_at = len(paced.sent()), time.monotonic()
        if ended_at is not None and time.monotonic() - ended_at > LATE_S:
            raise TimeoutError(f"{system.name}: results are still missing {LATE_S} s after the last record")
    return pd.concat(chunks)


def latencies_ms(sent: pd.DataFrame, seen: pd.DataFrame, known: Counts) -> npt.NDArray[np.float64]:
    """For each record in the order of sending, how long until a result counted it. `seen` is in the order of reading.

    `known[auction]` records of a key were there before: the n-th sent one is in the first result whose count is n more.
    """
    auctions, ms = sent["auction"].to_numpy(), sent["ms"].to_numpy()
    by_auction = np.argsort(auctions, kind="stable")
    names, starts = np.unique(auctions[by_auction], return_index=True)
    found = np.full(len(sent), np.nan)
    results = dict(iter(seen.groupby("auction")))
    for auction, rows in zip(names.tolist(), np.split(by_auction, starts[1:]), strict=True):
        frame = results[auction]
        which = np.searchsorted(frame["count"].to_numpy(), known[auction] + np.arange(1, len(rows) + 1))
        found[rows] = frame["ms"].to_numpy()[which] - ms[rows]
    return found
