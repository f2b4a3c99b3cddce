"""docs/store-cases.md says of every case which tests show it, or why it does not apply."""

from __future__ import annotations

from tests.support.cases import DO_NOT_APPLY, TABLE, every_id, marked, table


def test_every_case_is_tested_or_does_not_apply() -> None:
    expected = {one for ids in every_id().values() for one in ids}
    assert 298 == len(expected)
    assert expected - set(DO_NOT_APPLY) == set(marked())


def test_at_most_a_handful_does_not_apply() -> None:
    assert 270 <= 298 - len(DO_NOT_APPLY)


def test_the_table_is_made_from_the_marks_as_they_are() -> None:
    assert table() == TABLE.read_text(), "write it anew: python -m tests.support.cases"
