"""How soon new results are committed after a kill -9: of the whole system, and of one of our store servers.

The state has every key of `--state-keys`; a trickle of records goes on all the time. Marked records on new keys are
sent right after the kill: `first` is the first of them to be visible to a `read_committed` consumer, `all` the last. A
killed system's clock starts with the start of its new process, a killed store server's with the kill.
"""

from __future__ import annotations

import os
import signal
import time

import pandas as pd

from tests.benchmarks import bids
from tests.benchmarks.paced import Paced
from tests.benchmarks.rounds import Figures
from tests.benchmarks.scenarios.base import Options, Tail, await_committed, expected_totals
from tests.benchmarks.systems import System
from tests.benchmarks.systems.rollforward import Rollforward

MARKS = 64
TRICKLE_PER_S = 200
STEADY_S = 10.0
TIMEOUT_S = 1_800.0
UNITS = {
    "state_keys": "keys",
    "driver_first_s": "s",
    "driver_all_s": "s",
    "driver_recovery_s": "s",
    "server_first_s": "s",
    "server_all_s": "s",
}


def measure(system: System, options: Options) -> Figures:
    """One run: load, kill the system, and with ours a store server; then every key is compared."""
    keys = options.state_keys
    system.start()
    await_committed(system, keys)
    tail = Tail(system)
    paced = Paced(
        system.broker.bootstrap,
        system.topic,
        rate=TRICKLE_PER_S,
        seconds=36_000,
        keys=keys,
        file=system.folder / "sent.npy",
    )
    marks = [pd.DataFrame({"auction": range(keys, keys + MARKS)})]
    try:
        _steady(tail)
        system.kill()
        _drain(tail)
        _mark(system, marks[0])
        began, began_at = time.monotonic(), time.time()
        system.start()
        first, every = _visible(system, tail, marks[0], began)
        figures = {"state_keys": float(keys), "driver_first_s": first, "driver_all_s": every}
        if isinstance(system, Rollforward):
            opened = system.pipeline.registry.recoveries(system.run, since=began_at)
            figures["driver_recovery_s"] = max(recovery.plan["seconds"] for recovery in opened)
            _steady(tail)
            marks.append(marks[0] + MARKS)
            began = time.monotonic()
            os.kill(system.pipeline.server_pids()[0], signal.SIGKILL)
            _mark(system, marks[1])
            first, every = _visible(system, tail, marks[1], began)
            figures |= {"server_first_s": first, "server_all_s": every}
        sent = paced.sent()
    finally:
        paced.kill()
        tail.close()
    await_committed(system, keys + len(sent) + sum(map(len, marks)))
    system.require_correct({"totals": expected_totals(keys, sent, *marks)})
    return figures


def _mark(system: System, marks: pd.DataFrame) -> None:
    frame = marks.assign(price=1, bidder=0, dateTime=bids.FIRST_MS)
    bids.fill(system.broker.bootstrap, system.topic, frame, ["auction"])


def _steady(tail: Tail) -> None:
    """Let it run under the trickle: results come, compilers settle."""
    end = time.monotonic() + STEADY_S
    while time.monotonic() < end:
        tail.read(0.2)


def _drain(tail: Tail) -> None:
    """Read what was committed before the kill."""
    while tail.read(1.0):
        pass


def _visible(system: System, tail: Tail, marks: pd.DataFrame, began: float) -> tuple[float, float]:
    """Seconds until the first and the last marked key had a result."""
    missing, first = set(marks["auction"]), 0.0
    while missing:
        results = {auction for auction, _ in tail.read(0.2)} & missing
        passed = time.monotonic() - began
        if results and not first:
            first = passed
        missing -= results
        system.require_alive()
        if passed > TIMEOUT_S:
            raise TimeoutError(f"{system.name}: {len(missing)} marked keys have no result\n{system.tail()}")
    return first, time.monotonic() - began
