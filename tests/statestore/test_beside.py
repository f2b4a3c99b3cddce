"""A store that is read beside its owner: what that deletes meanwhile is no damage."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from statestore.errors import TaskCorrupted
from statestore.version import TaskDatabase
from tests.support.task import ROCKS

# Each flush makes a file, and each compaction deletes those of before.
OWNER = """
import sys
from pathlib import Path
from statestore.version import TaskDatabase
from tests.support.task import ROCKS
database = TaskDatabase(Path(sys.argv[1]), ["s"], ROCKS).database
print("open", flush=True)
while True:
    for number in range(8):
        database.write({"s": [(b"%d" % number, b"x" * 100)]})
        database.flush()
    database._db.get_column_family("s").compact_range(None, None)
"""


def test_what_its_owner_deletes_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    with subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            assert b"open\n" == owner.stdout.readline()
            until = time.monotonic() + 5
            looks = 0
            while time.monotonic() < until:
                database = TaskDatabase.beside(folder, ["s"], ROCKS)
                assert database.checkpoint() is None
                database.close()
                looks += 1
            assert owner.poll() is None
            assert looks > 10
        finally:
            owner.kill()


def test_damage_that_stays_is_told(tmp_path: Path) -> None:
    database = TaskDatabase(tmp_path / "0", ["s"], ROCKS)
    database.database.write({"s": [(b"a", b"1")]})
    database.database.flush()
    database.close()
    for file in (tmp_path / "0").glob("*.sst"):
        file.unlink()
    with pytest.raises(TaskCorrupted, match="No such file"):
        TaskDatabase.beside(tmp_path / "0", ["s"], ROCKS)
