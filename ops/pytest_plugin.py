"""A pytest plugin: every folder with statements.sql and what is expected of it is a test.

Collected below the paths that pytest is given, as `folder/statements.sql`. `--no-rollforward` turns it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

STATEMENTS = "statements.sql"
EXPECTED = ("output.json", "error.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    group = parser.getgroup("rollforward")
    group.addoption("--no-rollforward", action="store_true", help="do not collect folders with statements.sql as tests")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A case's folder, known by its statements."""
    if file_path.name != STATEMENTS or parent.config.getoption("--no-rollforward"):
        return None
    if not any((file_path.parent / name).exists() for name in EXPECTED):
        return None
    collector: pytest.Collector = CaseFile.from_parent(parent, path=file_path)
    return collector


class CaseFile(pytest.File):
    """The statements of a case."""

    def collect(self) -> Iterator[pytest.Item]:
        """The one test."""
        yield CaseItem.from_parent(self, name=self.path.parent.name)


class CaseFailed(Exception):
    """The case's error."""


class CaseItem(pytest.Item):
    """One case."""

    def runtest(self) -> None:
        """Run it; all cases of the process share a Spark session."""
        from ops.testing import session
        from pipelines.testing.case import read_folder
        from pipelines.testing.run import run_case

        outcome = run_case(lambda: read_folder(self.path.parent), self.name, session)
        if outcome.error is not None:
            raise CaseFailed(outcome.error)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """The difference alone; a traceback says nothing of a case."""
        if isinstance(excinfo.value, CaseFailed):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the case is."""
        return self.path, 0, f"case {self.name}"
