"""A connection to the database of a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from state_engine.core.errors import SinkError
from state_engine.core.extras import missing
from state_engine.databases.target import SqlTarget

_LOCK_TIMEOUT_S = 60


@contextmanager
def connected(target: SqlTarget, who: str) -> Iterator[sa.Connection]:
    """A connection to the table's database; what is not committed in the end is rolled back."""
    url, password = sa.make_url(target.url), target.password()
    try:
        engine = sa.create_engine(
            url if password is None else url.set(password=password),
            poolclass=NullPool,
            hide_parameters=True,  # thousands of rows would hide the error
            connect_args={"timeout": _LOCK_TIMEOUT_S} if url.get_backend_name() == "sqlite" else {},
        )
    except ModuleNotFoundError as error:
        raise missing(str(error.name), needed_by=who) from error
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise SinkError(
            f"{who}: {target.shown} cannot be used: {one_line(error)}. Repair that and run again; nothing is lost"
        ) from error
    finally:
        engine.dispose()


def one_line(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())
