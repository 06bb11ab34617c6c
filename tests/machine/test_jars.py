"""Delta's jars: nothing unchecked is handed out, nothing half-fetched stays behind, failures say what to do."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from state_engine.core.errors import JarsError
from state_engine.machine import jars, trust_store
from state_engine.machine.jars import PINNED, delta_jars, jar_name, jar_problems
from state_engine.machine.java import JavaHome, find_java_home

NO_JAVA = JavaHome(path=Path("/nowhere"), version="17", origin="test")


@pytest.fixture
def pins(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Small contents in place of the real jars, with their hashes pinned."""
    contents = {artifact: f"content of {artifact}".encode() for artifact in PINNED}
    pinned = {artifact: hashlib.sha256(content).hexdigest() for artifact, content in contents.items()}
    monkeypatch.setattr(jars, "PINNED", pinned)
    return contents


def fill(directory: Path, contents: dict[str, bytes], *, prefix: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for artifact, content in contents.items():
        (directory / f"{prefix}{jar_name(artifact)}").write_bytes(content)


def serve(monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes], failures: list[str]) -> list[str]:
    """Stands in for Ivy: fails with each given text in turn, then delivers; returns the options it was given."""
    calls: list[str] = []

    def run_ivy(workspace: Path, *, java: JavaHome, java_options: str) -> str:
        calls.append(java_options)
        if failures:
            return failures.pop(0)
        fill(workspace / "ivy" / "jars", contents, prefix="io.delta_")
        return ""

    monkeypatch.setattr(jars, "_run_ivy", run_ivy)
    return calls


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    directory = tmp_path / "cache" / "jars" / jars.DELTA_VERSION
    monkeypatch.setattr(jars, "default_jars_dir", lambda: directory)
    return directory


def test_fetched_once_then_only_checked(
    monkeypatch: pytest.MonkeyPatch, pins: dict[str, bytes], cache: Path
) -> None:
    calls = serve(monkeypatch, pins, [])
    first = delta_jars(java=NO_JAVA)
    assert [path.name for path in first] == [jar_name(artifact) for artifact in PINNED]
    assert all(path.parent == cache for path in first)
    assert delta_jars(java=NO_JAVA) == first
    assert len(calls) == 1


def test_a_damaged_jar_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch, pins: dict[str, bytes], cache: Path
) -> None:
    fill(cache, pins)
    (cache / jar_name("delta-storage")).write_bytes(b"half")
    serve(monkeypatch, pins, [])
    delta_jars(java=NO_JAVA)
    assert jar_problems(cache) == []


def test_another_content_than_pinned_is_refused_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, pins: dict[str, bytes], cache: Path
) -> None:
    serve(monkeypatch, pins | {"delta-storage": b"tampered"}, [])
    with pytest.raises(JarsError, match="is pinned"):
        delta_jars(java=NO_JAVA)
    assert list(cache.parent.rglob("*.jar")) == []


def test_a_failed_download_says_what_failed_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, pins: dict[str, bytes], cache: Path
) -> None:
    noise = "\n".join(f"\t:: resolving {i}" for i in range(50))
    serve(monkeypatch, pins, [f"{noise}\nunresolved dependency: io.delta#delta-storage: not found\n{noise}"])
    with pytest.raises(JarsError) as caught:
        delta_jars(java=NO_JAVA)
    message = str(caught.value)
    assert "unresolved dependency: io.delta#delta-storage" in message
    assert ":: resolving" not in message
    assert "STATELAKE__SPARK__JARS_DIR" in message
    assert "jars_dir" in message
    assert jar_name("delta-kernel-api") in message


def test_an_unknown_authority_is_retried_with_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, pins: dict[str, bytes], cache: Path
) -> None:
    calls = serve(monkeypatch, pins, ["SSLHandshakeException: PKIX path building failed"])
    delta_jars(java=NO_JAVA)
    assert calls[0] == ""
    assert "-Djavax.net.ssl.trustStore=" in calls[1]


def test_a_configured_directory_is_only_read(
    monkeypatch: pytest.MonkeyPatch, pins: dict[str, bytes], tmp_path: Path
) -> None:
    calls = serve(monkeypatch, pins, [])
    own = tmp_path / "own"
    fill(own, pins)
    assert len(delta_jars(own)) == len(PINNED)
    (own / jar_name("delta-storage")).unlink()
    with pytest.raises(JarsError, match=r"delta-storage-.*\.jar is missing"):
        delta_jars(own)
    assert calls == []
    assert not (own / jar_name("delta-storage")).exists()


def test_the_excludes_keep_every_wanted_artifact() -> None:
    # Ivy matches group:module; a glob that hits io.delta would leave nothing to fetch.
    for artifact in PINNED:
        assert not any(fnmatch(f"io.delta:{artifact}", pattern) for pattern in jars.EXCLUDES)


@pytest.mark.spark
def test_java_itself_reads_the_trust_store(tmp_path: Path) -> None:
    keytool = find_java_home(environ=os.environ).path / "bin" / "keytool"
    if not keytool.exists():
        pytest.skip("this Java has no keytool")
    authorities = trust_store.machine_authorities()
    store = tmp_path / "authorities.jks"
    store.write_bytes(trust_store.jks(authorities))
    command = [str(keytool), "-list", "-keystore", str(store), "-storepass", trust_store.STORE_PASSWORD]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stdout
    assert listed.stdout.count("trustedCertEntry") == len(authorities)


def test_the_cached_jars_are_the_pinned_ones(tmp_path: Path) -> None:
    # Against the real cache when there is one: the pins in the module are those of real files.
    real = jars.default_jars_dir()
    if not real.is_dir():
        pytest.skip("no jars were fetched on this machine yet")
    assert jar_problems(real) == []
    copy = tmp_path / "copy"
    shutil.copytree(real, copy)
    (copy / jar_name("delta-kernel-api")).write_bytes(b"")
    assert [problem.split()[0] for problem in jar_problems(copy)] == [jar_name("delta-kernel-api")]
