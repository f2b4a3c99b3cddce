"""A writer of the metastore as a process of its own, for tests that kill it.

    once KIND PIPELINE KEY       run one statement, print its outcome or its error as a line of JSON
    loop SEED NAME FILE COUNT    run COUNT statements that the seed draws, one after another

The loop appends `sent KEY` before and what became of it after each statement, synced, and goes on after the last line:
a statement without an answer is sent again with its key.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from pipelines.metastore.embedded import metastore
from pipelines.metastore.service import Metastore
from pipelines.metastore.statement import (
    DEPLOY,
    DROP,
    START,
    Statement,
    deploy_script,
    drop_pipeline,
    start_pipeline,
    stop_pipeline,
)
from pipelines.settings import load_settings
from statestore.errors import InvalidInput, RollforwardError

SQL = """CREATE STREAM bids (auction BIGINT, price BIGINT) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE totals AS SELECT auction, {aggregate} AS n FROM bids GROUP BY auction EMIT CHANGES;"""
AGGREGATES = ("COUNT(*)", "SUM(price)")


def statement(kind: str, pipeline: str, *, aggregate: str = "COUNT(*)") -> Statement:
    """A statement of a kind; scripts read the topic of the environment."""
    if kind == DEPLOY:
        return deploy_script(SQL.format(topic=os.environ["TEST_TOPIC"], aggregate=aggregate), pipeline)
    if kind == DROP:
        return drop_pipeline(pipeline)
    return start_pipeline(pipeline) if kind == START else stop_pipeline(pipeline)


def drawn(seed: int, name: str, number: int, prefix: str) -> Statement:
    """The writer's statement of this number."""
    choose = random.Random(f"{seed} {name} {number}")
    kind = choose.choice(["deploy", "deploy", "deploy", "start", "stop", "stop", "drop", "drop"])
    return statement(kind, f"{prefix}_{choose.randrange(3)}", aggregate=choose.choice(AGGREGATES))


def loop(opened: Metastore, seed: int, name: str, file: Path, count: int) -> None:
    """Statement after statement."""
    lines = file.read_text().splitlines() if file.exists() else []
    sent = [line.split()[1] for line in lines if line.startswith("sent ")]
    answered = len(lines) - len(sent)
    with file.open("a") as out:
        for number in range(answered, count):
            key = f"{name}-{number}"
            if number >= len(sent):
                tell(out, f"sent {key}")
            try:
                outcome = opened.execute(drawn(seed, name, number, os.environ["TEST_PREFIX"]), key)
                tell(out, f"in {key} {outcome.sequence}" if outcome.changed else f"unchanged {key}")
            except InvalidInput:
                tell(out, f"refused {key}")


def tell(out: object, line: str) -> None:
    """A line that is on disk when this returns."""
    out.write(line + "\n")  # type: ignore[attr-defined]
    out.flush()  # type: ignore[attr-defined]
    os.fsync(out.fileno())  # type: ignore[attr-defined]


def main() -> None:
    """See above."""
    mode, *words = sys.argv[1:]
    with metastore(load_settings()) as opened:
        if mode == "loop":
            loop(opened, int(words[0]), words[1], Path(words[2]), int(words[3]))
            return
        try:
            print(json.dumps(opened.execute(statement(words[0], words[1]), words[2]).to_json()))
        except RollforwardError as error:
            print(json.dumps({"error": type(error).__name__, "text": str(error)}))


if __name__ == "__main__":
    main()
