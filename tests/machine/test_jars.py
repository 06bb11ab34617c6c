"""Delta's jars: nothing unchecked is handed out, nothing half-fetched stays behind, failures say what to do."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from state_engine.core.errors import JarsError
from state_engine.machine import jars, trust_store
from state_engine.machine.jars import (
    JarSet,
    delta_jars,
    jar_name,
    jar_problems,
    jars_of,
    jars_that_are_there,
    kafka_jars,
    s3_jars,
)
from state_engine.machine.java import JavaHome, find_java_home
from state_engine.machine.spark_versions import SPARK_VERSIONS, SparkVersion, installed_spark

EVERY_SET = [jars(spark) for spark in SPARK_VERSIONS.values() for jars in (delta_jars, s3_jars, kafka_jars)]

NO_JAVA = JavaHome(path=Path("/nowhere"), version="17", origin="test")


CONTENTS = {f"io.delta:{name}:4.4.0": f"content of {name}".encode() for name in ("one", "two", "three")}
"""Small contents in place of real jars."""


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> JarSet:
    """A set of jars with these contents, in a cache of its own."""
    monkeypatch.setattr(jars.platformdirs, "user_cache_path", lambda _: tmp_path / "cache")
    pinned = {coordinate: hashlib.sha256(content).hexdigest() for coordinate, content in CONTENTS.items()}
    return JarSet(name="Some jars", directory="some", pinned=pinned, excludes=(), setup="statelake setup")


def fill(directory: Path, contents: dict[str, bytes], *, prefix: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for coordinate, content in contents.items():
        (directory / f"{prefix}{jar_name(coordinate)}").write_bytes(content)


def serve(monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes], failures: list[str]) -> list[str]:
    """Stands in for Ivy: fails with each given text in turn, then delivers; returns the options it was given."""
    calls: list[str] = []

    def run_ivy(_: JarSet, workspace: Path, *, java: JavaHome, java_options: str) -> str:
        calls.append(java_options)
        if failures:
            return failures.pop(0)
        fill(workspace / "ivy" / "jars", contents, prefix="io.delta_")
        return ""

    monkeypatch.setattr(jars, "_run_ivy", run_ivy)
    return calls


def test_fetched_once_then_only_checked(monkeypatch: pytest.MonkeyPatch, some: JarSet) -> None:
    calls = serve(monkeypatch, CONTENTS, [])
    assert jars_that_are_there(some) == []
    first = jars_of(some, java=NO_JAVA)
    assert [path.name for path in first] == ["one-4.4.0.jar", "two-4.4.0.jar", "three-4.4.0.jar"]
    assert all(path.parent == some.cache for path in first)
    assert jars_of(some, java=NO_JAVA) == first == jars_that_are_there(some)
    assert len(calls) == 1


def test_a_damaged_jar_is_fetched_again(monkeypatch: pytest.MonkeyPatch, some: JarSet) -> None:
    fill(some.cache, CONTENTS)
    (some.cache / "one-4.4.0.jar").write_bytes(b"half")
    with pytest.raises(JarsError, match=r"one-4.4.0.jar is not the pinned file.*run statelake setup"):
        jars_that_are_there(some)
    serve(monkeypatch, CONTENTS, [])
    jars_of(some, java=NO_JAVA)
    assert jar_problems(some, some.cache) == []


def test_another_content_than_pinned_is_refused_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, some: JarSet
) -> None:
    serve(monkeypatch, CONTENTS | {"io.delta:one:4.4.0": b"tampered"}, [])
    with pytest.raises(JarsError, match="is pinned"):
        jars_of(some, java=NO_JAVA)
    assert list(some.cache.parent.rglob("*.jar")) == []


def test_a_failed_download_says_what_failed_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, some: JarSet
) -> None:
    noise = "\n".join(f"\t:: resolving {i}" for i in range(50))
    serve(monkeypatch, CONTENTS, [f"{noise}\nunresolved dependency: io.delta#one: not found\n{noise}"])
    with pytest.raises(JarsError) as caught:
        jars_of(some, java=NO_JAVA)
    message = str(caught.value)
    assert "unresolved dependency: io.delta#one" in message
    assert ":: resolving" not in message
    assert "STATELAKE__SPARK__JARS_DIR" in message
    assert "jars_dir" in message
    assert "io.delta:two:4.4.0" in message


def test_an_unknown_authority_is_retried_with_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, some: JarSet
) -> None:
    calls = serve(monkeypatch, CONTENTS, ["SSLHandshakeException: PKIX path building failed"])
    jars_of(some, java=NO_JAVA)
    assert calls[0] == ""
    assert "-Djavax.net.ssl.trustStore=" in calls[1]


def test_a_configured_directory_is_only_read(
    monkeypatch: pytest.MonkeyPatch, some: JarSet, tmp_path: Path
) -> None:
    calls = serve(monkeypatch, CONTENTS, [])
    own = tmp_path / "own"
    fill(own, CONTENTS)
    assert len(jars_of(some, own)) == 3
    (own / "one-4.4.0.jar").unlink()
    with pytest.raises(JarsError, match=r"one-4.4.0.jar is missing"):
        jars_of(some, own)
    assert calls == []
    assert not (own / "one-4.4.0.jar").exists()


@pytest.mark.parametrize("which", EVERY_SET, ids=lambda which: f"{which.directory}-{len(which.pinned)}")
def test_the_excludes_keep_every_wanted_artifact(which: JarSet) -> None:
    # Ivy matches group:module; a glob that hits a wanted one would leave it out.
    for coordinate in which.pinned:
        module = coordinate.rpartition(":")[0]
        assert not any(fnmatch(module, pattern) for pattern in which.excludes)


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


@pytest.mark.parametrize("jars", [delta_jars, s3_jars, kafka_jars])
def test_the_cached_jars_are_the_pinned_ones(jars: Callable[[SparkVersion], JarSet], tmp_path: Path) -> None:
    which = jars(installed_spark())
    # Against the real cache when there is one: the pins in the module are those of real files.
    if not which.cache.is_dir():
        pytest.skip("no jars were fetched on this machine yet")
    assert jar_problems(which, which.cache) == []
    copy = tmp_path / "copy"
    shutil.copytree(which.cache, copy)
    first = which.paths(copy)[0]
    first.write_bytes(b"")
    assert [problem.split()[0] for problem in jar_problems(which, copy)] == [first.name]
