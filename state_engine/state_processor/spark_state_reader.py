"""``SparkQuery``: state and positions of a Structured Streaming query, from its checkpoint directory.

State is read by Spark's own state data source, as of the last committed batch; what was consumed by then, from the
query's logs: of file sources the list of files, of Delta sources the version. So a query that is stopped can be taken
over without loss and without repeat. Offsets of other sources say nothing to ours, and are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from state_engine.core.argument_checks import checked_class
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.types.ddl import quoted
from state_engine.sources.base import Source
from state_engine.sources.delta import DeltaSource
from state_engine.sources.delta_table import SourceTable
from state_engine.sources.file import FileSource
from state_engine.storage.stores.files import join, normal_uri, open_location

_WAY_OUT = "give its position in positions={...}, in the terms of StateEngine.bootstrap"


@checked_class
@dataclass(frozen=True)
class SparkState:
    """Which state of a query becomes one of ours, and by which columns.

    Args:
        variable: name of a state variable of ``transformWithState``; None for an aggregation, or another operator whose
            state is one value a key.
        key: by key column, SQL text over the columns that Spark's state reader gives (``key``, ``value``, for lists
            ``list_element``, for maps ``user_map_key`` and ``user_map_value``); by default the field of ``key`` of the
            same name, or its only one.
        value: SQL text of the value; by default the only field of the value, or all of it as a record.
        map_key: SQL text of the map key; by default the only field of ``user_map_key``.
        operator_id: which stateful operator of the query.

    Example:
        >>> SparkState("count", key={"tailnum": "key.tailnum"}, value="value.count").operator_id
        0
    """

    variable: str | None = None
    key: Mapping[str, str] | None = None
    value: str | None = None
    map_key: str | None = None
    operator_id: int = 0


@dataclass(frozen=True)
class SparkQuery:
    """The checkpoint of a query.

    Attributes:
        offsets: after that batch, by source in the order of the query.
    """

    spark: SparkSession
    location: str
    batch_id: int
    offsets: tuple[Any, ...]

    @classmethod
    def at(cls, spark: SparkSession, location: str) -> SparkQuery:
        """Open a checkpoint."""
        uri = normal_uri(location)
        committed = [int(n) for n in _names(join(uri, "commits")) if n.isdigit()]
        if not committed:
            raise ConfigurationError(
                f"{uri} is not a checkpoint of a query with a committed batch: check checkpoint_location"
            )
        batch_id = max(committed)
        lines = _read(join(uri, "offsets", str(batch_id))).splitlines()
        return cls(spark, uri, batch_id, tuple(None if o == "-" else json.loads(o) for o in lines[2:]))

    def state(self, wanted: SparkState, keys: tuple[str, ...], *, what: str) -> DataFrame:
        """One state as ``state_rows`` takes it."""
        options = {"batchId": str(self.batch_id), "operatorId": str(wanted.operator_id)}
        if wanted.variable is not None:
            options |= {"stateVarName": wanted.variable, "flattenCollectionTypes": "true"}
        given = ""
        try:
            rows = self.spark.read.format("statestore").options(**options).load(self.location)
            given = f"; Spark's reader gives {rows.schema.simpleString()}"
            return rows.select(*_columns(rows, wanted, keys))
        except PySparkException as error:
            problem = str(error).split("\n", 1)[0]
            raise ConfigurationError(
                f"{what}: the state of {self.location} cannot be read so: {problem}{given}"
            ) from None

    def positions(self, sources: Mapping[str, Source], given: Mapping[str, Any]) -> dict[str, Any]:
        """What of each source the query had consumed, in the source's own terms; ``given`` ones as they are.

        Args:
            sources: of the job, in the order of the query's.
        """
        by_source = dict(given)
        if set(sources) <= set(given):
            return by_source
        if len(sources) != len(self.offsets):
            raise ConfigurationError(
                f"the query at {self.location} reads {counted(len(self.offsets), 'source')}, the job "
                f"{sorted(sources)}: {_WAY_OUT}"
            )
        for place, (name, source) in enumerate(sources.items()):
            if name not in by_source:
                position = self._position(place, source.inner, name)
                if position is not None:
                    by_source[name] = position
        return by_source

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _position(self, place: int, source: Source, name: str) -> Any:
        offset = self.offsets[place]
        if offset is None:
            return None
        if isinstance(source, FileSource) and isinstance(offset, dict) and "logOffset" in offset:
            return self._files(place, int(offset["logOffset"]), source)
        if isinstance(source, DeltaSource) and isinstance(offset, dict) and "reservoirVersion" in offset:
            return self._version(offset, source, name)
        raise ConfigurationError(
            f"source '{name}': the query's offset {json.dumps(offset)} says nothing to a "
            f"{type(source).__name__}: {_WAY_OUT}"
        )

    def _files(self, place: int, up_to: int, source: FileSource) -> list[str]:
        """Files that were consumed and are still there: what is gone cannot come again."""
        log = join(self.location, "sources", str(place))
        names = [n for n in _names(log) if n.removesuffix(".compact").isdigit()]
        compacts = [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")]
        start = max((n for n in compacts if n <= up_to), default=-1)
        wanted = [f"{start}.compact"] if start >= 0 else []
        wanted += [n for n in names if n.isdigit() and start < int(n) <= up_to]
        lines = [line for n in wanted for line in _read(join(log, n)).splitlines()[1:]]
        entries = [json.loads(line) for line in lines]
        there = {e["split"] for e in source.consumed(self.spark, "all")}
        consumed = {normal_uri(e["path"]) for e in entries if e["batchId"] <= up_to}
        return sorted(consumed & there)

    def _version(self, offset: Mapping[str, Any], source: DeltaSource, name: str) -> int | None:
        log = SourceTable(self.spark, source.location(self.spark))
        if offset["reservoirId"] != log.table_id:
            raise ConfigurationError(
                f"source '{name}': the query reads the Delta table {offset['reservoirId']}, and "
                f"{source.shown} is {log.table_id}"
            )
        version, index = int(offset["reservoirVersion"]), int(offset["index"])
        if index < 0:  # nothing of that version yet
            return version - 1 if version else None
        try:
            snapshot = bool(offset.get("isStartingVersion"))
            files = log.snapshot_files(version) if snapshot else log.commit(version).files
        except SourceError as error:
            raise ConfigurationError(f"source '{name}': {error}: {_WAY_OUT}") from None
        if index < len(files) - 1:
            raise ConfigurationError(
                f"source '{name}': the query stopped inside version {version}, after {index + 1} of "
                f"{counted(len(files), 'file')}: let it finish that version"
            )
        return version


def _columns(rows: DataFrame, wanted: SparkState, keys: tuple[str, ...]) -> list[Column]:
    fields = {f.name: f.dataType for f in rows.schema.fields}
    key = fields["key"]
    made = []
    for name in keys:
        if wanted.key is not None and name in wanted.key:
            column = F.expr(wanted.key[name])
        elif isinstance(key, StructType) and name in key.names:
            column = F.col("key").getField(name)
        else:
            column = _only("key", key)
        made.append(column.alias(name))
    if "user_map_key" in fields:
        given = F.expr(wanted.map_key) if wanted.map_key else _only("user_map_key", fields["user_map_key"])
        made.append(given.alias("map_key"))
    place = next(n for n in ("user_map_value", "list_element", "value") if n in fields)
    made.append((F.expr(wanted.value) if wanted.value else _only(place, fields[place])).alias("value"))
    return made


def _only(name: str, kind: DataType) -> Column:
    if isinstance(kind, StructType) and len(kind.fields) == 1:
        return F.col(name).getField(kind.names[0])
    return F.col(quoted(name))


def _names(uri: str) -> list[str]:
    return list(open_location(uri).names(missing_ok=True))


def _read(uri: str) -> str:
    return open_location(uri).read().decode()
