"""Jars of our own Java classes: where they are checked, and how they are made.

They are made with Janino, the compiler that Spark brings, so that any machine with Spark makes the same bytes from the
same source; tests compare them.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from state_engine.core.errors import JarsError
from state_engine.storage.java_gateway import java_class

_MADE = (1980, 1, 1, 0, 0, 0)
"""The time of all files in a jar: the same source makes the same jar."""


@dataclass(frozen=True)
class CompiledJar:
    """A jar of one class, beside its source."""

    source: Path
    jar: Path
    sha256: str
    name: str

    def path(self) -> Path:
        if hashlib.sha256(self.jar.read_bytes()).hexdigest() != self.sha256:
            raise JarsError(
                f"{self.jar} is not the file that this version came with: install statelake again"
            )
        return self.jar

    def compiled(self, jvm: Any) -> bytes:
        """The content of the jar, made of the source."""
        compiler = java_class(jvm, "org.codehaus.janino.SimpleCompiler")()
        compiler.setParentClassLoader(
            java_class(jvm, "java.lang.Thread").currentThread().getContextClassLoader()
        )
        compiler.setTargetVersion(11)
        compiler.cook(self.source.read_text(encoding="utf-8"))
        made = BytesIO()
        with zipfile.ZipFile(made, "w") as jar:
            entries = {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n\r\n"}
            entries |= {
                f"{name.replace('.', '/')}.class": bytes(c) for name, c in compiler.getBytecodes().items()
            }
            for name in sorted(entries, key=lambda name: (not name.startswith("META-INF"), name)):
                jar.writestr(zipfile.ZipInfo(name, _MADE), entries[name])
        assert f"{self.name.replace('.', '/')}.class" in entries
        return made.getvalue()

    def make(self, jvm: Any) -> str:
        """Write the jar again; the hash that belongs to it."""
        content = self.compiled(jvm)
        self.jar.write_bytes(content)
        return hashlib.sha256(content).hexdigest()
