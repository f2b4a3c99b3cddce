"""How every database and family of ours is opened."""

from __future__ import annotations

import rocksdict as rd

from statestore.config import RocksConfig


def rocks_options(config: RocksConfig, cache: rd.Cache) -> rd.Options:
    """How every database and family of ours is opened."""
    options = rd.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(config.write_buffer_bytes)
    # A windowed store has many families: together they take as much as two large ones.
    options.set_db_write_buffer_size(4 * config.write_buffer_bytes)
    # A log that ends torn, as power loss leaves it, is used up to there; whatever else is damaged is an error.
    options.set_wal_recovery_mode(rd.DBRecoveryMode.point_in_time())
    options.set_paranoid_checks(True)
    options.set_max_total_wal_size(config.log_bytes_max)
    # Files come at the log's size, which is small: with more of them at a time a level is rewritten less often.
    options.set_level_zero_file_num_compaction_trigger(8)
    # All families go to files together, so files are of one moment even if the log is off.
    options.set_atomic_flush(True)
    # It is read whole at every opening.
    options.set_max_manifest_file_size(512 * 1024)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_is_fd_close_on_exec(True)
    table = rd.BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(cache)
    options.set_block_based_table_factory(table)
    return options
