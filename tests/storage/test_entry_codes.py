"""Numbers of keys: by their hashes, and by the keys where hashes of two are the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from state_engine.storage.state.changelog_write import file_order
from state_engine.storage.state.entry_codes import entry_codes, key_codes

KEYS = st.tuples(st.sampled_from([0.5, 1.0, None]), st.sampled_from(["a", "b", None]))


@given(st.lists(KEYS, max_size=40), st.integers(1, 20))
def test_rows_have_one_number_where_their_keys_are_equal(keys: list[tuple[float, str]], hashes: int) -> None:
    columns = [pa.array([k[0] for k in keys], pa.float64()), pa.array([k[1] for k in keys], pa.string())]
    # of few hashes several keys have one, but equal keys have one hash
    of_rows = np.array([hash(key) % hashes for key in keys], np.int64)
    codes, rows = key_codes(columns, of_rows)
    expected = entry_codes(columns)
    assert len(rows) == len(set(keys))
    assert len(set(zip(codes.tolist(), expected.tolist(), strict=True))) == len(set(keys))
    assert sorted(set(codes.tolist())) == list(range(len(rows)))
    assert codes[rows].tolist() == list(range(len(rows)))


def test_rows_of_one_hash_stay_in_their_order() -> None:
    hashes = np.random.default_rng(1).integers(0, 5, 1000)
    order = file_order(hashes, np.mod(hashes, 2))
    assert order.tolist() == sorted(range(1000), key=lambda row: (hashes[row] % 2, hashes[row], row))
