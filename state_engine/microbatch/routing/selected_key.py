"""Keys that a function makes of every element: evaluated in Python before rows are routed.

In the same Spark job; or by the driver, with a copy of the function, where it routes the rows itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.types.columns import elements
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.invalid_text import invalid_text
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.type_parsing import to_type
from state_engine.job.graph import KEY_COLUMN, SelectedKey
from state_engine.microbatch.routing.routed import KEY_REFUSAL
from state_engine.sources.frames import HIDDEN, StreamFrame
from state_engine.spark.spark_names import T


def selected_name(position: int) -> str:
    """Name of a column of a key that a function made."""
    return f"{HIDDEN}s{position}"


def with_selected_key(
    frame: StreamFrame, key: SelectedKey, *, scalar: bool, declared: StructType | None = None
) -> tuple[StreamFrame, list[str]]:
    """The frame with the columns of the key and, where the function raised, the reason; and their names."""
    parts = DeclaredKey.of(KEY_COLUMN, key.key_type).types
    names = [selected_name(i) for i in range(len(parts))]
    columns = [to_type(f.dataType, parameter=f.name).arrow for f in frame.schema.fields]
    fields = [pa.field(f.name, c) for f, c in zip(frame.schema.fields, columns, strict=True)]
    fields += [pa.field(n, p.arrow) for n, p in zip(names, parts, strict=True)]
    schema = pa.schema([*fields, pa.field(KEY_REFUSAL, pa.string())])
    get_key = key.selector.get_key
    if frame.table is not None:
        # A copy, as a task would have: what the function remembers ends with the batch.
        from pyspark import cloudpickle

        get_key = cloudpickle.loads(cloudpickle.dumps(get_key))
    if frame.table is not None:
        select = _selector(get_key, key.key_type, frame.user_columns, names, scalar, declared)
        return replace(frame, given=pa.Table.from_batches(select(frame.table.to_batches()), schema)), names
    from state_engine.spark.shipped_code import shipped  # PySpark is imported on first use

    sent = shipped((get_key, key.key_type, declared), [get_key, key.key_type, declared])

    def select_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        there, key_type, kind = sent.unpacked()
        yield from _selector(there, key_type, payload, names, scalar, kind)(batches)

    payload = frame.user_columns
    rows = frame.rows.mapInArrow(select_there, T.StructType.fromJson(spark_schema(schema)))
    return replace(frame, given=rows), names


def _selector(
    get_key: Callable[[Any], Any],
    key_type: TypeInformation,
    payload: list[str],
    names: list[str],
    scalar: bool,
    declared: StructType | None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys: list[Any] = [None] * batch.num_rows
            reasons: list[str | None] = [None] * batch.num_rows
            bad = invalid_text({name: batch[name] for name in payload})  # the subtask refuses it
            good = [row for row in range(batch.num_rows) if row not in bad] if bad else range(batch.num_rows)
            rows = batch.take(pa.array(good, pa.int64())) if bad else batch
            for row, element in zip(
                good, elements(rows, payload, scalar=scalar, declared=declared), strict=True
            ):
                try:
                    selected = get_key(element)
                    keys[row] = None if selected is None else key_type.normalise(selected)
                except Exception as error:  # a user's function may raise anything
                    reasons[row] = f"the key selector raised {type(error).__name__}: {error}"
            made = DeclaredKey.of(KEY_COLUMN, key_type).columns(keys)
            arrays = [*batch.columns, *made, pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, [*batch.schema.names, *names, KEY_REFUSAL])

    return run
