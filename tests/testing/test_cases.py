"""Every folder of `cases` is what ksqlDB documents, run in this one process, and quickly."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli.main import app
from ops.testing import session
from pipelines.testing.case import read_folder
from pipelines.testing.run import run_case

CASES = Path(__file__).parent / "cases"
FOLDERS = sorted(path for path in CASES.iterdir() if path.is_dir())
CASE_S = 1.0


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    outcome = run_case(lambda: read_folder(folder), folder.name, session)
    assert outcome.error is None, outcome.error


def test_a_case_takes_less_than_a_second_after_the_start() -> None:
    session()
    folders = FOLDERS[::8]

    def seconds() -> float:
        started = time.monotonic()
        for folder in folders:
            run_case(partial(read_folder, folder), folder.name, session)
        return time.monotonic() - started

    # Other programs on the machine make one round slow, not each of three.
    assert any(seconds() < CASE_S * len(folders) for _ in range(3))


def write(folder: Path, statements: str, inputs: list | None = None, outputs: list | None = None) -> Path:
    folder.mkdir()
    (folder / "statements.sql").write_text(statements)
    (folder / "input.json").write_text(json.dumps({"inputs": inputs or []}))
    if outputs is not None:
        (folder / "output.json").write_text(json.dumps({"outputs": outputs}))
    return folder


STREAM = "CREATE STREAM s (k INT KEY, a INT) WITH (kafka_topic='s', value_format='json');"
COPY = f"{STREAM} CREATE STREAM o AS SELECT * FROM s;"
RECORD = {"topic": "s", "key": 1, "value": {"a": 2}}
RESULT = {"topic": "O", "key": 1, "value": {"A": 2}}


def test_the_command_tells_of_each_case_in_a_line_and_fails_if_one_does(tmp_path: Path) -> None:
    write(tmp_path / "good", COPY, [RECORD], [RESULT])
    write(tmp_path / "wrong", COPY, [RECORD], [{**RESULT, "value": {"A": 3}}])
    write(tmp_path / "unreadable", "CREATE NONSENSE;", [RECORD], [RESULT])
    (write(tmp_path / "crashes", COPY, [RECORD]) / "output.json").write_text("[]")
    accepted = write(tmp_path / "accepted", COPY, [RECORD])
    (accepted / "error.txt").write_text("")
    other = write(tmp_path / "other", f"{STREAM} CREATE STREAM o AS SELECT b FROM s;")
    (other / "error.txt").write_text("Line: 1, Col: 9: SELECT column 'C' cannot be resolved")
    early = write(tmp_path / "early", f"CREATE STREAM o AS SELECT * FROM s; {STREAM}")
    (early / "error.txt").write_text("")
    result = CliRunner().invoke(app, ["test", str(tmp_path), "--json"])
    told = {line["case"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert 1 == result.exit_code
    assert {"good"} == {name for name, line in told.items() if line["passed"]}
    assert {"case": "good", "passed": True, "error": None} == told["good"]
    assert '"A": 3' in told["wrong"]["error"] and '"A": 2' in told["wrong"]["error"]
    assert "topic O: record 1 differs" in told["wrong"]["error"]
    assert "NONSENSE" in told["unreadable"]["error"]
    assert "not of the format" in told["crashes"]["error"]
    assert "no statement is refused" == told["accepted"]["error"]
    assert "not the last one" in told["early"]["error"]
    assert "does not say" in told["other"]["error"] and "SELECT column 'B'" in told["other"]["error"]


def test_the_command_takes_three_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "case", COPY, [RECORD], [RESULT])
    files = ["-s", folder / "statements.sql", "-i", folder / "input.json", "-o", folder / "output.json"]
    result = CliRunner().invoke(app, ["test", *map(str, files)])
    assert (0, "passed  statements") == (result.exit_code, result.stdout.strip())


def test_the_plugin_collects_folders_and_shows_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "good", COPY, [RECORD], [RESULT])
    write(tmp_path / "wrong", COPY, [RECORD], [{**RESULT, "key": 7}])
    write(tmp_path / "no_case", COPY, [RECORD])
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:rollforward", f"--rootdir={tmp_path}", "-c", "/dev/null"]
    status = pytest.main([*options, str(tmp_path)], plugins=[_plugin()])
    shown = capsys.readouterr().out
    assert pytest.ExitCode.TESTS_FAILED == status
    assert "1 failed, 1 passed" in shown
    assert "topic O: record 1 differs" in shown


def _plugin() -> object:
    from ops import pytest_plugin

    return pytest_plugin
