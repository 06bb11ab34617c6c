"""Published tables in Dagster: their assets, what moved, what stops a run, and what is done about it there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    DeltaSource,
    DeltaStateTable,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    SqlStateTable,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    avg,
    count,
    max_,
    sum_,
)
from state_engine.dagster import JobOptions, statelake_definitions
from tests.dagster.sites import QUIET

PAYMENT = "account string, amount bigint"
OPTIONS = JobOptions(operations=["tables", "head"], checks=["tables", "moves_on"])


class Balance(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.amount == 0:
            self.balance.clear()
            return
        self.balance.update((self.balance.value() or 0) + value.amount)
        yield value


def accounts(directory: Path) -> StatefulJob:
    job = StatefulJob("accounts")
    source = FileSource(str(directory / "feed"), schema=PAYMENT, max_rows_per_batch=2)
    payments = job.source("payments", source).key_by("account")
    balances = payments.process(Balance(), output_type=PAYMENT, uid="balances")
    balances.publish_state("balance", DeltaStateTable(str(directory / "balance")))
    totals = payments.aggregate(n=count(), total=sum_("amount"), mean=avg("amount"), most=max_("amount"))
    totals.uid("totals").sink("totals", DeltaSink(str(directory / "totals")))
    return job


def reports(directory: Path) -> StatefulJob:
    job = StatefulJob("reports")
    job.source("rows", DeltaSource(str(directory / "balance"))).sink(
        "copy", DeltaSink(str(directory / "copy"))
    )
    return job


class World:
    """A feed, a root, and an ephemeral instance of Dagster."""

    def __init__(self, directory: Path, instance: dg.DagsterInstance) -> None:
        self.directory, self.instance = directory, instance
        self.path = str(directory / "balance")
        self.defs = statelake_definitions(
            [accounts(directory)], root=str(directory / "state"), options=OPTIONS
        )

    def arrive(self, name: str, rows: list[tuple[str, int]]) -> None:
        names, amounts = zip(*rows, strict=True)
        (self.directory / "feed").mkdir(exist_ok=True)
        pq.write_table(
            pa.table({"account": names, "amount": amounts}), self.directory / "feed" / f"{name}.parquet"
        )

    def run(self, job: str = "accounts", *, fails: bool = False, **config: Any) -> dg.ExecuteInProcessResult:
        ops = {"ops": {f"{job.replace('__', '_')}": {"config": config}}} if config else {}
        done = self.defs.resolve_job_def(job).execute_in_process(
            instance=self.instance, raise_on_error=False, run_config={**QUIET, **ops}
        )
        assert done.success is not fails, [] if fails else error_of(done)
        return done

    def shown(self, *key: str) -> dict[str, Any]:
        """Metadata of the newest materialisation of an asset of the job."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey(["accounts", *key]))
        assert event is not None
        assert event.asset_materialization is not None
        return {name: value.value for name, value in event.asset_materialization.metadata.items()}

    def check(self) -> dg.AssetCheckEvaluation:
        selection = dg.AssetSelection.checks(
            dg.AssetCheckKey(dg.AssetKey(["accounts", "tables", "balance"]), "shows_state")
        )
        job = dg.define_asset_job("checks_alone", selection=selection)
        merged = dg.Definitions.merge(self.defs, dg.Definitions(jobs=[job]))
        done = merged.resolve_job_def("checks_alone").execute_in_process(
            instance=self.instance, run_config=QUIET, raise_on_error=False
        )
        assert done.success, "the check blocks nothing"
        (evaluation,) = done.get_asset_check_evaluations()
        return evaluation


def error_of(done: dg.ExecuteInProcessResult) -> str:
    (failure,) = [e for e in done.all_events if e.is_step_failure]
    return str(failure.step_failure_data.error)


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    with dg.DagsterInstance.ephemeral() as instance:
        made = World(tmp_path, instance)
        made.arrive("a", [("ada", 5), ("bob", 2), ("ada", -1)])
        made.run()
        yield made


def test_the_asset_of_a_table_is_below_its_state_and_above_who_reads_it(tmp_path: Path) -> None:
    job = accounts(tmp_path)
    job.stream(job.operators["balances"]).publish_state(
        "balance", SqlStateTable("sqlite:////data/reports.db", "balance"), name="in_database"
    )
    everything = JobOptions.everything()
    defs = statelake_definitions([job, reports(tmp_path)], root=str(tmp_path / "state"), options=everything)
    by_key = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    table = by_key["accounts/tables/balance"]
    assert [dep.asset_key.to_user_string() for dep in table.deps] == ["accounts/state/balances/balance"]
    assert table.metadata["dagster/uri"] == f"file://{tmp_path}/balance"
    assert table.kinds == {"pyspark", "deltalake"}
    assert columns(table) == [("account", "STRING"), ("value", "BIGINT")]
    in_database = by_key["accounts/tables/in_database"]
    assert (in_database.metadata["place"], "dagster/uri" in in_database.metadata) == (
        "sqlite:////data/reports.db#balance",
        False,
    )
    upstream = {dep.asset_key.to_user_string() for dep in by_key["reports/checkpoint"].deps}
    assert upstream == {"accounts/tables/balance"}
    assert {key for key in by_key if "operations/tables" in key} == {"accounts/operations/tables"}
    checks = {
        str(key.asset_key.path[-1])
        for c in defs.asset_checks or []
        for key in c.check_keys
        if key.name == "shows_state"
    }
    assert checks == {"balance", "in_database"}
    assert "accounts__tables" in {one.name for one in defs.resolve_all_job_defs()}
    assert "reports__tables" not in {one.name for one in defs.resolve_all_job_defs()}


def test_columns_and_states_of_declared_aggregates_are_shown(tmp_path: Path) -> None:
    defs = statelake_definitions([accounts(tmp_path)], root=str(tmp_path / "state"))
    by_key = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert columns(by_key["accounts/sinks/totals"]) == [
        ("account", "STRING"), ("n", "BIGINT"), ("total", "BIGINT"), ("mean", "DOUBLE"), ("most", "BIGINT"),
    ]  # fmt: skip
    assert "accounts/state/totals/aggregates" in by_key


def columns(spec: dg.AssetSpec) -> list[tuple[str, str]]:
    schema = spec.metadata["dagster/column_schema"]
    return [(column.name, column.type.upper()) for column in schema.columns]


def test_a_run_shows_what_moved(world: World) -> None:
    assert world.shown("tables", "balance") == {
        "rows_came": 3, "rows_went": 0, "shows_checkpoint": 2, "compared_as_a_whole": "it is new",
    }  # fmt: skip
    world.arrive("b", [("bob", 0), ("ada", 1), ("eve", 1)])
    world.run()
    assert world.shown("tables", "balance") == {"rows_came": 2, "rows_went": 1, "shows_checkpoint": 4}
    event = world.instance.get_latest_materialization_event(dg.AssetKey(["accounts", "tables", "balance"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert (event.asset_materialization.tags or {})["dagster/data_version"] == "4"
    assert world.check().passed


def test_a_table_that_somebody_changed_fails_the_run_with_the_ways_out_and_can_be_rebuilt(
    world: World,
) -> None:
    pl.DataFrame({"account": ["eve"], "value": [7]}).write_delta(world.path, mode="append")
    evaluation = world.check()
    assert not evaluation.passed
    assert "changed rows that the state published" in (evaluation.description or "")
    world.arrive("b", [("ada", 1)])
    failure = error_of(world.run(fails=True))
    assert "table 'balance': version" in failure
    assert "statelake rebuild-table accounts balance" in failure
    assert "statelake accept-table accounts balance" in error_of(world.run("accounts__tables", fails=True))

    world.run("accounts__tables", rebuild=["balance"])
    shown = world.shown("operations", "tables")
    assert shown["dry_run"] is True
    assert "| balance | 1 | 1 | it would be rebuilt |" in shown["tables"]
    assert ("eve", 7) in pl.read_delta(world.path).rows(), "a dry run changes nothing"

    done = world.run("accounts__tables", rebuild=["balance"], dry_run=False)
    shown = world.shown("operations", "tables")
    assert "| balance | 2 | 0 | it was rebuilt |" in shown["tables"]
    assert (shown["differ"], shown["published_pending"]) == ([], [])
    assert sorted(pl.read_delta(world.path).rows()) == [("ada", 5), ("bob", 2)]
    assert world.shown("checkpoint")["kind"] == "table rebuilt"
    assert world.shown("checkpoint")["requested_by"] == f"dagster run {done.run_id}"
    assert world.check().passed
    world.arrive("c", [("ada", 1)])
    world.run()
    assert world.shown("tables", "balance")["shows_checkpoint"] == 5
    assert sorted(pl.read_delta(world.path).rows()) == [("ada", 6), ("bob", 2)]


def test_a_change_that_is_accepted_is_shown_by_the_check_as_a_difference(world: World) -> None:
    DeltaTable(world.path).update(predicate="account = 'bob'", updates={"value": "-1"})
    world.run("accounts__tables", accept=["balance"], dry_run=False)
    shown = world.shown("operations", "tables")
    assert "| balance | 1 | 0 | it was compared |" in shown["tables"]
    assert shown["differ"] == ["balance"]
    evaluation = world.check()
    assert not evaluation.passed
    assert evaluation.description == "1 row is missing or different, 0 rows are too many"
    assert evaluation.metadata["rows_missing"].value == 1


def test_a_restore_shows_what_tables_get(world: World) -> None:
    world.run("accounts__recover", checkpoint_id=1)
    assert "| balance | 1 | 0 |  |" in world.shown("operations", "head")["tables"]
    world.run("accounts__recover", checkpoint_id=1, dry_run=False)
    assert sorted(pl.read_delta(world.path).rows()) == [("ada", 5), ("bob", 2)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dry_run": False}, "dry_run: false rebuilds or accepts tables"),
        ({"rebuild": ["balance"], "accept": ["balance"]}, "either rebuild or accept the table 'balance'"),
    ],
    ids=str,
)
def test_nonsense_is_refused(world: World, config: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        world.defs.resolve_job_def("accounts__tables").execute_in_process(
            instance=world.instance,
            run_config={**QUIET, "ops": {"accounts_tables": {"config": config}}},
        )


def test_what_lags_is_brought_to_the_head_by_a_plain_click(world: World, spark: SparkSession) -> None:
    shutil.rmtree(world.path)
    world.run("accounts__tables")
    assert sorted(pl.read_delta(world.path).rows()) == [("ada", 4), ("bob", 2)]
    with StateEngine(str(world.directory / "state"), spark) as engine:
        assert engine.published("accounts").verify("balance").rows == 0
