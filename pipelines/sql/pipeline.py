"""A file of statements as a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines import names
from pipelines.plan import Query, Source
from pipelines.sql.catalogue import Relations
from pipelines.sql.define import define
from pipelines.sql.error import Refusal, locate, nearest
from pipelines.sql.named_types import OWN, with_types
from pipelines.sql.names import PLAN_NAME
from pipelines.sql.planner import Planned, plan_create, plan_insert, plan_name
from pipelines.sql.printer import print_tree
from pipelines.sql.read_statement import read_statement
from pipelines.sql.script import Cursor, read_statements
from pipelines.sql.tree import CreateAs, CreateSource, CreateType, InsertSelect
from pipelines.sql.types import named_type

TOPIC_LENGTH_MAX = 249
OTHER_STATEMENTS = {
    "ALTER": "ALTER is not supported",
    "DEFINE": "variables are not supported",
    "DROP": "DROP is not supported in a file: use `rollforward drop`, or DROP in `rollforward sql`",
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
        self.relations = Relations()
        self.sources: list[Source] = []
        self.queries: list[Query] = []
        self.places: list[int] = []
        self.types: dict[str, str] = {}

    def read(self, text: str) -> Pipeline:
        for cursor in read_statements(text):
            self._statement(cursor)
        if not self.queries:
            raise Refusal(0, "the text has no query", "add CREATE TABLE … AS SELECT … EMIT CHANGES;")
        self._check_own_topics()
        return Pipeline(self.pipeline, tuple(self.sources), tuple(self.queries))

    def _statement(self, cursor: Cursor) -> None:
        _check_words(cursor)
        statement = with_types(read_statement(cursor), self.types)
        if isinstance(statement, InsertSelect):
            number = sum(query.name.startswith("insert_") for query in self.queries)
            self._query(plan_insert(statement, self.relations, name=f"insert_{number}"), statement.name.at)
            return
        if isinstance(statement, CreateType):
            self._type(statement)
            return
        if not isinstance(statement, CreateSource | CreateAs):
            raise Refusal(statement.at, "only CREATE and INSERT INTO … SELECT define a pipeline")
        name = statement.name
        if self.relations.find(name.text) is not None:
            raise Refusal(name.at, f"{name.text} is defined twice")
        if isinstance(statement, CreateAs):
            self._create_as(statement)
        else:
            relation = define(statement)
            self.relations.add(relation)
            self.sources.append(relation.source)

    def _type(self, statement: CreateType) -> None:
        name = statement.name
        if name.text in self.types or name.text in OWN:
            raise Refusal(name.at, f"{name.text} is defined twice")
        named_type(statement.type)
        self.types[name.text] = print_tree(statement.type)

    def _create_as(self, statement: CreateAs) -> None:
        name = statement.name
        query_name = plan_name(name)
        if any(query.name == query_name for query in self.queries):
            raise Refusal(name.at, f"{name.text} is defined twice", "names that differ only in case are one name")
        if len(names.changelog_topic(self.pipeline, query_name)) > TOPIC_LENGTH_MAX:
            raise Refusal(name.at, f"the name is too long: its topics would exceed {TOPIC_LENGTH_MAX} characters")
        topic = f"{self.pipeline}-{query_name}"
        planned = plan_create(statement, self.relations, topic=topic, tasks=self.default_tasks)
        self._check_topic(planned.query, name.at)
        self._query(planned, name.at)
        self.relations.add(planned.relation)

    def _query(self, planned: Planned, at: int) -> None:
        if planned.query.source.topic == planned.query.output_topic:
            raise Refusal(at, f"topic '{planned.query.output_topic}' is the query's own source")
        if any(query.name == planned.query.name for query in self.queries):
            raise Refusal(at, f"two queries are called {planned.query.name}")
        self.queries.append(planned.query)
        self.places.append(at)

    def _check_topic(self, query: Query, at: int) -> None:
        """A result topic is nobody else's: two writers would mix their records, a reader would feed on itself."""
        topic = query.output_topic
        if topic.startswith("_"):
            raise Refusal(at, f"topic '{topic}' is reserved", "result topics do not start with _")
        for other in self.queries:
            if topic == other.output_topic:
                raise Refusal(at, f"topic '{topic}' is already the result of {other.name}")
        if topic in (source.topic for source in self.sources):
            raise Refusal(at, f"topic '{topic}' is a stream of this pipeline", "a query must not feed itself")

    def _check_own_topics(self) -> None:
        """When all queries are known: a result among the state of any of them would be read as state."""
        own = names.own_topics(self.pipeline, (query.name for query in self.queries))
        for query, at in zip(self.queries, self.places, strict=True):
            if query.output_topic in own:
                raise Refusal(at, f"topic '{query.output_topic}' holds state or dead letters of {self.pipeline}")


def _check_words(cursor: Cursor) -> None:
    """Refuse at once what a file that is its own definition does not hold."""
    at, word = cursor.at, cursor.word()
    if word not in ("CREATE", "INSERT"):
        hint = nearest(word, ["CREATE"]) if word else None
        raise Refusal(at, OTHER_STATEMENTS.get(word, f"expected CREATE, found {cursor.shown}"), hint)
    if word == "INSERT" and "VALUES" in (cursor.word(ahead) for ahead in range(len(cursor.tokens))):
        raise Refusal(at, "INSERT INTO … VALUES is not supported in a pipeline", "use `rollforward sql`")
    if cursor.word(1) == "OR":
        place = cursor.tokens[1].start
        raise Refusal(place, "CREATE OR REPLACE is not supported: the file is the definition")
    if cursor.word(2) == "IF" and cursor.word(3) == "NOT":
        place = cursor.tokens[2].start
        raise Refusal(place, "IF NOT EXISTS is not supported: the file is the definition")
