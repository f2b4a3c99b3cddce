"""Small files are whole or absent, and a lock has one holder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.errors import StackBusy
from infra.files import FileLock, read_json, write_json


def test_file_is_replaced_whole_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert {"a": 2} == read_json(path)
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("content", ["", '{"a": ', "[1]", "\x00"])
def test_file_cut_short_reads_as_absent(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    assert read_json(tmp_path / "x.json") is None


def test_second_holder_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / "lock"),
        pytest.raises(StackBusy, match=f"pid=`{os.getpid()}`"),
        FileLock(tmp_path / "lock", timeout_s=0.1),
    ):
        pass


def test_lock_is_free_after_its_holder_even_if_deleted_meanwhile(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"):
        (tmp_path / "lock").unlink()
    with FileLock(tmp_path / "lock", timeout_s=0.1), pytest.raises(StackBusy), FileLock(tmp_path / "lock", timeout_s=0):
        pass
