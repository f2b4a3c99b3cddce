"""The session's own statements, the shell typed into as a person would, and what machines get."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from ops.cli.output import answer
from ops.cli.sql_output import run_script, show, show_json
from ops.cli.sql_shell import SqlCompleter, run_shell
from pipelines.console.result import Result
from pipelines.console.session import Session
from pipelines.sql import Parsed, SqlError, parse_statement, print_tree
from pipelines.sql.statements import is_complete
from statestore.errors import InvalidInput


class Recorder:
    """An executor that answers with the statement and the session's properties, and refuses DROP."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def execute(self, parsed: Parsed, properties: dict[str, str]) -> Result:
        text = print_tree(parsed.statement)
        if text.startswith("DROP"):
            raise InvalidInput("name is in use", name="x", hint="terminate its queries")
        self.executed.append(text)
        return Result("done", ("statement", "isolation"), [(text, properties.get("isolation.level"))])

    def names(self) -> tuple[str, ...]:
        return ("ORDERS", "CSAS_ORDERS")


@pytest.fixture
def session() -> Session:
    return Session(Recorder())


def typed(session: Session, tmp_path: Path, keys: str) -> None:
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        run_shell(session, tmp_path / "home" / "history", input=pipe, output=DummyOutput())


def executed(session: Session) -> list[str]:
    assert isinstance(session.executor, Recorder)
    return session.executor.executed


class TestShell:
    def test_statements_run_when_their_semicolon_is_typed(
        self, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        typed(session, tmp_path, "show\rstreams; show tables;\rnope;\rdrop table x;\rselect a -- ;\rfrom t;\rexit\r")
        assert ["SHOW STREAMS", "SHOW TABLES", "SELECT A FROM T"] == executed(session)
        shown = capsys.readouterr().out
        assert "line 1, column 1: expected a statement, found NOPE" in shown
        assert "hint: terminate its queries" in shown

    def test_a_dropped_line_and_the_end_of_input(self, session: Session, tmp_path: Path) -> None:
        typed(session, tmp_path, "drop table\r\x03show streams;\r\x04")
        assert ["SHOW STREAMS"] == executed(session)

    def test_history_is_kept_for_its_owner_alone(self, session: Session, tmp_path: Path) -> None:
        typed(session, tmp_path, "show streams;\rexit\r")
        history = tmp_path / "home" / "history"
        assert "show streams;" in history.read_text()
        assert 0o600 == history.stat().st_mode & 0o777

    def test_names_and_words_are_completed(self, session: Session) -> None:
        def words(text: str) -> list[str]:
            return [c.text for c in SqlCompleter(session).get_completions(Document(text), CompleteEvent())]

        assert ["ORDERS", "OR", "ORDER"] == words("SELECT * FROM or")
        assert ["isolation.level"] == words("SET 'iso")
        assert [] == words("SELECT ")


class TestSession:
    def test_properties_reach_the_executor_until_unset(self, session: Session) -> None:
        script = "SET 'isolation.level' = 'read_uncommitted'; SHOW STREAMS; UNSET 'isolation.level'; SHOW STREAMS;"
        answers = [result for _, result in session.run(script)]
        assert ["read_uncommitted", None] == [next(iter(answers[n].rows))[1] for n in (1, 3)]

    def test_settings_of_later_statements_are_kept_as_they_are_written(self, session: Session) -> None:
        wanted = {
            "ksql.output.topic.name.prefix": "Shop-",
            "ksql.functions.collect_set.limit": "10",
            "ksql.persistence.wrap.single.values": "false",
            "ksql.persistence.default.format.key": "json",
        }
        list(session.run("".join(f"SET '{name}' = '{value}';" for name, value in wanted.items())))
        assert wanted == session.properties
        list(session.run("".join(f"UNSET '{name}';" for name in wanted)))
        assert {} == session.properties

    @pytest.mark.parametrize(
        ("text", "hint"),
        [
            ("SET 'isolation.levle' = 'x';", "did you mean isolation.level?"),
            ("SET 'isolation.level' = 'x';", "allowed: read_committed, read_uncommitted"),
            ("SET 'ksql.persistence.default.format.value' = 'AVRO';", "allowed: json, delimited"),
            ("SET 'ksql.output.topic.name.prefix' = 'a/b';", "allowed: letters"),
            ("SET 'ksql.functions.collect_list.limit' = '0';", "allowed: a number above 0"),
            ("SET 'ksql.persistence.wrap.single.values' = 'maybe';", "allowed: true, false"),
        ],
    )
    def test_unknown_properties_and_values_are_refused(self, session: Session, text: str, hint: str) -> None:
        with pytest.raises(InvalidInput, match=hint.replace("?", r"\?")):
            list(session.run(text))

    def test_variables_are_shown(self, session: Session) -> None:
        answers = [result for _, result in session.run("DEFINE a = 'b'; SHOW VARIABLES; SHOW PROPERTIES;")]
        assert [("a", "b")] == list(answers[1].rows)
        assert "isolation.level" == next(iter(answers[2].rows))[0]

    def test_a_script_runs_up_to_its_first_error(self, session: Session, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SqlError):
            run_script(session, "SHOW STREAMS; NOPE; SHOW TABLES;", as_json=True)
        assert ["SHOW STREAMS"] == executed(session)
        assert [
            {"statement": "SHOW STREAMS", "message": "done", "rows": [{"statement": "SHOW STREAMS", "isolation": None}]}
        ] == [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_values_of_all_types_are_json_as_the_results_in_kafka_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "sum": Decimal("12345678901234567890.10"),
        "small": Decimal("0.00"),
        "bytes": b"\x00\xff",
        "doubles": [math.nan, math.inf, -math.inf, 1.5],
        "map": [("é", None)],
        "kept": {"1": True},
    }
    expected = (
        '{"sum":12345678901234567890.10,"small":0.00,"bytes":"AP8=","doubles":["NaN","Infinity","-Infinity",1.5],'
        '"map":[["é",null]],"kept":{"1":true}}'
    )
    show_json(parse_statement("SHOW STREAMS"), Result(columns=tuple(row), rows=[tuple(row.values())]))
    answer(row)
    shown = capsys.readouterr().out.splitlines()
    assert [f'{{"statement":"SHOW STREAMS","rows":[{expected}]}}', expected] == shown


def test_lists_and_maps_stand_in_a_table_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(Result(columns=("xs", "m"), rows=[([Decimal("1.10"), None], {"a": "é"})]))
    assert ["[1.10,null]", '{"a":"é"}'] == capsys.readouterr().out.splitlines()[2].split()


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("-- x", True),
        ("show", False),
        ("show;", True),
        ("a ';", False),
        ("a; b", False),
        ("a /* ; ", False),
    ],
)
def test_a_text_is_complete_when_a_semicolon_ends_it(text: str, complete: bool) -> None:
    assert complete == is_complete(text)
