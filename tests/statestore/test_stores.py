"""The factories of KIP-844, what decides whether a store is transactional, and builders."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from statestore import stores
from statestore.cache.record_cache import RecordCache
from statestore.cache.stores import CachedKeyValue, CachedTimestampedKeyValue
from statestore.cache.windowed import CachedSession, CachedWindow
from statestore.config import KafkaConfig, StoreDefaults, StreamConfig
from statestore.errors import InvalidStateStore
from statestore.kinds.key_value import KeyValue
from statestore.kinds.lru import LruMap
from statestore.kinds.session import Session
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.versioned import Versioned
from statestore.kinds.window import Window
from statestore.layouts.timestamped import UNKNOWN
from statestore.materialized import Materialized, StreamJoined
from statestore.store import TransactionalMechanism
from statestore.streamtask import StreamTask
from statestore.supplier import StoreSupplier, to_ms
from statestore.typed.serdes import INTEGER, LONG, STRING, ValueAndTimestamp
from statestore.windows import Windowed
from tests.statestore.conftest import SETUPS, Setup, TaskUnderTest
from tests.support.present import present

MINUTE = timedelta(minutes=1)
ON = StoreDefaults(transactional=True)
Make = Callable[..., StoreSupplier[Any]]

FACTORIES: list[tuple[Make, tuple[Any, ...], type, bool]] = [
    (stores.persistent_key_value_store, (), KeyValue, True),
    (stores.persistent_timestamped_key_value_store, (), TimestampedKeyValue, True),
    (stores.in_memory_key_value_store, (), KeyValue, False),
    (stores.lru_map, (10,), LruMap, False),
    (stores.persistent_versioned_key_value_store, (MINUTE, None), Versioned, True),
    (stores.in_memory_versioned_key_value_store, (MINUTE, None), Versioned, False),
    (stores.persistent_window_store, (MINUTE, MINUTE, False), Window, True),
    (stores.persistent_timestamped_window_store, (MINUTE, MINUTE, False), TimestampedWindow, True),
    (stores.in_memory_window_store, (MINUTE, MINUTE, False), Window, False),
    (stores.persistent_session_store, (MINUTE,), Session, True),
    (stores.in_memory_session_store, (MINUTE,), Session, False),
]
TRANSACTIONAL_FACTORIES: list[tuple[Make, tuple[Any, ...], type]] = [
    (stores.persistent_transactional_key_value_store, (), KeyValue),
    (stores.persistent_transactional_timestamped_key_value_store, (), TimestampedKeyValue),
    (stores.persistent_transactional_versioned_key_value_store, (MINUTE,), Versioned),
    (stores.persistent_transactional_window_store, (MINUTE, MINUTE), Window),
    (stores.persistent_transactional_timestamped_window_store, (MINUTE, MINUTE), TimestampedWindow),
    (stores.persistent_transactional_session_store, (MINUTE,), Session),
]


class TestFactories:
    @pytest.mark.parametrize(("make", "options", "kind", "persistent"), FACTORIES)
    def test_a_store_is_transactional_if_it_says_so_and_else_as_the_pipeline_has_it(
        self, make: Make, options: tuple[Any, ...], kind: type, persistent: bool
    ) -> None:
        for said, default, expected in [
            (None, None, False),
            (None, ON, True),
            (True, None, True),
            (False, ON, False),
        ]:
            supplier = make("s", *options, said)
            store = supplier.get(default)
            assert (kind, persistent, "s") == (type(store), store.persistent(), store.name)
            assert expected == supplier.transactional(default) == store.transactional()

    @pytest.mark.parametrize(("make", "options", "kind"), TRANSACTIONAL_FACTORIES)
    def test_the_transactional_factories_do_not_ask_the_pipeline(
        self, make: Make, options: tuple[Any, ...], kind: type
    ) -> None:
        supplier = make("s", *options)
        assert (True, kind) == (supplier.transactional(StoreDefaults()), type(supplier.get()))

    @pytest.mark.parametrize(("make", "options", "kind", "persistent"), FACTORIES)
    def test_the_mechanism_is_the_stores_or_the_pipelines(
        self, make: Make, options: tuple[Any, ...], kind: type, persistent: bool
    ) -> None:
        secondary, auto = TransactionalMechanism.SECONDARY_STORE, TransactionalMechanism.AUTO
        defaults = StoreDefaults(transactional=True, mechanism=auto)
        assert auto is make("s", *options).get(defaults)._mechanism
        assert secondary is make("s", *options, mechanism=secondary).get(defaults)._mechanism
        assert secondary is make("s", *options, mechanism=secondary).get()._mechanism
        assert make("s", *options, False, mechanism=secondary).get(defaults)._mechanism is None

    @pytest.mark.case("V-32", "W-56")
    @pytest.mark.parametrize(("make", "options", "kind", "persistent"), FACTORIES)
    def test_a_name_of_none_is_refused(
        self, make: Make, options: tuple[Any, ...], kind: type, persistent: bool
    ) -> None:
        with pytest.raises(TypeError):
            make(None, *options)

    @pytest.mark.case("V-32", "W-56")
    @pytest.mark.parametrize(
        "make",
        [
            lambda: stores.persistent_versioned_key_value_store("s", -1),
            lambda: stores.persistent_versioned_key_value_store("s", 1, 0),
            lambda: stores.persistent_versioned_key_value_store("s", 1, -1),
            lambda: stores.persistent_window_store("s", timedelta(0), MINUTE),
            lambda: stores.persistent_window_store("s", -1, 0),
            lambda: stores.persistent_window_store("s", MINUTE, -1),
            lambda: stores.persistent_window_store("s", MINUTE, MINUTE, segment_interval=0),
            lambda: stores.in_memory_window_store("s", timedelta(0), MINUTE),
            lambda: stores.persistent_session_store("s", -1),
            lambda: stores.in_memory_session_store("s", -1),
            lambda: stores.lru_map("s", 0),
            lambda: stores.persistent_session_store("s", 2**63),
        ],
    )
    def test_settings_that_no_store_can_have_are_refused(self, make: Callable[[], object]) -> None:
        with pytest.raises(ValueError, match=r"."):
            make()

    def test_lengths_of_time_are_timedeltas_or_ms(self) -> None:
        assert (60_000, 60_000, 1) == (to_ms(MINUTE), to_ms(60_000), to_ms(timedelta(microseconds=1999)))
        assert 60_000 == stores.persistent_session_store("s", MINUTE).get().retention_ms
        window = stores.persistent_window_store("s", 2 * MINUTE, 60_000, True).get()
        assert (120_000, 60_000, True) == (window.retention_ms, window.window_size_ms, window.retain_duplicates)


BUILDERS: list[tuple[Callable[..., Any], StoreSupplier[Any]]] = [
    (stores.key_value_store_builder, stores.persistent_key_value_store("s")),
    (stores.timestamped_key_value_store_builder, stores.persistent_timestamped_key_value_store("s")),
    (stores.versioned_key_value_store_builder, stores.persistent_versioned_key_value_store("s", MINUTE)),
    (stores.window_store_builder, stores.persistent_window_store("s", MINUTE, MINUTE)),
    (stores.timestamped_window_store_builder, stores.persistent_timestamped_window_store("s", MINUTE, MINUTE)),
    (stores.session_store_builder, stores.persistent_session_store("s", MINUTE)),
]


class TestBuilders:
    def test_a_built_store_works(self, task: TaskUnderTest, setup: Setup) -> None:
        defaults = StoreDefaults(setup.transactional, setup.mechanism or TransactionalMechanism.INDEXED_BATCH)
        supplier = stores.persistent_key_value_store("s") if setup.persistent else stores.in_memory_key_value_store("s")
        store = stores.key_value_store_builder(supplier, STRING, LONG).build(defaults)
        store.init(task.stores)
        store.put("a", 1)
        store.commit(1)
        assert (1, setup.transactional, setup.persistent) == (store.get("a"), store.transactional(), store.persistent())
        assert [(b"a", b"\0" * 7 + b"\1", UNKNOWN)] == task.records()

    @pytest.mark.parametrize("setup", SETUPS[2:3], ids=str)
    def test_every_kind_can_be_built_opened_and_written(self, task: TaskUnderTest) -> None:
        built = {}
        for number, (builder, supplier) in enumerate(BUILDERS):
            renamed = StoreSupplier(f"s{number}", supplier.kind, supplier.options)
            built[number] = builder(renamed, INTEGER, STRING).build(ON)
            built[number].init(task.stores)
        key_value, timestamped, versioned, window, timestamped_window, session = built.values()
        key_value.put(1, "a")
        timestamped.put(1, ValueAndTimestamp("a", 7))
        versioned.put(1, "a", 7)
        window.put(1, "a", 7)
        timestamped_window.put(1, ValueAndTimestamp("a", 7), 7)
        session.put(Windowed(1, 7, 7), "a")
        assert "a" == key_value.get(1) == versioned.get(1).value == window.fetch_one(1, 7)
        assert ValueAndTimestamp("a", 7) == timestamped.get(1) == timestamped_window.fetch_one(1, 7)
        assert "a" == session.fetch_session(1, 7, 7)

    @pytest.mark.parametrize(("builder", "supplier"), BUILDERS)
    def test_a_changelog_is_on_by_default_and_its_topic_can_be_configured(
        self, builder: Callable[..., Any], supplier: StoreSupplier[Any]
    ) -> None:
        made = builder(supplier, INTEGER, STRING)
        assert made.logging_enabled
        own = made.log_config()
        assert own == supplier.get().changelog_config()
        configured = made.with_logging_enabled({"min.insync.replicas": "2", "cleanup.policy": "delete"}).log_config()
        assert {**own, "min.insync.replicas": "2", "cleanup.policy": "delete"} == configured
        off = made.with_logging_disabled()
        assert ({}, False) == (off.log_config(), off.build().store._logged)
        assert made.logging_enabled

    @pytest.mark.parametrize(
        ("builder", "supplier", "cached"),
        [
            (*BUILDERS[0], CachedKeyValue),
            (*BUILDERS[1], CachedTimestampedKeyValue),
            (*BUILDERS[3], CachedWindow),
            (*BUILDERS[5], CachedSession),
        ],
    )
    def test_caching_puts_the_store_behind_the_tasks_cache(
        self, builder: Callable[..., Any], supplier: StoreSupplier[Any], cached: type
    ) -> None:
        made = builder(supplier, INTEGER, STRING)
        assert not made.caching_enabled
        on = made.with_caching_enabled()
        assert isinstance(on.build(cache=RecordCache(10)).store, cached)
        assert supplier.kind is type(on.with_caching_disabled().build(cache=RecordCache(10)).store)
        with pytest.raises(ValueError, match="no cache"):
            on.build()

    @pytest.mark.case("W-36b")
    def test_a_store_with_duplicates_is_not_cached_and_its_changelog_only_deletes(self) -> None:
        supplier = stores.persistent_window_store("s", MINUTE, MINUTE, retain_duplicates=True)
        builder = stores.window_store_builder(supplier, INTEGER, STRING).with_caching_enabled()
        assert not builder.caching_enabled
        assert "delete" == builder.log_config()["cleanup.policy"]

    def test_a_versioned_store_cannot_be_cached(self) -> None:
        builder = stores.versioned_key_value_store_builder(BUILDERS[2][1], INTEGER, STRING)
        with pytest.raises(InvalidStateStore, match="versioned"):
            builder.with_caching_enabled()

    def test_a_plain_supplier_in_memory_becomes_timestamped(self) -> None:
        key_value = stores.in_memory_key_value_store("s")
        assert isinstance(
            stores.timestamped_key_value_store_builder(key_value, INTEGER, STRING).build().store, TimestampedKeyValue
        )
        window = stores.in_memory_window_store("s", MINUTE, MINUTE)
        assert isinstance(
            stores.timestamped_window_store_builder(window, INTEGER, STRING).build().store, TimestampedWindow
        )

    @pytest.mark.case("TW-04")
    @pytest.mark.parametrize("setup", SETUPS[2:3], ids=str)
    def test_a_plain_supplier_on_disk_keeps_no_times(self, task: TaskUnderTest) -> None:
        store = stores.timestamped_key_value_store_builder(BUILDERS[0][1], INTEGER, STRING).build(ON)
        store.init(task.stores)
        store.put(1, ValueAndTimestamp("a", 7))
        assert ValueAndTimestamp("a", -1) == store.get(1)
        assert [(b"\0\0\0\1", b"a", UNKNOWN)] == task.records()

    @pytest.mark.parametrize(("builder", "supplier"), BUILDERS)
    def test_a_supplier_of_none_is_refused(self, builder: Callable[..., Any], supplier: StoreSupplier[Any]) -> None:
        with pytest.raises(TypeError):
            builder(None, INTEGER, STRING)

    @pytest.mark.parametrize("setup", SETUPS[2:3], ids=str)
    def test_flush_is_deprecated(self, task: TaskUnderTest) -> None:
        store = stores.key_value_store_builder(BUILDERS[0][1], INTEGER, STRING).build(ON)
        store.init(task.stores)
        with pytest.warns(DeprecationWarning, match="commit"):
            store.flush()


class TestMaterialized:
    def test_it_decides_over_supplier_and_pipeline(self) -> None:
        for said, supplier_said, default, expected in [
            (None, None, False, False),
            (None, None, True, True),
            (None, False, True, False),
            (None, True, False, True),
            (True, False, False, True),
            (False, True, True, False),
        ]:
            supplier = stores.persistent_key_value_store("s", supplier_said)
            materialized = Materialized[str, int].with_supplier(supplier)
            if said is not None:
                materialized = (
                    materialized.with_transactionality_enabled()
                    if said
                    else materialized.with_transactionality_disabled()
                )
            defaults = StoreDefaults(default)
            made = present(materialized.store_supplier())
            assert expected == materialized.transactional(defaults) == made.transactional(defaults)

    def test_by_name_it_makes_the_store_that_the_operation_chooses(self) -> None:
        materialized = Materialized[str, int].named("totals").with_transactionality_enabled().with_retention(MINUTE)
        supplier = present(materialized.store_supplier(Session))
        assert ("totals", True, 60_000) == (supplier.name, supplier.transactional(), supplier.get().retention_ms)
        assert Materialized().store_supplier() is None
        assert Materialized[str, int].named("t").transactional(ON)

    def test_every_change_gives_a_new_one(self) -> None:
        first = Materialized[str, int].named("s")
        changed = (
            first.with_key_serde(STRING)
            .with_value_serde(LONG)
            .with_caching_disabled()
            .with_logging_enabled({"retention.ms": "1"})
        )
        assert (STRING, LONG, False, True) == (
            changed.keys,
            changed.values,
            changed.caching_enabled,
            changed.logging_enabled,
        )
        assert {"retention.ms": "1"} == changed.topic_config
        off = changed.with_logging_disabled().with_caching_enabled()
        assert (False, {}, True) == (off.logging_enabled, off.topic_config, off.caching_enabled)
        assert first == Materialized[str, int].named("s")

    def test_what_cannot_be_is_refused(self) -> None:
        nothing: Any = None
        with pytest.raises(TypeError):
            Materialized.named(nothing)
        with pytest.raises(TypeError):
            Materialized.with_supplier(nothing)
        with pytest.raises(ValueError, match="negative"):
            Materialized.named("s").with_retention(-1)

    def test_a_builder_has_all_that_is_said(self) -> None:
        said = (
            Materialized[str, int]
            .named("visits")
            .with_key_serde(STRING)
            .with_value_serde(LONG)
            .with_retention(2 * MINUTE)
            .with_logging_enabled({"segment.bytes": "9"})
            .with_transactionality_enabled()
        )
        builder = said.store_builder(stores.window_store_builder, Window, window_size_ms=60_000)
        store = builder.build(cache=RecordCache(1_000))
        assert (CachedWindow, STRING, LONG) == (type(store.store), store.keys, store.values)
        assert (120_000, True, True) == (store.store.retention_ms, store.transactional(), store.store.logged)
        assert "9" == builder.log_config()["segment.bytes"]
        off = said.with_caching_disabled().with_logging_disabled().with_transactionality_disabled()
        builder = off.store_builder(stores.window_store_builder, Window, window_size_ms=60_000)
        store = builder.build(ON)
        assert (Window, False, False) == (type(store.store), store.transactional(), store.store.logged)
        assert {} == builder.log_config()

    def test_a_builder_follows_the_supplier_and_leaves_the_rest_to_the_pipeline(self) -> None:
        def said(supplier: StoreSupplier[Any]) -> Any:
            serdes = Materialized[str, str].with_supplier(supplier).with_key_serde(STRING).with_value_serde(STRING)
            make = stores.versioned_key_value_store_builder
            return serdes.store_builder(make if supplier.kind is Versioned else stores.key_value_store_builder)

        plain = said(stores.in_memory_key_value_store("s"))
        assert (True, False) == (plain.caching_enabled, plain.with_caching_disabled().build().transactional())
        assert plain.with_caching_disabled().build(ON).transactional()
        assert not plain.build(cache=RecordCache(1_000)).persistent()
        # Kafka Streams leaves the cache away there, too.
        versioned = said(stores.in_memory_versioned_key_value_store("s", MINUTE, transactional=False))
        assert (False, False) == (versioned.caching_enabled, versioned.build(ON).transactional())

    def test_a_builder_needs_a_store_and_serdes(self) -> None:
        serdes = Materialized[str, int]().with_key_serde(STRING).with_value_serde(LONG)
        for lacking in (serdes, Materialized[str, int].named("s").with_key_serde(STRING)):
            with pytest.raises(TypeError, match="a builder needs"):
                lacking.store_builder(stores.key_value_store_builder)

    def test_a_joins_stores_are_transactional_alike(self) -> None:
        this, other = (stores.persistent_window_store(name, MINUTE, MINUTE, True) for name in ("this", "other"))
        joined = StreamJoined(this, other)
        for changed, expected in [
            (joined, [False, False]),
            (joined.with_transactionality_enabled(), [True, True]),
            (joined.with_transactionality_enabled().with_transactionality_disabled(), [False, False]),
        ]:
            assert expected == [present(side).transactional() for side in changed.store_suppliers()]
        assert (None, None) == StreamJoined().store_suppliers()


class TestDefaultsOfATask:
    """Builders given to a `StreamTask` follow its configuration, and each may say otherwise."""

    @pytest.mark.parametrize("default", [StoreDefaults(), ON, StoreDefaults(True, TransactionalMechanism.AUTO)])
    def test_a_store_follows_them_unless_it_says_otherwise(self, tmp_path: Path, default: StoreDefaults) -> None:
        secondary = TransactionalMechanism.SECONDARY_STORE
        given = [
            stores.key_value_store_builder(supplier, STRING, STRING)
            for supplier in (
                stores.persistent_key_value_store("unsaid"),
                stores.persistent_key_value_store("on", True),
                stores.persistent_key_value_store("off", False),
                stores.persistent_key_value_store("secondary", mechanism=secondary),
            )
        ]
        own = stores.key_value_store_builder(stores.persistent_key_value_store("own"), STRING, STRING).build()
        config = StreamConfig("a", KafkaConfig("unused:1"), ("in",), 0, tmp_path, store_defaults=default)
        task = StreamTask(config, [*given, own])
        mechanism = default.mechanism
        expected = [mechanism if default.transactional else None, mechanism, None, secondary]
        assert expected == [task.store(one.name).store.mechanism for one in given]
        assert task.store("own") is own
        with pytest.raises(KeyError):
            task.store("unknown")

    def test_caching_and_the_topics_settings_are_the_builders(self, tmp_path: Path) -> None:
        builder = stores.key_value_store_builder(stores.persistent_key_value_store("s"), STRING, STRING)
        cached = builder.with_caching_enabled().with_logging_enabled({"segment.bytes": "9", "segment.ms": "8"})
        config = StreamConfig("a", KafkaConfig("unused:1"), ("in",), 0, tmp_path)
        with pytest.raises(ValueError, match="no cache"):
            StreamTask(config, [cached])
        task = StreamTask(config, [cached], cache=RecordCache(1_000))
        assert CachedKeyValue is type(task.store("s").store)
        assert {"s": {"segment.bytes": "9", "segment.ms": "8"}} == dict(task._parts.topic_configs)
        over = StreamTask(config, [cached], cache=RecordCache(1_000), topic_configs={"s": {"segment.ms": "7"}})
        assert {"s": {"segment.bytes": "9", "segment.ms": "7"}} == dict(over._parts.topic_configs)
