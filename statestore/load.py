"""Loading a changelog into a database beside the one in use: sorted files instead of single writes, and one rename.

    1 begin    a folder beside: empty, or a copy of the database in use, by hard links
    2 build    the changelog in pieces of a memtable's size, each sorted into a file of each space that it changes
    3 finish   what the stores stand at; everything goes to files and to the disk; the database is closed
    4 rename   `folders.take_place`: only a whole version is ever under the name of the database in use

A later piece wins over an earlier one, deletions too, as a later write does. Killed before 4, what is left is a folder
that the next opening deletes. Offset and files need not go in at one step, since nobody opens the folder before 4.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from statestore.columns import Columns, Entries
from statestore.config import RocksConfig
from statestore.failpoints import reach
from statestore.folders import begun, sync
from statestore.kafka.blocks import Block, BlockReader
from statestore.kafka.reader import Reader
from statestore.listener import RestoreListener, Restoring, told
from statestore.rocks.database import Database

Placed = Callable[[Columns], Mapping[str, Entries]]


@contextmanager
def beside(folder: Path, rocks: RocksConfig, *, copied: Database | None = None) -> Iterator[Database]:
    """Steps 1 and 3 around what is done within; after an error the folder is of no use.

    copied: the database in use, if what it holds is to be in the new one.
    """
    new = begun(folder)
    if copied is not None:
        shutil.rmtree(new)
        copied.copy_to(new)
        reach("load.copied")
    database = Database(new, [], rocks)
    try:
        yield database
        reach("load.loaded")
        database.flush()
    finally:
        database.close()
    sync(new)
    reach("load.built")


def load(
    database: Database,
    reader: Reader,
    restoring: Restoring,
    placed: Placed,
    listener: RestoreListener,
    *,
    piece_bytes: int,
    headers: bool = False,
) -> int:
    """Step 2; gives the number of records taken in. `placed` says what records change, per space.

    headers: whether `placed` looks at them.
    """
    records = 0
    with told(listener, restoring) as on_batch:
        blocks = BlockReader(reader.config).read_once(
            restoring.topic, restoring.partition, start=restoring.start, end=restoring.end, headers=headers
        )
        for piece in gathered(map(columns_of, blocks), piece_bytes):
            for space, entries in placed(piece).items():
                database.load(space, entries)
            records += len(piece)
            reach("load.in-build")
            on_batch(piece.end, len(piece))
    return records


def columns_of(block: Block) -> Columns:
    """A block's records, each column in one piece."""
    keys, values = (column.cast(pa.large_binary()) for column in (block.keys, block.values))
    return Columns(keys, values, block.times.to_numpy(), block.next_offset, tuple(block.headers))


def gathered(chunks: Iterable[Columns], piece_bytes: int) -> Iterator[Columns]:
    """The same records in pieces that hold little more than so many bytes of keys and values."""
    held: list[Columns] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += chunk.size
        if size >= piece_bytes:
            yield Columns.joined(held)
            held, size = [], 0
    if held:
        yield Columns.joined(held)
