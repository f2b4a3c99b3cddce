"""The least that the user of a pipeline must be allowed in Kafka, as rows for `rollforward acls` and docs/security.md.

Names of a pipeline's topics, groups and transactional ids begin with its own name and `-`, which no other pipeline's
does, so prefixes grant no more than is needed. Only results of the SQL shell, of INSERT INTO and of `kafka_topic` in a
WITH have names of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines import names

Resource = Literal["topic", "group", "transactional-id", "cluster"]


@dataclass(frozen=True)
class Access:
    """Operations on a resource; `prefixed`: on all whose names begin so."""

    resource: Resource
    name: str
    prefixed: bool
    operations: tuple[str, ...]
    why: str

    def command(self, user: str) -> str:
        """What grants it, for Kafka's own tool."""
        words = ["kafka-acls.sh --bootstrap-server HOST:9092 --add", f"--allow-principal User:{user}"]
        words += [f"--operation {operation}" for operation in self.operations]
        words.append("--cluster" if self.resource == "cluster" else f"--{self.resource} '{self.name}'")
        return " ".join([*words, "--resource-pattern-type prefixed"] if self.prefixed else words)


def accesses(
    service: str, pipelines: Sequence[str], sources: Iterable[str], results: Iterable[str] = ()
) -> list[Access]:
    """Everything for these pipelines of a service, which read these source topics and write these results.

    Result topics that have a pipeline's prefix need not be named.
    """
    commands = names.command_topic(service)
    found = [
        Access("topic", commands, False, _LOG, "definitions: read, written, made, and replaced by a restore"),
        Access("transactional-id", service, False, ("Describe", "Write"), "one writer of definitions at a time"),
    ]
    for topic in sorted(set(sources)):
        found.append(Access("topic", topic, False, ("Read", "Describe", "DescribeConfigs"), "the input"))
    for pipeline in pipelines:
        own = f"{pipeline}-"
        found += [
            Access(
                "topic", own, True, _OWN, "results, changelogs, batches, dead letters; made by deploy, deleted by drop"
            ),
            Access("transactional-id", own, True, ("Describe", "Write"), "commits of the driver and of every task"),
            Access("group", own, True, ("Read", "Describe", "Delete"), "offsets of the input, for people's tools"),
        ]
    own_prefixes = tuple(f"{pipeline}-" for pipeline in pipelines)
    for topic in sorted(set(results)):
        if not topic.startswith(own_prefixes):
            found.append(Access("topic", topic, False, _OWN, "a result in a topic with a name of its own"))
    return found


_LOG = ("Create", "Read", "Write", "Describe", "DescribeConfigs", "AlterConfigs", "Delete")
_OWN = _LOG
