"""Tables and plots of `docs/benchmarks.md`, made from `docs/benchmarks.json` between two markers; the prose is by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks import plots, report
from tests.benchmarks.goals import GOALS
from tests.benchmarks.report import Row
from tests.benchmarks.scenarios import SCENARIOS
from tests.benchmarks.systems import SYSTEMS
from tests.benchmarks.workloads import WORKLOADS

BEGIN = "<!-- figures: written by make bench -->"
END = "<!-- end of figures -->"
HEADS = (
    "",
    "guarantee",
    "records/s",
    "ours does",
    "CPU µs a record",
    "ours takes",
    "a commit every",
    "first commit",
    "records",
)


def update(docs: Path) -> None:
    """Write tables and plots anew. Raises ValueError if the document has no markers."""
    rows = report.read(docs / "benchmarks.json")
    images = plots.draw(rows, docs / "images")
    document = docs / "benchmarks.md"
    text = document.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} needs the lines {BEGIN} and {END}")
    parts = [goals_table(rows), *(f"![{title}](images/{file})" for title, file in images), *sections(rows)]
    document.write_text(before + begin + "\n\n" + "\n\n".join(parts) + "\n\n" + end + after)


def goals_table(rows: Sequence[Row]) -> str:
    """Every goal with what was found."""
    lines = []
    for goal in GOALS:
        found = goal.found(rows)
        bound = f"{'≥' if goal.at_least else '≤'} {goal.bound:,g}{' ×' if goal.at_least else ''}"
        met = "not measured yet" if found is None else "yes" if goal.met(found) else "**no**"
        rounds = "–" if found is None else str(goal.rounds(rows))
        lines.append([goal.text, bound, "–" if found is None else f"{found:,g}", met, rounds])
    return table(("goal", "bound", "found", "met", "rounds"), lines)


def sections(rows: Sequence[Row]) -> list[str]:
    """One section for each workload that has figures, in the order of their definition."""
    found = []
    for name, workload in WORKLOADS.items():
        if of := [row for row in rows if row["workload"] == name]:
            found += [f"### {name}: {workload.what}", throughput_table(of), *remarks(of)]
    for name, scenario in SCENARIOS.items():
        if of := [row for row in rows if row["workload"] == name]:
            found += [f"### {name}: {scenario.what}", scenario_table(of), *remarks(of)]
    return found + recovery_sections(rows)


def recovery_sections(rows: Sequence[Row]) -> list[str]:
    """Of `make bench-recovery`, whose workloads have the number of keys in their names."""
    found = []
    for name in dict.fromkeys(row["workload"] for row in rows if row["workload"].startswith("recover-")):
        of = [row for row in rows if row["workload"] == name]
        order = list(dict.fromkeys(row["system"] for row in of))
        found += [f"### {name}: all stores of a query back on an empty disk", scenario_table(of, order), *remarks(of)]
    return found


def throughput_table(rows: Sequence[Row]) -> str:
    """Systems down, figures across."""
    lines = []
    for system in systems(rows):
        value = {row["metric"]: row for row in rows if row["system"] == system}
        cells = [
            system,
            SYSTEMS[system].guarantee,
            shown(value, "records_per_s"),
            f"{ratio(value, 'records_per_s')} ×",
            shown(value, "cpu_us_per_record"),
            f"{ratio(value, 'cpu_us_per_record')} ×",
            shown(value, "commit_interval_s", " s"),
            shown(value, "first_commit_s", " s"),
            shown(value, "records"),
        ]
        lines.append(cells)
    return table(HEADS, lines)


def scenario_table(rows: Sequence[Row], order: Sequence[str] = ()) -> str:
    """Systems down, the scenario's own metrics across."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows if row["value"] is not None))
    units = {row["metric"]: row["unit"] for row in rows}
    lines = []
    for system in order or systems(rows):
        value = {row["metric"]: row for row in rows if row["system"] == system}
        lines.append([system, *(shown(value, metric) for metric in metrics)])
    return table(["", *(f"{heading(metric)} ({units[metric]})" for metric in metrics)], lines)


def remarks(rows: Sequence[Row]) -> list[str]:
    """Who cannot, and how it was measured."""
    cannot = [f"{row['system']}: {row['note']}." for row in rows if row["value"] is None]
    how = dict.fromkeys(f"`{row['command']}`, {_when(row['versions'])}" for row in rows)
    return [*cannot, f"By {'; '.join(how)}, {rows[0]['versions']['cores']} cores."]


def _when(versions: Mapping[str, str]) -> str:
    return versions["date"] + (f", commit {versions['commit']}" if "commit" in versions else "")


def systems(rows: Sequence[Row]) -> list[str]:
    """The systems that have figures, in the order of their definition."""
    measured = {row["system"] for row in rows if row["value"] is not None}
    return [system for system in SYSTEMS if system in measured]


def shown(value: dict[str, Row], metric: str, unit: str = "") -> str:
    """A figure for people."""
    if metric not in value:
        return "–"
    number = value[metric]["value"]
    return (f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}") + unit


def ratio(value: dict[str, Row], metric: str) -> str:
    """Ours divided by this."""
    found = value.get(metric, {}).get("ratio_ours_to_this")
    return "–" if found is None else f"{found:.2f}"


def heading(metric: str) -> str:
    """A metric's name without its unit."""
    for unit in ("_ms", "_s", "_mb", "_per_hour", "_percent_of_a_core"):
        metric = metric.removesuffix(unit)
    return metric.replace("_", " ")


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))
