"""Measurements beside throughput, each a workload of its own name."""

from tests.benchmarks.scenarios import idle, latency, nothing, restart, soak
from tests.benchmarks.scenarios.base import Options, Scenario

_OURS = ("rollforward",)
_BOTH = ("rollforward", "kafka-streams")

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "latency",
            "record's time to visible result, at half of the peak rate",
            _BOTH,
            latency.UNITS,
            latency.measure,
            interval_s=latency.INTERVAL_S,
        ),
        Scenario(
            "nothing-to-do",
            "a batch whose records WHERE drops",
            _OURS,
            nothing.UNITS,
            nothing.measure,
            keys=lambda options: 1,
            workload=nothing.WORKLOAD,
        ),
        Scenario("idle", "a system without input", _BOTH, idle.UNITS, idle.measure),
        Scenario(
            "restart",
            "kill -9 to new committed results",
            _BOTH,
            restart.UNITS,
            restart.measure,
            keys=lambda options: options.state_keys,
        ),
        Scenario("soak", "memory under steady input", _BOTH, soak.UNITS, soak.measure, slow=True),
    )
}

__all__ = ["SCENARIOS", "Options", "Scenario"]
