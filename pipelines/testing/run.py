"""Runs cases: statements through the metastore's decisions, then records through the queries in the statements' order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.plan import Source
from pipelines.sql import SqlError, parse_script
from pipelines.sql.statements import count_statements
from pipelines.testing.case import Case
from pipelines.testing.compare import difference
from pipelines.testing.definitions import Definitions
from pipelines.testing.topics import Stored, Topic, topics_of
from statestore.errors import RollforwardError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLACE = re.compile(r"(?:Line: \d+, Col: \d+|line \d+:\d+):?")
Session = Callable[[], "SparkSession"]


@dataclass(frozen=True)
class Outcome:
    """What came of a case; `error` says what is wrong, None if it passed."""

    case: str
    error: str | None = None

    @property
    def passed(self) -> bool:
        return self.error is None


def run_case(read: Callable[[], Case], name: str, spark: Session) -> Outcome:
    """Read and run one case. Whatever goes wrong in it is the outcome's error."""
    try:
        case = read()
        return Outcome(name, _refused(case) if case.error is not None else _evaluated(case, spark))
    except (SqlError, RollforwardError) as error:
        return Outcome(name, str(error))
    except Exception as error:  # a case that crashes is a failed case, and the others go on
        return Outcome(name, f"{type(error).__name__}: {error}")


def _refused(case: Case) -> str | None:
    """The last statement must be refused, and no other."""
    definitions = Definitions()
    statements = parse_script(case.statements)
    done = 0
    try:
        for parsed in statements:
            definitions.execute(parsed)
            done += 1
    except (SqlError, RollforwardError) as error:
        if _statements_behind(case.statements, done):
            return f"statement {done + 1} is refused, and it is not the last one:\n{error}"
        if case.error and not _says(str(error), case.error):
            return f"the refusal does not say `{case.error}`:\n{error}"
        return None
    return "no statement is refused"


def _statements_behind(text: str, done: int) -> bool:
    """Whether there are statements behind the one that was refused, which is the next after `done` others."""
    return count_statements(text) > done + 1


def _says(told: str, wanted: str) -> bool:
    """Whether the refusal has the text. Places in it, as ksqlDB's versions write them differently, do not count."""
    parts = (part.strip() for part in _PLACE.split(_squeezed(wanted)))
    return all(part in _squeezed(told) for part in parts)


def _squeezed(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _evaluated(case: Case, spark: Session) -> str | None:
    topics, written = _run(case, spark)
    found = {name: topics[name].read()[first:] for name, first in written.items()}
    return difference(case.outputs, found)


def results_of(case: Case, spark: Session) -> dict[str, list[Stored]]:
    """What the case's queries write to each topic, as Kafka would have it. Raises `SqlError` and `InvalidInput`."""
    topics, written = _run(case, spark)
    return {name: topics[name].records[first:] for name, first in written.items()}


def _run(case: Case, spark: Session) -> tuple[dict[str, Topic], dict[str, int]]:
    """All topics after the run, and how many records of the input those have that queries write to."""
    # Imports Spark, which a refusal does not need.
    from pipelines.testing.evaluate import evaluate

    definitions = Definitions()
    for parsed in parse_script(case.statements):
        definitions.execute(parsed)
    topics = topics_of(_sources(definitions))
    for name, stored in definitions.inserted:
        topics[name].records.append(stored)
    for record in case.inputs:
        topic = topics.get(record.topic) or topics.setdefault(record.topic, Topic(Source("", record.topic, "json", ())))
        topic.put(record)
    written: dict[str, int] = {}
    for query in definitions.queries():
        target = topics[query.output_topic]
        written.setdefault(query.output_topic, len(target.records))
        target.records += evaluate(query, topics[query.source.topic], spark())
    return topics, written


def _sources(definitions: Definitions) -> list[Source]:
    """How topics are read: results as their queries write them, all others as their streams and tables say."""
    relations = sorted(definitions.relations(), key=lambda relation: not relation.query)
    return [relation.source for relation in relations]
