"""The table of docs/store-cases.md, made from the marks of the tests: `python -m tests.support.cases` writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "store-cases.md"
# Prefix, how many, what they are about.
SECTIONS = (
    ("KV", 66, "Key-value stores, LRU map, iterators, changelog"),
    ("TS", 17, "Timestamped key-value stores"),
    ("W", 56, "Window stores, their segments and their changelog"),
    ("TW", 4, "Timestamped window stores"),
    ("S", 29, "Session stores"),
    ("V", 33, "Versioned stores"),
    ("C", 29, "Record cache"),
    ("B", 20, "Suppression buffer, list store, grace"),
    ("CP", 11, "Checkpoints and the task's folder"),
    ("TX", 32, "Transactions, isolation, commits that fail"),
)
BESIDES = {"W": ("W-36b",)}
DO_NOT_APPLY = {
    "KV-58": "About replacing the Java object that configures RocksDB's tables. Nothing of RocksDB's configuration is "
    "given out here: `RocksConfig` has numbers.",
    "CP-05": "About the lines of the checkpoint file and how it is replaced. There is no such file: what a store stands at is "
    "an entry of the task's database, written in the same atomic step as the store's data; CP-11 has its form.",
    "W-49": "About segment folders with the names of older releases. Segments are column families here and have had "
    "one form of name; another layout is refused by its version.",
}
_HEAD = """# The behaviours of state stores, and the tests that show them

What Kafka Streams' own stores do, as {count} cases with an id each; the test's name says what it is. {tested} of them
are tested, {rest} do not apply. Tests carry the ids as `@pytest.mark.case`, this file is made from them
(`python -m tests.support.cases`), and a test compares the two.
"""


def every_id() -> dict[str, list[str]]:
    """The ids of each section, in order."""
    found = {}
    for prefix, count, _ in SECTIONS:
        ids = [f"{prefix}-{number:02}" for number in range(1, count + 1)] + list(BESIDES.get(prefix, ()))
        found[prefix] = sorted(ids)
    return found


def marked() -> dict[str, list[tuple[str, str]]]:
    """Tests by case id: file below tests/, and test name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(file.relative_to(ROOT / "tests"))
        for test, ids in _marks(ast.parse(file.read_text())):
            for one in ids:
                found.setdefault(one, []).append((name, test))
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Tests and the ids on them; a class's ids are on each of its tests."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, _ids(node)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name.startswith("test_"):
                    yield method.name, _ids(method) + _ids(node)


def _ids(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
    return [
        argument.value
        for call in calls
        if ast.unparse(call.func) == "pytest.mark.case"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def table() -> str:
    """The whole file."""
    tests, ids = marked(), every_id()
    count = sum(map(len, ids.values()))
    text = [_HEAD.format(count=count, tested=count - len(DO_NOT_APPLY), rest=len(DO_NOT_APPLY))]
    for prefix, _, about in SECTIONS:
        text += [f"\n## {about}\n", "| id | test |", "|---|---|"]
        text += [f"| {one} | {_shown(one, tests)} |" for one in ids[prefix]]
    return "\n".join(text) + "\n"


def _shown(one: str, tests: dict[str, list[tuple[str, str]]]) -> str:
    if one in DO_NOT_APPLY:
        return DO_NOT_APPLY[one]
    shown = [f"{test.removeprefix('test_').replace('_', ' ')} (`{file}`)" for file, test in tests.get(one, [])]
    return "<br>".join(shown) or "**no test**"


if __name__ == "__main__":
    TABLE.write_text(table())
