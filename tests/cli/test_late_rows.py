"""Late rows where the command line and SQL show checkpoints: over all sources, and by source."""

from __future__ import annotations

from rich.console import Console

from state_engine.cli.history import history, records
from state_engine.core.checkpoints.checkpoint import CheckpointRow, SourceProgress
from state_engine.queries.history_views import sources_table
from tests.core.checkpoints.rows import checkpoint, tree


def rows(*late: int) -> list[CheckpointRow]:
    """Checkpoints with so many late rows of each of two sources."""
    return [
        checkpoint(
            i,
            i - 1 or None,
            rows_in=9,
            sources=[SourceProgress(s, "", "", 9, None, behind_watermark=n) for s in "ab"],
        )
        for i, n in enumerate(late, 1)
    ]


def shown(late: list[CheckpointRow]) -> str:
    console = Console(width=200, record=True)
    console.print(history(late, last=9))
    return console.export_text()


def test_checkpoints_show_how_many_rows_were_late() -> None:
    listed = rows(0, 2)
    assert [one["behind_watermark"] for one in records(listed, last=9)] == [0, 4]
    assert "behind watermark" in shown(listed)
    assert "behind watermark" not in shown(rows(0, 0))


def test_sources_show_their_own() -> None:
    table = sources_table(tree(rows(0, 2)), [])
    assert table.select(["checkpoint_id", "source", "behind_watermark"]).to_pylist() == [
        {"checkpoint_id": i, "source": source, "behind_watermark": n}
        for i, n in ((1, 0), (2, 2))
        for source in "ab"
    ]
