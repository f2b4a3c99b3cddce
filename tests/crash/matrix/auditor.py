"""The auditor of the bank: reads the whole store of balances all the time, and no money may be missing in any view.

It reads with `read_committed` across all tasks, at the moments between two batches (`pipelines.consistent`). A view
that it cannot have, since a server is away, is no finding; one whose sum is not 0 is.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from pipelines.consistent import ConsistentReader, View
from pipelines.deploy import deployed_queries
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.errors import RollforwardError


def finding(view: View) -> str | None:
    """What is wrong with a view; None if it adds up."""
    total = sum(row.value["BALANCE"] for row in view.rows)
    legs = sum(row.value["N"] for row in view.rows)
    if total != 0 or legs % 2 != 0:
        return f"batch {view.batch}: the accounts add up to {total} after {legs} legs"
    return None


class Auditor:
    """A thread that audits until `close`."""

    def __init__(self, pipeline: str, settings: Settings, registry: Registry) -> None:
        (deployed,) = [q for q in deployed_queries(registry.pipeline(pipeline)) if q.query.name == "balances"]
        self._reader = ConsistentReader(deployed, settings, registry)
        self.findings: list[str] = []
        self.views = 0
        self.newest = -1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.25):
            # While a fault lasts there may be nobody to ask, no moment between two batches, or no store to open.
            with suppress(RollforwardError):
                self._audit(self._reader.read(timeout_s=5))

    def _audit(self, view: View) -> None:
        self.views += 1
        if view.batch < self.newest:
            self.findings.append(f"a view of batch {view.batch} came after one of batch {self.newest}")
        self.newest = max(self.newest, view.batch)
        found = finding(view)
        if found is not None:
            self.findings.append(found)

    def await_view(self, timeout_s: float = 60) -> None:
        """Return when one more view has been audited: the audit itself must not have died."""
        before, deadline = self.views, time.monotonic() + timeout_s
        while self.views == before:
            assert time.monotonic() < deadline and self._thread.is_alive(), f"no view in {timeout_s} s"
            time.sleep(0.05)

    def close(self) -> None:
        """End the audit."""
        self._ended.set()
        self._thread.join(60)
