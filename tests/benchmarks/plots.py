"""Bar charts of the throughput workloads as SVG, the same bytes for the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from tests.benchmarks.report import Row
from tests.benchmarks.systems import SYSTEMS
from tests.benchmarks.workloads import WORKLOADS

CHARTS = (
    ("records_per_s", "Records per second, steady state (more is better)", "bench-throughput.svg"),
    ("cpu_us_per_record", "CPU µs a record, broker not counted (less is better)", "bench-cpu.svg"),
)
BAR_CM = 0.45


def draw(rows: Sequence[Row], folder: Path) -> list[tuple[str, str]]:
    """Draw what there are figures for; gives title and file name of each chart."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for metric, title, file in CHARTS:
        values = {(row["workload"], row["system"]): row["value"] for row in rows if row["metric"] == metric}
        if any(workload in WORKLOADS for workload, _ in values):
            _chart(values, title, folder / file)
            drawn.append((title, file))
    return drawn


def _chart(values: dict[tuple[str, str], float], title: str, file: Path) -> None:
    matplotlib.use("svg")
    # Without a salt the names in the file are random.
    matplotlib.rcParams.update({"svg.hashsalt": "rollforward", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    workloads = [workload for workload in WORKLOADS if any(name == workload for name, _ in values)]
    systems = [system for system in SYSTEMS if any(name == system for _, name in values)]
    bars = sum(1 for workload, _ in values if workload in workloads) + len(workloads)
    figure, axes = pyplot.subplots(figsize=(8, 1 + bars * BAR_CM / 2), layout="constrained")
    at, ticks = 0.0, []
    for workload in workloads:
        measured = [system for system in systems if (workload, system) in values]
        ticks.append(at + (len(measured) - 1) / 2)
        for system in measured:
            value = values[workload, system]
            bar = axes.barh(at, value, height=0.85, color=f"C{systems.index(system)}", label=system)
            axes.bar_label(bar, [f"{value:,.0f}" if value >= 100 else f"{value:.1f}"], padding=3)
            at += 1
        at += 1
    axes.set_yticks(ticks, workloads)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles.keys(), loc="lower right")
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
