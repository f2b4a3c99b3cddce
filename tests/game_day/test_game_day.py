"""The short form of `make game-day`: each kind of fault once at the most, three minutes, exact results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.game_day.day import live


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_short_day_ends_with_exact_results(tmp_path: Path) -> None:
    report = live(tmp_path / "home", seed=int(os.environ.get("GAME_DAY_SEED", "7")), minutes=3, settle_s=5)
    assert [] == report["differences"]
    assert report["incidents"]
