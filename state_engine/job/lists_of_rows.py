"""Columns of lists of rows, ``top_n``: those of the rows and their rank."""

from __future__ import annotations

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.every_type import StructType
from state_engine.job.declared_aggregates import Key
from state_engine.job.windowing import Windowing
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.ranking import RANK
from state_engine.sources.output_type import OutputType


def check_rows(kind: OutputType, method: str) -> None:
    """Refuse a stream of bare values. Raises ConfigurationError."""
    if kind.scalar:
        raise ConfigurationError(
            f"{method} needs rows with named columns, and this stream has bare values: make rows of them in a map first"
        )


def ranked_columns(kind: OutputType, *, rank: bool) -> OutputType:
    check_rows(kind, "top_n")
    columns = kind.columns
    if not rank:
        return OutputType(StructType(columns.names, columns.types, "row"), scalar=False)
    if RANK in columns.names:
        raise ConfigurationError(
            f"top_n: the stream has a column '{RANK}', and the rank comes out under this name: rename the column in a "
            "transform before, or leave the rank out, rank=False"
        )
    return OutputType(StructType([*columns.names, RANK], [*columns.types, BIGINT], "row"), scalar=False)


def ranked_columns_of_windows(windowing: Windowing, kind: OutputType, *, rank: bool) -> OutputType:
    check_rows(kind, "top_n")
    key = windowing.shown_key(kind)
    front = dict(zip(key.names, key.types, strict=True)) | windowing.columns_between(kind)
    front |= {RANK: BIGINT} if rank else {}
    others = [name for name in kind.columns.names if name not in key_names(windowing.key)]
    clash = [name for name in others if name in front]
    if clash:
        raise ConfigurationError(
            f"top_n of a window: the stream has a column '{clash[0]}', and one of this name comes out beside its rows: "
            "rename it in a transform before"
        )
    types = dict(zip(kind.columns.names, kind.columns.types, strict=True))
    made = front | {name: types[name] for name in others}
    return OutputType(StructType(list(made), list(made.values()), "row"), scalar=False)


def key_names(key: Key) -> tuple[str, ...]:
    """Columns of the rows that are the key; none where a function gives it."""
    return key if isinstance(key, tuple) else ()
