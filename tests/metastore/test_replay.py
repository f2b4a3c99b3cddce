"""What the log says, without a broker: order, gaps, edits, records that cannot be applied, checkpoints, rebuilding."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.database import open_database
from pipelines.metastore.backup import Backup, Turned, turned
from pipelines.metastore.checkpoint import checkpoint_values
from pipelines.metastore.command import Head, Newer, Unreadable, decode, drop, encode, hash_of, put
from pipelines.metastore.degraded import Fault, Reason
from pipelines.metastore.projection import Projection
from pipelines.metastore.replay import Replay
from pipelines.metastore.rows import Rows
from statestore.errors import InvalidConfig
from statestore.kafka.reader import Record
from tests.support.metastore import command

GOLDEN = Path(__file__).parent / "golden"
NEWER = b'{"version": 9, "reads": 9, "id": "x"}'


def log(*makers: object) -> list[Record]:
    """Records from bytes, or from functions of the chain's head."""
    records: list[Record] = []
    head = Head()
    for maker in makers:
        value = maker if isinstance(maker, bytes | None) else maker(head)  # type: ignore[operator]
        # Markers take offsets too.
        records.append(Record(b"k", value, 2 * len(records), 0))
        head = Head(head.sequence + 1, hash_of(value))
    return records


def putting(kind: str, name: str, body: object = None, key: str = "") -> object:
    return lambda head: command(head, put(kind, name, body), key=key)


def dropping(kind: str, name: str) -> object:
    return lambda head: command(head, drop(kind, name))


def replayed(records: list[Record]) -> Replay:
    replay = Replay(None)
    replay.feed(records)
    replay.finish(records[-1].offset + 2 if records else 0)
    return replay


def projected(projection: Projection, records: list[Record], start: int = 0) -> object:
    return projection.apply(records, topic_id="t", start=start, end=records[-1].offset + 2)


def names(replay: Replay) -> list[str]:
    return sorted(name for (_, name), row in replay.definitions.items() if row is not None)


def test_later_commands_replace_and_drop_what_earlier_ones_put() -> None:
    replay = replayed(log(putting("a", "x", 1), putting("a", "y", 1), putting("a", "x", 2), dropping("a", "y")))
    assert (["x"], "2", None) == (names(replay), replay.definitions[("a", "x")].body, replay.fault)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spoil", "offset"),
    [
        (lambda records: records[:1] + records[2:], 4),
        (lambda records: [records[0], Record(b"k", command(Head(1, "0" * 64)), 2, 0), *records[2:]], 2),
        (lambda records: [records[0], records[1], records[1], *records[2:]], 2),
        (lambda records: [records[0], Record(b"k", b"edited", 2, 0), *records[2:]], 4),
    ],
    ids=["gap", "wrong hash", "doubled", "edited"],
)
def test_a_command_that_does_not_follow_ends_the_replay_before_it(spoil: object, offset: int) -> None:
    records = log(*(putting("a", name) for name in "vwxyz"))
    replay = replayed(spoil(records))  # type: ignore[operator]
    assert replay.fault is not None
    assert (Reason.BROKEN, f"offset {offset}", offset) == (replay.fault.reason, replay.fault.detail, replay.next_offset)
    assert "v" in names(replay) and "z" not in names(replay)


@pytest.mark.parametrize(
    "junk",
    [b"", b"\xff\x00", b"[]", b'"text"', b"{}", b'{"reads": 1}', None, b'{"reads":1,"changes":[["burn","a","x"]]}'],
)
def test_what_is_no_command_is_set_aside_and_the_next_one_applied(junk: bytes | None) -> None:
    replay = replayed(log(putting("a", "x"), junk, putting("a", "y")))
    assert (["x", "y"], None, [1]) == (names(replay), replay.fault, sorted(replay.set_aside))


def test_a_command_that_cannot_be_applied_is_set_aside_whole() -> None:
    def both(head: Head) -> bytes:
        return command(head, put("a", "z", 1), drop("a", "missing"))

    replay = replayed(log(putting("a", "x"), both, putting("a", "y")))
    assert ["x", "y"] == names(replay)
    assert "a missing does not exist" in replay.set_aside[1].error


def test_a_key_is_applied_once() -> None:
    replay = replayed(log(putting("a", "x", 1, "k"), putting("a", "x", 2, "k")))
    assert "1" == replay.definitions[("a", "x")].body  # type: ignore[union-attr]
    assert "idempotency key" in replay.set_aside[1].error


def test_a_later_versions_command_is_marked_and_its_unknown_fields_are_kept() -> None:
    assert replayed(log(NEWER)).set_aside[0].newer
    with pytest.raises(Newer, match="version 9"):
        decode(NEWER)
    fields = orjson.loads(command(Head())) | {"version": 7, "colour": {"of": "tomorrow"}}
    read = decode(orjson.dumps(fields))
    assert {"of": "tomorrow"} == orjson.loads(encode(read))["colour"]


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(),
        st.recursive(
            st.none() | st.integers(-5, 5) | st.text(),
            lambda v: (
                st.lists(v) | st.dictionaries(st.sampled_from(["reads", "version", "changes", "key", "names"]), v)
            ),
        ),
    )
)
def test_junk_raises_nothing_but_unreadable(junk: object) -> None:
    value = junk if isinstance(junk, bytes) else orjson.dumps(junk)
    try:
        decode(value)
    except Unreadable:
        return


def test_commands_of_the_first_format_still_replay() -> None:
    records = [
        Record(b"k", line, number, 0)
        for number, line in enumerate((GOLDEN / "format-1.jsonl").read_bytes().splitlines())
    ]
    replay = replayed(records)
    assert (None, {}) == (replay.fault, replay.set_aside)
    assert orjson.loads((GOLDEN / "format-1.rows.json").read_bytes()) == [
        [row.kind, row.name, orjson.loads(row.body), row.sequence]
        for row in sorted(row for row in replay.definitions.values() if row is not None)
    ]


# The projection.


def test_a_projection_is_the_same_in_pieces_and_at_once(url: str, tmp_path: Path) -> None:
    records = log(
        putting("a", "x"), putting("b", "y", {"n": [1.5, "é"]}), b"junk", dropping("a", "x"), putting("a", "z")
    )
    pieces = Projection(open_database(url), "s")
    for number in range(len(records)):
        assert projected(pieces, records[: number + 1]) is None
    whole = Projection(open_database(f"sqlite:///{tmp_path / 'whole.db'}"), "s")
    assert projected(whole, records) is None
    assert (pieces.rows(), pieces.position()) == (whole.rows(), whole.position())
    assert pieces.rebuild(records, topic_id="t", start=0, end=10) is None
    assert pieces.rows() == whole.rows()


def test_a_checkpoint_gives_the_same_rows_live_and_as_a_logs_beginning(url: str, tmp_path: Path) -> None:
    records = log(
        *(putting("a", f"d{number:04}", "x" * 900) for number in range(1500)), b"junk", dropping("a", "d0003")
    )
    live = Projection(open_database(url), "s")
    assert projected(live, records) is None
    definitions = live.rows().definitions
    position = live.position()
    values = checkpoint_values(live.rows(), position.head, "c")
    assert len(values) > 2
    parts = [Record(b"c", value, position.next_offset + at, 0) for at, value in enumerate(values)]
    assert projected(live, parts) is None
    later = Projection(open_database(f"sqlite:///{tmp_path / 'later.db'}"), "s")
    assert projected(later, parts, start=parts[0].offset) is None
    assert live.rows() == later.rows()
    assert definitions == live.rows().definitions
    assert 1 == len(live.set_aside())
    # Without its first or its last part it is nothing.
    for damaged, reason in ((parts[1:], Reason.TRUNCATED), (parts[:-1], Reason.BROKEN)):
        fault = Projection(open_database(f"sqlite:///{tmp_path / reason}.db"), "s").rebuild(
            damaged, topic_id="t", start=9, end=99
        )
        assert fault is not None and reason == fault.reason


def test_an_empty_metastore_has_a_checkpoint_too() -> None:
    [value] = checkpoint_values(Rows(), Head(), "c")
    replay = replayed([Record(b"c", value, 5, 0)])
    assert (None, {}, 1) == (replay.fault, replay.definitions, replay.head.sequence)


def test_a_log_that_lacks_applied_commands_replaces_nothing(url: str) -> None:
    records = log(putting("a", "x"), putting("a", "y"))
    projection = Projection(open_database(url), "s")
    projected(projection, records)
    before = projection.rows()
    for other, reason in ((records[:1], Reason.SHORTER), (log(putting("a", "q"), putting("a", "r")), Reason.REPLACED)):
        fault = projection.rebuild(other, topic_id="u", start=0, end=9)
        assert fault is not None and reason == fault.reason
        assert before == projection.rows()
    assert projection.rebuild(records[:1], topic_id="u", start=0, end=9, accept_loss=True) is None
    assert ["x"] == [row.name for row in projection.rows().definitions]


def test_a_refused_log_names_the_way_to_take_it_all_the_same() -> None:
    for reason in (Reason.SHORTER, Reason.REPLACED):
        assert "rollforward metastore rebuild --accept-loss" in Fault(reason).hint


def deploying(name: str, deployed_at: float, state: str) -> object:
    return lambda head: command(
        head, put("pipeline", name, {"deployed_at": deployed_at}), put("desired", name, {"state": state})
    )


def desiring(name: str, state: str) -> object:
    return putting("desired", name, {"state": state})


def test_what_a_restore_ends_and_begins_is_known_before() -> None:
    saved = [
        deploying("stays", 1, "running"),
        deploying("idle", 1, "stopped"),
        deploying("started", 1, "stopped"),
        deploying("stopped", 1, "running"),
        deploying("dropped", 1, "running"),
        deploying("again", 1, "running"),
    ]
    since = [
        desiring("started", "running"),
        desiring("stopped", "stopped"),
        lambda head: command(head, drop("pipeline", "dropped"), drop("desired", "dropped")),
        deploying("again", 2, "running"),
        deploying("new", 2, "running"),
        deploying("new_idle", 2, "stopped"),
    ]
    engine = open_database("sqlite://")
    projection = Projection(engine, "s")
    assert projected(projection, log(*saved, *since)) is None
    with projection.snapshot() as snapshot:
        found = turned(Backup("s", "t", 0, tuple(log(*saved))), snapshot)
        assert Turned({}, ()) == turned(Backup("s", "t", 0, tuple(log(*saved, *since))), snapshot)
    ends = {
        "again": "the backup has an earlier deployment of it",
        "new": "it is not in the backup",
        "started": "it is stopped in the backup",
    }
    assert ends == found.ends
    assert ("again", "dropped", "stopped") == found.begins


def test_a_database_serves_one_service(url: str) -> None:
    engine = open_database(url)
    projected(Projection(engine, "one"), log(putting("a", "x")))
    with pytest.raises(InvalidConfig, match="belongs to another service"):
        Projection(engine, "two").position()
