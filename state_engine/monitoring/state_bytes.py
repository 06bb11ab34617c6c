"""``state_bytes``: how many bytes each keyed state of an operator takes in the files of the head.

Rows of checkpoints know the size of files, which hold all states of an operator. The footer of a file knows the sizes
of its columns, and each state has a column of its own: the bytes of a file are divided by these. So all states of an
operator, timers included, add up to the size of its files. Only footers are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.errors import StatelakeError
from state_engine.core.state.descriptors import TIMERS
from state_engine.storage.layout import JobLayout, state_column
from state_engine.storage.state.listed_files import ListedFile
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import open_parquet


def state_bytes(
    layout: JobLayout, path: Sequence[CheckpointRow], operator: OperatorCheckpoint
) -> dict[str, int]:
    """Bytes by the name of each state that the last row of a path declares; none where files cannot be read."""
    columns = {
        state.name: state_column(state.column_name) for state in operator.states if state.name != TIMERS
    }
    sizes = dict.fromkeys(columns, 0.0)
    try:
        files = [file.listed for file in state_files(layout, path, operator.uid)]
        for file, parts in zip(files, in_threads(_column_bytes, files), strict=True):
            for name, column in columns.items():
                sizes[name] += (file.bytes or 0) * parts.get(column, 0) / max(sum(parts.values()), 1)
    except (StatelakeError, OSError, pa.ArrowException):  # status says what is missing
        return {}
    return {name: round(size) for name, size in sizes.items()}


def _column_bytes(file: ListedFile) -> Mapping[str, int]:
    """Stored bytes of the columns of states in a file, by their names."""
    metadata = open_parquet(file.uri, of=file.of).metadata
    names = [name for name in metadata.schema.to_arrow_schema().names if name.startswith(state_column(""))]
    sizes: Counter[str] = Counter()
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(place)
            within = [n for n in names if f"{chunk.path_in_schema}.".startswith(f"{n}.")]
            if within:
                sizes[max(within, key=len)] += chunk.total_compressed_size
    return sizes
