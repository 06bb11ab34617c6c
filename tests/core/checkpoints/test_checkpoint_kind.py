"""Kinds of rows: the properties of each, and their stored form, which does not change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from state_engine.core.checkpoints.checkpoint import ROW_TYPE
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.errors import DamagedFileError, RootError
from state_engine.storage.checkpoint_files import checkpoints_in, with_digests
from state_engine.storage.row_digest import row_digest
from tests.core.checkpoints.rows import checkpoint

FACTS = {
    "checkpoint": {"is_micro_batch", "changes_state", "is_counted"},
    "transform": {"changes_state", "is_counted"},
    "bootstrap": {"begins_job", "restores_state", "is_counted"},
    "import": {"begins_job", "starts_elsewhere", "restores_state", "is_counted"},
    "compaction": {"is_in_background"},
    "retention": {"is_in_background"},
    "rescale": set(),
    "restore": {"moves_head", "starts_elsewhere", "restores_state"},
    "promote": {"moves_head", "starts_elsewhere"},
}
PROPERTIES = sorted(name for name, one in vars(CheckpointKind).items() if isinstance(one, property))


@pytest.mark.parametrize("kind", FACTS)
def test_what_follows_from_a_kind(kind: str) -> None:
    assert {name for name in PROPERTIES if getattr(CheckpointKind(kind), name)} == FACTS[kind]


def test_every_kind_is_there_and_each_property_is_of_use() -> None:
    assert set(FACTS) == set(CheckpointKind)
    assert set().union(*FACTS.values()) == set(PROPERTIES)


def stored(kind: str) -> pa.Table:
    """One row as the table holds it."""
    array = ROW_TYPE.to_arrow([checkpoint(1)], storage=True)
    table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(array)])
    at = table.schema.get_field_index("kind")
    return with_digests(table.set_column(at, table.schema.field(at), pa.array([kind], pa.string())))


@pytest.mark.parametrize("kind", FACTS)
def test_a_row_stores_the_text_and_has_the_kind(kind: str) -> None:
    row = checkpoint(1, kind=kind)
    assert row.kind is CheckpointKind(kind)
    assert ROW_TYPE.to_arrow([row], storage=True).field("kind").to_pylist() == [kind]
    (back,) = checkpoints_in(stored(kind), where="table")
    assert back.kind is row.kind
    assert row_digest(row) == row_digest(vars(row) | {"kind": kind})


def test_a_kind_of_a_newer_version_is_refused() -> None:
    with pytest.raises(RootError, match=r"of the kind 'fork', which this version does not know.* Upgrade"):
        checkpoints_in(stored("fork"), where="table")


def test_a_kind_that_was_altered_is_damage() -> None:
    table = stored("compaction")
    at = table.schema.get_field_index("kind")
    altered = table.set_column(at, table.schema.field(at), pa.array(["fork"], pa.string()))
    with pytest.raises(DamagedFileError, match="checkpoint 1 "):
        checkpoints_in(altered, where="table")
