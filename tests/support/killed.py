"""The death of a process, simulated in the process of the test."""

from __future__ import annotations


class Killed(BaseException):
    """Raised where a process dies; no handler of errors catches it."""
