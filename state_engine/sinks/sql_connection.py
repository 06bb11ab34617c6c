"""A connection to the database of a table, and what its errors and a commit that breaks off mean.

Used for the tables that sinks append to and for those that show a keyed state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import NullPool

from state_engine.core.errors import (
    CommitFailedError,
    CommitUnknownError,
    SinkError,
    SinkIdentityError,
)
from state_engine.core.extras import missing
from state_engine.sinks.sql_target import SqlTarget

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
            f"{who}: {target.shown} cannot be used: {_one_line(error)}. Repair that and run again; nothing is lost"
        ) from error
    finally:
        engine.dispose()


@dataclass(frozen=True)
class SqlWrite:
    """One transaction that writes a checkpoint's rows, for the messages about it.

    Attributes:
        ways_out: what to do where the database refuses the rows, after "let the table take them and run again, or".
    """

    target: SqlTarget
    who: str
    checkpoint_id: int
    ways_out: str

    def commit(self, connection: sa.Connection, is_done: Callable[[sa.Connection], bool]) -> None:
        """Commit, and look again where the answer is lost.

        Args:
            is_done: whether the ledger, seen over another connection, holds what was committed.

        Raises:
            CommitFailedError: it does not: nothing was written.
            CommitUnknownError: it cannot be read.
        """
        try:
            connection.commit()
        except DBAPIError as error:
            if not self._look_again(is_done, error):
                raise self.refused(error) from error

    def _look_again(self, is_done: Callable[[sa.Connection], bool], error: DBAPIError) -> bool:
        try:
            with connected(self.target, self.who) as again:
                return is_done(again)
        except SinkIdentityError:
            raise
        except SinkError as unseen:
            raise CommitUnknownError(
                f"{self.who}: {self.target.shown}: the commit of checkpoint {self.checkpoint_id} broke off "
                f"({_one_line(error)}), and the ledger cannot be read. Run again: it is looked up first"
            ) from unseen

    def refused(self, error: DBAPIError, why: str = "") -> SinkError | CommitFailedError:
        """The error for rows that were not written: something was in the way, or they do not fit.

        Args:
            why: more than the database says; empty for that.
        """
        if isinstance(error, OperationalError | InterfaceError):
            return CommitFailedError(
                f"{self.who}: checkpoint {self.checkpoint_id} was not written to {self.target.shown} "
                f"({_one_line(error)}); run again"
            )
        return SinkError(
            f"{self.who}: {self.target.shown} does not take the rows of checkpoint {self.checkpoint_id}: "
            f"{why or _one_line(error)}. Nothing was published and nothing is lost: let the table take them and run "
            f"again, or {self.ways_out}"
        )


def _one_line(error: DBAPIError) -> str:
    """What the database said, on one line."""
    return " ".join(str(error.orig).split())
