"""The command line without a broker: help, usage, errors, what it says where nothing runs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from typer.testing import CliRunner, Result

from infra.errors import StartFailed
from ops.cli import guard, lifecycle, stack
from ops.cli.main import app
from pipelines.registry import Registry
from pipelines.sql import SqlError
from statestore.errors import InvalidConfig, Unavailable
from tests.support.metastore import LocalLog

COMMANDS = [
    "up",
    "status",
    "down",
    "deploy",
    "start",
    "stop",
    "run",
    "logs",
    "query",
    "recover",
    "demo",
    "drop",
    "drift",
    "serve",
    "top",
    "doctor",
    "incidents",
    "acls",
]
# Commands that name a pipeline or a store which nobody has deployed.
UNKNOWN = [
    ["start", "nope"],
    ["stop", "nope"],
    ["recover", "nope"],
    ["recover", "nope", "--dry-run"],
    ["query", "nope", "--all"],
    ["drop", "nope"],
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, without configuration."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "ROLLFORWARD_HOME",
        "ROLLFORWARD_BOOTSTRAP_SERVERS",
        "ROLLFORWARD_METASTORE_URL",
        "ROLLFORWARD_CONFIG",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".rollforward"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), prog_name="rollforward")


def assert_clean(result: Result, code: int) -> None:
    """The exit code is the one expected, and no traceback was shown."""
    assert code == result.exit_code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output


# Help.


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_a_summary_and_an_example(command: str) -> None:
    result = call(command, "--help")
    assert_clean(result, 0)
    usage, _, rest = result.stdout.strip().partition("\n")
    assert f"rollforward {command}" in usage
    assert f"rollforward {command}" in rest


def test_root_help_lists_every_command() -> None:
    result = call("--help")
    assert_clean(result, 0)
    assert COMMANDS == [name for name in COMMANDS if f" {name} " in result.stdout]


def test_help_loads_neither_spark_nor_kafka_nor_sql() -> None:
    heavy = "{'pyspark', 'dagster', 'confluent_kafka', 'sqlglot', 'sqlalchemy', 'pandas', 'pyarrow', 'rocksdict'}"
    code = f"import sys, ops.cli.main; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "[]\n" == loaded


# Errors.


@pytest.mark.parametrize("words", UNKNOWN, ids=" ".join)
def test_an_unknown_name_is_one_error_line(home: Path, words: list[str]) -> None:
    result = call(*words)
    assert_clean(result, 1)
    assert "" == result.stdout
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert 1 == len(errors)
    assert "nope" in errors[0]


@pytest.mark.parametrize("words", UNKNOWN, ids=" ".join)
def test_an_error_with_json_is_one_object_on_stdout(home: Path, words: list[str]) -> None:
    result = call(*words, "--json")
    assert_clean(result, 1)
    told = json.loads(result.stdout)
    assert ["error"] == list(told)
    assert {"kind", "message", "hint"} == set(told["error"])
    assert "InvalidInput" == told["error"]["kind"]
    assert "hint" not in told["error"]["message"]


@pytest.mark.parametrize("words", [["run", "nope"], ["deploy", "a.sql", "--pipeline", "p"]], ids=" ".join)
def test_without_kafka_the_next_step_is_named(home: Path, words: list[str]) -> None:
    Path("a.sql").write_text(SQL)
    result = call(*words)
    assert_clean(result, 1)
    assert "no Kafka is configured" in result.stderr
    assert "rollforward up" in result.stderr


def test_statements_that_are_not_utf_8_are_an_error_line(home: Path) -> None:
    Path("a.sql").write_bytes(b"SHOW STREAMS; -- caf\xe9")
    result = call("sql", "-f", "a.sql")
    assert_clean(result, 1)
    assert "file is not UTF-8 text file=`a.sql`" in result.stderr


def test_a_database_without_a_driver_is_an_error_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFORWARD_METASTORE_URL", "postgresql+asyncpg://here/rollforward")
    result = call("recover", "p")
    assert_clean(result, 1)
    assert "driver of the database is not installed driver=`postgresql+asyncpg`" in result.stderr
    assert "hint: install asyncpg" in result.stderr


def test_a_named_configuration_that_is_not_there_is_an_error_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFORWARD_CONFIG", "gone.toml")
    result = call("status")
    assert_clean(result, 1)
    assert "configuration file does not exist file=`gone.toml`" in result.stderr


def test_an_unreachable_broker_is_an_error_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("ROLLFORWARD_REQUEST_TIMEOUT_S", "2")
    Path("a.sql").write_text(SQL)
    result = call("deploy", "a.sql", "--pipeline", "p")
    assert_clean(result, 1)
    assert "127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("ROLLFORWARD_TASKS", "none"), ("ROLLFORWARD_KAFKA", "{not json"), ("ROLLFORWARD_TASKS", "0")],
)
def test_a_wrong_variable_is_named(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    result = call("status", "--json")
    assert_clean(result, 1)
    told = json.loads(result.stdout)["error"]
    assert "InvalidConfig" == told["kind"]
    assert name.removeprefix("ROLLFORWARD_").lower() in told["message"]


def test_a_file_that_is_not_toml_is_named(home: Path) -> None:
    Path("rollforward.toml").write_text("tasks = = 4")
    result = call("status")
    assert_clean(result, 1)
    assert "rollforward.toml" in result.stderr


def test_a_metastore_that_does_not_answer_is_an_error_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFORWARD_METASTORE_URL", "sqlite:////proc/nowhere/metastore.db")
    result = call("start", "p")
    assert_clean(result, 1)


def test_ctrl_c_ends_with_130(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stack, "settings_of_here", interrupted)
    result = call("status")
    assert_clean(result, 130)
    assert "interrupted\n" == result.stderr


def test_ctrl_c_at_a_question_ends_with_130(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer._click.termui.echo", interrupted)
    result = ask(home, monkeypatch, "")
    assert_clean(result, 130)
    assert "interrupted\n" == result.stderr


def test_a_no_to_a_question_ends_with_1(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ask(home, monkeypatch, "n\n")
    assert_clean(result, 1)
    assert "Aborted" in result.stderr


def ask(home: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> Result:
    """A command that asks before it begins."""
    _register(home)
    monkeypatch.setattr("ops.reset.reset_all", lambda *_, **__: [])
    return CliRunner().invoke(app, ["reset", "p", "--to", "earliest"], input=answer, prog_name="rollforward")


def test_an_unexpected_error_keeps_its_traceback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(stack, "settings_of_here", broken)
    assert isinstance(call("status").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            Unavailable("kafka does not answer", broker="b:1", hint="start it"),
            {"kind": "Unavailable", "message": "kafka does not answer broker=`b:1`", "hint": "start it"},
        ),
        (
            InvalidConfig("tasks are wrong"),
            {"kind": "InvalidConfig", "message": "tasks are wrong", "hint": ""},
        ),
        (
            StartFailed("kafka ended", code=1, hint="look at the log"),
            {"kind": "StartFailed", "message": "kafka ended code=`1`", "hint": "look at the log"},
        ),
        (
            SqlError("no such column", 1, 8, "SELECT x", "did you mean y?"),
            {
                "kind": "SqlError",
                "message": "line 1, column 8: no such column\n  1 | SELECT x\n    |        ^",
                "hint": "did you mean y?",
            },
        ),
        (
            FileNotFoundError(2, "No such file", "a"),
            {"kind": "FileNotFoundError", "message": "[Errno 2] No such file: 'a'", "hint": ""},
        ),
        (ValueError("a bug"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_expected_errors_are_described(error: Exception, expected: dict[str, str] | None) -> None:
    described = guard.describe(error)
    page = described.pop("runbook", "") if described else ""
    assert expected == described
    assert page in ("", f"docs/runbooks/{type(error).__name__}.md")


# Usage.

SQL = """CREATE STREAM s (a VARCHAR) WITH (kafka_topic = 's', value_format = 'json');
CREATE TABLE t AS SELECT a, COUNT(*) AS n FROM s GROUP BY a EMIT CHANGES;
"""


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--key", "a", "--all"],
        ["--from", "a"],
        ["--to", "a"],
        ["--key", "a", "--from", "a", "--to", "b"],
        ["--all", "--limit", "0"],
        ["--all", "--isolation", "serializable"],
    ],
    ids=" ".join,
)
def test_query_takes_exactly_one_way_of_choosing(home: Path, words: list[str]) -> None:
    assert_clean(call("query", "store", *words), 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reset", "p", "--json"], "give one of --to, --at and --offset"),
        (["query", "s", "--json"], "give"),
        (["query", "--json"], "Missing argument 'STORE'"),
        (["query", "s", "--json", "--bogus"], "No such option: --bogus"),
        (["nope", "--json"], "No such command 'nope'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_with_json_is_one_object_on_stdout(home: Path, words: list[str], message: str) -> None:
    result = call(*words)
    assert_clean(result, 2)
    told = json.loads(result.stdout)["error"]
    assert ("Usage", "") == (told["kind"], told["hint"])
    assert message in told["message"]
    assert "" == result.stderr


def test_wrong_usage_without_json_is_told_on_stderr(home: Path) -> None:
    result = call("query", "--key", "--json")
    assert_clean(result, 2)
    assert "" == result.stdout
    assert "Usage: " in result.stderr


@pytest.mark.parametrize(
    "words", [["absent.sql", "--pipeline", "p"], [".", "--pipeline", "p"], ["a.sql"]], ids=" ".join
)
def test_deploy_takes_a_file_and_a_name(home: Path, words: list[str]) -> None:
    Path("a.sql").write_text(SQL)
    assert_clean(call("deploy", *words), 2)


def test_deploy_refuses_a_file_that_is_not_text(home: Path) -> None:
    Path("a.sql").write_bytes(b"CREATE \xff")
    result = call("deploy", "a.sql", "--pipeline", "p")
    assert_clean(result, 1)
    assert "UTF-8" in result.stderr


def test_deploy_refuses_a_name_that_cannot_be_a_topic(home: Path) -> None:
    Path("a.sql").write_text(SQL)
    result = call("deploy", "a.sql", "--pipeline", "My-Pipeline")
    assert_clean(result, 1)
    assert "My-Pipeline" in result.stderr


def test_deploy_shows_where_the_sql_is_wrong(home: Path) -> None:
    Path("a.sql").write_text(SQL.replace("FROM s", "FROMM s"))
    result = call("deploy", "a.sql", "--pipeline", "p")
    assert_clean(result, 1)
    assert "line 2" in result.stderr
    assert "^" in result.stderr


# Nothing runs.


def test_status_without_a_stack_shows_it_and_makes_nothing(home: Path) -> None:
    result = call("status")
    assert_clean(result, 0)
    assert 4 == result.stdout.count("stopped")
    assert "rollforward up" in result.stdout
    assert not home.exists()


def test_status_without_a_stack_in_json(home: Path) -> None:
    result = call("status", "--json")
    assert_clean(result, 0)
    told = json.loads(result.stdout)
    assert {"stack", "bootstrap_servers", "pipelines"} == set(told)
    assert [] == told["pipelines"]
    assert {"stopped"} == {component["state"] for component in told["stack"]["components"]}


def test_down_without_a_stack_is_harmless(home: Path) -> None:
    result = call("down", "--json")
    assert_clean(result, 0)
    assert [] == json.loads(result.stdout)["stopped_pipelines"]


def test_status_shows_a_pipeline_that_was_never_started(home: Path) -> None:
    _register(home)
    assert [("p", "stopped", "never started")] == [
        (told["pipeline"], told["desired"], told["state"])
        for told in json.loads(call("status", "--json").stdout)["pipelines"]
    ]
    assert "never started" in call("status").stdout


def test_stopping_a_pipeline_that_does_not_run_says_so(home: Path) -> None:
    _register(home)
    assert {"pipeline": "p", "stopped": False} == json.loads(call("stop", "p", "--json").stdout)


def test_logs_of_a_pipeline_that_was_never_started_name_the_next_step(home: Path) -> None:
    _register(home)
    result = call("logs", "p")
    assert_clean(result, 1)
    assert "rollforward start p" in result.stderr


def test_logs_begin_with_the_last_lines(home: Path) -> None:
    _register(home)
    (home / "logs").mkdir()
    (home / "logs" / "p-driver.log").write_text("one\ntwo\nthree\n")
    assert "two\nthree\n" == call("logs", "p", "--lines", "2").stdout


def test_following_a_log_goes_on_when_it_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "p-driver.log"
    # Half a letter at the end: the log is not read again for it.
    log.write_bytes("one\ntwo\nthré".encode()[:-1])
    meanwhile = iter([lambda: None, lambda: log.write_text(""), lambda: log.write_text("four\n"), lambda: None])

    def sleep(_: float) -> None:
        step = next(meanwhile, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(lifecycle, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(KeyboardInterrupt):
        lifecycle._print_log(log, lines=2, follow=True)
    assert "two\nthr\ufffdfour\n" == capsys.readouterr().out


def test_a_run_without_a_terminal_logs_tracebacks_as_text() -> None:
    before = structlog.get_config()
    try:
        with redirect_stderr(io.StringIO()) as stderr:
            lifecycle._log_to_stderr()
            try:
                raise ZeroDivisionError("all of it")
            except ZeroDivisionError:
                structlog.get_logger().exception("failed")
    finally:
        structlog.configure(**before)
    assert json.loads(stderr.getvalue())["exception"].endswith("ZeroDivisionError: all of it")


def test_secrets_of_kafka_are_not_printed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("ROLLFORWARD_REQUEST_TIMEOUT_S", "1")
    monkeypatch.setenv("ROLLFORWARD_KAFKA", '{"sasl.password": "hunter2", "security.protocol": "nonsense"}')
    _register(home)
    Path("a.sql").write_text(SQL)
    for words in (
        ["status"],
        ["deploy", "a.sql", "--pipeline", "q"],
        ["recover", "p", "--dry-run"],
        ["query", "x", "--all"],
    ):
        assert "hunter2" not in call(*words).output


def _register(home: Path) -> None:
    registry = Registry(f"sqlite:///{home / 'metastore.db'}")
    LocalLog(registry.engine).define("p", sql=SQL)
    registry.close()
