"""A file of statements as a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.plan import Query, Source
from pipelines.sql.error import Refusal, locate, nearest
from pipelines.sql.names import PLAN_NAME, Name
from pipelines.sql.script import Cursor, read_statements
from pipelines.sql.stream import read_stream
from pipelines.sql.table import Defined, read_table

TOPIC_LENGTH_MAX = 249
CHANGELOG_SUFFIX = "-changelog"
OTHER_STATEMENTS = {
    "ALTER": "ALTER is not supported",
    "DEFINE": "variables are not supported",
    "DROP": "DROP is not supported: a statement that is gone from the file is dropped",
    "INSERT": "INSERT is not supported",
    "PRINT": "PRINT is not supported here",
    "SELECT": "a query needs CREATE TABLE … AS before it",
    "SET": "SET is not supported",
    "WITH": "subqueries are not supported",
}


@dataclass(frozen=True)
class Pipeline:
    """Streams and queries that are deployed together, in the order of the text."""

    name: str
    sources: tuple[Source, ...]
    queries: tuple[Query, ...]


def parse_pipeline(text: str, *, pipeline: str, default_tasks: int = 4) -> Pipeline:
    """The pipeline that the text defines.

    `default_tasks` is the number of state partitions of each query, and of its result topic unless the statement
    says otherwise. Raises SqlError, and nothing else, for any text that is not a pipeline; ValueError if `pipeline`
    is not of `[a-z0-9_]+` or `default_tasks` is below 1.
    """
    if not PLAN_NAME.fullmatch(pipeline):
        raise ValueError(f"a pipeline's name is of a-z, 0-9 and _, pipeline={pipeline!r}")
    if default_tasks < 1:
        raise ValueError(f"a query has at least one task, default_tasks={default_tasks}")
    try:
        return _Reader(pipeline, default_tasks).read(text)
    except Refusal as refusal:
        error = locate(text, refusal)
    raise error


class _Reader:
    """Reads statement after statement and remembers what they define."""

    def __init__(self, pipeline: str, default_tasks: int) -> None:
        self.pipeline = pipeline
        self.default_tasks = default_tasks
        self.sources: dict[str, Source] = {}
        self.queries: list[Query] = []
        self.tables: list[str] = []

    def read(self, text: str) -> Pipeline:
        for cursor in read_statements(text):
            self._statement(cursor)
        if not self.queries:
            raise Refusal(0, "the text has no query", "add CREATE TABLE … AS SELECT … EMIT CHANGES;")
        return Pipeline(self.pipeline, tuple(self.sources.values()), tuple(self.queries))

    def _statement(self, cursor: Cursor) -> None:
        at = cursor.at
        if not cursor.accept("CREATE"):
            word = cursor.word()
            hint = nearest(word, ["CREATE"]) if word else None
            raise Refusal(at, OTHER_STATEMENTS.get(word, f"expected CREATE, found {cursor.shown}"), hint)
        for word, reason in (
            ("OR", "CREATE OR REPLACE is not supported: the file is the definition"),
            ("SOURCE", "SOURCE is not supported"),
            ("TYPE", "CREATE TYPE is not supported"),
            ("SINK", "connectors are not supported"),
        ):
            if cursor.word() == word:
                raise Refusal(cursor.at, reason)
        kind = cursor.word()
        if kind not in ("STREAM", "TABLE"):
            raise Refusal(
                cursor.at, f"expected STREAM or TABLE, found {cursor.shown}", nearest(kind, ["STREAM", "TABLE"])
            )
        cursor.index += 1
        if cursor.word() == "IF" and cursor.word(1) == "NOT":
            raise Refusal(cursor.at, "IF NOT EXISTS is not supported: the file is the definition")
        name = cursor.name("a name")
        if name.text in self.sources or name.text in self.tables:
            raise Refusal(name.at, f"{name.text} is defined twice")
        if kind == "STREAM":
            self.sources[name.text] = read_stream(cursor, name)
        else:
            self._table(cursor, name)

    def _table(self, cursor: Cursor, name: Name) -> None:
        query_name = name.text.lower()
        if not PLAN_NAME.fullmatch(query_name):
            raise Refusal(name.at, f"a table's name is of letters, digits and _, not {name.text[:50]}")
        if any(query.name == query_name for query in self.queries):
            raise Refusal(name.at, f"{name.text} is defined twice", "names that differ only in case are one name")
        if len(f"{self.pipeline}-{query_name}{CHANGELOG_SUFFIX}") > TOPIC_LENGTH_MAX:
            raise Refusal(name.at, f"the name is too long: its topics would exceed {TOPIC_LENGTH_MAX} characters")
        defined = Defined(self.sources, tuple(self.tables))
        query = read_table(cursor, name, defined, pipeline=self.pipeline, default_tasks=self.default_tasks)
        self._check_topic(query, name.at)
        self.queries.append(query)
        self.tables.append(name.text)

    def _check_topic(self, query: Query, at: int) -> None:
        """A result topic is nobody else's: two writers would mix their records, a reader would feed on itself."""
        topic = query.output_topic
        if topic.startswith("_"):
            raise Refusal(at, f"topic '{topic}' is reserved", "result topics do not start with _")
        for other in self.queries:
            if topic == other.output_topic:
                raise Refusal(at, f"topic '{topic}' is already the result of {other.name}")
        if topic in (source.topic for source in self.sources.values()):
            raise Refusal(at, f"topic '{topic}' is a stream of this pipeline", "a query must not feed itself")
        for name in (*(other.name for other in self.queries), query.name):
            for suffix in (CHANGELOG_SUFFIX, "-batches"):
                if topic == f"{self.pipeline}-{name}{suffix}":
                    raise Refusal(at, f"topic '{topic}' belongs to the state of {name}")
