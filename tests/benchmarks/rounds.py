"""Rounds: every system once, then every system again, so that a change of the machine's mood meets them all.

Each round's order is the one before it turned round: what runs first after the input was made finds another broker than
what runs last.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence

from tests.benchmarks.systems import NotPossible, System

Figures = dict[str, float]
# Per system the figures of its rounds, or in one sentence why there are none.
Found = dict[str, list[Figures] | str]
Tell = Callable[[str], None]
FAILED = "failed: "


def interleaved(
    what: str, kinds: Sequence[type[System]], rounds: int, one: Callable[[type[System], str], Figures], tell: Tell
) -> Found:
    """Calls `one(system, name of the run)`. A system that cannot or that fails has no figures and no further rounds.

    A failure, a wrong result among them, does not end the others' rounds; `failures` finds it in what is returned.
    """
    found: Found = {}
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            if isinstance(found.get(kind.name), str):
                continue
            try:
                figures = one(kind, run_name(what, kind.name, number))
            except NotPossible as reason:
                found[kind.name] = str(reason)
                tell(f"{what} {kind.name}: {reason}")
            except Exception as error:
                found[kind.name] = f"{FAILED}{str(error).splitlines()[0] if str(error) else type(error).__name__}"
                tell(f"{what} {kind.name} failed:\n{traceback.format_exc()}")
            else:
                found.setdefault(kind.name, []).append(figures)  # type: ignore[union-attr]
                shown = ", ".join(f"{name} {value:,.2f}" for name, value in figures.items())
                tell(f"{what} {kind.name} round {number + 1}: {shown}")
    return found


def run_name(what: str, system: str, number: int) -> str:
    """A name that fits topics, groups and folders, and that no other run on the broker has."""
    return f"b_{what}_{system}_{number}_{time.time_ns() // 1_000_000 % 1_000_000_000}".replace("-", "_")


def failures(found: Found) -> list[str]:
    """The systems that failed, with the reason."""
    return [f"{name} {why}" for name, why in found.items() if isinstance(why, str) and why.startswith(FAILED)]
