"""Stores of the program's own in its task: committed, killed, wiped and restored as the library's are."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from statestore.committed import CommittedStores
from statestore.context import ChangelogRecord, StoreContext
from statestore.errors import InvalidInput, InvalidStateStore
from statestore.failpoints import arm, is_armed
from statestore.planning.plan import Way
from statestore.stores import custom_store_builder
from statestore.streamtask import StreamTask
from statestore.taskstores import TaskStores
from tests.support.child import run_program
from tests.support.counting import Input
from tests.support.custom import KINDS, Appended, Counts, CustomProgram, Replaced

run = partial(run_program, "tests.support.custom")
Open = Callable[..., CustomProgram]


@pytest.fixture
def program(feed: Input, kafka: str, unique: str, tmp_path: Path) -> Iterator[Open]:
    """An open program on the folder that all of a test have in common."""
    started: list[CustomProgram] = []

    def program(**changed: Any) -> CustomProgram:
        made = CustomProgram(kafka, unique, tmp_path / "state", **changed)
        started.append(made)
        made.task.open()
        return made

    yield program
    for made in started:
        made.task.close()


@pytest.mark.timeout(300)
def test_killed_at_a_step_they_lose_and_repeat_nothing(feed: Input, tmp_path: Path, points: Path) -> None:
    # Passes: into the middle of a commit, and past the first store of the second one.
    for point, passes in (
        ("program.taken", 30),
        ("program.in-send", 100),
        ("program.committed", 0),
        ("program.in-apply", 4),
        ("program.in-restore", 0),
        ("program.claimed", 0),
    ):
        feed.send(50)
        arm(points, point, passes=passes)
        assert -signal.SIGKILL == run(feed, tmp_path / "state", points)[0], point
        assert not is_armed(points, point)
        status, content = run(feed, tmp_path / "state", points)
        assert 0 == status, point
        assert {name: dict(feed.sent) for name in KINDS} == content, point
        assert feed.expected_outputs() == feed.outputs(), point


def test_opened_after_a_clean_end_only_what_is_in_memory_is_restored(program: Open, feed: Input) -> None:
    first = program()
    feed.send(50)
    first.process()
    first.task.close()
    again = program()
    assert {name: dict(feed.sent) for name in KINDS} == again.content()
    assert {"memory": 50, "appended": 0, "replaced": 0} == again.restored()


def test_what_is_not_committed_is_gone_and_a_store_without_transactions_is_wiped(program: Open, feed: Input) -> None:
    first = program()
    feed.send(20)
    first.process()
    before = first.content()
    feed.send(10)
    first.process(commit=False)
    assert before != first.content()
    first.task.close()
    again = program()
    assert dict.fromkeys(KINDS, before["memory"]) == again.content()
    assert {"memory": 20, "appended": 20, "replaced": 0} == again.restored()
    assert (Way.FULL_REPLAY, Way.NOTHING) == tuple(again.task.plans[name].way for name in ("appended", "replaced"))


def test_a_transactional_store_is_believed_where_it_stands(program: Open, feed: Input) -> None:
    first = program()
    feed.send(20)
    first.process()
    first.task.close()
    (first.config.task_folder / "replaced.files" / "counts.json").unlink()
    again = program()
    assert {name: dict(feed.sent) for name in KINDS} == again.content()
    assert {"memory": 20, "appended": 0, "replaced": 20} == again.restored()


def test_under_at_least_once_nothing_is_wiped(program: Open, feed: Input) -> None:
    first = program(exactly_once=False)
    feed.send(20)
    first.process()
    feed.send(10)
    first.process(commit=False)
    ahead = first.content()["appended"]
    first.task.close()
    again = program(exactly_once=False)
    assert ahead == again.content()["appended"]
    assert 0 == again.restored()["appended"]


def test_the_same_store_opened_again_stands_at_the_last_commit(program: Open, feed: Input) -> None:
    task = program()
    feed.send(30)
    task.process()
    before = task.content()
    feed.send(5)
    task.process(commit=False)
    task.task.open()
    assert before == task.content()


def test_a_store_whose_logging_is_disabled_has_no_changelog(
    feed: Input, kafka: str, unique: str, tmp_path: Path
) -> None:
    config = CustomProgram(kafka, unique, tmp_path / "state").config
    with StreamTask(config, [custom_store_builder("appended", Appended).with_logging_disabled()]) as task:
        task.store("appended").put("k", 1)
        assert {} == task.plans
    with StreamTask(config, [Appended()]) as task:
        # Given as it is, it has one.
        assert ["appended"] == list(task.plans)


class TestRefusals:
    def test_a_store_that_is_none_or_another_one(self) -> None:
        with pytest.raises(TypeError, match="dict"):
            custom_store_builder("memory", dict)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="another name: memory"):
            custom_store_builder("other", Counts)

    def test_a_logged_store_that_registers_no_callback(self, tmp_path: Path) -> None:
        class Silent(Counts):
            def init(self, context: StoreContext) -> None:
                context.register(self)
                self.context = context

        stores = TaskStores(tmp_path)
        store = custom_store_builder("memory", Silent).build()
        with pytest.raises(ValueError, match="registered nothing"):
            store.init(stores)
        assert not store.is_open()
        stores.close()

    def test_a_record_for_the_changelog_of_another_store(self, tmp_path: Path) -> None:
        stores = TaskStores(tmp_path)
        store = custom_store_builder("memory", Counts).build()
        store.init(stores)
        with pytest.raises(ValueError, match="changelog of other"):
            store.store.context.log(ChangelogRecord("other", b"k", b"v", 0))
        stores.close()

    def test_a_store_within_the_store(self, tmp_path: Path) -> None:
        class Outer(Counts):
            def init(self, context: StoreContext) -> None:
                Replaced().init(context)

        stores = TaskStores(tmp_path)
        with pytest.raises(InvalidStateStore):
            custom_store_builder("memory", Outer).build().init(stores)
        stores.close()

    def test_another_process_that_would_read_its_files(self, tmp_path: Path) -> None:
        stores = TaskStores(tmp_path)
        store = custom_store_builder("replaced", Replaced).build()
        store.init(stores)
        store.commit(1)
        stores.close()
        reading = CommittedStores(tmp_path)
        with pytest.raises(InvalidInput, match="program's own"):
            custom_store_builder("replaced", Replaced).build().init(reading)
        reading.close()

    def test_a_transactional_store_without_a_commit_or_recovery_of_its_own(self) -> None:
        class Half(Counts):
            def transactional(self) -> bool:
                return True

        for act in (Half().commit, Half().recover):
            with pytest.raises(NotImplementedError, match="memory"):
                act(1)
