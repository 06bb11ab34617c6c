"""Databases whose answer to a commit is lost on its way."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError


def commit_that(does: Callable[[Callable[[], None]], None]) -> Callable[[sa.Connection], None]:
    """A commit whose answer is lost, whether it happened or not."""
    real = sa.Connection.commit

    def commit(self: sa.Connection) -> None:
        does(lambda: real(self))
        raise OperationalError("COMMIT", {}, Exception("the connection was closed"))

    return commit
