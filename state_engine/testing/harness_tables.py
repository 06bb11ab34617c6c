"""A state of a harness as the rows of a table that it would be published to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_arrays import canonical_array
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.state.descriptors import TIMERS, StateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.memory_state import MemoryState
from state_engine.core.state.state_table import APPEND, PUT, Change
from state_engine.core.types.type_information import TypeInformation
from state_engine.state_tables.table_form import TableForm, rows_by_identity
from state_engine.storage.state.changelog_write import changelog_table


def table_of(
    state: MemoryState, name: str, key: TypeInformation | None, *, map_key: str | None, operator: str
) -> list[Any]:
    if name not in state.entries:
        known = sorted(state.entries.keys() - {TIMERS})
        raise ConfigurationError(f"there is no keyed state '{name}' yet; states by key: {known}")
    if key is None:
        raise ConfigurationError(
            f"a table of the state '{name}' has the key's columns, so name them and their types: "
            f"table('{name}', key='account string')"
        )
    declared = DeclaredKey.of("key", key)
    descriptor, entries = state.descriptors[name], state.entries[name]
    form = TableForm(declared.schema, recorded_schema(descriptor), map_key).checked(operator)
    keys = list(entries)
    if not keys:
        return []
    changes = [change for key, stored in entries.items() for change in _changes(descriptor, key, stored)]
    rows = changelog_table(
        [(descriptor, changes)],
        key_type=declared.schema.storage,
        index_of={key: place for place, key in enumerate(keys)},
        keys=_stored(declared, keys),
        hashes=np.zeros(len(keys), np.int64),
        max_parallelism=1,
    )
    return [] if rows is None else rows_by_identity(form.columns, form.rows(rows))


def _changes(descriptor: StateDescriptor, key: Any, stored: Any) -> list[Change]:
    if descriptor.shape == "map":
        return [Change(key, PUT, item) for item in stored.items()]
    return [Change(key, APPEND if descriptor.shape == "list" else PUT, stored)]


def _stored(declared: DeclaredKey, keys: list[Any]) -> pa.Array:
    parts = zip(*keys, strict=True) if len(declared.types) > 1 else [keys]
    columns = [
        kind.to_arrow([None if value is None else kind.normalise(value) for value in part], storage=False)
        for kind, part in zip(declared.types, parts, strict=True)
    ]
    return canonical_array(pa.StructArray.from_arrays(columns, names=list(declared.names)))
