"""One case: a folder, or three files, with statements and records in and either records out or a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines.testing.records import Record, read_records
from statestore.errors import InvalidInput

STATEMENTS, INPUT, OUTPUT, ERROR = "statements.sql", "input.json", "output.json", "error.txt"


@dataclass(frozen=True)
class Case:
    """`error` is what the refusal of the last statement must say, None where records are expected."""

    name: str
    statements: str
    inputs: list[Record]
    outputs: list[Record]
    error: str | None = None


def read_files(statements: Path, inputs: Path, outputs: Path) -> Case:
    """A case of three files. Raises `InvalidInput`."""
    records = read_records(inputs, "inputs"), read_records(outputs, "outputs")
    return Case(statements.stem, _text(statements), *records)


def read_folder(folder: Path) -> Case:
    """The case of a folder. Raises `InvalidInput`."""
    statements = _text(folder / STATEMENTS)
    inputs = read_records(folder / INPUT, "inputs") if (folder / INPUT).exists() else []
    if (folder / ERROR).exists():
        return Case(folder.name, statements, inputs, [], _text(folder / ERROR).strip())
    if not (folder / OUTPUT).exists():
        raise InvalidInput("case expects nothing", folder=folder, hint=f"add {OUTPUT} or {ERROR}")
    return Case(folder.name, statements, inputs, read_records(folder / OUTPUT, "outputs"))


def case_folders(root: Path) -> list[Path]:
    """Every subfolder that is a case, sorted. Raises `InvalidInput` if there is none."""
    if not root.is_dir():
        raise InvalidInput("folder does not exist", folder=root)
    found = sorted(path for path in root.iterdir() if path.is_dir())
    if not found:
        raise InvalidInput("folder has no cases", folder=root, hint=f"a case is a subfolder with {STATEMENTS}")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise InvalidInput("file cannot be read", file=path, reason=str(error)) from error
