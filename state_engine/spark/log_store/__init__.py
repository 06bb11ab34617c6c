"""The jar of our log store, ``PutIfAbsentLogStore.java``: where it is, and how it is made.

``python -m state_engine.spark.log_store`` makes it with Janino, the compiler that Spark brings, so that any machine
with Spark makes the same bytes; a test compares them.
"""

from __future__ import annotations

import hashlib
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

from state_engine.core.errors import JarsError
from state_engine.storage.delta.java_calls import java_class
from state_engine.storage.delta.log_stores import PUT_IF_ABSENT

SOURCE = Path(__file__).with_name("PutIfAbsentLogStore.java")
JAR = Path(__file__).with_name("statelake-log-store.jar")
SHA256 = "88ffc6b041feefffebcf92bdc2a9e98ceb7d974ba9556d01ec7c33da1c999c3c"

_MADE = (1980, 1, 1, 0, 0, 0)
"""The time of all files in the jar: the same source makes the same jar."""


def log_store_jar() -> Path:
    """Path of the jar, checked.

    Raises:
        JarsError: the package is damaged.
    """
    if hashlib.sha256(JAR.read_bytes()).hexdigest() != SHA256:
        raise JarsError(f"{JAR} is not the file that this version came with: install statelake again")
    return JAR


def compiled(jvm: Any) -> bytes:
    """The content of the jar, made of the source.

    Args:
        jvm: of a session with Delta's jars.
    """
    compiler = java_class(jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(java_class(jvm, "java.lang.Thread").currentThread().getContextClassLoader())
    compiler.setTargetVersion(11)
    compiler.cook(SOURCE.read_text(encoding="utf-8"))
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as jar:
        entries = {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n\r\n"}
        entries |= {
            f"{name.replace('.', '/')}.class": bytes(c) for name, c in compiler.getBytecodes().items()
        }
        for name in sorted(entries, key=lambda name: (not name.startswith("META-INF"), name)):
            jar.writestr(zipfile.ZipInfo(name, _MADE), entries[name])
    assert f"{PUT_IF_ABSENT.replace('.', '/')}.class" in entries
    return made.getvalue()
