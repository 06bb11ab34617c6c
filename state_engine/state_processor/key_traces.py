"""``KeyTraces``: finds the places of a job that still hold some keys: state, savepoints, dead letters, sinks.

Files of state are looked up by the hashes that checkpoints recorded of them, and read where these leave it open; the
whole key decides. What is not kept by key (operator state, raw state, sinks without the columns) is reported as not
looked at. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, DataFile
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import SinkKey
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.state_files import keyed_state_files
from state_engine.core.checkpoints.table_names import base_table, changelog_table, operator_directory
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.ddl import quoted
from state_engine.queries.stored_entries import key_schema
from state_engine.state_tables.states import PublishedState
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import join, parquet_files
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import open_parquet, open_recorded

Key = dict[str, Any]
"""Values by column of the key."""
Wanted = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]
"""By operator and hash, the keys as they are stored."""


@dataclass(frozen=True)
class Trace:
    """Where keys still are.

    Attributes:
        kind: ``checkpoint``, ``branch``, ``savepoint``, ``waiting`` (files of state that nothing needs any more),
            ``exchange``, ``dead_letters``, ``sink`` or ``table`` (that shows another state, or showed one).
    """

    kind: str
    name: str
    rows: int
    remedy: str


@dataclass(frozen=True)
class KeyTraces:
    """Looks for keys in one job."""

    job: str
    layout: JobLayout
    history: History
    spark: SparkSession
    kernel: DeltaKernel

    def operators(self, columns: Sequence[str], only: str | None = None) -> list[str]:
        keyed: dict[str, tuple[str, ...]] = {}
        for row in self.history.values():
            keyed |= {o.uid: key_schema(o).names for o in row.operators}
        uids = [u for u, names in keyed.items() if set(names) == set(columns) and only in (None, u)]
        if not uids:
            known = {uid: list(names) for uid, names in sorted(keyed.items())}
            raise ConfigurationError(
                f"job '{self.job}': {only or 'no operator'} is {'not ' if only else ''}keyed by {sorted(columns)}; "
                f"operators and their keys: {known}"
            )
        return sorted(uids)

    def of_state(self, wanted: Wanted) -> tuple[list[Trace], set[int]]:
        """What files of keyed state hold, and the checkpoints, savepoints aside, that would bring it back."""
        held: dict[str, dict[str, int]] = {}
        for uid in wanted:
            for table in (base_table(uid), changelog_table(uid)):
                held[table] = self._holding(
                    join(self.layout.directory, table), wanted[uid], self._listed(uid)
                )
        traces, needed, roots = [], set[tuple[str, str]](), set[int]()
        branches = {r.checkpoint_id: n for n, r in self.history.open_branches.items() if n != MAIN}
        pinned = {pin.checkpoint_id: name for name, pin in self.history.pins.items()}
        for root in sorted(set(self.history) - self.history.expired):
            files = {(t, p) for t, p in self._needed(root, wanted) if p in held[t]}
            if not files:
                continue
            needed |= files
            roots.add(root)
            count = sum(held[t][p] for t, p in files)
            if root in branches:
                remedy = f"statelake branch drop {self.job} {branches[root]}"
                traces.append(Trace("branch", branches[root], count, remedy))
            elif root in pinned:
                remedy = f"statelake savepoint delete {self.job} {pinned[root]}"
                traces.append(Trace("checkpoint", str(root), count, f"{remedy}, then --purge"))
            else:
                remedy = "erase with --purge (compacts, and expires older checkpoints)"
                traces.append(Trace("checkpoint", str(root), count, remedy))
        rest = sum(n for t, files in held.items() for p, n in files.items() if (t, p) not in needed)
        if rest:
            remedy = f"statelake vacuum {self.job}, a day after they were expired, and once more a day later"
            traces.append(Trace("waiting", "files of state", rest, remedy))
        return traces, roots

    def of_savepoints(self, wanted: Wanted) -> list[Trace]:
        traces = []
        for name, pin in sorted(self.history.pins.items()):
            held = [self._holding(join(pin.path, operator_directory(uid)), wanted[uid], {}) for uid in wanted]
            count = sum(sum(files.values()) for files in held)
            if count:
                traces.append(
                    Trace("savepoint", name, count, f"statelake savepoint delete {self.job} {name}")
                )
        return traces

    def of_exchange(self, keys: Sequence[Key]) -> list[Trace]:
        """What attempts that crashed left between operators."""
        columns, count = list(keys[0]), 0
        texts = {tuple(str(k[c]) for c in columns) for k in keys}
        for path in parquet_files(self.layout.exchange):
            opened = open_parquet(join(self.layout.exchange, path))
            if set(columns) <= set(opened.schema.names):
                rows = opened.read(columns).to_pylist()
                count += sum(tuple(str(r[c]) for c in columns) in texts for r in rows)
        remedy = f"statelake vacuum {self.job}, a day after the attempt"
        return [Trace("exchange", "orphans", count, remedy)] if count else []

    def of_dead_letters(self, uids: Sequence[str], keys: Sequence[Key]) -> list[Trace]:
        """What rows that were set aside hold."""
        if not self.kernel.exists(self.layout.dead_letters):
            return []
        letters = self.spark.read.format("delta").load(self.layout.dead_letters)
        count = letters.where(letter_condition(uids, keys)).count()
        return [Trace("dead_letters", "dead_letters", count, "erase with --purge")] if count else []

    def of_sinks(self, keys: Sequence[Key]) -> tuple[list[Trace], list[str]]:
        """What Delta sinks hold, and what was not looked at."""
        traces, unseen = [], []
        for name, (kind, path) in sorted(self.sinks().items()):
            rows = self._rows_with(keys, kind, path)
            if isinstance(rows, str):
                unseen.append(f"sink {name} ({rows}: {path})")
            elif rows:
                remedy = (
                    f"erase with --purge --sinks, then VACUUM delta.`{path}` when its retention has passed"
                )
                traces.append(Trace("sink", name, rows, remedy))
        return traces, unseen

    def of_other_tables(
        self, keys: Sequence[Key], erased: Collection[SinkKey], following: Mapping[SinkKey, PublishedState]
    ) -> tuple[list[Trace], list[str]]:
        """What tables that show other states hold, or showed one once, and what was not looked at.

        Args:
            erased: name and place of those that the keys were taken out of.
        """
        traces, unseen = [], []
        for (name, path), kind in sorted(self._sinks(shows_state=True).items()):
            if (name, path) in erased:
                continue
            rows, state = self._rows_with(keys, kind, path), following.get((name, path))
            if isinstance(rows, str):
                unseen.append(f"table {name} ({rows}: {path})")
            elif rows and state is not None:
                remedy = f"it shows operator {state.operator}: erase the keys of that"
                traces.append(Trace("table", name, rows, remedy))
            elif rows:
                remedy = f"no state is published to it now: delete the directory {path}"
                traces.append(Trace("table", name, rows, remedy))
        return traces, unseen

    def sinks(self) -> dict[str, tuple[str, str]]:
        """Kind and path of every sink that a checkpoint knows, by name and where there are several by path."""
        known = self._sinks(shows_state=False)
        names = [name for name, _ in known]
        return {
            (name if names.count(name) == 1 else f"{name} at {path}"): (kind, path)
            for (name, path), kind in known.items()
        }

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _sinks(self, *, shows_state: bool) -> dict[SinkKey, str]:
        """Kind of every sink that a checkpoint knows: of tables that show a state, or of all others."""
        known = {(s.name, s.path): s.kind for row in self.history.values() for s in row.sinks}
        return {key: kind for key, kind in known.items() if SinkKind(kind).shows_state == shows_state}

    def _rows_with(self, keys: Sequence[Key], kind: str, path: str) -> int | str:
        """How many rows of a Delta table have one of the keys; why it was not looked at otherwise."""
        if not SinkKind(kind).is_delta_table and kind != SinkKind.DELTA_STATE:
            return kind
        if kind == SinkKind.DELTA_STATE and not self.kernel.exists(path):
            return 0
        table = self.spark.read.format("delta").load(path)
        missing = sorted(set(keys[0]) - set(table.columns))
        return f"has no columns {missing}" if missing else table.where(row_condition(table, keys)).count()

    def _listed(self, uid: str) -> dict[str, DataFile]:
        operators = [o for row in self.history.values() if (o := row.operator(uid)) is not None]
        return {f.path: f for o in operators for f in (*o.base_files, *o.changelog)}

    def _needed(self, root: int, uids: Wanted) -> Iterator[tuple[str, str]]:
        on_path: list[CheckpointRow] = self.history.path(root)
        for uid in uids:
            files = keyed_state_files(on_path, uid)
            yield from ((base_table(uid), held.file.path) for held in files.base)
            yield from ((changelog_table(uid), held.file.path) for held in files.changelog)

    def _holding(
        self, uri: str, wanted: Mapping[int, Sequence[Mapping[str, Any]]], listed: Mapping[str, DataFile]
    ) -> dict[str, int]:
        """Files under a directory that hold any of the keys, and in how many rows."""
        hashes = np.array(sorted(wanted), np.int64)

        def count(path: str) -> int:
            file, known = join(uri, path), listed.get(path)
            if known is not None and known.key_hash_min is not None and known.key_hash_max is not None:
                low, high = np.searchsorted(hashes, [known.key_hash_min, known.key_hash_max])
                if low == high and (high == len(hashes) or hashes[high] != known.key_hash_max):
                    return 0
            opened = open_parquet(file) if known is None else open_recorded(file, known)
            places = np.flatnonzero(np.isin(opened.read(["key_hash"])["key_hash"].to_numpy(), hashes))
            if not len(places):
                return 0
            rows = opened.read(["key", "key_hash"]).take(places).to_pylist()
            return sum(row["key"] in wanted[row["key_hash"]] for row in rows)

        files = list(parquet_files(uri))
        counts = dict(zip(files, in_threads(count, files), strict=True))
        return {path: n for path, n in counts.items() if n}


def row_condition(table: DataFrame, keys: Sequence[Key]) -> Column:
    types = {f.name: f.dataType for f in table.schema.fields}
    one = (
        reduce(and_, (F.col(quoted(c)).eqNullSafe(F.lit(v).cast(types[c])) for c, v in key.items()))
        for key in keys
    )
    return reduce(or_, one)


def letter_condition(uids: Sequence[str], keys: Sequence[Key]) -> Column:
    """Which dead letters are of one of the keys: by the key that was known, or by the row."""

    def of_key(key: Key) -> Column:
        parts = (F.get_json_object("row", f"$['{c}']") == F.lit(str(v)) for c, v in key.items())
        by_row = F.coalesce(reduce(and_, parts), F.lit(False))
        values = tuple(key.values())
        by_key = F.col("key") == F.lit(repr(values[0] if len(values) == 1 else values))
        return by_row | (F.coalesce(by_key, F.lit(False)) & F.col("operator").isin(list(uids)))

    return reduce(or_, map(of_key, keys))
