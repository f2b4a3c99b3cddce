"""The interactive shell: history in a file, completion of words and names, statements over several lines.

Ctrl-C drops the line, Ctrl-D or `exit` ends. An error is shown and the shell goes on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output

from ops.cli.guard import describe
from ops.cli.output import say
from ops.cli.sql_output import show
from pipelines.console.session import PROPERTIES, Session
from pipelines.sql.functions import AGGREGATES, SCALARS
from pipelines.sql.names import RESERVED
from pipelines.sql.read_statement import READERS, SHOWN
from pipelines.sql.statements import is_complete

MORE_WORDS = ("CHANGES", "EXTENDED", "IF EXISTS", "IF NOT EXISTS", "DELETE TOPIC", "KEY", "PRIMARY KEY", "REPLACE")
_WORD = re.compile(r"[A-Za-z0-9_.]+$")


class SqlCompleter(Completer):
    """Words of the language, functions, and the names that exist at this moment."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._words = sorted({*RESERVED, *READERS, *SHOWN, *MORE_WORDS, *SCALARS, *AGGREGATES, *PROPERTIES})

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Whatever begins with the word before the cursor, names first."""
        begun = _WORD.search(document.text_before_cursor)
        if begun is None:
            return
        start = begun.group().upper()
        for word in (*self._session.executor.names(), *self._words):
            if word.upper().startswith(start):
                yield Completion(word, start_position=-len(start))


def run_shell(session: Session, history: Path, *, input: Input | None = None, output: Output | None = None) -> None:
    """Read and run statements until the end of the input."""
    history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Statements may hold values that are nobody else's affair.
    os.close(os.open(history, os.O_CREAT | os.O_APPEND, 0o600))
    prompt: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)),
        completer=SqlCompleter(session),
        complete_while_typing=False,
        input=input,
        output=output,
    )
    say("Statements end with a semicolon. SHOW STREAMS; SHOW TABLES; SHOW QUERIES; exit")
    for text in _statements(prompt):
        try:
            for _, result in session.run(text):
                show(result, paged=True)
        except KeyboardInterrupt:
            say("interrupted")
        except Exception as error:
            told = describe(error)
            if told is None:
                raise
            say(f"error: {told['message']}")
            if told["hint"]:
                say(f"  hint: {told['hint']}")


def _statements(prompt: PromptSession[str]) -> Iterator[str]:
    """Texts that end with a semicolon, typed over any number of lines."""
    text = ""
    while True:
        try:
            line = prompt.prompt("sql> " if not text else "...> ")
        except KeyboardInterrupt:
            text = ""
            continue
        except EOFError:
            return
        if not text and line.strip().rstrip(";").lower() in ("exit", "quit"):
            return
        text = f"{text}\n{line}" if text else line
        if is_complete(text):
            yield text
            text = ""
