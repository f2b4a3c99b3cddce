"""The structured log outlives a stderr that was lent to it."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest
import structlog

from statestore import logs


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_closed_stderr_does_not_hold_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    lent = io.StringIO()
    with redirect_stderr(lent):
        logs.json_to_stderr()
        structlog.get_logger().info("within")
    assert "within" == json.loads(lent.getvalue())["event"]
    lent.close()
    structlog.get_logger().info("afterwards")
    line = json.loads(capsys.readouterr().err)
    assert ("afterwards", "info") == (line["event"], line["level"])


def test_an_unexpected_error_has_its_traceback_and_no_local_variable(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(token: str) -> None:
        raise ZeroDivisionError("all of it")

    logs.json_to_stderr()
    try:
        fail("hun" + "ter2")
    except ZeroDivisionError:
        structlog.get_logger().exception("failed")
    line = json.loads(capsys.readouterr().err)
    assert "exc_info" not in line
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("\nZeroDivisionError: all of it")
    assert "hunter2" not in line["exception"]


def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115 - closing it fails, too
    with redirect_stderr(full):
        with pytest.raises(OSError, match="No space left"):
            print("anything", file=full, flush=True)
        logs.json_to_stderr()
        for _ in range(1_000):
            structlog.get_logger().error("something happened")
    with pytest.raises(OSError, match="No space left"):
        full.close()
