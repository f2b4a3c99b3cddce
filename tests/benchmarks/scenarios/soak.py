"""Memory over a long time: steady input on 10,000 keys, whose state does not grow."""

from __future__ import annotations

import time

import numpy as np

from tests.benchmarks import cpu
from tests.benchmarks.paced import Paced
from tests.benchmarks.rounds import Figures
from tests.benchmarks.scenarios.base import Options, await_committed, expected_totals
from tests.benchmarks.systems import System

KEYS = 10_000
SAMPLE_S = 5.0
# Memtables, which rise by some 40 MB a server until they are flushed, are left out where a system tells them. What they
# were made of is given back a little later, and what does not tell rises and falls: in less than this.
CYCLE_S = 300.0
RATE = 20_000
# Seconds since the beginning, and bytes by process.
Sample = tuple[float, dict[int, int]]
UNITS = {"memory_start_mb": "MB", "memory_end_mb": "MB", "growth_mb_per_hour": "MB/h", "minutes": "min"}


def measure(system: System, options: Options) -> Figures:
    """One run. The first third is left out: caches fill and compilers work. See `growth` for the rest."""
    rate = options.rate or RATE
    system.start()
    await_committed(system, KEYS)
    paced = Paced(
        system.broker.bootstrap,
        system.topic,
        rate=rate,
        seconds=options.minutes * 60,
        keys=KEYS,
        file=system.folder / "sent.npy",
    )
    samples: list[Sample] = []
    began = time.monotonic()
    try:
        while paced.running:
            system.require_alive()
            resident = cpu.allocated_bytes(system.pid)
            # After it: what is flushed in between counts too much, and no low is one of that.
            held = system.memtables()
            samples.append((time.monotonic() - began, {pid: size - held.get(pid, 0) for pid, size in resident.items()}))
            time.sleep(SAMPLE_S)
        sent = paced.sent()
    finally:
        paced.kill()
    await_committed(system, KEYS + len(sent))
    system.require_correct({"totals": expected_totals(KEYS, sent)})
    return growth(samples)


def growth(samples: list[Sample]) -> Figures:
    """Figures of samples (seconds, bytes by process): of every process the least in each cycle counts.

    What rises and falls within a cycle is no growth, and over so few of them a line through all samples would have the
    slope of where it begins and ends.
    """
    rest = samples[len(samples) // 3 :]
    began, lasted = rest[0][0], rest[-1][0] - rest[0][0]
    cycles = max(2, round(lasted / CYCLE_S))
    lows: list[dict[int, int]] = [{} for _ in range(cycles)]
    for at, found in rest:
        low = lows[min(int((at - began) / lasted * cycles), cycles - 1)]
        for process, size in found.items():
            low[process] = min(size, low.get(process, size))
    memory = np.array([sum(low.values()) for low in lows]) / 1e6
    slope, start = np.polyfit((np.arange(cycles) + 0.5) * lasted / cycles, memory, 1)
    return {
        "memory_start_mb": float(start),
        "memory_end_mb": float(start + slope * lasted),
        "growth_mb_per_hour": float(slope * 3600),
        "minutes": float(samples[-1][0] / 60),
    }
