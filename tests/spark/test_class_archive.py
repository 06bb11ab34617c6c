"""The archive of Spark's classes: which one is used, a bad one is ignored, and a real one takes effect."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from state_engine.machine.java import JavaHome, find_java_home
from state_engine.spark.class_archive import archive_options, class_archive, make_class_archive

_START = """
import sys
from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session

options = {"spark.driver.extraJavaOptions": f"{sys.argv[1]} -Xlog:class+load:file={sys.argv[2]}"}
print(local_session(SparkSettings(master="local[1]", options=options)).range(7).count())
"""


@pytest.fixture
def java() -> JavaHome:
    return find_java_home(environ=os.environ)


def test_an_archive_belongs_to_one_java_and_is_taken_only_where_it_is(java: JavaHome, tmp_path: Path) -> None:
    archive = class_archive(java, cache_dir=tmp_path)
    assert archive != class_archive(replace(java, path=tmp_path), cache_dir=tmp_path)
    assert java.version in archive.name
    assert archive_options(java, cache_dir=tmp_path) == ""
    archive.parent.mkdir()
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in archive_options(java, cache_dir=tmp_path).split()
    assert make_class_archive(java, cache_dir=tmp_path) == archive


def test_java_leaves_a_bad_archive_aside_without_a_word(java: JavaHome, tmp_path: Path) -> None:
    archive = class_archive(java, cache_dir=tmp_path)
    archive.parent.mkdir()
    archive.write_bytes(b"no archive")
    options = archive_options(java, cache_dir=tmp_path).split()
    done = subprocess.run(
        [java.executable, *options, "--version"], capture_output=True, text=True, check=True
    )
    assert java.version in done.stdout
    assert "archive" not in done.stdout + done.stderr


def test_where_java_does_not_start_there_is_no_archive(java: JavaHome, tmp_path: Path) -> None:
    missing = replace(java, path=tmp_path / "no-java")
    base = missing.path / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    assert make_class_archive(missing, cache_dir=tmp_path / "cache") is None
    assert list((tmp_path / "cache" / "classes").iterdir()) == []


def test_a_java_without_an_archive_of_its_own_is_not_even_started(java: JavaHome, tmp_path: Path) -> None:
    stripped = replace(java, path=tmp_path / "stripped")
    assert make_class_archive(stripped, cache_dir=tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
def test_spark_takes_its_classes_from_the_archive(java: JavaHome, tmp_path: Path) -> None:
    assert make_class_archive(java, cache_dir=tmp_path) is not None
    log = tmp_path / "classes.log"
    options = archive_options(java, cache_dir=tmp_path)
    command = [sys.executable, "-c", _START, options, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "7"
    loaded = log.read_text().splitlines()
    assert sum("shared objects file (top)" in line for line in loaded) > len(loaded) / 3
