"""``durability``: whoever makes an engine says it, and everything that commits goes by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from state_engine import StateEngine
from state_engine.cli import session as cli_session
from state_engine.core.errors import ConfigurationError, SettingsError
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.engine import context
from state_engine.machine.settings import load
from state_engine.publishing import publishers
from state_engine.sinks.foreach_batch import ForeachBatchPublisher
from state_engine.storage.delta.log_tail import LogDurability
from state_engine.storage.stores.durability import Durability

SESSION: Any = SimpleNamespace(_jsc=None, renew=lambda: None, _jsparkSession=None)
EACH: list[Durability] = ["sync", "os"]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that only record their arguments."""

    def kernel(spark: Any, *, lock_timeout_s: float, durability: Durability, checks: Any) -> Any:
        return SimpleNamespace(
            spark=spark, disk=LogDurability(durability), close=lambda: None, write_new=None
        )

    monkeypatch.setattr(context, "DeltaKernel", kernel)
    monkeypatch.setattr(context, "EngineSession", lambda user: user)
    monkeypatch.setattr(context, "active_session", lambda: None)
    monkeypatch.setattr(context, "activate", lambda java: None)
    monkeypatch.setattr(context, "check_session", lambda spark: None)
    monkeypatch.setattr(context, "ship_code", lambda spark: None)
    monkeypatch.setattr(context, "reach_stores", lambda spark: None)
    monkeypatch.setattr(context, "StoreChecks", lambda *_, **__: SimpleNamespace(check_configured=str))
    monkeypatch.setattr("state_engine.spark.session.local_session", lambda *_: SESSION)
    monkeypatch.setattr(SparkContext, "_active_spark_context", SESSION)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root that the settings of the current directory name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATELAKE__ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.mark.parametrize("durability", EACH)
def test_an_argument_of_the_engine(durability: Durability, root: Path) -> None:
    assert StateEngine(root, SESSION, durability=durability).kernel.disk.durability == durability


def test_sync_is_the_default_everywhere(root: Path) -> None:
    assert StateEngine(root, SESSION).kernel.disk.durability == "sync"
    with cli_session.opened() as engine:
        assert engine.kernel.disk.durability == "sync"
    assert StateEngineResource(root=str(root)).engine().kernel.disk.durability == "sync"


@pytest.mark.parametrize("durability", EACH)
@pytest.mark.parametrize("origin", ["file", "environment"])
def test_a_setting_for_commands_and_dagster(
    origin: str, durability: Durability, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if origin == "file":
        (root.parent / "statelake.toml").write_text(f'durability = "{durability}"\n')
    else:
        (root.parent / "statelake.toml").write_text('durability = "sync"\n')
        monkeypatch.setenv("STATELAKE__DURABILITY", durability)
    with cli_session.opened() as engine:
        assert engine.kernel.disk.durability == durability
    assert StateEngineResource(root=str(root)).engine().kernel.disk.durability == durability


def test_anything_else_is_refused(root: Path, tmp_path: Path) -> None:
    wrong: Any = "fsync"
    with pytest.raises(ConfigurationError, match="durability must be 'sync' or 'os', not 'fsync'"):
        StateEngine(root, SESSION, durability=wrong)
    with pytest.raises(SettingsError, match="durability"):
        load(environ={"STATELAKE__DURABILITY": "fsync"}, directory=tmp_path)


@pytest.mark.parametrize("durability", EACH)
def test_directories_of_files_go_by_it_as_tables_do(
    durability: Durability, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Durability] = []
    monkeypatch.setattr(publishers, "FilePublisher", lambda one, _: given.append(one))
    tables: Any = SimpleNamespace(layout=SimpleNamespace(root=str(root)))
    kernel = StateEngine(root, SESSION, durability=durability).kernel
    publishers.publishers(kernel, tables, ForeachBatchPublisher(kernel))
    assert given == [durability]
