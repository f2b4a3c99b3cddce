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
RATE = 20_000
UNITS = {"memory_start_mb": "MB", "memory_end_mb": "MB", "growth_mb_per_hour": "MB/h", "minutes": "min"}


def measure(system: System, options: Options) -> Figures:
    """One run. The first third is left out: caches fill and compilers work. Growth is the slope of the rest."""
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
    samples: list[tuple[float, float]] = []
    began = time.monotonic()
    try:
        while paced.running:
            system.require_alive()
            samples.append((time.monotonic() - began, cpu.resident_bytes(system.pid) / 1e6))
            time.sleep(SAMPLE_S)
        sent = paced.sent()
    finally:
        paced.kill()
    await_committed(system, KEYS + len(sent))
    system.require_correct({"totals": expected_totals(KEYS, sent)})
    return growth(samples)


def growth(samples: list[tuple[float, float]]) -> Figures:
    """Figures of (seconds, MB) samples: the slope by least squares, and the line's ends."""
    at, memory = np.array(samples[len(samples) // 3 :]).T
    slope, start = np.polyfit(at, memory, 1)
    return {
        "memory_start_mb": float(start + slope * at[0]),
        "memory_end_mb": float(start + slope * at[-1]),
        "growth_mb_per_hour": float(slope * 3600),
        "minutes": float(samples[-1][0] / 60),
    }
