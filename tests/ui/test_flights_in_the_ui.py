"""Dagster's web interface in a real browser with real runs: assets, materialisations, restore, rescale, backfills.

The tests are one story in the order in which they stand here. After each click the page is compared with the engine's
own tables: one of them alone could be wrong.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from state_engine import CheckpointRow
from tests.ui.dagster_pages import Ui
from tests.ui.server import Site, Tables

pytestmark = [pytest.mark.ui, pytest.mark.spark, pytest.mark.timeout(1800)]

GROUPS = ("flights", "flights_operations", "daily_delays", "daily_delays_operations")
STATES = ("airports", "last_flight", "recent_delays", "totals")
SINKS = ("plane_delays", "route_ranking")


def published(site: Site, sink: str) -> int:
    """Rows of a sink, as another reader of Delta tables counts them."""
    table = DeltaTable(str(site.home / "sinks" / "flights" / sink))
    return int(table.to_pyarrow_table(columns=["departed_at"]).num_rows)


def left(feed: Path) -> list[int]:
    """Flights that left, of each file of a feed."""
    times = [pq.read_table(file, columns=["dep_time"])["dep_time"] for file in sorted(feed.iterdir())]
    return [len(column) - column.null_count for column in times]


def rows_of_days(site: Site) -> list[tuple[object, ...]]:
    """All rows of the sink of `daily_delays`."""
    table = DeltaTable(str(site.home / "sinks" / "daily_delays" / "delays")).to_pyarrow_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def parallelism(row: CheckpointRow) -> set[int]:
    return {operator.parallelism for operator in row.operators}


def test_groups_and_lineage_are_there_before_anything_ran(ui: Ui, tables: Tables) -> None:
    ui.go("assets")
    ui.sees(*GROUPS)

    ui.lineage("flights")
    ui.sees("checkpoint", *SINKS, *STATES, "Materialize all (7)")
    assert tables.status()["state"] == "never_ran"


def test_a_click_on_materialize_runs_micro_batches_and_checks_them(
    ui: Ui, site: Site, tables: Tables
) -> None:
    run_id = ui.materialize("flights/sinks/plane_delays")
    ui.ends_with("Success", run_id)
    first, second = tables.rows()
    expected = left(site.feeds[0])
    assert [first.kind, second.kind] == ["checkpoint", "checkpoint"]
    assert [row.requested_by for row in (first, second)] == [f"dagster run {run_id}"] * 2
    assert [sink.rows for sink in second.sinks] == [expected[1]] * 2
    status = tables.status()
    assert (status["state"], status["head_id"], status["unpublished"]) == ("ok", 2, [])
    assert status["lag"] == {"flights": False}
    assert published(site, "plane_delays") == published(site, "route_ranking") == sum(expected)

    assert ui.newest_event("flights/sinks/plane_delays", "rows_out")["rows_out"] == str(sum(expected))
    ui.asset("flights/sinks/plane_delays", view="checks")
    ui.sees("aircraft_is_there", "no_flight_twice", "Passed")
    shown = ui.newest_event("flights/checkpoint", "rows_in", "durations_and_lag")
    assert (shown["rows_in"], shown["write_id"]) == (str(second.rows_in), second.write_id)
    assert ui.pictures() >= 2
    ui.picture("dagster-checkpoint")
    assert ui.plots("flights/checkpoint") >= 5
    ui.launchpad("flights__check")
    ui.ends_with("Success", ui.launch())
    with ui.tall():
        ui.lineage("flights", zoom_out=3)
        ui.sees(re.compile("^Materialized"), "8 / 8 Passed")
        ui.picture("dagster-lineage")


def test_nonsense_in_the_launchpad_is_refused_in_words(ui: Ui, tables: Tables) -> None:
    before = tables.rows()
    ui.launchpad("flights__rescale")
    ui.type_config("ops:\n  flights_rescale:\n    config:\n      parallelism: many\n")
    ui.sees(re.compile('parallelism. Value "many" of type .* is not valid for expected type "Int"'))
    assert ui.button("Launch Run").is_disabled()
    ui.picture("dagster-launchpad")

    ui.launchpad("flights__recover")
    ui.type_config("ops:\n  flights_recover:\n    config:\n      dry_run: false\n")
    ui.sees("No errors")
    ui.ends_with("Failure", ui.launch())
    ui.sees(re.compile("name it by checkpoint_id or savepoint"))
    assert tables.rows() == before


def test_recovery_is_a_dry_run_first(ui: Ui, site: Site, tables: Tables) -> None:
    kept, withdrawn = left(site.feeds[0])
    ui.launchpad("flights__recover")
    ui.type_config("ops:\n  flights_recover:\n    config:\n      checkpoint_id: 1\n")
    ui.sees("No errors")
    ui.ends_with("Success", ui.launch())
    assert tables.status()["head_id"] == 2
    assert published(site, "plane_delays") == kept + withdrawn

    ui.launchpad("flights__recover")
    ui.type_config("ops:\n  flights_recover:\n    config:\n      checkpoint_id: 1\n      dry_run: false\n")
    ui.sees("No errors")
    run_id = ui.launch()
    ui.ends_with("Success", run_id)
    shown = ui.newest_event("flights/operations/head", "restored_checkpoint_id", "verified_files")
    assert (shown["restored_checkpoint_id"], shown["kind"]) == ("1", "restore")
    assert [(r.checkpoint_id, r.parent_id, r.kind) for r in tables.rows()][2:] == [(3, 1, "restore")]
    assert tables.head().requested_by == f"dagster run {run_id}"
    assert published(site, "plane_delays") == published(site, "route_ranking") == kept
    assert tables.status()["lag"] == {"flights": True}


def test_rescaling_holds_for_the_runs_after_it(ui: Ui, site: Site, tables: Tables) -> None:
    ui.launchpad("flights__rescale")
    ui.type_config("ops:\n  flights_rescale:\n    config:\n      parallelism: 8\n")
    ui.sees("No errors")
    ui.ends_with("Success", ui.launch())
    assert ui.newest_event("flights/operations/layout", "subtasks")["subtasks"] == "16"
    assert (tables.head().kind, parallelism(tables.head())) == ("rescale", {8})

    site.arrive(3)
    ui.ends_with("Success", ui.materialize("flights/sinks/plane_delays"))
    assert [row.kind for row in tables.rows()][4:] == ["checkpoint", "checkpoint"]
    assert parallelism(tables.head()) == {8}
    assert published(site, "plane_delays") == sum(left(site.feeds[0]))
    printed = tables.checkpoints()
    assert all(kind in printed for kind in ("restore", "rescale"))


def test_partitions_are_chosen_run_and_run_again(ui: Ui, site: Site, tables: Tables) -> None:
    ui.backfill_ends_with("Succeeded", ui.backfill("daily_delays/sinks/delays", "[2013-01-01...2013-01-03]"))
    assert [(row.kind, row.partition) for row in tables.rows("daily_delays")] == [
        ("checkpoint", f"2013-01-0{day}") for day in (1, 2, 3)
    ]
    first = rows_of_days(site)
    ui.asset("daily_delays/sinks/delays", view="partitions")
    ui.sees("Materialized (3)", "Missing (362)")

    ui.backfill_ends_with("Succeeded", ui.backfill("daily_delays/sinks/delays", "[2013-01-01...2013-01-02]"))
    assert tables.head("daily_delays").kind == "promote"
    assert rows_of_days(site) == first
    shown = ui.newest_event("daily_delays/checkpoint", "partitions_done", "partitions_stale")
    assert (shown["partitions_done"], shown["partitions_stale"]) == ("3", "0")
    ui.asset("daily_delays/sinks/delays", view="partitions")
    ui.sees("Materialized (3)", "Missing (362)")
    ui.partition("2013-01-02")
    ui.sees("rows_out")
    ui.picture("dagster-partitions")
