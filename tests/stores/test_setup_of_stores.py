"""``statelake setup --store``: writers race on a store before any job is there, as often as one asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from state_engine.cli.main import app
from state_engine.core.errors import ConfigurationError, UnsafeStoreError
from tests.stores.test_store_checks import verdicts, without_condition
from tests.support import stores
from tests.support.store_proxy import StoreProxy

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_race", "spark")]


@pytest.fixture
def root(tmp_path: Path, store: StoreProxy, uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root in the store, which the settings of the current directory name."""
    (tmp_path / "statelake.toml").write_text(
        f"""
        root = "{uri}/root"
        [storage]
        endpoint = "{store.endpoint}"
        access_key_variable = "{stores.KEY}"
        secret_key_variable = "{stores.SECRET}"
        """
    )
    monkeypatch.chdir(tmp_path)
    return f"{uri}/root"


def set_up(uri: str) -> Result:
    return CliRunner().invoke(app, ["setup", "--store", uri])


def test_a_store_is_set_up_before_the_first_job(root: str) -> None:
    done = set_up(root)
    assert done.exit_code == 0, done.output
    assert "s3a://bucket with statelake.delta.PutIfAbsentLogStore" in done.stdout
    assert f"raced for {stores.QUICK_RACE} files, and exactly one created each" in done.stdout
    assert [verdict.put_if_absent for verdict in verdicts(root)] == [True]


def test_setup_looks_again_at_a_store_that_was_refused(root: str, uri: str, store: StoreProxy) -> None:
    store.fault = without_condition
    done = set_up(f"{uri}/sink")
    assert done.exit_code != 0
    assert isinstance(done.exception, UnsafeStoreError)
    assert f"statelake setup --store {uri}/sink looks again" in str(done.exception)
    assert [verdict.put_if_absent for verdict in verdicts(root)] == [False]
    store.fault = lambda _: None
    assert set_up(f"{uri}/sink").exit_code == 0
    assert [verdict.put_if_absent for verdict in verdicts(root)] == [True]


def test_local_disks_have_nothing_to_race_for(root: str, tmp_path: Path) -> None:
    done = set_up(str(tmp_path))
    assert isinstance(done.exception, ConfigurationError)
    assert "is local" in str(done.exception)
