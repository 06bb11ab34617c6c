"""A few rows of Parquet files, read by the driver: planning a scan of them takes Spark longer than reading them.

Only what Spark would read as the very same values is read here, see ``plain_files``. Decision 0040.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_engine.sources.base import FILE_COLUMN, PLACES, ROW_COLUMN
from state_engine.sources.file_ranges import FileRange
from state_engine.sources.parquet.plain_files import has_columns, has_old, plain_schema
from state_engine.spark.placement import Limits, placement_of
from state_engine.storage.stores.files import open_location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def few_rows(ranges: Sequence[FileRange], schema: StructType, limits: Limits) -> pa.Table | None:
    """The rows of these ranges with the hidden columns of a slice; None if they are many, or not plainly readable."""
    wanted = plain_schema(schema)
    if wanted is None or not wanted.names:
        return None
    if not placement_of(limits, stored_bytes=sum(r.size for r in ranges)).by_driver:
        return None
    left, tables = limits.rows, [pa.schema([*wanted, *PLACES]).empty_table()]
    for place, one in enumerate(ranges):
        table = _read(one, wanted, left)
        if table is None:
            return None
        left -= table.num_rows
        places = pa.repeat(pa.scalar(place, pa.int32()), table.num_rows)
        rows = pa.array(np.arange(one.start, one.start + table.num_rows))
        tables.append(table.append_column(FILE_COLUMN, places).append_column(ROW_COLUMN, rows))
    return pa.concat_tables(tables).combine_chunks()


def _read(one: FileRange, wanted: pa.Schema, at_most: int) -> pa.Table | None:
    at = open_location(one.uri)
    try:
        with at.parquet() as file:
            if file.metadata.num_rows > at_most or not has_columns(file, wanted):
                return None
            table = file.read(columns=wanted.names, use_threads=False).select(wanted.names).cast(wanted)
    except (OSError, pa.ArrowException):
        return None
    end = table.num_rows if one.end is None else one.end
    table = table.slice(one.start, end - one.start)
    return None if any(has_old(column) for column in table.columns) else table
