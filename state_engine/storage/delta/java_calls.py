"""What is slow about calls of Java from Python, done once and kept: classes by name, and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any


def java_class(jvm: Any, name: str) -> Any:
    """A class of a session's JVM, to call; a ``JavaPackage`` where it has none of that name.

    ``jvm.org.apache.…`` would look for a class ``org``, then ``org.apache``, and so on, in every jar.
    """
    return getattr(jvm, name)


@lru_cache(maxsize=1)
def java_threads() -> ThreadPoolExecutor:
    """Threads of this process for what calls Java; as many as are busy at a time.

    They are kept, because py4j opens a connection for every new one, and Java starts a thread for that: milliseconds.
    What runs in them must not wait for another one of them.
    """
    return ThreadPoolExecutor(256, thread_name_prefix="statelake-java")


@lru_cache(maxsize=1)
def background_thread() -> ThreadPoolExecutor:
    """One thread of this process for what may wait, in the order in which it was asked for."""
    return ThreadPoolExecutor(1, thread_name_prefix="statelake-background")
